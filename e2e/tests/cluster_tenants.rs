//! Machines of two users on one node, one of which floods from inside. What the other keeps is measured by `perf tenants`;
//! here everything lives, and answers.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails it")]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use podvirt_bed_tools::Console;
use podvirt_bed_tools::flood::{DEAF_PORT, Kind, OPEN_PORT};
use podvirt_e2e::artefacts::program_dir;
use podvirt_e2e::cluster::{BOOT, Cluster, Manifest, Namespace, SOON, Security};

/// A command in a guest whose processor is limited, and busy.
const COMMAND: Duration = Duration::from_secs(120);
/// The port of the tiny guest's greeter.
const GREETER: u16 = 7777;
/// Where the guest fetches the program from that floods.
const PROGRAM: u16 = 7100;
/// Greetings beside each flood.
const GREETINGS: usize = 5;
/// Connections that the test holds of those that a flood opens.
const HELD: usize = 2000;
/// On one node, within half a processor each.
const SPEC: &str = "nodeSelector: {kubernetes.io/hostname: node1}";
const DOMAIN: &str = "resources: {requests: {cpu: 100m}, limits: {cpu: 500m}}";

/// What a guest can send that is not its kernel's.
const KINDS: [Kind; 8] = [
    Kind::Syn,
    Kind::Udp,
    Kind::Flows,
    Kind::Neighbours,
    Kind::Fragments,
    Kind::Garbage,
    Kind::Urgent,
    Kind::SlowPeers,
];

/// Listeners whose connections are held and not read, until this is dropped.
struct Peers<'a>(&'a AtomicBool);

impl Drop for Peers<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

fn listen(port: u16) -> TcpListener {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).unwrap();
    listener.set_nonblocking(true).unwrap();
    listener
}

/// Accepts, and reads nothing.
fn hold(listener: &TcpListener, goes: &AtomicBool) {
    let mut held = Vec::new();
    while goes.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok((stream, _)) if held.len() < HELD => held.push(stream),
            Ok(_) => {}
            Err(_) => thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// Gives the program to the guest, over its network.
fn send_program(cluster: &Cluster, console: &mut Console) {
    let program = std::fs::read(program_dir("guest-flood").unwrap().join("guest-flood")).unwrap();
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PROGRAM)).unwrap();
    let sent = thread::spawn(move || listener.accept().unwrap().0.write_all(&program).unwrap());
    let from = SocketAddr::from((cluster.address(), PROGRAM));
    console
        .sh(&format!("socat -u TCP4:{from} CREATE:/tmp/guest-flood && chmod +x /tmp/guest-flood"), COMMAND)
        .unwrap();
    sent.join().unwrap();
}

/// A connection to the guest that is answered.
fn greets(namespace: &Namespace<'_>, what: &str, at: &str) {
    let address = SocketAddr::new(at.parse().unwrap(), GREETER);
    namespace
        .until(what, SOON, || {
            let Ok(mut stream) = TcpStream::connect_timeout(&address, SOON) else { return Ok(None) };
            stream.set_read_timeout(Some(SOON))?;
            let mut said = [0; 11];
            Ok(stream.read_exact(&mut said).ok().filter(|()| said == *b"GUEST-HELLO"))
        })
        .unwrap();
}

/// The number of frames that the flood tells of, at least twice as many as before: it goes on.
fn floods(namespace: &Namespace<'_>, console: &mut Console, kind: Kind, before: u64) -> u64 {
    let what = format!("{}: twice {before} frames", kind.name());
    let frames = namespace.until(&what, COMMAND, || {
        let said = console.run("tail -n 1 /tmp/flood.log", COMMAND)?.text;
        Ok(said.trim().parse::<u64>().ok().filter(|now| *now > 0 && *now >= 2 * before))
    });
    if frames.is_err() {
        println!("{}", console.run("cat /tmp/flood.log", COMMAND).unwrap().text);
    }
    frames.unwrap()
}

/// Containers of a pod, sidecars too, with how often each was started again; that none was killed for want of memory.
fn restarts(pod: &Pod) -> Vec<(String, i32)> {
    let status = pod.status.as_ref().unwrap();
    let all = status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
    all.map(|c| {
        let ended = [&c.last_state, &c.state].map(|s| s.as_ref().and_then(|s| s.terminated.as_ref()));
        for ended in ended.into_iter().flatten() {
            assert_ne!(ended.reason.as_deref(), Some("OOMKilled"), "{}/{}", pod.name_any(), c.name);
        }
        (format!("{}/{}", pod.name_any(), c.name), c.restart_count)
    })
    .collect()
}

