//! The hold: one parcel, for a while.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::parcel::{Limits, Parcel};
use super::wire::{Error, Message, Wire, listener};

/// How long a parcel is kept unless told otherwise: an image is pulled before the container ends, so what is waited
/// for is a container's start.
pub const KEEP: Duration = Duration::from_secs(30);
/// How long one client may take for all it does.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long it may be silent before it says what it wants: others wait meanwhile.
const SILENCE: Duration = Duration::from_secs(1);

/// A hold that listens.
#[derive(Debug)]
pub struct Hold {
    listener: OwnedFd,
    path: PathBuf,
    keep: Duration,
    kept: Option<(Parcel, Instant)>,
}

impl Hold {
    /// Listens at `path`; a parcel is kept for `keep`.
    ///
    /// # Errors
    /// As [`listener`].
    pub fn listen(path: &Path, keep: Duration) -> io::Result<Hold> {
        Ok(Hold { listener: listener(path)?, path: path.to_owned(), keep, kept: None })
    }

    /// Keeps and gives until `stop` becomes readable. What happened is told by `said`, in words for a log.
    ///
    /// # Errors
    /// When the sockets cannot be waited for.
    pub fn serve(mut self, stop: BorrowedFd<'_>, mut said: impl FnMut(&str)) -> io::Result<()> {
        loop {
            let wait = self.kept.as_ref().map(|(_, until)| until.saturating_duration_since(Instant::now()));
            if wait.is_some_and(|w| w.is_zero()) {
                self.kept = None;
                said("no netd has collected the deposit: it is dropped");
                continue;
            }
            let wait = wait.and_then(|w| Timespec::try_from(w).ok());
            let mut fds = [PollFd::new(&stop, PollFlags::IN), PollFd::new(&self.listener, PollFlags::IN)];
            match poll(&mut fds, wait.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
            let [stopped, comes] = fds.map(|fd| !fd.revents().is_empty());
            if stopped {
                return Ok(());
            }
            if comes {
                match self.client() {
                    Ok(done) => said(done),
                    Err(error) => said(&format!("a client of the hold failed: {error}")),
                }
            }
        }
    }

    fn client(&mut self) -> Result<&'static str, Error> {
        let mut wire = Wire::accept(self.listener.as_fd(), SILENCE)?;
        let wish = wire.recv()?;
        wire.set_timeout(TIMEOUT);
        match wish {
            Message::Deposit => {
                let Some(parcel) = Parcel::recv(&wire, Limits::default())? else {
                    return Ok("an empty deposit");
                };
                wire.send(&Message::Kept)?;
                self.kept = Some((parcel, Instant::now() + self.keep));
                Ok("a deposit is kept")
            }
            Message::Collect => match &self.kept {
                None => {
                    wire.send(&Message::Empty)?;
                    Ok("there was nothing to collect")
                }
                Some((parcel, _)) => {
                    parcel.send(&wire)?;
                    match wire.expect(&Message::Ready) {
                        // It goes on without: what is kept would only keep others waiting.
                        Err(Error::Refused(_)) => {
                            self.kept = None;
                            return Ok("the deposit is of no use to its collector: it is dropped");
                        }
                        other => other?,
                    }
                    wire.send(&Message::Go)?;
                    self.kept = None;
                    Ok("the deposit was collected")
                }
            },
            _ => Err(Error::Message("neither a deposit nor a wish to collect one".into())),
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        // The socket file is this hold's: a second hold cannot listen at the path while the first does.
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};
    use std::thread::JoinHandle;

    use super::*;

    struct Running {
        directory: PathBuf,
        stop: Option<OwnedFd>,
        said: Receiver<String>,
        thread: Option<JoinHandle<io::Result<()>>>,
    }

    impl Running {
        fn new(name: &str, keep: Duration) -> Running {
            let directory = std::env::temp_dir().join(format!("podvirt-hold-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&directory).unwrap();
            let hold = Hold::listen(&directory.join("hold"), keep).unwrap();
            let (read, write) = rustix::pipe::pipe().unwrap();
            let (sender, said) = channel();
            let serve = move || hold.serve(read.as_fd(), |s| drop(sender.send(s.to_owned())));
            Running { directory, stop: Some(write), said, thread: Some(std::thread::spawn(serve)) }
        }

        fn connect(&self) -> Wire {
            Wire::connect(&self.directory.join("hold"), TIMEOUT).unwrap()
        }

        fn deposit(&self, bytes: &[u8]) -> OwnedFd {
            let (read, write) = rustix::pipe::pipe().unwrap();
            let wire = self.connect();
            wire.send(&Message::Deposit).unwrap();
            Parcel { bytes: bytes.to_vec(), fds: vec![write] }.send(&wire).unwrap();
            wire.expect(&Message::Kept).unwrap();
            while self.said.recv().unwrap() != "a deposit is kept" {}
            read
        }

        fn collect(&self) -> (Wire, Option<Parcel>) {
            let wire = self.connect();
            wire.send(&Message::Collect).unwrap();
            let parcel = Parcel::recv(&wire, Limits::default()).unwrap();
            (wire, parcel)
        }
    }

    impl Drop for Running {
        fn drop(&mut self) {
            drop(self.stop.take());
            let ended = self.thread.take().unwrap().join();
            if !std::thread::panicking() {
                ended.unwrap().unwrap();
                assert!(!self.directory.join("hold").exists());
            }
            drop(std::fs::remove_dir_all(&self.directory));
        }
    }

    #[test]
    fn a_deposit_is_given_once_and_only_to_a_client_that_is_ready() {
        let hold = Running::new("once", KEEP);
        assert!(hold.collect().1.is_none());
        assert_eq!(hold.said.recv().unwrap(), "there was nothing to collect");
        let pipe = hold.deposit(b"state");
        // A client that dies before it is ready has taken nothing.
        drop(hold.collect());
        assert!(hold.said.recv().unwrap().starts_with("a client of the hold failed"));
        let (wire, parcel) = hold.collect();
        let parcel = parcel.unwrap();
        assert_eq!(parcel.bytes, b"state");
        wire.send(&Message::Ready).unwrap();
        wire.expect(&Message::Go).unwrap();
        assert_eq!(hold.said.recv().unwrap(), "the deposit was collected");
        // The hold has let go: with the parcel the last descriptor is closed.
        drop(parcel);
        assert_eq!(rustix::io::read(&pipe, &mut [0; 1]).unwrap(), 0);
        assert!(hold.collect().1.is_none());
    }

    #[test]
    fn a_client_that_says_nothing_does_not_keep_others_waiting_for_long() {
        let hold = Running::new("silent", KEEP);
        let _silent = hold.connect();
        let _pipe = hold.deposit(b"state");
    }

    #[test]
    fn what_is_of_no_use_is_closed() {
        let hold = Running::new("useless", KEEP);
        let pipe = hold.deposit(b"state");
        let (wire, parcel) = hold.collect();
        drop(parcel);
        wire.send(&Message::Refused("another version".into())).unwrap();
        assert_eq!(rustix::io::read(&pipe, &mut [0; 1]).unwrap(), 0);
    }

    #[test]
    fn what_no_netd_collects_is_closed() {
        let hold = Running::new("late", Duration::from_millis(20));
        let pipe = hold.deposit(b"state");
        assert_eq!(rustix::io::read(&pipe, &mut [0; 1]).unwrap(), 0);
        assert!(hold.collect().1.is_none());
    }

    #[test]
    fn a_second_deposit_takes_the_place_of_the_first() {
        let hold = Running::new("second", KEEP);
        let first = hold.deposit(b"first");
        let _second = hold.deposit(b"second");
        assert_eq!(rustix::io::read(&first, &mut [0; 1]).unwrap(), 0);
        assert_eq!(hold.collect().1.unwrap().bytes, b"second");
    }

    #[test]
    fn a_live_hold_is_not_replaced() {
        let hold = Running::new("live", KEEP);
        let path = hold.directory.join("hold");
        assert_eq!(Hold::listen(&path, KEEP).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        // What it was asked was nothing but whether it lives.
        drop(hold.said.recv().unwrap());
    }
}
