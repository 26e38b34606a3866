//! The disk from which cloud-init reads: an ISO 9660 image.
//!
//! NoCloud's has the label `cidata` and holds `meta-data`, `user-data` and, if there is one, `network-config`.
//! ConfigDrive's has the label `config-2` and holds OpenStack's layout, `openstack/latest/meta_data.json`,
//! `user_data` and, if there is one, `network_data.json`.
//!
//! The instance id is the VM's name and namespace, as upstream has it: cloud-init runs its once-per-instance
//! parts again when it changes, so it must stay the same across restarts.

use std::error::Error;
use std::io::{self, Cursor};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hadris_iso::read::PathSeparator;
use hadris_iso::write::options::{CreationFeatures, IsoFormatOptions};
use hadris_iso::write::{InputEntry, InputTree, IsoImageWriter};
use podvirt_api::VirtualMachineInstance;
use podvirt_api::vmi::CloudInitSource;
use serde_json::{Map, Value};

use super::images::ImageSources;
use super::{MediaError, ssh_keys};

/// Keys of user data in a Secret.
const USER_DATA_KEYS: (&[&str], &str) = (&["userdata", "userData"], "userdata, userData");
/// Keys of network data in a Secret.
const NETWORK_DATA_KEYS: (&[&str], &str) = (&["networkdata", "networkData"], "networkdata, networkData");

/// Which of cloud-init's sources reads the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// NoCloud.
    NoCloud,
    /// ConfigDrive.
    ConfigDrive,
}

impl Kind {
    /// Under which cloud-init finds the keys of its default user in the description of the machine.
    const fn keys_name(self) -> &'static str {
        match self {
            Kind::NoCloud => "public-keys",
            Kind::ConfigDrive => "public_keys",
        }
    }

    /// Upstream's name of the disk's file.
    pub(super) const fn file_name(self) -> &'static str {
        match self {
            Kind::NoCloud => "noCloud.iso",
            Kind::ConfigDrive => "configdrive.iso",
        }
    }

    /// By this label cloud-init finds the disk.
    const fn label(self) -> &'static str {
        match self {
            Kind::NoCloud => "cidata",
            Kind::ConfigDrive => "config-2",
        }
    }
}

/// What a cloud-init gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seed {
    /// Which of its sources reads it.
    pub kind: Kind,
    /// The volume.
    pub volume: String,
    /// The description of the machine.
    pub meta: Map<String, Value>,
    /// User data.
    pub user: Vec<u8>,
    /// Network data; empty where there is none.
    pub network: Vec<u8>,
}

/// Has a say in what a cloud-init gets.
pub trait Change: std::fmt::Debug {
    /// What it makes of `seed`.
    ///
    /// # Errors
    ///
    /// Why it makes nothing of it.
    fn change(&self, seed: Seed) -> Result<Seed, Box<dyn Error + Send + Sync>>;
}

/// What the disk of `volume` is to hold.
///
/// # Errors
///
/// base64 or a Secret that cannot be read, or what has a say in it fails.
pub fn seed(
    vmi: &VirtualMachineInstance,
    volume: &str,
    kind: Kind,
    source: &CloudInitSource,
    sources: &ImageSources<'_>,
) -> Result<Seed, MediaError> {
    let Data { user, network } = Data::read(volume, source, sources.secrets)?;
    let mut meta = meta(vmi, kind);
    let keys = ssh_keys::of(vmi, kind, sources.credentials)?;
    if !keys.is_empty() {
        let keys = keys.into_iter().enumerate().map(|(n, key)| (n.to_string(), key.into()));
        meta.insert(kind.keys_name().into(), keys.collect::<Map<String, Value>>().into());
    }
    let seed = Seed { kind, volume: volume.to_owned(), meta, user, network };
    match sources.change {
        Some(change) => change.change(seed).map_err(|why| MediaError::Change(volume.to_owned(), why)),
        None => Ok(seed),
    }
}

/// Writes a disk to `path`.
///
/// # Errors
///
/// The file cannot be written.
pub fn write(seed: Seed, path: &Path) -> Result<(), MediaError> {
    let kind = seed.kind;
    let entries = match kind {
        Kind::NoCloud => no_cloud(seed),
        Kind::ConfigDrive => config_drive(seed),
    };
    let image = iso(kind.label(), entries)?;
    write_file(path, &image)
}

/// Writes a disk that may hold passwords.
pub(super) fn write_file(path: &Path, image: &[u8]) -> Result<(), MediaError> {
    let mut options = std::fs::OpenOptions::new();
    let file = options.write(true).create(true).truncate(true).mode(0o600).open(path);
    file.and_then(|mut file| io::Write::write_all(&mut file, image))
        .map_err(|e| MediaError::file("write", path, e))
}

