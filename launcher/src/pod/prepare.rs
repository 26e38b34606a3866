//! Everything that a machine needs before it can be started: disks, kernel, netd's socket, its XML.
//!
//! Images of container disks come as descriptors ([`super::descriptor`]): nothing is mounted or copied. QEMU opens
//! them by `/proc/<this process>/fd/<n>`, which the kernel lets the same user follow, through a link with a name that
//! people recognise. The descriptors are held as long as the machine lives.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use podvirt_api::VirtualMachineInstance;
use podvirt_api::bridge::{Bridged, bridged};
use podvirt_api::kernel::{TAP, masqueraded, replaced};
use podvirt_api::names::{path, pod};
use podvirt_api::plugin::Joint;
use podvirt_api::vmi::{StartStrategy, Volume};
use podvirt_api::{storage, v1};
use podvirt_proto::domain::KernelBoot;
use tokio::task::JoinSet;
use tracing::{info, warn};

use super::brought;
use super::descriptor::receive;
use super::devices;
use super::downward;
use super::hold::Hold;
use super::kept;
use super::migration::moved;
use super::report;
use super::services::{self, Services};
use super::shared::{ManifestInterface, Shared, Wanted};
use super::volumes;
use crate::accelerator;
use crate::domain::{Accelerator, Base, Environment, Image, Kernel, Place, Tap, convert, domain_name};
use crate::hooks::{CloudInit, Hooks};
use crate::media::claims::Notes;
use crate::media::cloud_init::Change;
use crate::media::images::{ImageSources, format_of_file, prepare as prepare_images};
use crate::media::{crc32, ovmf};
use crate::process::daemon::{wait_for_listener, wait_for_socket};

/// Links to the images of container disks, below [`path::EPHEMERAL_DISKS`].
const CONTAINER_DISK_LINKS: &str = "container-disk-data";
/// Overlays and empty disks, below [`path::EPHEMERAL_DISKS`].
const OVERLAYS: &str = "disks";
/// cloud-init's disks, by namespace and machine, below [`path::EPHEMERAL_DISKS`].
const CLOUD_INIT: &str = "cloud-init-data";
/// The pod's interfaces.
const NET: &str = "/sys/class/net";
/// A machine that can be started.
pub(super) struct Prepared {
    pub(super) name: String,
    pub(super) xml: String,
    /// The hook sidecars that have had a say in it, for people.
    pub(super) authors: Option<String>,
    pub(super) paused: bool,
    pub(super) interfaces: Vec<ManifestInterface>,
    /// Bytes of the images that were made of volumes' files, by volume.
    pub(super) made: BTreeMap<String, u64>,
    /// What the domain refers to by this process's descriptors.
    pub(super) files: Vec<File>,
    /// Those of the second interface's netd and of further ones; the first one's is there from the start.
    pub(super) holds: Vec<Hold>,
    /// What the guest is told of its node.
    pub(super) metrics: JoinSet<()>,
}

