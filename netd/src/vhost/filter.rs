//! What real frontends send, made into what the `vhost` crate takes.
//!
//! A pure state machine: a message of the frontend goes in, [`Action`]s come out. The thread that runs it owns the
//! sockets.
//!
//! | message | trouble | cure |
//! |---|---|---|
//! | `SET_VRING_ENABLE` before `SET_FEATURES` (QEMU 10, at realize and after each reset) | the crate ends the connection, and the frontend never repeats it | acknowledged, kept, delivered after `SET_FEATURES` |
//! | `RESET_DEVICE`, `RESET_OWNER` | clears the accepted features: the same trap again | features are waited for again |
//! | `SET_MEM_TABLE` longer than its regions (User Mode Linux 6.12) | refused | cut to its regions |
//! | memory files shorter than their regions | the first access would end the process | refused |
//! | `SET_VRING_ADDR` outside memory or not aligned | the crate ends the connection | refused; that ring is out of order until good addresses come |
//! | `SET_VRING_KICK`, `SET_VRING_CALL`, `SET_VRING_ERR` with a file that is neither an eventfd nor a pipe nor a socket | writing it may wait for a device or a file system | refused |
//! | ring numbers and sizes out of range, second `SET_OWNER` | the crate ends the connection | refused, or accepted as a repetition |
//! | `SET_LOG_BASE` | the crate cannot stop logging | answered here |
//! | `GET_QUEUE_NUM` | the crate tells the number of rings, frontends expect queue pairs | answered here |
//! | `SET_DEVICE_STATE_FD`, `CHECK_DEVICE_STATE` | would hold up the crate's thread | answered here ([`super::transfer`]) |
//! | `SEND_RARP`, `NET_SET_MTU`, `SET_STATUS`, `GET_STATUS`, `SET_LOG_FD`, `SET_VRING_ENDIAN`, `GET_CONFIG` | not known to the crate, or not offered | answered here |
//!
//! A refusal reaches the frontend as a non-zero acknowledgement when it asked for one (`REPLY_ACK`).

use std::fs::File;
use std::os::fd::OwnedFd;

use tracing::{debug, warn};

use super::message::{Message, code};
use super::transfer::{self, Direction};
use super::{MAX_RING_SIZE, MAX_RINGS, feature};
use crate::ring::BellKind;

/// `VHOST_USER_PROTOCOL_F_REPLY_ACK`.
const REPLY_ACK: u64 = 1 << 3;
/// Bytes before the regions of `SET_MEM_TABLE`, and bytes of a region.
const TABLE_HEADER: usize = 8;
const REGION: usize = 32;

/// What to do with a message.
#[derive(Debug)]
pub(super) enum Action {
    /// Give it to the daemon.
    Forward(Message),
    /// Answer the frontend.
    Reply(Message),
    /// The addresses of this ring are bad: it must not run.
    BadRing(usize),
    /// Use this dirty log from now on: file, offset and length in bytes.
    Log {
        /// The log.
        file: File,
        /// Where it begins in the file.
        offset: u64,
        /// Its length.
        len: u64,
    },
    /// Transfer the device's state: the answer says whether that begins.
    Transfer {
        /// Which side reads and which writes.
        direction: Direction,
        /// Where to.
        file: File,
    },
    /// Answer whether the transfer has succeeded.
    Checked,
    /// The device is reset: no features are negotiated, no ring runs.
    Reset,
}

/// A region of guest memory, by the frontend's own addresses.
#[derive(Clone, Copy, Debug)]
struct Region {
    guest: u64,
    user: u64,
    len: u64,
}

/// State of one connection.
#[derive(Debug)]
pub(super) struct Filter {
    pairs: usize,
    owned: bool,
    /// Acknowledgements were agreed on; the daemon gives them only to a frontend that has asked for its features, too.
    reply_ack: bool,
    asked: bool,
    /// The accepted features, once they were set and not reset.
    features: Option<u64>,
    /// `SET_VRING_ENABLE` that came too early, the last one of each ring.
    early_enable: [Option<u32>; MAX_RINGS],
    status: u64,
    regions: Vec<Region>,
}

