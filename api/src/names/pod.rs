//! The launcher pod: users, containers, volumes, devices.

use sha2::{Digest, Sha256};

/// User and group that everything in a launcher pod runs as.
pub const UID: i64 = 107;
/// User and group that everything in a launcher pod runs as.
pub const GID: i64 = 107;

/// Container that holds virt-launcher, libvirt and QEMU; the first.
pub const COMPUTE: &str = "compute";
/// Variable of [`COMPUTE`] with its node's name, where the guest asks for that.
pub const NODE_NAME: &str = "NODE_NAME";
/// Container of an attachment pod.
pub const HOTPLUG_DISK: &str = "hotplug-disk";
/// Start of the names of attachment pods: pods that hold the claims of volumes that are plugged into a running machine.
pub const HOTPLUG_PREFIX: &str = "hp-volume-";
/// Native sidecar that serves the interface on the pod's network.
pub const NETD: &str = "netd";
/// Init container that puts the container-disk binary where the sidecars find it.
pub const CONTAINER_DISK_BINARY: &str = "container-disk-binary";
/// Native sidecar whose log is what the guest writes to its serial console.
pub const GUEST_CONSOLE_LOG: &str = "guest-console-log";
/// Native sidecar that holds the kernel and the initrd of `kernelBoot.container`.
pub const KERNEL_BOOT: &str = "kernel-boot-volume";

/// Native sidecar that holds the containerDisk of a volume.
pub fn container_disk(volume: &str) -> String {
    super::limits::shortened(&format!("volume{volume}"), super::limits::MAX_HOST_NAME_BYTES)
}

/// Container that serves the file system of a volume; upstream's name.
pub fn virtiofs(volume: &str) -> String {
    super::limits::shortened(&format!("virtiofs-{volume}"), super::limits::MAX_HOST_NAME_BYTES)
}

/// Container of a machine's hook sidecar, by its place in the list.
pub fn hook_sidecar(index: usize) -> String {
    format!("hook-sidecar-{index}")
}

/// Names of the pod's own emptyDir volumes; their mounts stand in [`super::path`].
pub mod volume {
    /// Console and VNC sockets, what only this machine may read.
    pub const PRIVATE: &str = "private";
    /// What libvirt keeps, where a claim keeps a part of it: the pod's user may write to it.
    pub const PRIVATE_LIBVIRT: &str = "private-libvirt";
    /// The part of it that QEMU's driver has.
    pub const PRIVATE_LIBVIRT_QEMU: &str = "private-libvirt-qemu";
    /// The claim that keeps the state of firmware and TPM.
    pub const VM_STATE: &str = "vm-state";
    /// virt-handler's notification socket.
    pub const PUBLIC: &str = "public";
    /// The launcher's command socket.
    pub const SOCKETS: &str = "sockets";
    /// libvirt's runtime files.
    pub const LIBVIRT_RUNTIME: &str = "libvirt-runtime";
    /// Overlays and empty disks.
    pub const EPHEMERAL_DISKS: &str = "ephemeral-disks";
    /// Sockets of the container-disk sidecars.
    pub const CONTAINER_DISKS: &str = "container-disks";
    /// The container-disk binary.
    pub const BIN_SHARE: &str = "virt-bin-share-dir";
    /// Sockets of the containers that serve file systems; upstream's name.
    pub const VIRTIOFS: &str = "virtiofs-containers";
    /// netd's sockets.
    pub const NETD: &str = "netd";
    /// What the pod's networks say of their devices.
    pub const NETWORK_INFO: &str = "network-info-annotation";
    /// Start of the names of the volumes that hold credentials of the guest's users; the place in `spec.accessCredentials` follows.
    pub const ACCESS_CREDENTIAL: &str = "access-credential-";
    /// In an attachment pod: the socket by which it hands over the disks of its claims.
    pub const HOTPLUG_DISKS: &str = "hotplug-disks";
    /// Links at the paths of QEMU's sets of descriptors.
    pub const FDSETS: &str = "fdsets";
    /// Sockets of the hook sidecars, each in a directory of its container's name.
    pub const HOOKS: &str = "hook-sidecar-sockets";
}

/// The pod's interface on its first network.
pub const PRIMARY_INTERFACE: &str = "eth0";

/// The pod's interface on the secondary network of this name: `pod` and the first 11 digits of its SHA-256.
pub fn interface(network: &str) -> String {
    format!("pod{}", digits(network))
}

/// The bridge in the pod that joins a guest with the secondary network of this name.
pub fn bridge(network: &str) -> String {
    format!("k6t-{}", digits(network))
}

