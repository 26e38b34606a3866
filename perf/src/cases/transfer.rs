//! Bulk by iperf3: TCP with one stream and with several, and datagrams at a steady rate. The guest connects whichever way
//! the payload goes.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use podvirt_e2e::until;

use super::Found;
use crate::bed::{Bed, Pace, TIMEOUT, Used};
use crate::iperf::Report;

/// The state of a listening socket in /proc/net/tcp6.
const LISTEN: &str = "0A";
/// The first port of iperf3's servers: each has its own, since the last one may still be ending.
const PORT: u16 = 5201;
/// Bits a second that the client offers in datagrams of a size; the guest offers what it can. Receiving them must leave
/// a guest with one processor time to read them.
const OFFERED: [(u16, u64); 3] = [(64, 40_000), (1400, 40_000), (8972, 10_000)];

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// The guest sends.
    G2h,
    /// The host sends.
    H2g,
}

impl Direction {
    pub(super) const BOTH: [Direction; 2] = [Direction::G2h, Direction::H2g];

    pub(crate) fn key(self) -> &'static str {
        if self == Direction::G2h { "g2h" } else { "h2g" }
    }
}

/// What one transfer gave.
pub(crate) struct Transfer {
    /// As the receiver counts it.
    pub(crate) receiver: Report,
    used: Used,
}

impl Transfer {
    /// CPU seconds of the backend for a gigabyte, if it is a program of its own.
    pub(super) fn backend_per_gb(&self) -> Option<f64> {
        self.used.backend.map(|cpu| cpu.total() / self.receiver.gigabytes())
    }
}

/// One run of iperf3; `options` are further ones of its client.
pub(crate) fn iperf(bed: &mut Bed, pace: &Pace, direction: Direction, options: &str) -> Result<Transfer> {
    let port = PORT + u16::from(direction == Direction::H2g);
    let command = ["iperf3", "--server", "--one-off", "--json", "--port", &port.to_string()];
    let server = bed.pod.peer(&format!("iperf3-{}", direction.key())).spawn(&command)?;
    let client = &bed.pod.net.client;
    until("iperf3's port", TIMEOUT, || {
        let sockets = client.enter(|| Ok(fs::read_to_string("/proc/thread-self/net/tcp6")?))?;
        Ok(listens(&sockets, port).then_some(()))
    })?;
    let before = bed.sample()?;
    let (seconds, omit) = (pace.seconds, pace.warm_up_seconds);
    let reverse = if direction == Direction::H2g { " --reverse" } else { "" };
    let address = bed.client();
    let limit = Duration::from_secs((seconds + omit).into()) + TIMEOUT;
    let command = format!(
        "iperf3 --client {address} --port {port} --json --time {seconds} --omit {omit}{reverse} {options}"
    );
    let guests = bed.machine.linux()?.console().run(&command, limit)?.text;
    // The server's report is complete when it can be read.
    let hosts = until("iperf3's report", TIMEOUT, || Ok(Report::parse(&server.log()).ok()));
    let used = bed.since(&before)?;
    // A client that lost its server knows no more than that.
    let guests = Report::parse(&guests).with_context(|| match Report::parse(&server.log()) {
        Ok(_) => "the server's report has no error".to_owned(),
        Err(error) => format!("at the server: {error:#}"),
    })?;
    let hosts = hosts.with_context(|| server.log())?;
    let receiver = if direction == Direction::G2h { hosts } else { guests };
    Ok(Transfer { receiver, used })
}

/// So many TCP streams, both ways.
pub(super) fn tcp(bed: &mut Bed, pace: &Pace, streams: u32, found: &mut Found) -> Result<()> {
    let many = if streams == 1 { String::new() } else { streams.to_string() };
    for direction in Direction::BOTH {
        let transfer =
            iperf(bed, pace, direction, &format!("--parallel {streams}")).with_context(|| direction.key())?;
        let key = direction.key();
        let name = bed.name_with_mtu(&format!("tcp{many}_{key}"));
        found.course.insert(name.clone(), transfer.receiver.course());
        found.put(name, transfer.receiver.gbits()?);
        let gigabytes = transfer.receiver.gigabytes();
        let mut cost = |what: &str, seconds: f64| {
            found.put(bed.name_with_mtu(&format!("{what}_per_gb{many}_{key}")), seconds / gigabytes);
        };
        cost("guest", transfer.used.frontend.total());
        cost("machine", transfer.used.machine);
        if let Some(backend) = transfer.used.backend {
            cost("cpu", backend.total());
            cost("user", backend.user);
            let share = backend.user / backend.total().max(f64::MIN_POSITIVE);
            found.put(bed.name_with_mtu(&format!("user_share{many}_{key}")), share);
        }
    }
    Ok(())
}

/// Datagrams of the setup's sizes, both ways.
pub(super) fn udp(bed: &mut Bed, pace: &Pace, found: &mut Found) -> Result<()> {
    for size in bed.setup.sizes.clone() {
        for direction in Direction::BOTH {
            let rate = match (direction, OFFERED.iter().find(|(s, _)| *s == size)) {
                (Direction::H2g, Some((_, rate))) => rate * 8 * u64::from(size),
                _ => 0,
            };
            let options = format!("--udp --length {size} --bitrate {rate}");
            let transfer = iperf(bed, pace, direction, &options)
                .with_context(|| format!("{size} bytes, {}", direction.key()))?;
            let (per_second, lost) = transfer.receiver.datagrams()?;
            let name = format!("udp_{}_{size}", direction.key());
            found.put(bed.name(&format!("{name}_pps")), per_second);
            found.put(bed.name(&format!("{name}_lost")), lost);
        }
    }
    Ok(())
}

/// Whether a program listens on a port, from /proc/net/tcp6 (iperf3 listens for both families at once).
fn listens(sockets: &str, port: u16) -> bool {
    let port = format!(":{port:04X}");
    sockets.lines().any(|line| {
        let mut words = line.split_whitespace().skip(1);
        let (local, state) = (words.next(), words.nth(1));
        local.is_some_and(|l| l.ends_with(&port)) && state == Some(LISTEN)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOCKETS: &str = "  sl  local_address remote_address st tx_queue rx_queue
   0: 00000000000000000000000000000000:1451 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000";

    #[test]
    fn a_port_is_open_when_a_program_listens_on_it() {
        assert!(listens(SOCKETS, 5201));
        assert!(!listens(SOCKETS, 5202));
        assert!(!listens(&SOCKETS.replace(" 0A ", " 01 "), 5201));
        assert!(!listens("", 5201));
    }
}
