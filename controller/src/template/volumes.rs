//! Volumes of the pod and what `compute` mounts of them.

use k8s_openapi::api::core::v1::{
    DownwardAPIVolumeFile, DownwardAPIVolumeSource, EmptyDirVolumeSource, KeyToPath, ObjectFieldSelector,
    PersistentVolumeClaimVolumeSource, ProjectedVolumeSource, SecretProjection, SecretVolumeSource, Volume,
    VolumeDevice, VolumeMount, VolumeProjection,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use podvirt_api::backup;
use podvirt_api::names::limits::host_name;
use podvirt_api::names::{annotation, path, pod::volume};
use podvirt_api::resources::storage as size;
use podvirt_api::state;
use podvirt_api::storage::{claim, is_block, is_hotpluggable, told_of_next};
use podvirt_api::v1::{self, PersistentVolumeClaimInfo, VirtualMachineInstance};

use super::{TemplateError, configs};

/// The pod's own volumes and where `compute` has them.
const OWN: &[(&str, &str)] = &[
    (volume::PRIVATE, path::PRIVATE),
    (volume::PUBLIC, path::PUBLIC),
    (volume::SOCKETS, path::SOCKETS),
    (volume::LIBVIRT_RUNTIME, path::LIBVIRT_RUNTIME),
    (volume::EPHEMERAL_DISKS, path::EPHEMERAL_DISKS),
    (volume::CONTAINER_DISKS, path::CONTAINER_DISKS),
    (volume::NETD, path::NETD),
    (volume::FDSETS, path::FDSETS),
];

/// Mode of the files of a Secret: the pod's group alone reads them.
pub(super) const SECRET_MODE: i32 = 0o440;

/// Start of the names of volumes that hook sidecars have.
const HOOKS: &str = "hook-sidecar-";

/// Sources that a volume of a machine may have.
const SOURCES: &str = "containerDisk, cloudInitNoCloud, cloudInitConfigDrive, emptyDisk, ephemeral, persistentVolumeClaim, \
                       dataVolume, configMap, secret, downwardAPI, serviceAccount, sysprep and downwardMetrics";

/// Volumes of the pod, and what `compute` has of them.
#[derive(Debug, Default)]
pub(super) struct Storage {
    pub(super) volumes: Vec<Volume>,
    pub(super) mounts: Vec<VolumeMount>,
    pub(super) devices: Vec<VolumeDevice>,
}

pub(super) fn volumes(vmi: &VirtualMachineInstance) -> Result<Storage, TemplateError> {
    let mut storage = Storage::default();
    for (name, mount_path) in OWN {
        let most = if *name == volume::EPHEMERAL_DISKS { size::disks(&vmi.spec) } else { size::OWN };
        storage.volumes.push(empty_dir(name, most));
        storage.mounts.push(mount(name, mount_path));
    }
    if vmi.spec.volumes.iter().any(|v| v.container_disk.is_some()) || super::kernel_container(vmi).is_some() {
        storage.volumes.push(empty_dir(volume::BIN_SHARE, size::OWN));
    }
    if !vmi.spec.domain.devices.filesystems.is_empty() {
        storage.volumes.push(empty_dir(volume::VIRTIOFS, size::OWN));
        storage.mounts.push(mount(volume::VIRTIOFS, path::VIRTIOFS));
    }
    if vmi.spec.domain.devices.interfaces.iter().any(|interface| vmi.is_told_of_device(interface)) {
        storage.volumes.push(network_info());
        storage.mounts.push(network_info_mount());
    }
    if state::has_claim(vmi) {
        backend(vmi, &mut storage)?;
    }
    let told = told_of_next(vmi);
    luns_are_devices(vmi, |volume| told.get(volume).is_some_and(|claim| !is_block(claim)))?;
    for (n, source) in vmi.spec.volumes.iter().enumerate() {
        one(source, n, told.get(&source.name), &mut storage)?;
    }
    for (n, credential) in vmi.spec.access_credentials.iter().enumerate() {
        access_credential(credential, n, &mut storage);
    }
    Ok(storage)
}

/// Looks for a LUN over a claim with files. A claim that is plugged later stops no pod.
fn luns_are_devices(
    vmi: &VirtualMachineInstance,
    has_files: impl Fn(&String) -> bool,
) -> Result<(), TemplateError> {
    let disks = vmi.spec.domain.devices.disks.iter().enumerate().filter(|(_, disk)| disk.lun.is_some());
    for (n, disk) in disks {
        let mut volumes = vmi.spec.volumes.iter().filter(|volume| volume.name == disk.name);
        let claim = volumes.find(|volume| !is_hotpluggable(volume)).and_then(claim);
        if let Some(claim) = claim.filter(|_| has_files(&disk.name)) {
            let field = format!("spec.domain.devices.disks[{n}].lun");
            return Err(TemplateError::NoDevice { field, claim: claim.name.to_owned() });
        }
    }
    Ok(())
}

/// The backend claim, each part of it where libvirt has it.
fn backend(vmi: &VirtualMachineInstance, storage: &mut Storage) -> Result<(), TemplateError> {
    let claim = state::claim(vmi).ok_or(TemplateError::NoStateClaim)?;
    // What is mounted below gets its directories from the runtime, which are root's but for these.
    for (name, mount_path) in [
        (volume::PRIVATE_LIBVIRT, path::PRIVATE_LIBVIRT),
        (volume::PRIVATE_LIBVIRT_QEMU, path::PRIVATE_LIBVIRT_QEMU),
    ] {
        storage.volumes.push(empty_dir(name, size::OWN));
        storage.mounts.push(mount(name, mount_path));
    }
    let mut parts = vec![(path::STATE_META, "meta")];
    if state::keeps_tpm(&vmi.spec) {
        parts.extend([(path::SWTPM, "swtpm"), (path::SWTPM_LOCALCA, "swtpm-localca")]);
    }
    if state::keeps_efi(&vmi.spec) {
        parts.push((path::NVRAM, "nvram"));
    }
    if backup::is_tracked(vmi) {
        parts.push((path::OVERLAYS, "cbt"));
    }
    storage.mounts.extend(
        parts.into_iter().map(|(place, part)| VolumeMount {
            sub_path: Some(part.into()),
            ..mount(volume::VM_STATE, place)
        }),
    );
    let source = PersistentVolumeClaimVolumeSource { claim_name: claim.to_owned(), read_only: None };
    let name = volume::VM_STATE.into();
    storage.volumes.push(Volume { name, persistent_volume_claim: Some(source), ..Volume::default() });
    Ok(())
}

/// What the pod's networks say of their devices, which an annotation of the pod has as soon as Multus has said it.
fn network_info() -> Volume {
    let field = ObjectFieldSelector {
        field_path: format!("metadata.annotations['{}']", annotation::NETWORK_INFO),
        ..ObjectFieldSelector::default()
    };
    let file = DownwardAPIVolumeFile {
        path: path::NETWORK_INFO.into(),
        field_ref: Some(field),
        ..DownwardAPIVolumeFile::default()
    };
    let source = DownwardAPIVolumeSource { items: Some(vec![file]), ..DownwardAPIVolumeSource::default() };
    Volume { name: volume::NETWORK_INFO.into(), downward_api: Some(source), ..Volume::default() }
}

/// Where containers have it.
pub(super) fn network_info_mount() -> VolumeMount {
    mount(volume::NETWORK_INFO, path::POD_INFO)
}

fn one(
    source: &v1::Volume,
    n: usize,
    told: Option<&PersistentVolumeClaimInfo>,
    storage: &mut Storage,
) -> Result<(), TemplateError> {
    let field = |name: &str| format!("spec.volumes[{n}].{name}");
    if is_hotpluggable(source) {
        // An attachment pod has it.
        return Ok(());
    }
    if let Some(claim) = claim(source) {
        if told.is_some_and(is_block) {
            if path::TAKEN_DEVICES.contains(&source.name.as_str()) {
                return Err(TemplateError::DeviceName { field: field("name"), name: source.name.clone() });
            }
            let device_path = path::claim_device(&source.name).display().to_string();
            storage.devices.push(VolumeDevice { name: pod_volume(source), device_path });
        } else {
            let mut mounted = mount(&pod_volume(source), &format!("{}/{}", path::VMI_DISKS, source.name));
            mounted.read_only = claim.read_only.then_some(true);
            storage.mounts.push(mounted);
        }
        storage.volumes.push(Volume {
            name: pod_volume(source),
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: claim.name.to_owned(),
                // A read-only mount is enough for an overlay; a claim that others write stays attachable.
                read_only: source
                    .persistent_volume_claim
                    .as_ref()
                    .and_then(|c| c.read_only)
                    .filter(|read_only| *read_only),
            }),
            ..Volume::default()
        });
        return Ok(());
    }
    if let Some(source_) = &source.cloud_init_no_cloud {
        return cloud_init(source, &source_.secret_ref, &source_.network_data_secret_ref, storage);
    }
    if let Some(source_) = &source.cloud_init_config_drive {
        return cloud_init(source, &source_.secret_ref, &source_.network_data_secret_ref, storage);
    }
    if source.container_disk.is_some() || source.empty_disk.is_some() || source.downward_metrics.is_some() {
        return Ok(());
    }
    if let Some((kind, config)) = configs::volume(source, pod_volume(source)) {
        let mut mounted = mount(&pod_volume(source), &kind.files(&source.name));
        mounted.read_only = Some(true);
        storage.mounts.push(mounted);
        storage.volumes.push(config);
        return Ok(());
    }
    let refused =
        [("hostDisk", source.host_disk.is_some()), ("containerPath", source.container_path.is_some())];
    let name = refused.iter().find_map(|(name, given)| given.then_some(*name));
    Err(TemplateError::unsupported(field(name.unwrap_or("name without a source")), SOURCES))
}

