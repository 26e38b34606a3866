//! Frames for a machine that is on its way: kept where it was, and sent on to where it is.
//!
//! # Theory of operation
//!
//! From the moment the source's pod is deaf until switches know the target, frames for the machine come to the source's pod,
//! where nothing takes them. Lost, a segment of TCP comes again after 200 ms or more, and a datagram never. So each interface
//! that is silent has a packet socket, which sees its frames before the table that drops them, and keeps them. What the pod has
//! besides, such as the `lo` between a mesh's sidecar and a guest that netd serves, is not seen at all.
//!
//! ```text
//! silent ──▶ heard elsewhere ──▶ over
//!    │ keep      │ send on what was kept, and what still comes     LINGER later
//!    └──────────────────────────────────────────────────────────▶ over: LONGEST later, or the machine stays
//! ```
//!
//! *The machine is heard elsewhere* when a frame comes in that has the pod's own MAC address as its source: the target's pod
//! has the same, and [`activate`](super::activate()) begins with such a frame. Switches have learned from it by then, so what
//! is sent to that address now goes to the target. The frames go out as they came but for their source: with the peer's
//! address a switch would look for the peer here. A stand-in of the pod's own address is used, which no protocol above
//! Ethernet sees; ARP carries its addresses in its payload.
//!
//! Segments of TCP wait for [`RELEASE`] more: the target lets its connections go on one after the other from that moment on,
//! and one that does not yet takes nothing. A segment for a connection that has not come along is answered by a RST, as it
//! is to be.
//!
//! Nothing is taken twice: a socket is opened before the pod goes deaf, and what it has until then is thrown away, as the pod
//! has taken it. The backend waits for that moment before its own connections and sockets stand still.

use std::collections::VecDeque;
use std::io;
use std::iter::once;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::LinkAddr;

use super::packet::{HEADER, Packets};

/// Bytes that are kept of one interface: what a connection's window and a burst of datagrams hold. What comes then is lost.
const ROOM: usize = 16 << 20;
/// Bytes that wait in the kernel while this thread does not run.
const BUFFER: usize = 4 << 20;
/// How long segments of TCP wait after the target was heard: for some hundred connections to go on, and a fraction of the
/// time after which their senders would send them again.
const RELEASE: Duration = Duration::from_millis(25);
/// How long what still comes is sent on after that: switches farther away learn later.
const LINGER: Duration = Duration::from_secs(1);
/// How long frames are kept. What is older is of no use: its sender has sent it again or has given it up.
const LONGEST: Duration = Duration::from_secs(10);
/// Frames taken of one interface in one turn, and at most thrown away in the beginning: more than the kernel's buffer holds. A
/// flood keeps this thread neither from its other work nor from another interface.
const AT_ONCE: usize = 16_384;
/// The largest frame with its header, as the kernel makes them without jumbograms.
const LARGEST: usize = HEADER + 14 + 4 + 65_535;

/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;
const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];
const ETHERTYPE_ARP: [u8; 2] = [0x08, 0x06];
const TCP: u8 = 6;

/// Frames of a pod whose machine leaves.
#[derive(Debug)]
pub struct Kept {
    lines: Vec<(Packets, Line)>,
}

/// What became of the frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fate {
    /// Frames that were sent on.
    pub sent: usize,
    /// Frames that were not: there was no room for them, the machine was not heard elsewhere, or the interface refused them.
    pub lost: usize,
}

impl Kept {
    /// Takes frames of the interfaces of these names, in the calling thread's namespace.
    ///
    /// # Errors
    /// There is no packet socket to be had; the interfaces cannot be listed.
    pub(super) fn open(names: &[String]) -> io::Result<Kept> {
        let links = getifaddrs()?.filter(|one| names.contains(&one.interface_name));
        let links = links.filter_map(|one| one.address?.as_link_addr().copied());
        let line = |link: LinkAddr| Some((link, Line::new(link.addr()?)));
        let lines = links.filter_map(line).map(|(link, line)| Ok((Packets::open(link, BUFFER)?, line)));
        Ok(Kept { lines: lines.collect::<io::Result<_>>()? })
    }

    /// The interfaces are deaf: what was taken until now, the pod has taken as well.
    ///
    /// # Errors
    /// A socket fails.
    pub(super) fn begin(&self) -> io::Result<()> {
        for (packets, _) in &self.lines {
            turn(&mut [0; HEADER], |buffer| packets.receive(buffer), |_| ())?;
        }
        Ok(())
    }

    /// Keeps the frames until the machine is heard elsewhere and sends them there; it returns when nothing more can come
    /// of it, or when `stay` is readable: the machine stays, or its migration has been seen to its end.
    ///
    /// # Errors
    /// A socket fails.
    pub fn send_on(mut self, stay: BorrowedFd<'_>) -> io::Result<Fate> {
        let began = Instant::now();
        let (mut buffer, mut fate) = (vec![0; LARGEST], Fate::default());
        loop {
            let now = began.elapsed();
            let deadlines = self.lines.iter().filter_map(|(_, line)| line.deadline(now));
            let Some(next) = deadlines.min() else { break };
            let wait = next.saturating_sub(now).as_micros().div_ceil(1000);
            let wait = PollTimeout::try_from(wait).unwrap_or(PollTimeout::MAX);
            let sockets = self.lines.iter().map(|(packets, _)| packets.as_fd());
            let mut fds: Vec<PollFd<'_>> =
                once(stay).chain(sockets).map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
            match poll(&mut fds, wait) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
            let stays = fds[0].any().unwrap_or_default();
            self.receive(&mut buffer, began.elapsed(), &mut fate)?;
            // A migration that has been seen to its end has released its connections.
            let now = if stays { Duration::MAX } else { began.elapsed() };
            self.send(now, &mut fate);
            if stays {
                break;
            }
        }
        fate.lost += self.lines.iter().map(|(_, line)| line.waiting()).sum::<usize>();
        Ok(fate)
    }

