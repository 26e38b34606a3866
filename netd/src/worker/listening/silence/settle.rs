//! The pass over the listeners: filters come and go.

use crate::port::Proto;
use crate::sockets;
use crate::worker::listening::Listeners;
use crate::worker::turn::Worker;

/// Listeners whose filter is set in one turn: some 20 µs each to put it on, half of that to take it off.
const SET_PER_TURN: usize = 64;
/// Places that one turn looks at: most listeners may be in line already.
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
            set += usize::from(self.listening.listeners.set_silent(at, silent));
        }
        true
    }

    /// Another process has put filters on listeners, or has taken them off.
    pub(in crate::worker) fn renew_silence(&mut self) {
        self.listening.listeners.forget_filters();
        self.listening.silence.renew();
    }
}

impl Listeners {
    /// Has the TCP listener at a place be silent, or answer; true if that took a system call.
    pub(in crate::worker::listening) fn set_silent(&mut self, at: usize, silent: bool) -> bool {
        let entry = self.entries.get_mut(at).and_then(Option::as_mut);
        let Some(entry) = entry.filter(|e| e.rule.proto == Proto::Tcp) else { return false };
        let Some(listener) = entry.socket.as_mut().filter(|l| l.silent != Some(silent)) else { return false };
        let set = if silent { sockets::drop_syns } else { sockets::answer_syns };
        let set = set(&listener.socket);
        listener.silent = set.is_ok().then_some(silent);
        if let Err(error) = set {
            tracing::debug!(port = entry.rule.pod, silent, %error, "the listener's filter");
        }
        true
    }

    /// What filters the listeners have is not known any more.
    fn forget_filters(&mut self) {
        let listeners = self.entries.iter_mut().flatten().filter_map(|e| e.socket.as_mut());
        listeners.for_each(|l| l.silent = None);
    }
}
