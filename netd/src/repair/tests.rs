//! Connections over the loopback, taken apart and put together in one network namespace: the peer notices nothing.
//!
//! TCP_REPAIR takes CAP_NET_ADMIN: root without it fails the tests, another user passes them over, loudly.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::socket::{getsockopt, setsockopt, sockopt};
use nix::unistd::geteuid;
use podvirt_proto::repair::{Command, LONG, LONG_ROOM, ROOM, receive_buffer, recv_request, send_reply};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use socket2::{SockFilter, SockRef};

use super::*;
use crate::sockets::{PeekOffset, in_line};
use crate::sys::repair::{pace, peek_offset};
use crate::sys::{enable_peek_offset, received_bytes};

/// What the node's helper does, on a thread that ends with the connection.
fn helper() -> Option<(Helper, JoinHandle<()>)> {
    let probe = Connection::socket("127.0.0.1:1".parse().unwrap()).unwrap();
    if let Err(error) = setsockopt(&probe, sockopt::TcpRepair, &1) {
        assert!(!geteuid().is_root(), "no TCP_REPAIR: {error}; root needs CAP_NET_ADMIN for this test");
        eprintln!("SKIPPED: no TCP_REPAIR: {error}");
        return None;
    }
    let (near, far) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let thread = std::thread::spawn(move || {
        while let Ok(Some(request)) = recv_request(far.as_fd()) {
            let done = |s: &OwnedFd, flags: u8| -> std::io::Result<()> {
                match request.command {
                    Command::Freeze => {
                        SockRef::from(s).attach_filter(&[SockFilter::new(6, 0, 0, 0)])?;
                        setsockopt(s, sockopt::TcpRepair, &1)?;
                    }
                    Command::Repair => {
                        setsockopt(s, sockopt::TcpRepair, &1)?;
                        let room = if flags & LONG != 0 { LONG_ROOM } else { ROOM };
                        setsockopt(s, sockopt::SndBufForce, &room)?;
                        setsockopt(s, sockopt::RcvBufForce, &room)?;
                    }
                    Command::Release => {
                        if let Some(bytes) = receive_buffer(flags) {
                            setsockopt(s, sockopt::RcvBufForce, &(bytes / 2))?;
                        }
                        setsockopt(s, sockopt::TcpRepair, &0)?;
                    }
                    Command::Thaw => {
                        setsockopt(s, sockopt::TcpRepair, &u32::MAX)?;
                        SockRef::from(s).detach_filter()?;
                    }
                    Command::Ping => {}
                }
                Ok(())
            };
            let results: Vec<i32> = request
                .sockets
                .iter()
                .map(|(s, flags)| done(s, *flags).err().and_then(|e| e.raw_os_error()).unwrap_or(0))
                .collect();
            send_reply(far.as_fd(), request.command, &results).unwrap();
        }
    });
    Some((Helper::connected(near).unwrap(), thread))
}

impl Outcome {
    fn done(&self) {
        assert!(self.is_done(), "{self:?}");
    }
}

fn pair(address: &str) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(address).unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (near, listener.accept().unwrap().0)
}

/// Within this time the peer acknowledges what it has received (the kernel's `TCP_DELACK_MAX` is 200 ms). Between two machines
/// an acknowledgement meets the filter of the frozen socket. Here both sockets are of one machine, and one that came between
/// the end of the old and the beginning of the new socket would be answered by a RST.
const ACKNOWLEDGED: Duration = Duration::from_millis(220);

/// Moves a connection as between machines: the old socket is gone before the new one is made.
fn move_it(helper: &Helper, old: OwnedFd) -> TcpStream {
    move_while(helper, old, || {})
}

/// The same, while something happens that neither the old nor the new socket hears.
fn move_while(helper: &Helper, old: OwnedFd, unheard: impl FnOnce()) -> TcpStream {
    move_and(helper, old, unheard, || {})
}

