//! The control interface's answers as text for people, aligned like `ss`, and as JSON for programs.

use podvirt_proto::netd::v1 as proto;
use serde::Serialize;

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

/// One flow.
#[derive(Debug, Serialize)]
pub struct FlowRow {
    kind: &'static str,
    state: String,
    opened_by: &'static str,
    guest: String,
    guest_peer: String,
    pod_peer: String,
    bytes_to_pod: u64,
    bytes_to_guest: u64,
    retransmits: u32,
    idle_ms: u64,
}

impl From<proto::Flow> for FlowRow {
    fn from(f: proto::Flow) -> FlowRow {
        let kind = match f.kind() {
            proto::FlowKind::Tcp => "tcp",
            proto::FlowKind::Udp => "udp",
            proto::FlowKind::Echo => "echo",
            proto::FlowKind::Unspecified => "?",
        };
        FlowRow {
            kind,
            state: f.state,
            opened_by: if f.from_guest { "guest" } else { "pod" },
            guest: f.guest,
            guest_peer: f.guest_peer,
            pod_peer: f.pod_peer,
            bytes_to_pod: f.bytes_to_pod,
            bytes_to_guest: f.bytes_to_guest,
            retransmits: f.retransmits,
            idle_ms: f.idle_ms,
        }
    }
}

/// The flow table. The peer of the pod's socket is shown where the guest sees another.
pub fn flows(rows: &[FlowRow]) -> String {
    let mut table = Table::new(&[
        "Kind",
        "State",
        "By",
        "Guest",
        "Peer",
        "Pod's peer",
        ">To pod",
        ">To guest",
        ">Retrans",
        ">Idle",
    ]);
    for f in rows {
        let pod_peer = if f.pod_peer == f.guest_peer { "" } else { &f.pod_peer };
        table.row([
            f.kind,
            &f.state,
            f.opened_by,
            &f.guest,
            &f.guest_peer,
            pod_peer,
            &f.bytes_to_pod.to_string(),
            &f.bytes_to_guest.to_string(),
            &f.retransmits.to_string(),
            &time(f.idle_ms),
        ]);
    }
    table.text()
}

/// One forwarded port.
#[derive(Debug, Serialize)]
pub struct PortRow {
    transport: &'static str,
    pod: u32,
    guest: u32,
    #[serde(skip_serializing_if = "String::is_empty")]
    error: String,
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
        PortRow { transport, pod: rule.pod, guest: rule.guest, error: p.error }
    }
}

