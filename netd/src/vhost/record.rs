//! What a frontend has set up, so that another netd can set it up again without asking the frontend.
//!
//! The record is told every message that went to the daemon ([`Record::note`]) and keeps what the last of each kind
//! said, with its descriptors. [`Record::replay`] makes messages of it that bring a fresh filter and a fresh daemon to
//! the same place; ring positions come from the rings themselves.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use super::message::{MAX_FDS, Message, code};
use crate::state::{self, Addresses, Descriptors, Missing, Named};

/// Set in the flags of a ring's descriptor when none came.
const NO_FD: u64 = 0x100;
/// Bytes before the regions of `SET_MEM_TABLE`, and bytes of a region.
const TABLE_HEADER: usize = 8;
const REGION: usize = 32;

/// A region of memory with its file.
#[derive(Debug)]
struct Region {
    guest: u64,
    len: u64,
    user: u64,
    offset: u64,
    file: OwnedFd,
}

/// A ring.
#[derive(Debug, Default)]
struct Ring {
    size: Option<u32>,
    addresses: Option<Addresses>,
    position: u16,
    enabled: Option<bool>,
    kick: Option<OwnedFd>,
    call: Option<OwnedFd>,
    err: Option<OwnedFd>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Record {
    owned: bool,
    protocol_features: Option<u64>,
    features: Option<u64>,
    status: u64,
    regions: Vec<Region>,
    log: Option<(u64, u64, OwnedFd)>,
    channel: Option<OwnedFd>,
    rings: Vec<Ring>,
}

fn copy(message: &Message) -> io::Result<Option<OwnedFd>> {
    message.fds.first().map(OwnedFd::try_clone).transpose()
}

impl Record {
    fn ring(&mut self, index: Option<u64>) -> Option<&mut Ring> {
        // The filter lets no ring through that does not exist, so this is bounded.
        let index = usize::try_from(index?).ok().filter(|i| *i < 256)?;
        if self.rings.len() <= index {
            self.rings.resize_with(index + 1, Ring::default);
        }
        self.rings.get_mut(index)
    }

