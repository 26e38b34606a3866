//! The launcher's report of its machine: JSON in `DomainResponse.domain` and `DomainEventRequest.domainJSON`.
//!
//! It holds what virt-handler needs to write a VMI's status, in words of libvirt where libvirt has the word and of
//! `kubevirt.io/v1` where the status copies it. Every report is whole: a reader needs no earlier one, and may read
//! the same one twice. Unknown fields are ignored, absent ones have their default: the ends may be of different
//! releases. A state that a reader does not know is [`Status::NoState`].

use serde::{Deserialize, Serialize};

use crate::bounded;
use crate::migration::Migration;

/// The version of [`Domain`], as `Info` tells it.
pub const VERSION: &str = "v1";
/// Disks of a machine that are read: more than fit into one.
pub const MAX_DISKS: usize = 512;
/// Interfaces of a machine, and addresses of an interface, that are read.
pub const MAX_INTERFACES: usize = 64;

/// One machine as its launcher sees it.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Domain {
    /// Name of the VMI.
    pub name: String,
    /// Namespace of the VMI.
    pub namespace: String,
    /// UID of the VMI.
    pub uid: String,
    /// State of the machine.
    pub status: Status,
    /// libvirt's reason for the state, such as `Booted`, `User`, `Crashed` or `Panicked`; see [`reason`].
    pub reason: String,
    /// Number of this report: it grows with each one of a launcher, so that an older one is known as such.
    pub generation: u64,
    /// When the state last changed, in milliseconds since 1970.
    pub status_since_ms: u64,
    /// When the machine was started, in milliseconds since 1970; absent before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at_ms: Option<u64>,
    /// Whether the launcher was told to end (SIGTERM): the guest is to be shut down.
    pub graceful_shutdown_requested: bool,
    /// When the launcher kills the machine if it still runs then, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kill_at_ms: Option<u64>,
    /// Whether the machine ended with its pod: the launcher was told to end before the machine did, and was not told that
    /// the VMI is deleted. Why the pod ends, its status says once it has ended.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub ended_with_pod: bool,
    /// Machine type as the hypervisor resolved it, such as `pc-q35-10.1`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
    /// Memory that the guest has at present, KiB; absent before the hypervisor has told.
    #[serde(rename = "memoryKiB", skip_serializing_if = "Option::is_none")]
    pub memory_kib: Option<u64>,
    /// The machine's disks, sorted by the names of their volumes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[serde(deserialize_with = "bounded::list::<_, _, MAX_DISKS>")]
    pub disks: Vec<Disk>,
    /// Volumes whose disks the launcher has been given to plug, by name and sorted: those that are plugged among them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[serde(deserialize_with = "bounded::list::<_, _, MAX_DISKS>")]
    pub volumes: Vec<String>,
    /// What is booted directly; absent where nothing is, or before it was read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel_boot: Option<KernelBoot>,
    /// The machine's interfaces.
    #[serde(deserialize_with = "bounded::list::<_, _, MAX_INTERFACES>")]
    pub interfaces: Vec<Interface>,
    /// Whether the guest's agent answers.
    pub agent_connected: bool,
    /// The agent's version, once it answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_version: Option<String>,
    /// The guest's operating system as its agent tells it.
    #[serde(rename = "guestOSInfo", skip_serializing_if = "Option::is_none")]
    pub guest_os_info: Option<GuestOsInfo>,
    /// Whether the guest's file systems are frozen.
    pub filesystems_frozen: bool,
    /// What became of the last attempt to have the guest's agent set the machine's credentials; absent before the first one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access_credentials: Option<AccessCredentials>,
    /// The last dump of the guest's memory that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_dump: Option<MemoryDump>,
    /// The last backup of the disks that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backup: Option<Backup>,
    /// The live migration from here that runs, or was the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub migration: Option<Migration>,
    /// What the launcher waits for before there is a machine, for people; empty when it waits for nothing.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub waiting_for: String,
    /// Since when it waits for that, in milliseconds since 1970; absent when it waits for nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_since_ms: Option<u64>,
    /// What went wrong last, for people; empty when nothing did.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// A disk of a machine.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Disk {
    /// Name of its volume.
    pub name: String,
    /// The hypervisor's name for its place on its bus, such as `vda`.
    pub target: String,
    /// Bytes of the image that the launcher has made of the volume's files; absent for other volumes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub made_bytes: Option<u64>,
    /// Whether its changes are tracked.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub tracked: bool,
    /// Why it has stopped the machine ([`reason::IO_ERROR`]), for people; empty where it has not.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub error: String,
}

