//! Which ports of the pod lead to the guest: the grammar and what it expands to.
//!
//! ```text
//! ports  = "none" | entry { "," entry }
//! entry  = "all" | range [ ":" range ] | "~" range
//! range  = port [ "-" port ]
//! port   = 1 … 65535
//! ```
//!
//! `8000-8009:9000-9009` leads the pod's port 8000 to the guest's 9000 and so on: both ranges have the same
//! length. `~22` takes a port out again; a list of nothing but such entries starts from `all`. An explicit
//! entry wins over `all`, and no two explicit entries may have a pod port in common.
//!
//! `all` means every port that is neither reserved nor ephemeral (a listener on an ephemeral port would now
//! and then take the port of an outgoing connection), up to a budget: each listener costs about 5 KiB of
//! kernel memory and a descriptor. Reserved ports belong to a service mesh's proxy in the same pod; they are
//! never forwarded, not even by an explicit entry, unless it is known that no such proxy is there
//! ([`Reserved::give_way`]).

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::value::Problems;
use crate::port::{EntryError, PortMap, PortRange, PortRule, Proto};

/// Ports of Istio's proxy and its ambient redirection, TCP.
const ISTIO_TCP: &[u16] = &[15000, 15001, 15004, 15006, 15008, 15009, 15020, 15021, 15053, 15090];
/// Istio's DNS capture, UDP.
const ISTIO_UDP: &[u16] = &[15053];
/// Ports that the node's proxy of Istio's ambient mode has in a pod's network: a pod joins that mode while it runs.
const AMBIENT_TCP: &[u16] = &[15001, 15006, 15008, 15053];
/// Ports of Linkerd's proxy: outbound, inbound, tap and admin, TCP.
const LINKERD_TCP: &[u16] = &[4140, 4143, 4190, 4191];

/// The default of [`Ports::all_ports_budget`]: about 100 MiB of kernel memory when it is used up.
pub const DEFAULT_BUDGET: u32 = 24_576;

/// The forwarded ports of one protocol.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortSpec {
    /// Whether every port that nothing else speaks of leads to the same port of the guest.
    pub all: bool,
    /// Explicit entries; no two have a pod port in common.
    pub maps: Vec<PortMap>,
    /// Ports of the pod that are taken out.
    pub except: Vec<PortRange>,
}

impl PortSpec {
    /// Every port.
    pub fn all() -> PortSpec {
        PortSpec { all: true, ..PortSpec::default() }
    }

    /// Reads the entries of `field`, noting what is wrong with them.
    pub fn read(words: &[String], field: &str, problems: &mut Problems) -> PortSpec {
        let mut spec = PortSpec::default();
        if words == ["none"] {
            return spec;
        }
        for (i, word) in words.iter().enumerate() {
            let at = || format!("{field}[{i}]");
            let text = word.trim();
            if text == "all" {
                spec.all = true;
            } else if text == "none" {
                problems.wrong(at(), word, "'none' stands alone");
            } else if let Some(range) = text.strip_prefix('~') {
                match range.parse() {
                    Ok(range) => spec.except.push(range),
                    Err(e) => problems.wrong(at(), word, EntryError::to_string(&e)),
                }
            } else {
                match text.parse::<PortMap>() {
                    Ok(map) => match spec.maps.iter().find(|m| m.pod.overlaps(map.pod)) {
                        Some(other) => {
                            problems.wrong(at(), word, format!("'{other}' has ports of the pod in common"));
                        }
                        None => spec.maps.push(map),
                    },
                    Err(e) => problems.wrong(at(), word, e.to_string()),
                }
            }
        }
        spec.all |= spec.maps.is_empty() && !spec.except.is_empty();
        spec
    }
}

/// Ports that are never forwarded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reserved {
    tcp: Vec<PortRange>,
    udp: Vec<PortRange>,
    /// Ports of presets, which may give way.
    preset_tcp: Vec<PortRange>,
    preset_udp: Vec<PortRange>,
}

