//! How the disk of a volume that is plugged into a running machine comes to the machine's launcher.
//!
//! The claim is held by an attachment pod. Its program opens the disk, and virt-handler carries the descriptor to the launcher:
//!
//! ```text
//!  attachment pod                      virt-handler                        launcher pod
//!  virt-launcher attach  <── volume ─────  asks
//!                        ─── volume, descriptor ──>  gives ── volume, descriptor ──>  virt-launcher keeps it
//!                                                          <── volume ─────────────
//! ```
//!
//! Each end of a connection sends one message: a line of JSON, with at most one descriptor beside it. An answer with an error
//! has no descriptor. What a descriptor refers to is a regular file, a block device or, for a backup to write into, a directory
//! ([`check`]): virt-handler carries nothing else from one pod to another.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, FileType, StatxFlags, statx};
use rustix::net::{
    RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recv, sendmsg,
};
use serde::{Deserialize, Serialize};

use crate::descriptors;

/// Longest message, bytes: a volume's name has 63, and an error is a sentence.
const MAX: usize = 8 * 1024;
/// How long an end waits for the other one's message, for all of it.
pub const MESSAGE_TIMEOUT: Duration = Duration::from_secs(20);

/// What is said of a volume.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub struct Message {
    /// The volume's name.
    pub volume: String,
    /// Why the disk is not handed over; empty where nothing is wrong.
    pub error: String,
}

impl Message {
    /// A message about a volume.
    pub fn of(volume: &str) -> Self {
        Message { volume: volume.to_owned(), error: String::new() }
    }
}

/// Why a disk was not handed over.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The connection broke, or the other end is silent.
    #[error("the connection for its disk broke")]
    Connection(#[from] io::Error),
    /// What came is no message.
    #[error("what came is no message about a volume")]
    Message(#[from] serde_json::Error),
    /// The other end says no.
    #[error("{0}")]
    Refused(String),
    /// What came is about another volume.
    #[error("the answer is about the volume {0}")]
    Other(String),
    /// The descriptor is missing, or is none of a disk.
    #[error("what came is neither a regular file nor a block device nor a directory")]
    NoDisk,
}

/// Sends a message, with a descriptor beside it where there is one.
///
/// # Errors
///
/// The connection broke.
pub fn send(stream: impl AsFd, message: &Message, disk: Option<BorrowedFd<'_>>) -> Result<(), Error> {
    let mut text = serde_json::to_vec(message)?;
    text.push(b'\n');
    let disks: Vec<BorrowedFd<'_>> = disk.into_iter().collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !disks.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&disks));
    }
    // A stream socket takes as little as its buffer holds at once, which is far more.
    let sent = sendmsg(stream, &[IoSlice::new(&text)], &mut control, SendFlags::NOSIGNAL);
    let sent = sent.map_err(io::Error::from)?;
    if sent < text.len() {
        return Err(io::Error::from(io::ErrorKind::WriteZero).into());
    }
    Ok(())
}

/// A message that is being received, from a socket that blocks or from one that does not.
#[derive(Debug)]
pub struct Incoming {
    buffer: Vec<u8>,
    bytes: usize,
    disk: Option<OwnedFd>,
}

impl Default for Incoming {
    fn default() -> Self {
        Self { buffer: vec![0; MAX], bytes: 0, disk: None }
    }
}

impl Incoming {
    /// Reads once, and returns whether that was the end of the message.
    ///
    /// # Errors
    ///
    /// As recvmsg(2); `UnexpectedEof`: the other end closed without a word.
    pub fn read(&mut self, stream: impl AsFd) -> io::Result<bool> {
        let read = if self.bytes == 0 {
            // A descriptor comes with the first bytes.
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let got = descriptors::receive(stream, &mut self.buffer, &mut control)?;
            self.disk = got.fds.into_iter().next();
            got.bytes
        } else {
            recv(stream, &mut self.buffer[self.bytes..], RecvFlags::empty())?.0
        };
        if self.bytes == 0 && read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.bytes += read;
        Ok(read == 0 || self.bytes == MAX || self.buffer[..self.bytes].ends_with(b"\n"))
    }

    /// The message, and the descriptor beside it.
    ///
    /// # Errors
    ///
    /// What came is no message, or says that something is wrong.
    pub fn finish(self) -> Result<(Message, Option<OwnedFd>), Error> {
        let message: Message = serde_json::from_slice(&self.buffer[..self.bytes])?;
        if !message.error.is_empty() {
            return Err(Error::Refused(message.error));
        }
        Ok((message, self.disk))
    }

    /// The disk of the volume that was asked for.
    ///
    /// # Errors
    ///
    /// As [`Incoming::finish`]; or it is another volume's, or no disk.
    pub fn disk(self, volume: &str) -> Result<OwnedFd, Error> {
        let (message, disk) = self.finish()?;
        about(&message, volume)?;
        let disk = disk.ok_or(Error::NoDisk)?;
        check(&disk)?;
        Ok(disk)
    }

    /// The other end has taken the disk of the volume.
    ///
    /// # Errors
    ///
    /// As [`Incoming::finish`]; or the answer is about another volume.
    pub fn taken(self, volume: &str) -> Result<(), Error> {
        about(&self.finish()?.0, volume)
    }
}

/// Receives a message and the descriptor beside it.
///
/// # Errors
///
/// The connection broke, the message is not whole within [`MESSAGE_TIMEOUT`], or what comes is no message.
pub fn receive(stream: &UnixStream) -> Result<(Message, Option<OwnedFd>), Error> {
    incoming(stream, MESSAGE_TIMEOUT)?.finish()
}

