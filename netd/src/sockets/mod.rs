//! The pod's sockets, made as the translators need them, and netd's own in the file system ([`unix`]).

mod ip_fields;
mod silence;
pub mod unix;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

pub(crate) use ip_fields::{IpFields, set_ip_fields};
pub(crate) use silence::{answer, is_filler, stop_answering};

use crate::sys;

/// Connections that wait to be accepted, per listener; the kernel caps it by net.core.somaxconn.
const BACKLOG: i32 = 1024;
/// Bytes that may wait in a UDP listener, in the kernel's accounting.
const LISTENER_BUFFER: usize = 4 << 20;

/// Most probes of a silent peer (the kernel's MAX_TCP_KEEPCNT).
const MAX_PROBES: u32 = 127;
/// Longest time between probes that are not answered: Linux's own, in seconds.
const MAX_PROBE_INTERVAL_SECONDS: u64 = 75;

/// A group of global scope which has no members (RFC 6676 2.2), so that the source address is a global one, too.
const GROUP: Ipv6Addr = Ipv6Addr::new(0xff0e, 0, 0, 0, 0, 0, 0xdb8, 1);

/// The interface whose sockets these are, where they are not the whole pod's.
static INTERFACE: OnceLock<String> = OnceLock::new();

/// From now on every socket is of `interface` alone: what comes in by others is not for it, and what it sends goes out
/// there, whatever the routes say. A process has one netd, and sockets are made in many places: hence for the whole
/// process, once, before there is a worker.
///
/// # Errors
/// The kernel does not let this process: without CAP_NET_RAW it takes Linux 5.7.
pub fn bind_to(interface: &str) -> io::Result<()> {
    let trial = Socket::new(Domain::IPV4, Type::DGRAM.cloexec(), None)?;
    trial.bind_device(Some(interface.as_bytes()))?;
    // The first one stays: it is named once.
    let _ = INTERFACE.set(interface.to_owned());
    Ok(())
}

/// A socket of the pod, or of the one interface. It is not bound and not connected yet.
pub(crate) fn socket(domain: Domain, kind: Type, protocol: Protocol) -> io::Result<Socket> {
    let s = Socket::new(domain, kind.nonblocking().cloexec(), Some(protocol))?;
    if let Some(interface) = INTERFACE.get() {
        s.bind_device(Some(interface.as_bytes()))?;
    }
    Ok(s)
}

/// Which families have SO_PEEK_OFF.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeekOffset {
    v4: bool,
    v6: bool,
}

impl PeekOffset {
    /// No family has it, as with Linux before 6.9.
    pub(crate) const NONE: PeekOffset = PeekOffset { v4: false, v6: false };

    /// Tries it on a socket of each family: IPv6 got it later than IPv4.
    pub(crate) fn probe() -> Self {
        let has = |domain| {
            Socket::new(domain, Type::STREAM, None)
                .is_ok_and(|s| sys::enable_peek_offset(s.as_fd(), 0).is_ok())
        };
        let probed = PeekOffset { v4: has(Domain::IPV4), v6: has(Domain::IPV6) };
        if !probed.v4 || !probed.v6 {
            tracing::warn!(
                ipv4 = probed.v4,
                ipv6 = probed.v6,
                "no SO_PEEK_OFF for TCP: received data in flight is copied once more"
            );
        }
        probed
    }

    /// Whether the kernel keeps the offset for a socket that is made for this address.
    pub(crate) fn of(self, address: IpAddr) -> bool {
        if address.is_ipv4() { self.v4 } else { self.v6 }
    }

    /// The same for a socket that is there. What a dual-stack listener accepts is a socket of IPv6, whatever the peer's address.
    pub(crate) fn of_socket(self, s: &Socket) -> bool {
        if self.v4 == self.v6 { self.v4 } else { s.domain().is_ok_and(|d| self.of_domain(d)) }
    }

    fn of_domain(self, domain: Domain) -> bool {
        if domain == Domain::IPV4 { self.v4 } else { self.v6 }
    }
}

