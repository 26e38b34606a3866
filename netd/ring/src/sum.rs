//! The Internet checksum's sum (RFC 1071) over raw memory.

/// Adds up `len` bytes at `ptr` as 16-bit words in the machine's own byte order; the result is not folded.
///
/// # Safety
/// `len` bytes at `ptr` must be readable. They may change meanwhile: the sum is then one of some mixture.
pub(super) unsafe fn native(ptr: *const u8, len: usize) -> u64 {
    // Eight lanes of 32 bits, added into 64 bits: no carry is lost below 2^32 blocks, and the loop vectorises.
    const LANES: usize = 8;
    let mut lanes = [0u64; LANES];
    let mut at = ptr;
    let mut left = len;
    while left >= LANES * 4 {
        // SAFETY: at least 32 bytes are left at `at`.
        let block = unsafe { at.cast::<[u32; LANES]>().read_unaligned() };
        for (lane, word) in lanes.iter_mut().zip(block) {
            *lane += u64::from(word);
        }
        // SAFETY: as above.
        at = unsafe { at.add(LANES * 4) };
        left -= LANES * 4;
    }
    let mut sum: u64 = lanes.iter().map(|lane| (lane >> 32) + (lane & 0xffff_ffff)).sum();
    while left >= 2 {
        // SAFETY: at least two bytes are left at `at`.
        sum += u64::from(unsafe { at.cast::<u16>().read_unaligned() });
        // SAFETY: as above.
        at = unsafe { at.add(2) };
        left -= 2;
    }
    if left == 1 {
        // SAFETY: one byte is left. The missing half of the last word counts as zero.
        sum += u64::from(u16::from_ne_bytes([unsafe { at.read() }, 0]));
    }
    sum
}

/// Folds a sum to 16 bits, adding carries back in.
pub(super) fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}