/// A backup of disks.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Backup {
    /// Its name.
    pub name: String,
    /// When it was asked for, in milliseconds since 1970; with the name it tells one backup from another.
    pub asked_at_ms: u64,
    /// The checkpoint that it has made.
    pub checkpoint: String,
    /// The disks that are in it.
    #[serde(deserialize_with = "bounded::list::<_, _, MAX_DISKS>")]
    pub disks: Vec<BackupDisk>,
    /// When it ended, in milliseconds since 1970; absent while it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_at_ms: Option<u64>,
    /// Whether it failed.
    pub failed: bool,
    /// Why it failed, or what is to be known of it all the same; empty otherwise.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Why the exporter that is to read it is not reached, where that lasts; empty otherwise.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub unreached: String,
}

/// A disk in a backup.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BackupDisk {
    /// Name of its volume.
    pub volume: String,
    /// The hypervisor's name for its place on its bus.
    pub target: String,
}

/// A dump of the guest's memory.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MemoryDump {
    /// Name of its file.
    pub file: String,
    /// Name of the volume that the file is on.
    pub volume: String,
    /// When it was begun, in milliseconds since 1970.
    pub started_at_ms: u64,
    /// When it ended, in milliseconds since 1970; absent while it is being written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_at_ms: Option<u64>,
    /// Why it failed; empty otherwise.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub failure: String,
}

/// A kernel that is booted directly, by the CRC-32 of its files.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct KernelBoot {
    /// The kernel's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<u32>,
    /// The initial ram disk's; absent where there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initrd: Option<u32>,
}

/// What became of credentials of the guest's users.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AccessCredentials {
    /// Whether the guest has them.
    pub synchronized: bool,
    /// Why not.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// State of a machine, named as KubeVirt names libvirt's states.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, Hash, PartialEq, Serialize)]
pub enum Status {
    /// The guest runs.
    Running,
    /// The guest waits for something outside it.
    Blocked,
    /// The virtual CPUs stand still.
    Paused,
    /// The guest is going down.
    Shutdown,
    /// The machine has ended.
    Shutoff,
    /// The machine has ended, though no user or program asked for it.
    Crashed,
    /// The guest sleeps.
    PMSuspended,
    /// There is none yet, or one that this release does not know.
    #[default]
    #[serde(other)]
    NoState,
}

impl Status {
    /// Whether the machine has ended: no state follows.
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Shutoff | Self::Crashed)
    }

    /// Whether there is a machine: a process that holds the guest's memory.
    #[must_use]
    pub const fn is_active(self) -> bool {
        matches!(self, Self::Running | Self::Blocked | Self::Paused | Self::Shutdown | Self::PMSuspended)
    }
}

/// Words of [`Domain::reason`]. For final states they decide between the phases Succeeded and Failed.
pub mod reason {
    /// The guest powered itself off, or obeyed the request to.
    pub const SHUTDOWN: &str = "Shutdown";
    /// The machine was killed: its grace period had passed, or a client asked for it.
    pub const DESTROYED: &str = "Destroyed";
    /// QEMU has died.
    pub const CRASHED: &str = "Crashed";
    /// The guest's kernel has panicked and its panic device said so.
    pub const PANICKED: &str = "Panicked";
    /// The machine could not be started.
    pub const FAILED: &str = "Failed";
    /// The machine was saved to a file.
    pub const SAVED: &str = "Saved";
    /// The machine has moved to another node; of one that runs: from another node.
    pub const MIGRATED: &str = "Migrated";
    /// Paused because a user asked for it, or because the VMI starts paused.
    pub const USER: &str = "User";
    /// Paused because a disk failed.
    pub const IO_ERROR: &str = "IOError";
    /// Paused for a live migration.
    pub const MIGRATION: &str = "Migration";
    /// Paused while its memory is being dumped.
    pub const DUMP: &str = "Dump";
    /// Paused while it is being started.
    pub const STARTING_UP: &str = "StartingUp";
    /// Running since it was started.
    pub const BOOTED: &str = "Booted";
    /// Running after a pause.
    pub const UNPAUSED: &str = "Unpaused";
    /// No reason was given.
    pub const UNKNOWN: &str = "Unknown";
}

/// Where an interface's facts come from: words of `status.interfaces[].infoSource`, joined by `, `.
pub mod info_source {
    /// The machine's own definition, and the pod's addresses that lead to it.
    pub const DOMAIN: &str = "domain";
    /// The guest's agent.
    pub const GUEST_AGENT: &str = "guest-agent";
}

