//! Fragments: datagrams the guest sends in pieces made whole, and ours for the guest cut to its MTU.
//!
//! A translator carries whole datagrams only, so the worker puts every fragment ([`is_fragment`]) through a
//! [`Reassembler`] first. Pieces are kept as they came, sorted by offset, until the sum of their lengths is
//! the datagram's; since overlaps are refused, that sum proves that nothing is missing.
//!
//! What is refused: a piece that overlaps another (RFC 5722, RFC 8200 section 4.5; IPv4 is held to the same
//! rule, since only attacks need it), an empty one, one that is not a multiple of eight bytes and not the
//! last, one beyond the datagram's end or beyond 65,535 bytes in all. The whole datagram is given up then,
//! and its name is remembered until its time is over, so that what still comes of it does not start it
//! anew. Exact duplicates do no harm and are ignored.
//!
//! Memory is bounded twice, by the number of datagrams and by the bytes they hold, bookkeeping included;
//! when there is no room the new piece is refused and its datagram given up. Nothing is evicted: fragments
//! do not get lost between the guest and netd, so what is old and incomplete is rare, and ends by time.

mod parse;
mod split;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::time::Duration;

use crate::counters::Reason;
use crate::time::Time;
use parse::{Fragment, Key};

pub use parse::is_fragment;
pub use split::{split, split_frame};

/// How long a datagram may take to arrive. RFC 791 section 3.2 suggests 15 seconds, RFC 8200 section 4.5
/// ends it at 60; between two stations of one link the last piece follows the first by microseconds.
const TIMEOUT: Duration = Duration::from_secs(30);

/// How many pieces one datagram may have: enough for 65,535 bytes over an MTU of 576.
const MAX_PIECES: usize = 128;

/// Bytes accounted for a datagram and for a piece beside their content.
const DATAGRAM_BYTES: usize = 256;
const PIECE_BYTES: usize = 64;

/// How much a [`Reassembler`] may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Datagrams in progress or given up but not yet forgotten.
    pub max_datagrams: usize,
    /// Bytes of all datagrams, bookkeeping included.
    pub max_bytes: usize,
}

/// What became of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is no fragment.
    NotFragment,
    /// It was kept (or is a duplicate), and more must come.
    Incomplete,
    /// It was the last missing piece: the whole IP packet.
    Whole(Vec<u8>),
    /// It was refused, and so will be what else comes of its datagram.
    Dropped(Reason),
}

/// A datagram whose time was over before it was whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expired {
    /// The IP packet that was its first fragment, if that came: what a time exceeded error quotes (RFC 792,
    /// RFC 8200 section 4.5: without it none is sent).
    pub first: Option<Vec<u8>>,
}

#[derive(Debug)]
struct Piece {
    start: usize,
    data: Vec<u8>,
}

impl Piece {
    fn end(&self) -> usize {
        self.start + self.data.len()
    }
}

#[derive(Debug)]
struct Datagram {
    deadline: Time,
    /// The headers of the first fragment, up to its payload.
    header: Option<Vec<u8>>,
    pieces: Vec<Piece>,
    /// The payload's length, known from the last fragment.
    end: Option<usize>,
    bytes: usize,
    given_up: bool,
}

impl Datagram {
    /// Keeps a piece. An error gives the datagram up.
    fn insert(&mut self, f: &Fragment<'_>) -> Result<(), Reason> {
        let (start, end) = (f.offset, f.offset + f.payload.len());
        let at = self.pieces.partition_point(|p| p.start < start);
        if self.pieces.get(at).is_some_and(|p| p.start == start && p.data == f.payload) {
            return Ok(());
        }
        let before = at.checked_sub(1).and_then(|i| self.pieces.get(i));
        let overlap =
            before.is_some_and(|p| p.end() > start) || self.pieces.get(at).is_some_and(|p| end > p.start);
        let beyond = match self.end {
            Some(known) if f.more => end > known,
            Some(known) => end != known,
            None => !f.more && self.pieces.last().is_some_and(|p| p.end() > end),
        };
        if overlap || beyond || self.pieces.len() >= MAX_PIECES {
            return Err(Reason::Fragment);
        }
        if !f.more {
            self.end = Some(end);
        }
        if start == 0 {
            self.header = Some(f.header.to_vec());
        }
        self.pieces.insert(at, Piece { start, data: f.payload.to_vec() });
        self.bytes += cost(f);
        Ok(())
    }

    fn is_whole(&self) -> bool {
        let have: usize = self.pieces.iter().map(|p| p.data.len()).sum();
        self.end == Some(have)
    }

