//! Datagrams received in batches, with the control data that a translator needs, and the queue of socket errors.

use std::io;
use std::mem::{size_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};

use libc::{IPPROTO_IP, IPPROTO_IPV6, c_int, c_void, iovec, mmsghdr, msghdr, sockaddr_storage, socklen_t};

use super::cvt;
use super::options::{SOL_UDP, UDP_GRO};

/// Buffers that one system call fills: datagrams, or coalesced runs of them.
pub const BATCH: usize = 32;
/// Largest buffer a datagram needs.
const SLOT_BYTES: usize = 65_536;
/// Room for control messages: TTL, packet info and original destination, or an extended error.
const CONTROL_BYTES: usize = 256;

#[repr(align(8))]
#[derive(Clone, Copy)]
struct ControlBuffer([u8; CONTROL_BYTES]);

/// A received datagram.
#[derive(Debug)]
pub struct Datagram<'a> {
    /// Payload.
    pub payload: &'a [u8],
    /// Sender.
    pub from: SocketAddr,
    /// Local address it was sent to, where the socket asks for it.
    pub to: Option<IpAddr>,
    /// Local port it was sent to, where the socket asks for it.
    pub to_port: Option<u16>,
    /// TTL or hop limit, where the socket asks for it.
    pub ttl: Option<u8>,
    /// Type of service or traffic class; zero where the socket does not ask for it.
    pub class: u8,
    /// The payload is a run of datagrams of this size, of which the last may be shorter: the kernel has left them
    /// together for a socket that asked for it ([`set_udp_gro`](super::set_udp_gro)).
    pub segment: Option<u16>,
}

impl<'a> Datagram<'a> {
    /// The datagrams of a run, or the one that it is.
    pub fn each(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let step = self.segment.map_or(self.payload.len(), usize::from).max(1);
        let empty = self.payload.is_empty().then_some(self.payload);
        empty.into_iter().chain(self.payload.chunks(step))
    }
}

/// Buffers for receiving up to [`BATCH`] datagrams. They are made at the first use, and pages are only touched as
/// far as datagrams reach.
#[derive(Default)]
pub struct ReceiveBatch {
    slots: Vec<u8>,
    names: Vec<sockaddr_storage>,
    controls: Vec<ControlBuffer>,
    headers: Vec<mmsghdr>,
    iovs: Vec<iovec>,
    received: usize,
    /// Headers that the last call may have changed.
    used: usize,
}

// SAFETY: the raw pointers in `headers` and `iovs` point into the vectors beside them, whose memory stays where it
// is, so the batch may move to another thread.
unsafe impl Send for ReceiveBatch {}

impl std::fmt::Debug for ReceiveBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReceiveBatch").field("received", &self.received).finish_non_exhaustive()
    }
}

impl ReceiveBatch {
    /// Makes the buffers and ties them together. The vectors never grow afterwards, so the pointers stay good
    /// wherever the batch itself is moved to.
    #[cold]
    fn allocate(&mut self) {
        self.slots = vec![0; BATCH * SLOT_BYTES];
        // SAFETY: sockaddr_storage, mmsghdr and iovec are plain data; all zeroes is a valid value.
        self.names = vec![unsafe { zeroed() }; BATCH];
        self.controls = vec![ControlBuffer([0; CONTROL_BYTES]); BATCH];
        // SAFETY: as above.
        self.headers = vec![unsafe { zeroed() }; BATCH];
        // SAFETY: as above.
        self.iovs = vec![unsafe { zeroed() }; BATCH];
        for i in 0..BATCH {
            self.iovs[i] =
                iovec { iov_base: self.slots[i * SLOT_BYTES..].as_mut_ptr().cast(), iov_len: SLOT_BYTES };
            let h = &mut self.headers[i].msg_hdr;
            h.msg_name = std::ptr::from_mut(&mut self.names[i]).cast();
            h.msg_iov = &raw mut self.iovs[i];
            h.msg_iovlen = 1;
            h.msg_control = self.controls[i].0.as_mut_ptr().cast();
        }
        self.used = BATCH;
    }

