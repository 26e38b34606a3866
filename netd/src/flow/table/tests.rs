//! The table against a plain model, and at full size in virtual time.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;
use crate::flow::Kind;

fn key(port: u16) -> Key {
    Key {
        kind: Kind::Tcp,
        guest: "10.9.0.2:22".parse().unwrap(),
        peer: SocketAddr::new("192.0.2.1".parse().unwrap(), port),
    }
}

#[test]
fn an_id_is_good_for_one_flow_only() {
    let mut t = Table::new(10);
    let a = t.insert(key(1), "a").unwrap();
    assert_eq!(FlowId::from_token(a.to_token()), a);
    assert_eq!(t.remove(a).unwrap().1, "a");
    let b = t.insert(key(1), "b").unwrap();
    assert_eq!(t.get_mut(a), None);
    assert_eq!(t.get_mut(b), Some(&mut "b"));
    assert_eq!(t.find(&key(1)), Some(b));
}

#[test]
fn keys_are_unique_and_the_limit_holds() {
    let mut t = Table::new(2);
    assert!(t.insert(key(1), ()).is_some());
    assert!(t.insert(key(1), ()).is_none());
    assert!(t.insert(key(2), ()).is_some());
    assert!(t.is_full());
    assert!(t.insert(key(3), ()).is_none());
}

#[test]
fn deadlines_come_up_once_and_in_order() {
    let mut t = Table::new(10);
    let a = t.insert(key(1), ()).unwrap();
    let b = t.insert(key(2), ()).unwrap();
    t.arm(a, Time::from_millis(20));
    t.arm(b, Time::from_millis(10));
    t.arm(a, Time::from_millis(5));
    t.arm(a, Time::from_millis(7));
    assert_eq!(t.next_deadline(), Some(Time::from_millis(5)));
    assert_eq!(t.due(Time::from_millis(4)), None);
    assert_eq!(t.due(Time::from_millis(30)), Some(a));
    assert_eq!(t.due(Time::from_millis(30)), Some(b));
    assert_eq!(t.due(Time::from_millis(30)), None);
    t.arm(b, Time::from_millis(40));
    t.remove(b);
    assert_eq!(t.due(Time::from_millis(50)), None);
}

/// A key of many: addresses and ports that follow each other, as scans and clients make them.
fn numbered(i: u32) -> Key {
    let peer = match i % 3 {
        0 => SocketAddr::new(std::net::Ipv4Addr::from(0x0a00_0000 + i / 60_000).into(), i as u16),
        1 => SocketAddr::new(std::net::Ipv4Addr::from(0xc000_0200 + i).into(), 443),
        _ => {
            let address = std::net::Ipv6Addr::from(0x2001_0db8_u128 << 96 | u128::from(i) << 64);
            SocketAddr::new(address.into(), 53)
        }
    };
    let guest = if peer.is_ipv4() { "10.9.0.2:7000" } else { "[fd00:9::2]:7000" };
    Key { kind: if i.is_multiple_of(2) { Kind::Tcp } else { Kind::Udp }, guest: guest.parse().unwrap(), peer }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Insert(u32),
    Remove(u32),
    Arm(u32, u64, u64),
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0u32..40).prop_map(Step::Insert),
        2 => (0u32..40).prop_map(Step::Remove),
        4 => (0u32..40, 0u64..100, 0u64..50).prop_map(|(i, t, soon)| Step::Arm(i, t, soon)),
        2 => (0u64..20).prop_map(Step::Pass),
    ]
}

proptest! {
    #[test]
    fn the_table_does_as_a_plain_model_does(steps in proptest::collection::vec(step(), 0..400)) {
        let mut table = Table::new(24);
        // By number: id, and deadline.
        let mut model: HashMap<u32, (FlowId, Option<Time>)> = HashMap::new();
        let mut now = Time::ZERO;
        for step in steps {
            match step {
                Step::Insert(i) => {
                    let id = table.insert(numbered(i), i);
                    let room = model.len() < 24 && !model.contains_key(&i);
                    prop_assert_eq!(id.is_some(), room);
                    model.extend(id.map(|id| (i, (id, None))));
                }
                Step::Remove(i) => {
                    if let Some((id, _)) = model.remove(&i) {
                        prop_assert_eq!(table.remove(id), Some((numbered(i), i)));
                        prop_assert_eq!((table.remove(id), table.get(id), table.key(id)), (None, None, None));
                    }
                }
                Step::Arm(i, t, soon) => {
                    if let Some((id, deadline)) = model.get_mut(&i) {
                        let at = now + Duration::from_micros(t);
                        let soon = now + Duration::from_micros(soon);
                        table.arm_before(*id, at, soon);
                        *deadline = Some(deadline.filter(|d| *d >= soon).map_or(at, |d| d.min(at)));
                    }
                }
                Step::Pass(t) => {
                    now = now + Duration::from_micros(t);
                    let mut last = Time::ZERO;
                    while let Some(id) = table.due(now) {
                        let i = *table.get(id).unwrap();
                        let due = model.get_mut(&i).unwrap().1.take().unwrap();
                        prop_assert!(last <= due && due <= now);
                        last = due;
                    }
                }
            }
            prop_assert_eq!(table.next_deadline(), model.values().filter_map(|(_, d)| *d).min());
            prop_assert_eq!(table.len(), model.len());
            for i in 0..40 {
                prop_assert_eq!(table.find(&numbered(i)), model.get(&i).map(|(id, _)| *id));
            }
        }
    }
}

