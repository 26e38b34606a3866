//! A machine in the mesh of a real istiod: its webhook, its agent with the rules, its certificates, its configuration for
//! Envoy. Only the Envoy is not Istio's build.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use podvirt_api::v1;
use podvirt_e2e::cluster::mesh::ISTIO;
use podvirt_e2e::cluster::{
    BOOT, Binding, ClientPod, Cluster, Manifest, Namespace, SOON, Security, prepare_istio,
};
use serde_json::json;

use crate::machine::{Machine, SSH, WEB, get, greeted, host, own};
use crate::policy::WebServer;
use crate::sidecar::{CONTAINER, INJECT};

/// Where a proxy says that it is ready.
const HEALTH: u16 = 15021;

/// A pod of the mesh with a web server and a client, and its Service. Its user is not the proxy's.
fn peer(namespace: &Namespace<'_>) {
    let serve = "mkdir /tmp/www; echo the peer >/tmp/www/live; cd /tmp/www; exec python3 -m http.server --bind :: 8080";
    let pod = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "peer", "labels": {"app": "peer", "sidecar.istio.io/inject": "true"}},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [{"name": "peer", "image": "podvirt/tools:dev",
            "command": ["sh", "-ec", serve], "securityContext": {"runAsUser": 1000}}]}});
    namespace.apply(&pod.to_string()).unwrap();
    for (name, key, value) in [("peer", "app", "peer"), ("vm", "vm", "vm")] {
        let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
            "spec": {"ipFamilyPolicy": "PreferDualStack", "selector": {key: value},
                "ports": [{"name": "http", "port": WEB}]}});
        namespace.apply(&service.to_string()).unwrap();
    }
    namespace.wait_pod("peer", BOOT).unwrap();
}

/// What the peer is told at a web page of the machine's Service.
fn page_for_peer(namespace: &Namespace<'_>) -> anyhow::Result<String> {
    let url = format!("http://vm:{WEB}/live");
    namespace.kubectl(&["exec", "peer", "-c", "peer", "--", "curl", "-sSi", "--max-time", "10", &url])
}

/// Whether a client outside of the mesh is reset.
fn reset(address: IpAddr) -> bool {
    let page = get(address, WEB, "/live");
    let error = page.err().and_then(|e| e.downcast::<std::io::Error>().ok());
    error.is_some_and(|e| e.kind() == std::io::ErrorKind::ConnectionReset)
}

/// Whether the proxy of a pod says of itself that it is ready, by both families.
fn proxy_is_ready(addresses: &[IpAddr]) -> bool {
    let ready = |&address| get(address, HEALTH, "/healthz/ready").is_ok_and(|page| page.contains(" 200 OK"));
    addresses.iter().all(ready)
}

fn restarts(pod: &Pod) -> i32 {
    let all = pod.status.iter().flat_map(|s| s.init_container_statuses.iter().flatten());
    all.filter(|s| s.name == CONTAINER).map(|s| s.restart_count).sum()
}

#[test]
fn long_istios_own_control_plane_has_a_machine_in_its_mesh() {
    in_its_mesh(Binding::PASST);
}

#[test]
fn long_istios_own_control_plane_has_a_machine_behind_masquerade_in_its_mesh() {
    in_its_mesh(Binding::MASQUERADE);
}

/// The machine's packets are forwarded: the agent's rules take them by the name of the bridge in the pod.
#[test]
fn long_istios_own_control_plane_has_a_machine_behind_the_kernels_masquerade_in_its_mesh() {
    in_its_mesh(Binding::BY_KERNEL);
}

