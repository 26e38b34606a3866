//! Counters of the datapath: one writer each, read by any thread.
//!
//! Every frame, segment or datagram that netd does not carry is counted under one [`Reason`]; the name of the
//! variant in snake case is the `reason` label of `netd_dropped_total`. Values are monotonic and in the unit
//! their name says.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Declares the drop reasons together with their labels and help texts.
macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $name:ident = $label:literal,)+) => {
        /// Why something was dropped, refused or reset.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Reason { $($(#[doc = $doc])+ $name,)+ }

        impl Reason {
            /// Every reason, in the order of their numbers.
            pub const ALL: &'static [Reason] = &[$(Reason::$name,)+];

            /// The `reason` label.
            pub fn label(self) -> &'static str {
                match self { $(Reason::$name => $label,)+ }
            }

            /// What it means.
            pub fn help(self) -> &'static str {
                match self { $(Reason::$name => concat!($($doc,)+).trim_ascii(),)+ }
            }
        }
    };
}

reasons! {
    /// A frame that cannot be parsed, or is shorter than its headers say.
    Malformed = "malformed",
    /// A wrong IPv4, TCP, UDP or ICMP checksum.
    Checksum = "checksum",
    /// An EtherType or IP protocol that netd does not carry.
    UnknownProtocol = "unknown_protocol",
    /// A frame whose source is not the guest's address.
    Spoofed = "spoofed",
    /// A frame to an Ethernet address that is neither netd's nor a group's.
    Misdirected = "misdirected",
    /// A destination that policy forbids: pod loopback, multicast, the pod itself.
    Denied = "denied",
    /// A destination that the egress policy closes: a cloud's metadata service, or what a rule denies.
    EgressDenied = "egress_denied",
    /// The flow table is full.
    FlowLimit = "flow_limit",
    /// More new flows a second than the configuration allows.
    FlowRate = "flow_rate",
    /// A socket could not be made: descriptors, ports or memory ran out.
    SocketLimit = "socket_limit",
    /// A guest-visible tuple that another flow already has.
    TupleCollision = "tuple_collision",
    /// A TCP segment that belongs to no connection.
    NoConnection = "no_connection",
    /// A TCP segment outside the window or in an impossible state.
    TcpUnacceptable = "tcp_unacceptable",
    /// TCP payload that the pod's socket had no room for: the guest sends it again.
    TcpNoRoom = "tcp_no_room",
    /// TCP payload that came out of order: the guest sends it again.
    TcpOutOfOrder = "tcp_out_of_order",
    /// A UDP datagram that the pod's socket did not take.
    UdpSend = "udp_send",
    /// A datagram for the guest that is larger than it can receive, or a frame of the guest longer than any packet.
    TooLarge = "too_large",
    /// No receive buffer in the ring, for traffic that cannot wait in a socket.
    NoRxBuffer = "no_rx_buffer",
    /// The guest's address is not known yet.
    NoGuest = "no_guest",
    /// A fragment beyond the reassembly limits, or of a datagram that never became whole.
    Fragment = "fragment",
    /// A descriptor chain that is not as the virtio specification wants it.
    BadChain = "bad_chain",
    /// A frame or datagram for another queue pair's worker, for which too much waits already.
    PairBacklog = "pair_backlog",
    /// A frame in a transmit ring that the driver has taken out of use.
    RingDisabled = "ring_disabled",
    /// A connection reset when the guest migrated: its peer is in the pod itself, as a mesh's proxy is.
    MigrationLocal = "migration_local",
    /// A connection reset when the guest migrated: no helper was there to repair it.
    MigrationHelper = "migration_helper",
    /// A connection reset when the guest migrated: it could not be frozen or taken apart.
    MigrationState = "migration_state",
    /// A connection reset when the guest migrated: its address is not at the target, or it could not be put together there.
    MigrationTarget = "migration_target",
    /// A connection that the node's helper did not let go of after a migration.
    MigrationRelease = "migration_release",
}

