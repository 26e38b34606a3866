//! The pod that holds the claims of volumes that are plugged into a running machine.
//!
//! A running pod gets no further volume. So another pod, on the same node, has the claims: the kubelet attaches and mounts them
//! there, and its program hands their disks over (`virt-launcher attach`). It lives as long as a machine uses one of them. As the
//! launcher pod, which controls it, it needs no privilege.

use k8s_openapi::api::core::v1::{
    Affinity, Capabilities, Container, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm,
    PersistentVolumeClaimVolumeSource, Pod, PodSpec, SecurityContext, Toleration, Volume, VolumeDevice,
    VolumeMount,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use podvirt_api::attachment::Attached;
use podvirt_api::names::{annotation, attachment_name, first_use_name, label, path, pod as names};
use podvirt_api::resources::{self, storage as size};
use podvirt_api::storage::is_block;
use podvirt_api::v1::{KubeVirtConfiguration, VirtualMachineInstance};

use super::volumes::{empty_dir, mount};
use super::{Identity, Images, TemplateError, pull_secrets, security_context};

/// Label of a node with its name.
const HOSTNAME: &str = "kubernetes.io/hostname";
/// Taint of a node that is to get no more pods: the machine is there, and stays until it is moved.
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
/// Where the claims are.
const CLAIMS: &str = path::ATTACHED;

/// The pod that holds the claims of `volumes`, sorted by name, for `launcher`, a pod of `vmi` that is on `node`.
///
/// # Errors
///
/// The machine, the pod or a volume lacks what an API server gives it.
pub fn attachment_pod(
    vmi: &VirtualMachineInstance,
    launcher: &Pod,
    node: &str,
    volumes: &[Attached],
    images: &Images,
    config: &KubeVirtConfiguration,
) -> Result<Pod, TemplateError> {
    let told = serde_json::to_string(volumes).map_err(|error| TemplateError::Json(error.to_string()))?;
    let socket = format!("{}/{}", path::ATTACHMENT, path::ATTACHMENT_SOCKET);
    let command = ["virt-launcher", "attach", "--socket", &socket, "--claims", CLAIMS, "--volumes", &told];
    let mut pod = pod(vmi, launcher, node, volumes, images, config, command.map(str::to_owned).to_vec())?;
    let spec = pod.spec.get_or_insert_default();
    spec.volumes.get_or_insert_default().push(empty_dir(names::volume::HOTPLUG_DISKS, size::OWN));
    for container in &mut spec.containers {
        let mounts = container.volume_mounts.get_or_insert_default();
        mounts.push(mount(names::volume::HOTPLUG_DISKS, path::ATTACHMENT));
    }
    Ok(pod)
}

/// The pod that is the first to use the claim of `volume`, whose storage waits for that: on the machine's node, and at once done.
///
/// # Errors
///
/// As of [`attachment_pod`].
pub fn first_use_pod(
    vmi: &VirtualMachineInstance,
    launcher: &Pod,
    node: &str,
    volume: &Attached,
    images: &Images,
    config: &KubeVirtConfiguration,
) -> Result<Pod, TemplateError> {
    let command = vec!["virt-launcher".into(), "--version".into()];
    let mut pod = pod(vmi, launcher, node, std::slice::from_ref(volume), images, config, command)?;
    let launcher = launcher.metadata.uid.as_deref().unwrap_or_default();
    pod.metadata.name = Some(first_use_name(launcher, &volume.name));
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(annotation::EPHEMERAL_PROVISIONING.into(), "true".into());
    Ok(pod)
}

fn pod(
    vmi: &VirtualMachineInstance,
    launcher: &Pod,
    node: &str,
    volumes: &[Attached],
    images: &Images,
    config: &KubeVirtConfiguration,
    command: Vec<String>,
) -> Result<Pod, TemplateError> {
    let machine = Identity::of(vmi)?;
    let launcher_spec = launcher.spec.clone().unwrap_or_default();
    let get = |value: &Option<String>, field| value.clone().ok_or(TemplateError::Identity(field));
    let (name, uid) = (get(&launcher.metadata.name, "name")?, get(&launcher.metadata.uid, "uid")?);
    let (mut mounts, mut devices) = (Vec::new(), Vec::new());
    for volume in volumes {
        let place = format!("{CLAIMS}/{}", volume.name);
        if is_block(&volume.claim) {
            devices.push(VolumeDevice { name: pod_volume(&volume.name), device_path: place });
        } else {
            let read_only = volume.read_only.then_some(true);
            // Machines may share the claim that their backups go to: none reaches another one's directory, by `..` neither.
            let own = volume.is_directory.then(|| machine.name.to_owned());
            let place = own.iter().fold(place, |place, own| format!("{place}/{own}"));
            mounts.push(VolumeMount { read_only, sub_path: own, ..mount(&pod_volume(&volume.name), &place) });
        }
    }
    let container = Container {
        name: names::HOTPLUG_DISK.into(),
        image: Some(images.launcher.clone()),
        command: Some(command),
        volume_mounts: Some(mounts),
        volume_devices: Some(devices).filter(|devices| !devices.is_empty()),
        resources: Some(resources::attachment(config)),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            capabilities: Some(Capabilities { drop: Some(vec!["ALL".into()]), add: None }),
            ..SecurityContext::default()
        }),
        ..Container::default()
    };
    let owner = OwnerReference {
        api_version: "v1".into(),
        kind: "Pod".into(),
        name,
        uid: uid.clone(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    };
    let annotations = [(label::CREATED_BY, machine.uid), (annotation::DOMAIN, machine.name)];
    let annotations = annotations.map(|(key, value)| (key.to_owned(), value.to_owned()));
    Ok(Pod {
        metadata: ObjectMeta {
            name: Some(attachment_name(&uid, volumes.iter().map(|volume| volume.name.as_str()))),
            namespace: Some(machine.namespace.to_owned()),
            labels: Some([(label::APP.to_owned(), label::APP_HOTPLUG.to_owned())].into()),
            annotations: Some(annotations.into()),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            containers: vec![container],
            volumes: Some(volumes.iter().map(claim).collect()),
            restart_policy: Some("OnFailure".into()),
            termination_grace_period_seconds: Some(0),
            enable_service_links: Some(false),
            automount_service_account_token: Some(false),
            security_context: Some(security_context_of_claims()),
            affinity: Some(on(node)),
            tolerations: Some(tolerations(launcher_spec.tolerations.unwrap_or_default())),
            priority_class_name: launcher_spec.priority_class_name,
            image_pull_secrets: pull_secrets(vmi, images),
            ..PodSpec::default()
        }),
        status: None,
    })
}

