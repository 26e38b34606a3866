//! Streams that go on while everything else happens, and are compared byte by byte.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

/// Bytes written at once, and a pause behind them: a stream that never fills the machine.
const CHUNK: usize = 16 << 10;
const PAUSE: Duration = Duration::from_millis(10);

/// The byte at a place of a stream: a ramp of 64-bit numbers, so that nothing lost or doubled goes unseen.
fn byte(seed: u64, at: u64) -> u8 {
    let word = (at / 8).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed;
    word.to_le_bytes()[(at % 8) as usize]
}

/// Bytes of a stream from `at` on.
pub(crate) fn ramp(seed: u64, at: u64, len: usize) -> Vec<u8> {
    (at..at + len as u64).map(|at| byte(seed, at)).collect()
}

/// A stream in one direction that goes on until it is ended.
pub(crate) struct Stream {
    name: String,
    stop: Arc<AtomicBool>,
    read: Arc<AtomicU64>,
    /// What has gone wrong first.
    wrong: Arc<OnceLock<String>>,
    writer: JoinHandle<std::io::Result<u64>>,
    reader: JoinHandle<Result<u64, String>>,
}

impl Stream {
    pub(crate) fn start(name: impl Into<String>, seed: u64, from: &TcpStream, to: &TcpStream) -> Stream {
        let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
        let (stop, read) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let wrong = Arc::new(OnceLock::new());
        let writer = std::thread::spawn({
            let (stop, wrong) = (Arc::clone(&stop), Arc::clone(&wrong));
            move || {
                let mut at = 0;
                while !stop.load(SeqCst) {
                    if let Err(e) = from.write_all(&ramp(seed, at, CHUNK)) {
                        let _ = wrong.set(format!("writing byte {at} and more: {e}"));
                        return Err(e);
                    }
                    at += CHUNK as u64;
                    std::thread::sleep(PAUSE);
                }
                from.shutdown(Shutdown::Write)?;
                Ok(at)
            }
        });
        let reader = std::thread::spawn({
            let (read, wrong) = (Arc::clone(&read), Arc::clone(&wrong));
            move || {
                let mut buffer = vec![0; 64 << 10];
                let mut at = 0;
                let why = loop {
                    match to.read(&mut buffer) {
                        Ok(0) => return Ok(at),
                        Ok(n) if buffer[..n] == ramp(seed, at, n) => at += n as u64,
                        Ok(n) => break format!("bytes {at} to {} differ", at + n as u64),
                        Err(e) if e.kind() == ErrorKind::Interrupted => {}
                        Err(e) => break format!("reading byte {at}: {e}"),
                    }
                    read.store(at, SeqCst);
                };
                let _ = wrong.set(why.clone());
                Err(why)
            }
        });
        Stream { name: name.into(), stop, read, wrong, writer, reader }
    }

    /// Bytes that have arrived.
    pub(crate) fn arrived(&self) -> u64 {
        self.read.load(SeqCst)
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// What has gone wrong.
    pub(crate) fn wrong(&self) -> Option<&String> {
        self.wrong.get()
    }

    /// Ends the stream in order: all that was sent has arrived, and nothing else.
    pub(crate) fn finish(self) -> u64 {
        self.stop.store(true, SeqCst);
        let sent = self.writer.join().unwrap();
        let got = self.reader.join().unwrap();
        let (sent, got) = (sent.unwrap_or_else(|e| panic!("{}: {e}, {got:?}", self.name)), got);
        assert_eq!(got.as_ref(), Ok(&sent), "{}", self.name);
        sent
    }
}

/// Writes a stream from its beginning until nothing more is taken; how many bytes.
pub(crate) fn fill(to: &TcpStream, seed: u64) -> u64 {
    fill_on(to, seed, 0)
}

/// The same of one of which so many bytes were written.
pub(crate) fn fill_on(mut to: &TcpStream, seed: u64, mut at: u64) -> u64 {
    to.set_nonblocking(true).unwrap();
    // Full for a moment is not full for good.
    let mut silent = 0;
    while silent < 20 {
        match to.write(&ramp(seed, at, 64 << 10)) {
            Ok(n) => (at, silent) = (at + n as u64, 0),
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                silent += 1;
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(e) => panic!("{e}"),
        }
    }
    to.set_nonblocking(false).unwrap();
    at
}

/// Reads and compares the first `len` bytes of a stream.
pub(crate) fn drain(mut from: &TcpStream, seed: u64, len: u64) {
    let mut buffer = vec![0; 64 << 10];
    let mut at = 0;
    while at < len {
        let most = buffer.len().min((len - at) as usize);
        let n = from.read(&mut buffer[..most]).unwrap_or_else(|e| panic!("at byte {at} of {len}: {e}"));
        assert!(n > 0, "ended after {at} of {len} bytes");
        assert!(buffer[..n] == ramp(seed, at, n), "bytes {at} to {} differ", at + n as u64);
        at += n as u64;
    }
}
