//! Devices.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use podvirt_api::VirtualMachineInstance;
use podvirt_api::model::VIRTIO;
use podvirt_api::names::annotation::DISABLE_PCI_HOLE64;
use podvirt_api::names::path as names;
use podvirt_api::plugin::Joint;
use podvirt_api::vmi::{
    Cpu, Disk, DriverCache, Input, InputBus, InputKind, Interface, InterfaceState, PanicModel, Tpm,
    WatchdogAction,
};

use super::convert::ConvertError;
use super::disks::{DiskNames, disk, on_virtio, with_medium};
use super::schema as xml;
pub(super) use super::schema::VHOST_USER;
use super::threads::{Own, Threads};
use super::{Environment, Image, ImageFormat, Tap};

/// Model of virtio's devices that drivers of before version 1.0 know, too.
const TRANSITIONAL: &str = "virtio-transitional";
/// Descriptors of a ring, the most that QEMU's virtio-net and virtio-fs have: a frame burst of TSO fits in.
const QUEUE_SIZE: u32 = 1024;
/// libvirt's word for an interface that is a tap device.
const ETHERNET: &str = "ethernet";
/// Seconds between QEMU's attempts to reach a netd that went away.
const RECONNECT_SECONDS: u32 = 1;
/// Start of the name of an interface that is a device of the node.
const SRIOV: &str = "sriov-";
/// The channel by which the guest's agent is reached; the agent looks for this name.
pub const AGENT_CHANNEL: &str = "org.qemu.guest_agent.0";
/// The channel by which a guest asks for metrics; its programs look for this name (vhostmd's).
const METRICS_CHANNEL: &str = "org.github.vhostmd.1";
/// Where the guest's random numbers come from; it never blocks.
const RANDOM: &str = "/dev/urandom";

