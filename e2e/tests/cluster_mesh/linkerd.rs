//! Linkerd's layout: its user, ports and rules, with Envoy in the place of Linkerd's own proxy.

use podvirt_e2e::cluster::mesh::{LINKERD, Mesh, Proxy};
use podvirt_e2e::cluster::{Binding, Manifest, Security};

use crate::machine::{
    GREETER, Machine, WEB, cluster, datagram_from_guest, echo, echoes, from_guest, get, greeted,
};

#[test]
fn long_linkerds_layout_stands_between_a_machine_and_the_world() {
    between_a_machine_and_the_world(Binding::PASST);
}

#[test]
fn long_linkerds_layout_stands_between_a_machine_behind_masquerade_and_the_world() {
    between_a_machine_and_the_world(Binding::MASQUERADE);
}

fn between_a_machine_and_the_world(binding: Binding) {
    let cluster = cluster();
    // As Istio's, Linkerd's init container has NET_ADMIN.
    let namespace = cluster.namespace(Security::Privileged).unwrap();
    let mesh = Mesh::new(&namespace).unwrap();
    mesh.configure("mesh", &Proxy { layout: LINKERD, ..Default::default() }).unwrap();
    let manifest = Manifest { name: "vm", annotations: "linkerd.io/inject: enabled", ..Default::default() };
    let mut machine = Machine::start(&namespace, binding, &manifest);
    machine.is_served();
    let sidecar = machine.sidecar("linkerd-proxy", LINKERD);
    for ((address, here), inbound) in machine
        .addresses
        .clone()
        .into_iter()
        .zip(machine.here)
        .zip(["InboundPassthroughCluster", "InboundPassthroughClusterIpv6"])
    {
        let inbound = format!("cluster.{inbound}.upstream_cx_total");
        let was = sidecar.count(&inbound).unwrap();
        let page = get(address, WEB, "/live").unwrap();
        assert!(page.contains(" 200 OK"), "{page}");
        let (mut stream, seen) = greeted(address, GREETER).unwrap();
        echoes(&mut stream).unwrap();
        // The proxy comes from the pod's own address. Where that is the guest's, too, the guest sees its gateway.
        let has_the_pods = binding.name == Binding::PASST.name;
        assert!(seen != here && (seen != address) == has_the_pods, "{seen}");
        assert_eq!(sidecar.count(&inbound).unwrap(), was + 2);
        echo(address).unwrap();
        let outbound = "cluster.PassthroughCluster.upstream_cx_total";
        let was = sidecar.count(outbound).unwrap();
        assert_eq!(from_guest(&mut machine, here), (address, "a line of the guest".to_owned()));
        assert_eq!(sidecar.count(outbound).unwrap(), was + 1);
        assert_eq!(datagram_from_guest(&mut machine, here), address);
        assert_eq!(sidecar.count(outbound).unwrap(), was + 1);
        // The proxy's administration is the pod's own.
        assert!(sidecar.admin("ready").unwrap().contains("LIVE"));
        let said = machine.fetch(&format!("http://{}:4191/ready", crate::machine::host(address)));
        assert!(!said.contains("LIVE"), "{said}");
    }
}
