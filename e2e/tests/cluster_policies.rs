//! NetworkPolicies about machines, as an agent carries them out that knows nothing of machines: what holds for a pod holds
//! for the guest in it. Every refusal has its counterpart: the same client got through before, or gets through after.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails it")]

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, Service};
use kube::Api;
use kube::api::ListParams;
use podvirt_api::v1;
use podvirt_e2e::cluster::talk::{GREETER, host};
use podvirt_e2e::cluster::{Binding, ClientPod, Cluster, Guest, Manifest, Namespace, SOON, Security};

/// A byte that is to come.
const COMMAND: Duration = Duration::from_secs(30);
/// What is longer than any answer.
const ANSWER: Duration = Duration::from_secs(2);

/// The port of a second greeter, which `SERVE` starts.
const SECOND: u16 = 7778;
/// The port of a pod's.
const THERE: u16 = 9000;

const SERVE: &str =
    "#cloud-config\nruncmd:\n- socat TCP6-LISTEN:7778,fork,reuseaddr SYSTEM:'echo GUEST-SECOND; cat' &\n";

/// Starts a machine whose guest greets at two ports.
fn start<'n>(namespace: &'n Namespace<'n>, binding: Binding, spec: &str) -> Guest<'n> {
    let manifest = Manifest { name: "vm", user_data: SERVE, spec, ..Default::default() };
    Guest::start(namespace, binding, &manifest, "").unwrap()
}

/// Whether the guest gets to a port of TCP.
fn reaches(guest: &mut Guest<'_>, address: IpAddr, port: u16) -> bool {
    let at = host(address);
    let command = format!("socat -T 3 - TCP:{at}:{port},connect-timeout=3 </dev/null | grep -q THERE");
    guest.succeeds(&command).unwrap()
}

/// The client gets to the guest at this port, by each of its addresses.
fn admits(guest: &Guest<'_>, client: &ClientPod<'_>, port: u16) {
    let all = || {
        let heard = client.hears(&guest.addresses, port, ANSWER)?;
        Ok((heard.len() == guest.addresses.len()).then_some(()))
    };
    guest.namespace.until(&format!("{} at port {port}", client.name()), SOON, all).unwrap();
}

/// The client gets to it at none of its addresses.
fn refuses(guest: &Guest<'_>, client: &ClientPod<'_>, port: u16) {
    let none = || Ok(client.hears(&guest.addresses, port, ANSWER)?.is_empty().then_some(()));
    guest.namespace.until(&format!("{} no longer at port {port}", client.name()), SOON, none).unwrap();
    // By now the agent knows: it holds from here on.
    let at = client.hears(&guest.addresses, port, ANSWER).unwrap();
    assert!(at.is_empty(), "{} at port {port} of {at:?}", client.name());
}

/// A policy about the machine's pod. `spec` is what it has beside its selector.
fn policy(namespace: &Namespace<'_>, name: &str, spec: &str) {
    let manifest = format!(
        "{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: {name}}}, \
         spec: {{podSelector: {{matchLabels: {{vm: vm}}}}, {spec}}}}}"
    );
    // A policy of this name replaces the earlier one whole.
    drop(namespace.kubectl(&["delete", "networkpolicy", name, "--ignore-not-found"]));
    namespace.apply(&manifest).unwrap();
}

fn forget(namespace: &Namespace<'_>, name: &str) {
    namespace.kubectl(&["delete", "networkpolicy", name]).unwrap();
}

const DENY: &str = "policyTypes: [Ingress]";

