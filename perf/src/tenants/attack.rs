//! The neighbour that floods: a process of its own, so that its pod's limits hold for it.
//!
//! It is the double in a loop, told what to do by lines on its standard input, and answers each with a line of JSON:
//!
//! ```text
//! flood KIND     begins; no answer
//! stop           ends it: {"frames": N, "seconds": S, "reconnects": N}
//! check          whether its backend lives and carries what is new: {"alive_ms": N, "serves_ms": N or null}
//! ```
//!
//! A backend that has disabled a ring, as it may with bad descriptors, or is gone, is connected to again, as by a virtual
//! machine that starts again.

use std::io::{BufRead, Write};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use frontend_double::{Descriptor, Double, HEADER, INDIRECT, NEXT, TX, WRITE};
use podvirt_bed_tools::flood::frames::{self, Link, Segment, flag};
use podvirt_bed_tools::flood::{Ends, Flood, Kind, OPEN_PORT};
use podvirt_e2e::{Guest as Bed, Net};
use serde_json::{Value, json};

use crate::frontends::{BACKEND_MAC, double};

/// Frames that are sent, or taken, before the other way has its turn.
const BATCH: usize = 64;
/// The guest sleeps so long when its ring is full: its share of the processors is the backend's then.
const FULL: Duration = Duration::from_micros(100);
/// Between two frames of a kind that lives by its answers.
const SPARSE: Duration = Duration::from_micros(500);
/// For a backend to serve again.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Between two tries.
const AGAIN: Duration = Duration::from_millis(50);
/// How often a byte is sent that is not answered.
const ASKS: usize = 4;
/// Descriptors for bad chains.
const BAD: usize = 64;
/// Processors that are kept busy where nothing is sent: as many threads as a guest and its backend have.
const THREADS: usize = 2;

/// Where it is, and whom it knows.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// The backend's socket
    #[arg(long)]
    socket: PathBuf,
    /// The peers' IPv4 address
    #[arg(long)]
    to4: Ipv4Addr,
    /// The peers' IPv6 address
    #[arg(long)]
    to6: Ipv6Addr,
}

/// Obeys until its standard input ends.
///
/// # Errors
/// The backend is not there, or what it is told makes no sense.
pub(crate) fn run(options: &Options, out: &mut impl Write) -> Result<()> {
    let (said, orders) = channel();
    thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let Ok(line) = line else { return };
            if said.send(line).is_err() {
                return;
            }
        }
    });
    let link = Link { from: octets(Bed::MAC)?, to: octets(BACKEND_MAC)? };
    let ends = Ends { link, from4: Net::BESIDE4, from6: Net::BESIDE6, to4: options.to4, to6: options.to6 };
    let mut guest = Guest::new(options.socket.clone(), ends)?;
    let mut next = orders.recv().ok();
    while let Some(order) = next.take() {
        match order.split_once(' ') {
            Some(("flood", kind)) => {
                let kind = kind.parse::<Kind>()?;
                // What has ended it, mostly its stop, is the next order.
                let (found, stopped) = guest.flood(kind, &orders)?;
                if stopped.as_deref() == Some("stop") {
                    tell(out, &found)?;
                }
            }
            None if order == "check" => tell(out, &guest.check()?)?,
            _ => bail!("what is {order}?"),
        }
        next = orders.recv().ok();
    }
    Ok(())
}

fn octets(mac: &str) -> Result<[u8; 6]> {
    let bytes: Result<Vec<u8>, _> = mac.split(':').map(|byte| u8::from_str_radix(byte, 16)).collect();
    bytes?.try_into().ok().context("six bytes")
}

fn tell(out: &mut impl Write, found: &Value) -> Result<()> {
    writeln!(out, "{found}")?;
    Ok(out.flush()?)
}

struct Guest {
    socket: PathBuf,
    ends: Ends,
    /// None while it connects again: a backend serves one at a time.
    double: Option<Double>,
    bad: Vec<u16>,
    /// A frame with its virtio header in front.
    buffer: Vec<u8>,
    sent: u64,
    next_port: u16,
}

impl Guest {
    fn new(socket: PathBuf, ends: Ends) -> Result<Guest> {
        let double = Some(double::connect(&socket, 1)?);
        Ok(Guest { socket, ends, double, bad: Vec::new(), buffer: Vec::new(), sent: 0, next_port: 62_100 })
    }

    fn double(&mut self) -> Result<&mut Double> {
        self.double.as_mut().context("no backend")
    }

