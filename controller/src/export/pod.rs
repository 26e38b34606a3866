//! The objects of an export: pure functions of the export and its claims.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{
    Capabilities, ConfigMapVolumeSource, Container, ContainerPort, EnvVar, HTTPGetAction,
    LocalObjectReference, PersistentVolumeClaimVolumeSource, Pod, PodSecurityContext, PodSpec, Probe,
    ResourceRequirements, SeccompProfile, Secret, SecretVolumeSource, SecurityContext, Service, ServicePort,
    ServiceSpec, Volume, VolumeDevice, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::Resource;
use podvirt_api::export::{
    APP, CERT_PARAMETERS, CERTIFICATE_DIRECTORY, DEVICES, FILE_SYSTEMS, FORMATS, MANIFEST_DIRECTORY,
    MANIFEST_PATHS, POD_LABEL, PORT, READY_PATH, SERVICE_PORT, TOKEN_DIRECTORY, TOKEN_KEY, host, label_value,
    manifest_name, pod_name, service_name, volume_name, volume_path,
};
use podvirt_api::names::pod::{GID, UID};
use podvirt_api::v1::{ExportVolumeFormat, VirtualMachineExport as Export};
use podvirt_daemon::pki::KeyPairPem;

use super::backup::{self, Offered};

/// Name of the container.
const CONTAINER: &str = "exporter";
/// Names of the volumes of the certificate and of the token, as upstream's.
pub(super) const CERTIFICATES: &str = "certificates";
const TOKEN: &str = "token";
/// Name of the volume of the manifests' data.
const MANIFEST: &str = "manifest-data";
/// What kubectl keeps for itself.
const KUBECTL: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// A claim that is exported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Exported {
    /// Its name.
    pub(super) name: String,
    /// Whether it is a block device.
    pub(super) is_block: bool,
    /// Whether it holds a machine's disk, and not any files.
    pub(super) is_disk: bool,
}

/// What is to be in a pod beside its claims.
#[derive(Clone, Debug)]
pub(super) struct Settings<'a> {
    pub(super) image: &'a str,
    pub(super) pull_secrets: &'a [String],
    pub(super) resources: ResourceRequirements,
    /// How long certificates live, as the annotation says it.
    pub(super) parameters: &'a str,
    /// When it has to end.
    pub(super) deadline: Timestamp,
    pub(super) token_secret: &'a str,
    pub(super) certificate_secret: &'a str,
    /// Whether there is data for manifests.
    pub(super) has_manifest: bool,
    /// What a backup offers, and the CAs that the launcher's certificate may be of.
    pub(super) backup: Option<(&'a Offered, &'a str)>,
}

/// A volume as an exporter pod serves it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Served {
    pub(super) claim: String,
    pub(super) paths: Vec<(ExportVolumeFormat, String)>,
}

/// The owner that an export is.
pub(super) fn owner(export: &Export) -> Option<Vec<OwnerReference>> {
    let owner = export.controller_owner_ref(&())?;
    Some(vec![OwnerReference { block_owner_deletion: Some(true), ..owner }])
}

fn metadata(export: &Export, name: String) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: export.metadata.namespace.clone(),
        owner_references: owner(export),
        ..ObjectMeta::default()
    }
}

fn own_name(export: &Export) -> &str {
    export.metadata.name.as_deref().unwrap_or_default()
}

/// The labels of the export, and the label `name` with `value`.
fn labels(export: &Export, name: &str, value: String) -> BTreeMap<String, String> {
    let mut labels = export.metadata.labels.clone().unwrap_or_default();
    labels.insert(name.to_owned(), value);
    labels
}

/// The export's annotations.
fn annotations(export: &Export) -> BTreeMap<String, String> {
    let mut annotations = export.metadata.annotations.clone().unwrap_or_default();
    annotations.remove(KUBECTL);
    annotations
}

