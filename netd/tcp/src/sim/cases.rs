//! The runs.

use std::time::Duration;

use super::driver::{Driver, READ};
use super::guest::{self, Guest, Reference};
use super::link::{Faults, Link};
use super::pod::{self, Pod};
use super::smol::{self, Smol};
use super::world::World;
use super::{Close, Plan, Rng};
use crate::{Config, IN_FLIGHT, IN_FLIGHT_COPIED};
use netd_base::time::Time;

fn micros(n: u64) -> Duration {
    Duration::from_micros(n)
}

fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Near the ends of the number space, or anywhere.
fn isn(rng: &mut Rng) -> u32 {
    match rng.next() % 4 {
        0 => 0u32.wrapping_sub(rng.range(0, 3_000) as u32),
        1 => (1u32 << 31).wrapping_sub(rng.range(0, 3_000) as u32),
        2 => rng.range(0, 10) as u32,
        _ => rng.next() as u32,
    }
}

fn config(rng: &mut Rng, plan: &Plan) -> Config {
    let large = plan.up.max(plan.down) > SMALL;
    Config {
        mss: if large { rng.pick(&[1220, 1460, 8960, 65_495]) } else { rng.pick(&[64, 536, 1460]) },
        time_wait: Duration::from_secs(60),
        ..Config::default()
    }
}

fn faults(rng: &mut Rng, lossy: bool) -> Faults {
    let latency = micros(rng.pick(&[0, 10, 500, 20_000]));
    if !lossy {
        return Faults { latency, ..Faults::default() };
    }
    Faults {
        loss: rng.pick(&[0, 1, 3, 8]),
        duplication: rng.pick(&[0, 2, 10]),
        reordering: rng.pick(&[0, 5, 30]),
        latency,
    }
}

/// Up to this many bytes may go in small segments: one case takes milliseconds.
const SMALL: u64 = 8_000;

fn plan(rng: &mut Rng, most: u64) -> Plan {
    let mut up = rng.pick(&[0, 1, 700, SMALL, SMALL, most]);
    let down = rng.pick(&[0, 1, 700, SMALL, SMALL, most]);
    let closes = [Close::AfterSending, Close::AfterEnd];
    let (guest_closes, mut peer_closes) = (rng.pick(&closes), rng.pick(&closes));
    if guest_closes == Close::AfterEnd && peer_closes == Close::AfterEnd {
        peer_closes = Close::AfterSending;
    }
    if up > 1 {
        up = rng.range(up / 2, up);
    }
    Plan { up, down, guest_closes, peer_closes, guest_resets_at: None, peer_resets_at: None }
}

fn pod_habits(rng: &mut Rng) -> pod::Habits {
    let near = rng.chance(50);
    pod::Habits {
        send_buffer: rng.pick(&[4_000, 16_384, 87_040, 2_000_000]),
        overhead: rng.pick(&[100, 110, 150, 250]),
        receive_buffer: rng.pick(&[3_000, 87_040, 1_000_000]),
        peer_buffer: rng.pick(&[1_000, 65_535, 1_000_000]),
        round_trip: if near { micros(rng.range(10, 900)) } else { micros(rng.range(1_000, 200_000)) },
        read: (rng.pick(&[1_000, 5_000, 1_000_000]), micros(rng.pick(&[10, 1_000, 3_000]))),
        write: (rng.pick(&[500, 3_000, 1_000_000]), micros(rng.pick(&[1, 100, 2_000]))),
        stall: rng.chance(20).then(|| (rng.range(0, 50_000), millis(rng.pick(&[50, 2_000, 400_000])))),
        near,
    }
}

fn guest_habits(rng: &mut Rng, plan: &Plan, opens: bool) -> guest::Habits {
    let large = plan.up.max(plan.down) > SMALL;
    let buffer: u64 = rng.pick(&[500, 8_000, 65_535, 400_000]);
    let scale: Option<u8> = rng.pick(&[None, None, Some(0), Some(2), Some(7), Some(14)]);
    guest::Habits {
        opens,
        isn: isn(rng),
        mss: if large {
            rng.pick(&[None, Some(1460), Some(65_495)])
        } else {
            rng.pick(&[None, Some(1), Some(1460)])
        },
        // A window of less than a step would never open.
        scale: scale.filter(|s| buffer >> s >= 4),
        buffer,
        reassembles: rng.chance(70),
        ack_delay: millis(rng.pick(&[0, 1, 40, 200])),
        odd: !large && rng.chance(30),
        read: (rng.pick(&[500, 3_000, 1_000_000]), micros(rng.pick(&[1, 200, 2_000]))),
        write: (rng.pick(&[500, 3_000, 1_000_000]), micros(rng.pick(&[1, 100]))),
        stall: rng.chance(20).then(|| (rng.range(0, 50_000), millis(rng.pick(&[50, 2_000, 400_000])))),
        shrinks: rng.chance(10),
        tells_all: rng.chance(20),
        probes_by_byte: rng.chance(50),
        acks_from_next: rng.chance(50),
        eager_fin: rng.chance(50),
        new_reno: false,
    }
}

