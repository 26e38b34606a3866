//! Disks and what else is mounted.

use super::*;
use crate::vmi::observe::begins;

#[test]
fn images_become_sidecars_behind_the_binarys_copy() {
    let pod = render(everything());
    assert_eq!(
        init_names(&pod),
        ["container-disk-binary", "volumeroot", "volumetools", "kernel-boot-volume", "netd"]
    );
    let command = |name: &str| container(&pod, name).command.clone().unwrap().join(" ");
    assert_eq!(
        command("container-disk-binary"),
        "/usr/bin/container-disk --copy-to /init/usr/bin/container-disk"
    );
    assert_eq!(container(&pod, "container-disk-binary").restart_policy, None);
    assert_eq!(
        command("volumeroot"),
        "/init/usr/bin/container-disk --listen /var/run/kubevirt/container-disks/disk_0.sock --path /disk"
    );
    assert_eq!(
        command("volumetools"),
        "/init/usr/bin/container-disk --listen /var/run/kubevirt/container-disks/disk_4.sock \
         --path /images/tools.img"
    );
    assert_eq!(
        command("kernel-boot-volume"),
        "/init/usr/bin/container-disk --listen /var/run/kubevirt/container-disks/kernel-boot.sock \
         --path /boot/vmlinuz --path /boot/initrd"
    );
    let policy = |name: &str| container(&pod, name).image_pull_policy.clone();
    assert_eq!(policy("volumeroot"), None, "Kubernetes' default");
    assert_eq!(policy("volumetools").as_deref(), Some("Always"));
    assert_eq!(policy("kernel-boot-volume").as_deref(), Some("Never"));
    assert_eq!(policy("compute").as_deref(), Some("IfNotPresent"));
    let secrets = pod.spec.unwrap().image_pull_secrets.unwrap();
    assert_eq!(secrets.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["disks", "kernels"]);
}

#[test]
fn claims_are_mounted_and_one_under_an_overlay_is_not_written() {
    let pod = render(everything());
    let compute = container(&pod, "compute");
    let data = mount_of(compute, "/var/run/kubevirt-private/vmi-disks/data");
    let base = mount_of(compute, "/var/run/kubevirt-private/vmi-disks/base");
    assert_eq!((data.read_only, base.read_only), (None, Some(true)));
    let volumes = pod.spec.as_ref().unwrap().volumes.as_ref().unwrap();
    let claim = |name: &str| {
        let volume = volumes.iter().find(|v| v.name == name).unwrap();
        volume.persistent_volume_claim.clone().unwrap()
    };
    assert_eq!((claim("data").claim_name.as_str(), claim("data").read_only), ("data-claim", None));
    assert_eq!((claim("base").claim_name.as_str(), claim("base").read_only), ("base-claim", None));
}

#[test]
fn claims_in_block_mode_are_devices_under_their_volumes_names() {
    let render = |name: &str| {
        let mut vmi = machine(json!({"volumes": [
            {"name": name, "persistentVolumeClaim": {"claimName": "data", "readOnly": true}},
            {"name": "base", "ephemeral": {"persistentVolumeClaim": {"claimName": "data"}}},
            {"name": "files", "persistentVolumeClaim": {"claimName": "files"}},
        ]}));
        let told = |name: &str, claim: &str, mode: &str| json!({"name": name, "target": "", "persistentVolumeClaimInfo": {"claimName": claim, "volumeMode": mode}});
        let status = json!([
            told(name, "data", "Block"),
            told("base", "data", "Block"),
            told("files", "files", "Filesystem")
        ]);
        vmi.status.volume_status = serde_json::from_value(status).unwrap();
        launcher_pod(&vmi, &config(json!({})), &images())
    };
    // The pod's own volumes have names, too.
    let pod = render("private").unwrap();
    let compute = container(&pod, "compute");
    let devices = compute.volume_devices.iter().flatten();
    let devices: Vec<_> = devices.map(|d| (d.name.as_str(), d.device_path.as_str())).collect();
    assert_eq!(devices, [("vmi-private", "/dev/private"), ("base", "/dev/base")]);
    let mounts = compute.volume_mounts.iter().flatten().map(|m| m.mount_path.as_str());
    let claims: Vec<_> =
        mounts.filter(|path| path.starts_with("/var/run/kubevirt-private/vmi-disks")).collect();
    assert_eq!(claims, ["/var/run/kubevirt-private/vmi-disks/files"]);
    assert_eq!(restricted::violations(&pod), [""; 0]);
    let told = render("null").unwrap_err().to_string();
    assert!(told.starts_with("spec.volumes[0].name: 'null'"), "{told}");
}

