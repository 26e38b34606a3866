//! TCP payload into the guest's receive buffers: one recvmsg for several frames.

use std::io;
use std::os::fd::BorrowedFd;

use super::queue::{Frame, FrameAddresses, ReceiveQueue};
use crate::counters::Reason;
use crate::sys::{self, Peek};
use crate::tcp::{Budget, Conn};
use crate::time::Time;
use crate::wire::{ETH_LEN, MAX_HEADERS, TcpFlags, TcpMeta, VNET_LEN, build_tcp};

/// Slices one recvmsg takes, below IOV_MAX.
const MAX_SLICES: usize = 1000;
/// Frames one recvmsg fills: with GSO few large ones, without it a batch of single segments.
const MAX_FRAMES: usize = 64;
/// Largest IP packet.
const MAX_PACKET: usize = 65_535;

/// What one delivery moved.
pub(in crate::worker) struct Delivered {
    /// Payload bytes; zero: end of stream.
    pub(in crate::worker) bytes: usize,
    /// Payload bytes there was room for.
    pub(in crate::worker) room: usize,
}

/// Why a delivery moved nothing.
pub(in crate::worker) enum Undelivered {
    /// No receive buffer.
    Full,
    /// The socket's answer.
    Socket(io::Error),
}

/// Where TCP payload comes from.
pub(in crate::worker) struct PayloadSource<'a> {
    pub(in crate::worker) socket: BorrowedFd<'a>,
    pub(in crate::worker) peek: Peek,
    /// Most bytes to ask for.
    pub(in crate::worker) want: usize,
}

impl ReceiveQueue {
    /// Plans frames over the receive ring for up to `want` payload bytes behind `headers` bytes each.
    fn plan(&mut self, headers: usize, per_frame: usize, want: usize) -> usize {
        self.begin();
        let mut total = 0;
        while total < want && self.frames.len() < MAX_FRAMES && self.room.len() < MAX_SLICES {
            let target = per_frame.min(want - total);
            let (first_chain, first_slice) = (self.chains.len(), self.slices.len());
            let mut bytes = 0;
            while bytes < headers + target && self.pop() {
                bytes += self.chains.last().map_or(0, |c| c.bytes);
                if !self.mergeable || self.slices.len() - first_slice > 64 {
                    break;
                }
            }
            let room = bytes.saturating_sub(headers).min(target);
            if room == 0 {
                self.give_back(first_chain);
                break;
            }
            self.room.append_from(&self.slices, first_slice, headers, room);
            self.frames.push(Frame {
                first_chain,
                chains: self.chains.len() - first_chain,
                first_slice,
                room,
            });
            total += room;
            if room < target && self.mergeable {
                break;
            }
        }
        total
    }

    /// Moves TCP payload from a socket into the guest's buffers, as frames of the connection.
    pub(in crate::worker) fn deliver(
        &mut self,
        conn: &mut Conn,
        budget: &Budget,
        source: &PayloadSource<'_>,
        ends: &FrameAddresses,
        now: Time,
    ) -> Result<Delivered, Undelivered> {
        let ip_and_tcp = ends.at.ip_len() + 20;
        let headers = VNET_LEN + ETH_LEN + ip_and_tcp;
        let mss = usize::from(budget.mss);
        let tso = if ends.at.src.is_ipv4() { self.tso4 } else { self.tso6 };
        let per_frame = if tso { (MAX_PACKET - ip_and_tcp) / mss * mss } else { mss };
        let room = self.plan(headers, per_frame.max(mss), source.want.min(budget.len as usize));
        if room == 0 {
            return Err(if self.full_chain_too_small(headers) {
                self.refuse_buffers()
            } else {
                self.full();
                Undelivered::Full
            });
        }
        let n = match sys::peek(source.socket, &self.room, source.peek) {
            Ok(0) => {
                self.give_back(0);
                return Ok(Delivered { bytes: 0, room });
            }
            Ok(n) => n,
            Err(e) => {
                self.give_back(0);
                return Err(Undelivered::Socket(e));
            }
        };
        let (ack, window) = conn.tell();
        let frames = std::mem::take(&mut self.frames);
        let mut left = n;
        let mut seq = budget.seq;
        let mut used = 0;
        for f in &frames {
            let len = f.room.min(left);
            if len == 0 {
                break;
            }
            left -= len;
            let flags = if left == 0 { TcpFlags::ACK.with(TcpFlags::PSH) } else { TcpFlags::ACK };
            let meta = TcpMeta {
                src_port: ends.src_port,
                dst_port: ends.dst_port,
                seq: seq.0,
                ack: ack.0,
                flags,
                window,
                mss: None,
                window_scale: None,
                payload_len: len,
                gso_size: (len > mss).then_some(budget.mss),
            };
            let mut b = [0; MAX_HEADERS];
            let end = build_tcp(&mut b, &ends.at, &meta);
            self.slices.write(f.first_slice, 0, &b[..end]);
            // A short last frame may be below the Ethernet minimum; the buffer behind it is the guest's own.
            used = f.first_chain + self.finish(f, &b[..end], end + len, end + len);
            seq = seq.plus(len as u32);
        }
        self.frames = frames;
        self.give_back(used);
        conn.on_data(n as u32, now);
        Ok(Delivered { bytes: n, room })
    }

    /// Whether buffers are there, but none that holds a header and a byte.
    fn full_chain_too_small(&mut self, headers: usize) -> bool {
        self.begin();
        let small = self.pop() && self.chains[0].bytes <= headers && !self.mergeable;
        self.give_back(0);
        small
    }

    /// Buffers too small for any frame are useless: they are returned empty, so that the driver notices.
    fn refuse_buffers(&mut self) -> Undelivered {
        self.begin();
        if self.pop()
            && let (Some(ring), Some(c)) = (self.rx.as_mut(), self.chains.first())
        {
            ring.push_used(c.head, 0);
            self.unpublished = true;
            self.counters.count_drop(Reason::BadChain);
        }
        self.full();
        Undelivered::Full
    }
}
