//! The state of one netd's workers through a pipe into those of another netd.

mod link;

use std::io;
use std::io::{Read, Write, pipe};
use std::net::SocketAddr;
use std::net::UdpSocket;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use socket2::SockRef;

use super::pipe::Records;
use super::socket::Socket;
use super::*;
use crate::codec::{DecodeError, Field, MAGIC, Reader, record};
use crate::config::ports::Ports;
use crate::control::{FlowKind, FlowQuery};
use crate::egress::{Action, Egress};
use crate::limits::{Limits, Timeouts};
use crate::net::{Home, Link, test_link};
use crate::repair::Connection;
use crate::state::stream::{Assembly, Frame};
use crate::state::{self, Descriptors, Fd, InheritError, Listeners, Origin, Pack, Worker, WorkerState, syn};
use crate::tcp::{Config, Conn, PodState};
use crate::time::Time;
use crate::udp::Session;
use crate::wire::MacAddr;
use crate::worker::{Inherited, Settings, spawn};

/// Workers that run, with a state of a predecessor or new.
fn workers(pairs: usize, inherited: Option<Inherited>) -> Running {
    let mut link = test_link();
    // Where the peers of these tests are.
    link.v4.as_mut().unwrap().loopback = Some([127, 0, 0, 1].into());
    workers_at(link, pairs, inherited)
}

fn workers_at(link: Link, pairs: usize, inherited: Option<Inherited>) -> Running {
    let handle = spawn(Settings {
        limits: Limits::default(),
        timeouts: Timeouts::default(),
        link: Arc::new(link),
        ports: Vec::new(),
        port_spec: Ports::default(),
        counters: Arc::default(),
        pairs,
        peek_offset: true,
        spins: true,
        ask_guest: false,
        inherited,
    });
    Running(Backend::new(handle.unwrap()))
}

struct Running(Backend);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.workers().shutdown();
        self.0.workers().join();
    }
}

impl Running {
    fn flows(&self) -> Vec<(FlowKind, SocketAddr)> {
        use crate::control::Control;
        let flows = self.0.workers().flows(FlowQuery { limit: 100, ..FlowQuery::default() });
        flows.into_iter().map(|f| (f.kind, f.guest_peer)).collect()
    }

    fn save(&self) -> Result<Vec<u8>, StateError> {
        let (mut out, into) = pipe().unwrap();
        let reader = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            out.read_to_end(&mut bytes).unwrap();
            bytes
        });
        use crate::vhost::RingSink;
        let saved = RingSink::save(&self.0, OwnedFd::from(into).into());
        let bytes = reader.join().unwrap();
        saved.map(|()| bytes)
    }

    fn load(&self, bytes: &[u8]) -> Result<(), StateError> {
        use crate::vhost::RingSink;
        let (out, mut into) = pipe().unwrap();
        std::thread::scope(|s| {
            s.spawn(move || {
                // A reader that gives up is no fault of the writer.
                let _ = into.write_all(bytes);
            });
            RingSink::load(&self.0, OwnedFd::from(out).into())
        })
    }
}

/// A worker's state with a UDP flow to `peer` and a connection in the middle of its life, and their sockets.
fn inherited(peer: SocketAddr, tcp: std::net::TcpStream) -> Inherited {
    let now = Time::from_millis(5_000);
    let guest = "10.9.0.2:4242".parse().unwrap();
    let mut session = Session::udp(&Timeouts::default(), now);
    session.on_guest(now);
    let socket = sockets_of(peer);
    let tcp_peer = tcp.peer_addr().unwrap();
    let worker = Worker {
        state: WorkerState {
            now,
            started: Time::from_millis(1),
            guest_mac: Some(MacAddr([0x52, 0x54, 0, 1, 2, 3])),
            ..WorkerState::default()
        },
        tcp: vec![inherited_tcp(guest, tcp_peer, now)],
        udp: vec![state::UdpFlow {
            key: (guest, peer),
            pod_peer: peer,
            local: None,
            from_guest: true,
            socket: Some(Fd(1)),
            listener: None,
            options: None,
            bytes_to_pod: 4,
            bytes_to_guest: 5,
            session,
        }],
        ..Worker::default()
    };
    let fds = Descriptors::new(vec![tcp.into(), socket]);
    Inherited { workers: vec![worker], ago: Duration::ZERO, fds }
}

fn sockets_of(peer: SocketAddr) -> OwnedFd {
    crate::sockets::udp_flow(Some([127, 0, 0, 1].into()), 0, peer).unwrap().into()
}

/// The peers of a saved worker: a UDP socket, and the far end of a connection.
struct Peers {
    udp: UdpSocket,
    tcp: std::net::TcpStream,
}

