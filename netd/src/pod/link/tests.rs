use super::*;
use crate::config::file::File;
use crate::net::Route;
use crate::pod::Family;

fn config(yaml: &str) -> Config {
    File::parse(&format!("vhost_user: {{ socket: /run/vm.sock }}\n{yaml}")).unwrap().check().unwrap()
}

/// A pod with `10.9.0.2/24`-like texts; an empty text leaves the family out.
fn pod(v4: &str, gateway: &str, v6: &str) -> PodFacts {
    let v4 = v4.split_once('/').map(|(a, p)| Family {
        address: a.parse().unwrap(),
        prefix_len: p.parse().unwrap(),
        gateway: gateway.parse().ok(),
        default_route: !gateway.is_empty(),
        routes: vec![Route { to: "172.30.0.0/16".parse().unwrap(), via: None }],
    });
    let v6 = v6.split_once('/').map(|(a, p)| Family {
        address: a.parse().unwrap(),
        prefix_len: p.parse().unwrap(),
        gateway: Some("fe80::1".parse().unwrap()),
        default_route: true,
        routes: vec![],
    });
    PodFacts {
        interface: "eth0".into(),
        mtu: 1450,
        mac: Some(MacAddr([0x0a, 0x58, 10, 9, 0, 2])),
        hostname: Some("vm1".into()),
        v4,
        v6,
        own: vec!["10.9.0.2".parse().unwrap(), "fd00:9::2".parse().unwrap(), "fd00:9::3".parse().unwrap()],
        others: vec!["10.8.0.2".parse().unwrap(), "10.9.0.2".parse().unwrap()],
    }
}

#[test]
fn every_address_of_the_pod_is_closed_and_with_one_interface_those_of_it() {
    let pod = pod("10.9.0.2/24", "10.9.0.1", "fd00:9::2/64");
    let open = |yaml: &str| {
        let link = build(yaml, &pod).unwrap();
        let to = |a: &&str| link.destination_for_pod(a.parse().unwrap()).is_some();
        ["10.9.0.2", "10.8.0.2", "10.9.0.3", "fd00:9::2", "fd00:9::3", "fd00:9::4"]
            .into_iter()
            .filter(to)
            .collect::<Vec<_>>()
    };
    assert_eq!(open(""), ["10.9.0.3", "fd00:9::4"]);
    // The kernel leads no socket of the one interface to an address of another.
    assert_eq!(open("interface: eth0\nbind_interface: true"), ["10.8.0.2", "10.9.0.3", "fd00:9::4"]);
    // What is opened is open, whatever else has the address.
    assert_eq!(open("loopback: {ipv4: 10.8.0.2}"), ["10.8.0.2", "10.9.0.3", "fd00:9::4"]);
}

fn build(yaml: &str, pod: &PodFacts) -> Result<Link, LinkError> {
    build_link(&config(yaml), pod, &ResolvConf::default()).map(|b| b.link)
}

#[test]
fn passthrough_gives_the_guest_what_the_pod_has() {
    for (address, gateway, expected) in [
        ("10.9.0.2/24", "10.9.0.1", "10.9.0.1"),
        ("10.9.0.2/32", "169.254.1.1", "169.254.1.1"),
        // No gateway, or one that the guest could not tell from itself: one is made up.
        ("10.9.0.2/24", "", "10.9.0.1"),
        ("10.9.0.1/24", "", "10.9.0.2"),
        ("10.9.0.1/24", "10.9.0.1", "10.9.0.2"),
        ("10.9.0.2/24", "0.0.0.0", "10.9.0.1"),
        ("10.9.0.2/31", "", "10.9.0.3"),
        ("10.9.0.2/32", "", "169.254.1.1"),
        ("10.9.0.2/32", "10.9.0.2", "169.254.1.1"),
        ("169.254.1.1/32", "", "169.254.1.2"),
        ("10.9.0.2/0", "", "0.0.0.1"),
    ] {
        let link = build("", &pod(address, gateway, "fd00:9::2/64")).unwrap();
        let (v4, v6) = (link.v4.unwrap(), link.v6.unwrap());
        assert_eq!(format!("{}/{}", v4.guest, v4.prefix_len), address);
        assert_eq!((v4.gateway.to_string().as_str(), v4.pod), (expected, v4.guest), "{address} {gateway}");
        assert_eq!((v4.routes.len(), v4.loopback), (1, None));
        assert_eq!(format!("{}/{}", v6.guest, v6.prefix_len), "fd00:9::2/64");
        assert_eq!((v6.gateway, v6.pod), (link.mac.link_local(), v6.guest));
    }
}

