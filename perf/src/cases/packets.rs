//! Packets without a guest: what testpmd returns, what it makes, and what the rings allow.
//!
//! Echo keeps a number of datagrams of one socket under way and counts those that come back; with the rings polled and
//! two processors, backend and client share one. The client hands the kernel 32 datagrams in one call, or its own cost would
//! be what is measured; `udp_echo_plain_*` is the same with a client that makes a call for each.

use std::net::{SocketAddr, SocketAddrV4};

use anyhow::{Context, Result};
use podvirt_e2e::{Process, until};
use serde_json::Value;

use super::Found;
use crate::bed::{Bed, GUEST_PORT, Pace, TIMEOUT, number};
use crate::frontends::double::{self, Full};
use crate::frontends::testpmd;

/// Datagrams under way: as many as fit a socket's receive buffer with room to spare.
const WINDOW: u32 = 128;

pub(super) fn echo(bed: &mut Bed, pace: &Pace, found: &mut Found) -> Result<()> {
    let (seconds, address) = (pace.short.as_secs_f64(), bed.guest_address(GUEST_PORT));
    // That testpmd has started does not say that it looks at its rings.
    until("an echo", TIMEOUT, || Ok(bed.ask_client(&format!("udp-rr {address} 0.05 64")).ok()))?;
    for size in bed.setup.sizes.clone() {
        let answer = bed.ask_client(&format!("udp-rr {address} {seconds} {size}"))?;
        // The smallest size has the plain name.
        let of = |what: &str| {
            bed.name(&if size == 64 { format!("udp_echo_{what}") } else { format!("udp_echo_{size}_{what}") })
        };
        found.put(of("rtt_p50"), number(&answer, "p50")?);
        found.put(of("rtt_p99"), number(&answer, "p99")?);
        for (gso, kind) in [(" gso", ""), ("", "plain_")] {
            let before = bed.sample()?;
            let answer = bed.ask_client(&format!("udp-echo {address} {seconds} {size} {WINDOW}{gso}"))?;
            let used = bed.since(&before)?;
            let per_second = number(&answer, "per_second")?;
            found.put(of(&format!("{kind}pps")), per_second);
            found.put(of(&format!("{kind}lost")), number(&answer, "lost_share")?);
            if let Some(backend) = used.backend {
                let packets = per_second * used.wall;
                found.put(of(&format!("{kind}cpu_us")), backend.total() * 1e6 / packets.max(1.0));
            }
        }
    }
    Ok(())
}

pub(super) fn send_only(bed: &mut Bed, pace: &Pace, found: &mut Found) -> Result<()> {
    for size in bed.setup.sizes.clone() {
        let sink = sink(bed, pace)?;
        let testpmd = bed.machine.testpmd()?;
        testpmd.send(size)?;
        let before = testpmd.sent()?;
        let answer = counted(&sink)?;
        let sent = bed.machine.testpmd()?.sent()? - before;
        let came = number(&answer, "count")?;
        found.put(bed.name(&format!("udp_tx_{size}_pps")), number(&answer, "per_second")?);
        // What the ring took and the sink did not get; the ring's own fullness is no loss.
        found.put(bed.name(&format!("udp_tx_{size}_lost")), (1.0 - came / sent.max(1.0)).clamp(0.0, 1.0));
    }
    Ok(())
}

pub(super) fn ceiling(bed: &mut Bed, pace: &Pace, found: &mut Found) -> Result<()> {
    let time = pace.short;
    let useless = [double::useless()?];
    double::pump(bed.machine.double()?, &useless, time / 5, Full::Spin)?;
    found.put(bed.name("ring_discard_pps"), double::pump(bed.machine.double()?, &useless, time, Full::Spin)?);
    let sink = sink(bed, pace)?;
    let size = bed.setup.sizes.first().copied().context("no size")?;
    let to = SocketAddrV4::new(bed.pod.net.client4, testpmd::SINK);
    let datagram = [double::datagram(testpmd::SINK, to, size)?];
    // Somewhat longer than the sink counts.
    let taken = double::pump(bed.machine.double()?, &datagram, time * 3 / 2, Full::Spin)?;
    found.put(bed.name("ring_udp_taken_pps"), taken);
    found.put(bed.name("ring_udp_pps"), number(&counted(&sink)?, "per_second")?);
    Ok(())
}

/// A sink that counts at the client.
fn sink(bed: &Bed, pace: &Pace) -> Result<Process> {
    let seconds = pace.short.as_secs_f64();
    let sink = bed.start_at_client("sink", &format!("udp-sink {} {seconds}", testpmd::SINK))?;
    let address = SocketAddr::from((bed.pod.net.client4, testpmd::SINK));
    // Bound when another cannot be.
    until("the sink", TIMEOUT, || {
        let free = bed.pod.net.client.enter(|| Ok(std::net::UdpSocket::bind(address).is_ok()))?;
        Ok((!free).then_some(()))
    })?;
    Ok(sink)
}

fn counted(sink: &Process) -> Result<Value> {
    until("the sink's count", TIMEOUT * 2, || {
        let log = sink.log();
        Ok(log.lines().last().and_then(|line| serde_json::from_str(line).ok()))
    })
    .with_context(|| sink.log())
}
