//! What instance types and preferences make of templates.

use serde_json::{Value, json};

use super::infer::{self, InferError, Place, Source, from_labels, settle};
use super::*;
use crate::defaults::Choices;
use crate::v1::{KubeVirtConfiguration, VirtualMachine, VirtualMachineInstanceTemplateSpec};

fn specs(instancetype: Value, preference: Value) -> Specs {
    let given = |value: Value| (!value.is_null()).then_some(value);
    Specs {
        instancetype: given(instancetype).map(|value| serde_json::from_value(value).unwrap()),
        preference: given(preference).map(|value| serde_json::from_value(value).unwrap()),
    }
}

/// The template that is made, or the fields in conflict.
fn made(specs: &Specs, template: Value) -> Result<Value, String> {
    let mut template: VirtualMachineInstanceTemplateSpec = serde_json::from_value(template).unwrap();
    expand_template("spec", specs, &mut template, &Choices::default()).map_err(|error| error.fields())?;
    Ok(serde_json::to_value(template).unwrap())
}

fn small() -> Value {
    json!({"cpu": {"guest": 4}, "memory": {"guest": "2Gi"}})
}

#[test]
fn an_instance_type_sizes_the_machine() {
    let mut instancetype = small();
    instancetype["memory"]["overcommitPercent"] = json!(50);
    instancetype["nodeSelector"] = json!({"disk": "fast"});
    instancetype["schedulerName"] = json!("other");
    instancetype["annotations"] = json!({"a": "b"});
    let made = made(&specs(instancetype, Value::Null), json!({"spec": {"domain": {"devices": {}}}})).unwrap();
    let spec = &made["spec"];
    assert_eq!(spec["domain"]["cpu"], json!({"sockets": 4, "cores": 1, "threads": 1}));
    assert_eq!(spec["domain"]["memory"], json!({"guest": "2Gi"}));
    assert_eq!(spec["domain"]["resources"]["requests"], json!({"memory": "1Gi"}));
    assert_eq!((&spec["nodeSelector"], &spec["schedulerName"]), (&json!({"disk": "fast"}), &json!("other")));
    assert_eq!(made["metadata"]["annotations"], json!({"a": "b"}));
    let nothing = specs(json!({"cpu": {"guest": 4}, "memory": {"guest": "0Mi"}}), Value::Null);
    let made = self::made(&nothing, json!({"spec": {"domain": {"devices": {}}}})).unwrap();
    assert_eq!(made["spec"]["domain"]["memory"], json!({}), "no memory is said");
}

#[test]
fn a_part_of_the_memory_is_written_without_a_fraction() {
    for (guest, percent, expected) in [
        ("2Gi", 15, "1825361152"),
        ("128Mi", 15, "114085072"),
        ("1000Mi", 10, "900Mi"),
        ("2G", 10, "1800M"),
        ("1Gi", 100, "0"),
    ] {
        let instancetype =
            json!({"cpu": {"guest": 1}, "memory": {"guest": guest, "overcommitPercent": percent}});
        let made =
            made(&specs(instancetype, Value::Null), json!({"spec": {"domain": {"devices": {}}}})).unwrap();
        assert_eq!(made["spec"]["domain"]["resources"]["requests"]["memory"], expected, "{guest} {percent}");
    }
}

#[test]
fn processors_are_arranged_as_preferred() {
    for (cpu, count, expected) in [
        (json!({"preferredCPUTopology": "sockets"}), 4, [4, 1, 1]),
        (json!({"preferredCPUTopology": "preferAny"}), 4, [4, 1, 1]),
        (json!({"preferredCPUTopology": "cores"}), 4, [1, 4, 1]),
        (json!({"preferredCPUTopology": "preferThreads"}), 4, [1, 1, 4]),
        (json!({"preferredCPUTopology": "cores"}), 1, [1, 1, 1]),
        (json!({"preferredCPUTopology": "spread"}), 8, [4, 2, 1]),
        (json!({"preferredCPUTopology": "spread", "spreadOptions": {"ratio": 4}}), 8, [2, 4, 1]),
        (
            json!({"preferredCPUTopology": "spread", "spreadOptions": {"across": "CoresThreads"}}),
            8,
            [1, 4, 2],
        ),
        (
            json!({"preferredCPUTopology": "spread", "spreadOptions": {"across": "SocketsCoresThreads"}}),
            8,
            [2, 2, 2],
        ),
    ] {
        let instancetype = json!({"cpu": {"guest": count}, "memory": {"guest": "1Gi"}});
        let specs = specs(instancetype, json!({ "cpu": cpu }));
        let made = made(&specs, json!({"spec": {"domain": {"devices": {}}}})).unwrap();
        let there = &made["spec"]["domain"]["cpu"];
        assert_eq!(
            [&there["sockets"], &there["cores"], &there["threads"]],
            expected.each_ref().map(|n| json!(n)).each_ref(),
            "{cpu}"
        );
    }
    let odd = specs(
        json!({"cpu": {"guest": 3}, "memory": {"guest": "1Gi"}}),
        json!({"cpu": {"preferredCPUTopology": "spread"}}),
    );
    let conflicts = check_spread(odd.instancetype.as_ref(), odd.preference.as_ref()).unwrap_err();
    assert_eq!(conflicts.fields(), "instancetype.spec.cpu.guest");
    let told = "3 vCPUs provided by the instance type are not divisible by the Spec.PreferSpreadSocketToCoreRatio or \
                Spec.CPU.PreferSpreadOptions.Ratio of 2 provided by the preference";
    assert_eq!(conflicts.to_string(), told);
}

