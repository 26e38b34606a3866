use crate::problem::Reason;
use crate::vmi::VirtualMachineInstance;
use crate::{ParseError, defaults};

use super::validate;

mod filesystems;
mod firmware;
mod metrics;

/// A manifest with these lines under `spec`, and what is wrong with it as `field reason`.
fn wrong(spec: &str) -> Vec<String> {
    let text = format!(
        "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata: {{name: vm}}\nspec:\n{spec}"
    );
    let mut vmi = VirtualMachineInstance::from_yaml(&text).unwrap();
    defaults::set_defaults(&mut vmi);
    validate(&vmi).0.iter().map(|p| format!("{} {:?}", p.field, p.reason)).collect()
}

const MEMORY: &str = "  domain: {memory: {guest: 64Mi}, devices: {autoattachPodInterface: false}}\n";

/// As [`wrong`], with these lines under `spec.domain.devices`.
fn wrong_devices(devices: &str, rest: &str) -> Vec<String> {
    wrong(&format!("  domain:\n    memory: {{guest: 64Mi}}\n    devices: {devices}\n{rest}"))
}

#[test]
fn nothing_is_wrong_with_a_small_machine() {
    assert_eq!(wrong(MEMORY), Vec::<String>::new());
}

#[test]
fn every_problem_is_told_at_once_with_value_and_what_is_allowed() {
    let text = "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata: {name: Bad_Name, namespace: a-}\n\
                spec: {hostname: a.b, domain: {}}";
    let Err(ParseError::Invalid(problems)) = VirtualMachineInstance::load(text) else {
        panic!("must be refused");
    };
    let fields: Vec<&str> = problems.0.iter().map(|p| p.field.as_str()).collect();
    assert_eq!(fields, ["metadata.name", "metadata.namespace", "spec.domain.memory.guest", "spec.hostname"]);
    assert_eq!(problems.0[2].reason, Reason::FieldValueRequired);
    assert_eq!(
        problems.0[3].to_string(),
        "spec.hostname: 'a.b' is not allowed; at most 63 of a-z, 0-9 and '-' are allowed"
    );
    assert_eq!(
        serde_json::to_value(&problems.0[2]).unwrap(),
        serde_json::json!({
            "reason": "FieldValueRequired",
            "message": "memory.guest, resources.requests.memory or resources.limits.memory is required",
            "field": "spec.domain.memory.guest",
        })
    );
}

#[test]
fn identity_is_required() {
    let vmi = VirtualMachineInstance::from_yaml("spec: {domain: {memory: {guest: 1Gi}}}").unwrap();
    let fields: Vec<String> = validate(&vmi).0.into_iter().map(|p| p.field).collect();
    assert_eq!(fields, ["apiVersion", "kind", "metadata.name"]);
}

