//! The control interface end to end: client, socket and server around a datapath that is a plain list.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use netctl::client::Client;
use netctl::show;
use podvirt_proto::netd::v1 as proto;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tonic::Streaming;

use super::metrics::Metrics;
use super::server::ControlServer;
use super::*;
use crate::config::ports::Reserved;
use crate::control::{
    Control, FlowInfo, FlowKind, FlowQuery, PortInfo, RefusedFlows, SocketInfo, Status, TcpInfo,
};
use crate::counters::{Counters, Reason};
use crate::net::{Link, test_link};
use crate::port::{PortRule, Proto};
use crate::tap::{Direction, Tap, Taps};

/// A datapath of nothing but state; TCP port 81 of the pod is taken by another process.
pub(super) struct Fake {
    running: bool,
    ports: Mutex<Vec<PortRule>>,
    link: Mutex<Arc<Link>>,
    pub(super) counters: Arc<Counters>,
    flows: usize,
    refused: watch::Sender<RefusedFlows>,
    taps: Arc<Mutex<Vec<Tap>>>,
}

impl Fake {
    pub(super) fn new() -> Fake {
        Fake {
            running: true,
            ports: Mutex::default(),
            link: Mutex::new(Arc::new(test_link())),
            counters: Arc::default(),
            flows: 600,
            refused: watch::Sender::default(),
            taps: Arc::default(),
        }
    }
}

impl Control for Fake {
    fn status(&self) -> Option<Status> {
        self.running.then(|| Status {
            uptime: Duration::from_millis(61_500),
            frontend_connected: true,
            features: 1 << 32 | 1,
            running_rings: vec![0, 1],
            link: self.link.lock().unwrap().clone(),
            guest_mac: Some("52:54:00:11:22:33".parse().unwrap()),
            guest_seen: vec![IpAddr::from([10, 9, 0, 2])],
            flows: [3, 2, 1],
            listeners: 7,
            silent: true,
            tcp_states: vec![("ESTABLISHED", 2), ("TIME-WAIT", 1)],
        })
    }

    fn flows(&self, query: FlowQuery) -> Vec<FlowInfo> {
        let flow = |i: usize| FlowInfo {
            kind: FlowKind::Tcp,
            state: "ESTABLISHED",
            from_guest: true,
            guest: SocketAddr::new(IpAddr::from([10, 9, 0, 2]), u16::try_from(1000 + i).unwrap()),
            guest_peer: "192.0.2.1:80".parse().unwrap(),
            pod_peer: "[2001:db8::1]:80".parse().unwrap(),
            bytes_to_pod: 1,
            bytes_to_guest: 2,
            retransmits: 3,
            idle: Duration::from_millis(4),
            tcp: Some(TcpInfo {
                guest_rtt: Some(Duration::from_micros(150)),
                in_flight: 10,
                guest_window: 20,
                pod_window: 30,
                socket: query.sockets.then(SocketInfo::default),
            }),
        };
        (0..self.flows).map(flow).filter(|f| query.matches(f)).collect()
    }

    fn ports(&self) -> Vec<PortInfo> {
        self.ports
            .lock()
            .unwrap()
            .iter()
            .map(|rule| PortInfo { rule: *rule, error: None, shut: false })
            .collect()
    }

    fn add_ports(&self, rules: Vec<PortRule>) -> Vec<PortInfo> {
        let mut ports = self.ports.lock().unwrap();
        let mut add = |rule: PortRule| {
            let error = (rule.pod == 81).then(|| "address already in use".to_owned());
            if error.is_none() {
                ports.push(rule);
            }
            PortInfo { rule, error, shut: false }
        };
        rules.into_iter().map(&mut add).collect()
    }

