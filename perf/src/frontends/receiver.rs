//! A TCP endpoint without a guest behind it: it accepts what is opened to it, acknowledges what comes, and reads nothing of it.
//!
//! # Theory of operation
//!
//! For each connection the receiver keeps the number of the byte that it expects next. A SYN of the peer sets this number. A
//! segment whose first byte has this number moves it by the segment's length, whether the segment is small or one of 64 KiB (GSO),
//! and marks the connection as one to be answered. A segment with another first byte marks it as well: the acknowledgement tells
//! the peer which byte to send next. [`Receiver::answers`] makes one frame for each marked connection and takes the mark away, so
//! the caller of `answers` decides how many segments one acknowledgement covers, as a driver in a guest does by its budget.
//!
//! A receiver that echoes puts as many bytes into its answer as the segments brought. It answers a FIN by a FIN, and forgets the
//! connection with the peer's next segment. The window never closes, because the receiver keeps no data that a program would
//! have to read. There is no timer: if an answer is lost, the peer's own timer makes the peer send again.

use std::collections::BTreeMap;
use std::mem;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use frontend_double::Pair;
use netd_wire::{
    ETH_LEN, Eth, EthIp, Ip, MAX_HEADERS, ParseError, TcpFlags, TcpHeader, TcpMeta, VNET_LEN, build_tcp,
    protocol,
};

/// The number of the receiver's own SYN.
const FIRST: u32 = 1;
/// Shift of the window (RFC 7323 section 2.2): with [`WINDOW`] it is 8 MiB, more than a guest of Linux offers by default.
const SCALE: u8 = 7;
/// The window field.
const WINDOW: u16 = u16::MAX;
/// Frames that are taken before their acknowledgements are sent: as the budget of a Linux driver (NAPI).
const BUDGET: usize = 64;
/// How long nothing may come before it is looked whether the time is over.
const IDLE: Duration = Duration::from_millis(10);
/// What is read of a frame: its headers with all options.
const HEAD: usize = MAX_HEADERS + 60;

/// One connection of a peer's.
struct Connection {
    /// The way back.
    link: EthIp,
    /// The receiver's port.
    port: u16,
    /// The peer's port.
    peer: u16,
    /// The byte that is expected next.
    expected: u32,
    /// The byte that is sent next.
    next: u32,
    state: State,
    /// An answer is asked for.
    asked: bool,
    /// Bytes that have not been echoed yet.
    owed: usize,
}

/// How far a connection is (RFC 9293, section 3.3.2).
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    SynReceived,
    Established,
    CloseWait,
    LastAck,
}

/// See the module.
pub(crate) struct Receiver {
    /// The largest segment that it takes, and that it sends.
    mss: u16,
    echoes: bool,
    connections: BTreeMap<SocketAddr, Connection>,
    /// Payload that has come in order, in bytes.
    pub(crate) bytes: u64,
}

impl Receiver {
    /// A receiver on a link with this MTU in bytes, which returns as many bytes as come if it `echoes`.
    pub(crate) fn new(mtu: u16, echoes: bool) -> Receiver {
        Receiver { mss: mtu.saturating_sub(40), echoes, connections: BTreeMap::new(), bytes: 0 }
    }

    /// Takes a frame of `total` bytes, of which `head` has the headers.
    ///
    /// # Errors
    /// It is no IP packet.
    pub(crate) fn take(&mut self, head: &[u8], total: usize) -> Result<(), ParseError> {
        let frame = head.get(VNET_LEN..).ok_or(ParseError::Malformed)?;
        let eth = Eth::parse(frame)?;
        let packet = frame.get(ETH_LEN..).ok_or(ParseError::Malformed)?;
        let ip = Ip::parse(packet, total.saturating_sub(VNET_LEN + ETH_LEN))?;
        if ip.protocol != protocol::TCP {
            return Ok(());
        }
        let tcp = TcpHeader::parse(packet.get(ip.header_len..).ok_or(ParseError::Malformed)?)?;
        let from = SocketAddr::new(ip.src, tcp.src);
        if tcp.flags.has(TcpFlags::SYN) {
            let link =
                EthIp { dst_mac: eth.src, src_mac: eth.dst, src: ip.dst, dst: ip.src, ttl: None, class: 0 };
            self.connections.insert(from, Connection::open(link, &tcp));
            return Ok(());
        }
        let Some(connection) = self.connections.get_mut(&from) else { return Ok(()) };
        if tcp.flags.has(TcpFlags::RST) || connection.state == State::LastAck {
            self.connections.remove(&from);
            return Ok(());
        }
        let payload = ip.payload_len.saturating_sub(tcp.header_len);
        let came = connection.take(&tcp, payload);
        connection.owed += if self.echoes { came } else { 0 };
        self.bytes += came as u64;
        Ok(())
    }

