//! Machines by the number and by presets, as the users of replica sets, pools and presets see them.

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
    let template = Manifest { name: "web", idle: true, ..Default::default() }.template();
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

/// A pool's VirtualMachine that is ready.
fn ready(namespace: &Namespace<'_>, name: &str) -> v1::VirtualMachine {
    let is = |vm: &v1::VirtualMachine| vm.status.ready == Some(true);
    namespace.wait(name, &format!("{name} ready"), BOOT, is).unwrap()
}

#[test]
fn long_a_pool_makes_numbered_machines_and_restarts_them_for_a_changed_template() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let pool = |memory: &str| {
        let template = Manifest { name: "web", ..Default::default() }.template().replace("256Mi", memory);
        format!(
            "{{apiVersion: pool.kubevirt.io/v1beta1, kind: VirtualMachinePool, metadata: {{name: web}}, \
             spec: {{replicas: 2, maxUnavailable: 1, selector: {{matchLabels: {{pool: web}}}}, \
             updateStrategy: {{proactive: {{selectionPolicy: {{sortPolicy: AscendingOrder}}}}}}, \
             virtualMachineTemplate: {{metadata: {{labels: {{pool: web}}}}, spec: {{runStrategy: Always, template: {template}}}}}}}}}"
        )
    };
    let preserving = pool("256Mi")
        .replace("replicas: 2", "replicas: 2, scaleInStrategy: {proactive: {statePreservation: Offline}}");
    let error = namespace.apply(&preserving).unwrap_err().to_string();
    assert!(error.contains("spec.scaleInStrategy.proactive.statePreservation"), "{error}");
    namespace.apply(&pool("256Mi")).unwrap();
    let names = ["web-0", "web-1"];
    let first = names.map(|name| ready(&namespace, name).uid().unwrap());
    let counted = |pool: &v1::VirtualMachinePool| {
        pool.status.replicas == Some(2) && pool.status.ready_replicas == Some(2)
    };
    namespace.wait("web", "two machines that are ready", SOON, counted).unwrap();
    let instance = |name: &str| {
        let api = namespace.api::<v1::VirtualMachineInstance>();
        cluster.block_on(api.get_opt(name)).unwrap().map(|vmi| vmi.uid().unwrap())
    };
    let before = names.map(|name| instance(name).unwrap());

    namespace.apply(&pool("288Mi")).unwrap();
    for (name, before) in names.iter().zip(&before) {
        let renewed = |vmi: &v1::VirtualMachineInstance| {
            let memory = vmi.spec.domain.memory.as_ref().and_then(|memory| memory.guest.as_ref());
            vmi.uid().as_ref() != Some(before) && memory.is_some_and(|guest| guest.0 == "288Mi")
        };
        namespace.wait(name, &format!("{name} made anew"), BOOT, renewed).unwrap();
    }
    let second = names.map(|name| ready(&namespace, name).uid().unwrap());
    assert_eq!(first, second, "the VirtualMachines are the same");
    let revisions = || {
        let list =
            ["get", "controllerrevisions", "-o", "jsonpath={range .items[*]}{.metadata.name}{'\\n'}{end}"];
        let list = namespace.kubectl(&list)?;
        let of_pool: Vec<String> =
            list.lines().filter(|name| name.starts_with("web-")).map(str::to_owned).collect();
        Ok((of_pool.len() == 1).then_some(()))
    };
    namespace.until("one revision of the pool", SOON, revisions).unwrap();

    namespace.kubectl(&["scale", "vmpool", "web", "--replicas", "1"]).unwrap();
    let one = |pool: &v1::VirtualMachinePool| pool.status.replicas == Some(1);
    namespace.wait("web", "one machine", BOOT, one).unwrap();
    namespace.kubectl(&["delete", "vmpool", "web"]).unwrap();
    for name in names {
        namespace.wait_gone::<v1::VirtualMachine>(name, BOOT).unwrap();
    }
}

#[test]
fn a_new_machine_gets_what_its_preset_says() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let preset = "{apiVersion: kubevirt.io/v1, kind: VirtualMachineInstancePreset, metadata: {name: two}, \
                  spec: {selector: {matchLabels: {vm: small}}, domain: {cpu: {cores: 2}, devices: {}}}}";
    namespace.apply(preset).unwrap();
    let manifest = Manifest { name: "small", spec: "nodeSelector: {nowhere: here}", ..Default::default() };
    // virt-api does not tell whether it has seen the preset.
    let has_it = || {
        namespace.apply(&manifest.instance())?;
        let vmi = cluster.block_on(namespace.api::<v1::VirtualMachineInstance>().get("small"))?;
        if vmi.annotations().get("virtualmachinepreset.kubevirt.io/two").is_some() {
            return Ok(Some(vmi));
        }
        namespace.kubectl(&["delete", "vmi", "small"])?;
        Ok(None)
    };
    let vmi = namespace.until("a machine with its preset", SOON, has_it).unwrap();
    assert_eq!(vmi.spec.domain.cpu.as_ref().and_then(|cpu| cpu.cores), Some(2));
    let clashing = preset.replace("name: two", "name: three").replace("cores: 2", "cores: 3");
    namespace.apply(&clashing).unwrap();
    let other = Manifest { name: "other", ..manifest }.instance().replace("vm: \"other\"", "vm: small");
    let refused = || {
        let error = namespace.apply(&other).err().map(|error| error.to_string());
        if error.is_none() {
            namespace.kubectl(&["delete", "vmi", "other"])?;
        }
        Ok(error)
    };
    let error = namespace.until("a refusal", SOON, refused).unwrap();
    assert!(error.contains("cannot be applied due to conflicts"), "{error}");
}
