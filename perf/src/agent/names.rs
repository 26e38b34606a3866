//! Questions, each from a fresh port, as a resolver asks for names.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::{Value, json};

/// A question that was not answered by then is lost.
const LOST: Duration = Duration::from_secs(1);
/// How often the clock is looked at when there is nothing to do.
const TICK: Duration = Duration::from_micros(500);
/// Bytes of a question.
const QUESTION: [u8; 40] = [b'?'; 40];

/// Asks so many questions a second and counts the answers.
pub(crate) fn names(address: SocketAddr, time: Duration, rate: u32) -> Result<Value> {
    ensure!(rate > 0, "nothing to ask");
    // As many as a second has may wait.
    crate::allow_descriptors(u64::from(rate) * 2)?;
    let any: SocketAddr = match address {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let begin = Instant::now();
    let mut waiting: VecDeque<(Instant, UdpSocket)> = VecDeque::new();
    let (mut asked, mut answered, mut refused) = (0u64, 0u64, 0u64);
    while begin.elapsed() < time || !waiting.is_empty() {
        let elapsed = begin.elapsed().min(time);
        let due = elapsed.as_micros() as u64 * u64::from(rate) / 1_000_000;
        while asked < due && begin.elapsed() < time {
            asked += 1;
            match ask(any, address) {
                Ok(socket) => waiting.push_back((Instant::now(), socket)),
                Err(_) => refused += 1,
            }
        }
        // The oldest is answered first, or is lost.
        let mut buffer = [0; QUESTION.len()];
        while let Some((since, socket)) = waiting.front() {
            let came = socket.recv(&mut buffer).is_ok();
            if !came && since.elapsed() < LOST {
                break;
            }
            answered += u64::from(came);
            waiting.pop_front();
        }
        std::thread::sleep(TICK);
    }
    let seconds = time.as_secs_f64();
    #[allow(clippy::cast_precision_loss, reason = "counts of datagrams")]
    let (asked, answered, refused) = (asked as f64, answered as f64, refused as f64);
    Ok(json!({
        "per_second": answered / seconds,
        "answered_share": answered / asked.max(1.0),
        "refused": refused,
    }))
}

fn ask(any: SocketAddr, address: SocketAddr) -> std::io::Result<UdpSocket> {
    let socket = UdpSocket::bind(any)?;
    socket.set_nonblocking(true)?;
    socket.connect(address)?;
    socket.send(&QUESTION)?;
    Ok(socket)
}
