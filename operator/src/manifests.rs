//! The objects that make up podvirt, as `deploy/` has them, and the kinds they are of.

use std::sync::OnceLock;

use serde_json::Value;

/// A kind of which virt-operator makes objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// Group of the API; empty: the core group.
    pub group: &'static str,
    /// Version of the group.
    pub version: &'static str,
    /// The kind's name.
    pub kind: &'static str,
    /// Name of the resource.
    pub plural: &'static str,
    /// Whether its objects are in a namespace.
    pub namespaced: bool,
}

impl Kind {
    /// `apiVersion` of its objects.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_owned()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    const fn new(
        group: &'static str,
        version: &'static str,
        kind: &'static str,
        plural: &'static str,
        namespaced: bool,
    ) -> Self {
        Self { group, version, kind, plural, namespaced }
    }
}

/// Group of the Prometheus operator.
pub const MONITORING_GROUP: &str = "monitoring.coreos.com";

/// `CustomResourceDefinition`.
pub const DEFINITION: Kind =
    Kind::new("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", false);
/// `Deployment`.
pub const DEPLOYMENT: Kind = Kind::new("apps", "v1", "Deployment", "deployments", true);
/// `DaemonSet`.
pub const DAEMON_SET: Kind = Kind::new("apps", "v1", "DaemonSet", "daemonsets", true);
/// `ClusterRole`.
pub const CLUSTER_ROLE: Kind =
    Kind::new("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles", false);
/// `ClusterRoleBinding`.
pub const CLUSTER_ROLE_BINDING: Kind =
    Kind::new("rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", "clusterrolebindings", false);
/// `ServiceMonitor` of the Prometheus operator.
pub const SERVICE_MONITOR: Kind =
    Kind::new(MONITORING_GROUP, "v1", "ServiceMonitor", "servicemonitors", true);
/// `PrometheusRule` of the Prometheus operator.
pub const RULE: Kind = Kind::new(MONITORING_GROUP, "v1", "PrometheusRule", "prometheusrules", true);
/// `Role`.
pub const ROLE: Kind = Kind::new("rbac.authorization.k8s.io", "v1", "Role", "roles", true);
/// `RoleBinding`.
pub const ROLE_BINDING: Kind =
    Kind::new("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings", true);

/// The kinds of all objects, in the order in which they are applied. They are deleted in the reverse order.
pub const KINDS: &[Kind] = &[
    DEFINITION,
    Kind::new("", "v1", "ServiceAccount", "serviceaccounts", true),
    CLUSTER_ROLE,
    CLUSTER_ROLE_BINDING,
    ROLE,
    ROLE_BINDING,
    Kind::new(
        "admissionregistration.k8s.io",
        "v1",
        "ValidatingAdmissionPolicy",
        "validatingadmissionpolicies",
        false,
    ),
    Kind::new(
        "admissionregistration.k8s.io",
        "v1",
        "ValidatingAdmissionPolicyBinding",
        "validatingadmissionpolicybindings",
        false,
    ),
    Kind::new("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies", true),
    Kind::new("", "v1", "Service", "services", true),
    Kind::new("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", true),
    DEPLOYMENT,
    DAEMON_SET,
];

/// Kinds of which objects are made where the cluster has them ([`crate::monitoring`]).
pub const OPTIONAL: &[Kind] = &[SERVICE_MONITOR, RULE];

/// The kind of a document, if virt-operator makes objects of it.
pub fn kind_of(object: &Value) -> Option<Kind> {
    let (version, kind) = (object["apiVersion"].as_str()?, object["kind"].as_str()?);
    KINDS.iter().chain(OPTIONAL).find(|known| known.kind == kind && known.api_version() == version).copied()
}

/// Part of the installation that is replaced at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wave {
    /// Definitions of kinds, accounts, rights, Services.
    Common,
    /// virt-api.
    Api,
    /// virt-controller and virt-exportproxy.
    Controller,
    /// virt-handler.
    Handler,
}

/// An object of podvirt, as it is to be.
#[derive(Clone, Debug, PartialEq)]
pub struct Object {
    /// Its kind.
    pub kind: Kind,
    /// The document.
    pub value: Value,
}

impl Object {
    /// Its name.
    pub fn name(&self) -> &str {
        self.value["metadata"]["name"].as_str().unwrap_or_default()
    }

    /// Its namespace; `None` for kinds of the whole cluster.
    pub fn namespace(&self) -> Option<&str> {
        self.value["metadata"]["namespace"].as_str()
    }

    /// The wave it is applied in.
    pub fn wave(&self) -> Wave {
        match (self.kind.kind, self.name()) {
            ("Deployment", "virt-api") => Wave::Api,
            ("Deployment", _) => Wave::Controller,
            ("DaemonSet", _) => Wave::Handler,
            _ => Wave::Common,
        }
    }

    /// How people know it: `Deployment virt-api`.
    pub fn title(&self) -> String {
        format!("{} {}", self.kind.kind, self.name())
    }

    /// Whether it is a daemon: its pods have to be new before the next wave.
    pub fn is_daemon(&self) -> bool {
        self.kind == DEPLOYMENT || self.kind == DAEMON_SET
    }
}

/// A manifest of the program that cannot be used; a test excludes it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ManifestError {
    /// The text is no YAML.
    #[error("a manifest of the program is no YAML: {0}")]
    Yaml(String),
    /// The kind is not in [`KINDS`].
    #[error("a manifest of the program has the kind {0}, which virt-operator does not make")]
    Kind(String),
}