/// Whatever the seeds are, ports and addresses in a row do not fill neighbouring buckets.
#[test]
fn keys_in_a_row_spread_whatever_the_seeds_are() {
    const FLOWS: u16 = 1_000;
    let patterns: [fn(u16) -> (SocketAddr, SocketAddr); 5] = [
        |n| (([10, 9, 0, 2], 443).into(), ([198, 18, 0, 1], 10_000 + n).into()),
        |n| (([10, 9, 0, 2], 10_000 + n).into(), ([198, 18, 0, 1], 443).into()),
        |n| (([10, 9, 0, 2], 443).into(), ([198, 18, (n >> 8) as u8, n as u8], 40_000).into()),
        |n| (([0xfd00, 0, 0, 0, 0, 0, 0, 2], 443).into(), ([0x2001, 0xdb8, 0, 0, 0, 0, 0, n], 40_000).into()),
        |n| (([0xfd00, 0, 0, 0, 0, 0, 0, 2], 443).into(), ([0x2001, 0xdb8, n, 0, 0, 0, 0, 1], 40_000).into()),
    ];
    let mut state = 1u64;
    let mut draw = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    };
    for (which, pattern) in patterns.iter().enumerate() {
        for _ in 0..200 {
            let seeds: [u64; 4] = std::array::from_fn(|_| draw());
            let mut table = Table::with_seeds(u32::from(FLOWS), seeds);
            for n in 0..FLOWS {
                let (guest, peer) = pattern(n);
                table.insert(Key { kind: Kind::Tcp, guest, peer }, ()).unwrap();
            }
            let (count, sum) =
                table.index.search_lengths().fold((0, 0), |(count, sum), n| (count + 1, sum + n));
            // The table is half full: 1.5 buckets for a search that succeeds.
            assert!(
                sum <= 2 * count,
                "pattern {which}, seeds {seeds:x?}: {sum} buckets for {count} searches"
            );
        }
    }
}

/// What a table of a large node's guest does in an hour of virtual time: it fills, every flow has deadlines that come
/// and go, half of the flows are replaced, and all end. Prints what it took.
#[test]
fn a_table_of_131072_flows_keeps_its_order_for_an_hour() {
    const FLOWS: u32 = 131_072;
    let mut table = Table::new(FLOWS);
    let capacity = table.slots.capacity();
    let mut random = 1u64;
    let mut random = move |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    let mut worst = Duration::ZERO;
    let begin = Instant::now();
    let mut ids = Vec::with_capacity(FLOWS as usize);
    for i in 0..FLOWS {
        let one = Instant::now();
        let id = table.insert(numbered(i), i).unwrap();
        table.arm(id, Time::from_millis(7_200_000));
        worst = worst.max(one.elapsed());
        ids.push(id);
    }
    eprintln!("{FLOWS} insertions: {:?} each, the worst {worst:?}", begin.elapsed() / FLOWS);
    assert!(table.is_full() && table.insert(numbered(FLOWS), 0).is_none());
    assert_eq!(table.slots.capacity(), capacity, "the slab has moved");
    let longest = table.index.search_lengths().max().unwrap();
    eprintln!("the longest search looks at {longest} buckets");
    assert!(longest < 200, "keys collide: {longest} in a row");

    let begin = Instant::now();
    for i in 0..FLOWS {
        assert_eq!(table.find(&numbered(i)), Some(ids[i as usize]));
    }
    eprintln!("searches: {:?} each", begin.elapsed() / FLOWS);

    // Every flow is used a few times: a retransmission timer, which passes, and the long one again.
    let begin = Instant::now();
    let (mut now, mut passed) = (Time::ZERO, 0u32);
    for _ in 0..4 * FLOWS {
        now = now + Duration::from_micros(6_000);
        let id = ids[random(u64::from(FLOWS)) as usize];
        table.arm(id, now + Duration::from_millis(200 + random(800)));
        while let Some(id) = table.due(now) {
            passed += 1;
            table.arm(id, Time::from_millis(7_200_000));
        }
        assert!(table.next_deadline().is_some_and(|at| at > now));
    }
    eprintln!("{passed} deadlines armed, passed and armed again: {:?} each", begin.elapsed() / passed);
    assert!(passed > 3 * FLOWS, "only {passed} deadlines passed");

    // Half of them go and others come, in the same slots.
    let begin = Instant::now();
    for i in (0..FLOWS).step_by(2) {
        assert_eq!(table.remove(ids[i as usize]), Some((numbered(i), i)));
        let id = table.insert(numbered(FLOWS + i), i).unwrap();
        table.arm(id, now + Duration::from_secs(u64::from(i)));
        assert_eq!((table.get(ids[i as usize]), table.get(id)), (None, Some(&i)));
    }
    eprintln!("replacements: {:?} each", begin.elapsed() / (FLOWS / 2));
    assert_eq!((table.slots.capacity(), table.len()), (capacity, FLOWS as usize));

    let mut left = FLOWS;
    while let Some(at) = table.next_deadline() {
        let id = table.due(at).unwrap();
        assert!(table.remove(id).is_some());
        left -= 1;
    }
    assert_eq!((left, table.len()), (0, 0));
}