    fn remove_ports(&self, rules: Vec<PortRule>) -> Vec<PortInfo> {
        let mut ports = self.ports.lock().unwrap();
        let removed = rules.into_iter().filter(|r| ports.contains(r)).collect::<Vec<_>>();
        ports.retain(|p| !removed.contains(p));
        removed.into_iter().map(|rule| PortInfo { rule, error: None, shut: false }).collect()
    }

    fn set_link(&self, link: Arc<Link>) {
        *self.link.lock().unwrap() = link;
    }

    fn counters(&self) -> Arc<Counters> {
        self.counters.clone()
    }

    fn refused(&self) -> watch::Receiver<RefusedFlows> {
        self.refused.subscribe()
    }

    fn tap(&self, tap: Tap) -> bool {
        self.taps.lock().unwrap().push(tap);
        self.running
    }

    fn untap(&self, id: u64) {
        self.taps.lock().unwrap().retain(|t| t.id() != id);
    }
}

/// Runs `test` with a client that is connected to a server around `fake`.
fn with_client<F: Future<Output = ()>>(fake: Fake, test: impl FnOnce(Client) -> F) {
    let link = fake.link.lock().unwrap().clone();
    with_server(fake, watch::channel(link).1, async |path| test(Client::connect(&path).await.unwrap()).await);
}

/// Runs `test` with the socket of a server around `fake`, which tells the link that `links` has.
fn with_server(fake: Fake, links: watch::Receiver<Arc<Link>>, test: impl AsyncFnOnce(PathBuf)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control.sock");
        let (listener, _file) = crate::sockets::unix::listen(&path, false).unwrap();
        let control: Arc<dyn Control> = Arc::new(fake);
        let metrics = Arc::new(Metrics::new(control.clone(), "vm1"));
        let server = ControlServer::new(control, metrics, links, Reserved::presets());
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let served = tokio::spawn(server.serve(listener, async {
            let _ = stopped.await;
        }));
        test(path).await;
        stop.send(()).unwrap();
        served.await.unwrap().unwrap();
    });
}

#[test]
fn the_link_is_told_at_once_and_when_it_changes_until_the_server_ends() {
    let first = Arc::new(test_link());
    let second = Arc::new(Link { mtu: 1400, ..test_link() });
    let (present, links) = watch::channel(first);
    let told = async |messages: &mut Streaming<proto::WatchLinkResponse>| {
        messages.message().await.unwrap().map(|m| m.link.unwrap().mtu)
    };
    let (keep, kept) = std::sync::mpsc::channel();
    with_server(Fake::new(), links, async |path| {
        let mut client = Client::connect(&path).await.unwrap();
        let mut messages = client.watch_link().await.unwrap();
        assert_eq!(told(&mut messages).await, Some(test_link().mtu.into()));
        present.send_replace(second);
        assert_eq!(told(&mut messages).await, Some(1400));
        // The call is still open when the server is told to end.
        keep.send((client, messages)).unwrap();
    });
    drop(kept);
}

#[test]
fn flows_that_a_full_table_refuses_are_told_with_the_link_and_those_before_the_call_are_not() {
    let (present, links) = watch::channel(Arc::new(test_link()));
    let fake = Fake::new();
    let refused = fake.refused.clone();
    refused.send_replace(RefusedFlows { limit: 4, count: 2 });
    let told = async |messages: &mut Streaming<proto::WatchLinkResponse>| {
        let message = messages.message().await.unwrap().unwrap();
        (message.link.unwrap().mtu, message.refused_flows)
    };
    with_server(fake, links, async |path| {
        let mut client = Client::connect(&path).await.unwrap();
        let mut messages = client.watch_link().await.unwrap();
        assert_eq!(told(&mut messages).await, (test_link().mtu.into(), None));
        refused.send_modify(|refused| refused.count += 3);
        let flows = proto::RefusedFlows { limit: 4, count: 3 };
        assert_eq!(told(&mut messages).await, (test_link().mtu.into(), Some(flows)));
        present.send_replace(Arc::new(Link { mtu: 1400, ..test_link() }));
        assert_eq!(told(&mut messages).await, (1400, None), "they are told once");
    });
}

