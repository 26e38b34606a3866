//! What a guest does that means harm: the frames of each kind of flood, and how it answers what comes.
//!
//! Connections are kept without any state: every answer is made from the segment that it answers. So a guest may have as many
//! as its backend takes, and sends as the backend's acknowledgements come.

pub mod frames;

use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use anyhow::{Context, Result};

use frames::{Link, Segment, flag};

/// A TCP and UDP port of the peers that echoes.
pub const OPEN_PORT: u16 = 7101;
/// A TCP port of the peers whose connections are not read.
pub const DEAF_PORT: u16 = 7102;
/// A port of the peers that nothing serves.
pub const CLOSED_PORT: u16 = 7103;

/// What the neighbour does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It computes, and sends nothing: what its share of the processors costs by itself.
    Computes,
    /// A process of its pod sends UDP datagrams from many ports by itself, without any guest: what any pod can do.
    Plain,
    /// TCP SYNs from changing ports to open and closed ports and addresses that never answer.
    Syn,
    /// UDP datagrams from changing ports to the same.
    Udp,
    /// A hundred thousand flows, half of them TCP connections.
    Flows,
    /// Datagrams to addresses of its own link that do not exist.
    Neighbours,
    /// Parts of datagrams that are never whole.
    Fragments,
    /// Random bytes, wrong lengths, wrong virtio headers.
    Garbage,
    /// Descriptors that lead nowhere, into themselves, or out of memory.
    Descriptors,
    /// Urgent data, both ways.
    Urgent,
    /// Connections whose peers read nothing, filled.
    SlowPeers,
    /// Connections of peers that send without end, of which the guest reads nothing.
    SlowGuest,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 12] = [
        Kind::Computes,
        Kind::Plain,
        Kind::Syn,
        Kind::Udp,
        Kind::Flows,
        Kind::Neighbours,
        Kind::Fragments,
        Kind::Garbage,
        Kind::Descriptors,
        Kind::Urgent,
        Kind::SlowPeers,
        Kind::SlowGuest,
    ];

    /// As on a command line.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Computes => "computes",
            Kind::Plain => "plain",
            Kind::Syn => "syn",
            Kind::Udp => "udp",
            Kind::Flows => "flows",
            Kind::Neighbours => "neighbours",
            Kind::Fragments => "fragments",
            Kind::Garbage => "garbage",
            Kind::Descriptors => "descriptors",
            Kind::Urgent => "urgent",
            Kind::SlowPeers => "slow-peers",
            Kind::SlowGuest => "slow-guest",
        }
    }
}

impl FromStr for Kind {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> Result<Kind> {
        let known = || Kind::ALL.map(Kind::name).join(", ");
        Kind::ALL
            .into_iter()
            .find(|kind| kind.name() == name)
            .with_context(|| format!("{name:?} is none of {}", known()))
    }
}

/// Flows of [`Kind::Flows`].
const FLOWS: u64 = 100_000;
/// Connections of the kinds that fill them.
const CONNECTIONS: u64 = 2000;
/// The first port of the guest's own.
const FIRST_PORT: u16 = 2000;
/// Bytes of a full segment.
const FULL: usize = 1400;
/// Segments that follow an acknowledgement where connections are filled.
const BURST: u32 = 8;
/// The guest's first sequence number of every connection.
const FIRST_SEQ: u32 = 1000;

/// Numbers that look random (xorshift, Marsaglia 2003).
#[derive(Clone, Debug)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 11) % bound
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| (self.next() >> 32) as u8).collect()
    }
}

/// The ends of what is sent.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    /// Of the guest's link.
    pub link: Link,
    /// The guest.
    pub from4: Ipv4Addr,
    /// The guest.
    pub from6: Ipv6Addr,
    /// The peers.
    pub to4: Ipv4Addr,
    /// The peers.
    pub to6: Ipv6Addr,
}

/// One kind at work.
#[derive(Clone, Debug)]
pub struct Flood {
    kind: Kind,
    ends: Ends,
    random: Random,
    count: u64,
}

impl Flood {
    /// At its beginning.
    pub fn new(kind: Kind, ends: Ends) -> Flood {
        Flood { kind, ends, random: Random(0x9e37_79b9_7f4a_7c15), count: 0 }
    }

