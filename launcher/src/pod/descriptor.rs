//! Files that a container-disk sidecar hands over: one message for each, a line of JSON with the descriptor beside it.
//!
//! The sidecar runs from the user's image and is believed nothing: what comes must be regular files, as many as
//! were asked for, and what is in them is judged elsewhere.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use serde::Deserialize;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

/// Between two looks for the sidecar.
const INTERVAL: Duration = Duration::from_millis(100);
/// How long a sidecar that accepted may stay silent.
const SILENCE: Duration = Duration::from_secs(10);
/// Longest message, bytes: a path of 4096 as JSON, and some.
const MAX_MESSAGE: usize = 32 * 1024;

/// Why a file was not handed over.
#[derive(Debug, thiserror::Error)]
pub(super) enum HandOverError {
    /// The socket failed.
    #[error("its sidecar at {0}")]
    Socket(PathBuf, #[source] io::Error),
    /// The sidecar closed early.
    #[error("its sidecar handed over {have} of {want} files")]
    TooFew { have: usize, want: usize },
    /// The message is none.
    #[error("its sidecar sent something that is no message")]
    Message(#[source] serde_json::Error),
    /// The sidecar says that it cannot.
    #[error("its sidecar says: {0}")]
    Refused(String),
    /// What came is no regular file.
    #[error("its sidecar handed over {0}, which is not a regular file")]
    NotAFile(PathBuf),
}

/// A file from a sidecar.
#[derive(Debug)]
pub(super) struct Handed {
    /// Its path in the sidecar, for people.
    pub(super) path: PathBuf,
    pub(super) file: File,
}

/// What a sidecar says of a file.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Message {
    path: PathBuf,
    error: String,
}

/// Waits for the sidecar behind `socket` and takes `count` files from it.
///
/// # Errors
///
/// It is there and does not hand them over.
pub(super) async fn receive(socket: &Path, count: usize) -> Result<Vec<Handed>, HandOverError> {
    loop {
        let path = socket.to_owned();
        let taken = spawn_blocking(move || take(&path, count)).await;
        match taken.unwrap_or_else(|e| Err(HandOverError::Socket(socket.to_owned(), io::Error::other(e)))) {
            // It is not there yet, or is being started again.
            Err(HandOverError::Socket(_, error))
                if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {}
            other => return other,
        }
        sleep(INTERVAL).await;
    }
}

fn take(socket: &Path, count: usize) -> Result<Vec<Handed>, HandOverError> {
    let failed = |error| HandOverError::Socket(socket.to_owned(), error);
    let stream = UnixStream::connect(socket).map_err(failed)?;
    stream.set_read_timeout(Some(SILENCE)).map_err(failed)?;
    let mut handed = Vec::with_capacity(count);
    while handed.len() < count {
        let mut buffer = vec![0u8; MAX_MESSAGE];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        // A message with a descriptor is never joined with the next one (unix(7), SCM_RIGHTS).
        let received =
            recvmsg(&stream, &mut [IoSliceMut::new(&mut buffer)], &mut control, RecvFlags::CMSG_CLOEXEC)
                .map_err(|e| failed(e.into()))?;
        let file = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        });
        if received.bytes == 0 {
            return Err(HandOverError::TooFew { have: handed.len(), want: count });
        }
        let text = buffer.get(..received.bytes).unwrap_or_default();
        let message: Message = serde_json::from_slice(text).map_err(HandOverError::Message)?;
        let Some(file) = file.map(File::from) else { return Err(HandOverError::Refused(message.error)) };
        if !file.metadata().map_err(failed)?.is_file() {
            return Err(HandOverError::NotAFile(message.path));
        }
        handed.push(Handed { path: message.path, file });
    }
    Ok(handed)
}

#[cfg(test)]
mod tests {
    use std::io::{IoSlice, Read, Seek, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixListener;

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

    use super::*;

    fn hand(stream: &UnixStream, text: &str, file: &File) {
        let descriptors = [file.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
        sendmsg(stream, &[IoSlice::new(text.as_bytes())], &mut control, SendFlags::empty()).unwrap();
    }

    /// A sidecar that does this with its first caller.
    fn sidecar(serve: impl FnOnce(UnixStream) + Send + 'static) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("disk_0.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        std::thread::spawn(move || serve(listener.accept().unwrap().0));
        (dir, socket)
    }

    fn file(content: &str) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(content.as_bytes()).unwrap();
        file.rewind().unwrap();
        file
    }

    #[tokio::test]
    async fn files_come_in_the_order_in_which_they_were_sent() {
        let (_dir, socket) = sidecar(|stream| {
            hand(&stream, "{\"path\":\"/boot/vmlinuz\",\"format\":\"raw\",\"size\":6}\n", &file("kernel"));
            hand(&stream, "{\"path\":\"/boot/initrd\"}\n", &file("initrd"));
        });
        let mut handed = receive(&socket, 2).await.unwrap();
        let texts: Vec<String> = handed
            .iter_mut()
            .map(|h| {
                let mut text = String::new();
                h.file.read_to_string(&mut text).unwrap();
                format!("{} {text}", h.path.display())
            })
            .collect();
        assert_eq!(texts, ["/boot/vmlinuz kernel", "/boot/initrd initrd"]);
    }

    #[tokio::test]
    async fn what_is_no_file_or_too_little_is_refused() {
        let (_dir, socket) = sidecar(|stream| {
            hand(&stream, "{\"path\":\"/dev/zero\"}\n", &File::open("/dev/zero").unwrap());
        });
        assert!(matches!(receive(&socket, 1).await, Err(HandOverError::NotAFile(_))));
        let (_dir, socket) = sidecar(|stream| hand(&stream, "{}\n", &file("")));
        assert!(matches!(receive(&socket, 2).await, Err(HandOverError::TooFew { have: 1, want: 2 })));
        let (_dir, socket) = sidecar(|mut stream| stream.write_all(b"{\"error\":\"no disk\"}\n").unwrap());
        let error = receive(&socket, 1).await.unwrap_err();
        assert_eq!(error.to_string(), "its sidecar says: no disk");
        let (_dir, socket) = sidecar(|mut stream| stream.write_all(b"\xff\xff").unwrap());
        assert!(matches!(receive(&socket, 1).await, Err(HandOverError::Message(_))));
    }

    #[tokio::test]
    async fn a_sidecar_that_is_late_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("disk_0.sock");
        let late = socket.clone();
        let waiting = tokio::spawn(async move { receive(&late, 1).await.map(|h| h.len()) });
        tokio::task::yield_now().await;
        let listener = UnixListener::bind(&socket).unwrap();
        std::thread::spawn(move || hand(&listener.accept().unwrap().0, "{}", &file("")));
        assert_eq!(waiting.await.unwrap().unwrap(), 1);
    }
}
