//! Paths in a launcher pod, and where the node has them.

use std::path::{Path, PathBuf};

/// Mount of [`super::pod::volume::PRIVATE`].
pub const PRIVATE: &str = "/var/run/kubevirt-private";
/// The log of the guest's serial console, in a directory of [`PRIVATE`] that is named by the machine's UID.
pub const SERIAL_LOG: &str = "virt-serial0-log";
/// Mount of [`super::pod::volume::PUBLIC`].
pub const PUBLIC: &str = "/var/run/kubevirt";
/// Mount of [`super::pod::volume::SOCKETS`].
pub const SOCKETS: &str = "/var/run/kubevirt/sockets";
/// Mount of [`super::pod::volume::LIBVIRT_RUNTIME`].
pub const LIBVIRT_RUNTIME: &str = "/var/run/libvirt";
/// libvirt's socket, under the name that upstream's has; the launcher makes it a link to its own.
pub const LIBVIRT_SOCKET: &str = "/var/run/libvirt/virtqemud-sock";
/// Mount of [`super::pod::volume::EPHEMERAL_DISKS`].
pub const EPHEMERAL_DISKS: &str = "/var/run/kubevirt-ephemeral-disks";
/// Mount of [`super::pod::volume::CONTAINER_DISKS`].
pub const CONTAINER_DISKS: &str = "/var/run/kubevirt/container-disks";
/// Mount of [`super::pod::volume::VIRTIOFS`]; upstream's place.
pub const VIRTIOFS: &str = "/var/run/kubevirt/virtiofs-containers";
/// Mount of [`super::pod::volume::NETD`].
pub const NETD: &str = "/var/run/kubevirt/netd";
/// Mount of [`super::pod::volume::BIN_SHARE`].
pub const BIN_SHARE: &str = "/init/usr/bin";
/// Mount of [`super::pod::volume::HOOKS`]: `compute` sees a directory for each hook sidecar, which has its own there.
pub const HOOKS: &str = "/var/run/kubevirt-hooks";
/// Claims in filesystem mode are mounted below it, under their volumes' names.
pub const VMI_DISKS: &str = "/var/run/kubevirt-private/vmi-disks";
/// Mount of [`super::pod::volume::PRIVATE_LIBVIRT`]: what libvirt keeps, in upstream's place.
pub const PRIVATE_LIBVIRT: &str = "/var/run/kubevirt-private/libvirt";
/// Mount of [`super::pod::volume::PRIVATE_LIBVIRT_QEMU`].
pub const PRIVATE_LIBVIRT_QEMU: &str = "/var/run/kubevirt-private/libvirt/qemu";
/// Variables of the EFI firmware; upstream's place.
pub const NVRAM: &str = "/var/run/kubevirt-private/libvirt/qemu/nvram";
/// What the TPM holds; upstream's place.
pub const SWTPM: &str = "/var/run/kubevirt-private/libvirt/qemu/swtpm";
/// Overlays of disks whose changes are tracked, each `<volume>.qcow2`; upstream's place.
pub const OVERLAYS: &str = "/var/run/kubevirt-private/libvirt/qemu/cbt";
/// The authority that signs the certificates of TPMs; upstream's place.
pub const SWTPM_LOCALCA: &str = "/var/run/kubevirt-private/var/lib/swtpm-localca";
/// What the launcher notes on a claim that keeps the former; upstream's place.
pub const STATE_META: &str = "/var/run/kubevirt-private/backend-storage-meta";
/// Secrets are mounted below it, under their volumes' names: those of cloud-init, and those from which virt-launcher makes a disk.
pub const SECRETS: &str = "/var/run/kubevirt-private/secret";
/// Secrets with credentials of the guest's users are mounted below it, each in a directory with the number of its place in
/// `spec.accessCredentials`, from 0.
pub const ACCESS_CREDENTIALS: &str = "/var/run/kubevirt-private/access-credentials";

/// What virt-launcher makes a disk of configuration from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Config {
    /// A ConfigMap.
    ConfigMap,
    /// A Secret.
    Secret,
    /// The downward API.
    DownwardApi,
    /// A ServiceAccount.
    ServiceAccount,
    /// The answers for Windows' set-up.
    Sysprep,
}

