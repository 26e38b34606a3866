use proptest::prelude::*;

use super::*;

fn read(text: &str) -> Result<PortSpec, Problems> {
    let words: Vec<String> = text.split(',').map(str::to_owned).collect();
    let mut problems = Problems::default();
    let spec = PortSpec::read(&words, "ports.tcp", &mut problems);
    if problems.0.is_empty() { Ok(spec) } else { Err(problems) }
}

fn tcp(text: &str) -> Ports {
    Ports { tcp: read(text).unwrap(), udp: PortSpec::default(), ..Ports::default() }
}

fn pairs(expansion: &Expansion) -> Vec<(u16, u16)> {
    expansion.rules.iter().map(|r| (r.pod, r.guest)).collect()
}

#[test]
fn entries_lead_pod_ports_to_guest_ports() {
    let out = expand(&tcp("80,2222:22,8000-8002:9000-9002,~8001"), None);
    assert_eq!(pairs(&out), [(80, 80), (2222, 22), (8000, 9000), (8002, 9002)]);
    assert_eq!(out.beyond_budget, 0);
}

#[test]
fn none_forwards_nothing() {
    assert!(expand(&tcp("none"), None).rules.is_empty());
}

#[test]
fn exceptions_alone_start_from_all() {
    let spec = read("~22").unwrap();
    assert!(spec.all);
    assert!(!read("80,~22").unwrap().all);
}

#[test]
fn an_explicit_entry_wins_over_all() {
    let out = expand(&tcp("all,2222:22"), PortRange::new(3000, 65535));
    assert!(out.rules.contains(&PortRule { proto: Proto::Tcp, pod: 2222, guest: 22 }));
    assert_eq!(out.rules.len(), 2999);
}

#[test]
fn all_leaves_out_ephemeral_and_reserved_ports() {
    let mut ports = tcp("all");
    ports.all_ports_budget = 65_535;
    let out = expand(&ports, PortRange::new(32768, 60999));
    assert_eq!(out.rules.len(), 65_535 - 28_232 - ISTIO_TCP.len() - LINKERD_TCP.len());
    let has = |p| out.rules.iter().any(|r| r.pod == p);
    assert!(has(1) && has(32767) && has(61000) && has(65535));
    assert!(!has(32768) && !has(60999) && !has(15001) && !has(4143));
}

#[test]
fn an_explicit_reserved_port_is_left_out_and_told() {
    let out = expand(&tcp("80,15001"), None);
    assert_eq!(pairs(&out), [(80, 80)]);
    assert_eq!(out.reserved, [PortRule { proto: Proto::Tcp, pod: 15001, guest: 15001 }]);
}

#[test]
fn protocols_share_the_budget_of_all() {
    let ports = Ports { all_ports_budget: 100, ..Ports::default() };
    let out = expand(&ports, None);
    let count = |proto| out.rules.iter().filter(|r| r.proto == proto).count();
    assert_eq!((count(Proto::Tcp), count(Proto::Udp)), (50, 50));
    assert_eq!(out.rules.last().map(|r| r.pod), Some(50));
    let ports = Ports { udp: read("~11-65535").unwrap(), ..ports };
    let out = expand(&ports, None);
    let count = |proto| out.rules.iter().filter(|r| r.proto == proto).count();
    assert_eq!((count(Proto::Tcp), count(Proto::Udp)), (90, 10));
}

#[test]
fn explicit_entries_are_outside_the_budget() {
    let ports = Ports { all_ports_budget: 0, ..tcp("all,80,443") };
    assert_eq!(pairs(&expand(&ports, None)), [(80, 80), (443, 443)]);
}

#[test]
fn wrong_entries_are_all_told_with_their_place() {
    let problems = read("0,70000,9-8,1-2:3-5,none,80,70-90,~x,+5").unwrap_err();
    let fields: Vec<&str> = problems.0.iter().map(|p| p.field.as_str()).collect();
    let expected = [0, 1, 2, 3, 4, 6, 7, 8].map(|i| format!("ports.tcp[{i}]"));
    assert_eq!(fields, expected);
    assert_eq!(problems.0[5].allowed, "'80' has ports of the pod in common");
}

#[test]
fn reserved_takes_presets_and_ranges() {
    let mut problems = Problems::default();
    let words = ["linkerd".to_owned(), "9000-9010".to_owned(), "consul".to_owned()];
    let reserved = Reserved::read(&words, "ports.reserved", &mut problems);
    assert!(reserved.contains(Proto::Udp, 9005) && reserved.contains(Proto::Tcp, 4140));
    assert!(!reserved.contains(Proto::Udp, 4140) && !reserved.contains(Proto::Tcp, 15001));
    assert_eq!(problems.0.len(), 1);
    assert_eq!(problems.0[0].field, "ports.reserved[2]");
}