/// Makes everything ready for `vmi`, which has its defaults and is valid. Waits for what others make.
///
/// A machine that takes the pod's place on the pod's network has the MAC address that virt-handler has kept for it.
pub(super) async fn prepare(
    shared: &Arc<Shared>,
    wanted: &Wanted,
    allow_emulation: bool,
    hook_sidecars: usize,
) -> Result<Prepared> {
    let wire: Box<v1::VirtualMachineInstance> =
        serde_json::from_slice(&wanted.json).context("the VMI's status")?;
    let told = storage::told_of_next(&wire);
    let moved = moved::all(&wire);
    let tracking = volumes::tracking(&wire, wanted.incoming);
    let vmi = services::in_place(&wanted.vmi)?;
    let plugged = match wanted.incoming {
        // It brings its own description of them.
        true => BTreeMap::new(),
        false => volumes::images(shared, &vmi, &told, &tracking).await?,
    };
    let vmi = &volumes::without_absent(&vmi, &plugged);
    let (accelerator, reason) = accelerator::choose();
    info!(?accelerator, %reason, "the accelerator is chosen");
    if accelerator == Accelerator::Tcg && !allow_emulation {
        bail!(
            "KVM cannot be used ({reason}), and emulation is not allowed; \
             spec.configuration.developerConfiguration.useEmulation of the KubeVirt object allows it"
        );
    }
    let hooks = hooks(shared, hook_sidecars).await?;
    let directory = path::machine_dir(&shared.identity.uid);
    let (links, overlays, cloud_init) = (
        Path::new(path::EPHEMERAL_DISKS).join(CONTAINER_DISK_LINKS),
        Path::new(path::EPHEMERAL_DISKS).join(OVERLAYS),
        Path::new(path::EPHEMERAL_DISKS).join(CLOUD_INIT).join(vmi.namespace()).join(&vmi.metadata.name),
    );
    // QEMU makes the sockets of console and display in it, not the directory itself.
    std::fs::create_dir_all(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
    // What an earlier attempt left is of no use.
    for made in [&links, &overlays, &cloud_init] {
        renew(made)?;
    }
    let mut files = Vec::new();
    let container_disks = container_disks(shared, vmi, &links, &mut files).await?;
    let kernel = kernel(shared, vmi, &links, &mut files).await?;

    let (image_vmi, json, incoming) = (vmi.clone(), wanted.json.clone(), wanted.incoming);
    let moving: BTreeSet<String> = moved.iter().map(|moved| moved.volume.clone()).collect();
    shared.moved.send_replace(moved);
    let (asked, teller, handle) = (hooks.clone(), shared.clone(), tokio::runtime::Handle::current());
    let images = tokio::task::spawn_blocking(move || {
        let notes = Notes::default();
        let waits = |what| waits_for(&teller, what);
        let change = CloudInit { hooks: &asked, vmi: &json, handle, waits: &waits };
        // A machine that comes from another node brings what its disk holds.
        let change = (!incoming).then_some(&change as &dyn Change);
        let sources = ImageSources {
            container_disks: &container_disks,
            overlays: &overlays,
            cloud_init: &cloud_init,
            claims: Some(Path::new(path::VMI_DISKS)),
            told: &told,
            incoming,
            moved: &moving,
            tracking: &tracking,
            notes: &notes,
            secrets: Some(Path::new(path::SECRETS)),
            credentials: Some(Path::new(path::ACCESS_CREDENTIALS)),
            configs: Some(Path::new("/")),
            change,
        };
        let images = prepare_images(&image_vmi, &sources);
        for (reason, message) in notes.into_inner().unwrap_or_default() {
            teller.event("Normal", reason, message);
        }
        images
    });
    let mut images = images.await.context("disks were not prepared")??;
    images.extend(plugged);

    let made = made(vmi, &images);
    let devices = devices::addresses(vmi, |what| waits_for(shared, what)).await?;
    let taps = taps(vmi)?;
    let mut sockets = BTreeMap::new();
    let mut holds = Vec::new();
    for (index, interface) in vmi.spec.domain.devices.interfaces.iter().enumerate() {
        if !vmi.by_netd(interface) {
            continue;
        }
        let socket = path::netd_socket(index);
        waits_for(shared, format!("netd's socket {}", socket.display()));
        wait_for_socket(&socket).await;
        sockets.insert(interface.name.clone(), socket);
        if index > 0 {
            holds.extend(Hold::start(index).inspect_err(|error| warn!("{error:#}")).ok());
        }
    }
    for place in services::places(vmi) {
        waits_for(shared, format!("the address of the pod for the interface {}", place.name));
        Services::start(shared, vmi, &place).await?;
    }
    kept::make_place(vmi, wanted.incoming)?;
    let ovmf = ovmf::of(vmi, Path::new(ovmf::DIRECTORY), Path::new(path::NVRAM))?;
    let filesystems = filesystems(shared, vmi).await;
    let environment = Environment {
        accelerator,
        kernel,
        ovmf,
        images,
        sockets,
        filesystems,
        taps,
        devices,
        serial_socket: directory.join(path::SERIAL_SOCKET),
        serial_log: directory.join(path::SERIAL_LOG),
        vnc_socket: directory.join(path::VNC_SOCKET),
        balloon_period: wanted.balloon_period,
        smbios: wanted.smbios.clone(),
    };
    shared.credentials.send_replace(vmi.spec.access_credentials.clone());
    let xml = convert(vmi, &environment)?.to_xml()?;
    let xml = hooks.on_define_domain(xml, &wanted.json, &|what| waits_for(shared, what)).await?;
    Ok(Prepared {
        name: domain_name(vmi),
        xml,
        authors: hooks.authors(),
        paused: vmi.spec.start_strategy == Some(StartStrategy::Paused),
        interfaces: manifest_interfaces(vmi, &environment.taps),
        made,
        files,
        holds,
        metrics: downward::serve(shared, vmi)?,
    })
}

/// virtiofsd's sockets of the machine's file systems, each as soon as virtiofsd listens there.
async fn filesystems(shared: &Shared, vmi: &VirtualMachineInstance) -> BTreeMap<String, PathBuf> {
    let mut sockets = BTreeMap::new();
    for filesystem in &vmi.spec.domain.devices.filesystems {
        let (name, socket) = (&filesystem.name, path::virtiofs_socket(&filesystem.name));
        let container = pod::virtiofs(name);
        waits_for(
            shared,
            format!(
                "the socket {} of the container {container}, which serves the file system {name}",
                socket.display()
            ),
        );
        wait_for_listener(&socket).await;
        sockets.insert(name.clone(), socket);
    }
    sockets
}

/// The machine's hook sidecars. Those of an earlier attempt are asked again at their points.
async fn hooks(shared: &Shared, count: usize) -> Result<Arc<Hooks>> {
    if shared.hooks.borrow().len() < count {
        let waits = |what| waits_for(shared, what);
        let collected = Hooks::collect(Path::new(path::HOOKS), count, &waits).await?;
        shared.hooks.send_replace(Arc::new(collected));
    }
    Ok(shared.hooks.borrow().clone())
}

/// The tap devices of interfaces that have one, by interface. virt-handler has made them before it hands the VMI over, or a
/// plugin's network before the pod's programs were started.
fn taps(vmi: &VirtualMachineInstance) -> Result<BTreeMap<String, Tap>> {
    let masqueraded = masqueraded(vmi).map(|one| (one.name, one.queues));
    let replaced = replaced(vmi).map(|one| (one.name, one.queues));
    let carried = masqueraded.into_iter().chain(replaced).map(|(name, queues)| device(name, TAP, queues));
    let interfaces = vmi.spec.domain.devices.interfaces.iter();
    let brought = interfaces.filter(|interface| vmi.joint(interface) == Joint::Tap && !interface.is_absent());
    let brought = brought.map(|interface| brought::tap(Path::new(NET), vmi, interface));
    bridged(vmi).into_iter().map(tap).chain(carried).chain(brought).collect()
}

/// The name of an interface that is bound by a bridge, and its tap device.
pub(super) fn tap(bridged: Bridged) -> Result<(String, Tap)> {
    device(bridged.name, &bridged.tap, bridged.queues)
}

fn device(interface: String, tap: &str, queues: u64) -> Result<(String, Tap)> {
    let file = format!("{NET}/{tap}/mtu");
    let text = std::fs::read_to_string(&file);
    let text = text.with_context(|| format!("the tap device {tap} of the interface {interface}: {file}"))?;
    let mtu = text.trim().parse().with_context(|| format!("{file}: {text:?} is no number"))?;
    Ok((interface, Tap { name: tap.to_owned(), mtu, queues }))
}

fn waits_for(shared: &Shared, what: String) {
    info!(what, "waiting");
    shared.facts.send_modify(|facts| facts.wait_for(&what, report::now()));
}

/// Makes a directory that is empty.
fn renew(directory: &Path) -> Result<()> {
    match std::fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("cannot clear {}", directory.display()));
        }
        _ => {}
    }
    std::fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))
}