impl From<netd_wire::ParseError> for Reason {
    fn from(error: netd_wire::ParseError) -> Reason {
        match error {
            netd_wire::ParseError::Malformed => Reason::Malformed,
            netd_wire::ParseError::Checksum => Reason::Checksum,
        }
    }
}

impl From<netd_tcp::Refusal> for Reason {
    fn from(refusal: netd_tcp::Refusal) -> Reason {
        match refusal {
            netd_tcp::Refusal::NoConnection => Reason::NoConnection,
            netd_tcp::Refusal::Unacceptable => Reason::TcpUnacceptable,
            netd_tcp::Refusal::OutOfOrder => Reason::TcpOutOfOrder,
            netd_tcp::Refusal::NoRoom => Reason::TcpNoRoom,
        }
    }
}

/// Declares the plain counters: field, name if it is another, help. The unit of bytes stands last in a name.
macro_rules! totals {
    ($($field:ident $(as $name:literal)?: $help:literal,)+) => {
        /// All counters of one worker, or (see [`Counters::sum`]) of one netd.
        #[derive(Debug)]
        pub struct Counters {
            $(#[doc = $help] pub $field: Counter,)+
            /// How long the pod's network took to accept connections of the guest.
            pub tcp_connect: Histogram,
            dropped: Vec<Counter>,
        }

        impl Default for Counters {
            fn default() -> Self {
                Counters {
                    $($field: Counter::default(),)+
                    tcp_connect: Histogram::default(),
                    dropped: Reason::ALL.iter().map(|_| Counter::default()).collect(),
                }
            }
        }

        impl Counters {
            /// Every plain counter with its name and its help, the one place that says which name is whose.
            fn plain(&self) -> Vec<(&'static str, &'static str, &Counter)> {
                vec![$((name!($field $($name)?), $help, &self.$field),)+]
            }

            /// The sums over several workers, as they are now.
            pub fn sum<'a>(parts: impl IntoIterator<Item = &'a Counters>) -> Counters {
                let sum = Counters::default();
                for part in parts {
                    $(sum.$field.add(part.$field.get());)+
                    sum.tcp_connect.add(&part.tcp_connect);
                    for (to, from) in sum.dropped.iter().zip(&part.dropped) {
                        to.add(from.get());
                    }
                }
                sum
            }
        }
    };
}

macro_rules! name {
    ($field:ident $name:literal) => {
        $name
    };
    ($field:ident) => {
        stringify!($field)
    };
}