    /// The answers that are asked for, a frame each.
    pub(crate) fn answers(&mut self) -> impl Iterator<Item = Vec<u8>> {
        let mss = self.mss;
        self.connections
            .values_mut()
            .filter_map(move |connection| mem::take(&mut connection.asked).then(|| connection.answer(mss)))
    }
}

impl Connection {
    fn open(link: EthIp, syn: &TcpHeader) -> Connection {
        Connection {
            link,
            port: syn.dst,
            peer: syn.src,
            expected: syn.seq.wrapping_add(1),
            next: FIRST,
            state: State::SynReceived,
            asked: true,
            owed: 0,
        }
    }

    /// Takes a segment; how much of its payload is new.
    fn take(&mut self, tcp: &TcpHeader, payload: usize) -> usize {
        if self.state == State::SynReceived {
            (self.state, self.next) = (State::Established, FIRST + 1);
        }
        let end = tcp.flags.has(TcpFlags::FIN);
        if payload == 0 && !end {
            return 0;
        }
        self.asked = true;
        if tcp.seq != self.expected {
            return 0;
        }
        if end {
            self.state = State::CloseWait;
        }
        self.expected = self.expected.wrapping_add(moved(payload, end));
        payload
    }

    fn answer(&mut self, mss: u16) -> Vec<u8> {
        let payload_len = self.owed.min(usize::from(mss));
        self.owed -= payload_len;
        let opening = self.state == State::SynReceived;
        let end = self.state == State::CloseWait && self.owed == 0;
        let flags = [(opening, TcpFlags::SYN), (end, TcpFlags::FIN), (payload_len > 0, TcpFlags::PSH)];
        let meta = TcpMeta {
            src_port: self.port,
            dst_port: self.peer,
            seq: self.next,
            ack: self.expected,
            flags: flags
                .into_iter()
                .filter(|(set, _)| *set)
                .fold(TcpFlags::ACK, |all, (_, one)| all.with(one)),
            window: WINDOW,
            mss: opening.then_some(mss),
            window_scale: opening.then_some(SCALE),
            payload_len,
            gso_size: None,
        };
        self.next = self.next.wrapping_add(moved(payload_len, end));
        if end {
            self.state = State::LastAck;
        }
        self.asked = self.owed > 0;
        let mut headers = [0; MAX_HEADERS];
        let len = build_tcp(&mut headers, &self.link, &meta);
        let mut frame = headers.get(..len).unwrap_or_default().to_vec();
        frame.resize(len + payload_len, b'x');
        frame
    }
}

/// By how much a segment moves sequence numbers: its FIN counts as a byte. An IP packet has at most 65,535 bytes.
fn moved(payload: usize, end: bool) -> u32 {
    u32::try_from(payload).unwrap_or_default() + u32::from(end)
}

/// Receives by a pair while it `goes`.
///
/// # Errors
/// The backend is gone.
pub(crate) fn serve(pair: &mut Pair, receiver: &mut Receiver, goes: &AtomicBool) -> Result<()> {
    while goes.load(Ordering::Relaxed) {
        receive(pair, receiver, IDLE)?;
    }
    Ok(())
}

