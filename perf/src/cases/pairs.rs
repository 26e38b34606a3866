//! Queue pairs: what the rings of one and of several get rid of, each filled by a thread of its own with flows of its own.
//!
//! The datagrams go to a socket that no program reads, whose queue is soon full: what is measured is the backend, not a
//! receiver. How far it scales is also the machine's matter: every pair needs a processor for the backend's worker, and
//! a part of another for the thread that fills its ring.

use std::net::{SocketAddrV4, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result};

use super::Found;
use crate::bed::{Bed, Pace};
use crate::frontends::double::{self, Full};
use crate::frontends::testpmd::SINK;

/// Flows of each pair.
const FLOWS: u16 = 8;
/// Bytes of a datagram: as in netd's own test of it.
const SIZE: u16 = 1000;
/// The first flow's port in the guest.
const PORT: u16 = 6000;

pub(super) fn run(bed: &mut Bed, pace: &Pace, found: &mut Found) -> Result<()> {
    let to = SocketAddrV4::new(bed.pod.net.client4, SINK);
    let _unread = bed.pod.net.client.enter(|| Ok(UdpSocket::bind(to)?))?;
    let pairs = bed.setup.pairs;
    let useless = vec![vec![double::useless()?]; pairs];
    let datagrams = ports(pairs)
        .into_iter()
        .map(|ports| ports.into_iter().map(|port| double::datagram(port, to, SIZE)).collect())
        .collect::<Result<Vec<Vec<_>>>>()?;
    for (what, frames) in [("discard", useless), ("udp", datagrams)] {
        pump(bed, &frames, pace.short / 5)?;
        let before = bed.sample()?;
        let taken = pump(bed, &frames, pace.short)?;
        let used = bed.since(&before)?;
        found.put(bed.name(&format!("pairs_{pairs}_{what}_pps")), taken);
        let backend = used.backend.context("no backend of its own")?;
        found.put(bed.name(&format!("pairs_{pairs}_{what}_cpus")), backend.total() / used.wall);
    }
    Ok(())
}

/// The ports in the guest that each pair's flows have.
fn ports(pairs: usize) -> Vec<Vec<u16>> {
    let all: Vec<u16> = (PORT..).take(pairs * usize::from(FLOWS)).collect();
    all.chunks(usize::from(FLOWS)).map(<[u16]>::to_vec).collect()
}

/// Fills the rings of all pairs at once; frames a second that were taken from all of them.
fn pump(bed: &mut Bed, frames: &[Vec<Vec<u8>>], time: Duration) -> Result<f64> {
    let pairs = bed.machine.double()?.pairs();
    std::thread::scope(|scope| {
        let threads: Vec<_> = pairs
            .iter_mut()
            .zip(frames)
            .map(|(pair, frames)| scope.spawn(move || double::pump(pair, frames, time, Full::Sleep)))
            .collect();
        let each = threads.into_iter().map(|t| t.join().ok().context("a thread panicked")?);
        each.sum()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_pairs_share_a_flow() {
        let ports = ports(4);
        assert_eq!(ports.iter().map(Vec::len).collect::<Vec<_>>(), [usize::from(FLOWS); 4]);
        let all: std::collections::BTreeSet<u16> = ports.concat().into_iter().collect();
        assert_eq!(all.len(), 4 * usize::from(FLOWS));
    }
}
