//! The guest moves to a netd in another pod with the same addresses, and its connections with it.

mod addresses;
mod datagrams;
mod helper;
mod link;
mod place;
mod streams;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use podvirt_proto::repair::Command;

use crate::bed::{Family, assert_reset, eventually, exchange, with_place};
use helper::{Fault, Helper};
pub(crate) use link::ttl;
use place::families;
pub(crate) use place::{Place, Ports};
use streams::{Stream, drain, fill, fill_on};

/// The side that opens a connection.
#[derive(Clone, Copy, Debug)]
enum Opener {
    Guest,
    World,
}

/// A connection: the guest's end and the world's.
fn open(place: &Place, family: Family, by: Opener) -> (TcpStream, TcpStream) {
    match by {
        Opener::Guest => {
            let listener = place.world.listen(family.client(7000));
            let guest = place.guest.connect(family.client(7000)).unwrap();
            (guest, listener.accept().0)
        }
        Opener::World => {
            let listener = place.guest.listen(family.any(7000));
            let world = place.world.connect(family.pod(7000)).unwrap();
            (listener.accept().0, world)
        }
    }
}

fn cases() -> impl Iterator<Item = (Family, Opener)> {
    families().into_iter().flat_map(|family| [Opener::Guest, Opener::World].map(|by| (family, by)))
}

/// Bytes go both ways, one after the other.
fn ping_pong(a: &TcpStream, b: &TcpStream) {
    for (mut from, mut to) in [(a, b), (b, a)] {
        from.write_all(b"still there?").unwrap();
        let mut got = [0; 12];
        to.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"still there?");
    }
}

/// Every stream has brought something since the last look.
fn progress(streams: &[Stream]) {
    let before: Vec<u64> = streams.iter().map(Stream::arrived).collect();
    for (stream, before) in streams.iter().zip(before) {
        eventually(stream.name(), || (stream.arrived() > before || stream.wrong().is_some()).then_some(()));
        assert_eq!(stream.wrong(), None, "{}", stream.name());
    }
}

#[test]
fn connections_of_every_shape_go_along_back_and_forth() {
    with_place(|place| {
        let (mut streams, mut idle, mut full) = (Vec::new(), Vec::new(), Vec::new());
        for (n, (family, by)) in cases().enumerate() {
            let seed = n as u64 * 100;
            let what = |shape: &str| format!("{shape}, {}, opened by {by:?}", family.guest);
            let (guest, world) = open(place, family, by);
            streams.push(Stream::start(what("to the guest"), seed + 1, &world, &guest));
            let (guest, world) = open(place, family, by);
            streams.push(Stream::start(what("to the world"), seed + 2, &guest, &world));
            let (guest, world) = open(place, family, by);
            streams.push(Stream::start(what("to the guest, of both"), seed + 3, &world, &guest));
            streams.push(Stream::start(what("to the world, of both"), seed + 4, &guest, &world));
            let (guest, world) = open(place, family, by);
            guest.shutdown(Shutdown::Write).unwrap();
            streams.push(Stream::start(what("the guest has closed"), seed + 5, &world, &guest));
            let (guest, world) = open(place, family, by);
            world.shutdown(Shutdown::Write).unwrap();
            streams.push(Stream::start(what("the world has closed"), seed + 6, &guest, &world));
            idle.push(open(place, family, by));
            let (guest, world) = open(place, family, by);
            let (down, up) = (fill(&world, seed + 7), fill(&guest, seed + 8));
            full.push((seed, guest, world, down, up));
        }
        progress(&streams);
        for round in 0..6 {
            let moved = place.migrate();
            eprintln!("round {round}: {:?} with {} bytes of state", moved.downtime, moved.state);
            eventually("all connections", || {
                (place.process.counter("migrated_connections_in") == 28).then_some(())
            });
            for reason in ["migration_target", "migration_release"] {
                assert_eq!(place.process.dropped(reason), 0, "{reason}");
            }
            assert_eq!(moved.source.counter("migrated_connections_out"), 28);
            assert_eq!(moved.source.dropped("migration_state"), 0);
            progress(&streams);
            place.end(moved);
        }
        for (guest, world) in &idle {
            ping_pong(guest, world);
        }
        for (seed, guest, world, down, up) in full {
            drain(&guest, seed + 7, down);
            drain(&world, seed + 8, up);
            exchange(&guest, &world, 1 << 20);
        }
        let bytes: u64 = streams.into_iter().map(Stream::finish).sum();
        eprintln!("{bytes} bytes");
        assert_eq!(place.process.counter("tcp_resets"), 0);
    });
}

