//! Numbers of QEMU's sets of descriptors: a volume has the same one in each pod of its machine, since the machine's definition
//! names it and moves with the machine.

use std::path::{Path, PathBuf};

use podvirt_api::names::path;

/// Numbers below are left to libvirt, which counts from 0. QEMU reads a number of at most 31 bits from a path.
const FIRST: u64 = 1 << 30;

/// The number of a volume's set.
#[must_use]
pub fn number(volume: &str) -> u64 {
    // FNV-1a, which is the same in every release; 30 bits of it.
    let hash = volume.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    FIRST + (hash >> 34)
}

/// The path by which QEMU has what is in a volume's set.
#[must_use]
pub fn place(volume: &str) -> PathBuf {
    Path::new(path::FDSETS).join(number(volume).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_keeps_its_number() {
        assert_eq!(place("data"), Path::new("/dev/fdset/1633080665"));
        assert_ne!(number("data"), number("data2"));
    }
}
