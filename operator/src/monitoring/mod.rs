//! Monitoring by the Prometheus operator: which metrics of the daemons Prometheus collects, and its alerts.
//!
//! # Theory of operation
//!
//! Each pass asks two questions, and remembers nothing between two of them.
//!
//! ```text
//!   are the kinds served? ──yes──> is the account there? ──yes──> ServiceMonitor, PrometheusRule, and the rights and
//!          │ no                           │ no                    the way to the daemons' ports for that account
//!          └──────── nothing is made, what was made is deleted ───┘
//! ```
//!
//! virt-operator finds the kinds by discovery. "The account" is Prometheus' ServiceAccount. virt-operator looks for it in the
//! namespace that the KubeVirt object names, or else in the usual ones, as upstream does. While there is no such account,
//! nothing could collect the metrics, and any user who may make a ServiceAccount of that name would get the rights that are
//! bound to it: so nothing is made. When a kind comes later, its definition's watch starts a pass. When the account comes
//! later, the next pass by time finds it, within minutes ([`crate::reconcile`]).

mod rules;

use k8s_openapi::api::core::v1::ServiceAccount;
use kube::Api;
use podvirt_api::v1::KubeVirtSpec;
use serde_json::{Value, json};

use crate::cluster::{Cluster, ClusterError};
use crate::customize::mark;
use crate::manifests::{Kind, Object, RULE, SERVICE_MONITOR, kind_of};
use crate::target::Target;

/// Name of the ServiceMonitor and of the PrometheusRule; upstream's.
pub const NAME: &str = "prometheus-kubevirt-rules";
/// Name of the role of Prometheus' account, and of its binding; upstream's.
const ROLE: &str = "kubevirt-monitoring";
/// Label by which the Service selects the daemons' pods, and the ServiceMonitor selects the Service; upstream's.
const COLLECTED: &str = "prometheus.kubevirt.io";
/// Namespaces in which Prometheus usually is; the first with its account is taken. Upstream's.
const NAMESPACES: [&str; 2] = ["openshift-monitoring", "monitoring"];
/// Prometheus' account where none is named; upstream's.
const ACCOUNT: &str = "prometheus-k8s";

/// Where Prometheus is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its account.
    pub account: String,
    /// Namespace of the account.
    pub namespace: String,
    /// Namespace of the ServiceMonitor.
    pub monitors: String,
}

fn given(text: Option<&String>) -> Option<&str> {
    text.map(String::as_str).filter(|text| !text.is_empty())
}

impl Place {
    /// The places where Prometheus may be, in the order in which they are tried.
    fn candidates(spec: &KubeVirtSpec) -> Vec<Place> {
        let account = given(spec.monitor_account.as_ref()).unwrap_or(ACCOUNT);
        let monitors = given(spec.service_monitor_namespace.as_ref());
        let namespaces = match given(spec.monitor_namespace.as_ref()) {
            Some(namespace) => vec![namespace],
            None => NAMESPACES.to_vec(),
        };
        let place = |namespace: &str| Place {
            account: account.to_owned(),
            namespace: namespace.to_owned(),
            monitors: monitors.unwrap_or(namespace).to_owned(),
        };
        namespaces.into_iter().map(place).collect()
    }

    /// Where Prometheus usually is.
    pub(crate) fn usual() -> Place {
        let namespace = NAMESPACES[1].to_owned();
        Place { account: ACCOUNT.to_owned(), monitors: namespace.clone(), namespace }
    }

    /// Where Prometheus is, if its account is found.
    ///
    /// # Errors
    ///
    /// The API server refuses.
    async fn find(cluster: &Cluster, spec: &KubeVirtSpec) -> Result<Option<Place>, ClusterError> {
        for place in Place::candidates(spec) {
            let accounts: Api<ServiceAccount> = Api::namespaced(cluster.client().clone(), &place.namespace);
            let found = accounts.get_opt(&place.account).await;
            let title = || format!("ServiceAccount {} in namespace {}", place.account, place.namespace);
            if found.map_err(|error| ClusterError::new("looking for", title(), error))?.is_some() {
                return Ok(Some(place));
            }
        }
        Ok(None)
    }
}

