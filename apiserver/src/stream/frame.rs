//! WebSocket frames (RFC 6455, section 5), the server's side, without I/O.
//!
//! Why not a library's: those end both directions with the client's Close. Here a Close ends what the client says, and
//! what the guest still has to say is delivered before the answer, as RFC 6455, 5.5.1 allows; and the bytes of a message are
//! handed on as they come, whatever the message's length.

/// Longest payload of a control frame (5.5).
const MAX_CONTROL_BYTES: usize = 125;
/// Longest header of a frame with its mask (5.2).
const MAX_HEADER_BYTES: usize = 14;

const CONTINUATION: u8 = 0x0;
const TEXT: u8 = 0x1;
const BINARY: u8 = 0x2;
const CLOSE: u8 = 0x8;
const PING: u8 = 0x9;
const PONG: u8 = 0xa;

/// Codes of a Close (7.4.1).
pub mod code {
    /// All is said.
    pub const NORMAL: u16 = 1000;
    /// The peer broke the protocol.
    pub const PROTOCOL: u16 = 1002;
    /// A message is too big.
    pub const TOO_BIG: u16 = 1009;
    /// Something failed.
    pub const ERROR: u16 = 1011;
}

/// How a client broke the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// Extensions were not agreed upon.
    #[error("a reserved bit is set")]
    Reserved,
    /// The opcode is none.
    #[error("unknown opcode {0}")]
    Opcode(u8),
    /// Clients have to mask (5.3).
    #[error("the frame is not masked")]
    Unmasked,
    /// A control frame is fragmented or too long.
    #[error("bad control frame")]
    Control,
    /// A continuation continues nothing, or a message begins inside another.
    #[error("bad fragmentation")]
    Fragmentation,
    /// The length's highest bit is set.
    #[error("bad length")]
    Length,
}

/// What a client said.
#[derive(Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A part of a message; `end`: its last.
    Data {
        /// The bytes.
        bytes: &'a [u8],
        /// Whether the message ends here.
        end: bool,
    },
    /// To be answered with a Pong of this payload.
    Ping(Vec<u8>),
    /// The client has said all.
    Close,
}

#[derive(Debug)]
struct Frame {
    opcode: u8,
    last: bool,
    mask: [u8; 4],
    position: usize,
    remaining: u64,
}

/// Reads a client's frames from pieces of any length.
#[derive(Debug, Default)]
pub struct Decoder {
    header: [u8; MAX_HEADER_BYTES],
    filled: usize,
    frame: Option<Frame>,
    control: Vec<u8>,
    in_message: bool,
}

impl Decoder {
    /// Takes bytes off the front of `input` and tells the next event; `None` when `input` is used up.
    ///
    /// # Errors
    ///
    /// The client broke the protocol; nothing that follows can be understood.
    pub fn next<'a>(&mut self, input: &mut &'a mut [u8]) -> Result<Option<Event<'a>>, Violation> {
        loop {
            if self.frame.is_none() {
                let Some((first, rest)) = std::mem::take(input).split_first_mut() else { return Ok(None) };
                *input = rest;
                self.header[self.filled] = *first;
                self.filled += 1;
                self.frame = self.parse_header()?;
                continue;
            }
            let Some(frame) = &mut self.frame else { continue };
            let length = usize::try_from(frame.remaining).unwrap_or(usize::MAX).min(input.len());
            if length == 0 && frame.remaining > 0 {
                return Ok(None);
            }
            let (bytes, rest) = std::mem::take(input).split_at_mut(length);
            *input = rest;
            for byte in bytes.iter_mut() {
                *byte ^= frame.mask[frame.position % 4];
                frame.position += 1;
            }
            frame.remaining -= length as u64;
            let (opcode, done) = (frame.opcode, frame.remaining == 0);
            let end = done && frame.last;
            if done {
                self.frame = None;
            }
            if opcode < CLOSE {
                self.in_message = !end;
                return Ok(Some(Event::Data { bytes, end }));
            }
            self.control.extend_from_slice(bytes);
            if !done {
                return Ok(None);
            }
            let payload = std::mem::take(&mut self.control);
            match opcode {
                PING => return Ok(Some(Event::Ping(payload))),
                CLOSE => return Ok(Some(Event::Close)),
                _ => {}
            }
        }
    }

    /// The frame that the collected header begins, once the header is whole.
    fn parse_header(&mut self) -> Result<Option<Frame>, Violation> {
        let [first, second, rest @ ..] = &self.header;
        if self.filled < 2 {
            return Ok(None);
        }
        let (opcode, last) = (first & 0x0f, first & 0x80 != 0);
        if first & 0x70 != 0 {
            return Err(Violation::Reserved);
        }
        if second & 0x80 == 0 {
            return Err(Violation::Unmasked);
        }
        let short = second & 0x7f;
        match opcode {
            CONTINUATION if !self.in_message => return Err(Violation::Fragmentation),
            TEXT | BINARY if self.in_message => return Err(Violation::Fragmentation),
            CONTINUATION | TEXT | BINARY => {}
            CLOSE | PING | PONG if !last || usize::from(short) > MAX_CONTROL_BYTES => {
                return Err(Violation::Control);
            }
            CLOSE | PING | PONG => {}
            other => return Err(Violation::Opcode(other)),
        }
        let extended = match short {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        if self.filled < 2 + extended + 4 {
            return Ok(None);
        }
        let remaining = match extended {
            0 => u64::from(short),
            _ => rest[..extended].iter().fold(0, |length, byte| length << 8 | u64::from(*byte)),
        };
        if remaining >> 63 != 0 {
            return Err(Violation::Length);
        }
        let mut mask = [0; 4];
        mask.copy_from_slice(&rest[extended..extended + 4]);
        self.filled = 0;
        Ok(Some(Frame { opcode, last, mask, position: 0, remaining }))
    }
}

