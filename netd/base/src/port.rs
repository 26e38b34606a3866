//! Ports: protocols, ranges, and the rules that lead a port of the pod to one of the guest.

use std::fmt;
use std::str::FromStr;

use crate::codec::variants;

/// A transport protocol with ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Proto {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

variants!(Proto as "a port's protocol" { Tcp = 6, Udp = 17 });

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
    pub fn span(self) -> u16 {
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
    pub fn one(port: u16) -> PortRange {
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

impl FromStr for PortRange {
    type Err = EntryError;

    fn from_str(text: &str) -> Result<Self, EntryError> {
        let port = |text: &str| {
            let text = text.trim();
            // `u16::from_str` would take a sign too.
            let digits = text.bytes().all(|b| b.is_ascii_digit());
            text.parse().ok().filter(|n| digits && *n != 0).ok_or(EntryError::Port)
        };
        let (first, last) = match text.split_once('-') {
            Some((first, last)) => (port(first)?, port(last)?),
            None => (port(text)?, port(text)?),
        };
        PortRange::new(first, last).ok_or(EntryError::Backwards)
    }
}

/// Why a port entry is refused, as the end of a sentence about what is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EntryError {
    /// Not a port number.
    #[error("ports from 1 to 65535 are, as in '80', '8000-8099', '2222:22' (pod:guest) or '~22'")]
    Port,
    /// A range from a higher to a lower port.
    #[error("a range goes from the lower to the higher port")]
    Backwards,
    /// The pod's and the guest's range differ in length.
    #[error("the ranges before and after ':' have the same number of ports")]
    Lengths,
}

/// Ports of the pod and the ports of the guest that they lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortMap {
    /// Ports of the pod.
    pub pod: PortRange,
    /// Ports of the guest, as many.
    pub guest: PortRange,
}

impl PortMap {
    /// Each port of the pod with the guest's that it leads to.
    pub fn pairs(self) -> impl Iterator<Item = (u16, u16)> {
        self.pod.ports().zip(self.guest.ports())
    }

    /// The single rules for `proto`.
    pub fn rules(self, proto: Proto) -> impl Iterator<Item = PortRule> {
        self.pairs().map(move |(pod, guest)| PortRule { proto, pod, guest })
    }
}

impl fmt::Display for PortMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.pod == self.guest { self.pod.fmt(f) } else { write!(f, "{}:{}", self.pod, self.guest) }
    }
}

impl FromStr for PortMap {
    type Err = EntryError;

    fn from_str(text: &str) -> Result<Self, EntryError> {
        let (pod, guest) = match text.split_once(':') {
            Some((pod, guest)) => (pod.parse::<PortRange>()?, guest.parse::<PortRange>()?),
            None => (text.parse()?, text.parse()?),
        };
        if pod.span() == guest.span() { Ok(PortMap { pod, guest }) } else { Err(EntryError::Lengths) }
    }
}