/// The images of container disks, by volume.
async fn container_disks(
    shared: &Shared,
    vmi: &VirtualMachineInstance,
    links: &Path,
    files: &mut Vec<File>,
) -> Result<BTreeMap<String, Base>> {
    let mut images = BTreeMap::new();
    for (index, volume) in vmi.spec.volumes.iter().enumerate() {
        let Some(source) = &volume.container_disk else { continue };
        waits_for(shared, format!("the image {} of the volume {}", source.image, volume.name));
        let socket = path::container_disk_socket(index);
        let what = || format!("the containerDisk of the volume {}", volume.name);
        let mut handed = receive(&socket, 1).await.with_context(what)?;
        let Some(mut disk) = handed.pop() else { bail!("{}: no file was handed over", what()) };
        // By the file's own header: a word from the image's container is none to build on.
        let format = format_of_file(&mut disk.file, &disk.path).with_context(what)?;
        let path = link(links, &volume.name, path::DISK_IMAGE, &disk.file)?;
        info!(volume = volume.name, file = %disk.path.display(), ?format, "the container disk is there");
        images.insert(volume.name.clone(), Base { path, place: Place::File, format });
        files.push(disk.file);
    }
    Ok(images)
}

/// Bytes of the images that were made of volumes' files: what upstream's status calls the volumes' sizes.
fn made(vmi: &VirtualMachineInstance, images: &BTreeMap<String, Image>) -> BTreeMap<String, u64> {
    let of_files = |volume: &&Volume| {
        volume.cloud_init_no_cloud.is_some()
            || volume.cloud_init_config_drive.is_some()
            || volume.config_map.is_some()
            || volume.secret.is_some()
            || volume.downward_api.is_some()
            || volume.service_account.is_some()
            || volume.sysprep.is_some()
    };
    let size = |volume: &Volume| {
        let length = images.get(&volume.name)?.path.metadata().ok()?.len();
        Some((volume.name.clone(), length))
    };
    vmi.spec.volumes.iter().filter(of_files).filter_map(size).collect()
}

