//! Machines with claims: what both nodes share moves with the machine, and is never copied; what one node has keeps it.

use anyhow::Context;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use podvirt_api::storage::{Fate, verdict};
use podvirt_api::v1;
use podvirt_e2e::cluster::{Cluster, Manifest, Namespace, SOON, Security};

use crate::moving::Machine;

/// A directory that both nodes have.
const SHARED: &str = "/srv/shared";
/// Blocks on each disk that the guest writes, of 4 KiB.
pub(crate) const BLOCKS: u32 = 64;
/// Writes to each before and after a move; many more happen while it moves.
const WRITES: u32 = 8;
/// Disks on claims that the guest writes all the time, by volume.
const WRITTEN: [&str; 2] = ["data", "quorum"];

/// In the guest: `writer SERIAL` writes the disk's blocks in turns, each with its own number, and reads one that it wrote
/// earlier from the disk itself. What differs is told in /tmp/SERIAL/damage.
const WRITER: &str = r#"#!/bin/sh
cat >/bin/writer <<'END'
#!/bin/sh
disk=/dev/$(cd /sys/block; grep -lx "$1" */serial | cut -d / -f 1) dir=/tmp/$1 n=0
mkdir "$dir"; cd "$dir"; echo "$disk" >disk
check() { dd if="$disk" bs=4096 skip="$1" count=1 2>/dev/null | cmp -s - "$1" || echo "block $1 after $n writes" >>damage; }
until [ -e stop ]; do
  n=$((n + 1)); b=$((n % 64)) old=$((n * 7 % 64))
  printf '%04095d\n' $n >new
  dd if=new of="$disk" bs=4096 seek=$b conv=notrunc,fsync 2>/dev/null || echo "write $n failed" >>damage
  mv new $b; blockdev --flushbufs "$disk"
  [ ! -e $old ] || check $old
  echo $n >told; mv told count; usleep 100000
done
blockdev --flushbufs "$disk"
for b in $(ls | grep '^[0-9]*$'); do check "$b"; done
echo $n >ended
END
chmod 755 /bin/writer
"#;

/// User data of a guest with a writer for each of these disks.
pub(crate) fn writers(serials: &[&str]) -> String {
    format!("{WRITER}for serial in {}; do writer $serial & done\n", serials.join(" "))
}

/// A volume on a directory of both nodes, and its claim. Dropping it deletes the volume.
pub(crate) struct Volume<'n, 'c> {
    namespace: &'n Namespace<'c>,
    name: String,
}

impl<'n, 'c> Volume<'n, 'c> {
    /// One whose disk image begins with the claim's name.
    pub(crate) fn new(namespace: &'n Namespace<'c>, claim: &str, mode: &str) -> Volume<'n, 'c> {
        let volume = Volume { namespace, name: format!("{}-{claim}", namespace.name()) };
        let (name, path) = (&volume.name, volume.path());
        volume.on_node(
            1,
            &format!(
                "mkdir {path}; echo {claim} >{path}/disk.img; truncate -s 1M {path}/disk.img; chown -R 107:107 {path}"
            ),
        );
        let persistent = format!(
            "{{apiVersion: v1, kind: PersistentVolume, metadata: {{name: {name}}}, spec: {{capacity: {{storage: 1Mi}}, \
             accessModes: [{mode}], storageClassName: '', hostPath: {{path: {path}, type: Directory}}, \
             claimRef: {{namespace: {}, name: {claim}}}, persistentVolumeReclaimPolicy: Retain}}}}",
            namespace.name()
        );
        namespace.cluster().kubectl_with(&["apply", "-f", "-"], &persistent).unwrap();
        namespace
            .apply(&format!(
                "{{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {{name: {claim}}}, spec: {{accessModes: [{mode}], \
                 storageClassName: '', volumeName: {name}, resources: {{requests: {{storage: 1Mi}}}}}}}}"
            ))
            .unwrap();
        volume
    }

