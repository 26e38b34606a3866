//! netd, the frontend and the guest end and come back, each by itself.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails it")]

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use nix::sys::signal::Signal;
use podvirt_e2e::{
    Backend, BackendOptions, Bed, Boot, Family, Guest, NetOptions, PORT, RunningBackend, Vhost, until,
};

/// Something that happens by itself when a frontend or a driver has noticed.
const SOON: Duration = Duration::from_secs(60);

fn options(connects: bool) -> BackendOptions {
    BackendOptions { tcp: vec![PORT], udp: vec![PORT], connects, ..Default::default() }
}

fn bed(boot: Boot, listens: bool) -> Bed {
    let vhost = Vhost { listens, ..Default::default() };
    Bed::new(Backend::Netd, boot, NetOptions::default(), &options(listens), &vhost).unwrap()
}

/// A connection into the guest that echoes.
fn open(bed: &mut Bed) -> TcpStream {
    bed.guest.serve(PORT, &format!("socat TCP4-LISTEN:{PORT},reuseaddr PIPE")).unwrap();
    let mut stream = bed.pod.net.connect(Family::V4.pod(PORT)).unwrap();
    stream.write_all(b"open").unwrap();
    let mut back = [0; 4];
    stream.read_exact(&mut back).unwrap();
    stream
}

fn connected(running: &RunningBackend) {
    until("the frontend", SOON, || Ok((running.ask("status")?["frontend_connected"] == true).then_some(())))
        .unwrap();
}

/// Kills netd and starts another with the same sockets.
fn restart(bed: &mut Bed, connects: bool) {
    bed.running.process.signal(Signal::SIGKILL).unwrap();
    bed.running.process.wait(SOON).unwrap();
    bed.running = Backend::Netd.start(&bed.pod, &options(connects)).unwrap();
    connected(&bed.running);
}

#[test]
fn a_guest_that_reboots_has_its_network_again() {
    let mut bed = bed(Boot::Qemu, false);
    let mut old = open(&mut bed);
    bed.guest.reboot().unwrap();
    bed.works().unwrap();
    // What the guest forgot does not stay open for ever: the guest itself refuses it.
    old.write_all(b"are you there?").unwrap();
    assert!(old.read_to_end(&mut Vec::new()).is_err());

    // The driver comes and goes within one boot, and asks for everything anew.
    for _ in 0..2 {
        bed.guest.sh("rmmod virtio_net && modprobe virtio_net && net-up").unwrap();
        bed.works().unwrap();
    }
    let status = bed.running.ask("status").unwrap();
    assert_eq!(status["guest_mac"], Guest::MAC);
    assert_eq!(bed.running.counter("ring_errors").unwrap(), 0);

    // The interface goes down with traffic under way.
    let _stream = open(&mut bed);
    bed.guest.sh("ip link set eth0 down; net-up").unwrap();
    bed.works().unwrap();
    bed.guest.shut_down().unwrap();
}

#[test]
fn a_guest_outlives_netd_and_netd_the_guest() {
    let mut bed = bed(Boot::Qemu, false);
    let mut old = open(&mut bed);
    restart(&mut bed, false);
    bed.works().unwrap();
    // The pod's kernel has ended what the old netd had.
    let end = old.read_to_end(&mut Vec::new());
    assert!(!end.is_err_and(|e| e.kind() == ErrorKind::WouldBlock));

    // The frontend is killed with a connection open; another guest comes, with another address.
    let _stream = open(&mut bed);
    bed.guest.process.signal(Signal::SIGKILL).unwrap();
    bed.guest.process.wait(SOON).unwrap();
    until("the frontend's end", SOON, || {
        Ok((bed.running.ask("status")?["frontend_connected"] == false).then_some(()))
    })
    .unwrap();
    bed.guest = Guest::boot(Boot::Uml, &bed.pod, &Vhost::default()).unwrap();
    bed.works().unwrap();
    assert_eq!(bed.running.counter("frontend_connections").unwrap(), 2);

    bed.guest.shut_down().unwrap();
    bed.running.process.signal(Signal::SIGTERM).unwrap();
    assert!(bed.running.process.wait(SOON).unwrap().success());
    assert!(!bed.running.socket.exists() && !bed.running.control.exists());
}

#[test]
fn a_frontend_that_listens_is_connected_to_again_and_again() {
    let mut bed = bed(Boot::Qemu, true);
    bed.works().unwrap();
    restart(&mut bed, true);
    bed.works().unwrap();
    assert!(bed.running.socket.exists(), "the frontend's socket is not netd's to remove");
    // netd waits for the next frontend that listens there.
    bed.guest.process.signal(Signal::SIGKILL).unwrap();
    bed.guest.process.wait(SOON).unwrap();
    let vhost = Vhost { listens: true, ..Default::default() };
    bed.guest = Guest::boot(Boot::Qemu, &bed.pod, &vhost).unwrap();
    bed.works().unwrap();
    bed.guest.shut_down().unwrap();
}
