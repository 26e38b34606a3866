//! The launcher pod of a VirtualMachineInstance, as a pure function of the machine and the configuration.
//!
//! ```text
//! init containers                                             containers
//!   container-disk-binary   copies the static binary, ends      compute   virt-launcher ── libvirt ── QEMU
//!   volume<name> ...        one sidecar a containerDisk
//!   kernel-boot-volume      sidecar, kernelBoot's image
//!   netd, netd-1 ...        sidecars, one an interface      virtiofs-<name> ...  virtiofsd, one a file system
//!                                                           hook-sidecar-0 ...   of the machine's users
//! ```
//!
//! Nothing in the pod is privileged: user and group 107, no capability, no escalation, the runtime's seccomp
//! profile, no device but `/dev/kvm` from the device plugin. What netd needs beyond that, low ports and ping
//! sockets, are two of the sysctls that Kubernetes calls safe, written into the pod itself. So a namespace
//! that enforces the `restricted` Pod Security Standard admits it; the tests hold every rendered pod against
//! that standard's rules.
//!
//! The function decides nothing that depends on time, on the cluster's state or on chance: rendering twice
//! gives the same pod, with the same name. The name looks like one that the API server made up, but its last
//! letters follow from the machine's UID: a machine cannot get two pods, however often they are asked for.

mod attachment;
mod backup_hooks;
mod configs;
mod consumer;
mod containers;
mod filesystems;
mod hooks;
mod inherited;
mod networks;
mod placement;
mod probes;
#[cfg(test)]
pub(crate) mod restricted;
mod target;
#[cfg(test)]
mod tests;
mod verbosity;
mod volumes;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{
    LocalObjectReference, Pod, PodReadinessGate, PodSecurityContext, PodSpec, SeccompProfile, Sysctl,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use podvirt_api::names::{self, annotation, condition, label, pod};
use podvirt_api::resources::{AutoLimits, PodResources};
use podvirt_api::v1::{KubeVirtConfiguration, VirtualMachineInstance};

pub use attachment::{attachment_pod, claims_of, first_use_pod, volumes_of};
pub(crate) use backup_hooks::{are_off, backup_hooks};
pub use consumer::consumer_pod;
pub(crate) use networks::{MULTUS_STATUS, asked, attached, attachment_of, network_info, networks};
pub(crate) use placement::{HOST_MODEL, is_misplaced, model};
pub use target::target_pod;

/// Seconds that a guest has to shut down when its manifest does not say (upstream's default).
pub const DEFAULT_GRACE_SECONDS: i64 = 30;

/// Longest host name (RFC 1123, section 2.1, as Kubernetes has it for pods).
const HOSTNAME_MAX: usize = 63;

/// Images of the pod's own containers, and what its namespace and the KubeVirt object want of the pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Images {
    /// Image that holds virt-launcher, netd and the container-disk binary.
    pub launcher: String,
    /// Secrets to pull it with.
    pub pull_secrets: Vec<String>,
    /// Limits of a machine that says none.
    pub limits: AutoLimits,
    /// Whether the pod of a machine that does not say it has no hooks for backup tools.
    pub backup_hooks_are_off: bool,
    /// How many flows each netd of a machine that does not say it carries; none leaves netd's own number.
    pub netd_flows: Option<u32>,
}

/// A pod cannot be rendered. Trying again does not help before the machine changes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// The machine asks for something that podvirt does not carry out.
    #[error("{field} is not supported by podvirt; allowed: {allowed}")]
    Unsupported {
        /// Path in the manifest.
        field: String,
        /// What could stand there instead.
        allowed: &'static str,
    },
    /// A claim's device would take the place of one that every container has.
    #[error(
        "{field}: '{name}' is the name of another device in the launcher pod's /dev, and the volume's claim is a block device; any \
             other name is allowed"
    )]
    DeviceName {
        /// Path in the manifest.
        field: String,
        /// The name.
        name: String,
    },
    /// A claim without files is to be a file system.
    #[error(
        "{field}: the volume's claim is in block mode (volumeMode: Block), and has no files; a claim in filesystem mode is allowed"
    )]
    NoFiles {
        /// Path in the manifest.
        field: String,
    },
    /// A claim in filesystem mode is to be passed through as a SCSI device.
    #[error(
        "{field}: the PersistentVolumeClaim {claim} has files (volumeMode: Filesystem); a claim in block mode (volumeMode: Block) is \
             allowed"
    )]
    NoDevice {
        /// Path in the manifest.
        field: String,
        /// Name of the claim.
        claim: String,
    },
    /// The machine's status does not name the claim that keeps the state of its firmware and TPM.
    #[error("can't generate manifest without backend-storage PVC, waiting for the PVC to be created")]
    NoStateClaim,
    /// The object lacks what the API server gives every object.
    #[error("metadata.{0} is missing: the object does not come from an API server")]
    Identity(&'static str),
    /// The machine is not one that the launcher would take.
    #[error("the machine's specification is refused: {0}")]
    Invalid(podvirt_api::Problems),
    /// What netd is told cannot be read or written as JSON.
    #[error("the interfaces cannot be written as JSON: {0}")]
    Json(String),
}

