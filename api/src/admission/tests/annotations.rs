use super::*;

const HOOKS: &str = "hooks.kubevirt.io/hookSidecars";

fn hooked(mut object: Value, at: &str) -> Value {
    // As upstream's example examples/vmi-with-sidecar-hook.yaml has it.
    let list = json!([{"args": ["--version", "v1alpha2"], "image": "registry:5000/kubevirt/example-hook-sidecar:devel"}]);
    let metadata = object.pointer_mut(at).unwrap();
    metadata["annotations"] =
        json!({HOOKS: list.to_string(), "smbios.vm.kubevirt.io/baseBoardManufacturer": "Radical Edward"});
    object
}

fn paths(problems: &Problems) -> Vec<String> {
    problems.0.iter().map(|p| p.field.clone()).collect()
}

#[test]
fn a_wish_in_an_annotation_is_refused_where_it_counts() {
    let own = [format!("metadata.annotations[{HOOKS}]")];
    let vmi = hooked(instance(small()), "/metadata");
    for by in [By::User, By::Daemon] {
        assert_eq!(paths(&vmi::validate_create(&vmi, &config(), by)), own);
    }
    assert_eq!(paths(&vmi::validate_update(&instance(small()), &vmi, By::User)), own);
    let vm = machine(json!({"runStrategy": "Halted", "template": {"metadata": {}, "spec": small()}}));
    let asking = hooked(vm.clone(), "/spec/template/metadata");
    let of_template = [format!("spec.template.metadata.annotations[{HOOKS}]")];
    assert_eq!(paths(&vm::validate(&asking, &config(), By::User)), of_template);
    assert_eq!(paths(&vm::validate_update(&vm, &asking, &config(), By::User)), of_template);
    let on_the_vm = hooked(vm, "/metadata");
    assert_eq!(vm::validate(&on_the_vm, &config(), By::User), Problems::default(), "of the VM alone");
    let mut migration = json!({"metadata": {"annotations": {"kubevirt.io/migrationPendingPodTimeoutSeconds": "9"}},
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
    let old = hooked(instance(small()), "/metadata");
    let mut new = old.clone();
    new["metadata"]["labels"]["app"] = json!("b");
    new["metadata"]["annotations"]["team"] = json!("a");
    assert_eq!(vmi::validate_update(&old, &new, By::User), Problems::default());
    assert!(crate::VirtualMachineInstance::from_value(new).is_ok(), "the launcher reads it");
    let vm = machine(json!({"runStrategy": "Always", "template": {"metadata": {}, "spec": small()}}));
    let old = hooked(vm, "/spec/template/metadata");
    let mut new = old.clone();
    new["spec"]["template"]["spec"]["domain"]["memory"]["guest"] = json!("128Mi");
    vm::mutate(&mut new, &config());
    assert_eq!(vm::validate_update(&old, &new, &config(), By::User), Problems::default());
}

#[test]
fn without_a_cluster_the_manifest_is_refused_when_it_is_read() {
    let error = crate::VirtualMachineInstance::load(&hooked(instance(small()), "/metadata").to_string());
    let told = error.unwrap_err().to_string();
    assert!(told.contains("metadata.annotations[hooks.kubevirt.io/hookSidecars]: not supported"), "{told}");
}
