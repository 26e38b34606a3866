//! What the guest is told about its addresses, routes, names and MTU.

use podvirt_e2e::Bed;

use super::Fact;

/// What DHCP or DHCPv6 said under this name.
fn dhcp(file: &'static str, name: &'static str) -> impl Fn(&mut Bed) -> anyhow::Result<String> {
    move |bed| bed.guest.sh(&format!("sed -n 's/^{name}=//p' /tmp/{file}.env"))
}

fn sh(command: &'static str) -> impl Fn(&mut Bed) -> anyhow::Result<String> {
    move |bed| bed.guest.sh(command)
}

/// Facts of a pod with 10.9.0.2/24, fd00:9::2/64 and two resolvers.
pub(crate) fn facts() -> Vec<Fact> {
    vec![
        Fact::new(
            "IPv4 address",
            "10.9.0.2/24",
            sh("ip -4 -o addr show dev eth0 scope global | awk '{print $4}' | xargs"),
        ),
        Fact::new(
            "IPv4 default route",
            "10.9.0.1 dev eth0",
            sh("ip -4 route show default | awk '{print $3, $4, $5}'"),
        ),
        Fact::new("DHCP router", "10.9.0.1", dhcp("dhcp", "router")),
        Fact::new("DHCP server", "10.9.0.1", dhcp("dhcp", "serverid")),
        Fact::new("DHCP MTU", "1500", dhcp("dhcp", "mtu")),
        Fact::new("DHCP resolvers", "10.9.0.1", dhcp("dhcp", "dns")),
        Fact::new("DHCP search domains", "pod.example test.example", dhcp("dhcp", "search")),
        Fact::new("DHCP host name", "pod", dhcp("dhcp", "hostname")).passt("Host name", ""),
        Fact::new("DHCP lease", "3600", dhcp("dhcp", "lease")).passt("Leases", "4294967295"),
        Fact::new("MTU of the link", "1500", sh("cat /sys/class/net/eth0/mtu")),
        Fact::new(
            "IPv6 addresses",
            "fd00:9::2/128",
            sh(
                "ip -6 -o addr show dev eth0 scope global | awk '{print $4}' | sed 's,^fd00:9::[^/]*:[^/]*/,(made by itself)/,' | sort | xargs",
            ),
        )
        .passt("IPv6 addresses", "(made by itself)/64 fd00:9::2/128"),
        Fact::new(
            "IPv6 default route",
            "via fe80 dev eth0",
            sh(
                "ip -6 route show default | sed -n 's/^default via \\(fe80\\)::[^ ]* dev eth0.*/via \\1 dev eth0/p'",
            ),
        ),
        Fact::new(
            "IPv6 on-link prefix",
            "fd00:9::/64",
            sh("ip -6 route show dev eth0 | awk '/^fd00:9::\\/64/ {print $1}'"),
        ),
        Fact::new("IPv6 MTU", "1500", sh("cat /proc/sys/net/ipv6/conf/eth0/mtu")),
        Fact::new("DHCPv6 address", "fd00:0009:0000:0000:0000:0000:0000:0002", dhcp("dhcp6", "ipv6")),
        Fact::new("DHCPv6 resolvers", "fd00:0009:0000:0000:0000:0000:0000:0001", dhcp("dhcp6", "dns")),
        Fact::new("DHCPv6 search domains", "pod.example test.example", dhcp("dhcp6", "search")),
        Fact::new("DHCPv6 lease", "3600", dhcp("dhcp6", "lease")).passt("Leases", "4294967295"),
    ]
}
