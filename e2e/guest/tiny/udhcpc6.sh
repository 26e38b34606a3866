#!/bin/sh
# The address of DHCPv6; router and prefix come from the kernel's own reading of the router advertisement.
case $1 in bound | renew)
  env >/tmp/dhcp6.env
  [ -z "$ipv6" ] || ip -6 addr replace "$ipv6/128" dev "$interface"
  for d in $dns; do grep -q "nameserver $d$" /etc/resolv.conf || echo "nameserver $d" >>/etc/resolv.conf; done ;;
esac
