//! Disk images: what is behind each volume, made ready before the machine starts.
//!
//! A containerDisk is never written: the guest gets an overlay in the run directory. An emptyDisk is a sparse
//! file there. A hostDisk is the file itself, made sparse when the manifest allows it. A claim holds a raw
//! `disk.img`, or is a block device, by what the machine's status tells of it; it is used as it is or, by `ephemeral`,
//! below an overlay. It is raw and nothing else, since a guest that wrote another format's header into its own disk
//! would choose what is opened at the next start.
//!
//! Formats of images that no guest has written are read from their first bytes and told to QEMU; one that refers to
//! a further file (a qcow2 backing or data file) is refused, since that name would be opened with the launcher's
//! rights. qemu-img is never asked: it would open that file to answer.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use podvirt_api::VirtualMachineInstance;
use podvirt_api::names::path;
use podvirt_api::v1::PersistentVolumeClaimInfo;
use podvirt_api::vmi::{HostDisk, HostDiskType, Volume};

use super::claims::{self, ALIGNMENT, Notes};
use super::overlay::Tracking;
use super::{MediaError, cloud_init, config, probe};
use crate::domain::{Base, Image, ImageFormat, Place};
use crate::downward::disk as downward;

/// Where volumes come from and where made files go.
#[derive(Clone, Copy, Debug)]
pub struct ImageSources<'a> {
    /// Images of containerDisk volumes, by volume.
    pub container_disks: &'a BTreeMap<String, Base>,
    /// Directory for overlays and empty disks; it exists.
    pub overlays: &'a Path,
    /// Directory for cloud-init disks, which may hold passwords; it exists.
    pub cloud_init: &'a Path,
    /// Directory below which claims are mounted; none outside a cluster.
    pub claims: Option<&'a Path>,
    /// What the machine's status tells of the claims, by volume.
    pub told: &'a BTreeMap<String, PersistentVolumeClaimInfo>,
    /// Whether the machine comes from another node, where its claims have their disks already.
    pub incoming: bool,
    /// Volumes that move to other claims with the machine: what is on these is made new.
    pub moved: &'a BTreeSet<String>,
    /// Disks whose changes are tracked.
    pub tracking: &'a Tracking,
    /// Gets what users are to be told.
    pub notes: &'a Notes,
    /// Directory below which cloud-init's Secrets are mounted; none outside a cluster.
    pub secrets: Option<&'a Path>,
    /// Directory below which Secrets with credentials are mounted; none outside a cluster.
    pub credentials: Option<&'a Path>,
    /// Root of the file system in which files for disks of configuration are mounted; none outside a cluster.
    pub configs: Option<&'a Path>,
    /// Has a say in what cloud-init gets.
    pub change: Option<&'a dyn cloud_init::Change>,
}

/// Makes the disk image of every volume of `vmi`, but of those that it has only as file systems.
///
/// # Errors
///
/// [`MediaError`]: a file is missing or cannot be made.
pub fn prepare(
    vmi: &VirtualMachineInstance,
    sources: &ImageSources<'_>,
) -> Result<BTreeMap<String, Image>, MediaError> {
    let image = |v: &Volume| {
        let kept = sources.told.get(&v.name).is_some_and(|claim| claim.preallocated == Some(true));
        let image = Image { kept, ..probe::seen(volume(vmi, v, sources)?) };
        Ok((v.name.clone(), sources.tracking.of(&v.name, image)?))
    };
    // Disks of the others come by another way, and what is only a file system has none.
    let filesystems = &vmi.spec.domain.devices.filesystems;
    let has_files = |volume: &Volume| filesystems.iter().any(|filesystem| filesystem.name == volume.name);
    let has_image =
        |volume: &&Volume| !volume.is_hotpluggable() && (vmi.is_disk(volume) || !has_files(volume));
    vmi.spec.volumes.iter().filter(has_image).map(image).collect()
}

