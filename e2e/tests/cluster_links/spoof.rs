//! Guests that send what is not theirs on the pod's network: with another address, with tags, of hosts behind them.
//!
//! netd carries none of it and counts it; the kernel's masquerade drops other IP addresses and frames with tags; in the pod's place a
//! guest is a host of the segment, and nothing of podvirt's stands between.

use podvirt_e2e::cluster::{Binding, Cluster, Guest, Manifest, SOON, Security};

use crate::{on, start};

/// The control plane, to which the node leads.
const HERE: &str = "192.168.77.100";
/// A host that answers frames with a tag on the pods' network of node 1.
const TAGGED: &str = "10.55.0.2";

/// Whether an answer comes to one of a few echo requests, sent as `more` says.
fn answers(guest: &mut Guest<'_>, more: &str, to: &str) -> bool {
    guest.succeeds(&format!("ping -c 3 -W 2 {more} {to}")).unwrap()
}

/// What is sent goes nowhere, and netd counts it under this reason.
fn is_counted(guest: &mut Guest<'_>, reason: &str, send: &str) {
    let before = guest.dropped(0, reason).unwrap();
    assert!(!guest.succeeds(send).unwrap(), "{send}");
    let counts = || Ok((guest.dropped(0, reason)? > before).then_some(()));
    guest.namespace.until(&format!("a count of {reason}"), SOON, counts).unwrap();
}

/// What joins the guest with a VLAN by a card.
pub(crate) fn tagged(card: &str, address: &str) -> String {
    format!(
        "modprobe 8021q; ip link add link {card} name tagged type vlan id 5; ip addr add {address}/24 dev tagged; ip link set tagged up"
    )
}

/// A host behind the guest: in a network of its own, joined with the card by a bridge, which makes the card listen to all.
/// Answers its MAC address. By its path: the shell has a smaller `ip` of its own.
pub(crate) fn host_behind(guest: &mut Guest<'_>, card: &str, address: &str) -> String {
    guest
        .sh(&format!(
            "modprobe -a bridge veth; I=/bin/ip; $I netns add behind; $I link add v0 type veth peer name v1; $I link set v1 netns behind; \
             $I link add inner type bridge; for d in {card} v0; do $I link set $d master inner; $I link set $d up; done; \
             $I link set inner up; $I -n behind addr add {address}/24 dev v1; $I -n behind link set v1 up; \
             $I netns exec behind cat /sys/class/net/v1/address"
        ))
        .unwrap()
}

/// Runs a command at the host behind the guest.
pub(crate) const BEHIND: &str = "/bin/ip netns exec behind";
/// Takes it away.
pub(crate) const ALONE: &str = "/bin/ip link del inner; /bin/ip netns del behind";

/// By netd, which serves the guest's only card: `own` is the guest's address, `other` an address of the same network that no host has,
/// and `to` a host that answers.
pub(crate) fn is_refused(guest: &mut Guest<'_>, own: &str, other: &str, to: &str) {
    let card = "eth0";
    assert!(answers(guest, &format!("-I {own}"), to));
    // Another IP address beside its own.
    guest.sh(&format!("ip addr add {other}/32 dev {card}")).unwrap();
    is_counted(guest, "spoofed", &format!("ping -c 3 -W 2 -I {other} {to}"));
    assert!(answers(guest, &format!("-I {own}"), to));
    // A tag.
    guest.sh(&tagged(card, "10.55.0.1")).unwrap();
    is_counted(guest, "unknown_protocol", &format!("ping -c 3 -W 2 {TAGGED}"));
    guest.sh("ip link del tagged").unwrap();
    // Another MAC address, and back.
    let mac = guest.sh(&format!("cat /sys/class/net/{card}/address")).unwrap();
    guest.sh(&format!("ip link set {card} address 02:00:00:00:99:01")).unwrap();
    is_counted(guest, "spoofed", &format!("ping -c 3 -W 2 -I {own} {to}"));
    guest.sh(&format!("ip link set {card} address {mac}")).unwrap();
    assert!(answers(guest, &format!("-I {own}"), to));
    // A host behind it.
    host_behind(guest, card, "10.55.1.2");
    is_counted(guest, "spoofed", &format!("{BEHIND} ping -c 3 -W 2 10.55.1.1"));
    guest.sh(ALONE).unwrap();
    assert!(answers(guest, &format!("-I {own}"), to));
}

/// By the kernel: whether another IP address, or a frame with a tag, gets anywhere is said by `others`; its own address does, whatever the
/// MAC address is.
fn is_let(guest: &mut Guest<'_>, own: &str, other: &str, others: bool) {
    let namespace = guest.namespace;
    let gateway = guest.sh("ip -4 route show default | awk '{print $3}'").unwrap();
    assert!(answers(guest, "", HERE));
    guest.sh(&format!("ip addr add {other}/24 dev eth0")).unwrap();
    assert_eq!(answers(guest, &format!("-I {other}"), HERE), others);
    guest
        .sh(&format!("ip addr del {other}/24 dev eth0; ip link set eth0 address 02:00:00:00:99:01; ip neigh flush dev eth0"))
        .unwrap();
    let goes_on = || Ok(answers(guest, &format!("-I {own}"), HERE).then_some(()));
    namespace.until("an answer by another MAC address", SOON, goes_on).unwrap();
    // A tag.
    guest.sh(&tagged("eth0", "10.55.0.1")).unwrap();
    assert_eq!(answers(guest, "", TAGGED), others);
    guest.sh("ip link del tagged").unwrap();
    // A host behind it.
    host_behind(guest, "eth0", other);
    guest.sh(&format!("/bin/ip -n behind route add default via {gateway}")).unwrap();
    assert_eq!(guest.succeeds(&format!("{BEHIND} ping -c 3 -W 2 {HERE}")).unwrap(), others);
}

/// The guest's IPv4 address.
pub(crate) fn own(guest: &mut Guest<'_>) -> String {
    guest.sh("ip -4 -o addr show dev eth0 scope global | awk '{print $4}' | cut -d/ -f1").unwrap()
}

/// An address of the same network of 256 that no host has.
pub(crate) fn other(own: &str) -> String {
    format!("{}.253", own.rsplit_once('.').unwrap().0)
}

#[test]
fn long_a_guest_that_sends_what_is_not_its_own_gets_as_far_as_its_binding_lets_it() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    // By hairpins the node's bridge would send back to a port what came by it, and a bridge in the guest would learn that its own
    // hosts are outside.
    let plain = namespace
        .first_network("plain", cluster.node(1), |plugins| plugins[0]["hairpinMode"] = false.into())
        .unwrap();
    let peer = Manifest { name: "peer", annotations: &plain, spec: &on("node1"), ..Default::default() };
    Binding::BRIDGE.apply(&namespace, &peer, "").unwrap();
    let guests = start(&namespace, &Binding::ALL, &plain, "");
    let mut peer = Guest::of(&namespace, "peer").unwrap();
    peer.sh(&tagged("eth0", TAGGED)).unwrap();
    for (binding, mut guest) in guests {
        println!("{}", binding.name);
        let own = own(&mut guest);
        let other = other(&own);
        if binding.by_netd() {
            is_refused(&mut guest, &own, &other, HERE);
        } else {
            is_let(&mut guest, &own, &other, binding.name == Binding::BRIDGE.name);
        }
    }
}
