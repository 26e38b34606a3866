//! From a VirtualMachineInstance to libvirt's domain XML.
//!
//! [`convert()`] is a pure function of the manifest and of [`Environment`], which says where the things are that
//! were prepared outside: files behind disks, sockets of netd. Nothing is left to libvirt's judgement that
//! podvirt has an opinion of; what a guest could notice (addresses, machine version) libvirt fills in.

mod convert;
mod devices;
mod disks;
pub mod schema;
mod threads;

use std::collections::BTreeMap;
use std::path::PathBuf;

use podvirt_proto::cmd::v1::SmBios;

pub use convert::{ConvertError, convert, domain_name};
pub use devices::{AGENT_CHANNEL, alias_of, name_of, plugged, plugged_disk};
pub use disks::with_medium;

/// What executes the guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accelerator {
    /// The processor.
    Kvm,
    /// QEMU's translator.
    Tcg,
}

/// Format of a disk image. It is always told to QEMU: a guest could write another format's header into its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageFormat {
    /// The plain contents.
    Raw,
    /// QEMU's copy-on-write format.
    Qcow2,
}

impl ImageFormat {
    /// The name that QEMU has for it.
    pub fn as_str(self) -> &'static str {
        match self {
            ImageFormat::Raw => "raw",
            ImageFormat::Qcow2 => "qcow2",
        }
    }
}

/// Where an image is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In a file.
    File,
    /// It is a block device.
    Block,
}

impl Place {
    /// The name that libvirt has for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Place::File => "file",
            Place::Block => "block",
        }
    }
}

/// A disk image that is ready to be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// File or block device.
    pub path: PathBuf,
    /// Which of the two it is.
    pub place: Place,
    /// Format.
    pub format: ImageFormat,
    /// What an overlay lies over. It is told to QEMU as well: the file's own word for it is never believed.
    pub base: Option<Base>,
    /// The overlay by which its changes are tracked; its data stays where it is.
    pub overlay: Option<PathBuf>,
    /// Whether it, and what it lies over, can be read and written past the page cache.
    pub direct: bool,
    /// Whether all of it has its place on the storage.
    pub allocated: bool,
    /// Whether what the guest discards keeps its place on the storage.
    pub kept: bool,
    /// Sizes of the blocks that it is read and written by.
    pub blocks: Blocks,
}

/// Sizes of blocks, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// The smallest part that can be written.
    pub logical: u64,
    /// The part that the storage writes at a time.
    pub physical: u64,
    /// The smallest part that can be discarded; 0: none can.
    pub discard: u64,
}

impl Blocks {
    /// All of one size.
    pub fn of(size: u64) -> Blocks {
        Blocks { logical: size, physical: size, discard: size }
    }
}

impl Image {
    /// A file. Where it lies and how is not known: it can be read and written past the page cache, and what is discarded is
    /// given back.
    pub fn new(path: impl Into<PathBuf>, format: ImageFormat) -> Image {
        let path = path.into();
        Image {
            path,
            place: Place::File,
            format,
            base: None,
            overlay: None,
            direct: true,
            allocated: false,
            kept: false,
            blocks: Blocks::of(512),
        }
    }

    /// What `base` has, as it is.
    pub fn of(base: Base) -> Image {
        Image { place: base.place, ..Image::new(base.path, base.format) }
    }

    /// The same as a layer over `base`.
    #[must_use]
    pub fn over(self, base: Base) -> Image {
        Image { base: Some(base), ..self }
    }
}

/// A disk image below an overlay; it is only read, and there is nothing below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Base {
    /// File or block device.
    pub path: PathBuf,
    /// Which of the two it is.
    pub place: Place,
    /// Format.
    pub format: ImageFormat,
}

/// A kernel that is booted directly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// The kernel's file.
    pub kernel: PathBuf,
    /// The initrd's file.
    pub initrd: Option<PathBuf>,
}

/// EFI firmware.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ovmf {
    /// Its code.
    pub code: PathBuf,
    /// The variables that a new machine has.
    pub vars: PathBuf,
    /// The file with the machine's own variables; made from the former where it is not there.
    pub nvram: PathBuf,
}

/// A tap device that is ready for QEMU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tap {
    /// Its name in the pod.
    pub name: String,
    /// Its MTU, which becomes the guest's.
    pub mtu: u32,
    /// Its queue pairs.
    pub queues: u64,
}

/// Where the things are that the machine needs from outside.
#[derive(Clone, Debug)]
pub struct Environment {
    /// What executes the guest's instructions.
    pub accelerator: Accelerator,
    /// Kernel for direct boot; needed when the manifest has one.
    pub kernel: Option<Kernel>,
    /// EFI firmware; needed when the manifest asks for it.
    pub ovmf: Option<Ovmf>,
    /// Disk image by volume.
    pub images: BTreeMap<String, Image>,
    /// vhost-user socket by interface, of those that a netd serves.
    pub sockets: BTreeMap<String, PathBuf>,
    /// virtiofsd's socket by file system.
    pub filesystems: BTreeMap<String, PathBuf>,
    /// Tap device by interface, of those that are bound by a bridge.
    pub taps: BTreeMap<String, Tap>,
    /// PCI address on the node by interface, of those that are a device of the node.
    pub devices: BTreeMap<String, String>,
    /// Socket of the serial console.
    pub serial_socket: PathBuf,
    /// File that gets what the guest sends to the serial console.
    pub serial_log: PathBuf,
    /// Socket of the display.
    pub vnc_socket: PathBuf,
    /// Seconds between two reports of the guest about its memory; 0: none.
    pub balloon_period: u32,
    /// What the SMBIOS tables say of the machine's maker; an empty text says nothing.
    pub smbios: SmBios,
}
