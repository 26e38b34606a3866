//! A device that answers each chain of a virtqueue with the text that the driver wrote, in capitals.
//!
//! Both sides are in this program. [`offer`] does what a guest's driver does, on memory that stands for the guest's; the rest of
//! `main` is the device. Run it by `cargo run -p netd-ring --example capitals`.

use std::error::Error;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use netd_ring::{Iovs, MemMap, Ring, RingLayout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

/// Where the driver has put the three areas of its queue, and two buffers. Guest-physical addresses.
const TABLE: u64 = 0x1000;
const AVAILABLE: u64 = 0x2000;
const USED: u64 = 0x3000;
const QUESTION: u64 = 0x4000;
const ANSWER: u64 = 0x5000;
/// Flags of a descriptor: another one follows; the device writes to it (VIRTIO 1.2, 2.7.5).
const NEXT: u16 = 1;
const WRITE: u16 = 2;

fn descriptor(
    memory: &GuestMemoryMmap,
    index: u64,
    address: u64,
    length: u32,
    flags: u16,
    next: u16,
) -> Result<(), Box<dyn Error>> {
    let at = TABLE + 16 * index;
    memory.write_obj(address.to_le(), GuestAddress(at))?;
    memory.write_obj(length.to_le(), GuestAddress(at + 8))?;
    memory.write_obj(flags.to_le(), GuestAddress(at + 12))?;
    memory.write_obj(next.to_le(), GuestAddress(at + 14))?;
    Ok(())
}

/// The driver: a text that the device reads, and room for 32 bytes that it may write.
fn offer(memory: &GuestMemoryMmap, text: &[u8]) -> Result<(), Box<dyn Error>> {
    memory.write_slice(text, GuestAddress(QUESTION))?;
    descriptor(memory, 0, QUESTION, text.len() as u32, NEXT, 1)?;
    descriptor(memory, 1, ANSWER, 32, WRITE, 0)?;
    memory.write_obj(0_u16.to_le(), GuestAddress(AVAILABLE + 4))?;
    memory.write_obj(1_u16.to_le(), GuestAddress(AVAILABLE + 2))?;
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let memory: Arc<GuestMemoryMmap> =
        Arc::new(GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 0x1_0000)])?);
    offer(&memory, b"hello, device")?;

    let eventfd = || EventFd::from_flags(EfdFlags::EFD_NONBLOCK).map(OwnedFd::from);
    let layout = RingLayout {
        size: 8,
        desc: TABLE,
        avail: AVAILABLE,
        used: USED,
        next_avail: 0,
        next_used: 0,
        event_idx: false,
    };
    let mut ring = Ring::new(layout, MemMap::new(Arc::clone(&memory))?, eventfd()?, Some(eventfd()?), None)?;

    let (mut readable, mut writable) = (Iovs::new(), Iovs::new());
    while let Some(chain) = ring.pop(&mut readable, &mut writable)? {
        let mut text = vec![0; readable.bytes()];
        readable.read(0, 0, &mut text);
        text.make_ascii_uppercase();
        let written = writable.write(0, 0, &text);
        ring.push_used(chain.head, written as u32);
        readable.clear();
        writable.clear();
    }
    if ring.publish() {
        ring.signal();
    }

    // The driver again: how many chains came back, and how many bytes the first one has.
    let completed = u16::from_le(memory.read_obj(GuestAddress(USED + 2))?);
    let length = u32::from_le(memory.read_obj(GuestAddress(USED + 8))?);
    let mut answer = vec![0; length as usize];
    memory.read_slice(&mut answer, GuestAddress(ANSWER))?;
    println!("{completed} chain, {length} bytes: {}", String::from_utf8_lossy(&answer));
    Ok(())
}
