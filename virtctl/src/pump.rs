//! A WebSocket on one side, anything that reads and writes on the other.
//!
//! # Theory of operation
//!
//! Two loops, one per direction; each holds one message at a time and does not read the next before the last is
//! written. A slow reader on either side so stops the sender on the other through TCP's window, and nothing is
//! buffered without bound.
//!
//! A WebSocket cannot be closed by half. When the local side has said all it has to say, a Close is sent: servers that
//! understand it as the end of one direction still send what the machine has to say, others close at once. Either
//! way the other direction is read until the server closes or is silent for [`Options::linger`].
//!
//! Idle streams are pinged, so that what stands between client and server does not forget them.

use std::io;
use std::time::Duration;

use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt as _, StreamExt as _};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::error::ProtocolError;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Error as WsError, Message};

/// Bytes of one message upwards: what fits beside its header into one TLS record of 16 KiB.
const CHUNK: usize = 16 * 1024 - 64;
/// Most load balancers forget a connection after a minute.
const PING: Duration = Duration::from_secs(30);
/// How long the closing handshake may take.
const GOODBYE: Duration = Duration::from_secs(1);

/// How a stream is treated at its end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Options {
    /// How long the server may be silent after the local side has ended.
    pub(crate) linger: Duration,
}

/// How a stream ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    /// The local side ended first.
    Local,
    /// The server closed, with this code and reason if it gave any.
    Closed(Option<(u16, String)>),
    /// The connection broke without a word.
    Lost(String),
}

impl End {
    /// Whether the server has said why it closed the stream.
    pub(crate) fn has_reason(&self) -> bool {
        matches!(self, Self::Closed(Some((_, reason))) if !reason.is_empty())
    }

    /// Why a stream that should have gone on did not; none for ends that are as they should be.
    pub(crate) fn trouble(&self) -> Option<String> {
        match self {
            Self::Local | Self::Closed(Some((1000, _))) => None,
            Self::Closed(None) => Some("the server closed it without saying why".into()),
            Self::Closed(Some((code, reason))) => {
                let meaning = match code {
                    1001 => "the server is going away (restart or shutdown)",
                    1002 => "the server saw a protocol error",
                    1003 | 1007 => "the server cannot use this kind of data",
                    1008 => "the server's policy does not allow it",
                    1009 => "a message was too big for the server",
                    1011 => "the server failed",
                    1012 => "the server restarts",
                    1013 => "the server is too busy, try again later",
                    1014 => "a gateway on the way got a wrong answer",
                    _ => "the server closed it",
                };
                let reason = if reason.is_empty() { String::new() } else { format!(": {reason}") };
                Some(format!("{meaning} (code {code}){reason}"))
            }
            Self::Lost(why) => Some(format!("the connection broke: {why}")),
        }
    }
}

/// Trouble on the local side.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PumpError {
    /// The local side could not be read.
    #[error("cannot read the local side of the stream")]
    Input(#[source] io::Error),
    /// The local side could not be written.
    #[error("cannot write the local side of the stream")]
    Output(#[source] io::Error),
}

/// Copies both ways until one side ends.
///
/// # Errors
/// When the local side fails. What the server does is an [`End`].
pub(crate) async fn pump<S, R, W>(
    socket: WebSocketStream<S>,
    mut input: R,
    mut output: W,
    options: Options,
) -> Result<End, PumpError>
where
    S: AsyncRead + AsyncWrite + Unpin,
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let (mut sink, mut source) = socket.split();
    let (ended, watch_ended) = watch::channel(Upwards::Open);
    let end = {
        let up = send(&mut input, &mut sink);
        let down = receive(&mut source, &mut output, watch_ended, options.linger);
        tokio::pin!(up, down);
        tokio::select! {
            end = &mut down => end,
            sent = &mut up => match sent {
                Ok(last) => {
                    ended.send_replace(last);
                    down.await
                }
                Err(error) => Err(PumpError::Input(error)),
            },
        }
    };
    // Without this the server would see the connection reset.
    let _ = timeout(GOODBYE, sink.close()).await;
    let _ = output.shutdown().await;
    end
}

/// What became of the direction to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Upwards {
    Open,
    /// The local side said all it has to say.
    Done,
    /// The server does not take more: it is gone, and what it said last stands in the other direction.
    Broken,
}

impl Upwards {
    /// What the end of the other direction means.
    fn end(self, end: End) -> End {
        if self == Self::Done { End::Local } else { end }
    }
}