pub(super) fn world<G: Guest>(guest: G, plan: Plan, opens: bool, lossy: bool, mut rng: Rng) -> World<G> {
    let mut pod = Pod::new(pod_habits(&mut rng), plan, micros(rng.range(0, 50_000)));
    if !opens {
        pod.connect(Time::ZERO);
    }
    let starving = rng.pick(&[0, 0, 0, 5]);
    World {
        guest,
        driver: Driver::new(config(&mut rng, &plan), isn(&mut rng), !opens, starving, rng.fork()),
        pod,
        to_guest: Link::new(faults(&mut rng, lossy), rng.fork()),
        to_netd: Link::new(faults(&mut rng, lossy), rng.fork()),
        now: Time::ZERO,
        plan,
        trace: std::env::var_os("TRACE").is_some(),
    }
}

/// Runs a case; a failure names its seed.
fn case(seed: u64, run: impl FnOnce(Rng) + std::panic::UnwindSafe) {
    if let Err(e) = std::panic::catch_unwind(|| run(Rng(seed))) {
        eprintln!("failed with seed {seed}");
        std::panic::resume_unwind(e);
    }
}

fn seeds(first: u64, count: u64) -> std::ops::Range<u64> {
    match std::env::var("SEED").ok().and_then(|s| s.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => first..first + count,
    }
}

const LIMIT: Duration = Duration::from_secs(3 * 3600);

fn check_end<G: Guest>(w: &World<G>) {
    assert_eq!(w.guest.received(), w.plan.down);
    assert_eq!(w.pod.acked, w.plan.up);
    assert!(!w.pod.aborted && !w.guest.was_reset(), "{}", w.describe());
}

fn reference(mut rng: Rng, lossy: bool) {
    let opens = rng.chance(50);
    let plan = plan(&mut rng, if lossy { 60_000 } else { 200_000 });
    let guest = Reference::new(guest_habits(&mut rng, &plan, opens), plan, rng.fork());
    let mut w = world(guest, plan, opens, lossy, rng);
    w.run(LIMIT);
    check_end(&w);
}

fn smoltcp(mut rng: Rng, lossy: bool) {
    let opens = rng.chance(50);
    // Each loss costs smoltcp a timeout that only grows: little data where it can be lost.
    let plan = plan(&mut rng, if lossy { 30_000 } else { 200_000 });
    let habits = smol::Habits {
        opens,
        seed: rng.next(),
        mtu: rng.pick(&[576, 1500, 9000, 65_535]),
        receive_buffer: rng.pick(&[600, 8_000, 65_535, 300_000]),
        send_buffer: rng.pick(&[600, 8_000, 65_535, 300_000]),
        ack_delay: rng.pick(&[None, Some(10), Some(40)]),
        nagle: rng.chance(50),
        read: (rng.pick(&[500, 3_000, 300_000]), micros(rng.pick(&[1, 200, 2_000]))),
    };
    let mut w = world(Smol::new(habits, plan), plan, opens, lossy, rng);
    // smoltcp 0.14 stops its retransmission timer when the window closes, so a refused byte is never sent again.
    w.pod.habits.overhead = w.pod.habits.overhead.min(110);
    w.pod.habits.send_buffer = w.pod.habits.send_buffer.max(87_040);
    w.run(LIMIT);
    check_end(&w);
}

#[test]
fn any_guest_gets_every_byte_over_a_clean_link() {
    for seed in seeds(1, 200) {
        case(seed, |rng| reference(rng, false));
    }
}

#[test]
fn any_guest_gets_every_byte_over_a_faulty_link() {
    for seed in seeds(10_001, 200) {
        case(seed, |rng| reference(rng, true));
    }
}

#[test]
fn smoltcp_gets_every_byte_over_a_clean_link() {
    for seed in seeds(20_001, 120) {
        case(seed, |rng| smoltcp(rng, false));
    }
}

#[test]
fn smoltcp_gets_every_byte_over_a_faulty_link() {
    for seed in seeds(30_001, 120) {
        case(seed, |rng| smoltcp(rng, true));
    }
}

