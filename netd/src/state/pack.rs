//! Descriptors on their way: counted when they are given, taken by their places when they have arrived.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

use podvirt_proto::hold::{self, Message, Wire};

use super::snapshot::{Fd, Snapshot};

/// A parcel that is being sent. Descriptors go at once, so that they are only borrowed; the snapshot that names them
/// goes last.
#[derive(Debug)]
pub struct Pack {
    to: To,
    count: u32,
}

/// Where descriptors go.
#[derive(Debug)]
enum To {
    /// To another process.
    Wire(Wire),
    /// Nowhere: copies stay here, to be asked what another machine must know of them.
    Kept(Vec<OwnedFd>),
}

impl Pack {
    pub(crate) fn new(wire: Wire) -> Pack {
        Pack { to: To::Wire(wire), count: 0 }
    }

    /// A parcel that goes nowhere.
    pub(crate) fn keep() -> Pack {
        Pack { to: To::Kept(Vec::new()), count: 0 }
    }

    /// What is in a parcel that goes nowhere.
    pub(crate) fn kept(self) -> Vec<OwnedFd> {
        match self.to {
            To::Kept(fds) => fds,
            To::Wire(_) => Vec::new(),
        }
    }

    /// The place that the next descriptor will have.
    pub(crate) fn next(&self) -> u32 {
        self.count
    }

    /// Sends descriptors; the first has the place [`Pack::next`].
    pub(crate) fn add(&mut self, fds: &[BorrowedFd<'_>]) -> Result<(), hold::Error> {
        match &mut self.to {
            To::Wire(wire) => wire.send_fds(fds)?,
            To::Kept(kept) => {
                for fd in fds {
                    kept.push(fd.try_clone_to_owned()?);
                }
            }
        }
        self.count = self.count.saturating_add(u32::try_from(fds.len()).unwrap_or(u32::MAX));
        Ok(())
    }

    /// Sends the snapshot and ends the parcel.
    pub(crate) fn finish(self, snapshot: &Snapshot) -> Result<Wire, hold::Error> {
        let To::Wire(wire) = self.to else { return Err(hold::Error::Io(io::ErrorKind::NotConnected.into())) };
        let bytes = snapshot.encode();
        wire.send_bytes(&bytes)?;
        wire.send(&Message::End { bytes: bytes.len() as u64, fds: self.count.into() })?;
        Ok(wire)
    }
}

/// Places for descriptors that are borrowed while they are named.
#[derive(Default)]
pub(crate) struct Named<'a> {
    first: u32,
    fds: Vec<BorrowedFd<'a>>,
}

impl<'a> Named<'a> {
    /// None yet; they will be added to `pack` next.
    pub(crate) fn after(pack: &Pack) -> Named<'a> {
        Named { first: pack.next(), fds: Vec::new() }
    }

    /// Names one.
    pub(crate) fn name(&mut self, fd: BorrowedFd<'a>) -> Fd {
        self.fds.push(fd);
        Fd(self.first.wrapping_add(self.fds.len() as u32 - 1))
    }

    /// What was named, to be added to the pack.
    pub(crate) fn fds(&self) -> &[BorrowedFd<'a>] {
        &self.fds
    }
}

/// The state names a descriptor that is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("descriptor {0} is not in the parcel, or has been used already")]
pub struct Missing(u32);

/// The descriptors of a parcel, each to be taken once.
#[derive(Debug, Default)]
pub struct Descriptors(Vec<Option<OwnedFd>>);

impl Descriptors {
    pub(crate) fn new(fds: Vec<OwnedFd>) -> Descriptors {
        Descriptors(fds.into_iter().map(Some).collect())
    }

    /// Places that may be empty.
    pub(crate) fn with_gaps(fds: Vec<Option<OwnedFd>>) -> Descriptors {
        Descriptors(fds)
    }

    /// Whether there is a descriptor at a place.
    pub(crate) fn has(&self, fd: Fd) -> bool {
        usize::try_from(fd.0).ok().and_then(|at| self.0.get(at)).is_some_and(Option::is_some)
    }

    /// Takes the descriptor at a place.
    ///
    /// # Errors
    /// There is none, or it was taken already.
    pub fn take(&mut self, fd: Fd) -> Result<OwnedFd, Missing> {
        let slot = usize::try_from(fd.0).ok().and_then(|at| self.0.get_mut(at));
        slot.and_then(Option::take).ok_or(Missing(fd.0))
    }

    /// As [`Descriptors::take`], where there may be none.
    ///
    /// # Errors
    /// As [`Descriptors::take`].
    pub fn take_if(&mut self, fd: Option<Fd>) -> Result<Option<OwnedFd>, Missing> {
        fd.map(|fd| self.take(fd)).transpose()
    }
}

/// A path as it stands in the state.
pub(crate) fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
