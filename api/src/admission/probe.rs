//! Probes: kubelet asks the pod's address, and netd takes the question to the guest; or kubelet has the guest's agent asked.

use crate::problem::{Problems, Reason};
use crate::v1;

/// Judges the probes of a machine.
pub(super) fn check(spec: &v1::VirtualMachineInstanceSpec, problems: &mut Problems) {
    if spec.start_strategy.as_ref().is_some_and(|way| way.as_str() == "Paused")
        && spec.liveness_probe.is_some()
    {
        problems.invalid(
            "spec.startStrategy",
            "Paused",
            "none is allowed with a livenessProbe, which a paused machine would fail",
        );
    }
    for (name, probe) in [("livenessProbe", &spec.liveness_probe), ("readinessProbe", &spec.readiness_probe)]
    {
        let Some(probe) = probe else { continue };
        let path = format!("spec.{name}");
        let by_network = usize::from(probe.http_get.is_some()) + usize::from(probe.tcp_socket.is_some());
        let by_agent = usize::from(probe.exec.is_some()) + usize::from(probe.guest_agent_ping.is_some());
        match (by_network, by_agent) {
            (0, 0) => problems.required(
                path.clone(),
                "a way to probe is required: tcpSocket, httpGet, exec or guestAgentPing",
            ),
            (1, 0) if !has_pod_network(spec) => problems.add(
                Reason::FieldValueInvalid,
                path.clone(),
                "a probe by tcpSocket or httpGet needs an interface on the pod's network",
            ),
            (1, 0) | (0, 1) => {}
            _ => problems.add(
                Reason::FieldValueInvalid,
                path.clone(),
                "only one of tcpSocket, httpGet, exec and guestAgentPing is allowed",
            ),
        }
        let command = probe.exec.as_ref().map(|exec| exec.command.as_deref().unwrap_or_default());
        if command.is_some_and(|command| command.first().is_none_or(String::is_empty)) {
            problems.required(format!("{path}.exec.command"), "a program in the guest is required");
        }
        if let Some(scheme) = probe.http_get.as_ref().and_then(|p| p.scheme.as_deref())
            && !["", "HTTP", "HTTPS"].contains(&scheme)
        {
            let field = format!("{path}.httpGet.scheme");
            problems.invalid(field, scheme.escape_debug(), "one of HTTP, HTTPS is allowed");
        }
        let hosts = [
            ("httpGet", probe.http_get.as_ref().and_then(|p| p.host.as_deref())),
            ("tcpSocket", probe.tcp_socket.as_ref().and_then(|p| p.host.as_deref())),
        ];
        for (way, _) in hosts.iter().filter(|(_, host)| host.is_some_and(|h| !h.is_empty())) {
            problems.add(
                Reason::FieldValueNotSupported,
                format!("{path}.{way}.host"),
                "not supported by podvirt; a probe asks the machine itself",
            );
        }
        if name == "livenessProbe"
            && let Some(count) = probe.success_threshold.filter(|n| *n > 1)
        {
            problems.invalid(format!("{path}.successThreshold"), count, "1 is allowed");
        }
    }
}

fn has_pod_network(spec: &v1::VirtualMachineInstanceSpec) -> bool {
    let silent = spec.networks.is_empty() && spec.domain.devices.interfaces.is_empty();
    let attached = spec.domain.devices.autoattach_pod_interface != Some(false);
    let is_first = |multus: &v1::MultusNetwork| multus.default == Some(true);
    spec.networks.iter().any(|n| n.pod.is_some() || n.multus.as_ref().is_some_and(is_first))
        || silent && attached
}
