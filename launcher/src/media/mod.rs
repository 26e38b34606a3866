//! What a machine's disks are made of: image files, their overlays, and the disk that cloud-init reads.

pub mod claims;
pub mod cloud_init;
mod config;
pub(crate) mod crc32;
pub mod images;
pub mod kernel;
pub(crate) mod mounted;
pub mod overlay;
pub(crate) mod ovmf;
pub(crate) mod probe;
pub(crate) mod ssh_keys;

use std::io;
use std::path::{Path, PathBuf};

/// Why a disk or kernel could not be made ready.
#[derive(Debug, thiserror::Error)]
pub enum MediaError {
    /// A file cannot be used.
    #[error("cannot {action} {path}")]
    File {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A path leads out of the image that it is to stay in.
    #[error("{path} leads out of {root}")]
    Escape {
        /// The path.
        path: PathBuf,
        /// The image's directory.
        root: PathBuf,
    },
    /// It is not known where a volume's disk image is.
    #[error("no file is known for the volume {volume}, image {image}; give --container-disk {volume}=FILE")]
    NoContainerDisk {
        /// The volume.
        volume: String,
        /// The image.
        image: String,
    },
    /// There are no claims outside a cluster.
    #[error("the volume {0} is on a claim, which only a cluster has")]
    NoClaims(String),
    /// There are no Secrets outside a cluster.
    #[error("the volume {0} names a Secret, which only a cluster has")]
    NoSecrets(String),
    /// A claim holds no disk image.
    #[error("the claim {claim} of the volume {volume} has no disk image that can be used: Could not open '{}'", path.display())]
    Claim {
        /// The volume.
        volume: String,
        /// The claim.
        claim: String,
        /// The disk image.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The device of a claim cannot be opened.
    #[error(
        "the claim {claim} of the volume {volume} is in block mode, and its device {path} cannot be opened by user {user}: the node's \
         container runtime must give the devices of a pod to the pod's user (device_ownership_from_security_context)"
    )]
    Device {
        /// The volume.
        volume: String,
        /// The claim.
        claim: String,
        /// The device.
        path: PathBuf,
        /// User ID that virt-launcher and QEMU run with.
        user: u32,
        /// What the system said.
        source: io::Error,
    },
    /// The device of a claim is something else.
    #[error("the claim {claim} of the volume {volume} is in block mode, and {path} is no block device")]
    NotADevice {
        /// The volume.
        volume: String,
        /// The claim.
        claim: String,
        /// What should be the device.
        path: PathBuf,
    },
    /// A claim has no disk image, and how large it is to be is not known.
    #[error(
        "{0} does not exist and cannot be made: the claim's status.capacity and spec.resources.requests tell of less than 1Mi of \
         storage"
    )]
    NoSize(PathBuf),
    /// A claim has no disk image, and no room for one.
    #[error(
        "{path} does not exist and cannot be made: {wanted} bytes were asked for and the claim has room for {available}; {tolerance} % \
         less are tolerated"
    )]
    NoRoom {
        /// The image.
        path: PathBuf,
        /// Bytes that were asked for.
        wanted: u64,
        /// Bytes that there are.
        available: u64,
        /// By how many percent it may be less.
        tolerance: u64,
    },
    /// A Secret lacks what cloud-init is to get.
    #[error("the Secret of the volume {volume} has none of the keys {keys}")]
    Secret {
        /// The volume.
        volume: String,
        /// The keys.
        keys: &'static str,
    },
    /// It is not known where the image of the kernel is.
    #[error("no directory is known for the image {0}; give --kernel-root DIR")]
    NoKernelRoot(String),
    /// A disk image of others refers to further files, which could be any of ours.
    #[error("the disk image {0} refers to another file, which is not allowed")]
    BackingFile(PathBuf),
    /// The manifest passed validation and still lacks something.
    #[error("the volume {0} has no usable source")]
    NoSource(String),
    /// A hook sidecar fails.
    #[error("the cloud-init of the volume {0}")]
    Change(String, #[source] Box<dyn std::error::Error + Send + Sync>),
    /// A machine has keys in Secrets, and no directory is known for those.
    #[error("spec.accessCredentials[{0}]: Secrets are read in a cluster only")]
    NoCredentials(usize),
    /// A disk is made from files of the cluster's, and no directory is known for those.
    #[error("the volume {0} is made from what a cluster has, and there is none")]
    NoConfigs(String),
    /// Windows' set-up would find no answers.
    #[error("the volume {0} has neither autounattend.xml nor unattend.xml")]
    NoAnswers(String),
    /// base64 cannot be read.
    #[error("the base64 of the volume {0} cannot be read")]
    Base64(String, #[source] base64::DecodeError),
    /// The ISO image cannot be written.
    #[error("cannot write the cloud-init disk: {0}")]
    Iso(String),
    /// qemu-img failed.
    #[error("qemu-img cannot make {path}: {message}")]
    QemuImg {
        /// The overlay.
        path: PathBuf,
        /// What it said.
        message: String,
    },
}

impl MediaError {
    pub(crate) fn file(action: &'static str, path: &Path, source: io::Error) -> Self {
        MediaError::File { action, path: path.to_owned(), source }
    }
}
