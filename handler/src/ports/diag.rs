//! Which ports of a network namespace have sockets of their own, by sock_diag(7).

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::thread;

use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_sock_diag::SockDiagMessage;
use netlink_packet_sock_diag::constants::{AF_INET, AF_INET6, IPPROTO_TCP, IPPROTO_UDP};
use netlink_packet_sock_diag::inet::{ExtensionFlags, InetRequest, SocketId, StateFlags};
use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use netlink_sys::{Socket, SocketAddr};
use nix::sched::{CloneFlags, setns};

use super::closed::Listening;

/// A socket that asks one network namespace.
pub(super) struct Diag {
    socket: Socket,
    /// The interface that matters; none: all.
    interface: Option<i32>,
}

impl Diag {
    /// Opens it in the namespace; the calling thread stays where it is. With an `interface`, sockets that are bound to
    /// another one are passed over: nothing that is meant for them comes by it.
    ///
    /// # Errors
    /// Without CAP_SYS_ADMIN in the namespace's and the own user namespace.
    pub(super) fn open(netns: &OwnedFd, interface: Option<i32>) -> io::Result<Diag> {
        // A thread of its own enters the namespace and ends; the socket belongs to the namespace for ever.
        let enter = || {
            setns(netns.as_fd(), CloneFlags::CLONE_NEWNET)?;
            let socket = Socket::new(NETLINK_SOCK_DIAG)?;
            socket.connect(&SocketAddr::new(0, 0))?;
            Ok(Diag { socket, interface })
        };
        thread::scope(|s| s.spawn(enter).join())
            .map_err(|_| io::Error::other("the thread ended by a panic"))?
    }

    /// What listens now.
    ///
    /// # Errors
    /// As the kernel answers.
    pub(super) fn listening(&self) -> io::Result<Listening> {
        let mut found = Listening::default();
        for family in [AF_INET, AF_INET6] {
            self.dump(family, IPPROTO_TCP, StateFlags::LISTEN, &mut found.tcp)?;
            // A UDP socket that is not connected is in the state CLOSE.
            self.dump(family, IPPROTO_UDP, StateFlags::CLOSE, &mut found.udp)?;
        }
        for ports in [&mut found.tcp, &mut found.udp] {
            ports.sort_unstable();
            ports.dedup();
        }
        Ok(found)
    }

    fn dump(&self, family: u8, protocol: u8, states: StateFlags, ports: &mut Vec<u16>) -> io::Result<()> {
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | NLM_F_DUMP;
        let socket_id = if family == AF_INET { SocketId::new_v4() } else { SocketId::new_v6() };
        let extensions = ExtensionFlags::empty();
        let request = InetRequest { family, protocol, extensions, states, socket_id };
        let mut message = NetlinkMessage::new(header, SockDiagMessage::InetRequest(request).into());
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        loop {
            let (bytes, _) = self.socket.recv_from_full()?;
            let mut rest = bytes.as_slice();
            while !rest.is_empty() {
                let answer =
                    NetlinkMessage::<SockDiagMessage>::deserialize(rest).map_err(io::Error::other)?;
                match answer.payload {
                    NetlinkPayload::InnerMessage(SockDiagMessage::InetResponse(r)) => {
                        let bound = r.header.socket_id.interface_id.cast_signed();
                        if bound == 0 || self.interface.is_none_or(|own| own == bound) {
                            ports.push(r.header.socket_id.source_port);
                        }
                    }
                    NetlinkPayload::Done(_) => return Ok(()),
                    NetlinkPayload::Error(e) if e.code.is_some() => return Err(e.to_io()),
                    _ => {}
                }
                // Messages are aligned to four bytes (netlink(7)).
                let length = (answer.header.length as usize).next_multiple_of(4).max(4);
                rest = rest.get(length..).unwrap_or_default();
            }
        }
    }
}
