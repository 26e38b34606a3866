//! The hypervisor as the launcher sees it: one domain, a few commands, a stream of events.
//!
//! [`Connector`] opens connections and [`Hypervisor`] is one. Calls block and are made from threads that may.
//! A connection reports through the [`EventSink`] that it was opened with until it is dropped; [`Event::Closed`]
//! is its last. The order of calls is: `connect`, `state` (what is there already), `start`, then any.

#[cfg(feature = "libvirt")]
mod backup;
mod backups;
#[cfg(feature = "libvirt")]
mod bitmaps;
#[cfg(feature = "libvirt")]
mod bulk;
#[cfg(feature = "libvirt")]
mod disk_errors;
#[cfg(feature = "libvirt")]
mod events;
#[cfg(feature = "libvirt")]
mod fdset;
#[cfg(feature = "libvirt")]
mod growth;
#[cfg(feature = "libvirt")]
mod host;
#[cfg(feature = "libvirt")]
mod job;
#[cfg(feature = "libvirt")]
pub mod libvirt;
#[cfg(feature = "libvirt")]
mod slots;
#[cfg(feature = "libvirt")]
mod state;
#[cfg(feature = "libvirt")]
mod usage;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use podvirt_proto::domain::Status;
use podvirt_proto::migration::Progress;
use podvirt_proto::stats::DomainStats;

pub use backups::{BackupEnd, Backups};

use crate::capabilities::Source;

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
    /// The guest's agent did not answer in time: it may still do what it was told.
    #[error("{action}: {message}")]
    Silent {
        /// What was asked.
        action: &'static str,
        /// The hypervisor's words.
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
    /// It stands still in the course of a move: it is about to leave, or to come, or is in the making.
    Moving,
    /// It stands still because it was told to: a machine that comes does so, complete, until it is let run.
    Held,
}

/// Where a domain moves, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Move {
    /// The other hypervisor, as the present one reaches it.
    pub connection: String,
    /// Where memory and state go.
    pub state: String,
    /// Where disks go.
    pub disks: String,
    /// The domain's description there; none: the one that it has here.
    pub description: Option<String>,
    /// Disks that are copied, by their places in the guest, such as `vda`; the others are shared.
    pub copied: Vec<String>,
    /// MiB per second that are sent at most; 0: as fast as it goes.
    pub bandwidth_mib: u64,
    /// Whether the guest is slowed down when it writes faster than it is copied.
    pub auto_converge: bool,
    /// Whether shared disks are taken for shared without a look.
    pub is_unsafe: bool,
    /// Whether it stands still there until the launcher lets it run.
    pub held: bool,
}

/// How a domain ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// It never ran, or libvirt no longer knows.
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
    /// The guest's agent came or went.
    Agent,
    /// It ended.
    Stopped(Stopped),
    /// The connection is gone. The domain may well live on.
    Closed,
}

/// Where a connection reports events of its domain; called from any thread, must not block.
pub type EventSink = Arc<dyn Fn(Event) + Send + Sync>;

/// A picture of a guest's screen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// Media type of `data`: `image/png` of any QEMU that can.
    pub mime: String,
    /// The picture.
    pub data: Vec<u8>,
}

/// Why a disk has stopped its domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskError {
    /// What it is stored on is full.
    NoSpace,
    /// Another failure.
    Failed,
}

impl DiskError {
    /// What people are told of it.
    #[must_use]
    pub const fn message(self) -> &'static str {
        match self {
            DiskError::NoSpace => "no space is left on its storage",
            DiskError::Failed => "its storage answers with an error",
        }
    }
}

/// What a domain is doing, in full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DomainStatus {
    /// Its state.
    pub status: Status,
    /// The hypervisor's reason for the state; see [`podvirt_proto::domain::reason`].
    pub reason: &'static str,
}

/// Opens connections.
pub trait Connector: Send + Sync {
    /// Opens a connection that reports events of the domain `name` to `sink`.
    ///
    /// # Errors
    ///
    /// libvirt does not answer (yet).
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

