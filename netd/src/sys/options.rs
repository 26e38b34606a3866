//! Socket options that neither socket2 nor nix has.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use libc::{IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, SOL_SOCKET, c_int};

/// `SO_PEEK_OFF` of socket(7).
pub(super) const SO_PEEK_OFF: c_int = 42;
/// Level of UDP's own options (udp(7)).
pub(super) const SOL_UDP: c_int = 17;
/// `UDP_GRO`: runs of datagrams are received together (linux/udp.h).
pub(super) const UDP_GRO: c_int = 104;
/// `IP_LOCAL_PORT_RANGE`: the highest port above the lowest (linux/in.h).
const IP_LOCAL_PORT_RANGE: c_int = 51;
/// `SO_MEMINFO`, an array of nine u32 (linux/sock_diag.h).
const SO_MEMINFO: c_int = 55;

pub(super) fn set_int(socket: BorrowedFd<'_>, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    // SAFETY: the option value is one int that lives through the call.
    let rc = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            std::ptr::from_ref(&value).cast(),
            size_of::<c_int>() as libc::socklen_t,
        )
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sets an option whose value is an array of numbers.
pub(super) fn set(socket: BorrowedFd<'_>, level: c_int, name: c_int, value: &[u32]) -> io::Result<()> {
    // SAFETY: the kernel reads as many bytes as the slice has.
    let rc = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            value.as_ptr().cast(),
            size_of_val(value) as libc::socklen_t,
        )
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Reads an option of a plain-data type; fields beyond what this kernel fills stay zero.
pub(super) fn get<T: Plain>(socket: BorrowedFd<'_>, level: c_int, name: c_int) -> io::Result<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, the size of T.
    let rc =
        unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, value.as_mut_ptr().cast(), &mut len) };
    if rc != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: T is Plain, so zeroes and any bytes the kernel wrote are a valid value.
    Ok(unsafe { value.assume_init() })
}

/// Types for which every bit pattern is a valid value.
pub(super) trait Plain: Copy {}
impl Plain for u32 {}
impl Plain for [u32; 5] {}
impl Plain for [u32; 9] {}
impl Plain for TcpInfo {}

/// Sets SO_PEEK_OFF to `offset`: MSG_PEEK starts there and moves it on. Works for TCP over IPv4 since Linux
/// 6.9 and over IPv6 since 6.10; the caller probes each family.
///
/// # Errors
/// `Unsupported` and others where the kernel does not have it.
pub fn enable_peek_offset(socket: BorrowedFd<'_>, offset: u32) -> io::Result<()> {
    set_int(socket, SOL_SOCKET, SO_PEEK_OFF, offset as c_int)
}

/// Room in a socket's send buffer, in the kernel's own accounting.
#[derive(Clone, Copy, Debug)]
pub struct SendBuffer {
    /// Its present size in bytes; the kernel lets it grow.
    pub size: u32,
    /// Bytes queued, overhead included.
    pub queued: u32,
}

impl SendBuffer {
    /// Free bytes.
    pub fn free(self) -> u32 {
        self.size.saturating_sub(self.queued)
    }

    /// Whether poll(2) would say writable: below that the kernel remembers to tell (sk_stream_is_writeable).
    pub fn writable(self) -> bool {
        self.free() >= self.queued / 2
    }
}

/// Reads SO_MEMINFO.
///
/// # Errors
/// As getsockopt(2).
pub fn send_buffer(socket: BorrowedFd<'_>) -> io::Result<SendBuffer> {
    // SK_MEMINFO_SNDBUF = 3, SK_MEMINFO_WMEM_QUEUED = 5.
    let m: [u32; 9] = get(socket, SOL_SOCKET, SO_MEMINFO)?;
    Ok(SendBuffer { size: m[3], queued: m[5] })
}