fn tcp(pod: u16, guest: u16) -> proto::PortRule {
    convert::rule_to_proto(PortRule { proto: Proto::Tcp, pod, guest })
}

#[test]
fn the_status_is_told() {
    with_client(Fake::new(), async |mut client| {
        let view = show::StatusView::from(client.status().await.unwrap());
        let text = show::status(&view);
        for part in [
            "up 1m01s",
            "Frontend     connected",
            "Rings        0 1",
            "CSUM VERSION_1",
            "Mode         passthrough",
            "Guest MAC    52:54:00:11:22:33",
            "guest 10.9.0.2/24 gateway 10.9.0.1 pod 10.9.0.2",
            "DNS          10.96.0.10 fd00:96::a",
            "Flows        3 TCP, 2 UDP, 1 echo",
            "             2 ESTABLISHED, 1 TIME-WAIT",
            "Listeners    7, silent: the guest does not run",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    });
}

#[test]
fn a_worker_that_has_ended_is_told() {
    with_client(Fake { running: false, ..Fake::new() }, async |mut client| {
        assert_eq!(client.status().await.unwrap_err().code(), tonic::Code::Unavailable);
        assert!(client.metrics().await.unwrap().contains("netd_worker_running 0\n"));
    });
}

fn rows(limit: u32) -> proto::ListFlowsRequest {
    proto::ListFlowsRequest { limit, ..Default::default() }
}

#[test]
fn every_flow_is_listed_in_order() {
    with_client(Fake::new(), async |mut client| {
        let flows = client.flows(rows(0)).await.unwrap();
        assert_eq!(flows.len(), 600);
        assert_eq!((flows[0].guest.as_str(), flows[599].guest.as_str()), ("10.9.0.2:1000", "10.9.0.2:1599"));
        assert_eq!((flows[0].pod_peer.as_str(), flows[0].idle_ms), ("[2001:db8::1]:80", 4));
        assert_eq!((flows[0].guest_rtt_us, flows[0].in_flight, flows[0].socket), (Some(150), 10, None));
        assert_eq!(client.flows(rows(10)).await.unwrap().len(), 10);
    });
    with_client(Fake { flows: 0, ..Fake::new() }, async |mut client| {
        assert_eq!(client.flows(rows(0)).await.unwrap(), []);
    });
}

#[test]
fn a_filter_of_flows_is_applied_by_netd_and_judged() {
    with_client(Fake::new(), async |mut client| {
        let ask = |filter| proto::ListFlowsRequest { limit: 0, filter: Some(filter), sockets: true };
        let filter = proto::FlowFilter { ports: vec![1003], ..Default::default() };
        let flows = client.flows(ask(filter)).await.unwrap();
        assert_eq!((flows.len(), flows[0].guest.as_str()), (1, "10.9.0.2:1003"));
        assert!(flows[0].socket.is_some());
        let filter = proto::FlowFilter { networks: vec!["x".into()], ..Default::default() };
        let error = client.flows(ask(filter)).await.unwrap_err();
        assert_eq!(error.code(), tonic::Code::InvalidArgument);
        assert!(error.message().starts_with("filter.networks: 'x'"), "{error}");
    });
}

/// One frame of 60 bytes of the guest, shown to every tap.
fn show_a_frame(taps: &Mutex<Vec<Tap>>) {
    let bytes = [crate::wire::VnetHeader::PLAIN.to_bytes().as_slice(), &[7; 60]].concat();
    let slices = crate::ring::Iovs::from_owned(bytes);
    let all = taps.lock().unwrap().iter().cloned().fold(None, Taps::add).unwrap();
    all.offer(Direction::Outbound, &slices, 0, 72, &crate::wire::VnetHeader::PLAIN);
}

#[test]
fn a_capture_gives_frames_until_its_client_goes() {
    let fake = Fake::new();
    let taps = fake.taps.clone();
    with_client(fake, async |mut client| {
        let request =
            proto::CaptureRequest { filter: "greater 60".into(), snaplen: 10, ..Default::default() };
        let mut capture = client.capture(request).await.unwrap();
        assert_eq!(
            (capture.interface().mac.as_str(), capture.interface().snaplen),
            ("52:54:00:11:22:33", 10)
        );
        show_a_frame(&taps);
        let captured = loop {
            let captured = capture.next().await.unwrap().unwrap();
            if !captured.packets.is_empty() {
                break captured;
            }
        };
        assert_eq!((captured.packets[0].data.as_slice(), captured.packets[0].len), (&[7; 10][..], 60));
        assert_eq!((captured.matched, captured.dropped), (1, 0));
        drop(capture);
        // The server learns of it by its own connection.
        while !taps.lock().unwrap().is_empty() {
            client.status().await.unwrap();
        }
    });
}

#[test]
fn captures_are_few_and_end_with_netd() {
    let fake = Fake::new();
    let taps = fake.taps.clone();
    with_client(fake, async |mut client| {
        let mut running = Vec::new();
        for _ in 0..4 {
            running.push(client.capture(proto::CaptureRequest::default()).await.unwrap());
        }
        let error = client.capture(proto::CaptureRequest::default()).await.unwrap_err();
        assert_eq!(error.code(), tonic::Code::ResourceExhausted);
        for (bad, text) in [
            (proto::CaptureRequest { filter: "hots".into(), ..Default::default() }, "filter, column 1"),
            (proto::CaptureRequest { snaplen: 300_000, ..Default::default() }, "snaplen: 300000"),
            (proto::CaptureRequest { buffer_kib: 1, ..Default::default() }, "buffer_kib: 1"),
        ] {
            let error = client.capture(bad).await.unwrap_err();
            assert!(error.message().starts_with(text), "{error}");
        }
        // A worker that ends lets go of its taps, and that ends the calls.
        taps.lock().unwrap().clear();
        for mut capture in running {
            while capture.next().await.unwrap().is_some() {}
        }
    });
    let fake = Fake::new();
    let taps = fake.taps.clone();
    let mut left = None;
    // The test's end stops the server, which ends the capture that is still there.
    with_client(fake, async |mut client| {
        left = Some(client.capture(proto::CaptureRequest::default()).await.unwrap());
    });
    assert!(taps.lock().unwrap().is_empty());
}

#[test]
fn ports_come_and_go() {
    with_client(Fake::new(), async |mut client| {
        let rules = vec![tcp(80, 8080), tcp(81, 81), tcp(15001, 15001)];
        let added = client.add_ports(rules).await.unwrap();
        let errors: Vec<(u32, &str)> =
            added.iter().map(|p| (p.rule.unwrap().pod, p.error.as_str())).collect();
        assert_eq!(errors[..2], [(80, ""), (81, "address already in use")]);
        assert_eq!(errors[2].0, 15001);
        assert!(errors[2].1.contains("reserved"), "{errors:?}");

        let ports = client.ports().await.unwrap();
        assert_eq!(ports.len(), 1);
        assert_eq!(ports[0].rule, Some(tcp(80, 8080)));
        let removed = client.remove_ports(vec![tcp(80, 8080), tcp(9, 9)]).await.unwrap();
        assert_eq!(removed.len(), 1);
        assert_eq!(client.ports().await.unwrap(), []);
    });
}

#[test]
fn a_list_of_all_ports_fits() {
    let fake = Fake::new();
    let all = |proto| (1..=u16::MAX).map(move |p| PortRule { proto, pod: p, guest: p });
    *fake.ports.lock().unwrap() = all(Proto::Tcp).chain(all(Proto::Udp)).collect();
    with_client(fake, async |mut client| {
        assert_eq!(client.ports().await.unwrap().len(), 2 * 65_535);
    });
}

#[test]
fn rules_that_name_no_port_are_refused() {
    let rule = |transport: proto::Transport, pod, guest| {
        convert::rule(&proto::PortRule { transport: transport.into(), pod, guest })
    };
    assert_eq!(
        rule(proto::Transport::Tcp, 80, 8080),
        Ok(PortRule { proto: Proto::Tcp, pod: 80, guest: 8080 })
    );
    assert_eq!(rule(proto::Transport::Unspecified, 80, 80), Err(convert::RuleError::Transport));
    assert_eq!(rule(proto::Transport::Udp, 0, 80), Err(convert::RuleError::Port { field: "pod", value: 0 }));
    let guest = rule(proto::Transport::Udp, 80, 65_536).unwrap_err();
    assert_eq!(guest.to_string(), "guest: 65536 is not allowed; a port from 1 to 65535 is");
}

#[test]
fn counters_and_metrics_tell_the_same() {
    let fake = Fake::new();
    fake.counters.guest_tx_frames.add(5);
    fake.counters.count_drop(Reason::FlowLimit);
    fake.counters.count_drop(Reason::FlowLimit);
    with_client(fake, async |mut client| {
        let rows = show::counter_rows(client.counters().await.unwrap());
        let text = show::counters(&rows);
        let line = |name: &str| text.lines().find(|l| l.starts_with(name)).unwrap().to_owned();
        assert!(line("guest_tx_frames ").contains(" 5  Frames received from the guest."), "{text}");
        assert!(line("dropped.flow_limit ").ends_with(" 2  The flow table is full."), "{text}");

        let metrics = client.metrics().await.unwrap();
        for line in [
            "# TYPE netd_guest_tx_frames counter",
            "netd_guest_tx_frames_total 5",
            "netd_dropped_total{reason=\"flow_limit\"} 2",
            "netd_dropped_total{reason=\"spoofed\"} 0",
            "netd_flows{kind=\"udp\"} 2",
            "netd_listeners 7",
            "netd_listeners_silent 1",
            "netd_frontend_connected 1",
            "netd_worker_running 1",
            "netd_uptime_seconds 61.5",
            "netd_link_mtu_bytes 1500",
            "# EOF",
        ] {
            assert!(metrics.lines().any(|l| l == line), "{line} is not in\n{metrics}");
        }
        assert!(metrics.contains("\nprocess_resident_memory_bytes "), "{metrics}");
    });
}

#[test]
fn metrics_are_served_over_http() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = http::listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(http::serve(listener, Arc::new(Metrics::new(Arc::new(Fake::new()), "vm1"))));
        let long = format!("GET / HTTP/1.1\r\nA: {}", "a".repeat(9000));
        for (request, status) in [
            ("GET /metrics HTTP/1.1\r\nHost: netd\r\n\r\n", "200 OK"),
            ("GET /metrics?x=y HTTP/1.0\r\n\r\n", "200 OK"),
            ("GET / HTTP/1.1\r\n\r\n", "404 "),
            ("POST /metrics HTTP/1.1\r\n\r\n", "405 "),
            ("GET /metrics\r\n\r\n", "400 "),
            ("\r\n\r\n", "400 "),
            (long.as_str(), "431 "),
        ] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(request.as_bytes()).await.unwrap();
            // After a refused request the connection may end by a reset: what counts is what came before.
            let mut answer = Vec::new();
            while stream.read_buf(&mut answer).await.is_ok_and(|n| n > 0) {}
            let answer = String::from_utf8(answer).unwrap();
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{request:?}: {answer}");
            if status == "200 OK" {
                let body = answer.split_once("\r\n\r\n").unwrap().1;
                assert!(answer.contains(&format!("Content-Length: {}\r\n", body.len())));
                assert!(body.ends_with("# EOF\n"));
            }
        }
    });
}
