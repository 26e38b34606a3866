//! What can be wrong with a ring, or with one chain in it.

use thiserror::Error;

/// One of the three areas of a split virtqueue (VIRTIO 1.2, 2.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Area {
    /// The descriptor table.
    Descriptors,
    /// The available ring, written by the driver.
    Available,
    /// The used ring, written by the device.
    Used,
}

/// The ring cannot be used, or not any longer: stop it and tell the frontend.
#[derive(Debug, Error)]
pub enum RingError {
    /// The size is zero, not a power of two, or above the specification's limit.
    #[error("ring size {0} is not a power of two between 1 and 32768")]
    Size(u16),
    /// An area does not have the alignment of VIRTIO 1.2, 2.7.
    #[error("{area:?} area at {addr:#x} is not aligned")]
    Misaligned {
        /// The area.
        area: Area,
        /// Its guest-physical address.
        addr: u64,
    },
    /// An area is not inside one region of guest memory.
    #[error("{area:?} area at {addr:#x}, {len} bytes, is not inside one memory region")]
    Unmapped {
        /// The area.
        area: Area,
        /// Its guest-physical address.
        addr: u64,
        /// Its length in bytes.
        len: u64,
    },
    /// The driver made more chains available than the ring has room for.
    #[error("available index jumped from {from} to {to} in a ring of {size}")]
    AvailJump {
        /// Where the device stands.
        from: u16,
        /// What the driver wrote.
        to: u16,
        /// The ring's size.
        size: u16,
    },
    /// The driver named a chain head that is outside the descriptor table.
    #[error("chain head {0} is outside the descriptor table")]
    Head(u16),
    /// The driver offered again what the device has not given back.
    #[error("more than {0} chains are in flight")]
    Overrun(u16),
    /// A region of guest memory has no host address.
    #[error("guest memory cannot be addressed")]
    Memory(#[source] vm_memory::GuestMemoryError),
    /// A mapping cannot be guarded against its owner.
    #[error("memory that the frontend shares cannot be guarded")]
    Guard(#[source] std::io::Error),
    /// The dirty log cannot be mapped.
    #[error("dirty log cannot be mapped")]
    Log(#[source] std::io::Error),
    /// A descriptor of the ring cannot be prepared.
    #[error("ring descriptor cannot be used")]
    Descriptor(#[source] std::io::Error),
}

/// Why one chain was refused. The ring goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ChainError {
    /// `addr + len` overflows, or the buffer is not wholly in guest memory.
    #[error("buffer at {addr:#x}, {len} bytes, is not in guest memory")]
    Unmapped {
        /// Guest-physical address.
        addr: u64,
        /// Length in bytes.
        len: u32,
    },
    /// A buffer of no bytes.
    #[error("empty buffer")]
    Empty,
    /// `next` is outside the table.
    #[error("next descriptor {0} is outside the table")]
    Next(u16),
    /// More descriptors than the table has: the chain loops.
    #[error("the chain loops")]
    Loop,
    /// More buffers, or more bytes, than a chain may have.
    #[error("the chain is too long")]
    TooLong,
    /// A readable buffer after a writable one (VIRTIO 1.2, 2.7.4.2).
    #[error("readable buffer after a writable one")]
    Order,
    /// The length of an indirect table is zero or not a multiple of 16.
    #[error("indirect table of {0} bytes")]
    IndirectLength(u32),
    /// An indirect table inside an indirect table (VIRTIO 1.2, 2.7.5.3.1).
    #[error("nested indirect table")]
    IndirectNested,
    /// `INDIRECT` and `NEXT` together (VIRTIO 1.2, 2.7.5.3.1).
    #[error("indirect descriptor with a successor")]
    IndirectNext,
}

/// Why [`pop`](super::Ring::pop) gave no chain.
#[derive(Debug, Error)]
pub enum PopError {
    /// The chain is wrong: complete it with `push_used(head, 0)` and go on.
    #[error("chain {head} refused")]
    Chain {
        /// The chain's head.
        head: u16,
        /// What is wrong.
        #[source]
        reason: ChainError,
    },
    /// The ring is wrong: stop it.
    #[error("ring broken by the driver")]
    Ring(#[source] RingError),
}
