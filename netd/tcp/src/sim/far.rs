//! Uploads to a peer whose round trip is 20 ms: how often the socket's state is read, and what that costs the guest.

use std::time::Duration;

use super::cases::world;
use super::driver::Driver;
use super::guest::{Habits, Reference};
use super::link::{Faults, Link};
use super::pod;
use super::{Close, Plan, Rng};
use crate::Config;
use netd_base::time::Time;

const ROUND_TRIP: Duration = Duration::from_millis(20);
/// For a run that hangs.
const LIMIT: Duration = Duration::from_secs(600);

/// What an upload took.
#[derive(Debug)]
struct Upload {
    seconds: f64,
    state_reads: u32,
}

/// The guest writes `up` bytes, `write` of them at once and so often; the socket and the peer have so large buffers.
fn upload(up: u64, write: (u64, Duration), send_buffer: u64, peer_buffer: u64) -> Upload {
    let mut rng = Rng(1);
    let plan = Plan {
        up,
        down: 0,
        guest_closes: Close::AfterSending,
        peer_closes: Close::AfterEnd,
        guest_resets_at: None,
        peer_resets_at: None,
    };
    let habits = Habits {
        opens: true,
        isn: 7,
        mss: Some(1460),
        scale: Some(7),
        buffer: 400_000,
        reassembles: true,
        ack_delay: Duration::ZERO,
        odd: false,
        read: (1_000_000, Duration::from_micros(10)),
        write,
        stall: None,
        shrinks: false,
        tells_all: false,
        probes_by_byte: false,
        acks_from_next: false,
        eager_fin: false,
        new_reno: true,
    };
    let mut w = world(Reference::new(habits, plan, rng.fork()), plan, true, false, rng.fork());
    w.pod.habits = pod::Habits {
        send_buffer,
        overhead: 110,
        receive_buffer: 1_000_000,
        peer_buffer,
        round_trip: ROUND_TRIP,
        read: (10_000_000, Duration::from_micros(10)),
        write: (1, Duration::from_micros(1)),
        stall: None,
        near: false,
    };
    w.driver = Driver::new(Config::default(), 1, false, 0, rng.fork());
    let link = Faults { latency: Duration::from_micros(50), ..Faults::default() };
    (w.to_guest, w.to_netd) = (Link::new(link, rng.fork()), Link::new(link, rng.fork()));
    w.run(LIMIT);
    assert_eq!((w.pod.acked, w.guest.timeouts, w.driver.refusals), (up, 0, 0), "{}", w.describe());
    Upload { seconds: w.now.since(Time::ZERO).as_secs_f64(), state_reads: w.driver.state_reads }
}

/// As much at once as the window allows.
const BULK: (u64, Duration) = (10_000_000, Duration::from_micros(1));

#[test]
fn a_connection_that_sends_now_and_then_is_looked_at_about_once_each_time() {
    let bursts = 100;
    let u = upload(u64::from(bursts) * 12_500, (12_500, Duration::from_millis(100)), 300_000, 300_000);
    // Read with each batch and from then on by growing intervals, it were 600.
    assert!(u.state_reads <= 2 * bursts, "{u:?}");
}

#[test]
fn a_stream_with_window_to_spare_is_looked_at_four_times_in_a_round_trip() {
    // 5 MB/s, for which the window has room twice.
    let u = upload(10_000_000, (5_000, Duration::from_millis(1)), 4_000_000, 200_000);
    let round_trips = u.seconds / ROUND_TRIP.as_secs_f64();
    assert!(f64::from(u.state_reads) <= 4.1 * round_trips, "{u:?}");
    assert!(u.seconds < 2.07, "it was held up: {u:?}");
}

#[test]
fn an_upload_is_as_fast_as_the_window_allows() {
    // The window is the peer's, then the socket's own buffer, then one that the guest's rate just fills.
    for (up, write, send_buffer, peer_buffer, window) in [
        (3_000_000, BULK, 4_000_000, 65_535, 65_535.0),
        (3_000_000, BULK, 100_000, 4_000_000, 100_000.0 / 1.1 * 7.0 / 8.0),
        (30_000_000, BULK, 4_000_000, 1_000_000, 1_000_000.0),
        (5_000_000, (5_000, Duration::from_millis(1)), 4_000_000, 110_000, 5e6 * 0.020),
    ] {
        let u = upload(up, write, send_buffer, peer_buffer);
        let least = up as f64 / window * ROUND_TRIP.as_secs_f64();
        println!("{up} bytes, {window} at once: {u:?}, {least} s at least");
        assert!(u.seconds < 1.2 * least + 0.1, "{up} bytes, {window} at once: {u:?}, {least} s at least");
    }
}
