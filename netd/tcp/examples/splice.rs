//! A connection from its SYN to TIME-WAIT in virtual time: what a guest sends, what it gets, and what is asked of the socket.
//!
//! The guest and the socket are played by this program. Nothing waits: the time is an argument, and a round trip takes 30 ms
//! because the program says so. Run it by `cargo run -p netd-tcp --example splice`.

use std::time::Duration;

use netd_base::time::Time;
use netd_tcp::{Config, Conn, PodState, Segment, Seq};
use netd_wire::TcpFlags;

const ACK: TcpFlags = TcpFlags::ACK;
const FIN: TcpFlags = TcpFlags::FIN.with(TcpFlags::ACK);
/// Initial sequence numbers of the guest and of the connection towards it.
const GUEST: Seq = Seq(1000);
const OWN: Seq = Seq(5000);

/// A segment with `len` bytes, the `seq`th of the guest's, that acknowledges `ack` bytes.
fn segment(seq: u32, ack: u32, flags: TcpFlags, len: u32) -> Segment {
    Segment {
        seq: GUEST.plus(seq),
        ack: OWN.plus(ack),
        flags,
        window: 60_000,
        len,
        mss: None,
        window_scale: None,
    }
}

/// The socket has this much room in its send buffer, and its peer has acknowledged this much.
fn socket(acked: u32) -> PodState {
    let rtt = Duration::from_millis(30);
    PodState { space: 100_000, acked, peer_window: 60_000, near: false, rtt, notifies: false }
}

/// Sends all that the connection has for the guest, and carries out all that it wants of the socket.
fn run(conn: &mut Conn, now: Time) {
    while let Some(control) = conn.poll(now) {
        println!(
            "{:>6} ms  to the guest: {:?}, expects byte {}, window {}",
            now.as_micros() / 1000,
            control.flags,
            control.ack.since(GUEST),
            control.window
        );
    }
    while let Some(command) = conn.command() {
        println!("{:>6} ms  to the socket: {command:?}", now.as_micros() / 1000);
    }
}

fn main() {
    let mut now = Time::from_millis(1);
    let syn = Segment { mss: Some(1460), ..segment(0, 0, TcpFlags::SYN, 0) };
    let mut conn = Conn::open_by_guest(Config::default(), OWN.0, &syn, now);
    // No answer yet: the guest hears of the connection what the socket's connect() says.
    run(&mut conn, now);

    now = now + Duration::from_millis(30);
    conn.on_connected(&socket(0));
    run(&mut conn, now);
    conn.on_segment(&segment(1, 1, ACK, 0), now);

    // 1,000 bytes of the guest's, all of which the socket takes. They are acknowledged when the peer has them.
    let input = conn.on_segment(&segment(1, 1, ACK, 1000), now);
    conn.on_flushed(input.take, input.take, now);
    run(&mut conn, now);
    now = now + Duration::from_millis(30);
    conn.on_pod(&socket(1000), now);
    run(&mut conn, now);

    // 4,000 bytes wait in the socket. As many as the guest's window allows are peeked and sent; the guest acknowledges them.
    if let Some(budget) = conn.budget(now) {
        let len = budget.len.min(4000);
        println!("{:>6} ms  to the guest: {len} bytes from the socket's queue", now.as_micros() / 1000);
        conn.on_data(len, now);
        conn.on_segment(&segment(1001, 1 + len, ACK, 0), now);
        run(&mut conn, now);

        // The peer closes, then the guest.
        conn.on_eof();
        run(&mut conn, now);
        let input = conn.on_segment(&segment(1001, 2 + len, FIN, 0), now);
        conn.on_flushed(input.take, input.take, now);
        run(&mut conn, now);
    }
    println!("{:>6} ms  {}", now.as_micros() / 1000, conn.state().name());
}