/// Receives by a pair for so long.
///
/// # Errors
/// The backend is gone.
pub(crate) fn receive(pair: &mut Pair, receiver: &mut Receiver, time: Duration) -> Result<()> {
    let begin = Instant::now();
    let mut head = [0; HEAD];
    while let Some(left) = time.checked_sub(begin.elapsed()) {
        let mut wait = left.min(IDLE);
        for _ in 0..BUDGET {
            let Some(total) = pair.recv_head(&mut head, wait)? else { break };
            let head = head.get(..total.min(HEAD)).unwrap_or_default();
            // What is no IP packet (ARP, for one) is nothing for a receiver of TCP.
            _ = receiver.take(head, total);
            wait = Duration::ZERO;
        }
        for frame in receiver.answers() {
            // An acknowledgement for which the ring has no room is made up for by the next one.
            pair.queue(&frame, &[], false)?;
        }
        pair.flush();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use netd_wire::MacAddr;

    const PEER: [u8; 4] = [192, 0, 2, 9];

    /// A frame of the peer's, and its length with a payload that is not in it.
    fn segment(seq: u32, flags: TcpFlags, payload_len: usize) -> (Vec<u8>, usize) {
        let link = EthIp {
            dst_mac: MacAddr([2, 0, 0, 0, 0, 2]),
            src_mac: MacAddr([2, 0, 0, 0, 0, 1]),
            src: PEER.map(Into::into).into(),
            dst: [192, 0, 2, 1].into(),
            ttl: None,
            class: 0,
        };
        let meta = TcpMeta {
            src_port: 40_000,
            dst_port: 80,
            seq,
            ack: 0,
            flags,
            window: 1000,
            mss: None,
            window_scale: None,
            payload_len,
            gso_size: None,
        };
        let mut headers = [0; MAX_HEADERS];
        let len = build_tcp(&mut headers, &link, &meta);
        (headers[..len].to_vec(), len + payload_len)
    }

    fn take(receiver: &mut Receiver, seq: u32, flags: TcpFlags, payload_len: usize) {
        let (head, total) = segment(seq, flags, payload_len);
        receiver.take(&head, total).unwrap();
    }

    /// What the next answers acknowledge, by flags and number.
    fn answers(receiver: &mut Receiver) -> Vec<(TcpFlags, u32, u32)> {
        let all = receiver.answers().map(|frame| {
            let packet = &frame[VNET_LEN + ETH_LEN..];
            let ip = Ip::parse(packet, packet.len()).unwrap();
            let tcp = TcpHeader::parse(&packet[ip.header_len..]).unwrap();
            assert_eq!(ip.header_len + ip.payload_len, packet.len());
            assert_eq!((tcp.src, tcp.dst), (80, 40_000));
            (tcp.flags, tcp.seq, tcp.ack)
        });
        all.collect()
    }

    fn opened(echoes: bool) -> Receiver {
        let mut receiver = Receiver::new(1500, echoes);
        take(&mut receiver, 99, TcpFlags::SYN, 0);
        assert_eq!(answers(&mut receiver), [(TcpFlags::SYN.with(TcpFlags::ACK), FIRST, 100)]);
        take(&mut receiver, 100, TcpFlags::ACK, 0);
        assert_eq!(answers(&mut receiver), []);
        receiver
    }

    #[test]
    fn what_comes_in_order_is_acknowledged_once_whatever_its_size() {
        let mut receiver = opened(false);
        take(&mut receiver, 100, TcpFlags::ACK, 1460);
        take(&mut receiver, 1560, TcpFlags::ACK, 60_000);
        assert_eq!(answers(&mut receiver), [(TcpFlags::ACK, FIRST + 1, 61_560)]);
        assert_eq!(answers(&mut receiver), []);
        take(&mut receiver, 61_560, TcpFlags::ACK.with(TcpFlags::FIN), 40);
        assert_eq!(answers(&mut receiver), [(TcpFlags::ACK.with(TcpFlags::FIN), FIRST + 1, 61_601)]);
        assert_eq!(receiver.bytes, 61_500);
        take(&mut receiver, 61_601, TcpFlags::ACK, 0);
        assert!(receiver.connections.is_empty());
    }

    #[test]
    fn an_echo_returns_as_many_bytes_in_segments_that_the_peer_takes() {
        let mut receiver = opened(true);
        take(&mut receiver, 100, TcpFlags::ACK, 2000);
        let data = TcpFlags::ACK.with(TcpFlags::PSH);
        assert_eq!(answers(&mut receiver), [(data, FIRST + 1, 2100)]);
        assert_eq!(answers(&mut receiver), [(data, FIRST + 1 + 1460, 2100)]);
        assert_eq!(answers(&mut receiver), []);
        take(&mut receiver, 2100, TcpFlags::ACK.with(TcpFlags::FIN), 0);
        assert_eq!(answers(&mut receiver), [(TcpFlags::ACK.with(TcpFlags::FIN), FIRST + 2001, 2101)]);
    }

    #[test]
    fn a_gap_is_answered_by_what_is_expected_and_counts_nothing() {
        let mut receiver = opened(false);
        take(&mut receiver, 1560, TcpFlags::ACK, 1460);
        assert_eq!(answers(&mut receiver), [(TcpFlags::ACK, FIRST + 1, 100)]);
        assert_eq!(receiver.bytes, 0);
    }

    #[test]
    fn a_connection_that_is_reset_or_was_never_opened_is_not_answered() {
        let mut receiver = opened(false);
        take(&mut receiver, 100, TcpFlags::RST, 0);
        take(&mut receiver, 100, TcpFlags::ACK, 10);
        assert_eq!((answers(&mut receiver), receiver.bytes), (vec![], 0));
    }

    #[test]
    fn what_is_no_ip_packet_is_refused() {
        let mut receiver = Receiver::new(1500, false);
        for len in 0..HEAD {
            assert!(receiver.take(&vec![0; len], len).is_err());
        }
    }
}
