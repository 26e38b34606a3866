//! Host to guest where no guest's receiving is the limit: a [receiver](crate::frontends::receiver) on the double's rings takes what
//! one and four streams of the client's bring, and answers its requests.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;

use super::Found;
use crate::bed::{Bed, GUEST_PORT, Pace, TIMEOUT, number};
use crate::frontends::Machine;
use crate::frontends::receiver::{Receiver, receive, serve};

/// Until the peer's congestion window is open; what comes meanwhile is not counted.
const WARM_UP: Duration = Duration::from_secs(1);

pub(super) fn run(bed: &mut Bed, pace: &Pace, found: &mut Found) -> Result<()> {
    for streams in [1, 4] {
        bulk(bed, pace, streams, found).with_context(|| format!("{streams} streams"))?;
    }
    let Machine::Double(mut double) = std::mem::replace(&mut bed.machine, Machine::Lent) else {
        return None.context("the frontend is not the double");
    };
    let (goes, mut receiver) = (AtomicBool::new(true), Receiver::new(bed.setup.mtu, true));
    let result = thread::scope(|scope| {
        let serving = scope.spawn(|| serve(&mut double, &mut receiver, &goes));
        let asked = ask(bed, pace, found);
        goes.store(false, Ordering::Relaxed);
        serving.join().ok().context("the receiver panicked")??;
        asked
    });
    bed.machine = Machine::Double(double);
    result
}

/// So many streams.
fn bulk(bed: &mut Bed, pace: &Pace, streams: u32, found: &mut Found) -> Result<()> {
    let many = if streams == 1 { String::new() } else { streams.to_string() };
    let address = bed.guest_address(GUEST_PORT);
    let mut client = bed.start_at_client("stream", &format!("stream {address} {streams}"))?;
    let mut receiver = Receiver::new(bed.setup.mtu, false);
    receive(bed.machine.double()?, &mut receiver, WARM_UP)?;
    ensure!(receiver.bytes > 0, "nothing came: {}", client.log());
    let (bytes, before) = (receiver.bytes, bed.sample()?);
    receive(bed.machine.double()?, &mut receiver, Duration::from_secs(pace.seconds.into()))?;
    let used = bed.since(&before)?;
    // Its processor time is known once it has been waited for.
    client.signal(Signal::SIGTERM)?;
    client.wait(TIMEOUT)?;
    #[allow(clippy::cast_precision_loss, reason = "a count of bytes")]
    let gigabytes = (receiver.bytes - bytes) as f64 / 1e9;
    found.put(bed.name_with_mtu(&format!("receiver{many}")), gigabytes * 8.0 / used.wall);
    if let Some(backend) = used.backend {
        let per_gb = backend.total() / gigabytes.max(f64::MIN_POSITIVE);
        found.put(bed.name_with_mtu(&format!("receiver{many}_cpu_per_gb")), per_gb);
        let share = backend.user / backend.total().max(f64::MIN_POSITIVE);
        found.put(bed.name_with_mtu(&format!("receiver{many}_user_share")), share);
    }
    Ok(())
}

/// Round trips of a byte, and connections.
fn ask(bed: &Bed, pace: &Pace, found: &mut Found) -> Result<()> {
    let (seconds, address) = (pace.short.as_secs_f64(), bed.guest_address(GUEST_PORT));
    let answer = bed.ask_client(&format!("rr {address} {seconds} 1"))?;
    for rank in ["p50", "p99"] {
        found.put(bed.name_with_mtu(&format!("receiver_rr_{rank}")), number(&answer, rank)?);
    }
    let answer = bed.ask_client(&format!("crr {address} {seconds}"))?;
    found.put(bed.name_with_mtu("receiver_crr"), number(&answer, "per_second")?);
    found.put(bed.name_with_mtu("receiver_crr_failed"), number(&answer, "failed")?);
    Ok(())
}
