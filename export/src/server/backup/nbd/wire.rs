//! NBD's messages as bytes: those that a client sends, and those that it reads.

use super::NbdError;

const INIT_PASSWORD: u64 = 0x4e42_444d_4147_4943;
const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
const CHUNK_MAGIC: u32 = 0x668e_33ef;

/// Handshake flag and client flag: options may follow each other.
const FIXED_NEWSTYLE: u16 = 1;
/// Handshake flag and client flag: no bytes without meaning are sent.
const NO_ZEROES: u16 = 1 << 1;
/// Flag of a chunk: it is the reply's last one.
const DONE: u16 = 1;
/// Bit of all kinds of chunks that tell of errors.
const ERROR_CHUNK: u16 = 1 << 15;
/// Bit of all kinds of replies to options that tell of errors.
const ERROR_REPLY: u32 = 1 << 31;

/// The information about an export that tells its size.
const INFO_EXPORT: u16 = 0;

/// Bytes of the greeting.
pub(super) const GREETING: usize = 18;
/// Bytes of the head of a reply to an option.
pub(super) const OPTION_REPLY: usize = 20;
/// Bytes that the heads of both kinds of replies to requests have.
pub(super) const REPLY: usize = 16;
/// Longest data of a reply to an option: names and messages have 4096 bytes at most.
pub(super) const MOST_OPTION_DATA: u32 = 8 << 10;
/// Longest message of an error, with what is around it.
pub(super) const MOST_ERROR: u32 = 8 << 10;
/// Longest list of block statuses: QEMU sends 1 MiB at most.
pub(super) const MOST_STATUS: u32 = 2 << 20;
/// Letters of a server's message that are passed on.
const MOST_LETTERS: usize = 200;

/// Options.
pub(super) mod option {
    pub(in super::super) const GO: u32 = 7;
    pub(in super::super) const STRUCTURED_REPLY: u32 = 8;
    pub(in super::super) const SET_META_CONTEXT: u32 = 10;
}

/// Requests.
pub(super) mod command {
    pub(in super::super) const READ: u16 = 0;
    pub(in super::super) const DISCONNECT: u16 = 2;
    pub(in super::super) const BLOCK_STATUS: u16 = 7;
}

/// What is left of a message.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], NbdError> {
        let (first, rest) =
            self.0.split_first_chunk::<N>().ok_or(NbdError::Protocol("a message is short"))?;
        self.0 = rest;
        Ok(*first)
    }

    fn u16(&mut self) -> Result<u16, NbdError> {
        self.bytes().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Result<u32, NbdError> {
        self.bytes().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Result<u64, NbdError> {
        self.bytes().map(u64::from_be_bytes)
    }

    fn rest(&self) -> &'a [u8] {
        self.0
    }
}

/// A server's words, as far as they are passed on.
pub(super) fn words(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.chars().filter(|letter| !letter.is_control()).take(MOST_LETTERS).collect()
}

/// The answer to a server's greeting.
pub(super) fn greeting(bytes: &[u8; GREETING]) -> Result<[u8; 4], NbdError> {
    let mut fields = Fields(bytes);
    if fields.u64()? != INIT_PASSWORD || fields.u64()? != OPTION_MAGIC {
        return Err(NbdError::Protocol("it does not greet as an NBD server does"));
    }
    let flags = fields.u16()?;
    if flags & FIXED_NEWSTYLE == 0 {
        return Err(NbdError::Protocol("it knows the old handshake alone"));
    }
    Ok(u32::from(flags & (FIXED_NEWSTYLE | NO_ZEROES)).to_be_bytes())
}

/// A text with its length ahead. Longer ones than the protocol allows are cut, which the server then does not know.
fn text(message: &mut Vec<u8>, text: &str) {
    let text = text.as_bytes();
    let text = text.get(..4096).unwrap_or(text);
    message.extend_from_slice(&u32::try_from(text.len()).unwrap_or_default().to_be_bytes());
    message.extend_from_slice(text);
}

fn option_message(kind: u32, data: &[u8]) -> Vec<u8> {
    let mut message = OPTION_MAGIC.to_be_bytes().to_vec();
    message.extend_from_slice(&kind.to_be_bytes());
    message.extend_from_slice(&u32::try_from(data.len()).unwrap_or_default().to_be_bytes());
    message.extend_from_slice(data);
    message
}

/// Asks for structured replies.
pub(super) fn structured_reply() -> Vec<u8> {
    option_message(option::STRUCTURED_REPLY, &[])
}

/// Asks for contexts of an export.
pub(super) fn set_contexts(export: &str, contexts: &[&str]) -> Vec<u8> {
    let mut data = Vec::new();
    text(&mut data, export);
    data.extend_from_slice(&u32::try_from(contexts.len()).unwrap_or_default().to_be_bytes());
    for context in contexts {
        text(&mut data, context);
    }
    option_message(option::SET_META_CONTEXT, &data)
}

/// Asks for an export, and for nothing more than what every server tells of it.
pub(super) fn go(export: &str) -> Vec<u8> {
    let mut data = Vec::new();
    text(&mut data, export);
    data.extend_from_slice(&0_u16.to_be_bytes());
    option_message(option::GO, &data)
}

/// What a reply to an option says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OptionReply {
    /// It is granted, or all is told.
    Acknowledged,
    /// Something about an export.
    Info,
    /// A context that is granted.
    Context,
    /// It is refused, by this kind.
    Refused(u32),
    /// Something else.
    Other,
}

