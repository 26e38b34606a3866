//! Many connections at once: how fast they are opened, what memory each takes, and how fast a bulk stream is beside them.
//!
//! The guest connects; every connection has had a byte echoed and is idle afterwards. The numbers grow, so memory is
//! compared with that before the first connection. Memory of the backend is what is its own (heap and stacks; a pod without
//! a guest has none); that of
//! the kernel is what the whole machine's slab grew by, which has the sockets of the peers, too.
//!
//! At the end netd is updated a few times beside a thousand of them: how long each update held the guest up.
//!
//! A peer that cannot carry a number of connections has reached a lower one, which is its result: `flows_reached` is the
//! most that were open at once, and nothing else is measured at that number or beyond.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use podvirt_e2e::until;
use serde_json::Value;

use super::Found;
use super::transfer::{self, Direction};
use crate::bed::{Bed, CLIENT_PORT, Pace, TIMEOUT, number};
use crate::stats::Summary;
use crate::usage;

/// Where the agent's answer is.
pub(super) const ANSWER: &str = "/tmp/flows.json";
/// Connections beside which netd is updated.
const UPDATED: usize = 1000;
/// How often it is.
const UPDATES: u64 = 5;
/// The share of connections that must be open for a number to count as reached; how many failed is recorded.
const REACHED: f64 = 0.99;
/// The agent gives up after a minute, and waits up to five seconds for silent ones.
const OPENING: Duration = Duration::from_secs(75);

pub(super) fn run(bed: &mut Bed, pace: &Pace, found: &mut Found) -> Result<()> {
    bed.serve_at_client()?;
    // What a first connection brings along is not the connections'.
    let address = SocketAddr::from((bed.client(), CLIENT_PORT));
    bed.ask_guest(&format!("rr {address} 0.1 1"), pace.short)?;
    let backend = bed.backend.as_ref().map(|backend| backend.process.init_pid()).transpose()?;
    let private = || {
        let memory = backend.map(usage::memory).transpose()?;
        anyhow::Ok(memory.map(|memory| memory.anonymous_mib * 1024.0 * 1024.0))
    };
    let (private_before, slab_before) = (private()?, usage::slab_bytes()?);
    // Less than other bulk measurements: there are many. One second tells little.
    let bulk = Pace { seconds: pace.seconds.div_ceil(2).max(2), ..pace.clone() };
    for &count in &pace.flows {
        let answer =
            open(bed, &format!("flows {address} {count}")).with_context(|| format!("{count} connections"))?;
        let (held, failed) = (number(&answer, "held")?, number(&answer, "failed")?);
        found.put(bed.name("flows_reached"), held);
        if !reached(held, count) {
            return Ok(());
        }
        found.put(bed.name(&format!("flows_failed_{count}")), failed);
        found.put(bed.name(&format!("flows_setup_{count}")), number(&answer, "per_second")?);
        #[allow(clippy::cast_precision_loss, reason = "at most some ten thousand")]
        let each = |bytes: f64| bytes / count as f64;
        if count >= 1000 {
            if let (Some(now), Some(before)) = (private()?, private_before) {
                found.put(bed.name(&format!("flows_bytes_{count}")), each(now - before));
            }
            found.put(
                bed.name(&format!("flows_kernel_bytes_{count}")),
                each(usage::slab_bytes()? - slab_before),
            );
        }
        for direction in Direction::BOTH {
            let transfer = transfer::iperf(bed, &bulk, direction, "")
                .with_context(|| format!("{} beside {count} connections", direction.key()))?;
            let name = bed.name(&format!("flows_tcp_{}_{count}", direction.key()));
            found.put(name, transfer.receiver.gbits()?);
            if let Some(cost) = transfer.backend_per_gb() {
                found.put(bed.name(&format!("flows_cpu_per_gb_{}_{count}", direction.key())), cost);
            }
        }
        bed.machine.linux()?.sh("kill $flows; wait $flows", TIMEOUT)?;
    }
    let slopes = pace.flows.last().filter(|last| **last > 1000).map(|last| {
        ["flows_setup", "flows_tcp_g2h", "flows_tcp_h2g"].map(|quantity| {
            let at = |count: usize| found.figures.get(&bed.name(&format!("{quantity}_{count}"))).copied();
            let slope = at(*last).zip(at(1000)).map(|(many, few)| many / few);
            (bed.name(&format!("{quantity}_slope")), slope)
        })
    });
    for (name, slope) in slopes.into_iter().flatten() {
        if let Some(slope) = slope {
            found.put(name, slope);
        }
    }
    updates(bed, address, found).context("updates")
}

/// Live updates of netd beside idle connections, which it alone has.
fn updates(bed: &mut Bed, address: SocketAddr, found: &mut Found) -> Result<()> {
    if !bed.backend.as_ref().is_some_and(|backend| backend.control.exists()) {
        return Ok(());
    }
    let answer = open(bed, &format!("flows {address} {UPDATED}"))?;
    let held = number(&answer, "held")?;
    ensure!(reached(held, UPDATED), "{held} connections of {UPDATED}");
    let mut pauses = Vec::new();
    for generation in 1..=UPDATES {
        let backend = bed.backend.as_mut().context("no backend")?;
        backend.update(&bed.pod, generation)?;
        pauses.push(backend.pause()?.as_secs_f64() * 1000.0);
    }
    if let Some(summary) = Summary::of(pauses) {
        found.put(bed.name(&format!("update_pause_ms_{UPDATED}")), summary.median);
        found.put(bed.name(&format!("update_pause_max_ms_{UPDATED}")), summary.max);
    }
    bed.machine.linux()?.sh("kill $flows; wait $flows", TIMEOUT).map(drop)
}

/// Whether so many connections are as many as were wanted, but for a few.
pub(super) fn reached(held: f64, count: usize) -> bool {
    #[allow(clippy::cast_precision_loss, reason = "at most some ten thousand")]
    let wanted = count as f64;
    held >= wanted * REACHED
}

/// Has the guest's agent open connections, which stay open; the shell's `flows` is the process that holds them.
pub(super) fn open(bed: &mut Bed, words: &str) -> Result<Value> {
    let guest = bed.machine.linux()?;
    guest.sh(&format!(": >{ANSWER}; /tmp/agent {words} >{ANSWER} 2>&1 & flows=$!"), TIMEOUT)?;
    let text = until("the connections", OPENING, || {
        let text = guest.sh(&format!("cat {ANSWER}"), TIMEOUT)?;
        Ok((!text.is_empty()).then_some(text))
    })?;
    serde_json::from_str(&text).with_context(|| format!("the guest's agent says: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_that_are_missing_do_not_matter() {
        assert!(reached(18_000.0, 18_000) && reached(17_820.0, 18_000));
        assert!(!reached(17_819.0, 18_000) && !reached(0.0, 1));
    }
}