/// The same, and something else happens once the new socket hears, before it has all of its options.
fn move_and(helper: &Helper, old: OwnedFd, unheard: impl FnOnce(), heard: impl FnOnce()) -> TcpStream {
    let ends = {
        let s = SockRef::from(&old);
        (s.local_addr().unwrap().as_socket().unwrap(), s.peer_addr().unwrap().as_socket().unwrap())
    };
    helper.call(Command::Freeze, &[&old]).pop().unwrap().done();
    std::thread::sleep(ACKNOWLEDGED);
    let mut connection = Connection::dump(old.as_fd(), Room::default()).unwrap().connection;
    connection.repeat_byte();
    unheard();
    drop(old);
    let new = Connection::socket(ends.1).unwrap();
    helper.call_with(Command::Repair, &[&new], &[connection.room()]).pop().unwrap().done();
    let (mut restored, _) = connection.restore(new, ends, PeekOffset::probe()).unwrap();
    let stream = TcpStream::from(restored.for_flow().unwrap());
    let flags = restored.flags();
    helper.call_with(Command::Release, &[&restored.socket], &[flags]).pop().unwrap().done();
    heard();
    assert_eq!(restored.finish().unwrap(), Finished::Done);
    stream.set_nonblocking(false).unwrap();
    stream
}

fn ramp(n: usize) -> Vec<u8> {
    (0..n).map(|i| (i ^ (i >> 8)) as u8).collect()
}

#[test]
fn a_queue_with_an_urgent_mark_in_it_goes_along_whole() {
    let Some((helper, _thread)) = helper() else { return };
    for address in ["127.0.0.1:0", "[::1]:0"] {
        // At the first byte, in the middle, at the last one; the offset of peeks is off, or stands somewhere.
        for (at, offset) in [(0, None), (1000, None), (1000, Some(1500)), (1999, Some(10))] {
            let (near, mut peer) = pair(address);
            in_line(&SockRef::from(&near)).unwrap();
            let bytes = ramp(2000);
            peer.write_all(&bytes[..at]).unwrap();
            SockRef::from(&peer).send_out_of_band(&bytes[at..=at]).unwrap();
            peer.write_all(&bytes[at + 1..]).unwrap();
            while received_bytes(near.as_fd()).unwrap() < 2000 {
                std::thread::yield_now();
            }
            if let Some(offset) = offset {
                enable_peek_offset(near.as_fd(), offset).unwrap();
            }
            let moved = move_it(&helper, near.into());
            assert_eq!(peek_offset(moved.as_fd()).unwrap(), offset.map_or(-1, u32::cast_signed));
            enable_peek_offset(moved.as_fd(), 0).unwrap();
            let mut got = vec![0; 2000];
            (&moved).read_exact(&mut got).unwrap();
            assert!(got == bytes, "{address}, mark at {at}");
            // And what is urgent from now on.
            SockRef::from(&peer).send_out_of_band(b"!").unwrap();
            let mut got = [0];
            (&moved).read_exact(&mut got).unwrap();
            assert_eq!(&got, b"!");
        }
    }
}

#[test]
fn what_is_urgent_as_soon_as_the_socket_hears_stays_in_line() {
    let Some((helper, _thread)) = helper() else { return };
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let (near, peer) = pair(address);
        in_line(&SockRef::from(&near)).unwrap();
        // A second mark takes the byte of the first one out of the queue, unless that is left in line.
        let urgent = || {
            for byte in [b"a", b"b"] {
                SockRef::from(&peer).send_out_of_band(byte).unwrap();
            }
        };
        let mut moved = move_and(&helper, near.into(), || {}, urgent);
        moved.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
        let mut got = [0; 2];
        moved.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"ab", "{address}");
    }
}