/// The objects of monitoring that shall be there now; `served` are the kinds of the Prometheus operator that the cluster has.
///
/// # Errors
///
/// The API server refuses.
pub async fn wanted(
    cluster: &Cluster,
    served: &[Kind],
    spec: &KubeVirtSpec,
    target: &Target,
) -> Result<Vec<Object>, ClusterError> {
    if served.is_empty() {
        return Ok(Vec::new());
    }
    let Some(place) = Place::find(cluster, spec).await? else {
        tracing::debug!(looked_for = ?Place::candidates(spec), "no account of Prometheus: nothing is monitored");
        return Ok(Vec::new());
    };
    let mut objects = objects(&place, cluster.namespace());
    objects.retain(|object| match object.kind {
        RULE => served.contains(&RULE),
        _ => served.contains(&SERVICE_MONITOR),
    });
    for object in &mut objects {
        mark(&mut object.value["metadata"], spec, target);
    }
    Ok(objects)
}

/// All that is made for a Prometheus at `place`, for podvirt in `namespace`.
pub(crate) fn objects(place: &Place, namespace: &str) -> Vec<Object> {
    let documents = [
        role(namespace),
        binding(place, namespace),
        way(place, namespace),
        monitor(place, namespace),
        rule(namespace),
    ];
    let object = |value: Value| kind_of(&value).map(|kind| Object { kind, value });
    documents.into_iter().filter_map(object).collect()
}

/// Prometheus finds pods by the Service's endpoints.
fn role(namespace: &str) -> Value {
    let rule = |group: &str, resources: &[&str]| json!({"apiGroups": [group], "resources": resources, "verbs": ["get", "list", "watch"]});
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": {"name": ROLE, "namespace": namespace, "labels": {"kubevirt.io": ""}},
        "rules": [
            rule("", &["services", "endpoints", "pods"]),
            rule("discovery.k8s.io", &["endpointslices"]),
        ],
    })
}

fn binding(place: &Place, namespace: &str) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"name": ROLE, "namespace": namespace, "labels": {"kubevirt.io": ""}},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": ROLE},
        "subjects": [{"kind": "ServiceAccount", "name": place.account, "namespace": place.namespace}],
    })
}

/// A NetworkPolicy that lets Prometheus' namespace reach the ports `metrics`: podvirt's other policies let nothing reach them.
fn way(place: &Place, namespace: &str) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": "podvirt-monitoring", "namespace": namespace, "labels": {"kubevirt.io": ""}},
        "spec": {
            "podSelector": {"matchLabels": {COLLECTED: "true"}},
            "policyTypes": ["Ingress"],
            "ingress": [{
                "from": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": place.namespace}}}],
                "ports": [{"protocol": "TCP", "port": "metrics"}],
            }],
        },
    })
}

fn monitor(place: &Place, namespace: &str) -> Value {
    json!({
        "apiVersion": SERVICE_MONITOR.api_version(), "kind": SERVICE_MONITOR.kind,
        "metadata": {
            "name": NAME, "namespace": place.monitors,
            "labels": {COLLECTED: "true", "k8s-app": "kubevirt", "openshift.io/cluster-monitoring": ""},
        },
        "spec": {
            "selector": {"matchLabels": {COLLECTED: "true"}},
            "namespaceSelector": {"matchNames": [namespace]},
            // A machine's metrics have a label `namespace` of their own. Prometheus keeps it, not the daemon's namespace.
            "endpoints": [{"port": "metrics", "scheme": "http", "honorLabels": true}],
        },
    })
}

fn rule(namespace: &str) -> Value {
    json!({
        "apiVersion": RULE.api_version(), "kind": RULE.kind,
        "metadata": {
            "name": NAME, "namespace": namespace, "labels": {COLLECTED: "true", "k8s-app": "kubevirt"},
        },
        "spec": {"groups": rules::groups(namespace)},
    })
}

#[cfg(test)]
mod tests;
