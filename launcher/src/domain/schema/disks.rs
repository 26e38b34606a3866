//! `<disk>` and `<filesystem>`, and what stands in them.

use serde::{Deserialize, Serialize};

use super::backup::DataStore;
use super::{Boot, Flag, NameOnly, TypeOnly, unset};

elements! {
    /// `<disk>`.
    Disk {
        /// `file` or `block`.
        "@type" kind: String,
        /// `disk`, `cdrom` or `lun`.
        "@device" device: String,
        /// virtio's interface.
        "@model" model: Option<String>,
        /// Driver.
        "driver" driver: DiskDriver,
        /// File or block device; neither in an empty drive.
        "source" source: DiskSource,
        /// What lies below; an empty one says that nothing does.
        "backingStore" backing_store: Option<BackingStore>,
        /// Sizes of its blocks.
        "blockio" block_io: Option<BlockIo>,
        /// Place in the guest.
        "target" target: DiskTarget,
        /// Serial number.
        "serial" serial: Option<String>,
        /// Write protection.
        "readonly" readonly: Option<Flag>,
        /// Shared with other machines.
        "shareable" shareable: Option<Flag>,
        /// Boot order.
        "boot" boot: Option<Boot>,
        /// Name in libvirt and QEMU.
        "alias" alias: NameOnly,
        /// Where it is.
        "address" address: Option<DiskAddress>,
    }

    /// Where a disk is: a PCI address, or a place on a controller.
    DiskAddress {
        /// `pci` or `drive`.
        "@type" kind: String,
        /// PCI domain.
        "@domain" domain: String,
        /// Index of the controller.
        "@controller" controller: String,
        /// PCI bus, or the controller's.
        "@bus" bus: String,
        /// PCI slot.
        "@slot" slot: String,
        /// PCI function.
        "@function" function: String,
        /// SCSI target.
        "@target" target: String,
        /// Logical unit.
        "@unit" unit: String,
    }

    /// `<driver>` of a disk.
    DiskDriver {
        /// `qemu`.
        "@name" name: String,
        /// Format.
        "@type" format: String,
        /// Cache mode.
        "@cache" cache: Option<String>,
        /// How input and output are done.
        "@io" io: Option<String>,
        /// What happens on an error.
        "@error_policy" error_policy: Option<String>,
        /// What becomes of what the guest discards.
        "@discard" discard: Option<String>,
        /// Number of queues.
        "@queues" queues: Option<u64>,
        /// Thread that does its input and output.
        "@iothread" iothread: Option<u32>,
        /// Threads that do.
        "iothreads" iothreads: Option<DiskThreads>,
    }

    /// `<iothreads>` of a disk.
    DiskThreads {
        /// Each of them.
        "iothread" threads: Vec<DiskThread>,
    }

    /// `<iothread>` of a disk.
    DiskThread {
        /// Number, from 1.
        "@id" id: u32,
    }

    /// `<blockio>`.
    BlockIo {
        /// The smallest part that can be written, bytes.
        "@logical_block_size" logical: u64,
        /// The part that the storage writes at a time, bytes.
        "@physical_block_size" physical: u64,
        /// The smallest part that can be discarded, bytes.
        "@discard_granularity" discard: Option<u64>,
    }

    /// `<backingStore>`.
    BackingStore {
        /// `file` or `block`; nothing when nothing lies below.
        "@type" kind: Option<String>,
        /// Format.
        "format" format: Option<TypeOnly>,
        /// File or block device.
        "source" source: Option<DiskSource>,
        /// The end of the chain.
        "backingStore" end: Option<Flag>,
    }

    /// A file or a block device.
    DiskSource {
        /// Path of a file.
        "@file" file: Option<String>,
        /// Path of a block device.
        "@dev" dev: Option<String>,
        /// A part of it alone is used; which one is not read.
        "slices" part: Option<Flag>,
        /// Where the data of an overlay is.
        "dataStore" data_store: Option<DataStore>,
    }

    /// `<target>` of a disk.
    DiskTarget {
        /// Name.
        "@dev" dev: String,
        /// Bus.
        "@bus" bus: String,
        /// `open` or `closed`.
        "@tray" tray: Option<String>,
    }

    /// `<filesystem>`.
    Filesystem {
        /// `mount`.
        "@type" kind: String,
        /// `passthrough`: files have the users that they have at the other end.
        "@accessmode" access_mode: Option<String>,
        /// Driver.
        "driver" driver: FilesystemDriver,
        /// Where it is served.
        "source" source: FilesystemSource,
        /// Place in the guest.
        "target" target: FilesystemTarget,
    }

    /// `<driver>` of a file system.
    FilesystemDriver {
        /// `virtiofs`.
        "@type" kind: String,
        /// Descriptors of a ring.
        "@queue" queue: Option<u32>,
    }

    /// `<source>` of a file system.
    FilesystemSource {
        /// Socket of virtiofsd.
        "@socket" socket: String,
    }

    /// `<target>` of a file system.
    FilesystemTarget {
        /// The tag by which the guest mounts it.
        "@dir" dir: String,
    }
}