/// Volumes of the machine cannot be taken for the pod's own: a manifest may call one `private`.
pub(super) fn pod_volume(volume: &v1::Volume) -> String {
    let beside = [
        volume::BIN_SHARE,
        volume::NETWORK_INFO,
        volume::PRIVATE_LIBVIRT,
        volume::PRIVATE_LIBVIRT_QEMU,
        volume::VIRTIOFS,
        volume::VM_STATE,
    ];
    let taken = beside.contains(&volume.name.as_str())
        || [HOOKS, volume::ACCESS_CREDENTIAL].iter().any(|own| volume.name.starts_with(own));
    if taken || OWN.iter().any(|(own, _)| *own == volume.name) {
        return host_name(&format!("vmi-{}", volume.name));
    }
    volume.name.clone()
}

type SecretRef = Option<k8s_openapi::api::core::v1::LocalObjectReference>;

/// Mounts the Secrets of a cloud-init volume into one directory, `userdata` and `networkdata` as files.
///
/// A Secret is projected as a whole, so that the pod waits until it exists, and before that its keys in
/// upstream's other spelling under the file's name: a later source wins.
fn cloud_init(
    volume: &v1::Volume,
    user: &SecretRef,
    network: &SecretRef,
    storage: &mut Storage,
) -> Result<(), TemplateError> {
    let secrets = [(user, "userData", "userdata"), (network, "networkData", "networkdata")];
    let given = secrets.into_iter().filter_map(|(secret, other, file)| {
        let name = secret.as_ref().map(|s| s.name.clone()).filter(|n| !n.is_empty())?;
        Some((name, KeyToPath { key: other.into(), path: file.into(), mode: None }))
    });
    let sources: Vec<_> = given
        .flat_map(|(name, other)| {
            let renamed =
                SecretProjection { name: name.clone(), items: Some(vec![other]), optional: Some(true) };
            [renamed, SecretProjection { name, ..SecretProjection::default() }]
        })
        .collect();
    if sources.is_empty() {
        return Ok(());
    }
    let project = |secret| VolumeProjection { secret: Some(secret), ..VolumeProjection::default() };
    let mut mounted = mount(&pod_volume(volume), &format!("{}/{}", path::SECRETS, volume.name));
    mounted.read_only = Some(true);
    storage.mounts.push(mounted);
    storage.volumes.push(Volume {
        name: pod_volume(volume),
        projected: Some(ProjectedVolumeSource {
            default_mode: Some(SECRET_MODE),
            sources: Some(sources.into_iter().map(project).collect()),
        }),
        ..Volume::default()
    });
    Ok(())
}

