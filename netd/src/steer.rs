//! Every port of the pod for two sockets: netd's side of the steering.
//!
//! # Theory of operation
//!
//! A program at the kernel's socket lookup (`BPF_PROG_TYPE_SK_LOOKUP`) can lead every port of a network namespace
//! to one listening TCP socket and one UDP socket. Loading it takes privilege that netd does not have, so netd
//! lends its two sockets to a helper that has it ([`podvirt_proto::steering`] has the protocol) and keeps what it is
//! given back: the program stays attached for as long as any process holds its link.
//!
//! ```text
//!             attached                        detached, could not attach
//!  Waiting ──────────────> Steered <───────────────────────────── ┐
//!     │                       └──────────────────────────────> Listening
//!     └── no helper came in time ────────────────────────────────┘
//! ```
//!
//! In *Listening* `all` has listeners within the budget, as without steering; they close when steering begins.
//! Flows that listeners or steered sockets have accepted go on through every change. The end of the steering
//! side changes nothing: netd holds the link and waits for the next one.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::poll::PollTimeout;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::getuid;
use podvirt_proto::hold;
use podvirt_proto::steering::{Answer, Error, Held, Offer, Ranges, VERSION, recv, send};
use socket2::{Socket, Type};
use tracing::{debug, info, warn};

use crate::config::Ports;
use crate::control::Control;
use crate::pod;
use crate::port::{PortRule, Proto};
use crate::sockets::SteeredSockets;
use crate::sockets::unix::{SocketFile, listen_as};
use crate::state::{self, Descriptors, Named, Pack, text};
use crate::stop::{Stopper, Waited};

/// How long netd waits at the start for a helper that steers.
const TIMEOUT: Duration = Duration::from_secs(10);

/// What netd offers, and where.
#[derive(Debug)]
pub struct Steering {
    path: PathBuf,
    _file: SocketFile,
    closed: Ranges,
    /// The listeners of `all` without steering.
    fallback: Vec<PortRule>,
    state: Arc<Mutex<State>>,
}

/// What moves to another netd.
#[derive(Debug)]
struct State {
    listener: Socket,
    sockets: SteeredSockets,
    peer: Option<Socket>,
    held: Option<Held>,
    /// `all` has its listeners.
    listening: bool,
}

/// The steering's part in a handover.
#[derive(Clone, Debug)]
pub struct Mover {
    path: PathBuf,
    state: Arc<Mutex<State>>,
}

/// The steering at rest: nothing is lent and nothing taken until it is dropped.
#[derive(Debug)]
pub struct AtRest<'a> {
    path: &'a Path,
    state: MutexGuard<'a, State>,
}

impl Mover {
    /// Waits until no helper is being served, and serves none from then on.
    pub(crate) fn rest(&self) -> AtRest<'_> {
        AtRest { path: &self.path, state: lock(&self.state) }
    }
}