/// The Service.
pub(super) fn service(export: &Export) -> Service {
    Service {
        metadata: ObjectMeta {
            labels: Some(labels(export, "kubevirt.io", APP.to_owned())),
            annotations: Some(annotations(export)),
            ..metadata(export, service_name(own_name(export)))
        },
        spec: Some(ServiceSpec {
            ports: Some(vec![ServicePort {
                name: Some("export".to_owned()),
                protocol: Some("TCP".to_owned()),
                port: SERVICE_PORT.into(),
                target_port: Some(IntOrString::Int(PORT.into())),
                ..ServicePort::default()
            }]),
            selector: Some(BTreeMap::from([(POD_LABEL.to_owned(), label_value(own_name(export)))])),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

/// The Secret with the token.
pub(super) fn token(export: &Export, name: &str, token: String) -> Secret {
    Secret {
        metadata: metadata(export, name.to_owned()),
        type_: Some("Opaque".to_owned()),
        data: Some(BTreeMap::from([(TOKEN_KEY.to_owned(), ByteString(token.into_bytes()))])),
        ..Secret::default()
    }
}

/// The Secret with a pod's certificate, which goes with the pod.
pub(super) fn certificate(pod: &Pod, name: &str, pair: KeyPairPem) -> Secret {
    let owner = pod.controller_owner_ref(&());
    Secret {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: pod.metadata.namespace.clone(),
            owner_references: owner.map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        type_: Some("kubernetes.io/tls".to_owned()),
        data: Some(BTreeMap::from([
            ("tls.crt".to_owned(), ByteString(pair.certificate.into_bytes())),
            ("tls.key".to_owned(), ByteString(pair.key.into_bytes())),
        ])),
        ..Secret::default()
    }
}

/// Names that the certificate of an export is valid for; the first is its subject's.
pub(super) fn dns_names(export: &Export) -> Vec<String> {
    let service = service_name(own_name(export));
    let namespace = export.metadata.namespace.as_deref().unwrap_or_default();
    let host = host(own_name(export), namespace);
    vec![host.clone(), format!("{host}.cluster.local"), format!("{service}.{namespace}"), service]
}

/// The Secret of a pod's certificate.
pub(super) fn certificate_secret(pod: &Pod) -> Option<&str> {
    let volumes = pod.spec.as_ref()?.volumes.iter().flatten();
    let mut named = volumes.filter(|volume| volume.name == CERTIFICATES);
    named.find_map(|volume| volume.secret.as_ref()?.secret_name.as_deref())
}

pub(super) fn variable(name: &str, value: &str) -> EnvVar {
    EnvVar { name: name.to_owned(), value: Some(value.to_owned()), value_from: None }
}

fn secret(name: &str, secret: &str) -> Volume {
    let source = SecretVolumeSource { secret_name: Some(secret.to_owned()), ..SecretVolumeSource::default() };
    Volume { name: name.to_owned(), secret: Some(source), ..Volume::default() }
}

fn mount(name: &str, path: &str) -> VolumeMount {
    VolumeMount {
        name: name.to_owned(),
        mount_path: path.to_owned(),
        read_only: Some(true),
        ..VolumeMount::default()
    }
}

/// The pod.
pub(super) fn pod(export: &Export, claims: &[Exported], settings: &Settings<'_>) -> Pod {
    let mut annotations = annotations(export);
    annotations.insert(CERT_PARAMETERS.to_owned(), settings.parameters.to_owned());
    let mut volumes =
        vec![secret(CERTIFICATES, settings.certificate_secret), secret(TOKEN, settings.token_secret)];
    let mut mounts = vec![mount(CERTIFICATES, CERTIFICATE_DIRECTORY), mount(TOKEN, TOKEN_DIRECTORY)];
    let mut devices = Vec::new();
    let deadline = settings.deadline.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let mut environment = vec![
        variable("CERT_FILE", &format!("{CERTIFICATE_DIRECTORY}/tls.crt")),
        variable("KEY_FILE", &format!("{CERTIFICATE_DIRECTORY}/tls.key")),
        variable("TOKEN_FILE", &format!("{TOKEN_DIRECTORY}/{TOKEN_KEY}")),
        variable("DEADLINE", &deadline),
        variable("EXPORT_VM_DEF_URI", MANIFEST_PATHS[0]),
        variable("EXPORT_SECRET_DEF_URI", MANIFEST_PATHS[1]),
    ];
    for (place, claim) in claims.iter().enumerate() {
        let name = volume_name(&claim.name);
        let path = format!("{}/{name}", if claim.is_block { DEVICES } else { FILE_SYSTEMS });
        environment.push(variable(&format!("VOLUME{place}_EXPORT_PATH"), &path));
        let [raw, gzip, directory, archive] = FORMATS;
        let served = if claim.is_block || claim.is_disk { [raw, gzip] } else { [archive, directory] };
        for (suffix, file) in served {
            environment.push(variable(&format!("VOLUME{place}_{suffix}"), &volume_path(&claim.name, file)));
        }
        if claim.is_block {
            devices.push(VolumeDevice { name: name.clone(), device_path: path });
        } else {
            mounts.push(mount(&name, &path));
        }
        volumes.push(Volume {
            name,
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: claim.name.clone(),
                read_only: None,
            }),
            ..Volume::default()
        });
    }
    if let Some((offered, ca)) = settings.backup {
        environment.extend(backup::environment(offered, ca));
    }
    if settings.has_manifest {
        let name = manifest_name(own_name(export));
        let source = ConfigMapVolumeSource { name, ..ConfigMapVolumeSource::default() };
        volumes.push(Volume { name: MANIFEST.to_owned(), config_map: Some(source), ..Volume::default() });
        mounts.push(mount(MANIFEST, MANIFEST_DIRECTORY));
    }
    let container = Container {
        name: CONTAINER.to_owned(),
        image: Some(settings.image.to_owned()),
        env: Some(environment),
        ports: Some(vec![ContainerPort {
            name: Some("export".to_owned()),
            container_port: PORT.into(),
            protocol: Some("TCP".to_owned()),
            ..ContainerPort::default()
        }]),
        readiness_probe: Some(Probe {
            http_get: Some(HTTPGetAction {
                scheme: Some("HTTPS".to_owned()),
                path: Some(READY_PATH.to_owned()),
                port: IntOrString::Int(PORT.into()),
                ..HTTPGetAction::default()
            }),
            period_seconds: Some(2),
            timeout_seconds: Some(5),
            ..Probe::default()
        }),
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        resources: Some(settings.resources.clone()),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            read_only_root_filesystem: Some(true),
            capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), add: None }),
            ..SecurityContext::default()
        }),
        volume_mounts: Some(mounts),
        volume_devices: Some(devices).filter(|devices| !devices.is_empty()),
        ..Container::default()
    };
    let secrets = settings.pull_secrets.iter().map(|name| LocalObjectReference { name: name.clone() });
    Pod {
        metadata: ObjectMeta {
            labels: Some(labels(export, POD_LABEL, label_value(own_name(export)))),
            annotations: Some(annotations),
            ..metadata(export, pod_name(own_name(export)))
        },
        spec: Some(PodSpec {
            restart_policy: Some("Never".to_owned()),
            automount_service_account_token: Some(false),
            enable_service_links: Some(false),
            image_pull_secrets: Some(secrets.collect::<Vec<_>>()).filter(|secrets| !secrets.is_empty()),
            security_context: Some(PodSecurityContext {
                run_as_non_root: Some(true),
                run_as_user: Some(UID),
                run_as_group: Some(GID),
                fs_group: Some(GID),
                fs_group_change_policy: Some("OnRootMismatch".to_owned()),
                seccomp_profile: Some(SeccompProfile {
                    type_: "RuntimeDefault".to_owned(),
                    localhost_profile: None,
                }),
                ..PodSecurityContext::default()
            }),
            containers: vec![container],
            volumes: Some(volumes),
            ..PodSpec::default()
        }),
        status: None,
    }
}

