//! Istio's ambient mode: nothing is injected, the node redirects what the pod sends and gets.
//!
//! The node's agent is a privileged pod, as Istio's is. It enters the network namespace of the launcher pod, writes the
//! rules there and runs the proxy (`mesh-agent ambient`) in the place of ztunnel, which keeps the client's address.

use podvirt_e2e::cluster::mesh::{IMAGE, rules};
use podvirt_e2e::cluster::{Binding, Manifest, Namespace, SOON, Security};

use crate::machine::{
    GREETER, Machine, WEB, cluster, connect, datagram_from_guest, echo, echoes, from_guest, get, greeted,
    host,
};
use crate::policy::closed_to_tcp;

/// The agent of a node.
struct Agent<'n> {
    namespace: &'n Namespace<'n>,
    /// A process in the pod, as the node numbers it.
    process: String,
}

impl<'n> Agent<'n> {
    fn start(namespace: &'n Namespace<'n>, machine: &Machine<'_>) -> Agent<'n> {
        let node = machine.pod.spec.as_ref().unwrap().node_name.clone().unwrap();
        let pod = serde_json::json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "agent"},
            "spec": {"nodeName": node, "hostNetwork": true, "hostPID": true, "terminationGracePeriodSeconds": 1,
                "containers": [{"name": "agent", "image": IMAGE, "command": ["sleep", "infinity"],
                    "securityContext": {"privileged": true, "runAsUser": 0}}]}});
        namespace.apply(&pod.to_string()).unwrap();
        namespace.wait_pod("agent", SOON).unwrap();
        let owner = &machine.pod.metadata.owner_references.as_ref().unwrap()[0];
        let mut agent = Agent { namespace, process: String::new() };
        let found = agent.sh(&format!("pgrep -f '^/usr/bin/virt-launche[r] pod .*--uid {}'", owner.uid));
        agent.process = found.lines().next().unwrap().to_owned();
        agent
    }

    fn sh(&self, command: &str) -> String {
        self.namespace.exec("agent", &["sh", "-ec", command]).unwrap()
    }

    /// A script in the pod's network.
    fn inside(&self, script: &str) -> String {
        self.sh(&format!("nsenter -t {} -n sh -e <<'SCRIPT'\n{script}\nSCRIPT", self.process))
    }

    /// Takes the pod into the mesh.
    fn enroll(&self) {
        self.inside(&format!("{}nft -f - <<'RULES'\n{}RULES", rules::AMBIENT_ROUTES, rules::ambient()));
    }

    fn start_proxy(&self) {
        self.inside("mesh-agent ambient >>/tmp/proxy.log 2>&1 & echo $! >/tmp/proxy.pid");
        self.namespace.until("the proxy", SOON, || Ok((self.log("ready") > 0).then_some(()))).unwrap();
    }

    fn stop_proxy(&self) {
        self.sh("kill -KILL $(cat /tmp/proxy.pid); rm /tmp/proxy.log");
    }

    /// How many lines of the proxy begin so.
    fn log(&self, start: &str) -> usize {
        self.sh("cat /tmp/proxy.log").lines().filter(|line| line.starts_with(start)).count()
    }
}

#[test]
fn long_ambient_keeps_the_clients_address_in_a_restricted_namespace() {
    keeps_the_clients_address(Binding::PASST);
}

#[test]
fn long_ambient_keeps_the_clients_address_for_a_machine_behind_masquerade() {
    keeps_the_clients_address(Binding::MASQUERADE);
}

