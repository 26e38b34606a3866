//! A node that was taken over: what its virt-handler's own credentials do not open.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a helper of a test fails it")]

use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use k8s_openapi::api::certificates::v1::CertificateSigningRequest as Request;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use podvirt_api::v1;
use podvirt_api::v1::{
    VirtualMachineInstanceMigration as Migration, VirtualMachineInstanceMigrationPhase as Phase,
};
use podvirt_e2e::cluster::{BOOT, Cluster, Manifest, Namespace, Node, Running, SOON, Security};
use podvirt_e2e::until;
use serde_json::{Value, json};

/// From the request for a migration to one that copies memory.
const UNDER_WAY: Duration = Duration::from_secs(180);
/// Clients of one port of a migration that say nothing: twice as many as it has places for their handshakes.
const SILENT: usize = 64;
/// A client that says nothing is cut off within this time, which is half of what its handshake may take, when there are too many.
const CUT: Duration = Duration::from_secs(5);
/// The end of a handshake's time.
const GIVEN_UP: Duration = Duration::from_secs(20);

/// A node and the token of its virt-handler's pod.
struct Taken<'c> {
    cluster: &'c Cluster,
    node: Node<'c>,
    token: String,
}

impl<'c> Taken<'c> {
    /// What an attacker who has taken the node over reads from its disk.
    fn over(cluster: &'c Cluster, node: Node<'c>) -> Taken<'c> {
        let pods: Api<Pod> = Api::namespaced(cluster.client(), "kubevirt");
        let of = ListParams::default()
            .labels("kubevirt.io=virt-handler")
            .fields(&format!("spec.nodeName={}", node.name()));
        let pod = cluster.block_on(pods.list(&of)).unwrap().items.remove(0);
        let uid = pod.metadata.uid.unwrap();
        let read = format!("cat /var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~projected/*/token");
        let token = node.run(&["sh", "-c", &read]).unwrap().trim().to_owned();
        Taken { cluster, node, token }
    }

    /// Runs kubectl with nothing but the token; what it said, and whether it was allowed.
    fn kubectl(&self, args: &[&str]) -> (bool, String) {
        let token = format!("--token={}", self.token);
        let server = "--server=https://192.168.77.100:6443";
        let mut command = self.cluster.kubectl_command();
        command
            .env("KUBECONFIG", "/dev/null")
            .args([server, "--insecure-skip-tls-verify", &token])
            .args(args);
        let out = command.output().unwrap();
        let said = [out.stdout, out.stderr].concat();
        (out.status.success(), String::from_utf8_lossy(&said).into_owned())
    }

    fn is_refused(&self, args: &[&str], why: &str) {
        let (allowed, said) = self.kubectl(args);
        assert!(!allowed && said.contains(why), "on {}: {args:?}: {said}", self.node.name());
    }

    /// Applies an object, as virt-handler applies its node; what would be allowed is not done. None: it is allowed.
    fn applies(&self, directory: &std::path::Path, object: &Value) -> Option<String> {
        let file = directory.join("object.json");
        std::fs::write(&file, object.to_string()).unwrap();
        let apply =
            ["apply", "--server-side", "--force-conflicts", "--validate=false", "--dry-run=server", "-f"];
        let (allowed, said) = self.kubectl(&[&apply[..], &[file.to_str().unwrap()]].concat());
        (!allowed).then_some(said)
    }

    /// Changes the machine; what would be allowed is not done, since the machine's own handler is at work. What was said, and
    /// whether it was allowed. Not by kubectl, which reads an object before it changes it.
    fn patch(&self, namespace: &Namespace<'_>, patch: &Value) -> (bool, String) {
        let patched = self.cluster.block_on(async {
            let mut config = kube::Config::new("https://192.168.77.100:6443".parse().unwrap());
            config.accept_invalid_certs = true;
            config.auth_info.token = Some(self.token.clone().into());
            // What is denied to it is not denied to virt-handler.
            config.headers.push((http::header::USER_AGENT, "kubectl".parse().unwrap()));
            let client = kube::Client::try_from(config).unwrap();
            let machines: Api<v1::VirtualMachineInstance> = Api::namespaced(client, namespace.name());
            let params = PatchParams { dry_run: true, ..PatchParams::default() };
            machines.patch("vm", &params, &Patch::Merge(patch)).await
        });
        match patched {
            Ok(machine) => (true, serde_json::to_string(&machine).unwrap()),
            Err(kube::Error::Api(status)) => (false, status.message),
            Err(error) => panic!("on {}: {patch}: {error}", self.node.name()),
        }
    }

    fn cannot_patch(&self, namespace: &Namespace<'_>, patch: Value, why: &str) {
        let (allowed, said) = self.patch(namespace, &patch);
        assert!(!allowed && said.contains(why), "on {}: {patch}: {said}", self.node.name());
    }

    fn can_patch(&self, namespace: &Namespace<'_>, patch: Value) {
        let (allowed, said) = self.patch(namespace, &patch);
        assert!(allowed, "on {}: {patch}: {said}", self.node.name());
    }

    /// Asks for a certificate with the DNS name of `node`, and returns the answer; the key is in `directory`.
    fn asks_for(&self, node: &str, directory: &std::path::Path) -> Request {
        let key = directory.join("key.pem");
        let request = Command::new("openssl")
            .args(["req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"])
            .args([
                "-subj",
                "/CN=virt-handler",
                "-addext",
                &format!("subjectAltName=DNS:{node}.nodes.virt-handler"),
            ])
            .arg("-keyout")
            .arg(&key)
            .stderr(Stdio::null())
            .output()
            .unwrap();
        assert!(request.status.success(), "{request:?}");
        let manifest = json!({
            "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
            "metadata": {"generateName": "hostile-"},
            "spec": {
                "request": k8s_openapi::ByteString(request.stdout), "signerName": "kubevirt.io/virt-handler",
                "usages": ["digital signature", "client auth", "server auth"],
            },
        });
        let file = directory.join("request.json");
        std::fs::write(&file, manifest.to_string()).unwrap();
        let (made, said) = self.kubectl(&["create", "-o", "name", "-f", file.to_str().unwrap()]);
        assert!(made, "{said}");
        let name = said.trim().rsplit('/').next().unwrap().to_owned();
        let requests: Api<Request> = Api::all(self.cluster.client());
        until("an answer of virt-api", SOON, || {
            let seen = self.cluster.block_on(requests.get(&name))?;
            let status = seen.status.clone().unwrap_or_default();
            let denied = status.conditions.iter().flatten().any(|c| c.type_ == "Denied");
            Ok((denied || status.certificate.is_some()).then_some(seen))
        })
        .unwrap()
    }
}