impl AtRest<'_> {
    /// The state; its descriptors into the pack.
    pub(crate) fn pack(&self, pack: &mut Pack) -> Result<state::Steering, hold::Error> {
        let mut named = Named::after(pack);
        let State { listener, sockets, peer, held, listening } = &*self.state;
        let state = state::Steering {
            listener: Some((text(self.path), named.name(listener.as_fd()))),
            tcp: sockets.tcp.as_ref().map(|s| named.name(s.as_fd())),
            udp: sockets.udp.as_ref().map(|s| named.name(s.as_fd())),
            held: held.iter().flat_map(Held::as_fds).map(|fd| named.name(fd)).collect(),
            peer: peer.as_ref().map(|s| named.name(s.as_fd())),
            listening: *listening,
        };
        pack.add(named.fds())?;
        Ok(state)
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Steering {
    /// Opens the sockets and listens at `path` for a helper that can steer to them.
    ///
    /// # Errors
    /// What the system says of the sockets or the path.
    pub fn open(path: &Path, ports: &Ports, fallback: Vec<PortRule>) -> io::Result<Self> {
        let sockets = SteeredSockets::open(ports.tcp.all, ports.udp.all)?;
        let (listener, file) = listen_as(Type::SEQPACKET, path, false)?;
        let state = State { listener, sockets, peer: None, held: None, listening: false };
        Ok(Steering::new(path, ports, fallback, state, file))
    }

    /// Goes on with what another netd had: the helper does not notice. None when the other netd had another path.
    ///
    /// # Errors
    /// A descriptor is not there, or the path leads nowhere.
    pub fn take(
        path: &Path,
        ports: &Ports,
        fallback: Vec<PortRule>,
        state: state::Steering,
        fds: &mut Descriptors,
    ) -> io::Result<Option<Self>> {
        let Some((at, listener)) = state.listener.filter(|(at, _)| *at == text(path)) else {
            return Ok(None);
        };
        let mut take = |fd| fds.take_if(fd).map_err(io::Error::other);
        let mut held = Vec::new();
        for fd in state.held {
            held.extend(take(Some(fd))?);
        }
        let mut socket = |fd| take(fd).map(|fd| fd.map(Socket::from));
        let listener = socket(Some(listener))?.ok_or(io::ErrorKind::NotFound)?;
        let sockets = SteeredSockets { tcp: socket(state.tcp)?, udp: socket(state.udp)? };
        let peer = socket(state.peer)?;
        let state = State { listener, sockets, peer, held: Held::from_fds(held), listening: state.listening };
        Ok(Some(Steering::new(path, ports, fallback, state, SocketFile::taken(Path::new(&at))?)))
    }

    fn new(path: &Path, ports: &Ports, fallback: Vec<PortRule>, state: State, file: SocketFile) -> Self {
        let mut closed = Ranges { tcp: ports.closed(Proto::Tcp), udp: ports.closed(Proto::Udp) };
        // A client's socket that is not connected has its port there, and the program cannot see it.
        let ephemeral = pod::ephemeral_ports();
        closed.udp.extend(ephemeral.map(crate::port::PortRange::bounds));
        let state = Arc::new(Mutex::new(state));
        Steering { path: path.to_owned(), _file: file, closed, fallback, state }
    }

    /// Its part in a handover.
    pub fn mover(&self) -> Mover {
        Mover { path: self.path.clone(), state: self.state.clone() }
    }

    /// The sockets, for the worker to serve.
    ///
    /// # Errors
    /// As dup(2).
    pub fn sockets(&self) -> io::Result<SteeredSockets> {
        lock(&self.state).sockets.try_clone()
    }

    /// Lends the sockets to each helper that comes, until `stop` says so.
    pub fn serve(self, control: &dyn Control, stop: &Stopper) {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let woken = match self.wait(stop, deadline) {
                Ok(woken) => woken,
                Err(error) => {
                    warn!(%error, "the steering socket cannot be watched");
                    return;
                }
            };
            // What woke it may have moved on meanwhile: nothing below blocks.
            let mut state = lock(&self.state);
            match woken {
                Woken::Stop => return,
                Woken::Late => {
                    state.listening = true;
                    self.listen(control, true);
                }
                Woken::Comer => match self.lend(&state) {
                    // The newer one takes over from the one before.
                    Ok(Some(socket)) => state.peer = Some(socket),
                    Ok(None) => {}
                    Err(error) => warn!(%error, "the sockets cannot be lent"),
                },
                Woken::Peer => self.hear(&mut state, control),
            }
        }
    }

    /// The peer has sent something, or has gone.
    fn hear(&self, state: &mut State, control: &dyn Control) {
        match state.peer.as_ref().map_or(Ok(None), |p| recv::<Answer>(p.as_fd())) {
            Ok(Some((Answer { attached: true, .. }, fds))) => {
                if let Some(new) = Held::from_fds(fds) {
                    state.held = Some(new);
                    info!("every port of the pod is steered to the guest");
                }
                if state.held.is_some() && std::mem::take(&mut state.listening) {
                    self.listen(control, false);
                }
            }
            Ok(Some((Answer { error, .. }, _))) => {
                state.held = None;
                warn!(error = error.unwrap_or_default(), "the ports are not steered");
                if !std::mem::replace(&mut state.listening, true) {
                    self.listen(control, true);
                }
            }
            Ok(None) => {
                debug!("the steering side has gone");
                state.peer = None;
            }
            Err(Error::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                warn!(%error, "the steering side");
                state.peer = None;
            }
        }
    }

    /// Waits for something to do; until `deadline` where no helper has come.
    fn wait(&self, stop: &Stopper, deadline: Instant) -> io::Result<Woken> {
        let (listener, peer, wait) = {
            let state = lock(&self.state);
            let wait = (state.held.is_none() && !state.listening)
                .then(|| deadline.saturating_duration_since(Instant::now()));
            (state.listener.try_clone()?, state.peer.as_ref().map(Socket::try_clone).transpose()?, wait)
        };
        let mut fds = vec![listener.as_fd()];
        fds.extend(peer.as_ref().map(AsFd::as_fd));
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

    /// Offers the sockets to the helper that connects, if its user may have them.
    fn lend(&self, state: &State) -> Result<Option<Socket>, Error> {
        let State { listener, sockets, held, listening, .. } = state;
        let socket = match listener.accept4(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) {
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
            tcp: sockets.tcp.is_some(),
            udp: sockets.udp.is_some(),
            held: held.is_some(),
            closed: self.closed.clone(),
            own: if *listening { self.own() } else { Ranges::default() },
        };
        let sockets = [&sockets.tcp, &sockets.udp];
        let mut fds: Vec<BorrowedFd<'_>> = sockets.into_iter().flatten().map(AsFd::as_fd).collect();
        fds.extend(held.iter().flat_map(Held::as_fds));
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
                failed, "no helper steers the ports: 'all' has listeners within ports.all_ports_budget"
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
    /// No helper came in time.
    Late,
    /// A helper connects.
    Comer,
    /// The peer has sent something, or has gone.
    Peer,
}
