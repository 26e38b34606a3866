//! What thousands of connections add to the time in which a guest stands still.
//!
//! There is no hypervisor here: the guest is a network namespace behind a tap device, whose frames go through the double,
//! and whose memory is some MiB. It stands still from its rings' stop until they run at the target; that includes what
//! QEMU would do with netd's state, but not the rest of its own.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use frontend_double::{Double, Options, TapOptions, TapPump};
use podvirt_e2e::{Backend, Guest, Net};

use super::place::millis;
use super::pods::{Pods, Told};
use super::record::Growth;
use crate::frontends::BACKEND_MAC;
use crate::plan::Peer;
use crate::stats::percentile;

/// Migrations for each number of connections.
const MIGRATIONS: usize = 5;
/// Where the guest connects to.
const PORT: u16 = 7003;
/// Of so many connections one is tried in the end.
const TRIED: usize = 97;
/// For an answer.
const TIMEOUT: Duration = Duration::from_secs(30);

/// For each of these numbers of connections.
///
/// # Errors
/// Something does not come up, or a connection does not survive.
pub(crate) fn measure(counts: &[usize], out: &mut impl Write) -> Result<Vec<Growth>> {
    // Both ends of each connection are here, and netd has each of them twice while it moves.
    podvirt_proto::descriptors::raise_limit()?;
    let mut found: Vec<Growth> = Vec::new();
    for &count in counts {
        let mut growth = with(count).with_context(|| format!("{count} connections"))?;
        let none = found.iter().find(|g| g.connections == 0).map_or(growth.downtime_ms, |g| g.downtime_ms);
        growth.added_ms = (growth.downtime_ms - none).max(0.0);
        writeln!(out, "{growth:?}")?;
        out.flush()?;
        found.push(growth);
    }
    Ok(found)
}

fn with(count: usize) -> Result<Growth> {
    let config = format!("mac: \"{BACKEND_MAC}\"\nguest: {{mac: \"{}\"}}\n", Guest::MAC);
    let mut place = Place::new(Pods::new(Peer::Netd, &config)?)?;
    let to = SocketAddr::from((place.pods.net().client4, PORT));
    let listener = place.pods.net().listen(to)?;
    listener.set_nonblocking(false)?;
    // One after the other: which ends belong together is known.
    let open = || -> Result<(TcpStream, TcpStream)> { Ok((TcpStream::connect(to)?, listener.accept()?.0)) };
    let connections = place.inside(|| (0..count).map(|_| open()).collect::<Result<Vec<_>>>())?;
    let (mut downtimes, mut steps, mut state_bytes) = (Vec::new(), [const { Vec::new() }; 3], 0);
    for _ in 0..MIGRATIONS {
        let (downtime, bytes, told) = place.migrate()?;
        ensure!(told.connections == Some([count as u64; 2]), "{told:?}\n{}", place.pods.log());
        downtimes.push(millis(downtime));
        steps.iter_mut().zip(told.steps_ms).for_each(|(all, one)| all.extend(one));
        state_bytes = bytes;
    }
    for (guest, client) in connections.iter().step_by(TRIED) {
        for (mut from, mut to) in [(guest, client), (client, guest)] {
            to.set_read_timeout(Some(TIMEOUT))?;
            from.write_all(b"x")?;
            to.read_exact(&mut [0]).context("a connection after its migrations")?;
        }
    }
    let middle = |values: &mut Vec<f64>| percentile(values, 0.5).unwrap_or_default();
    let [save, load, release] = &mut steps;
    Ok(Growth {
        connections: count,
        longest_ms: percentile(&mut downtimes, 1.0).unwrap_or_default(),
        downtime_ms: middle(&mut downtimes),
        added_ms: 0.0,
        save_ms: middle(save),
        load_ms: middle(load),
        release_ms: middle(release),
        state_bytes,
        migrations: MIGRATIONS,
    })
}

/// A guest in a network namespace of its own; fields in the order in which they end.
struct Place {
    pump: TapPump,
    pods: Pods,
    guest: String,
}

impl Place {
    fn new(pods: Pods) -> Result<Place> {
        let guest = format!("{}-guest", pods.here().net.pod.name());
        let (address4, address6) = (Net::POD4, Net::POD6);
        let [client4, client6] = pods.net().client_addresses();
        let ip = |words: String| -> Result<()> {
            let done = Command::new("ip").args(words.split_whitespace()).status()?;
            ensure!(done.success(), "ip {words}: {done}");
            Ok(())
        };
        ip(format!("netns add {guest}"))?;
        for words in [
            "tuntap add dev tap0 mode tap vnet_hdr".into(),
            format!("link set tap0 address {} mtu 1500", Guest::MAC),
            format!("addr add {address4}/24 dev tap0"),
            format!("addr add {address6}/64 dev tap0 nodad"),
            "link set lo up".into(),
            "link set tap0 up".into(),
            format!("route add default via {client4} dev tap0"),
            format!("route add default via {client6} dev tap0"),
        ] {
            ip(format!("-n {guest} {words}"))?;
        }
        let options = Options { queue_size: 128, mem_mib: 1, ..Options::default() };
        let double = Double::from_stream(dial(pods.here())?, &options)?;
        let tap = TapOptions { name: "tap0".into(), netns: Some(PathBuf::from("/run/netns").join(&guest)) };
        Ok(Place { pump: TapPump::start(double, &tap)?, pods, guest })
    }

    /// Does something in the guest's namespace.
    fn inside<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        podvirt_e2e::Netns::named(&self.guest).enter(work)
    }

    /// Moves the guest to the other pod: how long it stood still, and bytes of state.
    fn migrate(&mut self) -> Result<(Duration, u64, Told)> {
        let helpers = self.pods.prepare()?;
        let target = dial(self.pods.there())?;
        let double = self.pump.double().context("the pump has ended")?;
        double.begin_copy()?;
        for _ in 0..3 {
            double.copy_dirty();
        }
        self.pump.pause()?;
        let double = self.pump.double().context("the pump has ended")?;
        let since = Instant::now();
        let positions = double.stop_rings()?;
        double.copy_dirty();
        let (loaded, state_bytes) = double.transfer(target)?;
        let left = double.arrive(loaded, &positions)?;
        self.pump.resume()?;
        let downtime = since.elapsed();
        self.pods.arrive()?;
        // What QEMU's end is at the source.
        drop(left);
        let told = self.pods.leave()?;
        drop(helpers);
        Ok((downtime, state_bytes, told))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        drop(Command::new("ip").args(["netns", "del", &self.guest]).status());
    }
}

fn dial(pod: &podvirt_e2e::Pod) -> Result<UnixStream> {
    Ok(UnixStream::connect(pod.path(Backend::SOCKET))?)
}
