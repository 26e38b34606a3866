use super::*;

#[test]
fn a_bare_instance_is_stored_with_its_defaults_and_finalizer() {
    let mut object = instance(small());
    object["status"] = json!({"phase": "Running"});
    vmi::mutate_create(&mut object, &config());
    assert_eq!(object["metadata"]["finalizers"], json!(["foregroundDeleteVirtualMachine"]));
    let memory = json!({"guestAtBoot": "64Mi", "guestCurrent": "64Mi", "guestRequested": "64Mi"});
    let topology = json!({"cores": 1, "sockets": 1, "threads": 1});
    let status = json!({"memory": memory, "currentCPUTopology": topology});
    assert_eq!(object["status"], status, "what a user says of it does not count");
    let spec = &object["spec"];
    assert_eq!(spec["networks"], json!([{"name": "default", "pod": {}}]));
    assert_eq!(
        spec["domain"]["devices"]["interfaces"],
        json!([{"name": "default", "model": "virtio", "passtBinding": {}, "state": "up"}])
    );
    assert_eq!(spec["domain"]["machine"], json!({"type": "q35"}));
    let cpu = json!({"cores": 1, "sockets": 1, "threads": 1, "model": "host-model"});
    assert_eq!(spec["domain"]["cpu"], cpu);
    assert_eq!(spec["terminationGracePeriodSeconds"], 30);
    assert_eq!(spec["evictionStrategy"], "None");
    let again = object.clone();
    vmi::mutate_create(&mut object, &config());
    assert_eq!(object, again, "a second webhook changes nothing");
    assert_eq!(vmi::validate_create(&object, &config(), By::User), Problems::default());
}

#[test]
fn what_the_manifest_says_stays_as_it_is() {
    let spec = json!({
        "nodeSelector": {"a": "b"},
        "terminationGracePeriodSeconds": 0,
        "tolerations": [{"key": "k", "operator": "Exists"}],
        "domain": {
            "memory": {"guest": "64Mi"},
            "cpu": {"cores": 2},
            "devices": {
                "disks": [{"name": "d", "disk": {"bus": "virtio"}}, {"name": "c", "cdrom": {}}],
                "interfaces": [{"name": "n", "masquerade": {}, "ports": [{"port": 80}]}],
            },
        },
        "networks": [{"name": "n", "pod": {}}],
        "volumes": [
            {"name": "d", "containerDisk": {"image": "i", "imagePullPolicy": "Never"}},
            {"name": "c", "cloudInitConfigDrive": {"secretRef": {"name": "s"}}},
        ],
    });
    let mut object = instance(spec);
    vmi::mutate_create(&mut object, &config());
    let spec = &object["spec"];
    assert_eq!(spec["nodeSelector"], json!({"a": "b"}));
    assert_eq!(spec["tolerations"], json!([{"key": "k", "operator": "Exists"}]));
    assert_eq!(spec["terminationGracePeriodSeconds"], 0);
    assert_eq!(spec["volumes"][0]["containerDisk"], json!({"image": "i", "imagePullPolicy": "Never"}));
    let devices = &spec["domain"]["devices"];
    assert_eq!(devices["disks"][1]["cdrom"], json!({"bus": "sata", "readonly": true, "tray": "closed"}));
    assert_eq!(devices["interfaces"][0]["masquerade"], json!({}));
    assert_eq!(devices["interfaces"][0].get("passtBinding"), None);
    assert_eq!(devices["interfaces"][0]["ports"], json!([{"port": 80, "protocol": "TCP"}]));
    assert_eq!(devices["interfaces"][0].get("macAddress"), None, "it follows the identity");
    assert_eq!(vmi::validate_create(&object, &config(), By::User), Problems::default());
}

