//! The tables `nat` are those of upstream's own tests, rule by rule and in their order. In a mesh those of IPv6 have the pod's address and
//! the proxy's ::6 as well, as those of IPv4 have, and UDP is led to the guest.

use super::*;

const V4: Family = Family {
    guest: IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 2, 2)),
    gateway: IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 2, 1)),
    pod: IpAddr::V4(std::net::Ipv4Addr::new(10, 222, 222, 1)),
};

fn v6() -> Family {
    Family::new("fd10:0:2::2/120".parse().unwrap(), "fd00:222::1".parse().unwrap())
}

fn port(protocol: PortProtocol, port: i32) -> Port {
    Port { protocol, port }
}

/// The rules of the table `nat` of a family, without quotes, each behind its chain.
fn nat(families: &[Family], word: &str, ports: &[Port], proxied: bool) -> Vec<String> {
    let script = commands(families, ports, proxied).replace('"', "");
    let start = format!("add rule {word} nat ");
    script.lines().filter_map(|line| line.strip_prefix(&start)).map(str::to_owned).collect()
}

#[test]
fn the_first_address_is_the_gateways() {
    assert_eq!(Family::new("10.0.2.2/24".parse().unwrap(), V4.pod), V4);
    assert_eq!(v6().gateway, "fd10:0:2::1".parse::<IpAddr>().unwrap());
    let own = Family::new("192.0.2.66/26".parse().unwrap(), V4.pod);
    assert_eq!(own.gateway, "192.0.2.65".parse::<IpAddr>().unwrap());
}

#[test]
fn chains_have_upstreams_hooks_and_are_empty_before_they_are_filled() {
    let script = commands(&[V4], &[], false);
    let lines: Vec<&str> = script.lines().collect();
    for (chain, hook) in [
        ("prerouting", " { type nat hook prerouting priority -100; }"),
        ("input", " { type nat hook input priority 100; }"),
        ("output", " { type nat hook output priority -100; }"),
        ("postrouting", " { type nat hook postrouting priority 100; }"),
        ("KUBEVIRT_PREINBOUND", " "),
        ("KUBEVIRT_POSTINBOUND", " "),
    ] {
        let made = format!("add chain ip nat {chain}{hook}");
        let at = lines.iter().position(|line| *line == made).unwrap_or_else(|| panic!("{made}: {script}"));
        assert_eq!(lines[at + 1], format!("flush chain ip nat {chain}"));
        let filled = format!("add rule ip nat {chain} ");
        assert!(!lines[..at].iter().any(|line| line.starts_with(&filled)), "{script}");
    }
    assert!(!script.contains("ip6"), "a pod without IPv6 has none of it: {script}");
}

#[test]
fn without_ports_everything_is_the_guests() {
    let families = [V4, v6()];
    assert_eq!(
        nat(&families, "ip", &[], false),
        [
            "postrouting ip saddr 10.0.2.2 counter masquerade",
            "prerouting iifname eth0 counter jump KUBEVIRT_PREINBOUND",
            "postrouting oifname k6t-eth0 counter jump KUBEVIRT_POSTINBOUND",
            "KUBEVIRT_PREINBOUND counter dnat to 10.0.2.2",
            "KUBEVIRT_POSTINBOUND ip saddr { 127.0.0.1 } counter snat to 10.0.2.1",
            "output ip daddr { 127.0.0.1 } counter dnat to 10.0.2.2",
        ]
    );
    assert_eq!(
        nat(&families, "ip6", &[], false),
        [
            "postrouting ip6 saddr fd10:0:2::2 counter masquerade",
            "prerouting iifname eth0 counter jump KUBEVIRT_PREINBOUND",
            "postrouting oifname k6t-eth0 counter jump KUBEVIRT_POSTINBOUND",
            "KUBEVIRT_PREINBOUND counter dnat to fd10:0:2::2",
            "KUBEVIRT_POSTINBOUND ip6 saddr { ::1 } counter snat to fd10:0:2::1",
            "output ip6 daddr { ::1 } counter dnat to fd10:0:2::2",
        ]
    );
}

#[test]
fn listed_ports_alone_are_the_guests() {
    let ports = [port(PortProtocol::Tcp, 80), port(PortProtocol::Udp, 8080)];
    assert_eq!(
        nat(&[V4], "ip", &ports, false)[3..],
        [
            "KUBEVIRT_PREINBOUND tcp dport { 80 } counter dnat to 10.0.2.2",
            "KUBEVIRT_POSTINBOUND tcp dport 80 ip saddr { 127.0.0.1 } counter snat to 10.0.2.1",
            "output ip daddr { 127.0.0.1 } tcp dport 80 counter dnat to 10.0.2.2",
            "KUBEVIRT_PREINBOUND udp dport { 8080 } counter dnat to 10.0.2.2",
            "KUBEVIRT_POSTINBOUND udp dport 8080 ip saddr { 127.0.0.1 } counter snat to 10.0.2.1",
            "output ip daddr { 127.0.0.1 } udp dport 8080 counter dnat to 10.0.2.2",
        ]
    );
    assert_eq!(
        nat(&[v6()], "ip6", &ports[..1], false)[3..],
        [
            "KUBEVIRT_PREINBOUND tcp dport { 80 } counter dnat to fd10:0:2::2",
            "KUBEVIRT_POSTINBOUND tcp dport 80 ip6 saddr { ::1 } counter snat to fd10:0:2::1",
            "output ip6 daddr { ::1 } tcp dport 80 counter dnat to fd10:0:2::2",
        ]
    );
}

