//! Tunables of the TCP translator.

use std::time::Duration;

/// Constants of one netd's TCP connections; each carries its reason.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Largest segment that fits the link, in payload bytes: MTU minus IP and TCP headers.
    pub mss: u16,
    /// Peers with a smaller round trip are acknowledged as soon as the socket has queued the data. Within a
    /// node or a rack the peer has it before the guest could tell the difference.
    pub ack_queued_rtt: Duration,
    /// How long a connection is left in TIME-WAIT (2 MSL; 60 s as Linux does).
    pub time_wait: Duration,
    /// Silence of the guest after which it is probed (RFC 9293 3.8.4: two hours or more).
    pub keepalive: Duration,
    /// Handshake with the guest or with the peer gives up after this time.
    pub handshake: Duration,
    /// Most bytes unacknowledged by the guest, whatever window it offers: what stays peeked in the socket.
    pub in_flight: u32,
}

/// [`Config::in_flight`] where the kernel keeps the peek offset, so that what is in flight costs nothing but memory.
pub const IN_FLIGHT: u32 = 8 << 20;
/// The same where it does not, and each read copies all that is in flight before it comes to what is new: as much as the
/// largest read brings, which then copies each byte twice. The guest is on this machine, some 100 us away, so a connection
/// still carries 2.5 GB/s.
pub const IN_FLIGHT_COPIED: u32 = 256 << 10;

impl Default for Config {
    fn default() -> Self {
        Config {
            mss: 1460,
            ack_queued_rtt: Duration::from_millis(1),
            time_wait: Duration::from_secs(60),
            keepalive: Duration::from_secs(7200),
            handshake: Duration::from_secs(130),
            in_flight: IN_FLIGHT,
        }
    }
}

/// Shift of the windows netd advertises: 256 bytes a step, 16 MiB at most.
pub(super) const WINDOW_SCALE: u8 = 8;
/// RFC 6298 2.4 asks for 1 s, and allows less where the clock is fine: Linux's 200 ms.
pub(super) const MIN_RTO: Duration = Duration::from_millis(200);
/// RFC 6298 2.1.
pub(super) const INITIAL_RTO: Duration = Duration::from_secs(1);
/// RFC 6298 2.5: a bound of at least 60 s.
pub(super) const MAX_RTO: Duration = Duration::from_secs(60);
/// Retransmissions of one segment before the guest is given up (about 100 s with the bounds above).
pub(super) const MAX_RETRIES: u8 = 9;
/// SYNs to the guest before it is given up: 1+2+4+8+16+32 s.
pub(super) const MAX_SYN_RETRIES: u8 = 6;
/// Keepalive probes 75 s apart before a silent guest is given up (RFC 9293 3.8.4 sets no number; Linux's).
pub(super) const KEEPALIVE_PROBES: u8 = 9;
/// Silence of a guest that has closed, after which it is asked whether it still reads: as long as Linux and others remember a
/// socket that its program has left (tcp_fin_timeout).
pub(super) const ORPHAN_SILENCE: Duration = Duration::from_secs(60);
/// Time between keepalive probes.
pub(super) const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(75);
/// MSS to assume when the guest's SYN names none (RFC 9293 3.7.1): 536 for IPv4; IPv6's 1220 is larger.
pub(super) const DEFAULT_MSS: u16 = 536;
/// First and longest interval at which the peer's acknowledgement is polled while the guest's data waits.
pub(super) const POLL_MIN: Duration = Duration::from_millis(1);
/// See [`POLL_MIN`].
pub(super) const POLL_MAX: Duration = Duration::from_millis(32);
/// The same after [`PROMPT_READS`] reads that found nothing. The kernel's own probes of such a peer back off to two minutes, and
/// the guest's retransmissions to as much as well.
pub(super) const STALLED_POLL_MAX: Duration = Duration::from_secs(2);
/// Reads in vain until the interval grows beyond [`POLL_MAX`]: about a second of a peer that rests.
pub(super) const PROMPT_READS: u8 = 36;
/// Most bytes that one ACK of a bulk transfer covers: about one large frame.
pub(super) const STRETCH: u32 = 64 << 10;
/// Longest time that an acknowledgement is held back (RFC 9293 3.8.6.3 allows 500 ms): the epoll timeout's grain.
pub(super) const ACK_DELAY: Duration = Duration::from_millis(1);