    /// Receives up to `most` datagrams, or runs of them, and returns how many came.
    ///
    /// # Errors
    /// As recvmmsg(2); `WouldBlock` when there is none.
    pub fn receive(&mut self, socket: BorrowedFd<'_>, most: usize) -> io::Result<usize> {
        if self.headers.is_empty() {
            self.allocate();
        }
        // The kernel writes the lengths of what it fills, and nothing else needs to be set again.
        for h in &mut self.headers[..self.used] {
            h.msg_hdr.msg_namelen = size_of::<sockaddr_storage>() as socklen_t;
            h.msg_hdr.msg_controllen = CONTROL_BYTES;
            h.msg_hdr.msg_flags = 0;
        }
        (self.received, self.used) = (0, BATCH);
        let most = most.clamp(1, BATCH);
        // SAFETY: each header points to a name, an iovec, a slot and a control buffer of its own, all alive and
        // of the stated sizes; `most` is at most the number of headers.
        let n = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                self.headers.as_mut_ptr(),
                most as libc::c_uint,
                libc::MSG_DONTWAIT as _,
                std::ptr::null_mut(),
            )
        };
        self.received = cvt(n as isize)?;
        // One more than came: what ended the call may have touched it.
        self.used = (self.received + 1).min(BATCH);
        Ok(self.received)
    }

    /// How many came with the last [`ReceiveBatch::receive`].
    pub fn len(&self) -> usize {
        self.received
    }

    /// Whether nothing came.
    pub fn is_empty(&self) -> bool {
        self.received == 0
    }

    /// The datagram `i` of the last [`ReceiveBatch::receive`].
    pub fn get(&self, i: usize) -> Option<Datagram<'_>> {
        let h = self.headers[..self.received].get(i)?;
        let len = (h.msg_len as usize).min(SLOT_BYTES);
        let mut d = Datagram {
            payload: &self.slots[i * SLOT_BYTES..][..len],
            from: address(&self.names[i])?,
            to: None,
            to_port: None,
            ttl: None,
            class: 0,
            segment: None,
        };
        for (level, kind, data) in controls(&h.msg_hdr) {
            match (level, kind) {
                (IPPROTO_IP, libc::IP_PKTINFO) => {
                    // struct in_pktinfo: ifindex, spec_dst, addr.
                    d.to =
                        data.get(8..12).and_then(|b| b.first_chunk::<4>()).map(|b| Ipv4Addr::from(*b).into());
                }
                (IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                    d.to = data.first_chunk::<16>().map(|b| Ipv6Addr::from(*b).to_canonical());
                }
                // struct sockaddr_in or sockaddr_in6: family, then the port.
                (IPPROTO_IP, libc::IP_ORIGDSTADDR) | (IPPROTO_IPV6, libc::IPV6_ORIGDSTADDR) => {
                    d.to_port = data.get(2..4).and_then(|b| b.first_chunk()).map(|b| u16::from_be_bytes(*b));
                }
                (IPPROTO_IP, libc::IP_TTL) | (IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                    d.ttl = int(data).and_then(|t| u8::try_from(t).ok());
                }
                // One byte, whatever the option has.
                (IPPROTO_IP, libc::IP_TOS) => d.class = data.first().copied().unwrap_or(0),
                (IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                    d.class = int(data).and_then(|class| u8::try_from(class).ok()).unwrap_or(0);
                }
                (SOL_UDP, UDP_GRO) => {
                    let size = int(data).and_then(|n| u16::try_from(n).ok());
                    d.segment = size.filter(|n| *n > 0 && usize::from(*n) < len);
                }
                _ => {}
            }
        }
        Some(d)
    }
}

fn int(data: &[u8]) -> Option<c_int> {
    data.first_chunk::<4>().map(|b| c_int::from_ne_bytes(*b))
}

/// The control messages of a received message as (level, type, data).
fn controls(h: &msghdr) -> impl Iterator<Item = (c_int, c_int, &[u8])> {
    // SAFETY: the kernel has filled msg_control up to msg_controllen; the CMSG functions stay inside of it.
    let mut at = unsafe { libc::CMSG_FIRSTHDR(h) };
    std::iter::from_fn(move || {
        // SAFETY: `at` is null or points to a whole header inside the control buffer.
        let c = unsafe { at.as_ref()? };
        // SAFETY: CMSG_LEN(0) is the header's padded size, a constant.
        let header = unsafe { libc::CMSG_LEN(0) } as usize;
        // SAFETY: cmsg_len was written by the kernel and covers header and data, inside the control buffer.
        let data =
            unsafe { std::slice::from_raw_parts(libc::CMSG_DATA(c), c.cmsg_len.saturating_sub(header)) };
        // SAFETY: `h` and `c` belong together.
        at = unsafe { libc::CMSG_NXTHDR(h, c) };
        Some((c.cmsg_level, c.cmsg_type, data))
    })
}

