//! Virtual machines on the cluster, as their users see them.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails it")]

use std::time::Duration;

use kube::ResourceExt;
use podvirt_api::v1;
use podvirt_e2e::cluster::{BOOT, Cluster, Manifest, Namespace, SOON, Security};

/// A command in the guest.
const COMMAND: Duration = Duration::from_secs(30);
/// Until the node controllers give up a dead node, and a boot.
const LOSS: Duration = Duration::from_secs(400);

/// The port of the tiny guest's greeter.
const GREETER: u16 = 7777;

fn is(condition: Option<&v1::VirtualMachineInstanceCondition>, status: &str) -> bool {
    condition.is_some_and(|c| c.status == status)
}

fn condition<'a>(
    instance: &'a v1::VirtualMachineInstance,
    kind: &str,
) -> Option<&'a v1::VirtualMachineInstanceCondition> {
    instance.status.conditions.iter().find(|c| c.r#type.as_str() == kind)
}

fn wait_status(namespace: &Namespace<'_>, name: &str, status: &str, limit: Duration) -> v1::VirtualMachine {
    let is =
        |vm: &v1::VirtualMachine| vm.status.printable_status.as_ref().is_some_and(|s| s.as_str() == status);
    namespace.wait(name, &format!("{name} {status}"), limit, is).unwrap()
}

/// A pod of a test's own, on a node.
fn peer(namespace: &Namespace<'_>, node: &str) {
    namespace
        .apply(&format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: peer}}, spec: {{nodeName: {node}, terminationGracePeriodSeconds: 1, \
             securityContext: {{runAsUser: 107, runAsGroup: 107, runAsNonRoot: true, seccompProfile: {{type: RuntimeDefault}}}}, \
             containers: [{{name: peer, image: 'podvirt/tools:dev', command: [sleep, infinity], \
             securityContext: {{allowPrivilegeEscalation: false, capabilities: {{drop: [ALL]}}}}}}]}}}}"
        ))
        .unwrap();
    namespace.wait_pod("peer", SOON).unwrap();
}

/// What the guest's greeter says to the peer.
fn greeting(namespace: &Namespace<'_>, host: &str) -> Option<String> {
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    let command = format!("socat -T 5 - TCP:{host}:{GREETER},connect-timeout=5 </dev/null");
    namespace.exec("peer", &["sh", "-c", &command]).ok().filter(|text| text.contains("GUEST-HELLO"))
}

#[test]
fn restricted_namespace_runs_a_machine_that_pods_reach_and_that_reaches_services() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let user_data = "#cloud-config\nhostname: chosen\n";
    namespace.apply(&Manifest { name: "vm", user_data, ..Default::default() }.machine()).unwrap();
    namespace
        .apply(&format!(
            "{{apiVersion: v1, kind: Service, metadata: {{name: greeter}}, spec: {{ipFamilyPolicy: RequireDualStack, selector: {{vm: vm}}, ports: [{{port: {GREETER}}}]}}}}"
        ))
        .unwrap();
    let instance = namespace.wait_phase("vm", "Running", BOOT).unwrap();
    let node = instance.status.node_name.clone().unwrap();
    peer(&namespace, if node == "node1" { "node2" } else { "node1" });
    let (mut console, _running) = namespace.shell("vm").unwrap();
    assert_eq!(console.sh("hostname", COMMAND).unwrap(), "chosen");

    // Into the guest: the pod's addresses and the Service, both families.
    let pod = namespace.launcher("vm").unwrap();
    let addresses: Vec<String> =
        pod.status.as_ref().unwrap().pod_ips.iter().flatten().map(|ip| ip.ip.clone()).collect();
    assert_eq!(addresses.len(), 2);
    let service = format!("greeter.{}.svc.cluster.local", namespace.name());
    for host in addresses.iter().chain([&service]) {
        namespace.until(&format!("greeting at {host}"), SOON, || Ok(greeting(&namespace, host))).unwrap();
    }
    // Out of it: a name, which is a Service's, and the other pod.
    let out =
        format!("socat -u /dev/null TCP:{}:443,connect-timeout=10", "kubernetes.default.svc.cluster.local");
    console.sh(&out, COMMAND).unwrap();
    let peer = namespace.wait_pod("peer", SOON).unwrap().status.unwrap().pod_ip.unwrap();
    console.sh(&format!("ping -c 1 -W 10 {peer}"), COMMAND).unwrap();

    // The status tells what users of the API look for.
    let ready = |i: &v1::VirtualMachineInstance| is(condition(i, "Ready"), "True");
    let reports = |i: &v1::VirtualMachineInstance| {
        let listed: Vec<String> = i.status.interfaces.iter().flat_map(|i| i.ip_addresses.clone()).collect();
        ready(i) && addresses.iter().all(|a| listed.contains(a))
    };
    let instance = namespace.wait("vm", "a full status", SOON, reports).unwrap();
    let interface = instance.status.interfaces.first().unwrap();
    assert_eq!(interface.name.as_deref(), Some("default"));
    assert!(interface.mac.is_some());
    assert!(is(condition(&instance, "LiveMigratable"), "True"));
    let vm = wait_status(&namespace, "vm", "Running", SOON);
    assert_eq!((vm.status.ready, vm.status.created), (Some(true), Some(true)));

    // With the machine goes everything.
    namespace.kubectl(&["delete", "vm", "vm", "--wait=false"]).unwrap();
    console.wait_for("Power down", SOON).unwrap();
    namespace.wait_gone::<v1::VirtualMachine>("vm", SOON).unwrap();
    namespace.wait_gone::<v1::VirtualMachineInstance>("vm", SOON).unwrap();
    namespace.wait_ended(&pod).unwrap();
}

