use std::path::Path;

use podvirt_proto::stats::DomainStats;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

use super::*;
use crate::statistics::Filesystems;

fn text(reports: Vec<Report>) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Reports(reports.into())));
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    text
}

fn report(name: &str, stats: DomainStats) -> Report {
    let labels = [("node", "node1"), ("namespace", "shop"), ("name", name)];
    let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    Report { labels, stats, filesystems: Vec::new() }
}

/// A machine of which everything is known; every number is another one.
fn full() -> DomainStats {
    DomainStats {
        name: "shop_web".into(),
        cpu: Some(Cpu { time: Some(3_500_000_000), user: Some(2_000_000_000), system: Some(1_000_000_000) }),
        memory: Some(Memory {
            unused: Some(1),
            cached: Some(2),
            available: Some(3),
            actual_balloon: Some(4),
            rss: Some(5),
            swap_in: Some(6),
            swap_out: Some(7),
            major_fault: Some(8),
            minor_fault: Some(9),
            usable: Some(10),
            total: Some(11),
        }),
        vcpu: vec![
            Vcpu { state: Some(state::RUNNING), time: Some(1_500_000_000), wait: Some(12), delay: Some(13) },
            Vcpu { state: Some(state::OFFLINE), ..Vcpu::default() },
        ],
        net: vec![Net {
            name: Some("eth0".into()),
            alias: Some("default".into()),
            rx_bytes: Some(14),
            rx_packets: Some(15),
            rx_errors: Some(16),
            rx_dropped: Some(17),
            tx_bytes: Some(18),
            tx_packets: Some(19),
            tx_errors: Some(20),
            tx_dropped: Some(21),
        }],
        block: vec![Block {
            alias: "root".into(),
            name: Some("vda".into()),
            read_requests: Some(22),
            read_bytes: Some(23),
            read_time: Some(24),
            write_requests: Some(25),
            write_bytes: Some(26),
            write_time: Some(27),
            flush_requests: Some(28),
            flush_time: Some(29),
            ..Block::default()
        }],
        cpu_map_set: true,
        cpu_map: vec![vec![true, true], vec![false, true]],
        vcpus: 1,
        load: Some(Load { one: Some(0.25), five: Some(0.5), fifteen: Some(0.75) }),
        ..DomainStats::default()
    }
}

/// `UPDATE_GOLDEN=1` writes the text anew.
#[test]
fn a_machine_of_which_all_is_known_has_all_series() {
    let mut full = report("web", full());
    full.filesystems = vec![Filesystem {
        disk_name: "vda1".into(),
        mount_point: "/".into(),
        file_system_type: "ext4".into(),
        used_bytes: 30,
        total_bytes: 31,
    }];
    let text = text(vec![full]);
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/statistics/families.txt");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&file, &text).unwrap();
    }
    assert_eq!(text, std::fs::read_to_string(&file).unwrap());
}

#[test]
fn what_is_not_known_has_no_series() {
    let unknown = DomainStats {
        cpu: Some(Cpu::default()),
        memory: Some(Memory::default()),
        net: vec![Net::default()],
        block: vec![Block::default()],
        vcpu: vec![Vcpu::default()],
        ..DomainStats::default()
    };
    let text = text(vec![report("web", unknown)]);
    assert!(text.lines().all(|line| line.starts_with('#')), "{text}");
}

#[test]
fn a_launcher_cannot_spoil_the_scrape_or_speak_for_another_vmi() {
    let mut hostile = full();
    let evil = "x\"} 1\nkubevirt_vmi_info{name=\"other".to_owned() + &"y".repeat(4096);
    hostile.block[0].alias = evil;
    hostile.block = vec![hostile.block[0].clone(); 3];
    hostile.net = vec![hostile.net[0].clone(); 2 * MAX_ROWS];
    let text = text(vec![Report {
        stats: Report::new(Vec::new(), hostile, Filesystems::default()).stats,
        ..report("web", DomainStats::default())
    }]);
    assert!(
        text.lines().all(|line| line.starts_with('#') || line.contains(r#"namespace="shop",name="web""#))
    );
    assert!(text.lines().all(|line| line.len() < 1024));
    let count = |name: &str| text.lines().filter(|line| line.starts_with(name)).count();
    assert_eq!(count("kubevirt_vmi_storage_iops_read_total{"), 1);
    assert_eq!(count("kubevirt_vmi_network_receive_bytes_total{"), 1);
}

/// A machine with so many disks and interfaces.
fn large(disks: usize, interfaces: usize) -> DomainStats {
    let DomainStats { block, net, .. } = full();
    let disk = |n: usize| Block { alias: format!("disk-{n}"), ..block[0].clone() };
    let card = |n: usize| Net { alias: Some(format!("card-{n}")), ..net[0].clone() };
    DomainStats { block: (0..disks).map(disk).collect(), net: (0..interfaces).map(card).collect(), ..full() }
}

#[test]
fn a_large_machine_with_ordinary_labels_has_all_of_its_series() {
    let mut machine = report("web", large(200, 32));
    let label = |n: usize| (format!("kubernetes_vmi_label_app_kubernetes_io_{n}"), "ordinary".to_owned());
    machine.labels.extend((0..5).map(label));
    let text = text(vec![machine]);
    let count = |name: &str| text.lines().filter(|line| line.starts_with(name)).count();
    assert_eq!(count("kubevirt_vmi_storage_flush_times_seconds_total{"), 200);
    assert_eq!(count("kubevirt_vmi_network_traffic_bytes_total{"), 64);
}

#[test]
fn series_of_a_machine_are_bounded_in_bytes_and_take_nothing_of_anothers() {
    let mut hostile = report("web", large(MAX_ROWS, MAX_ROWS));
    hostile.labels.push(("kubernetes_vmi_label_x".into(), "y".repeat(super::super::MAX_LABEL_BYTES)));
    hostile.stats.vcpu = vec![hostile.stats.vcpu[0].clone(); MAX_ROWS];
    hostile.stats.block[0].alias = "\"\\".repeat(64);
    let filesystem = |n: usize| Filesystem { mount_point: format!("/{n}"), ..Filesystem::default() };
    hostile.filesystems = (0..MAX_ROWS).map(filesystem).collect();
    let text = text(vec![hostile, report("later", full())]);
    let bytes = |name: &str| {
        let own = format!("name=\"{name}\"");
        text.lines().filter(|line| line.contains(&own)).map(|line| line.len() + 1).sum::<usize>()
    };
    assert!((MAX_SERIES_BYTES / 2..=MAX_SERIES_BYTES).contains(&bytes("web")), "{}", bytes("web"));
    let count = text.lines().filter(|line| line.contains("name=\"later\"")).count();
    assert_eq!(count, 39, "every series of the other machine");
}
