//! The guest's link is the pod's: its MTU, its address families, and what changes of them.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails it")]

use std::time::Duration;

use podvirt_e2e::{
    Backend, BackendOptions, Bed, Boot, Family, Guest, Net, NetOptions, PORT, Pod, Vhost, until,
};

/// netd looks again within a second or so of a change.
const SOON: Duration = Duration::from_secs(30);

fn options() -> BackendOptions {
    BackendOptions { tcp: vec![PORT], udp: vec![PORT], ..Default::default() }
}

/// A bed whose pod was changed by these `ip` commands before netd saw it.
fn bed(net: NetOptions, changes: &[&str], kernel: &str) -> Bed {
    let pod = Pod::new(net).unwrap();
    changes.iter().for_each(|change| pod.net.pod.ip(change).unwrap());
    let running = Backend::Netd.start(&pod, &options()).unwrap();
    let vhost = Vhost { kernel: vec![kernel.into()], ..Default::default() };
    let guest = Guest::boot(Boot::Uml, &pod, &vhost).unwrap();
    Bed { backend: Backend::Netd, guest, running, pod }
}

/// The guest's MTU is the pod's, and frames of neither direction are too large for it.
fn mtu(mtu: u16) {
    let mut bed = bed(NetOptions { mtu: Some(mtu), ..Default::default() }, &[], "");
    assert_eq!(bed.guest.said("mtu").unwrap(), mtu.to_string());
    bed.works().unwrap();
    for family in Family::BOTH {
        // An IP header and that of ICMP.
        let headers = if family == Family::V4 { 28 } else { 48 };
        for bytes in [mtu - headers, mtu - headers + 1] {
            bed.ping(family, bytes.into()).unwrap();
        }
        bed.tcp_out(family, 1 << 20).unwrap();
        bed.tcp_in(family.pod(PORT), PORT, 1 << 20).unwrap();
        for bytes in [mtu - headers, 30_000] {
            bed.udp_out(family, bytes.into()).unwrap();
            bed.udp_in(family.pod(PORT), PORT, bytes.into()).unwrap();
        }
    }
    assert_eq!(bed.running.counter("dropped.too_large").unwrap(), 0);
    bed.guest.shut_down().unwrap();
}

#[test]
fn the_least_mtu_of_ipv6_is_the_guests() {
    mtu(1280);
}

#[test]
fn a_jumbo_mtu_is_the_guests() {
    mtu(9000);
}

#[test]
fn a_pod_with_one_family_gives_the_guest_one() {
    let mut four = bed(NetOptions::default(), &["-6 addr flush dev eth0"], "pv.dhcp=4");
    assert_eq!(four.guest.said("ip").unwrap(), format!("{}/24", Net::POD4));
    four.ping(Family::V4, 56).unwrap();
    four.tcp_out(Family::V4, 5000).unwrap();
    four.tcp_in(Family::V4.pod(PORT), PORT, 5000).unwrap();
    assert!(four.running.ask("status").unwrap()["v6"].is_null());
    drop(four);
    let mut six = bed(NetOptions::default(), &["-4 addr flush dev eth0"], "pv.dhcp=6");
    assert_eq!(six.guest.said("ip6").unwrap(), format!("{}/128", Net::POD6));
    six.ping(Family::V6, 56).unwrap();
    six.tcp_out(Family::V6, 5000).unwrap();
    six.tcp_in(Family::V6.pod(PORT), PORT, 5000).unwrap();
    assert!(six.running.ask("status").unwrap()["v4"].is_null());
}

