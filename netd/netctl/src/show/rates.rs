//! Rates: what happened between two readings of the same netd.

use std::collections::HashMap;
use std::time::Duration;

use podvirt_proto::netd::v1 as proto;
use serde::Serialize;

use super::FlowRow;
use super::table::{Table, size, time};

/// One reading.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// When, on a clock that the reader chooses.
    pub at: Duration,
    /// The status.
    pub status: proto::StatusResponse,
    /// The counters.
    pub counters: proto::CountersResponse,
    /// The flow table, or the part that is watched.
    pub flows: Vec<proto::Flow>,
}

/// One flow and how much it carries.
#[derive(Clone, Debug, Serialize)]
pub struct FlowRate {
    /// Bytes a second to the pod.
    pub to_pod_per_second: f64,
    /// Bytes a second to the guest.
    pub to_guest_per_second: f64,
    /// The flow.
    #[serde(flatten)]
    pub flow: FlowRow,
}

/// What happened between two readings.
#[derive(Clone, Debug, Serialize)]
pub struct Top {
    seconds: f64,
    uptime_ms: u64,
    name: String,
    frontend_connected: bool,
    flows_by_kind: [u32; 3],
    /// Units a second, by the counter's name.
    counters_per_second: Vec<(String, f64)>,
    drops_per_second: Vec<(String, f64)>,
    /// The busiest flow first.
    flows: Vec<FlowRate>,
}

impl Top {
    /// Compares two readings, the older one first.
    pub fn between(before: &Sample, now: Sample) -> Top {
        let seconds = now.at.saturating_sub(before.at).as_secs_f64().max(1e-3);
        let rates = |new: &[proto::Counter], old: &[proto::Counter]| {
            let old: HashMap<&str, u64> = old.iter().map(|c| (c.name.as_str(), c.value)).collect();
            let rate = |c: &proto::Counter| {
                let before = old.get(c.name.as_str()).copied().unwrap_or(0);
                (c.name.clone(), c.value.saturating_sub(before) as f64 / seconds)
            };
            new.iter().map(rate).collect::<Vec<_>>()
        };
        let key = |f: &proto::Flow| (f.kind, f.guest.clone(), f.guest_peer.clone());
        let old: HashMap<_, _> =
            before.flows.iter().map(|f| (key(f), (f.bytes_to_pod, f.bytes_to_guest))).collect();
        let counters_per_second = rates(&now.counters.counters, &before.counters.counters);
        let mut drops_per_second = rates(&now.counters.dropped, &before.counters.dropped);
        drops_per_second.retain(|(_, rate)| *rate > 0.0);
        let mut flows: Vec<FlowRate> = now
            .flows
            .into_iter()
            .map(|f| {
                // A flow with fewer bytes than before is another one between the same ends.
                let known = old.get(&key(&f)).copied();
                let (to_pod, to_guest) =
                    known.filter(|(p, g)| *p <= f.bytes_to_pod && *g <= f.bytes_to_guest).unwrap_or_default();
                FlowRate {
                    to_pod_per_second: (f.bytes_to_pod - to_pod) as f64 / seconds,
                    to_guest_per_second: (f.bytes_to_guest - to_guest) as f64 / seconds,
                    flow: f.into(),
                }
            })
            .collect();
        flows.sort_by(|a, b| b.total().total_cmp(&a.total()));
        Top {
            seconds,
            uptime_ms: now.status.uptime_ms,
            name: now.status.name,
            frontend_connected: now.status.frontend_connected,
            flows_by_kind: [now.status.tcp_flows, now.status.udp_flows, now.status.echo_flows],
            counters_per_second,
            drops_per_second,
            flows,
        }
    }

    /// Keeps the busiest flows only.
    pub fn truncate(&mut self, flows: usize) {
        self.flows.truncate(flows);
    }

    fn counter(&self, name: &str) -> f64 {
        self.counters_per_second.iter().find(|(n, _)| n == name).map_or(0.0, |(_, rate)| *rate)
    }
}

impl FlowRate {
    fn total(&self) -> f64 {
        self.to_pod_per_second + self.to_guest_per_second
    }
}