    /// What the domain is doing and why; [`Status::NoState`] when there is none.
    ///
    /// # Errors
    ///
    /// The connection broke.
    fn status(&self) -> Result<DomainStatus, HypervisorError>;

    /// Defines the domain of `xml`, in place of an older definition, and starts it; with its processors standing
    /// still when `paused`.
    ///
    /// # Errors
    ///
    /// The XML is refused or QEMU does not start; the message is the hypervisor's.
    fn start(&self, xml: &str, paused: bool) -> Result<(), HypervisorError>;

    /// Stops the processors. Nothing happens when they stand still already.
    ///
    /// # Errors
    ///
    /// The domain does not run.
    fn suspend(&self) -> Result<(), HypervisorError>;

    /// The disks that have failed since the domain was let run, by alias.
    ///
    /// # Errors
    ///
    /// The domain does not run.
    fn disk_errors(&self) -> Result<BTreeMap<String, DiskError>, HypervisorError> {
        Ok(BTreeMap::new())
    }

    /// Lets the processors run again. Nothing happens when they run already.
    ///
    /// # Errors
    ///
    /// The domain does not run.
    fn resume(&self) -> Result<(), HypervisorError>;

    /// Presses the reset button.
    ///
    /// # Errors
    ///
    /// The domain does not run.
    fn reset(&self) -> Result<(), HypervisorError>;

    /// Asks the guest to restart, by its agent if one answers, else by ACPI.
    ///
    /// # Errors
    ///
    /// The domain does not run.
    fn reboot(&self) -> Result<(), HypervisorError>;

    /// A picture of the first screen.
    ///
    /// # Errors
    ///
    /// The domain does not run, it has no screen, or the picture is larger than [`MAX_PICTURE`](podvirt_proto::cmd::MAX_PICTURE).
    fn picture(&self) -> Result<Picture, HypervisorError>;

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

    /// Gives the guest's agent a command (QEMU's guest agent protocol, JSON) and returns its answer.
    ///
    /// # Errors
    ///
    /// The domain does not run, no agent answers within `timeout` (whole seconds, at least one), or it refuses.
    fn agent(&self, command: &str, timeout: Duration) -> Result<String, HypervisorError>;

    /// Moves the running domain to another hypervisor, as it is: with the machine, the addresses and the files that
    /// it has here, which are at the same places there. Blocks until it runs there, or runs here again.
    ///
    /// # Errors
    ///
    /// It did not move. After an error of the connection it is not known: the state tells.
    fn migrate(&self, to: &Move) -> Result<(), HypervisorError>;

    /// How far the present move is; none when there is none.
    ///
    /// # Errors
    ///
    /// The domain is not there.
    fn progress(&self) -> Result<Option<Progress>, HypervisorError>;

    /// What the domain has used so far, without the interfaces that the hypervisor cannot count.
    ///
    /// # Errors
    ///
    /// The domain is not there.
    fn statistics(&self) -> Result<DomainStats, HypervisorError>;

    /// Limits how long the guest stands still at the end of the present move.
    ///
    /// # Errors
    ///
    /// There is no move.
    fn limit_downtime(&self, limit: Duration) -> Result<(), HypervisorError>;

    /// Has the present move given up; the domain goes on here.
    ///
    /// # Errors
    ///
    /// There is no move, or it cannot be given up any more.
    fn abort_move(&self) -> Result<(), HypervisorError>;

    /// Plugs the cable of the running domain's interface with this alias, or pulls it.
    ///
    /// # Errors
    ///
    /// The domain does not run, or has no such interface.
    fn set_link(&self, alias: &str, up: bool) -> Result<(), HypervisorError>;

    /// Has the running domain's disk with this alias grow to this size in bytes, and tells the guest. Whether it did: one that is
    /// as large already stays as it is.
    ///
    /// # Errors
    ///
    /// The domain does not run, has no such disk, or the disk cannot grow.
    fn grow(&self, alias: &str, size: u64) -> Result<bool, HypervisorError>;