    pub(crate) fn path(&self) -> String {
        format!("{SHARED}/{}", self.name)
    }

    pub(crate) fn on_node(&self, node: u8, command: &str) -> String {
        self.namespace.cluster().node(node).run(&["sh", "-ec", command]).unwrap()
    }

    /// What a hash of the written blocks is on a node.
    fn hash(&self, node: u8) -> String {
        let hash = format!("head -c {} {}/disk.img | sha256sum", BLOCKS * 4096, self.path());
        self.on_node(node, &hash).split_whitespace().next().unwrap().to_owned()
    }
}

impl Drop for Volume<'_, '_> {
    fn drop(&mut self) {
        let cluster = self.namespace.cluster();
        drop(cluster.kubectl(&["delete", "pv", &self.name, "--wait=false"]));
        drop(cluster.node(1).run(&["rm", "-rf", &self.path()]));
    }
}

/// Waits until all writers have written on for a while, and wants no damage.
pub(crate) fn write_on(namespace: &Namespace<'_>, machine: &mut Machine<'_>, serials: &[&str]) {
    let mut count = |serial: &str| {
        let said = machine.sh(&format!(
            "until [ -e /tmp/{serial}/count ]; do usleep 50000; done; (cd /tmp/{serial}; cat damage 2>/dev/null; cat count)"
        ));
        said.parse::<u32>().with_context(|| format!("{serial}: {said}"))
    };
    // All write at the same time.
    let begin: Vec<u32> = serials.iter().map(|serial| count(serial).unwrap()).collect();
    for (serial, begin) in serials.iter().zip(begin) {
        let on = || Ok((count(serial)? >= begin + WRITES).then_some(()));
        namespace.until("a writer that goes on", SOON, on).unwrap();
    }
}

/// Ends the writer of a disk, wants every block on the disk that was written, and returns what a hash of them is.
pub(crate) fn written(machine: &mut Machine<'_>, serial: &str) -> String {
    let ended = format!("touch /tmp/{serial}/stop; until [ -e /tmp/{serial}/ended ]; do usleep 50000; done");
    machine.sh(&ended);
    assert_eq!(machine.sh(&format!("cat /tmp/{serial}/damage 2>/dev/null; true")), "");
    let hash = format!("head -c {} $(cat /tmp/{serial}/disk) | sha256sum | cut -d ' ' -f 1", BLOCKS * 4096);
    machine.sh(&hash)
}

/// Whether QEMU keeps others from writing to an image of its machine, by the locks that it has on the file.
fn locked(namespace: &Namespace<'_>, pod: &str, volume: &str) -> bool {
    let image = format!("/var/run/kubevirt-private/vmi-disks/{volume}/disk.img");
    // It opens the image for writing, and then finds nothing to do.
    let asked =
        namespace.kubectl(&["exec", pod, "-c", "compute", "--", "qemu-img", "commit", "-f", "raw", &image]);
    let said = format!("{:#}", asked.unwrap_err());
    let open = said.contains("does not have a backing file");
    assert!(open || said.contains("lock"), "{said}");
    !open
}

