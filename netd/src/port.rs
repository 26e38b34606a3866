//! Ports: protocols, ranges, and the rules that lead a port of the pod to one of the guest.

use std::fmt;

/// A transport protocol with ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Proto {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// One forwarded port: what reaches `pod` goes to `guest`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortRule {
    /// Protocol.
    pub proto: Proto,
    /// Port of the pod.
    pub pod: u16,
    /// Port of the guest.
    pub guest: u16,
}

/// A range of ports, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PortRange {
    first: u16,
    last: u16,
}

impl PortRange {
    /// The ports from `first` to `last`; none when there is no such range or it has port 0.
    pub fn new(first: u16, last: u16) -> Option<PortRange> {
        (1..=last).contains(&first).then_some(PortRange { first, last })
    }

    /// Whether `port` is in the range.
    pub fn contains(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }

    /// How many ports it has, less one.
    pub(crate) fn span(self) -> u16 {
        self.last - self.first
    }

    /// Whether the two have a port in common.
    pub fn overlaps(self, other: PortRange) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    /// Its ports.
    pub fn ports(self) -> impl ExactSizeIterator<Item = u16> {
        self.first..=self.last
    }

    /// Its first and last port.
    pub fn bounds(self) -> (u16, u16) {
        (self.first, self.last)
    }

    /// The range of one port.
    pub(crate) fn one(port: u16) -> PortRange {
        PortRange { first: port, last: port }
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            write!(f, "{}", self.first)
        } else {
            write!(f, "{}-{}", self.first, self.last)
        }
    }
}