    /// Connects again, for as long as that may take.
    fn reconnect(&mut self) -> Result<()> {
        let begin = Instant::now();
        self.double = None;
        loop {
            match double::connect(&self.socket, 1) {
                Ok(double) => {
                    self.double = Some(double);
                    self.bad.clear();
                    return Ok(());
                }
                Err(error) if begin.elapsed() > TIMEOUT => return Err(error.context("the backend is gone")),
                Err(_) => thread::sleep(AGAIN),
            }
        }
    }

    /// Floods until there is an order; what came of it, and the order.
    fn flood(&mut self, kind: Kind, orders: &Receiver<String>) -> Result<(Value, Option<String>)> {
        match kind {
            Kind::Computes => return Ok(compute(orders)),
            Kind::Plain => return Ok((sent_nothing(Instant::now()), orders.recv().ok())),
            _ => {}
        }
        let mut flood = Flood::new(kind, self.ends);
        let begin = Instant::now();
        let (mut frames, mut reconnects) = (0u64, 0u64);
        let order = loop {
            match orders.try_recv() {
                Ok(order) => break Some(order),
                Err(TryRecvError::Disconnected) => break None,
                Err(TryRecvError::Empty) => {}
            }
            match self.turn(&mut flood, kind) {
                Ok(sent) => frames += sent,
                Err(_) => {
                    reconnects += 1;
                    self.reconnect()?;
                }
            }
        };
        let seconds = begin.elapsed().as_secs_f64();
        Ok((json!({"frames": frames, "seconds": seconds, "reconnects": reconnects}), order))
    }

    /// A batch each way; how many frames were sent.
    fn turn(&mut self, flood: &mut Flood, kind: Kind) -> Result<u64> {
        let mut sent = 0;
        let mut full = false;
        if kind == Kind::Descriptors {
            sent += self.offer_bad()?;
            full = sent == 0;
        }
        let count = if flood.is_eager() { BATCH } else { 1 };
        for _ in 0..count {
            let Some(frame) = flood.next_frame() else { break };
            if !self.queue(&frame, kind == Kind::Garbage)? {
                full = true;
                break;
            }
            sent += 1;
        }
        let mut came = 0;
        let mut answers = Vec::new();
        while came < BATCH
            && let Some(frame) = self.double()?.recv(Duration::ZERO)?
        {
            came += 1;
            flood.answer(frame.get(HEADER..).unwrap_or_default(), &mut |answer| answers.push(answer));
        }
        for answer in &answers {
            // What does not fit is lost, as a frame may be.
            sent += u64::from(self.queue(answer, false)?);
        }
        self.double()?.flush();
        if full && came == 0 {
            thread::sleep(FULL);
        } else if !flood.is_eager() && came == 0 {
            thread::sleep(SPARSE);
        }
        Ok(sent)
    }

    /// Queues a frame behind a virtio header, of which every fourth is wrong if so wanted; false when the ring is full.
    fn queue(&mut self, frame: &[u8], wrong: bool) -> Result<bool> {
        self.buffer.clear();
        self.buffer.resize(HEADER, 0);
        self.sent = self.sent.wrapping_add(1);
        if wrong && self.sent.is_multiple_of(4) {
            // Odd and so in every place: flags, kinds of offload, lengths that are none.
            self.buffer.fill(self.sent.wrapping_mul(167) as u8);
        }
        self.buffer.extend(frame);
        let double = self.double.as_mut().context("no backend")?;
        Ok(double.queue(&self.buffer, &[], false)?)
    }

    fn send(&mut self, frame: &[u8]) -> Result<()> {
        self.queue(frame, false)?;
        self.double()?.flush();
        Ok(())
    }

    /// Offers chains that make no sense, as many as the ring has room for.
    fn offer_bad(&mut self) -> Result<u64> {
        let double = self.double.as_mut().context("no backend")?;
        let start = double.mem().start();
        let ring = double.ring(TX);
        if ring.broken() {
            bail!("the backend has given the ring up");
        }
        if self.bad.is_empty() {
            self.bad.extend((0..BAD).map_while(|_| ring.reserve()));
            let size = ring.size();
            let table = start + (32 << 20);
            let bad = self.bad.clone();
            for (n, &index) in bad.iter().enumerate() {
                let other = bad.get((n + 1) % bad.len()).copied().unwrap_or(index);
                let (addr, len, flags, next) = match n % 8 {
                    0 => (0x10, 100, 0, 0),
                    1 => (start, u32::MAX, 0, 0),
                    2 => (u64::MAX - 50, 100, 0, 0),
                    3 => (start, 100, NEXT, index),
                    4 => (start, 100, NEXT, size),
                    5 => (start, 100, WRITE | NEXT, other),
                    6 => (table, 17, INDIRECT, 0),
                    _ => (0x10, 1024, INDIRECT, 0),
                };
                ring.write_descriptor(index, Descriptor { addr, len, flags, next });
            }
        }
        while ring.next_used().is_some() {}
        let room = usize::from(ring.size() / 2).saturating_sub(ring.in_flight().into());
        let mut offered = 0;
        for &index in self.bad.iter().take(room) {
            ring.offer_raw(index);
            offered += 1;
        }
        ring.publish();
        Ok(offered)
    }