#[test]
fn processors_memory_and_machine() {
    let cases = [
        ("cpu: {sockets: 16, cores: 16}, memory: {guest: 1Gi}", "spec.domain.cpu FieldValueInvalid"),
        ("memory: {guest: 999k}", "spec.domain.memory.guest FieldValueInvalid"),
        ("memory: {guest: 1Gi}, machine: {type: pc}", "spec.domain.machine.type FieldValueNotSupported"),
        ("memory: {guest: 1Gi}, machine: {type: pc-q35-}", "spec.domain.machine.type FieldValueNotSupported"),
        (
            "memory: {guest: 1Gi}, cpu: {features: [{name: vmx}, {name: vmx}]}",
            "spec.domain.cpu.features[1].name FieldValueDuplicate",
        ),
        (
            "memory: {guest: 1Gi}, cpu: {features: [{}]}",
            "spec.domain.cpu.features[0].name FieldValueRequired",
        ),
        (
            "resources: {requests: {memory: 2Gi}, limits: {memory: 1Gi}}",
            "spec.domain.resources.requests.memory FieldValueInvalid",
        ),
        (
            "memory: {guest: 1Gi}, resources: {requests: {cpu: -1}}",
            "spec.domain.resources.requests.cpu FieldValueInvalid",
        ),
        (
            "memory: {guest: 1Gi}, resources: {requests: {memory: 999k}}",
            "spec.domain.resources.requests.memory FieldValueInvalid",
        ),
        (
            "memory: {guest: 1Gi}, resources: {limits: {\"example.com/gpu\": 1}}",
            "spec.domain.resources.limits.example.com/gpu FieldValueNotSupported",
        ),
        ("memory: {guest: 1Gi}, firmware: {uuid: x}", "spec.domain.firmware.uuid FieldValueInvalid"),
        ("memory: {guest: 1Gi}, firmware: {serial: é}", "spec.domain.firmware.serial FieldValueInvalid"),
        (
            "memory: {guest: 1Gi}, firmware: {kernelBoot: {kernelArgs: quiet}}",
            "spec.domain.firmware.kernelBoot.container FieldValueRequired",
        ),
        (
            "memory: {guest: 1Gi}, firmware: {kernelBoot: {container: {image: i, kernelPath: /a/../b}}}",
            "spec.domain.firmware.kernelBoot.container.kernelPath FieldValueInvalid",
        ),
        (
            "memory: {guest: 1Gi}, firmware: {kernelBoot: {container: {image: i, initrdPath: /b}}}",
            "spec.domain.firmware.kernelBoot.container.kernelPath FieldValueRequired",
        ),
        (
            "memory: {guest: 1Gi}, firmware: {kernelBoot: {container: {kernelPath: /k}}}",
            "spec.domain.firmware.kernelBoot.container.image FieldValueRequired",
        ),
        (
            "memory: {guest: 1Gi}, clock: {utc: {}, timezone: Europe/Berlin}",
            "spec.domain.clock.timezone FieldValueInvalid",
        ),
        ("memory: {guest: 1Gi}, clock: {timezone: 'a b'}", "spec.domain.clock.timezone FieldValueInvalid"),
        ("memory: {guest: 1Gi}, firmware: {bootloader: {efi: {}}}", "spec.domain FieldValueInvalid"),
        (
            "memory: {guest: 1Gi}, features: {smm: {enabled: false}}, firmware: {bootloader: {efi: {secureBoot: true}}}",
            "spec.domain FieldValueInvalid",
        ),
        (
            "memory: {guest: 1Gi}, firmware: {bootloader: {bios: {}, efi: {secureBoot: false}}}",
            "spec.domain.firmware.bootloader FieldValueInvalid",
        ),
        (
            "memory: {guest: 1Gi}, firmware: {bootloader: {bios: {useSerial: true}}}, \
             devices: {autoattachSerialConsole: false}",
            "spec.domain.firmware.bootloader.bios.useSerial FieldValueInvalid",
        ),
    ];
    for (domain, expected) in cases {
        assert_eq!(wrong(&format!("  domain: {{{domain}}}\n")), [expected], "{domain}");
    }
}

