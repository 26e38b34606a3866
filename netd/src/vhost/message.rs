//! One vhost-user message, as far as the filter looks into it.
//!
//! Header: request code, flags (version in bits 0-1, reply in bit 2, need-reply in bit 3), length of the body;
//! 32 bits each, in the machine's byte order. Source: QEMU's `docs/interop/vhost-user.rst`.

use std::os::fd::OwnedFd;

/// Length of the header.
pub(super) const HEADER: usize = 12;
/// The longest body; what the `vhost` crate takes.
pub(super) const MAX_BODY: usize = 0x1000;
/// The most descriptors of one message.
pub(super) const MAX_FDS: usize = 32;

const VERSION: u32 = 1;
const VERSION_MASK: u32 = 3;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;

/// Request codes.
pub(super) mod code {
    pub(in crate::vhost) const GET_FEATURES: u32 = 1;
    pub(in crate::vhost) const SET_FEATURES: u32 = 2;
    pub(in crate::vhost) const SET_OWNER: u32 = 3;
    pub(in crate::vhost) const RESET_OWNER: u32 = 4;
    pub(in crate::vhost) const SET_MEM_TABLE: u32 = 5;
    pub(in crate::vhost) const SET_LOG_BASE: u32 = 6;
    pub(in crate::vhost) const SET_LOG_FD: u32 = 7;
    pub(in crate::vhost) const SET_VRING_NUM: u32 = 8;
    pub(in crate::vhost) const SET_VRING_ADDR: u32 = 9;
    pub(in crate::vhost) const SET_VRING_BASE: u32 = 10;
    pub(in crate::vhost) const GET_VRING_BASE: u32 = 11;
    pub(in crate::vhost) const SET_VRING_KICK: u32 = 12;
    pub(in crate::vhost) const SET_VRING_CALL: u32 = 13;
    pub(in crate::vhost) const SET_VRING_ERR: u32 = 14;
    pub(in crate::vhost) const GET_PROTOCOL_FEATURES: u32 = 15;
    pub(in crate::vhost) const SET_PROTOCOL_FEATURES: u32 = 16;
    pub(in crate::vhost) const GET_QUEUE_NUM: u32 = 17;
    pub(in crate::vhost) const SET_VRING_ENABLE: u32 = 18;
    pub(in crate::vhost) const SEND_RARP: u32 = 19;
    pub(in crate::vhost) const NET_SET_MTU: u32 = 20;
    pub(in crate::vhost) const SET_BACKEND_REQ_FD: u32 = 21;
    pub(in crate::vhost) const SET_VRING_ENDIAN: u32 = 23;
    pub(in crate::vhost) const GET_CONFIG: u32 = 24;
    pub(in crate::vhost) const RESET_DEVICE: u32 = 34;
    pub(in crate::vhost) const GET_MAX_MEM_SLOTS: u32 = 36;
    pub(in crate::vhost) const ADD_MEM_REG: u32 = 37;
    pub(in crate::vhost) const REM_MEM_REG: u32 = 38;
    pub(in crate::vhost) const SET_STATUS: u32 = 39;
    pub(in crate::vhost) const GET_STATUS: u32 = 40;
    pub(in crate::vhost) const SET_DEVICE_STATE_FD: u32 = 42;
    pub(in crate::vhost) const CHECK_DEVICE_STATE: u32 = 43;
}

/// One message with the descriptors that came along.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) code: u32,
    pub(super) flags: u32,
    pub(super) body: Vec<u8>,
    pub(super) fds: Vec<OwnedFd>,
}

impl Message {
    /// Splits a header into code, flags and length of the body; `None` when it cannot be a request or a reply of
    /// this protocol.
    pub(super) fn parse_header(bytes: &[u8; HEADER]) -> Option<(u32, u32, usize)> {
        let (code, flags, len) = (u32_at(bytes, 0)?, u32_at(bytes, 4)?, u32_at(bytes, 8)? as usize);
        (flags & VERSION_MASK == VERSION && len <= MAX_BODY).then_some((code, flags, len))
    }

    /// The bytes on the wire.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER + self.body.len());
        for word in [self.code, self.flags, self.body.len() as u32] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend(&self.body);
        bytes
    }

    /// A request without descriptors that wants no reply.
    pub(super) fn request(code: u32, body: Vec<u8>) -> Message {
        Message { code, flags: VERSION, body, fds: Vec::new() }
    }

    /// The reply to a request of this code.
    pub(super) fn reply(code: u32, body: Vec<u8>) -> Message {
        Message { code, flags: VERSION | REPLY, body, fds: Vec::new() }
    }

    pub(super) fn is_reply(&self) -> bool {
        self.flags & REPLY != 0
    }

    pub(super) fn needs_reply(&self) -> bool {
        self.flags & NEED_REPLY != 0
    }

    /// The 32-bit field at `offset` of the body.
    pub(super) fn u32(&self, offset: usize) -> Option<u32> {
        u32_at(&self.body, offset)
    }

    /// The 64-bit field at `offset` of the body.
    pub(super) fn u64(&self, offset: usize) -> Option<u64> {
        let bytes = self.body.get(offset..)?.first_chunk::<8>()?;
        Some(u64::from_ne_bytes(*bytes))
    }
}

fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(offset..)?.first_chunk::<4>()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_of_another_version_or_with_too_long_a_body_is_refused() {
        let header = |flags: u32, len: u32| {
            let mut h = [0u8; HEADER];
            h[0] = 1;
            h[4..8].copy_from_slice(&flags.to_ne_bytes());
            h[8..].copy_from_slice(&len.to_ne_bytes());
            Message::parse_header(&h)
        };
        assert_eq!(header(9, 4096), Some((1, 9, 4096)));
        assert_eq!(header(1, 4097), None);
        assert_eq!(header(0, 8), None);
        assert_eq!(header(2, 8), None);
    }

    #[test]
    fn fields_beyond_the_body_are_absent() {
        let message = Message::request(9, vec![1, 0, 0, 0, 2, 0, 0, 0, 0]);
        assert_eq!(message.u32(4), Some(u32::from_ne_bytes([2, 0, 0, 0])));
        assert_eq!(message.u32(6), None);
        assert_eq!(message.u64(2), None);
        assert_eq!(message.u64(usize::MAX), None);
    }
}