pub(super) fn convert(
    vmi: &VirtualMachineInstance,
    cpu: &Cpu,
    environment: &Environment,
) -> Result<xml::Devices, ConvertError> {
    let devices = &vmi.spec.domain.devices;
    let virtio = virtio(vmi);
    let on = |setting: Option<bool>| setting.unwrap_or(true);

    let mut names = DiskNames::default();
    let mut threads = Threads::of(&vmi.spec.domain);
    let disk_queues = devices.block_multi_queue.unwrap_or(false).then(|| cpu.count());
    let disks = devices
        .disks
        .iter()
        .map(|d| {
            let own = if on_virtio(d) { threads.next(d) } else { Own::default() };
            let given = |image: &Image| disk(vmi, d, image, &mut names, virtio, disk_queues, own);
            match environment.images.get(&d.name) {
                Some(image) => given(image),
                None if d.cdrom.is_some() => {
                    // Whatever its medium will be, the drive keeps its cache mode.
                    let direct = d.cache == Some(DriverCache::None);
                    let image = Image::new(PathBuf::new(), ImageFormat::Raw);
                    let empty = given(&Image { direct, ..image })?;
                    with_medium(empty, None)
                }
                None => Err(ConvertError::NoImage(d.name.clone())),
            }
        })
        .collect::<Result<Vec<_>, _>>()?;

    let pairs = podvirt_api::netd::queue_pairs(vmi);
    let interfaces = devices
        .interfaces
        .iter()
        // An unplugged one keeps its place in the manifest and has no device; a plugin's sidecar adds its own.
        .filter(|i| !i.is_absent() && !matches!(vmi.joint(i), Joint::Sidecar | Joint::Device))
        .map(|i| {
            let backend = backend(i, vmi.joint(i), &environment.sockets, &environment.taps, pairs)?;
            interface(i, backend, virtio)
        })
        .collect::<Result<Vec<_>, _>>()?;

    let host_devices = devices
        .interfaces
        .iter()
        .filter(|i| !i.is_absent() && vmi.joint(i) == Joint::Device)
        .map(|i| host_device(i, &environment.devices))
        .collect::<Result<Vec<_>, _>>()?;

    let inputs = inputs(devices.autoattach_input_device, &devices.inputs);
    let usb = inputs.iter().any(|i| i.bus == "usb") || disks.iter().any(|d| d.target.bus == "usb");
    let mut controllers = vec![xml::Controller {
        kind: "usb".into(),
        index: "0".into(),
        model: Some(if usb { "qemu-xhci" } else { "none" }.into()),
        ports: None,
        pci_hole64: None,
    }];
    if vmi
        .metadata
        .annotations
        .get(DISABLE_PCI_HOLE64)
        .is_some_and(|value| value.eq_ignore_ascii_case("true"))
    {
        controllers.push(xml::Controller {
            kind: "pci".into(),
            index: "0".into(),
            model: Some("pcie-root".into()),
            ports: None,
            pci_hole64: Some(xml::PciHole { unit: "KiB".into(), size: "0".into() }),
        });
    }
    // Also where no disk is on it: one may be plugged later, and libvirt would choose a controller that few guests know.
    controllers.push(xml::Controller {
        kind: "scsi".into(),
        index: "0".into(),
        model: Some(virtio.into()),
        ports: None,
        pci_hole64: None,
    });

    let channels = channels(devices.downward_metrics.is_some());
    controllers.push(xml::Controller {
        kind: "virtio-serial".into(),
        index: "0".into(),
        // libvirt's own choice is one that a guest with old drivers does not know.
        model: (virtio == TRANSITIONAL).then(|| virtio.into()),
        // The channels and a console's place, which virtio keeps. Each further place is two queues, whose descriptors QEMU's
        // main loop polls with every request of a disk: with the 31 places of libvirt they are 64 of its 101. Each request costs
        // that thread 30 µs more under an emulated processor.
        ports: Some((channels.len() + 1).to_string()),
        pci_hole64: None,
    });

    let mut serials = Vec::new();
    if on(devices.autoattach_serial_console) {
        serials.push(xml::Serial {
            kind: "unix".into(),
            source: xml::SocketSource {
                path: path_text(&environment.serial_socket)?,
                mode: "bind".into(),
                ..Default::default()
            },
            log: if on(devices.log_serial_console) {
                Some(xml::Log { file: path_text(&environment.serial_log)?, append: "on".into() })
            } else {
                None
            },
            target: xml::Port { port: "0".into() },
            alias: alias("serial0"),
        });
    }
    let (mut graphics, mut videos) = (Vec::new(), Vec::new());
    if on(devices.autoattach_graphics_device) {
        graphics.push(xml::Graphics {
            kind: "vnc".into(),
            listen: xml::Listen { kind: "socket".into(), socket: path_text(&environment.vnc_socket)? },
        });
        let kind = devices.video.as_ref().map(|v| v.kind.as_str()).filter(|k| !k.is_empty()).unwrap_or("vga");
        videos.push(xml::Video { model: xml::TypeOnly { kind: kind.into() } });
    }

    let filesystems = devices
        .filesystems
        .iter()
        .map(|filesystem| filesystem_of(&filesystem.name, &environment.filesystems))
        .collect::<Result<Vec<_>, _>>()?;

    Ok(xml::Devices {
        disks,
        filesystems,
        controllers,
        interfaces,
        host_devices,
        serials,
        channels,
        inputs,
        tpms: devices.tpm.iter().filter(|tpm| tpm.is_on()).map(tpm).collect(),
        graphics,
        videos,
        watchdogs: devices
            .watchdog
            .iter()
            .filter_map(|w| w.i6300esb.as_ref().map(|model| (w, model)))
            .map(|(w, model)| xml::Watchdog {
                model: "i6300esb".into(),
                action: model.action.unwrap_or(WatchdogAction::Reset).as_str().into(),
                alias: alias(&w.name),
            })
            .collect(),
        memballoon: Some(memballoon(on(devices.autoattach_mem_balloon).then_some(virtio), environment)),
        rngs: devices
            .rng
            .iter()
            .map(|_| xml::Rng {
                model: virtio.into(),
                backend: xml::RngBackend { model: "random".into(), file: RANDOM.into() },
            })
            .collect(),
        panics: devices
            .panic_devices
            .iter()
            // What libvirt takes on this architecture where nothing is said.
            .map(|p| p.model.unwrap_or(PanicModel::Isa))
            .map(|model: PanicModel| xml::Model { model: model.as_str().into() })
            .collect(),
    })
}