/// As of a launcher pod, without the sysctls for its network.
fn security_context_of_claims() -> k8s_openapi::api::core::v1::PodSecurityContext {
    k8s_openapi::api::core::v1::PodSecurityContext { sysctls: None, ..security_context() }
}

fn claim(volume: &Attached) -> Volume {
    Volume {
        name: pod_volume(&volume.name),
        persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
            claim_name: volume.claim.claim_name.clone().unwrap_or_default(),
            read_only: volume.read_only.then_some(true),
        }),
        ..Volume::default()
    }
}

/// The machine's volume in the pod; it cannot be taken for the pod's own.
fn pod_volume(volume: &str) -> String {
    if volume == names::volume::HOTPLUG_DISKS { format!("vmi-{volume}") } else { volume.to_owned() }
}

/// Names of the machine's volumes whose claims the pod holds.
pub fn volumes_of(pod: &Pod) -> impl Iterator<Item = &str> {
    claims_of(pod).map(|(volume, _)| volume)
}

/// The machine's volumes whose claims the pod holds, and the names of these claims.
pub fn claims_of(pod: &Pod) -> impl Iterator<Item = (&str, &str)> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let own = format!("vmi-{}", names::volume::HOTPLUG_DISKS);
    volumes.filter_map(move |volume| {
        let name = if volume.name == own { names::volume::HOTPLUG_DISKS } else { volume.name.as_str() };
        Some((name, volume.persistent_volume_claim.as_ref()?.claim_name.as_str()))
    })
}

/// The node of the machine. It is not named as the pod's, so that the scheduler has storage that waits for a pod come to it.
fn on(node: &str) -> Affinity {
    let requirement = NodeSelectorRequirement {
        key: HOSTNAME.into(),
        operator: "In".into(),
        values: Some(vec![node.to_owned()]),
    };
    let term = NodeSelectorTerm { match_expressions: Some(vec![requirement]), match_fields: None };
    Affinity {
        node_affinity: Some(NodeAffinity {
            required_during_scheduling_ignored_during_execution: Some(NodeSelector {
                node_selector_terms: vec![term],
            }),
            preferred_during_scheduling_ignored_during_execution: None,
        }),
        ..Affinity::default()
    }
}

