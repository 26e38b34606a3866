//! Annotations of a machine that its launcher pod has, too: a mesh, a backup or a CNI plugin may read them there.
//!
//! As with upstream an annotation is handed on unless it is one of these:
//!
//! | group | why it stays with the machine |
//! |---|---|
//! | kubectl's, and those that podvirt's daemons write | they are about the machine's object |
//! | what a container runtime, or its plugins for devices, read | the pod would have other rights than podvirt gives it |
//! | what has an injector add containers or volumes of its author's choice | who may make a machine may not choose what runs in its pod, unless the feature gate `Sidecar` says so |

use podvirt_api::hooks;
use podvirt_api::names::annotation;
use podvirt_api::v1::KubeVirtConfiguration;

/// Annotations that podvirt's daemons write.
const DAEMON_ANNOTATIONS: [&str; 4] = [
    annotation::LATEST_OBSERVED_API_VERSION,
    annotation::STORAGE_OBSERVED_API_VERSION,
    annotation::MIGRATION_JOB_NAME,
    annotation::NETWORK_INFO,
];

/// Groups that container runtimes read, by the end of their domains: security profiles, devices, mounts.
const RUNTIME_DOMAINS: [&str; 8] = [
    "apparmor.security.beta.kubernetes.io",
    "seccomp.security.alpha.kubernetes.io",
    "io.kubernetes.cri-o",
    "io.kubernetes.cri",
    "cdi.k8s.io",
    "nri.io",
    "nri.containerd.io",
    "io.katacontainers",
];

/// Istio's annotations about its proxy that are handed on: the others of the group add volumes, containers and privileges.
const ISTIO_PROXY_ANNOTATIONS: [&str; 12] = [
    "inject",
    "rewriteAppHTTPProbers",
    "logLevel",
    "componentLogLevel",
    "agentLogLevel",
    "proxyCPU",
    "proxyCPULimit",
    "proxyMemory",
    "proxyMemoryLimit",
    "nativeSidecar",
    "statsInclusionPrefixes",
    "extraStatTags",
];

/// Whether the launcher pod gets an annotation of the machine.
pub(super) fn is_inherited(key: &str, config: &KubeVirtConfiguration) -> bool {
    let (group, name) = key.split_once('/').unwrap_or(("", key));
    let is_of = |domain: &str| group == domain || group.ends_with(&format!(".{domain}"));
    // CRI-O and Kata name theirs with points alone.
    let is_named = |domain: &str| is_of(domain) || key.starts_with(&format!("{domain}."));
    group != "kubectl.kubernetes.io"
        && !DAEMON_ANNOTATIONS.contains(&key)
        && !RUNTIME_DOMAINS.iter().any(|domain| is_named(domain))
        && (hooks::allowed(config) || !injects(group, name))
}

/// Whether an annotation has an injector add something of its author's choice: an image, a template, a volume.
fn injects(group: &str, name: &str) -> bool {
    match group {
        "sidecar.istio.io" => !ISTIO_PROXY_ANNOTATIONS.contains(&name),
        "inject.istio.io" => true,
        // Whole containers, which are laid over the injector's own.
        "proxy.istio.io" => name == "overrides",
        // Linkerd's, Vault's, Dapr's, Consul's and those of tracers: `proxy-image`, `agent-image`, `sidecar-image`, `custom-image`;
        // Vault's patches of its containers; Consul's volumes.
        _ => {
            let name = name.to_ascii_lowercase();
            ["image", "json-patch", "user-volume"].iter().any(|part| name.contains(part))
                || name == "enable-debug-sidecar"
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_chooses_an_image_or_a_right_of_the_pod_stays_with_the_machine() {
        let config = |gates: &[&str]| -> KubeVirtConfiguration {
            serde_json::from_value(json!({"developerConfiguration": {"featureGates": gates}})).unwrap()
        };
        // Key; whether it is handed on; whether it is with the gate.
        for (key, plain, with_gate) in [
            ("sidecar.istio.io/inject", true, true),
            ("traffic.sidecar.istio.io/excludeOutboundPorts", true, true),
            ("linkerd.io/inject", true, true),
            ("config.linkerd.io/opaque-ports", true, true),
            ("k8s.v1.cni.cncf.io/networks", true, true),
            ("backup.velero.io/backup-volumes", true, true),
            ("example.com/owner", true, true),
            ("owner", true, true),
            ("sidecar.istio.io/proxyImage", false, true),
            ("sidecar.istio.io/userVolume", false, true),
            ("inject.istio.io/templates", false, true),
            ("proxy.istio.io/config", true, true),
            ("proxy.istio.io/overrides", false, true),
            ("vault.hashicorp.com/agent-inject", true, true),
            ("vault.hashicorp.com/agent-json-patch", false, true),
            ("vault.hashicorp.com/agent-init-json-patch", false, true),
            ("consul.hashicorp.com/consul-sidecar-user-volume", false, true),
            ("config.linkerd.io/proxy-image", false, true),
            ("vault.hashicorp.com/agent-image", false, true),
            ("dapr.io/sidecar-image", false, true),
            ("admission.datadoghq.com/java-lib.custom-image", false, true),
            ("container.apparmor.security.beta.kubernetes.io/compute", false, false),
            ("io.kubernetes.cri-o.Devices", false, false),
            ("io.katacontainers.config.hypervisor.path", false, false),
            ("cdi.k8s.io/gpu", false, false),
            ("devices.nri.io/container.compute", false, false),
            ("kubectl.kubernetes.io/last-applied-configuration", false, false),
            (annotation::NETWORK_INFO, false, false),
        ] {
            assert_eq!(is_inherited(key, &config(&[])), plain, "{key}");
            assert_eq!(is_inherited(key, &config(&["Sidecar"])), with_gate, "{key} with the gate");
        }
    }
}
