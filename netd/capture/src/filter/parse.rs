//! From text to [`Node`]s: words with their places, then recursive descent.

use std::net::IpAddr;

use ipnet::IpNet;
use netd_wire::{ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, MacAddr, protocol};

use super::{Node, Side, Test};
use crate::Direction;

/// Longest expression in bytes: longer ones are not typed by people.
const MAX_LEN: usize = 4096;
/// Most levels of parentheses and negations.
const MAX_DEPTH: usize = 64;
/// What may stand where a primitive begins.
const PRIMITIVES: &str = "host, net, port, portrange, src, dst, ip, ip6, arp, tcp, udp, icmp, icmp6, ether, proto, \
                          inbound, outbound, broadcast, multicast, less, greater, not or (";

/// Why an expression is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("filter, column {column}: {problem}")]
pub struct FilterError {
    column: usize,
    problem: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Token<'a> {
    text: &'a str,
    /// Byte in the expression, from 0.
    at: usize,
}

/// Reads an expression; None for one that lets everything through.
pub(super) fn parse(text: &str) -> Result<Option<Node>, FilterError> {
    if text.len() > MAX_LEN {
        let problem = format!("{} bytes are not allowed; at most {MAX_LEN} are", text.len());
        return Err(FilterError { column: 1, problem });
    }
    let tokens = tokens(text)?;
    if tokens.is_empty() {
        return Ok(None);
    }
    let mut p = Parser { tokens: &tokens, end: text.len(), last: None, depth: 0 };
    let node = p.expression()?;
    match p.peek() {
        None => Ok(Some(node)),
        Some(")") => Err(p.error("there is no '(' for this ')'")),
        Some(word) => Err(p.error(&format!("'{word}' is not expected; and, or, or the end is"))),
    }
}

fn tokens(text: &str) -> Result<Vec<Token<'_>>, FilterError> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(c) = text[at..].chars().next() {
        let rest = &text[at..];
        let is_word = |c: char| c.is_ascii_alphanumeric() || ".:/-_\\".contains(c);
        let len = if c.is_whitespace() {
            at += c.len_utf8();
            continue;
        } else if is_word(c) {
            rest.find(|c| !is_word(c)).unwrap_or(rest.len())
        } else if ["&&", "||", "!=", "=="].iter().any(|two| rest.starts_with(two)) {
            2
        } else if "()[]!&|=".contains(c) {
            1
        } else {
            let problem = format!("the character {c:?} has no meaning here");
            return Err(FilterError { column: text[..at].chars().count() + 1, problem });
        };
        tokens.push(Token { text: &rest[..len], at });
        at += len;
    }
    Ok(tokens)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    Ether,
    Ip,
    Ip6,
    Arp,
    Tcp,
    Udp,
    Icmp,
    Icmp6,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Host,
    Net,
    Port,
    PortRange,
}

/// What stands before an identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Qualifiers {
    family: Option<Family>,
    side: Side,
    kind: Kind,
}

struct Parser<'a> {
    tokens: &'a [Token<'a>],
    end: usize,
    last: Option<Qualifiers>,
    depth: usize,
}

fn and(a: Node, b: Node) -> Node {
    Node::And(Box::new(a), Box::new(b))
}

impl Family {
    fn from_word(word: &str) -> Option<Family> {
        Some(match word {
            "ether" => Family::Ether,
            "ip" => Family::Ip,
            "ip6" => Family::Ip6,
            "arp" => Family::Arp,
            "tcp" => Family::Tcp,
            "udp" => Family::Udp,
            "icmp" => Family::Icmp,
            "icmp6" => Family::Icmp6,
            _ => return None,
        })
    }

