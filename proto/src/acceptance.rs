//! Whether a guest has accepted a connection that its netd took for it.
//!
//! netd's listeners take a connection before the guest is asked. Its flow table says how far the guest's side is: the
//! guest has accepted when that is past the handshake. One that refuses has the connection reset, and its flow ends.

use std::net::SocketAddr;

use crate::netd::v1::{Flow, FlowFilter, FlowKind, FlowOrigin, ListFlowsRequest};

/// States of a connection whose handshake with the guest is not over, by their names in RFC 9293 and netd's own.
const UNANSWERED: [&str; 4] = ["CONNECTING", "SYN-SENT", "SYN-RECEIVED", "CLOSED"];

/// What netd knows of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acceptance {
    /// It has no such connection: it never came to netd, or it is over.
    Unknown,
    /// The guest has not answered so far.
    Unanswered,
    /// The guest has accepted it.
    Accepted,
}

/// The question for the TCP connection from `peer`: netd looks it up, which costs no listing of its whole table.
pub fn question(peer: SocketAddr) -> ListFlowsRequest {
    ListFlowsRequest {
        filter: Some(FlowFilter {
            kinds: vec![FlowKind::Tcp.into()],
            origin: FlowOrigin::Pod.into(),
            pod_peer: peer.to_string(),
            ..FlowFilter::default()
        }),
        ..ListFlowsRequest::default()
    }
}

/// What the flows of an answer say of the connection from `peer`.
pub fn judge(flows: &[Flow], peer: SocketAddr) -> Acceptance {
    let is_it = |flow: &&Flow| {
        let of = flow.pod_peer.parse::<SocketAddr>();
        flow.kind() == FlowKind::Tcp
            && !flow.from_guest
            && of.is_ok_and(|of| {
                of.port() == peer.port() && of.ip().to_canonical() == peer.ip().to_canonical()
            })
    };
    let answered = |flow: &Flow| !UNANSWERED.contains(&flow.state.as_str());
    flows.iter().filter(is_it).fold(Acceptance::Unknown, |found, flow| match found {
        Acceptance::Accepted => found,
        _ if answered(flow) => Acceptance::Accepted,
        _ => Acceptance::Unanswered,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(state: &str, pod_peer: &str) -> Flow {
        Flow { kind: FlowKind::Tcp.into(), state: state.into(), pod_peer: pod_peer.into(), ..Flow::default() }
    }

    #[test]
    fn the_guest_has_accepted_when_its_side_is_past_the_handshake() {
        let peer: SocketAddr = "10.1.0.2:4000".parse().unwrap();
        for (state, expected) in [
            ("CONNECTING", Acceptance::Unanswered),
            ("SYN-SENT", Acceptance::Unanswered),
            ("SYN-RECEIVED", Acceptance::Unanswered),
            ("CLOSED", Acceptance::Unanswered),
            ("ESTABLISHED", Acceptance::Accepted),
            ("CLOSE-WAIT", Acceptance::Accepted),
            ("FIN-WAIT-1", Acceptance::Accepted),
            ("TIME-WAIT", Acceptance::Accepted),
        ] {
            assert_eq!(judge(&[flow(state, "10.1.0.2:4000")], peer), expected, "{state}");
        }
    }

    #[test]
    fn only_the_connection_itself_counts() {
        let peer: SocketAddr = "10.1.0.2:4000".parse().unwrap();
        let other = |change: fn(&mut Flow)| {
            let mut flow = flow("ESTABLISHED", "10.1.0.2:4000");
            change(&mut flow);
            judge(&[flow], peer)
        };
        assert_eq!(other(|_| ()), Acceptance::Accepted);
        assert_eq!(other(|f| f.pod_peer = "[::ffff:10.1.0.2]:4000".into()), Acceptance::Accepted);
        assert_eq!(other(|f| f.pod_peer = "10.1.0.2:4001".into()), Acceptance::Unknown);
        assert_eq!(other(|f| f.pod_peer = "10.1.0.3:4000".into()), Acceptance::Unknown);
        assert_eq!(other(|f| f.from_guest = true), Acceptance::Unknown);
        assert_eq!(other(|f| f.kind = FlowKind::Udp.into()), Acceptance::Unknown);
        assert_eq!(judge(&[], peer), Acceptance::Unknown);
        let six: SocketAddr = "[fd00::2]:4000".parse().unwrap();
        assert_eq!(judge(&[flow("ESTABLISHED", "[fd00::2]:4000")], six), Acceptance::Accepted);
    }
}
