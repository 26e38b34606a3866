//! How much the guest is sent before it acknowledges anything, where the kernel keeps no offset of peeks.

use std::io::Write;
use std::net::Ipv4Addr;
use std::time::Duration;

use etherparse::{PacketBuilder, PacketHeaders, TcpOptionElement, TransportHeader};
use frontend_double::HEADER;
use netd::tcp::IN_FLIGHT_COPIED;

use crate::bed::raw::{CLIENT_V4, GUEST_V4, Raw};
use crate::bed::{GUEST_MAC, MAC, Pod, Setup, TIMEOUT, eventually, with_pod};

/// Bytes that the peer has for the guest.
const WAITING: usize = 2 << 20;
/// What the guest acknowledges at first, so that the congestion window is no bound any more.
const GROWTH: u32 = 1 << 20;
const PORT: u16 = 7000;

/// A segment of the guest: the SYN without an acknowledgement.
fn segment(sequence: u32, ack: Option<u32>, window: u16) -> Vec<u8> {
    let tcp = PacketBuilder::ethernet2(GUEST_MAC.0, MAC.0)
        .ipv4(GUEST_V4.octets(), CLIENT_V4.octets(), 64)
        .tcp(6000, PORT, sequence, window);
    let options = [TcpOptionElement::MaximumSegmentSize(1460), TcpOptionElement::WindowScale(9)];
    let mut frame = Vec::new();
    match ack {
        Some(ack) => tcp.ack(ack).write(&mut frame, &[]).unwrap(),
        None => tcp.syn().options(&options).unwrap().write(&mut frame, &[]).unwrap(),
    }
    frame
}

/// Bytes that the pod's socket to the client has received and that were not taken out.
fn queued(pod: &Pod) -> u32 {
    let table = pod.pod.run(|| std::fs::read_to_string("/proc/thread-self/net/tcp")).unwrap();
    let peer = format!("{:08X}:{PORT:04X}", u32::from_le_bytes(Ipv4Addr::octets(&CLIENT_V4)));
    let lines = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let queue =
        lines.filter(|fields| fields[2] == peer).find_map(|fields| fields[4].split_once(':').map(|q| q.1));
    queue.map_or(0, |queue| u32::from_str_radix(queue, 16).unwrap())
}

#[test]
fn where_the_kernel_keeps_no_offset_few_bytes_are_in_flight_whatever_the_guests_window() {
    with_pod(Setup { peek_offset: false, ..Setup::default() }, |pod| {
        pod.pod.sysctl("ipv4/tcp_rmem", "4096 16777216 16777216");
        let mut raw = Raw::plug(&pod.netd);
        raw.ping();
        let listener = pod.client.listen(pod.families()[0].client(PORT));
        raw.send(&segment(1, None, u16::MAX));
        let first = raw.expect_tcp().0.sequence_number.wrapping_add(1);
        // All of it is there before the guest takes any.
        raw.send(&segment(2, Some(first), 0));
        let (mut client, _) = listener.accept();
        client.write_all(&vec![7; WAITING]).unwrap();
        eventually("all bytes in the pod", || (queued(pod) as usize >= WAITING).then_some(()));
        raw.send(&segment(2, Some(first), u16::MAX));
        let (mut acked, mut sent) = (0, 0);
        let mut timeout = TIMEOUT;
        while let Some(frame) = raw.double.recv(timeout).unwrap() {
            let Ok(packet) = PacketHeaders::from_ethernet_slice(&frame[HEADER..]) else { continue };
            let Some(TransportHeader::Tcp(tcp)) = packet.transport else { continue };
            let end = tcp.sequence_number.wrapping_sub(first) + packet.payload.slice().len() as u32;
            sent = sent.max(end);
            if acked < GROWTH {
                acked = sent;
                raw.send(&segment(2, Some(first.wrapping_add(acked)), u16::MAX));
            } else if sent - acked >= IN_FLIGHT_COPIED {
                // More would come at once; what was sent is sent again later.
                timeout = Duration::from_millis(100);
            }
        }
        assert_eq!(sent - acked, IN_FLIGHT_COPIED);
    });
}
