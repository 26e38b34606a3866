//! Backends in this process' own network namespace. TCP_REPAIR takes CAP_NET_ADMIN: root without it fails the tests, another
//! user passes them over, loudly.

use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::{getsockopt, setsockopt, sockopt};
use nix::unistd::geteuid;
use podvirt_proto::repair::{Command, recv_reply, send_request};
use socket2::{Domain, SockAddr, Socket, Type};

use super::*;

/// A privilege is missing. Where root runs the tests their result is relied on, and a test that looks at nothing would pass
/// whatever the code does: that is a failure.
fn pass_over(what: &str, error: impl std::fmt::Display) {
    assert!(
        !geteuid().is_root(),
        "{what}: {error}; root needs CAP_NET_ADMIN and CAP_SYS_ADMIN for this test"
    );
    eprintln!("SKIPPED: {what}: {error}");
}

/// A server for the sockets of a backend, and the backend's listener.
fn backend(directory: &std::path::Path, protocol: Protocol) -> Option<(Socket, Arming)> {
    backend_of(directory, protocol, None, None, None)
}

fn backend_of(
    directory: &std::path::Path,
    protocol: Protocol,
    arrival: Option<Arc<Arrival>>,
    departure: Option<Arc<Departure>>,
    to: Option<Vec<IpAddr>>,
) -> Option<(Socket, Arming)> {
    let probe = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    if let Err(error) = setsockopt(&probe, sockopt::TcpRepair, &1) {
        pass_over("no TCP_REPAIR", error);
        return None;
    }
    let uid = "0-0";
    let volume = directory.join(uid).join("volumes/kubernetes.io~empty-dir/netd");
    std::fs::create_dir_all(&volume).unwrap();
    let kind = if protocol == Protocol::Move { Type::SEQPACKET } else { Type::STREAM };
    let arming = Arming { stop: stop().unwrap() };
    let dir = PodVolumes::new(directory).dir(uid, "netd", "").unwrap();
    let inside = Arc::new(Inside::here().unwrap().going_to(to));
    // Before there is a backend: it comes later.
    Server {
        directory: dir,
        name: "n0.sock.move".into(),
        protocol,
        inside,
        arrival,
        departure,
        stop: arming.stop.clone(),
    }
    .start()
    .unwrap();
    let listener = Socket::new(Domain::UNIX, kind, None).unwrap();
    listener.bind(&SockAddr::unix(volume.join("n0.sock.move")).unwrap()).unwrap();
    listener.listen(1).unwrap();
    let served = listener.accept().unwrap().0;
    served.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    Some((served, arming))
}

fn ask(served: &Socket, command: Command, fds: &[BorrowedFd<'_>], flags: u8) -> Vec<i32> {
    send_request(served.as_fd(), command, fds, &vec![flags; fds.len()]).unwrap();
    recv_reply(served.as_fd(), command, fds.len()).unwrap()
}

/// Asks as passt does.
fn ask_passt(mut served: &Socket, value: u8, fds: &[BorrowedFd<'_>]) {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
    assert!(control.push(rustix::net::SendAncillaryMessage::ScmRights(fds)));
    let bytes = [std::io::IoSlice::new(std::slice::from_ref(&value))];
    rustix::net::sendmsg(served, &bytes, &mut control, rustix::net::SendFlags::empty()).unwrap();
    let mut answer = [0];
    std::io::Read::read_exact(&mut served, &mut answer).unwrap();
    assert_eq!(answer, [value]);
}

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (near, listener.accept().unwrap().0)
}

fn in_repair(socket: impl AsFd) -> bool {
    getsockopt(&socket, sockopt::TcpRepair).unwrap() == 1
}

#[test]
fn sockets_are_frozen_thawed_and_released() {
    let directory = tempfile::tempdir().unwrap();
    let Some((served, _arming)) = backend(directory.path(), Protocol::Move) else { return };
    let (near, far) = pair();
    assert!(ask(&served, Command::Ping, &[], 0).is_empty());
    assert_eq!(ask(&served, Command::Freeze, &[near.as_fd(), far.as_fd()], 0), [0, 0]);
    assert!(in_repair(&near) && in_repair(&far));
    assert_eq!(ask(&served, Command::Thaw, &[near.as_fd(), far.as_fd()], 0), [0, 0]);
    assert!(!in_repair(&near));
    assert_eq!(ask(&served, Command::Repair, &[near.as_fd()], 0), [0]);
    assert_eq!(ask(&served, Command::Release, &[near.as_fd()], podvirt_proto::repair::ACCEPTED), [0]);
    assert!(!in_repair(&near));
}

#[test]
fn only_tcp_sockets_of_the_pods_namespace_are_touched() {
    let directory = tempfile::tempdir().unwrap();
    let Some((served, _arming)) = backend(directory.path(), Protocol::Move) else { return };
    let foreign = std::thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET)?;
        nix::Result::Ok(OwnedFd::from(Socket::new(Domain::IPV4, Type::STREAM, None).unwrap()))
    });
    let foreign = match foreign.join().unwrap() {
        Ok(foreign) => foreign,
        Err(error) => return pass_over("no network namespace", error),
    };
    let own = Socket::new(Domain::IPV6, Type::STREAM, None).unwrap();
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let file = tempfile::tempfile().unwrap();
    let fds = [own.as_fd(), foreign.as_fd(), udp.as_fd(), file.as_fd(), served.as_fd()];
    let results = ask(&served, Command::Repair, &fds, 0);
    assert_eq!(results, [0, libc::EPERM, libc::EPERM, libc::EPERM, libc::EPERM]);
    assert!(in_repair(&own) && !in_repair(&foreign));
}

