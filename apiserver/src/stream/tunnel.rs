//! A WebSocket as a TCP connection or as a row of UDP datagrams.
//!
//! ```text
//!  client ── frames ──> inbound ── bytes ──> guest        a Close ends this direction: FIN to the guest
//!  client <── frames ── outbound <── bytes ── guest       the guest's end of it ends the tunnel: Close 1000
//! ```
//!
//! Binary frames are bytes; text frames too, since some clients know no other. After the client's Close what the guest still
//! says is delivered, until it ends or is silent for half a minute. A connection that breaks is told with code 1011 and the
//! reason; a client that goes away without a Close ends everything, behind its last byte. For UDP a message
//! is a datagram; an ICMP error is no end, as with any UDP socket.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::Mutex;
use tracing::debug;

use super::frame::{self, Decoder, Event, code};
use crate::target::{Port, Protocol};

/// Longest time until the guest has accepted.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the client has to answer a Close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a guest may be silent after the client has said all.
const SILENCE: Duration = Duration::from_secs(30);
/// Bytes read from a side at a time.
const CHUNK_BYTES: usize = 16 * 1024;
/// Largest UDP payload (RFC 768, over IPv4).
const MAX_DATAGRAM_BYTES: usize = 65_507;

/// The guest's end of a tunnel.
#[derive(Debug)]
pub enum Guest {
    /// A connection.
    Tcp(TcpStream),
    /// A socket connected to the guest's port.
    Udp(UdpSocket),
}

/// Connects to a port at the first of `addresses` at which the guest takes the connection. The pod takes it before;
/// `accepted` is asked for the guest, with the connection's own end.
///
/// # Errors
///
/// None did; the last one's error.
pub async fn dial<A, F>(addresses: &[IpAddr], port: Port, accepted: A) -> io::Result<Guest>
where
    A: Fn(SocketAddr) -> F,
    F: Future<Output = io::Result<()>>,
{
    let mut last = io::Error::new(io::ErrorKind::AddrNotAvailable, "the pod has no address");
    for address in addresses {
        let address = SocketAddr::new(*address, port.number);
        match dial_one(address, port.protocol, &accepted).await {
            Ok(guest) => return Ok(guest),
            // A guest that refuses has the connection reset, since the pod has taken it already.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                last = io::ErrorKind::ConnectionRefused.into();
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

async fn dial_one<A, F>(address: SocketAddr, protocol: Protocol, accepted: &A) -> io::Result<Guest>
where
    A: Fn(SocketAddr) -> F,
    F: Future<Output = io::Result<()>>,
{
    match protocol {
        Protocol::Tcp => {
            let connect = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(address));
            let stream = connect.await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
            stream.set_nodelay(true)?;
            settle(&stream, accepted(stream.local_addr()?)).await?;
            Ok(Guest::Tcp(stream))
        }
        Protocol::Udp => {
            let any: SocketAddr = if address.is_ipv4() { ([0; 4], 0).into() } else { ([0u16; 8], 0).into() };
            let socket = UdpSocket::bind(any).await?;
            socket.connect(address).await?;
            Ok(Guest::Udp(socket))
        }
    }
}

/// Waits until the guest has accepted, or has said or ended something, which it does not before.
async fn settle(stream: &TcpStream, accepted: impl Future<Output = io::Result<()>>) -> io::Result<()> {
    let mut byte = [0];
    tokio::select! {
        biased;
        said = stream.peek(&mut byte) => said.map(drop),
        accepted = accepted => accepted,
    }
}

/// How a direction ended.
#[derive(Debug)]
enum End {
    /// Its source has said all.
    Said,
    /// The client is gone.
    Gone,
    /// The client is to be told this code and reason.
    Failed(u16, String),
}

impl End {
    fn broken(error: &io::Error) -> End {
        End::Failed(code::ERROR, error.to_string())
    }
}

/// The client's side: both directions write to it, data and answers to Pings.
struct Client<S> {
    writer: Mutex<WriteHalf<S>>,
    /// Messages from the guest so far.
    delivered: AtomicU64,
}

impl<S: AsyncRead + AsyncWrite> Client<S> {
    async fn write(&self, frame: &[u8]) -> io::Result<()> {
        let mut writer = self.writer.lock().await;
        writer.write_all(frame).await?;
        writer.flush().await
    }

    async fn deliver(&self, bytes: &[u8]) -> io::Result<()> {
        self.write(&frame::binary(bytes)).await?;
        self.delivered.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// Where a client's bytes go.
trait Sink {
    /// A part of a message.
    async fn take(&mut self, bytes: &[u8], end: bool) -> Result<(), End>;
}

struct TcpSink<W>(W);

impl<W: AsyncWrite + Unpin> Sink for TcpSink<W> {
    async fn take(&mut self, bytes: &[u8], _: bool) -> Result<(), End> {
        self.0.write_all(bytes).await.map_err(|error| End::broken(&error))
    }
}

struct UdpSink<'a> {
    socket: &'a UdpSocket,
    datagram: Vec<u8>,
}

impl Sink for UdpSink<'_> {
    async fn take(&mut self, bytes: &[u8], end: bool) -> Result<(), End> {
        if self.datagram.len() + bytes.len() > MAX_DATAGRAM_BYTES {
            let reason = format!("a datagram holds at most {MAX_DATAGRAM_BYTES} bytes");
            return Err(End::Failed(code::TOO_BIG, reason));
        }
        self.datagram.extend_from_slice(bytes);
        if !end {
            return Ok(());
        }
        let sent = self.socket.send(&self.datagram).await;
        self.datagram.clear();
        match sent {
            // The guest has no such port now; it may have it with the next datagram.
            Err(error) if error.kind() != io::ErrorKind::ConnectionRefused => Err(End::broken(&error)),
            _ => Ok(()),
        }
    }
}

/// Moves what the client says until it has said all.
async fn inbound<S, K>(reader: &mut ReadHalf<S>, client: &Client<S>, sink: &mut K) -> End
where
    S: AsyncRead + AsyncWrite,
    K: Sink,
{
    let mut decoder = Decoder::default();
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        let length = match reader.read(&mut buffer).await {
            Ok(0) | Err(_) => return End::Gone,
            Ok(length) => length,
        };
        let mut input = &mut buffer[..length];
        loop {
            match decoder.next(&mut input) {
                Ok(None) => break,
                Ok(Some(Event::Data { bytes, end })) => {
                    if let Err(end) = sink.take(bytes, end).await {
                        return end;
                    }
                }
                Ok(Some(Event::Ping(payload))) => {
                    if client.write(&frame::pong(&payload)).await.is_err() {
                        return End::Gone;
                    }
                }
                Ok(Some(Event::Close)) => return End::Said,
                Err(violation) => return End::Failed(code::PROTOCOL, violation.to_string()),
            }
        }
    }
}

async fn tcp_outbound<S, R>(guest: &mut R, client: &Client<S>) -> End
where
    S: AsyncRead + AsyncWrite,
    R: AsyncRead + Unpin,
{
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        match guest.read(&mut buffer).await {
            Ok(0) => return End::Said,
            Ok(length) => {
                if client.deliver(&buffer[..length]).await.is_err() {
                    return End::Gone;
                }
            }
            Err(error) => return End::broken(&error),
        }
    }
}