/// What a pod serves, by its environment.
pub(super) fn served(pod: &Pod) -> Vec<Served> {
    let Some(spec) = &pod.spec else { return Vec::new() };
    let environment = spec.containers.iter().filter_map(|container| container.env.as_ref()).flatten();
    let known: BTreeMap<&str, &str> =
        environment.filter_map(|one| Some((one.name.as_str(), one.value.as_deref()?))).collect();
    let claims: BTreeMap<&str, &str> = spec
        .volumes
        .iter()
        .flatten()
        .filter_map(|volume| {
            Some((volume.name.as_str(), volume.persistent_volume_claim.as_ref()?.claim_name.as_str()))
        })
        .collect();
    let words = [
        ExportVolumeFormat::Raw,
        ExportVolumeFormat::Gzip,
        ExportVolumeFormat::Dir,
        ExportVolumeFormat::Targz,
    ];
    (0..)
        .map_while(|place| {
            known.get(format!("VOLUME{place}_EXPORT_PATH").as_str()).map(|path| (place, *path))
        })
        .filter_map(|(place, path)| {
            let claim = claims.get(path.rsplit('/').next()?)?;
            let paths = FORMATS.iter().zip(&words).filter_map(|((suffix, _), word)| {
                let path = known.get(format!("VOLUME{place}_{suffix}").as_str())?;
                Some((word.clone(), (*path).to_owned()))
            });
            Some(Served { claim: (*claim).to_owned(), paths: paths.collect() })
        })
        .collect()
}