fn volume(
    vmi: &VirtualMachineInstance,
    volume: &Volume,
    sources: &ImageSources<'_>,
) -> Result<Image, MediaError> {
    let made = |suffix: &str| sources.overlays.join(format!("{}.{suffix}", volume.name));
    if let Some(disk) = &volume.container_disk {
        let base = sources.container_disks.get(&volume.name).ok_or_else(|| MediaError::NoContainerDisk {
            volume: volume.name.clone(),
            image: disk.image.clone(),
        })?;
        return layer(base.clone(), &made("qcow2"));
    }
    if let Some(disk) = &volume.host_disk {
        return host_disk(disk);
    }
    if let Some(source) = &volume.persistent_volume_claim {
        let read_only = source.read_only == Some(true);
        return Ok(Image::of(claims::base(volume, &source.claim_name, read_only, sources)?));
    }
    if let Some(source) = &volume.data_volume {
        return Ok(Image::of(claims::base(volume, &source.name, false, sources)?));
    }
    if let Some(source) = &volume.ephemeral {
        let missing = || MediaError::NoSource(volume.name.clone());
        let source = source.persistent_volume_claim.as_ref().ok_or_else(missing)?;
        return layer(claims::base(volume, &source.claim_name, true, sources)?, &made("qcow2"));
    }
    if let Some(disk) = &volume.empty_disk {
        let size = disk.capacity.as_ref().ok_or_else(|| MediaError::NoSource(volume.name.clone()))?.value();
        let path = made("img");
        sparse(&path, size)?;
        return Ok(Image::new(path, ImageFormat::Raw));
    }
    let cloud_init = [
        (&volume.cloud_init_no_cloud, cloud_init::Kind::NoCloud),
        (&volume.cloud_init_config_drive, cloud_init::Kind::ConfigDrive),
    ];
    for (source, kind) in cloud_init {
        let Some(source) = source else { continue };
        let path = sources.cloud_init.join(file_name(vmi, volume, kind));
        let seed = cloud_init::seed(vmi, &volume.name, kind, source, sources)?;
        cloud_init::write(seed, &path)?;
        return Ok(Image::new(path, ImageFormat::Raw));
    }
    if let Some((kind, label)) = volume.config() {
        let missing = || MediaError::NoConfigs(volume.name.clone());
        let root = sources.configs.ok_or_else(missing)?;
        let at = |path: &Path| root.join(path.strip_prefix("/").unwrap_or(path));
        let path = at(&kind.disk(&volume.name));
        config::write(label, &at(Path::new(&kind.files(&volume.name))), volume, &path)?;
        // A machine that comes from an earlier release's launcher has its disk there.
        let earlier = made("iso");
        symlink(&path, &earlier).map_err(|error| MediaError::file("make", &earlier, error))?;
        return Ok(Image::new(path, ImageFormat::Raw));
    }
    if volume.downward_metrics.is_some() {
        let missing = || MediaError::NoConfigs(volume.name.clone());
        let disk = Path::new(path::DOWNWARD_METRICS_DISK);
        let path = sources.configs.ok_or_else(missing)?.join(disk.strip_prefix("/").unwrap_or(disk));
        downward::make(&path).map_err(|error| MediaError::file("make", &path, error))?;
        return Ok(Image::new(path, ImageFormat::Raw));
    }
    Err(MediaError::NoSource(volume.name.clone()))
}

/// Of a disk of cloud-init: upstream's name, which a machine's first disk of its kind has.
fn file_name(vmi: &VirtualMachineInstance, volume: &Volume, kind: cloud_init::Kind) -> String {
    let is_of_kind = |one: &&Volume| match kind {
        cloud_init::Kind::NoCloud => one.cloud_init_no_cloud.is_some(),
        cloud_init::Kind::ConfigDrive => one.cloud_init_config_drive.is_some(),
    };
    match vmi.spec.volumes.iter().find(is_of_kind) {
        Some(first) if first.name != volume.name => format!("{}.iso", volume.name),
        _ => kind.file_name().into(),
    }
}

fn host_disk(disk: &HostDisk) -> Result<Image, MediaError> {
    let path = PathBuf::from(&disk.path);
    if let (Some(HostDiskType::DiskOrCreate), Some(size), false) = (disk.kind, &disk.capacity, path.exists())
    {
        sparse(&path, size.value())?;
    }
    let format = format_of(&path)?;
    Ok(Image::new(path, format))
}

/// Makes a file of `size` bytes that takes no space yet. Sizes are rounded down to whole MiB, but for the first one, as upstream's are:
/// QEMU writes past the page cache in the units of the storage, which are larger than a sector of 512 bytes on some.
fn sparse(path: &Path, size: u64) -> Result<(), MediaError> {
    let size = (size - size % ALIGNMENT).max(ALIGNMENT);
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(|e| MediaError::file("make", path, e))?;
    file.set_len(size).map_err(|e| MediaError::file("size", path, e))
}

