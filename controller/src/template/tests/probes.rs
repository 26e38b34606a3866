//! The guest's probes as the pod has them.

use super::*;

#[test]
fn probes_go_to_the_guests_ports_and_start_later() {
    let pod = render(everything());
    let compute = container(&pod, "compute");
    let readiness = compute.readiness_probe.as_ref().unwrap();
    assert_eq!((readiness.initial_delay_seconds, readiness.period_seconds), (Some(10), Some(3)));
    assert!(readiness.http_get.is_some());
    let liveness = compute.liveness_probe.as_ref().unwrap();
    assert_eq!((liveness.initial_delay_seconds, liveness.timeout_seconds), (Some(30), Some(2)));
    // netd would accept what kubelet itself connects: the launcher asks whether the guest does.
    assert!(liveness.tcp_socket.is_none());
    let asks =
        |probe: &k8s_openapi::api::core::v1::Probe| probe.exec.clone().unwrap().command.unwrap().join(" ");
    let command = "/usr/bin/virt-launcher probe --netd /var/run/kubevirt/netd/n0.ctl --port 80 --timeout 1s";
    assert_eq!(asks(liveness), command);
    let ports: Vec<_> = compute
        .ports
        .iter()
        .flatten()
        .map(|p| (p.container_port, p.name.as_deref(), p.protocol.as_deref()))
        .collect();
    assert_eq!(ports, [(80, Some("http"), Some("TCP")), (53, None, Some("UDP"))]);
}

#[test]
fn a_probe_of_the_agent_is_a_command_with_upstreams_flags() {
    let mut spec = everything();
    spec["readinessProbe"] = json!({"exec": {"command": ["/bin/test", "-e", "/run/ready"]}, "timeoutSeconds": 5, "initialDelaySeconds": 20});
    spec["livenessProbe"] = json!({"guestAgentPing": {}, "failureThreshold": 4});
    let asks =
        |probe: &k8s_openapi::api::core::v1::Probe| probe.exec.clone().unwrap().command.unwrap().join(" ");
    let pod = render(spec.clone());
    let compute = container(&pod, "compute");
    let (readiness, liveness) =
        (compute.readiness_probe.as_ref().unwrap(), compute.liveness_probe.as_ref().unwrap());
    assert_eq!(
        asks(readiness),
        "virt-probe --domainName shop_web --timeoutSeconds 5 --command /bin/test -- -e /run/ready"
    );
    assert_eq!((readiness.timeout_seconds, readiness.initial_delay_seconds), (Some(6), Some(30)));
    assert_eq!(asks(liveness), "virt-probe --domainName shop_web --timeoutSeconds 1 --guestAgentPing");
    assert_eq!(
        (liveness.timeout_seconds, liveness.initial_delay_seconds, liveness.failure_threshold),
        (Some(2), Some(10), Some(4))
    );

    // A manifest that names virt-probe itself has its own flags.
    spec["readinessProbe"] =
        json!({"exec": {"command": ["virt-probe", "--guestAgentPing"]}, "timeoutSeconds": 5});
    let pod = render(spec);
    let readiness = container(&pod, "compute").readiness_probe.clone().unwrap();
    assert_eq!(
        (asks(&readiness).as_str(), readiness.timeout_seconds),
        ("virt-probe --guestAgentPing", Some(5))
    );
}

#[test]
fn a_tcp_probe_names_its_port_by_number_or_by_the_interfaces_name() {
    let rendered = |port: Value| {
        let mut spec = everything();
        spec["readinessProbe"] = json!({"tcpSocket": {"port": port}, "timeoutSeconds": 5});
        launcher_pod(&machine(spec), &config(json!({})), &images())
    };
    let pod = rendered(json!("http")).unwrap();
    let readiness = container(&pod, "compute").readiness_probe.clone().unwrap();
    assert_eq!(readiness.timeout_seconds, Some(6));
    let command = readiness.exec.unwrap().command.unwrap();
    assert!(command.ends_with(&["--port", "80", "--timeout", "5s"].map(str::to_owned)), "{command:?}");
    for wrong in [json!("https"), json!(0), json!(65536)] {
        let error = rendered(wrong).unwrap_err().to_string();
        assert!(error.contains("spec.readinessProbe.tcpSocket.port"), "{error}");
    }
}
