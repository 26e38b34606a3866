//! The target's side: records, made into workers' state and sockets.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use podvirt_proto::repair::Command;

use super::Arrived;
use super::pipe::Records;
use super::socket::{Kind, Made, Socket};
use crate::codec::{DecodeError, Field, Reader};
use crate::config::ports::Reserved;
use crate::repair::{BATCH, Connection, Helper, Outcome, Restored};
use crate::sockets::PeekOffset;
use crate::state::stream::{Assembly, tag};
use crate::state::{Descriptors, Endpoints, Fd, StateError, Worker};

/// Bytes of queues that wait until a batch is whole.
const WAITING: usize = 16 << 20;

/// What was read.
pub(super) struct Read {
    pub(super) workers: Vec<Worker>,
    pub(super) fds: Descriptors,
    pub(super) arrived: Vec<Arrived>,
    /// Connections that could not be put together.
    pub(super) failed: u64,
    /// Flows that named a socket which is not theirs.
    pub(super) denied: u64,
}

/// Reads a state and makes its sockets. While one batch of connections is read, the helper has the one before, and the
/// one before that is put together.
///
/// # Errors
/// [`StateError`]; whatever was made is gone.
pub(super) fn read(
    from: impl io::Read,
    helper: Option<&Helper>,
    flows: u32,
    reserved: &Reserved,
) -> Result<Read, StateError> {
    thread::scope(|scope| {
        let mut sockets = Sockets {
            made: Vec::new(),
            purposes: Vec::new(),
            waiting: Vec::new(),
            waiting_bytes: 0,
            flows,
            reserved,
            to: None,
        };
        let restored = helper.map(|helper| {
            // Nothing waits between them: a batch may be large.
            let (to, batches) = sync_channel(0);
            let (ready, repaired) = sync_channel(BATCH);
            sockets.to = Some(to);
            scope.spawn(move || repair(helper, &batches, &ready));
            scope.spawn(move || restore(&repaired))
        });
        let workers = records(from, &mut sockets, flows);
        sockets.make_waiting();
        let Sockets { mut made, purposes, to, .. } = sockets;
        // The threads end with it.
        drop(to);
        let restored = restored.and_then(|thread| thread.join().ok()).unwrap_or_default();
        let mut workers = workers?;
        let (mut offsets, mut named) = (HashSet::new(), Vec::new());
        for Put { place, socket, fd, kept, accepted } in restored {
            if kept {
                offsets.insert(place);
            }
            if let Some(slot) = made.get_mut(place as usize) {
                *slot = Some(fd);
            }
            named.push((place, socket, accepted));
        }
        let fds = Descriptors::with_gaps(made);
        let (mut failed, mut denied) = (0, 0);
        for worker in &mut workers {
            denied += part_from_others(worker, &purposes);
            failed += fit(worker, &fds, &offsets);
        }
        let flows = workers.iter().flat_map(|w| &w.tcp).filter_map(|f| Some((f.socket?.0, f.key)));
        let keys: HashMap<u32, Endpoints> = flows.collect();
        // One that no flow names is of no use.
        let arrived =
            |(at, socket, accepted)| Some(Arrived { key: *keys.get(&at)?, socket, accepted, refused: false });
        let arrived = named.into_iter().filter_map(arrived).collect();
        Ok(Read { workers, fds, arrived, failed, denied })
    })
}

fn records(from: impl io::Read, sockets: &mut Sockets<'_>, flows: u32) -> Result<Vec<Worker>, StateError> {
    let mut records = Records::new(from, flows)?;
    let mut assembly = Assembly::default();
    loop {
        let Some((number, mandatory, body)) = records.next()? else {
            return Err(DecodeError::Truncated(records.read()).into());
        };
        let mut reader = Reader::new(body);
        if number == tag::SOCKET {
            sockets.add(Socket::take(&mut reader)?, body.len())?;
        } else if assembly.add(number, mandatory, &mut reader)? {
            break;
        }
    }
    records.end()?;
    Ok(assembly.snapshot.workers)
}

/// Takes from flows the sockets that are not theirs, or the flows; how many. What a flow says of its peer is judged by the
/// link, so its socket must have no other: the record of the socket stands apart, and the source may write into it what it
/// likes.
fn part_from_others(worker: &mut Worker, purposes: &[(Kind, Option<SocketAddr>)]) -> u64 {
    let is = |at: Fd, kind, peer| purposes.get(at.0 as usize) == Some(&(kind, peer));
    let flows = |worker: &Worker| worker.udp.len() + worker.echo.len();
    let before = flows(worker);
    worker.udp.retain(|f| f.socket.is_none_or(|at| is(at, Kind::Udp, Some(f.pod_peer))));
    worker.echo.retain(|f| is(f.socket, Kind::Ping, None));
    let mut denied = (before - flows(worker)) as u64;
    for flow in &mut worker.tcp {
        if flow.socket.take_if(|at| !is(*at, Kind::Tcp, Some(flow.pod_peer))).is_some() {
            flow.conn.on_pod_error();
            denied += 1;
        }
    }
    denied
}

