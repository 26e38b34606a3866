use super::*;

const IGNITION: &str = "kubevirt.io/ignitiondata";
const HOOKS: &str = "hooks.kubevirt.io/hookSidecars";

fn asking(mut object: Value, at: &str) -> Value {
    let metadata = object.pointer_mut(at).unwrap();
    metadata["annotations"] = json!({IGNITION: "{}", "team": "b"});
    object
}

fn paths(problems: &Problems) -> Vec<String> {
    problems.0.iter().map(|p| p.field.clone()).collect()
}

#[test]
fn a_wish_in_an_annotation_is_refused_where_it_counts() {
    let own = [format!("metadata.annotations[{IGNITION}]")];
    let vmi = asking(instance(small()), "/metadata");
    for by in [By::User, By::Daemon] {
        assert_eq!(paths(&vmi::validate_create(&vmi, &config(), by)), own);
    }
    assert_eq!(paths(&vmi::validate_update(&instance(small()), &vmi, By::User)), own);
    let vm = machine(json!({"runStrategy": "Halted", "template": {"metadata": {}, "spec": small()}}));
    let wishing = asking(vm.clone(), "/spec/template/metadata");
    let of_template = [format!("spec.template.metadata.annotations[{IGNITION}]")];
    assert_eq!(paths(&vm::validate(&wishing, &config(), By::User)), of_template);
    assert_eq!(paths(&vm::validate_update(&vm, &wishing, &config(), By::User)), of_template);
    let on_the_vm = asking(vm, "/metadata");
    assert_eq!(vm::validate(&on_the_vm, &config(), By::User), Problems::default(), "of the VM alone");
    let mut migration = json!({"metadata": {"annotations": {"kubevirt.io/migrationPendingPodTimeoutSeconds": "soon"}},
        "spec": {"vmiName": "web"}});
    let asked = migration::validate_create(&migration, None, &[]);
    assert!(
        paths(&asked).contains(&"metadata.annotations[kubevirt.io/migrationPendingPodTimeoutSeconds]".into())
    );
    let old = migration.clone();
    migration["metadata"]["finalizers"] = json!([]);
    assert_eq!(migration::validate_update(&old, &migration, By::User), Problems::default());
    let mut without = old.clone();
    without["metadata"]["annotations"] = json!({});
    assert_eq!(
        paths(&migration::validate_update(&without, &migration, By::User)),
        ["metadata.annotations[kubevirt.io/migrationPendingPodTimeoutSeconds]"]
    );
}

#[test]
fn what_was_taken_with_a_wish_can_still_be_changed_and_read() {
    let old = asking(instance(small()), "/metadata");
    let mut new = old.clone();
    new["metadata"]["labels"]["app"] = json!("b");
    new["metadata"]["annotations"]["team"] = json!("a");
    assert_eq!(vmi::validate_update(&old, &new, By::User), Problems::default());
    assert!(crate::VirtualMachineInstance::from_value(new).is_ok(), "the launcher reads it");
    let vm = machine(json!({"runStrategy": "Always", "template": {"metadata": {}, "spec": small()}}));
    let old = asking(vm, "/spec/template/metadata");
    let mut new = old.clone();
    new["spec"]["template"]["spec"]["domain"]["memory"]["guest"] = json!("128Mi");
    vm::mutate(&mut new, &config());
    assert_eq!(vm::validate_update(&old, &new, &config(), By::User), Problems::default());
}

#[test]
fn without_a_cluster_the_manifest_is_refused_when_it_is_read() {
    let error = crate::VirtualMachineInstance::load(&asking(instance(small()), "/metadata").to_string());
    let told = error.unwrap_err().to_string();
    assert!(told.contains("metadata.annotations[kubevirt.io/ignitiondata]: not supported"), "{told}");
}

#[test]
fn hook_sidecars_need_a_cluster_that_allows_them() {
    // As upstream's example examples/vmi-with-sidecar-hook.yaml has it.
    let list = json!([{"args": ["--version", "v1alpha2"], "image": "registry:5000/kubevirt/example-hook-sidecar:devel"}]);
    let hooks =
        json!({HOOKS: list.to_string(), "smbios.vm.kubevirt.io/baseBoardManufacturer": "Radical Edward"});
    let mut vmi = instance(small());
    vmi["metadata"]["annotations"] = hooks.clone();
    let vm = machine(
        json!({"runStrategy": "Halted", "template": {"metadata": {"annotations": hooks}, "spec": small()}}),
    );
    let allowing = || {
        let mut config = config();
        config.developer_configuration.get_or_insert_default().feature_gates.push("Sidecar".into());
        config
    };
    let told = |problems: Problems| problems.0.iter().map(ToString::to_string).collect::<Vec<_>>();
    for (told, path) in [
        (told(vmi::validate_create(&vmi, &config(), By::User)), "metadata"),
        (told(vm::validate(&vm, &config(), By::User)), "spec.template.metadata"),
    ] {
        let [line] = told.as_slice() else { panic!("{told:?}") };
        assert!(line.starts_with(&format!("{path}.annotations[{HOOKS}]: ")), "{line}");
        assert!(line.contains("feature gate Sidecar"), "{line}");
    }
    assert_eq!(told(vmi::validate_create(&vmi, &allowing(), By::User)), [""; 0]);
    assert_eq!(told(vm::validate(&vm, &allowing(), By::User)), [""; 0]);
    vmi["metadata"]["annotations"][HOOKS] = json!("[{}]");
    let told = told(vmi::validate_create(&vmi, &allowing(), By::User));
    assert!(told[0].starts_with(&format!("metadata.annotations[{HOOKS}][0].image: ")), "{told:?}");
    let alone = crate::VirtualMachineInstance::load(&vmi.to_string()).unwrap_err().to_string();
    assert!(alone.contains("hook sidecars are containers of a pod"), "{alone}");
}

