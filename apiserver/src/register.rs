//! Tells the API server about this server: webhook configurations and APIServices, with the CA that they need.
//!
//! Both replicas apply the same objects with the same field manager, again whenever the CA bundle changes and once a
//! minute: what a user deleted or changed comes back. The paths of the webhooks change with the CA ([`WebhookPaths`]). The objects belong to virt-api's ClusterRole; deleting
//! podvirt's manifests removes them with it, so no dead APIService stays behind and blocks namespaces from going.

use base64::Engine;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::rbac::v1::ClusterRole;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use k8s_openapi::{ClusterResourceScope, Metadata, Resource};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use podvirt_api::names::pod::HOTPLUG_PREFIX;
use podvirt_api::v1::{VirtualMachineBackup, VirtualMachinePool};
use podvirt_api::{export, instancetype, names, snapshot};
use podvirt_daemon::pki::{PathError, PathKey, WebhookPaths};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tracing::debug;

use crate::admission::evict::LAUNCHER_PREFIX;
use crate::admission::{Alone, HOOKS, Hook, Lookup, Task};
use crate::target::{GROUP, VERSIONS};

/// Name of the mutating webhooks' configuration.
pub const MUTATOR: &str = "virt-api-mutator";
/// Name of the validating webhooks' configuration.
pub const VALIDATOR: &str = "virt-api-validator";
/// Service in front of this server.
pub const SERVICE: &str = "virt-api";
/// ClusterRole that the objects belong to.
pub const CLUSTER_ROLE: &str = "kubevirt-apiserver";
/// Longest time the API server waits for a webhook, seconds.
const TIMEOUT_SECONDS: u32 = 10;

/// What the objects depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// Namespace of the Service.
    pub namespace: String,
    /// CA certificates as PEM.
    pub ca_bundle: String,
    /// Makes the paths of the webhooks.
    pub paths: PathKey,
    /// Identity of [`CLUSTER_ROLE`], when it exists.
    pub owner_uid: Option<String>,
    /// Whether virt-operator judges the KubeVirt object.
    pub operated: bool,
}

impl Registration {
    fn metadata(&self, name: &str) -> Value {
        let mut metadata = json!({
            "name": name,
            "labels": {"kubevirt.io": "virt-api", "app.kubernetes.io/managed-by": "virt-api"},
        });
        if let Some(uid) = &self.owner_uid {
            metadata["ownerReferences"] = json!([{
                "apiVersion": ClusterRole::API_VERSION, "kind": ClusterRole::KIND,
                "name": CLUSTER_ROLE, "uid": uid,
            }]);
        }
        metadata
    }

    fn ca(&self) -> String {
        base64::engine::general_purpose::STANDARD.encode(&self.ca_bundle)
    }

    fn webhook(&self, hook: &Hook) -> Value {
        let evicts = hook.task == Task::Lookup(Lookup::Evict);
        let mut webhook = json!({
            "name": hook.name,
            "admissionReviewVersions": ["v1"],
            "sideEffects": if evicts { "NoneOnDryRun" } else { "None" },
            // A cluster must be able to empty its nodes also while podvirt is down; budgets protect machines then.
            "failurePolicy": if evicts { "Ignore" } else { "Fail" },
            "matchPolicy": "Equivalent",
            "timeoutSeconds": TIMEOUT_SECONDS,
            "rules": hook.resources.iter().map(|resource| rule(hook, resource, evicts)).collect::<Vec<_>>(),
            "clientConfig": {
                "service": {"namespace": self.namespace, "name": SERVICE, "port": 443, "path": self.paths.path(hook.path)},
                "caBundle": self.ca(),
            },
        });
        if evicts {
            // Other pods are not our business.
            let starts = [LAUNCHER_PREFIX, HOTPLUG_PREFIX]
                .map(|prefix| format!("request.name.startsWith('{prefix}')"));
            webhook["matchConditions"] =
                json!([{"name": "launcher-pods", "expression": starts.join(" || ")}]);
        }
        if hook.task == Task::Alone(Alone::ValidateVmStatus) {
            // The controllers tell what is while no virt-api runs, too.
            let daemons = names::daemons(&self.namespace).map(|daemon| format!("'{daemon}'")).join(", ");
            webhook["matchConditions"] = json!([{
                "name": "not-podvirts-daemons",
                "expression": format!("!(request.userInfo.username in [{daemons}])"),
            }]);
        }
        if hook.mutates() {
            webhook["reinvocationPolicy"] = json!("Never");
        }
        webhook
    }

