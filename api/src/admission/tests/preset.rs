use super::super::preset::{Effect, MAX_PRESET_BYTES, apply, validate, validate_update, warnings};
use super::*;
use crate::v1::VirtualMachineInstancePreset as Preset;

/// A preset of machines with the label `app: a`.
fn preset(name: &str, domain: &Value) -> Effect {
    let mut domain = domain.clone();
    if domain["devices"].is_null() {
        domain["devices"] = json!({});
    }
    let spec = json!({"selector": {"matchLabels": {"app": "a"}}, "domain": domain});
    let preset: Preset = serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap();
    Effect::of(&preset).unwrap()
}

fn machine_with(domain: &Value) -> Value {
    let mut object = instance(small());
    for (name, value) in domain.as_object().unwrap() {
        object["spec"]["domain"][name] = value.clone();
    }
    object
}

#[test]
fn a_machine_gets_what_it_has_not_and_keeps_the_rest() {
    let clock = json!({"utc": {}, "timer": {"hpet": {"present": false}}});
    for (domain, has, expected, in_it, kept) in [
        (json!({"cpu": {"cores": 2}}), json!({}), json!({"cpu": {"cores": 2}}), true, 0),
        (json!({"cpu": {"cores": 2}}), json!({"cpu": {"cores": 4}}), json!({"cpu": {"cores": 4}}), false, 1),
        (json!({"cpu": {"cores": 2}}), json!({"cpu": {"cores": 2}}), json!({"cpu": {"cores": 2}}), true, 0),
        (
            json!({"resources": {"requests": {"memory": "1Gi", "cpu": 1}}}),
            json!({}),
            json!({"resources": {"requests": {"memory": "1Gi", "cpu": "1"}}}),
            true,
            0,
        ),
        // All of its own, or all of the preset's.
        (
            json!({"resources": {"requests": {"memory": "1Gi"}}}),
            json!({"resources": {"requests": {"cpu": "1"}}}),
            json!({"resources": {"requests": {"cpu": "1"}}}),
            false,
            0,
        ),
        (
            json!({"resources": {"requests": {"memory": "1Gi"}}}),
            json!({"resources": {"requests": {"memory": "1024Mi"}}}),
            json!({"resources": {"requests": {"memory": "1024Mi"}}}),
            true,
            0,
        ),
        (json!({"clock": clock}), json!({}), json!({"clock": clock}), true, 0),
        (
            json!({"clock": clock}),
            json!({"clock": {"timezone": "Europe/Berlin"}}),
            json!({"clock": {"timezone": "Europe/Berlin", "timer": {"hpet": {"present": false}}}}),
            true,
            1,
        ),
        (
            json!({"devices": {"watchdog": {"name": "w", "i6300esb": {"action": "reset"}}}, "features": {"acpi": {}}}),
            json!({}),
            json!({"devices": {"watchdog": {"name": "w", "i6300esb": {"action": "reset"}}}, "features": {"acpi": {}}}),
            true,
            0,
        ),
        // What presets do not set.
        (json!({"memory": {"guest": "1Gi"}}), json!({}), json!({}), false, 0),
    ] {
        let mut object = machine_with(&has);
        let told = apply(&mut object, &[preset("p", &domain)]).unwrap();
        let mut wanted = machine_with(&expected);
        let annotations = &object["metadata"]["annotations"];
        assert_eq!(
            annotations["virtualmachinepreset.kubevirt.io/p"] == "kubevirt.io/v1",
            in_it,
            "{domain} {has}"
        );
        assert_eq!(told.len(), kept, "{told:?}");
        wanted["metadata"] = object["metadata"].clone();
        assert!(same(&object, &wanted), "{object} {wanted}");
    }
}

#[test]
fn other_machines_and_those_that_do_not_want_it_get_nothing() {
    let presets = [preset("p", &json!({"cpu": {"cores": 2}}))];
    let mut other = machine_with(&json!({}));
    other["metadata"]["labels"] = json!({"app": "b"});
    let mut excluded = machine_with(&json!({}));
    excluded["metadata"]["annotations"] =
        json!({"virtualmachineinstancepresets.admission.kubevirt.io/exclude": "true"});
    for object in [other, excluded] {
        let mut after = object.clone();
        assert_eq!(apply(&mut after, &presets).unwrap(), [""; 0]);
        assert_eq!(after, object);
    }
}

