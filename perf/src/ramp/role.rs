//! What one end of a connection does, and how the client tells the guest.

use std::time::Duration;

/// What an end sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sending {
    /// So many bytes, again and again after a pause.
    Paced {
        /// Bytes.
        chunk: u32,
        /// After them.
        pause: Duration,
    },
    /// Nothing until the end.
    Idle,
    /// As much as is taken, always.
    Full,
    /// Nothing: it closes at once.
    Closed,
}

/// When an end reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// At once.
    Now,
    /// In the end.
    Late,
}

/// What an end does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Role {
    /// Which connection it is; the guest's ramp has twice this as its seed, the client's one more.
    pub id: u32,
    /// What it sends.
    pub sending: Sending,
    /// When it reads.
    pub reading: Reading,
}

impl Role {
    /// Bytes of a role.
    pub const LEN: usize = 16;
    /// What a connection begins with that asks for a report instead.
    pub const REPORT: [u8; Role::LEN] = [0xff; Role::LEN];

    /// For the wire.
    pub fn encode(self) -> [u8; Role::LEN] {
        let (kind, chunk, pause) = match self.sending {
            Sending::Paced { chunk, pause } => (0, chunk, pause.as_millis().try_into().unwrap_or(u32::MAX)),
            Sending::Idle => (1, 0, 0),
            Sending::Full => (2, 0, 0),
            Sending::Closed => (3, 0, 0),
        };
        let mut bytes = [0; Role::LEN];
        bytes[0] = kind;
        bytes[1] = u8::from(self.reading == Reading::Late);
        bytes[4..8].copy_from_slice(&self.id.to_le_bytes());
        bytes[8..12].copy_from_slice(&chunk.to_le_bytes());
        bytes[12..].copy_from_slice(&pause.to_le_bytes());
        bytes
    }

    /// From the wire; none: it is no role.
    pub fn decode(bytes: [u8; Role::LEN]) -> Option<Role> {
        let [kind, late, 0, 0, words @ ..] = bytes else { return None };
        let word = |at: usize| words.get(at..)?.first_chunk::<4>().map(|b| u32::from_le_bytes(*b));
        let sending = match kind {
            0 => Sending::Paced { chunk: word(4)?, pause: Duration::from_millis(word(8)?.into()) },
            1 => Sending::Idle,
            2 => Sending::Full,
            3 => Sending::Closed,
            _ => return None,
        };
        let reading = if late == 0 { Reading::Now } else { Reading::Late };
        Some(Role { id: word(0)?, sending, reading })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_survives_the_wire() {
        let paced = Sending::Paced { chunk: 1000, pause: Duration::from_millis(40) };
        for sending in [paced, Sending::Idle, Sending::Full, Sending::Closed] {
            for reading in [Reading::Now, Reading::Late] {
                let role = Role { id: 0x0102_0304, sending, reading };
                assert_eq!(Role::decode(role.encode()), Some(role));
            }
        }
        assert_eq!(Role::decode([9; Role::LEN]), None);
    }
}
