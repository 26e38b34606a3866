//! Attachments in real network namespaces.

use std::net::{IpAddr, UdpSocket};

use podvirt_api::mac::MacAddr;
use rtnetlink::{LinkUnspec, LinkVeth};
use serde_json::json;

use super::attach::{self, Plan};
use super::bed::{Ear, PodNet, attachment, interfaces, network, on_node};
use super::{NetError, activate, announce_again, netns, silence, silent_interfaces};
use crate::config::Network;
use crate::result::Expected;

const RARP: u16 = 0x8035;
const ARP: u16 = 0x0806;
const IPV6: u16 = 0x86dd;

fn mac(last: u8) -> MacAddr {
    MacAddr([0x02, 0x70, 172, 30, 0, last])
}

pub(super) fn make(
    network: &Network,
    pod: &PodNet,
    container: &str,
    last: u8,
    silent: bool,
) -> Result<(), NetError> {
    let addresses =
        [format!("172.30.0.{last}/24"), format!("fd00:30::{last}/64")].map(|a| a.parse().unwrap());
    let attachment = attachment(container);
    let plan = Plan { attachment: &attachment, network, addresses: &addresses, mac: mac(last), silent };
    attach::make(&plan, &pod.0).map(|_| ())
}

pub(super) fn v4(last: u8) -> IpAddr {
    [172, 30, 0, last].into()
}

pub(super) fn v6(last: u8) -> IpAddr {
    format!("fd00:30::{last}").parse().unwrap()
}

#[test]
fn pods_on_a_bridge_talk_over_both_families_at_once() {
    on_node(|| {
        let (one, two, network) = (PodNet::new(), PodNet::new(), network(&json!({})));
        make(&network, &one, "one", 9, false).unwrap();
        make(&network, &two, "two", 10, false).unwrap();
        for address in [v4(9), v6(9)] {
            let server = one.serve(address, "one");
            assert_eq!(two.ask(address), "one");
            server.join().unwrap();
        }
    });
}

#[test]
fn an_interface_that_is_not_silent_is_announced_when_it_is_made() {
    on_node(|| {
        let (pod, mut ear) = (PodNet::new(), Ear::new());
        make(&network(&json!({})), &pod, "one", 9, false).unwrap();
        ear.hear(mac(9), &[RARP, ARP, IPV6]);
    });
}

/// Whatever the pod does meanwhile, no frame of it is heard; then the announcement is.
fn nothing_is_heard_before_the_activation(network: &Network) {
    let (pod, mut ear) = (PodNet::new(), Ear::new());
    make(network, &pod, "target", 9, true).unwrap();
    assert!(pod.enter(|| silence::is_silent("net1")).unwrap());
    pod.enter(|| {
        for (own, peer) in [("172.30.0.9:0", "172.30.0.10:9"), ("[fd00:30::9]:0", "[fd00:30::10]:9")] {
            let socket = UdpSocket::bind(own).unwrap();
            // The datagram waits for the neighbour's Ethernet address, and no host is asked for it.
            socket.send_to(b"x", peer).unwrap();
        }
    });
    // Sent by packet socket, as an answer of the guest would be: the hook drops it, which some kernels tell.
    let frames = super::announce::frames(mac(9), &[v4(9), v6(9)]);
    let _dropped = pod.enter(|| super::announce::send("net1", &frames[1..]));

    // What was heard until here was heard before the mark.
    let mark = super::announce::frames(mac(99), &[]);
    super::announce::send("br1", &mark).unwrap();
    assert_eq!(ear.count_until(mac(9), mac(99)), 0, "the target is heard before its activation");

    assert_eq!(silent_interfaces(&pod.0).unwrap(), ["net1"]);
    let activated = activate(&pod.0, "net1", None).unwrap();
    assert!(activated.was_silent && activated.mac == mac(9));
    assert_eq!(activated.addresses, [v4(9), v6(9)]);
    ear.hear(mac(9), &[RARP, ARP, IPV6]);
    assert!(!pod.enter(|| silence::is_silent("net1")).unwrap());

    let again = activate(&pod.0, "net1", Some(mac(77))).unwrap();
    assert!(!again.was_silent);
    ear.hear(mac(77), &[RARP, ARP, IPV6]);
    announce_again(&pod.0, "net1", &activated).unwrap();
    ear.hear(mac(9), &[RARP]);
}

#[test]
fn a_target_on_a_bridge_is_not_heard_before_its_activation() {
    on_node(|| nothing_is_heard_before_the_activation(&network(&json!({}))));
}

#[test]
fn a_target_on_macvlan_is_not_heard_before_its_activation() {
    on_node(|| {
        nothing_is_heard_before_the_activation(&network(&json!({"mode": "macvlan", "master": "up1"})));
    });
}

#[test]
fn silence_may_be_made_and_lifted_again_and_again() {
    on_node(|| {
        let (pod, network) = (PodNet::new(), network(&json!({})));
        make(&network, &pod, "one", 9, true).unwrap();
        pod.enter(|| silence::silence("net1")).unwrap();
        assert!(pod.enter(|| silence::is_silent("net1")).unwrap());
        assert!(pod.enter(|| silence::lift("net1")).unwrap());
        assert!(!pod.enter(|| silence::lift("net1")).unwrap());
        assert!(!pod.enter(|| silence::is_silent("net1")).unwrap());
        let error = pod.enter(|| silence::silence("net9")).unwrap_err();
        assert!(error.to_string().contains("net9"), "{error}");
        assert!(!pod.enter(|| silence::is_silent("net9")).unwrap(), "all of it or nothing");
    });
}

