//! One end of a connection: a thread that sends its ramp and one that reads and compares the other's.
//!
//! What each does is its [`Role`], which the client tells the guest in the first bytes. When the measurement is over
//! ([`Stop`]) each end sends to the end of its ramp, closes, and reads to the end of the other's; a connection that
//! does not come to its end within [`LAST`] hangs.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, send};
use serde::{Deserialize, Serialize};

use super::{Checker, Reading, Role, Sending, fill};

/// For a connection's last bytes.
const LAST: Duration = Duration::from_secs(30);
/// Between two attempts to put more into a full connection.
const AGAIN: Duration = Duration::from_millis(100);
/// What an idle connection carries in the end, in bytes.
const FEW: usize = 10_000;
/// Two of them for each of many connections, in a guest with little memory.
const STACK: usize = 128 << 10;

/// The end of a measurement, which many wait for.
#[derive(Debug, Default)]
pub struct Stop {
    said: Mutex<bool>,
    changed: Condvar,
}

impl Stop {
    fn lock(&self) -> MutexGuard<'_, bool> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It is over.
    pub fn say(&self) {
        *self.lock() = true;
        self.changed.notify_all();
    }

    /// Waits for it, at most so long; whether it is over.
    pub fn within(&self, limit: Duration) -> bool {
        let said = self.changed.wait_timeout_while(self.lock(), limit, |said| !*said);
        *said.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Waits for it.
    pub fn wait(&self) {
        drop(self.changed.wait_while(self.lock(), |said| !*said));
    }
}

/// What became of an end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// Which connection.
    pub id: u32,
    /// Bytes that the kernel took.
    pub sent: u64,
    /// The place in the other's stream that was reached.
    pub reached: u64,
    /// Bytes that were left out.
    pub lost: u64,
    /// Bytes that came again.
    pub doubled: u64,
    /// Bytes that are at no place of the stream.
    pub wrong: u64,
    /// It was reset.
    pub reset: bool,
    /// It did not come to its end.
    pub hung: bool,
    /// What was wrong first, in words.
    pub error: Option<String>,
}

/// See the module.
#[derive(Debug)]
pub struct End {
    role: Role,
    stream: TcpStream,
    sent: AtomicU64,
    reached: AtomicU64,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Of the two threads.
    ended: u8,
    outcome: Outcome,
}

