//! What nftables is told for a machine behind the kernel's masquerade. Text in, text out.
//!
//! The tables `nat` are upstream's, chain by chain and rule by rule, so that what people know of them holds:
//!
//! | | |
//! |---|---|
//! | `postrouting` | what the guest sends leaves with the pod's address |
//! | `prerouting`, `KUBEVIRT_PREINBOUND` | what comes to the pod goes to the guest: all of it, or the listed ports |
//! | `output` | what the pod sends to its own 127.0.0.1 and `::1` likewise |
//! | `KUBEVIRT_POSTINBOUND` | such packets come from the gateway, or the guest could not answer |
//!
//! With Istio's proxy in the pod, connections of TCP from outside go to the proxy, which speaks to the guest by the pod's loopback and
//! its address: nothing of TCP leads past the proxy but port 22. The proxy's own ports stay the pod's. UDP, which the proxy does
//! not take, goes to the guest; upstream's rules leave it in the pod.
//!
//! The tables `podvirt` are podvirt's own. One takes what the guest asks about its addresses (DHCP, router solicitations) off its tap
//! and gives it to the tap [`SERVICES`], and what is written there to the guest: the questions are answered in the pod
//! without any privilege, and nothing of it is seen by the bridge. The others drop what the guest sends
//! with an address that is not its own, and packets that are neither from the guest nor to it: the pod forwards, but does not
//! route between its networks.
//!
//! Every chain is emptied before it is filled, in one transaction: the commands may be given again.

use std::fmt::{self, Write as _};
use std::net::IpAddr;

use ipnet::IpNet;
use podvirt_api::kernel::{BRIDGE, SERVICES, TAP};
use podvirt_api::names::pod::PRIMARY_INTERFACE;
use podvirt_api::netd::Port;
use podvirt_api::vmi::PortProtocol;

/// Ports of Istio's proxy.
const ISTIO_PORTS: [u16; 10] = [15000, 15001, 15004, 15006, 15008, 15009, 15020, 15021, 15053, 15090];
/// What Istio leaves to the guest: its proxy takes no SSH.
const NOT_PROXIED: i32 = 22;

/// One address family of a machine behind masquerade.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Family {
    /// The guest's address.
    pub guest: IpAddr,
    /// The gateway's, which is the bridge's.
    pub gateway: IpAddr,
    /// The pod's.
    pub pod: IpAddr,
}

impl Family {
    /// The guest's network, in which the gateway has the first address and the guest the second one.
    pub fn new(guest: IpNet, pod: IpAddr) -> Family {
        let gateway = match guest.network() {
            IpAddr::V4(network) => IpAddr::from((u32::from(network) + 1).to_be_bytes()),
            IpAddr::V6(network) => IpAddr::from((u128::from(network) + 1).to_be_bytes()),
        };
        Family { guest: guest.addr(), gateway, pod }
    }

    fn word(&self) -> &'static str {
        if self.guest.is_ipv4() { "ip" } else { "ip6" }
    }

    fn loopback(&self) -> &'static str {
        if self.guest.is_ipv4() { "127.0.0.1" } else { "::1" }
    }

    /// The address from which Istio's proxy speaks to what is behind it.
    fn proxy(&self) -> &'static str {
        if self.guest.is_ipv4() { "127.0.0.6" } else { "::6" }
    }
}

/// Chains of a table `nat`, with their hooks.
const CHAINS: [(&str, &str); 6] = [
    ("prerouting", "{ type nat hook prerouting priority -100; }"),
    ("input", "{ type nat hook input priority 100; }"),
    ("output", "{ type nat hook output priority -100; }"),
    ("postrouting", "{ type nat hook postrouting priority 100; }"),
    ("KUBEVIRT_PREINBOUND", ""),
    ("KUBEVIRT_POSTINBOUND", ""),
];

/// The commands for a machine with these families and ports; no port means all of them.
pub fn commands(families: &[Family], ports: &[Port], proxied: bool) -> String {
    let mut script = Script::default();
    for family in families {
        nat(&mut script, family, ports, proxied);
    }
    for family in families {
        let table = format!("{} podvirt", family.word());
        script.chain(&table, "forward", "{ type filter hook forward priority 0; }");
        let mut drops = |what: fmt::Arguments<'_>| {
            script.rule(&table, "forward", format_args!("{what} counter drop"));
        };
        drops(format_args!("iifname \"{BRIDGE}\" {} saddr != {}", family.word(), family.guest));
        drops(format_args!("iifname != \"{BRIDGE}\" oifname != \"{BRIDGE}\""));
    }
    services(&mut script, TAP, SERVICES, &["udp dport 67", "udp dport 547", "icmpv6 type nd-router-solicit"]);
    script.0
}