#[test]
fn disks_and_volumes() {
    let volume = "  volumes: [{name: v, emptyDisk: {capacity: 1Gi}}]\n";
    let cases = [
        ("{disks: [{name: x}]}", "spec.domain.devices.disks[0].name FieldValueNotFound"),
        ("{disks: [{name: v}, {name: v}]}", "spec.domain.devices.disks[1].name FieldValueDuplicate"),
        ("{disks: [{name: v, disk: {}, cdrom: {}}]}", "spec.domain.devices.disks[0] FieldValueInvalid"),
        (
            "{disks: [{name: v, cdrom: {readonly: false}}]}",
            "spec.domain.devices.disks[0].cdrom.readonly FieldValueInvalid",
        ),
        (
            "{disks: [{name: v, disk: {pciAddress: '0000:01:00.0'}}]}",
            "spec.domain.devices.disks[0].disk.pciAddress FieldValueInvalid",
        ),
        (
            "{disks: [{name: v, disk: {bus: virtio, pciAddress: '1'}}]}",
            "spec.domain.devices.disks[0].disk.pciAddress FieldValueInvalid",
        ),
        ("{disks: [{name: v, serial: 'ä'}]}", "spec.domain.devices.disks[0].serial FieldValueInvalid"),
        (
            "{disks: [{name: v, disk: {readonly: true}}]}",
            "spec.domain.devices.disks[0].disk.readonly FieldValueInvalid",
        ),
        ("{inputs: [{name: a}, {name: a}]}", "spec.domain.devices.inputs[1].name FieldValueDuplicate"),
        ("{video: {}, autoattachGraphicsDevice: false}", "spec.domain.devices.video FieldValueInvalid"),
    ];
    for (devices, expected) in cases {
        assert_eq!(wrong_devices(devices, volume), [expected], "{devices}");
    }
    let cases = [
        ("{name: v}", "spec.volumes[0] FieldValueRequired"),
        ("{name: v, emptyDisk: {}}", "spec.volumes[0].emptyDisk.capacity FieldValueRequired"),
        ("{name: v, emptyDisk: {capacity: 0}}", "spec.volumes[0].emptyDisk.capacity FieldValueInvalid"),
        ("{name: v, containerDisk: {}}", "spec.volumes[0].containerDisk.image FieldValueRequired"),
        (
            "{name: v, containerDisk: {image: i, path: disk.img}}",
            "spec.volumes[0].containerDisk.path FieldValueInvalid",
        ),
        ("{name: v, hostDisk: {path: /a}}", "spec.volumes[0].hostDisk.type FieldValueRequired"),
        (
            "{name: v, hostDisk: {path: /a, type: DiskOrCreate}}",
            "spec.volumes[0].hostDisk.capacity FieldValueRequired",
        ),
        ("{name: v, hostDisk: {path: a, type: Disk}}", "spec.volumes[0].hostDisk.path FieldValueInvalid"),
        ("{name: v, hostDisk: {type: Disk}}", "spec.volumes[0].hostDisk.path FieldValueRequired"),
        (
            "{name: v, emptyDisk: {capacity: 1}, hostDisk: {path: /a, type: Disk}}",
            "spec.volumes[0] FieldValueInvalid",
        ),
        ("{name: v, cloudInitNoCloud: {}}", "spec.volumes[0].cloudInitNoCloud FieldValueRequired"),
        (
            "{name: v, cloudInitNoCloud: {userData: a, userDataBase64: YQ==}}",
            "spec.volumes[0].cloudInitNoCloud.userDataBase64 FieldValueInvalid",
        ),
        (
            "{name: v, cloudInitNoCloud: {networkDataBase64: '%'}}",
            "spec.volumes[0].cloudInitNoCloud.networkDataBase64 FieldValueInvalid",
        ),
    ];
    for (volume, expected) in cases {
        assert_eq!(wrong(&format!("{MEMORY}  volumes: [{volume}]\n")), [expected], "{volume}");
    }
}

#[test]
fn devices_that_say_little_are_what_upstream_makes_of_them() {
    let none: [&str; 0] = [];
    for devices in [
        "{inputs: [{type: keyboard}, {}]}",
        "{watchdog: {}}",
        "{panicDevices: [{}]}",
        "{disks: [{name: v, disk: {bus: '', readonly: false}, cache: ''}]}",
    ] {
        let volume = "  volumes: [{name: v, emptyDisk: {capacity: 1Gi}}]\n";
        assert_eq!(wrong_devices(devices, volume), none, "{devices}");
    }
    for domain in [
        "memory: {guest: 1Gi}, resources: {requests: {cpu: 0, memory: 0}, limits: {memory: '0'}}",
        "memory: {guest: 1Gi}, machine: {type: pc-q35-rhel9.6.0}",
        "memory: {guest: 1Gi}, firmware: {uuid: 5d307ca9b3ef428c886106e72d69f223}",
        "memory: {guest: 1Gi}, firmware: {bootloader: {efi: {secureBoot: false}}}",
        "memory: {guest: 1Gi}, features: {smm: {}}, firmware: {bootloader: {efi: {}}}, devices: {tpm: {}}",
        "resources: {requests: {memory: 0}, limits: {memory: 1Gi}}",
    ] {
        assert_eq!(wrong(&format!("  domain: {{{domain}}}\n")), none, "{domain}");
    }
}