totals! {
    guest_tx_frames: "Frames received from the guest.",
    guest_tx_bytes: "Bytes received from the guest, Ethernet header included.",
    guest_rx_frames: "Frames given to the guest; one of up to 64 KiB counts once.",
    guest_rx_bytes: "Bytes given to the guest, Ethernet header included.",
    guest_kicks: "Wake-ups by the guest.",
    guest_interrupts: "Interrupts sent to the guest.",
    guest_rx_empty: "Times the receive ring had no buffer for waiting data.",
    tcp_opened_by_guest: "TCP connections opened by the guest.",
    tcp_opened_by_pod: "TCP connections accepted by the pod and opened towards the guest.",
    tcp_refused: "TCP connections that the pod's network refused or could not reach.",
    tcp_resets: "TCP connections that ended by a reset of either side, after the guest had opened or answered them.",
    tcp_retransmits: "TCP segments sent to the guest again.",
    tcp_bytes_to_pod as "tcp_to_pod_bytes": "TCP payload bytes carried from the guest.",
    tcp_bytes_to_guest as "tcp_to_guest_bytes": "TCP payload bytes carried to the guest.",
    tcp_openings_evicted: "TCP connections dropped while they were being opened, to make room for a new flow.",
    udp_flows: "UDP flows opened.",
    datagram_flows_evicted: "UDP and echo flows ended before their time to make room for a new flow.",
    udp_datagrams_to_pod: "UDP datagrams carried from the guest.",
    udp_bytes_to_pod as "udp_to_pod_bytes": "UDP payload bytes carried from the guest.",
    udp_bytes_to_guest as "udp_to_guest_bytes": "UDP payload bytes carried to the guest.",
    udp_datagrams_to_guest: "UDP datagrams carried to the guest.",
    icmp_echo_flows: "Echo flows opened.",
    icmp_errors_to_guest: "ICMP errors reported to the guest.",
    ring_errors: "Times a ring was disabled because the driver broke it.",
    frontend_connections: "Connections of vhost-user frontends.",
    wakeups: "Turns of the worker's loop, without those of a spin that found nothing.",
    spins_found: "Times that a worker found something to do by looking for it instead of sleeping.",
    spins_in_vain: "Times that a worker looked for something to do for a while and slept after all.",
    pair_frames_passed: "Frames of the guest passed to another queue pair's worker, which has their flow.",
    pair_flows_moved: "Flows that moved from one queue pair's worker to that of another pair.",
    migrations_out: "Times that the guest's state was given away for a migration.",
    migrations_undone: "Times that the guest went on here after its state was given away.",
    migrations_in: "Times that a guest's state came by a migration.",
    migrations_failed: "Times that a guest's state could not be given away or taken.",
    migrated_connections_out: "TCP connections that left with the guest.",
    migrated_connections_in: "TCP connections that came with the guest and went on.",
    updates: "Times that another netd has taken over from the one before, with all of its connections.",
}

impl Counters {
    /// Every number that is counted, by the name that it moves under: the metric's, for drops with the label behind it,
    /// for times with the bucket.
    fn named(&self) -> Vec<(String, &Counter)> {
        let plain = self.plain().into_iter().map(|(name, _, counter)| (name.to_owned(), counter));
        let dropped = Reason::ALL.iter().zip(&self.dropped);
        let dropped = dropped.map(|(reason, counter)| (format!("dropped:{}", reason.label()), counter));
        let connect = self.tcp_connect.named().into_iter();
        let connect = connect.map(|(name, counter)| (format!("tcp_connect:{name}"), counter));
        plain.chain(dropped).chain(connect).collect()
    }

    /// Everything that is not zero, for [`Counters::restore`].
    pub fn counted(&self) -> Vec<(String, u64)> {
        let all = self.named().into_iter().map(|(name, counter)| (name, counter.get()));
        all.filter(|(_, value)| *value > 0).collect()
    }

    /// Goes on counting where another netd stopped; names that this netd does not know are left out.
    pub fn restore(&self, counted: &[(String, u64)]) {
        let named: HashMap<String, &Counter> = self.named().into_iter().collect();
        for (name, value) in counted {
            if let Some(counter) = named.get(name) {
                counter.add(*value);
            }
        }
    }

    /// Name (without the prefix `netd_` and the suffix `_total`), help and value of every plain counter.
    pub fn totals(&self) -> Vec<(&'static str, &'static str, u64)> {
        self.plain().into_iter().map(|(name, help, counter)| (name, help, counter.get())).collect()
    }

    /// Counts one dropped unit.
    pub fn count_drop(&self, reason: Reason) {
        self.drops(reason, 1);
    }

    /// Counts dropped units.
    pub fn drops(&self, reason: Reason, units: u64) {
        self.dropped[reason as usize].add(units);
    }

    /// How many units were dropped for `reason`.
    pub fn dropped(&self, reason: Reason) -> u64 {
        self.dropped[reason as usize].get()
    }
}

/// A monotonic number with one writing thread and any number of readers.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`. Only the owning thread may call it: it is a load and a store, not a locked addition.
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// The present value.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Upper bounds of a histogram's buckets in milliseconds: from a pod of the same node to a SYN that was sent again.
const BOUNDS_MS: [u64; 12] = [1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 5000, 30_000];

