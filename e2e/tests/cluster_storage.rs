//! The test bed's own storage with the Containerized Data Importer, and machines whose disks this fills. Its images take a quarter
//! of an hour to make, once, so it is not among the quick tests; then each of these is two minutes.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails it")]

use std::fs::File;
use std::io::Read as _;
use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::ListParams;
use podvirt_api::cdi::DataVolume;
use podvirt_api::names::annotation::EPHEMERAL_PROVISIONING;
use podvirt_api::v1;
use podvirt_e2e::cluster::{BOOT, Cluster, Namespace, SOON, Security, prepare_storage};

/// An import, and the start of the machine that waits for it.
const FILLED: Duration = Duration::from_secs(240);
/// A command in the guest.
const COMMAND: Duration = Duration::from_secs(30);

/// Access modes, volume modes, both nodes, growth under a pod that runs, snapshots and clones.
#[test]
fn long_claims_of_every_mode_are_written_copied_and_grown() {
    prepare_storage().unwrap();
    let cluster = Cluster::get().unwrap();
    cluster.storage().unwrap().check_claims().unwrap();
}

/// Of nothing, of a web server, of an image on the node, of an upload, and of other volumes.
#[test]
fn long_data_volumes_of_every_source_have_what_they_are_of() {
    prepare_storage().unwrap();
    let cluster = Cluster::get().unwrap();
    cluster.storage().unwrap().check_data_volumes().unwrap();
}

/// A machine whose disk is a DataVolume of its own name, filled from `source`, with the DataVolume's annotations.
fn machine(name: &str, source: &str, annotations: &str) -> String {
    format!(
        "{{apiVersion: kubevirt.io/v1, kind: VirtualMachine, metadata: {{name: {name}}}, spec: {{runStrategy: Always, \
         dataVolumeTemplates: [{{metadata: {{name: {name}, annotations: {{{annotations}}}}}, spec: {{source: {source}, \
         storage: {{storageClassName: bed-wait, resources: {{requests: {{storage: 64Mi}}}}}}}}}}], \
         template: {{spec: {{terminationGracePeriodSeconds: 5, domain: {{memory: {{guest: 256Mi}}, \
         devices: {{disks: [{{name: root, disk: {{bus: virtio}}}}]}}}}, volumes: [{{name: root, dataVolume: {{name: {name}}}}}]}}}}}}}}"
    )
}

const IMAGE: &str = "{registry: {url: 'docker://docker.io/podvirt/disk-tiny:dev', pullMethod: node}}";

fn is(vm: &v1::VirtualMachine, word: &str) -> bool {
    vm.status.printable_status.as_ref().is_some_and(|status| status.as_str() == word)
}

fn wait(namespace: &Namespace<'_>, name: &str, word: &str) {
    namespace.wait::<v1::VirtualMachine>(name, word, FILLED, |vm| is(vm, word)).unwrap();
}

/// By the machine's own pod, where CDI's populators leave the claim to it, and by a pod that goes before, where they do not.
#[test]
fn long_a_machine_starts_from_a_data_volume_however_its_storage_binds() {
    prepare_storage().unwrap();
    let cluster = Cluster::get().unwrap();
    let _storage = cluster.storage().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    namespace.apply(&machine("own", IMAGE, "")).unwrap();
    namespace.apply(&machine("before", IMAGE, "cdi.kubevirt.io/storage.usePopulator: 'false'")).unwrap();
    // A pod that runs nothing of the machine is the claim's consumer, and ends.
    let consumer = namespace.until("the consumer", SOON, || {
        let list = ListParams::default().labels("vm.kubevirt.io/name=before");
        let pods = cluster.block_on(namespace.api::<Pod>().list(&list))?.items;
        let is_consumer = |pod: &Pod| {
            pod.metadata.annotations.iter().flatten().any(|(key, _)| key == EPHEMERAL_PROVISIONING)
        };
        Ok(pods.into_iter().find(is_consumer))
    });
    let consumer = consumer.unwrap().metadata.name.unwrap();
    wait(&namespace, "own", "Running");
    wait(&namespace, "before", "Running");
    namespace.wait_gone::<Pod>(&consumer, SOON).unwrap();

    // What the guest writes is on the claim at its next start.
    let (mut console, running) = namespace.shell("own").unwrap();
    let written = "echo kept | dd of=/dev/vda bs=512 seek=131000 conv=fsync 2>&1";
    assert_eq!(console.run(written, COMMAND).unwrap().status, 0);
    drop((console, running));
    namespace.virtctl(&["restart", "own"]).unwrap();
    let uid = |vmi: &v1::VirtualMachineInstance| vmi.metadata.uid.clone();
    let before = cluster.block_on(namespace.api::<v1::VirtualMachineInstance>().get("own")).unwrap();
    let again = |vmi: &v1::VirtualMachineInstance| {
        uid(vmi) != uid(&before) && vmi.status.phase == Some(v1::VirtualMachineInstancePhase::Running)
    };
    namespace.wait::<v1::VirtualMachineInstance>("own", "started again", BOOT, again).unwrap();
    let (mut console, _running) = namespace.shell("own").unwrap();
    let read =
        console.run("dd if=/dev/vda bs=512 skip=131000 count=1 2>/dev/null | head -n 1", COMMAND).unwrap();
    assert_eq!(read.text.trim(), "kept");

    // They are the machine's, and go with it.
    namespace.kubectl(&["delete", "vm", "own", "before"]).unwrap();
    for name in ["own", "before"] {
        namespace.wait_gone::<DataVolume>(name, FILLED).unwrap();
        namespace.wait_gone::<PersistentVolumeClaim>(name, FILLED).unwrap();
    }
}

