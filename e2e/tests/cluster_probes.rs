//! How the cluster looks at a guest and reaches it: probes, masquerade, lists of ports.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails it")]

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Service;
use podvirt_api::v1;
use podvirt_e2e::artefacts::image;
use podvirt_e2e::cluster::talk::{GREETER, echo};
use podvirt_e2e::cluster::{BOOT, Cluster, Joined, Manifest, Namespace, SEGMENT, SOON, Security};
use serde_json::json;

/// A command in the guest.
const COMMAND: Duration = Duration::from_secs(30);
/// A connection and its answer, on a busy machine.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// From a manifest to a shell in a guest with systemd, under TCG.
const LONG_BOOT: Duration = Duration::from_secs(600);

/// The port of the web server that a test starts in the guest.
const WEB: u16 = 8080;
/// A port on which no program in the guest listens before the test says so.
const LATE: u16 = 9000;
/// A port of UDP on which a test echoes in the guest.
const ECHO: u16 = 5353;

/// By it the kernel carries the binding `masquerade`.
const NFTABLES: &str = "podvirt.io/masquerade: nftables";

/// cloud-init that starts a web server. It has the page `/live`, and writes down what it is asked for.
const SERVE: &str = "#cloud-config\nruncmd:\n- mkdir /tmp/www; echo yes >/tmp/www/live\n\
                     - httpd -f -vv -p 8080 -h /tmp/www 2>/tmp/web.log &\n";

