//! Payload of the guest that came out of order, kept until what is missing before it has come.
//!
//! Nothing of it is acknowledged, so all of it may be forgotten at any time (RFC 9293 3.10.7.4 leaves it to the
//! receiver): when there is no room, when the flow moves, when netd is replaced. The guest sends it again then.

use super::seq::Seq;

/// Most bytes kept for one connection: eight large frames.
pub const HOLD_BYTES: usize = 512 << 10;
/// Most runs kept for one connection, with a gap before each.
const PIECES: usize = 64;

/// What one connection has out of order.
#[derive(Debug, Default)]
pub struct Hold {
    /// In the order of their numbers; they may overlap.
    pieces: Vec<(Seq, Vec<u8>)>,
    bytes: usize,
}

impl Hold {
    /// Bytes that are kept.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether `len` bytes from `seq` on are worth keeping: there is room, and they are not there already.
    pub fn wants(&self, seq: Seq, len: usize) -> bool {
        let known = |(at, p): &(Seq, Vec<u8>)| *at <= seq && seq.plus(len as u32) <= at.plus(p.len() as u32);
        self.pieces.len() < PIECES && self.bytes + len <= HOLD_BYTES && !self.pieces.iter().any(known)
    }

    /// Keeps a payload that is [wanted](Hold::wants).
    pub fn keep(&mut self, seq: Seq, payload: Vec<u8>) {
        let at = self.pieces.iter().rposition(|(s, _)| *s <= seq).map_or(0, |i| i + 1);
        self.bytes += payload.len();
        match self.pieces[..at].last_mut() {
            Some((s, run)) if s.plus(run.len() as u32) == seq => run.extend_from_slice(&payload),
            _ => self.pieces.insert(at, (seq, payload)),
        }
    }

    /// Takes the next piece out that continues the stream at `next`; what lies before it is forgotten.
    pub fn take(&mut self, next: Seq) -> Option<(Seq, Vec<u8>)> {
        while self.pieces.first().is_some_and(|(seq, _)| *seq <= next) {
            let (seq, payload) = self.pieces.remove(0);
            self.bytes -= payload.len();
            if seq.plus(payload.len() as u32) > next {
                return Some((seq, payload));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(n: u32) -> Seq {
        Seq(u32::MAX - 100).plus(n)
    }

    fn keep(hold: &mut Hold, n: u32, len: usize) -> bool {
        let wanted = hold.wants(at(n), len);
        if wanted {
            hold.keep(at(n), vec![n as u8; len]);
        }
        wanted
    }

    #[test]
    fn pieces_come_out_in_order_when_the_stream_reaches_them() {
        let mut hold = Hold::default();
        for n in [310, 100, 205] {
            assert!(keep(&mut hold, n, 100));
        }
        assert_eq!((hold.take(at(99)), hold.bytes()), (None, 300));
        for n in [100, 205, 310] {
            assert_eq!(hold.take(at(n)), Some((at(n), vec![n as u8; 100])));
        }
        assert_eq!((hold.take(at(410)), hold.bytes()), (None, 0));
    }

    #[test]
    fn what_follows_without_a_gap_is_one_piece() {
        let mut hold = Hold::default();
        for n in 0..200 {
            assert!(keep(&mut hold, 100 + n, 1), "{n}");
        }
        assert_eq!(hold.take(at(100)).map(|(seq, p)| (seq, p.len())), Some((at(100), 200)));
    }

    #[test]
    fn what_the_stream_has_passed_is_forgotten_and_overlaps_are_kept() {
        let mut hold = Hold::default();
        assert!(keep(&mut hold, 100, 100) && keep(&mut hold, 150, 100));
        assert_eq!(hold.take(at(220)), Some((at(150), vec![150; 100])));
        assert_eq!((hold.take(at(250)), hold.bytes()), (None, 0));
    }

    #[test]
    fn what_is_there_already_is_not_kept_twice() {
        let mut hold = Hold::default();
        assert!(keep(&mut hold, 100, 100));
        assert!(!keep(&mut hold, 100, 100) && !keep(&mut hold, 120, 80));
        assert!(keep(&mut hold, 120, 81));
    }

    #[test]
    fn bytes_and_pieces_are_bounded() {
        let mut hold = Hold::default();
        let kept = (0..100).filter(|n| keep(&mut hold, n * 2, 1)).count();
        assert_eq!(kept, PIECES);
        let mut hold = Hold::default();
        assert!(keep(&mut hold, 0, HOLD_BYTES - 10) && !keep(&mut hold, 1 << 20, 11));
        assert!(keep(&mut hold, 1 << 20, 10));
    }
}
