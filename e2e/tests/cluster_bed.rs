//! The cluster itself: what every test on it, and every machine in it, takes for granted.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails it")]

use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, Service};
use podvirt_e2e::cluster::{Cluster, Namespace, Security};

/// A pod from nothing to ready, its image being there.
const START: Duration = Duration::from_secs(60);
/// The control plane's timeout with a silent node, and then some.
const LOSS: Duration = Duration::from_secs(60);

/// A web server on a node that says its name, confined as a machine's pod is. `annotations` is a YAML mapping.
fn server(name: &str, node: u8, annotations: &str) -> String {
    format!(
        r#"
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{app: web}}, annotations: {annotations}}}
spec:
  nodeName: node{node}
  terminationGracePeriodSeconds: 1
  automountServiceAccountToken: false
  securityContext:
    runAsUser: 107
    runAsGroup: 107
    runAsNonRoot: true
    fsGroup: 107
    seccompProfile: {{type: RuntimeDefault}}
    sysctls:
    - {{name: net.ipv4.ip_unprivileged_port_start, value: "0"}}
    - {{name: net.ipv4.ping_group_range, value: "107 107"}}
  containers:
  - name: web
    image: podvirt/tools:dev
    command: [sh, -c, "mkdir /tmp/www; hostname >/tmp/www/index.html; exec busybox httpd -f -p 80 -h /tmp/www"]
    securityContext: {{allowPrivilegeEscalation: false, capabilities: {{drop: [ALL]}}}}
    readinessProbe: {{httpGet: {{port: 80, path: /}}, periodSeconds: 1}}
"#
    )
}

/// Two servers, `one` on node 1 and `two` on node 2, ready.
fn servers(namespace: &Namespace<'_>) -> [Pod; 2] {
    namespace.apply(&format!("{}\n---\n{}", server("one", 1, "{}"), server("two", 2, "{}"))).unwrap();
    ["one", "two"].map(|name| namespace.wait_pod(name, START).unwrap())
}

/// The pod's addresses as they stand in a URL.
fn addresses(pod: &Pod) -> Vec<String> {
    let status = pod.status.as_ref().unwrap();
    let addresses = status.pod_ips.iter().flatten().map(|ip| ip.ip.clone());
    addresses.map(|ip| if ip.contains(':') { format!("[{ip}]") } else { ip }).collect()
}

fn get(namespace: &Namespace<'_>, from: &str, options: &[&str], host: &str) -> String {
    let url = format!("http://{host}/");
    let command = [&["curl", "-gsS", "--max-time", "10"], options, &[&url]].concat();
    namespace.exec(from, &command).unwrap().trim().to_owned()
}

#[test]
fn pods_of_both_nodes_reach_each_other_by_address_and_by_the_name_of_a_service() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let pods = servers(&namespace);
    namespace
        .apply(
            "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {ipFamilyPolicy: RequireDualStack, selector: {app: web}, ports: [{port: 80}]}",
        )
        .unwrap();
    for (from, to, pod) in [("one", "two", &pods[1]), ("two", "one", &pods[0])] {
        let addresses = addresses(pod);
        assert_eq!(addresses.len(), 2, "{addresses:?}");
        for address in addresses {
            assert_eq!(get(&namespace, from, &[], &address), to, "{from} to {address}");
        }
    }
    let service = namespace.wait("web", "the service", START, |_: &Service| true).unwrap();
    assert_eq!(service.spec.unwrap().cluster_ips.unwrap().len(), 2);
    let host = format!("web.{}.svc.cluster.local", namespace.name());
    for from in ["one", "two"] {
        for family in ["-4", "-6"] {
            // The service's rules follow its creation.
            let answer = namespace.until("an answer of the service", START, || {
                let command = ["curl", family, "-sS", "--max-time", "5", &format!("http://{host}/")];
                Ok(namespace.exec(from, &command).ok())
            });
            assert!(["one", "two"].contains(&answer.unwrap().trim()));
        }
        let version =
            ["curl", "-ksS", "--max-time", "10", "https://kubernetes.default.svc.cluster.local/version"];
        assert!(namespace.exec(from, &version).unwrap().contains("gitVersion"));
    }
}

#[test]
fn a_restricted_namespace_admits_the_sysctls_of_a_machine_and_nothing_privileged() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    namespace.apply(&server("confined", 1, "{}")).unwrap();
    namespace.wait_pod("confined", START).unwrap();
    let sysctls = "cd /proc/sys/net/ipv4; cat ip_unprivileged_port_start ping_group_range";
    assert_eq!(namespace.exec("confined", &["sh", "-c", sysctls]).unwrap(), "0\n107\t107\n");
    let status = namespace
        .exec("confined", &["sh", "-c", "grep -E '^(CapBnd|NoNewPrivs|Seccomp):' /proc/self/status"]);
    assert_eq!(status.unwrap(), "CapBnd:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\n");
    namespace.exec("confined", &["ping", "-c", "1", "-W", "10", "192.168.77.2"]).unwrap();

    let open = server("open", 1, "{}").replace("drop: [ALL]", "add: [NET_ADMIN]");
    let refusal = namespace.apply(&open).unwrap_err().to_string();
    assert!(refusal.contains(r#"violates PodSecurity "restricted:latest""#), "{refusal}");
}

#[test]
fn a_second_network_spans_the_nodes() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    namespace
        .apply(
            r#"{apiVersion: k8s.cni.cncf.io/v1, kind: NetworkAttachmentDefinition, metadata: {name: second}, spec: {config: '{"cniVersion":"1.0.0","name":"second","type":"bridge","bridge":"br1","capabilities":{"ips":true},"ipam":{"type":"static"}}'}}"#,
        )
        .unwrap();
    for node in [1, 2] {
        let networks = format!(r#"[{{"name":"second","interface":"net1","ips":["172.30.0.{node}/24"]}}]"#);
        let annotations = format!("{{k8s.v1.cni.cncf.io/networks: '{networks}'}}");
        namespace.apply(&server(["one", "two"][node - 1], node as u8, &annotations)).unwrap();
    }
    for pod in ["one", "two"] {
        namespace.wait_pod(pod, START).unwrap();
    }
    assert_eq!(get(&namespace, "one", &["--interface", "net1"], "172.30.0.2"), "two");
    assert_eq!(get(&namespace, "two", &["--interface", "net1"], "172.30.0.1"), "one");
}

#[test]
fn a_node_that_loses_power_is_missed_and_its_pods_run_again_when_it_is_back() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    servers(&namespace);
    let restarts =
        |pod: &Pod| pod.status.as_ref().unwrap().container_statuses.as_ref().unwrap()[0].restart_count;

    let node = cluster.node(2);
    let down = node.kill().unwrap();
    assert!(node.run(&["true"]).is_err());
    node.wait_ready(false, LOSS).unwrap();
    // The other goes on.
    namespace.exec("one", &["true"]).unwrap();
    down.repair().unwrap();
    node.wait_ready(true, LOSS).unwrap();
    namespace.wait("two", "the pod's second start", START, |pod: &Pod| restarts(pod) == 1).unwrap();
    let pod = namespace.wait_pod("two", START).unwrap();
    assert_eq!(get(&namespace, "one", &[], &addresses(&pod)[1]), "two");
    assert_eq!(restarts(&namespace.wait_pod("one", START).unwrap()), 0);
}
