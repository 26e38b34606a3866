//! The netd of a running machine's pod is replaced as an operator does it: the image of its container is patched.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a helper of a test fails it")]

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::ResourceExt;
use podvirt_e2e::cluster::{BOOT, Cluster, Manifest, Namespace, SOON, Security, counter};
use podvirt_e2e::peer;

/// A command in the guest.
const COMMAND: Duration = Duration::from_secs(30);
/// The guest's echo.
const ECHO: u16 = 7001;
/// What is repeated: a length that no segment or buffer has.
const PATTERN: usize = 65_521;
/// Bytes that prove that a stream goes on.
const ENOUGH: u64 = 4 << 20;

fn connect(address: IpAddr) -> TcpStream {
    let stream = TcpStream::connect_timeout(&(address, ECHO).into(), SOON).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream.set_write_timeout(Some(SOON)).unwrap();
    stream
}

/// A stream to the guest's echo and back, each byte compared.
struct Stream {
    enough: Arc<AtomicBool>,
    back: Arc<AtomicU64>,
    sender: JoinHandle<u64>,
    receiver: JoinHandle<u64>,
}

impl Stream {
    fn start(address: IpAddr) -> Stream {
        let data = Arc::new(peer::random(PATTERN).unwrap());
        let (enough, back) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut out = connect(address);
        let mut into = out.try_clone().unwrap();
        let sender = std::thread::spawn({
            let (enough, data) = (enough.clone(), data.clone());
            move || {
                let mut sent = 0;
                while !enough.load(Ordering::Relaxed) {
                    out.write_all(&data).unwrap();
                    sent += data.len() as u64;
                }
                out.shutdown(Shutdown::Write).unwrap();
                sent
            }
        });
        let receiver = std::thread::spawn({
            let back = back.clone();
            move || {
                let mut buffer = vec![0; PATTERN];
                let mut at = 0;
                loop {
                    let n = into.read(&mut buffer).unwrap();
                    if n == 0 {
                        return at;
                    }
                    let from = (at % PATTERN as u64) as usize;
                    let good = buffer[..n].iter().eq(data[from..].iter().chain(data.iter()).take(n));
                    assert!(good, "damaged within {n} bytes from {at} on");
                    at += n as u64;
                    back.store(at, Ordering::Relaxed);
                }
            }
        });
        Stream { enough, back, sender, receiver }
    }

    /// Waits until much more has come back.
    fn moves(&self, namespace: &Namespace<'_>) {
        let before = self.back.load(Ordering::Relaxed);
        let moved = || Ok((self.back.load(Ordering::Relaxed) > before + ENOUGH).then_some(()));
        namespace.until("the stream", SOON, moved).unwrap();
    }

    /// Ends it: everything that was sent has come back.
    fn finish(self) -> u64 {
        self.enough.store(true, Ordering::Relaxed);
        let sent = self.sender.join().unwrap();
        assert_eq!(self.receiver.join().unwrap(), sent);
        sent
    }
}

fn container<'p>(pod: &'p Pod, name: &str) -> Option<&'p ContainerStatus> {
    let status = pod.status.as_ref()?;
    let all = status.init_container_statuses.iter().chain(&status.container_statuses).flatten();
    all.into_iter().find(|c| c.name == name)
}

#[test]
fn an_image_of_netd_that_is_patched_in_a_running_pod_breaks_no_connection() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    namespace.apply(&Manifest { name: "vm", ..Default::default() }.machine()).unwrap();
    namespace.wait_phase("vm", "Running", BOOT).unwrap();
    let (mut console, _running) = namespace.shell("vm").unwrap();
    let echo = format!("socat TCP6-LISTEN:{ECHO},fork,reuseaddr,ipv6only=0 EXEC:cat >/dev/null 2>&1 &");
    console.sh(&echo, COMMAND).unwrap();
    console.sh(&format!("until ss -tln | grep -q :{ECHO}; do sleep 1; done"), COMMAND).unwrap();

    let pod = namespace.launcher("vm").unwrap();
    let name = pod.name_any();
    let spec = pod.spec.as_ref().unwrap();
    let image =
        spec.init_containers.iter().flatten().find(|c| c.name == "netd").unwrap().image.clone().unwrap();
    let before = container(&pod, "netd").unwrap().clone();
    // The same program by another name: what is replaced is the process, by whatever the image holds.
    let next = format!("{image}-next");
    let qualified = |image: &str| format!("docker.io/{}", image.trim_start_matches("docker.io/"));
    let number = spec.node_name.as_ref().unwrap().trim_start_matches("node").parse().unwrap();
    let tag = ["ctr", "-n", "k8s.io", "images", "tag", "--force", &qualified(&image), &qualified(&next)];
    cluster.node(number).run(&tag).unwrap();

    let addresses: Vec<IpAddr> =
        pod.status.iter().flat_map(|s| s.pod_ips.iter().flatten()).map(|ip| ip.ip.parse().unwrap()).collect();
    let mut idle: Vec<TcpStream> = addresses.iter().map(|address| connect(*address)).collect();
    let stream = Stream::start(addresses[0]);
    stream.moves(&namespace);

    let patch =
        serde_json::json!({"spec": {"initContainers": [{"name": "netd", "image": next}]}}).to_string();
    namespace.kubectl(&["patch", "pod", &name, "-p", &patch]).unwrap();
    let replaced = |pod: &Pod| {
        container(pod, "netd").is_some_and(|c| {
            c.restart_count > before.restart_count
                && c.state.as_ref().is_some_and(|s| s.running.is_some())
                && c.container_id != before.container_id
        })
    };
    namespace.wait(&name, "another netd", SOON, replaced).unwrap();
    stream.moves(&namespace);
    for (i, stream) in idle.iter_mut().enumerate() {
        let byte = [i as u8];
        stream.write_all(&byte).unwrap();
        let mut back = [!byte[0]];
        stream.read_exact(&mut back).unwrap();
        assert_eq!(back, byte);
    }
    let bytes = stream.finish();

    let log = namespace.kubectl(&["logs", &name, "-c", "netd"]).unwrap();
    let went_on = log.lines().find(|l| l.contains("went on where another netd stopped"));
    println!("PATCH {bytes} bytes; {}", went_on.unwrap_or_else(|| panic!("it began anew:\n{log}")));
    assert_eq!(namespace.netctl("vm", 0, "status").unwrap()["generation"], 1);
    let rows = namespace.netctl("vm", 0, "counters").unwrap();
    assert_eq!(counter(&rows, "frontend_connections").unwrap(), 1, "the frontend never came again");
    assert_eq!(counter(&rows, "tcp_resets").unwrap(), 0);
    // New connections find their way, and nothing else was restarted.
    drop(connect(addresses[0]));
    let pod = namespace.launcher("vm").unwrap();
    assert_eq!(container(&pod, "compute").unwrap().restart_count, 0);
    console.sh("true", COMMAND).unwrap();
}
