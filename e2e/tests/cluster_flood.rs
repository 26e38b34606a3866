//! A pod that tries to keep the API server away from podvirt's webhooks, or to fill their memory. It knows their paths.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails it")]

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use podvirt_e2e::cluster::{Cluster, Manifest, SOON, Security};
use serde_json::Value;

/// Bodies that never end, from one pod to each replica, and begin anew when they are given up; more than its share of connections are
/// refused.
const BODIES: usize = 24;
/// What virt-api's memory may grow by under all of that, in bytes: its budget of bodies from strangers, the buffers of
/// their connections, and what the allocator keeps.
const GROWTH_BYTES: u64 = 96 << 20;

fn replicas(cluster: &Cluster) -> Vec<Pod> {
    let pods: Api<Pod> = Api::namespaced(cluster.client(), "kubevirt");
    let params = ListParams::default().labels("kubevirt.io=virt-api");
    cluster.block_on(async { pods.list(&params).await }).unwrap().items
}

/// A metric of a replica, of strangers' part.
fn metric(cluster: &Cluster, pod: &str, name: &str) -> f64 {
    let path = format!("/api/v1/namespaces/kubevirt/pods/{pod}:8080/proxy/metrics");
    let text = cluster.kubectl(&["get", "--raw", &path]).unwrap();
    let start = format!("{name}{{caller=\"other\"}} ");
    text.lines().find_map(|line| line.strip_prefix(&start)?.trim().parse().ok()).unwrap_or(0.0)
}

/// Memory of a replica that the kernel cannot take back, as its kubelet sees it.
fn working_set(cluster: &Cluster, pod: &Pod) -> u64 {
    let node = pod.spec.as_ref().unwrap().node_name.as_deref().unwrap();
    let text =
        cluster.kubectl(&["get", "--raw", &format!("/api/v1/nodes/{node}/proxy/stats/summary")]).unwrap();
    let summary: Value = serde_json::from_str(&text).unwrap();
    let all = summary["pods"].as_array().unwrap();
    let own = all.iter().find(|one| one["podRef"]["name"] == pod.name_any().as_str()).unwrap();
    own["containers"][0]["memory"]["workingSetBytes"].as_u64().unwrap()
}

fn restarts(pod: &Pod) -> i32 {
    pod.status
        .iter()
        .flat_map(|status| status.container_statuses.iter().flatten())
        .map(|c| c.restart_count)
        .sum()
}

#[test]
fn long_a_pod_that_floods_the_webhooks_holds_up_no_review() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let before = replicas(&cluster);
    let memory: Vec<u64> = before.iter().map(|pod| working_set(&cluster, pod)).collect();
    let addresses: Vec<String> =
        before.iter().map(|pod| pod.status.as_ref().unwrap().pod_ip.clone().unwrap()).collect();
    let path = cluster.webhook_path("virtualmachine-validator.kubevirt.io").unwrap();
    // Each socat holds one TLS connection, for somewhat longer than virt-api waits for a stranger's body; bash holds a thousand
    // that say nothing, as far as they are let.
    let flood = format!(
        r#"ulimit -n 8192
           head='POST {path} HTTP/1.1\r\nHost: virt-api\r\nContent-Length: 4194304\r\n\r\n'
           for api in {targets}; do
             for n in $(seq {BODIES}); do
               while :; do
                 {{ printf "$head"; head -c 4000000 /dev/zero; sleep 4; }} | socat -u - "OPENSSL:$api:8443,verify=0" 2>/dev/null
               done &
             done
           done
           for n in $(seq 500); do for api in {targets}; do exec {{fd}}<>"/dev/tcp/$api/8443"; done; done
           echo flooding; sleep infinity"#,
        targets = addresses.join(" "),
    );
    let pod = serde_json::json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "flood"},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "securityContext": {"runAsUser": 107, "runAsGroup": 107, "runAsNonRoot": true,
                "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{"name": "flood", "image": "podvirt/tools:dev", "command": ["bash", "-c", flood],
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}}],
        },
    });
    namespace.apply(&pod.to_string()).unwrap();
    namespace
        .until("the flood", SOON, || {
            let logs = namespace.kubectl(&["logs", "flood"]).unwrap_or_default();
            let full = before
                .iter()
                .all(|pod| metric(&cluster, &pod.name_any(), "podvirt_api_buffered_bytes") >= 4e6);
            Ok((logs.contains("flooding") && full).then_some(()))
        })
        .unwrap();

    // Each is asked of both kinds of webhooks of one of the replicas, and is given up by the API server after ten
    // seconds: kubectl fails then.
    for n in 0..10 {
        let name = format!("vm-{n}");
        let manifest = Manifest { name: &name, run: "Halted", ..Default::default() }.machine();
        let args = ["--namespace", namespace.name(), "create", "-f", "-"];
        cluster.kubectl_with(&args, &manifest).unwrap();
    }
    for (pod, memory) in before.iter().zip(memory) {
        let name = pod.name_any();
        let buffered = metric(&cluster, &name, "podvirt_api_buffered_bytes");
        assert!(buffered <= f64::from(24 << 20), "{name} holds {buffered} bytes");
        assert!(
            metric(&cluster, &name, "podvirt_api_refused_connections_total") > 0.0,
            "{name} refused none"
        );
        let now = working_set(&cluster, pod);
        assert!(now < memory + GROWTH_BYTES, "{name} has grown from {memory} to {now} bytes");
        eprintln!(
            "{name}: {memory} bytes before, {now} under the flood, {buffered} of them strangers' bodies"
        );
    }
    let after = replicas(&cluster);
    let counts = |pods: &[Pod]| pods.iter().map(|pod| (pod.name_any(), restarts(pod))).collect::<Vec<_>>();
    assert_eq!(counts(&after), counts(&before), "no replica was started again");
}
