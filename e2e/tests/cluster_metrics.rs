//! What operators scrape: the statistics of a guest, as the virt-handler of its node tells them.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails it")]

use std::collections::BTreeMap;
use std::time::Duration;

use podvirt_e2e::cluster::{Binding, Cluster, Guest, Manifest, Namespace, SOON, Security, talk};
use serde_json::Value;

/// What the guest receives, sends and reads.
const BYTES: usize = 4 << 20;

/// Series of one machine by name and labels, without those labels that all of them have.
type Series = BTreeMap<String, f64>;

/// What the virt-handler of this node tells of a machine.
fn scrape(namespace: &Namespace<'_>, node: &str, machine: &str) -> Series {
    let cluster = namespace.cluster();
    let pods = cluster.kubectl(&[
        "get",
        "pods",
        "-n",
        "kubevirt",
        "-l",
        "kubevirt.io=virt-handler",
        "-o",
        "json",
        "--field-selector",
        &format!("spec.nodeName={node},status.phase=Running"),
    ]);
    let pods: Value = serde_json::from_str(&pods.unwrap()).unwrap();
    let pod = pods["items"][0]["metadata"]["name"].as_str().unwrap();
    let path = format!("/api/v1/namespaces/kubevirt/pods/{pod}:8080/proxy/metrics");
    let text = cluster.kubectl(&["get", "--raw", &path]).unwrap();
    assert!(text.ends_with("# EOF\n"), "{text}");
    let named = format!(r#"node="{node}",namespace="{}",name="{machine}""#, namespace.name());
    let series = text.lines().filter(|line| !line.starts_with('#') && line.contains(&named));
    let series = series.filter_map(|line| {
        let (series, value) = line.rsplit_once(' ')?;
        // The labels of the VMI stand between the machine's and the series' own.
        let (name, labels) = series.split_once('{')?;
        let own = labels.trim_end_matches('}').split(',').filter(|label| {
            let common = ["node=", "namespace=", "name=", "kubernetes_vmi_label_"];
            !common.iter().any(|common| label.starts_with(common))
        });
        let own = own.collect::<Vec<_>>().join(",");
        Some((format!("{}{{{own}}}", name.trim_start_matches("kubevirt_vmi_")), value.parse().ok()?))
    });
    series.collect()
}

/// The series `name`, as it is or will be soon.
fn wait(
    namespace: &Namespace<'_>,
    guest: &Guest<'_>,
    what: &str,
    limit: Duration,
    ready: impl Fn(&Series) -> bool,
) -> Series {
    let node = guest.node().unwrap();
    let told = || Ok(Some(scrape(namespace, node, &guest.name)).filter(&ready));
    namespace.until(what, limit, told).unwrap()
}

/// Whether each of these has grown by at least so much.
fn grown(before: &Series, now: &Series, by: &[(&str, f64)]) -> bool {
    by.iter().all(|(name, by)| {
        let (before, now) = (before.get(*name).copied(), now.get(*name).copied());
        before.zip(now).is_some_and(|(before, now)| now - before >= *by)
    })
}

/// What every machine has, whatever carries its interface. The tiny guest has no driver of the memory balloon, and tells nothing
/// of its memory itself.
fn is_sane(series: &Series) -> bool {
    let within =
        |name: &str, low: f64, high: f64| series.get(name).is_some_and(|value| (low..=high).contains(value));
    let mib = 1024.0 * 1024.0;
    within("memory_domain_bytes{}", 256.0 * mib, 256.0 * mib)
        && within("memory_resident_bytes{}", 32.0 * mib, 2048.0 * mib)
        && within("memory_actual_balloon_bytes{}", 256.0 * mib, 256.0 * mib)
        && within("cpu_usage_seconds_total{}", 0.1, 3600.0)
        && within("node_cpu_affinity{}", 1.0, 4096.0)
        && series.keys().any(|name| name.starts_with(r#"vcpu_seconds_total{id="0",state=""#))
        && within(r#"storage_iops_read_total{drive="root"}"#, 1.0, 1e9)
        && within(r#"storage_read_traffic_bytes_total{drive="seed"}"#, 1.0, 1e9)
        && series.contains_key(r#"network_receive_bytes_total{interface="default"}"#)
        && series.contains_key(r#"network_transmit_packets_dropped_total{interface="default"}"#)
}

/// A machine runs, its guest sends and reads, and the numbers grow by as much.
fn counts(binding: Binding) {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let manifest = Manifest { name: "vm", ..Default::default() };
    let mut guest = Guest::start(&namespace, binding, &manifest, "").unwrap();
    let before = wait(&namespace, &guest, "sane statistics", SOON, is_sane);

    // Through the guest's greeter, which sends back what it gets.
    let address = *guest.addresses.first().unwrap();
    talk::bulk(address, talk::GREETER, BYTES).unwrap();
    let read = format!("sync; echo 3 >/proc/sys/vm/drop_caches; head -c {BYTES} /dev/vda | wc -c");
    assert_eq!(guest.sh(&read).unwrap().trim(), BYTES.to_string());
    let bytes = f64::from(u32::try_from(BYTES).unwrap());
    let expected = [
        (r#"storage_read_traffic_bytes_total{drive="root"}"#, bytes),
        (r#"storage_iops_read_total{drive="root"}"#, 4.0),
        (r#"network_receive_bytes_total{interface="default"}"#, bytes),
        (r#"network_transmit_bytes_total{interface="default"}"#, bytes),
        // A frame may have up to 64 KiB.
        (r#"network_receive_packets_total{interface="default"}"#, bytes / 65_536.0),
        (r#"network_transmit_packets_total{interface="default"}"#, bytes / 65_536.0),
        ("cpu_usage_seconds_total{}", 0.01),
    ];
    wait(&namespace, &guest, "what the guest has done", SOON, |now| grown(&before, now, &expected));
}

#[test]
fn a_guest_behind_netd_is_counted() {
    counts(Binding::PASST);
}

#[test]
fn a_guest_that_the_kernel_carries_is_counted() {
    counts(Binding::BY_KERNEL);
}