impl Config {
    /// Where the files of a volume are mounted; upstream's paths.
    pub fn files(self, volume: &str) -> String {
        match self {
            Config::ConfigMap => format!("{PRIVATE}/config-map/{volume}"),
            Config::Secret => format!("{SECRETS}/{volume}"),
            Config::DownwardApi => format!("{PRIVATE}/downwardapi/{volume}"),
            Config::ServiceAccount => "/var/run/secrets/kubernetes.io/serviceaccount".into(),
            Config::Sysprep => format!("{PRIVATE}/sysprep/{volume}"),
        }
    }

    /// Where the disk is; upstream's paths.
    pub fn disk(self, volume: &str) -> PathBuf {
        PathBuf::from(match self {
            Config::ConfigMap => format!("{PRIVATE}/config-map-disks/{volume}.iso"),
            Config::Secret => format!("{PRIVATE}/secret-disks/{volume}.iso"),
            Config::DownwardApi => format!("{PRIVATE}/downwardapi-disks/{volume}.iso"),
            Config::ServiceAccount => format!("{PRIVATE}/service-account-disk/service-account.iso"),
            Config::Sysprep => format!("{PRIVATE}/sysprep-disks/{volume}.iso"),
        })
    }
}

/// The disk with what a guest's node and the guest use; upstream's place.
pub const DOWNWARD_METRICS_DISK: &str = "/var/run/kubevirt-private/downwardapi-disks/vhostmd0";
/// The socket by which the guest asks for them; upstream's place.
pub const DOWNWARD_METRICS_SOCKET: &str =
    "/var/run/kubevirt-private/downwardmetrics-channel/downwardmetrics.sock";

/// Claims in block mode are devices in it, under their volumes' names.
pub const DEV: &str = "/dev";
/// Names in [`DEV`] that every container has, or a launcher's: a claim's device cannot have them.
pub const TAKEN_DEVICES: &[&str] = &[
    "console", "core", "fd", "fdset", "full", "kvm", "mqueue", "net", "null", "ptmx", "pts", "random", "shm",
    "stderr", "stdin", "stdout", "tty", "urandom", "vfio", "zero",
];

/// The disk image on a claim in filesystem mode.
pub const DISK_IMAGE: &str = "disk.img";
/// The launcher's command socket while it starts, in [`SOCKETS`].
pub const LAUNCHER_INIT_SOCKET: &str = "launcher-init-sock";
/// The launcher's command socket, in [`SOCKETS`].
pub const LAUNCHER_SOCKET: &str = "launcher-sock";
/// The socket by which the launcher takes the disks of volumes that are plugged, in [`SOCKETS`].
pub const VOLUMES_SOCKET: &str = "launcher-volumes-sock";
/// Links to the disks of volumes that are plugged, under their volumes' names; upstream's place.
pub const HOTPLUG_DISKS: &str = "/var/run/kubevirt/hotplug-disks";
/// QEMU's names for its sets of descriptors are in it; mount of [`super::pod::volume::FDSETS`].
pub const FDSETS: &str = "/dev/fdset";
/// In an attachment pod: mount of [`super::pod::volume::HOTPLUG_DISKS`].
pub const ATTACHMENT: &str = "/var/run/kubevirt/attachment";
/// The socket of an attachment pod, in [`ATTACHMENT`].
pub const ATTACHMENT_SOCKET: &str = "volumes.sock";
/// In an attachment pod: claims in filesystem mode are mounted below it, and devices of claims in block mode are in it, under
/// their volumes' names.
pub const ATTACHED: &str = "/attached";
/// The socket that virt-handler listens on for the launcher's notifications, in [`PUBLIC`].
pub const NOTIFY_SOCKET: &str = "domain-notify-pipe.sock";
/// The serial console's socket, in [`machine_dir`].
pub const SERIAL_SOCKET: &str = "virt-serial0";
/// The VNC server's socket, in [`machine_dir`].
pub const VNC_SOCKET: &str = "virt-vnc";
/// The socket of [`super::pod::KERNEL_BOOT`], in [`CONTAINER_DISKS`].
pub const KERNEL_BOOT_SOCKET: &str = "kernel-boot.sock";
/// The container-disk binary, in [`BIN_SHARE`].
pub const CONTAINER_DISK_BINARY: &str = "container-disk";
/// Directory of the disk image in a containerDisk's image.
pub const CONTAINER_DISK_DIR: &str = "/disk";
/// kubelet's directory of pods on the node.
pub const KUBELET_PODS: &str = "/var/lib/kubelet/pods";

