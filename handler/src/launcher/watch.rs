//! Waiting for a launcher's socket without asking again and again.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::net::unix::pipe::Receiver;

/// A watch on a directory. The descriptor is read as a pipe's, which is what it is to the reactor.
#[derive(Debug)]
pub struct Watch(Receiver);

impl Watch {
    /// Watches `dir` for files that appear in it under their name, or vanish.
    ///
    /// # Errors
    ///
    /// The directory is not there, or the kernel's limit of watches is reached.
    pub fn on(dir: &Path) -> io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        let of_interest = AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_ONLYDIR;
        inotify.add_watch(dir, of_interest)?;
        Ok(Self(Receiver::from_owned_fd_unchecked(inotify.as_fd().try_clone_to_owned()?)?))
    }

    /// Waits until something happened since the last call. What happened is not told: the waiting task looks.
    ///
    /// # Errors
    ///
    /// The watch is of no use any more.
    pub async fn changed(&self) -> io::Result<()> {
        // Room for many events; a read takes as many as fit, and there is always one more for the rest.
        let mut events = [0; 4096];
        loop {
            self.0.readable().await?;
            match self.0.try_read(&mut events) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return read.map(drop),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_rename_in_the_directory_wakes() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("launcher-init-sock"), "").unwrap();
        let watch = Watch::on(dir.path()).unwrap();
        std::fs::rename(dir.path().join("launcher-init-sock"), dir.path().join("launcher-sock")).unwrap();
        watch.changed().await.unwrap();
        Watch::on(&dir.path().join("none")).unwrap_err();
    }
}
