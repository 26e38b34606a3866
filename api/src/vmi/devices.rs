//! Devices.

use super::domain::FeatureState;

impl Tpm {
    /// Whether there is one.
    pub fn is_on(&self) -> bool {
        self.enabled.unwrap_or(true)
    }

    /// Whether what it holds is kept.
    pub fn is_kept(&self) -> bool {
        self.is_on() && self.persistent == Some(true)
    }
}

objects! {
    /// Devices.
    Devices {
        /// Offer the legacy virtio interface to old guests.
        use_virtio_transitional: Option<bool>,
        /// Disks.
        disks: Vec<Disk>,
        /// File systems.
        filesystems: Vec<Filesystem>,
        /// Watchdog.
        watchdog: Option<Watchdog>,
        /// Network interfaces.
        interfaces: Vec<Interface>,
        /// Input devices.
        inputs: Vec<Input>,
        /// Give the guest an interface on the pod's network when it lists none.
        autoattach_pod_interface: Option<bool>,
        /// Give the guest a graphics device.
        autoattach_graphics_device: Option<bool>,
        /// Give the guest a serial console.
        autoattach_serial_console: Option<bool>,
        /// Write what the guest sends to the serial console into a file.
        log_serial_console: Option<bool>,
        /// Give the guest a memory balloon.
        autoattach_mem_balloon: Option<bool>,
        /// Give the guest a tablet when it lists no input device.
        autoattach_input_device: Option<bool>,
        /// Source of random numbers.
        rng: Option<Rng>,
        /// As many queues for each virtio disk as there are processors.
        block_multi_queue: Option<bool>,
        /// As many queue pairs for each virtio interface as there are processors.
        network_interface_multiqueue: Option<bool>,
        /// Devices by which the guest tells that it crashed.
        panic_devices: Vec<PanicDevice>,
        /// Graphics card.
        video: Option<VideoDevice>,
        /// Trusted platform module.
        tpm: Option<Tpm>,
        /// A serial port by which the guest asks for what its node and itself use.
        downward_metrics: Option<DownwardMetrics>,
    }

    /// A serial port by which the guest asks for what its node and itself use.
    DownwardMetrics {}

    /// A file system: how the guest sees the files of the volume of the same name.
    Filesystem {
        /// Name, that of its volume; the tag by which the guest mounts it.
        name: String,
        /// By virtiofs.
        virtiofs: Option<FilesystemVirtiofs>,
    }

    /// A file system by virtiofs.
    FilesystemVirtiofs {}

    /// Trusted platform module.
    Tpm {
        /// Whether there is one; on when not set.
        enabled: Option<bool>,
        /// Keep what it holds when the machine ends.
        persistent: Option<bool>,
    }

    /// A disk: how the guest sees the volume of the same name.
    Disk {
        /// Name, that of its volume.
        name: String,
        /// As a hard disk.
        disk: Option<DiskTarget>,
        /// As a CD-ROM.
        cdrom: Option<CdRomTarget>,
        /// As a SCSI device of the node, which takes the guest's SCSI commands.
        lun: Option<LunTarget>,
        /// Place in the boot order, from 1.
        boot_order: Option<u32>,
        /// Serial number.
        serial: String,
        /// Cache mode.
        cache: Option<DriverCache>,
        /// How QEMU does its input and output.
        io: Option<DriverIo>,
        /// Whether other machines may write it at the same time.
        shareable: Option<bool>,
        /// What happens on an error.
        error_policy: Option<DiskErrorPolicy>,
        /// Whether a thread of its own does its input and output.
        #[serde(rename = "dedicatedIOThread")]
        dedicated_io_thread: Option<bool>,
        /// Sizes of its blocks.
        block_size: Option<BlockSize>,
    }

    /// Sizes of a disk's blocks.
    BlockSize {
        /// These.
        custom: Option<CustomBlockSize>,
        /// Those of its volume.
        match_volume: Option<FeatureState>,
    }

    /// Sizes of a disk's blocks, in bytes.
    CustomBlockSize {
        /// The smallest part that can be written.
        logical: u32,
        /// The part that the storage writes at a time.
        physical: u32,
        /// The smallest part that can be discarded.
        discard_granularity: Option<u32>,
    }

    /// A hard disk.
    DiskTarget {
        /// Bus.
        bus: Option<DiskBus>,
        /// Whether the guest may only read.
        readonly: bool,
        /// PCI address, for virtio.
        pci_address: String,
    }

    /// A SCSI device of the node.
    LunTarget {
        /// Bus.
        bus: Option<DiskBus>,
        /// Whether the guest may only read.
        readonly: bool,
        /// Whether the guest may reserve it for itself.
        reservation: bool,
    }

    /// A CD-ROM.
    CdRomTarget {
        /// Bus.
        bus: Option<DiskBus>,
        /// Whether the guest may only read; it may.
        readonly: Option<bool>,
        /// The tray's state.
        tray: Option<TrayState>,
    }

    /// Watchdog.
    Watchdog {
        /// Name.
        name: String,
        /// Intel's 6300ESB.
        i6300esb: Option<I6300EsbWatchdog>,
    }

    /// Intel's 6300ESB.
    I6300EsbWatchdog {
        /// What happens when it is not fed; `reset` when not set.
        action: Option<WatchdogAction>,
    }

    /// A network interface.
    Interface {
        /// Name, that of its network.
        name: String,
        /// Model; `virtio` when not set.
        model: String,
        /// Served by netd. The name is upstream's.
        passt_binding: Option<InterfacePasstBinding>,
        /// Served by netd behind addresses of the guest's own: 10.0.2.2 and fd10:0:2::2, or what the network says.
        masquerade: Option<InterfaceMasquerade>,
        /// The guest is a host of its own on a network of Multus.
        bridge: Option<InterfaceBridge>,
        /// A device of the node, by SR-IOV.
        sriov: Option<InterfaceSriov>,
        /// A network binding plugin; `passt`, which netd stands in for.
        binding: Option<PluginBinding>,
        /// Ports that are forwarded to the guest; none means all.
        ports: Vec<Port>,
        /// Ethernet address.
        mac_address: String,
        /// Place in the boot order, from 1.
        boot_order: Option<u32>,
        /// PCI address.
        pci_address: String,
        /// What DHCP tells besides addresses.
        dhcp_options: Option<DhcpOptions>,
        /// Index that gives the interface its name in the guest (`eno1`).
        acpi_index: i64,
        /// Whether the link is up, or the interface is unplugged.
        state: Option<InterfaceState>,
    }

    /// Served by netd.
    InterfacePasstBinding {}

    /// Served by netd behind an address of the guest's own.
    InterfaceMasquerade {}

    /// The guest is a host of its own on a network of Multus.
    InterfaceBridge {}

    /// A device of the node, by SR-IOV.
    InterfaceSriov {}

    /// A network binding plugin.
    PluginBinding {
        /// Its name; `passt`, which netd stands in for.
        name: String,
    }

    /// A port that is forwarded to the guest.
    Port {
        /// Name.
        name: String,
        /// Protocol; TCP when not set.
        protocol: Option<PortProtocol>,
        /// Number.
        port: i32,
    }

    /// What DHCP tells besides addresses.
    DhcpOptions {
        /// Option 67.
        boot_file_name: String,
        /// Option 66.
        tftp_server_name: String,
        /// Option 42.
        ntp_servers: Vec<String>,
        /// Options 224 to 254.
        private_options: Vec<DhcpPrivateOption>,
    }

    /// A DHCP option of the site's own.
    DhcpPrivateOption {
        /// Code.
        option: i64,
        /// Text.
        value: String,
    }

    /// An input device.
    Input {
        /// Name.
        name: String,
        /// Bus; `usb` when not set.
        bus: Option<InputBus>,
        /// What it is.
        #[serde(rename = "type")]
        kind: Option<InputKind>,
    }

    /// Source of random numbers: the host's `/dev/urandom`.
    Rng {}

    /// A device by which the guest tells that it crashed.
    PanicDevice {
        /// Which one.
        model: Option<PanicModel>,
    }

    /// Graphics card.
    VideoDevice {
        /// `vga`, `virtio`, `bochs`, `cirrus` or `ramfb`.
        #[serde(rename = "type")]
        kind: String,
    }
}

