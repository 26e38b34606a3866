//! TCP payload for the guest: from a socket's receive queue into the receive ring.

use std::io;

use super::payload::{PayloadSource, Undelivered};
use crate::flow::FlowId;
use crate::sys::Peek;
use crate::worker::flows::FIRST_READ;
use crate::worker::flows::Flow;
use crate::worker::turn::{Worker, fd};

/// System calls for one flow in one turn; then the next flow has its turn.
const READS_PER_TURN: usize = 4;
/// Most payload bytes asked of a socket at once: four large frames.
const LARGEST_READ: u32 = 4 * 65_535;

impl Worker {
    /// Moves data of one connection to the guest; true when it could go on at once.
    pub(in crate::worker) fn deliver_stream(&mut self, id: FlowId) -> bool {
        self.settle_stream(id);
        let mut again = false;
        for _ in 0..READS_PER_TURN {
            again = self.deliver_once(id);
            if !again {
                break;
            }
        }
        // The end of the stream becomes a FIN, and the retransmission timer starts.
        self.settle_stream(id);
        again
    }

    fn deliver_once(&mut self, id: FlowId) -> bool {
        let Some(key) = self.flows.key(id) else { return false };
        let Some(ends) = self.receiveq.ends(&key, None) else { return false };
        let Some(Flow::Tcp(f)) = self.flows.get_mut(id) else { return false };
        let Some(socket) = f.socket.as_ref().filter(|_| f.readable) else { return false };
        let Some(budget) = f.conn.budget(self.now) else { return false };
        let peek = if f.kernel_offset { Peek::Kernel } else { Peek::Skip(budget.offset) };
        let source = PayloadSource { socket: fd(socket), peek, want: f.want as usize };
        match self.receiveq.deliver(&mut f.conn, &budget, &source, &ends, self.now) {
            Ok(d) if d.bytes == 0 => {
                f.conn.on_eof();
                f.readable = false;
                false
            }
            Ok(d) => {
                f.used = self.now;
                f.bytes_to_guest += d.bytes as u64;
                self.counters.tcp_bytes_to_guest.add(d.bytes as u64);
                if d.bytes < d.room {
                    // The queue is drained: the next byte, but not an end that is already there, makes an edge. Or the
                    // read has ended at the urgent mark; the next one goes on from there or says that there is no more.
                    f.readable = f.peer_closed || f.urgent || f.conn.is_broken();
                    f.want = (d.bytes as u32 * 2).clamp(FIRST_READ, LARGEST_READ);
                } else {
                    f.want = (f.want * 2).min(LARGEST_READ);
                }
                f.readable
            }
            Err(Undelivered::Full) => true,
            Err(Undelivered::Socket(e)) if e.kind() == io::ErrorKind::WouldBlock => {
                f.readable = false;
                false
            }
            Err(Undelivered::Socket(error)) => {
                // Linux tells of an error behind all that it has received.
                tracing::debug!(peer = %f.pod_peer, %error, "receive");
                f.conn.on_pod_error();
                f.readable = false;
                false
            }
        }
    }
}
