//! How netd lends its two sockets to a helper that can steer every port of the pod to them.
//!
//! netd listens on a UNIX socket of the kind SOCK_SEQPACKET; the steering side, which may load BPF programs,
//! connects. One message is one datagram of JSON with descriptors beside it:
//!
//! ```text
//! netd                                     steering side
//!   | <────────────── connects ───────────── |
//!   | ── Offer {tcp, udp, held, closed} ───> |   descriptors: the sockets that are offered, TCP before UDP;
//!   |                                        |   when `held` also link, socket map, closed-ports map
//!   | <── Answer {attached: true} ────────── |   descriptors when it attached anew: link, socket map,
//!   |                                        |   closed-ports map
//!   | <── Answer {attached: false} ───────── |   it has detached, or could not attach: `error`
//! ```
//!
//! The connection stays for as long as both live. netd keeps the descriptors it is given, so the steering goes on
//! when the other side ends; one that comes later gets them back with the offer. When netd ends, its sockets leave
//! the map by themselves and the steering side closes the link.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{RecvAncillaryBuffer, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::descriptors::receive;

/// The version of these messages.
pub const VERSION: u32 = 1;
/// Largest message, bytes.
const MAX_BYTES: usize = 65_536;
/// Most descriptors in one message: two sockets, a link, two maps.
const MAX_FDS: usize = 5;

/// What netd lends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// [`VERSION`].
    pub version: u32,
    /// Whether a listening TCP socket is among the descriptors.
    pub tcp: bool,
    /// Whether a UDP socket is among the descriptors.
    pub udp: bool,
    /// Whether netd holds a link already; link, socket map and closed-ports map are the last descriptors then.
    pub held: bool,
    /// Ports that are never to be steered.
    pub closed: Ranges,
    /// Ports on which netd itself listens until it is steered to: a helper that attaches does not take them for others'.
    #[serde(default)]
    pub own: Ranges,
}

/// Ranges of ports, both ends included.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ranges {
    /// TCP.
    pub tcp: Vec<(u16, u16)>,
    /// UDP.
    pub udp: Vec<(u16, u16)>,
}

/// What became of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// Whether the ports are steered now.
    pub attached: bool,
    /// Why not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// What went wrong on the connection.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The socket.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The peer does not follow the protocol.
    #[error("the peer's message is not understood: {0}")]
    Message(String),
}

/// Sends a message with its descriptors.
///
/// # Errors
/// As sendmsg(2); a message that is too large.
pub fn send<T: Serialize>(socket: BorrowedFd<'_>, message: &T, fds: &[BorrowedFd<'_>]) -> Result<(), Error> {
    let bytes = serde_json::to_vec(message).map_err(|e| Error::Message(e.to_string()))?;
    if bytes.len() > MAX_BYTES {
        return Err(Error::Message(format!("{} bytes; at most {MAX_BYTES} are allowed", bytes.len())));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Error::Message(format!("{} descriptors; at most {MAX_FDS} are allowed", fds.len())));
    }
    loop {
        match rustix::net::sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL) {
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(Error::Io(e.into())),
        }
    }
}

/// Receives a message with its descriptors; `None` when the peer has closed.
///
/// # Errors
/// As recvmsg(2), `WouldBlock` on a socket that does not block; a message that is not one.
pub fn recv<T: DeserializeOwned>(socket: BorrowedFd<'_>) -> Result<Option<(T, Vec<OwnedFd>)>, Error> {
    let mut bytes = vec![0; MAX_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = loop {
        match receive(socket, &mut bytes, &mut control) {
            Ok(got) => break got,
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(Error::Io(e.into())),
        }
    };
    if got.bytes == 0 {
        return Ok(None);
    }
    if !got.whole {
        return Err(Error::Message("it is larger than a message can be, or descriptors ran out".into()));
    }
    let message = serde_json::from_slice(&bytes[..got.bytes]).map_err(|e| Error::Message(e.to_string()))?;
    Ok(Some((message, got.fds)))
}

/// The descriptors of an [`Offer`] by their roles.
#[derive(Debug)]
pub struct Lent {
    /// Listening TCP socket.
    pub tcp: Option<OwnedFd>,
    /// UDP socket.
    pub udp: Option<OwnedFd>,
    /// What netd holds already.
    pub held: Option<Held>,
}

/// What keeps the steering alive.
#[derive(Debug)]
pub struct Held {
    /// The BPF link.
    pub link: OwnedFd,
    /// The map from protocol to socket.
    pub sockets: OwnedFd,
    /// The map of ports that are not steered.
    pub closed: OwnedFd,
}

impl Held {
    /// From the descriptors of an [`Answer`]; none when their number is wrong.
    pub fn from_fds(fds: Vec<OwnedFd>) -> Option<Held> {
        let [link, sockets, closed] = <[OwnedFd; 3]>::try_from(fds).ok()?;
        Some(Held { link, sockets, closed })
    }

    /// As they are sent.
    pub fn as_fds(&self) -> [BorrowedFd<'_>; 3] {
        [self.link.as_fd(), self.sockets.as_fd(), self.closed.as_fd()]
    }
}

impl Offer {
    /// Gives the descriptors their roles.
    ///
    /// # Errors
    /// When their number is not what the offer says, or its version is another.
    pub fn roles(&self, fds: Vec<OwnedFd>) -> Result<Lent, Error> {
        if self.version != VERSION {
            return Err(Error::Message(format!("version {}; {VERSION} is known", self.version)));
        }
        let count = usize::from(self.tcp) + usize::from(self.udp) + if self.held { 3 } else { 0 };
        if fds.len() != count {
            return Err(Error::Message(format!("{} descriptors; {count} are announced", fds.len())));
        }
        let mut fds = fds.into_iter();
        let tcp = if self.tcp { fds.next() } else { None };
        let udp = if self.udp { fds.next() } else { None };
        let held = if self.held { Held::from_fds(fds.collect()) } else { None };
        Ok(Lent { tcp, udp, held })
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
    }

    #[test]
    fn an_offer_arrives_with_its_descriptors_in_their_roles() {
        let (a, b) = pair();
        let closed = Ranges { tcp: vec![(15000, 15001)], udp: vec![] };
        let offer =
            Offer { version: VERSION, tcp: true, udp: false, held: true, closed, own: Ranges::default() };
        send(a.as_fd(), &offer, &[a.as_fd(), b.as_fd(), a.as_fd(), b.as_fd()]).unwrap();
        let (got, fds) = recv::<Offer>(b.as_fd()).unwrap().unwrap();
        assert_eq!(got, offer);
        let lent = got.roles(fds).unwrap();
        assert!(lent.tcp.is_some() && lent.udp.is_none() && lent.held.is_some());
        // The peer's end is closed once no process has it, and it was among the descriptors.
        drop((a, lent));
        assert!(recv::<Offer>(b.as_fd()).unwrap().is_none());
    }

    #[test]
    fn what_is_no_message_is_refused() {
        let (a, b) = pair();
        rustix::io::write(&a, b"{\"attached\":").unwrap();
        assert!(matches!(recv::<Answer>(b.as_fd()), Err(Error::Message(_))));
        let offer = Offer { version: VERSION, tcp: true, udp: true, ..Offer::default() };
        assert!(offer.roles(Vec::new()).is_err());
        assert!(Offer { version: 9, ..Offer::default() }.roles(Vec::new()).is_err());
    }
}