#[test]
fn the_cluster_chooses_what_carries_masquerade_and_the_instance_keeps_it() {
    let way = |object: &Value| object["metadata"]["annotations"]["podvirt.io/masquerade"].clone();
    let machine = |binding: &str| {
        let mut object = instance(small());
        object["spec"]["networks"] = json!([{"name": "n", "pod": {}}]);
        object["spec"]["domain"]["devices"]["interfaces"] = json!([{"name": "n", binding: {}}]);
        vmi::mutate_create(&mut object, &config());
        object
    };
    let mut chosen = machine("masquerade");
    vmi::mutate_masquerade(&mut chosen, Some("nftables"));
    assert_eq!(way(&chosen), "nftables");
    assert_eq!(vmi::validate_create(&chosen, &config(), By::User), Problems::default());
    let mut own = machine("masquerade");
    own["metadata"]["annotations"] = json!({"podvirt.io/masquerade": "netd", "a": "b"});
    vmi::mutate_masquerade(&mut own, Some("nftables"));
    assert_eq!(own["metadata"]["annotations"], json!({"podvirt.io/masquerade": "netd", "a": "b"}));
    for (mut object, cluster) in [
        (machine("passtBinding"), Some("nftables")),
        (machine("masquerade"), Some("netd")),
        (machine("masquerade"), None),
    ] {
        vmi::mutate_masquerade(&mut object, cluster);
        assert_eq!(way(&object), Value::Null, "{cluster:?}");
    }

    let mut other = chosen.clone();
    other["metadata"]["annotations"]["podvirt.io/masquerade"] = "netd".into();
    let field = "metadata.annotations[podvirt.io/masquerade]";
    let refused = [(field, Reason::FieldValueNotSupported)];
    assert_eq!(fields(&vmi::validate_update(&chosen, &other, By::User)), refused);
    other["metadata"]["annotations"] = json!({});
    assert_eq!(fields(&vmi::validate_update(&chosen, &other, By::User)), refused);
    let mut more = chosen.clone();
    more["metadata"]["annotations"]["a"] = "b".into();
    assert_eq!(vmi::validate_update(&chosen, &more, By::User), Problems::default());
    let mut wrong = machine("masquerade");
    wrong["metadata"]["annotations"] = json!({"podvirt.io/masquerade": "iptables"});
    assert_eq!(
        fields(&vmi::validate_create(&wrong, &config(), By::User)),
        [(field, Reason::FieldValueInvalid)]
    );
}

#[test]
fn the_cluster_may_not_permit_a_bridge_on_the_pods_network() {
    let machine = |network: Value| {
        let mut object = instance(small());
        object["spec"]["networks"] = json!([network]);
        object["spec"]["domain"]["devices"]["interfaces"] = json!([{"name": "n", "bridge": {}}]);
        object
    };
    let on_pod = || machine(json!({"name": "n", "pod": {}}));
    let says = |permitted: Value| {
        serde_json::from_value(json!({"network": {"permitBridgeInterfaceOnPodNetwork": permitted}})).unwrap()
    };
    for permits in [config(), says(Value::Null), says(true.into())] {
        assert_eq!(vmi::validate_create(&on_pod(), &permits, By::User), Problems::default());
    }
    let field = "spec.domain.devices.interfaces[0].bridge";
    let refuses = says(false.into());
    let problems = vmi::validate_create(&on_pod(), &refuses, By::User);
    assert_eq!(fields(&problems), [(field, Reason::FieldValueInvalid)]);
    let multus = machine(json!({"name": "n", "multus": {"networkName": "flat"}}));
    assert_eq!(vmi::validate_create(&multus, &refuses, By::User), Problems::default());
    let mut proxied = on_pod();
    proxied["metadata"]["annotations"] = json!({"sidecar.istio.io/inject": "true"});
    assert_eq!(
        fields(&vmi::validate_create(&proxied, &config(), By::User)),
        [(field, Reason::FieldValueInvalid)]
    );

    let mut silent = instance(small());
    let chosen = serde_json::from_value(json!({"network": {"defaultNetworkInterface": "bridge"}})).unwrap();
    vmi::mutate_create(&mut silent, &chosen);
    assert_eq!(silent["spec"]["domain"]["devices"]["interfaces"][0]["bridge"], json!({}));
    assert_eq!(vmi::validate_create(&silent, &chosen, By::User), Problems::default());
}

