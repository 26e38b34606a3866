//! The control interface's answers as text for people, aligned like `ss`, and as JSON for programs.

mod counters;
mod flows;
mod frame;
mod rates;
mod table;

use std::collections::BTreeMap;

use podvirt_proto::netd::v1 as proto;
use serde::Serialize;

pub use counters::{CounterRow, DropRow, counter_rows, counters, drop_rows, drops};
pub use flows::{FlowRow, FlowSort, flows, sort_flows};
pub use frame::frame;
pub use rates::{FlowRate, Sample, Top, top};
use table::{Table, time};

/// Names of the virtio-net features that netd can offer, by their bit (virtio 1.2, sections 5.1.3 and 6).
const FEATURES: &[(u32, &str)] = &[
    (0, "CSUM"),
    (1, "GUEST_CSUM"),
    (3, "MTU"),
    (5, "MAC"),
    (7, "GUEST_TSO4"),
    (8, "GUEST_TSO6"),
    (9, "GUEST_ECN"),
    (10, "GUEST_UFO"),
    (11, "HOST_TSO4"),
    (12, "HOST_TSO6"),
    (13, "HOST_ECN"),
    (14, "HOST_UFO"),
    (15, "MRG_RXBUF"),
    (16, "STATUS"),
    (17, "CTRL_VQ"),
    (21, "GUEST_ANNOUNCE"),
    (22, "MQ"),
    (26, "LOG_ALL"),
    (28, "INDIRECT_DESC"),
    (29, "EVENT_IDX"),
    (30, "PROTOCOL_FEATURES"),
    (32, "VERSION_1"),
    (33, "ACCESS_PLATFORM"),
    (34, "RING_PACKED"),
];

/// One forwarded port.
#[derive(Debug, Serialize)]
pub struct PortRow {
    transport: &'static str,
    pod: u32,
    guest: u32,
    #[serde(skip_serializing_if = "String::is_empty")]
    error: String,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    shut: bool,
}

impl PortRow {
    /// Whether the port could not be opened.
    pub fn failed(&self) -> bool {
        !self.error.is_empty()
    }
}

impl From<proto::Port> for PortRow {
    fn from(p: proto::Port) -> PortRow {
        let rule = p.rule.unwrap_or_default();
        let transport = match rule.transport() {
            proto::Transport::Tcp => "tcp",
            proto::Transport::Udp => "udp",
            proto::Transport::Unspecified => "?",
        };
        PortRow { transport, pod: rule.pod, guest: rule.guest, error: p.error, shut: p.shut }
    }
}

/// Forwarded ports: neighbouring ones with the same outcome in one line.
pub fn ports(rows: &[PortRow]) -> String {
    let mut rows: Vec<&PortRow> = rows.iter().collect();
    rows.sort_by_key(|p| (p.transport, p.pod));
    let joins = |a: &PortRow, b: &PortRow| {
        a.transport == b.transport
            && (&a.error, a.shut) == (&b.error, b.shut)
            && a.pod.checked_add(1) == Some(b.pod)
            && a.guest.checked_add(1) == Some(b.guest)
    };
    let mut table = Table::new(&["Proto", "Pod", "Guest", "State"]);
    for run in rows.chunk_by(|a, b| joins(a, b)) {
        let (Some(first), Some(last)) = (run.first(), run.last()) else { continue };
        let range = |a: u32, b: u32| if a == b { a.to_string() } else { format!("{a}-{b}") };
        let state = match first {
            p if p.failed() => &p.error,
            p if p.shut => "refused: the guest does not listen",
            _ => "listening",
        };
        let (pod, guest) = (range(first.pod, last.pod), range(first.guest, last.guest));
        table.row([first.transport, &pod, &guest, state]);
    }
    table.text()
}

/// The status; field names are those of the contract.
#[derive(Debug, Serialize)]
pub struct StatusView {
    version: String,
    uptime_ms: u64,
    generation: u32,
    frontend_connected: bool,
    features: Vec<String>,
    running_rings: Vec<u32>,
    mode: &'static str,
    mac: String,
    mtu: u32,
    v4: Option<FamilyView>,
    v6: Option<FamilyView>,
    dns: Vec<String>,
    search: Vec<String>,
    hostname: String,
    fqdn: String,
    egress: EgressView,
    guest_mac: String,
    guest_seen: Vec<String>,
    flows: FlowCounts,
    tcp_states: BTreeMap<String, u32>,
    listeners: u32,
    silent: bool,
    #[serde(skip_serializing_if = "String::is_empty")]
    name: String,
}

/// One address family of the status.
#[derive(Debug, Serialize)]
pub struct FamilyView {
    guest: String,
    prefix_len: u32,
    gateway: String,
    pod: String,
    loopback: String,
    routes: Vec<String>,
}

/// Which peers the guest may speak to.
#[derive(Debug, Serialize)]
pub struct EgressView {
    default: String,
    metadata: String,
    rules: Vec<String>,
}

/// Numbers of flows.
#[derive(Debug, Serialize)]
pub struct FlowCounts {
    tcp: u32,
    udp: u32,
    echo: u32,
}

