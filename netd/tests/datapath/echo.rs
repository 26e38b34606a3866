//! ICMP and ICMPv6 echo, by the guest's ping sockets.

use std::io::{ErrorKind, Read};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::time::Duration;

use netd::net::Mode;
use netd::sys::{self, PmtuDiscovery};
use socket2::Socket;

use crate::bed::{Bed, Setup, content, eventually, with_bed};

/// An echo request's type, or its reply's, and the rest of the header before the data.
fn message(to: IpAddr, sequence: u16, data: &[u8]) -> Vec<u8> {
    let kind = if to.is_ipv4() { 8 } else { 128 };
    let mut message = vec![kind, 0, 0, 0, 0, 0];
    message.extend(sequence.to_be_bytes());
    message.extend_from_slice(data);
    message
}

/// Pings and compares what comes back.
#[track_caller]
fn ping(socket: &Socket, to: IpAddr, sequence: u16, data: &[u8]) {
    socket.send(&message(to, sequence, data)).unwrap();
    let mut buffer = vec![0; 1 << 16];
    let n = { socket }.read(&mut buffer).expect("no echo reply came");
    assert_eq!(buffer[0], if to.is_ipv4() { 0 } else { 129 });
    assert_eq!(buffer[6..8], sequence.to_be_bytes());
    assert!(buffer[8..n] == *data, "the data of an echo reply differs");
}

fn socket(bed: &Bed, to: IpAddr) -> Socket {
    bed.guest.ping(SocketAddr::new(to, 0))
}

#[test]
fn pings_of_any_length_are_answered() {
    with_bed(Setup::default(), |bed| {
        for family in bed.families() {
            let socket = socket(bed, family.client);
            for (sequence, len) in (1..).zip([0, 1, 56, 1452, 1472, 1473, 8000, 65_000]) {
                eprintln!("{family:?}, {len} bytes");
                ping(&socket, family.client, sequence, &content(1, len));
            }
        }
        assert_eq!(bed.netd.counters().icmp_echo_flows.get(), 2);
    });
}

#[test]
fn many_pingers_do_not_take_each_others_answers() {
    with_bed(Setup::default(), |bed| {
        for family in bed.families() {
            let sockets: Vec<_> = (0..20).map(|_| socket(bed, family.client)).collect();
            for round in 1..4 {
                for (i, s) in (0..).zip(&sockets) {
                    s.send(&message(family.client, round, &content(i, 64))).unwrap();
                }
                for (i, s) in (0..).zip(&sockets) {
                    let mut buffer = [0; 256];
                    let n = { s }.read(&mut buffer).unwrap();
                    assert!(buffer[8..n] == content(i, 64));
                }
            }
        }
    });
}

#[test]
fn one_pinger_reaches_several_hosts() {
    with_bed(Setup::default(), |bed| {
        let _far = bed.far(1500);
        let far: [IpAddr; 2] = ["192.0.2.2".parse().unwrap(), "2001:db8::2".parse().unwrap()];
        for (family, far) in bed.families().into_iter().zip(far) {
            let socket = socket(bed, family.client);
            ping(&socket, family.client, 1, b"near");
            socket.connect(&SocketAddr::new(far, 0).into()).unwrap();
            ping(&socket, far, 2, b"far");
        }
    });
}

#[test]
fn the_gateway_answers_itself() {
    with_bed(Setup { mode: Mode::Masquerade, ..Setup::default() }, |bed| {
        let [v4, _] = bed.families();
        ping(&socket(bed, v4.gateway), v4.gateway, 1, b"gateway");
    });
}

#[test]
fn pings_of_the_pod_are_answered_by_its_kernel_whatever_the_guest_does() {
    crate::bed::with_pod(Setup::default(), |pod| {
        // There is no guest at all.
        for family in pod.families() {
            ping(&pod.client.ping(family.pod(0)), family.pod, 1, b"anyone?");
        }
        let counters = pod.netd.counters();
        assert_eq!((counters.guest_rx_frames.get(), counters.icmp_echo_flows.get()), (0, 0));
    });
}

#[test]
fn a_ping_that_does_not_arrive_is_an_error_with_its_place() {
    with_bed(Setup::default(), |bed| {
        let _far = bed.far(1500);
        let far: [IpAddr; 2] = ["192.0.2.2".parse().unwrap(), "2001:db8::2".parse().unwrap()];
        for (family, far) in bed.families().into_iter().zip(far) {
            let socket = socket(bed, far);
            sys::set_recv_error(socket.as_fd(), far).unwrap();
            sys::set_ttl(socket.as_fd(), far, 1).unwrap();
            socket.send(&message(far, 7, b"one hop")).unwrap();
            let e = eventually("an error", || sys::recv_error(socket.as_fd()).unwrap());
            assert_eq!(e.errno.cast_signed(), libc::EHOSTUNREACH, "{e:?}");
            assert_eq!(e.offender, Some(family.client), "{e:?}");
            // What is quoted is the guest's own request.
            assert!(e.payload.ends_with(b"one hop"), "{e:?}");
        }
    });
}

#[test]
fn the_pods_own_addresses_do_not_answer() {
    with_bed(Setup { mode: Mode::Masquerade, ..Setup::default() }, |bed| {
        for family in bed.families() {
            let socket = socket(bed, family.pod);
            socket.send(&message(family.pod, 1, b"hello")).unwrap();
            // An answer would have come before the answer to this ping.
            ping(&self::socket(bed, family.client), family.client, 1, b"after it");
            socket.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
            let error = { &socket }.read(&mut [0; 64]).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::PermissionDenied), "{error}");
        }
    });
}

#[test]
fn a_ping_that_must_not_be_cut_is_never_cut() {
    with_bed(Setup::default(), |bed| {
        let _far = bed.far(1300);
        let far: [IpAddr; 2] = ["192.0.2.2".parse().unwrap(), "2001:db8::2".parse().unwrap()];
        for far in far {
            let socket = socket(bed, far);
            sys::set_recv_error(socket.as_fd(), far).unwrap();
            sys::set_pmtu_discovery(socket.as_fd(), far, PmtuDiscovery::Probe).unwrap();
            // The pod's kernel knows the path from the first answer on.
            for sequence in 1..4 {
                socket.send(&message(far, sequence, &content(1, 1400))).unwrap();
                let e = eventually("an error", || sys::recv_error(socket.as_fd()).unwrap());
                assert_eq!((e.errno.cast_signed(), e.info), (libc::EMSGSIZE, 1300), "{sequence}: {e:?}");
            }
            sys::set_pmtu_discovery(socket.as_fd(), far, PmtuDiscovery::Dont).unwrap();
            ping(&socket, far, 9, &content(1, 1400));
        }
    });
}

#[test]
fn marks_of_pings_pass_both_ways() {
    with_bed(Setup::default(), |bed| {
        for family in bed.families() {
            let socket = socket(bed, family.client);
            sys::set_recv_ttl(socket.as_fd(), family.guest).unwrap();
            for class in [0xb8, 0, 0x28] {
                sys::set_class(socket.as_fd(), family.guest, class).unwrap();
                // The client's kernel answers with the class of the request.
                socket.send(&message(family.client, 1, b"marked")).unwrap();
                let mut batch = sys::ReceiveBatch::default();
                eventually("an answer", || batch.receive(socket.as_fd(), 1).ok());
                assert_eq!(batch.get(0).map(|d| d.class), Some(class), "{family:?}");
            }
        }
    });
}