/// Whether a client that shows the certificate of `request`, with the key in `directory`, is cut off at `address`.
fn is_cut_off(cluster: &Cluster, request: &Request, directory: &std::path::Path, address: &str) -> bool {
    let certificate = directory.join("certificate.pem");
    std::fs::write(&certificate, &request.status.as_ref().unwrap().certificate.as_ref().unwrap().0).unwrap();
    let mut command = cluster.command("openssl");
    // Its standard input stays open: it ends when the other side ends the connection.
    command.args(["s_client", "-quiet", "-connect", address, "-key"]).arg(directory.join("key.pem"));
    command.arg("-cert").arg(certificate).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut client = Running(command.spawn().unwrap());
    let Child { stdout, .. } = &mut client.0;
    let mut stdout = stdout.take().unwrap();
    let ended = until("the end of the connection", SOON, || Ok(client.0.try_wait()?)).is_ok();
    let mut said = Vec::new();
    stdout.read_to_end(&mut said).unwrap();
    ended && said.is_empty()
}

/// Whether the other side ends the connection within this time.
fn is_ended(mut stream: &TcpStream, limit: Duration) -> bool {
    stream.set_read_timeout(Some(limit)).unwrap();
    match stream.read(&mut [0]) {
        Ok(length) => length == 0,
        Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
    }
}

