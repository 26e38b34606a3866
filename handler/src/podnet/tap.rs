//! Making a tap device: ioctls that no crate wraps.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt as _;

mod ioctl {
    nix::ioctl_write_ptr_bad!(set_iff, nix::request_code_write!(b'T', 202, 4), libc::ifreq);
    nix::ioctl_write_int_bad!(set_persist, nix::request_code_write!(b'T', 203, 4));
    nix::ioctl_write_int_bad!(set_owner, nix::request_code_write!(b'T', 204, 4));
    nix::ioctl_write_int_bad!(set_group, nix::request_code_write!(b'T', 206, 4));
}

/// Makes the tap device `name` in the calling thread's network namespace. It stays, with several queues or one, for
/// programs of this user and group to open.
///
/// # Errors
/// There is no `/dev/net/tun`, or the name is taken, or the kernel refuses; nothing is left then.
pub(super) fn make(name: &str, several: bool, owner: u32) -> io::Result<()> {
    let file = open(name, several)?;
    let owner = owner.cast_signed();
    let fd = file.as_raw_fd();
    // SAFETY: the calls take a number.
    unsafe {
        ioctl::set_owner(fd, owner)?;
        ioctl::set_group(fd, owner)?;
        // The last one: until now the device goes away with this descriptor.
        ioctl::set_persist(fd, 1)?;
    }
    Ok(())
}

/// Opens a queue of the tap device `name`, which is made if it is not there.
///
/// # Errors
/// As of [`make`].
pub(super) fn open(name: &str, several: bool) -> io::Result<File> {
    // The device's reads and writes say when there is nothing; making it waits for nothing.
    let file = File::options().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun")?;
    // SAFETY: all zeroes is a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays zero.
    if name.len() >= request.ifr_name.len() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{name}: the name is too long")));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from.cast_signed();
    }
    let queues = if several { libc::IFF_MULTI_QUEUE } else { 0 };
    let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR | queues;
    request.ifr_ifru.ifru_flags =
        i16::try_from(flags).map_err(|_| io::Error::other("the flags of a tap device do not fit"))?;
    // SAFETY: the call takes an ifreq, which lives as long as the call.
    unsafe { ioctl::set_iff(file.as_raw_fd(), &request)? };
    Ok(file)
}
