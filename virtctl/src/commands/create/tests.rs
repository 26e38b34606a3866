use serde_json::{Value, json};

use super::vm::{Made, manifest};
use super::{instancetype, of_group, preference};
use crate::args::{Command, CreateVm, What};

fn what(line: &[&str]) -> What {
    let line: Vec<_> = ["virtctl", "create"].iter().chain(line).map(Into::into).collect();
    match crate::help::parse(&line).unwrap_or_else(|error| panic!("{error}")).command {
        Some(Command::Create(args)) => args.what,
        other => panic!("{other:?}"),
    }
}

fn flags(line: &[&str]) -> CreateVm {
    match what(&[&["vm"], line].concat()) {
        What::Vm(flags) => *flags,
        other => panic!("{other:?}"),
    }
}

fn made(line: &[&str]) -> anyhow::Result<Made> {
    manifest(&flags(line), "web", None)
}

/// The instance's specification that these flags make.
fn instance(line: &[&str]) -> Value {
    made(line).unwrap().manifest["spec"]["template"]["spec"].clone()
}

fn refused(line: &[&str]) -> String {
    made(line).unwrap_err().to_string()
}

#[test]
fn without_flags_there_is_a_machine_of_512_mib_that_always_runs() {
    let Made { manifest, warnings } = manifest(&flags(&[]), "web", Some("blue")).unwrap();
    assert_eq!(
        manifest,
        json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
            "metadata": {"name": "web", "namespace": "blue"},
            "spec": {"runStrategy": "Always", "template": {"metadata": {}, "spec": {
                "domain": {"devices": {}, "memory": {"guest": "512Mi"}, "resources": {}},
                "terminationGracePeriodSeconds": 180,
            }}},
            "status": {},
        })
    );
    assert_eq!(warnings, [""; 0]);
}

#[test]
fn imported_volumes_become_templates_of_data_volumes() {
    let made = |line: &[&str]| made(line).unwrap();
    let line = [
        "--volume-import=type:http,url:https://a.example/b:1.qcow2,size:1Gi,name:web,extraheaders:a: b;c: d,bootorder:1",
        "--volume-import=type:registry,url:docker://r:5000/i:t,pullmethod:node,size:2Gi,name:image",
        "--volume-import=type:ds,src:os/fedora,name:source",
        "--volume-clone-pvc=src:blue/data,name:copy",
        "--volume-blank=size:3Gi,name:empty",
        "--volume-pvc=src:claim",
    ];
    let Made { manifest, warnings } = made(&line);
    let storage = |size: &str| json!({"resources": {"requests": {"storage": size}}});
    let expected = json!([
        {"metadata": {"name": "copy"}, "spec": {"source": {"pvc": {"namespace": "blue", "name": "data"}}, "storage": {}}},
        {"metadata": {"name": "empty"}, "spec": {"source": {"blank": {}}, "storage": storage("3Gi")}},
        {"metadata": {"name": "web"}, "spec": {"storage": storage("1Gi"), "source": {"http": {
            "url": "https://a.example/b:1.qcow2", "extraHeaders": ["a: b", "c: d"]}}}},
        {"metadata": {"name": "image"}, "spec": {"storage": storage("2Gi"), "source": {"registry": {
            "url": "docker://r:5000/i:t", "pullMethod": "node"}}}},
        {"metadata": {"name": "source"}, "spec": {"storage": {},
            "sourceRef": {"kind": "DataSource", "namespace": "os", "name": "fedora"}}},
    ]);
    assert_eq!(manifest["spec"]["dataVolumeTemplates"], expected);
    let template = &manifest["spec"]["template"]["spec"];
    let names: Vec<_> =
        template["volumes"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["claim", "copy", "empty", "web", "image", "source"]);
    assert_eq!(template["volumes"][3]["dataVolume"], json!({"name": "web"}));
    assert_eq!(template["domain"]["devices"]["disks"], json!([{"name": "web", "bootOrder": 1}]));
    let deprecated =
        |flag: &str| format!("Flag --volume-{flag} has been deprecated, use flag --volume-import instead");
    assert_eq!(warnings, [deprecated("clone-pvc"), deprecated("blank")]);
    // What is booted first is not of a kind that says an instance type; a registry's image is.
    assert_eq!(manifest["spec"].get("instancetype"), None);
    let of_registry = made(&["--volume-import=type:registry,url:docker://i,size:1Gi,name:image"]).manifest;
    assert_eq!(of_registry["spec"]["instancetype"]["inferFromVolume"], "image");

    for (text, why) in [
        ("size:1Gi", "type must be specified"),
        ("type:tape,size:1Gi", "invalid volume import type \"tape\", supported values are: blank, ds"),
        ("type:blank", "size must be specified"),
        ("type:blank,size:much", "size \"much\""),
        ("type:blank,size:1Gi,url:a", "unknown param(s): url:a"),
        ("type:http,size:1Gi", "url is required with http volume source"),
        ("type:imageio,url:a,size:1Gi", "url and diskid are both required"),
        ("type:vddk,url:a,uuid:b,size:1Gi", "thumbprint is required with vddk volume source"),
        ("type:pvc,src:data", "namespace of pvc \"data\" must be specified"),
        ("type:ds", "src must be specified"),
        ("type:registry,size:1Gi", "exactly one of url or imagestream must be defined"),
        ("type:registry,url:a,pullmethod:x,size:1Gi", "pullmethod must be set to pod or node"),
    ] {
        let told = refused(&[&format!("--volume-import={text}")]);
        assert!(
            told.contains(&format!("failed to parse \"--volume-import\" flag: {why}")),
            "{told}, not {why}"
        );
    }
}

