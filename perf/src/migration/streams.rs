//! The connections of a migration, of every shape: the client's ends are here, the guest's in the agent.
//!
//! For each family, opened by either side: a stream to the client, one to the guest, one with both directions, one that
//! the guest has closed and one that the client has closed while the other side sends, two idle ones, one in which both
//! sides send what neither reads until the end, so that data wait unread and unsent on both sides; and four that send a
//! little in both directions, which are sixteen in all. A guest that has [idle](Load::Idle) connections has as many.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use podvirt_e2e::{Net, peer, until};
use podvirt_perf::ramp::{End, Outcome, Reading, Role, Sending, Stop};
use serde::{Deserialize, Serialize};

use super::place::{Place, STREAMS_PORT};

/// Where the guest connects to.
const CLIENT_PORT: u16 = 7002;
/// A stream: 400 kB a second. A processor under TCG is to be busy with many connections, not with one.
const MUCH: Sending = Sending::Paced { chunk: 16 << 10, pause: Duration::from_millis(40) };
/// One of many: 80 kB a second.
const LITTLE: Sending = Sending::Paced { chunk: 4 << 10, pause: Duration::from_millis(50) };
/// For a stream to go on after a move.
const STALLED: Duration = Duration::from_secs(5);
/// For a connection to be there.
const TIMEOUT: Duration = Duration::from_secs(60);

/// What the guest and the client do.
type Shape = [(Sending, Reading); 2];

/// What goes over a guest's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    /// Data over most of them, all of which is read.
    Streams,
    /// The same, and over some more what neither end reads until the measurement is over.
    Full,
    /// Nothing.
    Idle,
}

/// Connections of each family and opener.
fn shapes(load: Load) -> Vec<Shape> {
    use Reading::{Late, Now};
    use Sending::{Closed, Full, Idle};
    let mut shapes: Vec<Shape> = vec![
        [(MUCH, Now), (Idle, Now)],
        [(Idle, Now), (MUCH, Now)],
        [(MUCH, Now), (MUCH, Now)],
        [(Closed, Now), (LITTLE, Now)],
        [(LITTLE, Now), (Closed, Now)],
        [(Idle, Now), (Idle, Now)],
        [(Idle, Now), (Idle, Now)],
    ];
    if load == Load::Full {
        shapes.push([(Full, Late), (Full, Late)]);
    }
    shapes.extend([[(LITTLE, Now), (LITTLE, Now)]; 4]);
    if load == Load::Idle {
        shapes.fill([(Idle, Now); 2]);
    }
    shapes
}

/// What became of all connections.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Tally {
    pub(crate) connections: u64,
    /// Bytes that arrived, both ways.
    pub(crate) bytes: u64,
    /// Bytes that were sent on a connection that did not break, and did not arrive.
    pub(crate) bytes_lost: u64,
    /// Bytes that arrived twice.
    pub(crate) bytes_duplicated: u64,
    /// Bytes that were never sent.
    pub(crate) bytes_wrong: u64,
    /// Connections that were reset at either end.
    pub(crate) connections_reset: u64,
    /// Connections that did not come to their end, without a reset.
    pub(crate) connections_hung: u64,
    /// The first errors, in words.
    pub(crate) errors: Vec<String>,
}

/// Errors that are told.
const TOLD: usize = 5;

impl Tally {
    /// Adds a connection by its ends.
    fn add(&mut self, guest: Option<&Outcome>, client: &Outcome) {
        self.connections += 1;
        // A guest that does not tell has it no more.
        let none =
            Outcome { hung: true, error: Some("the guest tells nothing of it".into()), ..Outcome::default() };
        let guest = guest.unwrap_or(&none);
        let reset = guest.reset || client.reset;
        let hung = !reset && (guest.hung || client.hung);
        self.connections_reset += u64::from(reset);
        self.connections_hung += u64::from(hung);
        for (from, to) in [(guest, client), (client, guest)] {
            self.bytes += to.reached.min(from.sent);
            self.bytes_lost += to.lost;
            if !reset && !hung {
                self.bytes_lost += from.sent.saturating_sub(to.reached);
            }
            self.bytes_duplicated += to.doubled + to.reached.saturating_sub(from.sent);
            self.bytes_wrong += to.wrong;
        }
        for (side, end) in [("guest", guest), ("client", client)] {
            if let Some(error) = &end.error
                && self.errors.len() < TOLD
            {
                self.errors.push(format!("connection {}, {side}: {error}", client.id));
            }
        }
    }

    /// Adds what another guest's connections did.
    pub(crate) fn join(&mut self, other: Tally) {
        self.connections += other.connections;
        self.bytes += other.bytes;
        self.bytes_lost += other.bytes_lost;
        self.bytes_duplicated += other.bytes_duplicated;
        self.bytes_wrong += other.bytes_wrong;
        self.connections_reset += other.connections_reset;
        self.connections_hung += other.connections_hung;
        self.errors.extend(other.errors);
        self.errors.truncate(TOLD);
    }

    /// Whether every byte arrived once.
    pub(crate) fn is_clean(&self) -> bool {
        let bad = self.bytes_lost + self.bytes_duplicated + self.bytes_wrong;
        bad + self.connections_reset + self.connections_hung == 0
    }
}

/// See the module.
pub(crate) struct Streams {
    ends: Vec<Arc<End>>,
    /// Those in which the client reads something all the time.
    busy: Vec<Arc<End>>,
    stop: Arc<Stop>,
}

