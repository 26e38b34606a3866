//! The machine itself; its devices are in [`super::devices`].

use podvirt_api::VirtualMachineInstance;
use podvirt_api::names::path::Config;
use podvirt_api::vmi::{Acpi, Clock, Cpu, DomainSpec, Firmware, RebootPolicy, TickTimer};
use podvirt_proto::cmd::v1::SmBios;

use super::schema as xml;
use super::threads::Threads;
use super::{Accelerator, Environment, devices};

/// Room for code that QEMU has translated, MiB; the model of a launcher pod's memory counts it.
const TRANSLATED_CODE_MIB: u64 = 128;

/// Why a manifest cannot become a domain.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConvertError {
    /// Defaults were not set.
    #[error("{0} is not set; defaults must be set before a manifest is converted")]
    NotDefaulted(&'static str),
    /// The environment lacks the disk image of a volume.
    #[error("there is no disk image for the volume {0}")]
    NoImage(String),
    /// The environment lacks the socket of an interface.
    #[error("there is no vhost-user socket for the interface {0}")]
    NoSocket(String),
    /// The environment lacks the tap device of an interface.
    #[error("there is no tap device for the interface {0}")]
    NoTap(String),
    /// The environment lacks the device of an interface.
    #[error("there is no device of the node for the interface {0}")]
    NoDevice(String),
    /// The environment lacks the socket of a file system.
    #[error("there is no vhost-user socket for the file system {0}")]
    NoFilesystem(String),
    /// The environment lacks the kernel.
    #[error("there is no kernel for direct boot")]
    NoKernel,
    /// The environment lacks the firmware.
    #[error("there is no EFI firmware")]
    NoFirmware,
    /// A disk is to be read and written past the page cache, and its file system cannot.
    #[error(
        "the disk {disk} has the cache mode none, for which its file {path} cannot be opened: its file system does not read and \
         write past the page cache (O_DIRECT); allowed: writethrough, writeback, or no mode and no shareable"
    )]
    NoDirectIo {
        /// The disk.
        disk: String,
        /// Its file.
        path: String,
    },
    /// A disk that other machines write at the same time would be kept in the node's memory.
    #[error(
        "the disk {disk} is shareable and has the cache mode {cache}, by which other machines would not see what it writes; \
         allowed: none, or no mode"
    )]
    SharedCache {
        /// The disk.
        disk: String,
        /// Its cache mode.
        cache: &'static str,
    },
    /// A LUN is not on a device, whose commands it would pass on.
    #[error(
        "spec.domain.devices.disks[{index}].lun: the disk {disk} is on {on}, which is a file here; a LUN wants a claim with \
         volumeMode Block"
    )]
    LunOnFile {
        /// The disk's place in the manifest.
        index: usize,
        /// The disk.
        disk: String,
        /// Its volume, and the volume's claim.
        on: String,
    },
    /// A path is not UTF-8, which XML and libvirt want.
    #[error("the path {0} is not UTF-8")]
    Path(String),
}

/// The domain's name in libvirt.
pub fn domain_name(vmi: &VirtualMachineInstance) -> String {
    podvirt_api::names::domain_name(vmi.namespace(), &vmi.metadata.name)
}

/// The domain of `vmi`, a manifest with defaults that was found valid.
///
/// # Errors
///
/// [`ConvertError`]: the environment lacks something that the manifest names.
pub fn convert(vmi: &VirtualMachineInstance, environment: &Environment) -> Result<xml::Domain, ConvertError> {
    let spec = &vmi.spec.domain;
    let cpu = spec.cpu.as_ref().ok_or(ConvertError::NotDefaulted("spec.domain.cpu"))?;
    let guest = spec
        .memory
        .as_ref()
        .and_then(|m| m.guest.as_ref())
        .ok_or(ConvertError::NotDefaulted("spec.domain.memory.guest"))?;
    let firmware = spec.firmware.as_ref().ok_or(ConvertError::NotDefaulted("spec.domain.firmware"))?;
    let devices = devices::convert(vmi, cpu, environment)?;
    let qemu_override = devices::overrides(&devices);
    // vhost-user backends map the guest's memory; anonymous memory could not be handed over.
    let by_netd = devices.interfaces.iter().any(|interface| interface.kind == devices::VHOST_USER);
    let shared = by_netd || !devices.filesystems.is_empty();
    Ok(xml::Domain {
        kind: match environment.accelerator {
            Accelerator::Kvm => "kvm",
            Accelerator::Tcg => "qemu",
        }
        .into(),
        qemu_namespace: qemu_override.as_ref().map(|_| xml::QEMU_NAMESPACE.into()),
        name: domain_name(vmi),
        uuid: firmware.uuid.clone(),
        // libvirt rounds up to its own granularity; bytes lose nothing before that.
        memory: xml::Memory { unit: "b".into(), amount: guest.value() },
        // The same: nothing of it is given back to the node before the guest runs.
        current_memory: None,
        memory_backing: shared.then(|| xml::MemoryBacking {
            source: Some(xml::TypeOnly { kind: "memfd".into() }),
            access: Some(xml::ModeOnly { mode: "shared".into() }),
        }),
        vcpu: xml::Vcpu { placement: Some("static".into()), count: cpu.count() },
        iothreads: Some(Threads::of(spec).count).filter(|count| *count > 0),
        sysinfo: sysinfo(spec, firmware, &environment.smbios),
        os: os(spec, firmware, environment)?,
        features: features(spec, environment.accelerator),
        cpu: processor(cpu, environment.accelerator),
        clock: clock(spec.clock.as_ref()),
        on_poweroff: "destroy".into(),
        on_reboot: match spec.reboot_policy {
            Some(RebootPolicy::Terminate) => "destroy",
            Some(RebootPolicy::Reboot) | None => "restart",
        }
        .into(),
        on_crash: "destroy".into(),
        qemu_command_line: qemu_override.as_ref().map(|_| xml::QemuCommandLine {
            arguments: devices::COMMAND_LINE.map(|word| xml::QemuArgument { value: word.into() }).into(),
        }),
        devices,
        qemu_override,
    })
}

