//! Where a machine may run, changed while it runs.
//!
//! Affinity, node selector and tolerations say where a pod may be put, and a machine gets another pod when it moves. What the
//! template says of them is written into the running instance: the next migration goes by it, and nothing happens before. The
//! controller of instances makes a pod anew that no node has taken yet.
//! Nothing is written while the instance moves, since a pod is being put somewhere by what stands there, nor while another
//! change of the template waits for the next start.

use podvirt_api::migration::is_under_way;
use podvirt_api::v1::{VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceSpec};
use serde::Serialize;
use serde_json::{Value, json};

use super::instance::is_outdated;
use super::is_final;

/// Takes out of `spec` what is written into the running instance.
pub fn leave_out(spec: &mut VirtualMachineInstanceSpec) {
    spec.affinity = None;
    spec.node_selector.clear();
    spec.tolerations.clear();
}

/// The operations of a JSON patch that bring the instance to what the template says; none where it is there.
pub fn of_instance(vm: &VirtualMachine, vmi: &VirtualMachineInstance) -> Option<Vec<Value>> {
    let ends = is_final(vmi) || vmi.metadata.deletion_timestamp.is_some();
    let moves = vmi.status.migration_state.as_ref().is_some_and(is_under_way);
    if ends || moves || is_outdated(vm, vmi) {
        return None;
    }
    let wanted = vm.spec.template.as_ref()?.spec.as_ref()?;
    let there = &vmi.spec;
    let operations: Vec<Value> = [
        operation("affinity", &wanted.affinity, &there.affinity),
        operation("nodeSelector", &wanted.node_selector, &there.node_selector),
        operation("tolerations", &wanted.tolerations, &there.tolerations),
    ]
    .into_iter()
    .flatten()
    .collect();
    (!operations.is_empty()).then_some(operations)
}

/// The operation for one field. An empty value says what no value says.
fn operation(field: &str, wanted: &impl Serialize, there: &impl Serialize) -> Option<Value> {
    let value = |of: Result<Value, _>| of.unwrap_or(Value::Null);
    let (wanted, there) = (value(serde_json::to_value(wanted)), value(serde_json::to_value(there)));
    let is_empty = |value: &Value| match value {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    };
    if wanted == there || is_empty(&wanted) && is_empty(&there) {
        return None;
    }
    let path = format!("/spec/{field}");
    Some(if is_empty(&wanted) {
        json!({"op": "remove", "path": path})
    } else {
        json!({"op": "add", "path": path, "value": wanted})
    })
}
