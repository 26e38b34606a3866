//! A frontend that takes its memory away under running rings: it loses its connection, and nothing else is lost.

use std::io::ErrorKind;

use netd::counters::Reason;

use crate::bed::{Pod, Raw, Setup, eventually, with_pod};

/// Waits until netd has noticed, and shows that the next guest is served.
fn serves_another(pod: &Pod, connections: u64) {
    eventually("the end of the connection", || (!pod.netd.status().frontend_connected).then_some(()));
    let mut next = Raw::plug(&pod.netd);
    next.ping();
    assert_eq!(pod.netd.counters().frontend_connections.get(), connections);
}

#[test]
fn memory_that_is_taken_away_ends_the_connection_only() {
    with_pod(Setup::default(), |pod| {
        let [v4, _] = pod.families();
        for connections in 2..5 {
            let mut raw = Raw::plug(&pod.netd);
            raw.ping();
            raw.double.take_memory_away().unwrap();
            // netd looks for a buffer of the guest's.
            let client = pod.client.udp(v4.client(0));
            client.send_to(b"is a guest up?", v4.pod(7000)).unwrap();
            serves_another(pod, 2 * (connections - 1));
        }
    });
}

#[test]
fn received_data_that_finds_no_memory_waits_for_the_next_guest_or_ends() {
    with_pod(Setup::default(), |pod| {
        let [v4, _] = pod.families();
        let mut raw = Raw::plug(&pod.netd);
        raw.ping();
        raw.double.take_memory_away().unwrap();
        // Accepted by the pod's kernel; the SYN for the guest finds no memory.
        let client = pod.client.connect(v4.pod(7000)).unwrap();
        serves_another(pod, 2);
        let error = client.peer_addr().err().map(|e| e.kind());
        assert!(matches!(error, None | Some(ErrorKind::NotConnected)), "{error:?}");
        assert_eq!(pod.netd.dropped(Reason::Spoofed), 0);
    });
}
