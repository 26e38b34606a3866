//! Machines with network binding plugins.

use super::*;

fn rendered(registered: Value, interfaces: Value, networks: Value) -> Result<Pod, TemplateError> {
    let mut vmi = machine(json!({
        "domain": {"memory": {"guest": "256Mi"}, "devices": {"interfaces": interfaces}}, "networks": networks,
    }));
    // As virt-api notes it.
    vmi.metadata.annotations =
        Some([("podvirt.io/binding-plugins".to_owned(), registered.to_string())].into());
    launcher_pod(&vmi, &config(json!({})), &images())
}

fn memory(pod: &Pod) -> String {
    container(pod, "compute").resources.clone().unwrap().requests.unwrap()["memory"].0.clone()
}

#[test]
fn a_plugin_brings_a_sidecar_a_network_and_memory() {
    let plain = json!({"user": {"sidecarImage": "registry.example/user:1"}});
    let more = json!({"user": {
        "sidecarImage": "registry.example/user:1", "networkAttachmentDefinition": "tools/user",
        "computeResourceOverhead": {"requests": {"memory": "64Mi"}},
    }});
    let named = |name: &str| json!({"name": name, "binding": {"name": "user"}});
    let networks = json!([{"name": "default", "pod": {}}, {"name": "blue", "multus": {"networkName": "n"}}]);
    let interfaces = json!([named("default"), named("blue")]);
    let pod = rendered(more, interfaces.clone(), networks.clone()).unwrap();
    // One sidecar for both interfaces, and no netd.
    let names: Vec<_> = pod.spec.as_ref().unwrap().containers.iter().map(|c| c.name.as_str()).collect();
    assert_eq!(names, ["compute", "hook-sidecar-0"]);
    assert!(init_names(&pod).is_empty());
    assert_eq!(container(&pod, "hook-sidecar-0").image.as_deref(), Some("registry.example/user:1"));
    assert!(
        container(&pod, "compute")
            .command
            .clone()
            .unwrap()
            .ends_with(&["--hook-sidecars".into(), "1".into()])
    );
    let text = &pod.metadata.annotations.as_ref().unwrap()["k8s.v1.cni.cncf.io/networks"];
    let asked: Value = serde_json::from_str(text).unwrap();
    let own = |network: &str| json!({"name": "user", "namespace": "tools", "cni-args": {"logicNetworkName": network}});
    let regular = json!({"name": "n", "namespace": "shop", "interface": "pod16477688c0e"});
    assert_eq!(asked, json!([own("default"), regular, own("blue")]));
    // Once, for both.
    let without = rendered(plain, interfaces, networks).unwrap();
    let bytes = |pod: &Pod| memory(pod).parse::<podvirt_api::quantity::Quantity>().unwrap().value();
    assert_eq!(bytes(&pod) - bytes(&without), 64 << 20);
}

#[test]
fn a_sidecar_is_told_what_the_network_says_of_its_device() {
    let registered = json!({
        "near": {"sidecarImage": "registry.example/near:1"},
        "told": {"sidecarImage": "registry.example/told:1", "downwardAPI": "device-info"},
    });
    let interfaces = json!([{"name": "default", "binding": {"name": "near"}}, {"name": "blue", "binding": {"name": "told"}}]);
    let networks = json!([{"name": "default", "pod": {}}, {"name": "blue", "multus": {"networkName": "n"}}]);
    let mounts = |pod: &Pod, name: &str| {
        let mounts = container(pod, name).volume_mounts.clone().unwrap();
        mounts.into_iter().any(|m| m.name == "network-info-annotation" && m.mount_path == "/etc/podinfo")
    };
    let pod = rendered(registered.clone(), interfaces, networks.clone()).unwrap();
    let told = ["compute", "hook-sidecar-0", "hook-sidecar-1"].map(|name| mounts(&pod, name));
    assert_eq!(told, [true, false, true]);
    let volumes = serde_json::to_value(pod.spec.as_ref().unwrap().volumes.as_ref().unwrap()).unwrap();
    let volume = volumes.as_array().unwrap().iter().find(|v| v["name"] == "network-info-annotation").unwrap();
    assert_eq!(
        volume["downwardAPI"]["items"],
        json!([{"path": "network-info", "fieldRef": {"fieldPath": "metadata.annotations['kubevirt.io/network-info']"}}])
    );
    let near = json!([{"name": "default", "binding": {"name": "near"}}, {"name": "blue", "bridge": {}}]);
    let pod = rendered(registered, near, networks).unwrap();
    assert!(!mounts(&pod, "compute"), "no sidecar asks for it");
}

#[test]
fn a_network_is_asked_to_give_the_pod_the_guests_address_where_its_frames_are_the_guests() {
    let registered = json!({"flat": {"domainAttachmentType": "managedTap"}, "own": {"domainAttachmentType": "tap"},
        "user": {"sidecarImage": "registry.example/user:1"}});
    let networks = json!([{"name": "blue", "multus": {"networkName": "n"}}]);
    for (plugin, asked) in [("flat", true), ("own", true), ("user", false)] {
        let interfaces = json!([{"name": "blue", "binding": {"name": plugin}}]);
        let pod = rendered(registered.clone(), interfaces, networks.clone()).unwrap();
        let text = &pod.metadata.annotations.as_ref().unwrap()["k8s.v1.cni.cncf.io/networks"];
        assert_eq!(text.contains("\"mac\":\"02:"), asked, "{plugin}: {text}");
    }
}

#[test]
fn a_tap_needs_its_device_and_an_unknown_plugin_has_no_pod() {
    let interfaces = json!([{"name": "default", "binding": {"name": "flat"}}]);
    let networks = json!([{"name": "default", "pod": {}}]);
    for (kind, opens) in [("managedTap", true), ("tap", true)] {
        let pod =
            rendered(json!({"flat": {"domainAttachmentType": kind}}), interfaces.clone(), networks.clone())
                .unwrap();
        let limits = container(&pod, "compute").resources.clone().unwrap().limits.unwrap();
        assert_eq!(limits.contains_key("devices.kubevirt.io/tun"), opens, "{kind}");
        assert!(init_names(&pod).is_empty());
    }
    let error = rendered(json!({}), interfaces, networks).unwrap_err().to_string();
    assert!(error.contains("interfaces[0].binding.name: flat"), "{error}");
}

#[test]
fn a_device_of_the_node_is_told_in_the_pod_and_needs_no_tap() {
    let networks = json!([{"name": "default", "pod": {}}, {"name": "fast", "multus": {"networkName": "n"}}]);
    let interfaces = json!([{"name": "default", "passtBinding": {}}, {"name": "fast", "sriov": {}}]);
    let pod = rendered(json!({}), interfaces, networks).unwrap();
    assert_eq!(init_names(&pod), ["netd"], "none for the device");
    let compute = container(&pod, "compute");
    let mounts = compute.volume_mounts.clone().unwrap();
    assert!(mounts.iter().any(|mount| mount.mount_path == "/etc/podinfo"));
    let limits = compute.resources.clone().unwrap().limits.unwrap_or_default();
    assert!(!limits.contains_key("devices.kubevirt.io/tun"));
    let text = &pod.metadata.annotations.as_ref().unwrap()["k8s.v1.cni.cncf.io/networks"];
    assert!(text.contains("\"mac\":\"02:"), "the device is to have the guest's address: {text}");
}
