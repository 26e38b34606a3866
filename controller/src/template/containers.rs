//! The pod's containers.

use k8s_openapi::api::core::v1::{
    Capabilities, Container, ContainerPort, EnvVar, EnvVarSource, ObjectFieldSelector, ResourceRequirements,
    SecurityContext, VolumeMount,
};
use podvirt_api::names::{annotation, path, pod};
use podvirt_api::resources::PodResources;
use podvirt_api::state;
use podvirt_api::v1::{Interface, KubeVirtConfiguration, VirtualMachineInstance};

use super::probes::Probes;
use super::volumes::mount;
use super::{Identity, Images, TemplateError, grace_seconds, kernel_container, networks};

pub(super) const LAUNCHER: &str = "/usr/bin/virt-launcher";
const CONTAINER_DISK: &str = "/usr/bin/container-disk";

/// How long virt-launcher waits for QEMU after the machine was handed to it.
const QEMU_TIMEOUT: &str = "240s";

/// A container that ends badly leaves the last lines of its log in its status, for the machine's conditions.
pub(super) const TELL_WHY: &str = "FallbackToLogsOnError";

/// Kubernetes restarts a sidecar whatever its end, and ends it after the other containers.
pub(super) const SIDECAR: &str = "Always";

const DEFAULT_PULL_POLICY: &str = "IfNotPresent";

/// Lets `virsh`, run in the container, find the machine.
pub(super) fn libvirt() -> EnvVar {
    let address = format!("qemu+unix:///session?socket={}", path::LIBVIRT_SOCKET);
    EnvVar { name: "LIBVIRT_DEFAULT_URI".into(), value: Some(address), value_from: None }
}

/// The node's name, where the guest asks for it.
pub(super) fn node(vmi: &VirtualMachineInstance) -> Option<EnvVar> {
    let asks = vmi.spec.domain.devices.downward_metrics.is_some()
        || vmi.spec.volumes.iter().any(|volume| volume.downward_metrics.is_some());
    let field = ObjectFieldSelector { field_path: "spec.nodeName".into(), ..ObjectFieldSelector::default() };
    let source = EnvVarSource { field_ref: Some(field), ..EnvVarSource::default() };
    asks.then(|| EnvVar { name: pod::NODE_NAME.into(), value: None, value_from: Some(source) })
}

/// Virt-launcher with libvirt and QEMU.
pub(super) fn compute(
    vmi: &VirtualMachineInstance,
    identity: Identity<'_>,
    config: &KubeVirtConfiguration,
    images: &Images,
    resources: &PodResources,
    mounts: Vec<VolumeMount>,
    probes: Probes,
) -> Container {
    let mut command = vec![
        LAUNCHER.to_owned(),
        "pod".into(),
        "--name".into(),
        identity.name.into(),
        "--namespace".into(),
        identity.namespace.into(),
        "--uid".into(),
        identity.uid.into(),
        "--grace-period-seconds".into(),
        grace_seconds(vmi).to_string(),
        "--qemu-timeout".into(),
        QEMU_TIMEOUT.into(),
    ];
    if uses_emulation(config) {
        command.push("--allow-emulation".into());
    }
    if vmi.metadata.annotations.as_ref().is_some_and(|given| given.contains_key(annotation::FAIL_FAST)) {
        command.push("--simulate-crash".into());
    }
    if vmi.metadata.annotations.as_ref().and_then(|given| given.get(annotation::KEEP_LAUNCHER)).is_some_and(
        // Upstream's reading of words.
        |value| ["1", "t", "T", "true", "TRUE", "True"].contains(&value.as_str()),
    ) {
        command.push("--keep-after-failure".into());
    }
    let told = state::told(vmi).filter(|_| state::has_claim(vmi));
    if told.is_some_and(|claim| state::is_shared(&claim.access_modes)) {
        command.push("--shared-state".into());
    }
    let ports: Vec<_> = vmi.spec.domain.devices.interfaces.iter().flat_map(ports).collect();
    Container {
        command: Some(command),
        ports: Some(ports).filter(|p| !p.is_empty()),
        volume_mounts: Some(mounts),
        liveness_probe: probes.liveness,
        readiness_probe: probes.readiness,
        ..own(pod::COMPUTE, config, images, &resources.compute)
    }
}

/// Init containers: what disks and network need before and beside the machine.
pub(super) fn sidecars(
    vmi: &VirtualMachineInstance,
    config: &KubeVirtConfiguration,
    images: &Images,
    resources: &PodResources,
    identity: Identity<'_>,
) -> Result<Vec<Container>, TemplateError> {
    let mut sidecars = container_disks(vmi, resources);
    if !sidecars.is_empty() {
        sidecars.insert(0, container_disk_binary(config, images, resources));
    }
    sidecars.extend(networks::netds(vmi, config, images, resources)?);
    sidecars.extend(console_log(vmi, config, images, resources, identity));
    Ok(sidecars)
}