#[test]
fn the_cluster_chooses_binding_machine_and_eviction() {
    let config = serde_json::from_value(json!({
        "network": {"defaultNetworkInterface": "masquerade"},
        "machineType": "pc-q35-9.0",
        "evictionStrategy": "LiveMigrateIfPossible",
    }))
    .unwrap();
    let mut object = instance(small());
    vmi::mutate_create(&mut object, &config);
    assert_eq!(object["spec"]["domain"]["devices"]["interfaces"][0]["masquerade"], json!({}));
    assert_eq!(object["spec"]["domain"]["machine"]["type"], "pc-q35-9.0");
    assert_eq!(object["spec"]["evictionStrategy"], "LiveMigrateIfPossible");
}

#[test]
fn a_template_with_a_card_that_the_kernels_masquerade_alone_takes_is_judged_by_what_it_says() {
    let judged = |binding: &str, annotations: Value| {
        let mut spec = small();
        spec["networks"] = json!([{"name": "n", "pod": {}}]);
        spec["domain"]["devices"]["interfaces"] = json!([{"name": "n", binding: {}, "model": "e1000"}]);
        let template = json!({"metadata": {"annotations": annotations}, "spec": spec});
        let object = machine(json!({"runStrategy": "Halted", "template": template}));
        lines(&vm::validate(&object, &config(), By::User))
    };
    // The cluster may have the kernel carry it.
    assert_eq!(judged("masquerade", Value::Null), Vec::<String>::new());
    assert_eq!(judged("masquerade", json!({"podvirt.io/masquerade": "nftables"})), Vec::<String>::new());
    let field = "spec.template.spec.domain.devices.interfaces[0].model: 'e1000' is not allowed; virtio is allowed with ";
    for (found, binding) in [
        (judged("masquerade", json!({"podvirt.io/masquerade": "netd"})), "masquerade by netd"),
        (judged("passtBinding", Value::Null), "passtBinding"),
    ] {
        assert!(found.len() == 1 && found[0].starts_with(&format!("{field}{binding}")), "{found:?}");
    }
}

#[test]
fn a_template_that_asks_for_a_mesh_is_judged_by_its_labels_and_annotations() {
    let told = |labels: Value, annotations: Value| {
        let mut template = small();
        template["networks"] = json!([{"name": "default", "pod": {}}]);
        template["domain"]["devices"]["interfaces"] = json!([{"name": "default", "masquerade": {}}]);
        let metadata = json!({"labels": labels, "annotations": annotations});
        let vm =
            machine(json!({"runStrategy": "Always", "template": {"metadata": metadata, "spec": template}}));
        lines(&vm::validate(&vm, &config(), By::User))
    };
    let ambient = json!({"istio.io/dataplane-mode": "ambient"});
    let kernel = json!({"podvirt.io/masquerade": "nftables"});
    let problems = told(ambient.clone(), kernel);
    let field = "spec.template.spec.domain.devices.interfaces[0].masquerade: ";
    assert!(problems.len() == 1 && problems[0].starts_with(field), "{problems:?}");
    // The cluster says by what, unless the template does.
    assert_eq!(told(ambient.clone(), json!({})), [""; 0]);
    assert_eq!(told(ambient, json!({"podvirt.io/masquerade": "netd"})), [""; 0]);
}

#[test]
fn an_object_that_is_refused_is_not_filled_and_a_strange_one_does_not_panic() {
    let mut object = instance(json!({"domain": {"devices": {"clientPassthrough": {}}}}));
    vmi::mutate_create(&mut object, &config());
    assert_eq!(object["spec"], json!({"domain": {"devices": {"clientPassthrough": {}}}}));
    for mut strange in
        [json!(null), json!([]), json!({"metadata": 1, "spec": []}), json!({"spec": {"domain": 1}})]
    {
        vmi::mutate_create(&mut strange, &config());
        assert!(!vmi::validate_create(&strange, &config(), By::User).is_empty());
        vm::mutate(&mut strange, &config());
        assert!(!vm::validate(&strange, &config(), By::User).is_empty());
        kubevirt::validate(&strange);
    }
}