#[test]
fn the_families_are_the_pods() {
    for yaml in ["", "mode: masquerade"] {
        let families = |v4, v6| build(yaml, &pod(v4, "", v6)).map(|l| (l.v4.is_some(), l.v6.is_some()));
        assert_eq!(families("10.9.0.2/24", ""), Ok((true, false)));
        assert_eq!(families("", "fd00:9::2/128"), Ok((false, true)));
        assert_eq!(families("10.9.0.2/24", "fd00:9::2/64"), Ok((true, true)));
        assert_eq!(families("", ""), Err(LinkError::NoAddress { interface: "eth0".into() }));
    }
}

#[test]
fn masquerade_addresses_do_not_depend_on_the_pod() {
    let link = build("mode: masquerade", &pod("10.9.0.2/32", "169.254.1.1", "fd00:9::2/64")).unwrap();
    let (v4, v6) = (link.v4.unwrap(), link.v6.unwrap());
    assert_eq!((v4.guest.to_string().as_str(), v4.prefix_len), ("10.0.2.2", 24));
    assert_eq!((v4.gateway.to_string().as_str(), v4.pod.to_string().as_str()), ("10.0.2.1", "10.9.0.2"));
    assert!(v4.routes.is_empty());
    assert_eq!((v6.guest.to_string().as_str(), v6.prefix_len), ("fd10:0:2::2", 120));
    assert_eq!((v6.gateway, v6.pod.to_string().as_str()), (link.mac.link_local(), "fd00:9::2"));
}

#[test]
fn the_mtu_is_the_pods_within_bounds_unless_it_is_configured() {
    let mut facts = pod("10.9.0.2/24", "", "fd00:9::2/64");
    for (of_pod, yaml, expected) in
        [(1450, "", 1450), (65536, "", 65535), (1280, "", 1280), (1450, "mtu: 9000", 9000), (10, "", 68)]
    {
        facts.mtu = of_pod;
        assert_eq!(build(yaml, &facts).unwrap().mtu, expected, "{of_pod} {yaml}");
    }
    // RFC 8200, section 5: no IPv6 below 1280.
    assert!(build("mtu: 1279", &facts).unwrap().v6.is_none());
    assert!(build("mtu: 1280", &facts).unwrap().v6.is_some());
    facts.v4 = None;
    assert_eq!(build("mtu: 1279", &facts), Err(LinkError::MtuTooSmall { mtu: 1279 }));
}

#[test]
fn netds_own_address_is_stable_local_and_unique() {
    let facts = pod("10.9.0.2/24", "", "");
    let of_pod = build("", &facts).unwrap().mac;
    assert_eq!(of_pod, build("", &facts).unwrap().mac);
    assert_eq!(of_pod.0[0] & 3, 2, "locally administered, not a group");
    assert_ne!(Some(of_pod), facts.mac);

    let yaml = "guest: { mac: 52:54:00:11:22:33 }";
    let of_guest = build(yaml, &facts).unwrap().mac;
    let elsewhere = PodFacts { mac: Some(MacAddr([0x0a, 0x58, 10, 9, 0, 77])), ..facts.clone() };
    assert_eq!(of_guest, build(yaml, &elsewhere).unwrap().mac, "the guest keeps its gateway when it moves");
    assert_ne!(of_pod, build("", &elsewhere).unwrap().mac);

    let link = build("mac: 02:00:00:00:00:99", &facts).unwrap();
    assert_eq!(link.mac.to_string(), "02:00:00:00:00:99");
    let without = PodFacts { mac: None, ..facts };
    assert_eq!(build("", &without).unwrap().mac.0[0], 2);
}

#[test]
fn names_come_from_the_configuration_or_the_pod() {
    let mut facts = pod("10.9.0.2/24", "", "");
    let names = |yaml: &str, facts: &PodFacts| {
        let link = build(yaml, facts).unwrap();
        [link.hostname, link.fqdn].map(Option::unwrap_or_default)
    };
    assert_eq!(names("", &facts), ["vm1", ""]);
    facts.hostname = Some("vm1.ns.example.org".into());
    assert_eq!(names("", &facts), ["vm1", "vm1.ns.example.org"]);
    assert_eq!(names("guest: { hostname: other }", &facts), ["other", ""]);
    assert_eq!(names("guest: { fqdn: a.example }", &facts), ["vm1", "a.example"]);
    for useless in ["localhost", "a b", "(none)"] {
        facts.hostname = Some(useless.into());
        assert_eq!(names("", &facts), ["", ""], "{useless}");
    }
}