#[test]
fn an_instance_keeps_the_sidecars_and_the_masquerade_that_it_was_made_with() {
    let list = json!([{"image": "registry:5000/kubevirt/example-hook-sidecar:devel"}]).to_string();
    for (key, value) in [(HOOKS, list.as_str()), ("podvirt.io/masquerade", "nftables")] {
        let (mut plain, mut annotated) = (instance(small()), instance(small()));
        plain["metadata"]["annotations"] = json!({"team": "a"});
        annotated["metadata"]["annotations"] = json!({"team": "b", key: value});
        for (old, new) in [(&plain, &annotated), (&annotated, &plain)] {
            let told = vmi::validate_update(old, new, By::User).0;
            let [problem] = told.as_slice() else { panic!("{told:?}") };
            assert_eq!(problem.field, format!("metadata.annotations[{key}]"));
            assert_eq!(vmi::validate_update(old, new, By::Daemon), Problems::default());
        }
        let mut other = annotated.clone();
        other["metadata"]["annotations"]["team"] = json!("c");
        assert_eq!(vmi::validate_update(&annotated, &other, By::User), Problems::default());
    }
}

#[test]
fn an_instance_notes_what_its_plugins_are_registered_with() {
    const PLUGINS: &str = "podvirt.io/binding-plugins";
    let config = |binding: Value| {
        let mut config = config();
        config.network = serde_json::from_value(json!({"binding": binding})).unwrap();
        config
    };
    let with = |binding: &str, annotations: Value| {
        let mut vmi = instance(small());
        vmi["metadata"]["annotations"] = annotations;
        vmi["spec"]["networks"] = json!([{"name": "default", "pod": {}}]);
        vmi["spec"]["domain"]["devices"]["interfaces"] =
            json!([{"name": "default", "binding": {"name": binding}}]);
        vmi
    };
    let flat = config(json!({"flat": {"domainAttachmentType": "managedTap"}, "user": {"sidecarImage": "i"}}));
    let mut vmi = with("flat", json!({PLUGINS: "a user's"}));
    vmi::mutate_plugins(&mut vmi, &flat);
    let noted = vmi["metadata"]["annotations"][PLUGINS].as_str().unwrap();
    assert_eq!(noted, r#"{"flat":{"domainAttachmentType":"managedTap"}}"#);
    assert_eq!(vmi::validate_create(&vmi, &flat, By::User), Problems::default());
    // Only podvirt says it, and it stays when the plugin is registered with something else.
    let mut other = with("passt", json!({PLUGINS: "a user's"}));
    vmi::mutate_plugins(&mut other, &flat);
    assert_eq!(other["metadata"]["annotations"], json!({}));
    let mut changed = vmi.clone();
    changed["metadata"]["annotations"][PLUGINS] = "{}".into();
    let told = vmi::validate_update(&vmi, &changed, By::User).0;
    assert_eq!(told[0].field, format!("metadata.annotations[{PLUGINS}]"));
    // A plugin that the cluster does not know is refused to machines and instances.
    let unknown = with("none", json!({}));
    let vm = machine(json!({"runStrategy": "Halted", "template": {"spec": unknown["spec"]}}));
    for (problems, path) in [
        (vmi::validate_create(&unknown, &flat, By::User), "spec"),
        (vm::validate(&vm, &flat, By::User), "spec.template.spec"),
    ] {
        let fields: Vec<&str> = problems.0.iter().map(|problem| problem.field.as_str()).collect();
        assert_eq!(fields, [format!("{path}.domain.devices.interfaces[0].binding.name")]);
    }
    let vm = machine(json!({"runStrategy": "Halted", "template": {"spec": with("flat", json!({}))["spec"]}}));
    assert_eq!(vm::validate(&vm, &flat, By::User), Problems::default());
}