    fn give_up(&mut self) {
        self.given_up = true;
        self.header = None;
        self.pieces = Vec::new();
        self.bytes = DATAGRAM_BYTES;
    }
}

/// Memory accounted for one fragment.
fn cost(f: &Fragment<'_>) -> usize {
    let header = if f.offset == 0 { f.header.len() } else { 0 };
    PIECE_BYTES + f.payload.len() + header
}

/// Makes whole datagrams of the guest's fragments, within limits.
#[derive(Debug)]
pub struct Reassembler {
    limits: Limits,
    datagrams: HashMap<Key, Datagram>,
    bytes: usize,
}

impl Reassembler {
    /// An empty reassembler.
    pub fn new(limits: Limits) -> Reassembler {
        Reassembler { limits, datagrams: HashMap::new(), bytes: 0 }
    }

    /// Takes an IP packet of the guest, without Ethernet header; bytes behind its end are ignored.
    pub fn push(&mut self, now: Time, packet: &[u8]) -> Outcome {
        let fragment = match Fragment::parse(packet) {
            Ok(Some(f)) => f,
            Ok(None) => return Outcome::NotFragment,
            Err(reason) => return Outcome::Dropped(reason),
        };
        // RFC 6946: the only fragment of its datagram is whole by itself, whatever else has its name.
        if fragment.offset == 0 && !fragment.more {
            return whole(parse::assemble(fragment.header, [fragment.payload]));
        }
        match self.keep(now, &fragment) {
            Ok(None) => Outcome::Incomplete,
            Ok(Some(datagram)) => {
                let pieces = datagram.pieces.iter().map(|p| &p.data[..]);
                whole(datagram.header.as_deref().and_then(|h| parse::assemble(h, pieces)))
            }
            Err(reason) => Outcome::Dropped(reason),
        }
    }

    /// Keeps a fragment, and takes its datagram out if it is whole.
    fn keep(&mut self, now: Time, f: &Fragment<'_>) -> Result<Option<Datagram>, Reason> {
        let new = !self.datagrams.contains_key(&f.key);
        if new {
            let room = self.bytes.saturating_add(DATAGRAM_BYTES) <= self.limits.max_bytes;
            if !room || self.datagrams.len() >= self.limits.max_datagrams {
                return Err(Reason::Fragment);
            }
            self.bytes += DATAGRAM_BYTES;
        }
        let datagram = self.datagrams.entry(f.key).or_insert_with(|| Datagram {
            deadline: now + TIMEOUT,
            header: None,
            pieces: Vec::new(),
            end: None,
            bytes: DATAGRAM_BYTES,
            given_up: false,
        });
        if datagram.given_up {
            return Err(Reason::Fragment);
        }
        let before = datagram.bytes;
        let room = self.bytes.saturating_add(cost(f)) <= self.limits.max_bytes;
        // A fragment that breaks a rule in itself takes its datagram along.
        let kept = f.check().and_then(|()| if room { datagram.insert(f) } else { Err(Reason::Fragment) });
        if kept.is_err() {
            datagram.give_up();
        }
        self.bytes = self.bytes.saturating_sub(before) + datagram.bytes;
        kept?;
        if !datagram.is_whole() {
            return Ok(None);
        }
        let done = self.datagrams.remove(&f.key);
        self.bytes = self.bytes.saturating_sub(done.as_ref().map_or(0, |d| d.bytes));
        Ok(done)
    }

    /// When [`Reassembler::expire`] has something to do.
    pub fn poll_at(&self) -> Option<Time> {
        self.datagrams.values().map(|d| d.deadline).min()
    }

    /// Forgets the datagrams whose time is over, and returns those that were still hoped for.
    pub fn expire(&mut self, now: Time) -> Vec<Expired> {
        let mut expired = vec![];
        for (_, datagram) in self.datagrams.extract_if(|_, d| d.deadline <= now) {
            self.bytes = self.bytes.saturating_sub(datagram.bytes);
            if !datagram.given_up {
                let first = datagram.header.zip(datagram.pieces.into_iter().next());
                expired.push(Expired { first: first.map(|(h, p)| [h, p.data].concat()) });
            }
        }
        expired
    }

    /// Datagrams in progress or given up but not yet forgotten, and the bytes they hold.
    pub fn usage(&self) -> (usize, usize) {
        (self.datagrams.len(), self.bytes)
    }
}

fn whole(packet: Option<Vec<u8>>) -> Outcome {
    packet.map_or(Outcome::Dropped(Reason::Fragment), Outcome::Whole)
}
