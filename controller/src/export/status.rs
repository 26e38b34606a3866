//! The status of an export: a pure function of what is seen.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use podvirt_api::export::{MANIFEST_PATHS, expires, host, proxy_path, service_name, set_condition};
use podvirt_api::v1::{
    ExportConditionType as Condition, ExportManifestType, VirtualMachineExport as Export,
    VirtualMachineExportLink as Link, VirtualMachineExportLinks, VirtualMachineExportManifest,
    VirtualMachineExportPhase as Phase, VirtualMachineExportStatus as Status, VirtualMachineExportVolume,
    VirtualMachineExportVolumeFormat,
};

use super::backup;
use super::decide::{Observed, goes, phase};
use super::pod::served;
use super::source::reason;

/// Time that a pod may take to start before people are told what it waits for.
const SLOW: Duration = Duration::from_secs(20);

/// Whether all containers of the export's pod are ready.
fn is_ready(pod: &Pod, export: &Export) -> bool {
    let Some(status) = &pod.status else { return false };
    let containers = status.container_statuses.as_deref().unwrap_or_default();
    phase(pod) == "Running"
        && !goes(pod, export)
        && !containers.is_empty()
        && containers.iter().all(|container| container.ready)
}

/// How long a pod that waits is there.
fn age(seen: &Observed<'_>) -> Option<Duration> {
    let pod = seen.pod.filter(|pod| phase(pod) == "Pending")?;
    let made = pod.metadata.creation_timestamp.as_ref()?.0;
    Duration::try_from(seen.now.duration_since(made)).ok()
}

/// When people are to be told that a pod does not start.
pub(super) fn is_slow_soon(seen: &Observed<'_>) -> Option<Duration> {
    SLOW.checked_sub(age(seen)?).map(|left| left + Duration::from_secs(1))
}

/// What a pod waits for, once it has waited long.
fn why_pending(seen: &Observed<'_>, pod: &Pod) -> String {
    let status = pod.status.clone().unwrap_or_default();
    let unscheduled = |one: &&PodCondition| one.type_ == "PodScheduled" && one.status == "False";
    let conditions = status.conditions.unwrap_or_default();
    if let Some(message) = conditions.iter().find(unscheduled).and_then(|one| one.message.clone()) {
        return message;
    }
    if age(seen).is_none_or(|age| age < SLOW) {
        return String::new();
    }
    let mut containers = status.container_statuses.into_iter().flatten();
    let waiting = containers.find_map(|container| container.state?.waiting);
    let word = waiting.as_ref().and_then(|waiting| waiting.reason.clone()).unwrap_or_default();
    let message = waiting.and_then(|waiting| waiting.message);
    let token = seen.export.spec.token_secret_ref.as_deref();
    let hint = token.map(|name| format!("; it needs Secret {name} with a token")).unwrap_or_default();
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    message
        .unwrap_or_else(|| format!("exporter pod {name} does not start ({word}){hint}; its events say why"))
}

/// The status; `token` is the name of the token's Secret.
pub(super) fn status(seen: &Observed<'_>, token: Option<String>) -> Status {
    let Observed { export, source, now, .. } = *seen;
    let name = export.metadata.name.as_deref().unwrap_or_default();
    let mut status = Status {
        token_secret_ref: token,
        service_name: Some(service_name(name)),
        ttl_expiration_time: expires(export).map(|end| Some(Time(end))),
        links: Some(VirtualMachineExportLinks::default()),
        virtual_machine_name: source.machine.clone(),
        ..export.status.clone()
    };
    let (word, ready, why, message) = match seen.pod {
        Some(pod) if is_ready(pod, export) => {
            let links =
                VirtualMachineExportLinks { internal: internal(seen, pod), external: external(seen, pod) };
            status.links = Some(links);
            let why = if source.backup.is_some() { reason::BACKUP_READY } else { reason::POD_READY };
            (Phase::Ready, true, why, String::new())
        }
        None => (Phase::Pending, false, source.waits.0, source.waits.1.clone()),
        Some(_) if !source.is_available() => (Phase::Pending, false, source.waits.0, source.waits.1.clone()),
        Some(pod) => match phase(pod) {
            "Succeeded" => (Phase::Terminated, false, reason::POD_COMPLETED, String::new()),
            "Pending" => (Phase::Pending, false, reason::POD_PENDING, why_pending(seen, pod)),
            _ => (Phase::Pending, false, reason::UNKNOWN, String::new()),
        },
    };
    status.phase = Some(if source.skipped { Phase::Skipped } else { word });
    set_condition(&mut status.conditions, Condition::Ready, ready, why, &message, now);
    if let Some((kind, met, why, message)) = &source.condition {
        set_condition(&mut status.conditions, kind.clone(), *met, why, message, now);
    }
    status
}

fn internal(seen: &Observed<'_>, pod: &Pod) -> Option<Link> {
    let namespace = seen.export.metadata.namespace.as_deref().unwrap_or_default();
    let host = host(seen.export.metadata.name.as_deref().unwrap_or_default(), namespace);
    Some(link(seen, pod, &host, "internal", seen.bundle?.trim()))
}

fn external(seen: &Observed<'_>, pod: &Pod) -> Option<Link> {
    let external = seen.external?;
    let metadata = &seen.export.metadata;
    let [namespace, name] =
        [&metadata.namespace, &metadata.name].map(|text| text.as_deref().unwrap_or_default());
    let base = format!("{}{}", external.host, proxy_path(namespace, name));
    Some(link(seen, pod, &base, "external", &external.certificate))
}

fn link(seen: &Observed<'_>, pod: &Pod, base: &str, kind: &str, cert: &str) -> Link {
    let own = seen.export.metadata.name.as_deref().unwrap_or_default();
    // Claims that were made of a snapshot are called as those of the machine.
    let is_snapshot = seen.export.spec.source.kind == "VirtualMachineSnapshot";
    let called = |claim: &str| {
        let stripped = claim.strip_prefix(own).and_then(|rest| rest.strip_prefix('-'));
        stripped.filter(|_| is_snapshot).unwrap_or(claim).to_owned()
    };
    let manifests = [ExportManifestType::All, ExportManifestType::Authheadersecret];
    Link {
        cert: cert.to_owned(),
        volumes: served(pod)
            .into_iter()
            .map(|volume| VirtualMachineExportVolume {
                name: called(&volume.claim),
                formats: volume
                    .paths
                    .into_iter()
                    .map(|(format, path)| VirtualMachineExportVolumeFormat {
                        format,
                        url: format!("https://{base}{}", path.trim_end_matches('/')),
                    })
                    .collect(),
            })
            .collect(),
        manifests: manifests
            .into_iter()
            .zip(MANIFEST_PATHS)
            .map(|(r#type, path)| VirtualMachineExportManifest {
                r#type,
                url: format!("https://{base}/{kind}{path}"),
            })
            .collect(),
        backups: backup::links(pod, base),
    }
}
