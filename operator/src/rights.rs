//! virt-operator's own manifest, `deploy/kubevirt-operator.yaml`, with the rights that follow from what it installs.
//!
//! Kubernetes lets a daemon give only rights that the daemon has itself, so virt-operator has every right of the daemons.
//! Beyond these it may make objects of the kinds it installs, and change or delete those that it installs, each by its name.

use serde_json::{Value, json};

use crate::cluster::SYSTEM;
use crate::manifests::{
    CLUSTER_ROLE, KINDS, Kind, ManifestError, Object, ROLE, RULE, SERVICE_MONITOR, all, documents,
};
use crate::monitoring::{self, Place};
use crate::transition::successors;

/// virt-operator's account, and the name of its roles.
pub const ACCOUNT: &str = "kubevirt-operator";
const NAMESPACE: &str = podvirt_api::names::NAMESPACE;
const RBAC: &str = "rbac.authorization.k8s.io";
const HEAD: &str = "\
# Written by virt-operator's tests from deploy/operator and from what virt-operator installs. Do not edit.
#
# podvirt's operator: kubectl apply --server-side -f kubevirt-operator.yaml, then cr/kubevirt.yaml.
";

/// What has to be there before virt-operator is.
const BEFORE: &[&str] = &[
    include_str!("../../deploy/base/namespace.yaml"),
    include_str!("../../deploy/crds/kubevirts.yaml"),
    include_str!("../../deploy/base/priority.yaml"),
];
const OPERATOR: &str = include_str!("../../deploy/operator/virt-operator.yaml");

/// All that virt-operator may make.
fn installed() -> Result<Vec<Object>, ManifestError> {
    let objects = all()?;
    let successors = successors(&objects);
    Ok([objects, successors, monitoring::objects(&Place::usual(), NAMESPACE)].concat())
}

/// What it takes to keep the one object of a kind that the cluster may have; it is not watched.
fn monitors(kind: Kind) -> [Value; 2] {
    [
        rule(kind.group, &[kind.plural], &[], &["create", "list"]),
        rule(kind.group, &[kind.plural], &[monitoring::NAME], &["patch", "delete"]),
    ]
}

fn rule(group: &str, resources: &[&str], names: &[&str], verbs: &[&str]) -> Value {
    let mut rule = json!({"apiGroups": [group], "resources": resources, "verbs": verbs});
    if !names.is_empty() {
        rule["resourceNames"] = json!(names);
    }
    rule
}

/// What it takes to keep objects of a kind in `namespace`; `None`: of the whole cluster.
fn keeping(objects: &[Object], kind: Kind, namespace: Option<&str>) -> Vec<Value> {
    let mut names: Vec<&str> = objects
        .iter()
        .filter(|object| object.kind == kind && object.namespace() == namespace)
        .map(Object::name)
        .collect();
    names.sort_unstable();
    if names.is_empty() {
        return Vec::new();
    }
    vec![
        // A name cannot limit what is created, and lists are by label.
        rule(kind.group, &[kind.plural], &[], &["create", "list", "watch"]),
        rule(kind.group, &[kind.plural], &names, &["patch", "delete"]),
    ]
}

/// The rules of the roles that virt-operator gives to the daemons and to users.
fn given(objects: &[Object], kind: Kind, namespace: Option<&str>) -> Vec<Value> {
    let roles = objects.iter().filter(|object| object.kind == kind && object.namespace() == namespace);
    roles.flat_map(|role| role.value["rules"].as_array().into_iter().flatten()).cloned().collect()
}

/// Without rules that are there already, word for word.
fn distinct(rules: Vec<Value>) -> Vec<Value> {
    let mut kept: Vec<Value> = Vec::new();
    for rule in rules {
        if !kept.contains(&rule) {
            kept.push(rule);
        }
    }
    kept
}

fn in_cluster(objects: &[Object]) -> Vec<Value> {
    let mut rules = vec![
        // Whether machines are there, before podvirt is removed.
        rule(
            "kubevirt.io",
            &["virtualmachines", "virtualmachineinstances", "virtualmachineinstancereplicasets"],
            &[],
            &["list"],
        ),
        rule("pool.kubevirt.io", &["virtualmachinepools"], &[], &["list"]),
        // The webhook that judges the KubeVirt object. It belongs to this role, and goes with it.
        rule("admissionregistration.k8s.io", &["validatingwebhookconfigurations"], &[], &["create"]),
        rule(
            "admissionregistration.k8s.io",
            &["validatingwebhookconfigurations"],
            &[crate::webhook::NAME],
            &["patch"],
        ),
        rule(RBAC, &["clusterroles"], &[ACCOUNT], &["get"]),
        // Whether a node has been away for long, while its daemon is not ready.
        rule("", &["nodes"], &[], &["get"]),
        // Whether Prometheus is where the KubeVirt object says.
        rule("", &["serviceaccounts"], &[], &["get"]),
    ];
    // The KubeVirt object says in which namespace.
    rules.extend(monitors(SERVICE_MONITOR));
    for kind in KINDS.iter().filter(|kind| !kind.namespaced) {
        rules.extend(keeping(objects, *kind, None));
    }
    rules.extend(given(objects, CLUSTER_ROLE, None));
    distinct(rules)
}