/// Makes a copy-on-write layer over `base`.
fn layer(base: Base, path: &Path) -> Result<Image, MediaError> {
    let output = Command::new("qemu-img")
        .args(["create", "-q", "-f", "qcow2", "-F", base.format.as_str(), "-b"])
        .args([base.path.as_path(), path])
        .output()
        .map_err(|e| MediaError::file("run qemu-img for", path, e))?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(MediaError::QemuImg { path: path.to_owned(), message });
    }
    Ok(Image::new(path, ImageFormat::Qcow2).over(base))
}

/// The image in `file`, for an overlay.
///
/// # Errors
///
/// It cannot be read, or refers to a further file.
pub fn wrap(file: &Path) -> Result<Base, MediaError> {
    let path = file.canonicalize().map_err(|e| MediaError::file("find", file, e))?;
    let format = format_of(&path)?;
    Ok(Base { path, place: Place::File, format })
}

/// Reads an image's format from its header.
fn format_of(path: &Path) -> Result<ImageFormat, MediaError> {
    let mut file = File::open(path).map_err(|e| MediaError::file("open", path, e))?;
    format_of_file(&mut file, path)
}

/// Reads an image's format from its header; `path` is its name for people.
///
/// # Errors
///
/// It cannot be read, or refers to a further file.
pub fn format_of_file(file: &mut File, path: &Path) -> Result<ImageFormat, MediaError> {
    let read = |e| MediaError::file("read", path, e);
    // qcow2, version 2 and 3: magic, version, offset of the backing file's name; version 3 has its incompatible
    // features at 72, of which bit 2 is an external data file (docs/interop/qcow2.txt in QEMU's sources).
    let mut header = [0u8; 80];
    let mut have = 0;
    while have < header.len() {
        match file.read(header.get_mut(have..).unwrap_or_default()).map_err(read)? {
            0 => break,
            n => have += n,
        }
    }
    file.seek(SeekFrom::Start(0)).map_err(read)?;
    let [b'Q', b'F', b'I', 0xfb, rest @ ..] = header else { return Ok(ImageFormat::Raw) };
    let [_, _, _, version, b0, b1, b2, b3, b4, b5, b6, b7, ..] = rest;
    let backing = u64::from_be_bytes([b0, b1, b2, b3, b4, b5, b6, b7]);
    let external_data = version >= 3 && header[79] & 0b100 != 0;
    if backing != 0 || external_data {
        return Err(MediaError::BackingFile(path.to_owned()));
    }
    Ok(ImageFormat::Qcow2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prepare_all(
        claims: &Path,
        dir: &Path,
        volumes: Vec<Volume>,
    ) -> Result<BTreeMap<String, Image>, MediaError> {
        prepare_told(claims, dir, volumes, &BTreeMap::new())
    }

    fn prepare_told(
        claims: &Path,
        dir: &Path,
        volumes: Vec<Volume>,
        told: &BTreeMap<String, PersistentVolumeClaimInfo>,
    ) -> Result<BTreeMap<String, Image>, MediaError> {
        let manifest = serde_json::json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": {"name": "vm"},
            "spec": {"domain": {"memory": {"guest": "64Mi"}}},
        });
        let mut vmi = VirtualMachineInstance::from_value(manifest).unwrap();
        vmi.spec.volumes = volumes;
        let sources = ImageSources {
            container_disks: &BTreeMap::new(),
            overlays: dir,
            cloud_init: dir,
            claims: Some(claims),
            told,
            incoming: false,
            moved: &BTreeSet::new(),
            tracking: &Tracking::default(),
            notes: &Notes::default(),
            secrets: None,
            credentials: None,
            configs: None,
            change: None,
        };
        prepare(&vmi, &sources)
    }

    #[test]
    fn a_claim_holds_a_raw_disk_whatever_its_first_bytes_say() {
        let dir = tempfile::tempdir().unwrap();
        let volume = "{name: v, persistentVolumeClaim: {claimName: data}}";
        let error = prepare_in(dir.path(), volume).unwrap_err().to_string();
        assert!(error.contains("the claim data of the volume v"), "{error}");
        let disk = dir.path().join("claims/v/disk.img");
        std::fs::create_dir_all(disk.parent().unwrap()).unwrap();
        // A guest may write this into its own disk.
        std::fs::write(&disk, b"QFI\xfb\0\0\0\x02").unwrap();
        let image = prepare_in(dir.path(), volume).unwrap()["v"].clone();
        assert_eq!((image.path, image.format, image.base), (disk, ImageFormat::Raw, None));
    }

    #[test]
    fn a_claim_in_block_mode_is_a_device_under_its_volumes_name() {
        let dir = tempfile::tempdir().unwrap();
        let told = |name: &str| {
            let volume = format!("{{name: '{name}', persistentVolumeClaim: {{claimName: data}}}}");
            let block = PersistentVolumeClaimInfo { volume_mode: Some("Block".into()), ..Default::default() };
            let told = BTreeMap::from([(name.to_owned(), block)]);
            let volumes = vec![serde_saphyr::from_str(&volume).unwrap()];
            prepare_told(dir.path(), dir.path(), volumes, &told).unwrap_err().to_string()
        };
        assert!(told("null").contains("/dev/null is no block device"), "{}", told("null"));
        let missing = told("no-such-device");
        assert!(missing.contains("claim data of the volume no-such-device"), "{missing}");
        assert!(missing.contains("device_ownership_from_security_context"), "{missing}");
    }

    fn prepare_in(dir: &Path, volume: &str) -> Result<BTreeMap<String, Image>, MediaError> {
        prepare_all(&dir.join("claims"), dir, vec![serde_saphyr::from_str(volume).unwrap()])
    }

    #[test]
    fn an_empty_disk_is_a_sparse_file_of_whole_mebibytes() {
        for (capacity, bytes) in [("1G", 999_292_928), ("1Gi", 1 << 30), ("1000001", 1 << 20)] {
            let dir = tempfile::tempdir().unwrap();
            let volume = format!("{{name: v, emptyDisk: {{capacity: {capacity}}}}}");
            let image = &prepare_in(dir.path(), &volume).unwrap()["v"];
            assert_eq!(image.format, ImageFormat::Raw);
            assert_eq!(std::fs::metadata(&image.path).unwrap().len(), bytes);
        }
    }

    #[test]
    fn a_host_disk_is_made_only_when_allowed_and_kept_when_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk.img");
        let disk = format!("{{name: v, hostDisk: {{path: {}, type: Disk}}}}", path.display());
        assert!(matches!(prepare_in(dir.path(), &disk), Err(MediaError::File { action: "open", .. })));
        let disk = disk.replace("type: Disk", "type: DiskOrCreate, capacity: 1Mi");
        assert_eq!(prepare_in(dir.path(), &disk).unwrap()["v"].path, path);
        std::fs::write(&path, "kept").unwrap();
        prepare_in(dir.path(), &disk).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"kept");
    }

    #[test]
    fn disks_of_cloud_init_have_upstreams_names_and_whole_blocks() {
        let dir = tempfile::tempdir().unwrap();
        let volumes = serde_saphyr::from_str(
            "[{name: a, cloudInitNoCloud: {userData: x}}, {name: b, cloudInitConfigDrive: {userData: x}}, \
              {name: c, cloudInitNoCloud: {userData: x}}]",
        );
        let images = prepare_all(dir.path(), dir.path(), volumes.unwrap()).unwrap();
        for (volume, name) in [("a", "noCloud.iso"), ("b", "configdrive.iso"), ("c", "c.iso")] {
            assert_eq!(images[volume].path, dir.path().join(name));
            assert_eq!(std::fs::metadata(&images[volume].path).unwrap().len() % 4096, 0);
        }
    }

    #[test]
    fn a_container_disk_needs_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let error = prepare_in(dir.path(), "{name: v, containerDisk: {image: debian}}").unwrap_err();
        assert!(error.to_string().contains("--container-disk v=FILE"), "{error}");
    }

    #[test]
    fn formats_are_read_from_the_header() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let qcow2 = |version: u8, backing: u8, features: u8| {
            let mut header = vec![0u8; 104];
            header[..4].copy_from_slice(b"QFI\xfb");
            (header[7], header[15], header[79]) = (version, backing, features);
            std::fs::write(&path, header).unwrap();
            format_of(&path)
        };
        assert_eq!(qcow2(3, 0, 0).unwrap(), ImageFormat::Qcow2);
        assert_eq!(qcow2(2, 0, 4).unwrap(), ImageFormat::Qcow2, "version 2 has no features");
        assert!(matches!(qcow2(2, 1, 0), Err(MediaError::BackingFile(_))));
        assert!(matches!(qcow2(3, 0, 4), Err(MediaError::BackingFile(_))));
        std::fs::write(&path, "short").unwrap();
        assert_eq!(format_of(&path).unwrap(), ImageFormat::Raw);
    }
}