fn ready(instance: &v1::VirtualMachineInstance) -> bool {
    instance.status.conditions.iter().any(|c| c.r#type.as_str() == "Ready" && c.status == "True")
}

fn wait_ready(namespace: &Namespace<'_>, wanted: bool) -> v1::VirtualMachineInstance {
    let what = if wanted { "a ready instance" } else { "an instance that is not ready" };
    namespace.wait("vm", what, SOON, |i: &v1::VirtualMachineInstance| ready(i) == wanted).unwrap()
}

fn addresses(namespace: &Namespace<'_>) -> Vec<IpAddr> {
    let status = namespace.launcher("vm").unwrap().status.unwrap();
    let addresses: Vec<IpAddr> =
        status.pod_ips.iter().flatten().map(|address| address.ip.parse().unwrap()).collect();
    assert_eq!(addresses.len(), 2, "{addresses:?}");
    addresses
}

/// The first line that the guest says at a port, after being told `request`.
fn ask(address: IpAddr, port: u16, request: &str) -> Result<String> {
    let mut stream = TcpStream::connect_timeout(&SocketAddr::new(address, port), CONNECT_TIMEOUT)?;
    stream.set_read_timeout(Some(CONNECT_TIMEOUT))?;
    stream.write_all(request.as_bytes())?;
    let mut text = [0; 4096];
    let size = stream.read(&mut text)?;
    let text = String::from_utf8_lossy(text.get(..size).context("more than there is room for")?);
    text.lines().next().map(str::to_owned).context("nothing said")
}

fn page(address: IpAddr, path: &str) -> Result<String> {
    ask(address, WEB, &format!("GET {path} HTTP/1.0\r\n\r\n"))
}

#[test]
fn probes_and_a_service_see_the_guest_behind_masquerade() {
    see_the_guest_behind_masquerade("");
}

#[test]
fn long_probes_and_a_service_see_the_guest_behind_the_kernels_masquerade() {
    see_the_guest_behind_masquerade(NFTABLES);
}

fn see_the_guest_behind_masquerade(annotations: &str) {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let spec = "networks: [{name: default, pod: {vmNetworkCIDR: 10.10.010.0/24, vmIPv6NetworkCIDR: 'fd10:10::/64'}}], \
                readinessProbe: {httpGet: {port: 8080, path: /ready}, periodSeconds: 1, failureThreshold: 2}, \
                livenessProbe: {httpGet: {port: 8080, path: /live}, periodSeconds: 1, failureThreshold: 300}";
    let devices = "interfaces: [{name: default, masquerade: {}}]";
    let manifest =
        Manifest { name: "vm", user_data: SERVE, annotations, spec, devices, ..Default::default() };
    namespace.apply(&manifest.machine()).unwrap();
    namespace
        .apply(&format!(
            "{{apiVersion: v1, kind: Service, metadata: {{name: greeter}}, spec: {{selector: {{vm: vm}}, ports: [{{port: {GREETER}}}]}}}}"
        ))
        .unwrap();
    namespace.wait_phase("vm", "Running", BOOT).unwrap();
    let (mut console, _running) = namespace.shell("vm").unwrap();

    // The guest has addresses of its own, and all others see the pod's; with no list of ports all of them are open.
    let own = console.sh("ip -o addr show scope global", COMMAND).unwrap();
    assert!(own.contains(" 10.10.10.2/24 ") && own.contains(" fd10:10::2/"), "{own}");
    let router = console.sh("ip -4 route show default", COMMAND).unwrap();
    assert!(router.contains(" via 10.10.10.1 "), "{router}");
    console.sh("socat -u /dev/null TCP:kubernetes.default:443,connect-timeout=10", COMMAND).unwrap();
    // By the bridge's tap there is no netd.
    let pod = namespace.launcher("vm").unwrap().spec.unwrap();
    let netds = pod.init_containers.iter().flatten().filter(|c| c.name == "netd").count();
    assert_eq!(netds, usize::from(annotations.is_empty()));
    let addresses = addresses(&namespace);
    for &address in &addresses {
        let text = namespace.until("a greeting", SOON, || Ok(ask(address, GREETER, "").ok())).unwrap();
        assert!(text.starts_with("GUEST-HELLO"), "{text}");
        let text = namespace.until("a page", SOON, || Ok(page(address, "/live").ok())).unwrap();
        assert!(text.ends_with("200 OK"), "{text}");
    }

    // The kubelet asks the guest for both pages. One is not there: the Service does not lead here.
    for path in ["/live", "/ready"] {
        let asked = format!("grep -q 'url:{path}' /tmp/web.log");
        namespace
            .until("a probe", SOON, || Ok(Some(()).filter(|()| console.sh(&asked, COMMAND).is_ok())))
            .unwrap();
    }
    wait_ready(&namespace, false);
    let service = namespace.wait("greeter", "the service", SOON, |_: &Service| true).unwrap();
    let service: IpAddr = service.spec.unwrap().cluster_ip.unwrap().parse().unwrap();
    assert!(ask(service, GREETER, "").is_err());

    console.sh("echo yes >/tmp/www/ready", COMMAND).unwrap();
    let instance = wait_ready(&namespace, true);
    let listed: Vec<String> =
        instance.status.interfaces.iter().flat_map(|i| i.ip_addresses.clone()).collect();
    assert!(addresses.iter().all(|a| listed.contains(&a.to_string())), "{listed:?}");
    namespace
        .wait("vm", "a ready machine", SOON, |vm: &v1::VirtualMachine| vm.status.ready == Some(true))
        .unwrap();
    namespace.until("a greeting by the service", SOON, || Ok(ask(service, GREETER, "").ok())).unwrap();

    console.sh("rm /tmp/www/ready", COMMAND).unwrap();
    wait_ready(&namespace, false);
}

#[test]
fn a_list_of_ports_opens_these_and_a_tcp_probe_asks_the_guest() {
    // The probe tells that it is the guest.
    opens_these("passtBinding", "", &refused_by_the_guest());
}

#[test]
fn long_a_list_of_ports_opens_these_behind_masquerade() {
    opens_these("masquerade", "", &refused_by_the_guest());
}

#[test]
fn long_a_list_of_ports_opens_these_behind_the_kernels_masquerade() {
    // It is the kubelet's own, which the guest itself refuses.
    opens_these("masquerade", NFTABLES, "connection refused");
}

/// A machine with nothing but a network of Multus, which has no probes. What the network checks is kept: netd's frames have the
/// pod's address.
#[test]
fn long_a_list_of_ports_opens_these_on_a_network_of_multus() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let ranges = json!([
        [{"subnet": "172.31.71.0/24", "rangeStart": "172.31.71.10"}],
        [{"subnet": "fd00:31:71::/64", "rangeStart": "fd00:31:71::10"}],
    ]);
    let plugin = json!({"type": "bridge", "bridge": SEGMENT, "macspoofchk": true, "ipam": {"type": "host-local", "ranges": ranges}});
    namespace.network("checked", &plugin).unwrap();
    let own = [("172.31.71.250".parse().unwrap(), 24), ("fd00:31:71::250".parse().unwrap(), 64)];
    let _joined = Joined::segment(&own).unwrap();
    let networks = "networks: [{name: default, multus: {networkName: checked}}]";
    let told = |namespace: &Namespace<'_>| {
        let of = |i: &v1::VirtualMachineInstance| {
            i.status.interfaces.first().map(|i| i.ip_addresses.clone()).unwrap_or_default()
        };
        let instance =
            namespace.wait("vm", "the addresses in the status", SOON, |i| of(i).len() == 2).unwrap();
        of(&instance).iter().map(|address| address.parse().unwrap()).collect()
    };
    opens_these_at(&namespace, "passtBinding", networks, "", None, told);
}

