//! What a test says to a guest by the network, and expects back.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

/// The port at which the tiny guest greets, and then echoes.
pub const GREETER: u16 = 7777;
/// A connection and its answer.
const ANSWER: Duration = Duration::from_secs(5);
/// How long one datagram and its answer may take before another one is sent.
const DATAGRAM: Duration = Duration::from_secs(1);
/// A transfer that does not go on.
const STALL: Duration = Duration::from_secs(60);

/// An address as it stands in front of a port.
pub fn host(address: IpAddr) -> String {
    if address.is_ipv6() { format!("[{address}]") } else { address.to_string() }
}

/// A connection to the guest's greeter, and what it said.
///
/// # Errors
/// It does not greet.
pub fn greeted(address: IpAddr, port: u16) -> Result<(TcpStream, String)> {
    let mut stream = TcpStream::connect_timeout(&SocketAddr::new(address, port), ANSWER)?;
    stream.set_read_timeout(Some(ANSWER))?;
    stream.set_write_timeout(Some(STALL))?;
    let mut text = Vec::new();
    let mut byte = [0];
    while byte != *b"\n" {
        stream.read_exact(&mut byte)?;
        text.push(byte[0]);
    }
    let text = String::from_utf8(text)?;
    ensure!(text.starts_with("GUEST-HELLO"), "another greeting: {text}");
    Ok((stream, text.trim_end().to_owned()))
}

/// What the guest says to this process at a port of an address; none: nothing.
pub fn greeting(address: IpAddr, port: u16) -> Option<String> {
    greeted(address, port).ok().map(|(_, text)| text)
}

/// A datagram to a port of the guest at which it echoes comes back.
///
/// # Errors
/// It does not within a second.
pub fn echo(address: IpAddr, port: u16) -> Result<()> {
    let socket = UdpSocket::bind(if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" })?;
    socket.connect((address, port))?;
    socket.set_read_timeout(Some(DATAGRAM))?;
    socket.send(b"are you there?")?;
    let mut answer = [0; 64];
    let size = socket.recv(&mut answer)?;
    ensure!(answer.get(..size) == Some(b"are you there?"), "another answer");
    Ok(())
}

/// As many bytes go to the guest's greeter and come back, all of them and in their order.
///
/// # Errors
/// They do not.
pub fn bulk(address: IpAddr, port: u16, bytes: usize) -> Result<()> {
    let (mut stream, _) = greeted(address, port)?;
    stream.set_read_timeout(Some(STALL))?;
    // Neither zeros nor a short period: what is lost or doubled shows.
    let sent: Vec<u8> =
        (0..bytes as u64).map(|n| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect();
    let mut to = stream.try_clone()?;
    let back = std::thread::scope(|scope| {
        let sends = scope.spawn(|| to.write_all(&sent));
        let mut back = vec![0; bytes];
        let received = stream.read_exact(&mut back);
        let sent = sends.join().map_err(|_| anyhow::anyhow!("the sender panicked"))?;
        sent.context("sending")?;
        received.context("receiving")?;
        anyhow::Ok(back)
    })?;
    ensure!(back == sent, "other bytes came back");
    Ok(())
}
