//! A socket as another machine makes it anew.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use socket2::{SockRef, Type};

use crate::codec::{fields, variants};
use crate::config::ports::Reserved;
use crate::port::Proto;
use crate::repair::{Connection, Room};
use crate::sockets;
use crate::state::Endpoints;

/// What a socket is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A connection.
    Tcp,
    /// Datagrams with one peer.
    Udp,
    /// Echo requests.
    Ping,
}
variants!(Kind as "a socket's kind" { Tcp = 1, Udp = 2, Ping = 3 });

/// A socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Socket {
    kind: Kind,
    /// Its own address; of a ping socket the port is the identifier.
    local: SocketAddr,
    /// Its peer, where it has one.
    peer: Option<SocketAddr>,
    /// The pod accepted the connection.
    accepted: bool,
    /// A connection's inside.
    connection: Option<Connection>,
}
fields!(Socket { kind, local, peer, accepted, connection });

/// What became of a description.
pub(super) enum Made {
    /// A socket; none where it cannot be made.
    Ready(Option<OwnedFd>),
    /// A connection, which wants a helper.
    Connection {
        /// Its own end and its peer.
        ends: Endpoints,
        /// The pod accepted it.
        accepted: bool,
        /// Its inside.
        connection: Connection,
    },
}

impl Socket {
    /// Describes the socket of a datagram flow; none where it does not say what it is.
    pub(super) fn of_datagrams(fd: &OwnedFd) -> Option<Socket> {
        let s = SockRef::from(fd);
        if s.r#type().ok()? != Type::DGRAM {
            return None;
        }
        let udp = s.protocol().ok()? == Some(socket2::Protocol::UDP);
        let local = plain(s.local_addr().ok()?.as_socket()?);
        let peer = if udp { Some(ends(&s)?.1) } else { None };
        let kind = if udp { Kind::Udp } else { Kind::Ping };
        Some(Socket { kind, local, peer, accepted: false, connection: None })
    }

    /// A datagram socket: UDP or ping.
    #[cfg(test)]
    pub(super) fn sample(udp: bool, local: SocketAddr, peer: Option<SocketAddr>) -> Socket {
        let kind = if udp { Kind::Udp } else { Kind::Ping };
        Socket { kind, local, peer, accepted: false, connection: None }
    }

    /// Describes the socket of a connection.
    pub(super) fn of_connection((local, peer): Endpoints, accepted: bool, connection: Connection) -> Socket {
        Socket { kind: Kind::Tcp, local, peer: Some(peer), accepted, connection: Some(connection) }
    }

    /// The room of a connection's queues, for another one.
    pub(super) fn into_room(self) -> Room {
        self.connection.map(Connection::into_room).unwrap_or_default()
    }

    /// What it is for, and its peer: what a flow that names it is judged by.
    pub(super) fn purpose(&self) -> (Kind, Option<SocketAddr>) {
        (self.kind, self.peer)
    }

    /// Makes it, where that takes no helper; none where that cannot be, as with an address that this machine does not
    /// have. A port that is reserved here is another program's: the kernel chooses one in its place.
    pub(super) fn make(self, reserved: &Reserved) -> Made {
        let Socket { kind, local, peer, accepted, connection } = self;
        let peer = peer.filter(|peer| peer.is_ipv4() == local.is_ipv4());
        let made = match (kind, peer, connection) {
            (Kind::Tcp, Some(peer), Some(connection)) => {
                return Made::Connection { ends: (local, peer), accepted, connection };
            }
            (Kind::Udp, Some(peer), _) => {
                let port = if reserved.contains(Proto::Udp, local.port()) { 0 } else { local.port() };
                sockets::udp_flow(Some(local.ip()), port, peer)
            }
            (Kind::Ping, _, _) => sockets::ping(local.ip(), local.port()),
            _ => return Made::Ready(None),
        };
        Made::Ready(match made {
            Ok(s) => Some(s.into()),
            Err(error) => {
                tracing::debug!(?kind, %local, %error, "socket not made anew");
                None
            }
        })
    }
}

/// A socket's own end and its peer.
pub(super) fn ends(s: &SockRef<'_>) -> Option<Endpoints> {
    Some((plain(s.local_addr().ok()?.as_socket()?), plain(s.peer_addr().ok()?.as_socket()?)))
}

/// Without what IPv6 adds to an address, and IPv4 as such.
fn plain(at: SocketAddr) -> SocketAddr {
    let ip: IpAddr = at.ip().to_canonical();
    SocketAddr::new(ip, at.port())
}