fn refused_by_the_guest() -> String {
    format!("the guest refuses connections at port {LATE}")
}

fn opens_these(binding: &str, annotations: &str, refused: &str) {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    opens_these_at(&namespace, binding, "", annotations, Some(refused), addresses);
}

/// The same for a machine on `networks`, none of which is the pod's own where it is not empty, with what finds its addresses; without
/// `refused` it has no probe.
fn opens_these_at(
    namespace: &Namespace<'_>,
    binding: &str,
    networks: &str,
    annotations: &str,
    refused: Option<&str>,
    addresses: impl Fn(&Namespace<'_>) -> Vec<IpAddr>,
) {
    let devices = format!(
        "interfaces: [{{name: default, {binding}: {{}}, ports: [{{name: web, port: {WEB}}}, {{name: echo, protocol: UDP, port: {ECHO}}}, {{name: late, port: {LATE}}}]}}]"
    );
    // The kubelet tells of 25 failures of a pod, then of one in five minutes: the guest has to be up before that.
    let probe =
        if refused.is_some() { "readinessProbe: {tcpSocket: {port: late}, periodSeconds: 4}" } else { "" };
    let spec = &format!("{networks}{probe}");
    let user_data = format!("{SERVE}- socat UDP6-RECVFROM:{ECHO},fork PIPE &\n");
    let manifest = Manifest {
        name: "vm",
        user_data: &user_data,
        annotations,
        devices: &devices,
        spec,
        ..Default::default()
    };
    namespace.apply(&manifest.machine()).unwrap();
    namespace.wait_phase("vm", "Running", BOOT).unwrap();
    let (mut console, _running) = namespace.shell("vm").unwrap();
    for address in addresses(namespace) {
        let text = namespace.until("a page", SOON, || Ok(page(address, "/live").ok())).unwrap();
        assert!(text.ends_with("200 OK"), "{text}");
        namespace.until("an echo", SOON, || Ok(echo(address, ECHO).ok())).unwrap();
        // The guest listens there, but the pod does not.
        console.sh(&format!("socat -u /dev/null TCP:localhost:{GREETER}"), COMMAND).unwrap();
        let error =
            TcpStream::connect_timeout(&SocketAddr::new(address, GREETER), CONNECT_TIMEOUT).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{address}: {error}");
    }

    // The pod has the port for the guest, and refuses as long as the guest does.
    let late = |address| TcpStream::connect_timeout(&SocketAddr::new(address, LATE), CONNECT_TIMEOUT);
    let refuses = || {
        for address in addresses(namespace) {
            let is_refused = || Ok(late(address).err().filter(|e| e.kind() == ErrorKind::ConnectionRefused));
            namespace.until("a refusal", SOON, is_refused).unwrap();
        }
    };
    refuses();
    if let Some(refused) = refused {
        let told =
            || Ok(Some(()).filter(|()| namespace.kubectl(&["get", "events"]).unwrap().contains(refused)));
        namespace.until("a probe that the guest refuses", SOON, told).unwrap();
        wait_ready(namespace, false);
    }
    let listen = format!("socat TCP6-LISTEN:{LATE},fork,reuseaddr PIPE & echo $! >/tmp/late");
    console.sh(&listen, COMMAND).unwrap();
    if refused.is_some() {
        wait_ready(namespace, true);
    }
    for address in addresses(namespace) {
        namespace.until("a connection", SOON, || Ok(late(address).ok())).unwrap();
    }
    console.sh("kill $(cat /tmp/late)", COMMAND).unwrap();
    if refused.is_some() {
        wait_ready(namespace, false);
    }
    refuses();
}

#[test]
fn long_an_http_probe_asks_the_guest_in_the_pods_place() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let spec = "readinessProbe: {httpGet: {port: 8080, path: /ready}, periodSeconds: 1, failureThreshold: 2}";
    let user_data = format!("{SERVE}- socat UDP4-RECVFROM:{ECHO},fork PIPE &\n");
    let devices = "interfaces: [{name: default, bridge: {}}]";
    let manifest = Manifest { name: "vm", user_data: &user_data, spec, devices, ..Default::default() };
    namespace.apply(&manifest.machine()).unwrap();
    namespace.wait_phase("vm", "Running", BOOT).unwrap();
    let (mut console, _running) = namespace.shell("vm").unwrap();
    let address = addresses(&namespace).into_iter().find(IpAddr::is_ipv4).unwrap();
    namespace.until("a page", SOON, || Ok(page(address, "/live").ok())).unwrap();
    namespace.until("an echo", SOON, || Ok(echo(address, ECHO).ok())).unwrap();
    wait_ready(&namespace, false);
    console.sh("echo yes >/tmp/www/ready", COMMAND).unwrap();
    wait_ready(&namespace, true);
    console.sh("rm /tmp/www/ready", COMMAND).unwrap();
    wait_ready(&namespace, false);
}