#[test]
fn long_virtctl_starts_pauses_restarts_and_stops() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    namespace.apply(&Manifest { name: "vm", run: "Manual", ..Default::default() }.machine()).unwrap();
    wait_status(&namespace, "vm", "Stopped", SOON);
    let error = namespace.virtctl(&["stop", "vm"]).unwrap_err().to_string();
    assert!(error.contains("not running"), "{error}");
    assert!(namespace.virtctl(&["start", "vm"]).unwrap().contains("VM vm was scheduled to start"));
    let first = namespace.wait_phase("vm", "Running", BOOT).unwrap();
    let revision = first.status.virtual_machine_revision_name.clone().unwrap();
    let started =
        ["get", "controllerrevision", &revision, "-o", "jsonpath={.revision} {.data.spec.runStrategy}"];
    assert_eq!(namespace.kubectl(&started).unwrap(), "1 Manual");
    let (mut console, _running) = namespace.shell("vm").unwrap();

    assert!(namespace.virtctl(&["pause", "vm", "vm"]).unwrap().contains("scheduled to pause"));
    wait_status(&namespace, "vm", "Paused", SOON);
    assert!(namespace.virtctl(&["pause", "vm", "vm"]).is_err());
    assert!(namespace.virtctl(&["unpause", "vm", "vm"]).unwrap().contains("scheduled to unpause"));
    wait_status(&namespace, "vm", "Running", SOON);
    assert_eq!(console.sh("echo back", COMMAND).unwrap(), "back");

    assert!(namespace.virtctl(&["restart", "vm"]).unwrap().contains("VM vm was scheduled to restart"));
    let other = |i: &v1::VirtualMachineInstance| {
        i.metadata.uid != first.metadata.uid
            && i.status.phase.as_ref().is_some_and(|p| p.as_str() == "Running")
    };
    namespace.wait("vm", "another instance", BOOT, other).unwrap();
    let revisions = namespace.kubectl(&["get", "controllerrevisions", "-o", "name"]).unwrap();
    assert_eq!(revisions.trim(), format!("controllerrevision.apps/{revision}"), "the same generation");
    let (console, _running) = namespace.shell("vm").unwrap();
    assert!(namespace.virtctl(&["stop", "vm"]).unwrap().contains("VM vm was scheduled to stop"));
    console.wait_for("Power down", SOON).unwrap();
    namespace.wait_gone::<v1::VirtualMachineInstance>("vm", SOON).unwrap();
    wait_status(&namespace, "vm", "Stopped", SOON);
}

