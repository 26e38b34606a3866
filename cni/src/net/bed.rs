//! A node and its pods for tests: throwaway network namespaces, a bridge, a packet socket that hears everything.

use std::fs::File;
use std::io::Read;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Duration;

use futures::TryStreamExt;
use nix::sched::{CloneFlags, unshare};
use podvirt_api::mac::MacAddr;
use rtnetlink::{LinkBridge, LinkUnspec, LinkVeth};
use serde_json::{Value, json};
use socket2::{Domain, Protocol, Socket, Type};

use super::{attach, netns};
use crate::args::Attachment;
use crate::config::Network;

/// How long what has to happen is waited for.
const LIMIT: Duration = Duration::from_secs(20);

/// Runs `test` on a node of its own, which has the bridge `br1` and the interface `up1`. Without the privilege to make a
/// network namespace the test is passed over, loudly.
pub(crate) fn on_node(test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(move || {
        if let Err(error) = unshare(CloneFlags::CLONE_NEWNET) {
            eprintln!("SKIPPED: cannot make a network namespace: {error}");
            return;
        }
        netns::inside(None, |handle| async move {
            handle.link().add(LinkBridge::new("br1").up().build()).execute().await.unwrap();
            handle.link().add(LinkVeth::new("up1", "up1-peer").build()).execute().await.unwrap();
            for name in ["up1", "up1-peer"] {
                let index = attach::required(&handle, name, "on the node").await?.header.index;
                handle.link().set(LinkUnspec::new_with_index(index).up().build()).execute().await.unwrap();
            }
            Ok(())
        })
        .unwrap();
        test();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// A pod's network namespace.
pub(crate) struct PodNet(pub(crate) File);

impl PodNet {
    pub(crate) fn new() -> PodNet {
        let made = std::thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            File::open("/proc/thread-self/ns/net").unwrap()
        });
        PodNet(made.join().unwrap())
    }

    /// Where it can be opened.
    pub(crate) fn path(&self) -> String {
        format!("/proc/self/fd/{}", self.0.as_raw_fd())
    }

    /// Runs `work` inside.
    pub(crate) fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        netns::inside(Some(&self.0), |_| async move { Ok(work()) }).unwrap()
    }

    /// A server that answers one connection with `text`.
    pub(crate) fn serve(&self, address: IpAddr, text: &'static str) -> std::thread::JoinHandle<()> {
        let listener = self.enter(|| TcpListener::bind(SocketAddr::new(address, 80)).unwrap());
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            std::io::Write::write_all(&mut stream, text.as_bytes()).unwrap();
        })
    }

    /// What a server at `address` answers.
    pub(crate) fn ask(&self, address: IpAddr) -> String {
        let mut stream =
            self.enter(|| TcpStream::connect_timeout(&SocketAddr::new(address, 80), LIMIT).unwrap());
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }
}

/// Hears every frame on the interfaces of the calling thread's namespace.
pub(crate) struct Ear(Socket);

impl Ear {
    pub(crate) fn new() -> Ear {
        // linux/if_ether.h: ETH_P_ALL.
        let all = Protocol::from(i32::from(3u16.to_be()));
        let packet = Domain::from(nix::sys::socket::AddressFamily::Packet as i32);
        let socket = Socket::new(packet, Type::RAW, Some(all)).unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        Ear(socket)
    }

    /// The next frame that any of `macs` has sent.
    fn next_of(&mut self, macs: &[MacAddr]) -> Vec<u8> {
        let mut buffer = [0; 2048];
        loop {
            let length = self.0.read(&mut buffer).expect("a frame within the limit");
            let frame = &buffer[..length];
            if macs.iter().any(|mac| frame.get(6..12) == Some(&mac.0)) {
                return frame.to_vec();
            }
        }
    }

    /// How many frames of `mac` are heard before the first one of `mark`.
    pub(crate) fn count_until(&mut self, mac: MacAddr, mark: MacAddr) -> usize {
        std::iter::from_fn(|| Some(self.next_of(&[mac, mark])))
            .take_while(|frame| frame[6..12] == mac.0)
            .count()
    }

    /// The kinds of the next frames of `mac`, until one of each in `wanted` was heard.
    pub(crate) fn hear(&mut self, mac: MacAddr, wanted: &[u16]) {
        let mut left = wanted.to_vec();
        while !left.is_empty() {
            let frame = self.next_of(&[mac]);
            let kind = u16::from_be_bytes([frame[12], frame[13]]);
            left.retain(|k| *k != kind);
        }
    }
}

/// A network on `br1`; `changes` go over the configuration.
pub(crate) fn network(changes: &Value) -> Network {
    Network::read(config(changes).to_string().as_bytes(), None).unwrap()
}

/// Its configuration.
pub(crate) fn config(changes: &Value) -> Value {
    let mut config = json!({
        "cniVersion": "1.1.0", "name": "flat", "type": "podvirt-cni", "bridge": "br1",
        "ipam": {
            "ranges": [[{"subnet": "172.30.0.0/24", "gateway": "172.30.0.1"}], [{"subnet": "fd00:30::/64"}]],
            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "fd00::/8", "gw": "fd00:30::1"}],
        },
    });
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

pub(crate) fn attachment(container: &str) -> Attachment {
    Attachment { container: container.into(), ifname: "net1".into() }
}

/// Names of the interfaces of the calling thread's namespace.
pub(crate) fn interfaces() -> Vec<String> {
    netns::inside(None, |handle| async move {
        let links: Vec<_> = handle.link().get().execute().try_collect().await.unwrap();
        let name = |link: netlink_packet_route::link::LinkMessage| {
            link.attributes.into_iter().find_map(|a| match a {
                netlink_packet_route::link::LinkAttribute::IfName(name) => Some(name),
                _ => None,
            })
        };
        Ok(links.into_iter().filter_map(name).collect())
    })
    .unwrap()
}