#[test]
fn a_path_in_an_image_has_one_spelling() {
    let named = |path: &str| {
        format!("{MEMORY}  volumes: [{{name: v, containerDisk: {{image: i, path: '{path}'}}}}]\n")
    };
    for right in ["/disk.img", "/a/b", "/a/"] {
        assert_eq!(wrong(&named(right)), [] as [&str; 0], "{right}");
    }
    for other in ["/", "a", "/a//b", "/a/./b", "/a/../b", "/a//"] {
        assert_eq!(wrong(&named(other)), ["spec.volumes[0].containerDisk.path FieldValueInvalid"], "{other}");
    }
}

#[test]
fn boot_order_is_unique_across_disks_and_interfaces() {
    let found = wrong_devices(
        "{disks: [{name: v, bootOrder: 1}], interfaces: [{name: n, bootOrder: 1}]}",
        "  volumes: [{name: v, emptyDisk: {capacity: 1}}]\n  networks: [{name: n, pod: {}}]\n",
    );
    assert_eq!(found, ["spec.domain.devices.interfaces[0].bootOrder FieldValueDuplicate"]);
}

#[test]
fn interfaces_and_networks() {
    let networks = "  networks: [{name: n, pod: {}}]\n";
    let long_boot_file = format!("{{name: n, dhcpOptions: {{bootFileName: {}}}}}", "x".repeat(256));
    let cases = [
        ("{name: n, macAddress: '52:54'}", "macAddress FieldValueInvalid"),
        ("{name: n, macAddress: '01:00:5e:00:00:01'}", "macAddress FieldValueInvalid"),
        ("{name: n, pciAddress: x}", "pciAddress FieldValueInvalid"),
        ("{name: n, model: e1000}", "model FieldValueInvalid"),
        ("{name: n, masquerade: {}, model: rtl8139}", "model FieldValueInvalid"),
        ("{name: n, ports: [{name: http}]}", "ports[0].port FieldValueRequired"),
        ("{name: n, ports: [{port: 80}, {port: 80}]}", "ports[1].port FieldValueDuplicate"),
        ("{name: n, ports: [{port: 80, name: '80'}]}", "ports[0].name FieldValueInvalid"),
        ("{name: n, ports: [{port: 80, name: a}, {port: 81, name: a}]}", "ports[1].name FieldValueDuplicate"),
        ("{name: n, dhcpOptions: {ntpServers: [pool]}}", "dhcpOptions.ntpServers[0] FieldValueInvalid"),
        (&long_boot_file, "dhcpOptions.bootFileName FieldValueInvalid"),
        (
            "{name: n, dhcpOptions: {privateOptions: [{option: 224, value: a}, {option: 224, value: b}]}}",
            "dhcpOptions.privateOptions[1].option FieldValueDuplicate",
        ),
        (
            "{name: n, dhcpOptions: {privateOptions: [{option: 224}]}}",
            "dhcpOptions.privateOptions[0].value FieldValueRequired",
        ),
        (
            "{name: n, dhcpOptions: {privateOptions: [{value: a}]}}",
            "dhcpOptions.privateOptions[0].option FieldValueRequired",
        ),
    ];
    for (interface, expected) in cases {
        assert_eq!(
            wrong_devices(&format!("{{interfaces: [{interface}]}}"), networks),
            [format!("spec.domain.devices.interfaces[0].{expected}")],
            "{interface}"
        );
    }
    assert_eq!(
        wrong_devices("{interfaces: [{name: n, ports: [{port: 53}, {port: 53, protocol: UDP}]}]}", networks),
        Vec::<String>::new()
    );
    let two = "{interfaces: [{name: n, macAddress: '02:00:00:00:00:01', acpiIndex: 1, pciAddress: '0000:0a:00.0'}, \
               {name: m, macAddress: '02-00-00-00-00-01', acpiIndex: 1, pciAddress: '0000:0A:00.0'}]}";
    assert_eq!(
        wrong_devices(two, "  networks: [{name: n, pod: {}}, {name: m, pod: {}}]\n"),
        [
            "spec.networks[1].pod FieldValueDuplicate",
            "spec.domain.devices.interfaces[1].macAddress FieldValueDuplicate",
            "spec.domain.devices.interfaces[1].acpiIndex FieldValueDuplicate",
            "spec.domain.devices.interfaces[1].pciAddress FieldValueDuplicate",
        ]
    );
    assert_eq!(
        wrong_devices("{interfaces: [{name: a.b}]}", "  networks: [{name: n}]\n"),
        [
            "spec.networks[0].pod FieldValueRequired",
            "spec.networks[0].name FieldValueNotFound",
            "spec.domain.devices.interfaces[0].name FieldValueInvalid",
            "spec.domain.devices.interfaces[0].name FieldValueNotFound",
        ]
    );
}