    /// `MutatingWebhookConfiguration` or, when not `mutating`, `ValidatingWebhookConfiguration`.
    pub fn webhooks(&self, mutating: bool) -> Value {
        let (kind, name) = if mutating {
            (MutatingWebhookConfiguration::KIND, MUTATOR)
        } else {
            (ValidatingWebhookConfiguration::KIND, VALIDATOR)
        };
        let left_out = |hook: &Hook| self.operated && hook.task == Task::Alone(Alone::ValidateKubeVirt);
        let webhooks: Vec<Value> = HOOKS
            .iter()
            .filter(|hook| hook.mutates() == mutating && !left_out(hook))
            .map(|hook| self.webhook(hook))
            .collect();
        json!({
            "apiVersion": MutatingWebhookConfiguration::API_VERSION, "kind": kind,
            "metadata": self.metadata(name), "webhooks": webhooks,
        })
    }

    /// `APIService` of a version of the aggregated API.
    pub fn api_service(&self, version: &str) -> Value {
        json!({
            "apiVersion": APIService::API_VERSION, "kind": APIService::KIND,
            "metadata": self.metadata(&format!("{version}.{GROUP}")),
            "spec": {
                "group": GROUP, "version": version,
                "groupPriorityMinimum": 1000, "versionPriority": 15,
                "service": {"namespace": self.namespace, "name": SERVICE, "port": 443},
                "caBundle": self.ca(),
            },
        })
    }
}

fn rule(hook: &Hook, resource: &str, evicts: bool) -> Value {
    let (resource, group) = match resource.split_once('.') {
        Some((resource, group)) => (resource, format!("{group}.kubevirt.io")),
        None if evicts => (resource, String::new()),
        None => (resource, "kubevirt.io".to_owned()),
    };
    // The version that the webhook reads. The API server converts an object of another version to it before it calls the
    // webhook (matchPolicy Equivalent): an object of kubevirt.io/v1alpha3 to v1.
    let version = match hook.task {
        Task::Alone(Alone::ValidateBackup | Alone::ValidateBackupTracker) => VirtualMachineBackup::VERSION,
        Task::Alone(Alone::ValidateInstancetype | Alone::ValidatePreference) => instancetype::VERSION,
        Task::Alone(Alone::ValidatePool) => VirtualMachinePool::VERSION,
        Task::Alone(Alone::ValidateExport) => export::VERSION,
        Task::Alone(
            Alone::ValidateSnapshotCreate
            | Alone::ValidateUnchanged
            | Alone::ValidateSnapshotContent
            | Alone::MutateClone
            | Alone::ValidateClone,
        )
        | Task::Lookup(Lookup::ValidateRestoreCreate) => snapshot::VERSION,
        _ => "v1",
    };
    json!({
        "apiGroups": [group],
        "apiVersions": [version],
        "operations": hook.operations,
        "resources": [resource],
        "scope": "*",
    })
}

async fn apply<K>(client: &Client, object: &Value) -> Result<(), kube::Error>
where
    K: Resource<Scope = ClusterResourceScope>
        + Metadata<Ty = k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta>
        + kube::Resource<DynamicType = (), Scope = ClusterResourceScope>
        + Clone
        + std::fmt::Debug
        + DeserializeOwned,
{
    let api: Api<K> = Api::all(client.clone());
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    api.patch(name, &PatchParams::apply("virt-api").force(), &Patch::Apply(object)).await?;
    debug!(kind = <K as Resource>::KIND, name, "applied");
    Ok(())
}

