//! Network namespaces without names: they end with the last descriptor, thread and socket in them, so nothing
//! is left behind when a test fails.

use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sched::{CloneFlags, setns, unshare};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::TIMEOUT;

/// Connections that may wait in a listener.
const BACKLOG: i32 = 2048;

/// A network namespace.
pub(crate) struct Namespace(File);

impl Namespace {
    /// A new one, its loopback up; None where that is not allowed.
    pub(crate) fn new() -> io::Result<Namespace> {
        let made = std::thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET)?;
            File::open("/proc/thread-self/ns/net")
        });
        let namespace = Namespace(made.join().unwrap()?);
        namespace.ip("link set lo up");
        // Addresses are used at once: no duplicate address detection, and nothing that changes by itself.
        for family in ["all", "default"] {
            namespace.sysctl(&format!("ipv6/conf/{family}/accept_dad"), "0");
            namespace.sysctl(&format!("ipv6/conf/{family}/accept_ra"), "0");
        }
        // A container runtime's defaults: sockets of ICMP for every group.
        namespace.sysctl("ipv4/ping_group_range", "0 2147483647");
        Ok(namespace)
    }

    /// Where it can be opened as long as this process lives.
    pub(crate) fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd()).into()
    }

    /// Runs `f` on a thread inside. Sockets, threads and processes that it makes stay inside.
    pub(crate) fn run<T: Send>(&self, f: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                setns(&self.0, CloneFlags::CLONE_NEWNET).unwrap();
                f()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Carries out commands of ip(8), one a line.
    pub(crate) fn ip(&self, commands: &str) {
        use std::io::Write;
        let output = self.run(|| {
            let mut child = Command::new("ip")
                .args(["-batch", "-"])
                .stdin(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .expect("ip does not run");
            child.stdin.take().unwrap().write_all(commands.as_bytes()).unwrap();
            child.wait_with_output().unwrap()
        });
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "ip: {commands}\n{error}");
    }

    /// Writes a file below `/proc/sys/net`.
    pub(crate) fn sysctl(&self, name: &str, value: &str) {
        self.run(|| std::fs::write(format!("/proc/sys/net/{name}"), value))
            .unwrap_or_else(|e| panic!("sysctl {name}: {e}"));
    }

    fn socket(&self, at: SocketAddr, kind: Type, protocol: Protocol) -> Socket {
        let socket = self.run(|| Socket::new(Domain::for_address(at), kind, Some(protocol))).unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        socket.set_write_timeout(Some(TIMEOUT)).unwrap();
        socket
    }

    /// A TCP socket on which every call ends in time.
    pub(crate) fn tcp(&self, like: SocketAddr) -> Socket {
        self.socket(like, Type::STREAM, Protocol::TCP)
    }

    /// Connects to `to`.
    pub(crate) fn connect(&self, to: SocketAddr) -> io::Result<TcpStream> {
        let socket = self.tcp(to);
        socket.connect_timeout(&to.into(), TIMEOUT)?;
        Ok(socket.into())
    }

    /// Connects from `from` to `to`.
    pub(crate) fn connect_from(&self, from: SocketAddr, to: SocketAddr) -> io::Result<TcpStream> {
        let socket = self.tcp(to);
        socket.set_reuse_address(true)?;
        socket.bind(&from.into())?;
        socket.connect_timeout(&to.into(), TIMEOUT)?;
        Ok(socket.into())
    }

    /// Listens on `at`.
    pub(crate) fn listen(&self, at: SocketAddr) -> Listener {
        let socket = self.tcp(at);
        socket.set_reuse_address(true).unwrap();
        if at.is_ipv6() {
            socket.set_only_v6(true).unwrap();
        }
        socket.bind(&at.into()).unwrap();
        socket.listen(BACKLOG).unwrap();
        Listener(socket)
    }

    /// A UDP socket bound to `at`.
    pub(crate) fn udp(&self, at: SocketAddr) -> UdpSocket {
        let socket = self.socket(at, Type::DGRAM, Protocol::UDP);
        socket.bind(&at.into()).unwrap();
        socket.set_recv_buffer_size(4 << 20).unwrap();
        socket.set_send_buffer_size(1 << 20).unwrap();
        OwnedFd::from(socket).into()
    }

    /// A ping socket connected to `to`.
    pub(crate) fn ping(&self, to: SocketAddr) -> Socket {
        let protocol = if to.is_ipv4() { Protocol::ICMPV4 } else { Protocol::ICMPV6 };
        let socket = self.socket(to, Type::DGRAM, protocol);
        socket.connect(&to.into()).unwrap();
        socket
    }
}

/// A listener whose accept ends in time.
pub(crate) struct Listener(Socket);

impl Listener {
    /// The next connection and the address of its peer.
    pub(crate) fn accept(&self) -> (TcpStream, SocketAddr) {
        let (socket, from): (Socket, SockAddr) = self.0.accept().expect("no connection came");
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        socket.set_write_timeout(Some(TIMEOUT)).unwrap();
        (socket.into(), from.as_socket().unwrap())
    }

    /// Whether a connection waits to be accepted.
    pub(crate) fn has_one(&self) -> bool {
        self.0.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        self.0.accept().is_ok()
    }
}