impl Reserved {
    /// Every preset.
    pub fn presets() -> Reserved {
        let mut reserved = Reserved::default();
        reserved.add_istio();
        reserved.add_linkerd();
        reserved
    }

    /// Reads presets, ports and ranges, noting what is wrong with them.
    pub fn read(words: &[String], field: &str, problems: &mut Problems) -> Reserved {
        let mut reserved = Reserved::default();
        if words == ["none"] {
            return reserved;
        }
        for (i, word) in words.iter().enumerate() {
            match word.trim() {
                "istio" => reserved.add_istio(),
                "linkerd" => reserved.add_linkerd(),
                text => match text.parse::<PortRange>() {
                    Ok(range) => {
                        reserved.tcp.push(range);
                        reserved.udp.push(range);
                    }
                    Err(_) => problems.wrong(
                        format!("{field}[{i}]"),
                        word,
                        "'istio', 'linkerd', a port or a range such as '9000-9010' is, or 'none' alone",
                    ),
                },
            }
        }
        reserved
    }

    /// Adds one TCP port, e.g. one on which netd itself listens.
    pub fn add_tcp(&mut self, port: u16) {
        self.tcp.push(PortRange::one(port));
    }

    /// Where no injector has put a mesh's proxy into the pod: the ports of presets that `spec` covers are not reserved any more. `all`
    /// does not cover ambient mode's, as the node's proxy may come while the pod runs. Ports that are reserved by number stay so.
    pub fn give_way(&mut self, proto: Proto, spec: &PortSpec) {
        let (presets, ambient) = match proto {
            Proto::Tcp => (&mut self.preset_tcp, AMBIENT_TCP),
            Proto::Udp => (&mut self.preset_udp, ISTIO_UDP),
        };
        presets.retain(|port| {
            let is_listed = spec.maps.iter().any(|map| map.pod.overlaps(*port));
            let is_ambient = ambient.iter().any(|ambient| port.contains(*ambient));
            !is_listed && (is_ambient || !spec.all)
        });
    }

    /// Whether the port is reserved.
    pub fn contains(&self, proto: Proto, port: u16) -> bool {
        self.ranges(proto).any(|range| range.contains(port))
    }

    /// All of a protocol.
    fn ranges(&self, proto: Proto) -> impl Iterator<Item = &PortRange> {
        let (ranges, presets) = match proto {
            Proto::Tcp => (&self.tcp, &self.preset_tcp),
            Proto::Udp => (&self.udp, &self.preset_udp),
        };
        ranges.iter().chain(presets)
    }

    fn add_istio(&mut self) {
        self.preset_tcp.extend(ISTIO_TCP.iter().copied().map(PortRange::one));
        self.preset_udp.extend(ISTIO_UDP.iter().copied().map(PortRange::one));
    }

    fn add_linkerd(&mut self) {
        self.preset_tcp.extend(LINKERD_TCP.iter().copied().map(PortRange::one));
    }
}

/// Forwarded ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ports {
    /// TCP ports; default all.
    pub tcp: PortSpec,
    /// UDP ports; default all.
    pub udp: PortSpec,
    /// Ports that are never forwarded; default every preset.
    pub reserved: Reserved,
    /// How many listeners `all` may open, TCP and UDP together; default [`DEFAULT_BUDGET`].
    pub all_ports_budget: u32,
    /// Where netd lends the sockets to which every port can be steered; default none: `all` opens listeners.
    pub steering: Option<PathBuf>,
    /// Whether the guest is asked on which of the TCP ports it listens; connections to the others are refused. Default no.
    pub ask_guest: bool,
}

impl Default for Ports {
    fn default() -> Self {
        Ports {
            tcp: PortSpec::all(),
            udp: PortSpec::all(),
            reserved: Reserved::presets(),
            all_ports_budget: DEFAULT_BUDGET,
            steering: None,
            ask_guest: false,
        }
    }
}

impl Ports {
    /// Whether `all` ports of some protocol are to be steered.
    pub fn is_steered(&self) -> bool {
        self.steering.is_some() && (self.tcp.all || self.udp.all)
    }

