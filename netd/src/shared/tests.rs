//! What is shared, by real threads. The order of what they do is that of `tests/loom`.

use super::*;
use crate::flow::Kind;

#[test]
fn a_backlog_takes_up_to_its_limit() {
    let backlog = Backlog::new(100);
    assert!(backlog.add(60));
    assert!(!backlog.has_room(41));
    assert!(!backlog.add(41));
    assert!(!backlog.add(usize::MAX));
    assert!(backlog.add(40));
    backlog.done(60);
    assert!(backlog.has_room(60));
}

#[test]
fn places_are_taken_once_each_by_whichever_thread() {
    let limits = Limits { flows: 1000, new_flows_per_second: 1, new_flows_burst: 700, ..Limits::default() };
    let budget = Budget::new(&limits, Time::ZERO);
    let count = |what: &(dyn Fn() -> bool + Sync)| {
        std::thread::scope(|scope| {
            let one = || scope.spawn(|| (0..900).filter(|_| what()).count());
            let threads = [one(), one()];
            threads.into_iter().map(|t| t.join().unwrap()).sum::<usize>()
        })
    };
    assert_eq!(count(&|| budget.take(Side::Guest)), 875);
    assert!(budget.is_full(Side::Guest) && !budget.is_full(Side::Peer));
    assert_eq!(count(&|| budget.take(Side::Peer)), 125);
    assert!(budget.is_full(Side::Peer));
    assert!(budget.has_all(Side::Guest) && !budget.has_all(Side::Peer));
    assert_eq!(count(&|| budget.admit(Side::Guest, Time::ZERO)), 700);
    assert_eq!(count(&|| budget.admit(Side::Peer, Time::ZERO)), 700);
    budget.give_back(Side::Guest);
    assert!(!budget.is_full(Side::Guest) && !budget.is_full(Side::Peer));
    assert!(budget.take(Side::Peer));
    assert!(!budget.take(Side::Guest));
}

#[test]
fn datagrams_leave_a_part_of_the_places_to_connections() {
    let limits = Limits { flows: 1000, new_flows_per_second: 1, new_flows_burst: 10, ..Limits::default() };
    let budget = Budget::new(&limits, Time::ZERO);
    let datagrams = |side| (0..1000).filter(|_| budget.take_datagrams(side)).count();
    assert_eq!(budget.share_of_port(), 187);
    assert_eq!((0..374).filter(|_| budget.take_datagrams(Side::Guest)).count(), 374);
    assert!(!budget.has_half_of_datagrams(Side::Guest));
    assert_eq!(datagrams(Side::Guest), 376);
    assert!(budget.has_half_of_datagrams(Side::Guest) && !budget.has_half_of_datagrams(Side::Peer));
    assert!(budget.has_all_datagrams() && !budget.is_full(Side::Guest));
    assert_eq!(datagrams(Side::Peer), 0);
    // The places that are kept for the other side stay so.
    assert_eq!((0..1000).filter(|_| budget.take(Side::Guest)).count(), 125);
    assert_eq!((0..1000).filter(|_| budget.take(Side::Peer)).count(), 125);
    budget.give_back_datagrams(Side::Guest);
    assert!(!budget.has_all_datagrams() && budget.take_datagrams(Side::Peer));
    // And either kind has a rate of its own.
    assert_eq!((0..100).filter(|_| budget.admit_datagrams(Side::Guest, Time::ZERO)).count(), 10);
    assert_eq!((0..100).filter(|_| budget.admit(Side::Guest, Time::ZERO)).count(), 10);
}

#[test]
fn a_small_budget_keeps_nothing_back() {
    let limits = Limits { flows: 4, ..Limits::default() };
    let budget = Budget::new(&limits, Time::ZERO);
    assert_eq!((0..9).filter(|_| budget.take(Side::Peer)).count(), 4);
    let limits = Limits { flows: 1 << 20, ..Limits::default() };
    let budget = Budget::new(&limits, Time::ZERO);
    assert_eq!((0..1 << 20).filter(|_| budget.take(Side::Peer)).count(), (1 << 20) - 256);
}

fn key(port: u16) -> Key {
    Key { kind: Kind::Tcp, guest: ([10, 9, 0, 2], port).into(), peer: ([192, 0, 2, 1], 80).into() }
}

#[test]
fn of_two_claims_one_succeeds_and_the_other_learns_whose_it_is() {
    let directory = Directory::new(true);
    let won = std::thread::scope(|scope| {
        let claim = |pair| {
            let directory = &directory;
            scope.spawn(move || (1..5000).map(|port| directory.claim(&key(port), pair)).collect::<Vec<_>>())
        };
        let threads = [claim(0), claim(1)];
        threads.map(|t| t.join().unwrap())
    });
    for (port, (a, b)) in (1..5000).zip(won[0].iter().zip(&won[1])) {
        let owner = directory.owner(&key(port)).unwrap();
        assert_eq!([a, b][owner], &Ok(()));
        assert_eq!([a, b][1 - owner], &Err(owner));
    }
}

#[test]
fn a_flow_changes_hands_and_is_forgotten() {
    let directory = Directory::new(true);
    directory.claim(&key(1), 0).unwrap();
    directory.hand_over(&key(1), 3);
    assert_eq!(directory.owner(&key(1)), Some(3));
    directory.release(&key(1));
    assert_eq!(directory.owner(&key(1)), None);
    directory.claim(&key(1), 2).unwrap();
}

#[test]
fn one_worker_needs_no_directory() {
    let directory = Directory::new(false);
    directory.claim(&key(1), 0).unwrap();
    directory.claim(&key(1), 0).unwrap();
    assert_eq!(directory.owner(&key(1)), None);
}

#[test]
fn picks_among_those_that_run() {
    let running = Running::default();
    assert_eq!(running.pick(7), None);
    for pair in [0, 3, 5] {
        running.set(pair, true);
    }
    running.set(0, false);
    assert!(running.has(3) && !running.has(0));
    assert!(running.others(3) && running.others(0));
    let picked: Vec<_> = (0..4).map(|hash| running.pick(hash).unwrap()).collect();
    assert_eq!(picked, [3, 5, 3, 5]);
    running.set(5, false);
    assert!(!running.others(3));
}
