//! The part of libvirt's domain XML that the launcher writes and reads back.
//!
//! Attributes are `@name`, text is `$text`; the order of fields is the order in which elements are written. An
//! element that is not here is passed over when libvirt's own XML is read, so these types can also be used to
//! learn what libvirt filled in (addresses, aliases, the machine's version). The reader knows elements by their
//! local names, hence the aliases of those in QEMU's name space.

use serde::{Deserialize, Serialize};

pub use devices::*;
pub use disks::*;
pub use interfaces::*;

/// libvirt's word for an interface that a netd serves.
pub const VHOST_USER: &str = "vhostuser";

/// XML name space of the elements by which QEMU's own properties are set.
pub const QEMU_NAMESPACE: &str = "http://libvirt.org/schemas/domain/qemu/1.0";

fn unset<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Declares elements: public fields with their XML names; unset ones are left out.
macro_rules! elements {
    ($($(#[$meta:meta])* $name:ident { $($(#[$fmeta:meta])* $xml:literal $field:ident: $ty:ty,)* })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct $name {
            $($(#[$fmeta])* #[serde(rename = $xml, skip_serializing_if = "unset")] pub $field: $ty,)*
        }
    )*};
}

pub mod backup;
mod devices;
mod disks;
mod interfaces;

elements! {
    /// `<domain>`.
    Domain {
        /// `kvm` or `qemu`.
        "@type" kind: String,
        /// [`QEMU_NAMESPACE`], when `qemu_override` or `qemu_command_line` is there.
        "@xmlns:qemu" qemu_namespace: Option<String>,
        /// Name.
        "name" name: String,
        /// UUID.
        "uuid" uuid: String,
        /// Memory.
        "memory" memory: Memory,
        /// Memory that the guest has at present, KiB where libvirt tells it.
        "currentMemory" current_memory: Option<Memory>,
        /// Where the memory is from.
        "memoryBacking" memory_backing: Option<MemoryBacking>,
        /// Number of processors.
        "vcpu" vcpu: Vcpu,
        /// Threads that do the input and output of disks.
        "iothreads" iothreads: Option<u32>,
        /// SMBIOS tables.
        "sysinfo" sysinfo: Option<Sysinfo>,
        /// Firmware and direct boot.
        "os" os: Os,
        /// Features of the platform.
        "features" features: Features,
        /// Processor model.
        "cpu" cpu: Cpu,
        /// Clock.
        "clock" clock: Clock,
        /// What a power-off does.
        "on_poweroff" on_poweroff: String,
        /// What a reboot does.
        "on_reboot" on_reboot: String,
        /// What a crash does.
        "on_crash" on_crash: String,
        /// Devices.
        "devices" devices: Devices,
        /// Properties of QEMU's devices that libvirt has no words for.
        #[serde(alias = "override")]
        "qemu:override" qemu_override: Option<QemuOverride>,
        /// What libvirt has no words for, of the machine.
        #[serde(alias = "commandline")]
        "qemu:commandline" qemu_command_line: Option<QemuCommandLine>,
    }

    /// `<vcpu>`.
    Vcpu {
        /// How processors are placed; `static`, libvirt's default. Upstream's hook sidecars write it empty where it is not given.
        "@placement" placement: Option<String>,
        /// Number.
        "$text" count: u64,
    }

    /// `<memory>`.
    Memory {
        /// Unit.
        "@unit" unit: String,
        /// Amount.
        "$text" amount: u64,
    }

    /// `<memoryBacking>`.
    MemoryBacking {
        /// Kind of memory.
        "source" source: Option<TypeOnly>,
        /// Whether other processes may map it.
        "access" access: Option<ModeOnly>,
    }

    /// An element with only a type.
    TypeOnly {
        /// Type.
        "@type" kind: String,
    }

    /// An element with only a mode.
    ModeOnly {
        /// Mode.
        "@mode" mode: String,
    }

    /// An element with only a state.
    StateOnly {
        /// `on`, `off`, `up` or `down`.
        "@state" state: String,
    }

    /// An element with only a name.
    NameOnly {
        /// Name.
        "@name" name: String,
    }

    /// An empty element.
    Flag {}

    /// `<sysinfo type='smbios'>`.
    Sysinfo {
        /// `smbios`.
        "@type" kind: String,
        /// The system's entries.
        "system" system: Option<Entries>,
        /// The chassis' entries.
        "chassis" chassis: Option<Entries>,
    }

    /// Entries of an SMBIOS table.
    Entries {
        /// Entries.
        "entry" entries: Vec<Entry>,
    }

    /// An entry of an SMBIOS table.
    Entry {
        /// Name.
        "@name" name: String,
        /// Value.
        "$text" value: String,
    }

    /// `<os>`.
    Os {
        /// Machine type.
        "type" kind: OsType,
        /// EFI firmware.
        "loader" loader: Option<Loader>,
        /// Its variables.
        "nvram" nvram: Option<Nvram>,
        /// Kernel for direct boot.
        "kernel" kernel: Option<String>,
        /// Initrd for direct boot.
        "initrd" initrd: Option<String>,
        /// Kernel command line for direct boot.
        "cmdline" cmdline: Option<String>,
        /// SeaBIOS' output.
        "bios" bios: Option<Bios>,
        /// Where the SMBIOS tables are from.
        "smbios" smbios: Option<ModeOnly>,
        /// Tables for the guest's operating system.
        "acpi" acpi: Option<AcpiTables>,
    }

    /// `<loader>`.
    Loader {
        /// `yes`: the guest cannot change it.
        "@readonly" readonly: String,
        /// `yes`: it boots what is signed, and keeps its variables to itself by SMM.
        "@secure" secure: String,
        /// `pflash`.
        "@type" kind: String,
        /// The file.
        "$text" path: String,
    }

    /// `<nvram>`.
    Nvram {
        /// What the file is made from where it is not there.
        "@template" template: String,
        /// The file.
        "$text" path: String,
    }

    /// `<os><acpi>`.
    AcpiTables {
        /// The tables.
        "table" tables: Vec<AcpiTable>,
    }

    /// A table for the guest's operating system.
    AcpiTable {
        /// Its signature in small letters.
        "@type" kind: String,
        /// The file that it is in.
        "$text" path: String,
    }

    /// `<os><type>`.
    OsType {
        /// Architecture.
        "@arch" arch: String,
        /// Machine type.
        "@machine" machine: String,
        /// `hvm`.
        "$text" name: String,
    }

    /// `<bios>`.
    Bios {
        /// `yes` or `no`.
        "@useserial" use_serial: String,
    }

    /// `<features>`.
    Features {
        /// ACPI.
        "acpi" acpi: Option<Flag>,
        /// APIC.
        "apic" apic: Option<Apic>,
        /// What KVM shows of itself.
        "kvm" kvm: Option<KvmFeatures>,
        /// Paravirtual spin locks.
        "pvspinlock" pvspinlock: Option<StateOnly>,
        /// System management mode.
        "smm" smm: Option<StateOnly>,
        /// The translator's.
        "tcg" tcg: Option<TcgFeatures>,
    }

    /// `<tcg>`.
    TcgFeatures {
        /// Room for translated code.
        "tb-cache" tb_cache: Memory,
    }

    /// `<apic>`.
    Apic {
        /// Paravirtual end of interrupt, `on` or `off`.
        "@eoi" eoi: Option<String>,
    }

    /// `<kvm>`.
    KvmFeatures {
        /// Hide KVM.
        "hidden" hidden: Option<StateOnly>,
    }

    /// `<cpu>`.
    Cpu {
        /// Mode.
        "@mode" mode: String,
        /// Model, in mode `custom`.
        "model" model: Option<Text>,
        /// Topology.
        "topology" topology: Topology,
        /// Features.
        "feature" features: Vec<CpuFeature>,
    }

    /// An element with only text.
    Text {
        /// Text.
        "$text" text: String,
    }

    /// `<topology>`.
    Topology {
        /// Sockets.
        "@sockets" sockets: u32,
        /// Cores of a socket.
        "@cores" cores: u32,
        /// Threads of a core.
        "@threads" threads: u32,
    }

    /// A feature of the processor.
    CpuFeature {
        /// What to do with it.
        "@policy" policy: String,
        /// Name.
        "@name" name: String,
    }

    /// `<clock>`.
    Clock {
        /// `utc`, `timezone` or `variable`.
        "@offset" offset: String,
        /// Zone.
        "@timezone" timezone: Option<String>,
        /// Shift in seconds.
        "@adjustment" adjustment: Option<i64>,
        /// Timers.
        "timer" timers: Vec<Timer>,
    }

    /// `<timer>`.
    Timer {
        /// Name.
        "@name" name: String,
        /// What becomes of missed ticks.
        "@tickpolicy" tickpolicy: Option<String>,
        /// What it follows.
        "@track" track: Option<String>,
        /// `yes` or `no`.
        "@present" present: Option<String>,
    }

    /// `<qemu:commandline>`.
    QemuCommandLine {
        /// Words.
        #[serde(alias = "arg")]
        "qemu:arg" arguments: Vec<QemuArgument>,
    }

    /// `<qemu:arg>`.
    QemuArgument {
        /// Word.
        "@value" value: String,
    }

    /// `<qemu:override>`.
    QemuOverride {
        /// Devices.
        #[serde(alias = "device")]
        "qemu:device" devices: Vec<QemuDevice>,
    }

    /// `<qemu:device>`.
    QemuDevice {
        /// Alias.
        "@alias" alias: String,
        /// The part that the guest sees.
        #[serde(alias = "frontend")]
        "qemu:frontend" frontend: QemuFrontend,
    }

    /// `<qemu:frontend>`.
    QemuFrontend {
        /// Properties.
        #[serde(alias = "property")]
        "qemu:property" properties: Vec<QemuProperty>,
    }

    /// `<qemu:property>`.
    QemuProperty {
        /// Name.
        "@name" name: String,
        /// Type.
        "@type" kind: String,
        /// Value.
        "@value" value: String,
    }
}

impl Domain {
    /// The XML, indented.
    ///
    /// # Errors
    ///
    /// Something cannot be written as XML.
    pub fn to_xml(&self) -> Result<String, quick_xml::SeError> {
        let mut out = String::new();
        let mut serializer = quick_xml::se::Serializer::with_root(&mut out, Some("domain"))?;
        serializer.indent(' ', 2);
        self.serialize(serializer)?;
        out.push('\n');
        Ok(out)
    }

    /// Reads XML, libvirt's or the launcher's own.
    ///
    /// # Errors
    ///
    /// It is not XML, or a value has another form than the field.
    pub fn from_xml(xml: &str) -> Result<Domain, quick_xml::DeError> {
        quick_xml::de::from_str(xml)
    }
}

impl DiskSource {
    /// The path of its file or block device, if it has one.
    pub fn path(&self) -> Option<&str> {
        self.file.as_deref().or(self.dev.as_deref())
    }

    /// The path of the file or block device that has its data: below an overlay, that is another one.
    pub fn data(&self) -> Option<&str> {
        let below = self.data_store.as_ref().map(|store| &store.source);
        below.map_or(self.path(), |data| data.file.as_deref().or(data.dev.as_deref()))
    }
}

impl From<DiskSource> for backup::DataSource {
    fn from(source: DiskSource) -> backup::DataSource {
        backup::DataSource { file: source.file, dev: source.dev }
    }
}

impl Disk {
    /// Whether its changes are tracked.
    pub fn is_tracked(&self) -> bool {
        self.source.data_store.is_some()
    }

    /// Whether it is a drive whose medium can be changed.
    pub fn is_drive(&self) -> bool {
        self.device == "cdrom"
    }

    /// The element, as libvirt reads it.
    ///
    /// # Errors
    ///
    /// Something cannot be written as XML.
    pub fn to_xml(&self) -> Result<String, quick_xml::SeError> {
        quick_xml::se::to_string_with_root("disk", self)
    }
}

impl Interface {
    /// Whether another process serves it by vhost-user.
    pub fn is_vhost_user(&self) -> bool {
        self.kind == VHOST_USER
    }

    /// Plugs its cable or pulls it.
    pub fn set_link(&mut self, up: bool) {
        self.link = Some(StateOnly { state: if up { "up" } else { "down" }.into() });
    }

    /// The element, as libvirt reads it.
    ///
    /// # Errors
    ///
    /// Something cannot be written as XML.
    pub fn to_xml(&self) -> Result<String, quick_xml::SeError> {
        quick_xml::se::to_string_with_root("interface", self)
    }
}
