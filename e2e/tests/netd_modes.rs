//! netd's configuration as the guest and its clients see it: addressing modes, ports, limits, and what netctl tells.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails it")]

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};

use podvirt_e2e::{Backend, BackendOptions, Bed, Boot, Family, NetOptions, PEER, PORT, Pod, Vhost, peer};
use serde_json::Value;

/// Connections of the client at the same time.
const MANY: usize = 500;
/// Connections of the guest beside them; a process each, which is dear under User Mode Linux.
const MANY_OUT: usize = 100;

fn arguments(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

fn bed(options: &BackendOptions) -> Bed {
    Bed::new(Backend::Netd, Boot::Uml, NetOptions::default(), options, &Vhost::default()).unwrap()
}

/// A listener of another container of the pod.
fn container_listens(pod: &Pod, port: u16) -> TcpListener {
    pod.net.pod.enter(|| Ok(TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))?)).unwrap()
}

#[test]
fn masquerade_hides_the_pods_addresses_from_the_guest() {
    let options = BackendOptions {
        tcp: vec![PORT],
        udp: vec![PORT],
        arguments: arguments("--mode masquerade --hostname files --dns 10.9.0.1 --search vm.example"),
        ..Default::default()
    };
    let mut bed = bed(&options);
    assert_eq!(bed.guest.said("ip").unwrap(), "10.0.2.2/24");
    assert_eq!(bed.guest.said("ip6").unwrap(), "fd10:0:2::2/128");
    assert_eq!(bed.guest.sh("ip -4 route show default | awk '{print $3}'").unwrap(), "10.0.2.1");
    let told =
        bed.guest.sh("sed -n 's/^\\(hostname\\|dns\\|search\\)=//p' /tmp/dhcp.env | sort | xargs").unwrap();
    assert_eq!(told, "10.9.0.1 files vm.example");
    bed.works().unwrap();
    // The gateway's address leads to no host, least of all into the pod.
    let _other = container_listens(&bed.pod, 9001);
    for address in ["TCP4:10.0.2.1:9001", "TCP4:10.9.0.2:9001", "TCP6:[fd00:9::2]:9001"] {
        let out = bed.guest.run(&format!("socat -u /dev/null {address},connect-timeout=20")).unwrap();
        assert_ne!(out.status, 0, "{address} leads into the pod");
    }
    assert!(bed.running.counter("dropped.denied").unwrap() > 0);
}

#[test]
fn ports_lead_where_they_are_mapped_and_change_at_run_time() {
    let pod = Pod::new(NetOptions::default()).unwrap();
    let other = container_listens(&pod, 9001);
    let options = BackendOptions {
        arguments: arguments("-t 8001,2222:22,9001,9100-9109:9200-9209,15001 -u 8001,5353:53"),
        ..Default::default()
    };
    let running = Backend::Netd.start(&pod, &options).unwrap();
    let guest = podvirt_e2e::Guest::boot(Boot::Uml, &pod, &Vhost::default()).unwrap();
    let mut bed = Bed { backend: Backend::Netd, guest, running, pod };

    for family in Family::BOTH {
        for (outside, inside) in [(8001, 8001), (2222, 22), (9109, 9209)] {
            bed.tcp_in(family.pod(outside), inside, 5000).unwrap();
        }
        bed.udp_in(family.pod(5353), 53, 500).unwrap();
    }

    // A port that another container has stays its, is told, and keeps no other.
    let ports = bed.running.ask("ports").unwrap();
    let failed: Vec<&Value> = ports.as_array().unwrap().iter().filter(|p| p.get("error").is_some()).collect();
    assert_eq!(failed.len(), 1, "{ports}");
    assert_eq!((failed[0]["transport"].as_str(), failed[0]["pod"].as_u64()), (Some("tcp"), Some(9001)));
    assert!(failed[0]["error"].as_str().unwrap().to_lowercase().contains("in use"), "{ports}");
    assert!(bed.running.netctl(&["ports"]).unwrap().text.contains("9100-9109  9200-9209  listening"));
    drop(bed.pod.net.connect(Family::V6.pod(9001)).unwrap());
    other.accept().unwrap();
    // A mesh proxy's port is not forwarded whatever the configuration says.
    assert!(bed.pod.net.connect(Family::V4.pod(15001)).is_err());

    assert!(bed.pod.net.connect(Family::V4.pod(3333)).is_err());
    assert!(bed.running.netctl(&["ports", "add", "tcp", "3333:33"]).unwrap().success);
    bed.tcp_in(Family::V4.pod(3333), 33, 5000).unwrap();
    assert!(!bed.running.netctl(&["ports", "add", "tcp", "9001"]).unwrap().success);
    // Connections that came through a port outlive it.
    bed.guest.serve(33, "socat TCP4-LISTEN:33,reuseaddr PIPE").unwrap();
    let mut stream = bed.pod.net.connect(Family::V4.pod(3333)).unwrap();
    echo(&mut stream, b"before");
    assert!(bed.running.netctl(&["ports", "remove", "tcp", "3333:33"]).unwrap().success);
    assert!(bed.pod.net.connect(Family::V4.pod(3333)).is_err());
    echo(&mut stream, b"after it");
}

