//! Content that tells where it belongs, and how it is carried and compared.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};

/// Random numbers that are the same for the same seed (splitmix64).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x2545_f491_4f6c_dd1d))
    }

    /// The next one.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// One below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// One of several.
    pub(crate) fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len() as u64) as usize]
    }
}

/// `len` bytes that are random but the same for the same `seed`.
pub(crate) fn content(seed: u64, len: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&random.next().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Reads and compares `expected`.
#[track_caller]
pub(crate) fn read_exactly(mut from: &TcpStream, expected: &[u8]) {
    let mut buffer = vec![0; 256 << 10];
    let mut at = 0;
    while at < expected.len() {
        let most = buffer.len().min(expected.len() - at);
        match from.read(&mut buffer[..most]) {
            Ok(0) => panic!("ended after {at} of {} bytes", expected.len()),
            Ok(n) => {
                if buffer[..n] != expected[at..at + n] {
                    let i = (0..n).find(|&i| buffer[i] != expected[at + i]).unwrap();
                    panic!("byte {} of {} differs", at + i, expected.len());
                }
                at += n;
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => panic!("after {at} of {} bytes: {e}", expected.len()),
        }
    }
}

/// The stream ends here.
#[track_caller]
pub(crate) fn expect_end(mut from: &TcpStream) {
    let got = from.read(&mut [0; 16]).expect("an end of the stream was expected");
    assert_eq!(got, 0, "something comes behind what was sent");
}

/// Everything up to the end of the stream.
#[track_caller]
pub(crate) fn read_to_end(mut from: &TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    from.read_to_end(&mut all).expect("the stream should end");
    all
}

/// Carries `content(seed, len)` from one end to the other and compares it.
#[track_caller]
pub(crate) fn transfer(mut from: &TcpStream, to: &TcpStream, seed: u64, len: usize) {
    let bytes = content(seed, len);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| from.write_all(&bytes));
        read_exactly(to, &bytes);
        writer.join().unwrap().unwrap();
    });
}

/// Carries `len` random bytes each way at the same time, then closes both directions in order.
#[track_caller]
pub(crate) fn exchange(a: &TcpStream, b: &TcpStream, len: usize) {
    std::thread::scope(|scope| {
        scope.spawn(|| transfer(a, b, 1, len));
        transfer(b, a, 2, len);
    });
    a.shutdown(Shutdown::Write).unwrap();
    expect_end(b);
    b.shutdown(Shutdown::Write).unwrap();
    expect_end(a);
}

/// A connection that the pod's kernel has accepted is reset, however soon that is seen.
#[track_caller]
pub(crate) fn assert_refused_late(connected: std::io::Result<TcpStream>) {
    match connected {
        Ok(stream) => assert_reset(&stream),
        Err(e) => assert_eq!(e.kind(), ErrorKind::ConnectionReset, "{e}"),
    }
}

/// Reads until the connection breaks by a reset; an orderly end fails.
#[track_caller]
pub(crate) fn assert_reset(mut from: &TcpStream) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => panic!("the connection ended in order"),
            Ok(_) => {}
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::ConnectionReset, "{e}");
                return;
            }
        }
    }
}