#[test]
fn networks_of_multus() {
    // Where a machine has no cluster there is no Multus: the fields are judged as a cluster's.
    let wrong = |interfaces: serde_json::Value, networks: serde_json::Value| {
        let mut vmi = VirtualMachineInstance::from_value(serde_json::json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": {"name": "a"},
            "spec": {
                "domain": {"memory": {"guest": "64Mi"}, "devices": {"interfaces": interfaces}},
                "networks": networks,
            },
        }))
        .unwrap();
        defaults::set_defaults(&mut vmi);
        let found = validate(&vmi).0;
        found.iter().map(|p| format!("{} {:?}", p.field, p.reason)).collect::<Vec<_>>()
    };
    use serde_json::json;
    let two = || json!([{"name": "a"}, {"name": "b", "passtBinding": {}}]);
    let fine = json!([{"name": "a", "pod": {}}, {"name": "b", "multus": {"networkName": "shop/flat"}}]);
    assert_eq!(wrong(two(), fine), [""; 0]);
    let default = json!([{"name": "a", "multus": {"networkName": "flat", "default": true}}]);
    assert_eq!(wrong(json!([{"name": "a"}]), default), [""; 0]);
    for (network, expected) in [
        (json!({"multus": {"networkName": ""}}), "spec.networks[1].multus.networkName FieldValueRequired"),
        (json!({"multus": {"networkName": "A/b"}}), "spec.networks[1].multus.networkName FieldValueInvalid"),
        (
            json!({"multus": {"networkName": "a/b/c"}}),
            "spec.networks[1].multus.networkName FieldValueInvalid",
        ),
        (
            json!({"multus": {"networkName": "b", "default": true}}),
            "spec.networks[1].multus.default FieldValueDuplicate",
        ),
        (json!({}), "spec.networks[1].pod FieldValueRequired"),
    ] {
        let mut network = network;
        network["name"] = "b".into();
        assert_eq!(wrong(two(), json!([{"name": "a", "pod": {}}, network])), [expected]);
    }
    let both = json!([{"name": "a", "pod": {}, "multus": {"networkName": "b"}}]);
    assert_eq!(wrong(json!([{"name": "a"}]), both), ["spec.networks[0] FieldValueInvalid"]);
    let masquerade = || json!([{"name": "a", "masquerade": {}}]);
    for (interfaces, pod, expected) in [
        (
            masquerade(),
            json!({"vmNetworkCIDR": "10.10.010.0/24", "vmIPv6NetworkCIDR": "fd10::2/120"}),
            &[][..],
        ),
        (
            masquerade(),
            json!({"vmNetworkCIDR": "10.0.2.0/31"}),
            &["spec.networks[0].pod.vmNetworkCIDR FieldValueInvalid"],
        ),
        (
            masquerade(),
            json!({"vmNetworkCIDR": "fd10::/64", "vmIPv6NetworkCIDR": "10.0.2.0/24"}),
            &[
                "spec.networks[0].pod.vmNetworkCIDR FieldValueInvalid",
                "spec.networks[0].pod.vmIPv6NetworkCIDR FieldValueInvalid",
            ],
        ),
        (
            json!([{"name": "a", "passtBinding": {}}]),
            json!({"vmNetworkCIDR": "10.0.2.0/24"}),
            &["spec.networks[0].pod.vmNetworkCIDR FieldValueInvalid"],
        ),
    ] {
        assert_eq!(wrong(interfaces, json!([{"name": "a", "pod": pod}])), expected);
    }
    assert_eq!(
        wrong(masquerade(), json!([{"name": "a", "multus": {"networkName": "b"}}])),
        ["spec.domain.devices.interfaces[0].masquerade FieldValueInvalid"]
    );
}

