//! A result to work with, and what is expected of its shape.

use super::*;

/// A run in which everything is as fast as `speed`.
fn run(peer: &str, round: u32, speed: f64) -> Run {
    let figures = [
        ("tcp_g2h_1500", 4.0 * speed),
        ("tcp_h2g_1500", 8.0 * speed),
        ("cpu_per_gb_g2h_1500", 0.8 / speed),
        ("cpu_per_gb_h2g_1500", 0.4 / speed),
        ("user_per_gb_g2h_1500", 0.08 / speed),
        ("user_per_gb_h2g_1500", 0.04 / speed),
        ("tcp_rr_g2h_p50", 200.0 / speed),
        ("tcp_rr_h2g_p50", 100.0),
        ("tcp_crr_g2h", 1000.0 * speed),
        ("tcp_crr_h2g", 3000.0 * speed * speed),
        ("udp_echo_pps", 20_000.0 * speed),
        ("idle_rss_mib", 8.0),
        ("flows_bytes_18000", 700.0),
        ("flows_setup_1000", 5000.0 * speed),
        ("flows_setup_18000", 4900.0 * speed),
    ];
    Run {
        round,
        setup: "uml-1500-v4".into(),
        peer: peer.into(),
        case: "tcp".into(),
        seconds: 10.0,
        others_cpus: 0.05,
        repeated: false,
        figures: figures.map(|(name, value)| (name.to_owned(), value)).into(),
        course: [("tcp_g2h_1500".to_owned(), vec![4.0 * speed; 4])].into(),
        error: None,
    }
}

/// Figures of parts.
fn parts() -> Run {
    let figures = [("ring_pop_push_ns", 8.5), ("all_ports_mib", 0.0163), ("flow_find_131k_ns", 90.0)];
    Run {
        setup: "none".into(),
        peer: PARTS.into(),
        case: "micro".into(),
        figures: figures.map(|(name, value)| (name.to_owned(), value)).into(),
        ..Run::default()
    }
}

/// A result of these runs.
pub(crate) fn of(runs: Vec<Run>) -> Results {
    let settings = Settings { seconds: 4, warm_up_seconds: 1, rounds: 3, quick: false };
    let machine = Machine::sample();
    let versions = [("passt", "20250503"), ("guest kernel", "7.2.7")];
    let versions = versions.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
    Results::new(("2026-01-31T12:00Z".into(), "0123456789ab".into()), settings, machine, versions, runs)
}

/// A result in which netd is twice as fast as passt, and the third round is slow for both.
pub(crate) fn sample() -> Results {
    let mut runs = Vec::new();
    for (round, speed) in [(0, 1.0), (1, 1.125), (2, 0.5)] {
        runs.extend([run(NETD, round, 2.0 * speed), run(PASST, round, speed)]);
    }
    runs.push(parts());
    of(runs)
}

#[test]
fn a_slow_round_does_not_change_the_ratio() {
    let results = sample();
    for (key, ratio) in [("tcp_g2h_1500", 2.0), ("tcp_h2g_1500", 2.0), ("cpu_per_gb_g2h_1500", 0.5)] {
        assert_eq!(results.ratios.get(key), Some(&ratio), "{key}");
        assert_eq!(results.summary("ratios", key).map(|s| [s.min, s.max]), Some([ratio, ratio]), "{key}");
    }
    assert_eq!(results.medians[PASST]["tcp_g2h_1500"], 4.0);
}

#[test]
fn figures_are_where_readers_look_for_them_and_are_plain_numbers() {
    let json = serde_json::to_value(sample()).unwrap();
    for of in ["ratios", "absolute"] {
        assert!(json[of].as_object().unwrap().values().all(serde_json::Value::is_f64), "{of}");
    }
    assert_eq!(json["ratios"]["tcp_g2h_1500"], 2.0);
    assert_eq!(json["ratios"]["udp_echo_pps"], 2.0);
    assert_eq!(json["absolute"]["idle_rss_mib"], 8.0);
    assert_eq!(json["absolute"]["ring_pop_push_ns"], 8.5);
    assert_eq!(json["absolute"]["all_ports_mib"], 0.0163);
    assert_eq!(json["absolute"]["bytes_per_flow"], 700.0);
    assert_eq!(json["medians"]["netd"]["tcp_g2h_1500"], 8.0);
    assert_eq!(json["machine"]["cores"], 2);
    assert_eq!(json["commit"], "0123456789ab");
    assert_eq!(json["runs"][0]["figures"]["tcp_g2h_1500"], 8.0);
}