/// The port that a connection comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SourcePort {
    /// Whatever the kernel chooses.
    Any,
    /// The guest's port within the range of the kernel's choice; the kernel may use the port for other peers as well.
    Chosen(u16),
    /// The guest's port, to which the socket is bound.
    Bound(u16),
}

/// A TCP socket that is connecting, or has failed to. The port is another one where `from` is not to be had.
pub(crate) fn connect(
    to: SocketAddr,
    from: SourcePort,
    fields: IpFields,
    peek: PeekOffset,
) -> io::Result<Socket> {
    match connect_from(to, from, fields, peek) {
        Err(error) if from != SourcePort::Any && is_taken(&error) => {
            tracing::debug!(?from, %to, %error, "source port not preserved");
            connect_from(to, SourcePort::Any, fields, peek)
        }
        connecting => connecting,
    }
}

/// Whether a port, or the connection from it to the peer, is another socket's, or none of this process's.
fn is_taken(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EADDRINUSE | libc::EADDRNOTAVAIL | libc::EACCES))
}

fn connect_from(to: SocketAddr, from: SourcePort, fields: IpFields, peek: PeekOffset) -> io::Result<Socket> {
    let s = socket(Domain::for_address(to), Type::STREAM, Protocol::TCP)?;
    stream_options(&s, peek)?;
    set_ip_fields(&s, to.ip(), fields, None)?;
    match from {
        SourcePort::Any => {}
        SourcePort::Chosen(port) => {
            // Before Linux 6.3 the kernel chooses.
            if let Err(error) = sys::set_local_port(s.as_fd(), port) {
                tracing::debug!(port, %error, "IP_LOCAL_PORT_RANGE");
            }
        }
        SourcePort::Bound(port) => {
            // The guest's other connections have the port, too, and a listener of netd's may come to it.
            s.set_reuse_address(true)?;
            if to.is_ipv6() {
                s.set_only_v6(true)?;
            }
            s.bind(&SocketAddr::new(unspecified(to.ip()), port).into())?;
        }
    }
    match s.connect(&to.into()) {
        Ok(()) => Ok(s),
        Err(e) if e.raw_os_error() == Some(libc::EINPROGRESS) => Ok(s),
        Err(e) => Err(e),
    }
}

/// Options of connected and accepted sockets alike. An accepted socket has them from a listener that has them.
pub(crate) fn stream_options(s: &Socket, peek: PeekOffset) -> io::Result<()> {
    plain_stream_options(s)?;
    reset_on_close(s)?;
    if peek.of_socket(s) {
        sys::enable_peek_offset(s.as_fd(), 0)?;
    }
    Ok(())
}

/// The same but for the peek offset, and for what close() says.
pub(crate) fn plain_stream_options(s: &Socket) -> io::Result<()> {
    in_line(s)?;
    // The guest's own Nagle has decided already.
    s.set_tcp_nodelay(true)?;
    // At the pod's own pace, until the guest shows another ([`set_keepalive_interval`]).
    s.set_keepalive(true)
}

/// Has the kernel probe a silent peer each so many seconds, and at once if it has been silent for as long. The guest decides when
/// it has had enough, so the kernel goes on for as long as it can.
///
/// # Errors
/// As setsockopt(2).
pub(crate) fn set_keepalive_interval(s: &Socket, seconds: u32) -> io::Result<()> {
    let interval = Duration::from_secs(u64::from(seconds).clamp(1, MAX_PROBE_INTERVAL_SECONDS));
    let idle = Duration::from_secs(seconds.max(1).into());
    let timing = TcpKeepalive::new().with_time(idle).with_interval(interval).with_retries(MAX_PROBES);
    s.set_tcp_keepalive(&timing)
}

/// Leaves urgent data where it stands in the stream. The kernel takes the last byte of it out otherwise: the guest would
/// miss a byte, and what it acknowledges would not be what the socket has.
///
/// # Errors
/// As setsockopt(2).
pub(crate) fn in_line(s: &Socket) -> io::Result<()> {
    s.set_out_of_band_inline(true)
}

