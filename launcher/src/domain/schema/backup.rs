//! What backups stand on: the data below a disk's overlay (`<dataStore>`), what is copied (`<domainbackup>`), and from when on changes are
//! tracked for the next copy (`<domaincheckpoint>`).

use serde::{Deserialize, Serialize};

use super::{TypeOnly, unset};

elements! {
    /// `<dataStore>`: the external data file of a qcow2 image.
    DataStore {
        /// `file` or `block`.
        "@type" kind: String,
        /// Format of the data.
        "format" format: TypeOnly,
        /// The file or block device.
        "source" source: DataSource,
    }

    /// `<source>` of a data store.
    DataSource {
        /// Path of a file.
        "@file" file: Option<String>,
        /// Path of a block device.
        "@dev" dev: Option<String>,
    }

    /// `<domainbackup>`.
    Backup {
        /// `push`: the hypervisor writes; `pull`: it offers the disks to be read.
        "@mode" mode: String,
        /// The checkpoint since which changes are copied; none: everything is.
        "incremental" incremental: Option<String>,
        /// Where the disks are offered, in pull mode.
        "server" server: Option<BackupServer>,
        /// The disks.
        "disks" disks: BackupDisks,
    }

    /// `<server>` of a backup: an NBD server.
    BackupServer {
        /// `unix`.
        "@transport" transport: String,
        /// Path of its socket.
        "@socket" socket: String,
    }

    /// `<disks>` of a backup.
    BackupDisks {
        /// Each.
        "disk" all: Vec<BackupDisk>,
    }

    /// `<disk>` of a backup.
    BackupDisk {
        /// Place on its bus, such as `vda`.
        "@name" name: String,
        /// `yes` or `no`.
        "@backup" backup: String,
        /// `file`.
        "@type" kind: Option<String>,
        /// `full`: all of it is copied, whatever the others are.
        "@backupmode" backup_mode: Option<String>,
        /// Name under which it is offered, in pull mode.
        "@exportname" export_name: Option<String>,
        /// Name of the bitmap of what has changed, where it is offered.
        "@exportbitmap" export_bitmap: Option<String>,
        /// Where the copy goes, in push mode.
        "target" target: Option<BackupFile>,
        /// Where that goes, in pull mode, which the guest overwrites meanwhile.
        "scratch" scratch: Option<BackupFile>,
        /// Format of the file.
        "driver" driver: Option<TypeOnly>,
    }

    /// `<target>` or `<scratch>` of a backup's disk.
    BackupFile {
        /// A file, which is made.
        "@file" file: String,
    }

    /// `<domaincheckpoint>`.
    Checkpoint {
        /// Name.
        "name" name: String,
        /// When it was made, in seconds since 1970; of one that is made known again.
        "creationTime" creation_time: Option<i64>,
        /// The disks.
        "disks" disks: CheckpointDisks,
    }

    /// `<disks>` of a checkpoint.
    CheckpointDisks {
        /// Each.
        "disk" all: Vec<CheckpointDisk>,
    }

    /// `<disk>` of a checkpoint.
    CheckpointDisk {
        /// Place on its bus.
        "@name" name: String,
        /// `bitmap` or `no`.
        "@checkpoint" checkpoint: String,
    }
}

impl Backup {
    /// The element, as libvirt reads it.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    pub fn to_xml(&self) -> Result<String, quick_xml::SeError> {
        quick_xml::se::to_string_with_root("domainbackup", self)
    }
}

impl Checkpoint {
    /// The element, as libvirt reads it.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    pub fn to_xml(&self) -> Result<String, quick_xml::SeError> {
        quick_xml::se::to_string_with_root("domaincheckpoint", self)
    }
}
