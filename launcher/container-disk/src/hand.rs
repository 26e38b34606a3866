//! Hands descriptors over: for each file one line of JSON, sent together with the descriptor (unix(7), SCM_RIGHTS).

use std::fmt::Write;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use crate::find::Found;

/// How long a caller may take to read.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The pause after a failed accept: it fails when descriptors run out, and would again at once.
const PAUSE: Duration = Duration::from_millis(100);

/// Listens on `socket`, in the place of a process that did before.
pub(crate) fn listener(socket: &Path) -> io::Result<UnixListener> {
    match std::fs::remove_file(socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    UnixListener::bind(socket)
}

/// Serves every caller, one after the other, for ever.
pub(crate) fn serve(listener: &UnixListener, files: Result<&[Found], &String>) {
    loop {
        let handed = match listener.accept() {
            Ok((stream, _)) => hand(&stream, files),
            Err(error) => {
                std::thread::sleep(PAUSE);
                Err(error)
            }
        };
        if let Err(error) = handed {
            eprintln!("container-disk: cannot hand over: {error}");
        }
    }
}

fn hand(stream: &UnixStream, files: Result<&[Found], &String>) -> io::Result<()> {
    stream.set_write_timeout(Some(TIMEOUT))?;
    match files {
        Err(error) => send(stream, &format!("{{\"error\":{}}}\n", json(error)), &[]),
        Ok(files) => files.iter().try_for_each(|file| {
            let path = json(&file.path.to_string_lossy());
            let text = format!("{{\"path\":{path},\"format\":\"{}\",\"size\":{}}}\n", file.format, file.size);
            send(stream, &text, &[file.file.as_fd()])
        }),
    }
}

fn send(stream: &UnixStream, text: &str, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::other("no room for a descriptor"));
    }
    let sent = sendmsg(stream, &[IoSlice::new(text.as_bytes())], &mut control, SendFlags::NOSIGNAL)?;
    if sent < text.len() {
        return Err(io::Error::other("the message was cut off"));
    }
    Ok(())
}

/// A text as JSON has it (RFC 8259, section 7).
fn json(text: &str) -> String {
    let mut out = String::from('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if c < ' ' => {
                // Writing to a text does not fail.
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use std::io::{IoSliceMut, Read};
    use std::thread;

    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

    use super::*;

    #[test]
    fn texts_are_escaped() {
        assert_eq!(json("a\"b\\c\nd\u{e9}"), "\"a\\\"b\\\\c\\u000ad\u{e9}\"");
    }

    /// The next message and what can be read from its descriptor.
    fn next(stream: &UnixStream) -> (String, Option<String>) {
        let mut buffer = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let n = recvmsg(stream, &mut [IoSliceMut::new(&mut buffer)], &mut control, RecvFlags::CMSG_CLOEXEC)
            .unwrap()
            .bytes;
        let file = control.drain().find_map(|m| match m {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        let content = file.map(|fd| {
            let mut content = String::new();
            std::fs::File::from(fd).read_to_string(&mut content).unwrap();
            content
        });
        (String::from_utf8_lossy(&buffer[..n]).into_owned(), content)
    }

    #[test]
    fn every_caller_gets_every_file_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let (socket, kernel, initrd) =
            (dir.path().join("s"), dir.path().join("kernel"), dir.path().join("initrd"));
        std::fs::write(&kernel, "k").unwrap();
        std::fs::write(&initrd, "i").unwrap();
        drop(listener(&socket).unwrap());
        let listener = listener(&socket).unwrap();
        let files = vec![crate::find::open(&kernel).unwrap(), crate::find::open(&initrd).unwrap()];
        thread::spawn(move || serve(&listener, Ok(&files)));
        // One after the other: an open file has one position.
        let stream = UnixStream::connect(&socket).unwrap();
        let (text, content) = next(&stream);
        let path = kernel.display();
        assert_eq!(text, format!("{{\"path\":\"{path}\",\"format\":\"raw\",\"size\":1}}\n"));
        assert_eq!(content.as_deref(), Some("k"));
        assert_eq!(next(&stream).1.as_deref(), Some("i"));
        assert!(next(&UnixStream::connect(&socket).unwrap()).1.is_some());
    }

    #[test]
    fn what_cannot_be_handed_over_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let listener = listener(&socket).unwrap();
        thread::spawn(move || serve(&listener, Err(&"no \"disk\"".to_owned())));
        let said = next(&UnixStream::connect(&socket).unwrap());
        assert_eq!(said, ("{\"error\":\"no \\\"disk\\\"\"}\n".to_owned(), None));
    }
}
