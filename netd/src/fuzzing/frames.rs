//! Frames of the guest through a whole worker: rings, parsers, flow table, sockets, and back.
//!
//! The worker runs in a network namespace whose only interface is its loopback, so that nothing it does can reach
//! another host ([`nowhere`]). There, a TCP listener that never accepts and a UDP socket wait on port 7, to which an
//! address of the link leads; everything else is unreachable. Each step of an input is one turn of the worker's loop
//! with up to a few frames, whole or in odd pieces. Frames are built so that their checksums are right and TCP
//! segments follow what the worker sent, unless the input says otherwise. All that comes out must be a frame that a
//! guest would take.

use std::cell::RefCell;
use std::io;
use std::net::{IpAddr, TcpListener, UdpSocket};

use nix::sched::{CloneFlags, unshare};

use super::Bytes;
use super::link::{
    GATEWAY4, GUEST_MAC, GUEST4, GUEST6, LOOP4, LOOP6, NETD_MAC, addresses, check_frame, link,
};
use crate::guest::frame::{self, MacPair};
use crate::wire::{ETH_LEN, TcpHeader, VNET_LEN, VnetHeader, fold, protocol, pseudo_header, sum};
use crate::worker::fuzz::Bench;

const TURNS: usize = 24;
const FRAMES: usize = 6;
/// The port on which the listener and the UDP socket wait.
const PORT: u16 = 7;

thread_local! {
    static PEERS: RefCell<Option<(TcpListener, UdpSocket)>> = const { RefCell::new(None) };
}

/// Puts the calling thread, and those it starts, into a network namespace without a way out.
///
/// # Errors
/// Without root it takes a user namespace, which the machine may not allow, and only a process of one thread may ask
/// for.
pub fn nowhere() -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWNET)
        .or_else(|_| unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNET))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (connection, handle, _) = rtnetlink::new_connection()?;
        tokio::spawn(connection);
        let up = rtnetlink::LinkUnspec::new_with_index(1).up().build();
        handle.link().set(up).execute().await.map_err(io::Error::other)
    })?;
    let listener = TcpListener::bind(("::", PORT))?;
    let socket = UdpSocket::bind(("::", PORT))?;
    socket.set_nonblocking(true)?;
    PEERS.with(|peers| peers.replace(Some((listener, socket))));
    Ok(())
}

/// Runs one input. The calling thread must be [`nowhere`].
pub fn frames(data: &[u8]) {
    assert!(PEERS.with(|peers| peers.borrow().is_some()), "not in a network namespace of its own");
    let mut b = Bytes::new(data);
    let shape = b.u8();
    let mut link = link(shape & 1 != 0);
    link.mtu = if shape & 2 == 0 { 1500 } else { 68 + b.u16() % 0xff00 };
    let features = if shape & 4 == 0 {
        crate::vhost::feature::OFFERED
    } else {
        b.u64() | crate::vhost::feature::VERSION_1
    };
    let mut bench = Bench::new(link, features, shape >> 4);
    let mut guest = Guest::default();
    for _ in 0..TURNS {
        if b.is_empty() {
            break;
        }
        let frames = 1 + b.below(FRAMES);
        for _ in 0..frames {
            let frame = guest.frame(&mut b);
            let cuts = [usize::from(b.u8()), usize::from(b.u16())];
            bench.offer(&frame, if b.one_in(4) { &cuts } else { &[] });
        }
        bench.turn();
        for frame in bench.received() {
            guest.receive(&frame);
        }
        if b.one_in(4) {
            answer();
        }
    }
    bench.end();
}

/// The UDP peer sends back what it got.
fn answer() {
    PEERS.with(|peers| {
        let mut buffer = [0; 2048];
        if let Some((_, socket)) = &*peers.borrow() {
            while let Ok((n, from)) = socket.recv_from(&mut buffer) {
                let _ = socket.send_to(&buffer[..n], from);
            }
        }
    });
}

/// A frame behind its virtio header, with the checksum that the header leaves to the guest.
pub(super) fn whole(bytes: &[u8]) -> Vec<u8> {
    let (vnet, frame) = bytes.split_first_chunk::<VNET_LEN>().expect("no room for the virtio header");
    let vnet = VnetHeader::parse(vnet).expect("a virtio header that was not negotiated");
    let mut frame = frame.to_vec();
    if vnet.needs_csum {
        let (start, field) = (usize::from(vnet.csum_start), usize::from(vnet.csum_offset));
        let sum = !fold(sum(&frame[start..], 0));
        frame[start + field..start + field + 2].copy_from_slice(&sum.to_be_bytes());
    }
    frame
}

/// What the guest remembers.
#[derive(Default)]
struct Guest {
    /// The last segment that came: its ports as the guest has them, what to acknowledge, what is acknowledged.
    stream: Option<(bool, u16, u32, u32)>,
}

impl Guest {
    fn receive(&mut self, bytes: &[u8]) {
        let frame = whole(bytes);
        let Some(ip) = check_frame(&frame) else { return };
        if ip.protocol == protocol::TCP && ip.fragment.is_none() {
            let segment = &frame[ETH_LEN + ip.header_len..];
            let tcp = TcpHeader::parse(segment).expect("a TCP header");
            let len = ip.payload_len - tcp.header_len;
            let next = tcp
                .seq
                .wrapping_add(len as u32)
                .wrapping_add(u32::from(tcp.flags.0 & 1 | tcp.flags.0 >> 1 & 1));
            self.stream = Some((ip.src.is_ipv6(), tcp.dst, next, tcp.ack));
        }
    }

