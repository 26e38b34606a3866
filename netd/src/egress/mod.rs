//! Egress policy: which peers the guest may speak to, by address, protocol and port.
//!
//! A destination is judged once, when a flow is created (TCP's SYN, the first datagram of a UDP flow, every echo
//! request), never per packet, so flows that exist go on when the policy changes. With a guest that comes from another node
//! its flows are created anew, and judged by the policy here. What is judged is the *pod's*
//! peer, after the guest's destination was mapped: an address that `loopback` opens counts as 127.0.0.1, in
//! masquerade mode the peer is what the guest named. The order, in which the first that has an opinion wins:
//!
//! 1. the [`Link`](crate::net::Link) itself: the pod's loopback (unless opened), every address of the pod, multicast, broadcast,
//!    unspecified, link-local IPv6 and IPv4-mapped IPv6 addresses are closed whatever the policy says;
//! 2. port 53 of the resolvers that the guest was told of is open: a guest without names is of no use. That is
//!    also why a metadata service that is the cloud's resolver, too, stays usable as such;
//! 3. [`METADATA`]: the services by which clouds give credentials to any program that asks from the machine. Closed unless
//!    the configuration opens them;
//! 4. the configured rules in their order;
//! 5. the default.
//!
//! An ordered list was chosen over the most specific rule since it can be read from top to bottom, and since with
//! three dimensions (network, protocol, port) "most specific" has no obvious meaning. An address of NAT64's
//! well-known prefix (RFC 6052, section 2.1) leads to the IPv4 address inside, so it is judged as both: a rule
//! that names either one matches. Other translation prefixes are the operator's to name.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ipnet::IpNet;

use crate::flow::Kind;
use crate::port::PortRange;

/// Addresses of metadata and credential services.
pub const METADATA: &[IpAddr] = &[
    // AWS, Azure, Google Cloud, OCI, OpenStack, DigitalOcean, Hetzner and most others.
    IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254)),
    // AWS: the same over IPv6.
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    // AWS: credentials of ECS tasks; credentials of EKS pods, in both families.
    IpAddr::V4(Ipv4Addr::new(169, 254, 170, 2)),
    IpAddr::V4(Ipv4Addr::new(169, 254, 170, 23)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23)),
    // Google Cloud over IPv6.
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
    // OCI over IPv6.
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe)),
    // Azure: the host's agent, which hands out the machine's settings and their secrets.
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    // Alibaba Cloud.
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
];

/// What a rule does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The flow is created.
    Allow,
    /// It is not; the guest is told.
    Deny,
}

/// What the policy says of a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The guest may speak to it.
    Allowed,
    /// It may not.
    Denied,
}

/// One rule: it matches when each of its three parts does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What it does.
    pub action: Action,
    /// Destination networks; none: every address.
    pub to: Vec<IpNet>,
    /// Protocol; none: every one that netd carries.
    pub kind: Option<Kind>,
    /// Destination ports; none: every port. A rule with ports never matches an echo request.
    pub ports: Vec<PortRange>,
}

/// The policy of one guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Egress {
    /// What happens where no rule matches.
    pub default: Action,
    /// What happens to [`METADATA`]; with [`Action::Allow`] the rules decide.
    pub metadata: Action,
    /// Rules in the order in which they are asked.
    pub rules: Vec<Rule>,
}

impl Default for Egress {
    fn default() -> Self {
        Egress { default: Action::Allow, metadata: Action::Deny, rules: Vec::new() }
    }
}

impl Egress {
    /// Judges a peer of the pod; for echo the port is of no meaning.
    pub fn allows(&self, kind: Kind, peer: SocketAddr) -> Verdict {
        let address = peer.ip().to_canonical();
        let inner = translated(address);
        let both = || [Some(address), inner].into_iter().flatten();
        if self.metadata == Action::Deny && both().any(|a| METADATA.contains(&a)) {
            return Verdict::Denied;
        }
        let rule = self.rules.iter().find(|r| both().any(|a| r.matches(kind, a, peer.port())));
        match rule.map_or(self.default, |r| r.action) {
            Action::Allow => Verdict::Allowed,
            Action::Deny => Verdict::Denied,
        }
    }
}

impl Rule {
    fn matches(&self, kind: Kind, address: IpAddr, port: u16) -> bool {
        let to = self.to.is_empty() || self.to.iter().any(|n| n.contains(&address));
        let ports =
            self.ports.is_empty() || (kind != Kind::Echo && self.ports.iter().any(|r| r.contains(port)));
        to && ports && self.kind.is_none_or(|k| k == kind)
    }
}

/// The IPv4 address inside one of NAT64's well-known prefix 64:ff9b::/96.
fn translated(address: IpAddr) -> Option<IpAddr> {
    let IpAddr::V6(a) = address else { return None };
    let [0x64, 0xff9b, 0, 0, 0, 0, high, low] = a.segments() else { return None };
    let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
    Some(Ipv4Addr::new(a, b, c, d).into())
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Action::Allow => "allow",
            Action::Deny => "deny",
        })
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.action)?;
        if let Some(kind) = self.kind {
            f.write_str(match kind {
                Kind::Tcp => " tcp",
                Kind::Udp => " udp",
                Kind::Echo => " icmp",
            })?;
        }
        let mut separator = " ports ";
        for ports in &self.ports {
            write!(f, "{separator}{ports}")?;
            separator = ",";
        }
        separator = " to ";
        for net in &self.to {
            write!(f, "{separator}{net}")?;
            separator = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
