//! Hook sidecars: upstream's own, built from its module.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails it")]

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use podvirt_api::v1;
use podvirt_e2e::artefacts::image;
use podvirt_e2e::cluster::{BOOT, Cluster, Manifest, Namespace, SOON, Security};

/// A command in the guest.
const COMMAND: Duration = Duration::from_secs(30);
/// What goes wrong is told within this time, of which the pod takes a part to start.
const TOLD: Duration = Duration::from_secs(60);

/// The annotations of a machine with one sidecar.
fn hooked(image: &str, more: &str) -> String {
    let more = if more.is_empty() { String::new() } else { format!(", {more}") };
    format!(
        "smbios.vm.kubevirt.io/baseBoardManufacturer: Radical Edward, \
         hooks.kubevirt.io/hookSidecars: '[{{\"image\": \"{image}\", \"imagePullPolicy\": \"IfNotPresent\"{more}}}]'"
    )
}

/// Asks upstream's shim to speak this version.
fn version(version: &str) -> String {
    format!("\"args\": [\"--version\", \"{version}\"]")
}

fn logs(namespace: &Namespace<'_>, pod: &str) -> String {
    namespace.kubectl(&["logs", pod, "-c", "hook-sidecar-0"]).unwrap()
}

#[test]
fn long_a_hook_changes_the_domain_and_what_cloud_init_gets_and_hears_of_the_end() {
    // Fetched before this process is in the cluster's network.
    let hook = image("hook").unwrap();
    let cluster = Cluster::get().unwrap();
    cluster.load(&hook).unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let manifest = Manifest {
        name: "vm",
        run: "RerunOnFailure",
        user_data: "#cloud-config\nruncmd:\n- echo before-the-hook >/tmp/seen\n",
        annotations: &hooked("podvirt/hook:dev", &version("v1alpha3")),
        ..Default::default()
    };
    namespace.apply(&manifest.machine()).unwrap();
    namespace.wait_phase("vm", "Running", BOOT).unwrap();
    let (mut console, running) = namespace.shell("vm").unwrap();
    let board = console.sh("cat /sys/class/dmi/id/board_vendor", COMMAND).unwrap();
    assert!(board.contains("Radical Edward"), "{board}");
    let seen = console.sh("cat /tmp/seen", COMMAND).unwrap();
    assert!(seen.contains("after-the-hook"), "{seen}");

    let source = namespace.launcher("vm").unwrap().metadata.name.unwrap();
    // Its pod goes soon after the machine.
    let here = logs(&namespace, &source);
    namespace.virtctl(&["migrate", "vm"]).unwrap();
    let moved = |pod: &Pod| pod.metadata.name.as_deref() != Some(&source);
    let target = namespace
        .until("the other pod", BOOT, || {
            let instance: v1::VirtualMachineInstance =
                namespace.wait("vm", "the instance", SOON, |_| true)?;
            let state = instance.status.migration_state.unwrap_or_default();
            if !state.completed.unwrap_or(false) {
                return Ok(None);
            }
            Ok(namespace.launcher("vm").ok().filter(moved))
        })
        .unwrap();
    let target = target.metadata.name.unwrap();
    let there = logs(&namespace, &target);
    assert!(here.contains("OnDefineDomain method") && there.contains("OnDefineDomain method"), "{there}");
    assert!(here.contains("PreCloudInitIso method") && !there.contains("PreCloudInitIso method"), "{there}");
    drop((console, running));

    // The sidecar's process ends by Shutdown alone: until the pod is deleted, the kubelet leaves it.
    let (mut console, _running) = namespace.shell("vm").unwrap();
    console.type_line("poweroff -f").unwrap();
    // Its log may go with it: it is read until then.
    let log = ["logs", &target, "-c", "hook-sidecar-0"];
    let called = || Ok(namespace.kubectl(&log)?.contains("Shutdown callback method").then_some(()));
    namespace.until("the sidecar's Shutdown", SOON, called).unwrap();
    namespace.wait_phase("vm", "Succeeded", SOON).unwrap();
    let over = |pod: &Pod| pod.status.as_ref().is_some_and(|s| s.phase.as_deref() == Some("Succeeded"));
    namespace.wait(&target, "the pod's end", SOON, over).unwrap();
}

/// What is told of a machine that does not start: its condition, which an event repeats.
fn trouble(namespace: &Namespace<'_>, says: &[&str]) {
    let wrong = |instance: &v1::VirtualMachineInstance| {
        instance.status.conditions.iter().any(|condition| {
            let message = condition.message.as_deref().unwrap_or_default();
            condition.r#type.as_str() == "Synchronized" && says.iter().all(|words| message.contains(words))
        })
    };
    namespace.wait("vm", &format!("a condition about {says:?}"), TOLD, wrong).unwrap();
    let about = "involvedObject.kind=VirtualMachineInstance,involvedObject.name=vm";
    let lines = "jsonpath={range .items[*]}{.type}: {.message}{\"\\n\"}{end}";
    namespace
        .until(&format!("an event about {says:?}"), SOON, || {
            let events = namespace.kubectl(&["get", "events", "--field-selector", about, "-o", lines])?;
            let told =
                |line: &str| line.starts_with("Warning: ") && says.iter().all(|words| line.contains(words));
            Ok(events.lines().any(told).then_some(()))
        })
        .unwrap();
}

#[test]
fn long_a_hook_that_fails_is_told_with_its_sidecar() {
    // Fetched before this process is in the cluster's network.
    let images = ["hook", "spoil"].map(|name| image(name).unwrap());
    let cluster = Cluster::get().unwrap();
    for image in &images {
        cluster.load(image).unwrap();
    }
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    namespace
        .apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: scripts}, data: {define: no program}}")
        .unwrap();
    let script = format!(
        "{}, \"configMap\": {{\"name\": \"scripts\", \"key\": \"define\", \"hookPath\": \"/usr/bin/onDefineDomain\"}}",
        version("v1alpha2")
    );
    let shim = "hook sidecar hook-sidecar-0 (shim)";
    for (image, more, says) in [
        ("podvirt/hook:dev", script.as_str(), [shim, "OnDefineDomain", "exec format error"].as_slice()),
        ("podvirt/spoil:dev", &version("v1alpha1"), &["spoilt", "as changed by", shim]),
        (
            "podvirt/tools:dev",
            "\"command\": [\"sleep\", \"600\"]",
            &["the socket of the hook sidecar hook-sidecar-0"],
        ),
    ] {
        let annotations = hooked(image, more);
        let manifest = Manifest { name: "vm", annotations: &annotations, ..Default::default() };
        namespace.apply(&manifest.instance()).unwrap();
        trouble(&namespace, says);
        namespace.kubectl(&["delete", "vmi", "vm", "--grace-period=0"]).unwrap();
        namespace.wait_gone::<v1::VirtualMachineInstance>("vm", BOOT).unwrap();
    }
}
