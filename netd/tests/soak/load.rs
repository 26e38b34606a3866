//! What runs all the time.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};

use super::pod::{Family, Namespace, Pod, TIMEOUT};

/// Port of the streams, and that of the echoes.
const STREAM: u16 = 7001;
const ECHO: u16 = 7000;
/// Threads that answer, of each family.
const SERVERS: usize = 5;
/// How long an answer to a datagram is waited for: it may be lost.
const LOST: Duration = Duration::from_millis(200);
/// Bytes of a stream that count as a step.
const STEP: usize = 1 << 16;

/// Kinds of load, each of which counts its steps.
const KINDS: [&str; 6] =
    ["streams up", "streams down", "connections up", "connections down", "datagrams", "pings"];

struct Shared {
    stop: AtomicBool,
    /// The answering threads go on until no thread asks any more.
    over: AtomicBool,
    steps: [AtomicU64; KINDS.len()],
    /// No thread asks before every answering thread listens: netd accepts for the guest, and a guest that does not
    /// listen yet resets what was accepted.
    listening: Barrier,
}

impl Shared {
    fn goes_on(&self) -> bool {
        !self.stop.load(Relaxed)
    }

    fn serves(&self) -> bool {
        !self.over.load(Relaxed)
    }

    fn step(&self, kind: usize) {
        self.steps[kind].fetch_add(1, Relaxed);
    }
}

/// Running load.
pub(crate) struct Load {
    shared: Arc<Shared>,
    servers: Vec<JoinHandle<()>>,
    threads: Vec<JoinHandle<()>>,
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (kind, steps) in KINDS.iter().zip(&self.shared.steps) {
            write!(f, "{} {kind}; ", steps.load(Relaxed))?;
        }
        Ok(())
    }
}

impl Load {
    pub(crate) fn start(pod: &Pod) -> Load {
        let servers = SERVERS * pod.families().len();
        let shared = Arc::new(Shared {
            stop: false.into(),
            over: false.into(),
            steps: Default::default(),
            listening: Barrier::new(servers + 1),
        });
        let mut load = Load { shared, servers: Vec::new(), threads: Vec::new() };
        for Family { pod: guest, client } in pod.families() {
            // The guest has the pod's address.
            load.run(&pod.client, move |s| serve(s, client));
            load.run(&pod.guest, move |s| serve(s, guest));
            load.run(&pod.client, move |s| receive(s, client, 0));
            load.run(&pod.guest, move |s| receive(s, guest, 1));
            load.run(&pod.client, move |s| echo_datagrams(s, client));
        }
        load.servers.append(&mut load.threads);
        load.shared.listening.wait();
        for Family { pod: guest, client } in pod.families() {
            load.run(&pod.guest, move |s| send(s, client));
            load.run(&pod.client, move |s| send(s, guest));
            load.run(&pod.guest, move |s| connections(s, client, 2));
            load.run(&pod.client, move |s| connections(s, guest, 3));
            load.run(&pod.guest, move |s| datagrams(s, client));
            load.run(&pod.guest, move |s| pings(s, client));
        }
        load
    }

    fn run(&mut self, inside: &Namespace, work: impl FnOnce(&Shared) + Send + 'static) {
        let (shared, inside) = (Arc::clone(&self.shared), inside.again());
        self.threads.push(std::thread::spawn(move || {
            inside.enter();
            work(&shared);
        }));
    }