/// Applies all objects once.
///
/// # Errors
///
/// The API server refuses one, or there is no CA.
pub async fn register(
    client: &Client,
    namespace: &str,
    operated: bool,
    ca_bundle: &str,
    paths: &WebhookPaths,
) -> Result<(), PathError> {
    let key = paths.read().await?;
    let roles: Api<ClusterRole> = Api::all(client.clone());
    let owner_uid = roles.get_opt(CLUSTER_ROLE).await?.and_then(|role| role.metadata.uid);
    let registration = Registration {
        namespace: namespace.to_owned(),
        ca_bundle: ca_bundle.to_owned(),
        paths: key,
        owner_uid,
        operated,
    };
    apply::<MutatingWebhookConfiguration>(client, &registration.webhooks(true)).await?;
    apply::<ValidatingWebhookConfiguration>(client, &registration.webhooks(false)).await?;
    for version in VERSIONS {
        apply::<APIService>(client, &registration.api_service(version)).await?;
    }
    paths.forget_replaced();
    Ok(())
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use podvirt_daemon::pki::make_ca;

    use super::*;

    fn registration() -> Registration {
        Registration {
            namespace: "kubevirt".into(),
            ca_bundle: "pem".into(),
            paths: PathKey::new(&make_ca(Timestamp::now(), std::time::Duration::from_secs(3600)).unwrap()),
            owner_uid: Some("u-1".into()),
            operated: false,
        }
    }

    #[test]
    fn the_objects_are_what_kubernetes_types_hold() {
        let registration = registration();
        let mutating: MutatingWebhookConfiguration =
            serde_json::from_value(registration.webhooks(true)).unwrap();
        let hooks = mutating.webhooks.unwrap();
        assert_eq!(hooks.len(), 4);
        let validating: ValidatingWebhookConfiguration =
            serde_json::from_value(registration.webhooks(false)).unwrap();
        let validating = validating.webhooks.unwrap();
        assert_eq!(hooks.len() + validating.len(), HOOKS.len());
        for hook in validating {
            let evicts = hook.name.starts_with("virt-launcher-eviction");
            assert_eq!(hook.failure_policy.as_deref(), Some(if evicts { "Ignore" } else { "Fail" }));
            assert_eq!(hook.side_effects, if evicts { "NoneOnDryRun" } else { "None" });
            let of_status = hook.name.contains("status");
            assert_eq!(hook.match_conditions.is_some(), evicts || of_status);
            if let Some(conditions) = hook.match_conditions.as_ref().filter(|_| evicts) {
                let launchers_and_attachments =
                    "request.name.startsWith('virt-launcher-') || request.name.startsWith('hp-volume-')";
                assert_eq!(conditions[0].expression, launchers_and_attachments);
            }
            if let Some(conditions) = hook.match_conditions.filter(|_| of_status) {
                let daemons = ["apiserver", "controller", "handler"]
                    .map(|name| format!("'system:serviceaccount:kubevirt:kubevirt-{name}'"))
                    .join(", ");
                assert_eq!(conditions[0].expression, format!("!(request.userInfo.username in [{daemons}])"));
            }
            assert_eq!(hook.rules.unwrap()[0].api_groups.as_deref().unwrap()[0].is_empty(), evicts);
            assert_eq!(hook.timeout_seconds, Some(10));
            assert_eq!(hook.namespace_selector, None);
            assert_eq!(hook.client_config.ca_bundle.unwrap().0, b"pem");
            assert_eq!(hook.client_config.service.unwrap().name, "virt-api");
        }
        let all = registration.webhooks(false);
        let is_own =
            |hook: &&Value| hook["name"] == "virtualmachinepreference-validator.instancetype.kubevirt.io";
        let own = all["webhooks"].as_array().unwrap().iter().find(is_own).unwrap();
        let rule = json!({"apiGroups": ["instancetype.kubevirt.io"], "apiVersions": ["v1beta1"],
            "operations": ["CREATE", "UPDATE"], "resources": ["virtualmachinepreferences"], "scope": "*"});
        assert_eq!(own["rules"], json!([rule]));
        let hooks = registration.webhooks(false);
        let hooks = hooks["webhooks"].as_array().unwrap();
        let pool =
            hooks.iter().find(|hook| hook["name"] == "virtualmachinepool-validator.kubevirt.io").unwrap();
        let rule = &pool["rules"][0];
        assert_eq!(
            (&rule["apiGroups"], &rule["apiVersions"]),
            (&json!(["pool.kubevirt.io"]), &json!(["v1beta1"]))
        );
        let backup = hooks
            .iter()
            .find(|hook| hook["name"] == "virtualmachinebackup-validator.backup.kubevirt.io")
            .unwrap();
        let rule = json!({"apiGroups": ["backup.kubevirt.io"], "apiVersions": ["v1alpha1"],
            "operations": ["CREATE"], "resources": ["virtualmachinebackups"], "scope": "*"});
        assert_eq!(backup["rules"], json!([rule]));
        let service: APIService = serde_json::from_value(registration.api_service("v1")).unwrap();
        assert_eq!(service.metadata.name.as_deref(), Some("v1.subresources.kubevirt.io"));
        let spec = service.spec.unwrap();
        assert_eq!((spec.group_priority_minimum, spec.version_priority), (1000, 15));
        assert_eq!(service.metadata.owner_references.unwrap()[0].name, CLUSTER_ROLE);
    }

    #[test]
    fn webhooks_have_paths_that_no_pod_can_guess() {
        let (registration, other) = (registration(), self::registration());
        let path = |registration: &Registration, hook: &Hook| {
            registration.webhook(hook)["clientConfig"]["service"]["path"].as_str().unwrap().to_owned()
        };
        for hook in HOOKS {
            let own = path(&registration, hook);
            assert_eq!(own, registration.paths.path(hook.path));
            assert!(own.starts_with(&format!("{}/", hook.path)), "{own}");
            assert_ne!(own, path(&other, hook), "the path of another CA");
        }
    }

    #[test]
    fn the_kubevirt_object_is_judged_by_one_daemon() {
        let names = |operated: bool| -> Vec<String> {
            let hooks = Registration { operated, ..registration() }.webhooks(false);
            let hooks = hooks["webhooks"].as_array().unwrap().clone();
            hooks.iter().map(|hook| hook["name"].as_str().unwrap().to_owned()).collect()
        };
        let judged = "kubevirt-validator.kubevirt.io".to_owned();
        assert!(names(false).contains(&judged));
        assert!(!names(true).contains(&judged));
        assert_eq!(names(true).len() + 1, names(false).len());
    }

    #[test]
    fn no_owner_means_no_reference() {
        let orphan = Registration { owner_uid: None, ..registration() };
        assert_eq!(orphan.webhooks(true)["metadata"].get("ownerReferences"), None);
    }
}
