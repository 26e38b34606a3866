//! The same facts behind netd and behind passt, with both kinds of guest and on networks that are not plain.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails it")]

mod facts;

use facts::{Fact, SILENT, address, check, icmp, path, stall, tcp, udp};
use podvirt_e2e::{Backend, BackendOptions, Bed, Boot, NetOptions, PORT, Pod, Privilege, Vhost};

fn all() -> Vec<Fact> {
    [address::facts(), icmp::facts(), tcp::facts(), stall::facts(), udp::facts()]
        .into_iter()
        .flatten()
        .collect()
}

fn facts(backend: Backend, boot: Boot) {
    let options = BackendOptions {
        tcp: vec![PORT, SILENT],
        udp: vec![PORT],
        // The sandbox writes the line; two more come with it.
        dns: Some("10.9.0.1\nnameserver fd00:9::1\nsearch pod.example test.example".into()),
        ..Default::default()
    };
    let mut bed = Bed::new(backend, boot, NetOptions::default(), &options, &Vhost::default()).unwrap();
    // The client is a router that knows of networks that it does not reach or not want.
    let router = "echo 1 >/proc/sys/net/ipv4/ip_forward; echo 1 >/proc/sys/net/ipv6/conf/all/forwarding
        ip route add unreachable 10.99.0.0/16; ip route add prohibit 10.98.0.0/16
        ip route add unreachable fd00:99::/32; ip route add prohibit fd00:98::/32";
    bed.pod.peer("router").run(&["sh", "-ec", router]).unwrap();
    if backend == Backend::Netd {
        unprivileged(&bed.pod);
    }
    check(&mut bed, all());
    bed.guest.shut_down().unwrap();
}

/// passt makes a user namespace, in which it has capabilities; netd needs nothing.
fn unprivileged(pod: &Pod) {
    let processes = pod.processes().unwrap();
    assert!(processes.iter().any(|p| p.name == "netd"), "{processes:?}");
    for process in processes {
        let expected = Privilege {
            name: process.name.clone(),
            uids: vec![107; 4],
            capabilities: 0,
            no_new_privs: true,
            seccomp: 2,
        };
        assert_eq!(process, expected);
    }
}

#[test]
fn facts_netd_uml() {
    facts(Backend::Netd, Boot::Uml);
}

#[test]
fn long_facts_passt_uml() {
    facts(Backend::Passt, Boot::Uml);
}

#[test]
fn facts_netd_qemu() {
    facts(Backend::Netd, Boot::Qemu);
}

#[test]
fn long_facts_passt_qemu() {
    facts(Backend::Passt, Boot::Qemu);
}

fn paths(backend: Backend, net: NetOptions, facts: Vec<Fact>) {
    let options = BackendOptions { tcp: vec![PORT], udp: vec![PORT], ..Default::default() };
    let mut bed = Bed::new(backend, Boot::Uml, net, &options, &Vhost::default()).unwrap();
    check(&mut bed, facts);
    bed.guest.shut_down().unwrap();
}

const NARROW: NetOptions = NetOptions { mtu: None, hop: Some(1400), offlink: false };
const OFF_LINK: NetOptions = NetOptions { mtu: None, hop: None, offlink: true };

#[test]
fn narrow_netd() {
    paths(Backend::Netd, NARROW, path::narrow());
}

#[test]
fn narrow_passt() {
    paths(Backend::Passt, NARROW, path::narrow());
}

#[test]
fn off_link_netd() {
    paths(Backend::Netd, OFF_LINK, path::off_link());
}

#[test]
fn off_link_passt() {
    paths(Backend::Passt, OFF_LINK, path::off_link());
}

#[test]
fn facts_that_differ_are_documented() {
    let page = include_str!("../../docs/compatibility.md");
    let paths = path::narrow().into_iter().chain(path::off_link());
    for fact in all().into_iter().chain(paths).filter(|f| f.netd != f.passt) {
        assert!(
            page.contains(&format!("| **{}** |", fact.topic)),
            "{}: no line for '{}'",
            fact.name,
            fact.topic
        );
    }
}