#[test]
fn in_a_mesh_the_proxy_stands_before_the_guest() {
    let proxys = "tcp dport { 15000, 15001, 15004, 15006, 15008, 15009, 15020, 15021, 15053, 15090 }";
    let families = [V4, v6()];
    assert_eq!(
        nat(&families, "ip", &[], true)[3..],
        [
            format!("output {proxys} ip saddr 127.0.0.1 counter return"),
            format!("KUBEVIRT_POSTINBOUND {proxys} ip saddr 127.0.0.1 counter return"),
            "KUBEVIRT_PREINBOUND tcp dport { 22 } counter dnat to 10.0.2.2".to_owned(),
            "KUBEVIRT_PREINBOUND meta l4proto udp counter dnat to 10.0.2.2".to_owned(),
            "KUBEVIRT_POSTINBOUND ip saddr { 127.0.0.1, 127.0.0.6 } counter snat to 10.0.2.1".to_owned(),
            "output ip daddr { 127.0.0.1, 10.222.222.1 } counter dnat to 10.0.2.2".to_owned(),
        ]
    );
    assert_eq!(
        nat(&families, "ip6", &[], true)[3..],
        [
            format!("output {proxys} ip6 saddr ::1 counter return"),
            format!("KUBEVIRT_POSTINBOUND {proxys} ip6 saddr ::1 counter return"),
            "KUBEVIRT_PREINBOUND tcp dport { 22 } counter dnat to fd10:0:2::2".to_owned(),
            "KUBEVIRT_PREINBOUND meta l4proto udp counter dnat to fd10:0:2::2".to_owned(),
            "KUBEVIRT_POSTINBOUND ip6 saddr { ::1, ::6 } counter snat to fd10:0:2::1".to_owned(),
            "output ip6 daddr { ::1, fd00:222::1 } counter dnat to fd10:0:2::2".to_owned(),
        ]
    );
    let udp = [port(PortProtocol::Udp, 5353)];
    assert_eq!(
        nat(&families, "ip", &udp, true)[3],
        "KUBEVIRT_PREINBOUND udp dport { 5353 } counter dnat to 10.0.2.2"
    );
    let ports = [port(PortProtocol::Tcp, 22), port(PortProtocol::Tcp, 8080)];
    assert_eq!(
        nat(&families, "ip", &ports, true)[3..],
        [
            "KUBEVIRT_PREINBOUND tcp dport { 22 } counter dnat to 10.0.2.2",
            "KUBEVIRT_POSTINBOUND tcp dport 22 ip saddr { 127.0.0.1, 127.0.0.6 } counter snat to 10.0.2.1",
            "output ip daddr { 127.0.0.1, 10.222.222.1 } tcp dport 22 counter dnat to 10.0.2.2",
            "KUBEVIRT_POSTINBOUND tcp dport 8080 ip saddr { 127.0.0.1, 127.0.0.6 } counter snat to 10.0.2.1",
            "output ip daddr { 127.0.0.1, 10.222.222.1 } tcp dport 8080 counter dnat to 10.0.2.2",
        ]
    );
    assert_eq!(
        nat(&families, "ip6", &ports, true)[3..],
        [
            "KUBEVIRT_PREINBOUND tcp dport { 22 } counter dnat to fd10:0:2::2",
            "KUBEVIRT_POSTINBOUND tcp dport 22 ip6 saddr { ::1, ::6 } counter snat to fd10:0:2::1",
            "output ip6 daddr { ::1, fd00:222::1 } tcp dport 22 counter dnat to fd10:0:2::2",
            "KUBEVIRT_POSTINBOUND tcp dport 8080 ip6 saddr { ::1, ::6 } counter snat to fd10:0:2::1",
            "output ip6 daddr { ::1, fd00:222::1 } tcp dport 8080 counter dnat to fd10:0:2::2",
        ]
    );
}

#[test]
fn questions_go_to_the_services_and_a_guest_has_one_name() {
    let script = commands(&[V4, v6()], &[], false);
    let own: Vec<&str> =
        script.lines().filter(|l| l.starts_with("add rule") && l.contains("podvirt")).collect();
    assert_eq!(
        own,
        [
            "add rule ip podvirt forward iifname \"k6t-eth0\" ip saddr != 10.0.2.2 counter drop",
            "add rule ip podvirt forward iifname != \"k6t-eth0\" oifname != \"k6t-eth0\" counter drop",
            "add rule ip6 podvirt forward iifname \"k6t-eth0\" ip6 saddr != fd10:0:2::2 counter drop",
            "add rule ip6 podvirt forward iifname != \"k6t-eth0\" oifname != \"k6t-eth0\" counter drop",
            "add rule netdev podvirt asked_tap0 udp dport 67 counter fwd to \"dhcp0\"",
            "add rule netdev podvirt asked_tap0 udp dport 547 counter fwd to \"dhcp0\"",
            "add rule netdev podvirt asked_tap0 icmpv6 type nd-router-solicit counter fwd to \"dhcp0\"",
            "add rule netdev podvirt answered_tap0 counter fwd to \"tap0\"",
        ]
    );
}