    /// The next frame that nothing has asked for; none where only answers are sent, or descriptors.
    pub fn next_frame(&mut self) -> Option<Vec<u8>> {
        let (n, ends) = (self.count, self.ends);
        self.count += 1;
        let port = |of: u64| FIRST_PORT + (of % 60_000) as u16;
        match self.kind {
            Kind::Computes | Kind::Plain | Kind::Descriptors | Kind::SlowGuest => None,
            Kind::Syn => {
                let (from, to) = (port(self.random.next()), self.target(n));
                Some(self.syn(from, to))
            }
            Kind::Udp => Some(frames::datagram4(ends.link, (ends.from4, port(n)), self.target(n), 64)),
            Kind::Flows => {
                let of = n % FLOWS;
                let to = if of % 4 < 2 { OPEN_PORT } else { DEAF_PORT };
                let from = port(of / 4);
                Some(if of.is_multiple_of(2) {
                    self.syn(from, (ends.to4, to))
                } else {
                    frames::datagram4(ends.link, (ends.from4, from), (ends.to4, to), 64)
                })
            }
            Kind::Neighbours => Some(self.neighbour(n)),
            Kind::Fragments => {
                let (id, offset) = (self.random.next(), self.random.below(4) as u16 * 185);
                Some(if n.is_multiple_of(2) {
                    frames::fragment4(ends.link, ends.from4, ends.to4, id as u16, offset, FULL)
                } else {
                    frames::fragment6(ends.link, ends.from6, ends.to6, id as u32, offset, FULL)
                })
            }
            Kind::Garbage => Some(self.garbage(n)),
            Kind::Urgent => Some(self.syn(port(n % CONNECTIONS), (ends.to4, OPEN_PORT))),
            Kind::SlowPeers => Some(self.syn(port(n % CONNECTIONS), (ends.to4, DEAF_PORT))),
        }
    }

    /// Whether frames of [`Flood::next_frame`] are to be sent as fast as the ring takes them.
    pub fn is_eager(&self) -> bool {
        !matches!(self.kind, Kind::Urgent | Kind::SlowPeers | Kind::SlowGuest | Kind::Computes | Kind::Plain)
    }

    fn syn(&self, from: u16, to: (Ipv4Addr, u16)) -> Vec<u8> {
        let segment = Segment {
            from: (self.ends.from4, from),
            to,
            seq: FIRST_SEQ.wrapping_sub(1),
            ack: 0,
            flags: flag::SYN,
            window: u16::MAX,
            len: 0,
        };
        segment.frame(self.ends.link)
    }

    /// An open port, a closed one, and an address that never answers, in turn.
    fn target(&mut self, n: u64) -> (Ipv4Addr, u16) {
        match n % 3 {
            0 => (self.ends.to4, OPEN_PORT),
            1 => (self.ends.to4, CLOSED_PORT),
            // A network for measurements (RFC 2544), which the peers' machine does not forward to.
            _ => (Ipv4Addr::from_bits(0xc612_0000 + self.random.below(1 << 17) as u32), OPEN_PORT),
        }
    }

    fn neighbour(&mut self, n: u64) -> Vec<u8> {
        let ends = self.ends;
        let low = self.random.below(1 << 16) as u16;
        if n.is_multiple_of(2) {
            let [a, b, ..] = self.ends.from4.octets();
            let [c, d] = low.max(16).to_be_bytes();
            frames::datagram4(ends.link, (self.ends.from4, 4000), (Ipv4Addr::new(a, b, c, d), 9), 16)
        } else {
            let mut to = self.ends.from6.segments();
            (to[5], to[6], to[7]) = (low, self.random.next() as u16, self.random.next() as u16 | 0x100);
            frames::datagram6(ends.link, (self.ends.from6, 4000), (Ipv6Addr::from(to), 9), 16)
        }
    }

    fn garbage(&mut self, n: u64) -> Vec<u8> {
        let (link, len) = (self.ends.link, self.random.below(1600) as usize);
        match n % 3 {
            // Nothing is right.
            0 => self.random.bytes(len),
            // What it says it is.
            1 => {
                let kinds = [[8, 0], [0x86, 0xdd], [8, 6], [0x81, 0]];
                let kind = kinds[self.random.below(4) as usize];
                [frames::ethernet(link, kind), self.random.bytes(len)].concat()
            }
            // A packet with wrong headers.
            _ => {
                let mut frame = self.syn(4000, (self.ends.to4, OPEN_PORT));
                for _ in 0..4 {
                    let at = 14 + self.random.below(40) as usize;
                    frame[at] = self.random.next() as u8;
                }
                frame
            }
        }
    }