#[test]
fn the_binding_bridge_is_for_networks_beside_the_pods_own() {
    use serde_json::json;
    let told = |interface: serde_json::Value, network: serde_json::Value| {
        let (mut interface, mut network) = (interface, network);
        (interface["name"], network["name"]) = ("b".into(), "b".into());
        let mut vmi = VirtualMachineInstance::from_value(json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": {"name": "a"},
            "spec": {
                "domain": {"memory": {"guest": "64Mi"}, "devices": {"interfaces": [interface]}},
                "networks": [network],
            },
        }))
        .unwrap();
        defaults::set_defaults(&mut vmi);
        let bound = &vmi.spec.domain.devices.interfaces[0];
        assert!(bound.passt_binding.is_none(), "no second binding by default");
        validate(&vmi).0.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let multus = || json!({"multus": {"networkName": "flat"}});
    let ports = json!([{"name": "http", "port": 80}]);
    assert_eq!(told(json!({"bridge": {}, "ports": ports}), multus()), [""; 0]);
    let instead = json!({"multus": {"networkName": "flat", "default": true}});
    let options = json!({"bridge": {}, "dhcpOptions": {"bootFileName": "x"}});
    for network in [multus(), instead, json!({"pod": {}})] {
        assert_eq!(told(options.clone(), network), [""; 0]);
    }
    let two = "spec.domain.devices.interfaces[0]: only one of passtBinding, masquerade, bridge, sriov and binding is allowed";
    assert_eq!(told(json!({"bridge": {}, "masquerade": {}}), json!({"pod": {}}))[0], two);
    assert_eq!(told(json!({"binding": {"name": "passt"}, "masquerade": {}}), json!({"pod": {}}))[0], two);
    assert_eq!(told(json!({"binding": {"name": "passt"}}), json!({"pod": {}})), [""; 0]);
}

