//! What a live migration says between handler and launcher: options, sockets, the report.
//!
//! The two launchers of a migration never see each other's node: each has UNIX sockets in its own pod, and the
//! handlers carry the bytes between them.
//!
//! ```text
//!  source pod                        source node      target node                    target pod
//!  libvirtd ─> migration-<uid>-0     ─> handler ═ TLS ═ handler ─> libvirt's socket ─> libvirtd
//!  libvirtd ─> migration-<uid>-49152 ─> handler ═ TLS ═ handler ─> migration-<uid>-49152 ─> QEMU, incoming
//!  QEMU     ─> migration-<uid>-49153 ─> handler ═ TLS ═ handler ─> migration-<uid>-49153 ─> QEMU, disks
//!  launcher ─> migration-<uid>-49154 ─> handler ═ TLS ═ handler ─> migration-word        ─> launcher
//! ```
//!
//! libvirt gives both ends one address, hence the same name in both pods. What the launchers say to each other is in
//! [`word`].

use serde::{Deserialize, Serialize};

/// Logical ports of a migration: numbers that `migrationState.targetDirectMigrationNodePorts` has for TCP ports.
pub mod port {
    /// libvirt's socket.
    pub const LIBVIRT: u16 = 0;
    /// The machine's memory and state.
    pub const DIRECT: u16 = 49152;
    /// Disks that the nodes do not share.
    pub const BLOCK: u16 = 49153;
    /// What the launchers say to each other.
    pub const WORD: u16 = 49154;
    /// All of them.
    pub const ALL: [u16; 4] = [LIBVIRT, DIRECT, BLOCK, WORD];
}

/// What two launchers say to each other, a line each. The machine comes to the target and stands still there until the
/// source has given its word that it will not run at the source any more.
pub mod word {
    /// Socket of a launcher that waits for a machine, in its pod's directory of public sockets.
    pub const SOCKET: &str = "migration-word.sock";
    /// First, by the source: it will give its word. The target answers with the same, or not at all.
    pub const HELLO: &str = "podvirt-word 1";
    /// Source, before anything moves: a disk that moves to another claim, with its volume and its bytes after it. The target answers
    /// with the same word once the claim has room for it, or with [`REFUSED`].
    pub const DISK: &str = "disk";
    /// Target: why a disk cannot come, after it.
    pub const REFUSED: &str = "refused";
    /// Target: all of the machine is here.
    pub const READY: &str = "ready";
    /// Source: it does not run here any more; let it run.
    pub const RUN: &str = "run";
    /// Source: the same, of a machine that a user has paused; it is to stay so.
    pub const PAUSED: &str = "paused";
}

/// Longest UID of a migration object that has sockets: their paths have at most 107 bytes.
const MAX_UID: usize = 48;

/// Name of the socket of a logical port, in a launcher pod's directory of public sockets. None for what is no UID.
#[must_use]
pub fn socket_name(migration_uid: &str, port: u16) -> Option<String> {
    let fits = (1..=MAX_UID).contains(&migration_uid.len());
    let is_uid = fits && migration_uid.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    is_uid.then(|| format!("migration-{migration_uid}-{port}.sock"))
}

/// How a migration is carried out: JSON in `MigrationRequest.options`.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Options {
    /// UID of the migration object.
    pub migration_uid: String,
    /// Bytes per second that are sent at most; 0: as fast as it goes.
    pub bandwidth: u64,
    /// Seconds without progress after which it is given up; 0: never.
    pub progress_timeout: u64,
    /// Seconds for each GiB of memory and copied disks after which it is given up; 0: never.
    #[serde(rename = "completionTimeoutPerGiB")]
    pub completion_timeout_per_gib: u64,
    /// Milliseconds that the guest may stand still at the end, at most: it begins with less; 0: the hypervisor's choice.
    pub max_downtime_ms: u64,
    /// Whether a guest that writes faster than it is copied is slowed down.
    pub allow_auto_converge: bool,
    /// Whether the guest may be made to stand still when time is up, in place of giving up.
    pub allow_workload_disruption: bool,
    /// Whether disks are taken for shared that the hypervisor does not know as such.
    #[serde(rename = "unsafe")]
    pub is_unsafe: bool,
}

/// What a source's launcher reports of its migration: `Domain.migration`.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Migration {
    /// UID of the migration object.
    pub uid: String,
    /// When it began, milliseconds since 1970.
    pub start_timestamp_ms: u64,
    /// When it was over, milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_timestamp_ms: Option<u64>,
    /// Whether it is over, well or not.
    pub completed: bool,
    /// Whether it came to nothing: the machine runs where it was.
    pub failed: bool,
    /// Why, for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub failure_reason: String,
    /// What became of the wish to abort it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub abort_status: Option<AbortStatus>,
    /// How memory is copied.
    pub mode: Mode,
    /// How far it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
}

impl Migration {
    /// Whether the copying goes on.
    #[must_use]
    pub const fn is_running(&self) -> bool {
        !self.completed
    }
}

/// What became of the wish to abort a migration; words of `migrationState.abortStatus`.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum AbortStatus {
    /// It is being aborted.
    Aborting,
    /// It was aborted.
    Succeeded,
    /// It was too late.
    #[serde(other)]
    Failed,
}

/// How memory is copied; words of `migrationState.mode`.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub enum Mode {
    /// The guest was made to stand still, for time was up.
    Paused,
    /// While the guest runs.
    #[default]
    #[serde(other)]
    PreCopy,
}

/// How far a migration is.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Progress {
    /// Bytes of memory and disks in all.
    pub total: u64,
    /// Bytes sent.
    pub processed: u64,
    /// Bytes left, as of now: the guest adds to them.
    pub remaining: u64,
    /// Bytes per second that the guest writes anew.
    pub dirty_rate: u64,
    /// Bytes per second that are sent.
    pub transfer_rate: u64,
    /// How often the copying has gone over the memory, the present time included.
    pub iteration: u64,
    /// Milliseconds that the guest stands or stood still, as far as the hypervisor knows.
    pub downtime_ms: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_has_a_short_name_that_leads_nowhere_else() {
        let uid = "6d2c2c5e-1c7e-4a53-8a5b-0f5f5b5f5b5f";
        let name = socket_name(uid, port::BLOCK).expect("a UID");
        assert_eq!(name, format!("migration-{uid}-49153.sock"));
        assert!("/var/run/kubevirt/".len() + socket_name(&"a".repeat(48), 49153).expect("fits").len() <= 107);
        for none in ["", "../../x", "a b", &"a".repeat(49)] {
            assert_eq!(socket_name(none, 0), None, "{none}");
        }
    }

    #[test]
    fn options_have_the_names_of_the_cluster_configuration() {
        let text = r#"{"migrationUid":"u","completionTimeoutPerGiB":150,"unsafe":true,"later":1}"#;
        let options: Options = serde_json::from_str(text).expect("parses");
        assert_eq!(options.completion_timeout_per_gib, 150);
        assert!(options.is_unsafe && !options.allow_auto_converge);
    }

    #[test]
    fn words_of_tomorrow_are_read() {
        let text = r#"{"uid":"u","mode":"PostCopy","abortStatus":"Maybe"}"#;
        let migration: Migration = serde_json::from_str(text).expect("parses");
        assert_eq!((migration.mode, migration.abort_status), (Mode::PreCopy, Some(AbortStatus::Failed)));
        assert!(migration.is_running());
    }
}