#[test]
fn a_clean_link_needs_no_timeout_and_no_retransmission() {
    for seed in seeds(40_001, 300) {
        case(seed, |mut rng| {
            let opens = rng.chance(50);
            let plan = plan(&mut rng, 200_000);
            let mut habits = guest_habits(&mut rng, &plan, opens);
            habits.stall = None;
            habits.shrinks = false;
            habits.ack_delay = habits.ack_delay.min(millis(40));
            let guest = Reference::new(habits, plan, rng.fork());
            let mut w = world(guest, plan, opens, false, rng);
            w.pod.habits.stall = None;
            w.pod.habits.overhead = w.pod.habits.overhead.min(110);
            w.pod.habits.round_trip = w.pod.habits.round_trip.min(millis(60));
            w.driver.never_starve();
            w.run(LIMIT);
            check_end(&w);
            assert_eq!(w.driver.retransmits, 0, "sent again: {}", w.describe());
            // A window in steps of 256 bytes may promise more than there is when small segments come one by one.
            if w.driver.refusals == 0 {
                assert_eq!(w.guest.timeouts, 0, "the guest had to wait: {}", w.describe());
            }
        });
    }
}

#[test]
fn a_guest_that_tells_every_growth_of_its_window_has_lost_nothing() {
    for seed in seeds(80_001, 40) {
        case(seed, |mut rng| {
            let plan = Plan {
                up: 0,
                down: 300_000,
                guest_closes: Close::AfterEnd,
                peer_closes: Close::AfterSending,
                guest_resets_at: None,
                peer_resets_at: None,
            };
            let habits = guest::Habits {
                mss: Some(1460),
                scale: Some(rng.pick(&[0, 2, 7])),
                buffer: 60_000,
                // Acknowledges at once and reads in the time between: what it tells then is the window alone.
                ack_delay: Duration::ZERO,
                read: (700, micros(rng.pick(&[100, 300]))),
                stall: None,
                shrinks: false,
                tells_all: true,
                ..guest_habits(&mut rng, &plan, true)
            };
            let guest = Reference::new(habits, plan, rng.fork());
            let mut w = world(guest, plan, true, false, rng);
            w.pod.habits.stall = None;
            w.pod.habits.round_trip = millis(1);
            w.pod.habits.write = (1_000_000, micros(1));
            w.driver.never_starve();
            // Always data in flight: without that no ACK would be a duplicate.
            let far = Faults { latency: millis(2), ..Faults::default() };
            w.to_guest = Link::new(far, Rng(1));
            w.to_netd = Link::new(far, Rng(2));
            w.run(LIMIT);
            check_end(&w);
            assert_eq!(w.driver.retransmits, 0, "sent again: {}", w.describe());
            assert!(w.guest.window_updates > 20, "it told only {} windows", w.guest.window_updates);
        });
    }
}

/// A bulk transfer of a guest as Linux without SACK is, of whose segments one in a hundred is lost: how long it took,
/// and how often the guest had to wait for its timeout.
fn lossy_bulk(seed: u64, holds: bool, reordering: u64) -> (Duration, u32) {
    let mut rng = Rng(seed);
    let plan = Plan {
        up: 1_500_000,
        down: 0,
        guest_closes: Close::AfterSending,
        peer_closes: Close::AfterEnd,
        guest_resets_at: None,
        peer_resets_at: None,
    };
    let habits = guest::Habits {
        mss: Some(1460),
        scale: Some(7),
        buffer: 400_000,
        odd: false,
        stall: None,
        shrinks: false,
        write: (1_000_000, micros(1)),
        probes_by_byte: false,
        new_reno: true,
        ..guest_habits(&mut rng, &plan, true)
    };
    let guest = Reference::new(habits, plan, rng.fork());
    let mut w = world(guest, plan, true, false, rng.fork());
    w.pod.habits = pod::Habits {
        send_buffer: 400_000,
        overhead: 110,
        peer_buffer: 1_000_000,
        round_trip: micros(100),
        read: (1_000_000, micros(10)),
        stall: None,
        near: true,
        ..w.pod.habits
    };
    w.driver = Driver::new(Config::default(), 1, false, 0, rng.fork());
    if !holds {
        w.driver.hold = None;
    }
    let clean = Faults { latency: micros(100), ..Faults::default() };
    w.to_guest = Link::new(clean, rng.fork());
    w.to_netd =
        Link::new(Faults { loss: if reordering == 0 { 1 } else { 0 }, reordering, ..clean }, rng.fork());
    w.run(LIMIT);
    check_end(&w);
    (w.now.since(Time::ZERO), w.guest.timeouts)
}

fn bulk_runs(holds: bool, reordering: u64) -> (Duration, u32) {
    let runs = (70_001..70_007).map(|seed| lossy_bulk(seed, holds, reordering));
    let (time, timeouts) =
        runs.fold((Duration::ZERO, 0), |(t, n), (time, timeouts)| (t + time, n + timeouts));
    println!("holds {holds}, reordering {reordering} %: {time:?} and {timeouts} timeouts in 6 runs");
    (time, timeouts)
}

