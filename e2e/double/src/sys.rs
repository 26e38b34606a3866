//! What needs `unsafe`: guest memory that a backend writes, vectored I/O on it, and the tap's ioctls.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};

use nix::sys::memfd::{MFdFlags, memfd_create};
use vhost::VhostUserMemoryRegionInfo;
use vm_memory::{FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};
use vmm_sys_util::eventfd::EventFd;

/// Bytes of a page, of which the dirty log has a bit.
pub(crate) const PAGE: u64 = 0x1000;

/// Guest memory in one region: a memfd, shared with the backend.
///
/// Addresses are guest-physical. An address outside the region is a mistake of the test that uses it, and panics.
#[derive(Debug)]
pub struct GuestMem {
    map: GuestMemoryMmap,
    host: *mut u8,
    start: u64,
    len: u64,
    /// Pages that this process has written, a bit each, as long as that is tracked.
    written: Vec<AtomicU64>,
    tracked: AtomicBool,
}

// SAFETY: `host` leads into the mapping that `map` owns; it is only used for raw copies and atomics.
unsafe impl Send for GuestMem {}
// SAFETY: as above.
unsafe impl Sync for GuestMem {}

impl GuestMem {
    /// `len` bytes from the guest-physical address `start` on.
    ///
    /// # Errors
    /// When the memory cannot be had.
    pub fn new(start: u64, len: u64) -> io::Result<GuestMem> {
        let file = File::from(memfd_create("guest", MFdFlags::MFD_CLOEXEC)?);
        file.set_len(len)?;
        let size = usize::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
        let at = GuestAddress(start);
        let map = GuestMemoryMmap::from_ranges_with_files([(at, size, Some(FileOffset::new(file, 0)))])
            .map_err(io::Error::other)?;
        let host = map.get_host_address(at).map_err(io::Error::other)?;
        let words = len.div_ceil(64 * PAGE) as usize;
        let written = (0..words).map(|_| AtomicU64::new(0)).collect();
        Ok(GuestMem { map, host, start, len, written, tracked: AtomicBool::new(false) })
    }

    /// The first address.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// The length in bytes.
    pub fn size(&self) -> u64 {
        self.len
    }

    /// The region as the frontend announces it.
    ///
    /// # Errors
    /// Does not happen: the region has a file.
    pub fn region(&self) -> io::Result<VhostUserMemoryRegionInfo> {
        let region = self.map.iter().next().ok_or(io::ErrorKind::NotFound)?;
        VhostUserMemoryRegionInfo::from_guest_region(region).map_err(io::Error::other)
    }

    /// Makes the file of the memory empty. A process that touches the memory afterwards gets SIGBUS.
    ///
    /// # Errors
    /// As ftruncate(2).
    pub fn truncate(&self) -> io::Result<()> {
        let region = self.map.iter().next().ok_or(io::ErrorKind::NotFound)?;
        region.file_offset().ok_or(io::ErrorKind::NotFound)?.file().set_len(0)
    }

    /// The address in this process, which vhost-user calls the user address.
    pub fn user_address(&self, at: u64) -> u64 {
        self.host as u64 + (at - self.start)
    }

    fn ptr(&self, at: u64, len: usize) -> *mut u8 {
        let offset = at.wrapping_sub(self.start);
        assert!(
            offset <= self.len && len as u64 <= self.len - offset,
            "{at:#x}, {len} bytes, is not in guest memory"
        );
        // SAFETY: checked above.
        unsafe { self.host.add(offset as usize) }
    }

    /// Copies bytes out.
    pub fn read(&self, at: u64, dst: &mut [u8]) {
        let src = self.ptr(at, dst.len());
        // SAFETY: src is valid for the length; dst is a Rust slice outside guest memory.
        unsafe { std::ptr::copy_nonoverlapping(src, dst.as_mut_ptr(), dst.len()) };
    }

    /// Copies bytes in.
    pub fn write(&self, at: u64, src: &[u8]) {
        let dst = self.ptr(at, src.len());
        self.note(at, src.len());
        // SAFETY: as in `read`.
        unsafe { std::ptr::copy_nonoverlapping(src.as_ptr(), dst, src.len()) };
    }

    /// Loads a little-endian field at an even address.
    pub fn load_u16(&self, at: u64, order: Ordering) -> u16 {
        u16::from_le(self.atomic(at).load(order))
    }

    /// Stores a little-endian field at an even address.
    pub fn store_u16(&self, at: u64, value: u16, order: Ordering) {
        self.note(at, 2);
        self.atomic(at).store(value.to_le(), order);
    }

