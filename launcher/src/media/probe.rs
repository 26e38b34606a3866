//! What is known of an image by looking at it: how QEMU may read and write it.

use std::fs::{Metadata, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

use crate::domain::{Image, ImageFormat, Place};

/// Bytes of the blocks that the system counts (stat(2)).
pub(super) const BLOCK: u64 = 512;

/// The image with what is seen of it.
pub(super) fn seen(image: Image) -> Image {
    let layers = std::iter::once(&image.path).chain(image.base.as_ref().map(|base| &base.path));
    let direct = layers.into_iter().all(|path| is_direct(path));
    let allocated = match image.place {
        Place::Block => true,
        Place::File => {
            image.format == ImageFormat::Raw && image.path.metadata().is_ok_and(|file| is_allocated(&file))
        }
    };
    Image { direct, allocated, ..image }
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
    fn a_file_that_cannot_be_opened_is_not_read_past_the_page_cache() {
        assert!(!seen(Image::new("/proc/self/status/none", ImageFormat::Raw)).direct);
    }
}
