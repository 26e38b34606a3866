//! The source's side: what workers have, as records.

use std::collections::HashMap;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};

use podvirt_proto::repair::Command;
use socket2::SockRef;
use tracing::{info, warn};

use super::pipe::{self, Pipe};
use super::socket::{Socket, ends};
use super::{Ends, Saved, StateError, thaw};
use crate::migrate::codec::{Field, MAGIC, record};
use crate::migrate::pack::Pack;
use crate::migrate::snapshot::{Fd, Listeners, Origin, TcpFlow, Worker};
use crate::migrate::stream::{Frame, tag};
use crate::repair::{Connection, Helper, PAUSE, Verdict, classify, sockets_of_namespace};
use crate::sys::tcp_info;
use crate::tcp::State;
use crate::worker::Handle;

/// Writes the state of workers that stand still; what goes along stands still as well.
///
/// # Errors
/// [`StateError`]; connections go on as before then.
pub(super) fn write(worker: &Handle, pipe: Pipe, helper: Option<&Helper>) -> Result<Saved, StateError> {
    let (pack, workers) = worker.pack(Pack::keep()).ok_or(StateError::Ended)?;
    let mut workers = workers?;
    let fds = pack.kept();
    let frozen = helper.map(|helper| freeze(helper, &workers, &fds)).unwrap_or_default();
    let mut sockets =
        Described { fds: fds.into_iter().map(Some).collect(), frozen, count: 0, saved: Saved::default() };
    match stream(&mut workers, &mut sockets, pipe) {
        Ok(()) => {
            // Those that could not be described end with their flows.
            let left = sockets.left();
            if let Some(helper) = helper {
                thaw(helper, &left);
            }
            info!(connections = sockets.saved.moved.len(), stay = left.len(), "the state was given away");
            Ok(sockets.saved)
        }
        Err(error) => {
            if let Some(helper) = helper {
                let mut all = sockets.left();
                all.append(&mut sockets.saved.frozen);
                thaw(helper, &all);
            }
            Err(error)
        }
    }
}

fn stream(workers: &mut [Worker], sockets: &mut Described, pipe: Pipe) -> Result<(), StateError> {
    let mut to = io::BufWriter::with_capacity(pipe::CHUNK, pipe);
    to.write_all(&MAGIC)?;
    let origin = Origin { version: env!("CARGO_PKG_VERSION").to_owned(), ..Origin::default() };
    put(&mut to, tag::ORIGIN, &origin)?;
    put(&mut to, tag::LISTENERS, &Listeners::default())?;
    for state in &mut *workers {
        sockets.describe(state, &mut to)?;
    }
    for state in workers {
        put(&mut to, tag::WORKER, &state.state)?;
        state.tcp.iter().try_for_each(|f| put(&mut to, tag::TCP, f))?;
        state.udp.iter().try_for_each(|f| put(&mut to, tag::UDP, f))?;
        state.echo.iter().try_for_each(|f| put(&mut to, tag::ECHO, f))?;
        state.ports.iter().try_for_each(|p| put(&mut to, tag::PORT, p))?;
        for frame in &state.waiting {
            let mut bytes = Vec::new();
            record(&mut bytes, tag::WAITING, false, &Frame(frame.clone()));
            to.write_all(&bytes)?;
        }
    }
    put(&mut to, tag::END, &Frame(Vec::new()))?;
    Ok(to.flush()?)
}

/// Writes a record that must be understood.
pub(super) fn put(to: &mut impl Write, tag: u16, body: &impl Field) -> io::Result<()> {
    let mut bytes = Vec::new();
    record(&mut bytes, tag, true, body);
    to.write_all(&bytes)
}