#[test]
fn a_network_policy_lets_the_pods_it_names_to_the_guest_and_no_others() {
    let cluster = Cluster::get().unwrap();
    let _enforced = cluster.enforce_policies().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let guest = start(&namespace, Binding::PASST, "");
    let friend = ClientPod::start(&namespace, "friend", guest.other_node().unwrap(), "role: friend").unwrap();
    let stranger = ClientPod::start(&namespace, "stranger", guest.node().unwrap(), "role: stranger").unwrap();
    for client in [&friend, &stranger] {
        admits(&guest, client, GREETER);
    }
    let rule = format!(
        "{DENY}, ingress: [{{from: [{{podSelector: {{matchLabels: {{role: friend}}}}}}], ports: [{{port: {GREETER}}}]}}]"
    );
    policy(&namespace, "friends", &rule);
    refuses(&guest, &stranger, GREETER);
    admits(&guest, &friend, GREETER);
    refuses(&guest, &friend, SECOND);
    forget(&namespace, "friends");
    admits(&guest, &stranger, GREETER);
    admits(&guest, &friend, SECOND);
}

/// Ingress by all that a rule can name.
fn ingress(binding: Binding) {
    let cluster = Cluster::get().unwrap();
    let _enforced = cluster.enforce_policies().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let abroad = cluster.namespace(Security::Restricted).unwrap();
    let spec =
        format!("readinessProbe: {{tcpSocket: {{port: {GREETER}}}, periodSeconds: 1, failureThreshold: 1}}");
    let guest = start(&namespace, binding, &spec);
    let here = ClientPod::start(&namespace, "here", guest.node().unwrap(), "role: here").unwrap();
    let there = ClientPod::start(&namespace, "there", guest.other_node().unwrap(), "role: there").unwrap();
    let foreign = ClientPod::start(&abroad, "foreign", guest.other_node().unwrap(), "role: here").unwrap();
    let all = [&here, &there, &foreign];
    for client in all {
        admits(&guest, client, GREETER);
        admits(&guest, client, SECOND);
    }
    let service = format!(
        "{{apiVersion: v1, kind: Service, metadata: {{name: greeter}}, spec: {{selector: {{vm: vm}}, ports: [{{port: {GREETER}}}]}}}}"
    );
    namespace.apply(&service).unwrap();
    let service = namespace.wait("greeter", "the service", SOON, |_: &Service| true).unwrap();
    let service: IpAddr = service.spec.unwrap().cluster_ip.unwrap().parse().unwrap();
    let greets = |client: &ClientPod<'_>| client.hears(&[service], GREETER, ANSWER).map(|at| at.len() == 1);
    namespace.until("a greeting by the service", SOON, || Ok(greets(&there)?.then_some(()))).unwrap();

    // Nothing comes in, by the Service neither; but the node's own probe does, and the guest's own way out is open.
    policy(&namespace, "deny", DENY);
    for client in all {
        refuses(&guest, client, GREETER);
    }
    assert!(!greets(&there).unwrap());
    let mut guest = guest;
    guest.sh("socat -u /dev/null TCP:kubernetes.default:443,connect-timeout=10").unwrap();
    let ready = |i: &v1::VirtualMachineInstance| {
        i.status.conditions.iter().any(|c| c.r#type.as_str() == "Ready" && c.status == "True")
    };
    namespace.wait("vm", "a ready machine", SOON, ready).unwrap();

    // A port for all, and a range of ports.
    policy(&namespace, "some", &format!("{DENY}, ingress: [{{ports: [{{port: {GREETER}}}]}}]"));
    for client in all {
        admits(&guest, client, GREETER);
        refuses(&guest, client, SECOND);
    }
    policy(&namespace, "some", &format!("{DENY}, ingress: [{{ports: [{{port: {SECOND}, endPort: 7800}}]}}]"));
    for client in all {
        admits(&guest, client, SECOND);
        refuses(&guest, client, GREETER);
    }

    // A namespace; pods of the policy's own; pods of another namespace.
    let of =
        |name: &str| format!("namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: {name}}}}}");
    policy(&namespace, "some", &format!("{DENY}, ingress: [{{from: [{{{}}}]}}]", of(abroad.name())));
    admits(&guest, &foreign, GREETER);
    refuses(&guest, &here, GREETER);
    refuses(&guest, &there, GREETER);
    policy(
        &namespace,
        "some",
        &format!("{DENY}, ingress: [{{from: [{{podSelector: {{matchLabels: {{role: here}}}}}}]}}]"),
    );
    admits(&guest, &here, GREETER);
    refuses(&guest, &foreign, GREETER);
    refuses(&guest, &there, GREETER);
    let both = format!("{}, podSelector: {{matchLabels: {{role: there}}}}", of(abroad.name()));
    policy(&namespace, "some", &format!("{DENY}, ingress: [{{from: [{{{both}}}]}}]"));
    for client in all {
        refuses(&guest, client, GREETER);
    }
    abroad.kubectl(&["label", "pod", "foreign", "role=there", "--overwrite"]).unwrap();
    admits(&guest, &foreign, GREETER);

    // Blocks of addresses, of both families: a node's pods but for one, and this process, which is outside of the cluster.
    let other = there.addresses().unwrap();
    let blocks = other.iter().map(|address| match address {
        IpAddr::V4(a) => format!("{{ipBlock: {{cidr: {a}/24, except: [{a}/32]}}}}"),
        IpAddr::V6(a) => format!("{{ipBlock: {{cidr: '{a}/64', except: ['{a}/128']}}}}"),
    });
    let blocks: Vec<String> = blocks.collect();
    policy(&namespace, "some", &format!("{DENY}, ingress: [{{from: [{}]}}]", blocks.join(", ")));
    admits(&guest, &foreign, GREETER);
    refuses(&guest, &there, GREETER);
    refuses(&guest, &here, GREETER);
    let from_here = |address: IpAddr| {
        let mut stream = TcpStream::connect_timeout(&SocketAddr::new(address, GREETER), ANSWER).ok()?;
        stream.set_read_timeout(Some(ANSWER)).ok()?;
        let mut text = [0; 11];
        stream.read_exact(&mut text).ok().filter(|()| &text == b"GUEST-HELLO")
    };
    assert_eq!(from_here(guest.addresses[0]), None);
    policy(
        &namespace,
        "some",
        &format!("{DENY}, ingress: [{{from: [{{ipBlock: {{cidr: {}/32}}}}]}}]", cluster.address()),
    );
    namespace.until("a greeting from outside", SOON, || Ok(from_here(guest.addresses[0]))).unwrap();
    refuses(&guest, &foreign, GREETER);

    // Without policies all is as it was.
    forget(&namespace, "some");
    forget(&namespace, "deny");
    for client in all {
        admits(&guest, client, GREETER);
    }
}

#[test]
fn long_every_kind_of_rule_about_ingress_holds_for_a_guest() {
    ingress(Binding::PASST);
}

#[test]
fn long_every_kind_of_rule_about_ingress_holds_behind_masquerade() {
    ingress(Binding::MASQUERADE);
}

#[test]
fn long_every_kind_of_rule_about_ingress_holds_behind_the_kernels_masquerade() {
    ingress(Binding::BY_KERNEL);
}

#[test]
fn long_every_kind_of_rule_about_ingress_holds_in_the_pods_place() {
    ingress(Binding::BRIDGE);
}

/// Egress: the guest's way out is the pod's, names included.
fn egress(binding: Binding) {
    let cluster = Cluster::get().unwrap();
    let _enforced = cluster.enforce_policies().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let mut guest = start(&namespace, binding, "");
    let one = ClientPod::start(&namespace, "one", guest.node().unwrap(), "role: one").unwrap();
    let two = ClientPod::start(&namespace, "two", guest.other_node().unwrap(), "role: two").unwrap();
    for server in [&one, &two] {
        server
            .sh(&format!("socat TCP6-LISTEN:{THERE},fork,reuseaddr SYSTEM:'echo THERE' >/dev/null 2>&1 &"))
            .unwrap();
    }
    let [first, second] = [&one, &two].map(|server| {
        let all = server.addresses().unwrap().into_iter();
        all.filter(|address| binding.ipv6 || address.is_ipv4()).collect::<Vec<IpAddr>>()
    });
    let name = "nslookup kubernetes.default.svc.cluster.local >/dev/null";
    let within = namespace.name().to_owned();
    let gets_to = |guest: &mut Guest<'_>, to: &[IpAddr]| {
        for &address in to {
            let what = format!("the guest at {address} in {within}");
            guest.namespace.until(&what, SOON, || Ok(reaches(guest, address, THERE).then_some(()))).unwrap();
        }
    };
    let is_kept_from = |guest: &mut Guest<'_>, to: &[IpAddr]| {
        for &address in to {
            let what = format!("the guest no longer at {address}");
            guest
                .namespace
                .until(&what, SOON, || Ok((!reaches(guest, address, THERE)).then_some(())))
                .unwrap();
        }
        assert!(!to.iter().any(|address| reaches(guest, *address, THERE)));
    };
    let deny = "policyTypes: [Egress]";
    gets_to(&mut guest, &first);
    gets_to(&mut guest, &second);
    guest.sh(name).unwrap();

    policy(&namespace, "out", deny);
    is_kept_from(&mut guest, &first);
    is_kept_from(&mut guest, &second);
    assert!(!guest.succeeds(name).unwrap());
    admits(&guest, &one, GREETER);

    let dns = "{to: [{namespaceSelector: {}, podSelector: {matchLabels: {k8s-app: kube-dns}}}], ports: [{port: 53, protocol: UDP}]}";
    policy(
        &namespace,
        "out",
        &format!(
            "{deny}, egress: [{dns}, {{to: [{{podSelector: {{matchLabels: {{role: two}}}}}}], ports: [{{port: {THERE}}}]}}]"
        ),
    );
    gets_to(&mut guest, &second);
    is_kept_from(&mut guest, &first);
    namespace.until("a name", SOON, || Ok(guest.succeeds(name)?.then_some(()))).unwrap();

    let four: Vec<IpAddr> = first.iter().copied().filter(IpAddr::is_ipv4).collect();
    policy(&namespace, "out", &format!("{deny}, egress: [{{to: [{{ipBlock: {{cidr: {}/32}}}}]}}]", four[0]));
    gets_to(&mut guest, &four);
    is_kept_from(&mut guest, &second);
    let six: Vec<IpAddr> = first.iter().copied().filter(IpAddr::is_ipv6).collect();
    is_kept_from(&mut guest, &six);

    forget(&namespace, "out");
    gets_to(&mut guest, &first);
    gets_to(&mut guest, &second);
    guest.sh(name).unwrap();
}