#[test]
fn netd_is_divided_by_the_pod_without_a_guest_too() {
    let mut runs = sample().runs;
    let plain = runs.iter().filter(|r| r.peer == PASST).map(|r| Run { peer: PLAIN.into(), ..r.clone() });
    runs.extend(plain.collect::<Vec<_>>());
    let results = of(runs);
    assert_eq!(results.median(TO_PLAIN, "tcp_g2h_1500"), Some(2.0));
    assert_eq!(results.median(TO_PASST, "tcp_g2h_1500"), Some(2.0));
    assert_eq!(sample().median(TO_PLAIN, "tcp_g2h_1500"), None, "not measured");
}

/// Required figures that the sample lacks.
const MISSING: [&str; 8] = [
    "tcp4_h2g_1500",
    "tcp_g2h_65520",
    "tcp_h2g_65520",
    "cpu_per_gb_h2g_65520",
    "udp_echo_rtt_p50",
    "udp_g2h_1400_pps",
    "tcp_rr_p99",
    "udp_rr_p50",
];

#[test]
fn the_required_figures_and_no_others_stand_where_readers_look() {
    let mut runs = sample().runs;
    assert_eq!(of(runs.clone()).missing(), MISSING, "what the sample lacks");
    for run in runs.iter_mut().filter(|r| r.peer != PARTS) {
        let sides = ["tcp_rr_g2h_p99", "tcp_rr_h2g_p99", "udp_rr_g2h_p50", "udp_rr_h2g_p50"];
        let rest = MISSING.iter().chain(&sides).chain(&["udp_echo_rtt_p99", "tcp4_g2h_1500"]);
        run.figures.extend(rest.map(|name| ((*name).to_owned(), 3.0)));
    }
    let results = of(runs);
    assert_eq!(results.missing(), [""; 0]);
    assert_eq!(results.ratios.keys().collect::<BTreeSet<_>>(), RATIOS.map(str::to_owned).iter().collect());
    let absolute = ["idle_rss_mib", "all_ports_mib", "bytes_per_flow", "ring_pop_push_ns"].map(str::to_owned);
    assert_eq!(results.absolute.keys().collect::<BTreeSet<_>>(), absolute.iter().collect());
    // The others are not lost.
    assert_eq!(results.median("ratios", "udp_echo_rtt_p99"), Some(1.0));
    assert_eq!(results.median("ratios", "tcp4_g2h_1500"), Some(1.0));
}

#[test]
fn what_two_setups_found_is_divided_within_a_round() {
    let run = |round, name: &str, value| Run {
        round,
        peer: NETD.into(),
        figures: [(name.to_owned(), value)].into(),
        ..Run::default()
    };
    let mut runs = vec![run(0, "pairs_1_udp_pps", 100.0), run(0, "pairs_2_udp_pps", 150.0)];
    runs.extend([run(1, "pairs_1_udp_pps", 10.0), run(2, "pairs_2_udp_pps", 150.0)]);
    let scale = of(runs).summary(NETD, "pairs_udp_scale").unwrap();
    assert_eq!([scale.min, scale.median, scale.max], [1.5; 3]);
}

#[test]
fn without_a_direction_stands_the_less_favourable_one() {
    let results = sample();
    // Guest to host netd is twice as fast, the other way as fast; the other figure is twice and four times.
    assert_eq!(results.ratios["tcp_rr_p50"], 1.0);
    assert_eq!(results.ratios["tcp_crr"], 2.0);
}

#[test]
fn a_result_survives_its_file_and_another_version_is_refused() {
    let results = sample();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.json");
    results.write(&path).unwrap();
    assert_eq!(Results::read(&path).unwrap(), results);
    fs::write(&path, r#"{"schema": 1, "runs": "of another shape"}"#).unwrap();
    assert!(Results::read(&path).unwrap_err().to_string().contains("schema 1, only 2"));
}

#[test]
fn one_peer_alone_has_no_ratio() {
    let results = of(sample().runs.into_iter().filter(|r| r.peer == PASST).collect());
    assert!(results.ratios.is_empty() && results.absolute.is_empty());
    assert!(results.medians[PASST].contains_key("tcp_h2g_1500"));
}

#[test]
fn disturbance_stalls_and_failures_are_told() {
    let mut runs = sample().runs;
    assert_eq!(warnings(&runs), [""; 0]);
    runs[0].others_cpus = 1.5;
    runs[0].repeated = true;
    runs[0].course.insert("tcp_g2h_1500".into(), vec![16.0, 0.5, 16.0, 16.0]);
    runs[1].error = Some("no route\nand more".into());
    assert_eq!(
        warnings(&runs),
        [
            "1 of 7 runs were disturbed and done again",
            "round 1, uml-1500-v4, netd, tcp: others kept 1.5 processors busy",
            "round 1, uml-1500-v4, netd, tcp, tcp_g2h_1500: one second had 0.50 Gbit/s, the mean is 8.00",
            "round 1, uml-1500-v4, passt, tcp: failed: no route",
        ]
    );
}
