//! DPDK's testpmd as the frontend: it polls its rings on a processor of its own.

use std::time::Duration;

use anyhow::{Context, Result};
use podvirt_e2e::artefacts::artefact;
use podvirt_e2e::{Backend, Console, Guest, Net, Pod, Process};

use super::BACKEND_MAC;
use crate::plan::Setup;

/// Start of testpmd, and anything it is told to do.
const LIMIT: Duration = Duration::from_secs(60);
/// The UDP port that it sends to.
pub(crate) const SINK: u16 = 9009;

/// testpmd at work; it returns every frame with the addresses of both ends swapped until it is told otherwise.
pub(crate) struct Testpmd {
    /// Its container.
    pub(crate) process: Process,
    console: Console,
    started: usize,
    asked: usize,
}

/// Starts it, without huge pages.
///
/// # Errors
/// It does not start.
pub(crate) fn start(pod: &Pod, setup: &Setup) -> Result<Testpmd> {
    // DPDK loads no driver from below a directory that every user may write to, as /mnt is.
    let container = pod.container("testpmd")?.ro(&artefact("testpmd")?, "/guest");
    // A buffer holds a whole frame: few large ones or many small ones.
    let (buffers, size) = if setup.mtu > 1500 { (4096, 10240) } else { (8192, 2176) };
    let line = format!(
        "stdbuf -oL /guest/testpmd -d /guest/pmds -l 0-1 --no-huge -m 256 --no-pci --no-telemetry \
         --vdev=net_virtio_user0,path=/w/{},queues=1,mac={} -- -i --total-num-mbufs={buffers} --mbuf-size={size} \
         --max-pkt-len={} --no-numa --eth-peer=0,{BACKEND_MAC} --tx-ip={},{} --tx-udp={SINK},{SINK} --forward-mode=5tswap --auto-start",
        Backend::SOCKET,
        Guest::MAC,
        u32::from(setup.mtu) + 18,
        Net::POD4,
        pod.net.client4,
    );
    let command: Vec<&str> = line.split_whitespace().collect();
    let (process, console) = container.env("LD_LIBRARY_PATH", "/guest/lib").spawn_with_console(&command)?;
    let ready = console.wait_for("packet forwarding - ports=1", LIMIT);
    ready.with_context(|| format!("testpmd says: {}\n{}", console.screen(), process.log()))?;
    Ok(Testpmd { process, console, started: 1, asked: 0 })
}

impl Testpmd {
    /// Makes it send datagrams of so many bytes as fast as it can.
    ///
    /// # Errors
    /// It has ended.
    pub(crate) fn send(&mut self, size: u16) -> Result<()> {
        // Ethernet, IPv4 and UDP headers.
        let frame = u32::from(size) + 14 + 20 + 8;
        for line in ["stop", "set fwd txonly", &format!("set txpkts {frame}"), "start"] {
            self.console.type_line(line)?;
        }
        self.started += 1;
        self.console.wait_for_nth("packet forwarding - ports=1", self.started, LIMIT).map(drop)
    }

    /// How many frames it has sent so far.
    ///
    /// # Errors
    /// It does not say.
    pub(crate) fn sent(&mut self) -> Result<f64> {
        self.console.type_line("show port stats 0")?;
        self.asked += 1;
        let line = self.console.wait_for_nth("TX-packets:", self.asked, LIMIT)?;
        count(&line).with_context(|| format!("not the number of packets: {line}"))
    }
}

/// The number after `TX-packets:`.
fn count(line: &str) -> Option<f64> {
    line.split("TX-packets:").nth(1)?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_statistics_are_understood() {
        assert_eq!(count("  TX-packets: 123456     TX-errors: 0          TX-bytes:  7"), Some(123_456.0));
        assert_eq!(count("  RX-packets: 1"), None);
    }
}
