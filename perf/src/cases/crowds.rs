//! Crowds: what is left for others while a flood of short UDP flows comes, from outside or from the guest.
//!
//! *Peers* sends datagrams to a port of the pod at a steady rate, each from another address and port, so that each is a
//! new flow. No program in the guest reads them. What they cost a guest with one processor is its own matter, so the
//! same rate from one peer is measured, too: what lies between the two is the price of a new flow.
//!
//! *Names* has the guest ask the client's echo at a steady rate, each time from a fresh port, as a resolver does.
//!
//! Beside either there are a TCP stream as fast as it goes, one of a steady rate, an echo of datagrams by another flow,
//! and connections one after the other. The figures are shares of what there was without the flood, and of the flood
//! what came of it. All but the steady stream take every processor that they can get: what a flood takes of their
//! processors is missing in their shares, also where nothing is unfair. The steady stream shows whether what asks for
//! less than its part gets it. Without a guest, where there are several queue pairs, only the echo is beside it,
//! returned by a thread for each pair.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, sendto, socket,
};
use podvirt_e2e::until;

use super::Found;
use super::transfer::{self, Direction};
use crate::bed::{Bed, CLIENT_PORT, CROWD_PORT, GUEST_PORT, Pace, TIMEOUT, number};
use crate::frontends::{Machine, double};

/// Datagrams a second of new peers.
const PEERS: u64 = 100_000;
/// Names a second that the guest asks.
const NAMES: u32 = 5000;
/// How often the sender looks at the clock.
const TICK: Duration = Duration::from_millis(1);
/// Where the peers are: a network for measurements (RFC 2544), which the pod reaches by the client.
const FIRST_PEER: u32 = 0xc612_0000;
/// Source ports of one address.
const PORTS: u64 = 60_000;
/// What the steady stream asks for: a tenth of what a stream as fast as it goes has on a small machine.
const STEADY: &str = "--bitrate 2G";
/// Datagrams of the echo that are under way.
const WINDOW: u32 = 32;

/// What others reach beside a flood.
struct Others {
    /// Gbit/s of the guest's stream as fast as it goes, and of the steady one; none without a guest.
    tcp: Option<(f64, f64)>,
    /// Echoed datagrams a second.
    echo: f64,
    /// Connections a second, and how many failed.
    connections: Option<(f64, f64)>,
}

pub(super) fn peers(bed: &mut Bed, pace: &Pace, found: &mut Found) -> Result<()> {
    let mut double = match std::mem::replace(&mut bed.machine, Machine::Lent) {
        Machine::Double(double) => double,
        other => {
            bed.machine = other;
            bed.serve_in_guest()?;
            bed.serve_at_client()?;
            return compare(bed, pace, found);
        }
    };
    let echoes = AtomicBool::new(true);
    let pairs = double.pairs();
    let result = thread::scope(|scope| {
        let _echoes = EndOnDrop(&echoes);
        for pair in pairs {
            let echoes = &echoes;
            scope.spawn(move || double::echo(pair, GUEST_PORT, echoes));
        }
        compare(bed, pace, found)
    });
    bed.machine = Machine::Double(double);
    result
}

/// Ends what goes on for as long as this is there.
struct EndOnDrop<'a>(&'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// Nothing, one peer, and new ones.
fn compare(bed: &mut Bed, pace: &Pace, found: &mut Found) -> Result<()> {
    let kind = format!("peers{}", bed.setup.kind());
    let quiet = others(bed, &without(pace))?;
    for (what, addresses) in [("one", 1), ("new", u64::MAX)] {
        let IpAddr::V4(to) = bed.guest_address(CROWD_PORT).ip() else { return None.context("not IPv4") };
        let (goes, sent) = (AtomicBool::new(true), AtomicU64::new(0));
        let raw = bed.pod.net.client.enter(raw)?;
        let begin = (Instant::now(), bed.sample()?);
        let beside = thread::scope(|scope| {
            let ended = EndOnDrop(&goes);
            let flood = scope.spawn(|| flood(&raw, to, addresses, &goes, &sent));
            let beside = others(bed, pace);
            drop(ended);
            flood.join().ok().context("a thread panicked")?;
            beside
        })?;
        let used = bed.since(&begin.1)?;
        #[allow(clippy::cast_precision_loss, reason = "a count of datagrams")]
        let rate = sent.load(Ordering::Relaxed) as f64 / begin.0.elapsed().as_secs_f64();
        found.put(bed.name(&format!("{kind}_{what}_pps")), rate);
        if let Some(backend) = used.backend {
            found.put(bed.name(&format!("{kind}_{what}_cpus")), backend.total() / used.wall);
        }
        put(bed, found, &format!("{kind}_{what}"), &quiet, &beside);
    }
    Ok(())
}

pub(super) fn names(bed: &mut Bed, pace: &Pace, found: &mut Found) -> Result<()> {
    bed.serve_in_guest()?;
    bed.serve_at_client()?;
    let quiet = others(bed, &without(pace))?;
    let address = SocketAddr::from((bed.client(), CLIENT_PORT));
    let alone = Duration::from_secs(u64::from(pace.seconds.div_ceil(4)));
    let answers = bed.ask_guest(&format!("names {address} {} {NAMES}", alone.as_secs()), alone + TIMEOUT)?;
    found.put(bed.name("names_alone_per_second"), number(&answers, "per_second")?);
    // It ends by itself when all others are measured, or soon after.
    let limit = Duration::from_secs(u64::from(pace.seconds + pace.warm_up_seconds));
    let asking = (limit + Duration::from_secs(3)).as_secs();
    let answer = "/tmp/names.json";
    // The agent is there: something was asked of it before.
    bed.machine
        .linux()?
        .sh(&format!(": >{answer}; /tmp/agent names {address} {asking} {NAMES} >{answer} 2>&1 &"), TIMEOUT)?;
    let beside = others(bed, pace)?;
    let guest = bed.machine.linux()?;
    let text = until("the names", limit + TIMEOUT, || {
        let text = guest.sh(&format!("cat {answer}"), TIMEOUT)?;
        Ok((!text.is_empty()).then_some(text))
    })?;
    let answers = serde_json::from_str(text.trim()).with_context(|| format!("the agent says: {text}"))?;
    found.put(bed.name("names_per_second"), number(&answers, "per_second")?);
    found.put(bed.name("names_answered"), number(&answers, "answered_share")?);
    put(bed, found, "names", &quiet, &beside);
    Ok(())
}

