//! The real thing: a pod's namespace, a network behind it, and frames through the tap as a guest sends them. Without the
//! privilege to make namespaces and taps the tests are passed over, loudly.

use std::fs::File;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::{AddressFamily, LinkAddr, MsgFlags, SockFlag, SockType, bind, recv, sendto, socket};
use podvirt_api::bridge::Bridged;
use podvirt_api::kernel::Masqueraded;
use podvirt_api::mac::MacAddr;
use podvirt_cni::net::netns;
use rtnetlink::{LinkMacVlan, LinkUnspec, LinkVeth};

use super::plan::Kind;
use super::pretended::{GUEST, one};
use super::{Error, Wanted, apply, make_in};

/// How long what has to happen is waited for.
const LIMIT: Duration = Duration::from_secs(20);
const MTU: u32 = 1400;
/// Largest frame, with room for two tags.
const FRAME: usize = 2048;

fn bridges(all: &[Bridged]) -> Wanted {
    Wanted { bridged: all.to_vec(), ..Wanted::default() }
}

/// A pod with `pod1`, whose other end is `outside`, in the same namespace for want of a second one: what enters one end
/// leaves the other.
struct Pod(File);

impl Pod {
    fn new() -> Option<Pod> {
        if !std::path::Path::new(super::nft::PROGRAM).exists() {
            eprintln!("SKIPPED: no {}; run make setup", super::nft::PROGRAM);
            return None;
        }
        let made = std::thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET)?;
            File::options().read(true).write(true).open("/dev/net/tun")?;
            File::open("/proc/thread-self/ns/net")
        });
        let pod = match made.join().unwrap() {
            Ok(namespace) => Pod(namespace),
            Err(error) => {
                eprintln!("SKIPPED: cannot make a network namespace with a tap device: {error}");
                return None;
            }
        };
        netns::inside(Some(&pod.0), |handle| async move {
            let pair = LinkVeth::new("pod1", "outside").mtu(MTU).address(GUEST.0.to_vec());
            handle.link().add(pair.build()).execute().await.unwrap();
            for name in ["outside", "pod1"] {
                std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/accept_dad"), "0").unwrap();
                handle
                    .link()
                    .set(LinkUnspec::new_with_name(name).mtu(MTU).up().build())
                    .execute()
                    .await
                    .unwrap();
            }
            let index = apply::all(&handle).await["pod1"].index;
            handle.address().add(index, "fd00:30::9".parse().unwrap(), 64).execute().await.unwrap();
            Ok(())
        })
        .unwrap();
        pod.give();
        Some(pod)
    }

    /// Gives `pod1` an IPv4 address, as a plugin with `ipam` does.
    fn give(&self) {
        netns::inside(Some(&self.0), |handle| async move {
            let index = apply::all(&handle).await["pod1"].index;
            handle.address().add(index, "172.30.0.9".parse().unwrap(), 24).execute().await.unwrap();
            Ok(())
        })
        .unwrap();
    }

    fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        netns::inside(Some(&self.0), |_| async move { Ok(work()) }).unwrap()
    }

    fn links(&self) -> std::collections::BTreeMap<String, super::plan::Link> {
        netns::inside(Some(&self.0), |handle| async move { Ok(apply::all(&handle).await) }).unwrap()
    }

    /// Text of `ip ARGS` would need a program: addresses of the interface, counted.
    fn addresses(&self, name: &str) -> usize {
        let name = name.to_owned();
        self.enter(move || {
            nix::ifaddrs::getifaddrs()
                .unwrap()
                .filter(|i| i.interface_name == name)
                .filter(|i| {
                    i.address.is_some_and(|a| a.as_sockaddr_in().is_some() || a.as_sockaddr_in6().is_some())
                })
                .count()
        })
    }
}

fn frame(destination: [u8; 6], source: [u8; 6], text: &[u8]) -> Vec<u8> {
    // An ethertype for experiments (IEEE 802).
    let mut frame = [&destination[..], &source[..], &[0x88, 0xb5], text].concat();
    frame.resize(frame.len().max(60), 0);
    frame
}