/// Sets a listener so that what it accepts needs no system call of its own; false where that cannot be.
pub(crate) fn bequeath_options(listener: &Socket, peek: PeekOffset) -> bool {
    stream_options(listener, peek).is_ok()
}

/// Has close() send a RST, also that of the kernel when netd ends: a FIN would say that the guest has sent all that it had to.
/// A socket that another process has as well, or that is in repair mode, says nothing.
///
/// # Errors
/// As setsockopt(2).
pub(crate) fn reset_on_close(s: &Socket) -> io::Result<()> {
    s.set_linger(Some(Duration::ZERO))
}

/// The same where it may be set already, and an error changes nothing.
pub(crate) fn abort_on_close(s: &Socket) {
    if let Err(error) = reset_on_close(s) {
        tracing::debug!(%error, "SO_LINGER");
    }
}

/// Has close() leave the rest to the kernel, which sends what is queued and the FIN behind it: the guest has sent all that it had to.
pub(crate) fn finish_on_close(s: &Socket) {
    if let Err(error) = s.set_linger(None) {
        tracing::debug!(%error, "SO_LINGER");
    }
}

/// A listener on every address of the pod, both families if the pod has IPv6. One that is `silent` answers no SYN.
pub(crate) fn listen_tcp(port: u16, peek: PeekOffset, silent: bool) -> io::Result<Socket> {
    let s = bind_any(Type::STREAM, Protocol::TCP, port)?;
    // Before a peer can connect. Where it fails each accepted socket gets its options by itself.
    bequeath_options(&s, peek);
    if !silent {
        listen(&s)?;
    } else if let Err(error) = stop_answering(&s) {
        // The port is worth more than its silence.
        tracing::debug!(port, %error, "the listener cannot be silent");
        listen(&s)?;
    }
    Ok(s)
}

/// Lets peers connect.
pub(crate) fn listen(s: &Socket) -> io::Result<()> {
    s.listen(BACKLOG)
}

/// A datagram socket on every address of the pod that tells where each datagram was sent.
pub(crate) fn listen_udp(port: u16) -> io::Result<Socket> {
    let s = bind_any(Type::DGRAM, Protocol::UDP, port)?;
    let dual = s.domain()? == Domain::IPV6;
    sys::set_recv_original(s.as_fd(), dual)?;
    sys::set_recv_errors(s.as_fd(), dual)?;
    // Every flow of the port is in this one queue; the kernel cuts it to net.core.rmem_max.
    if let Err(error) = s.set_recv_buffer_size(LISTENER_BUFFER) {
        tracing::debug!(port, %error, "SO_RCVBUF");
    }
    coalesce(&s);
    Ok(s)
}

/// The two sockets to which every port of the pod can be steered.
#[derive(Debug)]
pub struct SteeredSockets {
    /// Listening, if TCP ports are steered.
    pub tcp: Option<Socket>,
    /// Bound, if UDP ports are steered.
    pub udp: Option<Socket>,
}

impl SteeredSockets {
    /// Opens them; their own ports are the kernel's choice.
    ///
    /// # Errors
    /// As socket(2), bind(2), listen(2).
    pub fn open(tcp: bool, udp: bool) -> io::Result<Self> {
        let udp = udp.then(|| listen_udp(0)).transpose()?;
        if let Some(s) = &udp {
            sys::set_recv_original_port(s.as_fd(), s.domain()? == Domain::IPV6)?;
        }
        Ok(SteeredSockets { tcp: tcp.then(|| listen_tcp(0, PeekOffset::probe(), false)).transpose()?, udp })
    }

    /// Further descriptors of the same sockets.
    ///
    /// # Errors
    /// As dup(2).
    pub fn try_clone(&self) -> io::Result<Self> {
        let clone = |s: &Option<Socket>| s.as_ref().map(Socket::try_clone).transpose();
        Ok(SteeredSockets { tcp: clone(&self.tcp)?, udp: clone(&self.udp)? })
    }
}

