//! Devices with less than netd offers: every driver is to be served, not only Linux's with everything.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails it")]

use podvirt_e2e::{Backend, BackendOptions, Bed, Boot, Family, NetOptions, PORT, Vhost};
use serde_json::Value;

/// Everything is carried by a device with these properties; what the driver has acknowledged.
fn device(properties: &[&str]) -> Vec<String> {
    let options = BackendOptions { tcp: vec![PORT], udp: vec![PORT], ..Default::default() };
    let vhost = Vhost { device: properties.iter().map(|&p| p.to_owned()).collect(), ..Default::default() };
    let mut bed = Bed::new(Backend::Netd, Boot::Qemu, NetOptions::default(), &options, &vhost).unwrap();
    bed.works().unwrap();
    for family in Family::BOTH {
        bed.tcp_out(family, 2 << 20).unwrap();
        bed.tcp_in(family.pod(PORT), PORT, 2 << 20).unwrap();
        bed.ping(family, 4000).unwrap();
        bed.udp_out(family, 5000).unwrap();
        bed.udp_in(family.pod(PORT), PORT, 5000).unwrap();
    }
    let status = bed.running.ask("status").unwrap();
    assert_eq!(bed.running.counter("ring_errors").unwrap(), 0);
    assert_eq!(bed.running.counter("dropped.bad_chain").unwrap(), 0);
    let features = status["features"].as_array().unwrap().iter().filter_map(Value::as_str);
    features.map(str::to_owned).collect()
}

/// Turns off all that moves work from the driver to the device.
const NO_OFFLOADS: [&str; 2] = [
    "csum=off,gso=off,guest_csum=off,guest_tso4=off,guest_tso6=off,guest_ecn=off,guest_ufo=off",
    "host_tso4=off,host_tso6=off,host_ecn=off,host_ufo=off",
];

#[test]
fn a_device_without_any_offload_is_served() {
    let plain = ["mrg_rxbuf=off,event_idx=off,indirect_desc=off"];
    let features = device(&[&NO_OFFLOADS[..], &plain[..]].concat());
    for missing in ["CSUM", "GUEST_TSO4", "HOST_TSO4", "MRG_RXBUF", "EVENT_IDX", "INDIRECT_DESC"] {
        assert!(!features.iter().any(|f| f == missing), "{features:?}");
    }
}

#[test]
fn a_device_with_large_receive_buffers_is_served() {
    // Without mergeable buffers and with segmentation offload each buffer is a chain of 64 KiB.
    let features = device(&["mrg_rxbuf=off"]);
    assert!(
        features.iter().any(|f| f == "GUEST_TSO4") && !features.iter().any(|f| f == "MRG_RXBUF"),
        "{features:?}"
    );
}

#[test]
fn a_device_with_the_largest_queues_is_served() {
    device(&["rx_queue_size=1024,tx_queue_size=1024"]);
}