fn sysinfo(spec: &DomainSpec, firmware: &Firmware, smbios: &SmBios) -> Option<xml::Sysinfo> {
    let entries = |pairs: &[(&str, &String)]| {
        let entries: Vec<xml::Entry> = pairs
            .iter()
            .filter(|(_, value)| !value.is_empty())
            .map(|(name, value)| xml::Entry { name: (*name).into(), value: (*value).clone() })
            .collect();
        (!entries.is_empty()).then_some(xml::Entries { entries })
    };
    let system = entries(&[
        ("manufacturer", &smbios.manufacturer),
        ("product", &smbios.product),
        ("version", &smbios.version),
        ("serial", &firmware.serial),
        ("sku", &smbios.sku),
        ("family", &smbios.family),
    ]);
    let chassis = spec.chassis.as_ref().and_then(|c| {
        entries(&[
            ("manufacturer", &c.manufacturer),
            ("version", &c.version),
            ("serial", &c.serial),
            ("asset", &c.asset),
            ("sku", &c.sku),
        ])
    });
    (system.is_some() || chassis.is_some()).then(|| xml::Sysinfo { kind: "smbios".into(), system, chassis })
}

fn os(spec: &DomainSpec, firmware: &Firmware, environment: &Environment) -> Result<xml::Os, ConvertError> {
    let machine = spec.machine.as_ref().ok_or(ConvertError::NotDefaulted("spec.domain.machine"))?;
    let use_serial = firmware.bootloader.as_ref().and_then(|b| b.bios.as_ref()).and_then(|b| b.use_serial);
    let mut os = xml::Os {
        kind: xml::OsType { arch: "x86_64".into(), machine: machine.kind.clone(), name: "hvm".into() },
        bios: use_serial.map(|on| xml::Bios { use_serial: yes_no(on).into() }),
        smbios: sysinfo(spec, firmware, &environment.smbios)
            .map(|_| xml::ModeOnly { mode: "sysinfo".into() }),
        acpi: firmware.acpi.as_ref().map(acpi_tables),
        ..xml::Os::default()
    };
    if let Some(efi) = firmware.bootloader.as_ref().and_then(|bootloader| bootloader.efi.as_ref()) {
        let ovmf = environment.ovmf.as_ref().ok_or(ConvertError::NoFirmware)?;
        os.loader = Some(xml::Loader {
            readonly: yes_no(true).into(),
            secure: yes_no(efi.is_secure()).into(),
            kind: "pflash".into(),
            path: devices::path_text(&ovmf.code)?,
        });
        os.nvram = Some(xml::Nvram {
            template: devices::path_text(&ovmf.vars)?,
            path: devices::path_text(&ovmf.nvram)?,
        });
    }
    if let Some(boot) = firmware.kernel_boot.as_ref().filter(|b| b.container.is_some()) {
        let kernel = environment.kernel.as_ref().ok_or(ConvertError::NoKernel)?;
        os.kernel = Some(devices::path_text(&kernel.kernel)?);
        os.initrd = kernel.initrd.as_deref().map(devices::path_text).transpose()?;
        os.cmdline = (!boot.kernel_args.is_empty()).then(|| boot.kernel_args.clone());
    }
    Ok(os)
}

