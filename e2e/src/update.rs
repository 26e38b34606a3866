//! Updates of netd under way, and traffic that would notice.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use podvirt_bed_tools::wait;

use crate::artefacts::program_dir;
use crate::backend::{Backend, RunningBackend};
use crate::bed::{Bed, Family, PEER, PORT};
use crate::peer;
use crate::pod::Pod;
use crate::process::Process;

/// An update, of which the new netd's start is the most.
const UPDATE: Duration = Duration::from_secs(60);
/// What the bulk transfers repeat: a length that no segment or buffer has.
const PATTERN: usize = 65_521;

/// Repeated without an end, so that a byte's place in the stream tells what it must be.
fn pattern() -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1du64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..PATTERN).map(|_| next()).collect()
}

impl RunningBackend {
    /// Starts `netctl upgrade` with these further words in a container of its own, which the new netd lives in.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn upgrade(&self, pod: &Pod, name: &str, words: &[&str]) -> Result<Process> {
        let container = pod.container(name)?.ro(&program_dir("netctl")?, "/podvirt");
        let control = format!("/w/{}", Backend::CONTROL);
        let command = [&["netctl", "--socket", &control, "upgrade", "--wait"], words].concat();
        container.spawn(&command)
    }

    /// Puts a new netd in the place of the one that runs, and waits for the old one's end.
    ///
    /// # Errors
    /// It does not go so.
    pub fn update(&mut self, pod: &Pod, generation: u64) -> Result<()> {
        let mut new = self.upgrade(pod, &format!("netd-{generation}"), &["--binary", "/podvirt/netd"])?;
        let went_on = wait::until("update", UPDATE, || {
            if let Some(status) = new.ended()? {
                bail!("netctl ended: {status}");
            }
            Ok(self.ask_generation().filter(|g| *g == generation))
        });
        if let Err(error) = went_on {
            bail!("{error}\n{}\n{}", new.log(), self.process.log());
        }
        let status = self.process.wait(UPDATE)?;
        ensure!(status.success(), "the old netd ended with {status}: {}", self.process.log());
        self.process = new;
        Ok(())
    }

    /// How many netds had the connections of the running one before; `None` while no netd answers.
    pub fn ask_generation(&self) -> Option<u64> {
        self.ask("status").ok()?["generation"].as_u64()
    }

    /// What the last update cost the guest, by the new netd's own clock.
    ///
    /// # Errors
    /// It did not say.
    pub fn pause(&self) -> Result<Duration> {
        let log = self.process.log();
        let line = log.lines().find(|l| l.contains("went on where another netd stopped"));
        let field = line.and_then(|l| l.split_whitespace().find_map(|w| w.strip_prefix("pause_us=")));
        let micros: u64 = field.with_context(|| format!("no pause was told:\n{log}"))?.parse()?;
        Ok(Duration::from_micros(micros))
    }
}

impl Bed {
    /// Updates the backend as [`RunningBackend::update`] does.
    ///
    /// # Errors
    /// It does not go so.
    pub fn update(&mut self, generation: u64) -> Result<()> {
        self.running.update(&self.pod, generation)
    }

    /// Opens connections to an echo in the guest that do nothing but be there.
    ///
    /// # Errors
    /// One of them is refused.
    pub fn idle(&mut self, count: usize) -> Result<Idle> {
        self.guest.serve(PORT, &format!("socat TCP4-LISTEN:{PORT},reuseaddr,fork,backlog=200 PIPE"))?;
        let mut idle = Idle(Vec::new());
        for _ in 0..count {
            idle.0.push(self.pod.net.connect(Family::V4.pod(PORT))?);
        }
        idle.check()?;
        Ok(idle)
    }

    /// Starts bulk transfers out of the guest and into it.
    ///
    /// # Errors
    /// They do not start.
    pub fn bulk(&mut self) -> Result<Bulk> {
        let address = self.peer(Family::V4, PEER);
        let listener: TcpListener = self.pod.net.listen(address)?;
        let port = PORT + 1;
        let data = pattern();
        // Both ends of the guest's files are made by the same program as here: it is sent in once.
        self.guest.serve(port, &format!("socat -u TCP4-LISTEN:{port},reuseaddr OPEN:/tmp/pattern,creat"))?;
        let mut stream = self.pod.net.connect(Family::V4.pod(port))?;
        stream.write_all(&data)?;
        drop(stream);
        self.guest.sh(&format!("wait $(cat /tmp/{port}.pid); [ $(stat -c %s /tmp/pattern) = {PATTERN} ]"))?;

        self.guest.serve(port, &format!("socat -u TCP4-LISTEN:{port},reuseaddr - | sha256sum"))?;
        let into = self.pod.net.connect(Family::V4.pod(port))?;
        self.guest.sh(&format!(
            "(while [ ! -e /tmp/enough ]; do cat /tmp/pattern; done | socat -u - TCP4:{address}) >/tmp/out.log 2>&1 & \
             echo $! >/tmp/out.pid"
        ))?;
        let out = peer::accept(&listener)?;
        let stop = Arc::new(AtomicBool::new(false));
        let moved = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let sender = std::thread::spawn({
            let (stop, moved, data) = (stop.clone(), moved.clone(), data.clone());
            move || send(into, &stop, &moved[0], &data)
        });
        let receiver = std::thread::spawn({
            let moved = moved.clone();
            move || receive(out, &moved[1], &data)
        });
        Ok(Bulk { stop, moved, sender, receiver, port })
    }