    /// A frame with its virtio header.
    fn frame(&mut self, b: &mut Bytes<'_>) -> Vec<u8> {
        let kind = b.u8();
        let v6 = kind & 0x10 != 0;
        let mut frame = match kind & 15 {
            0..=5 => self.tcp(b, v6),
            6..=8 => {
                let (from, to) = (b.u16() % 16, if b.one_in(4) { b.u16() } else { PORT });
                let payload = b.below(256);
                let header =
                    [from.to_be_bytes(), to.to_be_bytes(), (payload as u16 + 8).to_be_bytes(), [0; 2]];
                let datagram = [&header.concat()[..], &vec![0x33; payload]].concat();
                packet(b, v6, protocol::UDP, datagram, 6)
            }
            9 | 10 => {
                let mut message = vec![if v6 { 128 } else { 8 }, 0, 0, 0];
                message.extend(b.u32().to_le_bytes());
                let len = b.below(64);
                message.extend(b.take(len));
                packet(b, v6, if v6 { protocol::ICMPV6 } else { protocol::ICMP }, message, 2)
            }
            11 => {
                let len = usize::from(b.u8());
                let payload = b.take(len).to_vec();
                packet(b, v6, b.clone().u8(), payload, usize::MAX)
            }
            12 => {
                let mut arp = vec![0, 1, 8, 0, 6, 4, 0, 1];
                arp.extend(GUEST_MAC.0);
                arp.extend(GUEST4.octets());
                arp.extend([0; 6]);
                arp.extend(GATEWAY4.octets());
                [&[0xff; 6], &GUEST_MAC.0[..], &[8, 6], &arp].concat()
            }
            _ => {
                let len = usize::from(b.u16() % 600);
                b.take(len).to_vec()
            }
        };
        // Now and then a bit is another, or the end is missing.
        if kind & 0x20 != 0 && !frame.is_empty() {
            let at = usize::from(b.u16()) % frame.len();
            frame[at] ^= 1 << (b.u8() % 8);
            if b.one_in(4) {
                frame.truncate(at);
            }
        }
        let vnet = if kind & 0xc0 == 0xc0 {
            let mut raw = [0; VNET_LEN];
            let taken = b.take(VNET_LEN);
            raw[..taken.len()].copy_from_slice(taken);
            raw
        } else {
            VnetHeader::PLAIN.to_bytes()
        };
        [&vnet[..], &frame].concat()
    }

    fn tcp(&mut self, b: &mut Bytes<'_>, v6: bool) -> Vec<u8> {
        let shape = b.u8();
        let (mut port, mut seq, mut ack) = (1 + u16::from(shape >> 6), 1000u32, 0);
        let mut flags = match shape & 7 {
            0 | 1 => 2,
            2..=4 => 16,
            5 => 17,
            6 => 24,
            _ => b.u8(),
        };
        let mut family = v6;
        if let Some((six, to, next, acked)) = self.stream.filter(|_| flags & 2 == 0 || flags & 16 != 0) {
            (family, port, seq, ack) = (six, to, acked, next);
        } else if self.stream.is_none() {
            flags = 2;
        }
        if shape & 0x38 == 0x38 {
            seq = seq.wrapping_add(b.u16().cast_signed() as u32);
            ack = ack.wrapping_add(b.u16().cast_signed() as u32);
        }
        let to = if b.one_in(8) { b.u16() } else { PORT };
        let mut segment = [port.to_be_bytes(), to.to_be_bytes()].concat();
        segment.extend(seq.to_be_bytes());
        segment.extend(ack.to_be_bytes());
        let options: &[u8] = if flags & 2 != 0 { &[2, 4, 5, 0xb4, 1, 3, 3, 7] } else { &[] };
        segment.extend([((20 + options.len()) / 4 * 16) as u8, flags]);
        segment.extend(if b.one_in(8) { b.u16() } else { 0xffff }.to_be_bytes());
        segment.extend([0; 4]);
        segment.extend(options);
        let len = if flags & 2 == 0 { usize::from(b.u8()) * 8 } else { 0 };
        segment.resize(segment.len() + len, 0x44);
        packet(b, family, protocol::TCP, segment, 16)
    }
}

/// The transport's bytes in a frame of the guest to one place or another, its checksum written at `field`.
fn packet(b: &mut Bytes<'_>, v6: bool, protocol: u8, mut payload: Vec<u8>, field: usize) -> Vec<u8> {
    let others = addresses(v6);
    let (guest, known): (IpAddr, IpAddr) =
        if v6 { (GUEST6.into(), LOOP6.into()) } else { (GUEST4.into(), LOOP4.into()) };
    let to = if b.one_in(8) { b.pick(&others) } else { known };
    let from = if b.one_in(16) { b.pick(&others) } else { guest };
    if let Some(end) = field.checked_add(2).filter(|end| *end <= payload.len()) {
        let pseudo =
            if protocol == protocol::ICMP { 0 } else { pseudo_header(from, to, protocol, payload.len()) };
        let sum = !fold(sum(&payload, pseudo));
        payload[field..end].copy_from_slice(&sum.to_be_bytes());
    }
    let ends = MacPair { from: GUEST_MAC, to: NETD_MAC };
    let ttl = if b.one_in(16) { b.u8() } else { 64 };
    let frame = match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => frame::ipv4(ends, (from, to), protocol.into(), ttl, &payload),
        (IpAddr::V6(from), IpAddr::V6(to)) => frame::ipv6(ends, (from, to), protocol.into(), ttl, &payload),
        _ => None,
    };
    frame.unwrap_or_default()
}
