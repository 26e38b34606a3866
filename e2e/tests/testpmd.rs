//! DPDK's testpmd as the frontend: another driver of the rings than Linux's, which polls, has no guest behind it and
//! answers nothing but what it is told to. It returns every frame with the addresses and ports of both ends swapped.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails it")]

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use nix::sys::signal::Signal;
use podvirt_e2e::artefacts::artefact;
use podvirt_e2e::{
    Backend, BackendOptions, Console, Family, Guest, NetOptions, PORT, Pod, Process, RunningBackend, peer,
    until,
};

/// Start of testpmd, and anything it is told to do.
const LIMIT: Duration = Duration::from_secs(60);

/// testpmd in a container of the pod, without huge pages; it forwards at once, each queue to itself.
fn testpmd(pod: &Pod, queues: u8) -> (Process, Console) {
    // DPDK loads no driver from below a directory that every user may write to, as /mnt is.
    let container = pod.container("testpmd").unwrap().ro(&artefact("testpmd").unwrap(), "/guest");
    // Its driver changes the number of queues by a control queue, which it emulates.
    let control = u8::from(queues > 1);
    let device = format!(
        "--vdev=net_virtio_user0,path=/w/{},queues={queues},cq={control},mac={}",
        Backend::SOCKET,
        Guest::MAC
    );
    // Lines as they come, though it is no terminal that they go to.
    let words = "stdbuf -oL /guest/testpmd -d /guest/pmds -l 0-1 --no-huge -m 256 --no-pci --no-telemetry";
    let mut command: Vec<&str> = words.split(' ').collect();
    command.push(&device);
    command.extend("-- -i --total-num-mbufs=8192 --no-numa --forward-mode=5tswap --auto-start".split(' '));
    let (receive, send) = (format!("--rxq={queues}"), format!("--txq={queues}"));
    command.extend([receive.as_str(), &send]);
    container.env("LD_LIBRARY_PATH", "/guest/lib").spawn_with_console(&command).unwrap()
}

/// Waits until netd has, or has not, a frontend whose rings run.
fn wait_for_rings(netd: &RunningBackend, rings: usize) {
    until("rings", LIMIT, || {
        let status = netd.ask("status")?;
        Ok((status["running_rings"].as_array().map(Vec::len) == Some(rings)).then_some(()))
    })
    .unwrap();
}

/// A datagram of the client and its echo, which comes from where it was sent to: the socket is connected.
fn echo(socket: &UdpSocket, data: &[u8]) -> bool {
    let mut buffer = [0; 2048];
    socket.send(data).unwrap();
    socket.recv(&mut buffer).is_ok_and(|length| buffer[..length] == *data)
}

/// That datagrams of every size come back unchanged to whom they are from. The first ones may be lost: that the rings
/// run does not say that testpmd looks at them.
fn echoes(pod: &Pod, family: Family) {
    let client: SocketAddr = match family {
        Family::V4 => (pod.net.client4, 0).into(),
        Family::V6 => (pod.net.client6, 0).into(),
    };
    let sockets: Vec<UdpSocket> = (0..3).map(|_| pod.net.udp(client).unwrap()).collect();
    for socket in &sockets {
        socket.connect(family.pod(PORT)).unwrap();
    }
    sockets[0].set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    until("an echo", LIMIT, || Ok(echo(&sockets[0], b"first").then_some(()))).unwrap();
    let header = if family == Family::V4 { 28 } else { 48 };
    for socket in &sockets[1..] {
        for size in [1, 2, 17, 18, 19, 1000, 1500 - header] {
            let data = peer::random(size).unwrap();
            assert!(echo(socket, &data), "{family:?}: no right echo of {size} bytes");
        }
    }
}

#[test]
fn testpmd_swaps_what_comes_and_may_stop_and_die_and_come_again() {
    let pod = Pod::new(NetOptions::default()).unwrap();
    let config = format!("guest: {{mac: \"{}\"}}\n", Guest::MAC);
    let options = BackendOptions { udp: vec![PORT], config, ..Default::default() };
    let mut netd = Backend::Netd.start(&pod, &options).unwrap();

    let (first, mut console) = testpmd(&pod, 1);
    wait_for_rings(&netd, 2);
    for family in Family::BOTH {
        echoes(&pod, family);
    }
    let inside = pod.processes().unwrap();
    let process = inside.iter().find(|p| p.name.contains("testpmd")).unwrap();
    assert_eq!((process.uids[0], process.capabilities, process.seccomp), (107, 0, 2));

    // It stops to look at its rings, and goes on in the same connection.
    let connections = netd.counter("frontend_connections").unwrap();
    for line in ["stop", "port stop 0", "port start 0", "start"] {
        console.type_line(line).unwrap();
    }
    console.wait_for("Stopping ports", LIMIT).unwrap();
    console.wait_for_nth("5tswap packet forwarding - ports=1", 2, LIMIT).unwrap();
    echoes(&pod, Family::V4);
    assert_eq!(netd.counter("frontend_connections").unwrap(), connections);

    // It dies in the middle of its work; its successor's memory is elsewhere.
    first.signal(Signal::SIGKILL).unwrap();
    drop(first);
    wait_for_rings(&netd, 0);
    let _second = testpmd(&pod, 1);
    wait_for_rings(&netd, 2);
    for family in Family::BOTH {
        echoes(&pod, family);
    }
    assert_eq!(netd.counter("frontend_connections").unwrap(), connections + 1);
    assert_eq!(netd.counter("dropped.spoofed").unwrap(), 0);
    assert!(netd.process.ended().unwrap().is_none());
}

#[test]
fn testpmd_with_two_queues_is_answered_on_each_by_itself() {
    let pod = Pod::new(NetOptions::default()).unwrap();
    let config = format!("guest: {{mac: \"{}\"}}\n", Guest::MAC);
    let arguments = vec!["--queue-pairs".into(), "2".into()];
    let options = BackendOptions { udp: vec![PORT], config, arguments, ..Default::default() };
    let netd = Backend::Netd.start(&pod, &options).unwrap();
    let _testpmd = testpmd(&pod, 2);
    wait_for_rings(&netd, 4);
    for _ in 0..4 {
        for family in Family::BOTH {
            echoes(&pod, family);
        }
    }
    // What the pod opens is given to either pair, and each queue sends back what it has received.
    assert_eq!(netd.counter("pair_frames_passed").unwrap(), 0);
    assert_eq!(netd.counter("pair_flows_moved").unwrap(), 0);
    assert_eq!(netd.counter("ring_errors").unwrap(), 0);
}