#[test]
fn fields_of_both_are_conflicts_with_upstreams_paths() {
    let mut instancetype = small();
    instancetype["cpu"]["model"] = json!("Haswell");
    instancetype["cpu"]["dedicatedCPUPlacement"] = json!(true);
    instancetype["memory"]["maxGuest"] = json!("4Gi");
    instancetype["gpus"] = json!([{"name": "a"}]);
    instancetype["annotations"] = json!({"a": "b", "c": "d"});
    let specs = specs(instancetype, Value::Null);
    for (template, expected) in [
        (
            json!({"spec": {"domain": {"cpu": {"sockets": 1, "cores": 1, "threads": 1}, "devices": {}}}}),
            "spec.domain.cpu.sockets, spec.domain.cpu.cores, spec.domain.cpu.threads",
        ),
        (
            json!({"spec": {"domain": {"cpu": {"model": "host-model", "dedicatedCpuPlacement": true}, "devices": {}}}}),
            "spec.domain.cpu.model, spec.domain.cpu.dedicatedCPUPlacement",
        ),
        (
            json!({"spec": {"domain": {"resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1"}}, "devices": {}}}}),
            "spec.domain.resources.requests.cpu, spec.domain.resources.limits.cpu, spec.domain.resources.requests.memory",
        ),
        (
            json!({"spec": {"domain": {"memory": {"guest": "1Gi", "maxGuest": "2Gi"}, "devices": {}}}}),
            "spec.domain.memory.guest",
        ),
        (
            json!({"spec": {"domain": {"memory": {"maxGuest": "2Gi"}, "devices": {"gpus": [{"name": "b"}]}}}}),
            "spec.domain.memory.maxGuest, spec.domain.devices.gpus",
        ),
        (
            json!({"metadata": {"annotations": {"a": "x", "c": "d"}}, "spec": {"domain": {"devices": {}}}}),
            "annotations.a",
        ),
    ] {
        assert_eq!(made(&specs, template.clone()), Err(expected.to_owned()), "{template}");
    }
}

