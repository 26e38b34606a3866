use super::*;

fn told(problems: &Problems) -> Vec<(String, String)> {
    problems.0.iter().map(|problem| (problem.field.clone(), problem.message.clone())).collect()
}

fn said(list: &[(&str, &str)]) -> Vec<(String, String)> {
    list.iter().map(|(field, message)| ((*field).to_owned(), (*message).to_owned())).collect()
}

fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            from.iter()
                .for_each(|(name, value)| merge(into.entry(name.clone()).or_insert(Value::Null), value));
        }
        (into, from) => *into = from.clone(),
    }
}

#[test]
fn a_snapshot_is_of_a_machine() {
    for (source, found) in [
        (json!({"apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "vm"}), vec![]),
        (json!({"kind": "VirtualMachine", "name": "vm"}), vec![("spec.source.apiGroup", "missing apiGroup")]),
        (
            json!({"apiGroup": "apps", "kind": "VirtualMachine", "name": "vm"}),
            vec![("spec.source.apiGroup", "invalid apiGroup")],
        ),
        (
            json!({"apiGroup": "kubevirt.io", "kind": "VirtualMachineInstance", "name": "vm"}),
            vec![("spec.source.kind", "invalid kind")],
        ),
    ] {
        assert_eq!(told(&validate_snapshot(&json!({"spec": {"source": source}}))), said(&found), "{source}");
    }
    let (old, new) =
        (json!({"spec": {"deletionPolicy": "Delete"}}), json!({"spec": {"deletionPolicy": "Retain"}}));
    assert_eq!(told(&validate_unchanged(&old, &new)), said(&[("spec", "spec in immutable after creation")]));
    assert!(validate_unchanged(&old, &old).is_empty());
}

fn restore(more: Value) -> Value {
    let mut object = json!({"metadata": {"name": "r", "namespace": "ns"}, "spec": {
        "target": {"apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "vm"}, "virtualMachineSnapshotName": "s"}});
    merge(&mut object, &json!({ "spec": more }));
    object
}

#[test]
fn a_restores_fields_are_judged() {
    let found = |more: Value| told(&validate_restore(&restore(more), &[], true));
    assert_eq!(found(json!({})), []);
    let patches = json!({"patches": [
        "{\"op\": \"replace\", \"path\": \"/spec/template/spec/domain/devices/interfaces/0/macAddress\", \"value\": \"02:00:00:00:00:01\"}",
        "{\"op\": \"add\", \"path\": \"/metadata/labels/a\", \"value\": \"b\"}"]});
    assert_eq!(found(patches), [], "a value may have colons");
    let wrong =
        json!({"patches": ["{\"op\": \"replace\", \"path\": \"/metadata/name\", \"value\": \"x\"}", "x"]});
    let fields: Vec<_> = found(wrong).into_iter().map(|(field, _)| field).collect();
    assert_eq!(fields, ["spec.patches", "spec.patches"]);
    let copy = json!({"patches": [r#"{"op": "copy", "from": "/spec/a", "path": "/spec/a/-"}"#]});
    let (field, message) = found(copy).remove(0);
    assert_eq!(field, "spec.patches");
    assert!(message.starts_with("op \"copy\" is not allowed"), "{message}");
    let many = vec![r#"{"op": "remove", "path": "/spec/a"}"#; MAX_PATCH_OPERATIONS + 1];
    assert_eq!(found(json!({ "patches": many })).len(), 1);
    assert_eq!(
        found(json!({"volumeRestorePolicy": "Overwrite", "volumeOwnershipPolicy": "All"})),
        said(&[
            ("spec.volumeRestorePolicy", "volume restore policy \"Overwrite\" doesn't exist"),
            ("spec.volumeOwnershipPolicy", "volume ownership policy \"All\" doesn't exist"),
        ])
    );
    assert_eq!(
        found(json!({"volumeRestoreOverrides": [{"restoreName": "x"}, {"volumeName": "a"}]})),
        said(&[
            ("spec.volumeRestoreOverrides[0].volumeName", "must provide a volume name"),
            ("spec.volumeRestoreOverrides[1]", "must provide at least one overriden field"),
        ])
    );
    assert_eq!(found(json!({"targetReadinessPolicy": "Wait"})).len(), 1);
    for name in ["", "VM", &"a".repeat(1 << 20)] {
        assert_eq!(found(json!({"target": {"name": name}}))[0].0, "spec.target.name");
    }
}

#[test]
fn a_target_has_one_restore_at_a_time() {
    let new = restore(json!({}));
    assert_eq!(
        told(&validate_restore(&new, &["r".to_owned()], true)),
        said(&[("spec.target", "VirtualMachineRestore \"r\" in progress")])
    );
    assert!(validate_restore(&new, &[], false).is_empty());
}

#[test]
fn claims_are_replaced_in_place_only_for_a_machine_that_is_there() {
    let in_place = restore(json!({"volumeRestorePolicy": "InPlace"}));
    assert!(validate_restore(&in_place, &[], true).is_empty());
    assert_eq!(told(&validate_restore(&in_place, &[], false))[0].0, "spec.volumeRestorePolicy");
}

#[test]
fn a_clone_without_a_target_gets_one() {
    let made = |spec: Value| {
        let mut object = json!({ "spec": spec });
        mutate_clone(&mut object, "abcde");
        object["spec"]["target"].clone()
    };
    let source = json!({"apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "vm"});
    let whole = json!({"apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "clone-vm-abcde"});
    assert_eq!(made(json!({"source": source})), whole);
    let named = json!({"apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": ""});
    assert_eq!(made(json!({"source": source, "target": named})), whole);
    let own = json!({"apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "own"});
    assert_eq!(made(json!({"source": source, "target": own})), own);
}

#[test]
fn a_clones_fields_are_judged() {
    let found = |more: Value| {
        let mut object = json!({"spec": {
            "source": {"apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "vm"},
            "target": {"apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "copy"}}});
        merge(&mut object, &json!({ "spec": more }));
        told(&validate_clone(&object))
    };
    assert_eq!(
        found(json!({"labelFilters": ["*", "!a/*", "b"], "newMacAddresses": {"a": "02:00:00:00:00:01"}})),
        []
    );
    assert_eq!(
        found(json!({"target": {"name": "vm"}})),
        said(&[(
            "spec.target.name",
            "Target name cannot be equal to source name when both are VirtualMachines"
        )])
    );
    assert_eq!(
        found(json!({"source": {"kind": "Pod"}})),
        said(&[("spec.Source.Kind", "Source kind is not supported")])
    );
    assert_eq!(
        found(json!({"target": {"kind": "Pod"}})),
        said(&[("spec.Target.Kind", "Target kind is not supported")])
    );
    let filters: Vec<_> = found(json!({"template": {"labelFilters": ["!", "a!b", "*a", "a*b"]}}));
    let texts: Vec<_> = filters.iter().map(|(_, message)| message.split(';').next().unwrap()).collect();
    assert_eq!(
        texts,
        [
            "a negation character is not a valid filter",
            "spec.template.labels filter a!b is invalid: cannot contain a negation character (!)",
            "spec.template.labels filter *a is invalid: cannot contain a wildcard character (*)",
            "spec.template.labels filter a*b is invalid: cannot contain a wildcard character (*)",
        ]
    );
    assert_eq!(
        found(json!({"newMacAddresses": {"net": "x"}, "patches": ["{"]})),
        said(&[
            ("spec.newMacAddresses.net", "interface net has malformed MAC address (x)."),
            ("spec.patches[0]", "patch is not valid JSON ({)"),
        ])
    );
    for many in [json!(vec!["a"; 5000]), json!(["\\w{300}".repeat(100)])] {
        assert_eq!(found(json!({ "labelFilters": many.clone() })).len(), 1);
        assert_eq!(found(json!({"template": {"annotationFilters": many}})).len(), 1);
    }
    let doubling = json!({"patches": [r#"{"op": "copy", "from": "/spec/a", "path": "/spec/a/-"}"#]});
    assert_eq!(found(doubling.clone()).len(), 1, "the restore that is made of the clone would be refused");
    let taken = json!({ "spec": doubling });
    assert!(validate_clone_update(&taken, &taken).is_empty(), "its finalizers may go");
}

#[test]
fn a_held_machine_keeps_its_volumes_and_its_run_strategy() {
    let vm = |strategy: &str, volume: &str, status: Value| {
        json!({"spec": {"runStrategy": strategy,
        "template": {"spec": {"volumes": [{"name": volume}]}}}, "status": status})
    };
    let found = |strategy: &str, volume: &str, status: Value| {
        let mut problems = Problems::default();
        held(&vm("Halted", "a", status.clone()), &vm(strategy, volume, status), &mut problems);
        told(&problems).into_iter().map(|(_, message)| message).collect::<Vec<_>>()
    };
    let (taken, restored) = (json!({"snapshotInProgress": "s"}), json!({"restoreInProgress": "r"}));
    assert_eq!(
        found("Halted", "b", taken.clone()),
        ["Cannot update vm disks or volumes until snapshot \"s\" completes"]
    );
    assert_eq!(
        found("Always", "a", taken.clone()),
        ["Cannot update vm running state until snapshot \"s\" completes"]
    );
    assert_eq!(
        found("Always", "a", restored.clone()),
        ["Cannot update VM runStrategy until restore \"r\" completes"]
    );
    assert_eq!(found("Halted", "b", restored), [""; 0]);
    assert_eq!(found("Halted", "a", taken), [""; 0]);
    assert_eq!(found("Always", "b", json!({})), [""; 0]);
}

#[test]
fn what_a_snapshot_holds_costs_a_cache_little() {
    let content = |maps: usize| {
        let spec = json!({"source": {"blank": {}}, "storage": {}, "x": vec![json!({"a": 0}); maps]});
        let machine =
            json!({"spec": {"dataVolumeTemplates": [{"metadata": {"name": "root"}, "spec": spec}]}});
        json!({"spec": {"source": {"virtualMachine": machine}}})
    };
    let fields = |problems: Problems| problems.0.into_iter().map(|problem| problem.field).collect::<Vec<_>>();
    let large = content(60_000);
    let field = "spec.source.virtualMachine.spec.dataVolumeTemplates";
    assert_eq!(fields(validate_content(&content(10))), [""; 0]);
    assert_eq!(fields(validate_content(&large)), [field]);
    assert_eq!(fields(validate_content_update(&content(10), &large)), [field]);
    assert_eq!(fields(validate_content_update(&large, &large)), [""; 0]);
}