#[test]
fn long_port_forward_leads_into_the_guest() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    namespace.apply(&Manifest { name: "vm", ..Default::default() }.machine()).unwrap();
    namespace.wait_phase("vm", "Running", BOOT).unwrap();
    let (_console, _running) = namespace.shell("vm").unwrap();
    let forward = |port: u16, program: &mut std::process::Command| {
        let child = program.spawn().unwrap();
        let _running = podvirt_e2e::cluster::Running(child);
        namespace
            .until("a greeting", SOON, || {
                use std::io::Read;
                let Ok(mut stream) = std::net::TcpStream::connect(("127.0.0.1", port)) else {
                    return Ok(None);
                };
                stream.set_read_timeout(Some(COMMAND))?;
                let mut text = [0; 11];
                Ok(stream.read_exact(&mut text).ok().filter(|()| &text == b"GUEST-HELLO"))
            })
            .unwrap();
    };
    let mut virtctl = cluster.virtctl().unwrap();
    forward(17771, virtctl.args(["-n", namespace.name(), "port-forward", "vmi/vm", "17771:7777"]));
    let pod = namespace.launcher("vm").unwrap().name_any();
    let mut kubectl = cluster.kubectl_command();
    forward(17772, kubectl.args(["-n", namespace.name(), "port-forward", &pod, "17772:7777"]));
}

#[test]
fn what_cannot_be_is_refused_or_says_why() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    // A field that is not carried out, and one that does not exist.
    let manifest = Manifest { name: "refused", domain: "launchSecurity: {sev: {}}", ..Default::default() };
    let error = namespace.apply(&manifest.machine()).unwrap_err().to_string();
    assert!(error.contains("spec.template.spec.domain.launchSecurity"), "{error}");
    assert!(error.contains("not supported by podvirt"), "{error}");
    let error = namespace.apply(&manifest.instance()).unwrap_err().to_string();
    assert!(error.contains("spec.domain.launchSecurity"), "{error}");
    let migration = "{apiVersion: kubevirt.io/v1, kind: VirtualMachineInstanceMigration, metadata: {name: m}, spec: {vmiName: refused}}";
    let error = namespace.apply(migration).unwrap_err().to_string();
    assert!(error.contains("'refused' does not exist"), "{error}");
    let spec = "dnsPolicy: None, dnsConfig: {nameservers: ['127.0.0.1']}";
    let resolver = Manifest { name: "refused", spec, ..Default::default() };
    let error = namespace.apply(&resolver.instance()).unwrap_err().to_string();
    assert!(error.contains("spec.dnsConfig.nameservers[0]: '127.0.0.1' is not allowed"), "{error}");
    let backup = "{apiVersion: backup.kubevirt.io/v1alpha1, kind: VirtualMachineBackup, metadata: {name: r}, \
                  spec: {mode: Pull, tokenSecretRef: t, pvcName: p, ttlDuration: soon, \
                         source: {apiGroup: kubevirt.io, kind: VirtualMachine, name: r}}}";
    let error = namespace.apply(backup).unwrap_err().to_string();
    assert!(error.contains("spec.ttlDuration"), "{error}");
    let export = "{apiVersion: export.kubevirt.io/v1alpha1, kind: VirtualMachineExport, metadata: {name: r}, \
                  spec: {source: {apiGroup: kubevirt.io, kind: VirtualMachineInstance, name: r}}}";
    let error = namespace.apply(export).unwrap_err().to_string();
    assert!(error.contains("spec.source.kind: invalid kind"), "{error}");
    let snapshot = "{apiVersion: snapshot.kubevirt.io/v1alpha1, kind: VirtualMachineSnapshot, metadata: {name: r}, \
                    spec: {source: {apiGroup: kubevirt.io, kind: VirtualMachineInstance, name: r}}}";
    let error = namespace.apply(snapshot).unwrap_err().to_string();
    assert!(error.contains("spec.source.kind: invalid kind"), "{error}");

    let nowhere = Manifest { name: "nowhere", spec: "nodeSelector: {nowhere: here}", ..Default::default() };
    namespace.apply(&nowhere.machine()).unwrap();
    wait_status(&namespace, "nowhere", "ErrorUnschedulable", SOON);
    let says = |i: &v1::VirtualMachineInstance| {
        i.status.conditions.iter().any(|c| c.message.as_deref().is_some_and(|m| m.contains("node")))
    };
    namespace.wait("nowhere", "a reason", SOON, says).unwrap();

    let manifest =
        Manifest { name: "blank", ..Default::default() }.machine().replace("disk-tiny:dev", "nothing:dev");
    namespace.apply(&manifest).unwrap();
    let pulls = |vm: &v1::VirtualMachine| {
        let status = vm.status.printable_status.as_ref().map(|s| s.as_str().to_owned());
        matches!(status.as_deref(), Some("ErrImagePull" | "ImagePullBackOff"))
    };
    namespace.wait("blank", "a pull that fails", SOON, pulls).unwrap();
}

