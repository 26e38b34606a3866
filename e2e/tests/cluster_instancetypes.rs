//! Instance types and preferences on the cluster, as their users see them.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails it")]

use k8s_openapi::api::apps::v1::ControllerRevision;
use podvirt_api::v1;
use podvirt_e2e::cluster::{BOOT, Cluster, Namespace, SOON, Security};

/// A type of the cluster, which goes with the value.
struct OfCluster<'c> {
    cluster: &'c Cluster,
    resource: &'static str,
    name: String,
}

impl<'c> OfCluster<'c> {
    fn new(cluster: &'c Cluster, resource: &'static str, kind: &str, name: String, spec: &str) -> Self {
        cluster.kubectl_with(&["apply", "-f", "-"], &manifest(kind, &name, spec)).unwrap();
        OfCluster { cluster, resource, name }
    }
}

impl Drop for OfCluster<'_> {
    fn drop(&mut self) {
        // It may be gone already.
        drop(self.cluster.kubectl(&["delete", self.resource, &self.name, "--ignore-not-found"]));
    }
}

fn manifest(kind: &str, name: &str, spec: &str) -> String {
    format!(
        "{{apiVersion: instancetype.kubevirt.io/v1beta1, kind: {kind}, metadata: {{name: {name}}}, spec: {spec}}}"
    )
}

/// A machine that names what `more` says. Its guest stands still: nothing is asked of it.
fn machine(name: &str, more: &str) -> String {
    format!(
        "{{apiVersion: kubevirt.io/v1, kind: VirtualMachine, metadata: {{name: {name}}}, spec: {{runStrategy: Always, {more}, \
         template: {{spec: {{terminationGracePeriodSeconds: 0, startStrategy: Paused, domain: {{devices: {{}}}}, \
         volumes: [{{name: root, containerDisk: {{image: 'podvirt/disk-tiny:dev'}}}}]}}}}}}}}"
    )
}

fn revision_of(vm: &v1::VirtualMachine) -> Option<String> {
    vm.status.instancetype_ref.as_ref()?.controller_revision_ref.as_ref()?.name.clone()
}

