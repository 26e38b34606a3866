//! The guest is asked on which listed ports it listens: frames and sockets of [`super::inquiry`].

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use super::inquiry::{Change, Question};
use crate::flow::{Key, Kind};
use crate::net::Link;
use crate::tcp::{Segment, Seq};
use crate::wire::{TcpFlags, TcpMeta};
use crate::worker::command::Command;
use crate::worker::turn::Worker;

/// The port that questions come from. No client has it: port 1 is reserved, and below the ports that clients take.
const ASKING_PORT: u16 = 1;

/// netd's own addresses on the link.
fn own(link: &Link) -> impl Iterator<Item = IpAddr> {
    let v4 = link.v4.as_ref().map(|l| IpAddr::V4(l.gateway));
    v4.into_iter().chain(link.v6.as_ref().map(|l| IpAddr::V6(l.gateway)))
}

impl Worker {
    /// The listed TCP ports have changed.
    pub(in crate::worker) fn list_asked(&mut self) {
        if !self.listening.asks {
            return;
        }
        self.listening
            .inquiry
            .set_ports(self.listening.listeners.listed_tcp().map(|e| e.rule.guest), self.now);
        // A further port of the pod may lead to one that is shut, and one that is not asked about any more is open.
        let (shut, before) =
            (self.listening.inquiry.shut().collect::<BTreeSet<u16>>(), self.shut_listeners());
        before.difference(&shut).for_each(|port| self.apply(Change::Open(*port)));
        shut.into_iter().for_each(|port| self.apply(Change::Shut(port)));
    }

    /// The guest's ports whose listeners do not listen.
    fn shut_listeners(&self) -> BTreeSet<u16> {
        self.listening.listeners.listed_tcp().filter(|e| e.shut).map(|e| e.rule.guest).collect()
    }

    /// A predecessor's listeners have been taken over: those that do not listen either wait for the guest's answer or
    /// listen again.
    pub(in crate::worker) fn list_inherited(&mut self) {
        let shut = self.shut_listeners();
        if !self.listening.asks {
            return shut.into_iter().for_each(|port| self.apply(Change::Open(port)));
        }
        self.listening
            .inquiry
            .set_ports(self.listening.listeners.listed_tcp().map(|e| e.rule.guest), self.now);
        shut.into_iter().for_each(|port| self.listening.inquiry.assume_shut(port, self.now));
        self.list_asked();
    }

    /// Looks at the ports whose time has come.
    pub(in crate::worker) fn ask_guest(&mut self) {
        let link = self.receiveq.link.clone();
        let key = |own: IpAddr, port: u16| {
            let guest = link.guest_address(own)?;
            let (guest, peer) = (SocketAddr::new(guest, port), SocketAddr::new(own, ASKING_PORT));
            Some(Key { kind: Kind::Tcp, guest, peer })
        };
        let (shared, now) = (&self.peers.shared, self.now);
        let sequence = |port| {
            let key = own(&link).find_map(|own| key(own, port));
            key.map_or(0, |key| shared.initial_sequence(&key, now))
        };
        let turn = self.listening.inquiry.poll(self.now, sequence);
        turn.changes.into_iter().for_each(|change| self.apply(change));
        for Question { port, seq } in turn.questions {
            for key in own(&link).filter_map(|own| key(own, port)) {
                self.send_question(&key, seq, link.mtu);
            }
        }
    }

    fn send_question(&mut self, key: &Key, seq: u32, mtu: u16) {
        // A guest that has not shown its Ethernet address yet is silent.
        let Some(ends) = self.receiveq.ends(key, None).filter(|_| self.flows.find(key).is_none()) else {
            return;
        };
        let headers = if key.guest.is_ipv4() { 40 } else { 60 };
        let meta = TcpMeta {
            src_port: ends.src_port,
            dst_port: ends.dst_port,
            seq,
            ack: 0,
            flags: TcpFlags::SYN,
            window: u16::MAX,
            mss: Some(mtu.saturating_sub(headers)),
            window_scale: None,
            payload_len: 0,
            gso_size: None,
        };
        self.write_headers(&ends.at, &meta);
    }

    /// Whether a segment of no connection is an answer to a question; then it has been taken note of.
    pub(in crate::worker) fn is_answer(&mut self, key: &Key, segment: &Segment) -> bool {
        let Seq(ack) = segment.ack;
        let listens = segment.flags.has(TcpFlags::SYN);
        let answers = segment.flags.has(TcpFlags::ACK) && (listens || segment.flags.has(TcpFlags::RST));
        let asked = self.listening.asks && key.peer.port() == ASKING_PORT;
        if !asked || !answers || !own(&self.receiveq.link).any(|own| own == key.peer.ip()) {
            return false;
        }
        let port = key.guest.port();
        match self.peers.index {
            0 => self.on_answer(port, ack, listens),
            // The listeners are worker 0's.
            _ => self.peers.send(0, Command::Answer { port, ack, listens }),
        }
        true
    }

    /// An answer of the guest's about its port.
    pub(in crate::worker) fn on_answer(&mut self, port: u16, ack: u32, listens: bool) {
        let change = self.listening.inquiry.on_answer(port, ack, listens, self.now);
        change.into_iter().for_each(|change| self.apply(change));
    }

    /// The guest has refused a connection to its port.
    #[cold]
    pub(in crate::worker) fn on_client_refused(&mut self, port: u16) {
        match self.peers.index {
            _ if !self.listening.asks => {}
            0 => self.listening.inquiry.on_refusal(port, self.now),
            _ => self.peers.send(0, Command::ClientRefused(port)),
        }
    }

    /// The guest has gone: the next one may listen on other ports.
    pub(in crate::worker) fn forget_answers(&mut self) {
        let changes = self.listening.inquiry.forget(self.now);
        changes.into_iter().for_each(|change| self.apply(change));
    }

    fn apply(&mut self, change: Change) {
        match change {
            Change::Open(port) => {
                tracing::debug!(port, "the guest listens");
                for at in self.listening.listeners.leading_to(port) {
                    // The next answer has it tried again.
                    if !self.listening.listeners.listen_again(at, self.peek) {
                        self.listening.inquiry.assume_shut(port, self.now);
                    }
                }
            }
            Change::Shut(port) => {
                tracing::debug!(port, "the guest does not listen");
                // What the kernel has accepted already is the guest's to refuse.
                for at in self.listening.listeners.leading_to(port) {
                    self.accept_all(at);
                    self.listening.listeners.shut(at);
                }
            }
        }
    }
}