    /// How long it takes, from now on, that the guest is connected again and the backend answers for its router, and then
    /// carries what is new: an echo of the peers' machine, and a connection with a byte both ways; none: it does not do
    /// that in time, as its table of flows is full.
    fn check(&mut self) -> Result<Value> {
        let begin = Instant::now();
        // What is left of a flood is nothing that a guest which starts again knows of.
        self.reconnect()?;
        until(|| self.router())?.context("the backend does not answer for the router")?;
        let alive_ms = begin.elapsed().as_secs_f64() * 1e3;
        let echo = until(|| self.echo())?;
        let served = if echo.is_some() { until(|| self.connect())? } else { None };
        let serves_ms = served.map(|()| begin.elapsed().as_secs_f64() * 1e3);
        Ok(json!({"alive_ms": alive_ms, "serves_ms": serves_ms}))
    }

    fn router(&mut self) -> Result<Option<()>> {
        self.send(&frames::arp_request(self.ends.link, self.ends.from4, Net::BESIDE_ROUTER4))?;
        self.hear(|frame| frames::is_arp_reply(frame, Net::BESIDE_ROUTER4).then_some(()))
    }

    fn echo(&mut self) -> Result<Option<u16>> {
        self.next_port = self.next_port.wrapping_add(1).max(62_100);
        let number = self.next_port;
        self.send(&frames::echo_request(self.ends.link, self.ends.from4, self.ends.to4, number))?;
        self.hear(|frame| (frames::echo_reply(frame) == Some(number)).then_some(number))
    }

    fn connect(&mut self) -> Result<Option<()>> {
        self.next_port = self.next_port.wrapping_add(1).max(62_100);
        let from = (self.ends.from4, self.next_port);
        let to = (self.ends.to4, OPEN_PORT);
        let syn = Segment { from, to, seq: 0, ack: 0, flags: flag::SYN, window: u16::MAX, len: 0 };
        self.send(&syn.frame(self.ends.link))?;
        let ours = |frame: &[u8]| Segment::parse(frame).filter(|s| s.to == from && s.from == to);
        let Some(opened) = self.hear(|frame| ours(frame).filter(|s| s.flags & flag::SYN != 0))? else {
            return Ok(None);
        };
        let ack = opened.seq.wrapping_add(1);
        let opens = Segment { seq: 1, ack, flags: flag::ACK, ..syn };
        self.send(&opens.frame(self.ends.link))?;
        let asks = Segment { len: 1, ..opens };
        let mut answered = None;
        for _ in 0..ASKS {
            self.send(&asks.frame(self.ends.link))?;
            answered = self.hear(|frame| ours(frame).filter(|s| s.len > 0))?;
            if answered.is_some() {
                break;
            }
        }
        self.send(&Segment { seq: 2, flags: flag::RST | flag::ACK, ..opens }.frame(self.ends.link))?;
        Ok(answered.map(drop))
    }

    /// Looks for a frame, for a moment.
    fn hear<T>(&mut self, is: impl Fn(&[u8]) -> Option<T>) -> Result<Option<T>> {
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(500) {
            let frame = self.double()?.recv(AGAIN)?;
            if let Some(found) = frame.as_deref().and_then(|frame| is(frame.get(HEADER..)?)) {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }
}

fn until<T>(mut attempt: impl FnMut() -> Result<Option<T>>) -> Result<Option<T>> {
    let begin = Instant::now();
    while begin.elapsed() < TIMEOUT {
        let found = attempt()?;
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// Keeps processors busy until there is an order.
fn compute(orders: &Receiver<String>) -> (Value, Option<String>) {
    use std::sync::atomic::{AtomicBool, Ordering};
    let (begin, goes) = (Instant::now(), AtomicBool::new(true));
    let order = thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while goes.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let order = orders.recv().ok();
        goes.store(false, Ordering::Relaxed);
        order
    });
    (sent_nothing(begin), order)
}

fn sent_nothing(since: Instant) -> Value {
    json!({"frames": 0, "seconds": since.elapsed().as_secs_f64(), "reconnects": 0})
}
