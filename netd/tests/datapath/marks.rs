//! Traffic classes of datagrams, DSCP and ECN: both sides see what the other has marked.

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;

use netd::sys;

use crate::bed::{Setup, eventually, with_bed};

/// The class of the next datagram, and its sender.
fn class_of(socket: &UdpSocket) -> (u8, SocketAddr) {
    let mut batch = sys::ReceiveBatch::default();
    eventually("a datagram", || batch.receive(socket.as_fd(), 1).ok());
    batch.get(0).map(|d| (d.class, d.from)).unwrap()
}

#[test]
fn marks_and_signs_of_congestion_pass_both_ways() {
    // Expedited forwarding, ECT(0), both with CE, and neither.
    const CLASSES: [u8; 4] = [0xb8, 2, 0xbb, 0];
    with_bed(Setup::default(), |bed| {
        for family in bed.families() {
            // A flow that the guest begins, and one of a port.
            let pairs = [
                (bed.guest.udp(family.guest(6000)), bed.client.udp(family.client(5000))),
                (bed.guest.udp(family.any(7000)), bed.client.udp(family.client(5001))),
            ];
            pairs[1].1.send_to(b"first", family.pod(7000)).unwrap();
            pairs[1].0.recv(&mut [0; 16]).expect("no datagram came");
            for (guest, client) in &pairs {
                sys::set_recv_ttl(guest.as_fd(), family.guest).unwrap();
                sys::set_recv_ttl(client.as_fd(), family.guest).unwrap();
                for class in CLASSES {
                    sys::set_class(guest.as_fd(), family.guest, class).unwrap();
                    guest.send_to(b"marked", client.local_addr().unwrap()).unwrap();
                    let (seen, from) = class_of(client);
                    assert_eq!(seen, class, "{family:?}, to the client");
                    sys::set_class(client.as_fd(), family.guest, class).unwrap();
                    client.send_to(b"marked", from).unwrap();
                    assert_eq!(class_of(guest).0, class, "{family:?}, to the guest");
                }
            }
        }
    });
}
