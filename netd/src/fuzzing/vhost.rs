//! A frontend that sends anything: one connection from its first message to its end.
//!
//! Everything that runs in a pod runs here: the filter, the daemon with its thread, the rings and a sink that works
//! on them. The frontend writes all its messages before the connection is served and never reads; it sends whatever
//! headers, bodies and descriptors the input says, from plausible ones to nonsense. Afterwards no ring may run, no
//! descriptor may be left, and every answer must be a reply.

use std::collections::HashMap;
use std::fs::File;
use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::memfd::{MFdFlags, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use super::Bytes;
use crate::ring::{Iovs, PopError, Ring};
use crate::stop::Stopper;
use crate::vhost::{RingSink, feature};

const MESSAGES: usize = 40;
/// Queue pairs on offer.
const PAIRS: usize = 2;
const NUM_RINGS: usize = 2 * PAIRS;
/// Where the frontend says its memory lies in itself.
const USER: u64 = 0x7000_0000;
const GUEST: u64 = 0x10_0000;
const LEN: u64 = 0x1_0000;

/// Runs one input.
pub fn vhost(data: &[u8]) {
    let mut b = Bytes::new(data);
    let lowest = lowest_free();
    {
        let (front, back) = UnixStream::pair().unwrap();
        for _ in 0..MESSAGES {
            if b.is_empty() || !message(&mut b, &front) {
                break;
            }
        }
        front.shutdown(Shutdown::Write).unwrap();
        let sink = Arc::new(Sink::default());
        let stop = Stopper::new().unwrap();
        let sink2: Arc<dyn RingSink> = Arc::clone(&sink) as Arc<dyn RingSink>;
        let _ = crate::vhost::serve_connection(back.try_clone().unwrap(), &sink2, PAIRS, &stop);
        assert!(sink.rings.lock().unwrap().is_empty(), "a ring runs on after the end of its connection");
        drop(back);
        answers(front);
    }
    // A unit test's process has other threads, which open and close descriptors of their own.
    if cfg!(not(test)) {
        assert_eq!(lowest_free(), lowest, "a descriptor was left open");
    }
}

fn lowest_free() -> i32 {
    File::open("/dev/null").unwrap().as_raw_fd()
}

/// What came back is a sequence of replies, the last of which may be cut off.
fn answers(mut front: UnixStream) {
    let mut all = Vec::new();
    let _ = front.read_to_end(&mut all);
    let mut rest = &all[..];
    while let Some((header, body)) = rest.split_at_checked(12) {
        let word = |at: usize| u32::from_ne_bytes(header[at..at + 4].try_into().unwrap());
        assert_eq!(word(4) & 7, 5, "no reply of version 1");
        let len = word(8) as usize;
        assert!(len <= 0x1000, "a reply of {len} bytes");
        rest = body.get(len..).unwrap_or_default();
    }
}

/// Sends one message; false when the frontend has no more to say.
fn message(b: &mut Bytes<'_>, to: &UnixStream) -> bool {
    let code = u32::from(b.u8());
    let code = if code >= 0xf0 { b.u32() } else { code % 46 };
    let shape = b.u8();
    let flags = if shape & 0x0f == 0x0f { b.u32() } else { 1 | u32::from(shape & 1) << 3 };
    let (mut body, mut fds) = if shape & 0xf0 == 0xf0 {
        let len = usize::from(b.u16() % 0x1100);
        let mut body = b.take(len).to_vec();
        body.resize(len, 0);
        (body, Vec::new())
    } else {
        plausible(b, code)
    };
    // Now and then it is a little longer or shorter than it should be, and the descriptors are others.
    let twist = b.u8();
    match twist & 7 {
        6 => body.truncate(body.len().saturating_sub(usize::from(twist >> 3))),
        7 => body.resize(body.len() + usize::from(twist >> 3), 0xa5),
        _ => {}
    }
    match b.u8() {
        0xff => fds.extend((0..1 + b.below(40)).map(|_| descriptor(0))),
        0xfe => fds.clear(),
        n @ 0xf0..=0xfd => fds.push(descriptor(n)),
        n @ 0xe0..=0xef => fds = vec![descriptor(n)],
        _ => {}
    }
    let len = if shape & 0x0e == 0x0c { b.u32() } else { body.len() as u32 };
    let mut bytes = Vec::new();
    for word in [code, flags, len] {
        bytes.extend(word.to_ne_bytes());
    }
    bytes.extend(body);
    send(to, &bytes, &fds)
}

fn send(to: &UnixStream, bytes: &[u8], fds: &[OwnedFd]) -> bool {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    if !borrowed.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&borrowed)) {
        return false;
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(to, &[IoSlice::new(bytes)], &mut control, flags).is_ok()
}

