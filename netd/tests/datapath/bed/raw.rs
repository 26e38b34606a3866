//! A guest that is no honest TCP/IP stack: frames of any content on a device of its own.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use etherparse::{PacketBuilder, PacketHeaders, TcpHeader, TransportHeader};
use frontend_double::{Double, HEADER, Options};

use super::{GUEST_MAC, MAC, Netd, TIMEOUT};

/// The guest.
pub(crate) struct Raw {
    pub(crate) double: Double,
    sequence: u16,
}

/// After what silence a ping is sent again.
const AGAIN: Duration = Duration::from_millis(500);

/// The guest's addresses and the client's.
pub(crate) const GUEST_V4: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
pub(crate) const CLIENT_V4: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
pub(crate) const GUEST_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 9, 0, 0, 0, 0, 0, 2);
pub(crate) const CLIENT_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 9, 0, 0, 0, 0, 0, 1);

impl Raw {
    pub(crate) fn plug(netd: &Netd) -> Raw {
        Raw::plug_as(netd, &Options::default())
    }

    pub(crate) fn plug_as(netd: &Netd, options: &Options) -> Raw {
        Raw { double: netd.plug(options), sequence: 0 }
    }

    /// Sends an Ethernet frame behind a virtio header of zeroes.
    pub(crate) fn send(&mut self, ethernet: &[u8]) {
        self.send_raw(&[&[0; HEADER][..], ethernet].concat());
    }

    /// Sends a frame whose virtio header is part of it.
    pub(crate) fn send_raw(&mut self, frame: &[u8]) {
        let deadline = Instant::now() + TIMEOUT;
        while !self.double.send(frame).unwrap() {
            assert!(Instant::now() < deadline, "the transmit ring is stuck");
            std::thread::yield_now();
        }
    }

    /// The next TCP segment, header and payload.
    pub(crate) fn expect_tcp(&mut self) -> (TcpHeader, Vec<u8>) {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let frame = self.double.recv(left).unwrap().expect("no TCP segment came");
            let Ok(packet) = PacketHeaders::from_ethernet_slice(&frame[HEADER..]) else { continue };
            if let Some(TransportHeader::Tcp(header)) = packet.transport {
                return (header, packet.payload.slice().to_vec());
            }
        }
    }

    /// Pings the client over both families until there are answers: netd still works.
    pub(crate) fn ping(&mut self) {
        let v4 = |id, sequence, frame: &mut Vec<u8>| {
            PacketBuilder::ethernet2(GUEST_MAC.0, MAC.0)
                .ipv4(GUEST_V4.octets(), CLIENT_V4.octets(), 64)
                .icmpv4_echo_request(id, sequence)
                .write(frame, b"still there?")
        };
        let v6 = |id, sequence, frame: &mut Vec<u8>| {
            PacketBuilder::ethernet2(GUEST_MAC.0, MAC.0)
                .ipv6(GUEST_V6.octets(), CLIENT_V6.octets(), 64)
                .icmpv6_echo_request(id, sequence)
                .write(frame, b"still there?")
        };
        self.ping_with(|id, sequence, frame| v4(id, sequence, frame).unwrap(), 34, 0);
        self.ping_with(|id, sequence, frame| v6(id, sequence, frame).unwrap(), 54, 129);
    }

    /// `at` is where the ICMP message starts, `kind` its type in the answer.
    fn ping_with(&mut self, request: impl Fn(u16, u16, &mut Vec<u8>), at: usize, kind: u8) {
        const ID: u16 = 0x1234;
        let deadline = Instant::now() + TIMEOUT;
        while Instant::now() < deadline {
            self.sequence = self.sequence.wrapping_add(1);
            let mut frame = Vec::new();
            request(ID, self.sequence, &mut frame);
            self.send(&frame);
            let tail = [ID.to_be_bytes(), self.sequence.to_be_bytes()].concat();
            // An answer may be lost when the receive ring is full of other things.
            while let Some(f) = self.double.recv(AGAIN).unwrap() {
                let f = &f[HEADER..];
                if f.get(at) == Some(&kind) && f.get(at + 4..at + 8) == Some(&tail) {
                    return;
                }
            }
        }
        panic!("netd does not answer");
    }
}
