//! How long the guest is not heard: an echo a millisecond over UDP and over one TCP connection.
//!
//! A thread sends, another one notes when something came back. The downtime of a migration is the longest time in which
//! nothing came, from its order to some time after the guest runs again. A TCP connection that breaks is opened anew, and
//! counted.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use podvirt_e2e::{Net, Netns};

use super::place::PROBE_PORT;

/// Between two of them.
const PERIOD: Duration = Duration::from_millis(1);
/// A TCP connection that has brought nothing for so long is given up.
const DEAD: Duration = Duration::from_secs(5);
/// Before another one is opened.
const AGAIN: Duration = Duration::from_millis(100);

/// When echoes came, ascending.
#[derive(Debug, Default)]
struct Arrivals(Mutex<Vec<Instant>>);

impl Arrivals {
    fn lock(&self) -> MutexGuard<'_, Vec<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self) {
        self.lock().push(Instant::now());
    }

    /// The longest silence of which a part is within the span; forgets what came before it.
    fn gap(&self, from: Instant, to: Instant) -> Duration {
        let mut all = self.lock();
        let first = all.partition_point(|at| *at <= from).saturating_sub(1);
        all.drain(..first);
        let mut last = all.first().copied().unwrap_or(from);
        let mut longest = Duration::ZERO;
        for at in all.iter().copied().chain([to]) {
            let at = at.max(last);
            if last >= to {
                break;
            }
            // One that ends after the span is as long as it is.
            longest = longest.max(at - last);
            last = at;
        }
        longest
    }

    fn since(&self, from: Instant) -> bool {
        self.lock().last().is_some_and(|at| *at > from)
    }
}

/// Both probes at work; they end when this is dropped.
pub(crate) struct Probes {
    udp: Arc<Arrivals>,
    tcp: Arc<Arrivals>,
    sent: Arc<AtomicU64>,
    received: Arc<AtomicU64>,
    /// TCP connections that broke.
    broken: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

/// What they found around a migration, in ms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Gaps {
    pub(crate) udp: Duration,
    pub(crate) tcp: Duration,
}

impl Probes {
    /// Starts them; the guest echoes.
    ///
    /// # Errors
    /// The guest is not reached.
    pub(crate) fn start(net: &Net) -> Result<Probes> {
        let mut probes = Probes {
            udp: Arc::default(),
            tcp: Arc::default(),
            sent: Arc::default(),
            received: Arc::default(),
            broken: Arc::default(),
            stop: Arc::default(),
            threads: Vec::new(),
        };
        probes.start_udp(net)?;
        let [to, _] = Net::pod_addresses(PROBE_PORT);
        let first = connect(&net.client, to).context("the guest's echo")?;
        let (client, arrivals) = (net.client.clone(), Arc::clone(&probes.tcp));
        let (stop, broken) = (Arc::clone(&probes.stop), Arc::clone(&probes.broken));
        probes.threads.push(thread::spawn(move || {
            let mut stream = Some(first);
            while !stop.load(Relaxed) {
                match stream.take().or_else(|| connect(&client, to).ok()) {
                    Some(mut stream) => {
                        tcp(&mut stream, &arrivals, &stop);
                        broken.fetch_add(u64::from(!stop.load(Relaxed)), Relaxed);
                    }
                    None => thread::sleep(AGAIN),
                }
            }
        }));
        Ok(probes)
    }

    fn start_udp(&mut self, net: &Net) -> Result<()> {
        let [to, _] = Net::pod_addresses(PROBE_PORT);
        let socket = net.udp((net.client4, 0).into())?;
        socket.set_read_timeout(Some(AGAIN))?;
        socket.connect(to)?;
        let (reader, stop) = (socket.try_clone()?, Arc::clone(&self.stop));
        let (arrivals, received) = (Arc::clone(&self.udp), Arc::clone(&self.received));
        self.threads.push(thread::spawn(move || {
            while !stop.load(Relaxed) {
                // An ICMP error of an earlier one ends nothing.
                if reader.recv(&mut [0; 64]).is_ok() {
                    arrivals.note();
                    received.fetch_add(1, Relaxed);
                }
            }
        }));
        let (stop, sent) = (Arc::clone(&self.stop), Arc::clone(&self.sent));
        self.threads.push(thread::spawn(move || {
            paced(&stop, |number| {
                sent.fetch_add(u64::from(socket.send(&number.to_le_bytes()).is_ok()), Relaxed);
                true
            });
        }));
        Ok(())
    }