#[test]
fn bytes_in_both_queues_arrive_once_and_in_order() {
    let Some((helper, _thread)) = helper() else { return };
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let (near, mut peer) = pair(address);
        let (down, up) = (ramp(100_000), ramp(3_000_000));
        // Unread at the one that moves, and more than the peer's buffer and its own hold.
        peer.write_all(&down).unwrap();
        near.set_nonblocking(true).unwrap();
        let mut queued = 0;
        while let Ok(n) = (&near).write(&up[queued..]) {
            queued += n;
            if queued == up.len() {
                break;
            }
        }
        let mut moved = move_it(&helper, near.into());
        let rest = up[queued..].to_vec();
        let writer = std::thread::spawn(move || {
            moved.write_all(&rest).unwrap();
            moved
        });
        let mut got = vec![0; up.len()];
        peer.read_exact(&mut got).unwrap();
        assert!(got == up, "{address}: the peer's bytes differ");
        let mut moved = writer.join().unwrap();
        let mut got = vec![0; down.len()];
        moved.read_exact(&mut got).unwrap();
        assert!(got == down, "{address}: the received bytes differ");
        peer.write_all(b"and on").unwrap();
        drop(peer);
        let mut text = String::new();
        moved.read_to_string(&mut text).unwrap();
        assert_eq!(text, "and on");
    }
}

/// Writes as much as the socket takes: what was written of these bytes, and how many they are.
fn fill(near: &TcpStream) -> (Vec<u8>, usize) {
    near.set_nonblocking(true).unwrap();
    let (up, mut queued) = (ramp(16 << 20), 0);
    let mut near = near;
    while let Ok(n) = near.write(&up[queued..]) {
        queued += n;
    }
    (up, queued)
}

#[test]
fn a_window_that_opens_unheard_is_found_at_once() {
    let Some((helper, _thread)) = helper() else { return };
    let (near, mut peer) = pair("127.0.0.1:0");
    let (up, queued) = fill(&near);
    let unsent = crate::sys::repair::unsent(near.as_fd()).unwrap();
    assert!(unsent > 0, "{queued} bytes fit");
    // A probe of the window; the peer does not answer another one within half a second.
    helper.call(Command::Release, &[&near]).pop().unwrap().done();
    let mut got = vec![0; queued];
    let sent = queued - unsent as usize;
    let moved = move_while(&helper, near.into(), || peer.read_exact(&mut got[..sent]).unwrap());
    assert!(crate::sys::repair::unsent(moved.as_fd()).unwrap() < unsent, "the peer is asked");
    peer.read_exact(&mut got[sent..]).unwrap();
    assert!(got == up[..queued], "the peer's bytes differ");
}

#[test]
fn nothing_is_on_its_way_to_a_window_that_stays_closed() {
    let Some((helper, _thread)) = helper() else { return };
    let (near, mut peer) = pair("127.0.0.1:0");
    let (up, queued) = fill(&near);
    let mut moved = OwnedFd::from(near);
    // What the first move leaves in the queue goes along with the second one.
    for _ in 0..2 {
        moved = move_it(&helper, moved).into();
        std::thread::sleep(Duration::from_millis(10));
        let info = crate::sys::tcp_info(moved.as_fd()).unwrap();
        assert_eq!((info.unacked, info.lost), (0, 0), "it would be sent again later and later");
    }
    let mut got = vec![0; queued];
    peer.read_exact(&mut got).unwrap();
    assert!(got == up[..queued], "the peer's bytes differ");
}