#[test]
fn a_mesh_is_refused_where_its_rules_do_not_reach_the_guest() {
    use serde_json::json;
    let told = |labels: serde_json::Value, annotations: serde_json::Value, binding: &str| {
        let mut vmi = VirtualMachineInstance::from_value(json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": {"name": "a", "labels": labels, "annotations": annotations},
            "spec": {
                "domain": {"memory": {"guest": "64Mi"}, "devices": {"interfaces": [{"name": "b", binding: {}}]}},
                "networks": [{"name": "b", "pod": {}}],
            },
        }))
        .unwrap();
        defaults::set_defaults(&mut vmi);
        validate(&vmi).0.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let none = || json!({});
    let kernel = json!({"podvirt.io/masquerade": "nftables"});
    let with = |mut annotations: serde_json::Value, key: &str, value: &str| {
        annotations[key] = value.into();
        annotations
    };
    let istio = |annotations| with(annotations, "sidecar.istio.io/inject", "true");
    let linkerd = |annotations| with(annotations, "linkerd.io/inject", "enabled");
    let ambient = || json!({"istio.io/dataplane-mode": "ambient"});
    // In the pod's place no mesh reaches it.
    let place = "spec.domain.devices.interfaces[0].bridge: a mesh's proxy has no address where the guest has the pod's; with ";
    for (labels, annotations, key) in [
        (none(), istio(none()), "sidecar.istio.io/inject"),
        (istio(none()), none(), "sidecar.istio.io/inject"),
        (none(), linkerd(none()), "linkerd.io/inject"),
        (ambient(), none(), "istio.io/dataplane-mode"),
    ] {
        let problems = told(labels.clone(), annotations.clone(), "bridge");
        assert_eq!(problems, [format!("{place}{key} passtBinding, and masquerade by netd, are allowed")]);
        // netd's guest is a process of the pod.
        for binding in ["passtBinding", "masquerade"] {
            assert_eq!(told(labels.clone(), annotations.clone(), binding), [""; 0]);
        }
    }
    // Nor by a plugin's tap device.
    for kind in ["managedTap", "tap"] {
        let mut vmi = VirtualMachineInstance::from_value(json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": {"name": "a", "labels": ambient(), "annotations": {
                "podvirt.io/binding-plugins": json!({"flat": {"domainAttachmentType": kind}}).to_string(),
            }},
            "spec": {
                "domain": {"memory": {"guest": "64Mi"}, "devices": {"interfaces": [{"name": "b", "binding": {"name": "flat"}}]}},
                "networks": [{"name": "b", "pod": {}}],
            },
        }))
        .unwrap();
        defaults::set_defaults(&mut vmi);
        let problems = validate(&vmi).0;
        assert!(
            problems.iter().any(|p| p.field == "spec.domain.devices.interfaces[0].binding"),
            "{kind}: {problems:?}"
        );
    }
    // Behind the kernel's masquerade Istio's sidecar does.
    assert_eq!(told(none(), istio(kernel.clone()), "masquerade"), [""; 0]);
    assert_eq!(told(istio(none()), kernel.clone(), "masquerade"), [""; 0]);
    for (labels, annotations) in [(none(), linkerd(kernel.clone())), (ambient(), kernel)] {
        let problems = told(labels, annotations, "masquerade");
        assert!(
            problems.len() == 1
                && problems[0].starts_with("spec.domain.devices.interfaces[0].masquerade: the mesh's"),
            "{problems:?}"
        );
    }
}

#[test]
fn the_binding_sriov_is_a_device_on_a_network_of_multus() {
    use serde_json::json;
    let told = |more: serde_json::Value, network: serde_json::Value| {
        let (mut interface, mut network) = (more, network);
        (interface["name"], network["name"]) = ("b".into(), "b".into());
        interface["sriov"] = json!({});
        let mut vmi = VirtualMachineInstance::from_value(json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": {"name": "a"},
            "spec": {
                "domain": {"memory": {"guest": "64Mi"}, "devices": {"interfaces": [interface]}},
                "networks": [network],
            },
        }))
        .unwrap();
        defaults::set_defaults(&mut vmi);
        let bound = &vmi.spec.domain.devices.interfaces[0];
        assert!(bound.passt_binding.is_none() && bound.sriov.is_some(), "no second binding by default");
        validate(&vmi).0.iter().map(|p| p.field.clone()).collect::<Vec<_>>()
    };
    let multus = || json!({"multus": {"networkName": "fast"}});
    let all = json!({"macAddress": "02:00:00:00:00:01", "bootOrder": 1, "pciAddress": "0000:05:00.0", "model": "virtio",
        "ports": [{"port": 80}], "dhcpOptions": {"bootFileName": "x"}});
    assert_eq!(told(all, multus()), [""; 0]);
    let at = |field: &str| [format!("spec.domain.devices.interfaces[0]{field}")];
    assert_eq!(told(json!({}), json!({"pod": {}})), at(".sriov"));
    assert_eq!(told(json!({}), json!({"multus": {"networkName": "fast", "default": true}})), at(".sriov"));
    for state in ["up", "down", "absent"] {
        assert_eq!(told(json!({"state": state}), multus()), at(".state"), "{state}");
    }
    assert_eq!(told(json!({"model": "e1000"}), multus()), at(".model"));
    assert_eq!(told(json!({"acpiIndex": 3}), multus()), at(".acpiIndex"));
    assert_eq!(told(json!({"bridge": {}}), multus()), at(""));
}

