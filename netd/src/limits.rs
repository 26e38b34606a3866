//! What one guest may use, and how long it may keep it unused.

use std::time::Duration;

/// Queue pairs that netd can offer: more than a guest of usual size has processors to serve.
pub const MAX_QUEUE_PAIRS: usize = 8;

/// How many TCP ports `ports.ask_guest` is for: each on which the guest does not listen is a frame to the guest and one
/// back, each second and in each family.
pub const MAX_ASKED: usize = 256;

/// Captures at once: each costs the worker a look at every frame, and its buffer.
pub const MAX_CAPTURES: usize = 4;
/// The most KiB that may wait for one capture.
pub const MAX_CAPTURE_KIB: u32 = 65_536;

/// Bounds of what one guest can use of its pod and node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Flows at the same time. Each costs a descriptor and, for TCP, the kernel's socket buffers.
    pub flows: u32,
    /// New flows a second over time. The node's connection tracking table is what this protects.
    pub new_flows_per_second: u32,
    /// New flows at once, before the rate applies.
    pub new_flows_burst: u32,
    /// Bytes held for datagrams that are not whole yet.
    pub fragment_bytes: usize,
    /// Datagrams that are not whole yet.
    pub fragment_datagrams: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            flows: 16_384,
            new_flows_per_second: 4096,
            new_flows_burst: 8192,
            fragment_bytes: 4 << 20,
            fragment_datagrams: 256,
        }
    }
}

/// When a flow that carries nothing ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// A UDP flow without an answer so far, or with no more than an answer.
    pub udp_unreplied: Duration,
    /// A UDP flow by which both sides have sent for more than two seconds.
    pub udp_replied: Duration,
    /// A question to DNS or NTP that was answered.
    pub udp_exchange: Duration,
    /// An ICMP echo flow.
    pub echo: Duration,
    /// A TCP connection that is being opened; the kernel's six SYN retries take 127 s.
    pub tcp_handshake: Duration,
    /// A closed TCP connection's TIME-WAIT (RFC 9293, section 3.6.1).
    pub tcp_time_wait: Duration,
    /// A silent TCP connection, before keepalives ask the guest (RFC 9293, section 3.8.4 wants at least 2 h).
    pub tcp_idle: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Timeouts {
            udp_unreplied: Duration::from_secs(30),
            udp_replied: Duration::from_secs(120),
            udp_exchange: Duration::from_secs(5),
            echo: Duration::from_secs(60),
            tcp_handshake: Duration::from_secs(130),
            tcp_time_wait: Duration::from_secs(60),
            tcp_idle: Duration::from_secs(7200),
        }
    }
}
