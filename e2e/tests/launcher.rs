//! virt-launcher without a cluster: the container `compute` of a pod, which starts netd itself and ends with its guest.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails it")]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use podvirt_e2e::artefacts::{artefact, program_dir, script};
use podvirt_e2e::{Console, Family, NetOptions, Pod, Process, until};

/// Boot to GUEST-READY under TCG, libvirt's start included.
const BOOT: Duration = Duration::from_secs(120);
/// Anything else.
const LIMIT: Duration = Duration::from_secs(60);
/// The port on which the guest of the example greets.
const GREETER: u16 = 7777;

fn example() -> std::path::PathBuf {
    script("../examples/vmi-netd.yaml")
}

/// The example's machine, as its own comment says to start it; process 1 of its container.
fn launch(pod: &Pod) -> Process {
    let container = pod.container("compute").unwrap().no_init();
    let container = container.ro(&program_dir("virt-launcher").unwrap(), "/podvirt");
    let container = container.ro(&artefact("tiny").unwrap(), "/guest").ro(&example(), "/mnt/vmi.yaml");
    let command = "virt-launcher standalone --vmi /mnt/vmi.yaml --kernel-root /guest --run-dir /w/vm";
    container.spawn(&command.split(' ').collect::<Vec<_>>()).unwrap()
}

/// The line with which the guest greets, None while it does not.
fn greeting(pod: &Pod, address: SocketAddr) -> Option<String> {
    let stream = pod.net.connect(address).ok()?;
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    // What follows the greeting is echoed.
    reader.get_mut().write_all(b"and back\n").ok()?;
    let mut echo = String::new();
    reader.read_line(&mut echo).ok()?;
    (echo == "and back\n").then_some(line)
}

/// Waits until the guest can be reached at both addresses of its pod.
fn greets(pod: &Pod) {
    for (family, client) in
        [(Family::V4, "10.9.0.1"), (Family::V6, "[fd00:0009:0000:0000:0000:0000:0000:0001]")]
    {
        let line =
            until(&format!("a greeting to {client}"), LIMIT, || Ok(greeting(pod, family.pod(GREETER))))
                .unwrap();
        assert_eq!(line, format!("GUEST-HELLO to {client}\n"));
    }
}

/// The only process of this name.
fn only(pod: &Pod, name: &str) -> Pid {
    let pids = pod.pids(name).unwrap();
    assert_eq!(pids.len(), 1, "{name}: {pids:?}");
    pids[0]
}

#[test]
fn long_a_machine_keeps_its_network_when_netd_dies_reboots_and_shuts_down_when_told() {
    let pod = Pod::new(NetOptions::default()).unwrap();
    let mut launcher = launch(&pod);
    let mut console = Console::connect(&pod.path("vm/serial.sock"), BOOT).unwrap();
    let ready = console.wait_for("GUEST-READY", BOOT).unwrap();
    assert!(ready.contains(" ip=10.9.0.2/24 ip6=fd00:9::2/128"), "{ready}");
    greets(&pod);
    console.sh("ping -4 -c 1 -W 20 10.9.0.1 && ping -6 -c 1 -W 20 fd00:9::1", LIMIT).unwrap();
    for process in pod.processes().unwrap() {
        let expected = (107, 0, true, 2);
        let found = (process.uids[0], process.capabilities, process.no_new_privs, process.seccomp);
        assert_eq!(found, expected, "{}", process.name);
    }

    // Another netd takes over the guest, which notices nothing but the end of its connections.
    let (qemu, netd) = (only(&pod, "qemu-system-x86"), only(&pod, "netd"));
    kill(netd, Signal::SIGKILL).unwrap();
    until("another netd", LIMIT, || Ok(pod.pids("netd")?.into_iter().find(|p| *p != netd))).unwrap();
    greets(&pod);
    console.sh("ping -4 -c 1 -W 20 10.9.0.1 && ping -6 -c 1 -W 20 fd00:9::1", LIMIT).unwrap();

    console.type_line("reboot -f").unwrap();
    let ready = console.wait_for_nth("GUEST-READY", 2, BOOT).unwrap();
    assert!(ready.contains(" ip=10.9.0.2/24 ip6=fd00:9::2/128"), "{ready}");
    greets(&pod);
    assert_eq!(only(&pod, "qemu-system-x86"), qemu, "a reboot is not a new machine");
    assert!(launcher.ended().unwrap().is_none());

    launcher.signal(Signal::SIGTERM).unwrap();
    console.wait_for("GUEST-POWER-BUTTON", LIMIT).unwrap();
    assert_eq!(launcher.wait(LIMIT).unwrap().code(), Some(0), "{}", launcher.log());
    assert!(pod.pids("netd").unwrap().is_empty());
}

#[test]
fn a_manifest_with_a_field_that_is_unknown_is_refused_with_its_path() {
    let dir = tempfile::tempdir().unwrap();
    let manifest = dir.path().join("vmi.yaml");
    let text = fs::read_to_string(example()).unwrap();
    fs::write(&manifest, text.replace("passtBinding: {}", "passtBinding: {}\n        passtbinding: {}"))
        .unwrap();
    let mut command = Command::new(program_dir("virt-launcher").unwrap().join("virt-launcher"));
    let out = command.arg("standalone").arg("--vmi").arg(manifest).output().unwrap();
    assert_eq!(out.status.code(), Some(1));
    let errors = String::from_utf8(out.stderr).unwrap();
    assert!(errors.contains("spec.domain.devices.interfaces[0].passtbinding: unknown field"), "{errors}");
}