impl TemplateError {
    fn unsupported(field: impl Into<String>, allowed: &'static str) -> Self {
        TemplateError::Unsupported { field: field.into(), allowed }
    }
}

/// Name, namespace and UID of a machine.
#[derive(Clone, Copy, Debug)]
struct Identity<'a> {
    name: &'a str,
    namespace: &'a str,
    uid: &'a str,
}

impl<'a> Identity<'a> {
    fn of(vmi: &'a VirtualMachineInstance) -> Result<Self, TemplateError> {
        let meta = &vmi.metadata;
        let get = |value: &'a Option<String>, field| match value.as_deref() {
            Some(text) if !text.is_empty() => Ok(text),
            _ => Err(TemplateError::Identity(field)),
        };
        Ok(Identity {
            name: get(&meta.name, "name")?,
            namespace: get(&meta.namespace, "namespace")?,
            uid: get(&meta.uid, "uid")?,
        })
    }
}

/// The launcher pod of `vmi`.
///
/// # Errors
///
/// The machine asks for something that cannot be rendered, or it does not come from an API server.
pub fn launcher_pod(
    vmi: &VirtualMachineInstance,
    config: &KubeVirtConfiguration,
    images: &Images,
) -> Result<Pod, TemplateError> {
    let identity = Identity::of(vmi)?;
    let spec = &vmi.spec;
    let mut resources = PodResources::for_vmi_within(spec, config, images.limits);
    if vmi.has_taps() {
        resources = resources.with_taps();
    }
    let resources = resources.with_plugins(&vmi.plugins());
    let mut storage = volumes::volumes(vmi)?;
    let filesystems = filesystems::containers(vmi, config, images, &resources, &storage)?;
    let hooks = hooks::sidecars(vmi, config, &resources, &mut storage)?;
    let probes = probes::probes(vmi)?;
    let grace = grace_seconds(vmi);
    let (hostname, subdomain) = (hostname(vmi, identity.name), spec.subdomain.clone());
    let init = containers::sidecars(vmi, config, images, &resources, identity)?;
    let mut compute = containers::compute(vmi, identity, config, images, &resources, storage.mounts, probes);
    compute.volume_devices = Some(storage.devices).filter(|devices| !devices.is_empty());
    compute.env = Some(
        [containers::libvirt()]
            .into_iter()
            .chain(verbosity::variable(vmi, config)?)
            .chain(containers::node(vmi))
            .collect(),
    );
    hooks::told(&mut compute, hooks.len());
    Ok(Pod {
        metadata: metadata(vmi, identity, &resources, networks::annotations(vmi, identity)?, config, images),
        spec: Some(PodSpec {
            init_containers: Some(init).filter(|c| !c.is_empty()),
            containers: std::iter::once(compute).chain(filesystems).chain(hooks).collect(),
            volumes: Some(storage.volumes),
            restart_policy: Some("Never".into()),
            termination_grace_period_seconds: Some(pod::termination_grace_period_seconds(grace)),
            enable_service_links: Some(false),
            automount_service_account_token: Some(false),
            service_account_name: configs::service_account(vmi),
            hostname: Some(hostname),
            subdomain,
            dns_policy: spec.dns_policy.clone(),
            dns_config: spec.dns_config.clone(),
            readiness_gates: Some(vec![PodReadinessGate {
                condition_type: condition::VIRTUAL_MACHINE_UNPAUSED.into(),
            }]),
            security_context: Some(security_context()),
            node_selector: Some(placement::node_selector(vmi, config)),
            affinity: placement::affinity(vmi),
            tolerations: Some(spec.tolerations.clone()).filter(|t| !t.is_empty()),
            topology_spread_constraints: Some(spec.topology_spread_constraints.clone())
                .filter(|c| !c.is_empty()),
            priority_class_name: spec.priority_class_name.clone(),
            scheduler_name: spec.scheduler_name.clone(),
            runtime_class_name: config.default_runtime_class.clone().filter(|c| !c.is_empty()),
            image_pull_secrets: pull_secrets(vmi, images),
            ..PodSpec::default()
        }),
        status: None,
    })
}

/// Seconds that the guest of `vmi` has to shut down.
pub fn grace_seconds(vmi: &VirtualMachineInstance) -> i64 {
    vmi.spec.termination_grace_period_seconds.unwrap_or(DEFAULT_GRACE_SECONDS).max(0)
}