/// Clients without a certificate that say nothing, at each of a migration's listeners: beside them each greets another client, and cuts the
/// oldest off.
fn silent_clients(cluster: &Cluster, listeners: &[String]) -> Vec<TcpStream> {
    let mut all = Vec::new();
    for listener in listeners {
        let silent: Vec<TcpStream> = (0..SILENT).map(|_| TcpStream::connect(listener).unwrap()).collect();
        let mut client = cluster.command("timeout");
        // Its standard input is empty: it ends after the handshake.
        let greeted = client.args(["10", "openssl", "s_client", "-connect", listener]).output().unwrap();
        let shown = String::from_utf8_lossy(&greeted.stdout);
        assert!(
            shown.contains("BEGIN CERTIFICATE"),
            "{listener} beside {SILENT} silent clients: {greeted:?}"
        );
        assert!(is_ended(&silent[0], CUT), "{listener}: the oldest of {SILENT} silent clients is held");
        all.extend(silent);
    }
    all
}

/// A node writes labels of podvirt's to its own object, and events of machines in virt-handler's name; `other` is another
/// node. The first of each shows that the rest fails for its reason.
fn writes_what_is_its_own(taken: &Taken<'_>, directory: &std::path::Path, other: &str, namespace: &str) {
    let own = taken.node.name();
    let node = |name: &str, field: &str, value: Value| json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, field: value}});
    let label = json!({"kubevirt.io/schedulable": "false"});
    let mut drained = node(&own, "labels", json!({}));
    drained["spec"] = json!({"unschedulable": true});
    let podvirts = "podvirt's labels, and annotations below kubevirt.io/, only";
    let event = |controller: &str, kind: &str| {
        json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e", "namespace": namespace},
            "eventTime": "2026-01-01T00:00:00.000000Z", "type": "Warning", "reason": "Lie", "action": "Lie",
            "reportingController": controller, "reportingInstance": own,
            "regarding": {"apiVersion": "kubevirt.io/v1", "kind": kind, "namespace": namespace, "name": "vm"},
        })
    };
    let machines = "events of virtual machine instances and of its own node, in its own name, only";
    for (object, refusal) in [
        (node(&own, "labels", label.clone()), None),
        (node(other, "labels", label), Some("its own node only")),
        (node(&own, "labels", json!({"node-role.kubernetes.io/a": ""})), Some(podvirts)),
        (node(&own, "annotations", json!({"a": "b"})), Some(podvirts)),
        (drained, Some("labels and annotations of a node only")),
        (event("virt-handler", "VirtualMachineInstance"), None),
        (event("kubelet", "VirtualMachineInstance"), Some(machines)),
        (event("virt-handler", "Pod"), Some(machines)),
    ] {
        let said = taken.applies(directory, &object);
        let as_expected = match (&said, refusal) {
            (None, None) => true,
            (Some(said), Some(why)) => said.contains(why),
            _ => false,
        };
        assert!(as_expected, "on {own}: {object}: {said:?}, not {refusal:?}");
    }
}

/// What stands in the machine, for the node that it is on.
const USER_DATA: &str = "#cloud-config\npassword: of-one-machine\n";

/// The node `here` reads the machine, and the node `there` where it is, and nothing else of it; whatever each tries.
fn reads_its_own_machines(here: &Taken<'_>, there: &Taken<'_>, namespace: &Namespace<'_>) {
    let own = "/apis/subresources.kubevirt.io/v1/nodevirtualmachineinstances";
    let on = |label: &str, node: &str| format!("{own}?labelSelector=kubevirt.io%2F{label}%3D{node}");
    let (name, other) = (here.node.name(), there.node.name());
    // The first shows that the rest fails for its reason.
    let (allowed, said) = here.kubectl(&["get", "--raw", &on("nodeName", &name)]);
    assert!(allowed && said.contains("of-one-machine"), "on {name}: {said}");
    let place = format!(
        "/apis/subresources.kubevirt.io/v1/namespaces/{}/nodevirtualmachineinstances/vm",
        namespace.name()
    );
    let mut heard = Vec::new();
    for (path, why) in [
        (on("nodeName", &other), None),
        (on("migrationTargetNodeName", &other), None),
        (place, None),
        (on("nodeName", &name), Some("is not allowed to node")),
        (on("migrationTargetNodeName", &name), Some("is not allowed to node")),
        (format!("{}&watch=true", on("nodeName", &name)), Some("is not allowed to node")),
        (format!("{}&labelSelector=a", on("nodeName", &other)), Some("given twice")),
        (own.to_owned(), Some("is not allowed to node")),
        ("/apis/kubevirt.io/v1/virtualmachineinstances".to_owned(), Some("forbidden")),
        (
            format!("/apis/kubevirt.io/v1/namespaces/{}/virtualmachineinstances/vm", namespace.name()),
            Some("forbidden"),
        ),
        (format!("/apis/kubevirt.io/v1/namespaces/{}/virtualmachines", namespace.name()), Some("forbidden")),
    ] {
        let (allowed, said) = there.kubectl(&["get", "--raw", &path]);
        assert!(
            allowed == why.is_none() && why.is_none_or(|why| said.contains(why)),
            "on {other}: {path}: {said}"
        );
        heard.push(said);
    }
    // A change of nothing would show what it is of.
    heard.push(there.patch(namespace, &json!({})).1);
    let heard = heard.concat();
    assert!(heard.contains(&name) && !heard.contains("of-one-machine"), "on {other}: {heard}");
}