/// The documents of `deploy/base` that virt-operator applies. The namespace and the priority class have to be there
/// before virt-operator itself is, so they are in its own manifest ([`crate::rights`]).
const BASE: &[&str] = &[
    include_str!("../../deploy/base/metrics.yaml"),
    include_str!("../../deploy/base/network-policies.yaml"),
    include_str!("../../deploy/base/virt-api.yaml"),
    include_str!("../../deploy/base/virt-controller.yaml"),
    include_str!("../../deploy/base/virt-exportproxy.yaml"),
    include_str!("../../deploy/base/virt-handler.yaml"),
];

/// The definitions of podvirt's kinds, but for that of the KubeVirt object, which has to be there before.
const DEFINITIONS: &[&str] = &[
    include_str!("../../deploy/crds/migrationpolicies.yaml"),
    include_str!("../../deploy/crds/virtualmachinebackups.yaml"),
    include_str!("../../deploy/crds/virtualmachinebackuptrackers.yaml"),
    include_str!("../../deploy/crds/virtualmachineclones.yaml"),
    include_str!("../../deploy/crds/virtualmachineclusterinstancetypes.yaml"),
    include_str!("../../deploy/crds/virtualmachineclusterpreferences.yaml"),
    include_str!("../../deploy/crds/virtualmachineexports.yaml"),
    include_str!("../../deploy/crds/virtualmachineinstancemigrations.yaml"),
    include_str!("../../deploy/crds/virtualmachineinstancepresets.yaml"),
    include_str!("../../deploy/crds/virtualmachineinstancereplicasets.yaml"),
    include_str!("../../deploy/crds/virtualmachineinstances.yaml"),
    include_str!("../../deploy/crds/virtualmachineinstancetypes.yaml"),
    include_str!("../../deploy/crds/virtualmachinepools.yaml"),
    include_str!("../../deploy/crds/virtualmachinepreferences.yaml"),
    include_str!("../../deploy/crds/virtualmachinerestores.yaml"),
    include_str!("../../deploy/crds/virtualmachines.yaml"),
    include_str!("../../deploy/crds/virtualmachinesnapshotcontents.yaml"),
    include_str!("../../deploy/crds/virtualmachinesnapshots.yaml"),
];

/// Reads YAML documents that are divided by `---`.
///
/// # Errors
///
/// One of them is no YAML.
pub fn documents(text: &str) -> Result<Vec<Value>, ManifestError> {
    text.split("\n---\n")
        .map(|document| serde_saphyr::from_str(document).map_err(|e| ManifestError::Yaml(e.to_string())))
        .collect()
}

/// Every object of podvirt as `deploy/` has it, in the order of [`KINDS`].
///
/// # Errors
///
/// A manifest that the program was built with cannot be used.
pub fn all() -> Result<Vec<Object>, ManifestError> {
    stored().map(<[Object]>::to_vec)
}

/// The objects of [`all`], which are read once.
///
/// # Errors
///
/// A manifest that the program was built with cannot be used.
pub(crate) fn stored() -> Result<&'static [Object], ManifestError> {
    static READ: OnceLock<Result<Vec<Object>, ManifestError>> = OnceLock::new();
    READ.get_or_init(read).as_deref().map_err(Clone::clone)
}

fn read() -> Result<Vec<Object>, ManifestError> {
    let mut objects = Vec::new();
    for text in BASE.iter().chain(DEFINITIONS) {
        for value in documents(text)? {
            let Some(kind) = kind_of(&value) else {
                return Err(ManifestError::Kind(value["kind"].as_str().unwrap_or_default().to_owned()));
            };
            objects.push(Object { kind, value });
        }
    }
    objects.sort_by_key(|object| KINDS.iter().position(|kind| *kind == object.kind));
    Ok(objects)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_deploy_has_is_there() {
        let objects = all().unwrap();
        let names = |kind: Kind| -> Vec<&str> {
            objects.iter().filter(|o| o.kind == kind).map(Object::name).collect()
        };
        assert_eq!(names(DEPLOYMENT), ["virt-api", "virt-controller", "virt-exportproxy"]);
        assert_eq!(names(DAEMON_SET), ["virt-handler"]);
        let definitions = std::fs::read_dir("../deploy/crds").unwrap().count();
        assert_eq!(names(DEFINITION).len() + 2, definitions, "but for kubevirts.yaml and kustomization.yaml");
        let list = std::fs::read_to_string("../deploy/base/kustomization.yaml").unwrap();
        let listed = list.lines().filter(|line| line.starts_with("- ") && line.ends_with(".yaml")).count();
        assert_eq!(BASE.len() + 2, listed, "but for namespace.yaml and priority.yaml");
    }

    #[test]
    fn what_others_need_goes_first() {
        let objects = all().unwrap();
        let first = |kind: &str| objects.iter().position(|o| o.kind.kind == kind).unwrap();
        assert!(first("CustomResourceDefinition") < first("ServiceAccount"));
        assert!(first("ClusterRole") < first("ClusterRoleBinding"));
        assert!(first("ServiceAccount") < first("Deployment"));
        let waves: Vec<Wave> = objects.iter().filter(|o| o.is_daemon()).map(Object::wave).collect();
        assert_eq!(waves, [Wave::Api, Wave::Controller, Wave::Controller, Wave::Handler]);
    }
}