/// The kernel for direct boot.
async fn kernel(
    shared: &Arc<Shared>,
    vmi: &VirtualMachineInstance,
    links: &Path,
    files: &mut Vec<File>,
) -> Result<Option<Kernel>> {
    let boot = vmi.spec.domain.firmware.as_ref().and_then(|f| f.kernel_boot.as_ref());
    let Some(container) = boot.and_then(|b| b.container.as_ref()) else { return Ok(None) };
    waits_for(shared, format!("the image {} of spec.domain.firmware.kernelBoot", container.image));
    let wanted: Vec<&str> = [("kernel", &container.kernel_path), ("initrd", &container.initrd_path)]
        .into_iter()
        .filter_map(|(name, path)| (!path.is_empty()).then_some(name))
        .collect();
    let socket = Path::new(path::CONTAINER_DISKS).join(path::KERNEL_BOOT_SOCKET);
    let handed = receive(&socket, wanted.len()).await.context("spec.domain.firmware.kernelBoot.container")?;
    let mut read = Vec::new();
    let (mut kernel, mut initrd) = (None, None);
    for (name, handed) in wanted.into_iter().zip(handed) {
        let path = link(links, "kernel-boot", name, &handed.file)?;
        *(if name == "kernel" { &mut kernel } else { &mut initrd }) = Some(path);
        read.extend(handed.file.try_clone().map(|file| (name, file)));
        files.push(handed.file);
    }
    // The guest need not wait for what its status tells of them.
    drop(tokio::task::spawn_blocking({
        let shared = shared.clone();
        move || check(&shared, read)
    }));
    let kernel = kernel.context("spec.domain.firmware.kernelBoot.container.kernelPath: required")?;
    Ok(Some(Kernel { kernel, initrd }))
}

/// Notes the checksums of kernel and initrd.
fn check(shared: &Shared, read: Vec<(&str, File)>) {
    let mut sums = KernelBoot::default();
    for (name, file) in read {
        match crc32::of(&file) {
            Ok(sum) if name == "kernel" => sums.kernel = Some(sum),
            Ok(sum) => sums.initrd = Some(sum),
            Err(error) => warn!(%error, name, "a file that is booted has no checksum: it cannot be read"),
        }
    }
    shared.facts.send_modify(|facts| facts.kernel_boot = Some(sums));
}

/// Makes a link to an open file of this process.
fn link(links: &Path, directory: &str, name: &str, file: &File) -> Result<PathBuf> {
    let directory = links.join(directory);
    std::fs::create_dir_all(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
    let path = directory.join(name);
    let target = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    std::os::unix::fs::symlink(target, &path).with_context(|| format!("cannot make {}", path.display()))?;
    Ok(path)
}

/// The machine's interfaces as its report names them, with the queue pairs of the tap devices that there are.
pub(super) fn manifest_interfaces(
    vmi: &VirtualMachineInstance,
    taps: &BTreeMap<String, Tap>,
) -> Vec<ManifestInterface> {
    let devices = &vmi.spec.domain.devices;
    let by_netd = podvirt_api::netd::queue_pairs(vmi).unwrap_or(1);
    let queues = |name: &str| i32::try_from(taps.get(name).map_or(by_netd, |tap| tap.queues)).unwrap_or(1);
    devices
        .interfaces
        .iter()
        .enumerate()
        .filter(|(_, interface)| !interface.is_absent())
        .map(|(index, interface)| ManifestInterface {
            index,
            name: interface.name.clone(),
            mac: interface.mac_address.replace('-', ":").to_ascii_lowercase(),
            queues: queues(&interface.name),
            by_netd: vmi.by_netd(interface),
            foreign: matches!(vmi.joint(interface), Joint::Device | Joint::Sidecar),
            up: interface.state != Some(podvirt_api::vmi::InterfaceState::Down),
            masquerade: interface.masquerade.is_some(),
            pod_interface: podvirt_api::netd::pod_interface(vmi, interface),
            unplugged: false,
        })
        .collect()
}