#[test]
fn megabytes_that_wait_unread_go_along() {
    with_place(|place| {
        // As the kernel lets queues grow by itself where much comes fast.
        place.pods.iter().for_each(|pod| pod.sysctl("ipv4/tcp_rmem", "4096 33554432 33554432"));
        let open: Vec<_> = families().map(|family| open(place, family, Opener::Guest)).into();
        let mut filled = vec![0; open.len()];
        for _ in 0..3 {
            // No socket has room for that by itself, and it must not become more from move to move.
            for ((_, world), bytes) in open.iter().zip(&mut filled) {
                *bytes = fill_on(world, 9, *bytes);
                assert!((16 << 20..40 << 20).contains(bytes), "{bytes}");
            }
            let moved = place.migrate();
            eventually("both connections", || {
                (place.process.counter("migrated_connections_in") == 2).then_some(())
            });
            assert!(moved.state > 16 << 20, "{}", moved.state);
            place.end(moved);
        }
        for ((guest, world), bytes) in open.iter().zip(filled) {
            drain(guest, 9, bytes);
            exchange(guest, world, 1 << 20);
        }
    });
}

#[test]
fn a_migration_that_fails_after_the_dump_costs_no_connection() {
    with_place(|place| {
        let open: Vec<_> = cases().map(|(family, by)| open(place, family, by)).collect();
        let streams: Vec<Stream> = open
            .iter()
            .enumerate()
            .flat_map(|(n, (guest, world))| {
                let n = n as u64;
                [Stream::start("down", n, world, guest), Stream::start("up", n + 50, guest, world)]
            })
            .collect();
        progress(&streams);
        for round in 0..3u64 {
            let positions = place.stop_guest();
            let state = place.pump.double().unwrap().save().unwrap();
            // No target hears of the state, a target takes it and dies, or a target refuses it.
            if round > 0 {
                let target = place.target();
                let helper = Helper::serve(&target.vhost_user(), Fault::None, || panic!("a guest arrives"));
                let state = if round == 1 { &state[..] } else { &state[..state.len() - 8] };
                let loaded = place.pump.double().unwrap().load(target.dial(), state);
                assert_eq!(loaded.is_ok(), round == 1);
                assert_eq!(target.counter("migrations_failed"), u64::from(round == 2));
                drop((loaded, target, helper));
            }
            place.go_on(&positions);
            eventually("the frozen connections", || {
                (place.helper.as_ref().unwrap().asked(Command::Thaw) >= open.len()).then_some(())
            });
            progress(&streams);
            assert_eq!(place.process.counter("migrations_undone"), round + 1);
        }
        let moved = place.migrate();
        progress(&streams);
        place.end(moved);
        assert!(streams.into_iter().all(|s| s.finish() > 0));
        assert_eq!(place.process.counter("tcp_resets"), 0);
    });
}

#[test]
fn a_helper_that_starts_anew_is_waited_for_while_the_rest_goes_on() {
    with_place(|place| {
        let (guest, world) = open(place, families()[0], Opener::Guest);
        let stream = [Stream::start("up", 1, &guest, &world)];
        progress(&stream);
        // At the target it dies when it is to release them; the next one does it.
        let target = place.target();
        let fault = Fault::Dies(Command::Release);
        let first = Helper::serve(&target.vhost_user(), fault, place.activation(1));
        let moved = place.migrate_to(target, Some(first));
        // New connections work meanwhile.
        let (g, w) = open(place, families()[1], Opener::World);
        ping_pong(&g, &w);
        place.helper = Some(Helper::serve(&place.process.vhost_user(), Fault::None, || {}));
        progress(&stream);
        place.end(moved);
        // The same where a migration has failed.
        place.helper = Some(Helper::serve(&place.process.vhost_user(), Fault::Dies(Command::Thaw), || {}));
        let positions = place.stop_guest();
        place.pump.double().unwrap().save().unwrap();
        place.go_on(&positions);
        let (g, w) = open(place, families()[1], Opener::Guest);
        ping_pong(&g, &w);
        place.helper = Some(Helper::serve(&place.process.vhost_user(), Fault::None, || {}));
        progress(&stream);
        assert!(stream.into_iter().all(|s| s.finish() > 0));
    });
}

#[test]
fn a_helper_that_dies_while_it_freezes_costs_nothing_where_the_guest_stays() {
    with_place(|place| {
        let (guest, world) = open(place, families()[0], Opener::Guest);
        let stream = [Stream::start("up", 1, &guest, &world)];
        progress(&stream);
        let at = place.process.vhost_user();
        place.helper = Some(Helper::serve(&at, Fault::Vanishes(Command::Freeze), || {}));
        let positions = place.stop_guest();
        place.pump.double().unwrap().save().unwrap();
        place.go_on(&positions);
        place.helper = Some(Helper::serve(&at, Fault::None, || {}));
        progress(&stream);
        assert!(stream.into_iter().all(|s| s.finish() > 0));
    });
}

#[test]
fn without_a_helper_connections_are_reset_at_both_ends_and_new_ones_work() {
    with_place(|place| {
        let open: Vec<_> = cases().map(|(family, by)| open(place, family, by)).collect();
        place.helper = None;
        let target = place.target();
        let moved = place.migrate_to(target, None);
        // No helper is told that the guest is here, so the address is moved without such a message.
        for (_, world) in &open {
            assert_reset(world);
        }
        place.activation(place.at)();
        for (guest, _) in &open {
            assert_reset(guest);
        }
        assert_eq!(moved.source.dropped("migration_helper"), open.len() as u64);
        assert_eq!(moved.source.counter("migrated_connections_out"), 0);
        place.end(moved);
        for (family, by) in cases() {
            let (guest, world) = self::open(place, family, by);
            exchange(&guest, &world, 1 << 20);
        }
    });
}