    /// What the word means by itself; nothing for `ether`.
    fn node(self) -> Option<Node> {
        let ethertype = |t| Node::Test(Test::EtherType(t));
        let carried = |p| Node::Test(Test::Protocol(p));
        Some(match self {
            Family::Ether => return None,
            Family::Ip => ethertype(ETHERTYPE_IPV4),
            Family::Ip6 => ethertype(ETHERTYPE_IPV6),
            Family::Arp => ethertype(ETHERTYPE_ARP),
            Family::Tcp => carried(protocol::TCP),
            Family::Udp => carried(protocol::UDP),
            Family::Icmp => and(ethertype(ETHERTYPE_IPV4), carried(protocol::ICMP)),
            Family::Icmp6 => and(ethertype(ETHERTYPE_IPV6), carried(protocol::ICMPV6)),
        })
    }
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<&'a str> {
        self.tokens.first().map(|t| t.text)
    }

    fn next(&mut self) -> Option<&'a str> {
        let (first, rest) = self.tokens.split_first()?;
        self.tokens = rest;
        Some(first.text)
    }

    fn take(&mut self, words: &[&str]) -> bool {
        let found = self.peek().is_some_and(|t| words.contains(&t));
        if found {
            self.tokens = &self.tokens[1..];
        }
        found
    }

    /// An error at the next token.
    fn error(&self, problem: &str) -> FilterError {
        let at = self.tokens.first().map_or(self.end, |t| t.at);
        // Columns are bytes; what is not ASCII has been refused.
        FilterError { column: at + 1, problem: problem.to_owned() }
    }

    fn missing(&self, what: &str) -> FilterError {
        match self.peek() {
            Some(word) => self.error(&format!("'{word}' is not allowed; {what} is")),
            None => self.error(&format!("{what} is missing")),
        }
    }

    fn deeper(&mut self) -> Result<(), FilterError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.error(&format!("at most {MAX_DEPTH} levels are allowed")));
        }
        Ok(())
    }

    fn expression(&mut self) -> Result<Node, FilterError> {
        let mut left = self.term()?;
        loop {
            if self.take(&["and", "&&"]) {
                left = and(left, self.term()?);
            } else if self.take(&["or", "||"]) {
                left = Node::Or(Box::new(left), Box::new(self.term()?));
            } else {
                return Ok(left);
            }
        }
    }

    fn term(&mut self) -> Result<Node, FilterError> {
        if self.take(&["not", "!"]) {
            self.deeper()?;
            let node = Node::Not(Box::new(self.term()?));
            self.depth -= 1;
            return Ok(node);
        }
        if self.take(&["("]) {
            self.deeper()?;
            let node = self.expression()?;
            if !self.take(&[")"]) {
                return Err(self.missing("')', and, or or"));
            }
            self.depth -= 1;
            return Ok(node);
        }
        self.primitive()
    }

    fn primitive(&mut self) -> Result<Node, FilterError> {
        let Some(word) = self.peek() else { return Err(self.missing("a primitive such as 'host 10.0.0.1'")) };
        let simple = match word {
            "inbound" => Some(Test::Direction(Direction::Inbound)),
            "outbound" => Some(Test::Direction(Direction::Outbound)),
            "broadcast" => Some(Test::Broadcast),
            "multicast" => Some(Test::Multicast),
            _ => None,
        };
        if let Some(test) = simple {
            self.next();
            return Ok(Node::Test(test));
        }
        if self.take(&["less"]) {
            return Ok(Node::Test(Test::AtMost(self.bytes()?)));
        }
        if self.take(&["greater"]) {
            return Ok(Node::Test(Test::AtLeast(self.bytes()?)));
        }
        let family = Family::from_word(word);
        if family.is_some() {
            self.next();
        }
        if family == Some(Family::Tcp) && self.peek() == Some("[") {
            return self.tcp_flags();
        }
        if matches!(family, None | Some(Family::Ip | Family::Ip6)) && self.take(&["proto"]) {
            let test = Node::Test(Test::Protocol(self.protocol()?));
            return Ok(family.and_then(Family::node).into_iter().fold(test, |t, f| and(f, t)));
        }
        if family == Some(Family::Ether) && matches!(self.peek(), Some("broadcast" | "multicast")) {
            return self.primitive();
        }
        self.qualified(family)
    }

    /// The rest of a primitive: side, kind, identifier.
    fn qualified(&mut self, family: Option<Family>) -> Result<Node, FilterError> {
        let side = self.side();
        let kind = match self.peek() {
            Some("host") => Some(Kind::Host),
            Some("net") => Some(Kind::Net),
            Some("port") => Some(Kind::Port),
            Some("portrange") => Some(Kind::PortRange),
            _ => None,
        };
        if kind.is_some() {
            self.next();
        }
        let q = match (family, side, kind, self.last) {
            (Some(f), None, None, _) => {
                return f.node().ok_or_else(|| self.missing("host, src, dst, broadcast or multicast"));
            }
            (None, None, None, last) => {
                let first = self.peek().and_then(|w| w.chars().next());
                if !first.is_some_and(|c| c.is_ascii_hexdigit() || c == ':') {
                    return Err(self.missing(PRIMITIVES));
                }
                last.unwrap_or(Qualifiers { family: None, side: Side::Either, kind: Kind::Host })
            }
            (family, side, kind, _) => {
                Qualifiers { family, side: side.unwrap_or(Side::Either), kind: kind.unwrap_or(Kind::Host) }
            }
        };
        let test = Node::Test(self.identifier(q)?);
        self.last = Some(q);
        Ok(q.family.and_then(Family::node).into_iter().fold(test, |t, f| and(f, t)))
    }

    fn side(&mut self) -> Option<Side> {
        let side = match self.peek()? {
            "src" => Side::Src,
            "dst" => Side::Dst,
            _ => return None,
        };
        self.next();
        let other = if side == Side::Src { "dst" } else { "src" };
        match self.tokens {
            [a, b, ..] if a.text == "or" && b.text == other => {
                self.tokens = &self.tokens[2..];
                Some(Side::Either)
            }
            [a, b, ..] if a.text == "and" && b.text == other => {
                self.tokens = &self.tokens[2..];
                Some(Side::Both)
            }
            _ => Some(side),
        }
    }

    fn identifier(&mut self, q: Qualifiers) -> Result<Test, FilterError> {
        let ports = matches!(q.kind, Kind::Port | Kind::PortRange);
        match q.family {
            Some(Family::Tcp | Family::Udp) if !ports => {
                return Err(self.error("host and net go with ip, ip6 or arp, not with tcp or udp"));
            }
            Some(Family::Tcp | Family::Udp) | None => {}
            Some(_) if ports => return Err(self.error("port goes with tcp or udp only")),
            Some(Family::Icmp | Family::Icmp6) => {
                return Err(self.error("host and net go with ip, ip6 or arp: say 'icmp and host ...'"));
            }
            Some(Family::Ether) if q.kind == Kind::Net => {
                return Err(self.error("ether goes with host only"));
            }
            Some(_) => {}
        }
        let word = self.peek().unwrap_or_default();
        let test = match q.kind {
            Kind::Host if q.family == Some(Family::Ether) => {
                word.parse().map(|mac: MacAddr| Test::Mac(q.side, mac)).ok()
            }
            Kind::Host => word.parse().map(|a: IpAddr| Test::Net(q.side, a.into())).ok(),
            Kind::Net => {
                let net = word.parse().or_else(|_| word.parse::<IpAddr>().map(IpNet::from)).ok();
                if let Some(n) = net.filter(|n: &IpNet| n.addr() != n.network()) {
                    let problem = format!("'{word}' has bits beyond its length; {} has not", n.trunc());
                    return Err(self.error(&problem));
                }
                net.map(|n| Test::Net(q.side, n))
            }
            Kind::Port => word.parse().map(|p| Test::Port(q.side, p..=p)).ok(),
            Kind::PortRange => word
                .split_once('-')
                .and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)))
                .filter(|(a, b): &(u16, u16)| a <= b)
                .map(|(a, b)| Test::Port(q.side, a..=b)),
        };
        let allowed = match (q.kind, q.family) {
            (Kind::Host, Some(Family::Ether)) => "an Ethernet address",
            (Kind::Host, _) => "an IP address (names are not looked up)",
            (Kind::Net, _) => "a network such as 10.0.0.0/8",
            (Kind::Port, _) => "a port from 0 to 65535 (names are not looked up)",
            (Kind::PortRange, _) => "a range of ports such as 8000-8099",
        };
        let test = test.ok_or_else(|| self.missing(allowed))?;
        let family_is = |v4: bool| matches!(&test, Test::Net(_, n) if n.addr().is_ipv4() == v4);
        match q.family {
            Some(Family::Ip | Family::Arp) if family_is(false) => Err(self.missing("an IPv4 address")),
            Some(Family::Ip6) if family_is(true) => Err(self.missing("an IPv6 address")),
            _ => {
                self.next();
                Ok(test)
            }
        }
    }

    fn bytes(&mut self) -> Result<usize, FilterError> {
        let n = self.peek().and_then(|w| w.parse::<u32>().ok());
        let n = n.ok_or_else(|| self.missing("a number of bytes"))?;
        self.next();
        Ok(n as usize)
    }

    fn protocol(&mut self) -> Result<u8, FilterError> {
        let word = self.peek().unwrap_or_default();
        let number = match word.trim_start_matches('\\') {
            "tcp" => Some(protocol::TCP),
            "udp" => Some(protocol::UDP),
            "icmp" => Some(protocol::ICMP),
            "icmp6" => Some(protocol::ICMPV6),
            word => word.parse().ok(),
        };
        let number = number.ok_or_else(|| self.missing("a protocol: tcp, udp, icmp, icmp6 or 0 to 255"))?;
        self.next();
        Ok(number)
    }

    /// `[tcpflags]` behind `tcp`, and what it is compared with.
    fn tcp_flags(&mut self) -> Result<Node, FilterError> {
        self.take(&["["]);
        if !self.take(&["tcpflags", "13"]) {
            return Err(self.missing("tcpflags"));
        }
        if !self.take(&["]"]) {
            return Err(self.missing("']'"));
        }
        let mask = if self.take(&["&"]) { self.flags()? } else { u8::MAX };
        let equal = match self.peek() {
            Some("=" | "==") => true,
            Some("!=") => false,
            _ => return Err(self.missing("'=', '!=' or '&'")),
        };
        self.next();
        let value = self.flags()?;
        Ok(Node::Test(Test::TcpFlags { mask, value, equal }))
    }

    fn flags(&mut self) -> Result<u8, FilterError> {
        if !self.take(&["("]) {
            return self.flag();
        }
        let mut flags = self.flag()?;
        while self.take(&["|"]) {
            flags |= self.flag()?;
        }
        if !self.take(&[")"]) {
            return Err(self.missing("'|' or ')'"));
        }
        Ok(flags)
    }

    fn flag(&mut self) -> Result<u8, FilterError> {
        let word = self.peek().unwrap_or_default();
        let flag = match word {
            "tcp-fin" => Some(1),
            "tcp-syn" => Some(2),
            "tcp-rst" => Some(4),
            "tcp-push" => Some(8),
            "tcp-ack" => Some(16),
            "tcp-urg" => Some(32),
            word => word.strip_prefix("0x").map_or(word.parse(), |h| u8::from_str_radix(h, 16)).ok(),
        };
        let what = "tcp-syn, tcp-ack, tcp-fin, tcp-rst, tcp-push, tcp-urg or a number up to 255";
        let flag = flag.ok_or_else(|| self.missing(what))?;
        self.next();
        Ok(flag)
    }
}