/// Mounts the Secret of a credential. The pod waits until it exists.
fn access_credential(credential: &v1::AccessCredential, n: usize, storage: &mut Storage) {
    let key = credential.ssh_public_key.as_ref().and_then(|key| key.source.secret.as_ref());
    let password = || credential.user_password.as_ref().and_then(|password| password.source.secret.as_ref());
    let secret = key.or_else(password);
    let Some(secret) = secret else { return };
    let name = format!("{}{n}", volume::ACCESS_CREDENTIAL);
    let mut mounted = mount(&name, &format!("{}/{n}", path::ACCESS_CREDENTIALS));
    mounted.read_only = Some(true);
    storage.mounts.push(mounted);
    let source = SecretVolumeSource {
        secret_name: Some(secret.secret_name.clone()),
        default_mode: Some(SECRET_MODE),
        ..SecretVolumeSource::default()
    };
    storage.volumes.push(Volume { name, secret: Some(source), ..Volume::default() });
}

/// A volume on the node of at most so many bytes; the kubelet evicts a pod that has more in it.
pub(super) fn empty_dir(name: &str, most: u64) -> Volume {
    let source = EmptyDirVolumeSource { size_limit: Some(Quantity(most.to_string())), medium: None };
    Volume { name: name.into(), empty_dir: Some(source), ..Volume::default() }
}

/// A mount of a whole volume.
pub(super) fn mount(name: &str, mount_path: &str) -> VolumeMount {
    VolumeMount { name: name.into(), mount_path: mount_path.into(), ..VolumeMount::default() }
}
