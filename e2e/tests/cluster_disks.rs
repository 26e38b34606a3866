//! What a machine's disks hold, and for how long.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails it")]

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use podvirt_api::names::launcher_name;
use podvirt_api::names::pod::{COMPUTE, ENDED_WITH_POD};
use podvirt_api::v1;
use podvirt_e2e::Console;
use podvirt_e2e::cluster::{BOOT, Cluster, Manifest, Namespace, SOON, Security};

/// A command in the guest.
const COMMAND: Duration = Duration::from_secs(30);

/// The kubelet's measures, some of them, and the end of a pod.
const EVICTION: Duration = Duration::from_secs(300);

/// How long a line typed while the guest starts is waited for, before another one is typed.
const ATTEMPT: Duration = Duration::from_secs(5);

/// Where a node has room for volumes of tests.
const ROOM: &str = "/var/lib/kubelet/volumes-of-tests";

/// A volume on node 1 with a disk image that begins with a text, for one claim. Dropping it deletes it.
struct Volume<'n, 'c> {
    namespace: &'n Namespace<'c>,
    name: String,
    claim: &'static str,
}

impl<'n, 'c> Volume<'n, 'c> {
    fn new(namespace: &'n Namespace<'c>, claim: &'static str, text: &str) -> Volume<'n, 'c> {
        let volume = Volume { namespace, name: format!("{}-{claim}", namespace.name()), claim };
        let (name, path) = (&volume.name, volume.path());
        volume.on_node(&format!(
            "mkdir -p {path}; printf '{text}\\n' >{path}/disk.img; truncate -s 1M {path}/disk.img; chown -R 107:107 {path}"
        ));
        namespace
            .cluster()
            .kubectl_with(
                &["apply", "-f", "-"],
                &format!(
                    "{{apiVersion: v1, kind: PersistentVolume, metadata: {{name: {name}}}, spec: {{capacity: {{storage: 1Mi}}, \
                     accessModes: [ReadWriteOnce], storageClassName: '', hostPath: {{path: {path}, type: Directory}}, \
                     claimRef: {{namespace: {}, name: {claim}}}, persistentVolumeReclaimPolicy: Retain, \
                     nodeAffinity: {{required: {{nodeSelectorTerms: [{{matchExpressions: [{{key: kubernetes.io/hostname, operator: In, values: [node1]}}]}}]}}}}}}}}",
                    namespace.name()
                ),
            )
            .unwrap();
        volume
    }

    fn path(&self) -> String {
        format!("{ROOM}/{}", self.name)
    }

    fn on_node(&self, command: &str) -> String {
        self.namespace.cluster().node(1).run(&["sh", "-ec", command]).unwrap()
    }

    /// Makes the claim.
    fn claim(&self) {
        self.namespace
            .apply(&format!(
                "{{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {{name: {}}}, spec: {{accessModes: [ReadWriteOnce], \
                 storageClassName: '', volumeName: {}, resources: {{requests: {{storage: 1Mi}}}}}}}}",
                self.claim, self.name
            ))
            .unwrap();
    }

    /// The first line on the disk.
    fn first_line(&self) -> String {
        self.on_node(&format!("head -n 1 {}/disk.img", self.path())).trim().to_owned()
    }
}

impl Drop for Volume<'_, '_> {
    fn drop(&mut self) {
        let cluster = self.namespace.cluster();
        drop(cluster.kubectl(&["delete", "pv", &self.name, "--wait=false"]));
        drop(cluster.node(1).run(&["rm", "-rf", &self.path()]));
    }
}

