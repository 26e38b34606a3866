//! TCP between the guest and a socket of the pod, without a buffer in between.
//!
//! Words: the *guest* is the end that segments come from and go to; the *pod* is the host of the *socket*, whose peer is the
//! other end; the *worker* is the program that calls; netd is the worker's name where the two are one.
//!
//! # Theory of operation
//!
//! A connection of the guest is spliced onto a connection of the pod's kernel. The kernel's socket buffers are
//! the only queues: what the guest sends is written to the socket at once or not accepted at all, and what the
//! peer sends stays in the socket's receive queue until the guest has acknowledged it. [`Conn`] is the state
//! machine that makes this look like one TCP peer to the guest (RFC 9293). It does no I/O and reads no clock;
//! the worker tells it what happened and carries out what it asks for:
//!
//! ```text
//!                 on_segment ──▶ payload range ──▶ sendmsg ──▶ on_flushed
//!   guest  ◀──┐                                                            ┌──▶  pod's socket
//!             │   poll (SYN, ACK, FIN, RST, probe)         command (consume, rewind, shutdown, abort)
//!             └── budget ──▶ recvmsg(MSG_PEEK) ──▶ on_data / on_eof
//!                 on_pod (TCP_INFO, free space) ──▶ acknowledgement and window for the guest
//!                 on_timer / poll_at
//! ```
//!
//! **Guest to pod.** A segment in order is offered to the socket straight from guest memory. `rcv_nxt` moves
//! over it at once and moves back in [`Conn::on_flushed`] by what the socket did not take: the guest will
//! send that again. What comes out of order is answered by duplicate ACKs at once, as many as the frame had
//! segments (RFC 5681 4.2), and the worker keeps it within bounds ([`Hold`]) until the gap is filled
//! ([`Conn::on_held`]), so that a loss costs the guest a round trip and one segment, and no timeout. The acknowledgement
//! follows the peer's own acknowledgement (`tcpi_bytes_acked`), so that data the guest believes delivered has
//! left the pod; for peers closer than [`Config::ack_queued_rtt`] it follows what the socket has queued,
//! which saves a poll per round trip. The kernel has to be asked for either; of a far peer it is asked about four
//! times in a round trip, the first time when one has passed (the module `pacing`). The window is the free space of
//! the socket's send buffer and, for far peers, never more than the peer's own window. Its right edge never moves
//! left (RFC 9293 3.8.6), and moves right by a segment or half of the buffer at least; where the room stays smaller for long, it is told all
//! the same. What the socket refuses is given back and asked for by duplicate ACKs once there is room.
//!
//! **Pod to guest.** [`Conn::budget`] says how many bytes may be sent now; the worker peeks at most that many
//! from the socket into the guest's receive buffers. The kernel's peek offset always equals `snd_nxt -
//! snd_una`: bytes leave the socket only when the guest acknowledges them ([`Command::Consume`]). Three
//! duplicate ACKs or a retransmission timeout rewind the offset ([`Command::Rewind`]) and send again from
//! `snd_una` (go-back-N); the virtual link loses nothing unless the guest itself drops, so nothing finer
//! pays. So does a guest that closes its window over what is in flight, when it opens it again: it had no memory for
//! the frames, which Linux drops then, mostly the last ones, so that no duplicate follows. After a loss a congestion
//! window restarts at half of what was in flight, or small after a timeout, and grows as RFC 5681 3.1 says: a guest
//! short of memory is not overrun again a round trip later. Without loss the guest's window is the limit.
//!
//! **Opening.** The guest's SYN waits in `Connecting` until the pod's connect() has ended; only then is it
//! answered, by SYN-ACK, RST or ICMP, so errors are the real ones. A connection accepted by the pod starts in
//! `SynSent`; if the guest refuses it, the peer gets a RST.
//!
//! **Closing.** Each direction ends on its own. The guest's FIN becomes `shutdown(SHUT_WR)` after all data
//! before it went out; with its FIN all that the guest sent is acknowledged, since the kernel delivers it
//! even after the socket is closed. The peer's FIN (a peek of zero bytes) becomes a FIN that is sent again
//! like data. Where netd sent the first FIN the connection stays in TIME-WAIT without a socket. RST goes
//! through both ways, the peer's behind what came before it (the module `ending`).
//!
//! **Keepalives.** The guest's reach the peer by the pod's socket, at the guest's rhythm (the module `keepalive`).
//!
//! **Timers.** One deadline a connection ([`Conn::poll_at`]): retransmission (RFC 6298, at least 200 ms),
//! persist (zero window), keepalive towards a silent guest, reading what a far peer has acknowledged, an
//! acknowledgement held back so that a bulk transfer gets few of them, TIME-WAIT.
//!
//! Neither SACK nor timestamps are offered to the guest, so it uses neither; they are stepped over where they
//! appear. A guest with SACK counts no plain duplicate ACKs, by which netd asks for what the socket refused; and
//! the link loses so little that one hole a round trip is soon enough.

mod config;
mod conn;
mod ending;
mod facts;
mod hold;
mod input;
mod keepalive;
mod output;
mod pacing;
mod rtt;
mod saved;
mod seq;
#[cfg(test)]
mod sim;
#[cfg(test)]
mod tests;
mod timer;

pub use config::{Config, IN_FLIGHT, IN_FLIGHT_COPIED};
pub use conn::{Command, Conn, PodState, Segment, State};
pub use ending::End;
pub use facts::Facts;
pub use hold::{HOLD_BYTES, Hold};
pub use input::{Input, Refusal};
pub use output::{Budget, Control};
pub use seq::Seq;
