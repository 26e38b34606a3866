//! The pass over the listeners: they fall silent, or answer.

use crate::port::Proto;
use crate::sockets;
use crate::worker::listening::{Entry, Listener};
use crate::worker::turn::Worker;

/// Listeners that are set in one turn: some 200 µs each to be silent, a few to answer.
const SET_PER_TURN: usize = 64;
/// Places in the table of listeners that the worker visits in one turn: most of these listeners may have the wanted state already.
const PLACES_PER_TURN: usize = 4096;

impl Worker {
    /// Sets listeners as the guest's state wants it, a bounded number; true when there are more.
    pub(in crate::worker) fn settle_silence(&mut self) -> bool {
        let Some(silent) = self.listening.silence.wanted() else { return false };
        let mut set = 0;
        for _ in 0..PLACES_PER_TURN {
            if set == SET_PER_TURN {
                break;
            }
            let places = self.listening.listeners.len();
            let Some(at) = self.listening.silence.step(places) else {
                tracing::debug!(silent, "the listeners are as the guest's state wants it");
                if silent {
                    // Ports that are shut listen again, and are silent as well.
                    self.forget_answers();
                }
                return false;
            };
            set += usize::from(self.set_silent(at, silent));
        }
        true
    }

    /// Has the TCP listener at a place be silent, or answer; true if that took system calls.
    pub(in crate::worker::listening) fn set_silent(&mut self, at: usize, silent: bool) -> bool {
        let differs = |l: &Listener| l.silent != Some(silent);
        let tcp = self.listening.listeners.at(at as u32).filter(|e| e.rule.proto == Proto::Tcp);
        let Some(port) = tcp.filter(|e| e.socket.as_ref().is_some_and(differs)).map(|e| e.rule.pod) else {
            return false;
        };
        if silent {
            // Clients that the kernel has answered wait for the guest itself.
            self.accept_all(at as u32);
        }
        let peek = self.peek;
        let entry = self.listening.listeners.entries.get_mut(at).and_then(Option::as_mut);
        let Some(Entry { socket: Some(listener), shut, .. }) = entry else { return true };
        if *shut && !silent {
            // It refuses until the guest has been asked.
            listener.silent = Some(false);
            return false;
        }
        if *shut {
            // The end of listening has taken the peek offset, which connections have from their listener.
            listener.bequeaths = sockets::bequeath_options(&listener.socket, peek);
        }
        let set = if silent {
            sockets::stop_answering(&listener.socket)
        } else {
            sockets::answer(&listener.socket)
        };
        listener.silent = set.is_ok().then_some(silent);
        // One that was shut listens now.
        *shut &= set.is_err();
        if let Err(error) = set {
            tracing::debug!(port, silent, %error, "the listener stays as it is");
        }
        if !silent {
            // What waits in the queue makes no new edge.
            self.on_listener(at as u32);
        }
        true
    }
}
