//! Connections whose sockets are being repaired.
//!
//! A socket in repair mode answers every call with an error, and it is the node's helper that ends the mode
//! ([`crate::repair`]), in its own time. The guest does not wait for that: the other flows go on at once, and a connection
//! is *parked* meanwhile. Nothing is done to its socket, and what the guest sends is lost as on a wire; it sends that
//! again. Once the helper is done the connection is watched again, and epoll tells of what is there already.

use std::collections::HashSet;
use std::os::fd::AsFd;

use nix::errno::Errno;

use super::flows::Flow;
use super::turn::{Worker, watch, watch_again};
use crate::flow::{FlowId, Key, Kind};
use crate::state;

impl Worker {
    /// Parks these connections, as far as they are this worker's.
    pub(super) fn park(&mut self, connections: &HashSet<state::Endpoints>) {
        let among = |key: &Key| key.kind == Kind::Tcp && connections.contains(&(key.guest, key.peer));
        let ids: Vec<FlowId> =
            self.flows.iter().filter(|(_, key, _)| among(key)).map(|(id, ..)| id).collect();
        for id in ids {
            if let Some(Flow::Tcp(f)) = self.flows.get_mut(id) {
                f.park();
            }
        }
    }

    /// Goes on with these connections, as far as they are this worker's; those whose repair failed end for the guest.
    pub(super) fn unpark(&mut self, connections: &[(state::Endpoints, bool)]) {
        for ((guest, peer), repaired) in connections {
            let key = Key { kind: Kind::Tcp, guest: *guest, peer: *peer };
            let Some(id) = self.flows.find(&key) else { continue };
            let Some(Flow::Tcp(f)) = self.flows.get_mut(id).filter(|f| f.is_parked()) else { continue };
            f.unpark();
            let watched = match f.socket.as_ref().filter(|_| *repaired).map(AsFd::as_fd) {
                None => false,
                Some(socket) => match watch(&self.epoll, socket, id) {
                    // It was watched before: at the machine that the guest did not leave.
                    Err(error) if error.raw_os_error() == Some(Errno::EEXIST as i32) => {
                        watch_again(&self.epoll, socket, id);
                        true
                    }
                    watched => watched.is_ok(),
                },
            };
            if !watched {
                // Closed in repair mode it says nothing to the peer, which will hear when it sends something.
                f.socket = None;
                f.conn.on_pod_error();
            }
            self.settle_stream(id);
            self.make_ready(id);
        }
    }
}
