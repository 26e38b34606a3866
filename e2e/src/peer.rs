//! The test as the guest's peer: sockets in the client's network namespace, none of which waits for ever.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use podvirt_bed_tools::wait;

use crate::net::Net;

/// How long a peer waits for anything; a guest under TCG on a busy machine is slow.
const TIMEOUT: Duration = Duration::from_secs(60);

impl Net {
    /// A TCP listener of the client.
    ///
    /// # Errors
    /// The address cannot be had.
    pub fn listen(&self, address: SocketAddr) -> Result<TcpListener> {
        let listener =
            self.client.enter(|| TcpListener::bind(address).with_context(|| format!("bind {address}")))?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    }

    /// A TCP connection of the client.
    ///
    /// # Errors
    /// It is refused or not answered.
    pub fn connect(&self, address: SocketAddr) -> Result<TcpStream> {
        let stream = self.client.enter(|| Ok(TcpStream::connect_timeout(&address, TIMEOUT)?));
        patient(stream.with_context(|| format!("connect {address}"))?)
    }

    /// A UDP socket of the client.
    ///
    /// # Errors
    /// The address cannot be had.
    pub fn udp(&self, address: SocketAddr) -> Result<UdpSocket> {
        let socket =
            self.client.enter(|| UdpSocket::bind(address).with_context(|| format!("bind {address}")))?;
        socket.set_read_timeout(Some(TIMEOUT))?;
        Ok(socket)
    }
}

fn patient(stream: TcpStream) -> Result<TcpStream> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    Ok(stream)
}

/// Accepts a connection of a listener made by [`Net::listen`].
///
/// # Errors
/// None comes.
pub fn accept(listener: &TcpListener) -> Result<TcpStream> {
    patient(wait::until("a connection", TIMEOUT, || Ok(listener.accept().ok()))?.0)
}

/// Everything that comes until the end of the stream.
///
/// # Errors
/// The connection is reset, or silent for a minute.
pub fn read_all(stream: &mut TcpStream) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let end = stream.read_to_end(&mut bytes);
    end.with_context(|| format!("after {} bytes", bytes.len()))?;
    Ok(bytes)
}

/// Random bytes.
///
/// # Errors
/// The system gives none.
pub fn random(length: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// SHA-256 in hexadecimal, as the guest's `sha256sum` prints it.
///
/// # Errors
/// `sha256sum` is missing.
pub fn sha256(bytes: &[u8]) -> Result<String> {
    let mut command = Command::new("sha256sum");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("sha256sum")?;
    child.stdin.take().context("no pipe")?.write_all(bytes)?;
    let out = child.wait_with_output()?;
    ensure!(out.status.success(), "sha256sum: {}", out.status);
    let text = String::from_utf8(out.stdout)?;
    Ok(text.split_whitespace().next().context("sha256sum is silent")?.to_owned())
}