#[test]
fn every_problem_is_told_by_its_path() {
    let mut spec = small();
    spec["domain"]["devices"]["clientPassthrough"] = json!({});
    spec["domain"]["devices"]["gpus"] = json!([{}]);
    assert_eq!(
        fields(&vmi::validate_create(&instance(spec), &config(), By::User)),
        [
            ("spec.domain.devices.clientPassthrough", Reason::FieldValueNotSupported),
            ("spec.domain.devices.gpus", Reason::FieldValueNotSupported),
        ]
    );
    let mut spec = small();
    spec["volumes"] = json!([{"name": "v", "hostDisk": {"path": "/d", "type": "Disk"}}]);
    assert_eq!(
        lines(&vmi::validate_create(&instance(spec), &config(), By::User)),
        [
            "spec.volumes[0].hostDisk: not supported by podvirt in a cluster; files of the node are not for pods"
        ]
    );
}

#[test]
fn claims_and_cloud_init_must_be_whole() {
    let mut spec = small();
    spec["volumes"] = json!([
        {"name": "a", "persistentVolumeClaim": {}},
        {"name": "b", "ephemeral": {}},
        {"name": "c", "cloudInitNoCloud": {"secretRef": {"name": "s"}, "userData": "x"}},
        {"name": "d", "cloudInitConfigDrive": {}},
        {"name": "e", "cloudInitConfigDrive": {"networkDataSecretRef": {}}},
    ]);
    let found = vmi::validate_create(&instance(spec), &config(), By::User);
    assert_eq!(
        fields(&found),
        [
            ("spec.volumes[0].persistentVolumeClaim.claimName", Reason::FieldValueRequired),
            ("spec.volumes[1].ephemeral.persistentVolumeClaim", Reason::FieldValueRequired),
            ("spec.volumes[2].cloudInitNoCloud.secretRef", Reason::FieldValueInvalid),
            ("spec.volumes[3].cloudInitConfigDrive", Reason::FieldValueRequired),
            ("spec.volumes[4].cloudInitConfigDrive", Reason::FieldValueRequired),
        ]
    );
}