/// A machine that boots the tiny guest's kernel from an image. Each disk has its volume's name as its serial number.
fn machine(volumes: &[(&str, &str)]) -> String {
    let disks: Vec<String> = volumes
        .iter()
        .map(|(name, _)| format!("{{name: {name}, serial: {name}, disk: {{bus: virtio}}}}"))
        .collect();
    let volumes: Vec<String> =
        volumes.iter().map(|(name, source)| format!("{{name: {name}, {source}}}")).collect();
    format!(
        "{{apiVersion: kubevirt.io/v1, kind: VirtualMachine, metadata: {{name: vm}}, spec: {{runStrategy: Always, template: {{spec: \
         {{terminationGracePeriodSeconds: 30, networks: [{{name: default, pod: {{}}}}], volumes: [{}], domain: {{memory: {{guest: 256Mi}}, \
         firmware: {{kernelBoot: {{kernelArgs: 'console=ttyS0 quiet panic=-1 mitigations=off test.argument=7', container: \
         {{image: 'podvirt/kernel-tiny:dev', kernelPath: /vmlinuz, initrdPath: /initrd.img}}}}}}, \
         devices: {{interfaces: [{{name: default, passtBinding: {{}}}}], disks: [{}]}}}}}}}}}}}}",
        volumes.join(", "),
        disks.join(", ")
    )
}

fn secret(namespace: &Namespace<'_>, user_data: &str) {
    namespace
        .apply(&format!(
            "{{apiVersion: v1, kind: Secret, metadata: {{name: seed}}, stringData: {{userdata: {user_data:?}}}}}"
        ))
        .unwrap();
}

/// The device of a disk, for a shell in the guest.
fn device(serial: &str) -> String {
    format!("/dev/$(cd /sys/block; grep -lx {serial} */serial | cut -d / -f 1)")
}

/// The first line on a disk, as the guest sees it; a zero byte is shown as a dot.
fn read(console: &mut Console, serial: &str) -> String {
    let text = format!("head -c 16 {} | tr '\\000' . | head -n 1", device(serial));
    console.sh(&text, COMMAND).unwrap()
}

fn write(console: &mut Console, serial: &str, text: &str) {
    let write = format!("echo {text} | dd of={} conv=notrunc,fsync", device(serial));
    console.sh(&write, COMMAND).unwrap();
}

#[test]
fn a_machine_waits_for_its_claim_and_then_boots_with_it() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    secret(&namespace, "#cloud-config\nhostname: secret\n");
    namespace
        .apply(&machine(&[
            ("data", "persistentVolumeClaim: {claimName: data}"),
            ("seed", "cloudInitNoCloud: {secretRef: {name: seed}}"),
        ]))
        .unwrap();
    let missing = |vm: &v1::VirtualMachine| {
        vm.status.printable_status.as_ref().is_some_and(|s| s.as_str() == "ErrorPvcNotFound")
    };
    namespace.wait("vm", "the missing claim", SOON, missing).unwrap();
    let told = |i: &v1::VirtualMachineInstance| {
        let name = format!("{}/data does not exist", namespace.name());
        i.status.conditions.iter().any(|c| c.message.as_deref().is_some_and(|m| m.contains(&name)))
    };
    namespace.wait("vm", "which claim it is", SOON, told).unwrap();

    let volume = Volume::new(&namespace, "data", "before");
    volume.claim();
    let instance = namespace.wait_phase("vm", "Running", BOOT).unwrap();
    assert_eq!(instance.status.node_name.as_deref(), Some("node1"));
    let (mut console, _running) = namespace.shell("vm").unwrap();
    assert!(console.sh("cat /proc/cmdline", COMMAND).unwrap().contains("test.argument=7"));
    assert_eq!(console.sh("hostname", COMMAND).unwrap(), "secret");
    assert_eq!(read(&mut console, "data"), "before");
    write(&mut console, "data", "written");
    assert_eq!(volume.first_line(), "written");
}

/// Disks on the SCSI bus, more than libvirt itself gives to a controller.
const SCSI_DISKS: usize = 20;

