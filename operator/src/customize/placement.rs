//! Where a daemon's pods may run.

use k8s_openapi::api::core::v1::{Affinity, PodSpec, Toleration};
use podvirt_api::v1::NodePlacement;
use serde_json::{Value, json};

/// Nodes of this operating system only, as upstream.
const OS: (&str, &str) = ("kubernetes.io/os", "linux");

/// Adds a placement to a pod: what the pod asks for itself stays.
pub(super) fn put(pod: &mut Value, placement: Option<&NodePlacement>) {
    let mut typed: PodSpec = serde_json::from_value(pod.clone()).unwrap_or_default();
    let mut selector = placement.map(|placement| placement.node_selector.clone()).unwrap_or_default();
    selector.entry(OS.0.to_owned()).or_insert_with(|| OS.1.to_owned());
    selector.extend(typed.node_selector.take().unwrap_or_default());
    pod["nodeSelector"] = json!(selector);
    let Some(placement) = placement else { return };
    if let Some(affinity) = &placement.affinity {
        pod["affinity"] = json!(joined(typed.affinity.unwrap_or_default(), affinity.clone()));
    }
    if !placement.tolerations.is_empty() {
        let own: Vec<Toleration> = typed.tolerations.unwrap_or_default();
        let more = placement.tolerations.iter().filter(|toleration| !own.contains(toleration)).cloned();
        let more: Vec<Toleration> = more.collect();
        pod["tolerations"] = json!([own, more].concat());
    }
}

/// The terms of both. Of required terms on nodes one is enough, so those of `more` replace none of `own`.
fn joined(own: Affinity, more: Affinity) -> Affinity {
    fn lists<T>(own: Option<Vec<T>>, more: Option<Vec<T>>) -> Option<Vec<T>> {
        match (own, more) {
            (Some(mut own), Some(more)) => {
                own.extend(more);
                Some(own)
            }
            (own, more) => own.or(more),
        }
    }
    let node = match (own.node_affinity, more.node_affinity) {
        (Some(mut own), Some(more)) => {
            own.preferred_during_scheduling_ignored_during_execution = lists(
                own.preferred_during_scheduling_ignored_during_execution,
                more.preferred_during_scheduling_ignored_during_execution,
            );
            let required = &mut own.required_during_scheduling_ignored_during_execution;
            match (required.as_mut(), more.required_during_scheduling_ignored_during_execution) {
                (Some(own), Some(more)) => own.node_selector_terms.extend(more.node_selector_terms),
                (None, more) => *required = more,
                (Some(_), None) => {}
            }
            Some(own)
        }
        (own, more) => own.or(more),
    };
    let near = match (own.pod_affinity, more.pod_affinity) {
        (Some(mut own), Some(more)) => {
            own.preferred_during_scheduling_ignored_during_execution = lists(
                own.preferred_during_scheduling_ignored_during_execution,
                more.preferred_during_scheduling_ignored_during_execution,
            );
            own.required_during_scheduling_ignored_during_execution = lists(
                own.required_during_scheduling_ignored_during_execution,
                more.required_during_scheduling_ignored_during_execution,
            );
            Some(own)
        }
        (own, more) => own.or(more),
    };
    let apart = match (own.pod_anti_affinity, more.pod_anti_affinity) {
        (Some(mut own), Some(more)) => {
            own.preferred_during_scheduling_ignored_during_execution = lists(
                own.preferred_during_scheduling_ignored_during_execution,
                more.preferred_during_scheduling_ignored_during_execution,
            );
            own.required_during_scheduling_ignored_during_execution = lists(
                own.required_during_scheduling_ignored_during_execution,
                more.required_during_scheduling_ignored_during_execution,
            );
            Some(own)
        }
        (own, more) => own.or(more),
    };
    Affinity { node_affinity: node, pod_affinity: near, pod_anti_affinity: apart }
}
