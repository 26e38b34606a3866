//! Backends in this process' own network namespace. TCP_REPAIR takes CAP_NET_ADMIN: without it the tests are passed over,
//! loudly.

use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::{getsockopt, setsockopt, sockopt};
use podvirt_proto::repair::{Command, recv_reply, send_request};
use socket2::{Domain, SockAddr, Socket, Type};

use super::*;

/// A server for the sockets of a backend, and the backend's listener.
fn backend(directory: &std::path::Path, protocol: Protocol) -> Option<(Socket, Arming)> {
    backend_going_to(directory, protocol, None)
}

fn backend_going_to(
    directory: &std::path::Path,
    protocol: Protocol,
    to: Option<Vec<IpAddr>>,
) -> Option<(Socket, Arming)> {
    let probe = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    if let Err(error) = setsockopt(&probe, sockopt::TcpRepair, &1) {
        eprintln!("SKIPPED: no TCP_REPAIR: {error}");
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
    Server { directory: dir, name: "n0.sock.move".into(), protocol, inside, stop: arming.stop.clone() }
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
        unshare(CloneFlags::CLONE_NEWNET).ok()?;
        Some(OwnedFd::from(Socket::new(Domain::IPV4, Type::STREAM, None).unwrap()))
    });
    let Some(foreign) = foreign.join().unwrap() else {
        eprintln!("SKIPPED: no network namespace");
        return;
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
fn what_the_target_has_no_address_for_is_left_alone() {
    let (near, far) = pair();
    let [here, elsewhere] = [Ipv4Addr::LOCALHOST, Ipv4Addr::new(10, 0, 0, 9)].map(IpAddr::V4);
    for (to, frozen) in [(vec![elsewhere], false), (vec![], false), (vec![elsewhere, here], true)] {
        let directory = tempfile::tempdir().unwrap();
        let Some((served, _arming)) = backend_going_to(directory.path(), Protocol::Move, Some(to)) else {
            return;
        };
        let expected = if frozen { 0 } else { libc::EADDRNOTAVAIL };
        let ends = [near.as_fd(), far.as_fd()];
        assert_eq!(ask(&served, Command::Freeze, &ends, 0), [expected; 2]);
        assert_eq!([in_repair(&near), in_repair(&far)], [frozen; 2]);
        // What was left alone may be thawed with the others.
        assert_eq!(ask(&served, Command::Thaw, &ends[..1], 0), [if frozen { 0 } else { libc::ENOENT }]);
    }
}

#[test]
fn a_listener_is_only_silenced() {
    let directory = tempfile::tempdir().unwrap();
    let Some((served, _arming)) = backend(directory.path(), Protocol::Move) else { return };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    assert_eq!(ask(&served, Command::Freeze, &[listener.as_fd()], 0), [0]);
    let at = listener.local_addr().unwrap();
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
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
        let fds = [near.as_fd()];
        assert!(control.push(rustix::net::SendAncillaryMessage::ScmRights(&fds)));
        let bytes = [std::io::IoSlice::new(std::slice::from_ref(&byte))];
        rustix::net::sendmsg(&served, &bytes, &mut control, rustix::net::SendFlags::empty()).unwrap();
        let mut answer = [0];
        served.read_exact(&mut answer).unwrap();
        assert_eq!((answer[0], in_repair(&near)), (byte, repaired));
    }
    drop(arming);
    assert_eq!(served.read(&mut [0]).unwrap(), 0, "nobody is served any more");
    let _ = served.write(&[1]);
}