    /// Plugs a device, as XML, into the running domain: an interface or a disk.
    ///
    /// # Errors
    ///
    /// The domain does not run, has no slot left, or the device is refused.
    fn plug(&self, device: &str) -> Result<(), HypervisorError>;

    /// Asks the guest to let go of the interface or the disk with this alias. It is gone when the domain's XML has it no more.
    ///
    /// # Errors
    ///
    /// The domain does not run, or has no such device.
    fn unplug(&self, alias: &str) -> Result<(), HypervisorError>;

    /// Writes the memory of the running domain to the file at `place`, as a core in ELF's format. The guest stands still until it is
    /// written.
    ///
    /// # Errors
    ///
    /// The domain does not run, or the file has no room.
    fn dump(&self, place: &Path) -> Result<(), HypervisorError>;

    /// The domain's description as it can be changed for a move.
    ///
    /// # Errors
    ///
    /// There is no such domain.
    fn xml_to_move(&self) -> Result<String, HypervisorError> {
        self.xml()
    }

    /// Bytes of the disk with this alias, as the guest sees it.
    ///
    /// # Errors
    ///
    /// The domain does not run, or has no such disk.
    fn capacity(&self, alias: &str) -> Result<u64, HypervisorError>;

    /// Changes what is in the drive that is described as libvirt's XML.
    ///
    /// # Errors
    ///
    /// The domain does not run, or the guest has locked the drive.
    fn change_medium(&self, drive: &str) -> Result<(), HypervisorError>;

    /// Adds a device to the domain's set of descriptors with this number; see [`crate::fdset`].
    ///
    /// # Errors
    ///
    /// The domain does not run, or QEMU refuses.
    fn hand_over(&self, device: &File, set: u64) -> Result<(), HypervisorError>;

    /// Has the domain close what is in a set, once nothing uses it.
    ///
    /// # Errors
    ///
    /// The domain does not run, or has no such set.
    fn take_back(&self, set: u64) -> Result<(), HypervisorError>;

    /// What makes backups of the domain's disks.
    ///
    /// # Errors
    ///
    /// The hypervisor makes none.
    fn backups(&self) -> Result<&dyn Backups, HypervisorError> {
        Err(HypervisorError::Refused { action: "make a backup", message: "the hypervisor makes none".into() })
    }

    /// Keeps the running domain's definition, if it is not kept yet.
    ///
    /// # Errors
    ///
    /// The domain does not run, or its definition is refused.
    fn keep(&self) -> Result<(), HypervisorError>;
}

/// A connector to libvirt at `uri`, such as `qemu:///session`.
///
/// # Errors
///
/// The launcher was built without libvirt.
#[cfg(feature = "libvirt")]
pub fn connector(uri: &str) -> Result<Arc<dyn Connector>, HypervisorError> {
    Ok(Arc::new(libvirt::LibvirtConnector::new(uri)))
}

/// A connector to libvirt at `uri`, such as `qemu:///session`.
///
/// # Errors
///
/// The launcher was built without libvirt.
#[cfg(not(feature = "libvirt"))]
pub fn connector(uri: &str) -> Result<Arc<dyn Connector>, HypervisorError> {
    let message = format!("to {uri}: this virt-launcher was built without the feature libvirt");
    Err(HypervisorError::Refused { action: "connect", message })
}

/// A connection to libvirt at `uri` that is asked about the host.
///
/// # Errors
///
/// It does not answer (yet), or the launcher was built without libvirt.
#[cfg(feature = "libvirt")]
pub fn source(uri: &str) -> Result<Arc<dyn Source>, HypervisorError> {
    Ok(Arc::new(host::Host::open(uri)?))
}

/// A connection to libvirt at `uri` that is asked about the host.
///
/// # Errors
///
/// It does not answer (yet), or the launcher was built without libvirt.
#[cfg(not(feature = "libvirt"))]
pub fn source(uri: &str) -> Result<Arc<dyn Source>, HypervisorError> {
    let message = format!("to {uri}: this virt-launcher was built without the feature libvirt");
    Err(HypervisorError::Refused { action: "connect", message })
}