#[test]
fn addresses_speak_before_the_first_connection_does_and_again_only_after_a_failure() {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for protocol in [Protocol::Move, Protocol::Passt] {
        let (near, _far) = pair();
        let (spoke, held) = (Arc::new(AtomicUsize::new(0)), near.try_clone().unwrap());
        let make = {
            let spoke = spoke.clone();
            move || -> BoxFuture<'static, io::Result<()>> {
                let times = spoke.fetch_add(1, SeqCst);
                let silent = in_repair(&held);
                Box::pin(async move {
                    assert!(silent, "the connection speaks already");
                    if times == 0 { Err(io::ErrorKind::TimedOut.into()) } else { Ok(()) }
                })
            }
        };
        let arrival = Arc::new(Arrival::new(runtime.handle().clone(), Box::new(make)));
        let directory = tempfile::tempdir().unwrap();
        let Some((served, _arming)) = backend_of(directory.path(), protocol, Some(arrival), None, None)
        else {
            return;
        };
        let set = |command: Command, value: u8, fds: &[BorrowedFd<'_>]| match protocol {
            Protocol::Move => drop(ask(&served, command, fds, 0)),
            Protocol::Passt => ask_passt(&served, value, fds),
        };
        set(Command::Repair, 1, &[near.as_fd()]);
        assert_eq!(spoke.load(SeqCst), 0);
        if protocol == Protocol::Move {
            // The machine comes, connections or not. It fails, and is tried again with the next.
            assert!(ask(&served, Command::Release, &[], 0).is_empty());
        } else {
            let other = pair().0;
            set(Command::Release, 0, &[other.as_fd()]);
        }
        assert_eq!((spoke.load(SeqCst), in_repair(&near)), (1, true));
        set(Command::Release, 0, &[near.as_fd()]);
        assert_eq!((spoke.load(SeqCst), in_repair(&near)), (2, false));
        set(Command::Release, 0, &[near.as_fd()]);
        assert_eq!(spoke.load(SeqCst), 2);
    }
}

#[test]
fn a_machine_that_stays_is_heard_again_and_one_that_has_left_is_not() {
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (near, far) = pair();
    for protocol in [Protocol::Move, Protocol::Passt] {
        let heard = Arc::new(AtomicU32::new(0));
        let counted = heard.clone();
        let make = move || -> BoxFuture<'static, io::Result<()>> {
            counted.fetch_add(1, SeqCst);
            Box::pin(async { Ok(()) })
        };
        let stay = Stay { make: Box::new(make), runtime: runtime.handle().clone() };
        let here = std::fs::File::open("/proc/self/ns/net").unwrap();
        // No interface of the test's is at the target, and none becomes silent.
        let departure = Arc::new(Departure::new(here, &[Ipv4Addr::new(10, 0, 0, 9).into()], stay));
        let directory = tempfile::tempdir().unwrap();
        let Some((served, _arming)) = backend_of(directory.path(), protocol, None, Some(departure), None)
        else {
            return;
        };
        let ask = |command: Command, value: u8, flags: u8| match protocol {
            Protocol::Move => drop(ask(&served, command, &[near.as_fd(), far.as_fd()], flags)),
            Protocol::Passt => ask_passt(&served, value, &[near.as_fd(), far.as_fd()]),
        };
        for times in 1..3 {
            ask(Command::Freeze, 1, 0);
            if protocol == Protocol::Move {
                ask(Command::Thaw, 0, podvirt_proto::repair::ENDS);
            }
            assert_eq!(heard.load(SeqCst), times - 1);
            for _ in 0..2 {
                ask(Command::Thaw, u8::MAX, 0);
                assert_eq!(heard.load(SeqCst), times, "once");
            }
        }
    }
}

