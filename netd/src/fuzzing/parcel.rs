//! What comes over the socket by which state passes: messages of any kind, size and order, with descriptors or without.
//!
//! A parcel is what its messages have made of it, whole and within its limits, or an error; and every descriptor that
//! came is either in it or closed.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use podvirt_proto::hold::{Limits, Parcel, Wire};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, socketpair,
};

use super::Bytes;
use crate::state::decode;

/// Few enough that a socket's buffer takes them all.
const MESSAGES: usize = 20;
const LIMITS: Limits = Limits { bytes: 600, fds: 4 };
/// Everything is there before it is asked for.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Kinds of messages.
const BYTES: u8 = 3;
const FDS: u8 = 4;
const FINISH: u8 = 5;
const EMPTY: u8 = 9;

/// What the messages so far amount to.
enum Model {
    Goes(Vec<u8>, usize),
    Whole(Vec<u8>, usize),
    None,
    Wrong,
}

/// Runs one input.
pub fn parcel(data: &[u8]) {
    let mut b = Bytes::new(data);
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    // `open` tells when the last copy of `sent` is closed.
    let (open, sent) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    let mut model = Model::Goes(Vec::new(), 0);
    for _ in 0..MESSAGES {
        if b.is_empty() {
            break;
        }
        let (message, fds) = message(&mut b, &model);
        send(&theirs, &message, &vec![sent.as_fd(); fds]);
        model = model.after(&message, fds);
    }
    drop((theirs, sent));
    let wire = Wire::new(ours, TIMEOUT).unwrap();
    match (Parcel::recv(&wire, LIMITS), model) {
        (Ok(Some(parcel)), Model::Whole(bytes, fds)) => {
            assert_eq!((&parcel.bytes, parcel.fds.len()), (&bytes, fds));
            let _ = decode(&parcel.bytes);
        }
        (Ok(None), Model::None) => {}
        (Err(error), Model::Goes(..) | Model::Wrong) => assert!(!error.to_string().is_empty()),
        (got, _) => panic!("something else was sent: {got:?}"),
    }
    drop(wire);
    assert_eq!(rustix::io::read(&open, &mut [0; 1]), Ok(0), "a descriptor was left open");
}

impl Model {
    fn after(self, message: &[u8], more: usize) -> Model {
        let Model::Goes(mut bytes, mut fds) = self else { return self };
        let [kind, 1, 0, 0, payload @ ..] = message else { return Model::Wrong };
        if more > 0 && *kind != FDS {
            return Model::Wrong;
        }
        match *kind {
            BYTES => bytes.extend(payload),
            FDS => fds += more,
            FINISH => {
                let same = payload.get(..16) == Some(&end(bytes.len(), fds));
                return if same { Model::Whole(bytes, fds) } else { Model::Wrong };
            }
            EMPTY if bytes.is_empty() && fds == 0 => return Model::None,
            _ => return Model::Wrong,
        }
        if bytes.len() > LIMITS.bytes || fds > LIMITS.fds { Model::Wrong } else { Model::Goes(bytes, fds) }
    }
}

fn end(bytes: usize, fds: usize) -> [u8; 16] {
    let mut both = [0; 16];
    both[..8].copy_from_slice(&(bytes as u64).to_le_bytes());
    both[8..].copy_from_slice(&(fds as u64).to_le_bytes());
    both
}

/// A message and how many descriptors go with it.
fn message(b: &mut Bytes<'_>, model: &Model) -> (Vec<u8>, usize) {
    let shape = b.u8();
    let kind = if shape & 1 == 0 { b.pick(&[BYTES, BYTES, FDS, FINISH]) } else { b.u8() };
    let version = if shape & 0x1e == 0x1e { b.u8() } else { 1 };
    let mut message = vec![kind, version, 0, 0];
    match model {
        Model::Goes(bytes, fds) if kind == FINISH && shape & 0x60 != 0x60 => {
            message.extend(end(bytes.len(), *fds));
        }
        _ => {
            let len = b.u8();
            message.extend(b.take(usize::from(len)));
        }
    }
    if shape & 0xe0 == 0x80 {
        // Cut off in its header, or nothing at all: the end of the connection.
        message.truncate(b.below(4));
    }
    let fds = if kind == FDS || shape & 0x1c == 0x1c { b.below(4) } else { 0 };
    // A message of nothing carries none.
    let fds = if message.is_empty() { 0 } else { fds };
    (message, fds)
}

fn send(to: &OwnedFd, message: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)));
    rustix::net::sendmsg(to, &[IoSlice::new(message)], &mut control, SendFlags::NOSIGNAL).unwrap();
}
