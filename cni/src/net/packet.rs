//! A packet socket (packet(7)) that takes frames as they come in over one interface and sends them over it as they are.
//!
//! A frame between two pods of a node may stand for several, and its checksum may still have to be made. So each comes with
//! the header by which the kernel tells that (`struct virtio_net_hdr`), and goes out with the same.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::libc;
use nix::sys::socket::sockopt::SetBool;
use nix::sys::socket::{
    AddressFamily, LinkAddr, MsgFlags, SockFlag, SockType, SockaddrLike, bind, recv, sendto, setsockopt,
    socket, sockopt,
};

/// Bytes of the header before each frame.
pub(super) const HEADER: usize = 10;

/// `PACKET_VNET_HDR`: each frame has the header before it.
#[derive(Clone, Copy, Debug)]
struct VnetHdr;
nix::setsockopt_impl!(VnetHdr, libc::SOL_PACKET, libc::PACKET_VNET_HDR, bool, SetBool);

/// `PACKET_QDISC_BYPASS`: what is sent goes past the interface's queueing discipline.
#[derive(Clone, Copy, Debug)]
struct QdiscBypass;
nix::setsockopt_impl!(QdiscBypass, libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, bool, SetBool);

/// `PACKET_IGNORE_OUTGOING`: what the pod sends is not received.
#[derive(Clone, Copy, Debug)]
struct IgnoreOutgoing;
nix::setsockopt_impl!(IgnoreOutgoing, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, bool, SetBool);

/// The socket.
#[derive(Debug)]
pub(super) struct Packets {
    socket: OwnedFd,
    interface: LinkAddr,
}

impl Packets {
    /// Takes every frame from now on that comes in over this interface of the calling thread's namespace, up to `buffer`
    /// bytes before they are received.
    ///
    /// # Errors
    /// Without CAP_NET_RAW; before Linux 4.20; the interface is gone.
    pub(super) fn open(interface: LinkAddr, buffer: usize) -> io::Result<Packets> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        // Protocol 0: it receives nothing before it is bound.
        let socket = socket(AddressFamily::Packet, SockType::Raw, flags, None)?;
        setsockopt(&socket, VnetHdr, &true)?;
        setsockopt(&socket, QdiscBypass, &true)?;
        setsockopt(&socket, IgnoreOutgoing, &true)?;
        setsockopt(&socket, sockopt::RcvBufForce, &buffer)?;
        bind(socket.as_raw_fd(), &every_frame_of(&interface)?)?;
        Ok(Packets { socket, interface })
    }

    /// Bytes of the next frame, its header included, which is at the beginning of `buffer` then; None when there is none.
    ///
    /// # Errors
    /// As recv(2).
    pub(super) fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match recv(self.socket.as_raw_fd(), buffer, MsgFlags::empty()) {
            Ok(length) => Ok(Some(length)),
            Err(nix::errno::Errno::EAGAIN) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends a frame with its header over the interface, past its queueing discipline.
    ///
    /// # Errors
    /// As sendto(2).
    pub(super) fn send(&self, frame: &[u8]) -> io::Result<()> {
        sendto(self.socket.as_raw_fd(), frame, &self.interface, MsgFlags::MSG_DONTWAIT)?;
        Ok(())
    }
}

impl AsFd for Packets {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The address to bind to for frames of any protocol; getifaddrs(3) names none.
fn every_frame_of(interface: &LinkAddr) -> io::Result<LinkAddr> {
    const ALL: u16 = (libc::ETH_P_ALL as u16).to_be();
    let address = libc::sockaddr_ll { sll_protocol: ALL, ..*interface.as_ref() };
    // SAFETY: the pointer is to a whole address that lives through the call, and its length is told.
    let address = unsafe {
        LinkAddr::from_raw(
            (&raw const address).cast(),
            Some(size_of::<libc::sockaddr_ll>() as libc::socklen_t),
        )
    };
    address.ok_or_else(|| io::ErrorKind::InvalidInput.into())
}
