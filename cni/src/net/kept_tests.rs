//! Frames of one interface, and floods of them.

use std::net::{Ipv4Addr, UdpSocket};

use rtnetlink::LinkUnspec;
use serde_json::json;

use super::super::bed::{PodNet, network, on_node};
use super::super::tests::{make, v4};
use super::super::{attach, netns};
use super::*;

const OWN: [u8; 6] = [0x02, 0x70, 172, 30, 0, 9];
const PEER: [u8; 6] = [0x02, 0x70, 172, 30, 0, 10];
const MS: Duration = Duration::from_millis(1);
const UDP: u8 = 17;

/// An IPv4 packet of `length` bytes from `source` with its header.
fn frame(source: [u8; 6], protocol: u8, length: usize) -> Vec<u8> {
    let mut packet = vec![0; length];
    packet[9] = protocol;
    [&[0; HEADER][..], &OWN, &source, &ETHERTYPE_IPV4, &packet].concat()
}

fn sent(line: &mut Line, now: Duration) -> Vec<u8> {
    std::iter::from_fn(|| line.next(now)).map(|frame| frame[HEADER + ETHERNET + 9]).collect()
}

#[test]
fn frames_wait_for_the_target_and_segments_for_their_connections() {
    let mut line = Line::new(OWN);
    assert!(line.take(&frame(PEER, TCP, 40), MS) && line.take(&frame(PEER, UDP, 40), MS));
    assert_eq!(sent(&mut line, 500 * MS), [0; 0]);
    assert_eq!(line.deadline(500 * MS), Some(LONGEST));
    line.take(&frame(OWN, UDP, 40), 500 * MS);
    assert_eq!(sent(&mut line, 500 * MS), [UDP]);
    assert_eq!(line.deadline(500 * MS), Some(525 * MS));
    assert_eq!(sent(&mut line, 524 * MS), [0; 0]);
    assert_eq!(sent(&mut line, 525 * MS), [TCP]);
    // What still comes goes on at once.
    line.take(&frame(PEER, TCP, 40), 700 * MS);
    assert_eq!(sent(&mut line, 700 * MS), [TCP]);
    assert_eq!((line.bytes, line.waiting()), (0, 0));
    assert_eq!(line.deadline(1499 * MS), Some(1500 * MS));
    assert_eq!(line.deadline(1500 * MS), None);
}

#[test]
fn a_frame_keeps_all_but_its_source() {
    let mut line = Line::new(OWN);
    let original = frame(PEER, UDP, 60);
    line.take(&original, MS);
    line.take(&frame(OWN, UDP, 40), MS);
    let sent = line.next(MS).unwrap();
    let source = HEADER + 6..HEADER + 12;
    assert_eq!(sent[source.clone()], [0xfe, 0x8f, 83, 225, 255, 246]);
    assert_eq!(sent[..source.start], original[..source.start]);
    assert_eq!(sent[source.end..], original[source.end..]);
}

#[test]
fn what_is_for_others_or_no_packet_is_not_kept() {
    let mut line = Line::new(OWN);
    let mut multicast = frame(PEER, UDP, 40);
    multicast[HEADER..HEADER + 6].copy_from_slice(&[0x33, 0x33, 0, 0, 0, 1]);
    let mut strange = frame(PEER, UDP, 40);
    strange[HEADER + 12..HEADER + 14].copy_from_slice(&[0x88, 0xcc]);
    for other in [multicast, strange, vec![0; HEADER + 3], Vec::new()] {
        assert!(line.take(&other, MS));
    }
    assert_eq!(line.waiting(), 0);
}

#[test]
fn there_is_an_end_to_the_room_and_to_the_time() {
    let mut line = Line::new(OWN);
    let large = frame(PEER, TCP, 65_000);
    let taken = (0..1000).filter(|_| line.take(&large, MS)).count();
    assert_eq!(taken, ROOM / large.len());
    assert_eq!(line.deadline(LONGEST), None);
}