/// The head of `struct tcp_info` (linux/tcp.h) up to `tcpi_rcv_wnd`, times in microseconds.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct TcpInfo {
    pub state: u8,
    pub ca_state: u8,
    pub retransmits: u8,
    pub probes: u8,
    pub backoff: u8,
    pub options: u8,
    pub wscale: u8,
    pub flags: u8,
    pub rto: u32,
    pub ato: u32,
    pub snd_mss: u32,
    pub rcv_mss: u32,
    pub unacked: u32,
    pub sacked: u32,
    pub lost: u32,
    pub retrans: u32,
    pub fackets: u32,
    pub last_data_sent: u32,
    pub last_ack_sent: u32,
    pub last_data_recv: u32,
    pub last_ack_recv: u32,
    pub pmtu: u32,
    pub rcv_ssthresh: u32,
    pub rtt: u32,
    pub rttvar: u32,
    pub snd_ssthresh: u32,
    pub snd_cwnd: u32,
    pub advmss: u32,
    pub reordering: u32,
    pub rcv_rtt: u32,
    pub rcv_space: u32,
    pub total_retrans: u32,
    pub pacing_rate: u64,
    pub max_pacing_rate: u64,
    pub bytes_acked: u64,
    pub bytes_received: u64,
    pub segs_out: u32,
    pub segs_in: u32,
    pub notsent_bytes: u32,
    pub min_rtt: u32,
    pub data_segs_in: u32,
    pub data_segs_out: u32,
    pub delivery_rate: u64,
    pub busy_time: u64,
    pub rwnd_limited: u64,
    pub sndbuf_limited: u64,
    pub delivered: u32,
    pub delivered_ce: u32,
    pub bytes_sent: u64,
    pub bytes_retrans: u64,
    pub dsack_dups: u32,
    pub reord_seen: u32,
    pub rcv_ooopack: u32,
    pub snd_wnd: u32,
    pub rcv_wnd: u32,
    pub rehash: u32,
}

/// Reads TCP_INFO.
///
/// # Errors
/// As getsockopt(2).
pub fn tcp_info(socket: BorrowedFd<'_>) -> io::Result<TcpInfo> {
    get(socket, IPPROTO_TCP, libc::TCP_INFO)
}

/// What the kernel does with datagrams larger than the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PmtuDiscovery {
    /// Send as it is with DF and relay the router's error: for a guest that does its own discovery.
    Probe,
    /// Fragment: for a guest that did not forbid it.
    Dont,
}

/// Sets IP_MTU_DISCOVER or IPV6_MTU_DISCOVER.
///
/// # Errors
/// As setsockopt(2).
pub fn set_pmtu_discovery(socket: BorrowedFd<'_>, family: IpAddr, how: PmtuDiscovery) -> io::Result<()> {
    let value = match how {
        PmtuDiscovery::Probe => libc::IP_PMTUDISC_PROBE,
        PmtuDiscovery::Dont => libc::IP_PMTUDISC_DONT,
    };
    match family {
        IpAddr::V4(_) => set_int(socket, IPPROTO_IP, libc::IP_MTU_DISCOVER, value),
        IpAddr::V6(_) => set_int(socket, IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, value),
    }
}

/// Turns on the queue of ICMP errors, IP_RECVERR or IPV6_RECVERR.
///
/// # Errors
/// As setsockopt(2).
pub fn set_recv_error(socket: BorrowedFd<'_>, family: IpAddr) -> io::Result<()> {
    match family {
        IpAddr::V4(_) => set_int(socket, IPPROTO_IP, libc::IP_RECVERR, 1),
        IpAddr::V6(_) => set_int(socket, IPPROTO_IPV6, libc::IPV6_RECVERR, 1),
    }
}

/// Turns on the queue of ICMP errors of a dual-stack socket, for both families.
///
/// # Errors
/// As setsockopt(2).
pub fn set_recv_errors(socket: BorrowedFd<'_>, dual_stack_v6: bool) -> io::Result<()> {
    if dual_stack_v6 {
        set_int(socket, IPPROTO_IPV6, libc::IPV6_RECVERR, 1)?;
    }
    set_int(socket, IPPROTO_IP, libc::IP_RECVERR, 1)
}