/// Shares of what there was before.
fn put(bed: &Bed, found: &mut Found, kind: &str, quiet: &Others, beside: &Others) {
    let mut share = |what: &str, now: f64, before: f64| {
        found.put(bed.name(&format!("{kind}_{what}")), now / before.max(f64::MIN_POSITIVE));
    };
    share("echo", beside.echo, quiet.echo);
    if let Some((now, before)) = beside.tcp.zip(quiet.tcp) {
        share("tcp", now.0, before.0);
        share("steady", now.1, before.1);
    }
    if let Some(((now, failed), (before, _))) = beside.connections.zip(quiet.connections) {
        share("connections", now, before);
        found.put(bed.name(&format!("{kind}_connections_failed")), failed);
    }
}

/// The time for what there is without the flood: a third, as little of it changes then.
fn without(pace: &Pace) -> Pace {
    Pace { seconds: pace.seconds.div_ceil(3), ..pace.clone() }
}

/// What others reach now: all of the time the echo, without a guest; otherwise each a quarter of it.
fn others(bed: &mut Bed, pace: &Pace) -> Result<Others> {
    let guest = matches!(bed.machine, Machine::Linux(_));
    let part = Duration::from_secs(pace.seconds.into()) / if guest { 4 } else { 1 };
    let (seconds, address) = (part.as_secs_f64(), bed.guest_address(GUEST_PORT));
    until("an echo", TIMEOUT, || Ok(bed.ask_client(&format!("udp-rr {address} 0.05 64")).ok()))?;
    let echo = bed.ask_client(&format!("udp-echo {address} {seconds} 64 {WINDOW}"))?;
    let echo = number(&echo, "per_second")?;
    if !guest {
        return Ok(Others { tcp: None, echo, connections: None });
    }
    let quarter = Pace { seconds: pace.seconds.div_ceil(4), ..pace.clone() };
    let mut stream = |options| transfer::iperf(bed, &quarter, Direction::G2h, options)?.receiver.gbits();
    let tcp = (stream("")?, stream(STEADY)?);
    let client = SocketAddr::from((bed.client(), CLIENT_PORT));
    let opened = bed.ask_guest(&format!("crr {client} {seconds}"), part)?;
    let connections = (number(&opened, "per_second")?, number(&opened, "failed")?);
    Ok(Others { tcp: Some(tcp), echo, connections: Some(connections) })
}

/// Sends datagrams to the pod at a steady rate for as long as it `goes`, in turn from so many peers.
fn flood(raw: &OwnedFd, to: Ipv4Addr, peers: u64, goes: &AtomicBool, sent: &AtomicU64) {
    let (begin, at) = (Instant::now(), SockaddrIn::from(std::net::SocketAddrV4::new(to, 0)));
    let mut count = 0u64;
    while goes.load(Ordering::Relaxed) {
        let due = begin.elapsed().as_micros() as u64 * PEERS / 1_000_000;
        // What was missed for want of a processor is not made up for: the rate is counted.
        count = count.max(due.saturating_sub(PEERS / 100));
        while count < due {
            let packet = packet(to, count % peers);
            if sendto(raw.as_raw_fd(), &packet, &at, MsgFlags::MSG_DONTWAIT).is_ok() {
                sent.fetch_add(1, Ordering::Relaxed);
            }
            count += 1;
        }
        thread::sleep(TICK);
    }
}

/// A socket whose datagrams may come from any address.
fn raw() -> Result<OwnedFd> {
    socket(AddressFamily::Inet, SockType::Raw, SockFlag::SOCK_CLOEXEC, Some(SockProtocol::Raw))
        .context("a raw socket")
}

/// A datagram of a peer, from its IP header on; the kernel fills in length and checksum (raw(7)).
fn packet(to: Ipv4Addr, peer: u64) -> [u8; 36] {
    let mut packet = [0; 36];
    packet[0] = 0x45;
    packet[8] = 64;
    packet[9] = 17;
    let address = FIRST_PEER + ((peer / PORTS) % 0x1_0000) as u32;
    packet[12..16].copy_from_slice(&address.to_be_bytes());
    packet[16..20].copy_from_slice(&to.octets());
    packet[20..22].copy_from_slice(&((1024 + peer % PORTS) as u16).to_be_bytes());
    packet[22..24].copy_from_slice(&CROWD_PORT.to_be_bytes());
    // No checksum, as IPv4 allows (RFC 768).
    packet[24..26].copy_from_slice(&16u16.to_be_bytes());
    packet
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_peers_in_a_minute_are_the_same() {
        let to = Ipv4Addr::new(10, 9, 0, 2);
        let ends = |peer| packet(to, peer)[12..24].to_vec();
        let some: std::collections::BTreeSet<Vec<u8>> = (0..6_000_000).step_by(59).map(ends).collect();
        assert_eq!(some.len(), (0..6_000_000).step_by(59).count());
        assert_eq!(packet(to, 0)[16..20], [10, 9, 0, 2]);
    }
}