#[test]
fn presets_that_contradict_each_other_are_none_for_the_machine() {
    let presets = [
        preset("b", &json!({"cpu": {"cores": 2}})),
        preset("a", &json!({"cpu": {"cores": 4}})),
        preset("c", &json!({"features": {"acpi": {}}})),
    ];
    let mut object = machine_with(&json!({}));
    let refused = apply(&mut object, &presets).unwrap_err();
    assert_eq!(
        lines(&refused),
        [
            "metadata.labels: VirtualMachinePresets cannot be applied due to conflicts: presets 'b' and 'a' conflict: \
          spec.domain.cpu: {\"cores\":2} != {\"cores\":4}"
        ]
    );
    assert_eq!(object, machine_with(&json!({})));
    let told = apply(&mut object, [&presets[0], &presets[2]]).unwrap();
    assert!(told.is_empty() && object["spec"]["domain"]["cpu"]["cores"] == 2);
    let annotations = object["metadata"]["annotations"].as_object().unwrap();
    assert_eq!(annotations.len(), 2, "{annotations:?}");
}

#[test]
fn a_preset_is_judged_by_its_selector_and_its_domain() {
    let object = |spec: Value| json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstancePreset", "metadata": {"name": "p"}, "spec": spec});
    let right = object(json!({"selector": {}, "domain": {"cpu": {"cores": 2}, "devices": {}}}));
    assert_eq!(validate(&right), Problems::default());
    assert_eq!(warnings(&right), [""; 0]);
    for (spec, field) in [
        (json!({"selector": {}}), "spec.domain"),
        (json!({"selector": {"matchLabels": {"a b": "c"}}, "domain": {"devices": {}}}), "spec.selector"),
        (
            json!({"selector": {}, "domain": {"devices": {"gpus": [{"name": "g"}]}}}),
            "spec.domain.devices.gpus",
        ),
        (
            json!({"selector": {}, "domain": {"cpu": {"cores": "two"}, "devices": {}}}),
            "spec.domain.cpu.cores",
        ),
    ] {
        let found = validate(&object(spec.clone()));
        assert_eq!(found.0.iter().map(|p| p.field.as_str()).collect::<Vec<_>>(), [field], "{spec}");
        assert_eq!(validate_update(&object(spec.clone()), &object(spec)), Problems::default());
    }
    let idle = json!({"selector": {}, "domain": {"memory": {"guest": "1Gi"}, "resources": {"limits": {"cpu": 1}},
        "devices": {"disks": [], "rng": {}}}});
    let told = warnings(&object(idle));
    let fields: Vec<&str> = told.iter().map(|text| text.split(':').next().unwrap()).collect();
    assert_eq!(fields, ["spec.domain.memory", "spec.domain.resources.limits", "spec.domain.devices.rng"]);
}

#[test]
fn a_disk_is_one_thing() {
    let judged = |disk: serde_json::Value| {
        let domain = json!({"devices": {"disks": [{"name": "a", "disk": {}}, disk]}});
        lines(&validate(&json!({"spec": {"selector": {}, "domain": domain}})))
    };
    assert_eq!(judged(json!({"name": "b", "cdrom": {}})), [""; 0]);
    assert_eq!(
        judged(json!({"name": "b", "disk": {}, "cdrom": {}})),
        ["spec.domain.devices.disks[1]: one of disk, lun and cdrom is allowed"]
    );
}

#[test]
fn what_is_told_of_many_presets_and_long_values_is_short() {
    let presets: Vec<Effect> =
        (0..500).map(|n| preset(&format!("p{n}"), &json!({"cpu": {"model": "a"}}))).collect();
    let mut object = machine_with(&json!({"cpu": {"model": "x".repeat(1 << 20)}}));
    let told = apply(&mut object, &presets).unwrap();
    assert!(told.iter().map(String::len).sum::<usize>() < 64 << 10);
    assert!(told[0].ends_with("..."), "{}", told[0]);
    assert_eq!(told.last().unwrap(), "and more than these 64");

    let presets: Vec<Effect> = (0..2000)
        .map(|n| preset(&format!("p{n}"), &json!({"cpu": {"model": format!("{n}{}", "x".repeat(10_000))}})))
        .collect();
    let refused = apply(&mut machine_with(&json!({})), &presets).unwrap_err();
    assert!(refused.to_string().len() < 64 << 10);
}

#[test]
fn a_large_preset_is_refused() {
    let object = |bytes: usize| json!({"spec": {"selector": {}, "domain": {"cpu": {"model": "x".repeat(bytes)}, "devices": {}}}});
    assert_eq!(validate(&object(MAX_PRESET_BYTES / 2)), Problems::default());
    let large = object(MAX_PRESET_BYTES);
    assert!(lines(&validate(&large))[0].starts_with("spec: it has 3"), "{:?}", lines(&validate(&large)));
    assert_eq!(validate_update(&large, &large), Problems::default());
}