/// Lets the kernel hand over runs of datagrams of one sender and one size in one piece, as they came from a sender
/// or a network device that keeps them together (Linux 5.0).
///
/// # Errors
/// As setsockopt(2).
pub fn set_udp_gro(socket: BorrowedFd<'_>) -> io::Result<()> {
    set_int(socket, SOL_UDP, UDP_GRO, 1)
}

/// Asks for the TTL or hop limit and the traffic class of what is received.
///
/// # Errors
/// As setsockopt(2).
pub fn set_recv_ttl(socket: BorrowedFd<'_>, family: IpAddr) -> io::Result<()> {
    match family {
        IpAddr::V4(_) => {
            set_int(socket, IPPROTO_IP, libc::IP_RECVTTL, 1)?;
            set_int(socket, IPPROTO_IP, libc::IP_RECVTOS, 1)
        }
        IpAddr::V6(_) => {
            set_int(socket, IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT, 1)?;
            set_int(socket, IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1)
        }
    }
}

/// Asks for the local address, TTL and traffic class of what is received; on a dual-stack socket for both families.
///
/// # Errors
/// As setsockopt(2).
pub fn set_recv_original(socket: BorrowedFd<'_>, dual_stack_v6: bool) -> io::Result<()> {
    if dual_stack_v6 {
        set_int(socket, IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1)?;
        set_int(socket, IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT, 1)?;
        set_int(socket, IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1)?;
    }
    set_int(socket, IPPROTO_IP, libc::IP_PKTINFO, 1)?;
    set_int(socket, IPPROTO_IP, libc::IP_RECVTTL, 1)?;
    set_int(socket, IPPROTO_IP, libc::IP_RECVTOS, 1)
}

/// Asks for the local port of what is received; on a dual-stack socket for both families. It differs from the
/// socket's own where a program steers datagrams of other ports to it.
///
/// # Errors
/// As setsockopt(2).
pub fn set_recv_original_port(socket: BorrowedFd<'_>, dual_stack_v6: bool) -> io::Result<()> {
    if dual_stack_v6 {
        set_int(socket, IPPROTO_IPV6, libc::IPV6_RECVORIGDSTADDR, 1)?;
    }
    set_int(socket, IPPROTO_IP, libc::IP_RECVORIGDSTADDR, 1)
}

/// Has the kernel choose this source port when the socket connects, if the port is one that it chooses from; otherwise any of
/// those, as ever (IP_LOCAL_PORT_RANGE of Linux 6.3, for both families).
///
/// # Errors
/// As setsockopt(2).
pub fn set_local_port(socket: BorrowedFd<'_>, port: u16) -> io::Result<()> {
    let port = u32::from(port);
    set(socket, IPPROTO_IP, IP_LOCAL_PORT_RANGE, &[port << 16 | port])
}

/// Sets the TTL or hop limit of what is sent.
///
/// # Errors
/// As setsockopt(2); zero is refused by the kernel.
pub fn set_ttl(socket: BorrowedFd<'_>, family: IpAddr, ttl: u8) -> io::Result<()> {
    match family {
        IpAddr::V4(_) => set_int(socket, IPPROTO_IP, libc::IP_TTL, c_int::from(ttl)),
        IpAddr::V6(_) => set_int(socket, IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, c_int::from(ttl)),
    }
}

/// Sets the type of service or traffic class of what is sent, DSCP and ECN. For a stream the kernel keeps the two bits of ECN to itself.
///
/// # Errors
/// As setsockopt(2).
pub fn set_class(socket: BorrowedFd<'_>, family: IpAddr, class: u8) -> io::Result<()> {
    match family {
        IpAddr::V4(_) => set_int(socket, IPPROTO_IP, libc::IP_TOS, c_int::from(class)),
        IpAddr::V6(_) => set_int(socket, IPPROTO_IPV6, libc::IPV6_TCLASS, c_int::from(class)),
    }
}