    /// The frontend's message was taken.
    ///
    /// # Errors
    /// A descriptor cannot be copied.
    pub(super) fn note(&mut self, message: &Message) -> io::Result<()> {
        let state = message.u32(0).map(u64::from);
        match message.code {
            code::SET_OWNER => self.owned = true,
            code::RESET_OWNER | code::RESET_DEVICE => {
                self.owned &= message.code == code::RESET_DEVICE;
                self.features = None;
                self.rings.iter_mut().for_each(|r| r.enabled = None);
            }
            code::SET_PROTOCOL_FEATURES => self.protocol_features = message.u64(0),
            code::SET_FEATURES => self.features = message.u64(0),
            code::SET_STATUS => self.status = message.u64(0).unwrap_or(0),
            code::SET_MEM_TABLE => self.set_regions(message)?,
            code::ADD_MEM_REG => {
                let numbers = [8, 16, 24, 32].map(|at| message.u64(at).unwrap_or(0));
                self.add_region(numbers, copy(message)?);
            }
            code::REM_MEM_REG => self.regions.retain(|r| Some(r.guest) != message.u64(8)),
            code::SET_BACKEND_REQ_FD => self.channel = copy(message)?,
            code::SET_VRING_NUM => {
                if let Some(ring) = self.ring(state) {
                    ring.size = message.u32(4);
                }
            }
            code::SET_VRING_BASE => {
                if let Some(ring) = self.ring(state) {
                    ring.position = message.u32(4).unwrap_or(0) as u16;
                }
            }
            code::SET_VRING_ADDR => {
                let at = |at| message.u64(at).unwrap_or(0);
                let flags = message.u32(4).unwrap_or(0);
                let addresses =
                    Addresses { flags, descriptors: at(8), used: at(16), available: at(24), log: at(32) };
                if let Some(ring) = self.ring(state) {
                    ring.addresses = Some(addresses);
                }
            }
            code::SET_VRING_ENABLE => {
                if let Some(ring) = self.ring(state) {
                    ring.enabled = message.u32(4).map(|v| v != 0);
                }
            }
            // The daemon lets go of both until they come again.
            code::GET_VRING_BASE => {
                if let Some(ring) = self.ring(state) {
                    (ring.kick, ring.call) = (None, None);
                }
            }
            code::SET_VRING_KICK | code::SET_VRING_CALL | code::SET_VRING_ERR => {
                let fd = copy(message)?;
                if let Some(ring) = self.ring(message.u64(0).map(|v| v & 0xff)) {
                    *match message.code {
                        code::SET_VRING_KICK => &mut ring.kick,
                        code::SET_VRING_CALL => &mut ring.call,
                        _ => &mut ring.err,
                    } = fd;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The dirty log was set: file, offset and length in bytes.
    ///
    /// # Errors
    /// The descriptor cannot be copied.
    pub(super) fn note_log(&mut self, file: &impl AsFd, offset: u64, len: u64) -> io::Result<()> {
        self.log = Some((offset, len, file.as_fd().try_clone_to_owned()?));
        Ok(())
    }

    fn set_regions(&mut self, message: &Message) -> io::Result<()> {
        self.regions.clear();
        for (i, fd) in message.fds.iter().enumerate() {
            let at = TABLE_HEADER + i * REGION;
            let numbers = [0, 8, 16, 24].map(|field| message.u64(at + field).unwrap_or(0));
            self.add_region(numbers, Some(fd.try_clone()?));
        }
        Ok(())
    }

    fn add_region(&mut self, [guest, len, user, offset]: [u64; 4], file: Option<OwnedFd>) {
        self.regions.extend(file.map(|file| Region { guest, len, user, offset, file }));
    }

    /// Where the rings stand, by their index.
    pub(super) fn set_positions(&mut self, positions: &[u16]) {
        for (i, position) in positions.iter().enumerate() {
            if let Some(ring) = self.ring(Some(i as u64)) {
                ring.position = *position;
            }
        }
    }

    /// The record for a successor.
    pub(super) fn state<'a>(&'a self, connection: state::Fd, named: &mut Named<'a>) -> state::Frontend {
        let mut name = |fd: &'a OwnedFd| named.name(fd.as_fd());
        state::Frontend {
            connection,
            owned: self.owned,
            protocol_features: self.protocol_features,
            features: self.features,
            status: self.status,
            regions: self
                .regions
                .iter()
                .map(|r| state::Region {
                    guest: r.guest,
                    len: r.len,
                    user: r.user,
                    offset: r.offset,
                    file: name(&r.file),
                })
                .collect(),
            log: self.log.as_ref().map(|(offset, len, file)| state::Log {
                offset: *offset,
                len: *len,
                file: name(file),
            }),
            channel: self.channel.as_ref().map(&mut name),
            rings: self
                .rings
                .iter()
                .map(|r| state::VhostRing {
                    size: r.size,
                    addresses: r.addresses,
                    position: r.position,
                    enabled: r.enabled,
                    kick: r.kick.as_ref().map(&mut name),
                    call: r.call.as_ref().map(&mut name),
                    err: r.err.as_ref().map(&mut name),
                })
                .collect(),
        }
    }

    /// The record of a predecessor.
    ///
    /// # Errors
    /// A descriptor is not there.
    pub(super) fn from_state(state: state::Frontend, fds: &mut Descriptors) -> Result<Record, Missing> {
        let mut record = Record {
            owned: state.owned,
            protocol_features: state.protocol_features,
            features: state.features,
            status: state.status,
            channel: fds.take_if(state.channel)?,
            ..Record::default()
        };
        for r in state.regions {
            record.add_region([r.guest, r.len, r.user, r.offset], Some(fds.take(r.file)?));
        }
        if let Some(log) = state.log {
            record.log = Some((log.offset, log.len, fds.take(log.file)?));
        }
        for r in state.rings {
            record.rings.push(Ring {
                size: r.size,
                addresses: r.addresses,
                position: r.position,
                enabled: r.enabled,
                kick: fds.take_if(r.kick)?,
                call: fds.take_if(r.call)?,
                err: fds.take_if(r.err)?,
            });
        }
        Ok(record)
    }

    /// The frontend's messages again, as few as there need to be. None of them wants an acknowledgement.
    ///
    /// # Errors
    /// A descriptor cannot be copied.
    pub(super) fn replay(&self) -> io::Result<Vec<Message>> {
        let number = |code, value: u64| Message::request(code, value.to_ne_bytes().to_vec());
        // What is offered is asked for first: the daemon acknowledges nothing before.
        let mut out = vec![Message::request(code::GET_FEATURES, Vec::new())];
        if self.owned {
            out.push(Message::request(code::SET_OWNER, Vec::new()));
        }
        if let Some(features) = self.protocol_features {
            out.push(Message::request(code::GET_PROTOCOL_FEATURES, Vec::new()));
            out.push(number(code::SET_PROTOCOL_FEATURES, features));
        }
        if let Some(channel) = &self.channel {
            let message = Message::request(code::SET_BACKEND_REQ_FD, Vec::new());
            out.push(Message { fds: vec![channel.try_clone()?], ..message });
        }
        out.extend(self.features.map(|f| number(code::SET_FEATURES, f)));
        self.replay_memory(&mut out)?;
        if let Some((offset, len, file)) = &self.log {
            let body = [len.to_ne_bytes(), offset.to_ne_bytes()].concat();
            out.push(Message { fds: vec![file.try_clone()?], ..Message::request(code::SET_LOG_BASE, body) });
        }
        for (index, ring) in self.rings.iter().enumerate() {
            ring.replay(index as u32, &mut out)?;
        }
        out.push(number(code::SET_STATUS, self.status));
        Ok(out)
    }

    fn replay_memory(&self, out: &mut Vec<Message>) -> io::Result<()> {
        let (table, more) = self.regions.split_at(self.regions.len().min(MAX_FDS));
        let numbers = |r: &Region| [r.guest, r.len, r.user, r.offset].map(u64::to_ne_bytes).concat();
        if !table.is_empty() {
            let mut body = (table.len() as u64).to_ne_bytes().to_vec();
            table.iter().for_each(|r| body.extend(numbers(r)));
            let fds = table.iter().map(|r| r.file.try_clone()).collect::<io::Result<_>>()?;
            out.push(Message { fds, ..Message::request(code::SET_MEM_TABLE, body) });
        }
        for region in more {
            let body = [vec![0; 8], numbers(region)].concat();
            let fds = vec![region.file.try_clone()?];
            out.push(Message { fds, ..Message::request(code::ADD_MEM_REG, body) });
        }
        Ok(())
    }
}

impl Ring {
    fn replay(&self, index: u32, out: &mut Vec<Message>) -> io::Result<()> {
        let state =
            |code, value: u32| Message::request(code, [index.to_ne_bytes(), value.to_ne_bytes()].concat());
        out.extend(self.size.map(|n| state(code::SET_VRING_NUM, n)));
        out.push(state(code::SET_VRING_BASE, self.position.into()));
        if let Some(a) = &self.addresses {
            let mut body = [index.to_ne_bytes(), a.flags.to_ne_bytes()].concat();
            for at in [a.descriptors, a.used, a.available, a.log] {
                body.extend(at.to_ne_bytes());
            }
            out.push(Message::request(code::SET_VRING_ADDR, body));
        }
        let files = [
            (code::SET_VRING_ERR, &self.err),
            (code::SET_VRING_CALL, &self.call),
            (code::SET_VRING_KICK, &self.kick),
        ];
        for (code, fd) in files {
            if let Some(fd) = fd {
                let body = u64::from(index).to_ne_bytes().to_vec();
                out.push(Message { fds: vec![fd.try_clone()?], ..Message::request(code, body) });
            } else if code == code::SET_VRING_CALL && self.kick.is_some() {
                // A ring without interrupts says so, or it would not be complete.
                let body = (u64::from(index) | NO_FD).to_ne_bytes().to_vec();
                out.push(Message::request(code, body));
            }
        }
        out.extend(self.enabled.map(|on| state(code::SET_VRING_ENABLE, on.into())));
        Ok(())
    }
}