words! {
    /// Bus of a disk.
    DiskBus {
        /// virtio-blk.
        Virtio = "virtio",
        /// SATA.
        Sata = "sata",
        /// virtio-scsi.
        Scsi = "scsi",
        /// USB mass storage.
        Usb = "usb",
    }

    /// A CD-ROM's tray.
    TrayState {
        /// Open.
        Open = "open",
        /// Closed.
        Closed = "closed",
    }

    /// Cache mode of a disk.
    DriverCache {
        /// Past the host's page cache.
        None = "none",
        /// Through the host's page cache, written at once.
        WriteThrough = "writethrough",
        /// Through the host's page cache.
        WriteBack = "writeback",
    }

    /// How QEMU does a disk's input and output.
    DriverIo {
        /// Thread pool.
        Threads = "threads",
        /// Linux AIO.
        Native = "native",
    }

    /// What happens on an error of a disk.
    DiskErrorPolicy {
        /// The machine pauses.
        Stop = "stop",
        /// Nothing.
        Ignore = "ignore",
        /// The guest is told.
        Report = "report",
        /// The machine pauses if the disk is full, else the guest is told.
        Enospace = "enospace",
    }

    /// What a watchdog does.
    WatchdogAction {
        /// Ends the machine.
        Poweroff = "poweroff",
        /// Resets it.
        Reset = "reset",
        /// Asks it to shut down.
        Shutdown = "shutdown",
    }

    /// Protocol of a port.
    PortProtocol {
        /// TCP.
        Tcp = "TCP",
        /// UDP.
        Udp = "UDP",
    }

    /// Whether a link is up, or the interface is not there any more.
    InterfaceState {
        /// Up.
        Up = "up",
        /// Down.
        Down = "down",
        /// The interface is unplugged.
        Absent = "absent",
    }

    /// Bus of an input device.
    InputBus {
        /// USB.
        Usb = "usb",
        /// virtio.
        Virtio = "virtio",
    }

    /// What an input device is.
    InputKind {
        /// A pointer with absolute coordinates.
        Tablet = "tablet",
        /// A keyboard.
        Keyboard = "keyboard",
    }

    /// A device by which the guest tells that it crashed.
    PanicModel {
        /// Hyper-V's crash registers.
        Hyperv = "hyperv",
        /// An ISA port.
        Isa = "isa",
        /// A PCI device.
        Pvpanic = "pvpanic",
    }
}
