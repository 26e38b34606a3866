//! What a mesh demands of the clients of a machine, and of the machine: mutual TLS, and a list of the known.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Pod, Service};
use podvirt_e2e::cluster::mesh::{IMAGE, ISTIO, Known, Mesh, Mtls, Proxy, Sidecar};
use podvirt_e2e::cluster::{Binding, Manifest, Namespace, SOON, Security};

use crate::machine::{GREETER, Machine, SSH, WEB, cluster, echo, get, greeted, host, own};
use crate::sidecar::INJECT;

const CONTAINER: &str = "istio-proxy";

/// An ordinary pod in the mesh, with a web server.
struct Peer<'n> {
    namespace: &'n Namespace<'n>,
    addresses: Vec<IpAddr>,
    service: IpAddr,
}

impl<'n> Peer<'n> {
    fn apply(namespace: &'n Namespace<'n>) {
        let serve = "mkdir /tmp/www; echo the peer >/tmp/www/live; cd /tmp/www; exec python3 -m http.server --bind :: 8080";
        let pod = serde_json::json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "peer", "labels": {"app": "peer"},
                "annotations": {"sidecar.istio.io/inject": "true", "mesh.test/config": "peer"}},
            "spec": {"terminationGracePeriodSeconds": 1, "containers": [{"name": "peer", "image": IMAGE,
                "command": ["sh", "-ec", serve], "securityContext": {"runAsUser": 1000}}]}});
        namespace.apply(&pod.to_string()).unwrap();
        let service = format!(
            "{{apiVersion: v1, kind: Service, metadata: {{name: peer}}, spec: {{selector: {{app: peer}}, ports: [{{port: {WEB}}}]}}}}"
        );
        namespace.apply(&service).unwrap();
    }

    fn new(namespace: &'n Namespace<'n>) -> Peer<'n> {
        let pod = namespace.wait_pod("peer", SOON).unwrap();
        let addresses = pod.status.iter().flat_map(|s| s.pod_ips.iter().flatten());
        let addresses = addresses.map(|a| a.ip.parse().unwrap()).collect();
        let service = namespace.wait("peer", "the service", SOON, |_: &Service| true).unwrap();
        let service = service.spec.unwrap().cluster_ip.unwrap().parse().unwrap();
        Peer { namespace, addresses, service }
    }

    /// A page of the machine, by way of the peer's own proxy.
    fn get(&self, address: IpAddr, port: u16) -> anyhow::Result<String> {
        let url = format!("http://{}:{port}/live", host(address));
        self.namespace.kubectl(&[
            "exec",
            "peer",
            "-c",
            "peer",
            "--",
            "curl",
            "-sSi",
            "--max-time",
            "10",
            &url,
        ])
    }
}

fn refused(address: IpAddr) {
    let page = get(address, WEB, "/live");
    let kind = page.as_ref().unwrap_err().downcast_ref::<std::io::Error>().map(std::io::Error::kind);
    assert_eq!(kind, Some(std::io::ErrorKind::ConnectionReset), "{page:?}");
}

#[test]
fn long_mutual_tls_and_the_registry_hold_for_a_machine() {
    mutual_tls_and_the_registry(Binding::PASST);
}

#[test]
fn long_mutual_tls_and_the_registry_hold_for_a_machine_behind_masquerade() {
    mutual_tls_and_the_registry(Binding::MASQUERADE);
}

#[test]
fn long_mutual_tls_and_the_registry_hold_for_a_machine_behind_the_kernels_masquerade() {
    mutual_tls_and_the_registry(Binding::BY_KERNEL);
}