fn moves(times: u32) {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let data = Volume::new(&namespace, "data", "ReadWriteMany");
    let quorum = Volume::new(&namespace, "quorum", "ReadWriteMany");
    let library = Volume::new(&namespace, "library", "ReadOnlyMany");
    let _one = Volume::new(&namespace, "one", "ReadWriteOnce");
    assert_eq!(data.on_node(2, &format!("head -n 1 {}/disk.img", data.path())).trim(), "data");

    // The scheduler looks again late at a pod whose claims were not bound at first.
    for claim in ["data", "quorum", "library", "one"] {
        let bound = |c: &PersistentVolumeClaim| {
            c.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Bound"))
        };
        namespace.wait(claim, "a bound claim", SOON, bound).unwrap();
    }

    // It stands still from the beginning: what is looked at is whether it may move.
    let stays = Manifest {
        name: "stays",
        spec: "startStrategy: Paused",
        volumes: "{name: one, persistentVolumeClaim: {claimName: one}}",
        disks: "{name: one, disk: {bus: virtio}}",
        ..Default::default()
    };
    namespace.apply(&stays.machine()).unwrap();
    let manifest = Manifest {
        name: "vm",
        user_data: &writers(&WRITTEN),
        volumes: "{name: data, persistentVolumeClaim: {claimName: data}}, \
                  {name: quorum, persistentVolumeClaim: {claimName: quorum}}, \
                  {name: library, persistentVolumeClaim: {claimName: library, readOnly: true}}",
        disks: "{name: data, serial: data, disk: {bus: virtio}}, \
                {name: quorum, serial: quorum, shareable: true, disk: {bus: virtio}}, \
                {name: library, serial: library, disk: {bus: virtio}}",
        ..Default::default()
    };
    let mut machine = Machine::start(&namespace, &manifest);
    let instance = machine.instance();
    let told = verdict(&instance).unwrap();
    let expected =
        [("data", Fate::Shared), ("quorum", Fate::Shared), ("library", Fate::Shared), ("root", Fate::Copied)];
    assert!(expected.iter().all(|(volume, fate)| told[volume] == *fate), "{told:?}");
    let claim = instance.status.volume_status.iter().find(|status| status.name == "data").unwrap();
    let claim = claim.persistent_volume_claim_info.as_ref().unwrap();
    assert_eq!(claim.access_modes, ["ReadWriteMany"]);
    assert_eq!(claim.capacity.as_ref().unwrap()["storage"].0, "1Mi");

    namespace.wait_phase("stays", "Running", SOON).unwrap();
    let why = |i: &v1::VirtualMachineInstance| {
        let condition = i.status.conditions.iter().find(|c| c.r#type.as_str() == "LiveMigratable");
        condition
            .is_some_and(|c| c.status == "False" && c.reason.as_deref() == Some("DisksNotLiveMigratable"))
    };
    namespace.wait("stays", "a machine that cannot be moved", SOON, why).unwrap();
    let refused = format!("{:#}", namespace.virtctl(&["migrate", "stays"]).unwrap_err());
    assert!(refused.contains("volume one: PersistentVolumeClaim one is not ReadWriteMany"), "{refused}");
    namespace.kubectl(&["delete", "vm", "stays", "--wait=false"]).unwrap();

    machine.sh("echo copied >/dev/vda; sync");
    for _ in 0..times {
        write_on(&namespace, &mut machine, &WRITTEN);
        let source = machine.pod();
        assert!(locked(&namespace, source.metadata.name.as_deref().unwrap(), "data"));
        let migration = machine.migrate();
        machine.has_moved(&migration, &source);
    }
    write_on(&namespace, &mut machine, &WRITTEN);
    let pod = machine.pod().metadata.name.unwrap();
    assert!(locked(&namespace, &pod, "data"), "the target's QEMU has no lock on the image");
    assert!(!locked(&namespace, &pod, "quorum"), "a shareable disk is locked");

    // Every block that was written is on the disk, as the guest and both nodes see it.
    for (serial, volume) in WRITTEN.into_iter().zip([&data, &quorum]) {
        let hash = written(&mut machine, serial);
        assert_eq!([volume.hash(1), volume.hash(2)], [hash.clone(), hash], "{serial}");
    }
    machine.sh("echo 3 >/proc/sys/vm/drop_caches");
    assert_eq!(machine.sh("head -n 1 /dev/vda"), "copied");
    let read = "head -n 1 /dev/$(cd /sys/block; grep -lx library */serial | cut -d / -f 1)";
    assert_eq!(machine.sh(read), "library");
    assert_eq!(library.on_node(1, &format!("head -n 1 {}/disk.img", library.path())).trim(), "library");
}

#[test]
fn a_machine_moves_with_its_claims_and_they_are_never_copied() {
    moves(2);
}

#[test]
fn long_claims_are_whole_after_ten_moves() {
    moves(10);
}