/// Warnings about an instance: reason and message, one a line.
fn warnings(namespace: &Namespace<'_>, name: &str) -> String {
    let about = format!("involvedObject.kind=VirtualMachineInstance,involvedObject.name={name},type=Warning");
    let lines = "jsonpath={range .items[*]}{.reason}: {.message}{'\\n'}{end}";
    namespace.kubectl(&["get", "events", "--field-selector", &about, "-o", lines]).unwrap()
}

#[test]
fn a_machine_that_does_not_come_up_says_why() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let manifest = |name| Manifest { name, ..Default::default() };
    // An image without a disk; a network without addresses, which netd refuses; a processor that no node has.
    let empty = manifest("empty").instance().replace("disk-tiny:dev", "tools:dev");
    let bare = r#"{apiVersion: k8s.cni.cncf.io/v1, kind: NetworkAttachmentDefinition, metadata: {name: bare}, spec: {config: '{"cniVersion":"1.0.0","name":"bare","type":"bridge","bridge":"br1"}'}}"#;
    namespace.apply(bare).unwrap();
    let refused = Manifest {
        spec: "networks: [{name: bare, multus: {networkName: bare}}]",
        devices: "interfaces: [{name: bare, passtBinding: {}}]",
        ..manifest("refused")
    };
    let unknown = Manifest { domain: "cpu: {model: no-such-model}", ..manifest("unknown") };
    for instance in [empty, refused.instance(), unknown.instance()] {
        namespace.apply(&instance).unwrap();
    }
    for (name, kind, reasons, event, part) in [
        ("empty", "Synchronized", "Synchronizing with the Domain failed.", "SyncFailed", "/disk"),
        (
            "refused",
            "Synchronized",
            "CrashLoopBackOff",
            "CrashLoopBackOff",
            "has neither a global IPv4 nor a global IPv6 address",
        ),
        ("unknown", "PodScheduled", "Unschedulable", "FailedScheduling", "affinity/selector"),
    ] {
        let says = |i: &v1::VirtualMachineInstance| {
            condition(i, kind).is_some_and(|c| {
                c.status == "False"
                    && c.reason.as_deref() == Some(reasons)
                    && c.message.as_deref().is_some_and(|m| m.contains(part))
            })
        };
        namespace.wait(name, "a condition that says why", BOOT, says).unwrap();
        let told = || {
            let lines = warnings(&namespace, name);
            Ok(lines.lines().any(|line| line.starts_with(event) && line.contains(part)).then_some(()))
        };
        namespace.until("an event that says why", SOON, told).unwrap();
    }
}

#[test]
fn the_guests_end_decides_what_comes_next() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    // Switched off from inside: it has succeeded, and is not run again.
    namespace
        .apply(&Manifest { name: "off", run: "RerunOnFailure", ..Default::default() }.machine())
        .unwrap();
    namespace
        .apply(&Manifest { name: "taken", run: "RerunOnFailure", ..Default::default() }.machine())
        .unwrap();
    // Its QEMU is killed: it has failed, and runs again.
    let crash = Manifest { name: "crash", run: "RerunOnFailure", idle: true, ..Default::default() };
    namespace.apply(&crash.machine()).unwrap();
    let first = namespace.wait_phase("crash", "Running", BOOT).unwrap();
    let (mut console, _running) = namespace.shell("off").unwrap();
    console.type_line("poweroff -f").unwrap();
    namespace.wait_phase("off", "Succeeded", SOON).unwrap();
    wait_status(&namespace, "off", "Stopped", SOON);

    // A client deletes its pod, and it powers off in time: it has succeeded, and runs again.
    let (_console, _shown) = namespace.shell("taken").unwrap();
    let pod = namespace.launcher("taken").unwrap().name_any();
    namespace.kubectl(&["delete", "pod", &pod, "--wait=false"]).unwrap();
    let taken = namespace.wait_phase("taken", "Succeeded", SOON).unwrap();
    assert_eq!(taken.status.reason.as_deref(), Some("ShutDownWithPod"));
    let again = |i: &v1::VirtualMachineInstance| {
        i.metadata.uid != taken.metadata.uid
            && i.status.phase.as_ref().is_some_and(|p| p.as_str() == "Running")
    };
    namespace.wait("taken", "another instance", BOOT, again).unwrap();

    let pod = namespace.launcher("crash").unwrap().name_any();
    let end = "qemu=$(pidof qemu-system-x86_64); echo an assertion failed >>/proc/$qemu/fd/2; kill -9 $qemu";
    namespace.exec(&pod, &["sh", "-c", end]).unwrap();
    let selector = "involvedObject.name=crash,reason=Stopped";
    let args = ["get", "events", "--field-selector", selector, "-o", "jsonpath={.items[*].message}"];
    let told = || Ok(namespace.kubectl(&args)?.contains("an assertion failed").then_some(()));
    namespace.until("an event with the end of QEMU's log", SOON, told).unwrap();
    let again = |i: &v1::VirtualMachineInstance| {
        i.metadata.uid != first.metadata.uid
            && i.status.phase.as_ref().is_some_and(|p| p.as_str() == "Running")
    };
    namespace.wait("crash", "another instance", BOOT, again).unwrap();
}