fn failure(vm: &v1::VirtualMachine) -> Option<&str> {
    let failure = vm.status.conditions.iter().find(|condition| condition.r#type.as_str() == "Failure")?;
    failure.reason.as_deref()
}

fn refused(namespace: &Namespace<'_>, manifest: &str) -> String {
    namespace.apply(manifest).unwrap_err().to_string()
}

#[test]
fn a_machine_is_of_the_size_that_it_names_and_stays_so() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let own = namespace.name();
    let small = OfCluster::new(
        &cluster,
        "vmcf",
        "VirtualMachineClusterInstancetype",
        format!("{own}-small"),
        "{cpu: {guest: 2}, memory: {guest: 256Mi}}",
    );
    let likes = OfCluster::new(
        &cluster,
        "vmcp",
        "VirtualMachineClusterPreference",
        format!("{own}-likes"),
        "{cpu: {preferredCPUTopology: cores}, devices: {preferredDiskBus: virtio}}",
    );
    let names = format!("instancetype: {{name: {}}}, preference: {{name: {}}}", small.name, likes.name);
    namespace.apply(&machine("vm", &names)).unwrap();
    let instance = namespace.wait_phase("vm", "Running", BOOT).unwrap();
    let domain = serde_json::to_value(&instance.spec.domain).unwrap();
    assert_eq!((&domain["cpu"]["cores"], &domain["memory"]["guest"]), (&2.into(), &"256Mi".into()));
    assert_eq!(domain["devices"]["disks"][0]["disk"]["bus"], "virtio");
    let annotations = instance.metadata.annotations.as_ref().unwrap();
    assert_eq!(annotations["kubevirt.io/cluster-instancetype-name"], small.name);
    let vm = namespace
        .wait::<v1::VirtualMachine>("vm", "a reference", SOON, |vm| revision_of(vm).is_some())
        .unwrap();
    let revision = revision_of(&vm).unwrap();
    assert!(vm.spec.instancetype.is_some(), "it goes on naming it");
    assert_eq!(vm.status.conditions.iter().find(|c| c.r#type.as_str() == "RestartRequired"), None);

    // What becomes of the type does not touch the machine; a change of it does, at its next start.
    let larger = "{cpu: {guest: 3}, memory: {guest: 256Mi}}";
    cluster
        .kubectl_with(
            &["apply", "-f", "-"],
            &manifest("VirtualMachineClusterInstancetype", &small.name, larger),
        )
        .unwrap();
    namespace.kubectl(&["label", "vm", "vm", "a=b"]).unwrap();
    assert!(namespace.virtctl(&["expand", "--vm", "vm"]).unwrap().contains("cores: 2"));
    let conflict = machine("other", &names).replace("domain: {", "domain: {memory: {guest: 1Gi}, ");
    let told = refused(&namespace, &conflict);
    assert!(
        told.contains("spec.template.spec.domain.memory.guest conflicts with selected instance type"),
        "{told}"
    );

    // As upstream's test of the machine's end: what it was made from may be gone before it.
    namespace.kubectl(&["delete", "controllerrevision", &revision]).unwrap();
    drop(small);
    namespace.kubectl(&["delete", "vm", "vm", "--wait=false"]).unwrap();
    namespace.wait_gone::<v1::VirtualMachine>("vm", SOON).unwrap();
}

#[test]
fn a_machine_waits_for_what_it_names() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let names = "instancetype: {name: later, kind: VirtualMachineInstancetype}, \
                 preference: {name: later, kind: VirtualMachinePreference}";
    namespace.apply(&machine("vm", names)).unwrap();
    let told = |vm: &v1::VirtualMachine| failure(vm) == Some("FailedFindInstancetype");
    namespace.wait("vm", "a missing instance type told", SOON, told).unwrap();
    let preference = "{devices: {preferredDiskBus: virtio}}";
    namespace.apply(&manifest("VirtualMachinePreference", "later", preference)).unwrap();
    let size = "{cpu: {guest: 1}, memory: {guest: 256Mi}}";
    namespace.apply(&manifest("VirtualMachineInstancetype", "later", size)).unwrap();
    namespace.wait_phase("vm", "Running", BOOT).unwrap();
    let well = |vm: &v1::VirtualMachine| failure(vm).is_none() && revision_of(vm).is_some();
    let vm = namespace.wait::<v1::VirtualMachine>("vm", "well", SOON, well).unwrap();
    let revision = revision_of(&vm).unwrap();

    // Of a claim that says so.
    let claim = "{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: disk, labels: \
                 {instancetype.kubevirt.io/default-instancetype: later, \
                 instancetype.kubevirt.io/default-instancetype-kind: VirtualMachineInstancetype}}, \
                 spec: {storageClassName: '', accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}}";
    namespace.apply(claim).unwrap();
    let of_claim =
        machine("inferred", "instancetype: {inferFromVolume: root}").replace("Always", "Halted").replace(
            "containerDisk: {image: 'podvirt/disk-tiny:dev'}",
            "persistentVolumeClaim: {claimName: disk}",
        );
    namespace.apply(&of_claim).unwrap();
    let named =
        namespace.kubectl(&["get", "vm", "inferred", "-o", "jsonpath={.spec.instancetype.name}"]).unwrap();
    assert_eq!(named, "later");
    let other = of_claim.replace("name: inferred", "name: other").replace("instancetype:", "preference:");
    let told = refused(&namespace, &other);
    assert!(
        told.contains("unable to find required instancetype.kubevirt.io/default-preference label"),
        "{told}"
    );

    let gpu = "{cpu: {guest: 1}, memory: {guest: 256Mi}, gpus: [{name: g, deviceName: example.org/gpu}]}";
    namespace.apply(&manifest("VirtualMachineInstancetype", "gpu", gpu)).unwrap();
    let told =
        refused(&namespace, &machine("gpu", "instancetype: {name: gpu, kind: VirtualMachineInstancetype}"));
    assert!(told.contains("VirtualMachineInstancetype \"gpu\" asks for it by spec.gpus"), "{told}");

    // With the machine go its revisions.
    namespace.kubectl(&["delete", "vm", "vm", "inferred"]).unwrap();
    namespace.wait_gone::<ControllerRevision>(&revision, SOON).unwrap();
}
