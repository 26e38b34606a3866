//! Cards of other models than virtio's where the kernel carries the pod's network: their boot code is what uses them here.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener};
use std::time::Duration;

use podvirt_e2e::cluster::{BOOT, Binding, Cluster, Manifest, Security};

/// A request that has come is whole within this.
const REQUEST: Duration = Duration::from_secs(10);

/// The boot code of a card asks for an address and for what to boot, and fetches it: DHCP, ARP, routes and TCP, by the card.
#[test]
fn long_a_card_of_another_model_fetches_what_it_boots_by_the_kernels_bindings() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let listener = TcpListener::bind((cluster.address(), 0)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let machines = [
        ("kernel-e1000", Binding::BY_KERNEL, "e1000"),
        ("kernel-rtl", Binding::BY_KERNEL, "rtl8139"),
        ("place-e1000", Binding::BRIDGE, "e1000"),
        ("place-rtl", Binding::BRIDGE, "rtl8139"),
    ];
    for (name, binding, model) in machines {
        // With an order for the card alone, the machine boots from nothing else.
        let more = format!(
            "model: {model}, bootOrder: 1, dhcpOptions: {{bootFileName: 'http://{}:{port}/{name}'}}",
            cluster.address()
        );
        binding.apply(&namespace, &Manifest { name, ..Default::default() }, &more).unwrap();
    }
    let mut asked = std::collections::BTreeMap::new();
    while asked.len() < machines.len() {
        let (mut stream, from) =
            namespace.until("a request of boot code", BOOT, || Ok(listener.accept().ok())).unwrap();
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(REQUEST)).unwrap();
        let mut head = [0; 512];
        let size = stream.read(&mut head).unwrap();
        let text = String::from_utf8_lossy(&head[..size]).into_owned();
        drop(stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"));
        let name =
            text.strip_prefix("GET /").and_then(|rest| rest.split(' ').next()).unwrap_or_default().to_owned();
        asked.insert(name, from.ip());
    }
    for (name, _, model) in machines {
        let status = namespace.launcher(name).unwrap().status.unwrap();
        let own: IpAddr = status.pod_ip.unwrap().parse().unwrap();
        assert_eq!(asked.get(name), Some(&own), "{model}: {asked:?}");
    }
}
