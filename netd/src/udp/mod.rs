//! UDP flows: when they end and what their sockets are set to.
//!
//! # Theory of operation
//!
//! Each pair of guest end and peer is one flow. One that the guest begins has a connected socket of its own, so that
//! the kernel sorts what comes back and ICMP errors find their flow. One that a peer begins shares the socket of the
//! port it came to: netd sorts by the sender's address, replies name the address that the request came to, and ICMP
//! errors name the destination. So a server in the guest may have any number of peers without a descriptor for each,
//! and its datagrams to and from all of them go in the same system calls (a socket for each would also have to be
//! bound to the one port, and the kernel looks through all that have it for each further one). How long a flow without
//! traffic lives, and which one makes room for others, is a matter of its [`Life`].
//!
//! The guest's TTL, its traffic class (DSCP and ECN, RFC 2474 and RFC 3168) and its wish not to be fragmented become options of the
//! socket, set when they change, so that traceroute and path MTU discovery inside the guest see the real path, and marks are those of the
//! guest. What comes for the guest keeps its TTL and its class.

mod life;
mod segment;

pub use life::{Life, Used};
pub use segment::{Item, MAX_SEGMENTS, Run, first_run};

use std::time::Duration;

use crate::limits::Timeouts;
use crate::time::Time;
use crate::wire::Ip;

/// How the next datagram of the guest is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendOptions {
    /// TTL or hop limit.
    pub ttl: u8,
    /// Never fragment: the guest does path MTU discovery itself.
    pub dont_fragment: bool,
    /// Type of service or traffic class, ECN included.
    pub class: u8,
}

impl SendOptions {
    /// As the guest has sent a packet.
    pub fn of(ip: &Ip) -> SendOptions {
        // RFC 1122 3.2.1.7: a TTL of zero is never sent; what arrives with one is the guest's mistake.
        SendOptions { ttl: ip.ttl.max(1), dont_fragment: ip.dont_fragment, class: ip.class }
    }
}

/// What moves of the life of a UDP or echo flow.
#[derive(Clone, Debug)]
pub struct Session {
    from_guest: bool,
    from_pod: bool,
    used: Time,
    unreplied: Duration,
    replied: Duration,
}

crate::codec::fields!(Session { from_guest, from_pod, used, unreplied, replied });

impl Session {
    /// A new UDP flow.
    pub fn udp(timeouts: &Timeouts, now: Time) -> Self {
        Session {
            from_guest: false,
            from_pod: false,
            used: now,
            unreplied: timeouts.udp_unreplied,
            replied: timeouts.udp_replied,
        }
    }

    /// A new echo flow, which has one timeout.
    pub fn echo(timeouts: &Timeouts, now: Time) -> Self {
        Session {
            from_guest: false,
            from_pod: false,
            used: now,
            unreplied: timeouts.echo,
            replied: timeouts.echo,
        }
    }

    /// The guest sent something.
    pub fn on_guest(&mut self, now: Time) {
        self.from_guest = true;
        self.used = now;
    }

    /// The peer sent something.
    pub fn on_pod(&mut self, now: Time) {
        self.from_pod = true;
        self.used = now;
    }

    /// Whether both sides have sent.
    pub fn is_replied(&self) -> bool {
        self.from_guest && self.from_pod
    }

    /// When the flow ends unless it is used again.
    pub fn expires(&self) -> Time {
        self.used + if self.is_replied() { self.replied } else { self.unreplied }
    }

    /// Time since the last use.
    pub fn idle(&self, now: Time) -> Duration {
        now.since(self.used)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replied_flow_lives_longer() {
        let timeouts = Timeouts::default();
        let mut s = Session::udp(&timeouts, Time::ZERO);
        s.on_guest(Time::from_millis(10));
        assert_eq!(s.expires(), Time::from_millis(10) + timeouts.udp_unreplied);
        s.on_pod(Time::from_millis(20));
        assert!(s.is_replied());
        assert_eq!(s.expires(), Time::from_millis(20) + timeouts.udp_replied);
    }
}