#[test]
fn removing_may_be_done_again_and_again_and_leaves_nothing() {
    on_node(|| {
        for changes in [json!({}), json!({"mode": "macvlan", "master": "up1"})] {
            let (pod, network, before) = (PodNet::new(), network(&changes), interfaces());
            attach::remove(&attachment("one"), &network, Some(&pod.0)).unwrap();
            make(&network, &pod, "one", 9, true).unwrap();
            for _ in 0..2 {
                attach::remove(&attachment("one"), &network, Some(&pod.0)).unwrap();
                assert_eq!(interfaces(), before);
                assert_eq!(pod.enter(interfaces), ["lo"]);
                assert!(!pod.enter(|| silence::is_silent("net1")).unwrap());
            }
            make(&network, &pod, "one", 9, false).unwrap();
            // As when the namespace is gone.
            attach::remove(&attachment("one"), &network, None).unwrap();
            assert_eq!(interfaces(), before);
        }
    });
}

#[test]
fn what_a_killed_add_has_left_is_removed() {
    on_node(|| {
        let (pod, network, before) = (PodNet::new(), network(&json!({})), interfaces());
        // The first thing that is made, before it has an alias.
        let name = attach::host_name(&attachment("one"), &network);
        netns::inside(None, |handle| async move {
            let pair = LinkVeth::new(&name, "half-made").build();
            handle.link().add(pair).execute().await.map_err(NetError::netlink("make a pair"))
        })
        .unwrap();
        assert!(make(&network, &pod, "one", 9, false).is_err());
        attach::remove(&attachment("one"), &network, Some(&pod.0)).unwrap();
        assert_eq!(interfaces(), before);
        make(&network, &pod, "one", 9, false).unwrap();
    });
}

#[test]
fn what_fails_half_way_leaves_nothing() {
    on_node(|| {
        let routes = json!({
            "ranges": [[{"subnet": "172.30.0.0/24"}], [{"subnet": "fd00:30::/64"}]],
            "routes": [{"dst": "10.0.0.0/8", "gw": "172.30.0.1"}, {"dst": "10.0.0.0/8", "gw": "172.30.0.1"}],
        });
        for changes in [json!({"ipam": routes}), json!({"ipam": routes, "mode": "macvlan", "master": "up1"})]
        {
            let (pod, network, before) = (PodNet::new(), network(&changes), interfaces());
            let error = make(&network, &pod, "one", 9, true).unwrap_err();
            assert!(error.to_string().contains("10.0.0.0/8"), "{error}");
            assert_eq!(interfaces(), before);
            assert_eq!(pod.enter(interfaces), ["lo"]);
        }
        let (pod, before) = (PodNet::new(), interfaces());
        let missing = make(&network(&json!({"bridge": "br9"})), &pod, "one", 9, false).unwrap_err();
        assert!(missing.to_string().contains("br9"), "{missing}");
        let kind = make(&network(&json!({"bridge": "up1"})), &pod, "one", 9, false).unwrap_err();
        assert!(kind.to_string().contains("no bridge"), "{kind}");
        assert_eq!(interfaces(), before);
    });
}

#[test]
fn collecting_removes_what_is_in_no_list_and_only_of_this_network() {
    on_node(|| {
        let (flat, other) = (network(&json!({})), network(&json!({"name": "flat:2".replace(':', "-")})));
        let pods = [PodNet::new(), PodNet::new(), PodNet::new()];
        make(&flat, &pods[0], "one", 9, false).unwrap();
        make(&flat, &pods[1], "two", 10, false).unwrap();
        make(&other, &pods[2], "three", 11, false).unwrap();
        let removed = attach::collect(&flat, &[attachment("two")]).unwrap();
        assert_eq!(removed, ["podvirt-cni:flat:one:net1"]);
        assert_eq!(pods[0].enter(interfaces), ["lo"]);
        assert!(pods[1].enter(interfaces).contains(&"net1".to_owned()));
        assert!(pods[2].enter(interfaces).contains(&"net1".to_owned()));
    });
}

#[test]
fn a_check_finds_what_has_changed() {
    on_node(|| {
        let (pod, network) = (PodNet::new(), network(&json!({})));
        make(&network, &pod, "one", 9, false).unwrap();
        let one = attachment("one");
        let mut expected = Expected {
            addresses: ["172.30.0.9/24", "fd00:30::9/64"].map(|a| a.parse().unwrap()).into(),
            mac: mac(9),
        };
        let check = |expected: &Expected| attach::check(&one, &network, expected, &pod.0);
        check(&expected).unwrap();
        expected.mac = mac(8);
        assert!(check(&expected).unwrap_err().to_string().contains("MAC"));
        expected.mac = mac(9);
        expected.addresses.push("172.30.0.8/24".parse().unwrap());
        assert!(check(&expected).unwrap_err().to_string().contains("172.30.0.8"));
        expected.addresses.pop();
        netns::inside(Some(&pod.0), |handle| async move {
            let index = attach::required(&handle, "net1", "in the pod").await?.header.index;
            handle.link().set(LinkUnspec::new_with_index(index).down().build()).execute().await.unwrap();
            Ok(())
        })
        .unwrap();
        assert!(check(&expected).unwrap_err().to_string().contains("down"));
        attach::remove(&one, &network, None).unwrap();
        assert!(matches!(check(&expected), Err(NetError::Missing { .. })));
    });
}