/// The launcher pod's, and that the node gets no more pods.
fn tolerations(mut all: Vec<Toleration>) -> Vec<Toleration> {
    let cordoned = Toleration {
        key: Some(UNSCHEDULABLE.into()),
        operator: Some("Exists".into()),
        effect: Some("NoSchedule".into()),
        ..Toleration::default()
    };
    if !all.contains(&cordoned) {
        all.push(cordoned);
    }
    all
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::template::restricted;

    fn machine() -> VirtualMachineInstance {
        let vmi = json!({"metadata": {"name": "vm", "namespace": "ns", "uid": "u1"}, "spec": {"domain": {"devices": {}}}});
        serde_json::from_value(vmi).unwrap()
    }

    fn launcher() -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "virt-launcher-vm-x", "namespace": "ns", "uid": "p1"},
            "spec": {"containers": [], "tolerations": [{"key": "gpu", "operator": "Exists"}], "priorityClassName": "high"},
        }))
        .unwrap()
    }

    fn attached(name: &str, claim: Value) -> Attached {
        serde_json::from_value(json!({"name": name, "claim": claim})).unwrap()
    }

    #[test]
    fn it_has_the_claims_on_the_machines_node_and_no_privilege() {
        let images = Images { launcher: "launcher:1".into(), ..Images::default() };
        let config = json!({"supportContainerResources": [
            {"type": "hotplug-disk", "resources": {"limits": {"memory": "64Mi"}}}, {"type": "vmexport", "resources": {}}]});
        let config: KubeVirtConfiguration = serde_json::from_value(config).unwrap();
        let volumes = [
            attached("data", json!({"claimName": "a"})),
            attached("device", json!({"claimName": "b", "volumeMode": "Block"})),
            attached("hotplug-disks", json!({"claimName": "c"})),
            Attached { is_directory: true, ..attached("to", json!({"claimName": "copies"})) },
        ];
        let pod = attachment_pod(&machine(), &launcher(), "node1", &volumes, &images, &config).unwrap();
        assert_eq!(restricted::violations(&pod), [""; 0]);
        assert_eq!(volumes_of(&pod).collect::<Vec<_>>(), ["data", "device", "hotplug-disks", "to"]);
        let name = pod.metadata.name.clone().unwrap();
        assert_eq!(name, attachment_name("p1", ["data", "device", "hotplug-disks", "to"]));
        let pod = serde_json::to_value(pod).unwrap();
        assert_eq!(pod["metadata"]["ownerReferences"][0]["uid"], "p1");
        let spec = &pod["spec"];
        let container = &spec["containers"][0];
        let has =
            json!({"requests": {"cpu": "10m", "memory": "2M"}, "limits": {"cpu": "100m", "memory": "64Mi"}});
        assert_eq!(container["resources"], has);
        assert_eq!(container["volumeDevices"], json!([{"name": "device", "devicePath": "/attached/device"}]));
        assert_eq!(container["volumeMounts"][0], json!({"name": "data", "mountPath": "/attached/data"}));
        let own = json!({"name": "to", "mountPath": "/attached/to/vm", "subPath": "vm"});
        assert_eq!(container["volumeMounts"][2], own, "of the claim, the machine's own directory alone");
        let told: Vec<Attached> =
            serde_json::from_str(container["command"].as_array().unwrap().last().unwrap().as_str().unwrap())
                .unwrap();
        assert_eq!(told, volumes);
        let term = &spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
            [0];
        assert_eq!(term["matchExpressions"][0]["values"], json!(["node1"]));
        assert_eq!(spec["tolerations"].as_array().unwrap().len(), 2);

        let first = first_use_pod(&machine(), &launcher(), "node1", &volumes[0], &images, &config).unwrap();
        assert_eq!(restricted::violations(&first), [""; 0]);
        assert_eq!(volumes_of(&first).collect::<Vec<_>>(), ["data"]);
        assert_ne!(first.metadata.name.unwrap(), name);
    }
}