/// The rates of netd as a whole in some lines, then the busiest flows.
pub fn top(t: &Top) -> String {
    let name = if t.name.is_empty() { "netd" } else { &t.name };
    let frontend = if t.frontend_connected { "" } else { ", no frontend" };
    let [tcp, udp, echo] = t.flows_by_kind;
    let per_second = |name: &str| size(t.counter(name));
    let mut text = format!(
        "{name}  up {}{frontend}  flows {tcp} TCP {udp} UDP {echo} echo  rates over {:.1}s\n",
        time(t.uptime_ms),
        t.seconds,
    );
    text += &format!(
        "from guest {} B/s {} frames/s  to guest {} B/s {} frames/s\n",
        per_second("guest_tx_bytes"),
        per_second("guest_tx_frames"),
        per_second("guest_rx_bytes"),
        per_second("guest_rx_frames"),
    );
    text += &format!(
        "wake-ups {}/s  kicks {}/s  interrupts {}/s  receive ring empty {}/s  retransmits {}/s\n",
        per_second("wakeups"),
        per_second("guest_kicks"),
        per_second("guest_interrupts"),
        per_second("guest_rx_empty"),
        per_second("tcp_retransmits"),
    );
    let drops: Vec<String> = t.drops_per_second.iter().map(|(r, n)| format!("{r} {}/s", size(*n))).collect();
    text += &format!("drops  {}\n\n", if drops.is_empty() { "none".into() } else { drops.join("  ") });
    let numbers = [">To pod/s", ">To guest/s", ">To pod", ">To guest"];
    let mut table = Table::new(&[&FlowRow::NAMES[..], &numbers].concat());
    for r in &t.flows {
        let f = &r.flow;
        let numbers =
            [r.to_pod_per_second, r.to_guest_per_second, f.bytes_to_pod as f64, f.bytes_to_guest as f64]
                .map(size);
        table.row(f.names().into_iter().chain(numbers.iter().map(String::as_str)));
    }
    text + &table.text()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(port: u16, to_pod: u64, to_guest: u64) -> proto::Flow {
        proto::Flow {
            kind: proto::FlowKind::Tcp.into(),
            state: "ESTABLISHED".into(),
            guest: "10.0.2.2:80".into(),
            guest_peer: format!("192.0.2.1:{port}"),
            bytes_to_pod: to_pod,
            bytes_to_guest: to_guest,
            ..proto::Flow::default()
        }
    }

    fn sample(at: u64, frames: u64, spoofed: u64, flows: Vec<proto::Flow>) -> Sample {
        let counter = |name: &str, value| proto::Counter { name: name.into(), help: String::new(), value };
        Sample {
            at: Duration::from_secs(at),
            status: proto::StatusResponse { tcp_flows: 3, name: "vm1".into(), ..Default::default() },
            counters: proto::CountersResponse {
                counters: vec![counter("guest_tx_frames", frames)],
                dropped: vec![counter("spoofed", spoofed), counter("denied", 5)],
            },
            flows,
        }
    }

    #[test]
    fn rates_are_differences_by_time_and_the_busiest_comes_first() {
        let before = sample(10, 100, 0, vec![flow(1, 1000, 0), flow(2, 500, 500), flow(3, 9_000_000, 0)]);
        // The third ended and another between the same ends has begun; the fourth is new.
        let flows = vec![flow(1, 3000, 0), flow(2, 500, 500), flow(3, 100, 0), flow(4, 0, 8000)];
        let mut t = Top::between(&before, sample(12, 300, 4, flows));
        let rates: Vec<(f64, f64)> =
            t.flows.iter().map(|f| (f.to_pod_per_second, f.to_guest_per_second)).collect();
        assert_eq!(rates, [(0.0, 4000.0), (1000.0, 0.0), (50.0, 0.0), (0.0, 0.0)]);
        t.truncate(1);
        let text = top(&t);
        for part in ["vm1  up 0.0s, no frontend  flows 3 TCP", "100 frames/s", "drops  spoofed 2/s\n", "4.0K"]
        {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        assert!(text.contains(":4 ") && !text.contains("192.0.2.1:1"), "{text}");
    }

    #[test]
    fn a_first_reading_without_time_divides_by_nothing() {
        let s = sample(1, 1, 0, vec![flow(1, 1, 1)]);
        let t = Top::between(&s, s.clone());
        assert!(t.flows.iter().all(|f| f.total() == 0.0));
        assert!(top(&t).contains("drops  none"));
    }
}