/// The tap device in the pod by which a guest is joined with the secondary network of this name.
pub fn tap(network: &str) -> String {
    format!("tap{}", digits(network))
}

/// The interface of no network in the pod that keeps what its interface on the secondary network of this name had.
pub fn kept(network: &str) -> String {
    format!("kept{}", digits(network))
}

/// The tap device in the pod by which virt-launcher tells a guest on the secondary network of this name its addresses.
pub fn services(network: &str) -> String {
    format!("dhcp{}", digits(network))
}

fn digits(network: &str) -> String {
    const BYTES: usize = 6;
    const DIGITS: usize = 11;
    let digest = Sha256::digest(network);
    let mut digits: String = digest.iter().take(BYTES).map(|byte| format!("{byte:02x}")).collect();
    digits.truncate(DIGITS);
    digits
}

/// Native sidecar that serves `spec.domain.devices.interfaces[index]`: [`NETD`], numbered from the second on.
pub fn netd(index: usize) -> String {
    if index == 0 { NETD.to_owned() } else { format!("{NETD}-{index}") }
}

/// Device plugin resource of `/dev/kvm`.
pub const KVM_DEVICE: &str = "devices.kubevirt.io/kvm";
/// Device plugin resource of `/dev/net/tun`.
pub const TUN_DEVICE: &str = "devices.kubevirt.io/tun";

/// Seconds that a launcher pod has beside the guest's own grace period: to report, and to end by force.
pub const EXTRA_GRACE_SECONDS: i64 = 30;

/// Seconds that Kubernetes gives a launcher pod to end, for a guest that has `guest` seconds.
pub fn termination_grace_period_seconds(guest: i64) -> i64 {
    guest.max(0).saturating_add(EXTRA_GRACE_SECONDS)
}

/// Exit code of a launcher whose guest powered off because its pod was told to end, while its VMI was not being deleted.
/// With zero the pod would have succeeded, and a pod that has succeeded loses the kubelet's word on why it was ended.
pub const ENDED_WITH_POD: u8 = 7;

/// Why the kubelet has evicted a pod; none where it has not.
///
/// The pod's own reason is `Evicted` only once all of its containers have ended, and only where the pod has failed; where a
/// condition says it, that counts as well.
pub fn eviction(pod: &k8s_openapi::api::core::v1::Pod) -> Option<&str> {
    const UNKNOWN: &str = "the kubelet does not say why";
    let status = pod.status.as_ref()?;
    if status.reason.as_deref() == Some("Evicted") {
        return Some(status.message.as_deref().unwrap_or(UNKNOWN).trim());
    }
    let by_kubelet = status.conditions.iter().flatten().find(|c| {
        c.type_ == "DisruptionTarget"
            && c.status == "True"
            && c.reason.as_deref() == Some("TerminationByKubelet")
    })?;
    Some(by_kubelet.message.as_deref().unwrap_or(UNKNOWN).trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_of_secondary_networks_have_upstreams_names() {
        // `printf flat | sha256sum` and so on.
        for (network, name) in [
            ("flat", "pod5dc27af287f"),
            ("blue", "pod16477688c0e"),
            ("a-rather-long-name-of-a-network", "podba95c1ba542"),
        ] {
            assert_eq!(interface(network), name);
        }
        assert_eq!((netd(0), netd(2)), ("netd".to_owned(), "netd-2".to_owned()));
    }

    #[test]
    fn an_eviction_is_the_kubelets_own_word() {
        let pod = |status: serde_json::Value| -> k8s_openapi::api::core::v1::Pod {
            serde_json::from_value(serde_json::json!({"status": status})).unwrap()
        };
        let condition = |status: &str, reason: &str| {
            pod(serde_json::json!({"conditions": [
                {"type": "DisruptionTarget", "status": status, "reason": reason, "message": " too much "},
            ]}))
        };
        assert_eq!(eviction(&condition("True", "TerminationByKubelet")), Some("too much"));
        assert_eq!(eviction(&condition("False", "TerminationByKubelet")), None);
        // A node that is emptied, and a pod of more weight.
        assert_eq!(eviction(&condition("True", "EvictionByEvictionAPI")), None);
        assert_eq!(eviction(&condition("True", "PreemptionByScheduler")), None);
        assert!(eviction(&pod(serde_json::json!({"reason": "Evicted"}))).is_some());
        assert_eq!(eviction(&pod(serde_json::json!({"reason": "NodeLost"}))), None);
    }
}
