//! Hook sidecars: containers beside `compute`, as upstream builds them. Those of network binding plugins come after the user's.
//!
//! All of them share one volume. Each has a directory of it as its own, named like its container; `compute` has the whole,
//! and so knows whose a socket is. They are ordinary containers: tools look for them there, and what a hook does at the
//! machine's end, by `Shutdown`, comes before the kubelet ends it.

use k8s_openapi::api::core::v1::{
    ConfigMapVolumeSource, Container, EnvVar, PersistentVolumeClaimVolumeSource, Volume, VolumeMount,
};
use podvirt_api::hooks::{self, HookSidecar};
use podvirt_api::names::pod::hook_sidecar;
use podvirt_api::names::{annotation, path, pod::volume};
use podvirt_api::plugin::is_told_of_device;
use podvirt_api::resources::{PodResources, storage as size};
use podvirt_api::v1::{KubeVirtConfiguration, VirtualMachineInstance};

use super::TemplateError;
use super::containers::{TELL_WHY, confined};
use super::volumes::{Storage, empty_dir, mount, network_info_mount};

/// The environment variable by which a sidecar learns its container's name.
const CONTAINER_NAME: &str = "CONTAINER_NAME";
/// Mode of a ConfigMap's files: a hook may be a script.
const MODE: i32 = 0o755;

/// The sidecars of `vmi`. What they and `compute` mount is added to `storage`.
///
/// # Errors
///
/// The annotation is not one that podvirt carries out, or the cluster does not allow sidecars.
pub(super) fn sidecars(
    vmi: &VirtualMachineInstance,
    config: &KubeVirtConfiguration,
    resources: &PodResources,
    storage: &mut Storage,
) -> Result<Vec<Container>, TemplateError> {
    let mut asked = hooks::of(vmi.metadata.annotations.iter().flatten()).map_err(TemplateError::Invalid)?;
    let of_users = !asked.is_empty();
    let policy = config.image_pull_policy.as_ref().map(ToString::to_string).unwrap_or_default();
    let mut told = Vec::new();
    // An interface that is absent has nothing to be told of, and the pod no volume for it.
    let tells = vmi.spec.domain.devices.interfaces.iter().any(|interface| vmi.is_told_of_device(interface));
    for plugin in vmi.plugins().into_values() {
        let is_told = tells && is_told_of_device(&plugin);
        let Some(image) = plugin.sidecar_image.filter(|image| !image.is_empty()) else { continue };
        if is_told {
            told.push(asked.len());
        }
        asked.push(HookSidecar { image, image_pull_policy: policy.clone(), ..HookSidecar::default() });
    }
    if asked.is_empty() {
        return Ok(Vec::new());
    }
    // Those of plugins are the administrator's own.
    if of_users && !hooks::allowed(config) {
        let field = format!("metadata.annotations[{}]", annotation::HOOK_SIDECARS);
        return Err(TemplateError::unsupported(
            field,
            "none without the feature gate Sidecar of the KubeVirt object",
        ));
    }
    storage.volumes.push(empty_dir(volume::HOOKS, size::OWN));
    storage.mounts.push(mount(volume::HOOKS, path::HOOKS));
    let sidecar = |(n, sidecar)| {
        let mut container = container(n, sidecar, resources, storage);
        if told.contains(&n) {
            container.volume_mounts.get_or_insert_default().push(network_info_mount());
        }
        container
    };
    Ok(asked.iter().enumerate().map(sidecar).collect())
}

/// Has virt-launcher wait for so many sidecars.
pub(super) fn told(compute: &mut Container, sidecars: usize) {
    if sidecars > 0 {
        let command = compute.command.get_or_insert_default();
        command.extend(["--hook-sidecars".into(), sidecars.to_string()]);
    }
}

fn container(n: usize, sidecar: &HookSidecar, resources: &PodResources, storage: &mut Storage) -> Container {
    let name = hook_sidecar(n);
    let mut mounts = vec![VolumeMount { sub_path: Some(name.clone()), ..mount(volume::HOOKS, path::HOOKS) }];
    if let Some(file) = &sidecar.config_map {
        let map = format!("{name}-configmap");
        let source = ConfigMapVolumeSource {
            name: file.name.clone(),
            default_mode: Some(MODE),
            ..ConfigMapVolumeSource::default()
        };
        mounts.push(VolumeMount { sub_path: Some(file.key.clone()), ..mount(&map, &file.hook_path) });
        storage.volumes.push(Volume { name: map, config_map: Some(source), ..Volume::default() });
    }
    if let Some(claim) = &sidecar.pvc {
        let data = format!("{name}-pvc");
        let source = PersistentVolumeClaimVolumeSource { claim_name: claim.name.clone(), read_only: None };
        mounts.push(mount(&data, &claim.volume_path));
        if !claim.shared_compute_path.is_empty() {
            storage.mounts.push(mount(&data, &claim.shared_compute_path));
        }
        storage.volumes.push(Volume {
            name: data,
            persistent_volume_claim: Some(source),
            ..Volume::default()
        });
    }
    let list = |words: &Vec<String>| Some(words.clone()).filter(|words| !words.is_empty());
    Container {
        image: Some(sidecar.image.clone()),
        image_pull_policy: Some(sidecar.image_pull_policy.clone()).filter(|policy| !policy.is_empty()),
        command: list(&sidecar.command),
        args: list(&sidecar.args),
        env: Some(vec![EnvVar {
            name: CONTAINER_NAME.into(),
            value: Some(name.clone()),
            ..EnvVar::default()
        }]),
        security_context: Some(confined()),
        termination_message_policy: Some(TELL_WHY.into()),
        resources: Some(resources.hook_sidecar.clone()),
        volume_mounts: Some(mounts),
        name,
        ..Container::default()
    }
}
