//! The tables against the model of upstream's API.

use std::collections::{BTreeMap, BTreeSet};

use super::super::{Kind, Node, Resource, Support, check};
use super::*;

type Types = BTreeMap<String, Value>;

fn types() -> Types {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/model/kubevirt-v1.8.json");
    let mut packages: BTreeMap<String, Types> =
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let mut types = packages.remove("core/v1").unwrap();
    types.extend(packages.remove("pool/v1beta1").unwrap());
    types
}

/// The type's fields in JSON and the types they are made of, those of inlined types among them.
fn members(types: &Types, name: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for field in types[name]["fields"].as_array().into_iter().flatten() {
        let go = field["type"].as_str().unwrap();
        let core = go.rsplit(['*', ']']).next().unwrap();
        // Of another group's file.
        let core = core.strip_prefix("virtv1.").unwrap_or(core).to_owned();
        match (field["inline"].as_bool(), core.as_str()) {
            (Some(true), "metav1.TypeMeta") => {
                found.extend([("apiVersion".into(), String::new()), ("kind".into(), String::new())]);
            }
            (Some(true), "v1.LocalObjectReference") => found.push(("name".into(), String::new())),
            (Some(true), "v1.PersistentVolumeClaimVolumeSource") => {
                found.extend([("claimName".into(), String::new()), ("readOnly".into(), String::new())]);
            }
            (Some(true), inlined) => found.extend(members(types, inlined)),
            _ => found.push((field["json"].as_str().unwrap().to_owned(), core)),
        }
    }
    found
}

/// Notes every field that the model has and the table has not, and the other way round.
fn compare(types: &Types, ty: &str, node: &Node, path: &str, wrong: &mut Vec<String>) {
    let mut known = BTreeSet::new();
    for (name, core) in members(types, ty) {
        let here = format!("{path}.{name}");
        known.insert(name.clone());
        let Some(child) = node.children.get(name.as_str()) else {
            wrong.push(format!("{here} is in no row"));
            continue;
        };
        let Some(field) = child.field else {
            wrong.push(format!("{here} has rows below it but none of its own"));
            continue;
        };
        let deeper = matches!(field.kind, Kind::Object | Kind::List)
            && !matches!(field.support, Support::Refused | Support::Kept);
        match (deeper, core.as_str()) {
            (false, _) | (true, "metav1.ObjectMeta") => {}
            (true, "v1.PersistentVolumeClaimVolumeSource") => {
                let fields: Vec<&str> = child.children.keys().copied().collect();
                assert_eq!(fields, ["claimName", "readOnly"]);
            }
            (true, "v1.LocalObjectReference") => {
                assert_eq!(child.children.keys().copied().collect::<Vec<_>>(), ["name"]);
            }
            (true, "k8sv1.PodDNSConfig") => {
                let fields: Vec<&str> = child.children.keys().copied().collect();
                assert_eq!(fields, ["nameservers", "options", "searches"]);
            }
            (true, core) if types.contains_key(core) => compare(types, core, child, &here, wrong),
            (true, core) => wrong.push(format!("{here} is a {core}, which the model does not know")),
        }
    }
    wrong.extend(
        node.children
            .keys()
            .filter(|k| !known.contains(**k))
            .map(|k| format!("{path}.{k} is not upstream's")),
    );
}

#[test]
fn every_field_of_upstream_is_carried_out_or_refused() {
    let types = types();
    let vmi = Node::build(VMI);
    let mut wrong = Vec::new();
    compare(&types, "VirtualMachine", &Node::of_vm(&vmi), "VM", &mut wrong);
    let set = Node::with(REPLICA_SET, "spec.template.spec", &vmi, "spec");
    compare(&types, "VirtualMachineInstanceReplicaSet", &set, "VMIRS", &mut wrong);
    let preset = Node::with(PRESET, "spec.domain", &vmi, "spec.domain");
    compare(&types, "VirtualMachineInstancePreset", &preset, "VMIPreset", &mut wrong);
    compare(&types, "VirtualMachinePool", &Node::build(POOL), "VMPool", &mut wrong);
    compare(&types, "KubeVirt", &Node::build(KUBEVIRT), "KubeVirt", &mut wrong);
    compare(&types, "VirtualMachineInstance", &vmi, "VMI", &mut wrong);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_virtual_machines_template_is_judged_by_the_rows_of_an_instance() {
    let given = json!({"spec": {"updateVolumesStrategy": "Elsewhere", "template": {"spec": {"domain": {"devices": {"clientPassthrough": {}}}}}}});
    let mut found = Problems::default();
    check(Resource::Vm, Place::Cluster, &given, &mut found);
    let fields: Vec<&str> = found.0.iter().map(|p| p.field.as_str()).collect();
    assert_eq!(fields, ["spec.template.spec.domain.devices.clientPassthrough", "spec.updateVolumesStrategy"]);
}

#[test]
fn the_kubevirt_object_that_upstream_ships_is_taken() {
    let given = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "KubeVirt", "metadata": {"name": "kubevirt", "namespace": "kubevirt"},
        "spec": {
            "certificateRotateStrategy": {},
            "configuration": {"developerConfiguration": {"featureGates": ["DataVolumes"], "useEmulation": true}},
            "customizeComponents": {}, "imagePullPolicy": "IfNotPresent", "workloadUpdateStrategy": {},
        },
    });
    let mut found = Problems::default();
    check(Resource::KubeVirt, Place::Cluster, &given, &mut found);
    assert_eq!(found, Problems::default());
}
