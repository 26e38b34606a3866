//! A namespace's TCP/IP stack behind a tap, talking to itself through netd's rings: the backend swaps the
//! addresses and ports of every frame, so a connection to the far address is one to itself (RFC 9293, 3.5:
//! simultaneous open).

mod reflect;

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::process::Command;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use frontend_double::{Double, HEADER, Options, TapOptions, TapPump};
use nix::sched::{CloneFlags, unshare};
use reflect::Reflector;

const TIMEOUT: Duration = Duration::from_secs(20);

/// Swaps Ethernet and IPv4 addresses and ports. Checksums stay right: their sums do not change.
fn turn_around(frame: &mut [u8]) {
    let Some(packet) = frame.get_mut(HEADER..) else { return };
    if packet.len() < 38 || packet[12..14] != [8, 0] {
        return;
    }
    for (a, b, len) in [(0, 6, 6), (26, 30, 4), (34, 36, 2)] {
        for i in 0..len {
            packet.swap(a + i, b + i);
        }
    }
}

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status().expect("ip does not run");
    assert!(status.success(), "ip {arguments}");
}

/// The calling thread moves into a new network namespace; false where that is not allowed.
fn in_new_namespace() -> bool {
    if unshare(CloneFlags::CLONE_NEWNET).is_err() {
        eprintln!("SKIPPED: network namespaces need privilege");
        return false;
    }
    if let Err(e) = std::fs::File::options().read(true).write(true).open("/dev/net/tun") {
        eprintln!("SKIPPED: /dev/net/tun: {e}");
        return false;
    }
    true
}

#[test]
fn tcp_with_segmentation_offload_and_udp_pass_both_ways() {
    if !in_new_namespace() {
        return;
    }
    let reflector = Reflector::new(turn_around);
    let double = Double::connect(reflector.path(), &Options::default()).unwrap();
    let namespace = format!("/proc/self/task/{}/ns/net", nix::unistd::gettid());
    let options = TapOptions { name: "tap0".into(), netns: Some(namespace.into()) };
    let pump = TapPump::start(double, &options).unwrap();
    ip("addr add 10.9.0.2/24 dev tap0");
    ip("link set tap0 address 02:00:00:00:00:02");
    ip("link set tap0 up");
    ip("neigh add 10.9.0.1 lladdr 02:00:00:00:00:01 dev tap0 nud permanent");

    let udp = UdpSocket::bind("10.9.0.2:9000").unwrap();
    udp.set_read_timeout(Some(TIMEOUT)).unwrap();
    udp.send_to(b"ping", "10.9.0.1:9001").unwrap();
    let mut buffer = [0; 16];
    let (n, from) = udp.recv_from(&mut buffer).unwrap();
    assert_eq!((&buffer[..n], from.to_string().as_str()), (b"ping".as_slice(), "10.9.0.1:9001"));

    // A connection from port 9100 to port 9100: its own segments come back as the peer's.
    let tcp = connect_to_itself();
    tcp.set_read_timeout(Some(TIMEOUT)).unwrap();
    const TOTAL: usize = 20 << 20;
    let mut reader = tcp.try_clone().unwrap();
    let received = std::thread::spawn(move || {
        let mut buffer = vec![0; 1 << 16];
        let mut at = 0usize;
        while at < TOTAL {
            match reader.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => {
                    for (i, byte) in buffer[..n].iter().enumerate() {
                        assert_eq!(*byte, pattern(at + i), "byte {}", at + i);
                    }
                    at += n;
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => panic!("after {at} bytes: {e}"),
            }
        }
        at
    });
    let mut writer = tcp;
    let block: Vec<u8> = (0..1 << 20).map(pattern).collect();
    for _ in 0..TOTAL >> 20 {
        writer.write_all(&block).unwrap();
    }
    assert_eq!(received.join().unwrap(), TOTAL);
    let stats = pump.stats();
    let (frames, bytes) = (stats.received.load(Relaxed), stats.received_bytes.load(Relaxed));
    assert!(bytes / frames > 3000, "no large frames: {frames} frames, {bytes} bytes");
    assert_eq!(stats.dropped.load(Relaxed), 0);
    drop(writer);
    pump.stop().unwrap();
}

fn pattern(i: usize) -> u8 {
    (i % (1 << 20) % 251) as u8
}

/// Connects from 10.9.0.2:9100 to 10.9.0.1:9100.
#[allow(clippy::unwrap_used, reason = "support of a test")]
fn connect_to_itself() -> TcpStream {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, socket};
    use std::os::fd::AsRawFd;
    let fd = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
    bind(fd.as_raw_fd(), &SockaddrIn::new(10, 9, 0, 2, 9100)).unwrap();
    connect(fd.as_raw_fd(), &SockaddrIn::new(10, 9, 0, 1, 9100)).unwrap();
    fd.into()
}