#[test]
fn a_preference_fills_in_what_the_template_leaves_open() {
    let preference = json!({
        "clock": {"preferredClockOffset": {"timezone": "Europe/Berlin"}, "preferredTimer": {"pit": {"tickPolicy": "delay"}}},
        "cpu": {"preferredCPUFeatures": [{"name": "vmx", "policy": "forbid"}, {"name": "pcid"}]},
        "devices": {
            "preferredDiskBus": "virtio", "preferredCdromBus": "scsi", "preferredInterfaceModel": "e1000e",
            "preferredDiskCache": "none", "preferredDiskDedicatedIoThread": true, "preferredRng": {},
            "preferredInputBus": "virtio", "preferredAutoattachInputDevice": true, "preferredAutoattachMemBalloon": false,
            "preferredInterfaceMasquerade": {}, "preferredDisableHotplug": false,
        },
        "features": {"preferredSmm": {"enabled": false}, "preferredHyperv": {"relaxed": {}}},
        "firmware": {"preferredUseBios": true, "preferredUseBiosSerial": true, "preferredEfi": {}},
        "machine": {"preferredMachineType": "pc-q35-9.0"},
        "preferredSubdomain": "shop", "preferredTerminationGracePeriodSeconds": 9, "preferredArchitecture": "amd64",
        "annotations": {"a": "preferred", "b": "preferred"},
    });
    let template = json!({
        "metadata": {"annotations": {"a": "own"}},
        "spec": {
            "domain": {
                "clock": {"utc": {}}, "cpu": {"features": [{"name": "vmx", "policy": "require"}]},
                "features": {"hyperv": {"relaxed": {"enabled": false}}},
                "devices": {
                    "disks": [{"name": "a"}, {"name": "b", "disk": {"bus": "sata"}}, {"name": "c", "cdrom": {}}],
                    "interfaces": [{"name": "pod"}, {"name": "other"}, {"name": "own", "model": "rtl8139", "bridge": {}}],
                },
            },
            "networks": [{"name": "pod", "pod": {}}, {"name": "other", "multus": {"networkName": "n"}},
                {"name": "own", "pod": {}}],
            "volumes": [{"name": "a", "emptyDisk": {"capacity": "1Gi"}}, {"name": "shown", "emptyDisk": {"capacity": "1Gi"}}],
        },
    });
    let made = made(&specs(Value::Null, preference), template).unwrap();
    assert_eq!(made["metadata"]["annotations"], json!({"a": "own", "b": "preferred"}));
    let (spec, domain) = (&made["spec"], &made["spec"]["domain"]);
    assert_eq!(domain["clock"], json!({"utc": {}, "timer": {"pit": {"tickPolicy": "delay"}}}));
    assert_eq!(domain["cpu"]["features"], json!([{"name": "vmx", "policy": "require"}, {"name": "pcid"}]));
    assert_eq!(domain["features"]["hyperv"]["relaxed"]["enabled"], false);
    assert_eq!(domain["features"]["smm"]["enabled"], false);
    assert_eq!(domain["firmware"]["bootloader"], json!({"bios": {"useSerial": true}}));
    assert_eq!(domain["machine"]["type"], "pc-q35-9.0");
    let devices = &domain["devices"];
    assert_eq!(
        devices["disks"][0],
        json!({"name": "a", "disk": {"bus": "virtio"}, "cache": "none", "dedicatedIOThread": true})
    );
    assert_eq!(devices["disks"][1], json!({"name": "b", "disk": {"bus": "sata"}, "cache": "none"}));
    assert_eq!(devices["disks"][2], json!({"name": "c", "cdrom": {"bus": "scsi"}}));
    assert_eq!(devices["disks"][3]["disk"]["bus"], "virtio", "a volume without a disk becomes one before");
    assert_eq!(devices["interfaces"][0], json!({"name": "pod", "model": "e1000e", "masquerade": {}}));
    assert_eq!(devices["interfaces"][1], json!({"name": "other", "model": "e1000e"}));
    assert_eq!(devices["interfaces"][2], json!({"name": "own", "model": "rtl8139", "bridge": {}}));
    assert_eq!(devices["inputs"], json!([{"name": "default-0", "bus": "virtio", "type": "tablet"}]));
    assert_eq!((&devices["autoattachMemBalloon"], &devices["rng"]), (&json!(false), &json!({})));
    assert_eq!(devices.get("disableHotplug"), None);
    assert_eq!(
        (&spec["subdomain"], &spec["terminationGracePeriodSeconds"], &spec["architecture"]),
        (&json!("shop"), &json!(9), &json!("amd64"))
    );
}

#[test]
fn what_a_preference_requires_is_checked() {
    let requirements = json!({"requirements": {"cpu": {"guest": 2}, "memory": {"guest": "1Gi"}}});
    let check = |instancetype: Value, preference: &Value, domain: Value| {
        let specs = specs(instancetype, preference.clone());
        let spec = serde_json::from_value(json!({ "domain": domain, "architecture": "amd64" })).unwrap();
        check_requirements(&specs, &spec).map_err(|unmet| (unmet.fields.join(","), unmet.message))
    };
    assert_eq!(check(small(), &requirements, json!({"devices": {}})), Ok(()));
    let (field, told) = check(
        json!({"cpu": {"guest": 1}, "memory": {"guest": "2Gi"}}),
        &requirements,
        json!({"devices": {}}),
    )
    .unwrap_err();
    assert_eq!(field, "spec.instancetype");
    assert_eq!(
        told,
        "insufficient CPU resources of 1 vCPU provided by instance type, preference requires 2 vCPU"
    );
    let (field, _) =
        check(Value::Null, &requirements, json!({"cpu": {"cores": 2, "sockets": 1}, "devices": {}}))
            .unwrap_err();
    assert_eq!(field, "spec.template.spec.domain.cpu.sockets");
    let (field, told) = check(
        Value::Null,
        &requirements,
        json!({"cpu": {"sockets": 2}, "memory": {"guest": "512Mi"}, "devices": {}}),
    )
    .unwrap_err();
    assert_eq!(field, "spec.template.spec.domain.memory");
    assert_eq!(
        told,
        "insufficient Memory resources of 512Mi provided by VirtualMachine, preference requires 1Gi"
    );
    let architecture = json!({"requirements": {"architecture": "arm64"}});
    assert_eq!(
        check(Value::Null, &architecture, json!({"devices": {}})).unwrap_err().1,
        "preference requires architecture arm64 but amd64 is being requested"
    );
}

