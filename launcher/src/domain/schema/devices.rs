//! `<devices>` and what stands in it.

use serde::{Deserialize, Serialize};

use super::{Disk, Filesystem, Interface, NameOnly, SocketSource, TypeOnly, unset};

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

    /// `<controller>`.
    Controller {
        /// Bus.
        "@type" kind: String,
        /// Number.
        "@index" index: String,
        /// Model.
        "@model" model: Option<String>,
        /// Of a bus of channels: how many it has room for, the first of which is a console's.
        "@ports" ports: Option<String>,
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
        /// `connected` when a program in the guest has opened it; only in what libvirt wrote.
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