#[test]
fn a_bound_interface_is_all_that_the_guest_has_of_the_pod() {
    let mut pod = Pod::new(NetOptions::default()).unwrap();
    // The client is the peer on the second link from here on.
    (pod.net.client4, pod.net.client6) = ("10.9.2.1".parse().unwrap(), "fd00:9:2::1".parse().unwrap());
    let (own, there) = (&pod.net.pod, &pod.net.client);
    there.ip(&format!("link add eth1 type veth peer name net1 netns {}", own.name())).unwrap();
    for (netns, link, addresses) in
        [(own, "net1", ["10.9.2.2/24", "fd00:9:2::2/64"]), (there, "eth1", ["10.9.2.1/24", "fd00:9:2::1/64"])]
    {
        netns.ip(&format!("link set {link} up")).unwrap();
        netns.ip(&format!("addr add {} dev {link}", addresses[0])).unwrap();
        netns.ip(&format!("addr add {} dev {link} nodad", addresses[1])).unwrap();
    }
    let arguments = ["--interface", "net1", "--bind-interface", "true"].map(str::to_owned).to_vec();
    let running = Backend::Netd.start(&pod, &BackendOptions { arguments, ..options() }).unwrap();
    let guest = Guest::boot(Boot::Uml, &pod, &Vhost::default()).unwrap();
    let mut bed = Bed { backend: Backend::Netd, guest, running, pod };
    assert_eq!(bed.guest.said("ip").unwrap(), "10.9.2.2/24");
    assert_eq!(bed.guest.sh("ip -4 route show default; ip -6 route show default").unwrap(), "");

    // In by it, both protocols and families, and by no other.
    for (address, other) in
        [("10.9.2.2", Net::POD4.to_string()), ("[fd00:9:2::2]", format!("[{}]", Net::POD6))]
    {
        let at = |host: &str| format!("{host}:{PORT}").parse().unwrap();
        bed.tcp_in(at(address), PORT, 100_000).unwrap();
        bed.udp_in(at(address), PORT, 1000).unwrap();
        assert!(bed.pod.net.connect(at(&other)).is_err(), "{other} leads to the guest");
    }
    // Out by it, with its address, where the pod's routes lead elsewhere as well.
    bed.guest.sh("ip route add 10.9.0.0/24 via 10.9.2.1").unwrap();
    for at in ["10.9.2.1:9000", "10.9.0.1:9000"] {
        let listener = bed.pod.net.client.enter(|| Ok(std::net::TcpListener::bind(at)?)).unwrap();
        let out = bed.guest.run(&format!("socat -u /dev/null TCP:{at},connect-timeout=20")).unwrap();
        assert_eq!(out.status, 0, "{at}: {}", out.text);
        let (_, peer) = listener.accept().unwrap();
        assert_eq!(peer.ip().to_string(), "10.9.2.2", "{at}");
    }
    for family in Family::BOTH {
        bed.ping(family, 56).unwrap();
    }
    bed.guest.shut_down().unwrap();
}

#[test]
fn the_guests_link_follows_the_pods() {
    let mut bed = bed(NetOptions::default(), &[], "");
    bed.works().unwrap();
    bed.pod.net.pod.ip("addr del 10.9.0.2/24 dev eth0").unwrap();
    bed.pod.net.pod.ip("addr add 10.9.0.7/24 dev eth0").unwrap();
    bed.pod.net.pod.ip("route replace default via 10.9.0.1 dev eth0").unwrap();
    bed.pod.net.pod.ip("link set eth0 mtu 1400").unwrap();
    until("netd's link", SOON, || {
        let status = bed.running.ask("status")?;
        Ok((status["v4"]["guest"] == "10.9.0.7" && status["mtu"] == 1400).then_some(()))
    })
    .unwrap();
    bed.guest.sh("net-up").unwrap();
    assert_eq!(
        bed.guest.sh("ip -4 -o addr show dev eth0 scope global | awk '{print $4}'").unwrap(),
        "10.9.0.7/24"
    );
    assert_eq!(bed.guest.sh("cat /sys/class/net/eth0/mtu").unwrap(), "1400");
    bed.ping(Family::V4, 56).unwrap();
    bed.tcp_out(Family::V4, 1 << 20).unwrap();
    bed.tcp_in(([10, 9, 0, 7], PORT).into(), PORT, 1 << 20).unwrap();
    bed.tcp_in(Family::V6.pod(PORT), PORT, 1 << 20).unwrap();
    bed.guest.shut_down().unwrap();
}
