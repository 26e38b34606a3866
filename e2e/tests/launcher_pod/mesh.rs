//! A service mesh's sidecar in a pod: the rules of Istio's shape, by nftables, and a proxy that stands in for Envoy.
//!
//! ```text
//!   client ── eth0 ── nat, prerouting ── 15006 proxy ── from 127.0.0.6 ── the pod's own port, which is netd's
//!   netd ── nat, output ── 15001 proxy ── as user 1337 ── eth0 ── client
//! ```
//!
//! Ports that are excluded, as that of ssh usually is, go past it. The proxy copies bytes, and hands on how a connection
//! ends: by a FIN or by a RST.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, getsockopt, setsockopt, socket, sockopt,
};
use nix::unistd::{Uid, setfsuid};
use podvirt_e2e::Net;
use podvirt_e2e::artefacts::artefact;

/// Where the rules lead what comes in, and what goes out.
const INBOUND: u16 = 15006;
const OUTBOUND: u16 = 15001;
/// The proxy's user: what it opens goes past the rules.
const USER: u32 = 1337;
/// Where the proxy comes from when it connects to the pod's own ports.
const FROM: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 6);

/// Puts the sidecar into a pod; ports in `past` are excluded, `past.0` for what comes in, `past.1` for what goes out. It
/// ends with the process.
pub(crate) fn sidecar(net: &Net, past: (&[u16], &[u16])) -> Result<()> {
    let list = |ports: &[u16]| ports.iter().map(u16::to_string).collect::<Vec<_>>().join(", ");
    let rules = format!(
        "table ip mesh {{
           chain prerouting {{
             type nat hook prerouting priority dstnat;
             tcp dport {{ 15008, 15020, 15021, 15090, {} }} return
             meta l4proto tcp redirect to :{INBOUND}
           }}
           chain output {{
             type nat hook output priority -100;
             oifname lo ip saddr {FROM} return
             oifname lo ip daddr != 127.0.0.1 meta skuid {USER} tcp dport != 15008 redirect to :{INBOUND}
             oifname lo meta skuid != {USER} return
             meta skuid {USER} return
             ip daddr 127.0.0.1 return
             tcp dport {{ {} }} return
             meta l4proto tcp redirect to :{OUTBOUND}
           }}
         }}\n",
        list(past.0),
        list(past.1),
    );
    let root = artefact("root")?;
    let listeners = net.pod.enter(|| {
        let mut nft = Command::new("chroot")
            .arg(&root)
            .args(["/usr/sbin/nft", "-f", "-"])
            .stdin(Stdio::piped())
            .spawn()
            .context("chroot")?;
        nft.stdin.take().context("stdin")?.write_all(rules.as_bytes())?;
        ensure!(nft.wait()?.success(), "nft refuses\n{rules}");
        let listen = |port: u16| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port));
        Ok([listen(INBOUND)?, listen(OUTBOUND)?])
    })?;
    for listener in listeners {
        let namespace = std::fs::File::open(std::path::Path::new("/run/netns").join(net.pod.name()))?;
        std::thread::spawn(move || {
            setns(namespace, CloneFlags::CLONE_NEWNET).unwrap();
            // Of this thread alone: the sockets that it makes are that user's.
            setfsuid(Uid::from_raw(USER));
            while let Ok((near, _)) = listener.accept() {
                // A refusal is handed on as well.
                if let Ok(far) = onward(&near) {
                    join(near, far);
                }
            }
        });
    }
    Ok(())
}

/// The connection to where another one was meant to go.
fn onward(near: &TcpStream) -> Result<TcpStream> {
    let to = getsockopt(near, sockopt::OriginalDst)?;
    let to = SocketAddrV4::new(u32::from_be(to.sin_addr.s_addr).into(), u16::from_be(to.sin_port));
    let far = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    if near.local_addr()?.port() == INBOUND {
        bind(far.as_raw_fd(), &SockaddrIn::from(SocketAddrV4::new(FROM, 0)))?;
    }
    connect(far.as_raw_fd(), &SockaddrIn::from(to))?;
    Ok(far.into())
}

/// Copies bytes both ways until both have ended.
fn join(a: TcpStream, b: TcpStream) {
    for (mut from, mut to) in
        [(a.try_clone().unwrap(), b.try_clone().unwrap()), (b.try_clone().unwrap(), a.try_clone().unwrap())]
    {
        std::thread::spawn(move || {
            let mut buffer = vec![0; 16 << 10];
            loop {
                match from.read(&mut buffer) {
                    Ok(0) => break drop(to.shutdown(Shutdown::Write)),
                    Ok(n) if to.write_all(&buffer[..n]).is_ok() => {}
                    // A RST for a RST: closed by both threads.
                    _ => {
                        for s in [&from, &to] {
                            let _ = setsockopt(s, sockopt::Linger, &libc::linger { l_onoff: 1, l_linger: 0 });
                            let _ = s.shutdown(Shutdown::Read);
                        }
                        break;
                    }
                }
            }
        });
    }
}
