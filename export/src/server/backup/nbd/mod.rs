//! A client of NBD servers, as far as backups want one: it reads, and asks what is where
//! (<https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md>).
//!
//! # Theory of operation
//!
//! ```text
//!  greeting ──> structured replies ──> contexts, if some are wanted ──> go ──> read, block status ──> disconnect
//!      │                │                           │                   │              │
//!      └────────────────┴───────────────────────────┴───────────────────┴──────────────┴──> an error: the session is over
//! ```
//!
//! [`wire`] knows the messages and does no input and output; [`Session`] reads and writes them on a stream. A session has one request
//! under way at a time, so that each reply is that request's. Each length that the server tells is compared with a limit before memory
//! is taken for it, and after the first error the session is not used any more: what the stream holds then is not known.

#[cfg(any(test, feature = "testing"))]
pub mod double;
mod session;
#[cfg(test)]
#[path = "session_tests.rs"]
mod session_tests;
mod wire;

pub(super) use session::Session;
pub(super) use wire::Status;

/// The context that tells which parts are holes, and which read as zeroes.
pub(super) const ALLOCATION: &str = "base:allocation";
/// Start of the names of contexts that tell what a bitmap of QEMU's has marked; the bitmap's name follows.
pub(super) const DIRTY_BITMAP: &str = "qemu:dirty-bitmap:";

/// Why a session is over.
#[derive(Debug, thiserror::Error)]
pub(super) enum NbdError {
    /// The stream has ended, or does not work.
    #[error("the connection to the NBD server broke")]
    Stream(#[from] std::io::Error),
    /// The server sends something that it must not send.
    #[error("the NBD server breaks the protocol: {0}")]
    Protocol(&'static str),
    /// The server cannot do what is wanted.
    #[error("the NBD server refuses {what}: {message} (reply {code:#x})")]
    Refused {
        /// What was asked for.
        what: &'static str,
        /// The kind of the reply.
        code: u32,
        /// The server's words.
        message: String,
    },
    /// A request has failed at the server.
    #[error("the NBD server fails: {message} (error {code})")]
    Failed {
        /// One of the protocol's numbers of errors.
        code: u32,
        /// The server's words.
        message: String,
    },
    /// The server is silent for too long.
    #[error("the NBD server says nothing for {} s", .0.as_secs())]
    Silent(std::time::Duration),
}
