//! `guest-flood`: floods from inside a Linux guest, as root, by frames of its own making.
//!
//! ```text
//! guest-flood INTERFACE ROUTER_MAC FROM4 FROM6 TO4 TO6 KIND      for ever; prints the number of frames sent, now and then
//! ```
//!
//! See [`podvirt_bed_tools::flood`] for the kinds. The guest's own TCP/IP stack hears the answers as well and resets connections
//! that it knows nothing of; an unreachable route to `TO4` keeps it from being heard.

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{
    AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, bind, recv, send, socket,
};
use podvirt_bed_tools::flood::frames::Link;
use podvirt_bed_tools::flood::{Ends, Flood, Kind};

/// Frames that are sent before it is looked for answers.
const BATCH: usize = 64;
/// When the interface takes no more, or there is nothing to do.
const PAUSE: Duration = Duration::from_micros(500);
/// How often it tells of itself.
const TELLS: Duration = Duration::from_millis(500);

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let [interface, router, from4, from6, to4, to6, kind] = words.as_slice() else {
        bail!("guest-flood INTERFACE ROUTER_MAC FROM4 FROM6 TO4 TO6 KIND");
    };
    let (socket, own) = open(interface)?;
    let link = Link { from: own, to: mac(router)? };
    let ends =
        Ends { link, from4: from4.parse()?, from6: from6.parse()?, to4: to4.parse()?, to6: to6.parse()? };
    let mut flood = Flood::new(kind.parse()?, ends);
    let eager = flood.is_eager() && kind.parse::<Kind>()? != Kind::Descriptors;
    let (mut sent, mut told, mut buffer) = (0u64, Instant::now(), vec![0; 1 << 16]);
    loop {
        let mut idle = true;
        for _ in 0..if eager { BATCH } else { 1 } {
            let Some(frame) = flood.next_frame() else { break };
            if !put(&socket, &frame)? {
                break;
            }
            sent += 1;
            idle = !eager;
        }
        let mut answers = Vec::new();
        for _ in 0..BATCH {
            match recv(socket.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT) {
                Ok(len) => {
                    flood.answer(buffer.get(..len).unwrap_or_default(), &mut |answer| answers.push(answer));
                }
                Err(Errno::EAGAIN | Errno::EINTR) => break,
                Err(e) => return Err(e.into()),
            }
        }
        for answer in answers {
            sent += u64::from(put(&socket, &answer)?);
            idle = false;
        }
        if idle {
            std::thread::sleep(PAUSE);
        }
        if told.elapsed() > TELLS {
            println!("{sent}");
            told = Instant::now();
        }
    }
}

/// A socket for all frames of an interface, and the interface's address.
fn open(interface: &str) -> Result<(OwnedFd, [u8; 6])> {
    let all = SockProtocol::EthAll;
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Packet, SockType::Raw, flags, Some(all)).context("a packet socket")?;
    let of = |a: nix::ifaddrs::InterfaceAddress| {
        (a.interface_name == interface).then(|| a.address?.as_link_addr().copied()).flatten()
    };
    let address: LinkAddr =
        getifaddrs()?.find_map(of).with_context(|| format!("no interface {interface}"))?;
    bind(socket.as_raw_fd(), &address)?;
    Ok((socket, address.addr().context("an Ethernet address")?))
}

/// Sends a frame; false when there is no room for it now. One that no interface would take is left out.
fn put(socket: &OwnedFd, frame: &[u8]) -> Result<bool> {
    match send(socket.as_raw_fd(), frame, MsgFlags::MSG_DONTWAIT) {
        Ok(_) => Ok(true),
        Err(Errno::EAGAIN | Errno::ENOBUFS | Errno::EINTR) => Ok(false),
        Err(Errno::EMSGSIZE | Errno::EINVAL) => Ok(true),
        Err(e) => Err(e.into()),
    }
}

fn mac(text: &str) -> Result<[u8; 6]> {
    let bytes: Result<Vec<u8>, _> = text.split(':').map(|byte| u8::from_str_radix(byte, 16)).collect();
    bytes?.try_into().ok().with_context(|| format!("an Ethernet address: {text}"))
}