    /// Ends the bulk transfers and compares what has arrived; how many bytes that were, in and out.
    ///
    /// # Errors
    /// A byte is missing, too many or another.
    pub fn finish_bulk(&mut self, bulk: Bulk) -> Result<[u64; 2]> {
        bulk.stop.store(true, Ordering::Relaxed);
        self.guest.sh("touch /tmp/enough; wait $(cat /tmp/out.pid); rm /tmp/enough")?;
        let sent = bulk.sender.join().map_err(|_| anyhow::anyhow!("the sender panicked"))??;
        let out = bulk.receiver.join().map_err(|_| anyhow::anyhow!("the receiver panicked"))??;
        let port = bulk.port;
        let hash = self.guest.sh(&format!("wait $(cat /tmp/{port}.pid); cat /tmp/{port}.log"))?;
        ensure!(hash.contains(&sent.1), "damaged on the way in, after {} bytes: {hash}", sent.0);
        ensure!(
            out % PATTERN as u64 == 0,
            "the last {} bytes did not come out",
            PATTERN as u64 - out % PATTERN as u64
        );
        Ok([sent.0, out])
    }
}

/// Transfers in both directions that go on until they are told to stop.
#[derive(Debug)]
pub struct Bulk {
    stop: Arc<AtomicBool>,
    moved: Arc<[AtomicU64; 2]>,
    sender: JoinHandle<Result<(u64, String)>>,
    receiver: JoinHandle<Result<u64>>,
    port: u16,
}

impl Bulk {
    /// Bytes that were sent in and came out so far.
    pub fn moved(&self) -> [u64; 2] {
        [self.moved[0].load(Ordering::Relaxed), self.moved[1].load(Ordering::Relaxed)]
    }

    /// Waits until both directions have moved on.
    ///
    /// # Errors
    /// One of them stands still.
    pub fn moves(&self) -> Result<()> {
        let before = self.moved();
        wait::until("bulk transfers", UPDATE, || {
            let now = self.moved();
            Ok((now[0] > before[0] && now[1] > before[1]).then_some(()))
        })
    }
}

fn send(mut stream: TcpStream, stop: &AtomicBool, moved: &AtomicU64, data: &[u8]) -> Result<(u64, String)> {
    let mut child = std::process::Command::new("sha256sum")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()?;
    let mut hash = child.stdin.take().context("no pipe")?;
    let mut sent = 0;
    while !stop.load(Ordering::Relaxed) {
        stream.write_all(data).with_context(|| format!("in, after {sent} bytes"))?;
        hash.write_all(data)?;
        sent += data.len() as u64;
        moved.store(sent, Ordering::Relaxed);
    }
    stream.shutdown(Shutdown::Write)?;
    drop(hash);
    let text = String::from_utf8(child.wait_with_output()?.stdout)?;
    Ok((sent, text.split_whitespace().next().context("sha256sum is silent")?.to_owned()))
}

fn receive(mut stream: TcpStream, moved: &AtomicU64, data: &[u8]) -> Result<u64> {
    let mut buffer = vec![0; 1 << 18];
    let mut at = 0u64;
    loop {
        let n = stream.read(&mut buffer).with_context(|| format!("out, after {at} bytes"))?;
        if n == 0 {
            return Ok(at);
        }
        let mut part = buffer.get(..n).context("more than was asked for")?;
        while !part.is_empty() {
            let from = (at % data.len() as u64) as usize;
            let expected = data.get(from..).context("pattern")?;
            let len = part.len().min(expected.len());
            ensure!(part[..len] == expected[..len], "another byte within {len} from {at} on");
            part = &part[len..];
            at += len as u64;
        }
        moved.store(at, Ordering::Relaxed);
    }
}

/// Connections that are open and do nothing.
#[derive(Debug)]
pub struct Idle(Vec<TcpStream>);

impl Idle {
    /// Every one of them still carries a byte and brings it back.
    ///
    /// # Errors
    /// One does not.
    pub fn check(&mut self) -> Result<()> {
        for (i, stream) in self.0.iter_mut().enumerate() {
            let byte = [i as u8];
            stream.write_all(&byte).with_context(|| format!("idle connection {i}"))?;
            let mut back = [!byte[0]];
            stream.read_exact(&mut back).with_context(|| format!("idle connection {i}"))?;
            ensure!(back == byte, "idle connection {i} brought {back:?} back");
        }
        Ok(())
    }
}