fn echo(stream: &mut TcpStream, text: &[u8]) {
    stream.write_all(text).unwrap();
    let mut back = vec![0; text.len()];
    stream.read_exact(&mut back).unwrap();
    assert_eq!(back, text);
}

#[test]
fn all_ports_are_those_that_are_free() {
    let pod = Pod::new(NetOptions::default()).unwrap();
    let _other = container_listens(&pod, 9001);
    let options = BackendOptions { arguments: arguments("-t all,~8003 -u none"), ..Default::default() };
    let running = Backend::Netd.start(&pod, &options).unwrap();
    let guest = podvirt_e2e::Guest::boot(Boot::Uml, &pod, &Vhost::default()).unwrap();
    let mut bed = Bed { backend: Backend::Netd, guest, running, pod };
    for port in [1, 80, 8001] {
        bed.tcp_in(Family::V4.pod(port), port, 1000).unwrap();
    }
    bed.tcp_in(Family::V6.pod(443), 443, 1000).unwrap();
    for port in [8003, 15001] {
        assert!(bed.pod.net.connect(Family::V4.pod(port)).is_err(), "{port}");
    }
    let status = bed.running.ask("status").unwrap();
    // As many as the limit of descriptors leaves.
    assert!(status["listeners"].as_u64().unwrap() > 5_000, "{status}");
}

