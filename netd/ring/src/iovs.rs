//! Lists of memory slices, mostly in guest memory.

use std::sync::Arc;

use super::{MemMap, sum};

/// What keeps the memory behind some slices alive.
#[derive(Clone, Debug)]
enum Keeper {
    Guest(Arc<MemMap>),
    Owned(Arc<Owned>),
}

impl Keeper {
    fn is(&self, other: &Keeper) -> bool {
        match (self, other) {
            (Keeper::Guest(a), Keeper::Guest(b)) => Arc::ptr_eq(a, b),
            (Keeper::Owned(a), Keeper::Owned(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

/// Plain memory of netd's own, accessed by raw pointers as guest memory is.
#[derive(Debug)]
struct Owned(*mut [u8]);

// SAFETY: the memory belongs to this value alone and is only accessed by raw copies.
unsafe impl Send for Owned {}
// SAFETY: as above.
unsafe impl Sync for Owned {}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: the pointer came from Box::into_raw in `Iovs::from_owned` and is dropped once.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

/// A list of memory slices, in guest memory or (see [`Iovs::from_owned`]) of netd's own.
///
/// It holds the [`MemMap`] it points into, so it can outlive the ring that filled it. The bytes may change at
/// any time while the guest runs: a parser copies them first ([`Iovs::read`]).
#[derive(Debug, Default)]
pub struct Iovs {
    slices: Vec<libc::iovec>,
    bytes: usize,
    keeper: Option<Keeper>,
    /// Further keepers, for lists put together from several sources.
    others: Vec<Keeper>,
}

// SAFETY: the slices point into memory that the keepers hold, which may be accessed from any thread.
unsafe impl Send for Iovs {}

impl Iovs {
    /// An empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// A list of one slice over netd's own memory (of none when `bytes` is empty).
    pub fn from_owned(bytes: Vec<u8>) -> Iovs {
        let mut iovs = Iovs::new();
        if bytes.is_empty() {
            return iovs;
        }
        let len = bytes.len();
        let raw = Box::into_raw(bytes.into_boxed_slice());
        iovs.push(raw.cast::<u8>(), len);
        iovs.hold(&Keeper::Owned(Arc::new(Owned(raw))));
        iovs
    }

    /// Empties the list and lets go of the memory; the capacity stays. `truncate(0)` keeps hold of the memory,
    /// which is cheaper when the same list is filled again at once.
    #[inline]
    pub fn clear(&mut self) {
        self.slices.clear();
        self.bytes = 0;
        self.keeper = None;
        self.others.clear();
    }

    /// The number of slices.
    #[inline]
    pub fn len(&self) -> usize {
        self.slices.len()
    }

    /// Whether there is no slice.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.slices.is_empty()
    }

    /// The bytes in all slices together.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Drops slices from the tail until `slices` are left.
    pub fn truncate(&mut self, slices: usize) {
        if let Some(tail) = self.slices.get(slices..) {
            self.bytes -= tail.iter().map(|s| s.iov_len).sum::<usize>();
            self.slices.truncate(slices);
        }
        if slices == 0 && !self.others.is_empty() {
            self.keeper = None;
            self.others.clear();
        }
    }

    /// Appends the byte range `[offset, offset + len)` of `src`, across its slices; returns how many bytes that
    /// were, fewer than `len` when `src` is shorter.
    pub fn append(&mut self, src: &Iovs, offset: usize, len: usize) -> usize {
        self.append_from(src, 0, offset, len)
    }

    /// As [`Iovs::append`], but `offset` counts from the start of slice `first_slice` of `src`.
    pub fn append_from(&mut self, src: &Iovs, first_slice: usize, offset: usize, len: usize) -> usize {
        let done = src.pieces(first_slice, offset, len, |ptr, n| self.push(ptr, n));
        if done > 0 {
            for keeper in src.keeper.iter().chain(&src.others) {
                self.hold(keeper);
            }
        }
        done
    }

    /// Copies bytes out, from `offset` after the start of slice `first_slice` on; returns how many.
    pub fn read(&self, first_slice: usize, offset: usize, dst: &mut [u8]) -> usize {
        let mut to = dst.as_mut_ptr();
        self.pieces(first_slice, offset, dst.len(), |ptr, n| {
            // SAFETY: `pieces` yields live memory of n bytes, no more than dst.len() in all; dst is a Rust
            // slice and cannot overlap guest memory or an Owned.
            unsafe {
                copy_once(ptr, to, n);
                to = to.add(n);
            }
        })
    }

    /// Copies bytes in, from `offset` after the start of slice `first_slice` on; returns how many.
    pub fn write(&self, first_slice: usize, offset: usize, src: &[u8]) -> usize {
        let mut from = src.as_ptr();
        self.pieces(first_slice, offset, src.len(), |ptr, n| {
            // SAFETY: as in `read`.
            unsafe {
                copy_once(from, ptr, n);
                from = from.add(n);
            }
        })
    }

    /// The Internet checksum's sum (RFC 1071) of a byte range: big-endian words, added to `initial`, folded to
    /// 16 bits, not complemented. An odd last byte is padded with zero; slices may have any length.
    pub fn checksum(&self, first_slice: usize, offset: usize, len: usize, initial: u32) -> u16 {
        let mut total = 0u64;
        let mut odd = false;
        self.pieces(first_slice, offset, len, |ptr, n| {
            // SAFETY: `pieces` yields live memory of n bytes.
            let part = sum::fold(unsafe { sum::native(ptr, n) });
            // A slice that starts in the middle of a word has its bytes in the other halves (RFC 1071, 2(B)).
            total += u64::from(if odd { part.swap_bytes() } else { part });
            odd ^= n % 2 == 1;
        });
        sum::fold(u64::from(u16::from_be(sum::fold(total))) + u64::from(initial))
    }

    /// The slices, for vectored system calls. They are valid as long as `self` lives and is not changed.
    #[inline]
    pub fn as_raw(&self) -> &[libc::iovec] {
        &self.slices
    }

    #[inline]
    pub(crate) fn push(&mut self, ptr: *mut u8, len: usize) {
        self.slices.push(libc::iovec { iov_base: ptr.cast(), iov_len: len });
        self.bytes += len;
    }

    /// Reads a byte of every page, so that memory which its owner has taken away is found and replaced (see
    /// [`super::fault`]); for when a system call has failed on it.
    #[cold]
    pub(crate) fn touch(&self) {
        const PAGE: usize = 4096;
        for slice in &self.slices {
            let end = slice.iov_base as usize + slice.iov_len;
            let mut at = slice.iov_base as usize;
            while at < end {
                // SAFETY: inside a slice, whose memory a keeper holds mapped.
                unsafe { (at as *const u8).read_volatile() };
                at = (at / PAGE + 1) * PAGE;
            }
        }
    }

    /// Keeps `mem` alive; to be called after slices of it were pushed, before other code sees the list.
    #[inline]
    pub(crate) fn hold_guest(&mut self, mem: &Arc<MemMap>) {
        if let Some(Keeper::Guest(held)) = &self.keeper
            && Arc::ptr_eq(held, mem)
        {
            return;
        }
        self.hold(&Keeper::Guest(Arc::clone(mem)));
    }

    fn hold(&mut self, keeper: &Keeper) {
        match &self.keeper {
            None => self.keeper = Some(keeper.clone()),
            Some(held) if held.is(keeper) => {}
            Some(_) if self.others.iter().any(|held| held.is(keeper)) => {}
            Some(_) => self.others.push(keeper.clone()),
        }
    }

    /// Walks the byte range `[offset, offset + len)` that starts in slice `first_slice`; returns its real length.
    #[inline]
    fn pieces(
        &self,
        first_slice: usize,
        offset: usize,
        len: usize,
        mut piece: impl FnMut(*mut u8, usize),
    ) -> usize {
        let (mut skip, mut left) = (offset, len);
        for slice in self.slices.get(first_slice..).unwrap_or_default() {
            if left == 0 {
                break;
            }
            if skip >= slice.iov_len {
                skip -= slice.iov_len;
                continue;
            }
            let n = left.min(slice.iov_len - skip);
            // SAFETY: skip is below iov_len, the length of the memory at iov_base.
            piece(unsafe { slice.iov_base.cast::<u8>().add(skip) }, n);
            left -= n;
            skip = 0;
        }
        len - left
    }
}

/// Copies `len` bytes, of which one side is guest memory, and lets the compiler draw no conclusion from it.
///
/// The guest writes there whenever it likes. That is no race between threads of this program, of which Rust's memory model
/// speaks: the writer is outside of it, as a device is. What it could do harm by is a compiler that takes the memory for
/// its own: it might read the guest's side again in place of the copy, so that what was checked is not what is used, or
/// put off a write. Both ends are shown to [`forget`] before and behind the copy, so that on the one hand nothing that was
/// known of either is known any more, and on the other the copy is done, once, in between. A copy of which the guest has
/// changed a part meanwhile is a mixture of bytes that it wrote, like any other frame of its own making. Volatile words
/// would say the same by more instructions, one word at a time.
///
/// # Safety
/// As [`std::ptr::copy_nonoverlapping`], but that others may write to the memory.
#[inline]
unsafe fn copy_once(from: *const u8, to: *mut u8, len: usize) {
    forget(from, to);
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
    forget(from, to);
}

/// For all that the compiler knows this reads and writes what the pointers lead to. It costs no instruction.
#[inline]
fn forget(from: *const u8, to: *mut u8) {
    #[cfg(not(miri))]
    // SAFETY: nothing but a comment is assembled.
    unsafe {
        std::arch::asm!("/* {0} {1} */", in(reg) from, in(reg) to, options(nostack, preserves_flags));
    }
    #[cfg(miri)]
    let _ = (from, to);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn list(parts: &[Vec<u8>]) -> Iovs {
        let mut all = Iovs::new();
        for part in parts {
            let one = Iovs::from_owned(part.clone());
            all.append(&one, 0, part.len());
        }
        all
    }

    proptest! {
        #[test]
        fn ranges_read_write_and_append_as_the_flat_bytes_do(
            parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..40), 0..6),
            offset in 0usize..150,
            len in 0usize..150,
        ) {
            let all = list(&parts);
            let flat: Vec<u8> = parts.concat();
            let start = offset.min(flat.len());
            let expected = &flat[start..(start + len).min(flat.len())];
            prop_assert_eq!(all.bytes(), flat.len());

            let mut out = vec![0; len];
            prop_assert_eq!(all.read(0, offset, &mut out), expected.len());
            prop_assert_eq!(&out[..expected.len()], expected);

            let mut cut = Iovs::new();
            prop_assert_eq!(cut.append(&all, offset, len), expected.len());
            prop_assert_eq!(cut.bytes(), expected.len());
            let new: Vec<u8> = expected.iter().map(|b| !b).collect();
            prop_assert_eq!(cut.write(0, 0, &new), new.len());
            all.read(0, offset, &mut out);
            prop_assert_eq!(&out[..expected.len()], &new[..]);

            if parts.len() > 1 {
                let mut out = vec![0; flat.len()];
                let n = all.read(1, 0, &mut out);
                prop_assert_eq!(n, flat.len() - parts[0].len());
            }
            let mut short = list(&parts);
            short.truncate(parts.len() / 2);
            prop_assert_eq!(short.bytes(), parts[..parts.len() / 2].concat().len());
        }

        #[test]
        fn the_checksum_is_that_of_the_flat_bytes(
            parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..200), 0..6),
            offset in 0usize..300,
            len in 0usize..1200,
            initial: u32,
        ) {
            let flat: Vec<u8> = parts.concat();
            let start = offset.min(flat.len());
            let range = &flat[start..(start + len).min(flat.len())];
            let mut sum = u64::from(initial);
            for word in range.chunks(2) {
                sum += u64::from(u16::from_be_bytes([word[0], *word.get(1).unwrap_or(&0)]));
            }
            while sum > 0xffff {
                sum = (sum & 0xffff) + (sum >> 16);
            }
            prop_assert_eq!(u64::from(list(&parts).checksum(0, offset, len, initial)), sum);
        }
    }
}