/// podvirt's daemons and the machines' pods.
fn all_restarts(namespace: &Namespace<'_>) -> Vec<(String, i32)> {
    let cluster = namespace.cluster();
    let daemons: Api<Pod> = Api::namespaced(cluster.client(), "kubevirt");
    let handlers = ListParams::default().labels("kubevirt.io=virt-handler");
    let daemons = cluster.block_on(daemons.list(&handlers)).unwrap().items;
    let launchers = ["attacker", "victim"].map(|name| namespace.launcher(name).unwrap());
    daemons.iter().chain(&launchers).flat_map(restarts).collect()
}

fn address(namespace: &Namespace<'_>, machine: &str, four: bool) -> String {
    let pod = namespace.launcher(machine).unwrap();
    let ips = pod.status.unwrap().pod_ips.unwrap();
    ips.into_iter().map(|ip| ip.ip).find(|ip| ip.contains(':') != four).unwrap()
}

#[test]
fn long_a_machine_that_floods_leaves_its_neighbour_and_the_node_alone() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    for name in ["attacker", "victim"] {
        let manifest = Manifest { name, spec: SPEC, domain: DOMAIN, ..Default::default() };
        namespace.apply(&manifest.machine()).unwrap();
    }
    for name in ["attacker", "victim"] {
        namespace.wait_phase(name, "Running", BOOT).unwrap();
    }
    let (mut victims, _victim) = namespace.shell("victim").unwrap();
    let (mut console, _attacker) = namespace.shell("attacker").unwrap();
    let victim = address(&namespace, "victim", true);
    greets(&namespace, "the victim before any flood", &victim);
    send_program(&cluster, &mut console);
    let before = all_restarts(&namespace);
    assert!(before.iter().any(|(name, _)| name.ends_with("/netd")), "{before:?}");

    let goes = AtomicBool::new(true);
    let listeners = [OPEN_PORT, DEAF_PORT].map(listen);
    thread::scope(|scope| {
        let _peers = Peers(&goes);
        for listener in &listeners {
            scope.spawn(|| hold(listener, &goes));
        }
        let to = cluster.address();
        let (from4, from6) = (address(&namespace, "attacker", true), address(&namespace, "attacker", false));
        // The router by its Ethernet address; the guest's own kernel keeps out of what the flood opens.
        let ready = format!(
            "ping -c 1 -W 10 {to}; router=$(ip -4 route show default | awk '{{print $3; exit}}'); \
             nic=$(ip -4 route show default | awk '{{print $5; exit}}'); \
             mac=$(ip neigh show $router | awk '{{print $5; exit}}'); \
             ip route add unreachable {to}/32 && [ -n \"$mac\" ]"
        );
        console.sh(&ready, COMMAND).unwrap();
        for kind in KINDS {
            let name = kind.name();
            // No peer of the test has IPv6: what is sent there is for the backend alone.
            let start = format!(
                "/tmp/guest-flood $nic $mac {from4} {from6} {to} fd00:dead::1 {name} >/tmp/flood.log 2>&1 & flood=$!"
            );
            console.sh(&start, COMMAND).unwrap();
            let begun = floods(&namespace, &mut console, kind, 0);
            for n in 0..GREETINGS {
                greets(&namespace, &format!("the victim beside {name}, {n}"), &victim);
            }
            assert_eq!(victims.sh("echo here", COMMAND).unwrap(), "here");
            let sent = floods(&namespace, &mut console, kind, begun);
            console.sh("kill $flood; wait $flood; true", COMMAND).unwrap();
            println!("{name}: {sent} frames");
        }
        console.sh(&format!("ip route del unreachable {to}/32"), COMMAND).unwrap();
    });
    // Either machine is served, and nothing was started again.
    greets(&namespace, "the attacker afterwards", &address(&namespace, "attacker", true));
    console.sh(&format!("ping -c 1 -W 20 {}", cluster.address()), COMMAND).unwrap();
    victims.sh(&format!("ping -c 1 -W 20 {}", cluster.address()), COMMAND).unwrap();
    cluster.node(1).wait_ready(true, SOON).unwrap();
    assert_eq!(all_restarts(&namespace), before);
}