fn in_namespace(objects: &[Object]) -> Vec<Value> {
    let mut rules = vec![
        rule("kubevirt.io", &["kubevirts"], &[], &["list", "watch"]),
        rule("kubevirt.io", &["kubevirts", "kubevirts/status"], &[podvirt_api::names::KUBEVIRT], &["patch"]),
        rule("coordination.k8s.io", &["leases"], &[], &["create"]),
        rule("coordination.k8s.io", &["leases"], &["virt-operator"], &["get", "update"]),
        rule("events.k8s.io", &["events"], &[], &["create", "patch"]),
        // Why a daemon does not come up.
        rule("", &["pods"], &[], &["list", "watch"]),
        // The CA, and its own certificate.
        rule(
            "",
            &["secrets"],
            &["kubevirt-ca", "kubevirt-operator-certs"],
            &["get", "list", "watch", "update"],
        ),
        rule("", &["configmaps"], &["kubevirt-ca"], &["get", "list", "watch", "update"]),
        rule("", &["secrets", "configmaps"], &[], &["create"]),
    ];
    for kind in KINDS.iter().filter(|kind| kind.namespaced) {
        rules.extend(keeping(objects, *kind, Some(NAMESPACE)));
    }
    rules.extend(monitors(RULE));
    rules.extend(given(objects, ROLE, Some(NAMESPACE)));
    distinct(rules)
}

/// The one object in [`SYSTEM`] is the binding to a role of Kubernetes' own.
fn in_system(objects: &[Object]) -> Vec<Value> {
    let mut rules: Vec<Value> = KINDS.iter().flat_map(|kind| keeping(objects, *kind, Some(SYSTEM))).collect();
    let bound = objects.iter().filter(|object| object.namespace() == Some(SYSTEM));
    let names: Vec<&str> = bound.filter_map(|object| object.value["roleRef"]["name"].as_str()).collect();
    rules.push(rule(RBAC, &["roles"], &names, &["bind"]));
    rules
}

fn role(kind: &str, namespace: Option<&str>, rules: &[Value]) -> [Value; 2] {
    let mut metadata = json!({"name": ACCOUNT, "labels": {"kubevirt.io": "virt-operator"}});
    if let Some(namespace) = namespace {
        metadata["namespace"] = json!(namespace);
    }
    [
        json!({"apiVersion": format!("{RBAC}/v1"), "kind": kind, "metadata": metadata, "rules": rules}),
        json!({
            "apiVersion": format!("{RBAC}/v1"), "kind": format!("{kind}Binding"), "metadata": metadata,
            "roleRef": {"apiGroup": RBAC, "kind": kind, "name": ACCOUNT},
            "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE}],
        }),
    ]
}

/// The text of `deploy/kubevirt-operator.yaml`.
///
/// # Errors
///
/// A manifest that the program was built with cannot be used.
pub fn manifest() -> Result<String, ManifestError> {
    let objects = installed()?;
    let mut text = HEAD.to_owned();
    let mut add = |value: &Value| {
        let document =
            serde_saphyr::to_string(value).map_err(|error| ManifestError::Yaml(error.to_string()))?;
        text.push_str("---\n");
        text.push_str(&document);
        Ok(())
    };
    for before in BEFORE {
        for document in documents(before)? {
            add(&document)?;
        }
    }
    for [role, binding] in [
        role("ClusterRole", None, &in_cluster(&objects)),
        role("Role", Some(NAMESPACE), &in_namespace(&objects)),
        role("Role", Some(SYSTEM), &in_system(&objects)),
    ] {
        add(&role)?;
        add(&binding)?;
    }
    for document in documents(OPERATOR)? {
        add(&document)?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transition::allow;

    /// `UPDATE_DOCS=1` writes it.
    #[test]
    fn the_manifest_in_deploy_is_what_follows_from_the_others() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/kubevirt-operator.yaml");
        let text = manifest().unwrap();
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(path, &text).unwrap();
        }
        let stored = std::fs::read_to_string(path).unwrap_or_default();
        assert!(stored == text, "deploy/kubevirt-operator.yaml is old: run this test with UPDATE_DOCS=1");
    }

    #[test]
    fn it_has_every_right_that_it_gives() {
        let objects = installed().unwrap();
        let (cluster, namespace) = (in_cluster(&objects), in_namespace(&objects));
        let mut checked = 0;
        for object in &objects {
            let own = match object.kind.kind {
                "ClusterRole" => &cluster,
                "Role" => &namespace,
                _ => continue,
            };
            for rule in object.value["rules"].as_array().unwrap() {
                assert!(allow(own, rule), "{}: {rule}", object.title());
                checked += 1;
            }
        }
        assert!(checked > 40, "{checked}");
    }

    #[test]
    fn no_rule_is_without_bounds() {
        let objects = installed().unwrap();
        for rule in [in_cluster(&objects), in_namespace(&objects), in_system(&objects)].concat() {
            for field in ["apiGroups", "resources", "verbs"] {
                assert!(!rule[field].as_array().unwrap().contains(&json!("*")), "{rule}");
            }
            let verbs = rule["verbs"].as_array().unwrap();
            assert!(!verbs.contains(&json!("escalate")), "{rule}");
        }
    }
}