#[test]
fn a_window_that_was_shrunk_beside_a_gap_goes_along() {
    let Some((helper, _thread)) = helper() else { return };
    let (near, mut peer) = pair("127.0.0.1:0");
    peer.set_nodelay(true).unwrap();
    let down = ramp(64_000);
    peer.write_all(&down[..60_000]).unwrap();
    while received_bytes(near.as_fd()).unwrap() < 60_000 {
        std::thread::yield_now();
    }
    // The first two thousand bytes are lost, the next tell of the peer's window, and then there is no room for the first ones:
    // the kernel takes back what it has offered, and the window was told by a segment that lies beyond it.
    SockRef::from(&near).attach_filter(&[SockFilter::new(6, 0, 0, 0)]).unwrap();
    peer.write_all(&down[60_000..62_000]).unwrap();
    setsockopt(&near, sockopt::RcvBuf, &1).unwrap();
    SockRef::from(&near).detach_filter().unwrap();
    peer.write_all(&down[62_000..]).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    helper.call(Command::Freeze, &[&near]).pop().unwrap().done();
    let window = crate::sys::repair::window(near.as_fd()).unwrap();
    let same = crate::sys::repair::set_window(near.as_fd(), &window);
    assert_eq!(same.unwrap_err().kind(), std::io::ErrorKind::InvalidInput, "{window:?} is no such window");
    helper.call(Command::Thaw, &[&near]).pop().unwrap().done();
    let mut moved = move_it(&helper, near.into());
    let mut got = vec![0; down.len()];
    moved.read_exact(&mut got).unwrap();
    assert!(got == down, "the received bytes differ");
}

#[test]
fn a_receive_buffer_is_as_large_after_moves_as_before() {
    let Some((helper, _thread)) = helper() else { return };
    for (buffer, queued) in [(256 << 10, 100_000), (2 << 20, 500_000), (16 << 20, 7_000_000)] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        setsockopt(&listener, sockopt::RcvBufForce, &(buffer / 2)).unwrap();
        let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut near = listener.accept().unwrap().0;
        drop(listener);
        let down = ramp(queued);
        peer.write_all(&down).unwrap();
        while (received_bytes(near.as_fd()).unwrap() as usize) < queued {
            std::thread::yield_now();
        }
        for times in 1..4 {
            near = move_it(&helper, near.into());
            let now = getsockopt(&near, sockopt::RcvBuf).unwrap();
            assert!((queued..=buffer).contains(&now), "{now} bytes after {times} moves, {buffer} before");
        }
        let mut got = vec![0; queued];
        near.read_exact(&mut got).unwrap();
        assert!(got == down, "the received bytes differ");
    }
}

#[test]
fn half_closed_connections_stay_so() {
    let Some((helper, _thread)) = helper() else { return };
    let (near, mut peer) = pair("127.0.0.1:0");
    peer.write_all(b"last words").unwrap();
    peer.shutdown(std::net::Shutdown::Write).unwrap();
    let mut moved = move_it(&helper, near.into());
    let mut text = String::new();
    moved.read_to_string(&mut text).unwrap();
    assert_eq!(text, "last words", "and then the end, which was heard before the move");
    moved.write_all(b"heard").unwrap();
    drop(moved);
    text.clear();
    peer.read_to_string(&mut text).unwrap();
    assert_eq!(text, "heard");

    let (near, mut peer) = pair("127.0.0.1:0");
    (&near).write_all(b"no more").unwrap();
    near.shutdown(std::net::Shutdown::Write).unwrap();
    let mut moved = move_it(&helper, near.into());
    text.clear();
    peer.read_to_string(&mut text).unwrap();
    assert_eq!(text, "no more");
    peer.write_all(b"still listened to").unwrap();
    let mut got = [0; 17];
    moved.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"still listened to");
}

#[test]
fn one_that_stays_after_all_goes_on() {
    let Some((helper, _thread)) = helper() else { return };
    let (near, mut peer) = pair("127.0.0.1:0");
    assert!(helper.call(Command::Freeze, &[&near]).pop().unwrap().is_done());
    peer.write_all(b"into the filter").unwrap();
    let apart = Connection::dump(near.as_fd(), Room::default()).unwrap();
    let near = stay(&helper, near.into(), &apart);
    let mut got = [0; 15];
    (&near).read_exact(&mut got).unwrap();
    assert_eq!(&got, b"into the filter");
}

