//! The source's side: what workers have, as records.

use std::collections::HashMap;
use std::io::{self, Write};
use std::mem::take;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use podvirt_proto::repair::Command;
use socket2::SockRef;
use tracing::{debug, info, warn};

use super::pipe::{self, Pipe};
use super::socket::{Socket, ends};
use super::{Saved, Still};
use crate::codec::{Field, MAGIC, record};
use crate::counters::Reason;
use crate::repair::{
    Apart, BATCH, Connection, Helper, Local, Outcome, Room, Verdict, Window, classify, sockets_of_namespace,
};
use crate::state::stream::{Frame, tag};
use crate::state::{Endpoints, Fd, Listeners, Origin, Pack, StateError, TcpFlow, Worker};
use crate::tcp::State;
use crate::worker::Handle;

/// Nothing was saved.
pub(super) struct Failed {
    pub(super) error: StateError,
    /// Connections that the helper is to let go of.
    pub(super) frozen: Vec<Still>,
}

impl<E: Into<StateError>> From<E> for Failed {
    fn from(error: E) -> Failed {
        Failed { error: error.into(), frozen: Vec::new() }
    }
}

/// Writes the state of workers that stand still; what goes along stands still as well.
///
/// Connections are frozen, batch by batch, while those before are described and written.
///
/// # Errors
/// [`Failed`].
pub(super) fn write(worker: &Handle, pipe: Pipe, helper: Option<&Helper>) -> Result<Saved, Failed> {
    let (packed, all) = thread::scope(|scope| {
        // No connection comes any more, so it may be asked for now: with many sockets it takes a while.
        let all = helper.map(|_| scope.spawn(sockets_of_namespace));
        let packed = worker.pack(Pack::keep()).map(|(pack, workers)| {
            let fds = pack.kept();
            let ends: Vec<Option<Endpoints>> = fds.iter().map(|fd| ends(&SockRef::from(fd))).collect();
            (fds, ends, workers)
        });
        (packed, all.map(|all| all.join().unwrap_or_else(|_| Err(io::Error::other("a panic")))))
    });
    let (fds, ends, workers) = packed.ok_or(StateError::Ended)?;
    let mut workers = workers?;
    let mut plan = Plan::new(&workers, &ends, all);
    let stop = AtomicBool::new(false);
    let (result, moved, frozen, unfit, strange) = thread::scope(|scope| {
        let (tell, batches) = channel();
        let (stop, moving, fds) = (&stop, &plan.moving, &fds);
        match helper {
            Some(helper) => drop(scope.spawn(move || freeze(helper, moving, fds, &tell, stop))),
            None => drop(tell),
        }
        let awaited = moving.iter().map(|m| (m.at, Standing::Awaited)).collect();
        let mut sockets = Described {
            fds,
            standing: awaited,
            batches,
            room: Room::default(),
            count: 0,
            moved: Vec::new(),
            unfit: 0,
            strange: 0,
        };
        let result = stream(&mut workers, &mut sockets, pipe);
        stop.store(true, Relaxed);
        let frozen = sockets.left();
        (result, sockets.moved, frozen, sockets.unfit, sockets.strange)
    });
    (plan.unfit, plan.strange) = (plan.unfit + unfit, strange);
    let mut fds: Vec<Option<OwnedFd>> = fds.into_iter().map(Some).collect();
    let mut take = |at: u32| fds.get_mut(at as usize).and_then(Option::take);
    let mut still = |at: u32, key: Endpoints, window| Some(Still { key, socket: take(at)?, window });
    let moved: Vec<Still> =
        moved.into_iter().filter_map(|(at, key, window)| still(at, key, Some(window))).collect();
    let keys: HashMap<u32, Endpoints> = plan.moving.iter().map(|m| (m.at, m.key)).collect();
    let mut frozen: Vec<Still> =
        frozen.into_iter().filter_map(|at| still(at, *keys.get(&at)?, None)).collect();
    if let Err(error) = result {
        frozen.extend(moved);
        return Err(Failed { error, frozen });
    }
    Ok(Saved { moved, left: frozen, stay: plan.stay(), listeners: Vec::new() })
}

fn stream(workers: &mut [Worker], sockets: &mut Described<'_>, pipe: Pipe) -> Result<(), StateError> {
    let mut to = Records::begin(io::BufWriter::with_capacity(pipe::CHUNK, pipe))?;
    let origin = Origin { version: env!("CARGO_PKG_VERSION").to_owned(), ..Origin::default() };
    to.put(tag::ORIGIN, &origin)?;
    to.put(tag::LISTENERS, &Listeners::default())?;
    for state in &mut *workers {
        sockets.describe(state, &mut to)?;
    }
    for state in workers {
        to.put(tag::WORKER, &state.state)?;
        state.tcp.iter().try_for_each(|f| to.put(tag::TCP, f))?;
        state.udp.iter().try_for_each(|f| to.put(tag::UDP, f))?;
        state.echo.iter().try_for_each(|f| to.put(tag::ECHO, f))?;
        state.ports.iter().try_for_each(|p| to.put(tag::PORT, p))?;
        state.waiting.iter().try_for_each(|f| to.write(tag::WAITING, false, &Frame(f.clone())))?;
    }
    to.put(tag::END, &Frame(Vec::new()))?;
    Ok(to.to.flush()?)
}

