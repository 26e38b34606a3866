//! Between the types of [`crate::control::Control`] and those of the gRPC contract.

use std::net::IpAddr;
use std::time::Duration;

use podvirt_proto::netd::v1 as proto;

use crate::control::{FlowInfo, FlowKind, PortInfo, RefusedFlows, Status};
use crate::counters::{Counters, Reason};
use crate::net::{Link, Mode, Route};
use crate::port::{PortRule, Proto};

fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX)
}

fn micros(d: Duration) -> u32 {
    u32::try_from(d.as_micros()).unwrap_or(u32::MAX)
}

fn texts<T: ToString>(list: &[T]) -> Vec<String> {
    list.iter().map(T::to_string).collect()
}

fn text<T: ToString>(value: Option<T>) -> String {
    value.map(|v| v.to_string()).unwrap_or_default()
}

pub(super) fn status(s: &Status, name: &str) -> proto::StatusResponse {
    let [tcp_flows, udp_flows, echo_flows] = s.flows;
    proto::StatusResponse {
        version: env!("CARGO_PKG_VERSION").into(),
        uptime_ms: millis(s.uptime),
        frontend_connected: s.frontend_connected,
        features: s.features,
        running_rings: s.running_rings.clone(),
        link: Some(link(&s.link)),
        guest_mac: text(s.guest_mac),
        guest_seen: texts::<IpAddr>(&s.guest_seen),
        tcp_flows,
        udp_flows,
        echo_flows,
        listeners: s.listeners,
        silent: s.silent,
        name: name.into(),
        tcp_states: s
            .tcp_states
            .iter()
            .map(|(state, count)| proto::StateCount { state: (*state).into(), count: *count })
            .collect(),
        // The server knows.
        generation: 0,
    }
}

pub(super) fn link(l: &Link) -> proto::Link {
    let mode = match l.mode {
        Mode::Passthrough => proto::link::Mode::Passthrough,
        Mode::Masquerade => proto::link::Mode::Masquerade,
    };
    proto::Link {
        mode: mode.into(),
        mac: l.mac.to_string(),
        mtu: l.mtu.into(),
        v4: l.v4.as_ref().map(|f| proto::Family {
            guest: f.guest.to_string(),
            prefix_len: f.prefix_len.into(),
            gateway: f.gateway.to_string(),
            pod: f.pod.to_string(),
            loopback: text(f.loopback),
            routes: routes(&f.routes),
        }),
        v6: l.v6.as_ref().map(|f| proto::Family {
            guest: f.guest.to_string(),
            prefix_len: f.prefix_len.into(),
            gateway: f.gateway.to_string(),
            pod: f.pod.to_string(),
            loopback: text(f.loopback),
            routes: routes(&f.routes),
        }),
        dns: texts(&l.dns),
        search: l.search.clone(),
        hostname: text(l.hostname.as_ref()),
        fqdn: text(l.fqdn.as_ref()),
        egress: Some(proto::Egress {
            default: l.egress.default.to_string(),
            metadata: l.egress.metadata.to_string(),
            rules: texts(&l.egress.rules),
        }),
    }
}

/// The flows of `refused` that a client does not know, who knows `known` of them; none where it knows all.
pub(super) fn refused_flows(refused: RefusedFlows, known: u64) -> Option<proto::RefusedFlows> {
    let count = refused.count.saturating_sub(known);
    (count > 0).then_some(proto::RefusedFlows { limit: refused.limit, count })
}

fn routes<N: ToString, A: ToString>(routes: &[Route<N, A>]) -> Vec<String> {
    let one = |r: &Route<N, A>| match &r.via {
        Some(via) => format!("{} via {}", r.to.to_string(), via.to_string()),
        None => r.to.to_string(),
    };
    routes.iter().map(one).collect()
}

pub(super) fn flow(f: &FlowInfo) -> proto::Flow {
    let kind = match f.kind {
        FlowKind::Tcp => proto::FlowKind::Tcp,
        FlowKind::Udp => proto::FlowKind::Udp,
        FlowKind::Echo => proto::FlowKind::Echo,
    };
    proto::Flow {
        kind: kind.into(),
        state: f.state.into(),
        from_guest: f.from_guest,
        guest: f.guest.to_string(),
        guest_peer: f.guest_peer.to_string(),
        pod_peer: f.pod_peer.to_string(),
        bytes_to_pod: f.bytes_to_pod,
        bytes_to_guest: f.bytes_to_guest,
        retransmits: f.retransmits,
        idle_ms: millis(f.idle),
        guest_rtt_us: f.tcp.and_then(|t| t.guest_rtt).map(micros),
        in_flight: f.tcp.map_or(0, |t| t.in_flight),
        guest_window: f.tcp.map_or(0, |t| t.guest_window),
        pod_window: f.tcp.map_or(0, |t| t.pod_window),
        socket: f.tcp.and_then(|t| t.socket).map(|s| proto::FlowSocket {
            rtt_us: micros(s.rtt),
            retransmits: s.retransmits,
            send_queue: s.send_queue,
            receive_queue: s.receive_queue,
        }),
    }
}

pub(super) fn port(p: &PortInfo) -> proto::Port {
    proto::Port { rule: Some(rule_to_proto(p.rule)), error: text(p.error.as_ref()), shut: p.shut }
}

/// The rule as the contract has it.
pub(super) fn rule_to_proto(r: PortRule) -> proto::PortRule {
    let transport = match r.proto {
        Proto::Tcp => proto::Transport::Tcp,
        Proto::Udp => proto::Transport::Udp,
    };
    proto::PortRule { transport: transport.into(), pod: r.pod.into(), guest: r.guest.into() }
}

/// What is wrong with a rule that a client sent.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum RuleError {
    /// The rule names no transport.
    #[error("transport: TCP or UDP is needed")]
    Transport,
    /// The rule's `field` is no port.
    #[error("{field}: {value} is not allowed; a port from 1 to 65535 is")]
    Port { field: &'static str, value: u32 },
}

/// A rule that a client sent.
pub(super) fn rule(r: &proto::PortRule) -> Result<PortRule, RuleError> {
    let proto = match r.transport() {
        proto::Transport::Tcp => Proto::Tcp,
        proto::Transport::Udp => Proto::Udp,
        proto::Transport::Unspecified => return Err(RuleError::Transport),
    };
    let port = |field, value: u32| match u16::try_from(value) {
        Ok(port) if port != 0 => Ok(port),
        _ => Err(RuleError::Port { field, value }),
    };
    Ok(PortRule { proto, pod: port("pod", r.pod)?, guest: port("guest", r.guest)? })
}

pub(super) fn counters(c: &Counters) -> proto::CountersResponse {
    let counter = |(name, help, value): (&str, &str, u64)| proto::Counter {
        name: name.into(),
        help: help.into(),
        value,
    };
    let reason = |r: &Reason| counter((r.label(), r.help(), c.dropped(*r)));
    proto::CountersResponse {
        counters: c.totals().into_iter().map(counter).collect(),
        dropped: Reason::ALL.iter().map(reason).collect(),
    }
}