/// Freezes the connections that can move: the places of their sockets, with both ends.
fn freeze(helper: &Helper, workers: &[Worker], fds: &[OwnedFd]) -> HashMap<u32, Ends> {
    let all = match sockets_of_namespace() {
        Ok(all) => all,
        Err(error) => {
            warn!(%error, "which connections can move cannot be told: all of them end");
            return HashMap::new();
        }
    };
    let flows = || workers.iter().flat_map(|w| &w.tcp);
    let mut local = 0usize;
    let mut moving: Vec<(u32, Ends, &OwnedFd)> = Vec::new();
    for flow in flows() {
        let Some((at, fd)) = flow.socket.and_then(|at| Some((at.0, fds.get(at.0 as usize)?))) else {
            continue;
        };
        let Some(ends) = ends(&SockRef::from(fd)) else { continue };
        match classify(ends.0, ends.1, flow.from_guest, &all) {
            Verdict::Move => moving.push((at, ends, fd)),
            Verdict::Local => local += 1,
        }
    }
    let sockets: Vec<&OwnedFd> = moving.iter().map(|(_, _, fd)| *fd).collect();
    let results = helper.call(Command::Freeze, &sockets, 0);
    let frozen: HashMap<u32, Ends> = moving
        .iter()
        .zip(results)
        .filter(|(_, r)| r.is_ok())
        .map(|((at, ends, _), _)| (*at, *ends))
        .collect();
    info!(connections = frozen.len(), local, refused = moving.len() - frozen.len(), "connections are frozen");
    // What was on its way out of a socket is out before anybody counts.
    std::thread::sleep(PAUSE);
    frozen
}

/// Sockets that are being described.
struct Described {
    /// By the places that the workers have given them; those that went along are gone.
    fds: Vec<Option<OwnedFd>>,
    /// Places of frozen connections that were not described.
    frozen: HashMap<u32, Ends>,
    /// How many were described.
    count: u32,
    saved: Saved,
}

impl Described {
    /// Frozen connections that did not go along.
    fn left(&mut self) -> Vec<OwnedFd> {
        let places: Vec<u32> = self.frozen.drain().map(|(at, _)| at).collect();
        places.into_iter().filter_map(|at| self.fds.get_mut(at as usize)?.take()).collect()
    }

    /// Describes the sockets of a worker's flows and gives them their places in the stream.
    fn describe(&mut self, worker: &mut Worker, to: &mut impl Write) -> Result<(), StateError> {
        // The guest has heard nothing of these yet, and asks again.
        worker.tcp.retain(|f| f.conn.state() != State::Connecting);
        for flow in &mut worker.tcp {
            let Some(at) = flow.socket.take() else { continue };
            flow.socket = self.connection(at, flow, to)?;
            if flow.socket.is_some() {
                self.saved.moved.insert(flow.key);
            } else {
                // The guest hears that the connection has ended, at the target.
                flow.conn.on_pod_error();
            }
        }
        for flow in &mut worker.udp {
            flow.socket = flow.socket.map(|at| self.datagrams(at, to)).transpose()?.flatten();
        }
        let mut echo = Vec::with_capacity(worker.echo.len());
        for mut flow in std::mem::take(&mut worker.echo) {
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
        to: &mut impl Write,
    ) -> Result<Option<Fd>, StateError> {
        let Some(ends) = self.frozen.get(&at.0).copied() else { return Ok(None) };
        let Some(slot) = self.fds.get_mut(at.0 as usize) else { return Ok(None) };
        let Some(fd) = slot.as_ref() else { return Ok(None) };
        let taken = Connection::dump(fd.as_fd()).and_then(|mut connection| {
            connection.look_again(fd.as_fd())?;
            Ok((connection, tcp_info(fd.as_fd())?.bytes_acked))
        });
        let (connection, acked) = match taken {
            Ok(taken) => taken,
            Err(error) => {
                tracing::debug!(peer = %ends.1, %error, "connection cannot be taken apart");
                return Ok(None);
            }
        };
        // The new socket counts from zero.
        flow.acked_base = 0u64.wrapping_sub(acked.wrapping_sub(flow.acked_base));
        put(to, tag::SOCKET, &Socket::of_connection(ends, !flow.from_guest, connection))?;
        self.frozen.remove(&at.0);
        self.saved.frozen.extend(slot.take());
        Ok(Some(self.next()))
    }

    /// Describes a datagram socket; its place, if it can be described.
    fn datagrams(&mut self, at: Fd, to: &mut impl Write) -> Result<Option<Fd>, StateError> {
        let Some(fd) = self.fds.get(at.0 as usize).and_then(Option::as_ref) else { return Ok(None) };
        let Some(socket) = Socket::of_datagrams(fd) else { return Ok(None) };
        put(to, tag::SOCKET, &socket)?;
        Ok(Some(self.next()))
    }

    fn next(&mut self) -> Fd {
        self.count += 1;
        Fd(self.count - 1)
    }
}