/// The body that a message of this code has, with values that are right as often as not, and its descriptors.
fn plausible(b: &mut Bytes<'_>, code: u32) -> (Vec<u8>, Vec<OwnedFd>) {
    let mut body = Vec::new();
    let mut fds = Vec::new();
    let index = |b: &mut Bytes<'_>| if b.one_in(8) { b.u32() } else { u32::from(b.u8()) % NUM_RINGS as u32 };
    match code {
        // SET_FEATURES
        2 => {
            let features =
                if b.one_in(4) { b.u64() } else { feature::offered(PAIRS) & !(u64::from(b.u32()) & b.u64()) };
            body.extend(features.to_ne_bytes());
        }
        // SET_MEM_TABLE
        5 => {
            let n = 1 + b.below(3);
            body.extend((n as u32).to_ne_bytes());
            body.extend([0; 4]);
            for i in 0..n as u64 {
                region(b, i, &mut body);
                fds.push(memory(LEN));
            }
        }
        // SET_LOG_BASE
        6 => {
            let (len, offset) = (u64::from(b.u16()), u64::from(b.u16()) & 0x1000);
            body.extend(len.to_ne_bytes());
            body.extend(offset.to_ne_bytes());
            fds.push(memory(0x8000));
        }
        // SET_VRING_NUM, SET_VRING_BASE, GET_VRING_BASE, SET_VRING_ENABLE, SET_VRING_ENDIAN
        8 | 10 | 11 | 18 | 23 => {
            body.extend(index(b).to_ne_bytes());
            let value = match code {
                8 => 1 << (b.u8() % 12),
                18 => u32::from(b.u8() % 3),
                _ => u32::from(b.u16()),
            };
            body.extend(value.to_ne_bytes());
        }
        // SET_VRING_ADDR
        9 => {
            body.extend(index(b).to_ne_bytes());
            body.extend(u32::from(b.u8() & 1).to_ne_bytes());
            for at in [0u64, 0x2000, 0x1000, 0] {
                let address = if b.one_in(8) { b.u64() } else { USER + at + 0x1000 * u64::from(b.u8() % 3) };
                body.extend(address.to_ne_bytes());
            }
        }
        // SET_VRING_KICK, SET_VRING_CALL, SET_VRING_ERR
        12..=14 => {
            let none = b.one_in(8);
            body.extend((u64::from(index(b)) | u64::from(none) << 8).to_ne_bytes());
            if !none {
                fds.push(descriptor(0));
            }
        }
        // SET_PROTOCOL_FEATURES
        16 => body.extend(if b.one_in(4) { b.u64() } else { 0x920b }.to_ne_bytes()),
        // SET_BACKEND_REQ_FD
        21 => fds.push(descriptor(3)),
        // GET_CONFIG, SET_CONFIG
        24 | 25 => {
            for word in [u32::from(b.u8()), u32::from(b.u8()), 0] {
                body.extend(word.to_ne_bytes());
            }
            body.extend(b.take(16));
        }
        // ADD_MEM_REG, REM_MEM_REG
        37 | 38 => {
            body.extend([0; 8]);
            let i = u64::from(b.u8() % 4);
            region(b, i, &mut body);
            if code == 37 {
                fds.push(memory(LEN));
            }
        }
        // What has one number: NET_SET_MTU, SEND_RARP, SET_STATUS.
        19 | 20 | 39 => body.extend(b.u64().to_ne_bytes()),
        _ => {}
    }
    (body, fds)
}

/// Region `i`: guest address, length, user address, offset in the file.
fn region(b: &mut Bytes<'_>, i: u64, body: &mut Vec<u8>) {
    let mut fields = [GUEST + i * LEN, LEN, USER + i * LEN, 0];
    if b.one_in(4) {
        let field = b.below(4);
        fields[field] = if b.one_in(2) { b.u64() } else { fields[field] ^ (1 << (b.u8() % 64)) };
    }
    for field in fields {
        body.extend(field.to_ne_bytes());
    }
}

fn memory(len: u64) -> OwnedFd {
    let fd = memfd_create("fuzz", MFdFlags::MFD_CLOEXEC).unwrap();
    nix::unistd::ftruncate(&fd, len.cast_signed()).unwrap();
    fd
}

/// A descriptor of one kind or another.
fn descriptor(kind: u8) -> OwnedFd {
    match kind % 8 {
        1 => nix::unistd::pipe().unwrap().0,
        2 => nix::unistd::pipe().unwrap().1,
        3 => UnixStream::pair().unwrap().0.into(),
        4 => File::open("/dev/null").unwrap().into(),
        5 => File::open("/").unwrap().into(),
        6 => memory(8),
        // A counter that is full: a thread that writes to it waits.
        7 => {
            let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC).unwrap();
            event.write(u64::MAX - 1).unwrap();
            event.into()
        }
        _ => EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).unwrap().into(),
    }
}

/// A datapath that works on a ring when it starts and when it stops.
#[derive(Default)]
struct Sink {
    rings: Mutex<HashMap<usize, Ring>>,
}

impl Sink {
    fn work(ring: &mut Ring) {
        let (mut readable, mut writable) = (Iovs::new(), Iovs::new());
        for _ in 0..16 {
            match ring.pop(&mut readable, &mut writable) {
                Ok(Some(p)) => {
                    let n = writable.write(0, 0, &[0x5a; 256]);
                    ring.mark_written(&writable, 0, n);
                    ring.push_used(p.head, n as u32);
                }
                Err(PopError::Chain { head, .. }) => ring.push_used(head, 0),
                Err(PopError::Ring(_)) => ring.break_down(),
                Ok(None) => break,
            }
            readable.clear();
            writable.clear();
        }
        if ring.publish() {
            ring.signal();
        }
        ring.request_kicks();
    }
}

impl RingSink for Sink {
    fn start(&self, index: usize, mut ring: Ring) {
        assert!(index < NUM_RINGS);
        Self::work(&mut ring);
        assert!(self.rings.lock().unwrap().insert(index, ring).is_none(), "a ring was started twice");
    }

    fn stop(&self, index: usize) -> Option<Ring> {
        let mut ring = self.rings.lock().unwrap().remove(&index)?;
        Self::work(&mut ring);
        Some(ring)
    }

    fn set_features(&self, acked: u64) {
        assert_eq!(acked & !feature::offered(PAIRS), 0, "features that were not offered");
    }

    fn set_connected(&self, _connected: bool) {}
}