/// Channels to the guest: its agent's, and one by which it asks for metrics.
fn channels(has_metrics: bool) -> Vec<xml::Channel> {
    let channel = |name: &str, path: Option<&str>| xml::Channel {
        kind: "unix".into(),
        source: path.map(|path| xml::SocketSource {
            path: path.into(),
            mode: "bind".into(),
            ..xml::SocketSource::default()
        }),
        target: xml::ChannelTarget { kind: "virtio".into(), name: name.into(), state: None },
    };
    let metrics = has_metrics.then(|| channel(METRICS_CHANNEL, Some(names::DOWNWARD_METRICS_SOCKET)));
    std::iter::once(channel(AGENT_CHANNEL, None)).chain(metrics).collect()
}

/// The file system of a volume, in upstream's shape.
fn filesystem_of(name: &str, sockets: &BTreeMap<String, PathBuf>) -> Result<xml::Filesystem, ConvertError> {
    let socket = sockets.get(name).ok_or_else(|| ConvertError::NoFilesystem(name.to_owned()))?;
    Ok(xml::Filesystem {
        kind: "mount".into(),
        access_mode: Some("passthrough".into()),
        driver: xml::FilesystemDriver { kind: "virtiofs".into(), queue: Some(QUEUE_SIZE) },
        source: xml::FilesystemSource { socket: path_text(socket)? },
        target: xml::FilesystemTarget { dir: name.to_owned() },
    })
}

/// The models are upstream's: what is kept came with the later one.
fn tpm(tpm: &Tpm) -> xml::Tpm {
    xml::Tpm {
        model: if tpm.is_kept() { "tpm-crb" } else { "tpm-tis" }.into(),
        backend: xml::TpmBackend {
            kind: "emulator".into(),
            version: "2.0".into(),
            persistent_state: tpm.is_kept().then(|| "yes".into()),
        },
    }
}

/// The memory balloon of this model, or none. Without reports of the guest libvirt knows of its memory what the node's kernel
/// knows.
fn memballoon(model: Option<&str>, environment: &Environment) -> xml::MemBalloon {
    let Some(model) = model else { return xml::MemBalloon { model: "none".into(), stats: None } };
    let period = environment.balloon_period;
    let stats = (period > 0).then_some(xml::BalloonStats { period });
    xml::MemBalloon { model: model.into(), stats }
}

/// The device of one interface of `vmi`, to be plugged while the machine runs.
///
/// # Errors
///
/// There is no socket or tap device for it.
pub fn plugged(
    vmi: &VirtualMachineInstance,
    plugged: &Interface,
    sockets: &BTreeMap<String, PathBuf>,
    taps: &BTreeMap<String, Tap>,
) -> Result<xml::Interface, ConvertError> {
    let pairs = podvirt_api::netd::queue_pairs(vmi);
    interface(plugged, backend(plugged, vmi.joint(plugged), sockets, taps, pairs)?, virtio(vmi))
}

/// The device of a disk that is plugged into the running machine, which has the disks of `domain`.
///
/// # Errors
///
/// Its cache mode is one that its image cannot have, or its path is not UTF-8.
pub fn plugged_disk(
    vmi: &VirtualMachineInstance,
    plugged: &Disk,
    image: &Image,
    domain: &xml::Domain,
) -> Result<xml::Disk, ConvertError> {
    let devices = &vmi.spec.domain.devices;
    let cpu = vmi.spec.domain.cpu.as_ref().ok_or(ConvertError::NotDefaulted("spec.domain.cpu"))?;
    let queues = devices.block_multi_queue.unwrap_or(false).then(|| cpu.count());
    let threads = Threads::of(&vmi.spec.domain).later(plugged);
    let mut names = DiskNames::beside(&domain.devices.disks);
    disk(vmi, plugged, image, &mut names, virtio(vmi), queues, threads)
}