/// Records on their way out.
pub(super) struct Records<W> {
    to: W,
    /// The last one: each is put together in the room of those before it, as with [`Room`].
    record: Vec<u8>,
}

impl<W: Write> Records<W> {
    /// Writes what a stream begins with.
    pub(super) fn begin(mut to: W) -> io::Result<Records<W>> {
        to.write_all(&MAGIC)?;
        Ok(Records { to, record: Vec::new() })
    }

    /// Writes a record that must be understood.
    pub(super) fn put(&mut self, tag: u16, body: &impl Field) -> io::Result<()> {
        self.write(tag, true, body)
    }

    fn write(&mut self, tag: u16, mandatory: bool, body: &impl Field) -> io::Result<()> {
        self.record.clear();
        record(&mut self.record, tag, mandatory, body);
        self.to.write_all(&self.record)
    }
}

/// A connection that can move.
struct Moving {
    /// Place of its socket.
    at: u32,
    /// Ends of the socket and of the flow.
    ends: Endpoints,
    key: Endpoints,
}

/// What is to become of the connections.
struct Plan {
    /// Those that can move, in the order in which they are described.
    moving: Vec<Moving>,
    /// How many have their peers in the pod, how many no helper repairs, how many cannot be taken apart, and how many have
    /// addresses that the target has not.
    local: u64,
    helpless: u64,
    unfit: u64,
    strange: u64,
}

impl Plan {
    /// What becomes of the workers' connections, whose sockets have these ends, among all sockets of the pod; `all` is
    /// none without a helper.
    fn new(workers: &[Worker], ends: &[Option<Endpoints>], all: Option<io::Result<Local>>) -> Plan {
        let mut plan = Plan { moving: Vec::new(), local: 0, helpless: 0, unfit: 0, strange: 0 };
        let connections = workers.iter().flat_map(|w| &w.tcp).filter(|f| f.conn.state() != State::Connecting);
        let connections = connections.filter_map(|f| Some((f, f.socket?.0)));
        let all = match all {
            Some(Ok(all)) => all,
            None => {
                plan.helpless = connections.count() as u64;
                return plan;
            }
            Some(Err(error)) => {
                warn!(%error, "which connections can move cannot be told: all of them end");
                plan.unfit = connections.count() as u64;
                return plan;
            }
        };
        for (flow, at) in connections {
            let Some(ends) = ends.get(at as usize).copied().flatten() else {
                plan.unfit += 1;
                continue;
            };
            match classify(ends.0, ends.1, flow.from_guest, &all) {
                Verdict::Move => plan.moving.push(Moving { at, ends, key: flow.key }),
                Verdict::Local => plan.local += 1,
            }
        }
        info!(
            connections = plan.moving.len(),
            local = plan.local,
            unfit = plan.unfit,
            "connections are to move"
        );
        plan
    }

    fn stay(&self) -> Vec<(Reason, u64)> {
        vec![
            (Reason::MigrationLocal, self.local),
            (Reason::MigrationHelper, self.helpless),
            (Reason::MigrationState, self.unfit),
            (Reason::MigrationTarget, self.strange),
        ]
    }
}

/// Connections that the helper was asked to freeze, by their places.
type Frozen = Vec<(u32, Standing)>;

/// Has the helper freeze connections until all are or `stop` is set.
fn freeze(helper: &Helper, moving: &[Moving], fds: &[OwnedFd], tell: &Sender<Frozen>, stop: &AtomicBool) {
    for batch in moving.chunks(BATCH) {
        if stop.load(Relaxed) {
            return;
        }
        let sockets: Vec<&OwnedFd> = batch.iter().filter_map(|m| fds.get(m.at as usize)).collect();
        let results = helper.call(Command::Freeze, &sockets);
        let standing = |(m, result): (&Moving, Outcome)| match result {
            Outcome::Done => (m.at, Standing::Frozen(m.ends)),
            // The helper knows the target's addresses.
            Outcome::Refused(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {
                (m.at, Standing::Strange)
            }
            Outcome::Refused(_) => (m.at, Standing::Refused),
            Outcome::Unanswered => (m.at, Standing::Unknown),
        };
        // Heard until this thread has ended.
        let _ = tell.send(batch.iter().zip(results).map(standing).collect());
    }
}

/// How a connection stands that can move.
enum Standing {
    /// The helper was not asked yet, or has not answered.
    Awaited,
    /// It is frozen; the ends of its socket.
    Frozen(Endpoints),
    /// The helper has not frozen it.
    Refused,
    /// It has not said whether it has.
    Unknown,
    /// Its address is not at the target.
    Strange,
}

/// Sockets that are being described.
struct Described<'a> {
    /// By the places that the workers have given them.
    fds: &'a [OwnedFd],
    /// By their places; those that went along are gone.
    standing: HashMap<u32, Standing>,
    batches: Receiver<Frozen>,
    room: Room,
    /// How many were described.
    count: u32,
    /// Places of those that went along, their flows' ends, and the windows that their sockets had.
    moved: Vec<(u32, Endpoints, Window)>,
    /// How many could not be taken apart, and how many have addresses that the target has not.
    unfit: u64,
    strange: u64,
}

