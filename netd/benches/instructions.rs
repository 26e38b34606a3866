//! Instructions of netd's inner loops, counted under valgrind: the same on every run, so that a change of a few percent shows
//! on a busy machine. `make bench` compares them with `instructions.json`.

#![allow(
    missing_docs,
    clippy::exit,
    reason = "the macros make undocumented public functions and end the program"
)]

mod work;

use gungraun::{library_benchmark, library_benchmark_group, main};
use work::{Flows, Frames, Rings};

/// Turns after which caches, tables and queues are as they stay.
const SETTLED: usize = 32;

fn settled<T>(mut state: T, mut turn: impl FnMut(&mut T)) -> T {
    (0..SETTLED).for_each(|_| turn(&mut state));
    state
}

fn rings(descriptors: u16) -> Rings {
    settled(Rings::new(descriptors), Rings::turn)
}

fn flows(count: usize) -> Flows {
    settled(Flows::new(count), Flows::timers)
}

// What a benchmark returns is dropped after the counting.

#[library_benchmark]
#[bench::one(args = (1), setup = rings)]
#[bench::two(args = (2), setup = rings)]
fn ring_pop_push(mut rings: Rings) -> Rings {
    rings.turn();
    rings
}

#[library_benchmark]
#[bench::turn(Frames::new())]
fn wire_parse_tcp(frames: Frames) -> Frames {
    frames.parse_tcp();
    frames
}

#[library_benchmark]
#[bench::turn(Frames::new())]
fn wire_parse_udp(frames: Frames) -> Frames {
    frames.parse_udp();
    frames
}

#[library_benchmark]
#[bench::turn(Frames::new())]
fn wire_build_tcp(mut frames: Frames) -> Frames {
    frames.build_tcp();
    frames
}

#[library_benchmark]
#[bench::turn(Frames::new())]
fn wire_build_udp(mut frames: Frames) -> Frames {
    frames.build_udp();
    frames
}

#[library_benchmark]
#[bench::turn(Frames::new())]
fn wire_checksum_1448(frames: Frames) -> Frames {
    frames.checksum();
    frames
}

#[library_benchmark]
#[bench::of_1k(args = (1 << 10), setup = flows)]
#[bench::of_18k(args = (18_000), setup = flows)]
fn flow_find(mut flows: Flows) -> Flows {
    flows.find();
    flows
}

#[library_benchmark]
#[bench::of_1k(args = (1 << 10), setup = flows)]
fn flow_replace(mut flows: Flows) -> Flows {
    flows.replace();
    flows
}

#[library_benchmark]
#[bench::of_1k(args = (1 << 10), setup = flows)]
fn flow_timers(mut flows: Flows) -> Flows {
    flows.timers();
    flows
}

library_benchmark_group!(
    name = inner_loops,
    benchmarks = [
        ring_pop_push,
        wire_parse_tcp,
        wire_parse_udp,
        wire_build_tcp,
        wire_build_udp,
        wire_checksum_1448,
        flow_find,
        flow_replace,
        flow_timers
    ]
);

main!(library_benchmark_groups = inner_loops);
