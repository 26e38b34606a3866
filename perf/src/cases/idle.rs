//! What a backend costs that has nothing to do: its memory before any payload, CPU time, and how often it wakes up.
//!
//! The kernel's memory is what the whole machine's slab grew by; it is told where the backend is a program.

use std::thread::sleep;
use std::time::Instant;

use anyhow::Result;

use super::Found;
use crate::bed::{Bed, Pace};
use crate::usage;

pub(super) fn run(bed: &mut Bed, pace: &Pace, found: &mut Found) -> Result<()> {
    found.put(bed.name("boot_seconds"), bed.boot_seconds);
    let Some(backend) = &bed.backend else { return Ok(()) };
    let init = backend.process.init_pid()?;
    let memory = usage::memory(init)?;
    found.put(bed.name("idle_rss_mib"), memory.rss_mib);
    found.put(bed.name("idle_private_mib"), memory.anonymous_mib);
    let (begin, cpu, wakeups) = (Instant::now(), usage::cpu(init)?, usage::wakeups(init)?);
    sleep(pace.idle);
    let seconds = begin.elapsed().as_secs_f64();
    found.put(bed.name("idle_cpus"), (usage::cpu(init)? - cpu).total() / seconds);
    found.put(bed.name("idle_wakeups_per_10s"), (usage::wakeups(init)? - wakeups) / seconds * 10.0);
    Ok(())
}