#[test]
fn many_are_done_each_for_itself_and_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let Some((served, _arming)) = backend(directory.path(), Protocol::Move) else { return };
    let pairs: Vec<_> = (0..50).map(|_| pair()).collect();
    let file = tempfile::tempfile().unwrap();
    let fds: Vec<BorrowedFd<'_>> = pairs.iter().flat_map(|(near, _)| [near.as_fd(), file.as_fd()]).collect();
    let results = ask(&served, Command::Freeze, &fds, 0);
    assert_eq!(results, [0, libc::EPERM].repeat(50));
    assert!(pairs.iter().all(|(near, far)| in_repair(near) && !in_repair(far)));
}

#[test]
fn what_was_done_already_may_be_asked_again() {
    let directory = tempfile::tempdir().unwrap();
    let Some((served, _arming)) = backend(directory.path(), Protocol::Move) else { return };
    let (near, mut far) = pair();
    for command in [Command::Freeze, Command::Thaw, Command::Repair, Command::Release] {
        for _ in 0..2 {
            assert_eq!(ask(&served, command, &[near.as_fd()], 0), [0], "{command:?}");
        }
    }
    std::io::Write::write_all(&mut far, b"x").unwrap();
    std::io::Read::read_exact(&mut &near, &mut [0]).unwrap();
}

#[test]
fn a_connection_that_is_released_has_the_receive_buffer_that_the_backend_says() {
    use podvirt_proto::repair::{LONG, LONG_LEFT, receive_buffer_flags};
    let directory = tempfile::tempdir().unwrap();
    let Some((served, _arming)) = backend(directory.path(), Protocol::Move) else { return };
    let says = |bytes| receive_buffer_flags(bytes);
    let most = 2 * LONG_LEFT;
    for (flags, expected) in [
        (says(1 << 20), 1 << 20),
        (LONG | says(9 << 20), 16 << 20),
        (LONG, most),
        // More than any kernel lets a queue grow to by itself.
        (0xf0, most),
    ] {
        let (near, _far) = pair();
        assert_eq!(ask(&served, Command::Repair, &[near.as_fd()], flags & LONG), [0]);
        assert_eq!(ask(&served, Command::Release, &[near.as_fd()], flags), [0]);
        assert_eq!(getsockopt(&near, sockopt::RcvBuf).unwrap(), expected, "{flags:#x}");
    }
}

#[test]
fn what_the_target_has_no_address_for_is_left_alone() {
    let (near, far) = pair();
    let [here, elsewhere] = [Ipv4Addr::LOCALHOST, Ipv4Addr::new(10, 0, 0, 9)].map(IpAddr::V4);
    for (to, frozen) in [(vec![elsewhere], false), (vec![], false), (vec![elsewhere, here], true)] {
        let directory = tempfile::tempdir().unwrap();
        let Some((served, _arming)) = backend_of(directory.path(), Protocol::Move, None, None, Some(to))
        else {
            return;
        };
        let expected = if frozen { 0 } else { libc::EADDRNOTAVAIL };
        let ends = [near.as_fd(), far.as_fd()];
        assert_eq!(ask(&served, Command::Freeze, &ends, 0), [expected; 2]);
        assert_eq!([in_repair(&near), in_repair(&far)], [frozen; 2]);
        // What was left alone may be thawed with the others.
        assert_eq!(ask(&served, Command::Thaw, &ends[..1], 0), [0]);
    }
}

#[test]
fn a_listener_is_only_silenced() {
    let directory = tempfile::tempdir().unwrap();
    let Some((served, _arming)) = backend(directory.path(), Protocol::Move) else { return };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let mut early = TcpStream::connect(at).unwrap();
    assert_eq!(ask(&served, Command::Freeze, &[listener.as_fd()], 0), [0]);
    // A client that has connected before is let in, and is heard.
    let mut accepted = listener.accept().unwrap().0;
    std::io::Write::write_all(&mut early, b"x").unwrap();
    std::io::Read::read_exact(&mut accepted, &mut [0]).unwrap();
    assert!(TcpStream::connect_timeout(&at, Duration::from_millis(50)).is_err());
    assert_eq!(ask(&served, Command::Thaw, &[listener.as_fd()], 0), [0]);
    assert!(TcpStream::connect(at).is_ok());
}

#[test]
fn passts_protocol_is_spoken_and_the_end_is_the_end() {
    use std::io::{Read, Write};
    let directory = tempfile::tempdir().unwrap();
    let Some((mut served, arming)) = backend(directory.path(), Protocol::Passt) else { return };
    let (near, _far) = pair();
    for (byte, repaired) in [(1u8, true), (0xff, false)] {
        ask_passt(&served, byte, &[near.as_fd()]);
        assert_eq!(in_repair(&near), repaired);
    }
    drop(arming);
    assert_eq!(served.read(&mut [0]).unwrap(), 0, "the backend is not served any more");
    let _ = served.write(&[1]);
}