/// The tables, as upstream names them in their Secrets.
fn acpi_tables(acpi: &Acpi) -> xml::AcpiTables {
    let given = [("slic", &acpi.slic_name_ref), ("msdm", &acpi.msdm_name_ref)];
    let given = given.into_iter().filter(|(_, volume)| !volume.is_empty());
    let tables = given.map(|(kind, volume)| xml::AcpiTable {
        kind: kind.into(),
        path: format!("{}/{kind}.bin", Config::Secret.files(volume)),
    });
    xml::AcpiTables { tables: tables.collect() }
}

fn features(spec: &DomainSpec, accelerator: Accelerator) -> xml::Features {
    // Unbound it may take an eighth of the node's memory, up to 1 GiB, which the scheduler was not asked for.
    let tcg = (accelerator == Accelerator::Tcg).then(|| xml::TcgFeatures {
        tb_cache: xml::Memory { unit: "MiB".into(), amount: TRANSLATED_CODE_MIB },
    });
    let Some(features) = &spec.features else { return xml::Features { tcg, ..xml::Features::default() } };
    let state = |on: bool| xml::StateOnly { state: if on { "on" } else { "off" }.into() };
    xml::Features {
        acpi: features.acpi.as_ref().filter(|f| f.is_on()).map(|_| xml::Flag {}),
        apic: features
            .apic
            .as_ref()
            .filter(|f| f.enabled.unwrap_or(true))
            .map(|f| xml::Apic { eoi: f.end_of_interrupt.then(|| "on".into()) }),
        // Without KVM there is nothing to hide.
        kvm: features
            .kvm
            .as_ref()
            .filter(|f| f.hidden && accelerator == Accelerator::Kvm)
            .map(|f| xml::KvmFeatures { hidden: Some(state(f.hidden)) }),
        pvspinlock: features.pvspinlock.as_ref().map(|f| state(f.is_on())),
        smm: features.smm.as_ref().map(|f| state(f.is_on())),
        tcg,
    }
}

fn processor(cpu: &Cpu, accelerator: Accelerator) -> xml::Cpu {
    // The host's own model means nothing to the translator: there it is all that the translator can do.
    let (mode, model) = match (cpu.model.as_str(), accelerator) {
        ("maximum", _) | ("" | "host-model" | "host-passthrough", Accelerator::Tcg) => ("maximum", None),
        ("" | "host-model", Accelerator::Kvm) => ("host-model", None),
        ("host-passthrough", Accelerator::Kvm) => ("host-passthrough", None),
        (model, _) => ("custom", Some(xml::Text { text: model.into() })),
    };
    xml::Cpu {
        mode: mode.into(),
        model,
        topology: xml::Topology { sockets: cpu.sockets, cores: cpu.cores, threads: cpu.threads },
        features: cpu
            .features
            .iter()
            .map(|f| xml::CpuFeature {
                policy: f.policy.map_or("require", podvirt_api::vmi::CpuFeaturePolicy::as_str).into(),
                name: f.name.clone(),
            })
            .collect(),
    }
}

fn yes_no(on: bool) -> &'static str {
    if on { "yes" } else { "no" }
}

fn clock(clock: Option<&Clock>) -> xml::Clock {
    let Some(clock) = clock else {
        return xml::Clock { offset: "utc".into(), ..xml::Clock::default() };
    };
    let shift = clock.utc.as_ref().and_then(|u| u.offset_seconds);
    let mut out = if !clock.timezone.is_empty() {
        xml::Clock { offset: "timezone".into(), timezone: Some(clock.timezone.clone()), ..Default::default() }
    } else if let Some(seconds) = shift {
        xml::Clock { offset: "variable".into(), adjustment: Some(seconds), ..Default::default() }
    } else {
        xml::Clock { offset: "utc".into(), ..Default::default() }
    };
    let Some(timer) = &clock.timer else { return out };
    let make = |name: &str, present: Option<bool>| xml::Timer {
        name: name.into(),
        present: present.map(|on| yes_no(on).into()),
        ..Default::default()
    };
    let ticking = |name: &str, t: &TickTimer| xml::Timer {
        tickpolicy: t.tick_policy.map(|p| p.as_str().into()),
        ..make(name, t.present)
    };
    out.timers.extend(timer.hpet.as_ref().map(|t| ticking("hpet", t)));
    out.timers.extend(timer.kvm.as_ref().map(|t| make("kvmclock", t.present)));
    out.timers.extend(timer.pit.as_ref().map(|t| ticking("pit", t)));
    out.timers.extend(timer.rtc.as_ref().map(|t| xml::Timer {
        tickpolicy: t.tick_policy.map(|p| p.as_str().into()),
        track: t.track.map(|p| p.as_str().into()),
        ..make("rtc", t.present)
    }));
    out.timers.extend(timer.hyperv.as_ref().map(|t| make("hypervclock", t.present)));
    out
}
