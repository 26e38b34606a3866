//! All orders in which threads can do what they do to the values that netd's workers share.
//!
//! The files of `netd::shared` are compiled once more here, with loom's atomics, locks and channels in place of the
//! standard library's, and each model runs in every order that the memory model allows, the
//! larger ones in every one with few interruptions. The workers themselves
//! (epoll, sockets, rings) are not here: `moves` has the little of them that the orders depend on.

// The configuration's permission for tests does not reach helpers of an integration test.
#![allow(clippy::unwrap_used, clippy::panic)]
#![allow(missing_docs, unreachable_pub, reason = "files of the library, which is where they are public")]

use netd::{flow, limits, time};

#[path = "../../src/shared/backlog.rs"]
mod backlog;
#[path = "../../src/shared/budget.rs"]
mod budget;
#[path = "../../src/shared/directory.rs"]
mod directory;
#[path = "../../src/shared/mailbox.rs"]
mod mailbox;
mod moves;
#[path = "../../src/shared/running.rs"]
mod running;
mod sync;

use backlog::Backlog;
use budget::{Budget, Side};
use directory::Directory;
use flow::{Key, Kind};
use limits::Limits;
use loom::sync::Arc;
use loom::thread::{JoinHandle, spawn};
use mailbox::mailbox;
use running::Running;
use time::Time;

fn key() -> Key {
    Key { kind: Kind::Tcp, guest: ([10, 9, 0, 2], 4242).into(), peer: ([192, 0, 2, 1], 80).into() }
}

/// As `loom::model` in orders with at most this many threads that are interrupted, where all would take minutes.
const INTERRUPTIONS: usize = 2;

fn bounded(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(INTERRUPTIONS);
    builder.check(model);
}

/// Two threads that do the same.
fn twice<T: 'static, V: 'static>(with: &Arc<T>, what: impl Fn(&T, usize) -> V + Copy + 'static) -> [V; 2] {
    let start = |n| -> JoinHandle<V> {
        let with = Arc::clone(with);
        spawn(move || what(&with, n))
    };
    [start(0), start(1)].map(|thread| thread.join().unwrap())
}

#[test]
fn of_two_claims_one_succeeds_and_the_other_learns_whose_it_is() {
    loom::model(|| {
        let directory = Arc::new(Directory::new(true));
        let got = twice(&directory, |d, pair| d.claim(&key(), pair));
        let owner = directory.owner(&key()).unwrap();
        assert_eq!(got[owner], Ok(()));
        assert_eq!(got[1 - owner], Err(owner));
    });
}

#[test]
fn the_last_place_of_a_budget_is_taken_once_and_can_be_had_again() {
    loom::model(|| {
        let limits = Limits { flows: 2, ..Limits::default() };
        let budget = Arc::new(Budget::new(&limits, Time::ZERO));
        assert!(budget.take(Side::Peer));
        let got = twice(&budget, |b, n| {
            let side = [Side::Guest, Side::Peer][n];
            (b.take(side), side)
        });
        assert_eq!(got.iter().filter(|(taken, _)| *taken).count(), 1, "one place was left");
        assert!(budget.is_full(Side::Guest) && budget.is_full(Side::Peer));
        let (_, side) = got.into_iter().find(|(taken, _)| *taken).unwrap();
        budget.give_back(side);
        budget.give_back(Side::Peer);
        for _ in 0..2 {
            assert!(!budget.is_full(Side::Guest) && budget.take(Side::Guest), "a place was lost");
        }
        assert!(!budget.take(Side::Guest));
    });
}

#[test]
fn what_comes_and_goes_at_once_never_exceeds_the_limit() {
    loom::model(|| {
        let limits = Limits { flows: 1, ..Limits::default() };
        let shared = Arc::new((Budget::new(&limits, Time::ZERO), loom::sync::atomic::AtomicUsize::new(0)));
        twice(&shared, |(budget, flows), n| {
            let side = [Side::Guest, Side::Peer][n];
            if budget.take(side) {
                assert_eq!(flows.fetch_add(1, sync::Relaxed), 0, "more flows than the limit");
                flows.fetch_sub(1, sync::Relaxed);
                budget.give_back(side);
            }
        });
        assert!(!shared.0.is_full(Side::Guest) && !shared.0.is_full(Side::Peer), "a place was lost");
    });
}

#[test]
fn neither_side_takes_what_is_kept_for_the_other() {
    loom::model(|| {
        let limits = Limits { flows: 64, ..Limits::default() };
        let budget = Arc::new(Budget::new(&limits, Time::ZERO));
        // 56 of them for either side.
        assert!((0..55).all(|_| budget.take(Side::Guest)));
        let got = twice(&budget, |b, _| b.take(Side::Guest));
        assert_eq!(got.iter().filter(|taken| **taken).count(), 1);
        assert!(!budget.is_full(Side::Peer) && (0..8).all(|_| budget.take(Side::Peer)));
        assert!(!budget.take(Side::Peer));
    });
}

