//! Memory that its owner takes away: SIGBUS becomes the end of one connection instead of that of netd.
//!
//! # Theory of operation
//!
//! Guest memory and the dirty log are files that the frontend shares. It can make such a file shorter while it is
//! mapped, and then the next access beyond its new end raises SIGBUS, which by default ends the process. A seal
//! against it (`F_SEAL_SHRINK`) cannot be asked for: User Mode Linux and DPDK share files that have none.
//!
//! [`guard`] registers a mapping in a fixed table of atomics and installs a handler once. When a fault's address is
//! in a registered mapping, the handler
//!
//! 1. maps zeroed anonymous memory over all of the mapping (not only the page: memory of huge pages cannot be replaced
//!    in part), so that the access that faulted is repeated and succeeds;
//! 2. marks the entry, and raises the alarm that was registered with it.
//!
//! The thread that waits for the alarm ends the connection; until then the worker reads zeroes, which are an empty ring or a
//! broken one. Any other SIGBUS goes on to the handler that was there before, and by default ends the process.
//!
//! System calls on such memory do not fault but fail with EFAULT; [`Iovs::touch`](super::Iovs::touch) turns that into the
//! same end.
//!
//! The handler only uses what is safe in a signal handler (signal-safety(7)): atomics, write(2), sigaction(2), and
//! mmap(2), which is a plain system call.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use nix::sys::eventfd::EventFd;

/// Mappings at the same time: a frontend's 509 regions at most, those of the table before it, and the log; twice.
const SLOTS: usize = 2048;
/// In `start`: a thread is filling the entry. No mapping starts there.
const CLAIMED: usize = 1;

/// One registered mapping. `start` is zero while the entry is free, and written last.
struct Slot {
    start: AtomicUsize,
    bytes: AtomicUsize,
    alarm: AtomicI32,
    lost: AtomicBool,
}

static TABLE: [Slot; SLOTS] = [const {
    Slot {
        start: AtomicUsize::new(0),
        bytes: AtomicUsize::new(0),
        alarm: AtomicI32::new(-1),
        lost: AtomicBool::new(false),
    }
}; SLOTS];

/// What SIGBUS did before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// A mapping that is registered until this is dropped; to be dropped before the mapping is.
#[derive(Debug)]
pub(super) struct Guard {
    index: usize,
    /// Open as long as the handler may write to it.
    _alarm: Arc<EventFd>,
}

/// Registers the mapping of `bytes` bytes at `start`. `alarm` is raised when it is lost.
///
/// # Errors
/// When the handler cannot be installed, or the table is full.
pub(super) fn guard(start: *const u8, bytes: usize, alarm: &Arc<EventFd>) -> io::Result<Guard> {
    install()?;
    for (index, slot) in TABLE.iter().enumerate() {
        if slot.start.compare_exchange(0, CLAIMED, Ordering::Acquire, Ordering::Relaxed).is_err() {
            continue;
        }
        slot.bytes.store(bytes, Ordering::Relaxed);
        slot.alarm.store(alarm.as_raw_fd(), Ordering::Relaxed);
        slot.lost.store(false, Ordering::Relaxed);
        // Release: the handler that finds the start finds the rest.
        slot.start.store(start as usize, Ordering::Release);
        return Ok(Guard { index, _alarm: alarm.clone() });
    }
    Err(io::Error::new(io::ErrorKind::OutOfMemory, "too many memory regions are mapped"))
}

impl Guard {
    /// Whether the mapping was lost.
    pub(super) fn is_lost(&self) -> bool {
        TABLE[self.index].lost.load(Ordering::Relaxed)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        TABLE[self.index].start.store(0, Ordering::Release);
    }
}

/// Puts the handler in place, once.
fn install() -> io::Result<()> {
    static DONE: OnceLock<Result<(), i32>> = OnceLock::new();
    let done = DONE.get_or_init(|| {
        // SAFETY: sigaction is plain data for which all zeroes is a valid value.
        let (mut action, mut before): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
        action.sa_sigaction = on_bus_error as *const () as usize;
        // On the stack for signals where the thread has one, as Rust's threads do.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: both point to a sigaction; the handler has the type that SA_SIGINFO asks for and only does what is
        // safe in a handler.
        let rc = unsafe { libc::sigaction(libc::SIGBUS, &raw const action, &raw mut before) };
        if rc != 0 {
            return Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL));
        }
        let _ = BEFORE.set(before);
        Ok(())
    });
    done.map_err(io::Error::from_raw_os_error)
}