#[test]
fn disks_of_configuration_have_the_files_of_the_namespace_and_twenty_on_the_scsi_bus_one_controller() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    for object in [
        "{apiVersion: v1, kind: ConfigMap, metadata: {name: settings}, data: {option1: value1, option2: value2}}",
        "{apiVersion: v1, kind: Secret, metadata: {name: keys}, stringData: {password: hidden}}",
        "{apiVersion: v1, kind: ServiceAccount, metadata: {name: robot}}",
    ] {
        namespace.apply(object).unwrap();
    }
    let fields = "[{path: labels, fieldRef: {fieldPath: metadata.labels}}]";
    let labels = format!("downwardAPI: {{fields: {fields}}}");
    let scsi: Vec<String> = (0..SCSI_DISKS).map(|n| format!("disk{n}")).collect();
    let mut volumes = vec![
        ("settings", "configMap: {name: settings}"),
        ("keys", "secret: {secretName: keys, volumeLabel: mine}"),
        ("labels", labels.as_str()),
        ("token", "serviceAccount: {serviceAccountName: robot}"),
        ("stick", "emptyDisk: {capacity: 1Mi}"),
    ];
    volumes.extend(scsi.iter().map(|name| (name.as_str(), "emptyDisk: {capacity: 1Mi}")));
    let mut manifest = machine(&volumes);
    for (name, bus) in scsi.iter().map(|name| (name.as_str(), "scsi")).chain([("stick", "usb")]) {
        let disk = format!("{{name: {name}, serial: {name}, disk: {{bus: virtio}}}}");
        assert!(manifest.contains(&disk), "{manifest}");
        manifest = manifest.replace(&disk, &disk.replace("virtio", bus));
    }
    namespace.apply(&manifest).unwrap();
    namespace.wait_phase("vm", "Running", BOOT).unwrap();
    let (mut console, _running) = namespace.shell("vm").unwrap();
    let mut files = |serial: &str, command: &str| {
        let device = device(serial);
        let text =
            format!("mkdir -p /m; mount -t iso9660 -o ro {device} /m && (cd /m; {command}); umount /m");
        console.sh(&text, COMMAND).unwrap()
    };
    assert_eq!(files("settings", "ls | tr '\\n' ' '; cat option1 option2"), "option1 option2 value1value2");
    assert_eq!(files("keys", "cat password"), "hidden");
    assert!(files("labels", "cat labels").contains("vm.kubevirt.io/name=\"vm\""));
    assert_eq!(files("token", "cat namespace; cut -c 1-3 token"), format!("{}eyJ", namespace.name()));
    // The volume identifier of the primary volume descriptor (ECMA-119, 8.4.7).
    let label = format!("dd if={} bs=1 skip=32808 count=7 2>/dev/null", device("keys"));
    assert_eq!(console.sh(&label, COMMAND).unwrap().trim(), "mine");
    // The guest's kernel has no driver for it.
    let pod = namespace.launcher("vm").unwrap().metadata.name.unwrap();
    let qemu = namespace.exec(&pod, &["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"]).unwrap();
    assert!(qemu.contains("usb-storage"), "{qemu}");
    let all = format!("until [ $(ls /sys/block | grep -c ^sd) = {SCSI_DISKS} ]; do usleep 100000; done");
    let controllers = "ls -d /sys/bus/virtio/drivers/virtio_scsi/virtio* | wc -l";
    assert_eq!(console.sh(&format!("{all}; {controllers}"), COMMAND).unwrap(), "1");
}

