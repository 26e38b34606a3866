//! File systems.

use super::*;

fn shared() -> Value {
    json!({
        "domain": {"devices": {"filesystems": [
            {"name": "data", "virtiofs": {}}, {"name": "settings", "virtiofs": {}}, {"name": "account", "virtiofs": {}},
        ]}},
        "volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": "data-claim", "readOnly": true}},
            {"name": "settings", "configMap": {"name": "settings"}},
            {"name": "account", "serviceAccount": {"serviceAccountName": "default"}},
        ],
    })
}

#[test]
fn each_file_system_has_a_container_with_its_files_and_its_socket() {
    let pod = render(shared());
    assert_eq!(restricted::violations(&pod), [""; 0]);
    let names: Vec<&str> = pod.spec.as_ref().unwrap().containers.iter().map(|c| c.name.as_str()).collect();
    assert_eq!(names, ["compute", "virtiofs-data", "virtiofs-settings", "virtiofs-account"]);
    for (name, place, read_only) in [
        ("data", "/var/run/kubevirt-private/vmi-disks/data", Some(true)),
        ("settings", "/var/run/kubevirt-private/config-map/settings", Some(true)),
        ("account", "/var/run/secrets/kubernetes.io/serviceaccount", Some(true)),
    ] {
        let container = container(&pod, &format!("virtiofs-{name}"));
        assert_eq!(
            container.args.as_ref().unwrap(),
            &[
                "65536".to_owned(),
                format!("/var/run/kubevirt/virtiofs-containers/{name}.sock"),
                format!("--shared-dir={place}"),
                "--sandbox=none".into(),
                "--cache=auto".into(),
                "--migration-on-error=guest-error".into(),
                "--migration-mode=find-paths".into(),
            ]
        );
        assert_eq!(container.volume_mounts.as_ref().unwrap().len(), 2);
        assert_eq!(mount_of(container, place).read_only, read_only);
        for container in [container, self::container(&pod, "compute")] {
            assert_eq!(
                mount_of(container, "/var/run/kubevirt/virtiofs-containers").name,
                "virtiofs-containers"
            );
        }
    }
}

#[test]
fn a_container_of_a_file_system_has_the_resources_that_the_cluster_says() {
    let settings = config(json!({"supportContainerResources": [{"type": "virtiofs", "resources": {
        "requests": {"cpu": "2m", "memory": "14M"}, "limits": {"cpu": "101m", "memory": "81M"}}}]}));
    let pod = launcher_pod(&machine(shared()), &settings, &images()).unwrap();
    let container = container(&pod, "virtiofs-data");
    assert_eq!(
        serde_json::to_value(&container.resources).unwrap(),
        json!({"requests": {"cpu": "2m", "memory": "14M"}, "limits": {"cpu": "101m", "memory": "81M"}})
    );
    assert_eq!(container.args.as_ref().unwrap()[0], "39550");
}

#[test]
fn a_claim_in_block_mode_is_no_file_system() {
    let mut vmi = machine(shared());
    vmi.status.volume_status = serde_json::from_value(json!([{"name": "data", "target": "",
        "persistentVolumeClaimInfo": {"claimName": "data-claim", "volumeMode": "Block"}}]))
    .unwrap();
    let told = launcher_pod(&vmi, &config(json!({})), &images()).unwrap_err().to_string();
    assert!(
        told.starts_with("spec.domain.devices.filesystems[0]: ") && told.contains("filesystem mode"),
        "{told}"
    );
}
