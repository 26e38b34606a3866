//! The DataVolume that a template makes: a pure function.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::api::{DynamicObject, TypeMeta};
use podvirt_api::cdi::{ALLOW_CLAIM_ADOPTION, DataVolume};
use podvirt_api::names::label;
use podvirt_api::v1::{DataVolumeTemplateSpec, VirtualMachine};
use serde_json::{Value, json};

/// The DataVolume of `template`, the machine's own: with the template's labels and annotations, the right to take over a claim
/// of its name, and the machine's priority class where CDI's specification names none.
pub fn data_volume(vm: &VirtualMachine, template: &DataVolumeTemplateSpec) -> DynamicObject {
    let given = template.metadata.clone().unwrap_or_default();
    let mut metadata = ObjectMeta {
        name: given.name,
        namespace: vm.metadata.namespace.clone(),
        labels: given.labels,
        annotations: given.annotations,
        owner_references: vm.controller_owner_ref(&()).map(|owner| vec![owner]),
        ..ObjectMeta::default()
    };
    let uid = vm.metadata.uid.clone().unwrap_or_default();
    metadata.labels.get_or_insert_default().insert(label::CREATED_BY.into(), uid);
    metadata.annotations.get_or_insert_default().insert(ALLOW_CLAIM_ADOPTION.into(), "true".into());
    let mut spec = template.spec.clone();
    let priority =
        vm.spec.template.as_ref().and_then(|template| template.spec.as_ref()?.priority_class_name.clone());
    if let (Some(spec), Some(priority)) = (spec.as_object_mut(), priority.filter(|name| !name.is_empty())) {
        let own = spec.entry("priorityClassName").or_insert(Value::Null);
        if own.is_null() || own == "" {
            *own = priority.into();
        }
    }
    DynamicObject { types: Some(TypeMeta::resource::<DataVolume>()), metadata, data: json!({ "spec": spec }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_volume_is_the_machines_and_keeps_what_the_template_says() {
        let vm: VirtualMachine = serde_json::from_value(json!({
            "metadata": {"name": "vm", "namespace": "ns", "uid": "u1"},
            "spec": {
                "dataVolumeTemplates": [
                    {"metadata": {"name": "root", "labels": {"a": "b"}, "annotations": {"c": "d"}},
                        "spec": {"source": {"blank": {}}, "storage": {"resources": {"requests": {"storage": "1Gi"}}}}},
                    {"metadata": {"name": "data"}, "spec": {"priorityClassName": "own"}},
                ],
                "template": {"spec": {"domain": {"devices": {}}, "priorityClassName": "high"}},
            },
        }))
        .unwrap();
        let made: Vec<Value> = vm
            .spec
            .data_volume_templates
            .iter()
            .map(|template| serde_json::to_value(data_volume(&vm, template)).unwrap())
            .collect();
        assert_eq!(
            made[0],
            json!({
                "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume",
                "metadata": {
                    "name": "root", "namespace": "ns", "labels": {"a": "b", "kubevirt.io/created-by": "u1"},
                    "annotations": {"c": "d", "cdi.kubevirt.io/allowClaimAdoption": "true"},
                    "ownerReferences": [{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "vm", "uid": "u1",
                        "controller": true}],
                },
                "spec": {"source": {"blank": {}}, "storage": {"resources": {"requests": {"storage": "1Gi"}}},
                    "priorityClassName": "high"},
            })
        );
        assert_eq!(made[1]["spec"]["priorityClassName"], "own");
    }
}
