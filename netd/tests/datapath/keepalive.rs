//! Keepalives of the guest, end to end.

use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::Duration;

use netd::counters::Reason;
use socket2::{SockRef, TcpKeepalive};

use crate::bed::{Setup, eventually, with_bed};
use crate::tcp::{Opener, cases, open};

const SECOND: Duration = Duration::from_secs(1);

fn ask_each_second(guest: &TcpStream) {
    let timing = TcpKeepalive::new().with_time(SECOND).with_interval(SECOND).with_retries(3);
    SockRef::from(guest).set_tcp_keepalive(&timing).unwrap();
}

#[test]
fn a_guests_keepalives_reach_the_peer_and_are_no_drops() {
    with_bed(Setup::default(), |bed| {
        let open: Vec<_> = cases(bed).map(|(family, by)| open(bed, family, by)).collect();
        let came = |client: &TcpStream| netd::sys::tcp_info(client.as_fd()).unwrap().segs_in;
        let before: Vec<u32> = open.iter().map(|(_, client)| came(client)).collect();
        open.iter().for_each(|(guest, _)| ask_each_second(guest));
        for ((_, client), before) in open.iter().zip(before) {
            eventually("three probes at the peer", || (came(client) >= before + 3).then_some(()));
        }
        assert_eq!(bed.netd.dropped(Reason::TcpUnacceptable), 0);
    });
}

#[test]
fn a_peer_that_is_gone_is_found_by_the_guests_own_keepalives() {
    with_bed(Setup::default(), |bed| {
        let family = bed.families()[0];
        let (mut guest, client) = open(bed, family, Opener::Guest);
        let came = || netd::sys::tcp_info(client.as_fd()).unwrap().segs_in;
        let before = came();
        ask_each_second(&guest);
        eventually("a probe at the peer", || (came() > before).then_some(()));
        // Nobody has this Ethernet address.
        bed.pod.ip("neigh replace 10.9.0.1 lladdr 02:00:00:00:00:99 dev eth0 nud permanent\n");
        assert_eq!(guest.read(&mut [0; 16]).unwrap_err().kind(), ErrorKind::TimedOut);
    });
}
