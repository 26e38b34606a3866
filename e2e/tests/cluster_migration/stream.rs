//! Connections with a machine that carry bytes all the time, each of which is looked at when it comes back.
//!
//! The guest's end echoes. What is sent is a function of the place in the stream and differs from place to place, so a byte
//! that is lost, doubled or changed is seen where it happens; and nothing is taken for good that was not read.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sys::socket::{setsockopt, sockopt};
use podvirt_e2e::until;

use crate::moving::{Connection, Machine};

/// How long a stream may stand still: a migration's last part, on a busy machine, and TCP's own timeout after it.
const STILL: Duration = Duration::from_secs(90);
/// Bytes that are written or read at a time.
const CHUNK: usize = 8 << 10;
/// Between two of them, where there is a pace.
const BEAT: Duration = Duration::from_millis(40);
/// Bytes that are received and not read at most, or twice that, as the kernel counts.
const QUEUED: usize = 64 << 10;
/// Bytes after which it certainly goes on: more than were here already.
const AHEAD: u64 = 512 << 10;

/// How fast a stream is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// 200 KiB a second, read as they come.
    Steady,
    /// Written as fast as the way takes them, and read at that pace: unread and unsent bytes stand in every queue.
    Full,
}

#[derive(Debug, Default)]
struct Shared {
    sent: AtomicU64,
    back: AtomicU64,
    /// The longest time without any that came back, in ms.
    silence: AtomicU64,
    stop: AtomicBool,
    trouble: Mutex<Option<String>>,
}

impl Shared {
    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn fail(&self, what: String) {
        self.trouble.lock().unwrap().get_or_insert(what);
    }

    fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap().clone()
    }
}

/// A connection that is never idle.
#[derive(Debug)]
pub(crate) struct Stream {
    name: String,
    shared: Arc<Shared>,
    socket: TcpStream,
    threads: Vec<JoinHandle<()>>,
}

impl Stream {
    /// To the guest's greeter at `address`.
    pub(crate) fn to(address: IpAddr, pace: Pace) -> Stream {
        let socket = until("a greeting", STILL, || Ok(Connection::to(address).ok())).unwrap().into_inner();
        Stream::over(format!("to {address}, {pace:?}"), socket, pace)
    }

    /// From the guest to this process at `here`.
    pub(crate) fn from(machine: &mut Machine<'_>, here: IpAddr, pace: Pace) -> Stream {
        let listener = TcpListener::bind((here, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let there =
            if here.is_ipv6() { format!("TCP6:[{here}]:{port}") } else { format!("TCP4:{here}:{port}") };
        machine.sh(&format!("(socat {there} EXEC:cat >/dev/null 2>&1 &)"));
        let (socket, _) = listener.accept().unwrap();
        Stream::over(format!("from the guest to {here}, {pace:?}"), socket, pace)
    }

    fn over(name: String, socket: TcpStream, pace: Pace) -> Stream {
        // So that a thread sees that it is to end.
        socket.set_read_timeout(Some(BEAT * 5)).unwrap();
        socket.set_write_timeout(Some(BEAT * 5)).unwrap();
        setsockopt(&socket, sockopt::RcvBuf, &QUEUED).unwrap();
        let shared = Arc::new(Shared::default());
        let start = |work: fn(TcpStream, Pace, &Shared)| {
            let (shared, socket) = (Arc::clone(&shared), socket.try_clone().unwrap());
            thread::spawn(move || work(socket, pace, &shared))
        };
        let threads = vec![start(write), start(read)];
        Stream { name, shared, socket, threads }
    }

    /// How many bytes have come back as they were sent.
    pub(crate) fn back(&self) -> u64 {
        self.shared.back.load(Ordering::Acquire)
    }

    /// The longest time in which nothing came back since this was asked before; a beat is part of it.
    pub(crate) fn silence(&self) -> Duration {
        Duration::from_millis(self.shared.silence.swap(0, Ordering::Relaxed))
    }

    /// Waits until all of these have gone on from here.
    pub(crate) fn all_go_on(streams: &[Stream]) {
        let places: Vec<u64> = streams.iter().map(|stream| stream.back() + AHEAD).collect();
        for (stream, to) in streams.iter().zip(places) {
            stream.until(&format!("bytes up to {to}"), || stream.back() >= to);
        }
    }

    /// Ends it when all that was sent is back, and returns how much that is.
    pub(crate) fn ends_whole(mut self) -> u64 {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.threads.remove(0).join().unwrap();
        let sent = self.shared.sent.load(Ordering::Acquire);
        self.until("all that was sent", || self.back() == sent);
        assert_eq!(self.shared.trouble(), None, "{}", self.name);
        sent
    }

    fn until(&self, what: &str, ready: impl Fn() -> bool) {
        let what = format!("{what} of the stream {}", self.name);
        let come = until(&what, STILL, || match self.shared.trouble() {
            Some(trouble) => anyhow::bail!("{}: {trouble}", self.name),
            None => Ok(ready().then_some(())),
        });
        let (sent, back) = (self.shared.sent.load(Ordering::Acquire), self.back());
        assert!(come.is_ok(), "{come:?}; {sent} bytes were sent and {back} came back");
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.fail("it was given up".into());
        // It may be gone.
        drop(self.socket.shutdown(Shutdown::Both));
    }
}

/// The bytes from this place of every stream on: a word of eight bytes for each eighth place.
fn bytes(from: u64, buffer: &mut [u8]) {
    for (byte, place) in buffer.iter_mut().zip(from..) {
        let word = (place / 8).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
        *byte = word[usize::try_from(place % 8).unwrap()];
    }
}

fn waits(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

fn write(mut socket: TcpStream, pace: Pace, shared: &Shared) {
    let (mut place, mut buffer) = (0, [0; CHUNK]);
    while !shared.stopped() {
        bytes(place, &mut buffer);
        match socket.write(&buffer) {
            Ok(n) => {
                place += n as u64;
                shared.sent.store(place, Ordering::Release);
            }
            Err(error) if waits(&error) => {}
            Err(error) => return shared.fail(format!("byte {place} is not sent: {error}")),
        }
        if pace == Pace::Steady {
            thread::sleep(BEAT);
        }
    }
}

fn read(mut socket: TcpStream, pace: Pace, shared: &Shared) {
    let (mut place, mut buffer, mut wanted) = (0, [0; CHUNK], [0; CHUNK]);
    let mut last = Instant::now();
    while shared.trouble().is_none() {
        match socket.read(&mut buffer) {
            Ok(0) => return shared.fail(format!("it ended at byte {place}")),
            Ok(n) => {
                bytes(place, &mut wanted[..n]);
                if let Some(at) = (0..n).find(|&at| buffer[at] != wanted[at]) {
                    let place = place + at as u64;
                    return shared.fail(format!("byte {place} is {}, not {}", buffer[at], wanted[at]));
                }
                place += n as u64;
                let silent = u64::try_from(last.elapsed().as_millis()).unwrap();
                shared.silence.fetch_max(silent, Ordering::Relaxed);
                last = Instant::now();
                shared.back.store(place, Ordering::Release);
            }
            Err(error) if waits(&error) => {}
            Err(error) => return shared.fail(format!("byte {place} does not come back: {error}")),
        }
        if pace == Pace::Full && !shared.stopped() {
            thread::sleep(BEAT);
        }
    }
}