    /// Waits until every kind has done `steps` more.
    pub(crate) fn progress(&self, steps: u64) {
        let now = || self.shared.steps.each_ref().map(|s| s.load(Relaxed));
        let before = now();
        let deadline = Instant::now() + TIMEOUT;
        while now().iter().zip(before).any(|(now, before)| now - before < steps) {
            assert!(Instant::now() < deadline, "no progress: {self}from {before:?}");
            assert!(
                !self.threads.iter().chain(&self.servers).any(JoinHandle::is_finished),
                "a load has failed: {self}"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Ends all load; what it had open is closed.
    pub(crate) fn stop(self) {
        for (flag, threads) in [(&self.shared.stop, self.threads), (&self.shared.over, self.servers)] {
            flag.store(true, Relaxed);
            for thread in threads {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            }
        }
    }
}

fn listen(at: IpAddr, port: u16) -> TcpListener {
    let listener = TcpListener::bind((at, port)).unwrap();
    listener.set_nonblocking(true).unwrap();
    listener
}

/// The next connection; none when the load ends.
fn accept(shared: &Shared, listener: &TcpListener) -> Option<TcpStream> {
    while shared.serves() {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).unwrap();
                stream.set_read_timeout(Some(TIMEOUT)).unwrap();
                return Some(stream);
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => std::thread::sleep(Duration::from_millis(1)),
            Err(e) => panic!("accept: {e}"),
        }
    }
    None
}

fn connect(to: IpAddr, port: u16) -> TcpStream {
    let stream = TcpStream::connect_timeout(&SocketAddr::new(to, port), TIMEOUT)
        .unwrap_or_else(|e| panic!("{to} port {port}: {e}"));
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.set_write_timeout(Some(TIMEOUT)).unwrap();
    stream
}

/// The byte at a place of a stream.
fn byte(at: usize) -> u8 {
    (at.wrapping_mul(0x9e37_79b9) >> 13) as u8
}

/// Answers each connection with what it says, and closes when it does.
fn serve(shared: &Shared, at: IpAddr) {
    let listener = listen(at, ECHO);
    shared.listening.wait();
    while let Some(mut stream) = accept(shared, &listener) {
        let mut said = [0; 5];
        if stream.read_exact(&mut said).is_ok() && stream.write_all(&said).is_ok() {
            let _ = stream.read(&mut said);
        }
    }
}

/// Connections of a few bytes, one after the other.
fn connections(shared: &Shared, to: IpAddr, kind: usize) {
    while shared.goes_on() {
        let mut stream = connect(to, ECHO);
        let mut answer = [0; 5];
        stream.write_all(b"hello").unwrap();
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"hello");
        stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(stream.read(&mut answer).unwrap(), 0);
        shared.step(kind);
    }
}

/// Streams of a few megabytes, until the end.
fn send(shared: &Shared, to: IpAddr) {
    let block: Vec<u8> = (0..STEP).map(byte).collect();
    while shared.goes_on() {
        let mut stream = connect(to, STREAM);
        for _ in 0..64 {
            stream.write_all(&block).unwrap();
        }
        stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    }
}

/// Compares streams.
fn receive(shared: &Shared, at: IpAddr, kind: usize) {
    let listener = listen(at, STREAM);
    shared.listening.wait();
    while let Some(mut stream) = accept(shared, &listener) {
        let mut buffer = vec![0; STEP];
        loop {
            match stream.read_exact(&mut buffer) {
                Ok(()) => {}
                Err(e) if e.kind() == ErrorKind::UnexpectedEof => break,
                Err(e) => panic!("a stream broke: {e}"),
            }
            assert!(buffer.iter().enumerate().all(|(at, b)| *b == byte(at)), "other bytes than were sent");
            shared.step(kind);
        }
    }
}

fn udp(at: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind(at).unwrap();
    socket.set_read_timeout(Some(LOST)).unwrap();
    socket
}

fn echo_datagrams(shared: &Shared, at: IpAddr) {
    let socket = udp(SocketAddr::new(at, ECHO));
    shared.listening.wait();
    let mut buffer = [0; 2048];
    while shared.serves() {
        match socket.recv_from(&mut buffer) {
            Ok((n, from)) => drop(socket.send_to(&buffer[..n], from)),
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            Err(e) => panic!("datagrams: {e}"),
        }
    }
}

/// A few datagrams from each of ever new ports. What is lost while the frontend is away is not counted.
fn datagrams(shared: &Shared, to: IpAddr) {
    let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let mut number = 0u64;
    while shared.goes_on() {
        let socket = udp(SocketAddr::new(any, 0));
        socket.connect((to, ECHO)).unwrap();
        for _ in 0..10 {
            number += 1;
            let mut answer = [0; 2048];
            let asked = socket.send(&[&number.to_le_bytes()[..], &[7; 500]].concat());
            if asked.and_then(|_| socket.recv(&mut answer)).is_ok_and(|n| n == 508) {
                shared.step(4);
            }
        }
        // Slowly enough that the flows of a second are a few hundred.
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn pings(shared: &Shared, to: IpAddr) {
    let (domain, protocol, kind) = if to.is_ipv4() {
        (Domain::IPV4, Protocol::ICMPV4, 8)
    } else {
        (Domain::IPV6, Protocol::ICMPV6, 128)
    };
    let ping = || -> io::Result<usize> {
        let mut socket = Socket::new(domain, Type::DGRAM, Some(protocol))?;
        socket.set_read_timeout(Some(LOST))?;
        socket.connect(&SocketAddr::new(to, 0).into())?;
        socket.send(&[kind, 0, 0, 0, 0, 0, 0, 1, 1, 2, 3, 4])?;
        socket.read(&mut [0; 64])
    };
    while shared.goes_on() {
        if ping().is_ok_and(|n| n == 12) {
            shared.step(5);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