impl Filter {
    /// The state of a new connection, to which this many queue pairs are offered.
    pub(super) fn new(pairs: usize) -> Filter {
        Filter {
            pairs,
            owned: false,
            reply_ack: false,
            asked: false,
            features: None,
            early_enable: Default::default(),
            status: 0,
            regions: Vec::new(),
        }
    }

    /// The ring number in the first field, if there is such a ring.
    fn ring_index(&self, message: &Message) -> Option<usize> {
        let index = usize::try_from(message.u32(0)?).ok()?;
        (index < 2 * self.pairs).then_some(index)
    }

    /// Whether the daemon will answer this message.
    pub(super) fn expects_reply(&self, message: &Message) -> bool {
        let always = matches!(
            message.code,
            code::GET_FEATURES | code::GET_PROTOCOL_FEATURES | code::GET_VRING_BASE | code::GET_MAX_MEM_SLOTS
        );
        always || self.acknowledges(message)
    }

    /// Whether the frontend gets an acknowledgement of this message.
    fn acknowledges(&self, message: &Message) -> bool {
        message.needs_reply() && self.reply_ack && self.asked
    }

    /// Takes one message of the frontend.
    pub(super) fn handle(&mut self, mut message: Message) -> Vec<Action> {
        if message.is_reply() {
            debug!(code = message.code, "reply to nothing from the frontend");
            return Vec::new();
        }
        match message.code {
            code::SET_OWNER if self.owned => self.ack(&message, true),
            code::SET_OWNER => {
                self.owned = true;
                forward(message)
            }
            code::RESET_OWNER | code::RESET_DEVICE => {
                if message.code == code::RESET_OWNER {
                    self.owned = false;
                }
                self.features = None;
                self.early_enable = Default::default();
                // First: what the crate does on a reset looks like a driver that disables its rings.
                vec![Action::Reset, Action::Forward(message)]
            }
            code::SET_PROTOCOL_FEATURES => {
                self.reply_ack = message.u64(0).is_some_and(|f| f & REPLY_ACK != 0);
                forward(message)
            }
            code::SET_FEATURES => self.set_features(message),
            code::SET_VRING_ENABLE => self.set_vring_enable(message),
            code::SET_MEM_TABLE => {
                if self.set_mem_table(&mut message) {
                    forward(message)
                } else {
                    self.refuse(&message, "memory table")
                }
            }
            code::ADD_MEM_REG => {
                // padding, guest address, size, user address, offset in the file
                let region = message.u64(8).zip(message.u64(16)).zip(message.u64(24).zip(message.u64(32)));
                match region {
                    Some(((guest, len), (user, offset)))
                        if message.fds.first().is_some_and(|fd| fits(fd, offset, len)) =>
                    {
                        self.regions.push(Region { guest, user, len });
                        forward(message)
                    }
                    _ => self.refuse(&message, "memory region"),
                }
            }
            code::REM_MEM_REG => {
                if let Some(guest) = message.u64(8) {
                    self.regions.retain(|r| r.guest != guest);
                }
                // A descriptor that comes along is to be closed unused.
                message.fds.clear();
                forward(message)
            }
            code::SET_LOG_BASE => self.set_log_base(message),
            code::SET_VRING_NUM => {
                let good = self.ring_index(&message).is_some()
                    && message.u32(4).is_some_and(|n| n.is_power_of_two() && n <= u32::from(MAX_RING_SIZE));
                if good { forward(message) } else { self.refuse(&message, "ring size") }
            }
            code::SET_VRING_ADDR => self.set_vring_addr(message),
            code::SET_VRING_BASE => {
                if self.ring_index(&message).is_some() {
                    forward(message)
                } else {
                    self.refuse(&message, "ring number")
                }
            }
            code::GET_VRING_BASE => {
                if self.ring_index(&message).is_some() {
                    forward(message)
                } else {
                    // This request has an answer in any case.
                    let body = [message.u32(0).unwrap_or(0).to_ne_bytes(), [0; 4]].concat();
                    vec![Action::Reply(Message::reply(message.code, body))]
                }
            }
            code::SET_VRING_KICK | code::SET_VRING_CALL | code::SET_VRING_ERR => {
                // Bits 0-7 are the ring, bit 8 says that no descriptor came.
                let good = message.u64(0).is_some_and(|v| {
                    (v & 0xff) < 2 * self.pairs as u64
                        && v >> 9 == 0
                        && message.fds.len() == usize::from(v & 0x100 == 0)
                });
                if !good {
                    return self.refuse(&message, "ring descriptor");
                }
                match message.fds.first().map(BellKind::of).transpose() {
                    Ok(_) => forward(message),
                    Err(error) => self.refuse(&message, &error.to_string()),
                }
            }
            code::SEND_RARP | code::NET_SET_MTU | code::SET_LOG_FD => self.ack(&message, true),
            code::SET_VRING_ENDIAN => {
                let little = message.u32(4) == Some(0);
                self.ack(&message, little)
            }
            code::SET_STATUS => {
                self.status = message.u64(0).unwrap_or(0);
                self.ack(&message, true)
            }
            code::GET_STATUS => {
                vec![Action::Reply(Message::reply(message.code, self.status.to_ne_bytes().to_vec()))]
            }
            code::GET_QUEUE_NUM => {
                let pairs = (self.pairs as u64).to_ne_bytes().to_vec();
                vec![Action::Reply(Message::reply(message.code, pairs))]
            }
            code::GET_CONFIG => {
                // offset, size, flags, payload; no payload means an error
                let mut body = message.body.get(..12).unwrap_or(&[0; 12]).to_vec();
                body[4..8].fill(0);
                vec![Action::Reply(Message::reply(message.code, body))]
            }
            code::SET_DEVICE_STATE_FD => Filter::set_device_state(message),
            code::CHECK_DEVICE_STATE => vec![Action::Checked],
            code::GET_FEATURES => {
                self.asked = true;
                forward(message)
            }
            code::GET_PROTOCOL_FEATURES | code::GET_MAX_MEM_SLOTS | code::SET_BACKEND_REQ_FD => {
                forward(message)
            }
            _ => self.refuse(&message, "request that was not offered"),
        }
    }