fn machine() -> VirtualMachine {
    serde_json::from_value(json!({
        "metadata": {"name": "vm", "namespace": "ns", "uid": "v1"},
        "spec": {"runStrategy": "Halted", "instancetype": {"name": "small"}, "template": {"spec": {"domain": {"devices": {}}}}},
        "status": {"instancetypeRef": {"name": "small"}},
    }))
    .unwrap()
}

#[test]
fn an_expanded_machine_has_all_of_it_and_names_neither() {
    let specs = specs(small(), json!({"devices": {"preferredInterfaceModel": "e1000e"}}));
    let expanded = expand(&machine(), &specs, &KubeVirtConfiguration::default()).unwrap();
    assert_eq!((&expanded.spec.instancetype, &expanded.status.instancetype_ref), (&None, &None));
    let mut template = expanded.spec.template.clone().unwrap();
    machine_address(&machine(), &mut template);
    let spec = serde_json::to_value(template.spec).unwrap();
    assert_eq!(spec["domain"]["memory"]["guest"], "2Gi");
    assert_eq!(spec["domain"]["machine"]["type"], "q35", "with the defaults");
    assert_eq!(spec["terminationGracePeriodSeconds"], 180, "of a VirtualMachine");
    let interface = &spec["domain"]["devices"]["interfaces"][0];
    assert_eq!(interface["model"], "e1000e");
    let plain = json!({"metadata": {"name": "vm", "namespace": "ns",
        "uid": "i", "ownerReferences": [{"kind": "VirtualMachine", "uid": "v1"}]}});
    let mut plain = crate::VirtualMachineInstance::from_value(plain).unwrap();
    crate::defaults::set_defaults(&mut plain);
    assert_eq!(
        interface["macAddress"], plain.spec.domain.devices.interfaces[0].mac_address,
        "as without an instance type"
    );
    // Instances get the machine's default, not the one of an instance of its own.
    let mut bare = machine();
    bare.spec.instancetype = None;
    assert_eq!(expand(&bare, &Specs::default(), &KubeVirtConfiguration::default()).unwrap(), bare);
}

#[test]
fn a_revision_keeps_what_was_stored() {
    let object = json!({
        "apiVersion": "instancetype.kubevirt.io/v1beta1", "kind": "VirtualMachineClusterInstancetype",
        "metadata": {"name": "small", "uid": "t1", "generation": 2, "labels": {"a": "b"}, "managedFields": []},
        "spec": small(),
    });
    let made = revision(&machine(), Subject::Instancetype, Scope::Cluster, &object);
    assert_eq!(made.metadata.name.as_deref(), Some("vm-small-v1beta1-t1-2"));
    let labels = json!({
        "instancetype.kubevirt.io/object-generation": "2", "instancetype.kubevirt.io/object-name": "small",
        "instancetype.kubevirt.io/object-kind": "VirtualMachineClusterInstancetype",
        "instancetype.kubevirt.io/object-uid": "t1", "instancetype.kubevirt.io/object-version": "v1beta1",
    });
    assert_eq!(json!(made.metadata.labels), labels);
    assert_eq!(
        made.data.as_ref().unwrap().0["metadata"],
        json!({"name": "small", "uid": "t1", "generation": 2})
    );
    let owner = &made.metadata.owner_references.as_ref().unwrap()[0];
    assert_eq!(
        (owner.kind.as_str(), owner.uid.as_str(), owner.controller),
        ("VirtualMachine", "v1", Some(true))
    );
    let kept: crate::v1::VirtualMachineInstancetypeSpec = spec_of(&made, Subject::Instancetype).unwrap();
    assert_eq!(serde_json::to_value(kept).unwrap(), small());
    assert!(is_of(&made, "small") && !is_of(&made, "large"));
    let mut other = made.clone();
    assert!(is_same(&made, &other));
    other.data.as_mut().unwrap().0["spec"]["cpu"]["guest"] = json!(5);
    assert!(!is_same(&made, &other));
    let error = spec_of::<crate::v1::VirtualMachinePreferenceSpec>(&made, Subject::Preference).unwrap_err();
    assert!(error.to_string().contains("VirtualMachineClusterInstancetype"), "{error}");
}

