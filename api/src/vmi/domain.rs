//! The machine without its devices: processors, memory, firmware, clock.

use std::collections::BTreeMap;

use crate::quantity::Quantity;

use super::devices::Devices;

objects! {
    /// The machine.
    DomainSpec {
        /// Amounts that the pod asks for; they give memory and processors when nothing else does.
        resources: ResourceRequirements,
        /// Processors.
        cpu: Option<Cpu>,
        /// Memory.
        memory: Option<Memory>,
        /// Machine type.
        machine: Option<Machine>,
        /// Firmware, direct kernel boot, identity.
        firmware: Option<Firmware>,
        /// Clock and timers.
        clock: Option<Clock>,
        /// Features of the platform.
        features: Option<Features>,
        /// Devices.
        devices: Devices,
        /// Chassis in the SMBIOS tables.
        chassis: Option<Chassis>,
        /// How many threads do the input and output of disks.
        io_threads_policy: Option<IoThreadsPolicy>,
        /// Threads of the policy `supplementalPool`.
        io_threads: Option<IoThreads>,
        /// What a reboot from inside the guest does.
        reboot_policy: Option<RebootPolicy>,
    }

    /// Threads of the policy `supplementalPool`.
    IoThreads {
        /// How many.
        supplemental_pool_thread_count: Option<u32>,
    }

    /// Amounts by resource name (`memory`, `cpu`).
    ResourceRequirements {
        /// At least.
        requests: BTreeMap<String, Quantity>,
        /// At most.
        limits: BTreeMap<String, Quantity>,
        /// The pod does not ask for the memory that the machine takes beside its guest's.
        overcommit_guest_overhead: Option<bool>,
    }

    /// Processors: sockets × cores × threads.
    Cpu {
        /// Cores of a socket.
        cores: u32,
        /// Sockets.
        sockets: u32,
        /// Threads of a core.
        threads: u32,
        /// `host-model`, `host-passthrough`, `maximum` or a model that libvirt knows.
        model: String,
        /// Features added to or taken from the model.
        features: Vec<CpuFeature>,
    }

    /// A feature of the processor.
    CpuFeature {
        /// Name as libvirt has it.
        name: String,
        /// What to do with it; `require` when not set.
        policy: Option<CpuFeaturePolicy>,
    }

    /// Memory.
    Memory {
        /// What the guest sees.
        guest: Option<Quantity>,
    }

    /// Machine type.
    Machine {
        /// `q35` or a versioned `pc-q35-…`.
        #[serde(rename = "type")]
        kind: String,
    }

    /// Firmware, direct kernel boot, identity.
    Firmware {
        /// The machine's UUID.
        uuid: String,
        /// The machine's serial number.
        serial: String,
        /// Which firmware.
        bootloader: Option<Bootloader>,
        /// Boot this kernel in place of what the disks hold.
        kernel_boot: Option<KernelBoot>,
        /// Tables for the guest's operating system.
        acpi: Option<Acpi>,
    }

    /// Tables for the guest's operating system, in volumes of Secrets.
    Acpi {
        /// The volume with `slic.bin`.
        slic_name_ref: String,
        /// The volume with `msdm.bin`.
        msdm_name_ref: String,
    }

    /// Which firmware.
    Bootloader {
        /// SeaBIOS.
        bios: Option<Bios>,
        /// OVMF.
        efi: Option<Efi>,
    }

    /// OVMF.
    Efi {
        /// Boot signed loaders alone; on when not set.
        secure_boot: Option<bool>,
        /// Keep the variables when the machine ends.
        persistent: Option<bool>,
    }

    /// SeaBIOS.
    Bios {
        /// Show its output on the serial console.
        use_serial: Option<bool>,
    }

    /// A kernel that is booted directly.
    KernelBoot {
        /// Command line.
        kernel_args: String,
        /// Image that holds kernel and initrd.
        container: Option<KernelBootContainer>,
    }

    /// An image that holds kernel and initrd.
    KernelBootContainer {
        /// Image name.
        image: String,
        /// The kernel's path in the image.
        kernel_path: String,
        /// The initrd's path in the image.
        initrd_path: String,
    }

    /// Clock and timers.
    Clock {
        /// Universal time.
        utc: Option<ClockOffsetUtc>,
        /// Local time of this zone.
        timezone: String,
        /// Timers.
        timer: Option<Timer>,
    }

    /// Universal time, shifted.
    ClockOffsetUtc {
        /// Seconds.
        offset_seconds: Option<i64>,
    }

    /// Timers.
    Timer {
        /// High Precision Event Timer.
        hpet: Option<TickTimer>,
        /// KVM's clock.
        kvm: Option<PlainTimer>,
        /// Programmable interval timer.
        pit: Option<TickTimer>,
        /// Real-time clock.
        rtc: Option<RtcTimer>,
        /// Hyper-V's clock.
        hyperv: Option<PlainTimer>,
    }

    /// A timer that can be there or not.
    PlainTimer {
        /// Whether the guest has it.
        present: Option<bool>,
    }

    /// A timer that ticks.
    TickTimer {
        /// What becomes of ticks that were missed.
        tick_policy: Option<TickPolicy>,
        /// Whether the guest has it.
        present: Option<bool>,
    }

    /// The real-time clock.
    RtcTimer {
        /// What becomes of ticks that were missed.
        tick_policy: Option<TickPolicy>,
        /// Whether the guest has it.
        present: Option<bool>,
        /// What it follows.
        track: Option<RtcTrack>,
    }

    /// Features of the platform.
    Features {
        /// ACPI.
        acpi: Option<FeatureState>,
        /// APIC.
        apic: Option<FeatureApic>,
        /// System management mode.
        smm: Option<FeatureState>,
        /// KVM's own features.
        kvm: Option<FeatureKvm>,
        /// Paravirtual spin locks.
        pvspinlock: Option<FeatureState>,
    }

    /// On or off; on when only named.
    FeatureState {
        /// Whether it is on.
        enabled: Option<bool>,
    }

    /// The APIC.
    FeatureApic {
        /// Whether it is on.
        enabled: Option<bool>,
        /// Paravirtual end of interrupt.
        end_of_interrupt: bool,
    }

    /// KVM's own features.
    FeatureKvm {
        /// Hide from the guest that it runs under KVM.
        hidden: bool,
    }

    /// Chassis in the SMBIOS tables.
    Chassis {
        /// Manufacturer.
        manufacturer: String,
        /// Version.
        version: String,
        /// Serial number.
        serial: String,
        /// Asset tag.
        asset: String,
        /// Stock keeping unit.
        sku: String,
    }
}

