//! The flow table.

use std::cmp::Reverse;

use podvirt_proto::netd::v1 as proto;
use serde::Serialize;

use super::table::{Table, round_trip, time};

/// One flow.
#[derive(Clone, Debug, Serialize)]
pub struct FlowRow {
    kind: &'static str,
    state: String,
    opened_by: &'static str,
    guest: String,
    guest_peer: String,
    pod_peer: String,
    pub(super) bytes_to_pod: u64,
    pub(super) bytes_to_guest: u64,
    retransmits: u32,
    idle_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    guest_rtt_us: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tcp: Option<Windows>,
    #[serde(skip_serializing_if = "Option::is_none")]
    socket: Option<Socket>,
}

#[derive(Clone, Debug, Serialize)]
struct Windows {
    in_flight: u32,
    guest_window: u32,
    pod_window: u32,
}

#[derive(Clone, Debug, Serialize)]
struct Socket {
    rtt_us: u32,
    retransmits: u32,
    send_queue: u64,
    receive_queue: u64,
}

impl From<proto::Flow> for FlowRow {
    fn from(f: proto::Flow) -> FlowRow {
        let kind = match f.kind() {
            proto::FlowKind::Tcp => "tcp",
            proto::FlowKind::Udp => "udp",
            proto::FlowKind::Echo => "echo",
            proto::FlowKind::Unspecified => "?",
        };
        let windows =
            Windows { in_flight: f.in_flight, guest_window: f.guest_window, pod_window: f.pod_window };
        FlowRow {
            kind,
            tcp: (f.kind() == proto::FlowKind::Tcp).then_some(windows),
            state: f.state,
            opened_by: if f.from_guest { "guest" } else { "pod" },
            guest: f.guest,
            guest_peer: f.guest_peer,
            pod_peer: f.pod_peer,
            bytes_to_pod: f.bytes_to_pod,
            bytes_to_guest: f.bytes_to_guest,
            retransmits: f.retransmits,
            idle_ms: f.idle_ms,
            guest_rtt_us: f.guest_rtt_us,
            socket: f.socket.map(|s| Socket {
                rtt_us: s.rtt_us,
                retransmits: s.retransmits,
                send_queue: s.send_queue,
                receive_queue: s.receive_queue,
            }),
        }
    }
}

impl FlowRow {
    /// Titles of the columns that say which flow it is.
    pub(super) const NAMES: [&str; 5] = ["Kind", "State", "By", "Guest", "Peer"];

    /// What stands in those columns.
    pub(super) fn names(&self) -> [&str; 5] {
        [self.kind, &self.state, self.opened_by, &self.guest, &self.guest_peer]
    }
}

/// By what rows are sorted: the largest first, but for the shortest idle time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum FlowSort {
    /// Bytes both ways.
    Bytes,
    /// Bytes to the pod.
    ToPod,
    /// Bytes to the guest.
    ToGuest,
    /// Segments sent again, both ways.
    Retransmits,
    /// The longer of both round trips.
    Rtt,
    /// Bytes that wait, both ways.
    Queued,
    /// Time without traffic, the shortest first.
    Idle,
}

/// Sorts rows; those that are equal stay in their order.
pub fn sort_flows(rows: &mut [FlowRow], by: FlowSort) {
    let socket = |f: &FlowRow, value: fn(&Socket) -> u64| f.socket.as_ref().map_or(0, value);
    rows.sort_by_key(|f| {
        Reverse(match by {
            FlowSort::Bytes => f.bytes_to_pod.saturating_add(f.bytes_to_guest),
            FlowSort::ToPod => f.bytes_to_pod,
            FlowSort::ToGuest => f.bytes_to_guest,
            FlowSort::Retransmits => u64::from(f.retransmits) + socket(f, |s| s.retransmits.into()),
            FlowSort::Rtt => socket(f, |s| s.rtt_us.into()).max(f.guest_rtt_us.unwrap_or(0).into()),
            FlowSort::Queued => socket(f, |s| s.send_queue + s.receive_queue),
            FlowSort::Idle => u64::MAX - f.idle_ms,
        })
    });
}

