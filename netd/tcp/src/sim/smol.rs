//! smoltcp's TCP socket as the guest, behind an Ethernet device double.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};

use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Checksum, ChecksumCapabilities, Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp;
use smoltcp::time::{Duration, Instant};
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol, IpAddress, IpCidr,
};

use super::guest::Guest;
use super::{Close, DOWN, Packet, Plan, UP, byte, bytes};
use crate::Seq;
use netd_base::time::Time;
use netd_wire::MacAddr;
use netd_wire::{
    ETH_LEN, ETHERTYPE_IPV4, Eth, EthIp, Ip, MAX_HEADERS, TcpHeader, TcpMeta, VNET_LEN, build_tcp,
};

const GUEST: (Ipv4Addr, [u8; 6], u16) = (Ipv4Addr::new(10, 0, 2, 2), [2, 0, 0, 0, 0, 2], 40_000);
const PEER: (Ipv4Addr, [u8; 6], u16) = (Ipv4Addr::new(10, 0, 2, 1), [2, 0, 0, 0, 0, 1], 80);

/// Habits of the socket and its application.
#[derive(Clone, Copy, Debug)]
pub(super) struct Habits {
    pub(super) opens: bool,
    pub(super) seed: u64,
    pub(super) mtu: usize,
    pub(super) receive_buffer: usize,
    pub(super) send_buffer: usize,
    pub(super) ack_delay: Option<u64>,
    pub(super) nagle: bool,
    pub(super) read: (usize, std::time::Duration),
}

/// The wire's end: frames to and from smoltcp.
struct Wire {
    mtu: usize,
    to_guest: VecDeque<Vec<u8>>,
    from_guest: Vec<Vec<u8>>,
}

struct Received(Vec<u8>);
struct Sending<'a>(&'a mut Vec<Vec<u8>>);

impl RxToken for Received {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

impl TxToken for Sending<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut frame = vec![0; len];
        let r = f(&mut frame);
        self.0.push(frame);
        r
    }
}