#[test]
fn long_who_asks_once_a_second_sees_how_a_deleted_instance_ended() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    namespace.apply(&Manifest { name: "asked", ..Default::default() }.instance()).unwrap();
    namespace.wait_phase("asked", "Running", BOOT).unwrap();
    let (_console, _shown) = namespace.shell("asked").unwrap();

    let told = |i: &v1::VirtualMachineInstance| {
        let volume = |name: &str| i.status.volume_status.iter().find(|volume| volume.name == name);
        volume("root").is_some_and(|root| root.target == "vda" && root.size.is_none())
            && volume("seed").is_some_and(|seed| seed.target == "vdb" && seed.size.is_some())
    };
    let instance = namespace.wait("asked", "the places of its disks", SOON, told).unwrap();
    let memory = serde_json::to_value(&instance.status.memory).unwrap();
    for field in ["guestAtBoot", "guestCurrent", "guestRequested"] {
        assert_eq!(memory[field], "256Mi", "{memory}");
    }
    assert!(memory["memoryOverhead"].is_string(), "{memory}");
    let topology = serde_json::to_value(&instance.status.current_cpu_topology).unwrap();
    assert_eq!(topology, serde_json::json!({"cores": 1, "sockets": 1, "threads": 1}));

    namespace.kubectl(&["delete", "vmi", "asked", "--wait=false"]).unwrap();
    let mut phases = Vec::new();
    while let Ok(phase) = namespace.kubectl(&["get", "vmi", "asked", "-o", "jsonpath={.status.phase}"]) {
        phases.push(phase);
        assert!(phases.len() < 60, "it does not go: {phases:?}");
        std::thread::sleep(Duration::from_secs(1));
    }
    assert_eq!(phases.last().map(String::as_str), Some("Succeeded"), "{phases:?}");
}

#[test]
fn daemons_may_die_while_a_machine_runs() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    namespace.apply(&Manifest { name: "vm", ..Default::default() }.machine()).unwrap();
    let before = namespace.wait_phase("vm", "Running", BOOT).unwrap();
    let node = before.status.node_name.clone().unwrap();
    let (console, running) = namespace.shell("vm").unwrap();
    drop((console, running));
    peer(&namespace, &node);
    let pod = namespace.launcher("vm").unwrap();
    let (pod, address) = (pod.name_any(), pod.status.unwrap().pod_ip.unwrap());
    let reachable = |what: &str| {
        namespace.until(what, SOON, || Ok(greeting(&namespace, &address))).unwrap();
    };
    reachable("a greeting");
    let obeys = || {
        namespace.until("pause", SOON, || Ok(namespace.virtctl(&["pause", "vmi", "vm"]).ok())).unwrap();
        wait_status(&namespace, "vm", "Paused", SOON);
        namespace.until("unpause", SOON, || Ok(namespace.virtctl(&["unpause", "vmi", "vm"]).ok())).unwrap();
        wait_status(&namespace, "vm", "Running", SOON);
    };

    // The node agent: the machine runs on, and its successor takes over.
    cluster.kill_daemon("virt-handler", Some(&node)).unwrap();
    reachable("a greeting without the node agent");
    obeys();
    // libvirtd: QEMU runs on, and the launcher starts another.
    namespace.exec(&pod, &["sh", "-c", "kill -9 $(pidof libvirtd)"]).unwrap();
    reachable("a greeting without libvirtd");
    obeys();
    // netd: the kubelet starts another, and QEMU connects to it again.
    let kill = ["exec", &pod, "-c", "netd", "--", "sh", "-c", "kill -9 $(pidof netd)"];
    drop(namespace.kubectl(&kill));
    reachable("a greeting by the next netd");
    obeys();
    let after = namespace.wait_phase("vm", "Running", SOON).unwrap();
    assert_eq!(after.metadata.uid, before.metadata.uid);

    // The launcher: the machine ends with it, and another runs.
    drop(namespace.exec(&pod, &["sh", "-c", "kill -9 $(pidof qemu-system-x86_64 virt-launcher)"]));
    let again = |i: &v1::VirtualMachineInstance| {
        i.metadata.uid != before.metadata.uid
            && i.status.phase.as_ref().is_some_and(|p| p.as_str() == "Running")
    };
    namespace.wait("vm", "another instance", BOOT, again).unwrap();
}