fn keeps_the_clients_address(binding: Binding) {
    let cluster = cluster();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let nodes = cluster.namespace(Security::Privileged).unwrap();
    cluster.kubectl(&["label", "namespace", namespace.name(), "istio.io/dataplane-mode=ambient"]).unwrap();
    let manifest = Manifest { name: "vm", ..Default::default() };
    let mut machine = Machine::start(&namespace, binding, &manifest);
    machine.is_served();
    let agent = Agent::start(&nodes, &machine);
    agent.enroll();

    // Without the proxy nothing of TCP passes: what passes with it passes by way of it.
    for &address in &machine.addresses {
        assert!(connect(address, GREETER).is_err());
        echo(address).unwrap();
    }
    agent.start_proxy();
    for (address, here) in machine.addresses.clone().into_iter().zip(machine.here) {
        let page = get(address, WEB, "/live").unwrap();
        assert!(page.contains(" 200 OK"), "{page}");
        let (mut stream, seen) = greeted(address, GREETER).unwrap();
        assert_eq!(seen, here, "the guest sees the client");
        echoes(&mut stream).unwrap();
        echo(address).unwrap();
        assert_eq!(agent.log(&format!("in {here} -> {}:{GREETER}", host(address))), 1);
        assert_eq!(from_guest(&mut machine, here), (address, "a line of the guest".to_owned()));
        assert_eq!(agent.log(&format!("out {address} -> {}", host(here))), 1);
        assert_eq!(datagram_from_guest(&mut machine, here), address);
    }

    // The kubelet's probes go past the proxy: a rule of the node lets them come from an address of the mesh's.
    agent.sh(&format!(
        "ip addr add {}/32 dev lo; ip addr add {}/128 dev lo nodad",
        rules::PROBES[0],
        rules::PROBES[1]
    ));
    let was = agent.log("in ");
    for (address, from) in machine.addresses.iter().zip(rules::PROBES) {
        let from = if from.contains(':') { format!("[{from}]") } else { from.to_owned() };
        let probe = format!("echo | socat -T 5 - TCP:{}:{GREETER},bind={from}", host(*address));
        let said = agent.sh(&probe);
        let seen =
            said.lines().next().unwrap().strip_prefix("GUEST-HELLO to ").unwrap().trim_matches(['[', ']']);
        let seen: std::net::IpAddr = seen.parse().unwrap();
        assert_eq!(seen, from.trim_matches(['[', ']']).parse::<std::net::IpAddr>().unwrap());
    }
    assert_eq!(agent.log("in "), was);
    agent.sh(&format!(
        "ip addr del {}/32 dev lo; ip addr del {}/128 dev lo",
        rules::PROBES[0],
        rules::PROBES[1]
    ));

    // The proxy's end: TCP is refused and UDP goes on, until there is another.
    agent.stop_proxy();
    assert!(connect(machine.addresses[0], GREETER).is_err());
    echo(machine.addresses[0]).unwrap();
    agent.start_proxy();
    greeted(machine.addresses[0], GREETER).unwrap();
}

/// The rules of the mesh know the packets of the pod's processes. Those of a guest behind the kernel's masquerade are forwarded: what it
/// sends is taken for what comes in, and what comes in gets to it past the proxy, or not at all. So a machine whose labels
/// ask for the ambient mode is refused. The machine of this test has no such label: the label of its namespace asks for the mode.
#[test]
fn long_ambient_does_not_carry_a_guest_behind_the_kernels_masquerade() {
    let cluster = cluster();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let nodes = cluster.namespace(Security::Privileged).unwrap();
    let interface = format!("interfaces: [{{name: default, {}}}]", Binding::BY_KERNEL.interface);
    let asks = Manifest {
        name: "asks",
        annotations: Binding::BY_KERNEL.annotations,
        devices: &interface,
        ..Default::default()
    };
    let by_label = asks.machine().replace("{labels: {", "{labels: {istio.io/dataplane-mode: ambient, ");
    let annotations = format!("{}, linkerd.io/inject: enabled", asks.annotations);
    let by_annotation = Manifest { annotations: &annotations, ..asks }.machine();
    for (machine, key) in [(by_label, "istio.io/dataplane-mode"), (by_annotation, "linkerd.io/inject")] {
        let said = namespace.apply(&machine).unwrap_err().to_string();
        let field = "spec.template.spec.domain.devices.interfaces[0].masquerade";
        assert!(said.contains(field) && said.contains(key), "{said}");
    }

    cluster.kubectl(&["label", "namespace", namespace.name(), "istio.io/dataplane-mode=ambient"]).unwrap();
    let manifest = Manifest { name: "vm", ..Default::default() };
    let mut machine = Machine::start(&namespace, Binding::BY_KERNEL, &manifest);
    machine.is_served();
    let agent = Agent::start(&nodes, &machine);
    agent.enroll();
    agent.start_proxy();
    // The rules of the mesh that came last are asked first: the proxy finds no listener at the pod's address.
    for &address in &machine.addresses {
        let failed = agent.log("in failed");
        assert!(greeted(address, GREETER).is_err());
        assert!(agent.log("in failed") > failed, "the proxy did not take the connection to {address}");
    }
    for here in machine.here {
        assert!(closed_to_tcp(&mut machine, here), "a connection of the guest");
    }
    // In the order in which a node's agent writes them, before the machine's: the proxy is passed by.
    agent.inside(
        "for family in ip ip6; do nft list table $family nat >/tmp/nat; nft delete table $family nat; nft -f /tmp/nat; done",
    );
    for (&address, here) in machine.addresses.iter().zip(machine.here) {
        let (mut stream, seen) = greeted(address, GREETER).unwrap();
        echoes(&mut stream).unwrap();
        assert_eq!((seen, agent.log(&format!("in {here} -> {}", host(address)))), (here, 0));
    }
}