/// How often something took how long; one writer, as for a [`Counter`].
#[derive(Debug, Default)]
pub struct Histogram {
    /// By [`BOUNDS_MS`], the last one for what took longer.
    buckets: [Counter; BOUNDS_MS.len() + 1],
    sum_micros: Counter,
}

impl Histogram {
    /// Counts one that took `time`.
    pub fn observe(&self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let bucket = BOUNDS_MS.iter().position(|ms| micros <= ms * 1000).unwrap_or(BOUNDS_MS.len());
        self.buckets[bucket].add(1);
        self.sum_micros.add(micros);
    }

    /// Adds what another one has counted.
    pub fn add(&self, other: &Histogram) {
        for (to, from) in self.buckets.iter().zip(&other.buckets) {
            to.add(from.get());
        }
        self.sum_micros.add(other.sum_micros.get());
    }

    /// Its numbers by the name that they move under; a bucket's is its bound, so that a bucket whose bound has changed counts anew.
    fn named(&self) -> Vec<(String, &Counter)> {
        let bounds = BOUNDS_MS.iter().map(|ms| format!("{ms}ms")).chain(["longer".to_owned()]);
        bounds.zip(&self.buckets).chain([("sum".to_owned(), &self.sum_micros)]).collect()
    }

    /// Upper bounds in seconds, the last one infinite, and how many are in each bucket but not in those before.
    pub fn buckets(&self) -> Vec<(f64, u64)> {
        let bounds = BOUNDS_MS.iter().map(|ms| *ms as f64 / 1000.0).chain([f64::INFINITY]);
        bounds.zip(self.buckets.iter().map(Counter::get)).collect()
    }

    /// The sum of all times in seconds.
    pub fn sum(&self) -> f64 {
        self.sum_micros.get() as f64 / 1e6
    }
}

#[cfg(test)]
impl Counters {
    /// Counters of which each has another value, none of them zero.
    pub(crate) fn distinct() -> Counters {
        let counters = Counters::default();
        for (value, (_, counter)) in (1000..).zip(counters.named()) {
            counter.add(value);
        }
        counters
    }

    /// What every single one has counted.
    pub(crate) fn all(&self) -> Vec<u64> {
        self.named().into_iter().map(|(_, counter)| counter.get()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_counter_has_a_name_of_its_own_and_goes_on_under_it() {
        let old = Counters::distinct();
        // By the fields themselves: whatever the names say.
        let fields = |c: &Counters| {
            let histogram = c.tcp_connect.buckets().iter().map(|b| b.1).collect::<Vec<_>>();
            let dropped = Reason::ALL.iter().map(|r| c.dropped(*r)).collect::<Vec<_>>();
            (c.totals(), dropped, histogram, c.tcp_connect.sum().to_bits(), c.udp_bytes_to_guest.get())
        };
        let counted = old.counted();
        assert_eq!(counted.len(), old.totals().len() + Reason::ALL.len() + BOUNDS_MS.len() + 2);
        assert_eq!(counted.iter().map(|(name, _)| name).collect::<HashSet<_>>().len(), counted.len());
        let new = Counters::default();
        new.restore(&counted);
        assert_eq!(fields(&new), fields(&old));
        new.restore(&[("of a later version".into(), 1), ("dropped:".into(), 1)]);
        assert_eq!(fields(&new), fields(&old));
    }

    #[test]
    fn a_time_is_counted_in_the_first_bucket_that_holds_it() {
        let h = Histogram::default();
        for micros in [0, 1000, 1001, 30_000_000, 30_000_001] {
            h.observe(Duration::from_micros(micros));
        }
        let sum = Histogram::default();
        sum.add(&h);
        sum.add(&h);
        let buckets = sum.buckets();
        assert_eq!((buckets[0], buckets[1]), ((0.001, 4), (0.002, 2)));
        assert_eq!(buckets[11..], [(30.0, 2), (f64::INFINITY, 2)]);
        assert!((sum.sum() - 2.0 * 60.002_002).abs() < 1e-9);
    }
}