#[test]
fn names_and_resolvers() {
    let cases = [
        ("  subdomain: A\n", "spec.subdomain FieldValueInvalid"),
        ("  dnsPolicy: None\n", "spec.dnsConfig.nameservers FieldValueRequired"),
        ("  dnsConfig: {nameservers: [x]}\n", "spec.dnsConfig.nameservers[0] FieldValueInvalid"),
        (
            "  dnsConfig: {nameservers: ['1.1.1.1', '1.1.1.2', '1.1.1.3', '::1']}\n",
            "spec.dnsConfig.nameservers FieldValueInvalid",
        ),
        ("  dnsConfig: {searches: [a_b]}\n", "spec.dnsConfig.searches[0] FieldValueInvalid"),
    ];
    for (rest, expected) in cases {
        assert_eq!(wrong(&format!("{MEMORY}{rest}")), [expected], "{rest}");
    }
    assert_eq!(
        wrong(&format!("{MEMORY}  dnsConfig: {{searches: ['example.org.']}}\n")),
        Vec::<String>::new()
    );
}

#[test]
fn a_guest_is_told_of_no_resolver_that_it_could_not_ask() {
    let told = |devices: &str, server: &str| {
        let spec = format!(
            "{{domain: {{memory: {{guest: 64Mi}}, devices: {{{devices}}}}}, networks: [{{name: default, pod: {{}}}}], \
             dnsPolicy: None, dnsConfig: {{nameservers: [192.0.2.53, '{server}']}}}}"
        );
        let text = format!(
            "{{apiVersion: kubevirt.io/v1, kind: VirtualMachineInstance, metadata: {{name: vm}}, spec: {spec}}}"
        );
        let mut vmi = VirtualMachineInstance::from_yaml(&text).unwrap();
        defaults::set_defaults(&mut vmi);
        let problems = validate(&vmi).0.into_iter().filter(|p| p.field.starts_with("spec.dnsConfig"));
        problems.map(|p| p.to_string()).collect::<Vec<_>>()
    };
    let none = "autoattachPodInterface: false";
    let interfaces =
        ["passtBinding", "masquerade"].map(|b| format!("interfaces: [{{name: default, {b}: {{}}}}]"));
    for server in ["127.0.0.1", "127.1.2.3", "::1", "224.0.0.251", "ff02::fb", "0.0.0.0", "::"] {
        // A machine without an interface has no netd: they are its pod's alone.
        assert_eq!(told(none, server), Vec::<String>::new());
        let why = "the address of a resolver is allowed; not a loopback, multicast or unspecified one";
        for devices in &interfaces {
            let refused = format!("spec.dnsConfig.nameservers[1]: '{server}' is not allowed; {why}");
            assert_eq!(told(devices, server), [refused]);
        }
    }
    for server in ["10.96.0.10", "169.254.20.10", "fe80::1", "fd00::a", "01.1.1.1"] {
        assert_eq!(told(&interfaces[0], server), Vec::<String>::new(), "{server}");
    }
    let form =
        "spec.dnsConfig.nameservers[1]: 'localhost' is not allowed; an IPv4 or IPv6 address is allowed";
    assert_eq!(told(none, "localhost"), [form]);
}
