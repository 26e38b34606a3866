//! The guest's ends of the connections of a migration: see [`podvirt_perf::ramp`].
//!
//! Each connection begins with a [`Role`] that the client sends, whichever side opened it. A connection that begins
//! with [`Role::REPORT`] instead ends the measurement: all that became of the others is its answer, a line of
//! JSON each.

use std::io::{Read, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use podvirt_perf::ramp::{End, Role, Stop};

/// For the first bytes of a connection.
const TIMEOUT: Duration = Duration::from_secs(60);
/// A connection's first bytes are read beside those of others, by a thread that is small.
const STACK: usize = 64 << 10;

/// Serves `port` and opens connections to `others`, so many to each; returns after the report.
///
/// # Errors
/// The port cannot be had, a connection cannot be opened, the report cannot be sent.
pub(crate) fn ramps(port: u16, others: &[(SocketAddr, usize)]) -> Result<()> {
    crate::allow_descriptors(4096)?;
    let listener =
        TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).with_context(|| format!("port {port}"))?;
    let (begun, new) = channel();
    let opened = begun.clone();
    thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            if begun.send(stream).is_err() {
                return;
            }
        }
    });
    for (to, count) in others {
        for _ in 0..*count {
            opened.send(TcpStream::connect(to).with_context(|| to.to_string())?)?;
        }
    }
    drop(opened);
    serve(&new)
}

fn serve(new: &Receiver<TcpStream>) -> Result<()> {
    let (stop, ends) = (Arc::new(Stop::default()), Arc::new(Mutex::new(Vec::new())));
    let (asks, asked): (Sender<TcpStream>, _) = channel();
    loop {
        if let Ok(mut to) = asked.try_recv() {
            stop.say();
            let begin = Instant::now();
            let ends: Vec<Arc<End>> =
                std::mem::take(&mut *ends.lock().unwrap_or_else(PoisonError::into_inner));
            for end in ends {
                writeln!(to, "{}", serde_json::to_string(&end.outcome(begin))?)?;
            }
            return Ok(());
        }
        // The report is asked for on a connection of its own, which wakes this thread before it is in `asked`.
        let Ok(stream) = new.recv_timeout(Duration::from_millis(100)) else { continue };
        let (stop, ends, asks) = (Arc::clone(&stop), Arc::clone(&ends), asks.clone());
        thread::Builder::new().stack_size(STACK).spawn(move || -> Result<()> {
            let mut role = [0; Role::LEN];
            stream.set_read_timeout(Some(TIMEOUT))?;
            (&stream).read_exact(&mut role)?;
            stream.set_read_timeout(None)?;
            if role == Role::REPORT {
                asks.send(stream)?;
                return Ok(());
            }
            let role = Role::decode(role).context("no role")?;
            let id = u64::from(role.id);
            let end = End::start(stream, role, [2 * id, 2 * id + 1], &stop)?;
            ends.lock().unwrap_or_else(PoisonError::into_inner).push(end);
            Ok(())
        })?;
    }
}