    fn set_device_state(mut message: Message) -> Vec<Action> {
        // Direction and phase; no frontend asks a device that runs (another phase than the first) for its state.
        let direction = message.u32(0).and_then(Direction::of).filter(|_| message.u32(4) == Some(0));
        match (direction, message.fds.pop()) {
            (Some(direction), Some(fd)) if message.fds.is_empty() => {
                vec![Action::Transfer { direction, file: fd.into() }]
            }
            _ => {
                warn!("transfer of the device's state refused: direction, phase or descriptor");
                vec![Action::Reply(transfer::began(false))]
            }
        }
    }

    fn set_features(&mut self, message: Message) -> Vec<Action> {
        self.features = message.u64(0);
        let mut actions = forward(message);
        for (index, enable) in self.early_enable.iter_mut().enumerate() {
            // Without PROTOCOL_FEATURES all rings are enabled by SET_FEATURES itself.
            if let Some(enable) = enable.take()
                && self.features.is_some_and(|f| f & feature::PROTOCOL_FEATURES != 0)
            {
                let body = [(index as u32).to_ne_bytes(), enable.to_ne_bytes()].concat();
                actions.push(Action::Forward(Message::request(code::SET_VRING_ENABLE, body)));
            }
        }
        actions
    }

    fn set_vring_enable(&mut self, message: Message) -> Vec<Action> {
        let (Some(index), Some(enable @ 0..=1)) = (self.ring_index(&message), message.u32(4)) else {
            return self.refuse(&message, "ring to enable");
        };
        match self.features {
            Some(f) if f & feature::PROTOCOL_FEATURES != 0 => forward(message),
            Some(_) => self.refuse(&message, "SET_VRING_ENABLE without protocol features"),
            None => {
                if let Some(kept) = self.early_enable.get_mut(index) {
                    *kept = Some(enable);
                }
                self.ack(&message, true)
            }
        }
    }