/// Receives within this time: an end that sends a byte now and then does not begin it anew.
fn incoming(stream: &UnixStream, limit: Duration) -> io::Result<Incoming> {
    let end = Instant::now() + limit;
    let mut incoming = Incoming::default();
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match incoming.read(stream) {
            Ok(true) => return Ok(incoming),
            Ok(false) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(io::ErrorKind::TimedOut.into());
            }
            Err(error) => return Err(error),
        }
    }
}

/// Asks the attachment pod's program for the disk of a volume.
///
/// # Errors
///
/// It does not answer, cannot open the disk, or hands over something else.
pub fn ask(stream: &UnixStream, volume: &str) -> Result<OwnedFd, Error> {
    send(stream, &Message::of(volume), None)?;
    incoming(stream, MESSAGE_TIMEOUT)?.disk(volume)
}

fn about(message: &Message, volume: &str) -> Result<(), Error> {
    if message.volume == volume { Ok(()) } else { Err(Error::Other(message.volume.clone())) }
}

/// Whether a descriptor is of a regular file, of a block device, or of a directory. A server of the file's, as NFS has one, is
/// not asked: it may be gone.
///
/// # Errors
///
/// It is of something else.
pub fn check(disk: impl AsFd) -> Result<(), Error> {
    let how = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = statx(disk, c"", how, StatxFlags::TYPE).map_err(io::Error::from)?;
    match FileType::from_raw_mode(stat.stx_mode.into()) {
        FileType::RegularFile | FileType::BlockDevice | FileType::Directory => Ok(()),
        _ => Err(Error::NoDisk),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read as _, Seek as _, Write as _};
    use std::thread;

    use super::*;

    /// One end of a connection whose other end does this.
    fn with(serve: impl FnOnce(UnixStream) + Send + 'static) -> UnixStream {
        let (here, there) = UnixStream::pair().unwrap();
        thread::spawn(move || serve(there));
        here
    }

    fn answer(stream: &UnixStream, disk: &File) {
        let (asked, none) = receive(stream).unwrap();
        assert!(none.is_none());
        send(stream, &asked, Some(disk.as_fd())).unwrap();
    }

    #[test]
    fn a_disk_comes_from_the_attachment_pod_to_the_launcher() {
        let mut disk = tempfile();
        disk.write_all(b"blocks").unwrap();
        let attachment = with(move |stream| answer(&stream, &disk));
        let carried = ask(&attachment, "data").unwrap();
        let launcher = with(|stream| {
            let (message, kept) = receive(&stream).unwrap();
            let mut kept = File::from(kept.unwrap());
            kept.rewind().unwrap();
            let mut text = String::new();
            kept.read_to_string(&mut text).unwrap();
            assert_eq!((message.volume.as_str(), text.as_str()), ("data", "blocks"));
            send(&stream, &message, None).unwrap();
        });
        send(&launcher, &Message::of("data"), Some(carried.as_fd())).unwrap();
        incoming(&launcher, MESSAGE_TIMEOUT).unwrap().taken("data").unwrap();
    }

    #[test]
    fn a_message_that_comes_byte_by_byte_has_one_deadline() {
        let drips = with(|mut stream| {
            while stream.write_all(b"x").is_ok() {
                thread::sleep(Duration::from_millis(10));
            }
        });
        let error = incoming(&drips, Duration::from_millis(100)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let (silent, _open) = UnixStream::pair().unwrap();
        let error = incoming(&silent, Duration::from_millis(10)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn a_message_in_pieces_is_whole_with_its_line() {
        let (here, mut there) = UnixStream::pair().unwrap();
        let mut text = serde_json::to_vec(&Message::of("data")).unwrap();
        text.push(b'\n');
        let mut incoming = Incoming::default();
        for byte in &text[..text.len() - 1] {
            there.write_all(&[*byte]).unwrap();
            assert!(!incoming.read(&here).unwrap());
        }
        there.write_all(b"\n").unwrap();
        assert!(incoming.read(&here).unwrap());
        assert_eq!(incoming.finish().unwrap().0, Message::of("data"));
    }

    #[test]
    fn what_is_no_disk_is_not_carried_and_a_refusal_is_told() {
        let pipe = with(|stream| answer(&stream, &File::open("/dev/null").unwrap()));
        assert!(matches!(ask(&pipe, "data"), Err(Error::NoDisk)));
        let without = with(|stream| {
            let asked = receive(&stream).unwrap().0;
            send(&stream, &asked, None).unwrap();
        });
        assert!(matches!(ask(&without, "data"), Err(Error::NoDisk)));
        let other = with(|stream| send(&stream, &Message::of("other"), None).unwrap());
        assert!(matches!(ask(&other, "data"), Err(Error::Other(volume)) if volume == "other"));
        let refuses = with(|stream| {
            let error = "no disk.img".to_owned();
            send(&stream, &Message { error, ..Message::of("data") }, None).unwrap();
        });
        assert_eq!(ask(&refuses, "data").unwrap_err().to_string(), "no disk.img");
        let closes = with(drop);
        assert!(matches!(ask(&closes, "data"), Err(Error::Connection(_))));
        let talks = with(|mut stream| stream.write_all(&[b'x'; 2 * MAX]).unwrap());
        assert!(matches!(receive(&talks), Err(Error::Message(_))));
    }

    /// A file without a name.
    fn tempfile() -> File {
        let dir = std::env::temp_dir();
        let file =
            rustix::fs::open(dir, rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::RDWR, 0o600.into());
        File::from(file.unwrap())
    }
}