#[test]
fn long_every_kind_of_rule_about_egress_holds_for_a_guest() {
    egress(Binding::PASST);
}

#[test]
fn long_every_kind_of_rule_about_egress_holds_behind_masquerade() {
    egress(Binding::MASQUERADE);
}

#[test]
fn long_every_kind_of_rule_about_egress_holds_behind_the_kernels_masquerade() {
    egress(Binding::BY_KERNEL);
}

#[test]
fn long_every_kind_of_rule_about_egress_holds_in_the_pods_place() {
    egress(Binding::BRIDGE);
}

/// What stands when a policy comes goes on, as it does for any pod by this agent; what is new is refused.
fn established(binding: Binding) {
    let cluster = Cluster::get().unwrap();
    let _enforced = cluster.enforce_policies().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let guest = start(&namespace, binding, "");
    let client = ClientPod::start(&namespace, "client", guest.other_node().unwrap(), "role: client").unwrap();
    admits(&guest, &client, GREETER);
    let mut standing: Vec<TcpStream> = guest
        .addresses
        .iter()
        .map(|address| {
            let stream = TcpStream::connect_timeout(&SocketAddr::new(*address, GREETER), ANSWER).unwrap();
            stream.set_read_timeout(Some(COMMAND)).unwrap();
            stream
        })
        .collect();
    let mut echoes = |word: &str| {
        for stream in &mut standing {
            stream.write_all(word.as_bytes()).unwrap();
            let mut heard = Vec::new();
            while !heard.ends_with(word.as_bytes()) {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                heard.extend(byte);
            }
        }
    };
    echoes("before");
    policy(&namespace, "deny", DENY);
    refuses(&guest, &client, GREETER);
    for address in &guest.addresses {
        TcpStream::connect_timeout(&SocketAddr::new(*address, GREETER), ANSWER).unwrap_err();
    }
    echoes("under the policy");
    forget(&namespace, "deny");
    admits(&guest, &client, GREETER);
    echoes("after it");
}

