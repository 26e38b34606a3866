//! Hook sidecars.

use super::*;

const ALLOWED: &str = r#"{"developerConfiguration": {"featureGates": ["Sidecar"]}}"#;

fn hooked(list: &Value, configuration: &str) -> Result<Pod, TemplateError> {
    let mut vmi = machine(json!({}));
    let hooks = ("hooks.kubevirt.io/hookSidecars".to_owned(), list.to_string());
    vmi.metadata.annotations = Some([hooks].into());
    launcher_pod(&vmi, &serde_json::from_str(configuration).unwrap(), &images())
}

#[test]
fn sidecars_stand_behind_compute_and_share_a_volume_in_which_each_has_its_own_directory() {
    let list = json!([
        {"image": "hook:1", "imagePullPolicy": "Never", "args": ["--version", "v1alpha3"],
            "configMap": {"name": "scripts", "key": "define.sh", "hookPath": "/usr/bin/onDefineDomain"}},
        {"image": "hook:2", "command": ["/run"],
            "pvc": {"name": "debug", "volumePath": "/debug", "sharedComputePath": "/var/run/debug"}},
    ]);
    let pod = hooked(&list, ALLOWED).unwrap();
    assert_eq!(restricted::violations(&pod), [""; 0]);
    let names: Vec<&str> = pod.spec.as_ref().unwrap().containers.iter().map(|c| c.name.as_str()).collect();
    assert_eq!(names, ["compute", "hook-sidecar-0", "hook-sidecar-1"]);
    let [one, two] = ["hook-sidecar-0", "hook-sidecar-1"].map(|name| container(&pod, name));
    assert_eq!((one.image.as_deref(), one.image_pull_policy.as_deref()), (Some("hook:1"), Some("Never")));
    assert_eq!((&one.command, &one.args), (&None, &Some(vec!["--version".into(), "v1alpha3".into()])));
    assert_eq!((&two.command, &two.args), (&Some(vec!["/run".into()]), &None));
    let compute = container(&pod, "compute");
    assert!(compute.command.as_ref().unwrap().ends_with(&["--hook-sidecars".into(), "2".into()]));
    for (container, directory) in
        [(one, Some("hook-sidecar-0")), (two, Some("hook-sidecar-1")), (compute, None)]
    {
        let sockets = mount_of(container, "/var/run/kubevirt-hooks");
        assert_eq!((sockets.name.as_str(), sockets.sub_path.as_deref()), ("hook-sidecar-sockets", directory));
    }
    assert_eq!(one.env.as_ref().unwrap()[0].value.as_deref(), Some("hook-sidecar-0"));
    assert_eq!(mount_of(one, "/usr/bin/onDefineDomain").sub_path.as_deref(), Some("define.sh"));
    assert_eq!(mount_of(two, "/debug").name, mount_of(compute, "/var/run/debug").name);
    assert!(!compute.volume_mounts.iter().flatten().any(|m| m.mount_path == "/debug"));
}

#[test]
fn sidecars_are_refused_where_they_are_not_allowed_or_not_carried_out() {
    let list = json!([{"image": "hook:1"}]);
    let told = hooked(&list, "{}").unwrap_err().to_string();
    assert!(told.contains("hookSidecars") && told.contains("feature gate Sidecar"), "{told}");
    let told = hooked(&json!([{"image": "hook:1", "env": []}]), ALLOWED).unwrap_err().to_string();
    assert!(told.contains("unknown field `env`"), "{told}");
    assert!(
        !container(&render(json!({})), "compute")
            .command
            .as_ref()
            .unwrap()
            .contains(&"--hook-sidecars".into())
    );
}
