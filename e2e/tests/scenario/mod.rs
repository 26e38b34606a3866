//! What is expected of every backend.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use podvirt_e2e::{Backend, BackendOptions, Boot, Guest, Net, NetOptions, Pod, Vhost};

/// A blocked peer must not block the test for ever.
const TIMEOUT: Duration = Duration::from_secs(60);
/// When a datagram, or the answer to it, counts as lost.
const LOST: Duration = Duration::from_secs(2);
/// The pod's port that leads to the guest.
const PORT: u16 = 8001;

/// Addresses, echo, TCP and UDP, out and in, both families.
pub(crate) fn everything_a_guest_needs(backend: Backend, boot: Boot) {
    let pod = Pod::new(NetOptions::default()).unwrap();
    let options = BackendOptions { tcp: vec![PORT], udp: vec![PORT], ..Default::default() };
    let _backend = backend.start(&pod, &options).unwrap();
    let mut guest = Guest::boot(boot, &pod, &Vhost::default()).unwrap();
    assert_eq!(guest.said("mtu").unwrap(), "1500");
    everything_works(&mut guest, &pod);
    guest.shut_down().unwrap();
}

/// The pod's addresses are the guest's; echo, TCP and UDP go out, and in by [`PORT`].
pub(crate) fn everything_works(guest: &mut Guest, pod: &Pod) {
    assert_eq!(guest.said("ip").unwrap(), format!("{}/24", Net::POD4));
    assert!(guest.said("ip6").unwrap().starts_with("fd00:9::2/"), "{}", guest.said("ip6").unwrap());
    for address in pod.net.client_addresses() {
        guest.ping(address).unwrap();
        tcp_out(guest, pod, (address, 7001).into());
        udp_out(guest, pod, (address, 7001).into());
    }
    for address in Net::pod_addresses(PORT) {
        tcp_in(guest, pod, address);
        udp_in(guest, pod, address);
    }
}

/// What the guest's `numbers` prints: half a megabyte in which a byte lost, doubled or moved shows.
fn numbers() -> String {
    (1..=100_000).fold(String::new(), |mut text, n| {
        writeln!(text, "{n}").unwrap();
        text
    })
}

/// socat's suffix for the family.
fn family(address: SocketAddr) -> char {
    if address.is_ipv4() { '4' } else { '6' }
}

fn tcp_out(guest: &mut Guest, pod: &Pod, address: SocketAddr) {
    let listener = pod.net.client.enter(|| Ok(TcpListener::bind(address)?)).unwrap();
    guest.console.type_line(&format!("numbers | socat -u - TCP{}:{address} &", family(address))).unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut received = String::new();
    stream.read_to_string(&mut received).unwrap();
    assert!(received == numbers(), "{} bytes arrived at {address}", received.len());
}

/// Waits in the guest until something listens on the port.
fn listening(ss: &str) -> String {
    format!("i=0; until ss {ss} | grep -q :{PORT} || [ $i -gt 200 ]; do i=$((i + 1)); usleep 50000; done")
}

fn tcp_in(guest: &mut Guest, pod: &Pod, address: SocketAddr) {
    let listen =
        format!("socat -u TCP{}-LISTEN:{PORT},reuseaddr CREATE:/tmp/got 2>/tmp/err &", family(address));
    guest.sh(&format!("rm -f /tmp/got; {listen} {}", listening("-Hltn"))).unwrap();
    let connect = || Ok(TcpStream::connect_timeout(&address, TIMEOUT)?);
    let mut stream = pod.net.client.enter(connect).unwrap();
    stream.write_all(numbers().as_bytes()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    guest.sh("wait; numbers | cmp - /tmp/got").unwrap();
}

fn udp_out(guest: &mut Guest, pod: &Pod, address: SocketAddr) {
    let socket = pod.net.client.enter(|| Ok(UdpSocket::bind(address)?)).unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    // It asks until it is answered.
    let ask = format!(
        "until echo ask | socat -t 1 - UDP{}:{address} | grep -q answer; do :; done &",
        family(address)
    );
    guest.console.type_line(&ask).unwrap();
    let mut buffer = [0; 64];
    let (length, from) = socket.recv_from(&mut buffer).unwrap();
    assert_eq!(buffer.get(..length).unwrap(), b"ask\n");
    socket.send_to(b"answer\n", from).unwrap();
    let console = &mut guest.console;
    // If the answer was late the guest has asked again.
    socket.set_read_timeout(Some(LOST)).unwrap();
    while let Ok((_, from)) = socket.recv_from(&mut buffer) {
        socket.send_to(b"answer\n", from).unwrap();
    }
    console.sh("wait", TIMEOUT).unwrap();
}

fn udp_in(guest: &mut Guest, pod: &Pod, address: SocketAddr) {
    let echo = format!(
        "socat -T 30 UDP{}-LISTEN:{PORT},reuseaddr PIPE 2>/tmp/err & echo $! >/tmp/echo.pid;",
        family(address)
    );
    guest.sh(&format!("{echo} {}", listening("-Hlun"))).unwrap();
    let any: SocketAddr = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }.parse().unwrap();
    let socket = pod.net.client.enter(|| Ok(UdpSocket::bind(any)?)).unwrap();
    socket.set_read_timeout(Some(LOST)).unwrap();
    let mut buffer = [0; 64];
    let answered = (0..5).any(|_| {
        socket.send_to(b"hello", address).unwrap();
        matches!(socket.recv_from(&mut buffer), Ok((5, from)) if from == address)
    });
    assert!(answered && buffer.starts_with(b"hello"), "no echo from {address}");
    guest.sh("kill $(cat /tmp/echo.pid); wait").unwrap();
}

/// Debian's networkd is content with what it is told, and the MTU is the one it is told.
pub(crate) fn a_distribution_finds_its_network(backend: Backend) {
    let pod = Pod::new(NetOptions::default()).unwrap();
    let _backend = backend.start(&pod, &BackendOptions { mtu: Some(1400), ..Default::default() }).unwrap();
    let mut guest =
        Guest::boot(Boot::Debian, &pod, &Vhost { memory_mib: 768, ..Default::default() }).unwrap();
    assert_eq!(guest.said("ip").unwrap(), format!("{}/24", Net::POD4));
    assert_eq!(guest.said("mtu").unwrap(), "1400");
    for address in pod.net.client_addresses() {
        guest.ping(address).unwrap();
    }
    guest.shut_down().unwrap();
}
