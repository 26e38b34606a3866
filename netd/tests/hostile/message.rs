//! The messages of the vhost-user protocol: what an honest one looks like, and everything that can be wrong with it.

use std::fs::File;
use std::io::{self, IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::memfd::{MFdFlags, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

/// Where the frontend's memory lies in itself, in the guest, and how long it is.
const USER: u64 = 0x7000_0000;
const GUEST: u64 = 0x10_0000;
const LEN: u64 = 0x1_0000;

pub(crate) const GET_FEATURES: u32 = 1;
pub(crate) const SET_FEATURES: u32 = 2;
pub(crate) const SET_OWNER: u32 = 3;
pub(crate) const SET_MEM_TABLE: u32 = 5;
pub(crate) const SET_LOG_BASE: u32 = 6;
pub(crate) const SET_VRING_NUM: u32 = 8;
pub(crate) const SET_VRING_ADDR: u32 = 9;
pub(crate) const SET_VRING_BASE: u32 = 10;
pub(crate) const GET_VRING_BASE: u32 = 11;
pub(crate) const SET_VRING_KICK: u32 = 12;
pub(crate) const SET_VRING_ERR: u32 = 14;
pub(crate) const SET_PROTOCOL_FEATURES: u32 = 16;
pub(crate) const SET_VRING_ENABLE: u32 = 18;
const SET_BACKEND_REQ_FD: u32 = 21;
const ADD_MEM_REG: u32 = 37;
/// One more than the last code of the protocol.
pub(crate) const CODES: u32 = 46;

/// `VERSION` in the flags, and the wish for an answer.
const VERSION: u32 = 1;
const NEED_REPLY: u32 = 8;

/// One message.
pub(crate) struct Message {
    pub(crate) code: u32,
    pub(crate) flags: u32,
    pub(crate) body: Vec<u8>,
    pub(crate) fds: Vec<OwnedFd>,
    /// The length in the header, where it is not that of the body.
    pub(crate) len: Option<u32>,
}

impl Message {
    fn new(code: u32, body: Vec<u8>, fds: Vec<OwnedFd>) -> Message {
        Message { code, flags: VERSION, body, fds, len: None }
    }

    pub(crate) fn send(&self, to: &UnixStream) -> io::Result<()> {
        let mut bytes = Vec::new();
        for word in [self.code, self.flags, self.len.unwrap_or(self.body.len() as u32)] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend(&self.body);
        send(to, &bytes, &self.fds)
    }
}

/// Sends bytes with descriptors.
pub(crate) fn send(to: &UnixStream, bytes: &[u8], fds: &[OwnedFd]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    if !borrowed.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(&borrowed)));
    }
    rustix::net::sendmsg(to, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn words<const N: usize>(words: [u64; N]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_ne_bytes()).collect()
}

fn halves<const N: usize>(words: [u32; N]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_ne_bytes()).collect()
}

fn memory() -> OwnedFd {
    let fd = memfd_create("guest", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING).unwrap();
    nix::unistd::ftruncate(&fd, LEN.cast_signed()).unwrap();
    fd
}

fn event() -> OwnedFd {
    EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).unwrap().into()
}

/// What an honest frontend sends by this code, about ring 0.
pub(crate) fn honest(code: u32) -> Message {
    let region = words([GUEST, LEN, USER, 0]);
    let (body, fds) = match code {
        SET_FEATURES => (words([1 << 32 | 1 << 30 | 1 << 15]), vec![]),
        SET_MEM_TABLE => ([halves([1, 0]), region].concat(), vec![memory()]),
        SET_LOG_BASE => (words([0x100, 0]), vec![memory()]),
        SET_VRING_NUM => (halves([0, 64]), vec![]),
        SET_VRING_ADDR => ([halves([0, 0]), words([USER, USER + 0x2000, USER + 0x1000, 0])].concat(), vec![]),
        SET_VRING_BASE | GET_VRING_BASE => (halves([0, 0]), vec![]),
        SET_VRING_KICK..=SET_VRING_ERR => (words([0]), vec![event()]),
        SET_PROTOCOL_FEATURES => (words([0x920b]), vec![]),
        SET_VRING_ENABLE => (halves([0, 1]), vec![]),
        SET_BACKEND_REQ_FD => (vec![], vec![UnixStream::pair().unwrap().0.into()]),
        ADD_MEM_REG => ([words([0]), region].concat(), vec![memory()]),
        // REM_MEM_REG
        38 => ([words([0]), region].concat(), vec![]),
        // SET_VRING_ENDIAN
        23 => (halves([0, 0]), vec![]),
        // GET_CONFIG, SET_CONFIG
        24 | 25 => (halves([0, 8, 0, 0, 0]), vec![]),
        // SEND_RARP, NET_SET_MTU, SET_STATUS
        19 | 20 | 39 => (words([1500]), vec![]),
        _ => (vec![], vec![]),
    };
    Message::new(code, body, fds)
}

