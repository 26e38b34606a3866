//! Which flows a client wants to see, judged where the flows are.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use podvirt_proto::netd::v1 as proto;

use super::{FlowInfo, FlowKind};

/// Values in one field of a filter: more is a mistake.
const MAX_VALUES: usize = 256;

/// Which flows are asked for: those that fit every field that is set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowQuery {
    /// Kinds; none: all.
    pub kinds: Vec<FlowKind>,
    /// Names of states, in any case; none: all.
    pub states: Vec<String>,
    /// Networks that one of the three addresses is in; none: all.
    pub networks: Vec<IpNet>,
    /// Ports of which one of the three ends has one; none: all.
    pub ports: Vec<u16>,
    /// The peer of the pod's socket.
    pub pod_peer: Option<SocketAddr>,
    /// Whether the guest opened it.
    pub from_guest: Option<bool>,
    /// Whether the pod's sockets are asked as well.
    pub sockets: bool,
    /// How many flows at most; 0: all.
    pub limit: usize,
}

/// A filter that names nothing.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("filter.{field}: '{value}' is not allowed; {allowed} is")]
pub struct QueryError {
    field: &'static str,
    value: String,
    allowed: &'static str,
}

fn error(field: &'static str, value: impl ToString, allowed: &'static str) -> QueryError {
    QueryError { field, value: value.to_string(), allowed }
}

impl FlowQuery {
    /// Whether a flow fits; what its sockets say is not looked at.
    pub fn matches(&self, flow: &FlowInfo) -> bool {
        let ends = [flow.guest, flow.guest_peer, flow.pod_peer];
        // A dual-stack listener's peers are IPv4-mapped.
        let same = |a: SocketAddr, b: SocketAddr| {
            a.port() == b.port() && a.ip().to_canonical() == b.ip().to_canonical()
        };
        let inside = |net: &IpNet| ends.iter().any(|e| net.contains(&e.ip().to_canonical()));
        (self.kinds.is_empty() || self.kinds.contains(&flow.kind))
            && (self.states.is_empty() || self.states.iter().any(|s| s.eq_ignore_ascii_case(flow.state)))
            && self.from_guest.is_none_or(|g| g == flow.from_guest)
            && self.pod_peer.is_none_or(|p| same(p, flow.pod_peer))
            && (self.ports.is_empty() || ends.iter().any(|e| self.ports.contains(&e.port())))
            && (self.networks.is_empty() || self.networks.iter().any(inside))
    }

    /// How many rows are wanted.
    pub fn rows(&self) -> usize {
        if self.limit == 0 { usize::MAX } else { self.limit }
    }
}

impl TryFrom<proto::ListFlowsRequest> for FlowQuery {
    type Error = QueryError;