#[test]
fn a_port_of_a_preset_is_the_guests_where_no_injector_has_put_a_proxy_into_the_pod() {
    let given_way = |tcp: &str, udp: &str| {
        let mut problems = Problems::default();
        let words = ["istio", "linkerd", "4189-4190", "4191", "9000"].map(str::to_owned);
        let mut ports = Ports {
            tcp: read(tcp).unwrap(),
            udp: read(udp).unwrap(),
            reserved: Reserved::read(&words, "ports.reserved", &mut problems),
            all_ports_budget: 131_070,
            ..Ports::default()
        };
        ports.reserved.give_way(Proto::Tcp, &ports.tcp);
        ports.reserved.give_way(Proto::Udp, &ports.udp);
        expand(&ports, None)
    };
    // What the operator reserves stays reserved, and so do ports that a list does not name.
    let out = given_way("7777,15090,4143:80,4190,4191,9000", "15053");
    let reserved: Vec<u16> = out.reserved.iter().map(|rule| rule.pod).collect();
    assert_eq!(reserved, [4190, 4191, 9000]);
    assert_eq!(pairs(&out), [(4143, 80), (7777, 7777), (15090, 15090), (15053, 15053)]);
    // A pod joins ambient mode while it runs.
    let out = given_way("all,15008", "all");
    let has = |proto, port| out.rules.iter().any(|rule| rule.proto == proto && rule.pod == port);
    for port in [4140, 4143, 15000, 15004, 15008, 15009, 15020, 15021, 15090] {
        assert!(has(Proto::Tcp, port), "{port}");
    }
    for port in [4190, 4191, 9000, 15001, 15006, 15053] {
        assert!(!has(Proto::Tcp, port), "{port}");
    }
    assert!(has(Proto::Udp, 15008) && !has(Proto::Udp, 15053));
}

fn range() -> impl Strategy<Value = PortRange> {
    (1..=u16::MAX, 0..200u16)
        .prop_filter_map("in range", |(first, span)| PortRange::new(first, first.checked_add(span)?))
}

fn spec() -> impl Strategy<Value = PortSpec> {
    let map = (range(), 1..=u16::MAX).prop_filter_map("in range", |(pod, first)| {
        Some(PortMap { pod, guest: PortRange::new(first, first.checked_add(pod.span())?)? })
    });
    (any::<bool>(), prop::collection::vec(map, 0..5), prop::collection::vec(range(), 0..5)).prop_map(
        |(all, maps, except)| {
            // Only what the parser lets through: no two entries with a port in common.
            let mut kept: Vec<PortMap> = Vec::new();
            for map in maps {
                if !kept.iter().any(|m| m.pod.overlaps(map.pod)) {
                    kept.push(map);
                }
            }
            PortSpec { all, maps: kept, except }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_text_is_read_or_refused(text in "[0-9a-z:~ -]{0,24}") {
        let _ = text.parse::<PortMap>();
        let _ = read(&text);
    }

    #[test]
    fn what_is_shown_can_be_read_again(spec in spec()) {
        for map in &spec.maps {
            prop_assert_eq!(map.to_string().parse::<PortMap>().unwrap(), *map);
        }
        for range in &spec.except {
            prop_assert_eq!(range.to_string().parse::<PortRange>().unwrap(), *range);
        }
    }

    #[test]
    fn an_expansion_obeys_its_configuration(
        tcp in spec(), udp in spec(), ephemeral in range(), all_ports_budget in 0..70_000u32,
    ) {
        let ports = Ports { tcp, udp, all_ports_budget, ..Ports::default() };
        let out = expand(&ports, Some(ephemeral));
        let mut seen = std::collections::HashSet::new();
        let mut by_all = 0u32;
        for rule in &out.rules {
            prop_assert!(seen.insert((rule.proto, rule.pod)), "{:?} twice", rule);
            prop_assert!(!ports.reserved.contains(rule.proto, rule.pod));
            let spec = if rule.proto == Proto::Tcp { &ports.tcp } else { &ports.udp };
            prop_assert!(!spec.except.iter().any(|r| r.contains(rule.pod)));
            match spec.maps.iter().find(|m| m.pod.contains(rule.pod)) {
                Some(map) => prop_assert!(map.rules(rule.proto).any(|r| r == *rule)),
                None => {
                    prop_assert!(spec.all && rule.pod == rule.guest && !ephemeral.contains(rule.pod));
                    by_all += 1;
                }
            }
        }
        prop_assert!(by_all <= all_ports_budget);
        prop_assert!(out.beyond_budget == 0 || by_all == all_ports_budget);
    }
}