/// Waits until the bridge forwards: a port does so a moment after its guest has opened the tap.
fn forwards(guest: &mut File, outside: &Raw) {
    let limit = Instant::now() + LIMIT;
    let sent = [&[0; 10], &frame([0xff; 6], GUEST.0, b"does it forward")[..]].concat();
    let mut buffer = [0; FRAME];
    while Instant::now() < limit {
        // A port that does not forward yet takes nothing, or drops it.
        let _again = guest.write(&sent);
        while let Ok(length) = outside.read(&mut buffer) {
            if buffer[..length].windows(15).any(|window| window == b"does it forward") {
                return;
            }
        }
        std::thread::yield_now();
    }
    panic!("the bridge does not forward");
}

/// Waits until `read` gives a frame that holds `text`.
fn wait_for(text: &[u8], mut read: impl FnMut(&mut [u8]) -> std::io::Result<usize>) -> Vec<u8> {
    let limit = Instant::now() + LIMIT;
    let mut buffer = [0; FRAME];
    while Instant::now() < limit {
        match read(&mut buffer) {
            Ok(length) => {
                let frame = &buffer[..length];
                if frame.windows(text.len()).any(|window| window == text) {
                    return frame.to_vec();
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    }
    panic!("no frame with {:?}", String::from_utf8_lossy(text));
}

#[test]
fn frames_of_the_guest_and_for_it_pass_unchanged_and_the_pod_keeps_nothing() {
    let Some(pod) = Pod::new() else { return };
    assert_eq!(pod.addresses("pod1"), 3, "two of the network's, one of the link");
    make_in(&pod.0, &bridges(&[one(1)])).unwrap();

    let links = pod.links();
    let (port, bridge, tap_link) = (&links["pod1"], &links["k6t-1"], &links["tap1"]);
    assert_eq!(tap_link.kind, Kind::Tap { several: false });
    for link in [port, bridge, tap_link] {
        assert!(link.up && link.mtu == MTU && link.mac != Some(GUEST), "{link:?}");
    }
    for link in [port, tap_link] {
        assert_eq!((link.controller, link.learns), (Some(bridge.index), Some(false)));
    }
    for name in ["pod1", "k6t-1", "tap1"] {
        assert_eq!(pod.addresses(name), 0, "{name}");
    }
    make_in(&pod.0, &bridges(&[one(1)])).unwrap();
    assert_eq!(pod.links(), links, "a second time changes nothing");

    // As QEMU does it; the header in front of each frame is virtio's.
    let mut guest = pod.enter(|| tap("tap1", false).unwrap());
    let outside = pod.enter(|| Raw::new("outside"));
    forwards(&mut guest, &outside);
    const HEADER: usize = 10;
    let other = [0x02, 0, 0, 0, 0, 0x77];
    let tagged = |frame: Vec<u8>| [&frame[..12], &[0x81, 0, 0, 42], &frame[12..]].concat();
    let sent = tagged(frame(other, GUEST.0, b"from the guest"));
    guest.write_all(&[&[0; HEADER], &sent[..]].concat()).unwrap();
    let heard = wait_for(b"from the guest", |buffer| outside.read(buffer));
    assert_eq!(heard[..12], sent[..12], "the guest's address stays");
    // A frame for an address that nothing in the pod has reaches the guest: it may listen to any.
    for destination in [GUEST.0, [0x02, 0, 0, 0, 0, 0x55], [0xff; 6], [0x01, 0, 0x5e, 0, 0, 0xfb]] {
        let text = format!("to {destination:02x?}");
        let sent = tagged(frame(destination, other, text.as_bytes()));
        outside.send(&sent);
        let heard = wait_for(text.as_bytes(), |buffer| guest.read(buffer));
        assert_eq!(heard[HEADER..], sent, "with its tag");
    }
    // The guest's address comes in from outside, as on a network that loops back; it still gets its frames.
    outside.send(&frame([0xff; 6], GUEST.0, b"an echo"));
    wait_for(b"an echo", |buffer| guest.read(buffer));
    outside.send(&frame(GUEST.0, other, b"after the echo"));
    wait_for(b"after the echo", |buffer| guest.read(buffer));
}

#[test]
fn what_the_network_gave_the_pod_is_kept_and_the_guest_asks_for_it_in_the_pod() {
    let Some(pod) = Pod::new() else { return };
    make_in(&pod.0, &bridges(&[one(1)])).unwrap();
    let links = pod.links();
    assert_eq!((links["kept1"].mac, links["kept1"].controller), (Some(GUEST), None));
    assert_eq!(pod.addresses("kept1"), 1, "IPv4's");
    make_in(&pod.0, &bridges(&[one(1)])).unwrap();
    assert_eq!(pod.links(), links, "a second time changes nothing");

    let mut guest = pod.enter(|| tap("tap1", false).unwrap());
    let mut teller = pod.enter(|| tap("dhcp1", false).unwrap());
    let outside = pod.enter(|| Raw::new("outside"));
    forwards(&mut guest, &outside);
    const HEADER: usize = 10;
    // A question by DHCP as far as the rules look: IPv4, UDP from port 68 to 67.
    let question = |text: &[u8]| {
        let mut packet = frame([0xff; 6], GUEST.0, b"");
        packet[12..14].copy_from_slice(&[8, 0]);
        let length = u16::try_from(28 + text.len()).unwrap().to_be_bytes();
        packet.truncate(14);
        packet.extend([
            0x45, 0, length[0], length[1], 0, 0, 0, 0, 64, 17, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255,
        ]);
        let udp = u16::try_from(8 + text.len()).unwrap().to_be_bytes();
        packet.extend([0, 68, 0, 67, udp[0], udp[1], 0, 0]);
        packet.extend(text);
        [&[0; HEADER][..], &packet].concat()
    };
    guest.write_all(&question(b"who am I")).unwrap();
    wait_for(b"who am I", |buffer| teller.read(buffer));
    guest.write_all(&[&[0; HEADER], &frame([0xff; 6], GUEST.0, b"what leaves")[..]].concat()).unwrap();
    wait_for(b"what leaves", |buffer| {
        let length = outside.read(buffer)?;
        assert!(!buffer[..length].windows(8).any(|part| part == b"who am I"), "the question left the pod");
        Ok(length)
    });
    let answer = [&[0; HEADER], &frame(GUEST.0, [2, 0, 0, 0, 0, 1], b"you are nine")[..]].concat();
    teller.write_all(&answer).unwrap();
    wait_for(b"you are nine", |buffer| guest.read(buffer));
}

/// Gives the pod its own network: `eth0` with an address.
fn own_network(pod: &Pod) {
    netns::inside(Some(&pod.0), |handle| async move {
        handle.link().add(LinkVeth::new("eth0", "node").build()).execute().await.unwrap();
        let index = apply::all(&handle).await["eth0"].index;
        handle.address().add(index, "10.1.0.7".parse().unwrap(), 24).execute().await.unwrap();
        handle.link().set(LinkUnspec::new_with_index(index).up().build()).execute().await.unwrap();
        Ok(())
    })
    .unwrap();
}

#[test]
fn the_pod_answers_for_none_of_its_addresses_on_the_network() {
    let Some(pod) = Pod::new() else { return };
    own_network(&pod);
    make_in(&pod.0, &bridges(&[one(1)])).unwrap();
    let outside = pod.enter(|| Raw::new("outside"));
    let mut guest = pod.enter(|| tap("tap1", false).unwrap());
    forwards(&mut guest, &outside);
    let asks = |target: [u8; 4]| {
        let sender = [0x02, 0, 0, 0, 0, 0x77];
        let mut arp =
            [&[0xff; 6][..], &sender, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1], &sender, &[172, 30, 0, 1]].concat();
        arp.extend([&[0; 6][..], &target].concat());
        arp.resize(60, 0);
        arp
    };
    for target in [[10, 1, 0, 7], [172, 30, 0, 9]] {
        outside.send(&asks(target));
        // The guest has heard it, so the pod has as well.
        wait_for(&target, |buffer| guest.read(buffer));
    }
    // What the guest sends comes after any answer of the pod's.
    guest.write_all(&[&[0; 10], &frame([0xff; 6], GUEST.0, b"the last word")[..]].concat()).unwrap();
    let mut answers = 0;
    wait_for(b"the last word", |buffer| {
        let length = outside.read(buffer)?;
        answers += usize::from(buffer[12..14] == [8, 6] && buffer[21] == 2);
        Ok(length)
    });
    assert_eq!(answers, 0);
}

/// The rules of the kernel's masquerade drop what is forwarded between other interfaces of the pod. Where the node has loaded
/// `br_netfilter`, they would be asked about frames that pass the bridge of another network.
#[test]
fn the_rules_of_the_kernels_masquerade_leave_frames_of_another_network_alone() {
    let Some(pod) = Pod::new() else { return };
    own_network(&pod);
    let masqueraded = Masqueraded {
        index: 0,
        name: "default".into(),
        mac: MacAddr([2, 0, 0, 0, 0, 8]),
        queues: 1,
        guest_v4: "10.0.2.2/24".parse().unwrap(),
        guest_v6: "fd10:0:2::2/120".parse().unwrap(),
        ports: Vec::new(),
        proxied: false,
    };
    make_in(&pod.0, &Wanted { masqueraded: Some(masqueraded), ..bridges(&[one(1)]) }).unwrap();
    let filter = pod.enter(|| {
        let read = |(key, _): &(&str, &str)| std::fs::read_to_string(format!("/proc/sys/net/{key}"));
        super::plan::FILTER_SETTINGS.iter().filter_map(|setting| read(setting).ok()).collect::<Vec<_>>()
    });
    if filter.is_empty() {
        eprintln!("SKIPPED in part: br_netfilter is not loaded");
    }
    assert!(filter.iter().all(|value| value.trim() == "0"), "{filter:?}");

    let mut guest = pod.enter(|| tap("tap1", false).unwrap());
    let outside = pod.enter(|| Raw::new("outside"));
    forwards(&mut guest, &outside);
    // A datagram of IPv4 from port 9 to 9, without a checksum of UDP.
    let mut datagram = frame(GUEST.0, [0x02, 0, 0, 0, 0, 0x77], b"");
    datagram[12..14].copy_from_slice(&[8, 0]);
    datagram.truncate(14);
    datagram.extend([0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17]);
    let sum = !u16::try_from(0x4500 + 46 + 0x4011 + 0xac1e + 1 + 0xac1e + 9 - 0xffff_u32).unwrap();
    datagram.extend(sum.to_be_bytes());
    datagram.extend([172, 30, 0, 1, 172, 30, 0, 9, 0, 9, 0, 9, 0, 26, 0, 0]);
    datagram.extend(b"of another network");
    outside.send(&datagram);
    wait_for(b"of another network", |buffer| guest.read(buffer));
}

#[test]
fn several_queues_are_a_tap_of_several_and_every_interface_has_its_own() {
    let Some(pod) = Pod::new() else { return };
    netns::inside(Some(&pod.0), |handle| async move {
        handle.link().add(LinkVeth::new("pod2", "outside2").build()).execute().await.unwrap();
        Ok(())
    })
    .unwrap();
    let two = Bridged {
        name: "red".into(),
        pod_interface: "pod2".into(),
        bridge: "k6t-2".into(),
        tap: "tap2".into(),
        kept: "kept2".into(),
        services: "dhcp2".into(),
        ..one(1)
    };
    make_in(&pod.0, &bridges(&[one(2), two])).unwrap();
    let links = pod.links();
    assert_eq!(links["tap1"].kind, Kind::Tap { several: true });
    assert_eq!(links["tap2"].kind, Kind::Tap { several: false });
    assert_eq!(links["tap2"].controller, Some(links["k6t-2"].index));
    assert!(links.contains_key("kept1") && !links.contains_key("kept2"), "pod2 has no address");
    pod.enter(|| {
        let _both = [tap("tap1", true).unwrap(), tap("tap1", true).unwrap()];
        tap("tap1", false).unwrap_err();
    });
}

#[test]
fn a_network_that_filters_by_address_is_refused_and_nothing_is_made() {
    let Some(pod) = Pod::new() else { return };
    netns::inside(Some(&pod.0), |handle| async move {
        let index = apply::all(&handle).await["outside"].index;
        let mode = netlink_packet_route::link::MacVlanMode::Bridge;
        handle.link().add(LinkMacVlan::new("pod3", index, mode).build()).execute().await.unwrap();
        Ok(())
    })
    .unwrap();
    let filtered = Bridged { pod_interface: "pod3".into(), ..one(1) };
    let error = make_in(&pod.0, &bridges(&[filtered])).unwrap_err();
    assert!(matches!(error, Error::Unusable(super::plan::Unusable::Filtered { .. })), "{error}");
    let missing = Bridged { pod_interface: "pod4".into(), ..one(1) };
    let error = make_in(&pod.0, &bridges(&[missing])).unwrap_err().to_string();
    assert_eq!(error, "interface blue: the pod has no interface pod4; Multus makes it");
    assert!(!pod.links().contains_key("k6t-1"));
}

#[test]
fn what_was_made_for_an_unplugged_interface_is_taken_away_and_comes_again() {
    let Some(pod) = Pod::new() else { return };
    let of = |bridges: [&str; 2], taps: [&str; 2]| super::Unplugged {
        bridges: bridges.map(str::to_owned),
        taps: taps.map(str::to_owned),
    };
    let gone = [of(["k6t-1", "kept1"], ["tap1", "dhcp1"])];
    super::clear_in(&pod.0, &gone).unwrap();
    for _ in 0..2 {
        make_in(&pod.0, &bridges(&[one(1)])).unwrap();
        let made = pod.links();
        let all = ["k6t-1", "kept1", "tap1", "dhcp1"];
        assert!(all.iter().all(|name| made.contains_key(*name)), "{made:?}");
        super::clear_in(&pod.0, &gone).unwrap();
        let left = pod.links();
        assert!(!all.iter().any(|name| left.contains_key(*name)), "{left:?}");
        assert!(left.contains_key("pod1"), "that is Multus'");
        // The pod is attached anew.
        pod.give();
    }
    // What only has the name is not ours.
    let other = [of(["pod1", "outside"], ["outside", "pod1"])];
    super::clear_in(&pod.0, &other).unwrap();
    assert!(pod.links().contains_key("pod1") && pod.links().contains_key("outside"));
}

/// A queue of the tap, opened as the launcher's user opens it; without waiting.
fn tap(name: &str, several: bool) -> std::io::Result<File> {
    super::tap::open(name, several)
}

/// A packet socket on an interface.
struct Raw(std::os::fd::OwnedFd, LinkAddr);

impl Raw {
    fn new(name: &str) -> Raw {
        let link = nix::ifaddrs::getifaddrs()
            .unwrap()
            .filter(|i| i.interface_name == name)
            .find_map(|i| i.address?.as_link_addr().copied());
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        // Every protocol.
        let all = Some(nix::sys::socket::SockProtocol::EthAll);
        let socket = socket(AddressFamily::Packet, SockType::Raw, flags, all).unwrap();
        // Until then it hears every interface of the namespace.
        bind(socket.as_raw_fd(), &link.unwrap()).unwrap();
        Raw(socket, link.unwrap())
    }

    fn send(&self, frame: &[u8]) {
        sendto(self.0.as_raw_fd(), frame, &self.1, MsgFlags::empty()).unwrap();
    }

    fn read(&self, buffer: &mut [u8]) -> std::io::Result<usize> {
        Ok(recv(self.0.as_raw_fd(), buffer, MsgFlags::empty())?)
    }
}