/// Endpoints flows whose sockets could not be made; how many connections.
fn fit(worker: &mut Worker, fds: &Descriptors, offsets: &HashSet<u32>) -> u64 {
    let mut failed = 0;
    for flow in &mut worker.tcp {
        if flow.socket.take_if(|at| !fds.has(*at)).is_some() {
            flow.conn.on_pod_error();
            failed += 1;
        }
        flow.kernel_offset &= flow.socket.is_some_and(|at| offsets.contains(&at.0));
    }
    worker.udp.retain(|f| f.socket.is_none_or(|at| fds.has(at)));
    worker.echo.retain(|f| fds.has(f.socket));
    // Descriptors of listeners do not come along.
    worker.ports.iter_mut().for_each(|port| port.socket = None);
    failed
}

/// Sockets that are being made, by their places.
struct Sockets<'a> {
    made: Vec<Option<OwnedFd>>,
    /// What each is for.
    purposes: Vec<(Kind, Option<SocketAddr>)>,
    waiting: Vec<Waiting>,
    waiting_bytes: usize,
    /// How many there may be.
    flows: u32,
    /// Ports that none of them is bound to.
    reserved: &'a Reserved,
    /// Where connections are put together; nowhere without a helper.
    to: Option<SyncSender<Vec<Waiting>>>,
}

/// A connection that waits for the helper.
struct Waiting {
    place: u32,
    ends: Endpoints,
    accepted: bool,
    socket: OwnedFd,
    connection: Connection,
}

/// A connection that was put together.
struct Put {
    place: u32,
    socket: Restored,
    fd: OwnedFd,
    /// The kernel keeps its peek offset.
    kept: bool,
    accepted: bool,
}

impl Sockets<'_> {
    fn add(&mut self, socket: Socket, bytes: usize) -> Result<(), StateError> {
        let place = self.made.len();
        let allowed = u64::from(self.flows);
        if place as u64 >= allowed {
            let have = place as u64 + 1;
            return Err(StateError::TooLarge { what: "flows", have, allowed });
        }
        self.purposes.push(socket.purpose());
        let made = match socket.make(self.reserved) {
            Made::Ready(fd) => fd,
            Made::Connection { ends, accepted, connection } => {
                if self.to.is_some()
                    && let Ok(socket) = Connection::socket(ends.1)
                {
                    let place = place as u32;
                    self.waiting.push(Waiting { place, ends, accepted, socket, connection });
                    self.waiting_bytes += bytes;
                }
                None
            }
        };
        self.made.push(made);
        if self.waiting.len() == BATCH || self.waiting_bytes > WAITING {
            self.make_waiting();
        }
        Ok(())
    }

    /// Has the connections put together that wait.
    fn make_waiting(&mut self) {
        self.waiting_bytes = 0;
        let waiting = std::mem::take(&mut self.waiting);
        if let Some(to) = &self.to {
            // The thread that takes them ends after this thread.
            let _ = to.send(waiting);
        }
    }
}

/// Has the helper prepare sockets.
fn repair(helper: &Helper, batches: &Receiver<Vec<Waiting>>, ready: &SyncSender<(Waiting, Outcome)>) {
    for batch in batches {
        let sockets: Vec<&OwnedFd> = batch.iter().map(|w| &w.socket).collect();
        let flags: Vec<u8> = batch.iter().map(|w| w.connection.room()).collect();
        let results = helper.call_with(Command::Repair, &sockets, &flags);
        for repaired in batch.into_iter().zip(results) {
            let _ = ready.send(repaired);
        }
    }
}

/// Puts connections together in sockets that are prepared.
fn restore(repaired: &Receiver<(Waiting, Outcome)>) -> Vec<Put> {
    let peek = PeekOffset::probe();
    let mut put = Vec::new();
    for (Waiting { place, ends, accepted, socket, connection }, outcome) in repaired {
        let ready = match outcome {
            Outcome::Done => Ok(()),
            Outcome::Refused(error) => Err(error),
            Outcome::Unanswered => Err(io::ErrorKind::TimedOut.into()),
        };
        let restored = ready
            .and_then(|()| connection.restore(socket, ends, peek))
            .and_then(|(socket, kept)| Ok(Put { place, fd: socket.for_flow()?, socket, kept, accepted }));
        match restored {
            Ok(one) => put.push(one),
            Err(error) => {
                tracing::debug!(local = %ends.0, peer = %ends.1, %error, "connection not put together");
            }
        }
    }
    put
}
