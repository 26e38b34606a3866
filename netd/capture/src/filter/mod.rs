//! Filter expressions: a documented subset of tcpdump's (pcap-filter(7)).
//!
//! netd cannot use libpcap, which is a C library that opens devices, and the one compiler of these expressions in
//! Rust is a single first release. What people type is a small part of the language:
//!
//! ```text
//! expression = term { ( "and" | "&&" | "or" | "||" ) term }        of equal rank, from left to right, as tcpdump
//! term       = ( "not" | "!" ) term | "(" expression ")" | primitive
//! primitive  = [ family ] [ side ] [ "host" ] ADDRESS              an address at either end, ARP's included
//!            | [ family ] [ side ] "net" ADDRESS "/" LENGTH
//!            | [ "tcp" | "udp" ] [ side ] "port" PORT
//!            | [ "tcp" | "udp" ] [ side ] "portrange" PORT "-" PORT
//!            | "ether" [ side ] "host" MAC
//!            | family | "tcp" | "udp" | "icmp" | "icmp6"
//!            | [ "ip" | "ip6" ] "proto" ( NUMBER | "tcp" | "udp" | "icmp" | "icmp6" )
//!            | "broadcast" | "multicast"                            of Ethernet
//!            | "inbound" | "outbound"                               received or sent by the guest
//!            | "less" BYTES | "greater" BYTES                       at most, at least
//!            | "tcp[tcpflags]" [ "&" flags ] ( "=" | "==" | "!=" ) flags
//! family     = "ip" | "ip6" | "arp"
//! side       = "src" | "dst" | "src or dst" | "src and dst"
//! flags      = FLAG | "(" FLAG { "|" FLAG } ")"      FLAG: tcp-syn tcp-ack tcp-fin tcp-rst tcp-push tcp-urg, NUMBER
//! ```
//!
//! An identifier by itself has the qualifiers of the one before: `port 80 or 443`. Names of hosts, ports and
//! networks are not looked up. Every other word is refused with its place and what is allowed.

mod parse;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;

use ipnet::IpNet;
use netd_wire::MacAddr;

use super::{Direction, Headers, SrcDst};

pub use parse::FilterError;

/// A filter; the default one lets everything through.
#[derive(Clone, Debug, Default)]
pub struct Filter(Option<Node>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Node {
    Not(Box<Node>),
    And(Box<Node>, Box<Node>),
    Or(Box<Node>, Box<Node>),
    Test(Test),
}

/// Whose address or port is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Src,
    Dst,
    Either,
    Both,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Test {
    EtherType(u16),
    Protocol(u8),
    Net(Side, IpNet),
    Port(Side, RangeInclusive<u16>),
    Mac(Side, MacAddr),
    Broadcast,
    Multicast,
    Direction(Direction),
    AtMost(usize),
    AtLeast(usize),
    /// (flags & mask == value) == equal
    TcpFlags {
        mask: u8,
        value: u8,
        equal: bool,
    },
}

impl Filter {
    /// Whether a frame with these headers, going this way, is let through.
    pub fn matches(&self, headers: &Headers, direction: Direction) -> bool {
        self.0.as_ref().is_none_or(|node| node.matches(headers, direction))
    }
}

impl FromStr for Filter {
    type Err = FilterError;

    fn from_str(text: &str) -> Result<Filter, FilterError> {
        parse::parse(text).map(Filter)
    }
}

impl Node {
    fn matches(&self, h: &Headers, direction: Direction) -> bool {
        match self {
            Node::Not(n) => !n.matches(h, direction),
            Node::And(a, b) => a.matches(h, direction) && b.matches(h, direction),
            Node::Or(a, b) => a.matches(h, direction) || b.matches(h, direction),
            Node::Test(t) => t.matches(h, direction),
        }
    }
}

impl Side {
    fn any<T: Copy>(self, ends: Option<SrcDst<T>>, is: impl Fn(T) -> bool) -> bool {
        let Some(ends) = ends else { return false };
        match self {
            Side::Src => is(ends.src),
            Side::Dst => is(ends.dst),
            Side::Either => is(ends.src) || is(ends.dst),
            Side::Both => is(ends.src) && is(ends.dst),
        }
    }
}

impl Test {
    fn matches(&self, h: &Headers, direction: Direction) -> bool {
        match self {
            Test::EtherType(t) => h.ethertype == *t,
            Test::Protocol(p) => h.protocol == Some(*p),
            Test::Net(side, net) => side.any(h.ip, |a: IpAddr| net.contains(&a)),
            Test::Port(side, ports) => side.any(h.ports, |p| ports.contains(&p)),
            Test::Mac(side, mac) => side.any(h.mac, |m| m == *mac),
            Test::Broadcast => h.mac.is_some_and(|m| m.dst == MacAddr::BROADCAST),
            Test::Multicast => h.mac.is_some_and(|m| m.dst.is_group()),
            Test::Direction(d) => *d == direction,
            Test::AtMost(n) => h.len <= *n,
            Test::AtLeast(n) => h.len >= *n,
            Test::TcpFlags { mask, value, equal } => {
                h.tcp_flags.is_some_and(|f| (f & mask == *value) == *equal)
            }
        }
    }
}
