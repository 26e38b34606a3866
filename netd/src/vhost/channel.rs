//! Whole messages with descriptors over a stream socket.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};

use super::message::{HEADER, MAX_FDS, Message};

fn invalid(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// Reads one message; `None` when the peer closed the connection between two messages.
///
/// # Errors
/// When the socket fails, the peer closes it or stalls in the middle, or what came is no message.
pub(super) fn recv(socket: &UnixStream) -> io::Result<Option<Message>> {
    let mut fds = Vec::new();
    let mut header = [0u8; HEADER];
    if !fill(socket, &mut header, &mut fds)? {
        return Ok(None);
    }
    let Some((code, flags, len)) = Message::parse_header(&header) else {
        return Err(invalid("not a vhost-user header"));
    };
    let mut body = vec![0; len];
    if len > 0 && !fill(socket, &mut body, &mut fds)? {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Some(Message { code, flags, body, fds }))
}

/// Fills `buffer`; false when the stream ended before its first byte.
fn fill(socket: &UnixStream, buffer: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<bool> {
    let mut have = 0;
    while have < buffer.len() {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let part = &mut buffer[have..];
        let got = match rustix::net::recvmsg(
            socket,
            &mut [IoSliceMut::new(part)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        ) {
            Ok(got) => got,
            Err(rustix::io::Errno::INTR) => continue,
            Err(e) => return Err(e.into()),
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                fds.extend(received);
            }
        }
        if fds.len() > MAX_FDS || got.flags.contains(rustix::net::ReturnFlags::CTRUNC) {
            return Err(invalid("too many descriptors"));
        }
        match got.bytes {
            0 if have == 0 => return Ok(false),
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => have += n,
        }
    }
    Ok(true)
}

/// Writes one message, its descriptors with the first byte.
///
/// # Errors
/// When the socket fails or the peer does not read.
pub(super) fn send(socket: &UnixStream, message: &Message) -> io::Result<()> {
    let bytes = message.encode();
    let borrowed: Vec<_> = message.fds.iter().map(AsFd::as_fd).collect();
    let mut sent = 0;
    while sent < bytes.len() {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if sent == 0 && !borrowed.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&borrowed)) {
            return Err(invalid("too many descriptors"));
        }
        match rustix::net::sendmsg(socket, &[IoSlice::new(&bytes[sent..])], &mut control, SendFlags::NOSIGNAL)
        {
            Ok(n) => sent += n,
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_message_arrives_with_its_descriptors() {
        let (a, b) = UnixStream::pair().unwrap();
        let file = tempfile::tempfile().unwrap();
        let mut message = Message::request(5, vec![7; 300]);
        message.fds = vec![file.try_clone().unwrap().into(), file.into()];
        send(&a, &message).unwrap();
        let got = recv(&b).unwrap().unwrap();
        assert_eq!((got.code, got.flags, got.body, got.fds.len()), (5, 1, vec![7; 300], 2));
        drop(a);
        assert!(recv(&b).unwrap().is_none());
    }

    #[test]
    fn garbage_and_cut_messages_are_errors() {
        let encoded = Message::request(2, vec![0; 8]).encode();
        for bytes in [&[0xffu8; 12][..], &encoded[..5], &encoded[..12], &encoded[..19]] {
            let (mut a, b) = UnixStream::pair().unwrap();
            a.write_all(bytes).unwrap();
            drop(a);
            assert!(recv(&b).is_err(), "{bytes:?}");
        }
    }
}