/// Workers that have flows, and their peers.
fn source() -> (Running, Peers) {
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let near = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    near.set_nonblocking(true).unwrap();
    let tcp = listener.accept().unwrap().0;
    let running = workers(1, Some(inherited(udp.local_addr().unwrap(), near)));
    running.0.workers().thaw();
    (running, Peers { udp, tcp })
}

fn local_of_udp(running: &Running) -> Vec<SocketAddr> {
    let (pack, _) = running.0.workers().pack(Pack::keep()).unwrap();
    let local = |fd: &OwnedFd| {
        let s = SockRef::from(fd);
        (s.protocol().unwrap() == Some(socket2::Protocol::UDP)).then(|| s.local_addr().unwrap().as_socket())
    };
    pack.kept().iter().filter_map(local).flatten().collect()
}

#[test]
fn flows_go_along_with_their_ports_and_what_cannot_move_is_reset_at_both_ends() {
    use crate::vhost::RingSink;
    let (old, mut peers) = source();
    let before = old.flows();
    assert_eq!(before.len(), 2);
    let bytes = old.save().unwrap();
    assert!(matches!(old.save(), Err(StateError::Twice)));
    let ports = local_of_udp(&old);
    assert_eq!(ports.len(), 1);

    let new = workers(1, None);
    new.load(&bytes).unwrap();
    assert_eq!(local_of_udp(&new), ports, "the peer sees the same port");
    assert_eq!(new.flows(), before);
    RingSink::resume(&new.0);
    peers.udp.send_to(b"still there", ports[0]).unwrap();

    // The source's frontend leaves: the connection that did not move ends for its peer, and not in a clean way.
    RingSink::set_connected(&old.0, false);
    let error = peers.tcp.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    assert!(old.0.is_moving(), "it stands still for good");
}

#[test]
fn a_connection_of_a_predecessor_has_urgent_data_in_line_from_then_on() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let near = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let again = near.try_clone().unwrap();
    assert!(!SockRef::from(&again).out_of_band_inline().unwrap());
    let _running = workers(1, Some(inherited("127.0.0.1:9".parse().unwrap(), near)));
    assert!(SockRef::from(&again).out_of_band_inline().unwrap());
}

#[test]
fn a_pair_that_the_source_did_not_have_knows_the_guest_and_the_time() {
    let home = Home { guest: [10, 8, 0, 7].into(), prefix_len: 24, gateway: [10, 8, 0, 1].into() };
    let known = WorkerState {
        now: Time::from_millis(3_600_000),
        started: Time::from_millis(1),
        guest_mac: Some(MacAddr([0x52, 0x54, 0, 1, 2, 3])),
        station_seen: true,
        homes: vec![home],
        ..WorkerState::default()
    };
    let state = stream(|to| put(to, tag::WORKER, &known));
    let inherited = || {
        let worker = Worker { state: known.clone(), ..Worker::default() };
        Inherited { workers: vec![worker], ago: Duration::ZERO, fds: Descriptors::default() }
    };
    let link = || Link { guest_mac: None, ..test_link() };
    // By a migration, and by a live update to a netd with more pairs.
    let (moved, updated) = (workers_at(link(), 3, None), workers_at(link(), 3, Some(inherited())));
    moved.load(&state).unwrap();
    for running in [moved, updated] {
        let (_, states) = running.0.workers().pack(Pack::keep()).unwrap();
        let states: Vec<WorkerState> = states.unwrap().into_iter().map(|w| w.state).collect();
        assert_eq!(states.len(), 3);
        for s in states {
            assert!(s.now >= known.now, "{:?}", s.now);
            assert_eq!((s.started, s.guest_mac, s.station_seen), (known.started, known.guest_mac, true));
            assert!(s.homes.contains(&home), "{:?}", s.homes);
        }
    }
}

