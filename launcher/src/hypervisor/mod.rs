//! The hypervisor as the launcher sees it: one domain, a few commands, a stream of events.
//!
//! [`Connector`] opens connections and [`Hypervisor`] is one. Calls block and are made from threads that may.
//! A connection reports through the [`EventSink`] that it was opened with until it is dropped; [`Event::Closed`]
//! is its last. The order of calls is: `connect`, `state` (what is there already), `start`, then any.

#[cfg(feature = "libvirt")]
mod events;
#[cfg(feature = "libvirt")]
pub mod libvirt;

use std::net::IpAddr;
use std::sync::Arc;

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HypervisorError {
    /// The domain is not there or not running.
    #[error("the domain {0} is not running")]
    NotRunning(String),
    /// The hypervisor said no, in its own words.
    #[error("{action}: {message}")]
    Refused {
        /// What was asked.
        action: &'static str,
        /// The answer.
        message: String,
    },
}

/// What a domain is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DomainState {
    /// There is none of that name.
    Absent,
    /// It is defined and does not run, since it ended like this.
    Off(Stopped),
    /// It runs, or is paused, or is on its way down.
    Active,
}

/// How a domain ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// It never ran, or nobody knows any more.
    Unknown,
    /// The guest switched itself off.
    Shutdown,
    /// It was ended by force.
    Destroyed,
    /// The guest or QEMU crashed.
    Crashed,
    /// It runs elsewhere now.
    Migrated,
    /// It was saved.
    Saved,
    /// It could not go on, or not start.
    Failed,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// It runs.
    Started,
    /// Its processors stand still.
    Suspended,
    /// They go on.
    Resumed,
    /// The guest is off; `Stopped` follows.
    ShutDown,
    /// The guest told that it crashed; `Stopped` follows.
    GuestCrashed,
    /// The guest rebooted.
    Rebooted,
    /// It ended.
    Stopped(Stopped),
    /// The connection is gone. The domain may well live on.
    Closed,
}

/// Where a connection reports events of its domain; called from any thread, must not block.
pub type EventSink = Arc<dyn Fn(Event) + Send + Sync>;

/// Addresses of an interface as the guest agent tells them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceAddresses {
    /// The interface's name in the guest.
    pub name: String,
    /// Its Ethernet address.
    pub mac: String,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
}

/// Opens connections.
pub trait Connector: Send + Sync {
    /// Opens a connection that reports events of the domain `name` to `sink`.
    ///
    /// # Errors
    ///
    /// Nobody answers (yet).
    fn connect(&self, name: &str, sink: EventSink) -> Result<Box<dyn Hypervisor>, HypervisorError>;
}

/// A connection to the hypervisor, for one domain.
pub trait Hypervisor: Send + Sync {
    /// What the domain is doing.
    ///
    /// # Errors
    ///
    /// The connection broke.
    fn state(&self) -> Result<DomainState, HypervisorError>;

    /// Defines the domain of `xml`, in place of an older definition, and starts it.
    ///
    /// # Errors
    ///
    /// The XML is refused or QEMU does not start; the message is the hypervisor's.
    fn start(&self, xml: &str) -> Result<(), HypervisorError>;

    /// Presses the ACPI power button. The guest may take its time, or not listen.
    ///
    /// # Errors
    ///
    /// The domain does not run.
    fn shutdown(&self) -> Result<(), HypervisorError>;

    /// Ends the domain at once.
    ///
    /// # Errors
    ///
    /// The domain does not run.
    fn destroy(&self) -> Result<(), HypervisorError>;

    /// Takes the domain's definition away; a running domain stays.
    ///
    /// # Errors
    ///
    /// There is no definition.
    fn undefine(&self) -> Result<(), HypervisorError>;

    /// The running domain's XML with all that the hypervisor filled in.
    ///
    /// # Errors
    ///
    /// The domain is not there.
    fn xml(&self) -> Result<String, HypervisorError>;

    /// Addresses that the guest agent tells.
    ///
    /// # Errors
    ///
    /// The domain does not run, or no agent answers.
    fn interface_addresses(&self) -> Result<Vec<InterfaceAddresses>, HypervisorError>;
}