    fn receive(&mut self, buffer: &mut [u8], now: Duration, fate: &mut Fate) -> io::Result<()> {
        for (packets, line) in &mut self.lines {
            let take = |frame: &[u8]| fate.lost += usize::from(!line.take(frame, now));
            turn(buffer, |buffer| packets.receive(buffer), take)?;
        }
        Ok(())
    }

    fn send(&mut self, now: Duration, fate: &mut Fate) {
        for (packets, line) in &mut self.lines {
            while let Some(frame) = line.next(now) {
                match packets.send(&frame) {
                    Ok(()) => fate.sent += 1,
                    Err(error) => {
                        tracing::debug!(%error, bytes = frame.len(), "a frame is not sent on");
                        fate.lost += 1;
                    }
                }
            }
        }
    }
}

/// Has `take` see each frame that `receive` puts into `buffer`, until there is none or it was [`AT_ONCE`].
fn turn(
    buffer: &mut [u8],
    mut receive: impl FnMut(&mut [u8]) -> io::Result<Option<usize>>,
    mut take: impl FnMut(&[u8]),
) -> io::Result<()> {
    for _ in 0..AT_ONCE {
        match receive(buffer) {
            Ok(Some(length)) => take(buffer.get(..length).unwrap_or_default()),
            Ok(None) => break,
            // Told once when an interface goes down: the pod ends.
            Err(error) if error.raw_os_error() == Some(Errno::ENETDOWN as i32) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The frames of one interface. Times are since the beginning.
#[derive(Debug)]
struct Line {
    own: [u8; 6],
    /// Since when the machine is heard elsewhere.
    heard: Option<Duration>,
    segments: VecDeque<Vec<u8>>,
    others: VecDeque<Vec<u8>>,
    /// In both.
    bytes: usize,
}

impl Line {
    fn new(own: [u8; 6]) -> Line {
        Line { own, heard: None, segments: VecDeque::new(), others: VecDeque::new(), bytes: 0 }
    }

    /// Takes a frame with its header; false when there is no room for it.
    fn take(&mut self, frame: &[u8], now: Duration) -> bool {
        let Some(ethernet) = frame.get(HEADER..HEADER + ETHERNET) else { return true };
        if ethernet[6..12] == self.own {
            self.heard.get_or_insert(now);
            return true;
        }
        let kind = [ethernet[12], ethernet[13]];
        // What is for all reaches the target by itself.
        let ours = ethernet[..6] == self.own;
        if !ours || ![ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_ARP].contains(&kind) {
            return true;
        }
        if self.bytes + frame.len() > ROOM {
            return false;
        }
        self.bytes += frame.len();
        let mut kept = frame.to_vec();
        kept[HEADER + 6..HEADER + 12].copy_from_slice(&stand_in(self.own));
        if is_tcp(kind, &frame[HEADER + ETHERNET..]) { &mut self.segments } else { &mut self.others }
            .push_back(kept);
        true
    }

    /// The next frame to be sent.
    fn next(&mut self, now: Duration) -> Option<Vec<u8>> {
        let heard = self.heard?;
        let frame = self
            .others
            .pop_front()
            .or_else(|| if now.saturating_sub(heard) < RELEASE { None } else { self.segments.pop_front() })?;
        self.bytes -= frame.len();
        Some(frame)
    }

    /// When there is something to do though no frame comes; None when it is over.
    fn deadline(&self, now: Duration) -> Option<Duration> {
        let over = self.heard.map_or(LONGEST, |heard| heard + LINGER);
        let release = self.heard.filter(|_| !self.segments.is_empty()).map(|heard| heard + RELEASE);
        (now < over).then(|| release.unwrap_or(over))
    }

    fn waiting(&self) -> usize {
        self.segments.len() + self.others.len()
    }
}

/// A unicast address, locally administered, made of all but the first byte of the pod's.
fn stand_in(own: [u8; 6]) -> [u8; 6] {
    let [_, rest @ ..] = own.map(|byte| !byte);
    let mut address = [0xfe; 6];
    address[1..].copy_from_slice(&rest);
    address
}

/// Whether a packet carries TCP; of IPv6 only what has no further headers is known to.
fn is_tcp(kind: [u8; 2], packet: &[u8]) -> bool {
    match kind {
        ETHERTYPE_IPV4 => packet.get(9) == Some(&TCP),
        ETHERTYPE_IPV6 => packet.get(6) == Some(&TCP),
        _ => false,
    }
}

#[cfg(test)]
#[path = "kept_tests.rs"]
mod tests;