    /// The guest's answers to a frame that came.
    pub fn answer(&self, frame: &[u8], put: &mut impl FnMut(Vec<u8>)) {
        let Some(came) = Segment::parse(frame) else { return };
        let keeps = matches!(self.kind, Kind::Flows | Kind::Urgent | Kind::SlowPeers | Kind::SlowGuest);
        if !keeps || came.flags & flag::RST != 0 {
            return;
        }
        let syn = came.flags & flag::SYN != 0;
        let takes = came.len as u32 + u32::from(syn) + u32::from(came.flags & flag::FIN != 0);
        let answer = Segment {
            from: came.to,
            to: came.from,
            seq: came.ack,
            ack: came.seq.wrapping_add(takes),
            flags: flag::ACK,
            window: u16::MAX,
            len: 0,
        };
        if syn && came.flags & flag::ACK == 0 {
            // A peer's connection. A guest that reads nothing has no window from the beginning.
            let window = if self.kind == Kind::SlowGuest { 0 } else { u16::MAX };
            let flags = flag::SYN | flag::ACK;
            put(Segment { seq: FIRST_SEQ, flags, window, ..answer }.frame(self.ends.link));
            return;
        }
        if syn && matches!(self.kind, Kind::Urgent | Kind::SlowPeers) {
            // What comes with the acknowledgement that opens a connection is lost with some backends.
            put(answer.frame(self.ends.link));
        }
        match self.kind {
            Kind::SlowGuest if came.len > 0 => {
                put(Segment { ack: came.seq, window: 0, ..answer }.frame(self.ends.link));
            }
            Kind::Urgent => {
                put(Segment { flags: flag::ACK | flag::URG, len: 8, ..answer }.frame(self.ends.link));
            }
            Kind::SlowPeers if came.window > 0 => {
                for part in 0..BURST {
                    let seq = answer.seq.wrapping_add(part * FULL as u32);
                    put(Segment { seq, len: FULL, ..answer }.frame(self.ends.link));
                }
            }
            _ if takes > 0 => put(answer.frame(self.ends.link)),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const ENDS: Ends = Ends {
        link: Link { from: [2, 0, 0, 0, 0, 9], to: [2, 0, 0, 0, 0, 1] },
        from4: Ipv4Addr::new(10, 10, 0, 2),
        from6: Ipv6Addr::new(0xfd00, 9, 2, 0, 0, 0, 0, 2),
        to4: Ipv4Addr::new(10, 9, 1, 1),
        to6: Ipv6Addr::new(0xfd00, 9, 1, 0, 0, 0, 0, 1),
    };

    fn flow(frame: &[u8]) -> Vec<u8> {
        let packet = 14;
        [&frame[packet + 9..packet + 10], &frame[packet + 16..packet + 24]].concat()
    }

    fn answers(kind: Kind, came: Segment) -> Vec<Segment> {
        let mut all = Vec::new();
        Flood::new(kind, ENDS)
            .answer(&came.frame(ENDS.link), &mut |frame| all.extend(Segment::parse(&frame)));
        all
    }

    fn came(flags: u8, len: usize) -> Segment {
        let (from, to) = ((ENDS.to4, OPEN_PORT), (ENDS.from4, 2000));
        Segment { from, to, seq: 70, ack: 1000, flags, window: 9000, len }
    }

    #[test]
    fn there_are_a_hundred_thousand_flows() {
        let mut flood = Flood::new(Kind::Flows, ENDS);
        let flows: BTreeSet<_> = (0..2 * FLOWS).filter_map(|_| Some(flow(&flood.next_frame()?))).collect();
        assert_eq!(flows.len() as u64, FLOWS);
    }

    #[test]
    fn ports_and_addresses_change() {
        for kind in [Kind::Syn, Kind::Udp] {
            let mut flood = Flood::new(kind, ENDS);
            let flows: BTreeSet<_> = (0..3000).filter_map(|_| Some(flow(&flood.next_frame()?))).collect();
            assert!(flows.len() > 2800, "{kind:?}: {}", flows.len());
        }
    }

    #[test]
    fn a_guest_that_reads_nothing_says_so_from_the_beginning() {
        let opened = answers(Kind::SlowGuest, came(flag::SYN, 0));
        assert_eq!((opened[0].flags, opened[0].window, opened[0].ack), (flag::SYN | flag::ACK, 0, 71));
        let probed = answers(Kind::SlowGuest, came(flag::ACK, 1));
        assert_eq!((probed[0].window, probed[0].ack), (0, 70));
    }

    #[test]
    fn acknowledgements_are_what_keeps_a_flood_going() {
        let urgent = answers(Kind::Urgent, came(flag::ACK, 0));
        assert_eq!((urgent[0].flags, urgent[0].seq, urgent[0].len), (flag::ACK | flag::URG, 1000, 8));
        let opened = answers(Kind::Urgent, came(flag::SYN | flag::ACK, 0));
        assert_eq!(opened.iter().map(|s| (s.ack, s.len)).collect::<Vec<_>>(), [(71, 0), (71, 8)]);
        let full = answers(Kind::SlowPeers, came(flag::ACK, 0));
        assert_eq!(full.iter().map(|s| s.seq).take(2).collect::<Vec<_>>(), [1000, 2400]);
        assert!(answers(Kind::SlowPeers, Segment { window: 0, ..came(flag::ACK, 0) }).is_empty());
        assert!(answers(Kind::Flows, came(flag::ACK, 0)).is_empty());
        assert_eq!(answers(Kind::Flows, came(flag::SYN | flag::ACK, 0))[0].ack, 71);
        assert!(answers(Kind::Syn, came(flag::SYN | flag::ACK, 0)).is_empty());
        assert!(answers(Kind::Urgent, came(flag::RST, 0)).is_empty());
    }

    #[test]
    fn every_kind_that_is_eager_has_a_next_frame() {
        for kind in Kind::ALL {
            let mut flood = Flood::new(kind, ENDS);
            let eager = flood.is_eager() && kind != Kind::Descriptors;
            assert!((0..100).all(|_| flood.next_frame().is_some() || !eager), "{kind:?}");
            assert_eq!(kind.name().parse::<Kind>().unwrap(), kind);
        }
        assert!("smurf".parse::<Kind>().unwrap_err().to_string().contains("slow-guest"));
    }
}
