//! Datagrams sent in batches from guest memory, to one peer or to many, with runs of equal ones in one message.

use std::io;
use std::mem::{size_of, zeroed};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};

use libc::{
    IPPROTO_IP, IPPROTO_IPV6, c_int, cmsghdr, in_addr, in6_addr, mmsghdr, sockaddr_in, sockaddr_in6,
    socklen_t,
};

use super::{cvt, cvt_on};
use crate::Iovs;

/// Level of UDP's own options (udp(7)).
const SOL_UDP: c_int = 17;
/// `UDP_SEGMENT`: a message is cut into datagrams of this size (linux/udp.h).
const UDP_SEGMENT: c_int = 103;
/// Messages that one system call takes.
pub const MESSAGES: usize = 32;
/// Room for UDP_SEGMENT and an IPv6 source address: 16 + 8 and 16 + 24 bytes.
const CONTROL_BYTES: usize = 64;

/// A datagram, or a run of datagrams of one size that the kernel cuts apart.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// Where its payload lies.
    pub payload: &'a Iovs,
    /// First slice of it.
    pub first: usize,
    /// Number of slices.
    pub slices: usize,
    /// Bytes of each datagram of a run; the last may be shorter.
    pub segment: Option<u16>,
    /// Where it goes; none where the socket is connected.
    pub to: Option<SocketAddr>,
    /// The local address that it comes from; none for the kernel's choice.
    pub from: Option<IpAddr>,
}

/// The control data of one message.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Control {
    bytes: [u8; CONTROL_BYTES],
    len: usize,
}

impl Control {
    /// Appends one control message; what does not fit is left out, which no caller can bring about.
    fn push(&mut self, level: c_int, kind: c_int, data: &[u8]) {
        const HEADER: usize = size_of::<cmsghdr>();
        let Some(room) = self.bytes.get_mut(self.len..self.len + HEADER + data.len().next_multiple_of(8))
        else {
            return;
        };
        room[..8].copy_from_slice(&(HEADER + data.len()).to_ne_bytes());
        room[8..12].copy_from_slice(&level.to_ne_bytes());
        room[12..16].copy_from_slice(&kind.to_ne_bytes());
        room[HEADER..HEADER + data.len()].copy_from_slice(data);
        self.len += room.len();
    }

    /// The local address: `struct in_pktinfo` {ifindex, spec_dst, addr} or `struct in6_pktinfo` {addr, ifindex}. A
    /// dual-stack socket takes IPv4 addresses as mapped ones.
    fn push_source(&mut self, from: IpAddr, dual: bool) {
        match from {
            IpAddr::V4(a) if !dual => {
                let mut info = [0; 12];
                info[4..8].copy_from_slice(&a.octets());
                self.push(IPPROTO_IP, libc::IP_PKTINFO, &info);
            }
            _ => {
                let mut info = [0; 20];
                info[..16].copy_from_slice(&mapped(from).octets());
                self.push(IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
            }
        }
    }
}

fn mapped(a: IpAddr) -> Ipv6Addr {
    match a {
        IpAddr::V4(a) => a.to_ipv6_mapped(),
        IpAddr::V6(a) => a,
    }
}

/// A socket address for a system call.
#[repr(C)]
#[derive(Clone, Copy)]
union Name {
    v4: sockaddr_in,
    v6: sockaddr_in6,
}

impl Name {
    /// The address as a socket takes it that is `dual`-stack or not, and its length.
    fn new(a: SocketAddr, dual: bool) -> (Name, socklen_t) {
        match a {
            SocketAddr::V4(a) if !dual => {
                // SAFETY: plain data, all zeroes is a valid value.
                let mut v4: sockaddr_in = unsafe { zeroed() };
                v4.sin_family = libc::AF_INET as _;
                v4.sin_port = a.port().to_be();
                v4.sin_addr = in_addr { s_addr: u32::from_ne_bytes(a.ip().octets()) };
                (Name { v4 }, size_of::<sockaddr_in>() as socklen_t)
            }
            _ => {
                // SAFETY: as above.
                let mut v6: sockaddr_in6 = unsafe { zeroed() };
                v6.sin6_family = libc::AF_INET6 as _;
                v6.sin6_port = a.port().to_be();
                v6.sin6_addr = in6_addr { s6_addr: mapped(a.ip()).octets() };
                (Name { v6 }, size_of::<sockaddr_in6>() as socklen_t)
            }
        }
    }
}

/// Sends up to [`MESSAGES`] messages by one call and returns how many were taken. `dual`: the socket is an IPv6 one
/// that carries IPv4 as well.
///
/// # Errors
/// As sendmmsg(2) for the first message; `EINVAL` or `EMSGSIZE` when a run's datagrams do not fit the path, `EIO`
/// when the path cannot carry runs.
pub fn send_messages<'a>(
    socket: BorrowedFd<'_>,
    dual: bool,
    messages: impl Iterator<Item = Message<'a>>,
) -> io::Result<usize> {
    // SAFETY: mmsghdr and the addresses are plain data; all zeroes is a valid value.
    let (mut headers, mut names): ([mmsghdr; MESSAGES], [Name; MESSAGES]) = unsafe { (zeroed(), zeroed()) };
    let mut controls = [Control { bytes: [0; CONTROL_BYTES], len: 0 }; MESSAGES];
    let mut count = 0;
    // An error speaks of the first message.
    let mut first = None;
    for (((m, h), name), control) in messages.zip(&mut headers).zip(&mut names).zip(&mut controls) {
        count += 1;
        first.get_or_insert(m.payload);
        let h = &mut h.msg_hdr;
        let slices = m.payload.as_raw().get(m.first..m.first + m.slices).unwrap_or(&[]);
        h.msg_iov = slices.as_ptr().cast_mut();
        h.msg_iovlen = slices.len();
        if let Some(to) = m.to {
            (*name, h.msg_namelen) = Name::new(to, dual);
            h.msg_name = std::ptr::from_mut(name).cast();
        }
        if let Some(size) = m.segment {
            control.push(SOL_UDP, UDP_SEGMENT, &size.to_ne_bytes());
        }
        if let Some(from) = m.from {
            control.push_source(from, dual);
        }
        if control.len > 0 {
            h.msg_control = control.bytes.as_mut_ptr().cast();
            h.msg_controllen = control.len;
        }
    }
    // SAFETY: the first `count` headers point to slices of a payload, which keeps the memory mapped, and to names and
    // control buffers of the stated lengths, all alive; sendmmsg only reads them.
    let n = unsafe {
        libc::sendmmsg(
            socket.as_raw_fd(),
            headers.as_mut_ptr(),
            count,
            (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as _,
        )
    };
    match first {
        Some(payload) => cvt_on(payload, n as isize),
        None => cvt(n as isize),
    }
}
