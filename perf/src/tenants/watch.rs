//! What a flood takes of the node: looked at again and again while it goes on, the most of each.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use nix::unistd::Pid;
use podvirt_e2e::Netns;
use serde::{Deserialize, Serialize};

use crate::usage;

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(100);

/// Numbers that grow while a flood goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Most {
    /// The backend's own memory (heap and stacks), MiB.
    pub(crate) backend_mib: f64,
    /// Sockets of the pod, TCP and UDP.
    pub(crate) sockets: f64,
    /// What TCP holds in buffers of all sockets of the machine, MiB.
    pub(crate) tcp_buffers_mib: f64,
    /// Connections that the node's kernel tracks.
    pub(crate) tracked: f64,
    /// Neighbours that the machine's kernel knows or looks for, both families.
    pub(crate) neighbours: f64,
}

impl Most {
    fn take(&mut self, now: Most) {
        let fields = [
            (&mut self.backend_mib, now.backend_mib),
            (&mut self.sockets, now.sockets),
            (&mut self.tcp_buffers_mib, now.tcp_buffers_mib),
            (&mut self.tracked, now.tracked),
            (&mut self.neighbours, now.neighbours),
        ];
        for (most, now) in fields {
            *most = most.max(now);
        }
    }
}

/// Does something and notes the most of everything meanwhile. `backend` is a sandbox's first process.
///
/// # Errors
/// What `work` returned; what cannot be looked at is not noted.
pub(super) fn beside<T>(
    backend: Pid,
    node: &Netns,
    most: &mut Most,
    work: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let goes = AtomicBool::new(true);
    thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let looked = node.enter(|| {
                let mut most = Most::default();
                while goes.load(Ordering::Relaxed) {
                    most.take(look(backend));
                    thread::sleep(PAUSE);
                }
                Ok(most)
            });
            looked.unwrap_or_default()
        });
        let done = work();
        goes.store(false, Ordering::Relaxed);
        most.take(watch.join().unwrap_or_default());
        done
    })
}

/// In the node's network namespace.
fn look(backend: Pid) -> Most {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let sockets = read(&format!("/proc/{backend}/net/sockstat"));
    let sockets6 = read(&format!("/proc/{backend}/net/sockstat6"));
    let of = |line, name| after(&sockets, line, name).unwrap_or(0.0);
    let of6 = |line| after(&sockets6, line, "inuse").unwrap_or(0.0);
    // The tables are the machine's, and told of in the network namespace in which this program runs.
    let neighbours = |table| entries(&read(&format!("/proc/self/net/stat/{table}"))).unwrap_or(0.0);
    Most {
        backend_mib: usage::memory(backend).map(|m| m.anonymous_mib).unwrap_or(0.0),
        sockets: of("TCP:", "inuse") + of("UDP:", "inuse") + of6("TCP6:") + of6("UDP6:"),
        // Pages.
        tcp_buffers_mib: of("TCP:", "mem") / 256.0,
        tracked: read("/proc/sys/net/netfilter/nf_conntrack_count").trim().parse().unwrap_or(0.0),
        neighbours: neighbours("arp_cache") + neighbours("ndisc_cache"),
    }
}

/// The number after a name in a line of /proc/net/sockstat.
fn after(text: &str, line: &str, name: &str) -> Option<f64> {
    let mut words = text.lines().find_map(|l| l.strip_prefix(line))?.split_whitespace();
    words.find(|word| *word == name)?;
    words.next()?.parse().ok()
}

/// The first column of a table's statistics, which is the same in each processor's line; hexadecimal.
fn entries(text: &str) -> Option<f64> {
    let first = text.lines().nth(1)?.split_whitespace().next()?;
    Some(f64::from(u32::from_str_radix(first, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_tables_are_understood() {
        let text = "sockets: used 9\nTCP: inuse 3 orphan 0 tw 1 alloc 4 mem 512\nUDP: inuse 2 mem 1\n";
        assert_eq!(after(text, "TCP:", "mem"), Some(512.0));
        assert_eq!(after(text, "UDP:", "inuse"), Some(2.0));
        assert_eq!(after(text, "RAW:", "inuse"), None);
        assert_eq!(entries("entries  allocs\n0000000a  00000b\n0000000a  00\n"), Some(10.0));
        assert_eq!(entries("entries\n"), None);
    }

    #[test]
    fn the_most_of_each_counts() {
        let mut most = Most { sockets: 5.0, ..Most::default() };
        most.take(Most { sockets: 2.0, tracked: 7.0, ..Most::default() });
        assert_eq!(most, Most { sockets: 5.0, tracked: 7.0, ..Most::default() });
    }
}