#[test]
fn long_a_guest_that_no_longer_answers_its_liveness_probe_runs_anew() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let spec = "livenessProbe: {httpGet: {port: 8080, path: /live}, periodSeconds: 1, failureThreshold: 60}";
    let manifest = Manifest { name: "vm", user_data: SERVE, spec, ..Default::default() };
    namespace.apply(&manifest.machine()).unwrap();
    let first = namespace.wait_phase("vm", "Running", BOOT).unwrap();
    let (mut console, _running) = namespace.shell("vm").unwrap();
    console.sh("rm /tmp/www/live", COMMAND).unwrap();
    let other = |i: &v1::VirtualMachineInstance| i.metadata.uid != first.metadata.uid;
    namespace.wait("vm", "another instance", BOOT, other).unwrap();
}

#[test]
fn long_probes_of_the_agent_ask_the_guest() {
    // Made before this process is in the cluster's network. The usual guest has no agent.
    let debian = image("disk-debian").unwrap();
    let cluster = Cluster::get().unwrap();
    cluster.load(&debian).unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let spec = "readinessProbe: {exec: {command: [/usr/bin/test, -e, /run/ready]}, periodSeconds: 2, timeoutSeconds: 5}, \
                livenessProbe: {guestAgentPing: {}, periodSeconds: 5, timeoutSeconds: 5, failureThreshold: 120}";
    let manifest = Manifest { name: "vm", spec, ..Default::default() }.machine();
    let manifest = manifest.replace("disk-tiny", "disk-debian").replace("guest: 256Mi", "guest: 512Mi");
    namespace.apply(&manifest).unwrap();
    namespace.wait_phase("vm", "Running", BOOT).unwrap();
    let (mut console, _running) =
        namespace.until("a shell", LONG_BOOT, || Ok(namespace.shell("vm").ok())).unwrap();
    let agent = |i: &v1::VirtualMachineInstance| {
        i.status.conditions.iter().any(|c| c.r#type.as_str() == "AgentConnected" && c.status == "True")
    };
    namespace.wait("vm", "a connected agent", LONG_BOOT, agent).unwrap();

    wait_ready(&namespace, false);
    console.sh("touch /run/ready", COMMAND).unwrap();
    wait_ready(&namespace, true);
    console.sh("rm /run/ready", COMMAND).unwrap();
    wait_ready(&namespace, false);

    // What both probes say when there is no agent to ask.
    console.sh("systemctl stop qemu-guest-agent", COMMAND).unwrap();
    let says = "virt-probe: the guest's agent is not connected";
    for probe in ["Readiness", "Liveness"] {
        let told = || {
            let events = namespace.kubectl(&["get", "events"]).unwrap();
            Ok(events.lines().any(|line| line.contains(probe) && line.contains(says)).then_some(()))
        };
        namespace.until("a probe without an agent", SOON, told).unwrap();
    }
}

#[test]
fn long_a_machine_that_carries_as_many_flows_as_it_may_says_so() {
    /// What the machine's annotation allows.
    const FLOWS: usize = 64;
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let annotations = format!("podvirt.io/netd-flows: '{FLOWS}'");
    namespace
        .apply(&Manifest { name: "vm", annotations: &annotations, ..Default::default() }.machine())
        .unwrap();
    namespace.wait_phase("vm", "Running", BOOT).unwrap();
    let (_console, _running) = namespace.shell("vm").unwrap();
    let to = SocketAddr::new(addresses(&namespace)[0], GREETER);
    let greeted = || {
        let mut stream = TcpStream::connect_timeout(&to, CONNECT_TIMEOUT).ok()?;
        stream.set_read_timeout(Some(CONNECT_TIMEOUT)).ok()?;
        (stream.read(&mut [0; 64]).ok()? > 0).then_some(stream)
    };
    namespace.until("a greeting", SOON, || Ok(greeted())).unwrap();
    let held: Vec<_> = (0..FLOWS * 2).filter_map(|_| greeted()).collect();
    // Flows that the guest itself has opened, to its resolver for instance, count as well.
    assert!((FLOWS / 2..=FLOWS).contains(&held.len()), "{} connections are held", held.len());
    let event = || {
        let selector = "involvedObject.kind=VirtualMachineInstance,involvedObject.name=vm,reason=FlowLimit";
        let args = ["get", "events", "--field-selector", selector, "-o", "jsonpath={.items[*].message}"];
        Ok(Some(namespace.kubectl(&args)?).filter(|message| !message.is_empty()))
    };
    let message = namespace.until("an event", SOON, event).unwrap();
    assert!(message.contains(&format!("at most {FLOWS} flows")), "{message}");
    assert!(message.contains("podvirt.io/netd-flows"), "{message}");
    drop(held);
    namespace.until("a greeting when there is room", SOON, || Ok(greeted())).unwrap();
}

#[test]
fn long_ports_of_a_mesh_are_the_guests_where_there_is_none() {
    /// Ports of Istio's and Linkerd's sidecars.
    const SIDECARS: [u16; 2] = [4190, 15090];
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    namespace.apply(&Manifest { name: "vm", ..Default::default() }.machine()).unwrap();
    namespace.wait_phase("vm", "Running", BOOT).unwrap();
    let (mut console, _running) = namespace.shell("vm").unwrap();
    for port in SIDECARS {
        let listen =
            format!("socat TCP4-LISTEN:{port},fork,reuseaddr SYSTEM:'echo served' >/dev/null 2>&1 &");
        console.sh(&listen, COMMAND).unwrap();
        let to = addresses(&namespace)[0];
        let served = || Ok(ask(to, port, "").ok().filter(|line| line == "served"));
        namespace.until(&format!("an answer at port {port}"), SOON, served).unwrap();
    }
}
