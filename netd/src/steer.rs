//! Every port of the pod for two sockets: netd's side of the steering.
//!
//! # Theory of operation
//!
//! A program at the kernel's socket lookup (`BPF_PROG_TYPE_SK_LOOKUP`) can lead every port of a network namespace
//! to one listening TCP socket and one UDP socket. Loading it takes privilege that netd does not have, so netd
//! lends its two sockets to somebody who has it ([`podvirt_proto::steering`] has the protocol) and keeps what it is
//! given back: the program stays attached for as long as anybody holds its link.
//!
//! ```text
//!             attached                        detached, could not attach
//!  Waiting ──────────────> Steered <───────────────────────────── ┐
//!     │                       └──────────────────────────────> Listening
//!     └── nobody came in time ───────────────────────────────────┘
//! ```
//!
//! In *Listening* `all` has listeners within the budget, as without steering; they close when steering begins.
//! Flows that listeners or steered sockets have accepted go on through every change. The end of the steering
//! side changes nothing: netd holds the link and waits for the next one.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::poll::PollTimeout;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::getuid;
use podvirt_proto::steering::{Answer, Error, Held, Offer, Ranges, VERSION, recv, send};
use socket2::{Socket, Type};
use tracing::{debug, info, warn};

use crate::config::Ports;
use crate::ctl::socket::{SocketFile, listen_as};
use crate::ctl::{Control, PortRule, Proto};
use crate::pod;
use crate::vhost::{Stopper, Waited};
use crate::worker::SteeredSockets;

/// How long somebody to steer is waited for at the start.
const PATIENCE: Duration = Duration::from_secs(10);

/// What netd offers, and where.
#[derive(Debug)]
pub struct Steering {
    listener: Socket,
    _file: SocketFile,
    sockets: SteeredSockets,
    closed: Ranges,
    /// The listeners of `all` without steering.
    fallback: Vec<PortRule>,
}

impl Steering {
    /// Opens the sockets and listens at `path` for who can steer to them.
    ///
    /// # Errors
    /// What the system says of the sockets or the path.
    pub fn open(path: &Path, ports: &Ports, fallback: Vec<PortRule>) -> io::Result<Self> {
        let sockets = SteeredSockets::open(ports.tcp.all, ports.udp.all)?;
        let (listener, file) = listen_as(Type::SEQPACKET, path, false)?;
        let mut closed = Ranges { tcp: ports.closed(Proto::Tcp), udp: ports.closed(Proto::Udp) };
        // A client's socket that is not connected has its port there, and the program cannot see it.
        let ephemeral = pod::ephemeral_ports();
        closed.udp.extend(ephemeral.map(crate::config::ports::PortRange::bounds));
        Ok(Steering { listener, _file: file, sockets, closed, fallback })
    }

    /// The sockets, for the worker to serve.
    ///
    /// # Errors
    /// As dup(2).
    pub fn sockets(&self) -> io::Result<SteeredSockets> {
        self.sockets.try_clone()
    }