#[test]
fn long_connections_that_stand_go_on_under_a_new_policy() {
    established(Binding::PASST);
}

#[test]
fn long_connections_that_stand_behind_masquerade_go_on_under_a_new_policy() {
    established(Binding::MASQUERADE);
}

#[test]
fn long_connections_that_stand_behind_the_kernels_masquerade_go_on_under_a_new_policy() {
    established(Binding::BY_KERNEL);
}

#[test]
fn long_connections_that_stand_in_the_pods_place_go_on_under_a_new_policy() {
    established(Binding::BRIDGE);
}

/// Whether a connection to a port of a pod of podvirt's is taken.
fn connects(client: &ClientPod<'_>, (address, port): (IpAddr, u16)) -> bool {
    let at = host(address);
    client.sh(&format!("socat -u /dev/null TCP:{at}:{port},connect-timeout=2 2>/dev/null")).is_ok()
}

/// The address of one of podvirt's daemons, with its port of this name.
fn daemon(cluster: &Cluster, label: &str, port: &str) -> (IpAddr, u16) {
    let pods: Api<Pod> = Api::namespaced(cluster.client(), "kubevirt");
    let list = ListParams::default().labels(&format!("kubevirt.io={label}"));
    let pods = cluster.block_on(pods.list(&list)).unwrap().items;
    let running = |pod: &Pod| pod.status.as_ref().is_some_and(|s| s.phase.as_deref() == Some("Running"));
    let pod = pods.into_iter().find(running).unwrap();
    let containers = pod.spec.unwrap().containers;
    let mut ports = containers.into_iter().flat_map(|c| c.ports.unwrap_or_default());
    let number = ports.find(|p| p.name.as_deref() == Some(port)).unwrap().container_port;
    (pod.status.unwrap().pod_ip.unwrap().parse().unwrap(), number.try_into().unwrap())
}

