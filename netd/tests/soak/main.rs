//! netd under mixed load for a long time, or, where `SOAK_MINUTES` is not set, for a few rounds: the program as it is
//! shipped must neither grow nor keep descriptors.
//!
//! ```text
//!   guest ── tap0 ── TapPump ── Double ══ vhost-user ══ netd (in pod) ── eth0 ── veth ── eth0  client
//! ```
//!
//! Streams both ways whose every byte is compared, connections that come and go both ways, UDP echoes from ever new
//! ports and pings run all the time and over both address families. Between rounds the frontend goes and comes back,
//! in turn with its rings as they were and with new ones. A round is over when every kind of load has made progress.
//! What netd uses is noted after each round; the line of best fit through the second half must be flat. At the end,
//! with all load gone, there must be as many descriptors as at the start.

// The configuration's permission for tests does not reach helpers of an integration test.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "../shared/daemon.rs"]
mod daemon;
mod load;
mod pod;

use std::time::{Duration, Instant};

use load::Load;
use pod::Pod;

/// Rounds of the short run.
const ROUNDS: usize = 24;
/// What each kind of load does in a round, at least.
const PROGRESS: u64 = 20;
/// By how much the fitted lines may rise over the second half: the noise of an allocator, and of flows that come and
/// go as they please.
const KIB: f64 = 1024.0;
const DESCRIPTORS: f64 = 32.0;

/// What netd uses.
#[derive(Clone, Copy, Debug)]
struct Sample {
    memory: u64,
    descriptors: usize,
}

#[test]
fn nothing_grows_under_load() {
    if !pod::privileged() {
        return;
    }
    let minutes: Option<u64> = std::env::var("SOAK_MINUTES").ok().map(|m| m.parse().expect("SOAK_MINUTES"));
    let end = minutes.map(|m| Instant::now() + Duration::from_secs(60 * m));
    let mut pod = Pod::new();
    let (start, kinds) = (pod.sample(), pod.descriptors());
    let load = Load::start(&pod);
    let mut samples = Vec::new();
    while end.map_or(samples.len() < ROUNDS, |end| Instant::now() < end) {
        load.progress(PROGRESS);
        pod.reconnect(samples.len() % 2 == 0);
        let sample = pod.sample();
        if samples.len() % 20 == 0 {
            println!("round {}: {sample:?}, {load}", samples.len());
        }
        samples.push(sample);
    }
    println!("{} rounds, {load}", samples.len());
    load.stop();
    pod.idle();
    let finish = pod.sample();
    println!("at the start {start:?}, at the end {finish:?}");
    assert_eq!(pod.descriptors(), kinds, "descriptors without load");
    let half = &samples[samples.len() / 2..];
    let memory = rise(half.iter().map(|s| s.memory as f64));
    let descriptors = rise(half.iter().map(|s| s.descriptors as f64));
    println!("over the second half: {memory:.1} KiB, {descriptors:.1} descriptors");
    assert!(memory <= KIB, "memory rises by {memory:.1} KiB: {half:?}");
    // In a short run this is the number of flows at the moment; that none stays is told by the count without load.
    if minutes.is_some() {
        assert!(descriptors <= DESCRIPTORS, "descriptors rise by {descriptors:.1}: {half:?}");
    }
}

/// By how much the line of best fit rises from the first to the last value.
fn rise(values: impl ExactSizeIterator<Item = f64> + Clone) -> f64 {
    let n = values.len() as f64;
    let (mean_x, mean_y) = ((n - 1.0) / 2.0, values.clone().sum::<f64>() / n);
    let points = || values.clone().enumerate().map(|(x, y)| (x as f64 - mean_x, y - mean_y));
    let slope = points().map(|(x, y)| x * y).sum::<f64>() / points().map(|(x, _)| x * x).sum::<f64>();
    slope * (n - 1.0)
}

#[test]
fn the_line_of_best_fit_tells_noise_from_growth() {
    let noise = [5.0, 7.0, 6.0, 5.0, 7.0, 6.0, 5.0, 7.0, 6.0];
    assert!(rise(noise.into_iter()).abs() < 1.0);
    assert!((rise((0..100).map(f64::from)) - 99.0).abs() < 1e-9);
}
