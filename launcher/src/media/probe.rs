//! What is known of an image by looking at it: how QEMU may read and write it.

use std::fs::{Metadata, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{OFlags, major, minor, statvfs};

use crate::domain::{Blocks, Image, ImageFormat, Place};

/// Bytes of the blocks that the system counts (stat(2)).
pub(super) const BLOCK: u64 = 512;

/// The image with what is seen of it.
pub(crate) fn seen(image: Image) -> Image {
    let layers = std::iter::once(&image.path).chain(image.base.as_ref().map(|base| &base.path));
    let direct = layers.into_iter().all(|path| is_direct(path));
    let allocated = match image.place {
        Place::Block => true,
        Place::File => {
            image.format == ImageFormat::Raw && image.path.metadata().is_ok_and(|file| is_allocated(&file))
        }
    };
    let blocks = blocks(&image).unwrap_or(image.blocks);
    Image { direct, allocated, blocks, ..image }
}

/// The image with an overlay, which is read and written as the image is, as far as the overlay's file system can that.
pub(crate) fn tracked(image: Image, overlay: PathBuf) -> Image {
    let direct = image.direct && is_direct(&overlay);
    // The kernel would wait for places in the overlay.
    Image { direct, allocated: false, overlay: Some(overlay), ..image }
}

/// The sizes of blocks of a device, as the kernel tells them; a file has its file system's.
fn blocks(image: &Image) -> Option<Blocks> {
    if image.place == Place::File {
        return statvfs(&image.path).ok().map(|stat| Blocks::of(stat.f_bsize));
    }
    let device = image.path.metadata().ok()?.rdev();
    let queue = format!("/sys/dev/block/{}:{}/queue", major(device), minor(device));
    let told =
        |name: &str| std::fs::read_to_string(format!("{queue}/{name}")).ok()?.trim().parse::<u64>().ok();
    let (logical, physical) = (told("logical_block_size")?, told("physical_block_size")?);
    Some(fitted(logical, physical, told("discard_granularity").unwrap_or(0)))
}

/// Sizes that fit each other: what a device does not tell is what it tells of the other one.
fn fitted(logical: u64, physical: u64, discard: u64) -> Blocks {
    let (logical, physical) = match (logical, physical) {
        (0, size) | (size, 0) => (size, size),
        sizes => sizes,
    };
    let fits = discard.checked_rem(logical).is_some_and(|rest| rest == 0);
    Blocks { logical, physical, discard: if fits { discard } else { physical } }
}

/// Whether a file can be read past the page cache; not every file system can that.
fn is_direct(path: &Path) -> bool {
    let flags = i32::try_from(OFlags::DIRECT.bits()).unwrap_or_default();
    OpenOptions::new().read(true).custom_flags(flags).open(path).is_ok()
}

/// Whether all of a file has its place on the storage.
pub(super) fn is_allocated(file: &Metadata) -> bool {
    file.blocks().saturating_mul(BLOCK) >= file.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sparse_file_is_not_allocated() {
        let dir = tempfile::tempdir().unwrap();
        let (full, sparse) = (dir.path().join("full"), dir.path().join("sparse"));
        std::fs::write(&full, vec![1; 8192]).unwrap();
        std::fs::File::create(&sparse).unwrap().set_len(8192).unwrap();
        assert!(seen(Image::new(full, ImageFormat::Raw)).allocated);
        assert!(!seen(Image::new(sparse, ImageFormat::Raw)).allocated);
    }

    #[test]
    fn sizes_of_blocks_fit_each_other() {
        assert_eq!(fitted(512, 4096, 4096), Blocks { logical: 512, physical: 4096, discard: 4096 });
        assert_eq!(fitted(0, 4096, 0), Blocks { logical: 4096, physical: 4096, discard: 0 });
        assert_eq!(fitted(4096, 4096, 512), Blocks::of(4096));
    }

    #[test]
    fn a_file_that_cannot_be_opened_is_not_read_past_the_page_cache() {
        assert!(!seen(Image::new("/proc/self/status/none", ImageFormat::Raw)).direct);
    }
}