#[test]
fn a_lun_over_a_claim_with_files_is_refused_by_its_place_and_its_claim() {
    let rendered = |mode: Value| {
        let mut vmi = machine(json!({
            "domain": {"devices": {"disks": [{"name": "root", "disk": {}}, {"name": "data", "lun": {"bus": "scsi"}}]}},
            "volumes": [
                {"name": "root", "containerDisk": {"image": "i"}},
                {"name": "data", "persistentVolumeClaim": {"claimName": "files"}},
            ],
        }));
        let told = json!([{"name": "data", "target": "", "persistentVolumeClaimInfo": {"claimName": "files", "volumeMode": mode}}]);
        vmi.status.volume_status = serde_json::from_value(told).unwrap();
        launcher_pod(&vmi, &config(json!({})), &images()).map(|_| ()).map_err(|error| error.to_string())
    };
    assert_eq!(rendered(json!("Block")), Ok(()));
    for files in [json!("Filesystem"), Value::Null] {
        let told = rendered(files).unwrap_err();
        assert!(
            told.starts_with("spec.domain.devices.disks[1].lun: the PersistentVolumeClaim files has files"),
            "{told}"
        );
    }
}

#[test]
fn the_secrets_of_cloud_init_are_one_directory_and_each_gives_its_own_file() {
    let pod = render(everything());
    let mounted = mount_of(container(&pod, "compute"), "/var/run/kubevirt-private/secret/seed");
    assert_eq!(mounted.read_only, Some(true));
    let volumes = pod.spec.as_ref().unwrap().volumes.as_ref().unwrap();
    let sources = |name: &str| {
        let volume = volumes.iter().find(|v| v.name == name).unwrap();
        let sources = volume.projected.clone().unwrap().sources.unwrap();
        sources.into_iter().map(|s| s.secret.unwrap()).collect::<Vec<_>>()
    };
    let told = |name: &str| {
        let sources = sources(name).into_iter();
        let told = sources.map(|s| {
            let items = s.items.into_iter().flatten().map(|i| format!(" {}>{}", i.key, i.path));
            format!(
                "{}{}{}",
                s.name,
                items.collect::<String>(),
                if s.optional == Some(true) { "?" } else { "" }
            )
        });
        told.collect::<Vec<_>>()
    };
    assert_eq!(
        told("seed"),
        ["user userData>userdata?", "user", "net networkData>networkdata?", "net"],
        "both must exist, and a later one wins"
    );
    assert_eq!(told("drive"), ["user userData>userdata?", "user"]);
}

#[test]
fn a_volume_may_have_the_name_of_one_of_the_pods_own() {
    let pod = render(json!({"volumes": [{"name": "private", "persistentVolumeClaim": {"claimName": "c"}}]}));
    let volumes = pod.spec.as_ref().unwrap().volumes.as_ref().unwrap();
    let names: BTreeSet<_> = volumes.iter().map(|v| &v.name).collect();
    assert_eq!(names.len(), volumes.len(), "{names:?}");
    let mounted = mount_of(container(&pod, "compute"), "/var/run/kubevirt-private/vmi-disks/private");
    assert_eq!(mounted.name, "vmi-private");
    let longest = format!("access-credential-{}", "v".repeat(45));
    let claim = json!({"name": longest, "persistentVolumeClaim": {"claimName": "c"}});
    let pod = render(json!({ "volumes": [claim] }));
    let path = format!("/var/run/kubevirt-private/vmi-disks/{longest}");
    let name = &mount_of(container(&pod, "compute"), &path).name;
    assert!(name.starts_with("vmi-access-credential-") && name.len() <= 63, "{name}");
}

#[test]
fn what_is_plugged_once_the_machine_runs_is_no_volume_of_its_pod() {
    let pod = render(json!({"volumes": [
        {"name": "a", "dataVolume": {"name": "s", "hotpluggable": true}},
        {"name": "b", "persistentVolumeClaim": {"claimName": "c", "hotpluggable": true}},
        {"name": "d", "persistentVolumeClaim": {"claimName": "d", "hotpluggable": false}},
    ]}));
    let volumes = pod.spec.unwrap().volumes.unwrap().into_iter();
    let claims: Vec<String> = volumes.filter_map(|v| Some(v.persistent_volume_claim?.claim_name)).collect();
    assert_eq!(claims, ["d"]);
}

#[test]
fn no_volume_on_the_node_is_without_a_limit() {
    let limits = |spec: Value| {
        let volumes = render(spec).spec.unwrap().volumes.unwrap().into_iter();
        let on_the_node = volumes.filter_map(|v| Some((v.name, v.empty_dir?)));
        let limits = on_the_node.map(|(name, source)| (name, source.size_limit.unwrap().0));
        limits.collect::<BTreeMap<_, _>>()
    };
    let own = (256u64 << 20).to_string();
    let bare = limits(json!({}));
    assert!(bare.len() == 8 && bare.values().all(|limit| *limit == own), "{bare:?}");
    let some = limits(everything());
    assert!(some["ephemeral-disks"].parse::<u64>().unwrap() > 2 * (16 << 30), "two images");
    assert_eq!((&some["private"], some.len()), (&own, 9));
    let mut spec = everything();
    spec["domain"]["resources"] = json!({"limits": {"ephemeral-storage": "3Gi"}});
    assert_eq!(limits(spec)["ephemeral-disks"], (3u64 << 30).to_string());
}