#[test]
fn volumes_have_a_fixed_order_and_a_boot_order_makes_a_disk() {
    let spec = instance(&[
        "--volume-pvc=src:data,bootorder:1",
        "--volume-containerdisk=src:registry:5000/a:b",
        "--volume-containerdisk=name:other,src:c,bootorder:7",
        "--volume-sysprep=src:answers,type:Secret",
        "--memory=1Gi",
    ]);
    assert_eq!(
        spec["volumes"],
        json!([
            {"name": "web-containerdisk-0", "containerDisk": {"image": "registry:5000/a:b"}},
            {"name": "other", "containerDisk": {"image": "c"}},
            {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
            {"name": "sysprepdisk", "sysprep": {"secret": {"name": "answers"}}},
        ])
    );
    let disks = json!([{"name": "other", "bootOrder": 7}, {"name": "data", "bootOrder": 1}]);
    assert_eq!(spec["domain"]["devices"]["disks"], disks);
    for (line, why) in [
        (
            vec!["--volume-containerdisk=src:a,name:x", "--volume-pvc=src:x"],
            "failed to parse \"--volume-pvc\" flag: there is already a volume with name \"x\"",
        ),
        (
            vec!["--volume-pvc=src:a,bootorder:1", "--volume-pvc=src:b,bootorder:1"],
            "failed to parse \"--volume-pvc\" flag: bootorder 1 was specified multiple times",
        ),
        (
            vec!["--volume-containerdisk=name:x"],
            "failed to parse \"--volume-containerdisk\" flag: src must be specified",
        ),
        (
            vec!["--volume-containerdisk=src:a,size:1"],
            "failed to parse \"--volume-containerdisk\" flag: unknown param(s): size:1",
        ),
        (
            vec!["--run-strategy=often"],
            "failed to parse \"--run-strategy\" flag: invalid run strategy \"often\", supported values are: Always, Manual, \
             Halted, Once, RerunOnFailure",
        ),
    ] {
        assert_eq!(refused(&line), why);
    }
    assert!(refused(&["--volume-pvc=src:a,name:A_b"]).contains("invalid name \"A_b\""));
    assert!(refused(&["--memory=much"]).starts_with("failed to parse \"--memory\" flag: \"much\": "));
}

#[test]
fn instance_types_and_preferences_are_named_or_said_by_a_claim() {
    let of = |line: &[&str]| {
        let spec = made(line).unwrap().manifest["spec"].clone();
        let memory = spec["template"]["spec"]["domain"]["memory"].is_object();
        (spec["instancetype"].clone(), spec["preference"].clone(), memory)
    };
    let inferred = |volume: &str| json!({"inferFromVolume": volume});
    let implied = |volume: &str| json!({"inferFromVolume": volume, "inferFromVolumeFailurePolicy": "Ignore"});
    for (line, instancetype, preference, memory) in [
        (
            vec!["--instancetype=u1", "--preference=VirtualMachinePreference/p"],
            json!({"name": "u1"}),
            json!({"name": "p", "kind": "virtualmachinepreference"}),
            false,
        ),
        (vec!["--volume-pvc=src:a"], implied("a"), implied("a"), true),
        (vec!["--volume-pvc=src:a", "--memory=1Gi"], Value::Null, implied("a"), true),
        (
            vec!["--volume-pvc=src:a", "--volume-pvc=src:b,bootorder:1", "--infer-instancetype"],
            inferred("b"),
            implied("b"),
            false,
        ),
        (
            vec!["--volume-pvc=src:a", "--volume-pvc=src:b", "--infer-preference-from=b"],
            implied("a"),
            inferred("b"),
            true,
        ),
        (
            vec!["--volume-pvc=src:a", "--infer-instancetype=false", "--infer-preference=false"],
            Value::Null,
            Value::Null,
            true,
        ),
        (vec!["--volume-containerdisk=src:a"], Value::Null, Value::Null, true),
    ] {
        assert_eq!(of(&line), (instancetype, preference, memory), "{line:?}");
    }
    for (line, why) in [
        (
            vec!["--infer-instancetype"],
            "at least one volume is needed to infer an instance type or preference",
        ),
        (vec!["--volume-pvc=src:a", "--infer-preference-from=b"], "there is no volume with name \"b\""),
        (
            vec!["--volume-containerdisk=src:a", "--infer-instancetype"],
            "inference of instancetype or preference works only with datasources, datavolumes or pvcs",
        ),
        (
            vec!["--instancetype=x/y"],
            "failed to parse \"--instancetype\" flag: invalid instancetype kind \"x\", supported values are: \
             virtualmachineinstancetype, virtualmachineclusterinstancetype",
        ),
    ] {
        assert_eq!(refused(&line), why);
    }
}

#[test]
fn cloud_init_gets_a_disk_when_there_is_something_to_say_or_it_is_asked_for() {
    let volumes = |line: &[&str]| instance(line)["volumes"].clone();
    let disk = |field: &str, source: Value| json!([{"name": "cloudinitdisk", field: source}]);
    for (line, expected) in [
        (
            vec!["--user=joe", "--ssh-key=ssh-ed25519 A,ssh-rsa B", "--ga-manage-ssh"],
            disk(
                "cloudInitNoCloud",
                json!({"userData": "#cloud-config\nuser: joe\nssh_authorized_keys:\n  - ssh-ed25519 A\n  \
                - ssh-rsa B\nruncmd:\n  - [ setsebool, -P, 'virt_qemu_ga_manage_ssh', 'on' ]"}),
            ),
        ),
        (
            vec!["--cloud-init=configDrive"],
            disk("cloudInitConfigDrive", json!({"userData": "#cloud-config"})),
        ),
        (
            vec!["--cloud-init-user-data=YQ==", "--cloud-init-network-data=Yg=="],
            disk("cloudInitNoCloud", json!({"userDataBase64": "YQ==", "networkDataBase64": "Yg=="})),
        ),
        (vec!["--ga-manage-ssh=false"], Value::Null),
        (vec!["--cloud-init=none", "--user=joe"], Value::Null),
    ] {
        assert_eq!(volumes(&line), expected, "{line:?}");
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "secret\n").unwrap();
    let path = format!("--password-file={}", file.path().display());
    let Made { manifest, warnings } = made(&["--user=joe", &path]).unwrap();
    let data = &manifest["spec"]["template"]["spec"]["volumes"][0]["cloudInitNoCloud"]["userData"];
    assert_eq!(*data, "#cloud-config\nuser: joe\npassword: secret\nchpasswd: { expire: False }");
    assert_eq!(warnings, ["--password-file: The password is stored in cleartext in the VM definition!"]);
    assert_eq!(made(&["--cloud-init=none", &path]).unwrap().warnings.len(), 2);
    assert!(refused(&["--cloud-init=floppy"]).contains("supported values are: nocloud, configdrive, none"));
}

#[test]
fn credentials_come_from_secrets() {
    let ssh = |method: Value| json!({"sshPublicKey": {"source": {"secret": {"secretName": "keys"}}, "propagationMethod": method}});
    let spec = instance(&["--access-cred=src:keys,user:joe", "--access-cred=type:password,src:words"]);
    assert_eq!(
        spec["accessCredentials"],
        json!([
            ssh(json!({"qemuGuestAgent": {"users": ["joe"]}})),
            {"userPassword": {"source": {"secret": {"secretName": "words"}}, "propagationMethod": {"qemuGuestAgent": {}}}},
        ])
    );
    let data = spec["volumes"][0]["cloudInitNoCloud"]["userData"].as_str().unwrap();
    assert!(data.contains("virt_qemu_ga_manage_ssh"), "the agent is let: {data}");
    let spec = instance(&["--access-cred=src:keys,method:configdrive"]);
    assert_eq!(spec["accessCredentials"], json!([ssh(json!({"configDrive": {}}))]));
    assert!(spec["volumes"][0]["cloudInitConfigDrive"].is_object());
    for (line, why) in [
        (vec!["--access-cred=src:keys"], "user must be specified with access credential ssh method ga"),
        (vec!["--access-cred=src:keys,method:nocloud,user:joe"], "user cannot be specified"),
        (
            vec!["--access-cred=src:keys,method:nocloud", "--cloud-init=configdrive"],
            "have to match: nocloud vs configdrive",
        ),
        (vec!["--access-cred=src:keys,type:password,method:nocloud"], "supported values are: ga"),
        (vec!["--access-cred=src:ns/keys,user:joe"], "not allowed to specify namespace of secret \"keys\""),
        (vec!["--access-cred=src:keys,type:x"], "supported values are: ssh, password"),
    ] {
        assert!(refused(&line).contains(why), "{line:?}: {}", refused(&line));
    }
}

#[test]
fn flags_that_exclude_each_other_are_refused() {
    for line in [
        ["--memory=1Gi", "--instancetype=a"],
        ["--infer-instancetype", "--infer-instancetype-from=a"],
        ["--preference=a", "--infer-preference"],
        ["--cloud-init-user-data=YQ==", "--user=joe"],
    ] {
        let line: Vec<_> = ["virtctl", "create", "vm"].iter().chain(&line).map(Into::into).collect();
        assert!(crate::help::parse(&line).is_err(), "{line:?}");
    }
}

#[test]
fn what_is_made_is_taken_by_virt_api() {
    let Made { manifest, .. } = made(&[
        "--volume-containerdisk=src:registry/a:b",
        "--volume-import=type:blank,size:1Gi",
        "--memory=1Gi",
        "--user=joe",
        "--ssh-key=ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEaa",
        "--access-cred=type:password,src:words",
    ])
    .unwrap();
    let mut manifest = serde_saphyr::from_str::<Value>(&serde_saphyr::to_string(&manifest).unwrap()).unwrap();
    let config = podvirt_api::v1::KubeVirtConfiguration::default();
    podvirt_api::admission::vm::mutate(&mut manifest, &config);
    let problems = podvirt_api::admission::vm::validate(&manifest, &config, podvirt_api::admission::By::User);
    assert_eq!(problems, podvirt_api::problem::Problems::default());
}

/// The specification of the instance type or the preference that these flags make.
fn spec(line: &[&str]) -> anyhow::Result<Value> {
    match what(line) {
        What::Instancetype(flags) => instancetype::spec(&flags),
        What::Preference(flags) => preference::spec(&flags),
        other @ What::Vm(_) => panic!("{other:?}"),
    }
}

#[test]
fn an_instance_type_has_processors_memory_and_devices() {
    let made = spec(&[
        "instancetype",
        "--cpu=2",
        "--memory=256Mi",
        "--gpu=name:gpu1,devicename:nvidia.com/a",
        "--hostdevice=devicename:intel.com/qat,name:qat",
        "--iothreadspolicy=auto",
    ]);
    assert_eq!(
        made.unwrap(),
        json!({
            "cpu": {"guest": 2}, "memory": {"guest": "256Mi"}, "ioThreadsPolicy": "auto",
            "gpus": [{"name": "gpu1", "deviceName": "nvidia.com/a"}],
            "hostDevices": [{"name": "qat", "deviceName": "intel.com/qat"}],
        })
    );
    for (flag, why) in [
        ("--cpu=0", "cpu value must be greater than zero"),
        ("--memory=much", "--memory \"much\": "),
        ("--gpu=devicename:a", "failed to parse \"--gpu\" flag: name must be specified"),
        ("--gpu=name:a", "failed to parse \"--gpu\" flag: deviceName must be specified"),
        ("--hostdevice=name:a", "failed to parse \"--hostdevice\" flag: deviceName must be specified"),
        (
            "--hostdevice=name:a,devicename:b,c:d",
            "failed to parse \"--hostdevice\" flag: unknown param(s): c:d",
        ),
        (
            "--iothreadspolicy=Auto",
            "failed to parse \"--iothreadspolicy\" flag: IOThread must be of value auto or shared",
        ),
    ] {
        let all = ["instancetype", "--cpu=1", "--memory=1Gi", flag];
        let line: Vec<&str> = all
            .into_iter()
            .filter(|one| *one == flag || one.split('=').next() != flag.split('=').next())
            .collect();
        let error = spec(&line).unwrap_err().to_string();
        assert!(error.starts_with(why), "{error}");
    }
    let line = ["virtctl", "create", "instancetype", "--cpu=1"].map(Into::into);
    assert!(crate::help::parse(&line).is_err(), "memory is required");
}

#[test]
fn a_preference_says_what_its_flags_do() {
    assert_eq!(spec(&["preference"]).unwrap(), json!({}));
    let line = ["preference", "--cpu-topology=spread", "--machine-type=q35", "--volume-storage-class=fast"];
    assert_eq!(
        spec(&line).unwrap(),
        json!({
            "cpu": {"preferredCPUTopology": "spread"}, "machine": {"preferredMachineType": "q35"},
            "volumes": {"preferredStorageClassName": "fast"},
        })
    );
    let error = spec(&["preference", "--cpu-topology=heap"]).unwrap_err().to_string();
    let why = "CPU topology must have a value of sockets, cores, threads or spread";
    assert_eq!(error, format!("failed to parse \"--cpu-topology\" flag: {why}"));
}

#[test]
fn a_namespace_makes_an_instance_type_and_a_preference_of_it() {
    let made = |name: Option<&str>, namespaced: bool, namespace: Option<&str>| {
        let made = of_group("Preference", name, namespaced, namespace, &json!({}));
        (made["kind"].as_str().unwrap().to_owned(), made["metadata"].clone())
    };
    let own = "VirtualMachinePreference".to_owned();
    assert_eq!(
        made(Some("a"), false, Some("blue")),
        (own.clone(), json!({"name": "a", "namespace": "blue"}))
    );
    assert_eq!(made(Some("a"), true, None), (own, json!({"name": "a"})));
    let (kind, metadata) = made(None, false, None);
    assert_eq!(kind, "VirtualMachineClusterPreference");
    let name = metadata["name"].as_str().unwrap();
    assert!(name.starts_with("clusterpreference-") && name.len() == 23, "{name}");
}