/// Descriptors of every kind that is not the right one.
fn strange() -> Vec<(&'static str, OwnedFd)> {
    let sealed = memory();
    fcntl(&sealed, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_SHRINK)).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(LEN).unwrap();
    let full = EventFd::from_flags(EfdFlags::EFD_CLOEXEC).unwrap();
    full.write(u64::MAX - 1).unwrap();
    let (read, write) = nix::unistd::pipe().unwrap();
    vec![
        ("the end of a pipe that is read", read),
        ("the end of a pipe that is written", write),
        ("a socket", UnixStream::pair().unwrap().0.into()),
        ("/dev/null", File::open("/dev/null").unwrap().into()),
        ("/dev/zero", File::options().read(true).write(true).open("/dev/zero").unwrap().into()),
        ("a directory", File::open("/").unwrap().into()),
        ("memory that may only be read", File::open(file.path()).unwrap().into()),
        ("sealed memory", sealed),
        ("no memory at all", memfd_create("empty", MFdFlags::MFD_CLOEXEC).unwrap()),
        ("a counter that is full", full.into()),
    ]
}

/// Every way in which a message of this code can be wrong.
pub(crate) fn wrong(code: u32) -> Vec<(String, Message)> {
    let mut all = Vec::new();
    let mut case = |what: String, change: &mut dyn FnMut(&mut Message)| {
        for reply in [0, NEED_REPLY] {
            let mut message = honest(code);
            message.flags |= reply;
            change(&mut message);
            all.push((what.clone(), message));
        }
    };
    case("right, but maybe not now".into(), &mut |_| {});
    let exact = honest(code).body.len();
    for len in [0, 1, 4, 7, 8, exact.saturating_sub(1), exact + 1, exact + 8, exact + 32, 4096] {
        case(format!("{len} bytes"), &mut |m| m.body.resize(len, 0));
    }
    case("all ones".into(), &mut |m| m.body.fill(0xff));
    for at in (0..exact).step_by(4) {
        for value in [1u32, 0x100, 0x7fff_ffff, 0xffff_ffff] {
            case(format!("{value:#x} at {at}"), &mut |m| {
                m.body[at..at + 4].copy_from_slice(&value.to_ne_bytes());
            });
        }
    }
    case("no descriptor".into(), &mut |m| m.fds.clear());
    for count in [2usize, 9, 33] {
        case(format!("{count} descriptors"), &mut |m| m.fds = (0..count).map(|_| event()).collect());
    }
    for i in 0..strange().len() {
        let what = strange()[i].0;
        case(what.into(), &mut |m| m.fds = vec![strange().swap_remove(i).1]);
    }
    for flags in [0, 2, 3, VERSION | 4, 0xffff_fff1] {
        case(format!("flags {flags:#x}"), &mut |m| m.flags = flags);
    }
    for len in [exact as u32 + 1, 0x1001, 0xffff_ffff] {
        case(format!("{len} bytes announced"), &mut |m| m.len = Some(len));
    }
    all
}

/// Reads answers until the other end closes; fails when it does not.
pub(crate) fn drain(mut from: &UnixStream) {
    match from.read_to_end(&mut Vec::new()) {
        Ok(_) => {}
        Err(e) if e.kind() == io::ErrorKind::ConnectionReset => {}
        Err(e) => panic!("netd keeps a connection that its frontend has ended: {e}"),
    }
}