fn mutual_tls_and_the_registry(binding: Binding) {
    let cluster = cluster();
    let namespace = cluster.namespace(Security::Privileged).unwrap();
    let mesh = Mesh::new(&namespace).unwrap();
    mesh.configure_discovering("mesh", &Proxy { mtls: Mtls::Permissive, ..Default::default() }).unwrap();
    mesh.configure_discovering("peer", &Proxy { mtls: Mtls::Strict, ..Default::default() }).unwrap();
    Peer::apply(&namespace);
    let manifest = Manifest { name: "vm", annotations: INJECT, ..Default::default() };
    let mut machine = Machine::start(&namespace, binding, &manifest);
    machine.is_served();
    let peer = Peer::new(&namespace);
    let (sidecar, of_peer) =
        (machine.sidecar(CONTAINER, ISTIO), Sidecar::of(&namespace, "peer", CONTAINER, ISTIO));

    // The peer's proxy learns where the machine is, and that it takes TLS.
    let known = |tls: bool| {
        let at = |&at: &IpAddr| Known { at, endpoint: at, port: WEB, tls };
        machine.addresses.iter().map(at).collect::<Vec<_>>()
    };
    let handshakes = "listener.inbound.ssl.handshake";
    of_peer.tell(&Proxy { mtls: Mtls::Strict, known: known(true), ..Default::default() }).unwrap();
    let was = sidecar.count(handshakes).unwrap();
    for &address in &machine.addresses {
        let page = peer.get(address, WEB).unwrap();
        assert!(page.contains(" 200 OK") && page.contains("yes"), "{page}");
    }
    assert_eq!(sidecar.count(handshakes).unwrap(), was + 2);

    // PERMISSIVE takes those outside of the mesh, too; STRICT does not, but for the port that is past the proxy.
    let strict = Proxy { mtls: Mtls::Strict, ..Default::default() };
    sidecar.tell(&strict).unwrap();
    for (&address, here) in machine.addresses.iter().zip(own()) {
        refused(address);
        assert!(greeted(address, GREETER).is_err());
        assert_eq!(greeted(address, SSH).unwrap().1, here);
        echo(address).unwrap();
        peer.get(address, WEB).unwrap();
    }
    of_peer.tell(&Proxy { mtls: Mtls::Strict, known: known(false), ..Default::default() }).unwrap();
    for &address in &machine.addresses {
        let said = peer.get(address, WEB).unwrap_err().to_string();
        assert!(said.contains("curl: "), "{said}");
    }

    // Out of the machine: the peer by its Service, which takes TLS alone; the rest as it is.
    let service = Known { at: peer.service, endpoint: peer.addresses[0], port: WEB, tls: true };
    let counter = format!("cluster.{}.upstream_cx_total", service.cluster());
    let url = format!("http://{}:{WEB}/live", peer.service);
    let outside = WebServer::start();
    let outside = outside.urls();
    assert!(!machine.fetch(&url).contains("the peer"), "without TLS it takes nothing");
    let all = Proxy { known: vec![service.clone()], ..strict.clone() };
    sidecar.tell(&all).unwrap();
    assert!(machine.fetch(&url).contains("the peer"));
    assert_eq!(sidecar.count(&counter).unwrap(), 1);
    for url in &outside {
        assert!(machine.fetch(url).contains("200"), "{url}");
    }
    // REGISTRY_ONLY: nothing but what is known. UDP is no business of the proxy.
    sidecar.tell(&Proxy { registry_only: true, ..all.clone() }).unwrap();
    for url in &outside {
        let said = machine.fetch(url);
        assert!(said.contains("502"), "{url}: {said}");
    }
    assert!(machine.fetch(&url).contains("the peer"));
    for here in own() {
        crate::machine::datagram_from_guest(&mut machine, here);
        let port = closed_to_tcp(&mut machine, here);
        assert!(port, "a connection to what is not known");
    }
    assert!(sidecar.count("cluster.BlackHoleCluster.upstream_cx_none_healthy").unwrap() >= 2);
    // And back: it was the registry.
    sidecar.tell(&all).unwrap();
    for url in &outside {
        assert!(machine.fetch(url).contains("200"), "{url}");
    }
    let pod: Pod = namespace.launcher("vm").unwrap();
    assert_eq!(pod.metadata.uid, machine.pod.metadata.uid);
}

/// Whether a connection of the guest to this process does not come.
pub(crate) fn closed_to_tcp(machine: &mut Machine<'_>, here: IpAddr) -> bool {
    let listener = std::net::TcpListener::bind((here, 0)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    // The proxy accepts it, and ends it.
    machine
        .sh(&format!("echo a line | socat -T 5 - TCP:{}:{port},connect-timeout=10 || true", host(here)))
        .unwrap();
    listener.accept().is_err()
}

/// A web server of the test's own, at the port on which the mesh expects HTTP.
pub(crate) struct WebServer(Vec<IpAddr>);

impl WebServer {
    pub(crate) fn start() -> WebServer {
        use std::io::{Read, Write};
        for here in own() {
            let listener = std::net::TcpListener::bind((here, 80)).unwrap();
            std::thread::spawn(move || {
                for mut client in listener.incoming().flatten() {
                    // The head is in one segment, or another.
                    let mut head = Vec::new();
                    let mut buffer = [0; 512];
                    while !head.ends_with(b"\r\n\r\n") {
                        match client.read(&mut buffer) {
                            Ok(size) if size > 0 => head.extend_from_slice(&buffer[..size]),
                            _ => break,
                        }
                    }
                    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nok\n";
                    drop(client.write_all(answer));
                }
            });
        }
        WebServer(own().to_vec())
    }

    pub(crate) fn urls(&self) -> Vec<String> {
        self.0.iter().map(|address| format!("http://{}/", host(*address))).collect()
    }
}