#[test]
fn lost_segments_cost_the_guest_round_trips_and_hardly_a_timeout() {
    let (dropped, _) = bulk_runs(false, 0);
    let (held, timeouts) = bulk_runs(true, 0);
    // Ten segments are lost in each run; only one of the last few, or one sent again, takes a timeout.
    assert!(timeouts <= 12, "{timeouts} timeouts");
    assert!(held < dropped / 2, "{held:?} and {dropped:?} without keeping what is out of order");
}

#[test]
fn reordered_segments_need_no_timeout_but_for_the_end() {
    let (_, timeouts) = bulk_runs(true, 5);
    // A FIN out of order is not kept, and nothing comes after it that would ask for it.
    assert!(timeouts <= 6, "{timeouts} timeouts in 6 runs");
}

/// A bulk transfer to a guest with a large window, in virtual time: how long it took, and how often each byte would have
/// been copied out of the socket by a kernel that keeps no peek offset.
fn bulk_down(in_flight: u32) -> (Duration, u64) {
    let mut rng = Rng(90_001);
    let plan = Plan {
        up: 0,
        down: 20_000_000,
        guest_closes: Close::AfterEnd,
        peer_closes: Close::AfterSending,
        guest_resets_at: None,
        peer_resets_at: None,
    };
    let habits = guest::Habits {
        mss: Some(65_495),
        scale: Some(9),
        buffer: 6_000_000,
        ack_delay: Duration::ZERO,
        odd: false,
        read: (1_000_000, micros(1)),
        stall: None,
        shrinks: false,
        ..guest_habits(&mut rng, &plan, true)
    };
    let guest = Reference::new(habits, plan, rng.fork());
    let mut w = world(guest, plan, true, false, rng.fork());
    w.pod.habits = pod::Habits {
        receive_buffer: 6_000_000,
        round_trip: micros(100),
        write: (1_000_000, micros(1)),
        stall: None,
        near: true,
        ..w.pod.habits
    };
    w.driver = Driver::new(Config { in_flight, mss: 65_495, ..Config::default() }, 1, false, 0, rng.fork());
    let near = Faults { latency: micros(50), ..Faults::default() };
    (w.to_guest, w.to_netd) = (Link::new(near, rng.fork()), Link::new(near, rng.fork()));
    w.run(LIMIT);
    check_end(&w);
    (w.now.since(Time::ZERO), w.driver.copied / plan.down)
}

#[test]
fn without_a_peek_offset_a_byte_is_copied_few_times_whatever_the_guests_window() {
    let (with, often) = bulk_down(IN_FLIGHT);
    let (without, seldom) = bulk_down(IN_FLIGHT_COPIED);
    println!("{with:?} and {often} copies with a peek offset, {without:?} and {seldom} without");
    // A read of this driver is a sixteenth of the worker's largest one.
    assert!(seldom <= u64::from(IN_FLIGHT_COPIED / READ) + 1, "{seldom} copies");
    assert!(often > 5 * seldom, "the window alone would not bound it: {often} and {seldom} copies");
}

fn run_reset(mut rng: Rng, by_guest: bool) {
    let opens = rng.chance(50);
    let mut plan = plan(&mut rng, 200_000);
    (plan.up, plan.down) = (plan.up.max(2), plan.down.max(2));
    let at = rng.range(1, if by_guest { plan.down } else { plan.up } / 2 + 1);
    if by_guest {
        plan.guest_resets_at = Some(at);
        (plan.guest_closes, plan.peer_closes) = (Close::AfterEnd, Close::AfterSending);
    } else {
        plan.peer_resets_at = Some(at);
    }
    let guest = Reference::new(guest_habits(&mut rng, &plan, opens), plan, rng.fork());
    let mut w = world(guest, plan, opens, false, rng);
    w.run(LIMIT);
    if by_guest {
        assert!(w.pod.aborted, "the peer was not told: {}", w.describe());
    } else {
        // The socket may have been closed in order before.
        let over = !w.pod.died || w.guest.is_past_reset();
        assert!(w.guest.was_reset() || over, "the guest was not told: {}", w.describe());
    }
}

#[test]
fn a_reset_by_the_guest_reaches_the_peer() {
    for seed in seeds(50_001, 120) {
        case(seed, |rng| run_reset(rng, true));
    }
}

#[test]
fn a_reset_by_the_peer_reaches_the_guest() {
    for seed in seeds(60_001, 120) {
        case(seed, |rng| run_reset(rng, false));
    }
}