    /// Whether `all` has this port: datagrams of every peer to it reach the guest.
    pub fn all_covers(&self, proto: Proto, port: u16) -> bool {
        let spec = if proto == Proto::Tcp { &self.tcp } else { &self.udp };
        spec.all && !spec.except.iter().any(|r| r.contains(port)) && !self.reserved.contains(proto, port)
    }

    /// The ports of the pod that are never forwarded, as ranges.
    pub fn closed(&self, proto: Proto) -> Vec<(u16, u16)> {
        let spec = if proto == Proto::Tcp { &self.tcp } else { &self.udp };
        let everything = (!spec.all).then_some((1, u16::MAX));
        // An explicit rule has a listener of its own.
        let maps = spec.maps.iter().map(|m| m.pod);
        let ranges = self.reserved.ranges(proto).chain(&spec.except).copied().chain(maps);
        everything.into_iter().chain(ranges.map(PortRange::bounds)).collect()
    }
}

/// What the ports of a configuration come to in one pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expansion {
    /// The rules: TCP before UDP, each by ascending port of the pod.
    pub rules: Vec<PortRule>,
    /// Explicit rules that were left out because their port is reserved.
    pub reserved: Vec<PortRule>,
    /// How many ports `all` leaves out because of the budget.
    pub beyond_budget: u32,
}

/// Expands `ports` to single rules. `ephemeral` is the pod's range of ephemeral ports.
///
/// When both protocols say `all` they share the budget evenly, and what one does not need the other has; the
/// lowest ports come first.
pub fn expand(ports: &Ports, ephemeral: Option<PortRange>) -> Expansion {
    let mut out = Expansion::default();
    let tcp = explicit(&ports.tcp, Proto::Tcp, &ports.reserved, &mut out.reserved);
    let udp = explicit(&ports.udp, Proto::Udp, &ports.reserved, &mut out.reserved);
    let rest = |spec: &PortSpec, proto: Proto, taken: &BTreeMap<u16, u16>| -> Vec<u16> {
        let free = |p: &u16| {
            !ephemeral.is_some_and(|r| r.contains(*p))
                && !taken.contains_key(p)
                && !spec.maps.iter().any(|m| m.pod.contains(*p))
                && !spec.except.iter().any(|r| r.contains(*p))
                && !ports.reserved.contains(proto, *p)
        };
        if spec.all { (1..=u16::MAX).filter(free).collect() } else { Vec::new() }
    };
    let all_tcp = rest(&ports.tcp, Proto::Tcp, &tcp);
    let all_udp = rest(&ports.udp, Proto::Udp, &udp);

    let budget = usize::try_from(ports.all_ports_budget).unwrap_or(usize::MAX);
    let take_tcp = all_tcp.len().min(budget - all_udp.len().min(budget / 2));
    let take_udp = all_udp.len().min(budget - take_tcp);
    let left = all_tcp.len() + all_udp.len() - take_tcp - take_udp;
    out.beyond_budget = u32::try_from(left).unwrap_or(u32::MAX);

    for (proto, mut map, all, take) in
        [(Proto::Tcp, tcp, all_tcp, take_tcp), (Proto::Udp, udp, all_udp, take_udp)]
    {
        map.extend(all.into_iter().take(take).map(|p| (p, p)));
        out.rules.extend(map.into_iter().map(|(pod, guest)| PortRule { proto, pod, guest }));
    }
    out
}

/// The explicit rules of `spec` by the pod's port, without the reserved ones, which go to `left_out`.
fn explicit(
    spec: &PortSpec,
    proto: Proto,
    reserved: &Reserved,
    left_out: &mut Vec<PortRule>,
) -> BTreeMap<u16, u16> {
    let mut map = BTreeMap::new();
    for rule in spec.maps.iter().flat_map(|m| m.rules(proto)) {
        if spec.except.iter().any(|r| r.contains(rule.pod)) {
            continue;
        }
        if reserved.contains(proto, rule.pod) {
            left_out.push(rule);
        } else {
            map.insert(rule.pod, rule.guest);
        }
    }
    map
}

#[cfg(test)]
mod tests;