impl Described<'_> {
    fn hear(&mut self, batch: Frozen) {
        self.standing.extend(batch);
    }

    /// Places of connections that are, or may be, frozen and did not go along, once the helper is not asked any more.
    fn left(&mut self) -> Vec<u32> {
        while let Ok(batch) = self.batches.recv() {
            self.hear(batch);
        }
        let may_be = |s: &Standing| matches!(s, Standing::Frozen(_) | Standing::Unknown);
        let frozen = self.standing.drain().filter(|(_, s)| may_be(s));
        frozen.map(|(at, _)| at).collect()
    }

    /// The ends of a connection's socket once that is frozen.
    fn frozen(&mut self, at: u32) -> Option<Endpoints> {
        loop {
            match self.standing.get(&at)? {
                Standing::Refused | Standing::Unknown | Standing::Strange => return None,
                Standing::Frozen(ends) => return Some(*ends),
                Standing::Awaited => {
                    let batch = self.batches.recv().ok()?;
                    self.hear(batch);
                }
            }
        }
    }

    /// Describes the sockets of a worker's flows and gives them their places in the stream.
    fn describe(&mut self, worker: &mut Worker, to: &mut Records<impl Write>) -> Result<(), StateError> {
        // The guest has heard nothing of these yet, and asks again.
        worker.tcp.retain(|f| f.conn.state() != State::Connecting);
        for flow in &mut worker.tcp {
            let Some(at) = flow.socket.take() else { continue };
            flow.socket = self.connection(at, flow, to)?;
            if flow.socket.is_none() {
                // The guest hears that the connection has ended, at the target.
                flow.conn.on_pod_error();
            }
        }
        for flow in &mut worker.udp {
            flow.socket = flow.socket.map(|at| self.datagrams(at, to)).transpose()?.flatten();
        }
        let mut echo = Vec::with_capacity(worker.echo.len());
        for mut flow in take(&mut worker.echo) {
            if let Some(socket) = self.datagrams(flow.socket, to)? {
                flow.socket = socket;
                echo.push(flow);
            }
        }
        worker.echo = echo;
        worker.ports.iter_mut().for_each(|port| port.socket = None);
        Ok(())
    }

    /// Takes a frozen connection apart; its place, if it goes along.
    fn connection(
        &mut self,
        at: Fd,
        flow: &mut TcpFlow,
        to: &mut Records<impl Write>,
    ) -> Result<Option<Fd>, StateError> {
        if !self.standing.contains_key(&at.0) {
            return Ok(None);
        }
        let taken = self.frozen(at.0).and_then(|ends| Some((ends, self.fds.get(at.0 as usize)?)));
        let Some((ends, fd)) = taken else {
            match self.standing.get(&at.0) {
                Some(Standing::Strange) => self.strange += 1,
                _ => self.unfit += 1,
            }
            return Ok(None);
        };
        let Apart { mut connection, acked, window } = match Connection::dump(fd.as_fd(), take(&mut self.room))
        {
            Ok(apart) => apart,
            Err(error) => {
                debug!(peer = %ends.1, %error, "connection cannot be taken apart");
                self.unfit += 1;
                return Ok(None);
            }
        };
        let acked = acked.wrapping_sub(flow.acked_base);
        let repeated = acked > 0 && connection.repeat_byte();
        // The new socket counts from zero.
        flow.acked_base = 0u64.wrapping_sub(acked - u64::from(repeated));
        // Before the record is written: also if that fails, the socket is to have its windows back.
        self.standing.remove(&at.0);
        self.moved.push((at.0, flow.key, window));
        let socket = Socket::of_connection(ends, !flow.from_guest, connection);
        to.put(tag::SOCKET, &socket)?;
        self.room = socket.into_room();
        Ok(Some(self.next()))
    }

    /// Describes a datagram socket; its place, if it can be described.
    fn datagrams(&mut self, at: Fd, to: &mut Records<impl Write>) -> Result<Option<Fd>, StateError> {
        let Some(fd) = self.fds.get(at.0 as usize) else { return Ok(None) };
        let Some(socket) = Socket::of_datagrams(fd) else { return Ok(None) };
        to.put(tag::SOCKET, &socket)?;
        Ok(Some(self.next()))
    }

    fn next(&mut self) -> Fd {
        self.count += 1;
        Fd(self.count - 1)
    }
}