    fn set_mem_table(&mut self, message: &mut Message) -> bool {
        let Some(count) = message.u32(0).and_then(|n| usize::try_from(n).ok()) else { return false };
        if count == 0 || count != message.fds.len() {
            return false;
        }
        // At most MAX_FDS regions: no overflow.
        let len = TABLE_HEADER + count * REGION;
        if message.body.len() < len {
            return false;
        }
        message.body.truncate(len);
        let mut regions = Vec::with_capacity(count);
        for (i, fd) in message.fds.iter().enumerate() {
            let at = TABLE_HEADER + i * REGION;
            let fields = message.u64(at).zip(message.u64(at + 8));
            let Some(((guest, len), (user, offset))) =
                fields.zip(message.u64(at + 16).zip(message.u64(at + 24)))
            else {
                return false;
            };
            if !fits(fd, offset, len) {
                return false;
            }
            regions.push(Region { guest, user, len });
        }
        self.regions = regions;
        true
    }

    fn set_vring_addr(&mut self, message: Message) -> Vec<Action> {
        // index, flags, descriptors, used, available, log
        let Some(index) = self.ring_index(&message) else { return self.refuse(&message, "ring number") };
        let good = |offset, align: u64| {
            message.u64(offset).is_some_and(|at| {
                self.regions.iter().any(|r| {
                    let into = at.wrapping_sub(r.user);
                    into < r.len && r.guest.wrapping_add(into).is_multiple_of(align)
                })
            })
        };
        if good(8, 16) && good(16, 4) && good(24, 2) {
            return forward(message);
        }
        let mut actions = vec![Action::BadRing(index)];
        actions.extend(self.refuse(&message, "ring address"));
        actions
    }

    fn set_log_base(&self, mut message: Message) -> Vec<Action> {
        // size, offset; the reply repeats them
        let (Some(len), Some(offset), Some(fd)) = (message.u64(0), message.u64(8), message.fds.pop()) else {
            return self.refuse(&message, "dirty log");
        };
        let reply = Message::reply(message.code, message.body);
        vec![Action::Log { file: fd.into(), offset, len }, Action::Reply(reply)]
    }

    /// Answers a message that is not forwarded, if the frontend wants an answer.
    fn ack(&self, message: &Message, good: bool) -> Vec<Action> {
        if !self.acknowledges(message) {
            return Vec::new();
        }
        let body = u64::from(!good).to_ne_bytes().to_vec();
        vec![Action::Reply(Message::reply(message.code, body))]
    }

    fn refuse(&self, message: &Message, what: &str) -> Vec<Action> {
        warn!(code = message.code, what, "message of the frontend refused");
        self.ack(message, false)
    }
}

fn forward(message: Message) -> Vec<Action> {
    vec![Action::Forward(message)]
}

/// Whether a file holds `[offset, offset + len)`. Only regular files have a length to check.
fn fits(fd: &OwnedFd, offset: u64, len: u64) -> bool {
    let Some(end) = offset.checked_add(len) else { return false };
    let Ok(file) = fd.try_clone().map(File::from) else { return false };
    match file.metadata() {
        Ok(meta) => len > 0 && (!meta.is_file() || meta.len() >= end),
        Err(_) => false,
    }
}

#[cfg(test)]
#[path = "filter_tests.rs"]
mod tests;
