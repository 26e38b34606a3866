//! A session with an NBD server on any stream.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use super::NbdError;
use super::wire::{self, Chunk, OptionReply, Status, command, option};

/// Longest time until a session is open: QEMU does not wait longer for a client either.
const OPENING: Duration = Duration::from_secs(10);
/// Longest time for a reply to a request: storage may be slow.
const REPLY: Duration = Duration::from_secs(120);
/// Longest time to say goodbye.
const GOODBYE: Duration = Duration::from_secs(1);
/// Replies to an option, before the one that ends them.
const MOST_REPLIES: usize = 64;

/// A session that reads an export.
#[derive(Debug)]
pub(in super::super) struct Session<S> {
    stream: S,
    size: u64,
    contexts: Vec<(u32, String)>,
    cookie: u64,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Session<S> {
    /// Opens a session with the server on `stream`, of `export`, in which the server can be asked what is where by those of `contexts`
    /// that it grants.
    ///
    /// # Errors
    ///
    /// The server does not have the export, is silent, or speaks otherwise.
    pub(in super::super) async fn open(stream: S, export: &str, contexts: &[&str]) -> Result<Self, NbdError> {
        let session = Session { stream, size: 0, contexts: Vec::new(), cookie: 0 };
        let opened = timeout(OPENING, session.greet(export, contexts)).await;
        opened.map_err(|_| NbdError::Silent(OPENING))?
    }

    async fn greet(mut self, export: &str, contexts: &[&str]) -> Result<Self, NbdError> {
        let mut greeting = [0; wire::GREETING];
        self.stream.read_exact(&mut greeting).await?;
        self.send(&wire::greeting(&greeting)?).await?;
        self.ask(&wire::structured_reply(), option::STRUCTURED_REPLY, "structured replies").await?;
        if !contexts.is_empty() {
            let asked = wire::set_contexts(export, contexts);
            let granted = self.ask(&asked, option::SET_META_CONTEXT, "block statuses").await?;
            let granted = granted.iter().filter(|(kind, _)| *kind == OptionReply::Context);
            self.contexts = granted.map(|(_, data)| wire::context(data)).collect::<Result<_, _>>()?;
        }
        let told = self.ask(&wire::go(export), option::GO, "the export").await?;
        for (_, data) in told.iter().filter(|(kind, _)| *kind == OptionReply::Info) {
            if let Some(size) = wire::size(data)? {
                self.size = size;
                return Ok(self);
            }
        }
        Err(NbdError::Protocol("it does not tell the export's size"))
    }

    /// Size of the export in bytes.
    pub(in super::super) fn size(&self) -> u64 {
        self.size
    }

    /// Number of a context that is granted.
    pub(in super::super) fn context(&self, name: &str) -> Option<u32> {
        self.contexts.iter().find(|(_, granted)| granted == name).map(|(number, _)| *number)
    }

    /// Reads a part of the export, all of it.
    ///
    /// # Errors
    ///
    /// The server cannot read it; the session is over.
    pub(in super::super) async fn read(&mut self, offset: u64, length: u32) -> Result<Vec<u8>, NbdError> {
        let read = timeout(REPLY, self.read_all(offset, length)).await;
        read.map_err(|_| NbdError::Silent(REPLY))?
    }

    async fn read_all(&mut self, offset: u64, length: u32) -> Result<Vec<u8>, NbdError> {
        // QEMU sends the parts in their order. A part out of it is refused: what is missing would read as zeroes.
        const ORDER: NbdError = NbdError::Protocol("a part of the data is not where it belongs");
        self.request(command::READ, offset, length).await?;
        let mut data = vec![0; wire::bounded(length, u32::MAX)?];
        let mut filled = 0_usize;
        loop {
            let (kind, last, told) = self.chunk().await?;
            let at = offset.saturating_add(u64::try_from(filled).unwrap_or(u64::MAX));
            match (kind, told) {
                (Chunk::None, 0) if last => {}
                (Chunk::Data, 9..) => {
                    let here = self.stream.read_u64().await?;
                    let end = filled.checked_add(wire::bounded(told - 8, length)?);
                    let room = end.and_then(|end| data.get_mut(filled..end));
                    let room = room.filter(|_| here == at).ok_or(ORDER)?;
                    self.stream.read_exact(room).await?;
                    filled += room.len();
                }
                (Chunk::Hole, 12) => {
                    let mut place = [0; 12];
                    self.stream.read_exact(&mut place).await?;
                    let (here, zeroes) = wire::hole(place);
                    let end = filled.checked_add(wire::bounded(zeroes, length)?);
                    let end = end.filter(|end| here == at && zeroes > 0 && *end <= data.len());
                    filled = end.ok_or(ORDER)?;
                }
                (Chunk::Error, _) => return Err(self.failure(told).await?),
                _ => return Err(NbdError::Protocol("a reply to a read has something else than data")),
            }
            if last {
                break;
            }
        }
        match filled == data.len() {
            true => Ok(data),
            false => Err(NbdError::Protocol("a part of the data is missing")),
        }
    }

    /// What is where in a part of the export, by a context that is granted. The server may tell of the start of the part alone.
    ///
    /// # Errors
    ///
    /// The server cannot tell; the session is over.
    pub(in super::super) async fn status(
        &mut self,
        context: u32,
        offset: u64,
        length: u32,
    ) -> Result<Vec<Status>, NbdError> {
        let told = timeout(REPLY, self.statuses(context, offset, length)).await;
        told.map_err(|_| NbdError::Silent(REPLY))?
    }

    async fn statuses(&mut self, context: u32, offset: u64, length: u32) -> Result<Vec<Status>, NbdError> {
        self.request(command::BLOCK_STATUS, offset, length).await?;
        let mut wanted = None;
        // Each context is told once, and the end may be told on its own.
        for _ in 0..=self.contexts.len() {
            let (kind, last, told) = self.chunk().await?;
            match (kind, told) {
                (Chunk::None, 0) if last => {}
                (Chunk::Status, _) => {
                    let (of, all) = wire::statuses(&self.data(told, wire::MOST_STATUS).await?)?;
                    if of == context {
                        wanted = Some(all);
                    }
                }
                (Chunk::Error, _) => return Err(self.failure(told).await?),
                _ => return Err(NbdError::Protocol("a reply to a block status has something else")),
            }
            if last {
                return wanted.ok_or(NbdError::Protocol("the block statuses of a context are missing"));
            }
        }
        Err(NbdError::Protocol("a reply to a block status does not end"))
    }

    /// Ends the session. The server closes the stream then.
    pub(in super::super) async fn close(mut self) {
        let goodbye = async {
            self.request(command::DISCONNECT, 0, 0).await?;
            Ok::<_, NbdError>(self.stream.shutdown().await?)
        };
        // The stream is dropped now: a server that does not hear it sees that.
        let _ = timeout(GOODBYE, goodbye).await;
    }

    async fn send(&mut self, message: &[u8]) -> Result<(), NbdError> {
        self.stream.write_all(message).await?;
        Ok(self.stream.flush().await?)
    }

    async fn data(&mut self, length: u32, most: u32) -> Result<Vec<u8>, NbdError> {
        let mut data = vec![0; wire::bounded(length, most)?];
        self.stream.read_exact(&mut data).await?;
        Ok(data)
    }

    /// Sends an option, and returns what comes before it is granted.
    async fn ask(
        &mut self,
        message: &[u8],
        asked: u32,
        what: &'static str,
    ) -> Result<Vec<(OptionReply, Vec<u8>)>, NbdError> {
        self.send(message).await?;
        let mut told = Vec::new();
        while told.len() <= MOST_REPLIES {
            let mut head = [0; wire::OPTION_REPLY];
            self.stream.read_exact(&mut head).await?;
            let (kind, length) = wire::option_reply(&head, asked)?;
            let mut data = vec![0; length];
            self.stream.read_exact(&mut data).await?;
            match kind {
                OptionReply::Acknowledged => return Ok(told),
                OptionReply::Refused(code) => {
                    return Err(NbdError::Refused { what, code, message: wire::words(&data) });
                }
                _ => told.push((kind, data)),
            }
        }
        Err(NbdError::Protocol("the replies to an option do not end"))
    }

    async fn request(&mut self, kind: u16, offset: u64, length: u32) -> Result<(), NbdError> {
        self.cookie += 1;
        self.send(&wire::request(kind, self.cookie, offset, length)).await
    }

    /// Kind of the next chunk, whether it is the last one, and the length of what follows.
    async fn chunk(&mut self) -> Result<(Chunk, bool, u32), NbdError> {
        let mut head = [0; wire::REPLY];
        self.stream.read_exact(&mut head).await?;
        let (kind, last) = wire::chunk(&head, self.cookie)?;
        Ok((kind, last, self.stream.read_u32().await?))
    }

    async fn failure(&mut self, length: u32) -> Result<NbdError, NbdError> {
        wire::failure(&self.data(length, wire::MOST_ERROR).await?)
    }
}