impl End {
    /// Starts; `seeds` are its own ramp's and the other's.
    ///
    /// # Errors
    /// There are no more descriptors or threads.
    pub fn start(
        stream: TcpStream,
        role: Role,
        [own, other]: [u64; 2],
        stop: &Arc<Stop>,
    ) -> io::Result<Arc<End>> {
        stream.set_nodelay(true)?;
        let state = State { outcome: Outcome { id: role.id, ..Outcome::default() }, ..State::default() };
        let end = Arc::new(End {
            role,
            stream,
            sent: AtomicU64::new(0),
            reached: AtomicU64::new(0),
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        for sends in [true, false] {
            let (end, stop) = (Arc::clone(&end), Arc::clone(stop));
            thread::Builder::new().stack_size(STACK).spawn(move || {
                let done = if sends { end.send(own, &stop) } else { end.read(other, &stop) };
                end.ended(if sends { "sending" } else { "reading" }, done);
            })?;
        }
        Ok(end)
    }

    /// Bytes sent and bytes read so far.
    pub fn progress(&self) -> (u64, u64) {
        (self.sent.load(Relaxed), self.reached.load(Relaxed))
    }

    /// The connection itself.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether something was wrong so far.
    pub fn error(&self) -> Option<String> {
        self.lock().outcome.error.clone()
    }

    /// After [`Stop`]: what became of it, at the latest at `limit`.
    pub fn outcome(&self, begin: Instant) -> Outcome {
        let left = LAST.saturating_sub(begin.elapsed());
        let waited = self.changed.wait_timeout_while(self.lock(), left, |s| s.ended < 2);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        if state.ended < 2 {
            state.outcome.hung = true;
            state.outcome.error.get_or_insert(format!("no end within {LAST:?}"));
            // Its threads end.
            let _ = self.stream.shutdown(Shutdown::Both);
        }
        let (sent, reached) = self.progress();
        Outcome { sent, reached, ..state.outcome.clone() }
    }

    fn ended(&self, doing: &str, done: io::Result<()>) {
        let mut state = self.lock();
        state.ended += 1;
        if let Err(error) = done {
            let resets = [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe, ErrorKind::ConnectionAborted];
            state.outcome.reset |= resets.contains(&error.kind());
            let (sent, reached) = self.progress();
            state.outcome.error.get_or_insert(format!("{doing}, {sent} sent and {reached} read: {error}"));
        }
        self.changed.notify_all();
    }

    fn send(&self, seed: u64, stop: &Stop) -> io::Result<()> {
        match self.role.sending {
            Sending::Paced { chunk, pause } => {
                let mut bytes = vec![0; chunk as usize];
                while !stop.within(pause) {
                    self.put(seed, &mut bytes)?;
                }
            }
            Sending::Idle => {
                stop.wait();
                self.put(seed, &mut vec![0; FEW])?;
            }
            Sending::Full => {
                let mut bytes = vec![0; FEW];
                loop {
                    // The socket is never full where its peer reads as fast as this thread sends.
                    while !stop.within(Duration::ZERO) && self.push(seed, &mut bytes)? {}
                    if stop.within(AGAIN) {
                        break;
                    }
                }
            }
            Sending::Closed => {}
        }
        self.stream.shutdown(Shutdown::Write)
    }

    /// Sends all of it.
    fn put(&self, seed: u64, bytes: &mut [u8]) -> io::Result<()> {
        fill(seed, self.sent.load(Relaxed), bytes);
        let mut rest = &*bytes;
        while !rest.is_empty() {
            match (&self.stream).write(rest) {
                Ok(n) => {
                    self.sent.fetch_add(n as u64, Relaxed);
                    rest = rest.get(n..).unwrap_or_default();
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Sends what is taken at once; whether anything was.
    fn push(&self, seed: u64, bytes: &mut [u8]) -> io::Result<bool> {
        fill(seed, self.sent.load(Relaxed), bytes);
        match send(self.stream.as_raw_fd(), bytes, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL) {
            Ok(n) => {
                self.sent.fetch_add(n as u64, Relaxed);
                Ok(true)
            }
            Err(Errno::EAGAIN | Errno::EINTR) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    fn read(&self, seed: u64, stop: &Stop) -> io::Result<()> {
        if self.role.reading == Reading::Late {
            stop.wait();
        }
        let mut checker = Checker::new(seed);
        let mut buffer = vec![0; 64 << 10];
        loop {
            let n = match (&self.stream).read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(n) => n,
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            };
            checker.take(buffer.get(..n).unwrap_or_default());
            self.reached.store(checker.at, Relaxed);
            if checker.lost + checker.doubled + checker.wrong > 0 {
                let mut state = self.lock();
                let found = &mut state.outcome;
                (found.lost, found.doubled, found.wrong) = (checker.lost, checker.doubled, checker.wrong);
                found.error.get_or_insert(format!("about byte {} of the stream", checker.at));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    const PACED: Sending = Sending::Paced { chunk: 1000, pause: Duration::from_millis(1) };

    fn ends(roles: [(Sending, Reading); 2], stop: &Arc<Stop>) -> [Arc<End>; 2] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (b, _) = listener.accept().unwrap();
        let role = |(sending, reading)| Role { id: 7, sending, reading };
        [
            End::start(a, role(roles[0]), [1, 2], stop).unwrap(),
            End::start(b, role(roles[1]), [2, 1], stop).unwrap(),
        ]
    }

    #[test]
    fn every_pair_of_roles_comes_to_its_end_without_a_byte_lost() {
        for roles in [
            [(PACED, Reading::Now), (PACED, Reading::Now)],
            [(PACED, Reading::Now), (Sending::Idle, Reading::Now)],
            [(Sending::Closed, Reading::Now), (PACED, Reading::Now)],
            [(Sending::Idle, Reading::Now), (Sending::Idle, Reading::Now)],
            [(Sending::Full, Reading::Late), (Sending::Full, Reading::Late)],
        ] {
            let stop = Arc::default();
            let ends = ends(roles, &stop);
            thread::sleep(Duration::from_millis(20));
            stop.say();
            let [a, b] = ends.map(|e| e.outcome(Instant::now()));
            assert_eq!((a.reached, b.reached), (b.sent, a.sent), "{roles:?}");
            for end in [a, b] {
                assert_eq!(
                    end,
                    Outcome { id: 7, sent: end.sent, reached: end.reached, ..Outcome::default() }
                );
            }
        }
    }

    #[test]
    fn a_reset_is_told_and_silence_does_not_last_for_ever() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (b, _) = listener.accept().unwrap();
        let (stop, role) = (Arc::default(), Role { id: 1, sending: PACED, reading: Reading::Now });
        let a = End::start(a, role, [1, 2], &stop).unwrap();
        socket2::SockRef::from(&b).set_linger(Some(Duration::ZERO)).unwrap();
        drop(b);
        stop.say();
        let outcome = a.outcome(Instant::now());
        assert!(outcome.reset && !outcome.hung, "{outcome:?}");

        let a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (_silent, _) = listener.accept().unwrap();
        let a = End::start(a, role, [1, 2], &stop).unwrap();
        let outcome = a.outcome(Instant::now().checked_sub(LAST).unwrap());
        assert!(outcome.hung && !outcome.reset, "{outcome:?}");
    }
}