impl Device for Wire {
    type RxToken<'a> = Received;
    type TxToken<'a> = Sending<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Received, Sending<'_>)> {
        let frame = self.to_guest.pop_front()?;
        Some((Received(frame), Sending(&mut self.from_guest)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Sending<'_>> {
        Some(Sending(&mut self.from_guest))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut c = DeviceCapabilities::default();
        c.medium = Medium::Ethernet;
        c.max_transmission_unit = self.mtu + ETH_LEN;
        c.checksum = ChecksumCapabilities::ignored();
        c.checksum.ipv4 = Checksum::Both;
        c
    }
}

/// The guest.
pub(super) struct Smol {
    habits: Habits,
    plan: Plan,
    wire: Wire,
    interface: Interface,
    sockets: SocketSet<'static>,
    handle: SocketHandle,
    wakes: Option<Time>,
    next_read: Time,
    written: u64,
    read: u64,
    end_read: bool,
    closed: bool,
    aborted: bool,
}

impl Smol {
    pub(super) fn new(habits: Habits, plan: Plan) -> Smol {
        let mut wire = Wire { mtu: habits.mtu, to_guest: VecDeque::new(), from_guest: Vec::new() };
        let mut config = Config::new(EthernetAddress(GUEST.1).into());
        config.random_seed = habits.seed;
        let mut interface = Interface::new(config, &mut wire, Instant::ZERO);
        interface.update_ip_addrs(|a| {
            a.push(IpCidr::new(IpAddress::from(GUEST.0), 24)).expect("room for an address");
        });
        let mut socket = tcp::Socket::new(
            tcp::SocketBuffer::new(vec![0; habits.receive_buffer]),
            tcp::SocketBuffer::new(vec![0; habits.send_buffer]),
        );
        socket.set_ack_delay(habits.ack_delay.map(Duration::from_millis));
        socket.set_nagle_enabled(habits.nagle);
        if habits.opens {
            let to = (IpAddress::from(PEER.0), PEER.2);
            socket.connect(interface.context(), to, GUEST.2).expect("connect");
        } else {
            socket.listen(GUEST.2).expect("listen");
        }
        let mut sockets = SocketSet::new(Vec::new());
        let handle = sockets.add(socket);
        Smol {
            habits,
            plan,
            wire,
            interface,
            sockets,
            handle,
            wakes: Some(Time::ZERO),
            next_read: Time::ZERO,
            written: 0,
            read: 0,
            end_read: false,
            closed: false,
            aborted: false,
        }
    }

    fn run_application(&mut self, now: Time) {
        let s = self.sockets.get_mut::<tcp::Socket<'_>>(self.handle);
        while self.written < self.plan.up && s.can_send() {
            let len = (self.plan.up - self.written).min(4096) as usize;
            self.written += s.send_slice(&bytes(UP, self.written, len)).expect("open") as u64;
        }
        if now >= self.next_read && s.can_recv() {
            let mut buffer = vec![0; self.habits.read.0];
            let n = s.recv_slice(&mut buffer).expect("data");
            for (i, b) in buffer[..n].iter().enumerate() {
                let at = self.read + i as u64;
                assert_eq!(*b, byte(DOWN, at), "byte {at} to the guest");
            }
            self.read += n as u64;
            self.next_read = now + self.habits.read.1;
        }
        let ended = matches!(s.state(), tcp::State::CloseWait | tcp::State::LastAck | tcp::State::TimeWait)
            || (self.closed && s.state() == tcp::State::Closed);
        if ended && !s.can_recv() && self.read == self.plan.down {
            self.end_read = true;
        }
        if self.plan.guest_resets_at.is_some_and(|at| self.read >= at) && !self.aborted {
            self.aborted = true;
            s.abort();
        }
        let may_close = self.plan.guest_closes == Close::AfterSending || self.end_read;
        if !self.closed && s.may_send() && self.written == self.plan.up && may_close {
            self.closed = true;
            s.close();
        }
    }

    fn answer_arp(&mut self, frame: &[u8]) {
        let body = &frame[ETH_LEN..];
        let Ok(ArpRepr::EthernetIpv4 { source_hardware_addr, source_protocol_addr, .. }) =
            ArpPacket::new_checked(body).and_then(|p| ArpRepr::parse(&p))
        else {
            return;
        };
        let answer = ArpRepr::EthernetIpv4 {
            operation: ArpOperation::Reply,
            source_hardware_addr: EthernetAddress(PEER.1),
            source_protocol_addr: PEER.0,
            target_hardware_addr: source_hardware_addr,
            target_protocol_addr: source_protocol_addr,
        };
        let mut b = vec![0; ETH_LEN + answer.buffer_len()];
        let mut eth = EthernetFrame::new_unchecked(&mut b);
        eth.set_src_addr(EthernetAddress(PEER.1));
        eth.set_dst_addr(source_hardware_addr);
        eth.set_ethertype(EthernetProtocol::Arp);
        answer.emit(&mut ArpPacket::new_unchecked(&mut b[ETH_LEN..]));
        self.wire.to_guest.push_back(b);
    }
}

fn instant(now: Time) -> Instant {
    Instant::from_micros(now.as_micros() as i64)
}

/// What netd would put into the receive ring.
fn frame_for_guest(p: &Packet) -> Vec<u8> {
    let at = EthIp {
        dst_mac: MacAddr(GUEST.1),
        src_mac: MacAddr(PEER.1),
        src: IpAddr::V4(PEER.0),
        dst: IpAddr::V4(GUEST.0),
        ttl: None,
        class: 0,
    };
    let meta = TcpMeta {
        src_port: PEER.2,
        dst_port: GUEST.2,
        seq: p.seq.0,
        ack: p.ack.0,
        flags: p.flags,
        window: p.window,
        mss: p.mss,
        window_scale: p.scale,
        payload_len: p.payload.len(),
        gso_size: None,
    };
    let mut b = [0; MAX_HEADERS];
    let end = build_tcp(&mut b, &at, &meta);
    let mut frame = b[VNET_LEN..end].to_vec();
    frame.extend_from_slice(&p.payload);
    frame
}

fn packet_of_guest(frame: &[u8]) -> Option<Packet> {
    if Eth::parse(frame).ok()?.ethertype != ETHERTYPE_IPV4 {
        return None;
    }
    let body = &frame[ETH_LEN..];
    let ip = Ip::parse(body, body.len()).ok()?;
    let segment = &body[ip.header_len..ip.header_len + ip.payload_len];
    let h = TcpHeader::parse(segment).ok()?;
    Some(Packet {
        seq: Seq(h.seq),
        ack: Seq(h.ack),
        flags: h.flags,
        window: h.window,
        mss: h.mss,
        scale: h.window_scale,
        payload: segment[h.header_len..].to_vec(),
    })
}

impl Guest for Smol {
    fn receive(&mut self, p: &Packet, _: Time) {
        self.wire.to_guest.push_back(frame_for_guest(p));
    }

    fn poll(&mut self, now: Time, out: &mut Vec<Packet>) {
        for _ in 0..64 {
            self.interface.poll(instant(now), &mut self.wire, &mut self.sockets);
            self.run_application(now);
            self.interface.poll(instant(now), &mut self.wire, &mut self.sockets);
            let frames = std::mem::take(&mut self.wire.from_guest);
            for frame in &frames {
                match packet_of_guest(frame) {
                    Some(p) => out.push(p),
                    None => self.answer_arp(frame),
                }
            }
            if frames.is_empty() && self.wire.to_guest.is_empty() {
                break;
            }
        }
        let at = self.interface.poll_at(instant(now), &self.sockets);
        // Never in the past: smoltcp asks for the moment after the one that was served.
        self.wakes = at.map(|at| Time::from_micros((at.total_micros() as u64).max(now.as_micros() + 1)));
    }

    fn poll_at(&self) -> Option<Time> {
        let s = self.sockets.get::<tcp::Socket<'_>>(self.handle);
        let reads = s.can_recv().then_some(self.next_read);
        super::min_time([reads, self.wakes])
    }

    fn received(&self) -> u64 {
        self.read
    }

    fn is_complete(&self) -> bool {
        let s = self.sockets.get::<tcp::Socket<'_>>(self.handle);
        self.end_read && matches!(s.state(), tcp::State::TimeWait | tcp::State::Closed)
    }

    fn was_reset(&self) -> bool {
        let s = self.sockets.get::<tcp::Socket<'_>>(self.handle);
        !self.closed && s.state() == tcp::State::Closed
    }

    fn describe(&self) -> String {
        let s = self.sockets.get::<tcp::Socket<'_>>(self.handle);
        format!("{} read {} written {} unsent {}", s.state(), self.read, self.written, s.send_queue())
    }
}