fn metadata(
    vmi: &VirtualMachineInstance,
    identity: Identity<'_>,
    resources: &PodResources,
    networks: BTreeMap<String, String>,
    config: &KubeVirtConfiguration,
    images: &Images,
) -> ObjectMeta {
    let meta = &vmi.metadata;
    let mut labels = meta.labels.clone().unwrap_or_default();
    // Where the machine runs is not known yet, and the pod's image is the present one; labels of an object that was copied
    // say nothing here.
    for label in [label::NODE_NAME, label::MIGRATION_TARGET_NODE_NAME, label::OUTDATED_LAUNCHER_IMAGE] {
        labels.remove(label);
    }
    // Istio's webhooks select pods by the label alone; the annotation is how a machine asks for its proxy.
    let inject = meta.annotations.as_ref().and_then(|given| given.get(annotation::ISTIO_INJECT));
    if let Some(inject) = inject.filter(|value| matches!(value.as_str(), "true" | "false")) {
        labels.insert(annotation::ISTIO_INJECT.into(), inject.clone());
    }
    labels.extend(
        [
            (label::APP, label::APP_LAUNCHER.to_owned()),
            (label::CREATED_BY, identity.uid.to_owned()),
            (label::VM_NAME, names::label_value(identity.name)),
            (label::VMI_ID, names::label_value(identity.name)),
        ]
        .map(|(key, value)| (key.to_owned(), value)),
    );
    let mut annotations: BTreeMap<String, String> = meta
        .annotations
        .iter()
        .flatten()
        .filter(|(key, _)| inherited::is_inherited(key, config))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    annotations.extend(
        [
            (annotation::DOMAIN, identity.name.to_owned()),
            (annotation::DEFAULT_CONTAINER, pod::COMPUTE.to_owned()),
            (annotation::MEMORY_OVERHEAD_BYTES, resources.overhead.total().to_string()),
            (annotation::EVICT_ONLY, String::new()),
            (annotation::PLACEMENT_DIGEST, placement::digest(vmi)),
        ]
        .map(|(key, value)| (key.to_owned(), value)),
    );
    annotations.extend(networks);
    let hooks = backup_hooks(vmi, images.backup_hooks_are_off).into_iter();
    annotations.extend(hooks.filter_map(|(key, value)| Some((key.to_owned(), value?))));
    ObjectMeta {
        name: Some(pod_name(identity.name, identity.uid)),
        namespace: Some(identity.namespace.to_owned()),
        labels: Some(labels),
        annotations: Some(annotations),
        owner_references: Some(vec![owner(identity)]),
        ..ObjectMeta::default()
    }
}

/// Name of the launcher pod of the machine with this name and UID.
pub fn pod_name(machine: &str, uid: &str) -> String {
    names::launcher_name(machine, uid)
}

pub use names::short_name;

/// Claims that the machine's volumes name, in their order, those that its backups write to after them.
pub fn claim_names(vmi: &VirtualMachineInstance) -> impl Iterator<Item = &str> {
    let utility = vmi.spec.utility_volumes.iter().map(|volume| volume.claim_name.as_str());
    vmi.spec.volumes.iter().filter_map(podvirt_api::storage::claim).map(|claim| claim.name).chain(utility)
}

fn owner(identity: Identity<'_>) -> OwnerReference {
    OwnerReference {
        api_version: podvirt_api::API_VERSION.into(),
        kind: "VirtualMachineInstance".into(),
        name: identity.name.to_owned(),
        uid: identity.uid.to_owned(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

fn security_context() -> PodSecurityContext {
    let sysctl = |name: &str, value: String| Sysctl { name: name.into(), value };
    PodSecurityContext {
        run_as_user: Some(pod::UID),
        run_as_group: Some(pod::GID),
        run_as_non_root: Some(true),
        fs_group: Some(pod::GID),
        seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".into(), localhost_profile: None }),
        sysctls: Some(vec![
            // netd listens on the guest's ports, the low ones too, and pings for it, without a capability.
            sysctl("net.ipv4.ip_unprivileged_port_start", "0".into()),
            sysctl("net.ipv4.ping_group_range", format!("{gid} {gid}", gid = pod::GID)),
        ]),
        ..PodSecurityContext::default()
    }
}

/// The manifest's host name, or the machine's name up to its first dot.
fn hostname(vmi: &VirtualMachineInstance, name: &str) -> String {
    let given = vmi.spec.hostname.as_deref().filter(|h| !h.is_empty());
    let label = given.unwrap_or(name).split('.').next().unwrap_or_default();
    let cut: String = label.chars().take(HOSTNAME_MAX).collect();
    cut.trim_end_matches('-').to_owned()
}

fn pull_secrets(vmi: &VirtualMachineInstance, images: &Images) -> Option<Vec<LocalObjectReference>> {
    let disks = vmi.spec.volumes.iter().filter_map(|v| v.container_disk.as_ref()?.image_pull_secret.as_ref());
    let boot = kernel_container(vmi).and_then(|c| c.image_pull_secret.as_ref());
    let names: BTreeSet<&String> =
        images.pull_secrets.iter().chain(disks).chain(boot).filter(|name| !name.is_empty()).collect();
    let secrets: Vec<_> = names.into_iter().map(|name| LocalObjectReference { name: name.clone() }).collect();
    Some(secrets).filter(|s| !s.is_empty())
}

fn kernel_container(vmi: &VirtualMachineInstance) -> Option<&podvirt_api::v1::KernelBootContainer> {
    vmi.spec.domain.firmware.as_ref()?.kernel_boot.as_ref()?.container.as_ref()
}