/// Reads a socket address, with IPv4-mapped ones turned into IPv4.
fn address(s: &sockaddr_storage) -> Option<SocketAddr> {
    match c_int::from(s.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says that it is a sockaddr_in, which is smaller than the storage.
            let a = unsafe { &*std::ptr::from_ref(s).cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(u32::from_be(a.sin_addr.s_addr));
            Some(SocketAddr::new(ip.into(), u16::from_be(a.sin_port)))
        }
        libc::AF_INET6 => {
            // SAFETY: the family says that it is a sockaddr_in6, which is smaller than the storage.
            let a = unsafe { &*std::ptr::from_ref(s).cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(a.sin6_addr.s6_addr).to_canonical();
            Some(SocketAddr::new(ip, u16::from_be(a.sin6_port)))
        }
        _ => None,
    }
}

/// One entry of a socket's error queue (`struct sock_extended_err`).
#[derive(Clone, Debug)]
pub struct SocketError {
    /// errno.
    pub errno: u32,
    /// 1 local, 2 ICMP, 3 ICMPv6.
    pub origin: u8,
    /// ICMP type.
    pub icmp_type: u8,
    /// ICMP code.
    pub icmp_code: u8,
    /// MTU for EMSGSIZE.
    pub info: u32,
    /// The router or host that sent the error.
    pub offender: Option<IpAddr>,
    /// Where the failed datagram went.
    pub destination: Option<SocketAddr>,
    /// The start of the failed datagram's payload.
    pub payload: Vec<u8>,
}

/// Bytes of a failed datagram that are kept: enough for what an ICMP error quotes.
const QUOTE_BYTES: usize = 576;

/// Takes one entry from the socket's error queue; None when it is empty.
///
/// # Errors
/// As recvmsg(2).
pub fn recv_error(socket: BorrowedFd<'_>) -> io::Result<Option<SocketError>> {
    let mut quote = vec![0u8; QUOTE_BYTES];
    let mut control = ControlBuffer([0; CONTROL_BYTES]);
    // SAFETY: plain data, all zeroes is valid.
    let mut name: sockaddr_storage = unsafe { zeroed() };
    let mut iov = iovec { iov_base: quote.as_mut_ptr().cast::<c_void>(), iov_len: quote.len() };
    // SAFETY: plain data, all zeroes is valid.
    let mut h: msghdr = unsafe { zeroed() };
    h.msg_name = std::ptr::from_mut(&mut name).cast();
    h.msg_namelen = size_of::<sockaddr_storage>() as socklen_t;
    h.msg_iov = &raw mut iov;
    h.msg_iovlen = 1;
    h.msg_control = control.0.as_mut_ptr().cast();
    h.msg_controllen = CONTROL_BYTES;
    // SAFETY: name, iovec and control buffer are alive and of the stated sizes.
    let n =
        cvt(unsafe { libc::recvmsg(socket.as_raw_fd(), &mut h, libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT) });
    let n = match n {
        Ok(n) => n.min(QUOTE_BYTES),
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
        Err(e) => return Err(e),
    };
    let mut error = None;
    for (level, kind, data) in controls(&h) {
        let ours =
            matches!((level, kind), (IPPROTO_IP, libc::IP_RECVERR) | (IPPROTO_IPV6, libc::IPV6_RECVERR));
        // struct sock_extended_err: errno, origin, type, code, pad, info, data; then the offender's address.
        if let (true, Some(e)) = (ours, data.first_chunk::<16>()) {
            error = Some(SocketError {
                errno: u32::from_ne_bytes([e[0], e[1], e[2], e[3]]),
                origin: e[4],
                icmp_type: e[5],
                icmp_code: e[6],
                info: u32::from_ne_bytes([e[8], e[9], e[10], e[11]]),
                offender: offender(&data[16..]),
                destination: None,
                payload: Vec::new(),
            });
        }
    }
    quote.truncate(n);
    Ok(error.map(|e| SocketError { destination: address(&name), payload: quote, ..e }))
}

fn offender(b: &[u8]) -> Option<IpAddr> {
    let family = u16::from_ne_bytes(*b.first_chunk()?);
    match c_int::from(family) {
        libc::AF_INET => b.get(4..8)?.first_chunk::<4>().map(|a| Ipv4Addr::from(*a).into()),
        // A dual-stack socket tells IPv4 addresses as mapped ones.
        libc::AF_INET6 => b.get(8..24)?.first_chunk::<16>().map(|a| Ipv6Addr::from(*a).to_canonical()),
        _ => None,
    }
}