/// Replicas of virt-api, and of virt-operator, which would bring them back: none, until this is dropped.
struct NoApi<'c>(&'c Cluster);

impl<'c> NoApi<'c> {
    fn new(cluster: &'c Cluster) -> NoApi<'c> {
        let none = NoApi(cluster);
        none.scale("0");
        let pods = "kubevirt.io in (virt-operator, virt-api)";
        let wait = ["wait", "pod", "-l", pods, "--for=delete", "--timeout=60s"];
        cluster.kubectl(&[&["-n", "kubevirt"], &wait[..]].concat()).unwrap();
        none
    }

    fn scale(&self, replicas: &str) {
        let scale = [
            "-n",
            "kubevirt",
            "scale",
            "deployment/virt-operator",
            "deployment/virt-api",
            "--replicas",
            replicas,
        ];
        self.0.kubectl(&scale).unwrap();
    }
}

impl Drop for NoApi<'_> {
    fn drop(&mut self) {
        self.scale("2");
    }
}

#[test]
fn long_a_node_makes_up_for_what_it_missed_while_no_virt_api_answered() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let instance = |name: &str| Manifest { name, ..Default::default() }.instance();
    for name in ["stays", "goes"] {
        namespace.apply(&instance(name)).unwrap();
    }
    let [stays, _] = ["stays", "goes"].map(|name| namespace.wait_phase(name, "Running", BOOT).unwrap());
    let address = namespace.launcher("stays").unwrap().status.unwrap().pod_ip.unwrap();
    peer(&namespace, stays.status.node_name.as_deref().unwrap());
    namespace.until("the guest", BOOT, || Ok(greeting(&namespace, &address))).unwrap();

    let none = NoApi::new(&cluster);
    namespace.kubectl(&["delete", "vmi", "goes", "--wait=false"]).unwrap();
    // Longer than a watch that breaks off is tried again at once.
    std::thread::sleep(Duration::from_secs(20));
    assert!(greeting(&namespace, &address).is_some(), "a machine depends on virt-api");
    drop(none);
    cluster.wait_admission(BOOT).unwrap();
    namespace.apply(&instance("comes")).unwrap();
    namespace.wait_phase("comes", "Running", BOOT).unwrap();
    namespace.wait_gone::<v1::VirtualMachineInstance>("goes", BOOT).unwrap();
    let still = namespace.wait_phase("stays", "Running", SOON).unwrap();
    assert_eq!(still.metadata.uid, stays.metadata.uid);
    assert!(greeting(&namespace, &address).is_some());
}

#[test]
fn long_a_machine_of_a_dead_node_runs_again_on_another() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let spec = "affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 100, preference: \
                {matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [node2]}]}}]}}, \
                tolerations: [{key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 5}, \
                {key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 5}]";
    namespace.apply(&Manifest { name: "vm", spec, ..Default::default() }.machine()).unwrap();
    let before = namespace.wait_phase("vm", "Running", BOOT).unwrap();
    assert_eq!(before.status.node_name.as_deref(), Some("node2"));
    let down = cluster.node(2).kill().unwrap();
    // An operator says that the node is off for good: before that podvirt cannot know that the machine does not run.
    cluster.node(2).wait_ready(false, LOSS).unwrap();
    cluster
        .kubectl(&["taint", "node", "node2", "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"])
        .unwrap();
    let moved = |i: &v1::VirtualMachineInstance| {
        i.status.node_name.as_deref() == Some("node1")
            && i.status.phase.as_ref().is_some_and(|p| p.as_str() == "Running")
    };
    let result = namespace.wait("vm", "an instance on node1", LOSS, moved);
    cluster.kubectl(&["taint", "node", "node2", "node.kubernetes.io/out-of-service-"]).unwrap();
    down.repair().unwrap();
    result.unwrap();
}
