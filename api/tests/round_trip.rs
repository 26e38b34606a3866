//! A document that is read into `podvirt_api::v1` and written again says the same.
//!
//! Documents are made from the model of upstream's API itself, so that no field can be forgotten: complete ones
//! with every field, and random ones with some. Hand-written manifests in the manner of upstream's stand beside.

#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

mod maker;

use maker::Maker;
use podvirt_api::v1;
use proptest::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

/// Reads a document as a `T` and writes it.
fn again<T: DeserializeOwned + Serialize>(document: &Value) -> Value {
    let typed: T = serde_json::from_value(document.clone()).unwrap_or_else(|e| panic!("{e} in {document}"));
    serde_json::to_value(typed).unwrap()
}

type Again = fn(&Value) -> Value;

const KINDS: &[(&str, Again)] = &[
    ("VirtualMachine", again::<v1::VirtualMachine>),
    ("VirtualMachineInstance", again::<v1::VirtualMachineInstance>),
    ("VirtualMachineInstanceMigration", again::<v1::VirtualMachineInstanceMigration>),
    ("VirtualMachineInstanceReplicaSet", again::<v1::VirtualMachineInstanceReplicaSet>),
    ("VirtualMachineInstancePreset", again::<v1::VirtualMachineInstancePreset>),
    ("KubeVirt", again::<v1::KubeVirt>),
    ("VirtualMachinePool", again::<v1::VirtualMachinePool>),
    ("StartOptions", again::<v1::StartOptions>),
    ("StopOptions", again::<v1::StopOptions>),
    ("RestartOptions", again::<v1::RestartOptions>),
    ("PauseOptions", again::<v1::PauseOptions>),
    ("UnpauseOptions", again::<v1::UnpauseOptions>),
    ("MigrateOptions", again::<v1::MigrateOptions>),
    ("FreezeUnfreezeTimeout", again::<v1::FreezeUnfreezeTimeout>),
    ("VirtualMachineInstanceGuestAgentInfo", again::<v1::VirtualMachineInstanceGuestAgentInfo>),
    ("VirtualMachineInstanceGuestOSUserList", again::<v1::VirtualMachineInstanceGuestOsUserList>),
    ("VirtualMachineInstanceFileSystemList", again::<v1::VirtualMachineInstanceFileSystemList>),
];

/// Tells where two documents differ: a whole one is too long to read.
fn differences(path: &str, a: &Value, b: &Value, found: &mut Vec<String>) {
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            let keys: std::collections::BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for key in keys {
                let at = |map: &Map<String, Value>| map.get(key).cloned().unwrap_or("(missing)".into());
                differences(&format!("{path}.{key}"), &at(a), &at(b), found);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (n, (a, b)) in a.iter().zip(b).enumerate() {
                differences(&format!("{path}[{n}]"), a, b, found);
            }
        }
        _ if a == b => {}
        _ => found.push(format!("{path}: {a} became {b}")),
    }
}

fn assert_same(kind: &str, given: &Value, written: &Value) {
    let mut given = given.clone();
    // A status that says nothing is none.
    if given["status"] == json!({}) {
        given.as_object_mut().unwrap().remove("status");
    }
    let mut found = Vec::new();
    differences(kind, &given, written, &mut found);
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn a_complete_document_of_every_kind_comes_out_as_it_went_in() {
    for (kind, again) in KINDS {
        let given = Maker { state: 1, density: 256 }.record(kind);
        assert_same(kind, &given, &again(&given));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(48) })]

    #[test]
    fn random_documents_come_out_as_they_went_in(seed in any::<u64>(), density in 20u64..250) {
        for (kind, again) in KINDS {
            let given = Maker { state: seed, density }.record(kind);
            assert_same(kind, &given, &again(&given));
        }
    }
}

#[test]
fn manifests_in_the_manner_of_upstream_come_out_as_they_went_in() {
    let directory = format!("{}/tests/manifests", env!("CARGO_MANIFEST_DIR"));
    let mut seen = 0;
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let given: Value = serde_saphyr::from_str(&std::fs::read_to_string(&path).unwrap())
            .unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let kind = given["kind"].as_str().unwrap();
        let (_, again) = KINDS.iter().find(|(k, _)| *k == kind).unwrap();
        assert_same(&path.display().to_string(), &given, &again(&given));
        seen += 1;
    }
    assert!(seen >= 5, "{seen} manifests");
}

#[test]
fn numbers_are_taken_for_quantities_and_nulls_for_nothing() {
    let given = json!({
        "metadata": {"name": "a"},
        "spec": {
            "nodeSelector": null, "volumes": null, "hostname": null,
            "domain": {"resources": {"limits": {"cpu": 2, "memory": 1.5}}, "devices": {"disks": null}},
        },
    });
    let vmi: v1::VirtualMachineInstance = serde_json::from_value(given).unwrap();
    let limits = vmi.spec.domain.resources.unwrap().limits.unwrap();
    assert_eq!((limits["cpu"].0.as_str(), limits["memory"].0.as_str()), ("2", "1.5"));
    assert!(vmi.spec.volumes.is_empty() && vmi.spec.hostname.is_none());
}
