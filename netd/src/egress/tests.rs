use super::*;
use crate::counters::Reason;
use crate::net::{Link, Mode, test_link};

fn rule(action: Action, to: &str, kind: Option<Kind>, ports: &[&str]) -> Rule {
    let to = to.split_ascii_whitespace().map(|n| n.parse().unwrap()).collect();
    Rule { action, to, kind, ports: ports.iter().map(|p| p.parse().unwrap()).collect() }
}

fn allowed(egress: &Egress, kind: Kind, peer: &str) -> bool {
    egress.allows(kind, peer.parse().unwrap()) == Verdict::Allowed
}

fn out(link: &Link, kind: Kind, peer: &str) -> Result<String, Reason> {
    link.way_out(kind, peer.parse().unwrap()).map(|a| a.to_string())
}

#[test]
fn metadata_services_are_closed_by_default_in_every_disguise() {
    let egress = Egress::default();
    for address in METADATA {
        for kind in [Kind::Tcp, Kind::Udp, Kind::Echo] {
            let peer = SocketAddr::new(*address, 80);
            assert_eq!(egress.allows(kind, peer), Verdict::Denied, "{address}");
        }
    }
    // IPv4-mapped, and through NAT64.
    assert!(!allowed(&egress, Kind::Tcp, "[::ffff:169.254.169.254]:80"));
    assert!(!allowed(&egress, Kind::Tcp, "[64:ff9b::169.254.169.254]:80"));
    for open in
        ["169.254.169.253:53", "169.254.20.10:53", "169.254.1.1:80", "[fd00:ec2::253]:53", "192.0.2.1:80"]
    {
        assert!(allowed(&egress, Kind::Tcp, open), "{open}");
    }
    let opened = Egress { metadata: Action::Allow, ..Egress::default() };
    assert!(allowed(&opened, Kind::Tcp, "169.254.169.254:80"));
}

#[test]
fn a_rule_does_not_open_metadata_but_closes_it_where_it_is_opened() {
    let rules = vec![rule(Action::Allow, "169.254.0.0/16", None, &[])];
    assert!(!allowed(&Egress { rules, ..Egress::default() }, Kind::Tcp, "169.254.169.254:80"));
    let rules = vec![rule(Action::Deny, "169.254.0.0/16", Some(Kind::Tcp), &["80"])];
    let egress = Egress { metadata: Action::Allow, rules, ..Egress::default() };
    assert!(!allowed(&egress, Kind::Tcp, "169.254.169.254:80"));
    assert!(allowed(&egress, Kind::Tcp, "169.254.169.254:443"));
}

#[test]
fn the_first_rule_that_matches_wins() {
    let egress = Egress {
        rules: vec![
            rule(Action::Allow, "10.1.0.0/16", Some(Kind::Tcp), &["443", "8000-8099"]),
            rule(Action::Deny, "10.0.0.0/8 fd00::/8", None, &[]),
            rule(Action::Allow, "10.1.2.3/32", None, &[]),
        ],
        ..Egress::default()
    };
    for (kind, peer, expected) in [
        (Kind::Tcp, "10.1.2.3:443", true),
        (Kind::Tcp, "10.1.2.3:8099", true),
        (Kind::Tcp, "10.1.2.3:8100", false),
        (Kind::Udp, "10.1.2.3:443", false),
        (Kind::Echo, "10.1.2.3:0", false),
        (Kind::Tcp, "10.2.0.1:443", false),
        (Kind::Tcp, "[fd00:9::1]:443", false),
        (Kind::Tcp, "[64:ff9b::10.2.0.1]:443", false),
        (Kind::Tcp, "[64:ff9b::10.1.0.1]:443", true),
        (Kind::Udp, "192.0.2.1:9", true),
        (Kind::Echo, "[2001:db8::1]:0", true),
    ] {
        assert_eq!(allowed(&egress, kind, peer), expected, "{kind:?} {peer}");
    }
}

