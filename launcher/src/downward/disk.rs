//! The disk: a head of 16 bytes and the document behind it.
//!
//! Big-endian, as vhostmd's `vhostmd.h` has it: `mvbd`, a flag that is 1 while the document is being written, the sum of the
//! document's bytes, its length.

use std::fs::{File, OpenOptions};
use std::io::{self, Error, ErrorKind};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// Size of the disk, bytes; upstream's.
const SIZE: u64 = 256 << 10;
/// The head's.
const HEAD: usize = 16;
const SIGNATURE: [u8; 4] = *b"mvbd";

/// Makes the disk at `path`, without a document. One that is there is replaced.
///
/// # Errors
///
/// It cannot be made.
pub fn make(path: &Path) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.set_len(SIZE)?;
    write_to(&file, "<metrics></metrics>\n")
}

/// Puts a document on the disk at `path`.
///
/// # Errors
///
/// It is too long, or the disk cannot be written.
pub fn write(path: &Path, document: &str) -> io::Result<()> {
    write_to(&OpenOptions::new().write(true).open(path)?, document)
}

fn write_to(file: &File, document: &str) -> io::Result<()> {
    let most = usize::try_from(SIZE).unwrap_or(usize::MAX) - HEAD;
    if document.len() > most {
        return Err(Error::other(format!("the metrics have {} bytes; {most} are allowed", document.len())));
    }
    file.write_all_at(&head(1, document), 0)?;
    file.write_all_at(document.as_bytes(), HEAD as u64)?;
    file.write_all_at(&head(0, document), 0)
}

fn head(flag: u32, document: &str) -> [u8; HEAD] {
    let sum = document.bytes().fold(0_u32, |sum, byte| sum.wrapping_add(u32::from(byte)));
    let length = u32::try_from(document.len()).unwrap_or(u32::MAX);
    let mut head = [0; HEAD];
    let words = [SIGNATURE, flag.to_be_bytes(), sum.to_be_bytes(), length.to_be_bytes()];
    for (place, word) in head.chunks_exact_mut(4).zip(words) {
        place.copy_from_slice(&word);
    }
    head
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_has_its_sum_and_its_length_before_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/vhostmd0");
        make(&path).unwrap();
        make(&path).unwrap();
        assert_eq!(path.metadata().unwrap().len(), 262_144);
        write(&path, "<metrics/>").unwrap();
        let disk = std::fs::read(&path).unwrap();
        let sum: u32 = b"<metrics/>".iter().map(|byte| u32::from(*byte)).sum();
        assert_eq!(disk[..8], *b"mvbd\0\0\0\0");
        assert_eq!(disk[8..12], sum.to_be_bytes());
        assert_eq!(disk[12..16], 10_u32.to_be_bytes());
        assert_eq!(disk[16..26], *b"<metrics/>");
        assert!(write(&path, &"x".repeat(262_144)).unwrap_err().to_string().contains("262128"));
        assert!(write(&dir.path().join("none"), "x").is_err());
    }
}