    /// The longest silences of which a part is within the span.
    pub(crate) fn gaps(&self, from: Instant, to: Instant) -> Gaps {
        Gaps { udp: self.udp.gap(from, to), tcp: self.tcp.gap(from, to) }
    }

    /// Whether both have brought something since.
    pub(crate) fn alive_since(&self, from: Instant) -> bool {
        self.udp.since(from) && self.tcp.since(from)
    }

    /// Datagrams that have not come back so far, those that are under way among them.
    pub(crate) fn missing(&self) -> u64 {
        self.sent.load(Relaxed).saturating_sub(self.received.load(Relaxed))
    }

    /// TCP connections that broke so far.
    pub(crate) fn broken(&self) -> u64 {
        self.broken.load(Relaxed)
    }
}

impl Drop for Probes {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
    }
}

fn connect(client: &Netns, to: SocketAddr) -> Result<TcpStream> {
    let stream = client.enter(|| Ok(TcpStream::connect_timeout(&to, DEAD)?))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(AGAIN))?;
    stream.set_write_timeout(Some(DEAD))?;
    Ok(stream)
}

/// Does something a thousand times a second until it fails; what was missed is not made up for.
fn paced(stop: &AtomicBool, mut work: impl FnMut(u64) -> bool) {
    let begin = Instant::now();
    let mut number = 0;
    while !stop.load(Relaxed) && work(number) {
        let passed = begin.elapsed();
        number = u64::try_from(passed.as_millis()).unwrap_or(u64::MAX).max(number) + 1;
        thread::sleep((PERIOD * u32::try_from(number).unwrap_or(u32::MAX)).saturating_sub(passed));
    }
}

/// Uses one connection until it breaks or all is over.
fn tcp(stream: &mut TcpStream, arrivals: &Arrivals, stop: &AtomicBool) {
    let ended = AtomicBool::new(false);
    let Ok(writer) = stream.try_clone() else { return };
    thread::scope(|scope| {
        scope.spawn(|| {
            paced(stop, |number| (&writer).write_all(&number.to_le_bytes()).is_ok() && !ended.load(Relaxed));
            ended.store(true, Relaxed);
        });
        let mut last = Instant::now();
        while !stop.load(Relaxed) && !ended.load(Relaxed) && last.elapsed() < DEAD {
            match stream.read(&mut [0; 4096]) {
                Ok(0) => break,
                Ok(_) => {
                    arrivals.note();
                    last = Instant::now();
                }
                Err(e) if [ErrorKind::WouldBlock, ErrorKind::Interrupted].contains(&e.kind()) => {}
                Err(_) => break,
            }
        }
        ended.store(true, Relaxed);
        // A writer that waits for room gets none.
        drop(stream.shutdown(std::net::Shutdown::Both));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_silence_within_the_span_is_found() {
        let base = Instant::now();
        let at = |ms: u64| base + Duration::from_millis(ms);
        let arrivals = |list: &[u64]| Arrivals(Mutex::new(list.iter().map(|ms| at(*ms)).collect()));
        let gap = |list: &[u64], from, to| arrivals(list).gap(at(from), at(to)).as_millis();
        assert_eq!(gap(&[0, 100, 101, 102, 160, 161, 400], 101, 161), 58);
        // It began before the span, or goes on at its end.
        assert_eq!(gap(&[90, 120, 121], 100, 121), 30);
        assert_eq!(gap(&[90, 100, 101], 100, 151), 50);
        assert_eq!(gap(&[90, 100, 101, 300], 100, 151), 199);
        assert_eq!(gap(&[], 100, 151), 51);
    }

    #[test]
    fn what_is_before_the_span_is_forgotten_and_the_rest_kept() {
        let arrivals = Arrivals::default();
        arrivals.note();
        arrivals.note();
        let from = Instant::now();
        arrivals.note();
        arrivals.gap(from, Instant::now());
        assert_eq!(arrivals.lock().len(), 2);
        assert!(arrivals.since(from));
    }
}
