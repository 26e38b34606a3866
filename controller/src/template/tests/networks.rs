//! What the pod has of networks, and what each netd is told of its own.

use super::*;

#[test]
fn netd_and_the_machine_agree_on_the_guests_address() {
    let mut vmi = machine(json!({}));
    vmi.metadata.owner_references =
        Some(vec![k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference {
            api_version: "kubevirt.io/v1".into(),
            kind: "VirtualMachine".into(),
            name: "web".into(),
            uid: "of-the-vm".into(),
            ..Default::default()
        }]);
    let pod = launcher_pod(&vmi, &config(json!({})), &images()).unwrap();
    let mut machine =
        podvirt_api::VirtualMachineInstance::from_value(serde_json::to_value(&vmi).unwrap()).unwrap();
    podvirt_api::defaults::set_defaults(&mut machine);
    assert_eq!(told(&pod, "netd").mac_address, machine.spec.domain.devices.interfaces[0].mac_address);
}

#[test]
fn netd_is_told_the_network_and_nothing_of_the_disks() {
    let pod = render(json!({
        "hostname": "shop-front", "subdomain": "db", "dnsPolicy": "None",
        "dnsConfig": {"nameservers": ["192.0.2.53"]},
        "volumes": [{"name": "seed", "cloudInitNoCloud": {"userData": "password: hush"}}],
    }));
    assert_eq!(init_names(&pod), ["netd"]);
    let netd = container(&pod, "netd");
    assert_eq!(netd.restart_policy.as_deref(), Some("Always"));
    assert_eq!(netd.command.as_ref().unwrap().join(" "), "/usr/bin/virt-launcher run-netd");
    let text = netd.env.as_ref().unwrap()[0].value.as_ref().unwrap();
    assert!(!text.contains("hush") && !text.contains("seed"), "{text}");
    let address = told(&pod, "netd").mac_address;
    assert_eq!(
        serde_json::from_str::<Value>(text).unwrap(),
        json!({
            "namespace": "shop", "machine": "web", "interface": "default", "index": 0,
            "macAddress": address, "hostname": "shop-front", "subdomain": "db",
            "dns": {"alone": true, "servers": ["192.0.2.53"]},
        })
    );
    assert_eq!(netd.volume_mounts.as_ref().unwrap().len(), 1);
}

#[test]
fn netd_is_told_of_queues_and_metrics() {
    let vmi = |port: &str| {
        let mut vmi = machine(json!({"domain": {
            "cpu": {"cores": 2, "sockets": 2}, "devices": {"networkInterfaceMultiqueue": true},
        }}));
        vmi.metadata.annotations =
            Some([("podvirt.io/netd-metrics-port".to_owned(), port.to_owned())].into());
        vmi
    };
    let pod = launcher_pod(&vmi("9100"), &config(json!({})), &images()).unwrap();
    let told = told(&pod, "netd");
    assert_eq!((told.queue_pairs, told.metrics_port), (Some(4), Some(9100)));
    let annotations = pod.metadata.annotations.as_ref().unwrap();
    assert_eq!(annotations["podvirt.io/netd-metrics-port"], "9100", "by which Prometheus finds it");
    let error = launcher_pod(&vmi("web"), &config(json!({})), &images()).unwrap_err().to_string();
    assert!(error.contains("metadata.annotations[podvirt.io/netd-metrics-port]: 'web' is not"), "{error}");
}

#[test]
fn the_machines_number_of_flows_counts_before_the_clusters() {
    for (own, cluster, flows) in [
        (None, None, None),
        (None, Some(50_000), Some(50_000)),
        (Some("20000"), Some(50_000), Some(20_000)),
        (Some("20000"), None, Some(20_000)),
    ] {
        let mut vmi = machine(json!({}));
        vmi.metadata.annotations =
            own.map(|own| [("podvirt.io/netd-flows".to_owned(), own.to_owned())].into());
        let images = Images { netd_flows: cluster, ..images() };
        let pod = launcher_pod(&vmi, &config(json!({})), &images).unwrap();
        assert_eq!(told(&pod, "netd").flows, flows, "{own:?} {cluster:?}");
    }
}

#[test]
fn a_machine_without_an_interface_has_no_netd() {
    let pod = render(json!({"domain": {"devices": {"interfaces": null}}, "networks": null}));
    assert_eq!(init_names(&pod), [""; 0]);
}

#[test]
fn networks_of_multus_are_asked_for_and_each_has_its_netd() {
    let pod = render(json!({
        "domain": {"memory": {"guest": "256Mi"}, "devices": {"interfaces": [
            {"name": "default", "passtBinding": {}},
            {"name": "blue", "passtBinding": {}, "macAddress": "52-54-00-00-00-02"},
            {"name": "flat", "passtBinding": {}},
        ]}},
        "networks": [
            {"name": "default", "pod": {}},
            {"name": "blue", "multus": {"networkName": "storage"}},
            {"name": "flat", "multus": {"networkName": "other/flat"}},
        ],
    }));
    let annotations = pod.metadata.annotations.as_ref().unwrap();
    let networks: Value = serde_json::from_str(&annotations["k8s.v1.cni.cncf.io/networks"]).unwrap();
    assert_eq!(
        networks,
        json!([
            {"name": "storage", "namespace": "shop", "interface": "pod16477688c0e", "mac": "52:54:00:00:00:02"},
            {"name": "flat", "namespace": "other", "interface": names::pod::interface("flat")},
        ])
    );
    assert!(!annotations.contains_key("v1.multus-cni.io/default-network"));
    assert_eq!(init_names(&pod), ["netd", "netd-1", "netd-2"]);
    let of =
        |name: &str| (told(&pod, name).interface, told(&pod, name).index, told(&pod, name).pod_interface);
    assert_eq!(of("netd"), ("default".into(), 0, Some("eth0".into())));
    assert_eq!(of("netd-2"), ("flat".into(), 2, Some(names::pod::interface("flat"))));
}

