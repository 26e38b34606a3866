#!/bin/sh
# What DHCP said becomes the NIC's configuration; everything it said is kept in /tmp/dhcp.env.
case $1 in bound | renew)
  env >/tmp/dhcp.env
  # A renewal must not take the address away, not even for a moment: connections stand on it. Another lease's goes.
  address=$ip/${mask:-24} kept=/tmp/dhcp.$interface
  was=$(cat "$kept" 2>/dev/null); echo "$address" >"$kept"
  ip addr replace "$address" dev "$interface"
  [ "${was:-$address}" = "$address" ] || ip addr del "$was" dev "$interface"
  [ -z "$mtu" ] || ip link set dev "$interface" mtu "$mtu"
  # A gateway outside the subnet (pods with a /32) is reached straight through the link.
  for r in $router; do ip route replace "$r" dev "$interface"; ip route replace default via "$r" dev "$interface"; done
  for d in $dns; do grep -q "nameserver $d$" /etc/resolv.conf || echo "nameserver $d" >>/etc/resolv.conf; done
  [ -z "$search$domain" ] || grep -q ^search /etc/resolv.conf || echo "search ${search:-$domain}" >>/etc/resolv.conf ;;
esac