#[test]
fn what_is_kept_is_on_a_claim_in_upstreams_places() {
    let rendered = |domain: Value, modes: &[&str]| {
        let mut vmi = machine(
            json!({"domain": domain, "volumes": [{"name": "vm-state", "emptyDisk": {"capacity": "1Gi"}}]}),
        );
        let entry = json!({"name": "persistent-state-for-web-a",
            "persistentVolumeClaimInfo": {"claimName": "persistent-state-for-web-a", "accessModes": modes}});
        vmi.status = serde_json::from_value(json!({"volumeStatus": [entry]})).unwrap();
        launcher_pod(&vmi, &config(json!({})), &images()).unwrap()
    };
    let state = |pod: &Pod| -> Vec<(String, String)> {
        let mounts = container(pod, "compute").volume_mounts.clone().unwrap_or_default();
        let of_claim = mounts.into_iter().filter(|mount| mount.name == "vm-state");
        of_claim.map(|mount| (mount.sub_path.unwrap_or_default(), mount.mount_path)).collect()
    };
    let firmware = json!({"bootloader": {"efi": {"secureBoot": false, "persistent": true}}});
    let pod =
        rendered(json!({"firmware": firmware, "devices": {"tpm": {"persistent": true}}}), &["ReadWriteOnce"]);
    let place = |part: &str, path: &str| (part.to_owned(), format!("/var/run/kubevirt-private/{path}"));
    assert_eq!(
        state(&pod),
        [
            place("meta", "backend-storage-meta"),
            place("swtpm", "libvirt/qemu/swtpm"),
            place("swtpm-localca", "var/lib/swtpm-localca"),
            place("nvram", "libvirt/qemu/nvram"),
        ]
    );
    // The directories between are the pod user's.
    for path in ["/var/run/kubevirt-private/libvirt", "/var/run/kubevirt-private/libvirt/qemu"] {
        mount_of(container(&pod, "compute"), path);
    }
    let flag =
        |pod: &Pod| container(pod, "compute").command.iter().flatten().any(|word| word == "--shared-state");
    assert!(!flag(&pod));
    let tpm = rendered(json!({"devices": {"tpm": {"persistent": true}}}), &["ReadWriteMany"]);
    assert_eq!(state(&tpm).len(), 3);
    assert!(flag(&tpm));
    let none = rendered(json!({"devices": {"tpm": {}}}), &["ReadWriteMany"]);
    assert_eq!((state(&none).len(), flag(&none)), (0, false));
    assert_eq!(
        refused(json!({"domain": {"devices": {"tpm": {"persistent": true}}}})),
        "can't generate manifest without backend-storage PVC, waiting for the PVC to be created"
    );
    assert_eq!(restricted::violations(&pod), [""; 0]);
}

#[test]
fn the_launcher_knows_its_node_where_the_guest_asks_for_metrics() {
    let node = |spec: Value| {
        let pod = render(spec);
        assert_eq!(restricted::violations(&pod), [""; 0]);
        let compute = container(&pod, "compute");
        let variable = compute.env.iter().flatten().find(|variable| variable.name == "NODE_NAME").cloned();
        variable.and_then(|variable| Some(variable.value_from?.field_ref?.field_path))
    };
    let expected = Some("spec.nodeName".to_owned());
    assert_eq!(node(json!({"volumes": [{"name": "m", "downwardMetrics": {}}]})), expected);
    assert_eq!(node(json!({"domain": {"devices": {"downwardMetrics": {}}}})), expected);
    assert_eq!(node(json!({})), None);
}

#[test]
fn a_pod_that_does_not_begin_names_each_object_that_its_volumes_need() {
    let secret = |name: &str| json!({"source": {"secret": {"secretName": name}}, "propagationMethod": {"noCloud": {}}});
    let mut pod = render(json!({
        "accessCredentials": [{"sshPublicKey": secret("keys")}],
        "domain": {"devices": {
            "disks": [{"name": "seed", "disk": {}}, {"name": "settings", "disk": {}}, {"name": "extra", "disk": {}}],
        }},
        "volumes": [
            {"name": "seed", "cloudInitNoCloud": {"secretRef": {"name": "seed-of-web"}}},
            {"name": "settings", "configMap": {"name": "settings-of-web"}},
            {"name": "extra", "secret": {"secretName": "extra-of-web", "optional": true}},
        ],
    }));
    pod.status = serde_json::from_value(json!({"conditions": [
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"},
    ]}))
    .unwrap();
    let trouble = begins(&pod, "2026-01-01T00:01:00Z".parse().unwrap()).unwrap().unwrap();
    for needed in ["Secret keys", "Secret seed-of-web", "ConfigMap settings-of-web"] {
        let named = trouble.message.split([',', ';', ':']).any(|part| part.trim() == needed);
        assert!(named, "{needed}: {}", trouble.message);
    }
    assert!(!trouble.message.contains("extra-of-web"), "{}", trouble.message);
}
