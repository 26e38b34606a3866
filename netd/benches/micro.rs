//! Time of netd's inner loops: rings, headers, checksum, flow table, timers. Caches are warm and nothing else happens: what
//! a packet costs in the whole is measured by `make perf`, which also reports what is found here.
//!
//! `cargo bench -p netd --bench micro [-- ring]`

#![allow(
    missing_docs,
    clippy::indexing_slicing,
    reason = "the macros make public functions without documentation; indices are masked"
)]

mod work;

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use work::{Flows, Frames, Rings, TURN};

fn rings(c: &mut Criterion) {
    let mut group = c.benchmark_group("ring");
    group.throughput(Throughput::Elements(TURN as u64));
    for (name, descriptors) in [("pop_push", 1), ("pop_push_chain_of_2", 2)] {
        let mut rings = Rings::new(descriptors);
        group.bench_function(name, |b| b.iter(|| rings.turn()));
    }
}

fn headers(c: &mut Criterion) {
    let mut group = c.benchmark_group("wire");
    group.throughput(Throughput::Elements(TURN as u64));
    let mut frames = Frames::new();
    group.bench_function("parse_tcp", |b| b.iter(|| frames.parse_tcp()));
    group.bench_function("parse_udp", |b| b.iter(|| frames.parse_udp()));
    group.bench_function("build_tcp", |b| b.iter(|| frames.build_tcp()));
    group.bench_function("build_udp", |b| b.iter(|| frames.build_udp()));
    group.bench_function("checksum_1448", |b| b.iter(|| frames.checksum()));
}

fn flows(c: &mut Criterion) {
    let mut group = c.benchmark_group("flow");
    group.throughput(Throughput::Elements(TURN as u64));
    for (name, count) in [("1k", 1 << 10), ("18k", 18_000), ("131k", 1 << 17)] {
        let mut flows = Flows::new(count);
        group.bench_function(format!("find_{name}"), |b| b.iter(|| flows.find()));
        group.bench_function(format!("replace_{name}"), |b| b.iter(|| flows.replace()));
        group.bench_function(format!("timer_{name}"), |b| b.iter(|| flows.timers()));
        let mut memory = Memory::new(count);
        group.bench_function(format!("memory_{name}"), |b| b.iter(|| memory.read()));
    }
}

/// A cache line, as a slot of the flow table is.
#[repr(align(64))]
struct Line(u64);

/// What a look-up waits for, without the look-up: a bucket of an index and then the slot that it names, both of the sizes of a
/// flow table's.
struct Memory {
    buckets: Vec<u64>,
    slots: Vec<Line>,
    at: usize,
}

impl Memory {
    /// As of a table of `count` flows.
    fn new(count: usize) -> Memory {
        // As netd's index: three quarters full at most.
        let buckets = (count * 4 / 3 + 1).next_power_of_two();
        // Neighbours in the index are none among the slots. Prime to any number of flows that is measured.
        let slot = |n: usize| (n * 60_013 % count) as u64;
        Memory {
            buckets: (0..buckets).map(slot).collect(),
            slots: (0..count).map(|_| Line(0)).collect(),
            at: 0,
        }
    }

    /// Reads [`TURN`] pairs, far from each other, each after the one before: where the next pair is depends on what is read.
    fn read(&mut self) {
        for _ in 0..TURN {
            let slot = self.buckets[self.at];
            let zero = black_box(&self.slots)[slot as usize].0;
            self.at = (self.at + 7_919 + zero as usize) & (self.buckets.len() - 1);
        }
    }
}

criterion_group!(benches, rings, headers, flows);
criterion_main!(benches);
