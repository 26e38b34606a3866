//! Room in a connection's send buffer.
//!
//! # Theory of operation
//!
//! The kernel knows what is free in the buffer, and asking it is a system call. In a dialogue that is one for every few
//! bytes, for an answer that is known: after an ample one, what little was sent since, with what the kernel takes for
//! itself, cannot have filled the buffer even if nothing has left it. So the kernel is asked again when more was sent
//! than that, as bulk does with every batch; when the buffer was full, so that others wait for it to drain; and
//! whenever the owner wants the truth ([`Room::forget`]).

use crate::sys::SendBuffer;

/// What is sent without asking, in bytes: a few small answers, less than a batch of a bulk transfer.
const UNASKED: u32 = 32 << 10;
/// The part of the free room that this is at most: the guest's window does not shrink much for it.
const UNASKED_PART: u32 = 4;
/// What the kernel takes for each send: an sk_buff with room for headers and its shared info, 1280 bytes in Linux 6.18
/// on x86-64.
const PER_SEND: u32 = 2048;

/// See the [module](self).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Room {
    /// Free bytes when the kernel was asked.
    free: u32,
    /// Bytes taken since, none given back.
    taken: u32,
    /// The answer counts: the buffer was asked for, and had room.
    ample: bool,
}

impl Room {
    /// The kernel's answer.
    pub(super) fn see(&mut self, buffer: SendBuffer) {
        *self = Room { free: buffer.free(), taken: 0, ample: buffer.writable() };
    }

    /// A send took `bytes`.
    pub(super) fn take(&mut self, bytes: u32) {
        self.taken = self.taken.saturating_add(bytes).saturating_add(PER_SEND);
    }

    /// The kernel is to be asked.
    pub(super) fn forget(&mut self) {
        self.ample = false;
    }

    /// Whether news of the buffer are waited for.
    pub(super) fn is_awaited(&self) -> bool {
        !self.ample
    }

    /// Bytes that are free at least; None: the kernel is to be asked.
    pub(super) fn known(&self) -> Option<u32> {
        let fine = self.ample && self.taken <= UNASKED.min(self.free / UNASKED_PART);
        fine.then(|| self.free - self.taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(size: u32, queued: u32) -> Room {
        let mut room = Room::default();
        room.see(SendBuffer { size, queued });
        room
    }

    #[test]
    fn nothing_is_known_of_a_buffer_that_was_never_asked_for() {
        assert_eq!(Room::default().known(), None);
        assert!(Room::default().is_awaited());
    }

    #[test]
    fn a_dialogue_is_told_less_room_with_each_send_and_asks_after_some() {
        let mut room = seen(87_040, 0);
        let mut last = 87_040;
        let mut sends = 0;
        while let Some(free) = room.known() {
            assert!(free <= last && free >= 87_040 / 4 * 3);
            last = free;
            room.take(1);
            sends += 1;
        }
        assert_eq!(sends, 11);
        assert!(!room.is_awaited(), "it has room");
    }

    #[test]
    fn bulk_asks_after_each_batch() {
        let mut room = seen(4 << 20, 1 << 20);
        assert_eq!(room.known(), Some(3 << 20));
        room.take(64 << 10);
        assert_eq!(room.known(), None);
    }

    #[test]
    fn a_full_buffer_is_asked_for_until_it_has_room() {
        let mut room = seen(87_040, 80_000);
        assert_eq!(room.known(), None);
        assert!(room.is_awaited());
        room.see(SendBuffer { size: 87_040, queued: 10_000 });
        assert_eq!(room.known(), Some(77_040));
    }

    #[test]
    fn what_is_forgotten_is_asked_for() {
        let mut room = seen(87_040, 0);
        room.forget();
        assert_eq!(room.known(), None);
        assert!(room.is_awaited());
    }

    #[test]
    fn no_number_of_bytes_is_too_large() {
        let mut room = seen(u32::MAX, 0);
        room.take(u32::MAX);
        room.take(u32::MAX);
        assert_eq!(room.known(), None);
    }
}