async fn udp_outbound<S: AsyncRead + AsyncWrite>(guest: &UdpSocket, client: &Client<S>) -> End {
    let mut buffer = vec![0; MAX_DATAGRAM_BYTES];
    loop {
        match guest.recv(&mut buffer).await {
            Ok(length) => {
                if client.deliver(&buffer[..length]).await.is_err() {
                    return End::Gone;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
            Err(error) => return End::broken(&error),
        }
    }
}

/// Moves bytes until the tunnel has ended.
pub async fn run<S: AsyncRead + AsyncWrite>(stream: S, guest: Guest) {
    let (mut reader, writer) = tokio::io::split(stream);
    let client = Client { writer: Mutex::new(writer), delivered: AtomicU64::new(0) };
    let (end, heard_close) = match guest {
        Guest::Tcp(stream) => {
            let (mut from_guest, to_guest) = stream.into_split();
            let mut sink = TcpSink(to_guest);
            let mut outbound = std::pin::pin!(tcp_outbound(&mut from_guest, &client));
            let first = tokio::select! {
                end = &mut outbound => (end, false),
                end = inbound(&mut reader, &client, &mut sink) => (end, true),
            };
            match first {
                (End::Said, true) => {
                    // A FIN behind the last byte. The guest may have gone already; outbound knows.
                    let _ = sink.0.shutdown().await;
                    (rest(outbound, &client).await, true)
                }
                (End::Gone, _) => {
                    let _ = sink.0.shutdown().await;
                    (End::Gone, false)
                }
                (end, _) => (end, false),
            }
        }
        Guest::Udp(socket) => {
            let mut sink = UdpSink { socket: &socket, datagram: Vec::new() };
            tokio::select! {
                end = udp_outbound(&socket, &client) => (end, false),
                end = inbound(&mut reader, &client, &mut sink) => {
                    let said = matches!(end, End::Said);
                    (end, said)
                }
            }
        }
    };
    finish(end, heard_close, &mut reader, &client).await;
}

/// What the guest says after the client has said all.
async fn rest<S>(mut outbound: std::pin::Pin<&mut impl Future<Output = End>>, client: &Client<S>) -> End {
    loop {
        let before = client.delivered.load(Ordering::Relaxed);
        match tokio::time::timeout(SILENCE, &mut outbound).await {
            Ok(end) => return end,
            Err(_) if client.delivered.load(Ordering::Relaxed) == before => return End::Said,
            Err(_) => {}
        }
    }
}

/// Tells the client the end, waits for its Close unless that came before, and ends the connection.
async fn finish<S>(end: End, heard_close: bool, reader: &mut ReadHalf<S>, client: &Client<S>)
where
    S: AsyncRead + AsyncWrite,
{
    let (code, reason) = match end {
        End::Gone => return,
        End::Said => (code::NORMAL, String::new()),
        End::Failed(code, reason) => (code, reason),
    };
    debug!(code, reason, "tunnel ended");
    let farewell = async {
        client.write(&frame::close(code, &reason)).await?;
        client.writer.lock().await.shutdown().await?;
        let mut ignored = vec![0; CHUNK_BYTES];
        while !heard_close && reader.read(&mut ignored).await? > 0 {}
        io::Result::Ok(())
    };
    // A client that does not read its Close is left alone.
    let _ = tokio::time::timeout(CLOSE_TIMEOUT, farewell).await;
}