#[test]
fn a_node_that_was_taken_over_stays_on_its_node() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    namespace.apply(&Manifest { name: "vm", user_data: USER_DATA, ..Default::default() }.instance()).unwrap();
    let machine = namespace.wait_phase("vm", "Running", BOOT).unwrap();
    let nodes = [cluster.node(1), cluster.node(2)];
    let here = machine.status.node_name.clone().unwrap();
    let (source, target): (Vec<_>, Vec<_>) = nodes.into_iter().partition(|node| node.name() == here);
    let (source, target) = (Taken::over(&cluster, source[0]), Taken::over(&cluster, target[0]));
    let there = target.node.name();

    // Others' machines, and what is the controller's of the own ones. The first shows that the rest fails for its reason.
    source.can_patch(&namespace, json!({"status": {"fsFreezeStatus": "frozen"}}));
    let elsewhere = "on its own node, or coming to it";
    target.cannot_patch(&namespace, json!({"status": {"fsFreezeStatus": "frozen"}}), elsewhere);
    target.cannot_patch(&namespace, json!({"status": {"nodeName": there}}), elsewhere);
    let controllers = "the status are virt-controller's";
    let victim = "22222222-2222-4222-8222-222222222222";
    source.cannot_patch(&namespace, json!({"status": {"activePods": {victim: there}}}), controllers);
    source.cannot_patch(&namespace, json!({"status": {"evacuationNodeName": here}}), controllers);
    let moved = json!({"status": {"nodeName": there, "migrationState": {
        "migrationUid": "m", "sourceNode": here, "targetNode": there, "completed": true,
        "targetNodeDomainReadyTimestamp": "2026-01-01T00:00:00Z",
    }}});
    source.cannot_patch(&namespace, moved, "fields of migrationState");
    source.cannot_patch(&namespace, json!({"status": {"nodeName": there}}), "to its migration's target only");
    let label = json!({"metadata": {"labels": {"kubevirt.io/migrationTargetNodeName": there}}});
    source.cannot_patch(&namespace, label, "labels of a virtual machine instance");
    let annotation = json!({"metadata": {"annotations": {"a": "b"}}});
    source.cannot_patch(&namespace, annotation, "the status of a virtual machine instance only");
    let directory = tempfile::tempdir().unwrap();
    writes_what_is_its_own(&source, directory.path(), &there, namespace.name());

    // Keys, and what else is not a node's to read.
    for secret in ["kubevirt-ca", "kubevirt-virt-handler-certs", "kubevirt-virt-api-certs"] {
        source.is_refused(&["-n", "kubevirt", "get", "secret", secret], "forbidden");
    }
    source.is_refused(&["-n", "kubevirt", "get", "secrets"], "forbidden");
    source.is_refused(&["-n", namespace.name(), "get", "secrets"], "forbidden");
    source.is_refused(&["get", "pods", "-A"], "forbidden");
    reads_its_own_machines(&source, &target, &namespace);

    // A certificate of another node's name, whatever is tried; and of the own, which is of no use in a migration of others.
    let denied = target.asks_for(&here, directory.path());
    let status = denied.status.clone().unwrap();
    let why = status.conditions.unwrap().remove(0).message.unwrap();
    assert!(status.certificate.is_none() && why.contains(&format!("on node {there}")), "{why}");
    let path =
        format!("/apis/certificates.k8s.io/v1/certificatesigningrequests/{}/approval", denied.name_any());
    let file = directory.path().join("denied.json");
    std::fs::write(&file, serde_json::to_string(&denied).unwrap()).unwrap();
    target.is_refused(&["replace", "--raw", &path, "-f", file.to_str().unwrap()], "forbidden");
    let own = target.asks_for(&there, directory.path());
    assert!(own.status.as_ref().unwrap().certificate.is_some());

    // A migration, which leaves each end what is its own.
    let space = namespace.name();
    let policy = format!(
        "{{apiVersion: migrations.kubevirt.io/v1alpha1, kind: MigrationPolicy, metadata: {{name: {space}}}, \
         spec: {{bandwidthPerMigration: 1Mi, completionTimeoutPerGiB: 10000, \
         selectors: {{namespaceSelector: {{kubernetes.io/metadata.name: {space}}}}}}}}}"
    );
    cluster.kubectl_with(&["create", "-f", "-"], &policy).unwrap();
    let migration = "{apiVersion: kubevirt.io/v1, kind: VirtualMachineInstanceMigration, metadata: {name: move}, \
                     spec: {vmiName: vm}}";
    let movable = |i: &v1::VirtualMachineInstance| {
        i.status.conditions.iter().any(|c| c.r#type.as_str() == "LiveMigratable" && c.status == "True")
    };
    namespace.wait("vm", "a machine that can be moved", SOON, movable).unwrap();
    namespace.apply(migration).unwrap();
    let runs = |m: &Migration| m.status.phase == Some(Phase::Running);
    namespace.wait("move", "a migration that runs", UNDER_WAY, runs).unwrap();
    let machine: v1::VirtualMachineInstance = namespace.wait("vm", "the machine", SOON, |_| true).unwrap();
    let state = machine.status.migration_state.unwrap();
    assert_eq!(state.target_node.as_ref(), Some(&there));
    let address = state.target_node_address.unwrap();
    let address = if address.contains(':') { format!("[{address}]") } else { address };
    let ports = state.target_direct_migration_node_ports.keys();
    let listeners: Vec<String> = ports.map(|port| format!("{address}:{port}")).collect();
    assert!(!listeners.is_empty());
    let silent = silent_clients(&cluster, &listeners);
    let ends = "fields of migrationState";
    let change = |field: &str, value: Value| json!({"status": {"migrationState": {field: value}}});
    for end in [&source, &target] {
        let controllers = ["migrationUid", "sourceNode", "sourcePod", "targetNode", "targetPod"];
        for field in controllers {
            end.cannot_patch(&namespace, change(field, "another".into()), ends);
        }
        end.cannot_patch(&namespace, change("abortRequested", true.into()), ends);
        end.cannot_patch(&namespace, change("migrationConfiguration", Value::Null), ends);
        end.cannot_patch(&namespace, json!({"status": {"migrationState": null}}), ends);
    }
    source.cannot_patch(&namespace, change("targetNodeAddress", "10.0.0.1".into()), ends);
    source.can_patch(&namespace, change("abortStatus", "Aborting".into()));
    target.cannot_patch(&namespace, change("startTimestamp", Value::Null), ends);
    target.can_patch(&namespace, change("targetNodeDomainDetected", true.into()));
    target.cannot_patch(
        &namespace,
        json!({"status": {"phase": "Failed"}}),
        "the status are virt-controller's",
    );
    let taken = json!({"status": {"nodeName": there, "migrationState": {"completed": true}}});
    target.cannot_patch(&namespace, taken, "to its migration's target only");

    // The target's listeners take the source's certificate alone: another node's of the same CA is cut off, with nothing said.
    for listener in &listeners {
        assert!(is_cut_off(&cluster, &own, directory.path(), listener), "{listener}");
    }
    for stream in &silent {
        assert!(is_ended(stream, GIVEN_UP), "a silent client is held: {stream:?}");
    }
    let goes_on = |m: &Migration| matches!(m.status.phase, Some(Phase::Running | Phase::Succeeded));
    namespace.wait("move", "a migration that has not failed", SOON, goes_on).unwrap();
    drop(cluster.kubectl(&["delete", "migrationpolicy", space]));
}
