//! Machines whose binding the kernel carries.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::*;

#[test]
fn a_machine_that_the_kernel_carries_has_no_netd_and_is_asked_by_the_kubelet() {
    let rendered = |annotations: Value| {
        let mut vmi = machine(json!({
            "domain": {"memory": {"guest": "256Mi"}, "devices": {"interfaces": [
                {"name": "default", "masquerade": {}, "ports": [{"name": "web", "port": 80}]},
            ]}},
            "networks": [{"name": "default", "pod": {}}],
            "readinessProbe": {"tcpSocket": {"port": "web"}, "timeoutSeconds": 3},
        }));
        vmi.metadata.annotations = serde_json::from_value(annotations).unwrap();
        launcher_pod(&vmi, &config(json!({})), &images()).unwrap()
    };
    let tun = |pod: &Pod| {
        let limits = container(pod, "compute").resources.clone().unwrap().limits;
        limits.unwrap_or_default().contains_key("devices.kubevirt.io/tun")
    };
    let pod = rendered(json!({"podvirt.io/masquerade": "nftables"}));
    assert!(init_names(&pod).is_empty() && tun(&pod));
    let probe = container(&pod, "compute").readiness_probe.clone().unwrap();
    assert_eq!(probe.tcp_socket.unwrap().port, IntOrString::Int(80));
    assert_eq!((probe.exec, probe.timeout_seconds), (None, Some(3)));
    let annotations = pod.metadata.annotations.unwrap();
    assert_eq!(annotations["istio.io/reroute-virtual-interfaces"], "k6t-eth0");
    assert_eq!(annotations["traffic.sidecar.istio.io/kubevirtInterfaces"], "k6t-eth0");
    // What its user says of it holds.
    let own = json!({"podvirt.io/masquerade": "nftables", "istio.io/reroute-virtual-interfaces": ""});
    assert_eq!(rendered(own).metadata.annotations.unwrap()["istio.io/reroute-virtual-interfaces"], "");

    let pod = rendered(json!({}));
    assert_eq!(init_names(&pod), ["netd"]);
    assert!(!tun(&pod) && container(&pod, "compute").readiness_probe.clone().unwrap().exec.is_some());
    assert!(!pod.metadata.annotations.unwrap().contains_key("istio.io/reroute-virtual-interfaces"));
}
