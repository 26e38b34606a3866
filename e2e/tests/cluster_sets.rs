//! Machines by the number, as the users of replica sets see them.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails it")]

use kube::ResourceExt;
use kube::api::ListParams;
use podvirt_api::v1;
use podvirt_e2e::cluster::{BOOT, Cluster, Manifest, Namespace, SOON, Security};

/// The names of all instances that are not on their way out, once there are `number`.
fn instances(namespace: &Namespace<'_>, number: usize) -> Vec<String> {
    let api = namespace.api::<v1::VirtualMachineInstance>();
    let look = || {
        let all = namespace.cluster().block_on(api.list(&ListParams::default()))?;
        let stay = all.items.iter().filter(|vmi| vmi.metadata.deletion_timestamp.is_none());
        let names: Vec<String> = stay.map(ResourceExt::name_any).collect();
        Ok((names.len() == number).then_some(names))
    };
    namespace.until(&format!("{number} instances"), SOON, look).unwrap()
}

#[test]
fn a_replica_set_is_scaled_and_replaces_what_is_deleted() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let template = Manifest { name: "web", domain: "", ..Default::default() }.template();
    let set = format!(
        "{{apiVersion: kubevirt.io/v1, kind: VirtualMachineInstanceReplicaSet, metadata: {{name: web}}, \
         spec: {{replicas: 2, selector: {{matchLabels: {{vm: web}}}}, template: {template}}}}}"
    );
    let other = set.replace("matchLabels: {vm: web}", "matchLabels: {vm: db}");
    let error = namespace.apply(&other).unwrap_err().to_string();
    assert!(error.contains("spec.selector: selector does not match labels"), "{error}");
    namespace.apply(&set).unwrap();
    let is = |replicas: i32, ready: i32| {
        move |set: &v1::VirtualMachineInstanceReplicaSet| {
            set.status.replicas == Some(replicas) && set.status.ready_replicas == Some(ready)
        }
    };
    let set = namespace.wait("web", "two machines that are ready", BOOT, is(2, 2)).unwrap();
    assert_eq!(set.status.label_selector.as_deref(), Some("vm=web"));

    let scale = |replicas: &str| {
        namespace.kubectl(&["scale", "vmirs", "web", "--replicas", replicas]).unwrap();
    };
    scale("1");
    let stayed = instances(&namespace, 1);
    let set = namespace.wait("web", "one machine", SOON, is(1, 1)).unwrap();
    assert!(set.status.conditions.is_empty(), "{:?}", set.status.conditions);
    scale("3");
    let three = instances(&namespace, 3);
    assert!(three.contains(&stayed[0]), "{three:?} without {stayed:?}");

    namespace.kubectl(&["delete", "vmi", &stayed[0], "--wait=false"]).unwrap();
    let gone = namespace.until("another in its place", SOON, || {
        let three = instances(&namespace, 3);
        Ok((!three.contains(&stayed[0])).then_some(three))
    });
    let three = gone.unwrap();
    namespace
        .kubectl(&["patch", "vmirs", "web", "--type=merge", "-p", r#"{"spec":{"paused":true}}"#])
        .unwrap();
    let paused = |set: &v1::VirtualMachineInstanceReplicaSet| {
        set.status.conditions.iter().any(|one| one.r#type.as_str() == "ReplicaPaused")
    };
    namespace.wait("web", "a pause", SOON, paused).unwrap();
    scale("0");
    // A pass that did not rest would have deleted them by the time another object's is done.
    namespace.kubectl(&["delete", "vmi", &three[1], "--wait=false"]).unwrap();
    assert_eq!(instances(&namespace, 2).len(), 2, "nothing comes in its place, and nothing goes");
}