async fn send<S, R>(
    input: &mut R,
    sink: &mut SplitSink<WebSocketStream<S>, Message>,
) -> Result<Upwards, io::Error>
where
    S: AsyncRead + AsyncWrite + Unpin,
    R: AsyncRead + Unpin,
{
    let mut buffer = vec![0; CHUNK];
    let mut ping = interval_at(Instant::now() + PING, PING);
    ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let (message, last) = tokio::select! {
            read = input.read(&mut buffer) => match read? {
                0 => (Message::Close(Some(CloseFrame { code: CloseCode::Normal, reason: "".into() })), true),
                count => (Message::binary(buffer.get(..count).unwrap_or_default().to_vec()), false),
            },
            _ = ping.tick() => (Message::Ping(Vec::new().into()), false),
        };
        if sink.send(message).await.is_err() {
            return Ok(Upwards::Broken);
        }
        if last {
            return Ok(Upwards::Done);
        }
    }
}

async fn receive<S, W>(
    source: &mut SplitStream<WebSocketStream<S>>,
    output: &mut W,
    mut ended: watch::Receiver<Upwards>,
    linger: Duration,
) -> Result<End, PumpError>
where
    S: AsyncRead + AsyncWrite + Unpin,
    W: AsyncWrite + Unpin,
{
    loop {
        let message = tokio::select! {
            message = source.next() => message,
            () = silence(&mut ended, linger) => {
                let lost = End::Lost("the server neither takes nor says anything".into());
                return Ok(ended.borrow().end(lost));
            }
        };
        match message {
            Some(Ok(Message::Binary(data))) => write(output, &data).await?,
            Some(Ok(Message::Text(text))) => write(output, text.as_bytes()).await?,
            Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => {}
            Some(Ok(Message::Close(frame))) => {
                // The answer to the Close is sent by reading on.
                let _ =
                    timeout(GOODBYE, async { while source.next().await.is_some_and(|next| next.is_ok()) {} })
                        .await;
                let said = frame.map(|frame| (frame.code.into(), frame.reason.to_string()));
                return Ok(ended.borrow().end(End::Closed(said)));
            }
            None | Some(Err(WsError::ConnectionClosed | WsError::AlreadyClosed)) => {
                return Ok(ended.borrow().end(End::Closed(None)));
            }
            Some(Err(error)) => return Ok(ended.borrow().end(End::Lost(lost(&error)))),
        }
    }
}

/// How a connection broke. The libraries' words for an end without a farewell are about TLS and WebSocket, and mean the same.
fn lost(error: &WsError) -> String {
    let is_end = match error {
        WsError::Io(error) => error.kind() == io::ErrorKind::UnexpectedEof,
        WsError::Protocol(error) => *error == ProtocolError::ResetWithoutClosingHandshake,
        _ => false,
    };
    if is_end { "the other end closed it without a word".to_owned() } else { error.to_string() }
}

async fn write<W: AsyncWrite + Unpin>(output: &mut W, data: &[u8]) -> Result<(), PumpError> {
    output.write_all(data).await.map_err(PumpError::Output)?;
    output.flush().await.map_err(PumpError::Output)
}

/// Ends when nothing goes upwards any more and the server said nothing for so long.
async fn silence(ended: &mut watch::Receiver<Upwards>, linger: Duration) {
    // The sender lives as long as the receiver.
    let _ = ended.wait_for(|upwards| *upwards != Upwards::Open).await;
    sleep(linger).await;
}

#[cfg(test)]
mod tests {
    use tokio::io::{DuplexStream, duplex};
    use tokio_tungstenite::tungstenite::protocol::Role;

    use super::*;

    const PATIENT: Options = Options { linger: Duration::from_secs(600) };

    async fn pair(buffer: usize) -> (WebSocketStream<DuplexStream>, WebSocketStream<DuplexStream>) {
        let (client, server) = duplex(buffer);
        (
            WebSocketStream::from_raw_socket(client, Role::Client, None).await,
            WebSocketStream::from_raw_socket(server, Role::Server, None).await,
        )
    }