#[test]
fn netctl_tells_what_happens() {
    let options = BackendOptions {
        tcp: vec![PORT],
        udp: vec![PORT],
        arguments: arguments("--metrics 127.0.0.1:9090"),
        ..Default::default()
    };
    let mut bed = bed(&options);
    bed.works().unwrap();
    bed.guest.serve(PORT, "socat TCP4-LISTEN:8001,reuseaddr PIPE").unwrap();
    let mut stream = bed.pod.net.connect(Family::V4.pod(PORT)).unwrap();
    echo(&mut stream, b"twelve bytes");
    let client = stream.local_addr().unwrap().to_string();

    let flows = bed.running.ask("flows").unwrap();
    let flow = flows.as_array().unwrap().iter().find(|f| f["guest_peer"] == *client).unwrap();
    assert_eq!((flow["kind"].as_str(), flow["state"].as_str()), (Some("tcp"), Some("ESTABLISHED")));
    assert_eq!((flow["opened_by"].as_str(), flow["guest"].as_str()), (Some("pod"), Some("10.9.0.2:8001")));
    assert_eq!((flow["bytes_to_pod"].as_u64(), flow["bytes_to_guest"].as_u64()), (Some(12), Some(12)));
    assert!(bed.running.netctl(&["flows"]).unwrap().text.contains(&client));

    let status = bed.running.ask("status").unwrap();
    assert_eq!(status["frontend_connected"], true);
    assert_eq!(status["running_rings"].as_array().unwrap().len(), 2);
    assert_eq!(status["v4"]["guest"], "10.9.0.2");
    let mac = bed.guest.sh("cat /sys/class/net/eth0/address").unwrap();
    assert_eq!(status["guest_mac"], *mac);

    for counter in
        ["tcp_opened_by_guest", "tcp_opened_by_pod", "udp_flows", "icmp_echo_flows", "frontend_connections"]
    {
        assert!(bed.running.counter(counter).unwrap() > 0, "{counter}");
    }
    // The guest may not send from an IP address that is not its own, nor from an Ethernet address that is not.
    assert_eq!(bed.running.counter("dropped.spoofed").unwrap(), 0);
    bed.guest.sh("ip addr add 10.9.0.99/24 dev eth0").unwrap();
    assert_ne!(bed.guest.run("ping -c 1 -W 1 -I 10.9.0.99 10.9.0.1").unwrap().status, 0);
    assert!(bed.running.counter("dropped.spoofed").unwrap() > 0);

    let metrics = bed.running.netctl(&["metrics"]).unwrap().text;
    for line in [
        "netd_flows{kind=\"tcp\"} ",
        "netd_frontend_connected 1",
        "netd_dropped_total{reason=\"spoofed\"} ",
        "# EOF",
    ] {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
    let mut scrape = bed.pod.net.pod.enter(|| Ok(TcpStream::connect((Ipv4Addr::LOCALHOST, 9090))?)).unwrap();
    scrape.write_all(b"GET /metrics HTTP/1.1\r\nHost: pod\r\nConnection: close\r\n\r\n").unwrap();
    let page = String::from_utf8(peer::read_all(&mut scrape).unwrap()).unwrap();
    assert!(page.starts_with("HTTP/1.1 200") && page.contains("netd_running_rings 2"), "{page}");
}

#[test]
fn hundreds_of_connections_are_carried_at_the_same_time() {
    let options = BackendOptions { tcp: vec![PORT], ..Default::default() };
    let vhost = Vhost { memory_mib: 1024, ..Default::default() };
    let mut bed = Bed::new(Backend::Netd, Boot::Uml, NetOptions::default(), &options, &vhost).unwrap();
    bed.guest.serve(PORT, "socat TCP6-LISTEN:8001,reuseaddr,fork,backlog=1000 PIPE").unwrap();
    let connect = |n: usize| bed.pod.net.connect(Family::BOTH[n % 2].pod(PORT)).unwrap();
    let mut streams: Vec<TcpStream> = (0..MANY).map(connect).collect();
    for (n, stream) in streams.iter_mut().enumerate() {
        stream.write_all(format!("{n:06}").as_bytes()).unwrap();
    }
    for (n, stream) in streams.iter_mut().enumerate() {
        let mut back = [0; 6];
        stream.read_exact(&mut back).unwrap();
        assert_eq!(back, *format!("{n:06}").as_bytes());
    }
    assert_eq!(bed.running.ask("status").unwrap()["flows"]["tcp"], MANY);

    // The other way, beside them; none is answered before all are there.
    let address = bed.peer(Family::V4, PEER);
    let listener = bed.pod.net.listen(address).unwrap();
    let one = format!("echo $n >/tmp/n.$n; socat -t 60 OPEN:/tmp/n.$n!!STDOUT TCP4:{address} &");
    bed.begin(&format!("n=0; while [ $n -lt {MANY_OUT} ]; do n=$((n + 1)); {one} done; wait")).unwrap();
    let mut others: Vec<TcpStream> = (0..MANY_OUT).map(|_| peer::accept(&listener).unwrap()).collect();
    let mut said = BTreeSet::new();
    for stream in &mut others {
        said.insert(
            String::from_utf8(peer::read_all(stream).unwrap()).unwrap().trim().parse::<usize>().unwrap(),
        );
        stream.write_all(b"x").unwrap();
    }
    assert_eq!(bed.running.ask("status").unwrap()["flows"]["tcp"], MANY + MANY_OUT);
    drop(others);
    assert_eq!(said, (1..=MANY_OUT).collect());
    assert_eq!(bed.finish().unwrap(), "x".repeat(MANY_OUT));
    assert_eq!(bed.running.counter("dropped.flow_rate").unwrap(), 0);
    streams.iter_mut().for_each(|stream| echo(stream, b"still there"));
}
