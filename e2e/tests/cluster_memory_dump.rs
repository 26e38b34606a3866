//! The memory of a running machine, on a claim of the test bed's own storage and downloaded.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails it")]

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use podvirt_api::memory_dump::ANNOTATION;
use podvirt_api::v1::{MemoryDumpPhase, VirtualMachine, VirtualMachineInstance};
use podvirt_e2e::cluster::{BOOT, Cluster, Manifest, Namespace, SOON, Security, prepare_volumes};
use serde_json::Value;

/// Memory of the tiny guest, bytes: what its dump has at least.
const MEMORY: usize = 256 << 20;
/// Time for a dump.
const DUMPED: Duration = Duration::from_secs(120);

/// The names of the files in an archive, and the bytes of the one that is a dump.
fn unpacked(archive: &Path) -> (Vec<String>, Vec<u8>) {
    let tar = |args: &[&str]| {
        let told = Command::new("tar")
            .args(args)
            .arg(archive)
            .arg("--wildcards")
            .arg("*memory.dump")
            .output()
            .unwrap();
        assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
        told.stdout
    };
    let names = String::from_utf8(tar(&["-tzf"])).unwrap();
    let names = names.lines().map(|name| name.rsplit('/').next().unwrap().to_owned()).collect();
    (names, tar(&["-xzOf"]))
}

/// The file of the dump once it is complete, other than `last`; the claim's annotation names it as well.
fn dumped(namespace: &Namespace<'_>, last: &str) -> String {
    let is_new = |vm: &VirtualMachine| {
        let request = vm.status.memory_dump_request.as_ref();
        request.is_some_and(|request| {
            request.phase == MemoryDumpPhase::Completed && request.file_name.as_deref() != Some(last)
        })
    };
    let vm: VirtualMachine = namespace.wait("vm", "a memory dump", DUMPED, is_new).unwrap();
    let file = vm.status.memory_dump_request.unwrap().file_name.unwrap();
    let claim: Value =
        serde_json::from_str(&namespace.kubectl(&["get", "pvc", "dump", "-o", "json"]).unwrap()).unwrap();
    assert_eq!(claim["metadata"]["annotations"][ANNOTATION], file);
    file
}

/// Memory is dumped to a claim that is made for it, downloaded, dumped anew in the place of the first dump, and let go of; the guest
/// goes on.
#[test]
fn long_memory_is_dumped_downloaded_and_let_go_of() {
    prepare_volumes().unwrap();
    let cluster = Cluster::get().unwrap();
    let _storage = cluster.volumes().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    namespace.apply(&Manifest { name: "vm", ..Manifest::default() }.machine()).unwrap();
    namespace.wait_phase("vm", "Running", BOOT).unwrap();
    let (mut console, mut running) = namespace.shell("vm").unwrap();

    let directory = tempfile::tempdir().unwrap();
    let archive = directory.path().join("memory.tar.gz");
    let to = archive.to_str().unwrap();
    let flags = [
        "memory-dump",
        "get",
        "vm",
        "--claim-name=dump",
        "--create-claim",
        "--storage-class=bed-filesystem",
        "--port-forward",
        "--output",
        to,
    ];
    let told = namespace.virtctl(&flags).unwrap();
    assert!(told.contains("Successfully submitted memory dump request of VM vm"), "{told}");
    let first = dumped(&namespace, "");
    let (names, core) = unpacked(&archive);
    assert_eq!(names, std::slice::from_ref(&first));
    assert!(core.starts_with(b"\x7fELF") && core.len() > MEMORY, "{}", core.len());
    let vmi: VirtualMachineInstance = namespace
        .wait("vm", "the instance without its dump", SOON, |vmi: &VirtualMachineInstance| {
            vmi.status.volume_status.iter().all(|told| told.name != "dump")
        })
        .unwrap();
    assert!(vmi.spec.volumes.iter().all(|volume| volume.name != "dump"));
    let graph = namespace.virtctl(&["objectgraph", "vm"]).unwrap();
    assert!(graph.contains("\"dump\""), "the template has it: {graph}");

    namespace.virtctl(&["memory-dump", "get", "vm"]).unwrap();
    let second = dumped(&namespace, &first);
    let download = ["memory-dump", "download", "vm", "--port-forward", "--output", to];
    namespace.virtctl(&download).unwrap();
    assert_eq!(unpacked(&archive).0, [second], "the first dump has made room");

    namespace.virtctl(&["memory-dump", "remove", "vm"]).unwrap();
    let vm: VirtualMachine = namespace
        .wait("vm", "the machine without a dump", SOON, |vm: &VirtualMachine| {
            vm.status.memory_dump_request.is_none()
        })
        .unwrap();
    let template = vm.spec.template.unwrap().spec.unwrap();
    assert!(template.volumes.iter().all(|volume| volume.name != "dump"));
    assert!(vm.status.conditions.iter().all(|one| one.r#type.as_str() != "RestartRequired"));
    // The guest has stood still meanwhile, and goes on.
    namespace.wait_shell(&mut console, &mut running).unwrap();
}
