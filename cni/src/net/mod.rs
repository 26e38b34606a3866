//! Interfaces.
//!
//! # Theory of operation
//!
//! A *bridge* attachment is a veth pair: one end in the pod, one on the node as a port of the bridge. The node's end has
//! a name made of the attachment and carries network, container and interface in its alias, so that it is found again
//! without any file. A *macvlan* attachment is one interface in the pod and leaves nothing on the node. Either is made
//! by one message of rtnetlink, inside the pod at once: there is no moment at which it is half there, and removing one
//! end removes all of it.
//!
//! Addresses are set without duplicate address detection, which would take a second: the lease is the proof that there
//! is no duplicate.
//!
//! ```text
//! made, down ──▶ silent (targets of migrations only) ──▶ up ──▶ addresses ──▶ routes
//! ```
//!
//! [`silence`] comes before the interface is up, when nothing has been sent yet. It is lifted by [`activate`], which
//! also forgets what the neighbours did not answer meanwhile and announces the addresses; an interface that is not
//! silent is announced when it is made, since a switch may still look for the machine elsewhere. What a machine leaves
//! is made silent by [`depart()`], and what comes in there is [`Kept`] until the machine is heard at its new place.

pub mod announce;
pub mod attach;
pub mod netns;
pub mod silence;

mod activate;
#[cfg(test)]
pub(crate) mod bed;
mod depart;
mod kept;
#[cfg(test)]
mod move_tests;
mod packet;
#[cfg(test)]
mod tests;

pub use activate::{Activated, activate, announce_again, silent_interfaces};
pub use depart::{Departed, depart};
pub use kept::{Fate, Kept};

/// Something of the kernel or of files did not work.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// A file, a socket, a system call.
    #[error("{what}")]
    Io {
        /// Which step.
        what: String,
        /// Why.
        source: std::io::Error,
    },
    /// rtnetlink refuses.
    #[error("{what}")]
    Netlink {
        /// Which step.
        what: String,
        /// Why.
        source: rtnetlink::Error,
    },
    /// An interface cannot be made silent.
    #[error("nftables cannot keep {interface:?} silent (it takes Linux 5.16 with CONFIG_NETFILTER_EGRESS)")]
    Silence {
        /// Its name.
        interface: String,
        /// Why.
        source: std::io::Error,
    },
    /// An interface is not there.
    #[error("there is no interface {name:?} {place}")]
    Missing {
        /// Its name.
        name: String,
        /// Where it was looked for.
        place: &'static str,
    },
    /// An interface is of another kind.
    #[error("the interface {name:?} of the node is no {wanted}")]
    Kind {
        /// Its name.
        name: String,
        /// What it should be.
        wanted: &'static str,
    },
    /// An attachment is not as it was made.
    #[error("{0}")]
    Changed(String),
}

impl NetError {
    pub(crate) fn io(what: impl Into<String>, source: impl Into<std::io::Error>) -> Self {
        NetError::Io { what: what.into(), source: source.into() }
    }

    pub(crate) fn netlink(what: impl Into<String>) -> impl FnOnce(rtnetlink::Error) -> Self {
        let what = what.into();
        move |source| NetError::Netlink { what, source }
    }
}
