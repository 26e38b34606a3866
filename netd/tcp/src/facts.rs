//! What a connection tells of itself, for people.

use std::time::Duration;

use super::conn::{Conn, State};
use netd_base::time::Time;

/// A connection's numbers at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Smoothed round trip to the guest (RFC 6298); none before the first sample.
    pub rtt: Option<Duration>,
    /// Bytes that the guest was sent and has not acknowledged.
    pub in_flight: u32,
    /// Bytes that the guest is ready to receive.
    pub send_window: u32,
    /// Bytes that the guest may send, as it was told.
    pub receive_window: u32,
}

impl State {
    /// Every state, in the order of their numbers.
    pub const ALL: [State; 11] = [
        State::Connecting,
        State::SynReceived,
        State::SynSent,
        State::Established,
        State::FinWait1,
        State::FinWait2,
        State::CloseWait,
        State::Closing,
        State::LastAck,
        State::TimeWait,
        State::Closed,
    ];
}

impl Conn {
    /// How long it has been opening; zero for one that is open.
    pub fn opening_for(&self, now: Time) -> Duration {
        self.expires.map_or(Duration::ZERO, |end| (now + self.config.handshake).since(end))
    }

    /// The numbers of this moment.
    pub fn facts(&self) -> Facts {
        Facts {
            rtt: self.rtt.smoothed(),
            in_flight: self.snd_max.since(self.snd_una),
            send_window: self.snd_wnd,
            receive_window: self.edge.since(self.rcv_nxt),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_stand_at_their_numbers() {
        for (i, state) in State::ALL.iter().enumerate() {
            assert_eq!(*state as usize, i);
        }
        let mut names: Vec<_> = State::ALL.iter().map(|s| s.name()).collect();
        names.dedup();
        assert_eq!(names.len(), State::ALL.len());
    }

    #[test]
    fn a_connection_knows_how_long_it_has_been_opening() {
        let start = Time::from_millis(500);
        let conn = Conn::open_by_pod(super::super::Config::default(), 1, start);
        assert_eq!(conn.opening_for(start), Duration::ZERO);
        assert_eq!(conn.opening_for(start + Duration::from_millis(42)), Duration::from_millis(42));
    }
}
