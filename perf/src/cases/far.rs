//! A thousand connections to a peer that is far away: what the backend costs where every acknowledgement is waited for.
//!
//! ```text
//!   guest ── backend ── pod ── veth ── client (forwards) ── tap ── 10 ms ── tap ── far peer, which counts
//! ```
//!
//! The delay is that of packets, so the pod's sockets see the round trip as they would on a long link; large frames cross it
//! as one, and it has no rate. Each connection sends a burst that fits into a first congestion window (RFC 6928), then the next
//! a tenth of a second later: 1 Mbit/s. The bursts of all are spread evenly, so that no two of a connection are under way at once.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use frontend_double::{LongWire, TapOptions};
use podvirt_e2e::{Family, Net, Netns, until};

use super::{Found, flows};
use crate::bed::{Bed, Pace, TIMEOUT, number, parse};

/// From one end of the link to the other.
const DELAY: Duration = Duration::from_millis(10);
/// Where the peer counts.
const PORT: u16 = 7002;
/// Connections at once.
const CONNECTIONS: usize = 1000;
/// What each sends at once, and how often.
const BYTES: usize = 12_500;
const EVERY: Duration = Duration::from_millis(100);

pub(super) fn run(bed: &mut Bed, pace: &Pace, found: &mut Found) -> Result<()> {
    let netns = bed.pod.net.far()?;
    let tap = |netns: &Netns| TapOptions { name: Net::FAR_TAP.into(), netns: Some(netns.path()) };
    let _wire = LongWire::join([&tap(&bed.pod.net.client), &tap(&netns)], DELAY)?;
    let _peer = bed.start_at(&netns, "far", &format!("sink {PORT}"))?;
    let here = SocketAddr::from((Ipv4Addr::LOCALHOST, PORT));
    until("the far peer", TIMEOUT, || Ok(netns.enter(|| Ok(TcpStream::connect(here)?)).ok()))?;
    let peer: IpAddr = if bed.setup.family == Family::V4 { Net::FAR4.into() } else { Net::FAR6.into() };
    let address = SocketAddr::from((peer, PORT));

    let alone = bed.ask_guest(&format!("crr {address} {}", pace.short.as_secs_f64()), pace.short)?;
    found.put(bed.name("far_crr_p50"), number(&alone, "p50")?);
    let every = EVERY.as_millis();
    let words = format!("pace {address} {CONNECTIONS} {} {BYTES} {every}", pace.seconds);
    let opened = flows::open(bed, &words)?;
    let held = number(&opened, "held")?;
    ensure!(flows::reached(held, CONNECTIONS), "{held} connections of {CONNECTIONS}");
    let before = bed.sample()?;
    let limit = Duration::from_secs(pace.seconds.into()) + TIMEOUT;
    let sent =
        bed.machine.linux()?.sh(&format!("kill -USR1 $flows; wait $flows; cat {}", flows::ANSWER), limit)?;
    let used = bed.since(&before)?;
    let sent = parse(&sent).context("the guest's agent")?;
    let gigabytes = number(&sent, "arrived")? / 1e9;
    if let Some(backend) = used.backend {
        found.put(bed.name("far_cpu_per_gb"), backend.total() / gigabytes);
    }
    found.put(bed.name("far_cpu_guest_per_gb"), used.frontend.total() / gigabytes);
    found.put(bed.name("far_share"), number(&sent, "share")?);
    found.put(bed.name("far_share_p1"), number(&sent, "share_p1")?);
    found.put(bed.name("far_failed"), number(&opened, "failed")? + number(&sent, "failed")?);
    Ok(())
}