    fn try_from(r: proto::ListFlowsRequest) -> Result<FlowQuery, QueryError> {
        let limit = usize::try_from(r.limit).unwrap_or(usize::MAX);
        let mut q = FlowQuery { sockets: r.sockets, limit, ..FlowQuery::default() };
        let Some(f) = r.filter else { return Ok(q) };
        let lengths = [
            ("kinds", f.kinds.len()),
            ("states", f.states.len()),
            ("networks", f.networks.len()),
            ("ports", f.ports.len()),
        ];
        for (field, len) in lengths {
            if len > MAX_VALUES {
                return Err(error(field, format!("{len} values"), "a list of at most 256"));
            }
        }
        for kind in &f.kinds {
            q.kinds.push(match proto::FlowKind::try_from(*kind) {
                Ok(proto::FlowKind::Tcp) => FlowKind::Tcp,
                Ok(proto::FlowKind::Udp) => FlowKind::Udp,
                Ok(proto::FlowKind::Echo) => FlowKind::Echo,
                _ => return Err(error("kinds", kind, "TCP, UDP or ECHO")),
            });
        }
        q.from_guest = match proto::FlowOrigin::try_from(f.origin) {
            Ok(proto::FlowOrigin::Unspecified) => None,
            Ok(proto::FlowOrigin::Guest) => Some(true),
            Ok(proto::FlowOrigin::Pod) => Some(false),
            Err(_) => return Err(error("origin", f.origin, "GUEST or POD")),
        };
        for net in &f.networks {
            let parsed = net.parse().or_else(|_| net.parse::<IpAddr>().map(IpNet::from));
            q.networks
                .push(parsed.map_err(|_| error("networks", net, "an address or ADDRESS/LENGTH"))?.trunc());
        }
        for port in &f.ports {
            q.ports.push(u16::try_from(*port).map_err(|_| error("ports", port, "a port up to 65535"))?);
        }
        if !f.pod_peer.is_empty() {
            let peer = f.pod_peer.parse();
            q.pod_peer = Some(peer.map_err(|_| error("pod_peer", &f.pod_peer, "ADDRESS:PORT"))?);
        }
        q.states = f.states;
        Ok(q)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn flow() -> FlowInfo {
        FlowInfo {
            kind: FlowKind::Tcp,
            state: "ESTABLISHED",
            from_guest: false,
            guest: "10.0.2.2:80".parse().unwrap(),
            guest_peer: "10.0.2.1:4000".parse().unwrap(),
            pod_peer: "[::ffff:10.1.0.7]:4000".parse().unwrap(),
            bytes_to_pod: 0,
            bytes_to_guest: 0,
            retransmits: 0,
            idle: Duration::ZERO,
            tcp: None,
        }
    }

    fn query(filter: proto::FlowFilter) -> Result<FlowQuery, QueryError> {
        FlowQuery::try_from(proto::ListFlowsRequest { limit: 0, filter: Some(filter), sockets: false })
    }

    #[test]
    fn a_flow_fits_when_every_field_does() {
        let base = proto::FlowFilter::default;
        let cases: [(proto::FlowFilter, bool); 15] = [
            (base(), true),
            (proto::FlowFilter { kinds: vec![1], ..base() }, true),
            (proto::FlowFilter { kinds: vec![2, 3], ..base() }, false),
            (proto::FlowFilter { states: vec!["syn-sent".into(), "established".into()], ..base() }, true),
            (proto::FlowFilter { states: vec!["SYN-SENT".into()], ..base() }, false),
            (proto::FlowFilter { networks: vec!["10.1.0.0/16".into()], ..base() }, true),
            (proto::FlowFilter { networks: vec!["10.0.2.1".into()], ..base() }, true),
            (proto::FlowFilter { networks: vec!["10.2.0.0/16".into()], ..base() }, false),
            (proto::FlowFilter { ports: vec![80], ..base() }, true),
            (proto::FlowFilter { ports: vec![81, 82], ..base() }, false),
            (proto::FlowFilter { pod_peer: "10.1.0.7:4000".into(), ..base() }, true),
            (proto::FlowFilter { pod_peer: "10.1.0.7:4001".into(), ..base() }, false),
            (proto::FlowFilter { origin: proto::FlowOrigin::Pod.into(), ..base() }, true),
            (proto::FlowFilter { origin: proto::FlowOrigin::Guest.into(), ..base() }, false),
            (proto::FlowFilter { ports: vec![80], kinds: vec![2], ..base() }, false),
        ];
        for (filter, fits) in cases {
            assert_eq!(query(filter.clone()).unwrap().matches(&flow()), fits, "{filter:?}");
        }
    }

    #[test]
    fn what_names_nothing_is_refused_by_its_field() {
        let base = proto::FlowFilter::default;
        for (filter, text) in [
            (proto::FlowFilter { kinds: vec![9], ..base() }, "filter.kinds: '9'"),
            (proto::FlowFilter { networks: vec!["x".into()], ..base() }, "filter.networks: 'x'"),
            (proto::FlowFilter { ports: vec![65_536], ..base() }, "filter.ports: '65536'"),
            (proto::FlowFilter { ports: vec![1; 257], ..base() }, "filter.ports: '257 values'"),
            (proto::FlowFilter { pod_peer: "10.1.0.7".into(), ..base() }, "filter.pod_peer: '10.1.0.7'"),
            (proto::FlowFilter { origin: 7, ..base() }, "filter.origin: '7'"),
        ] {
            assert!(query(filter).unwrap_err().to_string().starts_with(text), "{text}");
        }
    }
}
