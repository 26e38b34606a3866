//! NetworkPolicies about machines that move: at no moment does the guest answer a client that the policy does not name.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::ListParams;
use podvirt_e2e::cluster::{ClientPod, Cluster, Manifest, Namespace, SOON, Security};

use crate::moving::{Machine, Slowly};
use crate::{IN_PLACE, MOVES_IN_PLACE, greeter};

const GREETER: u16 = 7777;
/// What is longer than any answer.
const ANSWER: Duration = Duration::from_secs(3);
/// Attempts behind an event that are enough to tell.
const ENOUGH: usize = 10;

/// A pod that tries to get to the guest all the time, at several addresses.
struct Knocking<'n> {
    client: ClientPod<'n>,
    hosts: BTreeSet<IpAddr>,
}

impl<'n> Knocking<'n> {
    fn start(namespace: &'n Namespace<'n>, name: &str, node: &str) -> Knocking<'n> {
        let client = ClientPod::start(namespace, name, node, "role: stranger").unwrap();
        client.sh("mkdir /tmp/tried /tmp/greeted").unwrap();
        Knocking { client, hosts: BTreeSet::new() }
    }

    /// Tries this address, too, from now on.
    fn knock_at(&mut self, host: IpAddr) {
        if !self.hosts.insert(host) {
            return;
        }
        let at = if host.is_ipv6() { format!("[{host}]") } else { host.to_string() };
        let attempt = format!("socat -T 1 - TCP:{at}:{GREETER},connect-timeout=0.5 </dev/null 2>/dev/null");
        let round = format!(
            "while :; do {attempt} | grep -q GUEST-HELLO && echo >>/tmp/greeted/{host}; echo >>/tmp/tried/{host}; sleep 0.1; done"
        );
        self.client.sh(&format!("setsid sh -c '{round}' >/dev/null 2>&1 &")).unwrap();
    }

    fn count(&self, what: &str, host: IpAddr) -> usize {
        let lines = self.client.sh(&format!("cat /tmp/{what}/{host} 2>/dev/null | wc -l")).unwrap();
        lines.trim().parse().unwrap()
    }

    /// Each address has been tried again and again from now on.
    fn goes_on(&self, namespace: &Namespace<'_>) {
        for &host in &self.hosts {
            let before = self.count("tried", host);
            let more = || Ok((self.count("tried", host) >= before + ENOUGH).then_some(()));
            namespace.until(&format!("attempts at {host}"), SOON, more).unwrap();
        }
    }

    /// How often the guest has answered.
    fn greeted(&self) -> usize {
        self.hosts.iter().map(|host| self.count("greeted", *host)).sum()
    }
}

/// Addresses of all the machine's pods, of one that is just coming up, too.
fn addresses(namespace: &Namespace<'_>) -> BTreeSet<IpAddr> {
    let launchers = ListParams::default().labels("kubevirt.io=virt-launcher");
    let pods = namespace.cluster().block_on(namespace.api::<Pod>().list(&launchers)).unwrap();
    let status = pods.items.into_iter().filter_map(|pod| pod.status);
    status.flat_map(|s| s.pod_ips.unwrap_or_default()).map(|address| address.ip.parse().unwrap()).collect()
}

fn follows(devices: &str, annotations: &str) {
    let cluster = Cluster::get().unwrap();
    let _enforced = cluster.enforce_policies().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let rule = "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: friends}, \
                spec: {podSelector: {matchLabels: {vm: vm}}, policyTypes: [Ingress], \
                ingress: [{from: [{podSelector: {matchLabels: {role: friend}}}]}]}}";
    let service = greeter(&namespace);
    namespace.apply(rule).unwrap();
    let mut machine =
        Machine::start(&namespace, &Manifest { name: "vm", annotations, devices, ..Default::default() });
    let in_place = devices == IN_PLACE;
    if in_place {
        machine = machine.in_place();
    }
    let friend = ClientPod::start(&namespace, "friend", "node1", "role: friend").unwrap();
    let hears = |at: &[IpAddr]| {
        let heard = || Ok((friend.hears(at, GREETER, ANSWER)?.len() == at.len()).then_some(()));
        namespace.until(&format!("a greeting at {at:?}"), SOON, heard).unwrap();
    };
    hears(&[service]);
    let mut strangers =
        [Knocking::start(&namespace, "one", "node1"), Knocking::start(&namespace, "two", "node2")];
    for stranger in &mut strangers {
        stranger.knock_at(service);
        machine.addresses().into_iter().for_each(|address| stranger.knock_at(address));
    }

    let source = machine.pod();
    let slowly = Slowly::by(&namespace, "bandwidthPerMigration: 8Mi, completionTimeoutPerGiB: 10000");
    let known = addresses(&namespace);
    let migration = machine.migrate();
    let target = || Ok(Some(&addresses(&namespace) - &known).filter(|new| new.len() == 2));
    let new = namespace.until("the target's addresses", SOON, target).unwrap();
    for stranger in &mut strangers {
        new.iter().for_each(|address| stranger.knock_at(*address));
    }
    machine.has_moved(&migration, &source);
    drop(slowly);
    let own: BTreeSet<IpAddr> = machine.addresses().into_iter().collect();
    assert_eq!(own, new.into_iter().filter(|at| !in_place || at.is_ipv4()).collect());
    if in_place {
        machine.renews();
    }
    hears(&[service]);
    hears(&machine.addresses());
    for stranger in &strangers {
        stranger.goes_on(&namespace);
        assert_eq!(stranger.greeted(), 0, "{} got to the guest", stranger.client.name());
    }

    // And it would have been noticed.
    namespace.kubectl(&["delete", "networkpolicy", "friends"]).unwrap();
    for stranger in &strangers {
        for at in machine.addresses().into_iter().chain([service]) {
            let greeted = || Ok((stranger.count("greeted", at) > 0).then_some(()));
            namespace.until(&format!("{} at {at}", stranger.client.name()), SOON, greeted).unwrap();
        }
    }
    assert!(machine.pod().name_any() != source.name_any());
}

#[test]
fn long_a_network_policy_holds_at_every_moment_of_a_move() {
    follows("", "");
}

#[test]
fn long_a_network_policy_holds_at_every_moment_of_a_move_behind_masquerade() {
    follows("interfaces: [{name: default, masquerade: {}}]", "");
}

#[test]
fn long_a_network_policy_holds_at_every_moment_of_a_move_behind_the_kernels_masquerade() {
    follows("interfaces: [{name: default, masquerade: {}}]", "podvirt.io/masquerade: nftables");
}

#[test]
fn long_a_network_policy_holds_at_every_moment_of_a_move_in_the_pods_place() {
    follows(IN_PLACE, MOVES_IN_PLACE);
}