    fn atomic(&self, at: u64) -> &AtomicU16 {
        let ptr = self.ptr(at, 2).cast::<u16>();
        assert!(ptr.is_aligned(), "{at:#x} is odd");
        // SAFETY: valid and aligned; the backend uses atomics there as well.
        unsafe { AtomicU16::from_ptr(ptr) }
    }

    /// From now on it is noted which pages this process writes, or no longer.
    pub(crate) fn track(&self, on: bool) {
        self.tracked.store(on, Ordering::SeqCst);
    }

    fn note(&self, at: u64, len: usize) {
        // A bit is set before its write, and may be taken before it as well: the copier stops all writers before it
        // copies for the last time.
        if len > 0 && self.tracked.load(Ordering::Relaxed) {
            let first = (at - self.start) / PAGE;
            for page in first..=(at - self.start + len as u64 - 1) / PAGE {
                self.written[page as usize / 64].fetch_or(1 << (page % 64), Ordering::SeqCst);
            }
        }
    }

    /// The first addresses of the pages that this process has written since the last call.
    pub(crate) fn take_written(&self) -> Vec<u64> {
        let words = self.written.iter().enumerate();
        words
            .flat_map(|(i, word)| bits(i, word.swap(0, Ordering::SeqCst)))
            .map(|p| self.start + p * PAGE)
            .collect()
    }

    /// As a dirty log: the numbers of the bits that are set, which are cleared.
    pub(crate) fn take_bits(&self) -> Vec<u64> {
        let mut all = Vec::new();
        for i in 0..self.len as usize / 8 {
            let ptr = self.ptr(self.start + 8 * i as u64, 8).cast::<u64>();
            // SAFETY: valid and aligned, as the mapping begins at a page; the backend uses atomics there as well.
            let word = unsafe { AtomicU64::from_ptr(ptr) };
            all.extend(bits(i, word.swap(0, Ordering::SeqCst)));
        }
        all
    }

    /// Copies the page at `at` to the same address of another memory.
    pub(crate) fn copy_page(&self, at: u64, to: &GuestMem) {
        let mut page = [0; PAGE as usize];
        self.read(at, &mut page);
        to.write(at, &page);
    }

    /// The first addresses of all pages.
    pub(crate) fn pages(&self) -> impl Iterator<Item = u64> + use<> {
        (self.start..self.start + self.len).step_by(PAGE as usize)
    }

    /// Pages that are not as in another memory of the same size.
    pub(crate) fn differing(&self, other: &GuestMem) -> Vec<u64> {
        let page = |mem: &GuestMem, at: u64| {
            let mut bytes = vec![0; PAGE as usize];
            mem.read(at, &mut bytes);
            bytes
        };
        self.pages().filter(|at| page(self, *at) != page(other, *at)).collect()
    }

    /// Reads once from `fd` into one buffer.
    pub(crate) fn read_from(&self, fd: BorrowedFd<'_>, at: u64, len: usize) -> io::Result<usize> {
        let ptr = self.ptr(at, len);
        self.note(at, len);
        // SAFETY: ptr is valid for len bytes.
        let n = unsafe { libc::read(fd.as_raw_fd(), ptr.cast(), len) };
        usize::try_from(n).map_err(|_| io::Error::last_os_error())
    }

    /// Writes buffers to `fd` by one call.
    pub(crate) fn write_to(&self, fd: BorrowedFd<'_>, parts: &[(u64, usize)]) -> io::Result<usize> {
        let slices: Vec<libc::iovec> = parts
            .iter()
            .map(|&(at, len)| libc::iovec { iov_base: self.ptr(at, len).cast(), iov_len: len })
            .collect();
        // SAFETY: every slice is valid for its length.
        let n = unsafe { libc::writev(fd.as_raw_fd(), slices.as_ptr(), slices.len() as i32) };
        usize::try_from(n).map_err(|_| io::Error::last_os_error())
    }
}

/// The numbers of the bits of word `i` that are set.
fn bits(i: usize, word: u64) -> impl Iterator<Item = u64> {
    (0..64).filter(move |bit| word & (1 << bit) != 0).map(move |bit| 64 * i as u64 + bit)
}

/// The descriptor of an event, for polling.
pub(crate) fn event_fd(event: &EventFd) -> BorrowedFd<'_> {
    // SAFETY: the descriptor belongs to `event`, which is borrowed as long as the result.
    unsafe { BorrowedFd::borrow_raw(event.as_raw_fd()) }
}