#[test]
fn the_guest_is_told_of_resolvers_that_it_can_reach() {
    let conf = ResolvConf::parse(
        "search a.example b.example\nnameserver 127.0.0.53\nnameserver 127.0.0.1\nnameserver 10.96.0.10\n\
         nameserver ::1\nnameserver fd00:96::a\nnameserver 10.9.0.2\nnameserver 10.96.0.10",
    );
    let dual = pod("10.9.0.2/24", "", "fd00:9::2/64");
    let v4_only = pod("10.9.0.2/24", "", "");
    let dns = |yaml: &str, facts: &PodFacts| {
        let link = build_link(&config(yaml), facts, &conf).unwrap().link;
        link.dns.iter().map(IpAddr::to_string).collect::<Vec<_>>()
    };
    assert_eq!(dns("", &dual), ["10.96.0.10", "fd00:96::a"]);
    assert_eq!(dns("", &v4_only), ["10.96.0.10"]);
    let opened = "loopback: { ipv4: 192.0.2.9, ipv6: \"2001:db8::9\" }";
    assert_eq!(dns(opened, &dual), ["192.0.2.9", "10.96.0.10", "2001:db8::9", "fd00:96::a"]);
    assert_eq!(dns("guest: { dns: [192.0.2.53] }", &dual), ["192.0.2.53"]);

    let Built { link, notes } = build_link(&config(""), &dual, &conf).unwrap();
    let left_out = |address: &str| notes.iter().any(|n| n.starts_with(&format!("resolver {address}: ")));
    assert!(left_out("127.0.0.53") && left_out("127.0.0.1") && left_out("::1") && left_out("10.9.0.2"));
    assert_eq!(notes.len(), 4);
    assert_eq!(link.search, ["a.example", "b.example"]);
    let link = build_link(&config("guest: { search: [c.example] }"), &dual, &conf).unwrap().link;
    assert_eq!(link.search, ["c.example"]);
}

#[test]
fn routes_are_bounded() {
    let mut facts = pod("10.9.0.2/24", "", "");
    let route = Route { to: "172.30.0.0/16".parse().unwrap(), via: None };
    facts.v4.as_mut().unwrap().routes = vec![route; MAX_ROUTES + 1];
    let built = build_link(&config("guest: { dns: [] }"), &facts, &ResolvConf::default()).unwrap();
    assert_eq!(built.link.v4.unwrap().routes.len(), MAX_ROUTES);
    assert_eq!(built.notes, ["routes: the first 64 of 65 only"]);
}

#[test]
fn the_loopback_address_cannot_be_the_guests_own() {
    let facts = pod("10.9.0.2/24", "", "fd00:9::2/64");
    let field = |yaml: &str| match build(yaml, &facts) {
        Err(LinkError::LoopbackTaken { field, .. }) => Some(field),
        _ => None,
    };
    assert_eq!(field("loopback: { ipv4: 10.9.0.2 }"), Some("loopback.ipv4"));
    assert_eq!(field("loopback: { ipv6: \"fd00:9::2\" }"), Some("loopback.ipv6"));
    assert_eq!(field("loopback: { ipv4: 10.0.2.2 }\nmode: masquerade"), Some("loopback.ipv4"));
    // The gateway's address is allowed to an operator who writes it down.
    let link = build("loopback: { ipv4: 10.9.0.1 }", &facts).unwrap();
    let to = link.destination_for_pod("10.9.0.1".parse().unwrap());
    assert_eq!(to, Some(Ipv4Addr::LOCALHOST.into()));
}

#[test]
fn a_bound_interface_is_a_default_route_only_where_it_has_one() {
    let bound = "interface: net1\nbind_interface: true";
    let told = |yaml: &str, gateway: &str| {
        let link = build(yaml, &pod("10.9.0.2/24", gateway, "")).unwrap();
        link.v4.unwrap().default_route
    };
    assert!(told("", "") && told(bound, "10.9.0.1"));
    assert!(!told(bound, ""));
}

#[test]
fn resolvers_behind_another_interface_are_not_told() {
    let resolv = ResolvConf {
        nameservers: ["10.96.0.10", "10.9.0.53", "172.30.0.53"].map(|a| a.parse().unwrap()).to_vec(),
        ..ResolvConf::default()
    };
    let bound = config("interface: net1\nbind_interface: true");
    let built = build_link(&bound, &pod("10.9.0.2/24", "", ""), &resolv).unwrap();
    assert_eq!(built.link.dns, ["10.9.0.53", "172.30.0.53"].map(|a| a.parse::<IpAddr>().unwrap()));
    assert_eq!(built.notes, ["resolver 10.96.0.10: no route by this interface leads there"]);
}
