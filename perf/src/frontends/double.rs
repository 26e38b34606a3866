//! This project's own frontend in a loop: frames as fast as the ring takes them.

use std::net::SocketAddrV4;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use frontend_double::{Double, HEADER, Options, Pair};
use podvirt_e2e::{Guest, Net};

use super::BACKEND_MAC;

/// Frames made visible together.
const BATCH: usize = 64;
/// The ring's entries: as QEMU can be told to have.
const RING: u16 = 1024;
/// EtherType for local experiments (IEEE 802): no backend answers it.
const UNANSWERED: [u8; 2] = [0x88, 0xb5];

/// How long a guest's end sleeps that has found its ring full, where it must leave processors to others.
const FULL: Duration = Duration::from_micros(100);

/// How long an echo waits before it looks whether it is to go on.
const IDLE: Duration = Duration::from_millis(10);

/// What to do when the ring is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    /// Look again: a processor of its own.
    Spin,
    /// Sleep for a moment, in which the ring does not become empty.
    Sleep,
}

/// Connects to a backend, with so many queue pairs.
///
/// # Errors
/// It refuses, or has fewer.
pub(crate) fn connect(socket: &Path, pairs: usize) -> Result<Double> {
    let options = Options { queue_size: RING, mem_mib: 256, pairs, ..Options::default() };
    Double::connect(socket, &options).context("the double")
}

/// A frame of 64 bytes that no backend has a use for.
pub(crate) fn useless() -> Result<Vec<u8>> {
    let mut frame = ethernet(UNANSWERED)?;
    frame.resize(HEADER + 64, 0);
    Ok(frame)
}

/// A datagram of the guest, from a port of its own, to the client.
pub(crate) fn datagram(from: u16, to: SocketAddrV4, size: u16) -> Result<Vec<u8>> {
    let mut frame = ethernet([8, 0])?;
    let length = 28 + size;
    let mut header = [0u8; 20];
    header[0] = 0x45;
    header[2..4].copy_from_slice(&length.to_be_bytes());
    header[8] = 64;
    header[9] = 17;
    header[12..16].copy_from_slice(&Net::POD4.octets());
    header[16..20].copy_from_slice(&to.ip().octets());
    let sum: u32 = header.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
    let sum = !(((sum & 0xffff) + (sum >> 16)) as u16);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    frame.extend(header);
    for field in [from, to.port(), 8 + size, 0] {
        // No checksum, as IPv4 allows (RFC 768).
        frame.extend(field.to_be_bytes());
    }
    frame.resize(frame.len() + usize::from(size), b'x');
    Ok(frame)
}

/// Virtio and Ethernet headers.
fn ethernet(kind: [u8; 2]) -> Result<Vec<u8>> {
    let mut frame = vec![0; HEADER];
    for byte in BACKEND_MAC.split(':').chain(Guest::MAC.split(':')) {
        frame.push(u8::from_str_radix(byte, 16)?);
    }
    frame.extend(kind);
    Ok(frame)
}

/// Sends frames in turn, again and again, and tells how many were taken in a second.
///
/// # Errors
/// The backend is gone.
pub(crate) fn pump(pair: &mut Pair, frames: &[Vec<u8>], time: Duration, full: Full) -> Result<f64> {
    let begin = Instant::now();
    let mut count = 0u64;
    let mut next = frames.iter().cycle();
    let mut frame = next.next().context("no frame to send")?;
    while begin.elapsed() < time {
        let mut batch = 0;
        while batch < BATCH && pair.queue(frame, &[], false)? {
            batch += 1;
            frame = next.next().unwrap_or(frame);
        }
        pair.flush();
        count += batch as u64;
        match full {
            Full::Sleep if batch < BATCH => std::thread::sleep(FULL),
            Full::Spin if batch == 0 => std::hint::spin_loop(),
            _ => {}
        }
    }
    #[allow(clippy::cast_precision_loss, reason = "a count of frames")]
    let per_second = count as f64 / begin.elapsed().as_secs_f64();
    Ok(per_second)
}

/// Returns datagrams that come to a port by one pair, for as long as it `goes`.
///
/// # Errors
/// The backend is gone.
pub(crate) fn echo(pair: &mut Pair, port: u16, goes: &AtomicBool) -> Result<()> {
    while goes.load(Ordering::Relaxed) {
        let Some(mut frame) = pair.recv(IDLE)? else { continue };
        let udp = HEADER + 14 + 20;
        // IPv4 without options, UDP, and that port.
        let is = |at: usize, bytes: &[u8]| frame.get(at..at + bytes.len()) == Some(bytes);
        let ours = is(HEADER + 12, &[8, 0, 0x45]) && is(HEADER + 14 + 9, &[17]);
        if !ours || !is(udp + 2, &port.to_be_bytes()) {
            continue;
        }
        frame.get_mut(..HEADER).unwrap_or_default().fill(0);
        for (at, len) in [(HEADER, 6), (HEADER + 14 + 12, 4), (udp, 2)] {
            let Some((a, b)) =
                frame.get_mut(at..at + 2 * len).and_then(|both| both.split_at_mut_checked(len))
            else {
                continue;
            };
            a.swap_with_slice(b);
        }
        // No checksum, as IPv4 allows (RFC 768).
        frame.get_mut(udp + 6..udp + 8).unwrap_or_default().fill(0);
        pair.send(&frame)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_datagram_has_right_lengths_and_header_checksum() {
        let frame = datagram(7, SocketAddrV4::new([10, 9, 0, 1].into(), 9), 64).unwrap();
        let ip = &frame[HEADER + 14..];
        assert_eq!(ip.len(), 20 + 8 + 64);
        assert_eq!(u16::from_be_bytes([ip[2], ip[3]]), 92);
        assert_eq!(ip[20..24], [0, 7, 0, 9]);
        let sum: u32 = ip[..20].chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
        assert_eq!(useless().unwrap().len(), HEADER + 64);
    }
}
