//! The new netd's side: it collects the state, and goes on with it once the netd or hold that had it lets go.

use std::path::Path;
use std::time::Duration;

use podvirt_proto::hold::{self, Limits, Message, Parcel, Wire};

use crate::codec::DecodeError;
use crate::state::{Descriptors, Snapshot, decode};

/// How long the netd or hold that has the state may take to send it.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Why nothing was taken over.
#[derive(Debug, thiserror::Error)]
pub enum CollectError {
    /// The netd or hold that has the state, or the way to it.
    #[error(transparent)]
    Wire(#[from] hold::Error),
    /// What it says is not understood.
    #[error("the state is not understood")]
    Decode(#[from] DecodeError),
}

/// State that was collected. Until [`Permission::go`] it is still the other's.
#[derive(Debug)]
pub struct Collected {
    wire: Wire,
    /// The state.
    pub snapshot: Snapshot,
    /// Its descriptors.
    pub fds: Descriptors,
}

/// A netd or a hold that has state.
#[derive(Debug)]
pub struct Source(Wire);

impl Source {
    /// Connects to the one at `path`. Nothing is asked of it yet.
    ///
    /// # Errors
    /// [`CollectError`].
    pub fn connect(path: &Path) -> Result<Source, CollectError> {
        Ok(Source(Wire::connect(path, TIMEOUT)?))
    }

    /// Asks for the state; none when there is none.
    ///
    /// # Errors
    /// [`CollectError`]; the other netd, or the hold, keeps the state.
    pub fn collect(self) -> Result<Option<Collected>, CollectError> {
        let Source(mut wire) = self;
        wire.set_timeout(TIMEOUT);
        wire.send(&Message::Collect)?;
        let Some(parcel) = Parcel::recv(&wire, Limits::default())? else { return Ok(None) };
        match decode(&parcel.bytes) {
            Ok(snapshot) => Ok(Some(Collected { wire, snapshot, fds: Descriptors::new(parcel.fds) })),
            Err(error) => {
                refuse(&wire, &error.to_string());
                Err(error.into())
            }
        }
    }
}

impl Collected {
    /// How long ago everything stood still.
    pub fn ago(&self) -> Duration {
        Duration::from_micros(super::give::monotonic().saturating_sub(self.snapshot.origin.frozen_at))
    }

    /// Splits off what says that the state can be gone on with.
    pub fn split(self) -> (Permission, Snapshot, Descriptors) {
        (Permission(self.wire), self.snapshot, self.fds)
    }
}

/// The other's permission to go on, which is still to be had.
#[derive(Debug)]
pub struct Permission(Wire);

impl Permission {
    /// Says that everything is prepared and waits until it may be gone on with.
    ///
    /// # Errors
    /// The other has changed its mind, or is gone: nothing may be touched.
    pub fn go(mut self) -> Result<(), hold::Error> {
        self.0.set_timeout(TIMEOUT);
        self.0.send(&Message::Ready)?;
        self.0.expect(&Message::Go)
    }

    /// Says that the state is of no use here. A netd goes on with it, a hold lets it go.
    pub fn refuse(self, why: &str) {
        refuse(&self.0, why);
    }
}

fn refuse(wire: &Wire, why: &str) {
    if let Err(error) = wire.send(&Message::Refused(why.to_owned())) {
        tracing::debug!(%error, "the giver of the state cannot be told that the state is of no use");
    }
}