/// Has a connection go on that was taken apart.
fn stay(helper: &Helper, socket: OwnedFd, apart: &Apart) -> TcpStream {
    let mut stayed = Restored::stayed(socket, Some(apart.window));
    helper.call(Command::Thaw, &[&stayed.socket]).pop().unwrap().done();
    assert_eq!(stayed.finish().unwrap(), Finished::Done);
    TcpStream::from(stayed.socket)
}

#[test]
fn one_that_stays_has_the_windows_that_it_had() {
    let Some((helper, _thread)) = helper() else { return };
    let (near, _peer) = pair("127.0.0.1:0");
    helper.call(Command::Freeze, &[&near]).pop().unwrap().done();
    let apart = Connection::dump(near.as_fd(), Room::default()).unwrap();
    let near = stay(&helper, near.into(), &apart);
    helper.call(Command::Freeze, &[&near]).pop().unwrap().done();
    assert_eq!(Connection::dump(near.as_fd(), Room::default()).unwrap().window, apart.window);
}

#[test]
fn one_that_was_taken_apart_sends_no_more_until_it_goes_on() {
    let Some((helper, _thread)) = helper() else { return };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = Connection::socket(listener.local_addr().unwrap()).unwrap();
    // Ten segments leave without an acknowledgement: this pace has them leave within half a second.
    setsockopt(&near, sockopt::TcpMaxSeg, &1000).unwrap();
    pace(near.as_fd(), 20_000).unwrap();
    SockRef::from(&near).set_nonblocking(false).unwrap();
    SockRef::from(&near).connect(&listener.local_addr().unwrap().into()).unwrap();
    let (near, mut peer) = (TcpStream::from(near), listener.accept().unwrap().0);
    let up = ramp(60_000);
    (&near).write_all(&up).unwrap();
    helper.call(Command::Freeze, &[&near]).pop().unwrap().done();
    let apart = Connection::dump(near.as_fd(), Room::default()).unwrap();
    let unsent = crate::sys::repair::unsent(near.as_fd()).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(crate::sys::repair::unsent(near.as_fd()).unwrap(), unsent, "bytes have left since");
    pace(near.as_fd(), u32::MAX).unwrap();
    let _near = stay(&helper, near.into(), &apart);
    let mut got = vec![0; up.len()];
    peer.read_exact(&mut got).unwrap();
    assert!(got == up, "the peer's bytes differ");
}

#[test]
fn what_cannot_be_is_refused() {
    let Some((helper, _thread)) = helper() else { return };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    assert!(Connection::dump(listener.as_fd(), Room::default()).is_err(), "a listener");
    let (near, peer) = pair("127.0.0.1:0");
    assert!(Connection::dump(near.as_fd(), Room::default()).is_err(), "not in repair mode");
    let ends = (near.local_addr().unwrap(), near.peer_addr().unwrap());
    assert!(helper.call(Command::Freeze, &[&near]).pop().unwrap().is_done());
    let connection = Connection::dump(near.as_fd(), Room::default()).unwrap().connection;
    let again = |connection: Connection, ends| {
        let new = Connection::socket(peer.local_addr().unwrap()).unwrap();
        helper.call(Command::Repair, &[&new]).pop().unwrap().done();
        connection.restore(new, ends, PeekOffset::probe()).map(|_| ())
    };
    assert!(again(connection.clone(), ends).is_err(), "it is here already");
    let elsewhere = ("192.0.2.1:5".parse().unwrap(), ends.1);
    assert!(again(connection, elsewhere).is_err(), "the address is not this machine's");
    assert!(helper.call(Command::Thaw, &[&near]).pop().unwrap().is_done());
}

#[test]
fn a_helper_that_is_gone_fails_every_socket() {
    let (near, far) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    drop(far);
    let helper = Helper::connected(near.try_clone().unwrap()).unwrap();
    assert!(!helper.is_there());
    let results = helper.call(Command::Freeze, &vec![near.as_fd(); 2 * BATCH + 1]);
    assert_eq!(results.len(), 2 * BATCH + 1);
    assert!(results.iter().all(|r| matches!(r, Outcome::Unanswered)));
}
