//! The machine that is to be left alone: what it reaches.

use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::Extent;
use crate::bed::{Bed, GUEST_PORT, Pace, number};
use crate::cases::transfer::{Direction, iperf};

/// Round trips a second that are asked for: far from what the machine can, so that its limit of processor time is not what
/// is measured.
const ROUND_TRIPS: u32 = 400;
/// Connections a second.
const CONNECTIONS: u32 = 100;

/// What it reaches now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Reached {
    /// One TCP stream as fast as it goes, guest to host, Gbit/s.
    pub(crate) out_gbits: f64,
    /// Host to guest.
    pub(crate) in_gbits: f64,
    /// Round trips over one connection, µs.
    pub(crate) round_trip: Times,
    /// Connections, opened, used once and closed, µs.
    pub(crate) connection: Times,
}

/// Times of many events in µs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Times {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    /// Events that came to nothing.
    pub(crate) failed: f64,
}

/// Measures, one after the other.
///
/// # Errors
/// Something cannot be measured: it has stopped.
pub(super) fn reaches(bed: &mut Bed, extent: &Extent) -> Result<Reached> {
    let pace = Pace {
        seconds: extent.bulk_seconds,
        warm_up_seconds: 0,
        short: Duration::ZERO,
        idle: Duration::ZERO,
        flows: Vec::new(),
    };
    let mut stream = |direction: Direction| {
        iperf(bed, &pace, direction, "")
            .and_then(|transfer| transfer.receiver.gbits())
            .with_context(|| format!("a stream {}", direction.key()))
    };
    let (out_gbits, in_gbits) = (stream(Direction::G2h)?, stream(Direction::H2g)?);
    let (address, seconds) = (bed.guest_address(GUEST_PORT), extent.stretch.as_secs_f64());
    let stretch = |request: String, what: &'static str| {
        bed.ask_client(&request).and_then(|answer| times(&answer)).context(what)
    };
    let round_trip = stretch(format!("rr {address} {seconds} 1 {ROUND_TRIPS}"), "round trips")?;
    let connection = stretch(format!("crr {address} {seconds} {CONNECTIONS}"), "connections")?;
    Ok(Reached { out_gbits, in_gbits, round_trip, connection })
}

fn times(answer: &serde_json::Value) -> Result<Times> {
    let of = |name| number(answer, name);
    Ok(Times { p50: of("p50")?, p99: of("p99")?, failed: of("failed")? })
}