/// What the reply to the option `asked` says, and the length of its data.
pub(super) fn option_reply(bytes: &[u8; OPTION_REPLY], asked: u32) -> Result<(OptionReply, usize), NbdError> {
    let mut fields = Fields(bytes);
    if fields.u64()? != OPTION_REPLY_MAGIC || fields.u32()? != asked {
        return Err(NbdError::Protocol("a reply is not of the option that was asked for"));
    }
    let kind = match fields.u32()? {
        1 => OptionReply::Acknowledged,
        3 => OptionReply::Info,
        4 => OptionReply::Context,
        kind if kind & ERROR_REPLY != 0 => OptionReply::Refused(kind),
        _ => OptionReply::Other,
    };
    Ok((kind, bounded(fields.u32()?, MOST_OPTION_DATA)?))
}

/// A length that is not more than allowed.
pub(super) fn bounded(length: u32, most: u32) -> Result<usize, NbdError> {
    match usize::try_from(length) {
        Ok(bytes) if length <= most => Ok(bytes),
        _ => Err(NbdError::Protocol("a message is too long")),
    }
}

/// The size of the export, where the information is of it.
pub(super) fn size(data: &[u8]) -> Result<Option<u64>, NbdError> {
    let mut fields = Fields(data);
    if fields.u16()? != INFO_EXPORT { Ok(None) } else { fields.u64().map(Some) }
}

/// Number and name of a context that is granted.
pub(super) fn context(data: &[u8]) -> Result<(u32, String), NbdError> {
    let mut fields = Fields(data);
    let number = fields.u32()?;
    let name = std::str::from_utf8(fields.rest());
    Ok((number, name.map_err(|_| NbdError::Protocol("the name of a context is no text"))?.to_owned()))
}

/// A request.
pub(super) fn request(kind: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    let mut message = REQUEST_MAGIC.to_be_bytes().to_vec();
    message.extend_from_slice(&0_u16.to_be_bytes());
    message.extend_from_slice(&kind.to_be_bytes());
    message.extend_from_slice(&cookie.to_be_bytes());
    message.extend_from_slice(&offset.to_be_bytes());
    message.extend_from_slice(&length.to_be_bytes());
    message
}

/// What a chunk of a reply has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chunk {
    /// Nothing.
    None,
    /// Bytes of the export.
    Data,
    /// Bytes of the export that are zero.
    Hole,
    /// Block statuses.
    Status,
    /// An error.
    Error,
}

/// The kind of the chunk of the reply to the request `cookie`, and whether it is the last one. Its length follows.
pub(super) fn chunk(bytes: &[u8; REPLY], cookie: u64) -> Result<(Chunk, bool), NbdError> {
    let mut fields = Fields(bytes);
    let magic = fields.u32()?;
    let (flags, kind, of) = (fields.u16()?, fields.u16()?, fields.u64()?);
    if of != cookie {
        return Err(NbdError::Protocol("a reply is of no request"));
    }
    match magic {
        CHUNK_MAGIC => {}
        // It may tell an error so: the number is where the flags and the kind of a chunk are.
        SIMPLE_REPLY_MAGIC if (flags, kind) != (0, 0) => {
            let code = u32::from(flags) << 16 | u32::from(kind);
            return Err(NbdError::Failed { code, message: String::new() });
        }
        _ => return Err(NbdError::Protocol("a reply is not a structured one")),
    }
    let kind = match kind {
        0 => Chunk::None,
        1 => Chunk::Data,
        2 => Chunk::Hole,
        5 => Chunk::Status,
        kind if kind & ERROR_CHUNK != 0 => Chunk::Error,
        _ => return Err(NbdError::Protocol("a chunk is of an unknown kind")),
    };
    Ok((kind, flags & DONE != 0))
}

/// Place and length of a hole.
pub(super) fn hole(data: [u8; 12]) -> (u64, u32) {
    let [a, b, c, d, e, f, g, h, length @ ..] = data;
    (u64::from_be_bytes([a, b, c, d, e, f, g, h]), u32::from_be_bytes(length))
}

/// The error that a chunk tells.
pub(super) fn failure(data: &[u8]) -> Result<NbdError, NbdError> {
    let mut fields = Fields(data);
    let (code, length) = (fields.u32()?, fields.u16()?);
    let message = fields.rest().get(..usize::from(length));
    let message = message.ok_or(NbdError::Protocol("the message of an error is short"))?;
    Ok(NbdError::Failed { code, message: words(message) })
}

/// What a part of an export is, by a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Status {
    /// Its length.
    pub(in super::super) length: u32,
    /// What it is.
    pub(in super::super) flags: u32,
}

/// Number of a context, and what it tells of consecutive parts.
pub(super) fn statuses(data: &[u8]) -> Result<(u32, Vec<Status>), NbdError> {
    let mut fields = Fields(data);
    let context = fields.u32()?;
    let (pairs, left) = fields.rest().as_chunks::<8>();
    if pairs.is_empty() || !left.is_empty() {
        return Err(NbdError::Protocol("a list of block statuses is of a wrong length"));
    }
    let read = |pair: &[u8; 8]| {
        let mut fields = Fields(pair);
        Ok(Status { length: fields.u32()?, flags: fields.u32()? })
    };
    let all = pairs.iter().map(read).collect::<Result<Vec<_>, NbdError>>()?;
    match all.iter().any(|status| status.length == 0) {
        true => Err(NbdError::Protocol("a block status is of no bytes")),
        false => Ok((context, all)),
    }
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