/// The commands for a guest that is told its addresses in the pod: what it asks by DHCP at `tap` goes to `services`, and does
/// not leave the pod.
pub fn dhcp_commands(tap: &str, services_tap: &str) -> String {
    let mut script = Script::default();
    services(&mut script, tap, services_tap, &["udp dport 67"]);
    script.0
}

fn nat(script: &mut Script, family: &Family, ports: &[Port], proxied: bool) {
    let Family { guest, gateway, pod } = family;
    let (word, loopback) = (family.word(), family.loopback());
    let table = format!("{word} nat");
    for (chain, hook) in CHAINS {
        script.chain(&table, chain, hook);
    }
    let mut rule = |chain: &str, rule: fmt::Arguments<'_>| script.rule(&table, chain, rule);
    rule("postrouting", format_args!("{word} saddr {guest} counter masquerade"));
    rule("prerouting", format_args!("iifname \"{PRIMARY_INTERFACE}\" counter jump KUBEVIRT_PREINBOUND"));
    rule("postrouting", format_args!("oifname \"{BRIDGE}\" counter jump KUBEVIRT_POSTINBOUND"));
    let (mut sources, mut own) = (loopback.to_owned(), loopback.to_owned());
    if proxied {
        sources = format!("{loopback}, {}", family.proxy());
        own = format!("{loopback}, {pod}");
    }
    if ports.is_empty() {
        if proxied {
            let proxys = ISTIO_PORTS.map(|port| port.to_string()).join(", ");
            for chain in ["output", "KUBEVIRT_POSTINBOUND"] {
                rule(chain, format_args!("tcp dport {{ {proxys} }} {word} saddr {loopback} counter return"));
            }
            let left = format_args!("tcp dport {{ {NOT_PROXIED} }} counter dnat to {guest}");
            rule("KUBEVIRT_PREINBOUND", left);
            rule("KUBEVIRT_PREINBOUND", format_args!("meta l4proto udp counter dnat to {guest}"));
        } else {
            rule("KUBEVIRT_PREINBOUND", format_args!("counter dnat to {guest}"));
        }
        rule("KUBEVIRT_POSTINBOUND", format_args!("{word} saddr {{ {sources} }} counter snat to {gateway}"));
        rule("output", format_args!("{word} daddr {{ {own} }} counter dnat to {guest}"));
        return;
    }
    for Port { protocol, port } in ports {
        let protocol = if *protocol == PortProtocol::Udp { "udp" } else { "tcp" };
        if !proxied || *port == NOT_PROXIED || protocol == "udp" {
            let open = format_args!("{protocol} dport {{ {port} }} counter dnat to {guest}");
            rule("KUBEVIRT_PREINBOUND", open);
        }
        rule(
            "KUBEVIRT_POSTINBOUND",
            format_args!("{protocol} dport {port} {word} saddr {{ {sources} }} counter snat to {gateway}"),
        );
        rule(
            "output",
            format_args!("{word} daddr {{ {own} }} {protocol} dport {port} counter dnat to {guest}"),
        );
    }
}

/// What comes in by `tap` and is one of the questions goes to `services_tap`; what comes in there goes to `tap`. Each tap has
/// its own chains.
fn services(script: &mut Script, tap: &str, services_tap: &str, questions: &[&str]) {
    let table = "netdev podvirt";
    let (asked, answered) = (format!("asked_{tap}"), format!("answered_{tap}"));
    let hook = |device| format!("{{ type filter hook ingress device \"{device}\" priority 0; }}");
    script.chain(table, &asked, &hook(tap));
    for asks in questions {
        script.rule(table, &asked, format_args!("{asks} counter fwd to \"{services_tap}\""));
    }
    script.chain(table, &answered, &hook(services_tap));
    script.rule(table, &answered, format_args!("counter fwd to \"{tap}\""));
}

#[derive(Default)]
struct Script(String);

impl Script {
    fn line(&mut self, line: fmt::Arguments<'_>) {
        // Writing to a text does not fail.
        let _infallible = writeln!(self.0, "{line}");
    }

    /// A chain that is empty, in a table that is there.
    fn chain(&mut self, table: &str, chain: &str, hook: &str) {
        self.line(format_args!("add table {table}"));
        self.line(format_args!("add chain {table} {chain} {hook}"));
        self.line(format_args!("flush chain {table} {chain}"));
    }

    fn rule(&mut self, table: &str, chain: &str, rule: fmt::Arguments<'_>) {
        self.line(format_args!("add rule {table} {chain} {rule}"));
    }
}

#[cfg(test)]
#[path = "rules_tests.rs"]
mod tests;