#[test]
fn long_a_copy_of_another_namespace_needs_the_machines_own_right() {
    prepare_storage().unwrap();
    let cluster = Cluster::get().unwrap();
    let _storage = cluster.storage().unwrap();
    let images = cluster.namespace(Security::Restricted).unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let image = format!(
        "{{apiVersion: cdi.kubevirt.io/v1beta1, kind: DataVolume, metadata: {{name: image, annotations: \
         {{cdi.kubevirt.io/storage.bind.immediate.requested: 'true'}}}}, spec: {{source: {IMAGE}, \
         storage: {{storageClassName: bed-wait, resources: {{requests: {{storage: 64Mi}}}}}}}}}}"
    );
    images.apply(&image).unwrap();
    images.wait::<DataVolume>("image", "filled", FILLED, |data| data.status.phase == "Succeeded").unwrap();

    let source = format!("{{pvc: {{namespace: {}, name: image}}}}", images.name());
    namespace.apply(&machine("copy", &source, "")).unwrap();
    let is_denied = |vm: &v1::VirtualMachine| {
        let messages = vm.status.conditions.iter().filter(|condition| condition.r#type.as_str() == "Failure");
        messages
            .filter_map(|condition| condition.message.as_deref())
            .any(|message| message.contains("insufficient permissions in clone source namespace"))
    };
    namespace.wait::<v1::VirtualMachine>("copy", "denied", SOON, is_denied).unwrap();
    // That an annotation has the claim filled already takes nothing away from the right.
    let annotation = "cdi.kubevirt.io/storage.checkStaticVolume: ''";
    namespace.apply(&machine("static", &source, annotation)).unwrap();
    namespace.wait::<v1::VirtualMachine>("static", "denied", SOON, is_denied).unwrap();
    let made = cluster.block_on(namespace.api::<DataVolume>().get_opt("static")).unwrap();
    assert!(made.is_none(), "{made:?}");
    namespace.kubectl(&["delete", "vm", "static"]).unwrap();
    let role = ["create", "role", "copies", "--verb=create", "--resource=datavolumes.cdi.kubevirt.io/source"];
    images.kubectl(&role).unwrap();
    let account = format!("--serviceaccount={}:default", namespace.name());
    images.kubectl(&["create", "rolebinding", "copies", "--role=copies", &account]).unwrap();
    wait(&namespace, "copy", "Running");
    namespace.shell("copy").unwrap();
}

/// From a file here to a claim, and back: bytes that no image format has.
#[test]
fn long_an_image_that_virtctl_uploads_is_exported_as_it_was() {
    prepare_storage().unwrap();
    let cluster = Cluster::get().unwrap();
    let _storage = cluster.storage().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let files = tempfile::tempdir().unwrap();
    let (image, back) = (files.path().join("image"), files.path().join("back"));
    let mut bytes = vec![0; 8 << 20];
    File::open("/dev/urandom").unwrap().read_exact(&mut bytes).unwrap();
    std::fs::write(&image, &bytes).unwrap();
    let address = "jsonpath={.items[0].status.podIP}";
    let select = ["-n", "cdi", "get", "pod", "-l", "cdi.kubevirt.io=cdi-uploadproxy", "-o", address];
    let proxy = format!("--uploadproxy-url=https://{}:8443", cluster.kubectl(&select).unwrap().trim());
    let path = format!("--image-path={}", image.display());
    let upload =
        ["image-upload", "pvc", "up", "--size=16Mi", "--storage-class=bed-block", "--volume-mode=block"];
    namespace.virtctl(&[&upload[..], &[&proxy, "--insecure", &path]].concat()).unwrap();
    let output = format!("--output={}", back.display());
    let download = ["vmexport", "download", "out", "--pvc=up", "--format=raw", "--port-forward", &output];
    namespace.virtctl(&download).unwrap();
    let got = std::fs::read(&back).unwrap();
    assert_eq!(got.len(), 16 << 20);
    assert!(got[..bytes.len()] == bytes && got[bytes.len()..].iter().all(|byte| *byte == 0));
}