/// Forwarded ports: neighbouring ones with the same outcome in one line.
pub fn ports(rows: &[PortRow]) -> String {
    let mut rows: Vec<&PortRow> = rows.iter().collect();
    rows.sort_by_key(|p| (p.transport, p.pod));
    let joins = |a: &PortRow, b: &PortRow| {
        a.transport == b.transport
            && a.error == b.error
            && a.pod.checked_add(1) == Some(b.pod)
            && a.guest.checked_add(1) == Some(b.guest)
    };
    let mut table = Table::new(&["Proto", "Pod", "Guest", "State"]);
    for run in rows.chunk_by(|a, b| joins(a, b)) {
        let (Some(first), Some(last)) = (run.first(), run.last()) else { continue };
        let range = |a: u32, b: u32| if a == b { a.to_string() } else { format!("{a}-{b}") };
        let state = if first.failed() { &first.error } else { "listening" };
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
    listeners: u32,
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

/// Whom the guest may speak to.
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
            listeners: s.listeners,
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
    line("netd", format!("{}, up {}", s.version, time(s.uptime_ms)));
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
    line("Listeners", s.listeners.to_string());
    table.text()
}

/// One counter.
#[derive(Debug, Serialize)]
pub struct CounterRow {
    name: String,
    value: u64,
    #[serde(skip_serializing_if = "String::is_empty")]
    help: String,
}

/// The rows of all counters; drops are called `dropped.REASON`.
pub fn counter_rows(c: proto::CountersResponse) -> Vec<CounterRow> {
    let row = |prefix: &str, c: proto::Counter| CounterRow {
        name: format!("{prefix}{}", c.name),
        value: c.value,
        help: c.help,
    };
    let plain = c.counters.into_iter().map(|c| row("", c));
    plain.chain(c.dropped.into_iter().map(|c| row("dropped.", c))).collect()
}

/// Counters as lines of a name, a value and a help text.
pub fn counters(rows: &[CounterRow]) -> String {
    let mut table = Table::new(&["Counter", ">Value", "Meaning"]);
    for c in rows {
        table.row([c.name.as_str(), &c.value.to_string(), &c.help]);
    }
    table.text()
}

/// A time in its largest two units.
fn time(millis: u64) -> String {
    let seconds = millis / 1000;
    match seconds {
        0..10 => format!("{}.{}s", seconds, millis % 1000 / 100),
        10..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// Columns as wide as their widest cell; a title with `>` in front is aligned to the right.
struct Table {
    right: Vec<bool>,
    rows: Vec<Vec<String>>,
}

impl Table {
    fn new(titles: &[&str]) -> Table {
        let right = titles.iter().map(|t| t.starts_with('>')).collect();
        let titles = titles.iter().map(|t| t.trim_start_matches('>').to_owned()).collect();
        Table { right, rows: vec![titles] }
    }

    fn bare(columns: usize) -> Table {
        Table { right: vec![false; columns], rows: Vec::new() }
    }

    fn row<'a>(&mut self, cells: impl IntoIterator<Item = &'a str>) {
        self.rows.push(cells.into_iter().map(str::to_owned).collect());
    }

    fn text(&self) -> String {
        let width = |column: usize| {
            self.rows.iter().filter_map(|r| r.get(column)).map(|c| c.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.right.len()).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for ((cell, width), right) in row.iter().zip(&widths).zip(&self.right) {
                line += &if *right { format!("{cell:>width$}  ") } else { format!("{cell:<width$}  ") };
            }
            text += line.trim_end();
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(pod: u32, guest: u32, error: &str) -> PortRow {
        let rule = proto::PortRule { transport: proto::Transport::Tcp.into(), pod, guest };
        PortRow::from(proto::Port { rule: Some(rule), error: error.into() })
    }

    #[test]
    fn neighbouring_ports_share_a_line() {
        let rows = [port(82, 82, "taken"), port(80, 80, ""), port(81, 81, ""), port(2222, 22, "")];
        assert_eq!(
            ports(&rows),
            "Proto  Pod    Guest  State\n\
             tcp    80-81  80-81  listening\n\
             tcp    82     82     taken\n\
             tcp    2222   22     listening\n"
        );
    }

    #[test]
    fn flows_stand_in_columns() {
        let flow = proto::Flow {
            kind: proto::FlowKind::Tcp.into(),
            state: "ESTABLISHED".into(),
            from_guest: false,
            guest: "10.9.0.2:80".into(),
            guest_peer: "10.9.0.1:40000".into(),
            pod_peer: "127.0.0.6:40000".into(),
            bytes_to_pod: 12345,
            bytes_to_guest: 6,
            retransmits: 0,
            idle_ms: 61_000,
        };
        let udp = proto::Flow {
            kind: proto::FlowKind::Udp.into(),
            from_guest: true,
            pod_peer: "10.9.0.1:40000".into(),
            bytes_to_pod: 1,
            idle_ms: 250,
            state: "open".into(),
            ..flow.clone()
        };
        assert_eq!(
            flows(&[flow.into(), udp.into()]),
            concat!(
                "Kind  State        By     Guest        Peer            Pod's peer       ",
                "To pod  To guest  Retrans   Idle\n",
                "tcp   ESTABLISHED  pod    10.9.0.2:80  10.9.0.1:40000  127.0.0.6:40000  ",
                " 12345         6        0  1m01s\n",
                "udp   open         guest  10.9.0.2:80  10.9.0.1:40000                   ",
                "     1         6        0   0.2s\n",
            )
        );
    }

    #[test]
    fn features_have_names() {
        assert_eq!(features(1 << 15 | 1 << 32 | 1 << 63), ["MRG_RXBUF", "VERSION_1", "bit 63"]);
    }

    #[test]
    fn times_have_two_units() {
        let cases =
            [(0, "0.0s"), (9_990, "9.9s"), (59_999, "59s"), (3_600_000, "1h00m"), (90_000_000, "1d01h")];
        for (millis, text) in cases {
            assert_eq!(time(millis), text);
        }
    }
}