/// The model of virtio devices.
fn virtio(vmi: &VirtualMachineInstance) -> &'static str {
    let transitional = vmi.spec.domain.devices.use_virtio_transitional.unwrap_or(false);
    if transitional { TRANSITIONAL } else { "virtio-non-transitional" }
}

/// What must be told to QEMU past libvirt.
///
/// QEMU 10 does not tell a vhost-user backend when the guest changes its offloads by the control queue, so a
/// driver that switched them off would still get large frames without checksums: the guest is not offered that.
///
/// What is said of a device by its alias holds for the devices that the machine starts with. Those that are plugged later
/// get what [`COMMAND_LINE`] says of all.
pub(super) fn overrides(devices: &xml::Devices) -> Option<xml::QemuOverride> {
    let interfaces = &devices.interfaces;
    let devices: Vec<xml::QemuDevice> = interfaces
        .iter()
        // The others have no such property.
        .filter(|i| i.model.kind.starts_with(VIRTIO))
        .map(|i| xml::QemuDevice {
            alias: i.alias.name.clone(),
            frontend: xml::QemuFrontend {
                properties: vec![xml::QemuProperty {
                    name: "ctrl_guest_offloads".into(),
                    kind: "bool".into(),
                    value: if i.kind == VHOST_USER { "false" } else { "true" }.into(),
                }],
            },
        })
        .collect();
    // Where nothing of netd's is, and nothing of it can come, there is nothing to say.
    interfaces.iter().any(|i| i.kind == VHOST_USER).then_some(xml::QemuOverride { devices })
}

/// What QEMU is told of interfaces that no override names: those that are plugged while the machine runs.
pub(super) const COMMAND_LINE: [&str; 2] = ["-global", "virtio-net-device.ctrl_guest_offloads=off"];

/// The device of this name in libvirt's words, which leaves aliases that begin with `ua-` alone.
pub fn alias_of(name: &str) -> String {
    format!("ua-{name}")
}

/// The name in the manifest of the device that has this alias.
pub fn name_of(alias: &str) -> Option<&str> {
    alias.strip_prefix("ua-")
}

pub(super) fn alias(name: &str) -> xml::NameOnly {
    xml::NameOnly { name: alias_of(name) }
}

pub(super) fn path_text(path: &Path) -> Result<String, ConvertError> {
    path.to_str().map(str::to_owned).ok_or_else(|| ConvertError::Path(path.display().to_string()))
}

/// What an interface's frames go to: a netd or a tap device.
struct Backend {
    kind: &'static str,
    mtu: Option<xml::Mtu>,
    source: Option<xml::SocketSource>,
    target: Option<xml::TapTarget>,
    driver: Option<xml::InterfaceDriver>,
}

fn backend(
    interface: &Interface,
    joint: Joint,
    sockets: &BTreeMap<String, PathBuf>,
    taps: &BTreeMap<String, Tap>,
    queues: Option<u64>,
) -> Result<Backend, ConvertError> {
    let name = &interface.name;
    let tap = taps.get(name);
    if joint.has_tap() && tap.is_none() {
        return Err(ConvertError::NoTap(name.clone()));
    }
    if let Some(tap) = tap {
        let several = Some(tap.queues).filter(|queues| *queues > 1);
        return Ok(Backend {
            kind: ETHERNET,
            mtu: Some(xml::Mtu { size: tap.mtu }),
            source: None,
            // virt-handler has made it, or a plugin's network; it is this process's user's.
            target: Some(xml::TapTarget { dev: tap.name.clone(), managed: "no".into() }),
            driver: several.map(|queues| xml::InterfaceDriver { queues: Some(queues), ..Default::default() }),
        });
    }
    let socket = sockets.get(name).ok_or_else(|| ConvertError::NoSocket(name.clone()))?;
    Ok(Backend {
        kind: VHOST_USER,
        mtu: None,
        source: Some(xml::SocketSource {
            kind: Some("unix".into()),
            path: path_text(socket)?,
            mode: "client".into(),
            // A netd that crashed or was updated is back soon; QEMU then hands it the rings again.
            reconnect: Some(xml::Reconnect { enabled: "yes".into(), timeout: RECONNECT_SECONDS }),
        }),
        target: None,
        driver: Some(xml::InterfaceDriver {
            queues,
            rx_queue_size: Some(QUEUE_SIZE),
            tx_queue_size: Some(QUEUE_SIZE),
        }),
    })
}