/// What the manifest gives to cloud-init.
struct Data {
    user: Vec<u8>,
    network: Vec<u8>,
}

impl Data {
    fn read(volume: &str, source: &CloudInitSource, secrets: Option<&Path>) -> Result<Data, MediaError> {
        let one = |secret: bool, plain: &str, encoded: &str, keys| {
            if secret {
                let directory = secrets.ok_or_else(|| MediaError::NoSecrets(volume.to_owned()))?.join(volume);
                return from_secret(volume, &directory, keys);
            }
            if encoded.is_empty() {
                return Ok(plain.as_bytes().to_vec());
            }
            BASE64_STANDARD.decode(encoded).map_err(|e| MediaError::Base64(volume.to_owned(), e))
        };
        Ok(Data {
            user: one(
                source.secret_ref.is_some(),
                &source.user_data,
                &source.user_data_base64,
                USER_DATA_KEYS,
            )?,
            network: one(
                source.network_data_secret_ref.is_some(),
                &source.network_data,
                &source.network_data_base64,
                NETWORK_DATA_KEYS,
            )?,
        })
    }
}

/// Reads the first of `keys` that a mounted Secret has.
fn from_secret(volume: &str, directory: &Path, keys: (&[&str], &'static str)) -> Result<Vec<u8>, MediaError> {
    for key in keys.0 {
        let path = directory.join(key);
        match std::fs::read(&path) {
            Ok(data) => return Ok(data),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(MediaError::file("read", &path, error)),
        }
    }
    Err(MediaError::Secret { volume: volume.to_owned(), keys: keys.1 })
}

fn instance_id(vmi: &VirtualMachineInstance) -> String {
    format!("{}.{}", vmi.metadata.name, vmi.namespace())
}

fn meta(vmi: &VirtualMachineInstance, kind: Kind) -> Map<String, Value> {
    let hostname = &vmi.spec.hostname;
    let uuid = vmi.spec.domain.firmware.as_ref().map(|f| f.uuid.clone()).unwrap_or_default();
    let pairs = match kind {
        Kind::NoCloud => vec![("instance-id", instance_id(vmi)), ("local-hostname", hostname.clone())],
        Kind::ConfigDrive => vec![
            ("instance_id", instance_id(vmi)),
            ("uuid", uuid),
            ("hostname", hostname.clone()),
            ("local_hostname", hostname.clone()),
        ],
    };
    pairs.into_iter().map(|(key, text)| (key.to_owned(), Value::String(text))).collect()
}

fn no_cloud(seed: Seed) -> Vec<InputEntry> {
    // YAML, of which JSON is a part.
    let plain = |key: &str| key.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c));
    let line = |(key, value): (&String, &Value)| match plain(key) {
        true => format!("{key}: {value}\n"),
        false => format!("{}: {value}\n", Value::String(key.clone())),
    };
    let meta_data: String = seed.meta.iter().map(line).collect();
    let mut files = vec![InputEntry::file("meta-data", meta_data), InputEntry::file("user-data", seed.user)];
    if !seed.network.is_empty() {
        files.push(InputEntry::file("network-config", seed.network));
    }
    files
}

fn config_drive(seed: Seed) -> Vec<InputEntry> {
    let meta_data = Value::Object(seed.meta).to_string();
    let mut files =
        vec![InputEntry::file("meta_data.json", meta_data), InputEntry::file("user_data", seed.user)];
    if !seed.network.is_empty() {
        files.push(InputEntry::file("network_data.json", seed.network));
    }
    vec![InputEntry::directory("openstack", vec![InputEntry::directory("latest", files)])]
}

/// Sizes of disks are multiples of this, bytes.
const SIZE_STEP: usize = 1 << 20;

