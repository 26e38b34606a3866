//! The pod that is the first to use a machine's claims, where their storage waits for that.
//!
//! A storage class may choose a volume's node only once a pod that uses the claim has one, and CDI may fill the claim only
//! then. The launcher pod cannot be that pod: its guest would start from a disk that is not filled yet. So this pod goes
//! before it: it asks for what the launcher pod asks for, so that the scheduler finds a node on which both fit, mounts the
//! claims, and ends at once.

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use podvirt_api::names::{annotation, pod as pod_names};
use podvirt_api::v1::{KubeVirtConfiguration, VirtualMachineInstance};

use super::{Identity, Images, TemplateError, backup_hooks, launcher_pod, pod_name};

/// The pod that goes before the launcher pod of `vmi`. Its name follows from the machine's UID.
///
/// # Errors
///
/// As of [`launcher_pod`].
pub fn consumer_pod(
    vmi: &VirtualMachineInstance,
    config: &KubeVirtConfiguration,
    images: &Images,
) -> Result<Pod, TemplateError> {
    let machine = Identity::of(vmi)?;
    let mut pod = launcher_pod(vmi, config, images)?;
    pod.metadata.name = Some(pod_name(machine.name, &format!("{}-consumer", machine.uid)));
    let annotations = pod.metadata.annotations.get_or_insert_default();
    for network in [annotation::NETWORKS, annotation::DEFAULT_NETWORK] {
        annotations.remove(network);
    }
    // No launcher would answer virt-freezer.
    for hook in backup_hooks(vmi, true).keys() {
        annotations.remove(*hook);
    }
    annotations.insert(annotation::EPHEMERAL_PROVISIONING.into(), "true".into());
    pod.metadata.labels.get_or_insert_default().insert(annotation::ISTIO_INJECT.into(), "false".into());
    if let Some(spec) = &mut pod.spec {
        strip(spec);
    }
    Ok(pod)
}

/// Leaves the claims, and one container that asks for what the machine's own does.
fn strip(spec: &mut PodSpec) {
    spec.init_containers = None;
    spec.readiness_gates = None;
    spec.hostname = None;
    spec.subdomain = None;
    spec.security_context.get_or_insert_default().sysctls = None;
    spec.containers.retain(|container| container.name == pod_names::COMPUTE);
    let volumes = spec.volumes.get_or_insert_default();
    volumes.retain(|volume| volume.persistent_volume_claim.is_some());
    for compute in &mut spec.containers {
        compute.command = Some(vec!["virt-launcher".into(), "--version".into()]);
        compute.args = None;
        compute.env = None;
        compute.ports = None;
        compute.lifecycle = None;
        (compute.liveness_probe, compute.readiness_probe, compute.startup_probe) = (None, None, None);
        let is_kept = |name: &String| volumes.iter().any(|volume| volume.name == *name);
        compute.volume_mounts.get_or_insert_default().retain(|mount| is_kept(&mount.name));
        compute.volume_devices.get_or_insert_default().retain(|device| is_kept(&device.name));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::template::restricted;

    #[test]
    fn it_uses_the_claims_asks_for_what_the_machine_does_and_runs_nothing_of_it() {
        let vmi: VirtualMachineInstance = serde_json::from_value(json!({
            "metadata": {"name": "vm", "namespace": "ns", "uid": "u1"},
            "spec": {
                "domain": {"devices": {"disks": [{"name": "root"}, {"name": "seed"}, {"name": "image"}]}, "memory": {"guest": "64Mi"}},
                "networks": [{"name": "n", "pod": {}}],
                "volumes": [
                    {"name": "root", "dataVolume": {"name": "disk"}},
                    {"name": "seed", "cloudInitNoCloud": {"secretRef": {"name": "s"}}},
                    {"name": "image", "containerDisk": {"image": "i"}},
                ],
            },
        }))
        .unwrap();
        let images = Images { launcher: "launcher:1".into(), ..Images::default() };
        let config = KubeVirtConfiguration::default();
        let (consumer, launcher) =
            (consumer_pod(&vmi, &config, &images).unwrap(), launcher_pod(&vmi, &config, &images).unwrap());
        assert_ne!(consumer.metadata.name, launcher.metadata.name);
        let has_hook = |pod: &Pod| {
            pod.metadata.annotations.iter().flatten().any(|(key, _)| key.contains("hook.backup.velero.io"))
        };
        assert!(has_hook(&launcher) && !has_hook(&consumer));
        assert_eq!(restricted::violations(&consumer), [""; 0]);
        let (spec, whole) = (consumer.spec.unwrap(), launcher.spec.unwrap());
        let names = |spec: &PodSpec| {
            spec.volumes.iter().flatten().map(|volume| volume.name.clone()).collect::<Vec<_>>()
        };
        assert_eq!(names(&spec), ["root"]);
        let [compute] = &spec.containers[..] else { panic!("{:?}", spec.containers) };
        assert_eq!(compute.resources, whole.containers[0].resources);
        assert_eq!(compute.volume_mounts.as_ref().unwrap().len(), 1);
        assert_eq!((spec.init_containers, spec.node_selector), (None, whole.node_selector));
    }
}