/// The flow table. The peer of the pod's socket is shown where the guest sees another; round trips in milliseconds and
/// retransmissions are those towards the guest and, behind a stroke, towards the peer.
pub fn flows(rows: &[FlowRow]) -> String {
    let numbers =
        ["Pod's peer", ">To pod", ">To guest", ">Send-Q", ">Recv-Q", ">Retrans", ">RTT ms", ">Idle"];
    let mut table = Table::new(&[&FlowRow::NAMES[..], &numbers].concat());
    for f in rows {
        let pod_peer = if f.pod_peer == f.guest_peer { "" } else { &f.pod_peer };
        let of_tcp = |text: String| if f.kind == "tcp" { text } else { String::new() };
        let socket = |value: fn(&Socket) -> String| f.socket.as_ref().map(value);
        let both = |guest: String, pod: Option<String>| match pod {
            Some(pod) => format!("{guest}/{pod}"),
            None => guest,
        };
        let guest_rtt = f.guest_rtt_us.map_or_else(|| "-".to_owned(), round_trip);
        let numbers = [
            pod_peer,
            &f.bytes_to_pod.to_string(),
            &f.bytes_to_guest.to_string(),
            &socket(|s| s.send_queue.to_string()).unwrap_or_default(),
            &socket(|s| s.receive_queue.to_string()).unwrap_or_default(),
            &of_tcp(both(f.retransmits.to_string(), socket(|s| s.retransmits.to_string()))),
            &of_tcp(both(guest_rtt, socket(|s| round_trip(s.rtt_us)))),
            &time(f.idle_ms),
        ];
        table.row(f.names().into_iter().chain(numbers));
    }
    table.text()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp() -> proto::Flow {
        proto::Flow {
            kind: proto::FlowKind::Tcp.into(),
            state: "ESTABLISHED".into(),
            from_guest: false,
            guest: "10.9.0.2:80".into(),
            guest_peer: "10.9.0.1:40000".into(),
            pod_peer: "127.0.0.6:40000".into(),
            bytes_to_pod: 12345,
            bytes_to_guest: 6,
            retransmits: 2,
            idle_ms: 61_000,
            guest_rtt_us: Some(210),
            socket: Some(proto::FlowSocket {
                rtt_us: 12_000,
                retransmits: 1,
                send_queue: 77,
                receive_queue: 0,
            }),
            ..proto::Flow::default()
        }
    }

    fn udp() -> proto::Flow {
        proto::Flow {
            kind: proto::FlowKind::Udp.into(),
            from_guest: true,
            pod_peer: "10.9.0.1:40000".into(),
            bytes_to_pod: 1,
            idle_ms: 250,
            state: "REPLIED".into(),
            guest_rtt_us: None,
            socket: None,
            ..tcp()
        }
    }

    #[test]
    fn flows_stand_in_columns() {
        let fresh = proto::Flow { guest_rtt_us: None, socket: None, state: "SYN-SENT".into(), ..tcp() };
        assert_eq!(
            flows(&[tcp().into(), udp().into(), fresh.into()]),
            concat!(
                "Kind  State        By     Guest        Peer            Pod's peer       ",
                "To pod  To guest  Send-Q  Recv-Q  Retrans     RTT ms   Idle\n",
                "tcp   ESTABLISHED  pod    10.9.0.2:80  10.9.0.1:40000  127.0.0.6:40000  ",
                " 12345         6      77       0      2/1  0.21/12.0  1m01s\n",
                "udp   REPLIED      guest  10.9.0.2:80  10.9.0.1:40000                   ",
                "     1         6                                       0.2s\n",
                "tcp   SYN-SENT     pod    10.9.0.2:80  10.9.0.1:40000  127.0.0.6:40000  ",
                " 12345         6                        2          -  1m01s\n",
            )
        );
    }

    #[test]
    fn rows_are_sorted_by_what_was_asked_for() {
        let first = |by| {
            let mut rows: Vec<FlowRow> = vec![udp().into(), tcp().into()];
            sort_flows(&mut rows, by);
            rows[0].kind
        };
        for by in [FlowSort::Bytes, FlowSort::ToPod, FlowSort::Retransmits, FlowSort::Rtt, FlowSort::Queued] {
            assert_eq!(first(by), "tcp", "{by:?}");
        }
        assert_eq!((first(FlowSort::Idle), first(FlowSort::ToGuest)), ("udp", "udp"));
    }
}
