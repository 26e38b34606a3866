//! The state of another netd: a stream as it comes from the netd or hold that had it, and what netd goes on with.
//!
//! Whatever the bytes are there is a state or an error that can be told. A state that was read is read again from what
//! is written of it, and written as before. Each of its connections is then adopted, and has to cope with segments,
//! states of its socket and time as one of this netd's own: it does not overflow, it comes to an end of what it
//! has to send, and it does not ask for a moment that is past.

use std::time::Duration;

use super::Bytes;
use crate::state::{Snapshot, decode};
use crate::tcp::{Config, Conn, PodState, Segment, Seq, State};
use crate::time::Time;
use crate::wire::TcpFlags;

/// What a stream of the present version begins with, and the first record of all, which may be empty.
const BEGIN: &[u8] = b"podvirt-netd\0\x01\0\0\x01\0\x01\0\0\0\0\0";
const END: &[u8] = b"\xff\x7f\x01\0\0\0\0\0";
const MANDATORY: u16 = 1;
/// Tags of records, and one that is not known.
const TAGS: [u16; 13] = [0x01, 0x02, 0x10, 0x20, 0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x30, 0x40, 0x99];
const STEPS: usize = 100;
/// Segments that one step may cause.
const CONTROLS: usize = 8;

/// Runs one input: its first byte says how the rest becomes a stream.
pub fn state(data: &[u8]) {
    let mut b = Bytes::new(data);
    let (stream, mut b) = match b.u8() {
        0 => (b.rest().to_vec(), Bytes::new(data)),
        _ => (records(&mut b, &TAGS), b),
    };
    match decode(&stream) {
        Ok(state) => taken(state, &mut b),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// A stream of records whose lengths are right, so that what is wrong is in them.
pub(super) fn records(b: &mut Bytes<'_>, tags: &[u16]) -> Vec<u8> {
    let mut stream = BEGIN.to_vec();
    while let kind @ 1.. = b.u8() {
        let tag = tags[usize::from(kind) % tags.len()];
        let body = b.u8();
        let body = b.take(usize::from(body));
        stream.extend(tag.to_le_bytes());
        stream.extend((MANDATORY & u16::from(kind >> 7)).to_le_bytes());
        stream.extend((body.len() as u32).to_le_bytes());
        stream.extend(body);
    }
    stream.extend(END);
    stream
}

fn taken(state: Snapshot, b: &mut Bytes<'_>) {
    let written = state.encode();
    let again = decode(&written).expect("what was written is not read");
    assert_eq!(state.flows(), again.flows());
    assert!(written == again.encode(), "{state:?} becomes {again:?}");
    for worker in state.workers {
        for flow in &worker.udp {
            let _ = (flow.session.expires(), flow.session.idle(worker.state.now));
        }
        for flow in worker.tcp {
            goes_on(flow.conn, worker.state.now, b);
        }
    }
}

fn goes_on(mut conn: Conn, mut now: Time, b: &mut Bytes<'_>) {
    conn.adopt(Config::default());
    for _ in 0..STEPS {
        match b.u8() % 8 {
            0..=2 => {
                let from = if b.one_in(2) { conn.guest_isn() } else { conn.next_from_guest() };
                let segment = Segment {
                    seq: from.plus(b.u16().cast_signed() as u32),
                    ack: if b.one_in(2) { Seq(b.u32()) } else { conn.tell().0 },
                    flags: TcpFlags(b.u8()),
                    window: b.u16(),
                    len: u32::from(b.u16()),
                    mss: None,
                    window_scale: None,
                };
                let input = conn.on_segment(&segment, now);
                assert!(input.skip <= segment.len && input.take <= segment.len - input.skip, "{input:?}");
                conn.on_flushed(input.take, input.take.min(b.u16().into()), now);
                if input.reopen {
                    return;
                }
            }
            3 => {
                let pod = PodState {
                    space: b.u32(),
                    acked: b.u32(),
                    peer_window: b.u32(),
                    near: b.one_in(2),
                    rtt: Duration::from_micros(b.u32().into()),
                    notifies: b.one_in(2),
                };
                if conn.state() == State::Connecting {
                    conn.on_connected(&pod);
                } else if !conn.is_done_with_socket() {
                    conn.on_pod(&pod, now);
                }
            }
            4 | 5 => {
                now = conn.poll_at().map_or(now, |at| at.max(now)) + Duration::from_micros(b.u16().into());
                conn.on_timer(now);
                assert!(conn.poll_at().is_none_or(|at| at > now || at == END_OF_TIME), "late: {conn:?}");
            }
            6 => {
                if let Some(budget) = conn.budget(now) {
                    assert!(budget.len > 0 && budget.mss > 0, "{budget:?}");
                    conn.on_data(budget.len.min(u32::from(b.u16()) + 1), now);
                }
            }
            _ => conn.on_eof(),
        }
        for n in 0.. {
            assert!(n < CONTROLS, "no end of segments: {conn:?}");
            if conn.poll(now).is_none() {
                break;
            }
        }
        while conn.command().is_some() {}
        if conn.is_closed() || b.is_empty() {
            return;
        }
    }
}

/// The last moment there is: nothing is later.
const END_OF_TIME: Time = Time::from_micros(u64::MAX);
