//! The images of container disks and of the kernel.

use super::*;

/// Runs from two images.
fn vmi() -> VirtualMachineInstance {
    machine(json!({"spec": {
        "domain": {"devices": {"disks": [{"name": "root", "disk": {}}]},
            "firmware": {"kernelBoot": {"container": {"image": "quay.io/os/kernel:6", "kernelPath": "/boot/vmlinuz"}}}},
        "volumes": [{"name": "root", "containerDisk": {"image": "quay.io/os/disk:latest"}}],
    }}))
}

fn status(name: &str, id: &str, restarts: u32) -> Value {
    json!({"name": name, "image": "", "imageID": id, "ready": true, "restartCount": restarts, "state": {"running": {}}})
}

/// A pod of the machine, whose disk's container has this reference and this image.
fn with_images(pod: Pod, reference: &str, root: Value) -> Pod {
    let mut pod = serde_json::to_value(pod).unwrap();
    let container = |name: &str, image: &str| json!({"name": name, "image": image});
    pod["spec"]["initContainers"] = json!([
        container("volumeroot", reference),
        container("kernel-boot-volume", "quay.io/os/kernel@sha256:e4")
    ]);
    pod["status"]["initContainerStatuses"] = json!([root, status("kernel-boot-volume", "sha256:other", 3)]);
    serde_json::from_value(pod).unwrap()
}

fn source(reference: &str, root: Value) -> Pod {
    with_images(pod(json!({"metadata": {"name": "virt-launcher-web-p1", "labels": null}})), reference, root)
}

/// The images of the target's pod that is made, or why none is.
fn made(source: &Pod) -> Result<Vec<String>, String> {
    let vmi = vmi();
    let scene = Scene { vmi: Some(&vmi), source: Some(source), ..Scene::default() };
    let decision = scene.see(&migration("Pending", json!({})));
    let [Action::Create(made)] = &decision.actions[..] else {
        assert_eq!((phase(&decision), decision.actions.len()), ("Failed", 0));
        let told = &decision.migration.status.conditions[0];
        assert_eq!((told.r#type.as_str(), told.status.as_str()), ("targetImageMismatch", "True"));
        return Err(told.message.clone().unwrap());
    };
    let containers = made.spec.as_ref().unwrap().init_containers.iter().flatten();
    let of_machine = containers.filter(|c| c.name == "volumeroot" || c.name == "kernel-boot-volume");
    Ok(of_machine.map(|c| c.image.clone().unwrap()).collect())
}

#[test]
fn the_target_has_the_images_that_the_source_runs_from_whatever_their_tags_are_now() {
    let (tag, digest) = ("quay.io/os/disk:latest", "quay.io/os/disk@sha256:d1");
    let images = |disk: &str| Ok(vec![disk.to_owned(), "quay.io/os/kernel@sha256:e4".into()]);
    assert_eq!(made(&source(tag, status("volumeroot", digest, 0))), images(digest));
    // The pod of an earlier migration has the digest already, whatever its runtime says of it.
    assert_eq!(made(&source(digest, status("volumeroot", "sha256:c1", 2))), images(digest));
    // An image that was loaded into the node has no digest in a registry: it is compared later.
    assert_eq!(made(&source(tag, status("volumeroot", "sha256:c1", 0))), images(tag));
    for unknown in
        [status("volumeroot", "", 0), status("volumeroot", digest, 1), status("volumeother", digest, 0)]
    {
        let why = made(&source(tag, unknown)).unwrap_err();
        assert!(
            why.starts_with("container volumeroot: the image that the machine runs from is not known"),
            "{why}"
        );
    }
}

#[test]
fn a_target_with_another_image_is_not_given_the_machine() {
    let (tag, vmi) = ("quay.io/os/disk:latest", vmi());
    let hand_over = |source: Option<&Pod>, reference: &str, id: &str| {
        let target = with_images(running(), reference, status("volumeroot", id, 0));
        Scene { vmi: Some(&vmi), source, target: Some(&target), ..Scene::default() }
            .see(&migration("Scheduled", json!({})))
    };
    let source = |id: &str| source(tag, status("volumeroot", id, 0));
    for (here, there) in
        [("sha256:c1", "sha256:c1"), ("mirror.example/disk@sha256:d1", "quay.io/os/disk@sha256:d1")]
    {
        let decision = hand_over(Some(&source(here)), tag, there);
        assert!(decision.vmi.is_some(), "{here} {there}: {}", why(&decision));
    }
    let decision =
        hand_over(Some(&source("mirror.example/disk@sha256:d1")), "quay.io/os/disk@sha256:d1", "sha256:c9");
    assert!(decision.vmi.is_some(), "by its digest it is what it is: {}", why(&decision));
    for (source, there) in [
        (Some(source("sha256:c1")), "sha256:c2"),
        (Some(source("sha256:c1")), ""),
        (Some(source("quay.io/os/disk@sha256:d1")), "sha256:c1"),
        (None, "sha256:c1"),
    ] {
        let decision = hand_over(source.as_ref(), tag, there);
        assert_eq!((phase(&decision), decision.vmi.is_some()), ("Failed", false), "{there}");
        assert!(why(&decision).contains("container volumeroot"), "{}", why(&decision));
        assert_eq!(decision.migration.status.conditions[0].r#type.as_str(), "targetImageMismatch");
    }
}