#[test]
fn a_migration_that_fails_costs_nothing() {
    use crate::vhost::RingSink;
    let (old, mut peers) = source();
    let before = old.flows();
    old.save().unwrap();
    RingSink::resume(&old.0);
    assert!(!old.0.is_moving());
    assert_eq!(old.flows(), before);
    peers.tcp.set_nonblocking(true).unwrap();
    assert_eq!(peers.tcp.read(&mut [0]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    // And once more, now that it is known how.
    assert!(old.save().is_ok());
}

#[test]
fn a_frontend_that_does_not_read_costs_the_migration_only() {
    use crate::vhost::RingSink;
    let (old, _peers) = source();
    let (out, into) = pipe().unwrap();
    drop(out);
    assert!(matches!(RingSink::save(&old.0, OwnedFd::from(into).into()), Err(StateError::Io(_))));
    assert!(!old.0.is_moving());
    assert_eq!(old.flows().len(), 2);
}

#[test]
fn a_state_for_more_pairs_than_there_are_is_refused_and_nothing_of_it_stays() {
    let old = workers(2, None);
    let bytes = old.save().unwrap();
    let new = workers(1, None);
    assert!(matches!(new.load(&bytes), Err(StateError::Inherit(InheritError::Pairs { have: 2, pairs: 1 }))));
    assert!(!new.0.is_moving());
    new.load(&workers(1, None).save().unwrap()).unwrap();
}

#[test]
fn a_target_that_loses_its_frontend_before_the_guest_runs_has_nothing() {
    use crate::vhost::RingSink;
    let (old, _peers) = source();
    let new = workers(1, None);
    new.load(&old.save().unwrap()).unwrap();
    RingSink::set_connected(&new.0, false);
    assert!(!new.0.is_moving());
    assert!(new.flows().is_empty());
}

/// What the first version wrote for [`sample`], in hexadecimal. It stands as it is for ever: every later version reads
/// it, and a netd of the first version reads what every later one writes. A version that appends fields adds a file of
/// its own.
const V1: &str = include_str!("../golden/device-v1.hex");
/// The same of the second version: fields were appended to connections and their flows.
const V2: &str = include_str!("../golden/device-v2.hex");

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let pair = |d: &[u8]| u8::from_str_radix(std::str::from_utf8(d).unwrap(), 16).unwrap();
    digits.chunks(2).map(pair).collect()
}

/// A guest with a flow of each kind. The connection's other end is not here, nor is its address.
fn sample() -> Vec<u8> {
    let at = |text: &str| -> SocketAddr { text.parse().unwrap() };
    let now = Time::from_millis(5_000);
    let (guest, peer) = (at("10.9.0.2:4242"), at("192.0.2.1:80"));
    let tcp = inherited_tcp(guest, peer, now);
    let udp_peer = at("127.0.0.1:53");
    let udp = state::UdpFlow { pod_peer: udp_peer, key: (guest, udp_peer), ..inherited_udp(Fd(1)) };
    let echo = state::EchoFlow {
        guest,
        socket: Fd(2),
        ttl: Some(64),
        bytes_to_pod: 6,
        bytes_to_guest: 7,
        session: Session::echo(&Timeouts::default(), now),
    };
    let port = state::ForwardedPort {
        place: 1,
        proto: crate::port::Proto::Tcp,
        pod: 8080,
        guest: 80,
        socket: None,
        error: None,
    };
    let state = WorkerState {
        now,
        started: Time::from_millis(1),
        guest_mac: Some(MacAddr([0x52, 0x54, 0, 1, 2, 3])),
        seen_mac: None,
        station_seen: true,
        seen: vec!["10.9.0.2".parse().unwrap()],
        fragment_id: 9,
        homes: Vec::new(),
    };
    let connection = Connection::sample();
    let mut bytes = MAGIC.to_vec();
    let to = &mut bytes;
    let origin = Origin { version: "0.1.0".into(), ..Origin::default() };
    put(to, tag::ORIGIN, &origin);
    put(to, tag::LISTENERS, &Listeners::default());
    put(to, tag::SOCKET, &Socket::of_connection((guest, peer), false, connection));
    put(to, tag::SOCKET, &Socket::sample(true, at("127.0.0.1:40001"), Some(udp_peer)));
    put(to, tag::SOCKET, &Socket::sample(false, at("127.0.0.1:77"), None));
    put(to, tag::WORKER, &state);
    put(to, tag::TCP, &tcp);
    put(to, tag::UDP, &udp);
    put(to, tag::ECHO, &echo);
    put(to, tag::PORT, &port);
    record(to, tag::WAITING, false, &Frame(vec![1, 2, 3]));
    put(to, tag::END, &Frame(Vec::new()));
    bytes
}

/// What a later version might write: each record has more at its end, and behind each is one that need not be known.
fn grown(stream: &[u8]) -> Vec<u8> {
    let mut out = stream[..MAGIC.len()].to_vec();
    let mut rest = &stream[MAGIC.len()..];
    while let Some((head, body)) = rest.split_first_chunk::<8>() {
        let len = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        let bytes = [&body[..len], b"and more"].concat();
        out.extend(&head[..4]);
        out.extend((bytes.len() as u32).to_le_bytes());
        out.extend(bytes);
        // The reader does not read beyond the last record.
        record(&mut out, 0x7002, false, &Frame(vec![9; 5]));
        rest = &body[len..];
    }
    out
}

/// The flows after a state was loaded; the connection ends, as no helper repairs it.
fn arrived(stream: &[u8]) -> Vec<(FlowKind, SocketAddr)> {
    let new = workers(1, None);
    new.load(stream).unwrap();
    new.flows()
}

#[test]
fn the_stream_is_that_of_the_first_version_and_later_ones_are_read_by_it() {
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        let lines = sample()
            .chunks(48)
            .map(|l| l.iter().map(|b| format!("{b:02x}")).collect::<String>() + "\n")
            .collect::<String>();
        std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/src/device/golden/device-v2.hex"), lines)
            .unwrap();
        return;
    }
    assert!(sample() == unhex(V2), "the format has changed");
    let flows = arrived(&sample());
    assert_eq!(arrived(&unhex(V1)), flows);
    // Whether this process may have ping sockets depends on the system that runs the test.
    let kinds: Vec<FlowKind> = flows.iter().map(|f| f.0).filter(|kind| *kind != FlowKind::Echo).collect();
    assert_eq!(kinds, [FlowKind::Tcp, FlowKind::Udp]);
    assert_eq!(arrived(&grown(&sample())), flows);
}

