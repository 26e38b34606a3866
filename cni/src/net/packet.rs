//! A packet socket (packet(7)) that takes frames as they come in and sends them as they are.
//!
//! A frame between two pods of a node may stand for several, and its checksum may still have to be made. So each comes with
//! the header by which the kernel tells that (`struct virtio_net_hdr`), and goes out with the same.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::libc;
use nix::sys::socket::{
    AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, recvfrom, sendto, setsockopt,
    socket, sockopt,
};

/// Bytes of the header before each frame.
pub(super) const HEADER: usize = 10;

/// The socket.
#[derive(Debug)]
pub(super) struct Packets(OwnedFd);

impl Packets {
    /// Takes every frame from now on that comes in over any interface of the calling thread's namespace, up to `buffer`
    /// bytes before they are received.
    ///
    /// # Errors
    /// Without CAP_NET_RAW; before Linux 4.20.
    pub(super) fn open(buffer: usize) -> io::Result<Packets> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(AddressFamily::Packet, SockType::Raw, flags, Some(SockProtocol::EthAll))?;
        for option in [libc::PACKET_VNET_HDR, libc::PACKET_QDISC_BYPASS, libc::PACKET_IGNORE_OUTGOING] {
            enable(socket.as_fd(), option)?;
        }
        setsockopt(&socket, sockopt::RcvBufForce, &buffer)?;
        Ok(Packets(socket))
    }

    /// The next frame behind its header, and the index of the interface that it came in over; None when there is none.
    ///
    /// # Errors
    /// As recvfrom(2).
    pub(super) fn receive<'a>(&self, buffer: &'a mut [u8]) -> io::Result<Option<(&'a [u8], usize)>> {
        match recvfrom::<LinkAddr>(self.0.as_raw_fd(), buffer) {
            Ok((length, from)) => {
                let frame = buffer.get(..length).unwrap_or_default();
                Ok(Some((frame, from.map_or(0, |from| from.ifindex()))))
            }
            Err(nix::errno::Errno::EAGAIN) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends a frame with its header over an interface, past its queueing discipline.
    ///
    /// # Errors
    /// As sendto(2).
    pub(super) fn send(&self, frame: &[u8], interface: &LinkAddr) -> io::Result<()> {
        sendto(self.0.as_raw_fd(), frame, interface, MsgFlags::MSG_DONTWAIT)?;
        Ok(())
    }
}

impl AsFd for Packets {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn enable(socket: BorrowedFd<'_>, option: libc::c_int) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: the kernel reads one int.
    let rc = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            option,
            (&raw const on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
