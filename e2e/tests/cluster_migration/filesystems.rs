//! Machines with file systems: the guest has the files of a claim and of the cluster's objects, and has them still when it has moved.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use podvirt_e2e::cluster::{Cluster, Manifest, Namespace, SOON, Security};
use serde_json::json;

use crate::claims::Volume;
use crate::moving::Machine;

/// The machine's file systems.
const NAMES: [&str; 5] = ["data", "settings", "password", "account", "about"];

fn exec(namespace: &Namespace<'_>, pod: &Pod, container: &str, command: &str) -> String {
    let said =
        namespace.kubectl(&["exec", &pod.name_any(), "-c", container, "--", "sh", "-c", command]).unwrap();
    said.trim().to_owned()
}

/// What the objects of the cluster say, as the guest reads it.
fn assert_objects(machine: &mut Machine<'_>, namespace: &str) {
    assert_eq!(machine.sh("cat /mnt/settings/option /mnt/password/word"), "valuesecret");
    assert_eq!(machine.sh("cat /mnt/account/namespace"), namespace);
    assert_eq!(machine.sh("cat /mnt/about/name"), "vm");
    assert!(!machine.sh("head -c 10 /mnt/account/token").is_empty());
}

/// The guest mounts all of them, in a pod that Pod Security `restricted` admits. What it writes to the claim the pod has, and the
/// node, and the other way round. It moves while it has a file open that it goes on writing, and one that is read is the same at
/// the target.
#[test]
fn a_guest_has_files_of_a_claim_and_of_objects_and_moves_with_them() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let data = Volume::new(&namespace, "data", "ReadWriteMany");
    data.on_node(1, &format!("mkdir {0}/deep; echo first >{0}/deep/file; chown -R 107:107 {0}", data.path()));
    namespace
        .apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: settings}, data: {option: value}}")
        .unwrap();
    namespace
        .apply("{apiVersion: v1, kind: Secret, metadata: {name: password}, stringData: {word: secret}}")
        .unwrap();
    let filesystems = NAMES.map(|name| format!("{{name: {name}, virtiofs: {{}}}}")).join(", ");
    let manifest = Manifest {
        name: "vm",
        volumes: "{name: data, persistentVolumeClaim: {claimName: data}}, \
                  {name: settings, configMap: {name: settings}}, \
                  {name: password, secret: {secretName: password}}, \
                  {name: account, serviceAccount: {serviceAccountName: default}}, \
                  {name: about, downwardAPI: {fields: [{path: name, fieldRef: {fieldPath: 'metadata.labels[''vm'']'}}]}}",
        devices: &format!("filesystems: [{filesystems}]"),
        ..Default::default()
    };
    let mut machine = Machine::start(&namespace, &manifest);
    let source = machine.pod();
    ends_without_a_client(&namespace, &source);
    for name in NAMES {
        machine.sh(&format!("mkdir -p /mnt/{name} && mount -t virtiofs {name} /mnt/{name}"));
    }
    assert_objects(&mut machine, namespace.name());
    assert_eq!(machine.sh("cat /mnt/data/deep/file"), "first");
    let refused = machine.sh("{ echo more >/mnt/settings/option; } 2>/dev/null || echo refused");
    assert_eq!(refused, "refused");

    machine.sh("exec 7>/mnt/data/log; echo before >&7");
    let place = "/var/run/kubevirt-private/vmi-disks/data";
    for container in ["compute", "virtiofs-data"] {
        assert_eq!(
            exec(&namespace, &source, container, &format!("cat {place}/log")),
            "before",
            "{container}"
        );
    }
    assert_eq!(data.on_node(2, &format!("cat {}/log", data.path())).trim(), "before");

    let migration = machine.migrate();
    machine.has_moved(&migration, &source);
    machine.sh("echo after >&7; exec 7>&-; sync");
    assert_eq!(machine.sh("cat /mnt/data/log"), "before\nafter");
    let target = machine.pod();
    assert_eq!(exec(&namespace, &target, "virtiofs-data", &format!("cat {place}/log")), "before\nafter");
    assert_eq!(machine.sh("cat /mnt/data/deep/file"), "first");
    assert_objects(&mut machine, namespace.name());
    stays_in_its_volume(&namespace, &mut machine, &target, &data);

    // The guest has its files until it has shut down; and virtiofsd ends with its machine, so that the pod does.
    namespace.virtctl(&["stop", "vm"]).unwrap();
    namespace.wait_ended(&target).unwrap();
    let events =
        ["get", "events", "--field-selector", "involvedObject.kind=VirtualMachineInstance,reason=Stopped"];
    let events = namespace.kubectl(&events).unwrap();
    assert!(events.contains("the machine was shut down: the guest shut down"), "{events}");
}

/// Links on a volume that lead out of it, made by the guest and by another who has the claim, lead the guest to its own files. In the pod
/// they lead to the pod's, which shows where virtiofsd would follow them.
fn stays_in_its_volume(
    namespace: &Namespace<'_>,
    machine: &mut Machine<'_>,
    pod: &Pod,
    data: &Volume<'_, '_>,
) {
    const FILE: &str = "/etc/os-release";
    let up = "../".repeat(16);
    let links = [
        ("absolute", FILE.to_owned(), ""),
        ("relative", format!("{up}etc/os-release"), ""),
        ("directory", format!("{up}etc"), "/os-release"),
    ];
    for (name, to, behind) in &links {
        machine.sh(&format!("ln -s {to} /mnt/data/guest-{name}"));
        data.on_node(1, &format!("ln -s {to} {}/other-{name}", data.path()));
        for author in ["guest", "other"] {
            let link = format!("{author}-{name}{behind}");
            let place = "/var/run/kubevirt-private/vmi-disks/data";
            let there = exec(namespace, pod, "virtiofs-data", &format!("cat {place}/{link}"));
            assert!(there.contains("PRETTY_NAME"), "{link} in the pod: {there}");
            let here = machine.sh(&format!("cat /mnt/data/{link} 2>&1 || true"));
            eprintln!("{link} in the guest: {here}");
            assert!(!here.contains("PRETTY_NAME"), "{link} in the guest: {here}");
        }
    }
}

/// A pod whose machine does not come has no client for its virtiofsd, and waits for none when it is deleted.
fn ends_without_a_client(namespace: &Namespace<'_>, pod: &Pod) {
    let spec = pod.spec.as_ref().unwrap();
    let container = spec.containers.iter().find(|container| container.name == "virtiofs-settings").unwrap();
    let volumes: Vec<_> = container
        .volume_mounts
        .iter()
        .flatten()
        .map(|mount| json!({"name": mount.name, "emptyDir": {}}))
        .collect();
    let alone = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "alone"},
        "spec": {
            "containers": [container], "volumes": volumes, "securityContext": spec.security_context,
            "terminationGracePeriodSeconds": 600, "automountServiceAccountToken": false,
        },
    });
    namespace.apply(&alone.to_string()).unwrap();
    namespace.wait_pod("alone", SOON).unwrap();
    namespace.kubectl(&["delete", "pod", "alone", "--wait=false"]).unwrap();
    namespace.wait_gone::<Pod>("alone", SOON).unwrap();
}
