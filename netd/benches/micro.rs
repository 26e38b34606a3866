//! Time of netd's inner loops: rings, headers, checksum, flow table, timers. Caches are warm and nothing else happens: what
//! a packet costs in the whole is measured by `make perf`, which also reports what is found here.
//!
//! `cargo bench -p netd --bench micro [-- ring]`

#![allow(missing_docs, reason = "the macros make public functions without documentation")]

mod work;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use work::{Flows, Frames, Memory, Rings, TURN};

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

criterion_group!(benches, rings, headers, flows);
criterion_main!(benches);
