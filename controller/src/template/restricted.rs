//! The rules of the `restricted` Pod Security Standard, for the tests.
//!
//! Written from the standard's text (kubernetes.io, "Pod Security Standards", as of Kubernetes 1.34): each
//! control of `baseline` and of `restricted` that a pod can break. A rule that the pod breaks is told with the
//! field.

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, Probe, SeccompProfile, Volume};

const SAFE_SYSCTLS: &[&str] = &[
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
];
const SELINUX_TYPES: &[&str] =
    &["", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"];

/// What of `pod` the standard does not allow.
pub(crate) fn violations(pod: &Pod) -> Vec<String> {
    let spec = pod.spec.as_ref().unwrap();
    let mut found = pod_level(spec);
    for (n, volume) in spec.volumes.iter().flatten().enumerate() {
        if !is_allowed(volume) {
            found.push(format!("volumes[{n}] {} has a forbidden type", volume.name));
        }
    }
    let init = spec.init_containers.iter().flatten();
    for container in spec.containers.iter().chain(init) {
        found.extend(
            container_level(spec, container)
                .into_iter()
                .map(|what| format!("container {}: {what}", container.name)),
        );
    }
    found
}

fn pod_level(spec: &PodSpec) -> Vec<String> {
    let mut found = Vec::new();
    for (what, given) in
        [("hostNetwork", spec.host_network), ("hostPID", spec.host_pid), ("hostIPC", spec.host_ipc)]
    {
        if given == Some(true) {
            found.push(what.to_owned());
        }
    }
    let Some(context) = &spec.security_context else { return found };
    for sysctl in context.sysctls.iter().flatten() {
        if !SAFE_SYSCTLS.contains(&sysctl.name.as_str()) {
            found.push(format!("sysctl {}", sysctl.name));
        }
    }
    if context.run_as_user == Some(0) {
        found.push("runAsUser 0".into());
    }
    if let Some(selinux) = &context.se_linux_options
        && (!SELINUX_TYPES.contains(&selinux.type_.as_deref().unwrap_or_default())
            || selinux.user.is_some()
            || selinux.role.is_some())
    {
        found.push("seLinuxOptions".into());
    }
    if context.app_armor_profile.as_ref().is_some_and(|p| p.type_ == "Unconfined") {
        found.push("appArmorProfile".into());
    }
    if context.windows_options.as_ref().is_some_and(|w| w.host_process == Some(true)) {
        found.push("windowsOptions.hostProcess".into());
    }
    found
}

fn container_level(spec: &PodSpec, container: &Container) -> Vec<String> {
    let mut found = Vec::new();
    let context = container.security_context.clone().unwrap_or_default();
    let pod = spec.security_context.clone().unwrap_or_default();
    if context.privileged == Some(true) {
        found.push("privileged".to_owned());
    }
    if context.allow_privilege_escalation != Some(false) {
        found.push("allowPrivilegeEscalation is not false".into());
    }
    let capabilities = context.capabilities.unwrap_or_default();
    if !capabilities.drop.iter().flatten().any(|c| c == "ALL") {
        found.push("capabilities are not dropped".into());
    }
    if capabilities.add.iter().flatten().any(|c| c != "NET_BIND_SERVICE") {
        found.push("capabilities are added".into());
    }
    if context.run_as_non_root.or(pod.run_as_non_root) != Some(true) {
        found.push("runAsNonRoot is not true".into());
    }
    if context.run_as_user == Some(0) {
        found.push("runAsUser 0".into());
    }
    let confined = |p: &SeccompProfile| ["RuntimeDefault", "Localhost"].contains(&p.type_.as_str());
    if !context.seccomp_profile.or(pod.seccomp_profile).is_some_and(|p| confined(&p)) {
        found.push("no seccomp profile".into());
    }
    if context.proc_mount.is_some_and(|p| p != "Default") {
        found.push("procMount".into());
    }
    if container.ports.iter().flatten().any(|p| p.host_port.is_some_and(|p| p != 0)) {
        found.push("hostPort".into());
    }
    for probe in [&container.liveness_probe, &container.readiness_probe, &container.startup_probe] {
        if probe.as_ref().is_some_and(is_elsewhere) {
            found.push("a probe of another host".into());
        }
    }
    found
}

fn is_elsewhere(probe: &Probe) -> bool {
    let http = probe.http_get.as_ref().and_then(|p| p.host.as_ref());
    let tcp = probe.tcp_socket.as_ref().and_then(|p| p.host.as_ref());
    http.into_iter().chain(tcp).any(|host| !host.is_empty())
}

/// configMap, csi, downwardAPI, emptyDir, ephemeral, persistentVolumeClaim, projected and secret are allowed.
fn is_allowed(volume: &Volume) -> bool {
    volume.config_map.is_some()
        || volume.csi.is_some()
        || volume.downward_api.is_some()
        || volume.empty_dir.is_some()
        || volume.ephemeral.is_some()
        || volume.persistent_volume_claim.is_some()
        || volume.projected.is_some()
        || volume.secret.is_some()
}