#[test]
fn kinds_are_singular_or_plural_in_any_case() {
    let scope = |kind: &str| {
        Matcher { kind: Some(kind.into()), ..Matcher::default() }
            .scope(Subject::Instancetype)
            .map_err(|e| e.to_string())
    };
    for kind in ["", "virtualmachineclusterinstancetypes", "VirtualMachineClusterInstancetype"] {
        assert_eq!(scope(kind), Ok(Scope::Cluster), "{kind}");
    }
    assert_eq!(scope("virtualMachineInstancetypes"), Ok(Scope::Namespace));
    let error = scope("VirtualMachinePreference").unwrap_err();
    assert!(
        error.starts_with("got unexpected kind in InstancetypeMatcher: VirtualMachinePreference"),
        "{error}"
    );
    assert_eq!(Subject::Preference.plural(Scope::Cluster), "virtualmachineclusterpreferences");
}

#[test]
fn a_volumes_labels_name_what_suits_it() {
    let mut object = json!({"spec": {
        "instancetype": {"inferFromVolume": "root", "inferFromVolumeFailurePolicy": "Ignore"},
        "template": {"spec": {"domain": {"memory": {"guest": "1Gi"}}, "volumes": [
            {"name": "root", "persistentVolumeClaim": {"claimName": "disk"}}, {"name": "dv", "dataVolume": {"name": "d"}},
            {"name": "image", "containerDisk": {"image": "i"}}]}},
    }});
    let source = |name: &str| infer::source(&object, "shop", name);
    assert_eq!(source("root"), Ok(Source::Claim(place("shop", "disk"))));
    assert_eq!(source("dv"), Ok(Source::DataVolume(place("shop", "d"))));
    assert_eq!(source("image"), Err(InferError::VolumeType("image".into())));
    assert_eq!(source("none"), Err(InferError::NoVolume("none".into())));
    let matcher = Matcher::in_object(&object, Subject::Instancetype).unwrap();
    let labels = [
        ("instancetype.kubevirt.io/default-instancetype", "small"),
        ("instancetype.kubevirt.io/default-instancetype-kind", "VirtualMachineInstancetype"),
    ];
    let labels = labels.map(|(k, v)| (k.to_owned(), v.to_owned())).into_iter().collect();
    let without = object.clone();
    let inferred = from_labels(Subject::Instancetype, &labels);
    settle(&mut object, Subject::Instancetype, &matcher, inferred).unwrap();
    assert_eq!(
        object["spec"]["instancetype"],
        json!({"name": "small", "kind": "VirtualMachineInstancetype"})
    );
    assert_eq!(
        object["spec"]["template"]["spec"]["domain"],
        json!({}),
        "the memory was for the case without"
    );
    let failed = || from_labels(Subject::Preference, &labels);
    let mut object = without.clone();
    settle(&mut object, Subject::Instancetype, &matcher, failed()).unwrap();
    assert_eq!(object["spec"].get("instancetype"), None);
    let strict = Matcher { infer_from_volume_failure_policy: None, ..matcher.clone() };
    let mut object = without;
    let error = settle(&mut object, Subject::Instancetype, &strict, failed()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "unable to find required instancetype.kubevirt.io/default-preference label on the volume"
    );
    settle(&mut object, Subject::Instancetype, &matcher, Err(InferError::NoVolume("x".into()))).unwrap_err();
}

fn place(namespace: &str, name: &str) -> Place {
    Place { namespace: namespace.into(), name: name.into() }
}

#[test]
fn a_data_volumes_labels_may_be_those_of_what_fills_it() {
    let of = |spec: serde_json::Value| {
        let object = json!({"spec": {
            "dataVolumeTemplates": [{"metadata": {"name": "d"}, "spec": spec}],
            "template": {"spec": {"volumes": [{"name": "dv", "dataVolume": {"name": "d"}}]}},
        }});
        infer::source(&object, "shop", "dv")
    };
    let copied = of(json!({"source": {"pvc": {"namespace": "images", "name": "debian"}}}));
    assert_eq!(copied, Ok(Source::Claim(place("images", "debian"))));
    let referred = of(json!({"sourceRef": {"kind": "DataSource", "name": "debian"}}));
    assert_eq!(referred, Ok(Source::DataSource(place("shop", "debian"))));
    assert_eq!(of(json!({"source": {"blank": {}}})), Err(InferError::DataVolumeSource));
    assert_eq!(
        of(json!({"sourceRef": {"kind": "Other", "name": "x"}})),
        Err(InferError::SourceRef("Other".into()))
    );
    let claim = infer::claim_of_data_source(&json!({"source": {"pvc": {"name": "debian"}}}), "images");
    assert_eq!(claim, Ok(place("images", "debian")));
    assert_eq!(infer::claim_of_data_source(&json!({"source": {}}), "images"), Err(InferError::DataSource));
}