#[test]
fn a_turn_has_an_end_in_a_flood() {
    let mut line = Line::new(OWN);
    let flood = frame(PEER, UDP, 40);
    let (mut buffer, mut seen) = (vec![0; LARGEST], 0);
    let endless = |buffer: &mut [u8]| {
        buffer[..flood.len()].copy_from_slice(&flood);
        Ok(Some(flood.len()))
    };
    turn(&mut buffer, endless, |_| seen += 1).unwrap();
    assert_eq!(seen, AT_ONCE);

    // The announcement is in the middle of it.
    let announcement = frame(OWN, UDP, 40);
    let mut received = 0;
    let with_announcement = |buffer: &mut [u8]| {
        received += 1;
        let frame = if received == AT_ONCE / 2 { &announcement } else { &flood };
        buffer[..frame.len()].copy_from_slice(frame);
        Ok(Some(frame.len()))
    };
    turn(&mut buffer, with_announcement, |frame| assert!(line.take(frame, MS))).unwrap();
    assert_eq!((line.heard, line.waiting()), (Some(MS), AT_ONCE - 1));
    assert_eq!(sent(&mut line, MS).len(), AT_ONCE - 1);
    // It ends though the flood does not.
    line.take(&flood, MS + LINGER);
    assert_eq!(line.deadline(MS + LINGER), None);
}

#[test]
fn a_turn_goes_on_behind_an_interface_that_went_down_and_ends_with_an_error() {
    let turn_of = |results: [io::Result<Option<usize>>; 3]| {
        let (mut results, mut seen) = (results.into_iter(), 0);
        let ended = turn(&mut [0; HEADER], |_| results.next().unwrap(), |_| seen += 1);
        (ended.map_err(|error| error.raw_os_error()), seen)
    };
    let failed = |errno: Errno| Err(errno.into());
    assert_eq!(turn_of([failed(Errno::ENETDOWN), Ok(Some(HEADER)), Ok(None)]), (Ok(()), 1));
    let other = Err(Some(Errno::EBADF as i32));
    assert_eq!(turn_of([Ok(Some(HEADER)), failed(Errno::EBADF), Ok(None)]), (other, 1));
}

#[test]
fn traffic_on_lo_costs_the_loop_nothing() {
    on_node(|| {
        let (pod, peer, network) = (PodNet::new(), PodNet::new(), network(&json!({})));
        make(&network, &peer, "peer", 10, false).unwrap();
        make(&network, &pod, "pod", 9, false).unwrap();
        netns::inside(Some(&pod.0), |handle| async move {
            let index = attach::required(&handle, "lo", "in the pod").await?.header.index;
            handle.link().set(LinkUnspec::new_with_index(index).up().build()).execute().await.unwrap();
            Ok(())
        })
        .unwrap();
        let kept = pod.enter(|| Kept::open(&["net1".to_owned()])).unwrap();
        let bound = |pod: &PodNet, address| pod.enter(|| UdpSocket::bind((address, 7)).unwrap());
        let (inside, here) = (bound(&pod, Ipv4Addr::LOCALHOST.into()), bound(&pod, v4(9)));
        for _ in 0..100 {
            inside.send_to(b"x", (Ipv4Addr::LOCALHOST, 7)).unwrap();
            inside.recv(&mut [0; 1]).unwrap();
        }
        bound(&peer, v4(10)).send_to(b"x", (v4(9), 7)).unwrap();
        here.recv(&mut [0; 1]).unwrap();

        // Frames of `lo` have no addresses; what the bridge asks all its ports counts as neither.
        let (mut of_lo, mut of_peer) = (0, 0);
        let [(packets, _)] = &kept.lines[..] else { panic!("{kept:?}") };
        let see = |frame: &[u8]| {
            of_lo += usize::from(frame[HEADER..HEADER + 12] == [0; 12]);
            of_peer += usize::from(frame[HEADER..HEADER + 12] == [OWN, PEER].concat());
        };
        turn(&mut vec![0; LARGEST], |buffer| packets.receive(buffer), see).unwrap();
        assert_eq!(of_lo, 0);
        assert!(of_peer > 0, "the peer's datagram is seen");
    });
}