#[test]
fn an_interface_bound_by_a_bridge_has_no_netd_but_the_node_of_its_tap() {
    let spec = json!({
        "domain": {"memory": {"guest": "256Mi"}, "devices": {"interfaces": [
            {"name": "default", "passtBinding": {}},
            {"name": "blue", "bridge": {}},
            {"name": "flat", "bridge": {}, "macAddress": "52-54-00-00-00-02"},
        ]}},
        "networks": [
            {"name": "default", "pod": {}},
            {"name": "blue", "multus": {"networkName": "storage"}},
            {"name": "flat", "multus": {"networkName": "other/flat"}},
        ],
    });
    let asked = |pod: &Pod| -> Value {
        let annotations = pod.metadata.annotations.as_ref().unwrap();
        serde_json::from_str(&annotations["k8s.v1.cni.cncf.io/networks"]).unwrap()
    };
    let pod = render(spec.clone());
    assert_eq!(init_names(&pod), ["netd"]);
    // The network is told whose frames will come: the guest's, as the launcher comes to it.
    let mut guest =
        podvirt_api::VirtualMachineInstance::from_value(serde_json::to_value(machine(spec.clone())).unwrap())
            .unwrap();
    podvirt_api::defaults::set_defaults(&mut guest);
    let blue = &guest.spec.domain.devices.interfaces[1].mac_address;
    assert_eq!(asked(&pod)[0]["mac"], *blue);
    assert_eq!(asked(&pod)[1]["mac"], "52:54:00:00:00:02");
    let tun = |pod: &Pod| {
        let limits = container(pod, "compute").resources.as_ref().unwrap().limits.clone();
        limits.unwrap_or_default().get("devices.kubevirt.io/tun").map(|amount| amount.0.clone())
    };
    assert_eq!(tun(&pod).as_deref(), Some("1"));
    assert_eq!(tun(&render(json!({}))), None, "a machine without a bridge asks for none");
}

#[test]
fn a_network_in_place_of_the_pods_is_the_pods_first() {
    let spec = json!({
        "domain": {"memory": {"guest": "256Mi"}, "devices": {"interfaces": [{"name": "flat", "passtBinding": {}}]}},
        "networks": [{"name": "flat", "multus": {"networkName": "flat", "default": true}}],
    });
    let pod = render(spec.clone());
    let annotations = pod.metadata.annotations.as_ref().unwrap();
    assert_eq!(annotations["v1.multus-cni.io/default-network"], "shop/flat");
    assert!(!annotations.contains_key("k8s.v1.cni.cncf.io/networks"));
    assert_eq!(
        container(&pod, "netd").command.as_ref().unwrap().join(" "),
        "/usr/bin/virt-launcher run-netd"
    );
    let mut vmi = machine(spec);
    vmi.metadata.annotations =
        Some([("v1.multus-cni.io/default-network".to_owned(), "mine".to_owned())].into());
    let error = launcher_pod(&vmi, &config(json!({})), &images()).unwrap_err().to_string();
    assert!(error.starts_with("metadata.annotations[v1.multus-cni.io/default-network]"), "{error}");
}

#[test]
fn what_multus_says_is_told_of_the_machines_networks() {
    let vmi = machine(json!({"networks": [
        {"name": "default", "pod": {}},
        {"name": "blue", "multus": {"networkName": "storage"}},
        {"name": "flat", "multus": {"networkName": "flat"}},
    ]}));
    let status = json!([
        {"name": "pods", "interface": "eth0", "ips": ["10.1.0.7"], "default": true},
        {"name": "shop/storage", "interface": "pod16477688c0e", "ips": ["172.30.0.9", "fd00::9"], "mac": "02:70:ac:1e:00:09"},
    ]);
    let mut pod = render(json!({}));
    assert_eq!(super::attached(&vmi, &pod), []);
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert("k8s.v1.cni.cncf.io/network-status".into(), status.to_string());
    let told = super::attached(&vmi, &pod);
    let [blue] = told.as_slice() else { panic!("{told:?}") };
    assert_eq!((blue.name.as_deref(), blue.ip_address.as_deref()), (Some("blue"), Some("172.30.0.9")));
    assert_eq!((blue.mac.as_deref(), blue.ip_addresses.len()), (Some("02:70:ac:1e:00:09"), 2));
    assert_eq!(blue.pod_interface_name.as_deref(), Some("pod16477688c0e"));
    assert_eq!(blue.info_source.as_deref(), Some("multus-status"));
    // In place of the pod's own network Multus tells it, too, and is not its source.
    let mut instead = vmi.clone();
    let blue = instead.spec.networks.iter_mut().find(|network| network.name == "blue").unwrap();
    blue.multus.as_mut().unwrap().default = Some(true);
    let told = super::attached(&instead, &pod);
    assert_eq!((told[0].pod_interface_name.as_deref(), told[0].info_source.as_deref()), (Some("eth0"), None));
}