#[test]
fn datagrams_never_have_more_than_their_part_and_give_all_of_it_back() {
    bounded(|| {
        let limits = Limits { flows: 64, ..Limits::default() };
        let budget = Arc::new(Budget::new(&limits, Time::ZERO));
        // 48 of them for datagrams, a quarter of those for one port.
        assert_eq!(budget.share_of_port(), 12);
        assert!((0..47).all(|_| budget.take_datagrams(Side::Peer)));
        let got = twice(&budget, |b, _| b.take_datagrams(Side::Guest));
        assert_eq!(got.iter().filter(|taken| **taken).count(), 1);
        assert!(budget.has_all_datagrams() && !budget.is_full(Side::Guest));
        assert!(budget.has_half_of_datagrams(Side::Peer) && !budget.has_half_of_datagrams(Side::Guest));
        budget.give_back_datagrams(Side::Guest);
        assert!(!budget.has_all_datagrams() && budget.take_datagrams(Side::Guest));
    });
}

#[test]
fn a_rate_is_one_for_all_threads() {
    loom::model(|| {
        let limits = Limits { new_flows_per_second: 1, new_flows_burst: 1, ..Limits::default() };
        let budget = Arc::new(Budget::new(&limits, Time::ZERO));
        let got = twice(&budget, |b, _| b.admit(Side::Peer, Time::ZERO));
        assert_eq!(got.iter().filter(|admitted| **admitted).count(), 1);
        assert!(budget.admit(Side::Guest, Time::ZERO));
        assert!(budget.admit_datagrams(Side::Peer, Time::ZERO));
    });
}

#[test]
fn a_backlog_is_bounded_and_everything_comes_off_again() {
    bounded(|| {
        // Two senders and the worker that looks at what they have sent.
        let (mailbox, inbox) = mailbox::<usize>().unwrap();
        let backlog = Arc::new(Backlog::new(100));
        let send = |bytes: usize| {
            let (backlog, mailbox) = (Arc::clone(&backlog), mailbox.clone());
            spawn(move || {
                let room = backlog.has_room(bytes);
                let added = backlog.add(bytes);
                if added {
                    mailbox.send(bytes);
                }
                (room, added)
            })
        };
        let threads = [send(60), send(50)];
        drop(mailbox);
        let mut waits = 0;
        while let Some(bytes) = inbox.wait() {
            waits += 1;
            backlog.done(bytes);
        }
        let got = threads.map(|thread| thread.join().unwrap());
        assert_eq!(got.iter().filter(|(_, added)| *added).count(), waits);
        assert!(waits >= 1, "neither was taken");
        assert!(backlog.has_room(100) && !backlog.has_room(101), "what was looked at still counts");
    });
}

#[test]
fn two_that_do_not_fit_together_are_not_both_taken() {
    loom::model(|| {
        let backlog = Arc::new(Backlog::new(100));
        let got = twice(&backlog, |b, n| b.add([60, 50][n]));
        assert_eq!(got.iter().filter(|added| **added).count(), 1);
        assert!(!backlog.has_room(51));
    });
}

#[test]
fn pairs_that_start_and_stop_at_once_do_not_undo_each_other() {
    loom::model(|| {
        let running = Arc::new(Running::default());
        running.set(1, true);
        twice(&running, |r, pair| r.set(pair, pair == 0));
        assert!(running.has(0) && !running.has(1) && !running.others(0));
        assert_eq!(running.pick(7), Some(0));
    });
}

#[test]
fn who_is_told_that_a_pair_runs_sees_it_run() {
    loom::model(|| {
        let running = Arc::new(Running::default());
        let (mailbox, inbox) = mailbox::<()>().unwrap();
        let starts = Arc::clone(&running);
        let thread = spawn(move || {
            starts.set(0, true);
            mailbox.send(());
        });
        inbox.bell().listen();
        assert_eq!(inbox.next(), Some(()), "the bell rang before it was there");
        assert!(running.others(1));
        thread.join().unwrap();
    });
}

#[test]
fn nothing_stays_in_a_mailbox_unseen() {
    bounded(|| {
        let (mailbox, inbox) = mailbox::<u8>().unwrap();
        let other = mailbox.clone();
        let threads = [spawn(move || mailbox.send(1)), spawn(move || other.send(2))];
        let mut seen = Vec::new();
        while seen.len() < 2 {
            // A lost ring would be a deadlock, which loom reports.
            inbox.bell().listen();
            while let Some(n) = inbox.next() {
                seen.push(n);
            }
        }
        seen.sort_unstable();
        assert_eq!(seen, [1, 2]);
        assert!(threads.into_iter().all(|thread| thread.join().unwrap()));
    });
}