#[test]
fn what_cannot_be_frozen_or_released_ends_for_the_guest_and_the_rest_goes_on() {
    with_place(|place| {
        let (guest, world) = open(place, families()[0], Opener::Guest);
        let url = place.process.vhost_user();
        place.helper = Some(Helper::serve(&url, Fault::Refuses(Command::Freeze), || {}));
        let moved = place.migrate();
        assert_reset(&guest);
        assert_reset(&world);
        assert_eq!(moved.source.dropped("migration_state"), 1);
        place.end(moved);
        let (guest, _world) = open(place, families()[0], Opener::Guest);
        let target = place.target();
        let helper = Helper::serve(
            &target.vhost_user(),
            Fault::Refuses(Command::Release),
            place.activation(1 - place.at),
        );
        let moved = place.migrate_to(target, Some(helper));
        assert_reset(&guest);
        eventually("the count", || (place.process.dropped("migration_release") == 1).then_some(()));
        place.end(moved);
        let (guest, world) = open(place, families()[1], Opener::World);
        exchange(&guest, &world, 1 << 20);
    });
}

#[test]
fn who_connects_while_the_guest_moves_comes_to_the_target() {
    with_place(|place| {
        let listeners = families().map(|family| (family, place.guest.listen(family.any(7000))));
        let world = &place.world.clone();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let knocking = listeners.each_ref().map(|(family, _)| {
                let (to, stop) = (family.pod(7000), &stop);
                scope.spawn(move || {
                    let mut open = Vec::new();
                    while !stop.load(SeqCst) {
                        let opened = world.connect(to);
                        open.push(opened.unwrap_or_else(|e| panic!("connection {}: {e}", open.len())));
                        std::thread::sleep(Duration::from_millis(5));
                    }
                    open
                })
            });
            for _ in 0..4 {
                let moved = place.migrate();
                place.end(moved);
            }
            stop.store(true, SeqCst);
            for ((_, listener), knocking) in listeners.iter().zip(knocking) {
                let world = knocking.join().unwrap();
                eprintln!("{} connections", world.len());
                // Not all in the order in which they were opened.
                let guests: Vec<_> = world.iter().map(|_| listener.accept().0).collect();
                for mut guest in &guests {
                    guest.write_all(b"x").unwrap();
                }
                for mut world in &world {
                    world.read_exact(&mut [0]).unwrap();
                }
            }
        });
    });
}

/// How often the guest moves with each number of connections.
const MOVES: usize = 5;

/// Prints how long the guest stands still with these numbers of connections, of which either side has opened half.
fn measure(counts: &'static [usize]) {
    // Both ends of each connection are here, and netd has each of them twice while it moves.
    podvirt_proto::descriptors::raise_limit().unwrap();
    with_place(move |place| {
        let family = families()[0];
        let (world, guest) = (place.world.listen(family.client(7000)), place.guest.listen(family.any(7000)));
        let mut open: Vec<(TcpStream, TcpStream)> = Vec::new();
        let mut none = Duration::ZERO;
        for &count in counts {
            while open.len() < count {
                open.push(if open.len().is_multiple_of(2) {
                    (place.guest.connect(family.client(7000)).unwrap(), world.accept().0)
                } else {
                    let world = place.world.connect(family.pod(7000)).unwrap();
                    (guest.accept().0, world)
                });
            }
            let (mut down, mut all, mut state, mut peaks) = (Vec::new(), Vec::new(), 0, [0; 2]);
            for _ in 0..MOVES {
                let since = std::time::Instant::now();
                let moved = place.migrate();
                let process = &place.process;
                eventually("all connections", || {
                    (process.counter("migrated_connections_in") == count as u64).then_some(())
                });
                all.push(since.elapsed());
                down.push(moved.downtime);
                (state, peaks) = (moved.state, [moved.source.peak(), process.peak()]);
                place.end(moved);
            }
            down.sort();
            all.sort();
            let (median, most, all) = (down[MOVES / 2], down[MOVES - 1], all[MOVES / 2]);
            if count == 0 {
                none = median;
            }
            eprintln!(
                "{count} connections: the guest stands still for {median:.1?}, at most {most:.1?}, {:.1?} of it for \
                 them; all speak {all:.1?} after it stopped to be copied; {state} bytes of state; \
                 source and target had {} and {} MiB at most",
                median.saturating_sub(none),
                peaks[0] >> 10,
                peaks[1] >> 10
            );
        }
        for (guest, world) in open.iter().step_by(97) {
            ping_pong(guest, world);
        }
    });
}

#[test]
fn a_thousand_connections_go_along() {
    measure(&[0, 1000]);
}

#[test]
#[ignore = "a measurement: cargo test -p netd --release --test datapath -- --ignored --nocapture ten_thousand"]
fn ten_thousand_connections_go_along() {
    // What 20,000 descriptors are enough for.
    measure(&[0, 1000, 5000, 9800]);
}