fn header(opcode: u8, length: usize) -> Vec<u8> {
    let first = 0x80 | opcode;
    let mut header = match (u8::try_from(length), u16::try_from(length)) {
        (Ok(short), _) if short < 126 => vec![first, short],
        (_, Ok(medium)) => [[first, 126].as_slice(), &medium.to_be_bytes()].concat(),
        _ => [[first, 127].as_slice(), &(length as u64).to_be_bytes()].concat(),
    };
    header.reserve_exact(length);
    header
}

fn frame(opcode: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = header(opcode, payload.len());
    frame.extend_from_slice(payload);
    frame
}

/// A whole binary message.
pub fn binary(payload: &[u8]) -> Vec<u8> {
    frame(BINARY, payload)
}

/// The answer to a Ping.
pub fn pong(payload: &[u8]) -> Vec<u8> {
    frame(PONG, payload)
}

/// A Close; a reason that is too long is cut.
pub fn close(code: u16, reason: &str) -> Vec<u8> {
    let cut = (0..=reason.len().min(MAX_CONTROL_BYTES - 2)).rev().find(|n| reason.is_char_boundary(*n));
    frame(CLOSE, &[&code.to_be_bytes(), &reason.as_bytes()[..cut.unwrap_or(0)]].concat())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A client's frame.
    fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = header(first & 0x0f, payload.len());
        frame[0] = first;
        frame[1] |= 0x80;
        frame.extend_from_slice(&[1, 2, 3, 4]);
        frame.extend(payload.iter().enumerate().map(|(n, byte)| byte ^ [1, 2, 3, 4][n % 4]));
        frame
    }

    /// What is heard when the bytes come in pieces of `size`: data joined, other events in words.
    fn heard(bytes: &[u8], size: usize) -> Result<(Vec<u8>, Vec<String>), Violation> {
        let (mut decoder, mut data, mut events) = (Decoder::default(), Vec::new(), Vec::new());
        for piece in bytes.chunks(size) {
            let mut piece = piece.to_vec();
            let mut input = piece.as_mut_slice();
            while let Some(event) = decoder.next(&mut input)? {
                match event {
                    Event::Data { bytes, end } => {
                        data.extend_from_slice(bytes);
                        if end {
                            events.push(format!("message to {}", data.len()));
                        }
                    }
                    other => events.push(format!("{other:?}")),
                }
            }
        }
        Ok((data, events))
    }

    #[test]
    fn messages_of_every_length_form_and_control_frames_between_fragments_are_read() {
        for length in [0, 1, 125, 126, 65_535, 65_536] {
            let payload: Vec<u8> = (0..length).map(|n: u32| n as u8).collect();
            let bytes = [
                masked(0x02, b"first "),
                masked(0x89, b"hey"),
                masked(0x8a, b"unasked"),
                masked(0x80, &payload),
                masked(0x88, &[3, 232]),
            ]
            .concat();
            for size in [1, 7, bytes.len()] {
                let (data, events) = heard(&bytes, size).unwrap();
                assert_eq!(data, [b"first ", payload.as_slice()].concat());
                let end = format!("message to {}", data.len());
                assert_eq!(events, ["Ping([104, 101, 121])", end.as_str(), "Close"], "{length} {size}");
            }
        }
    }

    #[test]
    fn every_violation_is_named() {
        let mut plain = masked(0x82, b"x");
        plain[1] &= 0x7f;
        let long_control = masked(0x89, &[0; 126]);
        let endless = [&[0x82, 0xff, 0x80][..], &[0; 11]].concat();
        for (bytes, violation) in [
            (masked(0xc2, b"x"), Violation::Reserved),
            (masked(0x83, b"x"), Violation::Opcode(3)),
            (plain, Violation::Unmasked),
            (masked(0x09, b"x"), Violation::Control),
            (long_control, Violation::Control),
            (masked(0x80, b"x"), Violation::Fragmentation),
            ([masked(0x02, b"x"), masked(0x82, b"x")].concat(), Violation::Fragmentation),
            (endless, Violation::Length),
        ] {
            assert_eq!(heard(&bytes, bytes.len()), Err(violation));
        }
    }

    #[test]
    fn frames_of_the_server_are_not_masked_and_reasons_are_cut_at_a_letter() {
        assert_eq!(binary(b"ab"), [0x82, 2, b'a', b'b']);
        assert_eq!(binary(&[0; 126])[..4], [0x82, 126, 0, 126]);
        assert_eq!(binary(&vec![0; 65_536])[..10], [0x82, 127, 0, 0, 0, 0, 0, 1, 0, 0]);
        assert_eq!(pong(b"x"), [0x8a, 1, b'x']);
        let frame = close(code::ERROR, &"ä".repeat(100));
        assert_eq!(frame[..4], [0x88, 124, 3, 243]);
        assert!(std::str::from_utf8(&frame[4..]).is_ok());
    }

    proptest! {
        #[test]
        fn the_same_is_heard_however_the_bytes_are_cut(
            bytes in proptest::collection::vec(any::<u8>(), 0..200), size in 1usize..20,
        ) {
            prop_assert_eq!(heard(&bytes, size), heard(&bytes, 200));
        }
    }
}