#[test]
fn long_disks_live_as_long_as_their_kind() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    secret(&namespace, "#cloud-config\nhostname: drive\n");
    let (data, base) = (Volume::new(&namespace, "data", "data"), Volume::new(&namespace, "base", "base"));
    data.claim();
    base.claim();
    namespace
        .apply(&machine(&[
            ("data", "persistentVolumeClaim: {claimName: data}"),
            ("base", "ephemeral: {persistentVolumeClaim: {claimName: base}}"),
            ("empty", "emptyDisk: {capacity: 1Mi}"),
            ("seed", "cloudInitConfigDrive: {secretRef: {name: seed}}"),
        ]))
        .unwrap();
    let first = namespace.wait_phase("vm", "Running", BOOT).unwrap();
    let (mut console, running) = namespace.shell("vm").unwrap();
    assert_eq!(console.sh("hostname", COMMAND).unwrap(), "drive");
    let blank = ".".repeat(16);
    for (disk, text) in [("data", "data"), ("base", "base"), ("empty", &blank)] {
        assert_eq!(read(&mut console, disk), text);
        write(&mut console, disk, &format!("new-{disk}"));
    }
    assert_eq!(console.sh(&format!("blockdev --getsize64 {}", device("empty")), COMMAND).unwrap(), "1048576");

    // The guest starts anew: all is as it left it.
    let boot = "cat /proc/sys/kernel/random/boot_id";
    let before = console.sh(boot, COMMAND).unwrap();
    console.type_line("reboot -f").unwrap();
    namespace
        .until("another boot", BOOT, || {
            let now = console.run(boot, ATTEMPT).ok();
            Ok(now.filter(|o| o.status == 0 && o.text != before))
        })
        .unwrap();
    for disk in ["data", "base", "empty"] {
        assert_eq!(read(&mut console, disk), format!("new-{disk}"));
    }
    drop((console, running));

    // The machine starts anew: what was written to the claim is there, and nothing else.
    namespace.virtctl(&["restart", "vm"]).unwrap();
    let other = |i: &v1::VirtualMachineInstance| {
        i.metadata.uid != first.metadata.uid
            && i.status.phase.as_ref().is_some_and(|p| p.as_str() == "Running")
    };
    namespace.wait("vm", "another instance", BOOT, other).unwrap();
    let (mut console, _running) = namespace.shell("vm").unwrap();
    for (disk, text) in [("data", "new-data"), ("base", "base"), ("empty", &blank)] {
        assert_eq!(read(&mut console, disk), text);
    }
    assert_eq!((data.first_line().as_str(), base.first_line().as_str()), ("new-data", "base"));
}

#[test]
fn long_a_guest_that_writes_more_than_its_limit_is_evicted_and_its_instance_says_so() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let domain = "resources: {limits: {ephemeral-storage: 8Mi}}";
    // The kubelet gives a second. One guest powers off in it, the other one does not.
    let guests = ["obeys", "defies"];
    for name in guests {
        let manifest = Manifest { name, domain, ..Default::default() };
        namespace.apply(&manifest.instance()).unwrap();
    }
    let consoles = guests.map(|name| {
        namespace.wait_phase(name, "Running", BOOT).unwrap();
        let (mut console, running) = namespace.shell(name).unwrap();
        if name == "defies" {
            console.sh("killall acpid", COMMAND).unwrap();
        }
        // The guest may be told to power off before its shell has answered.
        console.type_line("head -c 24m /dev/urandom >/dev/vda && sync").unwrap();
        (console, running)
    });
    for name in guests {
        // The kubelet measures volumes once a minute.
        let instance = namespace.wait_phase(name, "Failed", EVICTION).unwrap();
        assert_eq!(instance.status.reason.as_deref(), Some("Evicted"), "{name}");
        let says = |c: &v1::VirtualMachineInstanceCondition| {
            let message = c.message.as_deref().unwrap_or_default();
            c.r#type.as_str() == "Synchronized" && message.contains("ephemeral-disks")
        };
        assert!(instance.status.conditions.iter().any(says), "{name}: {:?}", instance.status.conditions);
        let of = format!("reason=Stopped,involvedObject.name={name}");
        let events = namespace.kubectl(&["get", "events", "--field-selector", &of]).unwrap();
        assert!(events.contains("ephemeral-disks"), "{name}: {events}");
        let pod = launcher_name(name, instance.metadata.uid.as_deref().unwrap());
        let pod = namespace.wait(&pod, "its end", SOON, |pod: &Pod| exit_code(pod).is_some()).unwrap();
        let in_time = exit_code(&pod) == Some(ENDED_WITH_POD.into());
        assert_eq!(in_time, name == "obeys", "{name}: {:?}", pod.status);
    }
    drop(consoles);
}

/// The exit code of a launcher that has ended.
fn exit_code(pod: &Pod) -> Option<i32> {
    let containers = pod.status.as_ref()?.container_statuses.as_ref()?;
    let compute = containers.iter().find(|container| container.name == COMPUTE)?;
    Some(compute.state.as_ref()?.terminated.as_ref()?.exit_code)
}
