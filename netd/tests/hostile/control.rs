//! Clients of the control interface.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use netctl::client::Client;
use podvirt_proto::netd::v1 as proto;

use super::bed::{Netd, TIMEOUT, works};
use super::pod::in_pod;

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

async fn answers(netd: &Netd) {
    let deadline = Instant::now() + TIMEOUT;
    // Where many wait to be accepted, a newcomer is turned away.
    let mut client = loop {
        match Client::connect(&netd.control()).await {
            Ok(client) => break client,
            Err(e) => assert!(Instant::now() < deadline, "{e}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    assert!(client.status().await.unwrap().frontend_connected);
}

/// Waits until netd has noticed that its clients are gone.
fn until_descriptors(netd: &Netd, most: usize) {
    let deadline = Instant::now() + TIMEOUT;
    while netd.descriptors() > most {
        assert!(Instant::now() < deadline, "{} descriptors, {most} expected", netd.descriptors());
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn clients_that_say_nothing_or_nonsense_stop_neither_others_nor_the_guest() {
    in_pod(|| {
        let mut netd = Netd::start();
        let mut guest = netd.plug();
        block_on(answers(&netd));
        let before = netd.descriptors();
        // Connections that stay open and say nothing, half of a preface, or none of it.
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
        let mut held = Vec::new();
        for n in 0..300usize {
            let mut stream = UnixStream::connect(netd.control()).unwrap();
            let _ = stream.write_all(&preface[..n % preface.len()]);
            held.push(stream);
        }
        block_on(answers(&netd));
        works(&mut guest);
        drop(held);
        // And thousands that come, say something wrong and go.
        for n in 0..2000usize {
            let mut stream = UnixStream::connect(netd.control()).unwrap();
            let _ = match n % 4 {
                0 => stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
                1 => stream.write_all(&[&preface[..], &[0xff; 64]].concat()),
                // A frame of SETTINGS that never ends.
                2 => stream.write_all(&[&preface[..], &[0xff, 0xff, 0xff, 4, 0, 0, 0, 0, 0]].concat()),
                _ => Ok(()),
            };
        }
        block_on(answers(&netd));
        works(&mut guest);
        until_descriptors(&netd, before);
    });
}

#[test]
fn a_request_that_is_too_large_is_refused_and_costs_nothing_afterwards() {
    in_pod(|| {
        let mut netd = Netd::start();
        let mut guest = netd.plug();
        block_on(async {
            let mut client = Client::connect(&netd.control()).await.unwrap();
            let rule = |pod| proto::PortRule { transport: proto::Transport::Tcp.into(), pod, guest: pod };
            // More rules than there are ports; beyond the largest message, too.
            for count in [140_000usize, 1_500_000] {
                let rules: Vec<_> = (0..count).map(|n| rule((n % 65_000 + 1) as u32)).collect();
                assert!(client.add_ports(rules).await.is_err(), "{count} rules");
            }
            assert!(client.add_ports(vec![rule(0)]).await.is_err(), "port 0");
            assert_eq!(client.add_ports(vec![rule(4000)]).await.unwrap()[0].error, "");
        });
        works(&mut guest);
        block_on(answers(&netd));
    });
}

#[test]
fn a_client_that_does_not_read_delays_neither_other_clients_nor_the_guest() {
    in_pod(|| {
        let mut netd = Netd::start();
        let mut guest = netd.plug();
        let mut stream = UnixStream::connect(netd.control()).unwrap();
        stream.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
        // Pings, each of which is owed an answer, until netd takes no more.
        let ping = [0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
        let mut sent = 0;
        while sent < 1 << 22 && stream.write_all(&ping).is_ok() {
            sent += ping.len();
        }
        block_on(answers(&netd));
        works(&mut guest);
        let mut some = [0; 64];
        assert!(stream.read(&mut some).is_ok());
    });
}
