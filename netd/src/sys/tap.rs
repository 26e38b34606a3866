//! Opening a tap device: an ioctl that no crate wraps.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt as _;

mod ioctl {
    nix::ioctl_write_ptr_bad!(set_iff, nix::request_code_write!(b'T', 202, 4), libc::ifreq);
}

/// Opens the tap device `name` of the calling thread's network namespace, without waiting. Each read and write is one
/// Ethernet frame, and its checksums are complete. A device that belongs to this user is opened without any privilege.
///
/// # Errors
/// There is no such device, or it is another user's, or `/dev/net/tun` cannot be opened.
pub fn open_tap(name: &str) -> io::Result<File> {
    if nix::net::if_::if_nametoindex(name).is_err() {
        // With privilege the kernel would make one.
        return Err(io::Error::new(io::ErrorKind::NotFound, format!("there is no device {name}")));
    }
    let file = File::options().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun")?;
    // SAFETY: all zeroes is a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_flags = i16::try_from(libc::IFF_TAP | libc::IFF_NO_PI)
        .map_err(|_| io::Error::other("the flags of a tap device do not fit"))?;
    // SAFETY: the call takes an ifreq, which lives as long as the call; its name ends with a zero, since that of a device
    // that is there is shorter than the field.
    unsafe { ioctl::set_iff(file.as_raw_fd(), &request)? };
    Ok(file)
}