mod ioctl {
    // From linux/if_tun.h.
    nix::ioctl_write_ptr_bad!(set_iff, nix::request_code_write!(b'T', 202, 4), libc::ifreq);
    nix::ioctl_write_int_bad!(set_offload, nix::request_code_write!(b'T', 208, 4));
    nix::ioctl_write_ptr_bad!(set_queue, nix::request_code_write!(b'T', 217, 4), libc::ifreq);
    nix::ioctl_write_ptr_bad!(set_vnet_header, nix::request_code_write!(b'T', 216, 4), i32);
}

/// Opens the tap device `name` in the network namespace of the calling thread, making it if it is not there.
///
/// Frames have a virtio header of `header` bytes in front; `offload` are the `TUN_F_*` that the reader can take.
/// `several`: as one of several queues.
pub(crate) fn open_tap(name: &str, header: i32, offload: u32, several: bool) -> io::Result<OwnedFd> {
    let file = File::options().read(true).write(true).open("/dev/net/tun")?;
    // SAFETY: all zeroes is a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays zero.
    if name.len() >= request.ifr_name.len() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "name of the tap is too long"));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    let queues = if several { libc::IFF_MULTI_QUEUE } else { 0 };
    let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR | queues;
    request.ifr_ifru.ifru_flags = flags as i16;
    let fd = file.as_raw_fd();
    // SAFETY: the calls take an ifreq, an int and a pointer to an int, which live as long as the calls.
    unsafe {
        ioctl::set_iff(fd, &request)?;
        ioctl::set_vnet_header(fd, &header)?;
        ioctl::set_offload(fd, offload as i32)?;
    }
    let owned = OwnedFd::from(file);
    let flags =
        nix::fcntl::OFlag::from_bits_retain(nix::fcntl::fcntl(&owned, nix::fcntl::FcntlArg::F_GETFL)?);
    nix::fcntl::fcntl(owned.as_fd(), nix::fcntl::FcntlArg::F_SETFL(flags | nix::fcntl::OFlag::O_NONBLOCK))?;
    Ok(owned)
}

/// Attaches one queue of a tap of several, or detaches it: the device does not use it then.
pub(crate) fn attach_queue(tap: BorrowedFd<'_>, on: bool) -> io::Result<()> {
    // SAFETY: all zeroes is a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_ifru.ifru_flags = if on { libc::IFF_ATTACH_QUEUE } else { libc::IFF_DETACH_QUEUE } as i16;
    // SAFETY: the call takes an ifreq, which lives as long as it.
    unsafe { ioctl::set_queue(tap.as_raw_fd(), &request)? };
    Ok(())
}

/// A filter that takes no segment, loaded once for any number of sockets: what a helper silences connections with.
#[derive(Debug)]
pub struct Silence(OwnedFd);

impl Silence {
    /// Loads it.
    ///
    /// # Errors
    /// As bpf(2): without CAP_BPF or CAP_SYS_ADMIN `PermissionDenied`.
    pub fn load() -> io::Result<Silence> {
        /// BPF_PROG_LOAD, BPF_PROG_TYPE_SOCKET_FILTER.
        const LOAD: libc::c_int = 5;
        const SOCKET_FILTER: u32 = 1;
        // r0 = 0, exit (RFC 9669).
        let code: [[u8; 8]; 2] = [[0xb7, 0, 0, 0, 0, 0, 0, 0], [0x95, 0, 0, 0, 0, 0, 0, 0]];
        let license = c"GPL";
        // prog_type and insn_cnt, insns, license; the rest is zero.
        let mut attr = [0u64; 18];
        let head = [SOCKET_FILTER.to_ne_bytes(), (code.len() as u32).to_ne_bytes()].concat();
        attr[0] = u64::from_ne_bytes(head.try_into().map_err(|_| io::ErrorKind::InvalidInput)?);
        (attr[1], attr[2]) = (code.as_ptr() as u64, license.as_ptr() as u64);
        // SAFETY: the block is of the stated size, and what it points to lives through the call.
        let fd = unsafe { libc::syscall(libc::SYS_bpf, LOAD, attr.as_ptr(), size_of_val(&attr)) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        let fd = i32::try_from(fd).map_err(io::Error::other)?;
        // SAFETY: the call returned a descriptor that nothing else owns.
        Ok(Silence(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Attaches it to a socket.
    ///
    /// # Errors
    /// As setsockopt(2).
    pub fn attach(&self, socket: impl AsFd) -> io::Result<()> {
        let program: libc::c_int = self.0.as_raw_fd();
        // SAFETY: the kernel reads one int.
        let rc = unsafe {
            libc::setsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_ATTACH_BPF,
                (&raw const program).cast(),
                size_of::<libc::c_int>() as libc::socklen_t,
            )
        };
        if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}
