//! One descriptor as it lies in guest memory (VIRTIO 1.2, 2.7.5).

/// Descriptor flag: the chain continues at `next` (VIRTIO 1.2, 2.7.5).
pub(super) const DESC_NEXT: u16 = 1;
/// Descriptor flag: the device writes this buffer.
pub(super) const DESC_WRITE: u16 = 2;
/// Descriptor flag: the buffer is a table of descriptors.
pub(super) const DESC_INDIRECT: u16 = 4;
/// Size of one descriptor.
pub(super) const DESC_BYTES: u32 = 16;

/// One descriptor, read from guest memory once.
pub(super) struct Desc {
    pub(super) addr: u64,
    pub(super) len: u32,
    pub(super) flags: u16,
    pub(super) next: u16,
}

/// Eight bytes at any alignment: indirect tables need none.
#[repr(C, packed)]
#[derive(Clone, Copy)]
struct Word(u64);

impl Desc {
    /// # Safety
    /// `table` must have more than `index` descriptors.
    #[inline]
    pub(super) unsafe fn read(table: *const u8, index: u16) -> Desc {
        // SAFETY: the caller vouches for 16 bytes at this place. Volatile: each half is read once, whatever the
        // guest does meanwhile.
        let (low, high) = unsafe {
            let at = table.add(16 * usize::from(index)).cast::<Word>();
            (at.read_volatile(), at.add(1).read_volatile())
        };
        let high = u64::from_le(high.0);
        Desc {
            addr: u64::from_le(low.0),
            len: high as u32,
            flags: (high >> 32) as u16,
            next: (high >> 48) as u16,
        }
    }
}