#[test]
fn disks_of_configuration_name_what_they_are_made_from() {
    let mut spec = small();
    spec["volumes"] = json!([
        {"name": "a", "configMap": {"volumeLabel": "seventeen letters"}},
        {"name": "b", "secret": {"secretName": "No"}},
        {"name": "c", "downwardAPI": {"fields": [], "volumeLabel": "größe"}},
        {"name": "d", "serviceAccount": {"serviceAccountName": "one"}},
        {"name": "e", "serviceAccount": {"serviceAccountName": "two"}},
        {"name": "f", "sysprep": {}},
        {"name": "g", "sysprep": {"secret": {"name": "s"}, "configMap": {}}},
    ]);
    let found = vmi::validate_create(&instance(spec), &config(), By::User);
    assert_eq!(
        fields(&found),
        [
            ("spec.volumes[0].configMap.name", Reason::FieldValueRequired),
            ("spec.volumes[0].configMap.volumeLabel", Reason::FieldValueInvalid),
            ("spec.volumes[1].secret.secretName", Reason::FieldValueRequired),
            ("spec.volumes[2].downwardAPI.volumeLabel", Reason::FieldValueInvalid),
            ("spec.volumes[5].sysprep", Reason::FieldValueRequired),
            ("spec.volumes[6].sysprep.configMap.name", Reason::FieldValueRequired),
            ("spec.volumes[6].sysprep", Reason::FieldValueRequired),
            ("spec.volumes[4].serviceAccount", Reason::FieldValueInvalid),
        ]
    );
    let mut spec = small();
    spec["volumes"] = json!([
        {"name": "a", "configMap": {"name": "m", "optional": true, "volumeLabel": "sixteen letters!"}},
        {"name": "b", "secret": {"secretName": "s"}},
        {"name": "c", "downwardAPI": {"fields": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
        {"name": "d", "serviceAccount": {"serviceAccountName": "one"}},
        {"name": "e", "sysprep": {"configMap": {"name": "m"}}},
    ]);
    assert_eq!(vmi::validate_create(&instance(spec), &config(), By::User), Problems::default());
}

#[test]
fn a_guest_must_fit_into_its_limit() {
    let mut spec = small();
    spec["domain"]["resources"] = json!({"limits": {"memory": "32Mi"}});
    let live = vmi::validate_create(&instance(spec.clone()), &config(), By::User);
    assert_eq!(live, Problems::default(), "as upstream, where machines may change while they run");
    let staged = serde_json::from_value(json!({"vmRolloutStrategy": "Stage"})).unwrap();
    assert_eq!(
        lines(&vmi::validate_create(&instance(spec), &staged, By::User)),
        [
            "spec.domain.memory.guest: '64Mi' is not allowed; at most spec.domain.resources.limits.memory, 32Mi, \
          is allowed"
        ]
    );
}

#[test]
fn only_machine_types_of_the_cluster_are_allowed() {
    let config = serde_json::from_value(json!({"emulatedMachines": ["pc-q35-10.*"]})).unwrap();
    let found = vmi::validate_create(&instance(small()), &config, By::User);
    assert_eq!(
        lines(&found),
        ["spec.domain.machine.type: 'q35' is not allowed in this cluster; allowed: pc-q35-10.*"]
    );
}

#[test]
fn a_name_may_be_generated_and_reserved_labels_are_for_daemons() {
    let mut object = instance(small());
    object["metadata"] = json!({"generateName": "a-", "labels": {"kubevirt.io/created-by": "x"}});
    assert_eq!(
        lines(&vmi::validate_create(&object, &config(), By::User)),
        ["metadata.labels: only podvirt may set the label kubevirt.io/created-by"]
    );
    assert_eq!(vmi::validate_create(&object, &config(), By::Daemon), Problems::default());
}

#[test]
fn probes_have_one_way_and_a_pod_network_to_go() {
    let cases = [
        (json!({"tcpSocket": {"port": 22}}), json!({}), vec![]),
        (json!({"httpGet": {"port": "http", "path": "/"}, "periodSeconds": 5}), json!({}), vec![]),
        (json!({}), json!({}), vec!["spec.livenessProbe"]),
        (json!({"exec": {"command": ["true"]}}), json!({}), vec![]),
        (json!({"exec": {"command": ["true"]}}), json!({"autoattachPodInterface": false}), vec![]),
        (json!({"exec": {"command": []}}), json!({}), vec!["spec.livenessProbe.exec.command"]),
        (json!({"guestAgentPing": {}, "timeoutSeconds": 9}), json!({}), vec![]),
        (json!({"guestAgentPing": {}, "exec": {"command": ["true"]}}), json!({}), vec!["spec.livenessProbe"]),
        (json!({"tcpSocket": {"port": 22}, "httpGet": {"port": 80}}), json!({}), vec!["spec.livenessProbe"]),
        (
            json!({"tcpSocket": {"port": 22, "host": "192.0.2.1"}}),
            json!({}),
            vec!["spec.livenessProbe.tcpSocket.host"],
        ),
        (
            json!({"tcpSocket": {"port": 22}, "successThreshold": 2}),
            json!({}),
            vec!["spec.livenessProbe.successThreshold"],
        ),
        (
            json!({"tcpSocket": {"port": 22}}),
            json!({"autoattachPodInterface": false}),
            vec!["spec.livenessProbe"],
        ),
    ];
    for (probe, devices, wanted) in cases {
        let mut spec = small();
        spec["livenessProbe"] = probe.clone();
        spec["domain"]["devices"] = devices;
        let mut object = instance(spec);
        vmi::mutate_create(&mut object, &config());
        let found = vmi::validate_create(&object, &config(), By::User);
        assert_eq!(found.0.iter().map(|p| p.field.as_str()).collect::<Vec<_>>(), wanted, "{probe}");
    }
}

#[test]
fn claims_are_file_systems_where_the_cluster_opens_the_gate() {
    let mut vmi = instance(small());
    vmi["spec"]["domain"]["devices"]["filesystems"] =
        json!([{"name": "data", "virtiofs": {}}, {"name": "map", "virtiofs": {}}]);
    vmi["spec"]["volumes"] = json!([{"name": "data", "dataVolume": {"name": "data"}}, {"name": "map", "configMap": {"name": "map"}}]);
    let told = |config: &KubeVirtConfiguration| {
        let problems = vmi::validate_create(&vmi, config, By::User);
        problems.0.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let closed = "spec.domain.devices.filesystems: virtiofs is not allowed: virtiofs feature gate is not enabled for PVC";
    assert_eq!(told(&config()), [closed]);
    let mut open = config();
    open.developer_configuration
        .get_or_insert_default()
        .feature_gates
        .push("EnableVirtioFsStorageVolumes".into());
    assert_eq!(told(&open), [""; 0]);
    // What is shown as a file system is no disk besides.
    let mut stored = vmi.clone();
    vmi::mutate_create(&mut stored, &open);
    assert_eq!(stored["spec"]["domain"]["devices"]["disks"], json!(null));
}

#[test]
fn metrics_of_the_node_are_told_where_the_cluster_opens_the_gate() {
    let mut vmi = instance(small());
    vmi["spec"]["domain"]["devices"]["downwardMetrics"] = json!({});
    vmi["spec"]["volumes"] = json!([{"name": "vhostmd", "downwardMetrics": {}}]);
    let told = |config: &KubeVirtConfiguration| {
        let problems = vmi::validate_create(&vmi, config, By::User);
        problems.0.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(
        told(&config()),
        [
            "spec.domain.devices.downwardMetrics: downwardMetrics virtio serial is not allowed: DownwardMetrics feature gate is not enabled",
            "spec.volumes[0]: downwardMetrics disks are not allowed: DownwardMetrics feature gate is not enabled.",
        ]
    );
    let mut open = config();
    open.developer_configuration.get_or_insert_default().feature_gates.push("DownwardMetrics".into());
    assert_eq!(told(&open), [""; 0]);
    let mut stored = vmi.clone();
    vmi::mutate_create(&mut stored, &open);
    let disks = json!([{"name": "vhostmd", "disk": {"bus": "virtio"}}]);
    assert_eq!(stored["spec"]["domain"]["devices"]["disks"], disks);
}

#[test]
fn lists_that_are_too_long_are_refused_before_their_elements_are_compared() {
    let features: Vec<Value> = (0..100_000).map(|n| json!({"name": format!("f{n}")})).collect();
    let mut object = instance(small());
    object["spec"]["domain"]["cpu"] = json!({ "features": features });
    assert_eq!(
        lines(&vmi::validate_create(&object, &config(), By::User)),
        ["spec.domain.cpu.features: a list of 100000 elements is not allowed; at most 256 are"]
    );
    let named = |n: usize| json!({"name": format!("v{n}")});
    let mut object = instance(small());
    object["spec"]["volumes"] = (0..75_000).map(named).collect();
    object["spec"]["domain"]["devices"]["disks"] = (0..75_000).map(named).collect();
    let disks = object["spec"]["domain"]["devices"]["disks"].clone();
    vmi::mutate_create(&mut object, &config());
    assert!(object["spec"]["domain"]["devices"]["disks"] == disks, "no default is set");
    assert_eq!(vmi::validate_create(&object, &config(), By::User).0.len(), 2);
}
