# shellcheck shell=bash
# Sourced inside. router: this network namespace forwards. The machine's default congestion control may be BBR, with
# which single streams stall on links as short as these. Addresses are given once: no duplicate detection.
router() { local f
  echo 1 >/proc/sys/net/ipv4/ip_forward; echo 1 >/proc/sys/net/ipv6/conf/all/forwarding
  echo reno >/proc/sys/net/ipv4/tcp_congestion_control
  for f in all default; do echo 0 >/proc/sys/net/ipv6/conf/$f/accept_dad; echo 0 >/proc/sys/net/ipv6/conf/$f/accept_ra; done; }
