//! `<devices>` and what stands in it.

use serde::{Deserialize, Serialize};

use super::backup::DataStore;
use super::{Flag, NameOnly, StateOnly, TypeOnly, unset};

elements! {
    /// `<devices>`.
    Devices {
        /// Disks.
        "disk" disks: Vec<Disk>,
        /// File systems.
        "filesystem" filesystems: Vec<Filesystem>,
        /// Controllers.
        "controller" controllers: Vec<Controller>,
        /// Network interfaces.
        "interface" interfaces: Vec<Interface>,
        /// Devices of the node.
        "hostdev" host_devices: Vec<HostDevice>,
        /// Serial ports.
        "serial" serials: Vec<Serial>,
        /// Channels to the guest.
        "channel" channels: Vec<Channel>,
        /// Input devices.
        "input" inputs: Vec<Input>,
        /// Trusted platform modules.
        "tpm" tpms: Vec<Tpm>,
        /// Displays.
        "graphics" graphics: Vec<Graphics>,
        /// Graphics cards.
        "video" videos: Vec<Video>,
        /// Watchdogs.
        "watchdog" watchdogs: Vec<Watchdog>,
        /// Memory balloon.
        "memballoon" memballoon: Option<MemBalloon>,
        /// Sources of random numbers.
        "rng" rngs: Vec<Rng>,
        /// Crash notifiers.
        "panic" panics: Vec<Model>,
    }

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

    /// `<boot>`.
    Boot {
        /// Place, from 1.
        "@order" order: u32,
    }

    /// A PCI address.
    PciAddress {
        /// `pci`.
        "@type" kind: String,
        /// Domain.
        "@domain" domain: String,
        /// Bus.
        "@bus" bus: String,
        /// Slot.
        "@slot" slot: String,
        /// Function.
        "@function" function: String,
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

    /// `<controller>`.
    Controller {
        /// Bus.
        "@type" kind: String,
        /// Number.
        "@index" index: String,
        /// Model.
        "@model" model: Option<String>,
        /// Of the root of the PCI buses: addresses above 4 GiB that the firmware keeps for devices.
        "pcihole64" pci_hole64: Option<PciHole>,
    }

    /// A part of the guest's physical addresses.
    PciHole {
        /// Unit of the size.
        "@unit" unit: String,
        /// Size; `0` is one as well.
        "$text" size: String,
    }

    /// `<interface>`.
    Interface {
        /// `vhostuser` or `ethernet`.
        "@type" kind: String,
        /// Ethernet address.
        "mac" mac: Mac,
        /// Largest packet.
        "mtu" mtu: Option<Mtu>,
        /// Socket of `vhostuser`.
        "source" source: Option<SocketSource>,
        /// Tap device of `ethernet`.
        "target" target: Option<TapTarget>,
        /// Model.
        "model" model: TypeOnly,
        /// Queues.
        "driver" driver: Option<InterfaceDriver>,
        /// Link.
        "link" link: Option<StateOnly>,
        /// Boot order.
        "boot" boot: Option<Boot>,
        /// Boot code on the card.
        "rom" rom: Option<Rom>,
        /// Index that gives the interface its name in the guest.
        "acpi" acpi: Option<AcpiIndex>,
        /// Name in libvirt and QEMU.
        "alias" alias: NameOnly,
        /// PCI address.
        "address" address: Option<PciAddress>,
    }

    /// `<mtu>`.
    Mtu {
        /// Bytes.
        "@size" size: u32,
    }

    /// `<target>` of an interface.
    TapTarget {
        /// Name of the tap device.
        "@dev" dev: String,
        /// `no`: it is there already.
        "@managed" managed: String,
    }

    /// `<mac>`.
    Mac {
        /// Address.
        "@address" address: String,
    }

    /// A UNIX socket.
    SocketSource {
        /// `unix`, where it has to be said.
        "@type" kind: Option<String>,
        /// Path.
        "@path" path: String,
        /// `client`, `bind`.
        "@mode" mode: String,
        /// Whether to connect again.
        "reconnect" reconnect: Option<Reconnect>,
    }

    /// `<reconnect>`.
    Reconnect {
        /// `yes` or `no`.
        "@enabled" enabled: String,
        /// Seconds between attempts.
        "@timeout" timeout: u32,
    }

    /// `<driver>` of an interface.
    InterfaceDriver {
        /// Queue pairs.
        "@queues" queues: Option<u64>,
        /// Descriptors of a receive ring.
        "@rx_queue_size" rx_queue_size: Option<u32>,
        /// Descriptors of a transmit ring.
        "@tx_queue_size" tx_queue_size: Option<u32>,
    }

    /// `<hostdev>`.
    HostDevice {
        /// `subsystem`.
        "@mode" mode: String,
        /// `pci`.
        "@type" kind: String,
        /// `no`: it is bound to its driver already.
        "@managed" managed: String,
        /// The device.
        "source" source: HostDeviceSource,
        /// Boot order.
        "boot" boot: Option<Boot>,
        /// Name in libvirt and QEMU.
        "alias" alias: NameOnly,
        /// PCI address in the guest.
        "address" address: Option<PciAddress>,
    }

    /// `<source>` of a device of the node.
    HostDeviceSource {
        /// Its PCI address on the node.
        "address" address: PciAddress,
    }

    /// `<rom>`.
    Rom {
        /// `yes` or `no`.
        "@enabled" enabled: String,
    }

    /// `<acpi index>`.
    AcpiIndex {
        /// Index.
        "@index" index: i64,
    }

    /// `<serial>`.
    Serial {
        /// `unix`.
        "@type" kind: String,
        /// Socket.
        "source" source: SocketSource,
        /// Copy of what the guest sends.
        "log" log: Option<Log>,
        /// Port.
        "target" target: Port,
        /// Name in libvirt and QEMU.
        "alias" alias: NameOnly,
    }

    /// `<log>`.
    Log {
        /// File.
        "@file" file: String,
        /// `on` or `off`.
        "@append" append: String,
    }

    /// A port's number.
    Port {
        /// Number.
        "@port" port: String,
    }

    /// `<channel>`.
    Channel {
        /// `unix`.
        "@type" kind: String,
        /// Socket; libvirt chooses one where none is given.
        "source" source: Option<SocketSource>,
        /// Place in the guest.
        "target" target: ChannelTarget,
    }

    /// `<target>` of a channel.
    ChannelTarget {
        /// `virtio`.
        "@type" kind: String,
        /// Name.
        "@name" name: String,
        /// `connected` when somebody in the guest has opened it; only in what libvirt wrote.
        "@state" state: Option<String>,
    }

    /// `<input>`.
    Input {
        /// What it is.
        "@type" kind: String,
        /// Bus.
        "@bus" bus: String,
        /// virtio's interface.
        "@model" model: Option<String>,
        /// Name in libvirt and QEMU.
        "alias" alias: NameOnly,
    }

    /// `<graphics>`.
    Graphics {
        /// `vnc`.
        "@type" kind: String,
        /// Socket.
        "listen" listen: Listen,
    }

    /// `<listen>`.
    Listen {
        /// `socket`.
        "@type" kind: String,
        /// Path.
        "@socket" socket: String,
    }

    /// `<video>`.
    Video {
        /// Model.
        "model" model: TypeOnly,
    }

    /// `<tpm>`.
    Tpm {
        /// Model.
        "@model" model: String,
        /// What is behind it.
        "backend" backend: TpmBackend,
    }

    /// `<backend>` of a TPM.
    TpmBackend {
        /// `emulator`.
        "@type" kind: String,
        /// Version of the specification.
        "@version" version: String,
        /// `yes`: what it holds outlives the domain.
        "@persistent_state" persistent_state: Option<String>,
    }

    /// `<watchdog>`.
    Watchdog {
        /// Model.
        "@model" model: String,
        /// What it does.
        "@action" action: String,
        /// Name in libvirt and QEMU.
        "alias" alias: NameOnly,
    }

    /// `<memballoon>`.
    MemBalloon {
        /// `virtio` or one of its kinds, or `none`.
        "@model" model: String,
        /// What the guest tells of its memory.
        "stats" stats: Option<BalloonStats>,
    }

    /// `<stats>` of a memory balloon.
    BalloonStats {
        /// Seconds between two reports of the guest.
        "@period" period: u32,
    }

    /// An element with only a model.
    Model {
        /// Model.
        "@model" model: String,
    }

    /// `<rng>`.
    Rng {
        /// virtio's interface.
        "@model" model: String,
        /// Source.
        "backend" backend: RngBackend,
    }

    /// `<backend>` of a source of random numbers.
    RngBackend {
        /// `random`.
        "@model" model: String,
        /// File.
        "$text" file: String,
    }
}