    /// Lends the sockets to whoever comes, until `stop` says so.
    pub fn serve(self, control: &dyn Control, stop: &Stopper) {
        let patience = Instant::now() + PATIENCE;
        let mut peer: Option<Socket> = None;
        let mut held: Option<Held> = None;
        let mut listening = false;
        loop {
            let wait =
                (held.is_none() && !listening).then(|| patience.saturating_duration_since(Instant::now()));
            let woken = match self.wait(stop, peer.as_ref(), wait) {
                Ok(woken) => woken,
                Err(error) => {
                    warn!(%error, "the steering socket cannot be watched");
                    return;
                }
            };
            match woken {
                Woken::Stop => return,
                Woken::Late => {
                    listening = true;
                    self.listen(control, true);
                }
                Woken::Comer => match self.lend(held.as_ref(), listening) {
                    // The newer one takes over from the one before.
                    Ok(Some(socket)) => peer = Some(socket),
                    Ok(None) => {}
                    Err(error) => warn!(%error, "the sockets cannot be lent"),
                },
                Woken::Peer => match peer.as_ref().map_or(Ok(None), |p| recv::<Answer>(p.as_fd())) {
                    Ok(Some((Answer { attached: true, .. }, fds))) => {
                        if let Some(new) = Held::from_fds(fds) {
                            held = Some(new);
                            info!("every port of the pod is steered to the guest");
                        }
                        if held.is_some() && std::mem::take(&mut listening) {
                            self.listen(control, false);
                        }
                    }
                    Ok(Some((Answer { error, .. }, _))) => {
                        held = None;
                        warn!(error = error.unwrap_or_default(), "the ports are not steered");
                        if !std::mem::replace(&mut listening, true) {
                            self.listen(control, true);
                        }
                    }
                    Ok(None) => {
                        debug!("the steering side has gone");
                        peer = None;
                    }
                    Err(Error::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => {
                        warn!(%error, "the steering side");
                        peer = None;
                    }
                },
            }
        }
    }

    /// Waits for something to do, at most `wait`.
    fn wait(&self, stop: &Stopper, peer: Option<&Socket>, wait: Option<Duration>) -> io::Result<Woken> {
        let mut fds = vec![self.listener.as_fd()];
        fds.extend(peer.map(AsFd::as_fd));
        // Rounded up: a wake-up before the time would be one for nothing.
        let millis = wait.map(|w| w.as_millis().saturating_add(1).min(60_000));
        let timeout = millis.and_then(|m| PollTimeout::try_from(m).ok()).unwrap_or(PollTimeout::NONE);
        Ok(match stop.wait(&fds, timeout)? {
            Waited::Stopped => Woken::Stop,
            Waited::Ready(ready) => match ready[..] {
                [_, true] => Woken::Peer,
                [true, ..] => Woken::Comer,
                _ => Woken::Late,
            },
        })
    }

    /// Offers the sockets to who connects, if he may have them.
    fn lend(&self, held: Option<&Held>, listening: bool) -> Result<Option<Socket>, Error> {
        let socket = match self.listener.accept4(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) {
            Ok((socket, _)) => socket,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        let uid = getsockopt(&socket, PeerCredentials).map_err(io::Error::from)?.uid();
        if uid != 0 && uid != getuid().as_raw() {
            return Err(Error::Message(format!("user {uid} is neither root nor netd's own")));
        }
        let offer = Offer {
            version: VERSION,
            tcp: self.sockets.tcp.is_some(),
            udp: self.sockets.udp.is_some(),
            held: held.is_some(),
            closed: self.closed.clone(),
            own: if listening { self.own() } else { Ranges::default() },
        };
        let sockets = [&self.sockets.tcp, &self.sockets.udp];
        let mut fds: Vec<BorrowedFd<'_>> = sockets.into_iter().flatten().map(AsFd::as_fd).collect();
        fds.extend(held.iter().flat_map(|h| h.as_fds()));
        send(socket.as_fd(), &offer, &fds)?;
        Ok(Some(socket))
    }

    /// The ports of the listeners of `all`.
    fn own(&self) -> Ranges {
        let mut own = Ranges::default();
        for rule in &self.fallback {
            let ranges = if rule.proto == Proto::Tcp { &mut own.tcp } else { &mut own.udp };
            match ranges.last_mut() {
                Some((_, last)) if last.checked_add(1) == Some(rule.pod) => *last = rule.pod,
                _ => ranges.push((rule.pod, rule.pod)),
            }
        }
        own
    }

    /// Opens or closes the listeners of `all`.
    fn listen(&self, control: &dyn Control, open: bool) {
        let rules = self.fallback.clone();
        let ports = rules.len();
        if open {
            let failed = control.add_ports(rules).iter().filter(|i| i.error.is_some()).count();
            warn!(
                listeners = ports - failed.min(ports),
                failed, "nobody steers the ports: 'all' has listeners within ports.all_ports_budget"
            );
        } else {
            control.remove_ports(rules);
            info!(listeners = ports, "closed, the ports are steered");
        }
    }
}

/// What woke the loop.
enum Woken {
    /// netd ends.
    Stop,
    /// Nobody came in time.
    Late,
    /// Somebody connects.
    Comer,
    /// The peer has sent something, or has gone.
    Peer,
}
