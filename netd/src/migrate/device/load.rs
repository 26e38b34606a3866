//! The target's side: records, made into workers' state and sockets.

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;

use podvirt_proto::repair::Command;

use super::pipe::{Pipe, Records};
use super::socket::{Made, Socket};
use super::{Arrived, Ends, StateError};
use crate::migrate::codec::{DecodeError, Field, Reader};
use crate::migrate::pack::Descriptors;
use crate::migrate::snapshot::Worker;
use crate::migrate::stream::{Assembly, tag};
use crate::repair::{BATCH, Connection, Helper, Outcome, Restored};
use crate::worker::sockets::PeekOffset;

/// Sockets that a stream may describe: the most flows that netd can be told to have.
const SOCKETS: usize = 1 << 20;
/// Bytes of queues that wait until a batch is whole.
const WAITING: usize = 16 << 20;

/// What was read.
pub(super) struct Read {
    pub(super) workers: Vec<Worker>,
    pub(super) fds: Descriptors,
    pub(super) arrived: Vec<Arrived>,
    /// Connections that could not be put together.
    pub(super) failed: u64,
}

/// Reads a state and makes its sockets.
///
/// # Errors
/// [`StateError`]; whatever was made is gone.
pub(super) fn read(pipe: Pipe, helper: Option<&Helper>) -> Result<Read, StateError> {
    let mut records = Records::new(pipe)?;
    let mut assembly = Assembly::default();
    let mut sockets = Sockets::new(helper);
    loop {
        let Some((number, mandatory, body)) = records.next()? else {
            return Err(DecodeError::Truncated(records.read()).into());
        };
        let mut reader = Reader::new(&body);
        if number == tag::SOCKET {
            sockets.add(Socket::take(&mut reader)?, body.len())?;
        } else if assembly.add(number, mandatory, &mut reader)? {
            break;
        }
    }
    records.end()?;
    sockets.make_waiting();
    let Sockets { made, offsets, restored, .. } = sockets;
    let fds = Descriptors::with_gaps(made);
    let mut workers = assembly.snapshot.workers;
    let mut failed = 0;
    for worker in &mut workers {
        failed += fit(worker, &fds, &offsets);
    }
    let named = workers.iter().flat_map(|w| &w.tcp).filter_map(|f| Some((f.socket?.0, f.key)));
    let keys: HashMap<u32, Ends> = named.collect();
    // One that no flow names is of no use.
    let arrived = |(at, socket, accepted)| Some(Arrived { key: *keys.get(&at)?, socket, accepted });
    let arrived = restored.into_iter().filter_map(arrived).collect();
    Ok(Read { workers, fds, arrived, failed })
}

/// Ends flows whose sockets could not be made; how many connections.
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
    // Descriptors of listeners are nobody's here.
    worker.ports.iter_mut().for_each(|port| port.socket = None);
    failed
}

/// Sockets that are being made, by their places.
struct Sockets<'a> {
    helper: Option<&'a Helper>,
    peek: PeekOffset,
    made: Vec<Option<OwnedFd>>,
    /// Places of those whose peek offset the kernel keeps.
    offsets: HashSet<u32>,
    /// Place of each connection, its socket, and whether the pod accepted it.
    restored: Vec<(u32, Restored, bool)>,
    waiting: Vec<Waiting>,
    waiting_bytes: usize,
}

/// A connection that waits for the helper.
struct Waiting {
    place: usize,
    ends: Ends,
    accepted: bool,
    socket: OwnedFd,
    connection: Connection,
}

impl<'a> Sockets<'a> {
    fn new(helper: Option<&'a Helper>) -> Self {
        Sockets {
            helper,
            peek: PeekOffset::probe(),
            made: Vec::new(),
            offsets: HashSet::new(),
            restored: Vec::new(),
            waiting: Vec::new(),
            waiting_bytes: 0,
        }
    }

    fn add(&mut self, socket: Socket, bytes: usize) -> Result<(), StateError> {
        let place = self.made.len();
        if place == SOCKETS {
            let have = place as u64 + 1;
            return Err(StateError::TooLarge { what: "sockets", have, allowed: SOCKETS as u64 });
        }
        let made = match socket.make() {
            Made::Ready(fd) => fd,
            Made::Connection { ends, accepted, connection } => {
                if self.helper.is_some()
                    && let Ok(socket) = Connection::socket(ends.1)
                {
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

    /// Puts the connections together that wait.
    fn make_waiting(&mut self) {
        self.waiting_bytes = 0;
        let waiting = std::mem::take(&mut self.waiting);
        let Some(helper) = self.helper else { return };
        let sockets: Vec<&OwnedFd> = waiting.iter().map(|w| &w.socket).collect();
        let results = helper.call(Command::Repair, &sockets, 0);
        for (result, w) in results.into_iter().zip(waiting) {
            let peek = self.peek;
            let ready = match result {
                Outcome::Done => Ok(()),
                Outcome::Refused(error) => Err(error),
                Outcome::Unanswered => Err(std::io::ErrorKind::TimedOut.into()),
            };
            let restored = ready
                .and_then(|()| w.connection.restore(w.socket, w.ends, peek))
                .and_then(|(restored, kept)| Ok((restored.for_flow()?, restored, kept)));
            match restored {
                Ok((fd, socket, kept)) => {
                    if let Some(slot) = self.made.get_mut(w.place) {
                        *slot = Some(fd);
                    }
                    if kept {
                        self.offsets.insert(w.place as u32);
                    }
                    self.restored.push((w.place as u32, socket, w.accepted));
                }
                Err(error) => {
                    tracing::debug!(local = %w.ends.0, peer = %w.ends.1, %error, "connection not put together");
                }
            }
        }
    }
}
