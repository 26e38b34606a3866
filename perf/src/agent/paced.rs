//! Connections that each send at a steady rate, and their other end, which counts.
//!
//! What arrives is told by the end that receives: when a connection's sender has ended, it is answered with the number of bytes.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::{allow_descriptors, rank, serve};

/// Between two looks at the clock.
const TICK: Duration = Duration::from_micros(500);
/// For the answer to a connection's end.
const ANSWER: Duration = Duration::from_secs(10);
/// Stack of a thread that reads, and its buffer on the heap.
const STACK: usize = 64 << 10;
const BUFFER: usize = 64 << 10;

/// What each connection sends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// For so long.
    pub(crate) time: Duration,
    /// So many bytes at once.
    pub(crate) bytes: usize,
    /// So often.
    pub(crate) every: Duration,
}

/// Reads all that comes: echoes a connection's first byte, counts the others, and answers its end with their number.
pub(crate) fn sink(port: u16) -> Result<()> {
    allow_descriptors(1 << 16)?;
    let listener = serve::listen(port)?;
    for stream in listener.incoming() {
        let reader = thread::Builder::new().stack_size(STACK);
        // A connection that breaks has no answer, which its sender counts.
        reader.spawn(move || count(stream?))?;
    }
    Ok(())
}

fn count(mut stream: TcpStream) -> std::io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    let first = buffer.get_mut(..1).unwrap_or_default();
    stream.read_exact(first)?;
    stream.write_all(first)?;
    let mut bytes = 0u64;
    loop {
        match stream.read(&mut buffer)? {
            0 => return stream.write_all(&bytes.to_be_bytes()),
            n => bytes += n as u64,
        }
    }
}

/// Sends by connections to a [`sink`] at a pace, their turns spread evenly over it, and asks what has arrived. What a connection
/// does not take at once is not sent; what the sender itself is late with is.
pub(crate) fn send(streams: Vec<TcpStream>, pace: &Pace) -> Result<Value> {
    let (count, every) = (streams.len() as u128, pace.every.as_micros());
    ensure!(count > 0 && every > 0, "nothing to send");
    let rounds = pace.time.as_micros() / every;
    let mut streams: Vec<Option<TcpStream>> = streams.into_iter().map(Some).collect();
    let data = vec![b'x'; pace.bytes];
    let (begin, mut turns) = (Instant::now(), 0);
    while turns < rounds * count {
        let due = (begin.elapsed().as_micros() * count / every).min(rounds * count);
        for turn in turns..due {
            let Some(place) = streams.get_mut((turn % count) as usize) else { continue };
            let broken = |e: std::io::Error| e.kind() != std::io::ErrorKind::WouldBlock;
            if place.as_mut().is_some_and(|stream| stream.write(&data).is_err_and(broken)) {
                *place = None;
            }
        }
        turns = due;
        thread::sleep(TICK);
    }
    let late = pace.time.as_secs_f64() / begin.elapsed().as_secs_f64();
    for stream in streams.iter().flatten() {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(ANSWER))?;
        // One that is not connected any more has no answer.
        _ = stream.shutdown(Shutdown::Write);
    }
    let arrived: Vec<Option<u64>> = streams.into_iter().map(|stream| answer(stream?).ok()).collect();
    #[allow(clippy::cast_precision_loss, reason = "counts of bytes")]
    let share = |bytes: u64| bytes as f64 / (rounds as f64 * pace.bytes as f64) * late.min(1.0);
    let mut shares: Vec<f64> = arrived.iter().map(|bytes| share(bytes.unwrap_or(0))).collect();
    shares.sort_by(f64::total_cmp);
    #[allow(clippy::cast_precision_loss, reason = "a count of connections")]
    let mean = shares.iter().sum::<f64>() / shares.len() as f64;
    Ok(json!({
        "arrived": arrived.iter().flatten().sum::<u64>(),
        "share": mean,
        "share_p1": rank(&shares, 1),
        "failed": arrived.iter().filter(|bytes| bytes.is_none()).count(),
    }))
}

fn answer(mut stream: TcpStream) -> std::io::Result<u64> {
    let mut bytes = [0; 8];
    stream.read_exact(&mut bytes)?;
    Ok(u64::from_be_bytes(bytes))
}