pub(super) fn iso(label: &str, entries: Vec<InputEntry>) -> Result<Vec<u8>, MediaError> {
    let options = IsoFormatOptions {
        volume_name: label.into(),
        system_id: None,
        volume_set_id: None,
        publisher_id: None,
        preparer_id: None,
        application_id: None,
        sector_size: 2048,
        features: CreationFeatures::extensions(),
        path_separator: PathSeparator::ForwardSlash,
        strict_charset: false,
    };
    let image = IsoImageWriter::create(
        Cursor::new(Vec::new()),
        InputTree::new(PathSeparator::ForwardSlash, entries),
        options,
    )
    .map_err(|e| MediaError::Iso(e.to_string()))?;
    let mut bytes = image.into_inner();
    // Whole sectors of the CD-ROM that the guest sees, and of the disk that it may see instead; and by so much more
    // that a seed made for the same machine at another time, to take its place in a migration, has the same size.
    bytes.resize(bytes.len().next_multiple_of(SIZE_STEP), 0);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use hadris_iso::read::IsoImage;

    use super::*;

    fn vmi() -> VirtualMachineInstance {
        VirtualMachineInstance::load(
            "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\n\
             metadata: {name: web, namespace: shop}\nspec: {hostname: front, domain: {memory: {guest: 64Mi}}}",
        )
        .unwrap()
    }

    fn source(text: &str) -> CloudInitSource {
        serde_saphyr::from_str(text).unwrap()
    }

    /// The disk's bytes as text.
    fn disk(kind: Kind, source: &CloudInitSource, secrets: Option<&Path>) -> Result<String, MediaError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("v.iso");
        let none = BTreeMap::new();
        let sources = ImageSources {
            container_disks: &none,
            overlays: dir.path(),
            cloud_init: dir.path(),
            claims: None,
            told: &BTreeMap::new(),
            incoming: false,
            moved: &std::collections::BTreeSet::new(),
            tracking: &crate::media::overlay::Tracking::default(),
            notes: &Default::default(),
            secrets,
            credentials: None,
            configs: None,
            change: None,
        };
        write(seed(&vmi(), "v", kind, source, &sources)?, &path)?;
        Ok(String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned())
    }

    #[test]
    fn plain_and_encoded_data_become_the_three_files() {
        let encoded = BASE64_STANDARD.encode("version: 2\n");
        let source = source(&format!("{{userData: '#cloud-config', networkDataBase64: {encoded}}}"));
        let text = disk(Kind::NoCloud, &source, None).unwrap();
        for content in
            ["instance-id: \"web.shop\"\nlocal-hostname: \"front\"\n", "#cloud-config", "version: 2\n"]
        {
            assert!(text.contains(content), "{content}");
        }
        assert!(text.contains("network-config"));
    }

    #[test]
    fn without_network_data_there_is_no_network_config() {
        let text = disk(Kind::NoCloud, &source("{userData: x}"), None).unwrap();
        assert!(text.contains("user-data") && !text.contains("network-config"));
    }

    #[test]
    fn a_config_drive_has_openstacks_layout() {
        let text = disk(Kind::ConfigDrive, &source("{userData: u, networkData: '{}'}"), None).unwrap();
        for content in ["openstack", "latest", "meta_data.json", "user_data", "network_data.json"] {
            assert!(text.contains(content), "{content}");
        }
        assert!(text.contains(r#""instance_id":"web.shop""#) && text.contains(r#""hostname":"front""#));
        assert_eq!(&text.as_bytes()[16 * 2048 + 40..16 * 2048 + 48], b"config-2");
    }

    #[test]
    fn data_comes_from_the_mounted_secret_under_either_name() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("v")).unwrap();
        let both = source("{secretRef: {name: s}, networkDataSecretRef: {name: s}}");
        std::fs::write(dir.path().join("v/userData"), "from the secret").unwrap();
        let error = disk(Kind::NoCloud, &both, Some(dir.path())).unwrap_err().to_string();
        assert_eq!(error, "the Secret of the volume v has none of the keys networkdata, networkData");
        std::fs::write(dir.path().join("v/networkdata"), "version: 1").unwrap();
        let text = disk(Kind::NoCloud, &both, Some(dir.path())).unwrap();
        assert!(text.contains("from the secret") && text.contains("version: 1"));
        assert!(matches!(disk(Kind::NoCloud, &both, None), Err(MediaError::NoSecrets(_))));
    }

    #[test]
    fn the_image_has_the_label_and_the_files_under_their_full_names() {
        let files = vec![InputEntry::file("meta-data", "m"), InputEntry::file("user-data", vec![b'u'; 5000])];
        let image = iso("cidata", files).unwrap();
        assert_eq!(image.len() % 2048, 0);
        // The primary volume descriptor is sector 16; its volume identifier is at 40 (ECMA-119, 8.4).
        assert_eq!(&image[16 * 2048 + 1..16 * 2048 + 6], b"CD001");
        assert_eq!(&image[16 * 2048 + 40..16 * 2048 + 47], b"cidata ");
        let text = String::from_utf8_lossy(&image);
        assert!(text.contains("user-data"), "Rock Ridge name");
        let joliet: Vec<u8> = "meta-data".encode_utf16().flat_map(u16::to_be_bytes).collect();
        assert!(image.windows(joliet.len()).any(|w| w == joliet), "Joliet name");
        let image = IsoImage::open(Cursor::new(image)).unwrap();
        assert_eq!(
            image.root_dir().iter(&image).entries().filter(Result::is_ok).count(),
            4,
            ". .. and two files"
        );
    }
}