fn in_its_mesh(binding: Binding) {
    prepare_istio().unwrap();
    let cluster = Cluster::get().unwrap();
    let _istio = cluster.istio().unwrap();
    // Its own init container has NET_ADMIN.
    let namespace = cluster.namespace(Security::Privileged).unwrap();
    peer(&namespace);
    let manifest = Manifest { name: "vm", annotations: INJECT, ..Default::default() };
    let mut machine = Machine::start(&namespace, binding, &manifest);
    let pod = namespace.wait_pod(&machine.pod(), BOOT).unwrap();
    let init = pod.spec.as_ref().unwrap().init_containers.as_ref().unwrap();
    let images: Vec<_> = init.iter().map(|c| (c.name.as_str(), c.image.as_deref().unwrap())).collect();
    for container in ["istio-init", CONTAINER] {
        assert!(images.contains(&(container, "localhost/proxyv2:bed")), "{images:?}");
    }
    assert!(proxy_is_ready(&machine.addresses));

    // Without a policy the proxy takes clients of every kind. The excluded port is past it.
    machine.is_served();
    namespace
        .until("the machine's Service, for the peer", SOON, || Ok(page_for_peer(&namespace).ok()))
        .unwrap();
    for (&address, here) in machine.addresses.iter().zip(own()) {
        let page = get(address, WEB, "/live").unwrap();
        assert!(page.contains("server: istio-envoy"), "{page}");
        assert_eq!(greeted(address, SSH).unwrap().1, here);
    }

    // STRICT: clients outside of the mesh are refused, and those inside are not.
    let outsider = ClientPod::start(&namespace, "outsider", "node1", "app: outsider").unwrap();
    let fetch =
        |address: IpAddr| outsider.sh(&format!("curl -sS --max-time 10 http://{}:{WEB}/live", host(address)));
    for &address in &machine.addresses {
        assert_eq!(fetch(address).unwrap(), "yes\n");
    }
    let strict = "{apiVersion: security.istio.io/v1, kind: PeerAuthentication, metadata: {name: strict}, spec: {mtls: {mode: STRICT}}}";
    namespace.apply(strict).unwrap();
    for (&address, here) in machine.addresses.iter().zip(own()) {
        namespace.until("a reset", SOON, || Ok(reset(address).then_some(()))).unwrap();
        let said = fetch(address).unwrap_err().to_string();
        assert!(said.contains("curl: "), "{said}");
        assert_eq!(greeted(address, SSH).unwrap().1, here);
    }
    let page = page_for_peer(&namespace).unwrap();
    assert!(page.contains(" 200 OK") && page.ends_with("yes\n"), "{page}");
    // The machine is a client of the mesh, too: the peer takes TLS alone.
    let peers = namespace.wait_pod("peer", SOON).unwrap();
    for &address in &crate::machine::addresses(&peers) {
        namespace.until("a reset by the peer", SOON, || Ok(reset(address).then_some(()))).unwrap();
    }
    let url = format!("http://peer.{}.svc.cluster.local:{WEB}/live", namespace.name());
    assert!(machine.fetch(&url).contains("the peer"));

    // The world is open to it, until it is told that only what is known is.
    let outside = WebServer::start().urls();
    for url in &outside {
        assert!(machine.fetch(url).contains("200"), "{url}");
    }
    let known = "{apiVersion: networking.istio.io/v1, kind: Sidecar, metadata: {name: known}, spec: {outboundTrafficPolicy: {mode: REGISTRY_ONLY}}}";
    namespace.apply(known).unwrap();
    for url in &outside {
        namespace
            .until("a refusal by the proxy", SOON, || Ok(machine.fetch(url).contains("502").then_some(())))
            .unwrap();
    }
    assert!(machine.fetch(&url).contains("the peer"));

    // The proxy ends; what it was comes back, with the machine as it was.
    let was = restarts(&pod);
    machine.sidecar(CONTAINER, ISTIO).exec(&["pilot-agent", "request", "POST", "quitquitquit"]).unwrap();
    let back = |pod: &Pod| restarts(pod) > was;
    namespace.wait::<Pod>(&pod.name_any(), "the proxy's second run", SOON, back).unwrap();
    namespace.wait_pod(&pod.name_any(), BOOT).unwrap();
    assert!(proxy_is_ready(&machine.addresses));
    let page = page_for_peer(&namespace).unwrap();
    assert!(page.contains(" 200 OK"), "{page}");
    assert!(machine.addresses.iter().all(|&address| reset(address)));

    // The machine ends, and its proxy with it.
    namespace.kubectl(&["delete", "vm", "vm", "--timeout=60s"]).unwrap();
    namespace.wait_gone::<Pod>(&pod.name_any(), BOOT).unwrap();
    namespace.wait_gone::<v1::VirtualMachineInstance>("vm", SOON).unwrap();
}