/// One of the machine's interfaces; the fields are those of `VirtualMachineInstanceNetworkInterface`.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Interface {
    /// Name in `spec.domain.devices.interfaces`; empty for one that only the guest knows of.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Ethernet address.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mac: String,
    /// First of the addresses.
    #[serde(rename = "ipAddress", skip_serializing_if = "String::is_empty")]
    pub ip: String,
    /// Addresses by which the guest is reached, without link-local ones; IPv4 first when the pod's first is one.
    #[serde(rename = "ipAddresses", skip_serializing_if = "Vec::is_empty")]
    #[serde(deserialize_with = "bounded::list::<_, _, MAX_INTERFACES>")]
    pub ips: Vec<String>,
    /// Name in the guest, as its agent tells it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub interface_name: String,
    /// Name in the pod.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub pod_interface_name: String,
    /// Where this comes from; see [`info_source`].
    #[serde(skip_serializing_if = "String::is_empty")]
    pub info_source: String,
    /// Number of queue pairs; 0 when it is not known.
    #[serde(skip_serializing_if = "is_zero")]
    pub queue_count: i32,
    /// `up` or `down`; empty when it is not known.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub link_state: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
const fn is_zero(count: &i32) -> bool {
    *count == 0
}

/// `VirtualMachineInstanceGuestOSInfo` of `kubevirt.io/v1`.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GuestOsInfo {
    /// Name of the system, such as `Debian GNU/Linux`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Release of the kernel, such as `6.12.9-amd64`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kernel_release: String,
    /// Version of the system, such as `13 (trixie)`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// Name and version for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub pretty_name: String,
    /// Version as a number.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub version_id: String,
    /// Version of the kernel.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kernel_version: String,
    /// Architecture, such as `x86_64`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub machine: String,
    /// Name for programs, such as `debian`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub id: String,
}

/// What happened to a machine, in `DomainEventRequest.eventType`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum EventType {
    /// It is there now.
    Added,
    /// It has changed.
    Modified,
    /// It is gone.
    Deleted,
}

impl EventType {
    /// The word on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted => "DELETED",
        }
    }

    /// Reads the word on the wire; absent when it is not one of these.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Added, Self::Modified, Self::Deleted].into_iter().find(|known| known.as_str() == word)
    }
}

/// An event for the VMI's user: JSON in `K8sEventRequest.eventJSON`.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub struct K8sEvent {
    /// `Normal` or `Warning`.
    #[serde(rename = "type")]
    pub kind: String,
    /// A word for programs.
    pub reason: String,
    /// A sentence for people.
    pub message: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_survives_the_wire() {
        let domain = Domain {
            name: "a".into(),
            namespace: "n".into(),
            uid: "u".into(),
            status: Status::Paused,
            reason: reason::USER.into(),
            generation: 3,
            interfaces: vec![Interface {
                name: "default".into(),
                ips: vec!["10.0.0.1".into()],
                ..Default::default()
            }],
            guest_os_info: Some(GuestOsInfo { id: "debian".into(), ..Default::default() }),
            ..Domain::default()
        };
        let text = serde_json::to_string(&domain).expect("serialises");
        assert!(
            text.contains(r#""status":"Paused""#) && text.contains(r#""guestOSInfo":{"id":"debian"}"#),
            "{text}"
        );
        assert!(text.contains(r#""gracefulShutdownRequested":false"#), "{text}");
        assert_eq!(serde_json::from_str::<Domain>(&text).expect("parses"), domain);
    }

    #[test]
    fn a_newer_reports_words_do_not_break_an_older_reader() {
        let text = r#"{"name":"a","status":"Dreaming","added":{"later":1}}"#;
        let domain: Domain = serde_json::from_str(text).expect("parses");
        assert_eq!((domain.name.as_str(), domain.status), ("a", Status::NoState));
    }

    #[test]
    fn an_end_with_the_pod_is_on_the_wire_only_where_there_is_one() {
        let mut domain = Domain { status: Status::Shutoff, ..Domain::default() };
        let text = serde_json::to_string(&domain).expect("serialises");
        assert!(!text.contains("endedWithPod"), "{text}");
        assert_eq!(serde_json::from_str::<Domain>(&text).expect("parses"), domain, "an older launcher's");
        domain.ended_with_pod = true;
        let text = serde_json::to_string(&domain).expect("serialises");
        assert!(text.contains(r#""endedWithPod":true"#), "{text}");
        assert_eq!(serde_json::from_str::<Domain>(&text).expect("parses"), domain);
    }

    #[test]
    fn event_types_are_read_as_they_are_written() {
        for kind in [EventType::Added, EventType::Modified, EventType::Deleted] {
            assert_eq!(EventType::parse(kind.as_str()), Some(kind));
        }
        assert_eq!(EventType::parse("BOOKMARK"), None);
    }
}