impl Streams {
    /// Opens all of them; the guest has the agent.
    ///
    /// # Errors
    /// One cannot be opened.
    pub(crate) fn open(place: &mut Place, load: Load) -> Result<Streams> {
        let shapes = shapes(load);
        let here = place.net().client_addresses().map(|ip| SocketAddr::new(ip, CLIENT_PORT));
        let listeners =
            here.iter().map(|at| place.net().listen(*at)).collect::<Result<Vec<TcpListener>>>()?;
        let [v4, v6] = here.map(|at| format!("{at}={}", shapes.len()));
        place.guest()?.serve(STREAMS_PORT, &format!("/tmp/agent ramps {STREAMS_PORT} {v4} {v6}"))?;
        let mut streams = Streams { ends: Vec::new(), busy: Vec::new(), stop: Arc::default() };
        for (listener, to) in listeners.iter().zip(Net::pod_addresses(STREAMS_PORT)) {
            for shape in &shapes {
                streams.start(peer::accept(listener)?, *shape)?;
                streams.start(place.net().connect(to)?, *shape)?;
            }
        }
        Ok(streams)
    }

    fn start(&mut self, stream: TcpStream, [guest, client]: Shape) -> Result<()> {
        stream.set_read_timeout(None)?;
        stream.set_write_timeout(None)?;
        let id = u32::try_from(self.ends.len())?;
        let role = |(sending, reading)| Role { id, sending, reading };
        (&stream).write_all(&role(guest).encode())?;
        let seed = u64::from(2 * id);
        let end = End::start(stream, role(client), [seed + 1, seed], &self.stop)?;
        if matches!(guest.0, Sending::Paced { .. }) {
            self.busy.push(Arc::clone(&end));
        }
        self.ends.push(end);
        Ok(())
    }

    /// Waits until every stream has brought something; how many have not in time.
    ///
    /// # Errors
    /// None.
    pub(crate) fn stalled(&self) -> Result<usize> {
        let before: Vec<u64> = self.busy.iter().map(|e| e.progress().1).collect();
        let still = || {
            let stands =
                |(end, before): &(&Arc<End>, &u64)| end.error().is_none() && end.progress().1 == **before;
            self.busy.iter().zip(&before).filter(stands).count()
        };
        drop(until("every stream", STALLED, || Ok((still() == 0).then_some(()))));
        Ok(still())
    }

    /// Connections that have broken so far.
    pub(crate) fn broken(&self) -> usize {
        self.ends.iter().filter(|e| e.error().is_some()).count()
    }

    /// Ends all streams and compares what was sent with what has arrived.
    ///
    /// # Errors
    /// The guest does not answer.
    pub(crate) fn finish(self, place: &Place) -> Result<Tally> {
        let [to, _] = Net::pod_addresses(STREAMS_PORT);
        let mut report = place.net().connect(to).context("a new connection after the migrations")?;
        self.stop.say();
        let begin = Instant::now();
        report.write_all(&Role::REPORT)?;
        let here: Vec<Outcome> = self.ends.iter().map(|e| e.outcome(begin)).collect();
        report.set_read_timeout(Some(TIMEOUT))?;
        let lines = BufReader::new(report).lines().map(|line| Ok(serde_json::from_str(&line?)?));
        let there = lines.collect::<Result<Vec<Outcome>>>().context("the guest's report")?;
        ensure!(!there.is_empty(), "the guest tells nothing");
        let mut tally = Tally::default();
        for client in &here {
            tally.add(there.iter().find(|guest| guest.id == client.id), client);
        }
        Ok(tally)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(sent: u64, reached: u64) -> Outcome {
        Outcome { id: 3, sent, reached, ..Outcome::default() }
    }

    #[test]
    fn sixteen_send_in_both_directions_in_parallel() {
        let both = shapes(Load::Full).into_iter().filter(|s| *s == [(LITTLE, Reading::Now); 2]).count();
        assert_eq!(both * 4, 16);
        assert_eq!(shapes(Load::Idle).len(), shapes(Load::Streams).len());
    }

    #[test]
    fn what_arrived_as_it_was_sent_is_clean() {
        let mut tally = Tally::default();
        tally.add(Some(&outcome(10, 20)), &outcome(20, 10));
        assert_eq!(tally, Tally { connections: 1, bytes: 30, ..Tally::default() });
        assert!(tally.is_clean());
    }

    #[test]
    fn a_tail_that_is_missing_is_lost_unless_the_connection_broke() {
        let mut tally = Tally::default();
        tally.add(Some(&outcome(10, 20)), &outcome(20, 7));
        assert_eq!((tally.bytes_lost, tally.is_clean()), (3, false));
        let reset = Outcome { reset: true, error: Some("reset".into()), ..outcome(20, 7) };
        tally.add(Some(&outcome(10, 20)), &reset);
        tally.add(None, &outcome(20, 7));
        assert_eq!((tally.bytes_lost, tally.connections_reset, tally.connections_hung), (3, 1, 1));
        assert_eq!(tally.errors.len(), 2);
    }

    #[test]
    fn more_than_was_sent_is_no_gain() {
        let mut tally = Tally::default();
        tally.add(Some(&outcome(10, 20)), &outcome(20, 12));
        assert_eq!((tally.bytes, tally.bytes_duplicated), (30, 2));
    }
}