extern "C" fn on_bus_error(signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the kernel passes a siginfo_t, of SIGBUS with an address when the code is positive (sigaction(2)); errno
    // is this thread's own.
    let (fault, errno) = unsafe {
        let info = &*info;
        ((info.si_code > 0).then(|| info.si_addr() as usize), *libc::__errno_location())
    };
    if !fault.is_some_and(replace) {
        // SAFETY: sigaction is plain data; zeroes are SIG_DFL without flags. What was there before was valid.
        unsafe {
            let default: libc::sigaction = std::mem::zeroed();
            libc::sigaction(
                signal,
                std::ptr::from_ref(BEFORE.get().unwrap_or(&default)),
                std::ptr::null_mut(),
            );
            if fault.is_none() {
                libc::raise(signal);
            }
        }
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Replaces the mappings that have this address; false when none has.
fn replace(address: usize) -> bool {
    let mut replaced = false;
    for slot in &TABLE {
        let start = slot.start.load(Ordering::Acquire);
        let bytes = slot.bytes.load(Ordering::Relaxed);
        // The start again: an entry that was freed and taken meanwhile is another mapping's.
        let same = slot.start.load(Ordering::Acquire) == start;
        if !same || start <= CLAIMED || address.wrapping_sub(start) >= bytes {
            continue;
        }
        // Several entries may be of one mapping: new maps are made while the old ones are still held.
        if !replaced {
            let flags = libc::MAP_FIXED | libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            let access = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: the range is a mapping that the entry's owner keeps until after the entry is free, and that is
            // accessed by raw pointers only, which may find any bytes there at any time.
            let rc = unsafe { libc::mmap(start as *mut libc::c_void, bytes, access, flags, -1, 0) };
            if rc == libc::MAP_FAILED {
                return false;
            }
            replaced = true;
        }
        slot.lost.store(true, Ordering::Relaxed);
        let one = 1u64.to_ne_bytes();
        // SAFETY: writes 8 bytes to a descriptor that is open as long as the entry is taken; it never blocks.
        unsafe { libc::write(slot.alarm.load(Ordering::Relaxed), one.as_ptr().cast(), one.len()) };
    }
    replaced
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use nix::sys::eventfd::EfdFlags;
    use nix::sys::memfd::{MFdFlags, memfd_create};
    use vm_memory::{FileOffset, GuestAddress, GuestMemoryMmap};

    use super::*;
    use crate::{DirtyLog, Iovs, MemMap, Ring, RingLayout};

    const BYTES: usize = 1 << 20;

    fn memfd() -> File {
        let file = File::from(memfd_create("test", MFdFlags::MFD_CLOEXEC).unwrap());
        file.set_len(BYTES as u64).unwrap();
        file
    }

    fn event() -> Arc<EventFd> {
        Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).unwrap())
    }

    fn memory(file: &File) -> Arc<GuestMemoryMmap> {
        let at = (GuestAddress(0), BYTES, Some(FileOffset::new(file.try_clone().unwrap(), 0)));
        Arc::new(GuestMemoryMmap::from_ranges_with_files([at]).unwrap())
    }

    fn map(memory: &Arc<GuestMemoryMmap>) -> (Arc<MemMap>, Arc<EventFd>) {
        let map = MemMap::new(memory.clone()).unwrap();
        let alarm = event();
        map.guard(&alarm).unwrap();
        (map, alarm)
    }

    fn ring(map: &Arc<MemMap>) -> Ring {
        let layout = RingLayout {
            size: 8,
            desc: 0x1000,
            avail: 0x2000,
            used: 0x3000,
            next_avail: 0,
            next_used: 0,
            event_idx: true,
        };
        let kick = std::fs::File::open("/dev/null").unwrap().into();
        Ring::new(layout, map.clone(), kick, None, None).unwrap()
    }

    #[test]
    fn a_ring_whose_memory_is_taken_away_is_empty_and_the_alarm_is_raised() {
        let file = memfd();
        let (map, alarm) = map(&memory(&file));
        let other = self::map(&memory(&memfd()));
        let mut ring = ring(&map);
        file.set_len(0).unwrap();
        assert!(!map.is_lost());
        assert!(matches!(ring.pop(&mut Iovs::new(), &mut Iovs::new()), Ok(None)));
        ring.push_used(0, 0);
        ring.publish();
        assert!(map.is_lost());
        assert_eq!(alarm.read().unwrap(), 1, "once, however often the memory is used");
        assert!(!other.0.is_lost() && other.1.read().is_err(), "other memory is not concerned");
    }

    #[test]
    fn memory_that_loses_its_tail_only_is_replaced_as_a_whole() {
        let file = memfd();
        let memory = memory(&file);
        let (map, alarm) = map(&memory);
        let (second, late) = self::map(&memory);
        file.set_len(0x2000).unwrap();
        let mut ring = ring(&map);
        assert!(matches!(ring.pop(&mut Iovs::new(), &mut Iovs::new()), Ok(None)));
        assert!(map.is_lost() && second.is_lost(), "both maps of one mapping know");
        assert_eq!((alarm.read().unwrap(), late.read().unwrap()), (1, 1));
    }

    #[test]
    fn a_dirty_log_that_is_taken_away_swallows_its_marks() {
        let file = memfd();
        let log = DirtyLog::new(file.try_clone().unwrap(), 0, BYTES as u64).unwrap();
        let alarm = event();
        log.guard(&alarm).unwrap();
        file.set_len(0).unwrap();
        log.mark(0, 0x1000);
        assert_eq!(alarm.read().unwrap(), 1);
    }

    #[test]
    fn what_a_system_call_finds_raises_the_alarm_when_it_is_touched() {
        let file = memfd();
        let (map, alarm) = map(&memory(&file));
        let mut iovs = Iovs::new();
        iovs.push(map.translate(0x8000, 0x3000, &mut 0).unwrap(), 0x3000);
        iovs.hold_guest(&map);
        file.set_len(0).unwrap();
        let (near, far) = std::os::unix::net::UnixStream::pair().unwrap();
        let error = crate::socket::send(std::os::fd::AsFd::as_fd(&near), &iovs).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
        assert_eq!(alarm.read().unwrap(), 1);
        drop(far);
    }

    #[test]
    fn entries_are_used_again() {
        let (file, alarm) = (memfd(), event());
        for _ in 0..2 * SLOTS {
            let log = DirtyLog::new(file.try_clone().unwrap(), 0, 4096).unwrap();
            log.guard(&alarm).unwrap();
        }
    }
}