/// The sidecar whose log is what the guest writes to its serial console; none where that is not kept.
fn console_log(
    vmi: &VirtualMachineInstance,
    config: &KubeVirtConfiguration,
    images: &Images,
    resources: &PodResources,
    identity: Identity<'_>,
) -> Option<Container> {
    let devices = &vmi.spec.domain.devices;
    let options = config.virtual_machine_options.as_ref();
    let by_default = options.is_none_or(|options| options.disable_serial_console_log.is_none());
    let is_kept =
        devices.autoattach_serial_console != Some(false) && devices.log_serial_console.unwrap_or(by_default);
    let file = format!("{}/{}/{}", path::PRIVATE, identity.uid, path::SERIAL_LOG);
    let mut private = mount(pod::volume::PRIVATE, path::PRIVATE);
    private.read_only = Some(true);
    is_kept.then(|| Container {
        command: Some(vec![LAUNCHER.to_owned(), "tail-console".into(), "--log-file".into(), file]),
        restart_policy: Some(SIDECAR.into()),
        volume_mounts: Some(vec![private]),
        ..own(pod::GUEST_CONSOLE_LOG, config, images, &resources.console_log)
    })
}

/// Whether a machine may run without KVM.
fn uses_emulation(config: &KubeVirtConfiguration) -> bool {
    config.developer_configuration.as_ref().and_then(|d| d.use_emulation) == Some(true)
}

fn container_disk_binary(
    config: &KubeVirtConfiguration,
    images: &Images,
    resources: &PodResources,
) -> Container {
    Container {
        command: Some(vec![CONTAINER_DISK.into(), "--copy-to".into(), shared_binary()]),
        volume_mounts: Some(vec![mount(pod::volume::BIN_SHARE, path::BIN_SHARE)]),
        ..own(pod::CONTAINER_DISK_BINARY, config, images, &resources.container_disk)
    }
}

fn shared_binary() -> String {
    format!("{}/{}", path::BIN_SHARE, path::CONTAINER_DISK_BINARY)
}

/// A sidecar for each image that holds a disk, or the kernel.
fn container_disks(vmi: &VirtualMachineInstance, resources: &PodResources) -> Vec<Container> {
    let disks = vmi.spec.volumes.iter().enumerate().filter_map(|(n, volume)| {
        let disk = volume.container_disk.as_ref()?;
        let path = disk.path.clone().filter(|p| !p.is_empty());
        Some(image_sidecar(
            &pod::container_disk(&volume.name),
            (&disk.image, &disk.image_pull_policy),
            path::container_disk_socket(n).display().to_string(),
            &[path.unwrap_or_else(|| path::CONTAINER_DISK_DIR.to_owned())],
            resources,
        ))
    });
    let kernel = kernel_container(vmi).map(|kernel| {
        let paths: Vec<String> = [&kernel.kernel_path, &kernel.initrd_path]
            .into_iter()
            .flatten()
            .filter(|p| !p.is_empty())
            .cloned()
            .collect();
        image_sidecar(
            pod::KERNEL_BOOT,
            (&kernel.image, &kernel.image_pull_policy),
            format!("{}/{}", path::CONTAINER_DISKS, path::KERNEL_BOOT_SOCKET),
            &paths,
            resources,
        )
    });
    disks.chain(kernel).collect()
}

/// The user's image with our binary in it: it opens the files and hands the descriptors out.
fn image_sidecar(
    name: &str,
    (image, pull_policy): (&str, &Option<String>),
    socket: String,
    paths: &[String],
    resources: &PodResources,
) -> Container {
    let mut command = vec![shared_binary(), "--listen".into(), socket];
    for path in paths {
        command.extend(["--path".into(), path.clone()]);
    }
    let mut binary = mount(pod::volume::BIN_SHARE, path::BIN_SHARE);
    binary.read_only = Some(true);
    Container {
        name: name.to_owned(),
        image: Some(image.to_owned()),
        // Not set, it is Kubernetes' choice: Always for `latest`, else IfNotPresent.
        image_pull_policy: pull_policy.clone().filter(|p| !p.is_empty()),
        command: Some(command),
        restart_policy: Some(SIDECAR.into()),
        security_context: Some(confined()),
        termination_message_policy: Some(TELL_WHY.into()),
        resources: Some(resources.container_disk.clone()),
        volume_mounts: Some(vec![binary, mount(pod::volume::CONTAINER_DISKS, path::CONTAINER_DISKS)]),
        ..Container::default()
    }
}

/// Ports that the manifest names, as ports of the container: documentation, and names for probes and Services.
fn ports(interface: &Interface) -> Vec<ContainerPort> {
    interface
        .ports
        .iter()
        .map(|port| ContainerPort {
            container_port: port.port,
            name: port.name.clone().filter(|n| !n.is_empty()),
            protocol: Some(port.protocol.clone().filter(|p| !p.is_empty()).unwrap_or_else(|| "TCP".into())),
            ..ContainerPort::default()
        })
        .collect()
}

/// A container of the launcher image.
pub(super) fn own(
    name: &str,
    config: &KubeVirtConfiguration,
    images: &Images,
    resources: &ResourceRequirements,
) -> Container {
    let policy = config.image_pull_policy.clone().filter(|p| !p.is_empty());
    Container {
        name: name.to_owned(),
        image: Some(images.launcher.clone()),
        image_pull_policy: Some(policy.unwrap_or_else(|| DEFAULT_PULL_POLICY.into())),
        security_context: Some(confined()),
        termination_message_policy: Some(TELL_WHY.into()),
        resources: Some(resources.clone()),
        ..Container::default()
    }
}

/// Nothing a container could do more than its user. Users and the seccomp profile stand in the pod.
pub(super) fn confined() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        capabilities: Some(Capabilities { add: None, drop: Some(vec!["ALL".into()]) }),
        privileged: Some(false),
        run_as_non_root: Some(true),
        ..SecurityContext::default()
    }
}
