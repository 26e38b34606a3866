//! Why a state is not taken.

use std::io;

use podvirt_proto::hold;

use super::Missing;
use crate::codec::DecodeError;

/// Why a state cannot be saved or loaded.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The device that is asked has no state.
    #[error("this device has no state that could be transferred")]
    Unsupported,
    /// It was saved or loaded already, and the guest has not run here since.
    #[error("the state was saved or loaded already")]
    Twice,
    /// Connections of the migration before are still being released.
    #[error("connections of the last migration are still being repaired")]
    Busy,
    /// There is no worker any more.
    #[error("netd is ending")]
    Ended,
    /// The way to the frontend, or a socket.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Sockets cannot be copied.
    #[error("the flows' sockets cannot be taken")]
    Pack(#[from] hold::Error),
    /// What came is not understood.
    #[error("the state is not understood")]
    Decode(#[from] DecodeError),
    /// What came is too large.
    #[error("the state has {what} {have}; at most {allowed} is allowed")]
    TooLarge {
        /// What of it.
        what: &'static str,
        /// How much.
        have: u64,
        /// How much may be.
        allowed: u64,
    },
    /// The workers cannot go on with it.
    #[error("the state cannot be gone on with")]
    Inherit(#[from] InheritError),
}

/// Why a worker cannot go on where another has stopped.
#[derive(Debug, thiserror::Error)]
pub enum InheritError {
    /// A descriptor is not there.
    #[error(transparent)]
    Missing(#[from] Missing),
    /// A socket cannot be watched.
    #[error("a socket cannot be watched")]
    Watch(#[from] io::Error),
    /// A port has no place.
    #[error("a port has place {0}; at most 262143 is allowed")]
    Place(u32),
    /// There were more workers than there are.
    #[error("{have} queue pairs have state, and vhost_user.queue_pairs is {pairs}")]
    Pairs {
        /// How many there were.
        have: usize,
        /// How many there are.
        pairs: usize,
    },
    /// A flow has no place in the table.
    #[error("the flow of {guest} with {peer} comes twice, or limits.flows is below the number of flows")]
    Flow {
        /// The guest's end.
        guest: std::net::SocketAddr,
        /// The peer's.
        peer: std::net::SocketAddr,
    },
}