/// Where a pod has what its networks say of their devices, upstream's.
pub const POD_INFO: &str = "/etc/podinfo";
/// The file there that has [`super::annotation::NETWORK_INFO`].
pub const NETWORK_INFO: &str = "network-info";

/// Directory of a machine's console and VNC sockets.
pub fn machine_dir(vmi_uid: &str) -> PathBuf {
    Path::new(PRIVATE).join(vmi_uid)
}

/// The disk image of a claim's volume.
pub fn claim_image(volume: &str) -> PathBuf {
    Path::new(VMI_DISKS).join(volume).join(DISK_IMAGE)
}

/// The disk image of a volume that is plugged; upstream's path.
pub fn plugged_image(volume: &str) -> PathBuf {
    Path::new(HOTPLUG_DISKS).join(format!("{volume}.img"))
}

/// The device of a volume that is plugged; upstream's path.
pub fn plugged_device(volume: &str) -> PathBuf {
    Path::new(HOTPLUG_DISKS).join(volume)
}

/// The device of a volume whose claim is in block mode; upstream's path.
pub fn claim_device(volume: &str) -> PathBuf {
    Path::new(DEV).join(volume)
}

/// The file with the user data of a cloud-init volume that names a Secret.
pub fn cloud_init_secret(volume: &str) -> PathBuf {
    Path::new(SECRETS).join(volume).join("userdata")
}

/// The file with the network data of a cloud-init volume that names a Secret.
pub fn cloud_init_network_secret(volume: &str) -> PathBuf {
    Path::new(SECRETS).join(volume).join("networkdata")
}

/// The socket of the container-disk sidecar of `spec.volumes[index]`.
pub fn container_disk_socket(index: usize) -> PathBuf {
    Path::new(CONTAINER_DISKS).join(format!("disk_{index}.sock"))
}

/// The socket of the container that serves the file system of a volume; upstream's path.
pub fn virtiofs_socket(volume: &str) -> PathBuf {
    Path::new(VIRTIOFS).join(format!("{volume}.sock"))
}

/// netd's vhost-user socket of `spec.domain.devices.interfaces[index]`.
pub fn netd_socket(index: usize) -> PathBuf {
    Path::new(NETD).join(format!("n{index}.sock"))
}

/// netd's control socket of `spec.domain.devices.interfaces[index]`.
pub fn netd_control(index: usize) -> PathBuf {
    Path::new(NETD).join(format!("n{index}.ctl"))
}

/// The socket by which netd hands over the sockets of all ports of `spec.domain.devices.interfaces[index]`.
pub fn netd_ports(index: usize) -> PathBuf {
    Path::new(NETD).join(format!("n{index}.ports"))
}

/// The socket of the hold, which keeps what the netd of `spec.domain.devices.interfaces[index]` leaves until the next
/// one collects it.
pub fn netd_hold(index: usize) -> PathBuf {
    Path::new(NETD).join(if index == 0 { "hold".to_owned() } else { format!("hold{index}") })
}

/// Where the node has an emptyDir volume of a pod.
pub fn on_node(pod_uid: &str, volume: &str) -> PathBuf {
    Path::new(KUBELET_PODS).join(pod_uid).join("volumes/kubernetes.io~empty-dir").join(volume)
}

/// What QEMU can do on the node, of a container that runs ahead of virt-handler; below upstream's directory of the same purpose.
pub const CAPABILITIES: &str = "/var/lib/kubevirt-node-labeller/capabilities.json";