    fn bytes(count: usize) -> Vec<u8> {
        (0..count).map(|index| u8::try_from(index % 251).unwrap()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_arrive_whole_in_both_directions() {
        let (client, mut server) = pair(4096).await;
        let (mut local, remote) = duplex(1024);
        let (reader, writer) = tokio::io::split(remote);
        let task = tokio::spawn(pump(client, reader, writer, PATIENT));
        let sent = bytes(300_000);
        let echo = tokio::spawn(async move {
            while let Some(Ok(message)) = server.next().await {
                if message.is_binary() {
                    server.send(message).await.unwrap();
                }
            }
        });
        let (mut from, mut to) = tokio::io::split(&mut local);
        let mut got = vec![0; sent.len()];
        let (wrote, read) = tokio::join!(to.write_all(&sent), from.read_exact(&mut got));
        wrote.unwrap();
        read.unwrap();
        assert_eq!(got, sent);
        drop(local);
        assert_eq!(task.await.unwrap().unwrap(), End::Local);
        echo.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_server_says_after_the_local_end_still_arrives() {
        let (client, server) = pair(4096).await;
        let (mut output, writer) = duplex(1 << 16);
        let task = tokio::spawn(pump(client, &b"question"[..], writer, PATIENT));
        // A server that takes Close as the end of one direction is no tungstenite: it is played by hand.
        let mut raw = server.into_inner();
        let mut frame = [0; 2 + 4 + 8];
        raw.read_exact(&mut frame).await.unwrap();
        assert_eq!(frame[..2], [0x82, 0x88]);
        let mut close = [0; 2 + 4 + 2];
        raw.read_exact(&mut close).await.unwrap();
        assert_eq!(close[..2], [0x88, 0x82]);
        raw.write_all(b"\x82\x06answer\x88\x02\x03\xe8").await.unwrap();
        let mut got = [0; 6];
        output.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"answer");
        drop(raw);
        assert_eq!(task.await.unwrap().unwrap(), End::Local);
        // The writer is shut down, not dropped somewhere.
        assert_eq!(output.read(&mut got).await.unwrap(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_server_is_left_after_the_linger() {
        let (client, server) = pair(4096).await;
        let linger = Options { linger: Duration::from_secs(7) };
        let started = Instant::now();
        assert_eq!(pump(client, tokio::io::empty(), tokio::io::sink(), linger).await.unwrap(), End::Local);
        assert!(started.elapsed() >= Duration::from_secs(7));
        drop(server);
    }

    #[tokio::test(start_paused = true)]
    async fn the_servers_close_is_answered_and_told() {
        let (client, mut server) = pair(4096).await;
        let (_keep, input) = duplex(16);
        let task = tokio::spawn(pump(client, input, tokio::io::sink(), PATIENT));
        let frame = CloseFrame { code: CloseCode::Error, reason: "domain gone".into() };
        server.close(Some(frame)).await.unwrap();
        assert!(matches!(server.next().await, Some(Ok(Message::Close(Some(_))))));
        drop(server);
        let end = task.await.unwrap().unwrap();
        assert_eq!(end, End::Closed(Some((1011, "domain gone".into()))));
        assert_eq!(end.trouble().unwrap(), "the server failed (code 1011): domain gone");
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_breaks_is_no_close() {
        let (client, server) = pair(4096).await;
        let (_keep, input) = duplex(16);
        let task = tokio::spawn(pump(client, input, tokio::io::sink(), PATIENT));
        drop(server);
        let end = task.await.unwrap().unwrap();
        assert!(matches!(end, End::Lost(_)), "{end:?}");
        assert!(end.trouble().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_does_not_read_stops_the_server() {
        let (client, mut server) = pair(4096).await;
        let (_input_keep, input) = duplex(16);
        let (mut output, writer) = duplex(1024);
        let task = tokio::spawn(pump(client, input, writer, PATIENT));
        // Virtual time passes only when nothing can move: the sender is stuck, and not for want of bytes.
        let mut accepted = 0_usize;
        while let Ok(sent) = timeout(Duration::from_secs(1), server.send(Message::binary(bytes(1024)))).await
        {
            sent.unwrap();
            accepted += 1024;
            assert!(accepted < 1 << 20, "a megabyte went into a reader that does not read");
        }
        let mut got = vec![0; 1024];
        output.read_exact(&mut got).await.unwrap();
        assert_eq!(got, bytes(1024));
        drop(output);
        assert!(matches!(task.await.unwrap(), Err(PumpError::Output(_))));
    }

    #[tokio::test(start_paused = true)]
    async fn idle_streams_are_pinged() {
        let (client, mut server) = pair(4096).await;
        let (keep, input) = duplex(16);
        let task = tokio::spawn(pump(client, input, tokio::io::sink(), PATIENT));
        assert!(matches!(server.next().await, Some(Ok(Message::Ping(_)))));
        drop(keep);
        assert!(matches!(server.next().await, Some(Ok(Message::Close(_)))));
        drop(server);
        task.await.unwrap().unwrap();
    }
}
