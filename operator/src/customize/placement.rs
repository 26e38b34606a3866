//! Where a daemon's pods may run.

use k8s_openapi::api::core::v1::{PodSpec, Toleration};
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
        pod["affinity"] = joined(pod["affinity"].take(), &json!(affinity));
    }
    if !placement.tolerations.is_empty() {
        let own: Vec<Toleration> = typed.tolerations.unwrap_or_default();
        let more = placement.tolerations.iter().filter(|toleration| !own.contains(toleration)).cloned();
        let more: Vec<Toleration> = more.collect();
        pod["tolerations"] = json!([own, more].concat());
    }
}

/// The terms of both, as upstream joins them: every list of the one with what the other has behind it. Of the required terms on
/// nodes a node has to meet one, so those of `more` widen what `own` allows.
fn joined(own: Value, more: &Value) -> Value {
    match (own, more) {
        (Value::Object(mut own), Value::Object(more)) => {
            for (name, more) in more {
                let there = own.remove(name).unwrap_or_default();
                own.insert(name.clone(), joined(there, more));
            }
            Value::Object(own)
        }
        (Value::Array(own), Value::Array(more)) => Value::Array([own.as_slice(), more.as_slice()].concat()),
        (_, more) => more.clone(),
    }
}
