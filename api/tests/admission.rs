//! Admission meets documents of every shape: it answers each, and changes nothing that was said.

#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

mod maker;

use maker::Maker;
use podvirt_api::admission::{By, kubevirt, vm, vmi};
use podvirt_api::v1::KubeVirtConfiguration;
use proptest::prelude::*;
use serde_json::{Value, json};

/// Whether everything that `said` says stands in `now`; lists may have grown.
fn holds(said: &Value, now: &Value) -> bool {
    match (said, now) {
        (Value::Object(said), Value::Object(now)) => {
            said.iter().all(|(k, v)| v.is_null() || now.get(k).is_some_and(|n| holds(v, n)))
        }
        (Value::Array(said), Value::Array(now)) => {
            said.len() <= now.len() && said.iter().zip(now).all(|(s, n)| holds(s, n))
        }
        // An empty text says nothing, nor does a number below 1 where upstream has a default (probes); a quantity with a
        // fraction becomes a text.
        _ => {
            said == now
                || said == ""
                || (said.as_i64().is_some_and(|n| n < 1) && now.as_i64().is_some_and(|n| n >= 1))
                || (said.is_f64() && now == &said.to_string())
        }
    }
}

/// A machine that podvirt carries out, with what `extra` puts over it.
fn carried(extra: &Value) -> Value {
    let mut spec = json!({
        "domain": {
            "memory": {"guest": "64Mi"},
            "devices": {"disks": [{"name": "a"}], "interfaces": [{"name": "n"}]},
        },
        "networks": [{"name": "n", "pod": {}}],
        "volumes": [{"name": "a", "emptyDisk": {"capacity": "1Gi"}}, {"name": "b", "containerDisk": {"image": "i"}}],
    });
    put(&mut spec, extra);
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": {"name": "a"}, "spec": spec,
    })
}

fn put(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (name, value) in from {
                put(into.entry(name).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from.clone(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn every_document_is_answered_and_a_users_words_stay(seed in any::<u64>(), density in 0u64..256) {
        let mut maker = Maker { state: seed, density };
        let config: KubeVirtConfiguration =
            serde_json::from_value(maker.record("KubeVirtConfiguration")).unwrap();
        let instance = maker.record("VirtualMachineInstance");
        let mut stored = instance.clone();
        vmi::mutate_create(&mut stored, &config);
        prop_assert!(holds(&instance["spec"], &stored["spec"]));
        let _ = vmi::validate_create(&stored, &config, By::User);
        let _ = vmi::validate_update(&instance, &stored, By::User);
        let machine = maker.record("VirtualMachine");
        let mut stored = machine.clone();
        vm::mutate(&mut stored, &config);
        prop_assert!(holds(&machine, &stored));
        let _ = vm::validate(&stored, &config, By::User);
        let _ = kubevirt::validate(&maker.record("KubeVirt"));
    }

    #[test]
    fn a_machine_that_is_carried_out_is_filled_once(
        grace in proptest::option::of(0i64..1000),
        cores in proptest::option::of(1u32..8),
        attach in any::<bool>(),
        masquerade in any::<bool>(),
        model in proptest::option::of("[a-zA-Z0-9-]{1,10}"),
    ) {
        let binding = if masquerade { "masquerade" } else { "passtBinding" };
        let extra = json!({
            "terminationGracePeriodSeconds": grace,
            "domain": {
                "cpu": {"cores": cores, "model": model},
                "devices": {"autoattachGraphicsDevice": attach, "interfaces": [{"name": "n", (binding): {}}]},
            },
        });
        let config = KubeVirtConfiguration::default();
        let said = carried(&extra);
        let mut stored = said.clone();
        vmi::mutate_create(&mut stored, &config);
        prop_assert!(holds(&said, &stored));
        prop_assert_eq!(vmi::validate_create(&stored, &config, By::User), Default::default());
        let mut again = stored.clone();
        vmi::mutate_create(&mut again, &config);
        prop_assert_eq!(again, stored);
    }
}