/// podvirt's own policies, carried out: the daemons are closed to all but what they are for, and podvirt goes on by what is open.
#[test]
fn long_the_daemons_are_closed_to_pods_that_have_no_business_there() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let watching = cluster.namespace(Security::Restricted).unwrap();
    cluster.kubectl(&["label", "namespace", watching.name(), "podvirt.io/metrics=allowed"]).unwrap();
    let stranger = ClientPod::start(&namespace, "stranger", "node1", "role: stranger").unwrap();
    let monitor = ClientPod::start(&watching, "monitor", "node2", "role: monitor").unwrap();
    let port = |label: &str, name: &str| daemon(&cluster, label, name);
    let webhooks = port("virt-api", "https");
    let console = port("virt-handler", "console");
    let metrics = ["virt-api", "virt-controller", "virt-handler"].map(|label| port(label, "metrics"));
    for at in metrics.into_iter().chain([webhooks, console]) {
        assert!(connects(&stranger, at) && connects(&monitor, at), "{at:?}: not open before");
    }

    let _enforced = cluster.enforce_policies().unwrap();
    let closed = |client: &ClientPod<'_>, at: (IpAddr, u16)| {
        let silent = || Ok((!connects(client, at)).then_some(()));
        namespace.until(&format!("{} no longer at {at:?}", client.name()), SOON, silent).unwrap();
        assert!(!connects(client, at), "{} at {at:?}", client.name());
    };
    closed(&stranger, console);
    closed(&monitor, console);
    for at in metrics {
        closed(&stranger, at);
        assert!(connects(&monitor, at), "{at:?}");
    }
    assert!(connects(&stranger, webhooks) && connects(&monitor, webhooks));
    // A machine starts, and its console leads from virt-api to virt-handler.
    let mut guest = start(&namespace, Binding::PASST, "");
    assert_eq!(guest.sh("echo back").unwrap(), "back");
}