fn bind_any(kind: Type, protocol: Protocol, port: u16) -> io::Result<Socket> {
    match bind(kind, protocol, SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port)) {
        // A pod without IPv6.
        Err(e) if matches!(e.raw_os_error(), Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL)) => {
            bind(kind, protocol, SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port))
        }
        other => other,
    }
}

fn bind(kind: Type, protocol: Protocol, to: SocketAddr) -> io::Result<Socket> {
    let s = socket(Domain::for_address(to), kind, protocol)?;
    if to.is_ipv6() {
        s.set_only_v6(false)?;
    }
    s.set_reuse_address(true)?;
    s.bind(&to.into())?;
    Ok(s)
}

/// Asks for runs of datagrams in one piece, where the kernel has that.
fn coalesce(s: &Socket) {
    if let Err(error) = sys::set_udp_gro(s.as_fd()) {
        tracing::debug!(%error, "UDP_GRO");
    }
}

/// Any address of the family.
fn unspecified(like: IpAddr) -> IpAddr {
    match like {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// A UDP socket connected to `peer`, bound to `local` if that can be had and to any port if not.
pub(crate) fn udp_flow(local: Option<IpAddr>, port: u16, peer: SocketAddr) -> io::Result<Socket> {
    let any = unspecified(peer.ip());
    let s = socket(Domain::for_address(peer), Type::DGRAM, Protocol::UDP)?;
    s.set_reuse_address(true)?;
    if let Err(error) = s.bind(&SocketAddr::new(local.unwrap_or(any), port).into()) {
        tracing::debug!(port, %error, "source port not preserved");
    }
    sys::set_recv_error(s.as_fd(), peer.ip())?;
    sys::set_recv_ttl(s.as_fd(), peer.ip())?;
    coalesce(&s);
    s.connect(&peer.into())?;
    Ok(s)
}

/// An address of the family of `any` to which every socket has a way, and from which nothing comes.
fn quiet_peer(any: IpAddr) -> IpAddr {
    match any {
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        // An interface of IPv6 leads to ::1 only by a default route, and to groups by itself.
        IpAddr::V6(_) if INTERFACE.get().is_some() => GROUP.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    }
}

/// A UDP socket of a port for datagrams to many peers, of the family of `any`. One that does not `hear` is
/// connected: what others send to the port is not for it.
pub(crate) fn udp_outlet(any: IpAddr, port: u16, hears: bool) -> io::Result<Socket> {
    if !hears {
        return udp_flow(None, port, SocketAddr::new(quiet_peer(any), port));
    }
    let s = udp_open(any, port)?;
    if let Err(error) = s.set_recv_buffer_size(LISTENER_BUFFER) {
        tracing::debug!(port, %error, "SO_RCVBUF");
    }
    Ok(s)
}

/// A UDP socket of the family of `any` that hears every peer, bound to `port` if that can be had and to any port if not.
pub(crate) fn udp_open(any: IpAddr, port: u16) -> io::Result<Socket> {
    let to = SocketAddr::new(any, port);
    let s = socket(Domain::for_address(to), Type::DGRAM, Protocol::UDP)?;
    if any.is_ipv6() {
        s.set_only_v6(true)?;
    }
    s.set_reuse_address(true)?;
    if let Err(error) = s.bind(&to.into()) {
        tracing::debug!(port, %error, "source port not preserved");
        s.bind(&SocketAddr::new(any, 0).into())?;
    }
    sys::set_recv_original(s.as_fd(), any.is_ipv6())?;
    sys::set_recv_errors(s.as_fd(), any.is_ipv6())?;
    coalesce(&s);
    Ok(s)
}

/// A ping socket with the identifier `id` if it can be had.
pub(crate) fn ping(family: IpAddr, id: u16) -> io::Result<Socket> {
    let (domain, protocol, any) = match family {
        IpAddr::V4(_) => (Domain::IPV4, Protocol::ICMPV4, Ipv4Addr::UNSPECIFIED.into()),
        IpAddr::V6(_) => (Domain::IPV6, Protocol::ICMPV6, Ipv6Addr::UNSPECIFIED.into()),
    };
    let s = socket(domain, Type::DGRAM, protocol)?;
    if let Err(error) = s.bind(&SocketAddr::new(any, id).into()) {
        tracing::debug!(id, %error, "echo identifier not preserved");
    }
    sys::set_recv_error(s.as_fd(), family)?;
    sys::set_recv_ttl(s.as_fd(), family)?;
    Ok(s)
}

/// Takes a connection from a listener.
pub(crate) fn accept(listener: &Socket) -> io::Result<(Socket, SocketAddr)> {
    let (s, from) = listener.accept4(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC)?;
    let from = from.as_socket().ok_or(io::ErrorKind::InvalidData)?;
    Ok((s, SocketAddr::new(from.ip().to_canonical(), from.port())))
}

/// The error a socket has pending.
pub(crate) fn take_error(s: &Socket) -> Option<io::Error> {
    SockRef::from(s).take_error().ok().flatten()
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpStream;

    use super::*;
    use crate::pod::testns::{add_address, add_interface, in_netns};

    #[test]
    fn an_interface_without_a_way_out_has_outlets_with_its_own_address() {
        in_netns(|handle| async move {
            let index = add_interface(&handle, "net1", [2, 0, 0, 0, 0, 1], 1500).await;
            for address in ["10.9.0.2/24", "fd00:9::2/64"] {
                add_address(&handle, index, address).await;
            }
            bind_to("net1").unwrap();
            for (any, own) in [("0.0.0.0", "10.9.0.2"), ("::", "fd00:9::2")] {
                let deaf = udp_outlet(any.parse().unwrap(), 5353, false).unwrap();
                let at = deaf.local_addr().unwrap().as_socket().unwrap();
                assert_eq!((at.ip().to_string(), at.port()), (own.to_owned(), 5353));
                udp_outlet(any.parse().unwrap(), 5353, true).unwrap();
            }
        });
    }

    #[test]
    fn where_ipv4_alone_has_peek_offsets_what_a_dual_stack_listener_accepts_has_none() {
        let peek = PeekOffset { v4: true, v6: false };
        let listener = listen_tcp(0, peek, false).unwrap();
        assert_eq!(listener.domain().unwrap(), Domain::IPV6);
        let at = listener.local_addr().unwrap().as_socket().unwrap();
        let _peer = TcpStream::connect((Ipv4Addr::LOCALHOST, at.port())).unwrap();
        let (s, from) = accept(&listener).unwrap();
        assert!(from.is_ipv4());
        // As for one whose listener could not bequeath it.
        stream_options(&s, peek).unwrap();
        assert!(!peek.of_socket(&s));
        assert_eq!(sys::repair::peek_offset(s.as_fd()).unwrap(), -1);
        let to = SocketAddr::new(from.ip(), at.port());
        let own = connect(to, SourcePort::Any, IpFields { ttl: 64, dscp: 0 }, peek).unwrap();
        assert!(peek.of_socket(&own));
        assert_eq!(sys::repair::peek_offset(own.as_fd()).unwrap(), 0);
    }

    #[test]
    fn what_is_urgent_before_a_listener_is_served_stays_in_line() {
        let steered = SteeredSockets::open(true, false).unwrap().tcp.unwrap();
        for listener in [listen_tcp(0, PeekOffset::NONE, false).unwrap(), steered] {
            let at = listener.local_addr().unwrap().as_socket().unwrap();
            let peer = TcpStream::connect((Ipv4Addr::LOCALHOST, at.port())).unwrap();
            // A second mark takes the byte of the first one out of the queue, unless that is left in line.
            for byte in [b"a", b"b"] {
                SockRef::from(&peer).send_out_of_band(byte).unwrap();
            }
            let (mut s, _) = accept(&listener).unwrap();
            plain_stream_options(&s).unwrap();
            s.set_nonblocking(false).unwrap();
            s.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            let mut got = [0; 2];
            s.read_exact(&mut got).unwrap();
            assert_eq!(&got, b"ab");
        }
    }
}