#[test]
fn where_no_rule_matches_the_default_decides() {
    let rules = vec![
        rule(Action::Allow, "", Some(Kind::Tcp), &["443"]),
        rule(Action::Allow, "192.0.2.0/24", Some(Kind::Echo), &[]),
    ];
    let egress = Egress { default: Action::Deny, rules, ..Egress::default() };
    assert!(allowed(&egress, Kind::Tcp, "[2001:db8::1]:443"));
    assert!(!allowed(&egress, Kind::Tcp, "[2001:db8::1]:80"));
    assert!(allowed(&egress, Kind::Echo, "192.0.2.9:0"));
    assert!(!allowed(&egress, Kind::Udp, "192.0.2.9:443"));
}

#[test]
fn a_rule_with_ports_says_nothing_of_pings() {
    let rules = vec![rule(Action::Deny, "", None, &["1-65535"])];
    let egress = Egress { rules, ..Egress::default() };
    assert!(!allowed(&egress, Kind::Udp, "192.0.2.1:7"));
    assert!(allowed(&egress, Kind::Echo, "192.0.2.1:7"));
}

#[test]
fn resolvers_are_reached_at_port_53_whatever_the_policy_says() {
    let mut link = test_link();
    link.dns = ["169.254.169.254", "169.254.20.10", "fd00:96::a"].map(|a| a.parse().unwrap()).into();
    link.egress = Egress { default: Action::Deny, ..Egress::default() }.into();
    for kind in [Kind::Tcp, Kind::Udp] {
        for peer in ["169.254.169.254:53", "169.254.20.10:53", "[fd00:96::a]:53"] {
            assert_eq!(out(&link, kind, peer).as_deref(), Ok(peer));
        }
        for peer in ["169.254.169.254:80", "169.254.20.10:54", "192.0.2.1:53"] {
            assert_eq!(out(&link, kind, peer), Err(Reason::EgressDenied), "{peer}");
        }
    }
    assert_eq!(out(&link, Kind::Echo, "169.254.20.10:53"), Err(Reason::EgressDenied));
}

#[test]
fn what_is_closed_on_every_link_cannot_be_opened() {
    for mode in [Mode::Passthrough, Mode::Masquerade] {
        let mut link = Link { mode, ..test_link() };
        let rules = vec![rule(Action::Allow, "0.0.0.0/0 ::/0", None, &[])];
        link.egress = Egress { metadata: Action::Allow, rules, ..Egress::default() }.into();
        for closed in [
            "127.0.0.1:80",
            "0.0.0.0:80",
            "10.9.0.2:80",
            "224.0.0.251:5353",
            "255.255.255.255:9",
            "[::1]:80",
            "[::]:80",
            "[fd00:9::2]:80",
            "[ff02::fb]:5353",
            "[fe80::a9fe:a9fe]:80",
            "[::ffff:10.9.0.2]:80",
        ] {
            assert_eq!(out(&link, Kind::Tcp, closed), Err(Reason::Denied), "{closed}");
        }
    }
}

#[test]
fn the_pods_peer_is_judged_not_the_guests_name_for_it() {
    let mut link = test_link();
    link.v4.as_mut().unwrap().loopback = Some([192, 0, 2, 99].into());
    assert_eq!(out(&link, Kind::Tcp, "192.0.2.99:80").as_deref(), Ok("127.0.0.1:80"));
    let rules = vec![rule(Action::Deny, "127.0.0.0/8", None, &["15000"])];
    link.egress = Egress { rules, ..Egress::default() }.into();
    assert_eq!(out(&link, Kind::Tcp, "192.0.2.99:15000"), Err(Reason::EgressDenied));
    assert_eq!(out(&link, Kind::Tcp, "192.0.2.99:80").as_deref(), Ok("127.0.0.1:80"));
}

#[test]
fn rules_read_like_sentences() {
    let text = |r: Rule| r.to_string();
    assert_eq!(text(rule(Action::Deny, "", None, &[])), "deny");
    assert_eq!(
        text(rule(Action::Allow, "10.0.0.0/8 fd00::/8", Some(Kind::Tcp), &["443", "8000-8099"])),
        "allow tcp ports 443,8000-8099 to 10.0.0.0/8,fd00::/8"
    );
}