/// Appends a record that must be understood.
fn put(to: &mut Vec<u8>, tag: u16, body: &impl Field) {
    record(to, tag, true, body);
}

/// A stream as it is written, with `more` before its end.
fn stream(more: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    put(&mut bytes, tag::ORIGIN, &Origin::default());
    more(&mut bytes);
    put(&mut bytes, tag::END, &Frame(Vec::new()));
    bytes
}

#[test]
fn records_of_a_later_version_are_stepped_over_or_refused_by_their_mark() {
    let new = workers(1, None);
    let optional = stream(|to| record(to, 0x7001, false, &Frame(vec![1; 70_000])));
    new.load(&optional).unwrap();
    let new = workers(1, None);
    let mandatory = stream(|to| record(to, 0x7001, true, &Frame(Vec::new())));
    assert!(matches!(new.load(&mandatory), Err(StateError::Decode(DecodeError::Unknown(0x7001)))));
    assert!(!new.0.is_moving());
}

#[test]
fn lengths_that_lie_are_refused_before_anything_is_allocated() {
    let new = workers(1, None);
    let lies = |len: u32| {
        let mut bytes = MAGIC.to_vec();
        bytes.extend([0x50, 0, 1, 0]);
        bytes.extend(len.to_le_bytes());
        bytes
    };
    assert!(matches!(new.load(&lies(u32::MAX)), Err(StateError::TooLarge { .. })));
    assert!(matches!(new.load(&lies(50 << 20)), Err(StateError::Decode(DecodeError::Truncated(_)))));
    assert!(matches!(new.load(b"podvirt"), Err(StateError::Decode(_))));
    let nameless = stream(|to| {
        put(to, tag::WORKER, &WorkerState::default());
        put(to, tag::UDP, &inherited_udp(Fd(9)));
    });
    new.load(&nameless).unwrap();
    assert!(new.flows().is_empty(), "a flow whose socket did not come ends");
}

/// A connection in the middle of its life, whose socket is the first descriptor.
fn inherited_tcp(guest: SocketAddr, peer: SocketAddr, now: Time) -> state::TcpFlow {
    let mut conn = Conn::open_by_guest(Config::default(), 77, &syn(), now);
    let rtt = Duration::ZERO;
    conn.on_connected(&PodState {
        space: 1 << 20,
        acked: 0,
        peer_window: 65_535,
        near: true,
        rtt,
        notifies: false,
    });
    state::TcpFlow {
        key: (guest, peer),
        pod_peer: peer,
        from_guest: true,
        socket: Some(Fd(0)),
        kernel_offset: true,
        peer_closed: false,
        near: true,
        acked_base: 1,
        bytes_to_pod: 2,
        bytes_to_guest: 3,
        used: now,
        conn,
        ttl: 0,
        dscp: 0,
    }
}

fn inherited_udp(socket: Fd) -> state::UdpFlow {
    let peer = "192.0.2.1:53".parse().unwrap();
    let session = Session::udp(&Timeouts::default(), Time::ZERO);
    state::UdpFlow {
        key: ("10.9.0.2:1".parse().unwrap(), peer),
        pod_peer: peer,
        local: None,
        from_guest: true,
        socket: Some(socket),
        listener: None,
        options: None,
        bytes_to_pod: 0,
        bytes_to_guest: 0,
        session,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_comes_there_is_an_answer(cut in 0usize..400, damage in prop::collection::vec((0usize..400, any::<u8>()), 0..8)) {
        let mut bytes = stream(|to| {
            put(to, tag::WORKER, &WorkerState::default());
            put(to, tag::UDP, &inherited_udp(Fd(0)));
        });
        for (at, value) in damage {
            let len = bytes.len();
            bytes[at % len] = value;
        }
        bytes.truncate(bytes.len().saturating_sub(cut % 7));
        let mut records = match Records::new(&bytes[..], 100) {
            Ok(records) => records,
            Err(_) => return Ok(()),
        };
        let mut assembly = Assembly::default();
        while let Ok(Some((number, mandatory, body))) = records.next() {
            if assembly.add(number, mandatory, &mut Reader::new(body)).unwrap_or(true) {
                break;
            }
        }
    }
}
