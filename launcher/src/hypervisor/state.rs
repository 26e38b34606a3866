//! libvirt's states of a domain, and their reasons, by its numbers.

use podvirt_proto::domain::{Status, reason};
use virt::sys;

use super::{DomainStatus, Stopped};

/// A domain's state and reason, by libvirt's numbers.
pub(super) fn status(state: sys::virDomainState, number: u32) -> DomainStatus {
    let (status, reason) = match state {
        sys::VIR_DOMAIN_RUNNING => (
            Status::Running,
            match number {
                sys::VIR_DOMAIN_RUNNING_BOOTED => reason::BOOTED,
                sys::VIR_DOMAIN_RUNNING_MIGRATED => reason::MIGRATED,
                sys::VIR_DOMAIN_RUNNING_UNPAUSED => reason::UNPAUSED,
                sys::VIR_DOMAIN_RUNNING_WAKEUP => "Wakeup",
                sys::VIR_DOMAIN_RUNNING_CRASHED => reason::CRASHED,
                _ => reason::UNKNOWN,
            },
        ),
        sys::VIR_DOMAIN_BLOCKED => (Status::Blocked, reason::UNKNOWN),
        sys::VIR_DOMAIN_PAUSED => (
            Status::Paused,
            match number {
                sys::VIR_DOMAIN_PAUSED_USER => reason::USER,
                sys::VIR_DOMAIN_PAUSED_MIGRATION => reason::MIGRATION,
                sys::VIR_DOMAIN_PAUSED_SAVE => "Save",
                sys::VIR_DOMAIN_PAUSED_DUMP => reason::DUMP,
                sys::VIR_DOMAIN_PAUSED_IOERROR => reason::IO_ERROR,
                sys::VIR_DOMAIN_PAUSED_WATCHDOG => "Watchdog",
                sys::VIR_DOMAIN_PAUSED_SHUTTING_DOWN => "ShuttingDown",
                sys::VIR_DOMAIN_PAUSED_SNAPSHOT => "Snapshot",
                sys::VIR_DOMAIN_PAUSED_CRASHED => reason::CRASHED,
                sys::VIR_DOMAIN_PAUSED_STARTING_UP => reason::STARTING_UP,
                sys::VIR_DOMAIN_PAUSED_POSTCOPY => "Postcopy",
                sys::VIR_DOMAIN_PAUSED_POSTCOPY_FAILED => "PostcopyFailed",
                _ => reason::UNKNOWN,
            },
        ),
        sys::VIR_DOMAIN_SHUTDOWN => (Status::Shutdown, reason::UNKNOWN),
        sys::VIR_DOMAIN_SHUTOFF => (
            Status::Shutoff,
            match number {
                sys::VIR_DOMAIN_SHUTOFF_SHUTDOWN => reason::SHUTDOWN,
                sys::VIR_DOMAIN_SHUTOFF_DESTROYED => reason::DESTROYED,
                sys::VIR_DOMAIN_SHUTOFF_CRASHED => reason::CRASHED,
                sys::VIR_DOMAIN_SHUTOFF_MIGRATED => reason::MIGRATED,
                sys::VIR_DOMAIN_SHUTOFF_SAVED => reason::SAVED,
                sys::VIR_DOMAIN_SHUTOFF_FAILED | sys::VIR_DOMAIN_SHUTOFF_DAEMON => reason::FAILED,
                _ => reason::UNKNOWN,
            },
        ),
        sys::VIR_DOMAIN_CRASHED if number == sys::VIR_DOMAIN_CRASHED_PANICKED => {
            (Status::Crashed, reason::PANICKED)
        }
        sys::VIR_DOMAIN_CRASHED => (Status::Crashed, reason::CRASHED),
        sys::VIR_DOMAIN_PMSUSPENDED => (Status::PMSuspended, reason::UNKNOWN),
        _ => (Status::NoState, reason::UNKNOWN),
    };
    DomainStatus { status, reason }
}

/// How a domain ended, by libvirt's number.
pub(super) fn shutoff(reason: i32) -> Stopped {
    match u32::try_from(reason).unwrap_or(0) {
        sys::VIR_DOMAIN_SHUTOFF_SHUTDOWN => Stopped::Shutdown,
        sys::VIR_DOMAIN_SHUTOFF_DESTROYED => Stopped::Destroyed,
        sys::VIR_DOMAIN_SHUTOFF_CRASHED => Stopped::Crashed,
        sys::VIR_DOMAIN_SHUTOFF_MIGRATED => Stopped::Migrated,
        sys::VIR_DOMAIN_SHUTOFF_SAVED => Stopped::Saved,
        // DAEMON: libvirt found at its own start that QEMU was gone; how QEMU ended is not known.
        sys::VIR_DOMAIN_SHUTOFF_FAILED | sys::VIR_DOMAIN_SHUTOFF_DAEMON => Stopped::Failed,
        _ => Stopped::Unknown,
    }
}
