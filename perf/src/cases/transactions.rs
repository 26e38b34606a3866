//! Requests and responses of one byte: over one connection, each over a connection of its own, and by datagrams.
//!
//! `h2g`: the client asks, the guest answers. `g2h`: the guest asks. Times are in microseconds as the asking program
//! sees them.

use std::net::SocketAddr;

use anyhow::{Context, Result};

use super::Found;
use crate::bed::{Bed, CLIENT_PORT, GUEST_PORT, Pace, number};

/// Bytes of a datagram.
const DATAGRAM: u32 = 64;

pub(super) fn round_trips(bed: &mut Bed, pace: &Pace, found: &mut Found) -> Result<()> {
    for (quantity, command, last) in
        [("tcp_rr", "rr", "1".to_owned()), ("udp_rr", "udp-rr", DATAGRAM.to_string())]
    {
        ask(bed, pace, found, quantity, command, &last)?;
    }
    Ok(())
}

pub(super) fn connections(bed: &mut Bed, pace: &Pace, found: &mut Found) -> Result<()> {
    ask(bed, pace, found, "tcp_crr", "crr", "")?;
    Ok(())
}

/// One measurement both ways. For connections the rate is the figure itself.
fn ask(
    bed: &mut Bed,
    pace: &Pace,
    found: &mut Found,
    quantity: &str,
    command: &str,
    last: &str,
) -> Result<()> {
    bed.serve_in_guest()?;
    bed.serve_at_client()?;
    let seconds = pace.short.as_secs_f64();
    for direction in ["h2g", "g2h"] {
        let address = match direction {
            "h2g" => bed.guest_address(GUEST_PORT),
            _ => SocketAddr::from((bed.client(), CLIENT_PORT)),
        };
        let words = format!("{command} {address} {seconds} {last}");
        let answer = match direction {
            "h2g" => bed.ask_client(words.trim_end()),
            _ => bed.ask_guest(words.trim_end(), pace.short),
        };
        let answer = answer.with_context(|| format!("{quantity} {direction}"))?;
        let name = format!("{quantity}_{direction}");
        let rate = if quantity == "tcp_crr" { name.clone() } else { format!("{name}_rate") };
        found.put(bed.name(&rate), number(&answer, "per_second")?);
        found.put(bed.name(&format!("{name}_p50")), number(&answer, "p50")?);
        found.put(bed.name(&format!("{name}_p99")), number(&answer, "p99")?);
        found.put(bed.name(&format!("{name}_failed")), number(&answer, "failed")?);
    }
    Ok(())
}