impl From<proto::StatusResponse> for StatusView {
    fn from(s: proto::StatusResponse) -> StatusView {
        let link = s.link.unwrap_or_default();
        let mode = match link.mode() {
            proto::link::Mode::Passthrough => "passthrough",
            proto::link::Mode::Masquerade => "masquerade",
            proto::link::Mode::Unspecified => "?",
        };
        let family = |f: proto::Family| FamilyView {
            guest: f.guest,
            prefix_len: f.prefix_len,
            gateway: f.gateway,
            pod: f.pod,
            loopback: f.loopback,
            routes: f.routes,
        };
        let egress = link.egress.unwrap_or_default();
        StatusView {
            version: s.version,
            uptime_ms: s.uptime_ms,
            generation: s.generation,
            frontend_connected: s.frontend_connected,
            features: features(s.features),
            running_rings: s.running_rings,
            mode,
            mac: link.mac,
            mtu: link.mtu,
            v4: link.v4.map(family),
            v6: link.v6.map(family),
            dns: link.dns,
            search: link.search,
            hostname: link.hostname,
            fqdn: link.fqdn,
            egress: EgressView { default: egress.default, metadata: egress.metadata, rules: egress.rules },
            guest_mac: s.guest_mac,
            guest_seen: s.guest_seen,
            flows: FlowCounts { tcp: s.tcp_flows, udp: s.udp_flows, echo: s.echo_flows },
            tcp_states: s.tcp_states.into_iter().map(|s| (s.state, s.count)).collect(),
            listeners: s.listeners,
            silent: s.silent,
            name: s.name,
        }
    }
}

fn features(mask: u64) -> Vec<String> {
    let name = |bit: u32| {
        let known = FEATURES.iter().find(|(b, _)| *b == bit);
        known.map_or_else(|| format!("bit {bit}"), |(_, name)| (*name).to_owned())
    };
    (0..64).filter(|bit| mask >> bit & 1 == 1).map(name).collect()
}

/// The status as lines of a name and a value; what is empty is left out.
pub fn status(s: &StatusView) -> String {
    let mut table = Table::bare(2);
    let mut line = |name: &str, value: String| {
        if !value.is_empty() {
            table.row([name, &value]);
        }
    };
    line("Guest", s.name.clone());
    let up = time(s.uptime_ms);
    line(
        "netd",
        match s.generation {
            0 => format!("{}, up {up}", s.version),
            n => format!("{}, up {up}, the connections' {n} updates included", s.version),
        },
    );
    line("Frontend", if s.frontend_connected { "connected" } else { "not connected" }.into());
    let rings: Vec<String> = s.running_rings.iter().map(u32::to_string).collect();
    line("Rings", if rings.is_empty() { "none".into() } else { rings.join(" ") });
    line("Features", s.features.join(" "));
    line("Mode", s.mode.into());
    line("Gateway MAC", s.mac.clone());
    line("Guest MAC", s.guest_mac.clone());
    line("Guest seen", s.guest_seen.join(" "));
    line("MTU", s.mtu.to_string());
    for (name, family) in [("IPv4", &s.v4), ("IPv6", &s.v6)] {
        let Some(f) = family else { continue };
        line(name, format!("guest {}/{} gateway {} pod {}", f.guest, f.prefix_len, f.gateway, f.pod));
        for route in &f.routes {
            line("", format!("route {route}"));
        }
        if !f.loopback.is_empty() {
            line("", format!("the pod's loopback is open at {}", f.loopback));
        }
    }
    line("DNS", s.dns.join(" "));
    line("Search", s.search.join(" "));
    line("Host name", s.hostname.clone());
    line("FQDN", s.fqdn.clone());
    line("Egress", format!("{}; metadata services: {}", s.egress.default, s.egress.metadata));
    for rule in &s.egress.rules {
        line("", format!("before: {rule}"));
    }
    line("Flows", format!("{} TCP, {} UDP, {} echo", s.flows.tcp, s.flows.udp, s.flows.echo));
    let states: Vec<String> = s.tcp_states.iter().map(|(state, n)| format!("{n} {state}")).collect();
    line("", states.join(", "));
    let silent = if s.silent { ", silent: the guest does not run" } else { "" };
    line("Listeners", format!("{}{silent}", s.listeners));
    table.text()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(pod: u32, guest: u32, error: &str, shut: bool) -> PortRow {
        let rule = proto::PortRule { transport: proto::Transport::Tcp.into(), pod, guest };
        PortRow::from(proto::Port { rule: Some(rule), error: error.into(), shut })
    }

    #[test]
    fn neighbouring_ports_share_a_line() {
        let listens = |pod, guest| port(pod, guest, "", false);
        let rows = [
            port(82, 82, "taken", false),
            listens(80, 80),
            listens(81, 81),
            port(83, 83, "", true),
            listens(2222, 22),
        ];
        assert_eq!(
            ports(&rows),
            "Proto  Pod    Guest  State\n\
             tcp    80-81  80-81  listening\n\
             tcp    82     82     taken\n\
             tcp    83     83     refused: the guest does not listen\n\
             tcp    2222   22     listening\n"
        );
    }

    #[test]
    fn features_have_names() {
        assert_eq!(features(1 << 15 | 1 << 32 | 1 << 63), ["MRG_RXBUF", "VERSION_1", "bit 63"]);
    }
}