fn interface(interface: &Interface, backend: Backend, virtio: &str) -> Result<xml::Interface, ConvertError> {
    let Backend { kind, mtu, source, target, driver } = backend;
    Ok(xml::Interface {
        kind: kind.into(),
        mac: xml::Mac { address: interface.mac_address.replace('-', ":") },
        mtu,
        source,
        target,
        model: xml::TypeOnly { kind: if interface.is_virtio() { virtio } else { &interface.model }.into() },
        driver,
        link: (interface.state == Some(InterfaceState::Down))
            .then(|| xml::StateOnly { state: "down".into() }),
        boot: interface.boot_order.map(|order| xml::Boot { order }),
        // Boot code that is not to be used would only cost the guest's firmware time.
        rom: interface.boot_order.is_none().then(|| xml::Rom { enabled: "no".into() }),
        acpi: (interface.acpi_index > 0).then_some(xml::AcpiIndex { index: interface.acpi_index }),
        alias: alias(&interface.name),
        address: pci_address(&interface.pci_address),
    })
}

/// A device of the node, by its interface's name. The names that libvirt has for these are upstream's, by which others look for
/// them.
fn host_device(
    interface: &Interface,
    devices: &BTreeMap<String, String>,
) -> Result<xml::HostDevice, ConvertError> {
    let source = devices.get(&interface.name).and_then(|address| pci_address(address));
    let source = source.ok_or_else(|| ConvertError::NoDevice(interface.name.clone()))?;
    Ok(xml::HostDevice {
        mode: "subsystem".into(),
        kind: "pci".into(),
        managed: "no".into(),
        // There it is the type of the device itself.
        source: xml::HostDeviceSource { address: xml::PciAddress { kind: String::new(), ..source } },
        boot: interface.boot_order.map(|order| xml::Boot { order }),
        alias: alias(&format!("{SRIOV}{}", interface.name)),
        address: pci_address(&interface.pci_address),
    })
}

/// `0000:02:00.0` in libvirt's words; the form was validated.
pub(super) fn pci_address(text: &str) -> Option<xml::PciAddress> {
    let (rest, function) = text.rsplit_once('.')?;
    let mut parts = rest.split(':').map(|part| format!("0x{part}"));
    Some(xml::PciAddress {
        kind: "pci".into(),
        domain: parts.next()?,
        bus: parts.next()?,
        slot: parts.next()?,
        function: format!("0x{function}"),
    })
}

fn inputs(autoattach: Option<bool>, inputs: &[Input]) -> Vec<xml::Input> {
    let tablet = Input { name: "default-0".into(), bus: None, kind: Some(InputKind::Tablet) };
    let added = (autoattach == Some(true) && inputs.is_empty()).then_some(&tablet);
    inputs
        .iter()
        .chain(added)
        .map(|input| {
            let bus = input.bus.unwrap_or(InputBus::Usb);
            xml::Input {
                kind: input.kind.unwrap_or(InputKind::Tablet).as_str().into(),
                bus: bus.as_str().into(),
                // libvirt knows no other model of it.
                model: (bus == InputBus::Virtio).then(|| VIRTIO.into()),
                alias: alias(&input.name),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pci_addresses_are_taken_apart() {
        let address = pci_address("0000:02:1f.3").unwrap();
        assert_eq!((address.domain.as_str(), address.bus.as_str()), ("0x0000", "0x02"));
        assert_eq!((address.slot.as_str(), address.function.as_str()), ("0x1f", "0x3"));
        assert_eq!(pci_address(""), None);
    }
}
