//! The KubeVirt object: the cluster's configuration.

use serde_json::Value;

use crate::defaults::Choices;
use crate::duration;
use crate::fields::{On, Place, Resource, check, check_annotations};
use crate::problem::{Problems, Reason};
use crate::quantity::Quantity;
use crate::rotation;
use crate::v1;
use crate::validate::{is_dns_label, is_dns_subdomain, placement};
use crate::verbosity;

use super::ratchet::Change;
use super::{EMULATED_MACHINES, is_emulated};

const CONFIGURATION: &str = "spec.configuration";
/// What virt-operator carries out.
const BY_OPERATOR: &[&str] = &[
    "customizeComponents.flags",
    "customizeComponents.patches",
    "imagePullPolicy",
    "imageRegistry",
    "imageTag",
    "infra",
    "monitorAccount",
    "monitorNamespace",
    "productComponent",
    "productName",
    "productVersion",
    "serviceMonitorNamespace",
    "uninstallStrategy",
    "workloads",
];

/// Judges a new KubeVirt object, or a change of one, in a cluster where podvirt was installed without virt-operator:
/// what only that carries out is refused.
pub fn validate_plain(old: Option<&Value>, new: &Value) -> Problems {
    let mut problems = old.map_or_else(|| validate(new), |old| validate_update(old, new));
    let of = |object: &Value, path: &str| {
        let value = path.split('.').fold(&object["spec"], |value, name| &value[name]).clone();
        let empty = value.is_null()
            || value == ""
            || value.as_array().is_some_and(Vec::is_empty)
            || value.as_object().is_some_and(serde_json::Map::is_empty);
        (!empty).then_some(value)
    };
    if !new["metadata"]["deletionTimestamp"].is_null() {
        return problems;
    }
    for path in BY_OPERATOR {
        let wanted = of(new, path);
        if wanted.is_some() && wanted != old.and_then(|old| of(old, path)) {
            problems.add(
                Reason::FieldValueNotSupported,
                format!("spec.{path}"),
                "virt-operator carries this out, and podvirt was installed without it: nothing is allowed here",
            );
        }
    }
    problems
}

/// Judges a new KubeVirt object.
pub fn validate(object: &Value) -> Problems {
    judge(Change { old: &[], new: object })
}

/// Judges a change of a KubeVirt object. What is wrong with it already and stays as it is does not count.
pub fn validate_update(old: &Value, new: &Value) -> Problems {
    judge(Change { old: &[old], new })
}

fn judge(change: Change<'_>) -> Problems {
    let object = change.new;
    let mut problems = Problems::default();
    if !object["metadata"]["deletionTimestamp"].is_null() {
        return problems;
    }
    check(Resource::KubeVirt, Place::Cluster, object, &mut problems);
    check_annotations(
        On::KubeVirt,
        &object["metadata"]["annotations"],
        "metadata.annotations",
        &mut problems,
    );
    let mut problems = change.ratchet(problems);
    if !problems.is_empty() {
        return problems;
    }
    // These fields bear on each other: what was wrong before is told in the same words.
    let known = change.old.first().map(|old| configured(old)).unwrap_or_default();
    problems.0.extend(configured(object).0.into_iter().filter(|problem| !known.0.contains(problem)));
    problems
}

/// Judges the values of a configuration.
fn configured(object: &Value) -> Problems {
    let mut problems = Problems::default();
    let given = &object["spec"]["configuration"];
    let config = if given.is_null() {
        Ok(v1::KubeVirtConfiguration::default())
    } else {
        <v1::KubeVirtConfiguration as serde::Deserialize>::deserialize(given)
    };
    let interval = &object["spec"]["workloadUpdateStrategy"]["batchEvictionInterval"];
    if let Some(text) = interval.as_str().filter(|text| duration::parse(text).is_none()) {
        let allowed = "a duration such as '90s' or '1m30s' is allowed";
        problems.invalid("spec.workloadUpdateStrategy.batchEvictionInterval".to_owned(), text, allowed);
    }
    for (field, is_name, allowed) in [
        ("monitorNamespace", is_dns_label as fn(&str) -> bool, "the name of a namespace is allowed"),
        ("serviceMonitorNamespace", is_dns_label, "the name of a namespace is allowed"),
        ("monitorAccount", is_dns_subdomain, "the name of a ServiceAccount is allowed"),
    ] {
        let text = object["spec"][field].as_str().filter(|text| !text.is_empty() && !is_name(text));
        if let Some(text) = text {
            problems.invalid(format!("spec.{field}"), text, allowed);
        }
    }
    let lives = &object["spec"]["certificateRotateStrategy"]["selfSigned"];
    if !lives.is_null() {
        match <v1::KubeVirtSelfSignConfiguration as serde::Deserialize>::deserialize(lives) {
            Ok(lives) => rotation::check(&lives, &mut problems),
            Err(error) => problems.add(Reason::FieldValueTypeInvalid, rotation::PATH, error.to_string()),
        }
    }
    let nodes = &given["developerConfiguration"]["logVerbosity"]["nodeVerbosity"];
    let path = format!("{CONFIGURATION}.developerConfiguration.logVerbosity.nodeVerbosity");
    verbosity::check_nodes(nodes, &path, &mut problems);
    match config {
        Ok(config) => configuration(&config, &mut problems),
        // It is told of already, more exactly.
        Err(_) if !problems.is_empty() => {}
        Err(error) => problems.add(Reason::FieldValueTypeInvalid, CONFIGURATION, error.to_string()),
    }
    problems
}

fn configuration(config: &v1::KubeVirtConfiguration, problems: &mut Problems) {
    if let Some(ratio) = &config.additional_guest_memory_overhead_ratio {
        let plain = ratio.bytes().all(|b| b.is_ascii_digit() || b == b'.');
        if !plain || !ratio.parse::<Quantity>().is_ok_and(|q| q.milli_value() >= 1000) {
            problems.invalid(
                format!("{CONFIGURATION}.additionalGuestMemoryOverheadRatio"),
                ratio,
                "a decimal number of at least 1 is allowed",
            );
        }
    }
    if let Some(selector) = &config.auto_cpu_limit_namespace_label_selector {
        let path = format!("{CONFIGURATION}.autoCPULimitNamespaceLabelSelector");
        placement::labels(selector, &path, problems);
    }
    if let Some(request) = &config.cpu_request
        && !request.0.parse::<Quantity>().is_ok_and(|q| q.is_positive())
    {
        problems.invalid(
            format!("{CONFIGURATION}.cpuRequest"),
            &request.0,
            "an amount above zero is allowed",
        );
    }
    let amd64 = config.architecture_configuration.as_ref().and_then(|a| a.amd64.as_ref());
    let own = amd64.map(|a| &a.emulated_machines).filter(|m| !m.is_empty());
    let machine = Choices::of(config).machine_type;
    let field = if amd64.is_some_and(|a| a.machine_type.is_some()) {
        format!("{CONFIGURATION}.architectureConfiguration.amd64.machineType")
    } else {
        format!("{CONFIGURATION}.machineType")
    };
    let patterns = own.unwrap_or(&config.emulated_machines);
    if !is_emulated(&machine, EMULATED_MACHINES) {
        problems.invalid(field, &machine, "'q35' or a version of it such as 'pc-q35-10.0' is allowed");
    } else if !patterns.is_empty() && !is_emulated(&machine, patterns) {
        let allowed = format!("emulatedMachines allows: {}", patterns.join(", "));
        problems.invalid(field, &machine, &allowed);
    }
}