words! {
    /// How many threads do the input and output of disks.
    IoThreadsPolicy {
        /// One for all disks that have none of their own.
        Shared = "shared",
        /// Two for each processor that the pod asks for, at most one for each disk.
        Auto = "auto",
        /// So many as are said, each for all disks.
        SupplementalPool = "supplementalPool",
    }

    /// What to do with a processor feature.
    CpuFeaturePolicy {
        /// Show it even if the host lacks it.
        Force = "force",
        /// Refuse to start without it.
        Require = "require",
        /// Show it if the host has it.
        Optional = "optional",
        /// Hide it.
        Disable = "disable",
        /// Refuse to start if the host has it.
        Forbid = "forbid",
    }

    /// What becomes of ticks that were missed.
    TickPolicy {
        /// Delivered at the normal rate, late.
        Delay = "delay",
        /// Delivered at a higher rate until caught up.
        Catchup = "catchup",
        /// Merged into one.
        Merge = "merge",
        /// Dropped.
        Discard = "discard",
    }

    /// What the real-time clock follows.
    RtcTrack {
        /// The guest's virtual time.
        Guest = "guest",
        /// The host's wall clock.
        Wall = "wall",
    }

    /// What a reboot from inside the guest does.
    RebootPolicy {
        /// The machine resets and boots again.
        Reboot = "Reboot",
        /// The machine ends.
        Terminate = "Terminate",
    }
}

impl Efi {
    /// Whether signed loaders alone are booted.
    pub fn is_secure(&self) -> bool {
        self.secure_boot.unwrap_or(true)
    }
}

impl FeatureState {
    /// Whether the feature is on: naming it is enough.
    pub fn is_on(&self) -> bool {
        self.enabled.unwrap_or(true)
    }
}

/// Most virtual processors of a machine; QEMU's q35 has more only with an emulated IOMMU.
pub(crate) const MAX_VCPUS: u32 = 255;

impl Cpu {
    /// Number of virtual processors.
    pub fn count(&self) -> u64 {
        u64::from(self.sockets.max(1)) * u64::from(self.cores.max(1)) * u64::from(self.threads.max(1))
    }
}
