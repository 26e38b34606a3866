mod filesystems;
mod hooks;
mod kernel;
mod networks;
mod plugins;
mod probes;
mod volumes;

use k8s_openapi::api::core::v1::{Container, VolumeMount};
use serde_json::{Value, json};

use super::*;

/// A machine as the API server gives it, with `spec` laid over a small one.
fn machine(spec: Value) -> VirtualMachineInstance {
    let mut vmi = json!({
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": {"name": "web", "namespace": "shop", "uid": "0a1b", "labels": {"tier": "front"}},
        "spec": {
            "domain": {"memory": {"guest": "256Mi"}, "devices": {"interfaces": [{"name": "default", "passtBinding": {}}]}},
            "networks": [{"name": "default", "pod": {}}],
        },
    });
    json_patch::merge(&mut vmi["spec"], &spec);
    serde_json::from_value(vmi).unwrap()
}

fn config(value: Value) -> KubeVirtConfiguration {
    serde_json::from_value(value).unwrap()
}

fn images() -> Images {
    Images { launcher: "podvirt/virt-launcher:dev".into(), ..Images::default() }
}

fn render(spec: Value) -> Pod {
    launcher_pod(&machine(spec), &config(json!({})), &images()).unwrap()
}

fn refused(spec: Value) -> String {
    launcher_pod(&machine(spec), &config(json!({})), &images()).unwrap_err().to_string()
}

fn container<'a>(pod: &'a Pod, name: &str) -> &'a Container {
    let spec = pod.spec.as_ref().unwrap();
    let mut all = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    all.find(|c| c.name == name).unwrap_or_else(|| panic!("no container {name}"))
}

/// The init containers before the one that every machine has.
fn init_names(pod: &Pod) -> Vec<&str> {
    let all = pod.spec.as_ref().unwrap().init_containers.iter().flatten().map(|c| c.name.as_str());
    let mut names: Vec<&str> = all.collect();
    assert_eq!(names.pop(), Some("guest-console-log"));
    names
}

fn mount_of<'a>(container: &'a Container, path: &str) -> &'a VolumeMount {
    let mut mounts = container.volume_mounts.iter().flatten();
    mounts.find(|m| m.mount_path == path).unwrap_or_else(|| panic!("nothing mounted at {path}"))
}

/// What a container is told of the network.
fn told(pod: &Pod, name: &str) -> podvirt_api::netd::NetdSpec {
    let env = container(pod, name).env.iter().flatten().next().unwrap();
    assert_eq!(env.name, "NETD_SPEC");
    serde_json::from_str(env.value.as_ref().unwrap()).unwrap()
}

fn everything() -> Value {
    json!({
        "domain": {
            "firmware": {"kernelBoot": {"container": {
                "image": "kernels:6", "kernelPath": "/boot/vmlinuz", "initrdPath": "/boot/initrd",
                "imagePullSecret": "kernels", "imagePullPolicy": "Never",
            }}},
            "devices": {"interfaces": [{"name": "default", "passtBinding": {},
                "ports": [{"name": "http", "port": 80}, {"port": 53, "protocol": "UDP"}]}]},
        },
        "volumes": [
            {"name": "root", "containerDisk": {"image": "fedora:42", "imagePullSecret": "disks"}},
            {"name": "data", "persistentVolumeClaim": {"claimName": "data-claim"}},
            {"name": "base", "ephemeral": {"persistentVolumeClaim": {"claimName": "base-claim"}}},
            {"name": "scratch", "emptyDisk": {"capacity": "1Gi"}},
            {"name": "tools", "containerDisk": {"image": "tools:1", "path": "/images/tools.img", "imagePullPolicy": "Always"}},
            {"name": "seed", "cloudInitNoCloud": {
                "secretRef": {"name": "user"}, "networkDataSecretRef": {"name": "net"}}},
            {"name": "drive", "cloudInitConfigDrive": {"secretRef": {"name": "user"}}},
        ],
        "readinessProbe": {"httpGet": {"port": "http", "path": "/"}, "periodSeconds": 3},
        "livenessProbe": {"tcpSocket": {"port": 80}, "initialDelaySeconds": 20},
    })
}

#[test]
fn the_log_of_the_serial_console_is_that_of_a_container() {
    let pod = render(json!({}));
    let log = container(&pod, "guest-console-log");
    let file = "/var/run/kubevirt-private/0a1b/virt-serial0-log";
    assert_eq!(log.command.as_ref().unwrap()[1..], ["tail-console", "--log-file", file]);
    assert_eq!(log.restart_policy.as_deref(), Some("Always"));
    let [private] = log.volume_mounts.as_deref().unwrap() else { panic!() };
    assert_eq!((private.name.as_str(), private.read_only), ("private", Some(true)));
    let requests = log.resources.as_ref().unwrap().requests.as_ref().unwrap();
    assert_eq!((requests["cpu"].0.as_str(), requests["memory"].0.as_str()), ("5m", "8Mi"));
    let has = |settings: Value, devices: Value| {
        let vmi = machine(json!({"domain": {"devices": devices}}));
        let pod = launcher_pod(&vmi, &config(settings), &images()).unwrap();
        pod.spec.unwrap().init_containers.iter().flatten().any(|c| c.name == "guest-console-log")
    };
    let off = || json!({"virtualMachineOptions": {"disableSerialConsoleLog": {}}});
    for (settings, devices, there) in [
        (json!({}), json!({"logSerialConsole": false}), false),
        (json!({}), json!({"autoattachSerialConsole": false}), false),
        (off(), json!({}), false),
        (off(), json!({"logSerialConsole": true}), true),
    ] {
        assert_eq!(has(settings, devices), there);
    }
}

#[test]
fn every_rendered_pod_obeys_the_restricted_standard() {
    for spec in
        [json!({}), everything(), json!({"domain": {"devices": {"interfaces": null}}, "networks": null})]
    {
        for settings in [
            json!({}),
            json!({"developerConfiguration": {"useEmulation": true}, "imagePullPolicy": "Always"}),
        ] {
            let pod = launcher_pod(&machine(spec.clone()), &config(settings), &images()).unwrap();
            assert_eq!(restricted::violations(&pod), [""; 0]);
        }
    }
}

#[test]
fn the_standards_rules_see_what_is_forbidden() {
    let mut pod = render(json!({}));
    let spec = pod.spec.as_mut().unwrap();
    spec.host_network = Some(true);
    spec.security_context.as_mut().unwrap().seccomp_profile = None;
    spec.volumes.as_mut().unwrap()[0] = k8s_openapi::api::core::v1::Volume {
        name: "h".into(),
        host_path: Some(Default::default()),
        ..Default::default()
    };
    let context = spec.containers[0].security_context.as_mut().unwrap();
    context.allow_privilege_escalation = None;
    context.capabilities.as_mut().unwrap().add = Some(vec!["NET_ADMIN".into()]);
    let found = restricted::violations(&pod);
    for what in [
        "hostNetwork",
        "volumes[0] h has a forbidden type",
        "container compute: allowPrivilegeEscalation is not false",
        "container compute: capabilities are added",
        "container compute: no seccomp profile",
        "container netd: no seccomp profile",
    ] {
        assert!(found.iter().any(|f| f == what), "{what} in {found:?}");
    }
}

#[test]
fn the_pod_belongs_to_the_machine_and_says_so() {
    let mut vmi = machine(json!({}));
    vmi.metadata.labels.get_or_insert_default().insert(label::NODE_NAME.into(), "old".into());
    vmi.metadata.annotations = Some(BTreeMap::from([
        ("kubectl.kubernetes.io/last-applied-configuration".into(), "{}".into()),
        ("kubevirt.io/latest-observed-api-version".into(), "v1".into()),
        ("kubevirt.io/network-info".into(), "{}".into()),
        ("kubevirt.io/domain".into(), "another".into()),
        ("kubevirt.io/test".into(), "test".into()),
        ("sidecar.istio.io/inject".into(), "true".into()),
    ]));
    let meta = launcher_pod(&vmi, &config(json!({})), &images()).unwrap().metadata;
    assert_eq!(meta.name, Some(pod_name("web", "0a1b")));
    assert_eq!(meta.namespace.as_deref(), Some("shop"));
    let labels = meta.labels.unwrap();
    for (key, value) in [
        ("tier", "front"),
        ("kubevirt.io", "virt-launcher"),
        ("kubevirt.io/created-by", "0a1b"),
        ("vm.kubevirt.io/name", "web"),
        ("sidecar.istio.io/inject", "true"),
    ] {
        assert_eq!(labels.get(key).map(String::as_str), Some(value), "{key}");
    }
    assert!(!labels.contains_key(label::NODE_NAME));
    let annotations = meta.annotations.unwrap();
    assert_eq!(annotations["kubevirt.io/domain"], "web");
    assert_eq!(annotations["kubectl.kubernetes.io/default-container"], "compute");
    assert_eq!(annotations["sidecar.istio.io/inject"], "true");
    assert_eq!(annotations["kubevirt.io/test"], "test");
    assert_eq!(annotations["descheduler.alpha.kubernetes.io/request-evict-only"], "");
    assert_eq!(annotations["pre.hook.backup.velero.io/container"], "compute");
    assert_eq!(annotations.len(), 12, "{annotations:?}");
    let images = Images { backup_hooks_are_off: true, ..images() };
    let without = launcher_pod(&vmi, &config(json!({})), &images).unwrap().metadata.annotations.unwrap();
    assert_eq!(without.len(), 7, "{without:?}");
    let owner = &meta.owner_references.unwrap()[0];
    assert_eq!(
        (owner.uid.as_str(), owner.controller, owner.block_owner_deletion),
        ("0a1b", Some(true), Some(true))
    );
}

#[test]
fn a_machine_says_by_its_annotation_whether_istio_selects_its_pod() {
    let label = |annotation: Option<&str>, label: Option<&str>| {
        let key = || "sidecar.istio.io/inject".to_owned();
        let mut vmi = machine(json!({}));
        vmi.metadata.annotations = annotation.map(|value| BTreeMap::from([(key(), value.to_owned())]));
        vmi.metadata.labels = label.map(|value| BTreeMap::from([(key(), value.to_owned())]));
        let meta = launcher_pod(&vmi, &config(json!({})), &images()).unwrap().metadata;
        meta.labels.unwrap().remove(&key())
    };
    assert_eq!(label(Some("true"), None).as_deref(), Some("true"));
    assert_eq!(label(Some("false"), Some("true")).as_deref(), Some("false"));
    assert_eq!(label(None, Some("true")).as_deref(), Some("true"));
    // What may not stand in a label would keep the pod from being made.
    assert_eq!(label(Some("yes, please"), None), None);
    assert_eq!(label(None, None), None);
}

#[test]
fn a_machines_pod_has_one_name_and_another_machines_another() {
    let name = pod_name("web", "0a1b");
    assert_eq!(name, pod_name("web", "0a1b"));
    let suffix = name.strip_prefix("virt-launcher-web-").unwrap();
    assert!(suffix.len() == 5 && suffix.bytes().all(|b| b.is_ascii_alphanumeric()), "{name}");
    let names: BTreeSet<_> = (0..1000).map(|n| pod_name("web", &format!("uid-{n}"))).collect();
    assert!(names.len() > 998, "{}", names.len());
    assert_eq!(pod_name(&"x".repeat(63), "0a1b").len(), 63);
}

#[test]
fn the_pod_as_a_whole_is_unprivileged_and_ends_after_its_guest() {
    let spec = render(json!({"terminationGracePeriodSeconds": 5})).spec.unwrap();
    assert_eq!(spec.restart_policy.as_deref(), Some("Never"));
    assert_eq!(spec.termination_grace_period_seconds, Some(35));
    assert_eq!(spec.enable_service_links, Some(false));
    assert_eq!(spec.automount_service_account_token, Some(false));
    assert_eq!(spec.readiness_gates.unwrap()[0].condition_type, "kubevirt.io/virtual-machine-unpaused");
    let context = spec.security_context.unwrap();
    assert_eq!(
        (context.run_as_user, context.run_as_group, context.fs_group),
        (Some(107), Some(107), Some(107))
    );
    let sysctls: Vec<_> = context.sysctls.unwrap().into_iter().map(|s| (s.name, s.value)).collect();
    assert_eq!(
        sysctls,
        [
            ("net.ipv4.ip_unprivileged_port_start".to_owned(), "0".to_owned()),
            ("net.ipv4.ping_group_range".to_owned(), "107 107".to_owned()),
        ]
    );
    assert_eq!(spec.containers.len(), 1);
}

#[test]
fn every_container_leaves_word_of_why_it_ended() {
    let spec = render(everything()).spec.unwrap();
    for container in spec.containers.iter().chain(spec.init_containers.iter().flatten()) {
        let policy = container.termination_message_policy.as_deref();
        assert_eq!(policy, Some("FallbackToLogsOnError"), "{}", container.name);
    }
}

#[test]
fn compute_comes_first_and_is_told_whose_it_is() {
    let pod = render(json!({}));
    let compute = &pod.spec.as_ref().unwrap().containers[0];
    assert_eq!(compute.name, "compute");
    assert_eq!(
        compute.command.as_ref().unwrap().join(" "),
        "/usr/bin/virt-launcher pod --name web --namespace shop --uid 0a1b --grace-period-seconds 30 \
         --qemu-timeout 240s"
    );
    let variables = compute.env.iter().flatten().map(|variable| variable.name.as_str()).collect::<Vec<_>>();
    assert_eq!(variables, ["LIBVIRT_DEFAULT_URI"], "the machine comes with the handler's call");
    for (path, volume) in [
        ("/var/run/kubevirt-private", "private"),
        ("/var/run/kubevirt", "public"),
        ("/var/run/kubevirt/sockets", "sockets"),
        ("/var/run/libvirt", "libvirt-runtime"),
        ("/var/run/kubevirt-ephemeral-disks", "ephemeral-disks"),
        ("/var/run/kubevirt/container-disks", "container-disks"),
        ("/var/run/kubevirt/netd", "netd"),
    ] {
        assert_eq!(mount_of(compute, path).name, volume);
    }
}

#[test]
fn kvm_is_asked_for_unless_the_cluster_emulates() {
    let kvm = |pod: &Pod| {
        let limits = container(pod, "compute").resources.as_ref().unwrap().limits.clone();
        limits.unwrap_or_default().contains_key("devices.kubevirt.io/kvm")
    };
    assert!(kvm(&render(json!({}))));
    let settings = config(json!({"developerConfiguration": {"useEmulation": true}}));
    let pod = launcher_pod(&machine(json!({})), &settings, &images()).unwrap();
    assert!(!kvm(&pod));
    let command = container(&pod, "compute").command.clone().unwrap();
    assert_eq!(command.last().unwrap(), "--allow-emulation");
}

#[test]
fn a_failed_machines_container_is_kept_where_the_machine_says_so() {
    let keeps = |value: &str| {
        let mut vmi = machine(json!({}));
        let key = "kubevirt.io/keep-launcher-alive-after-failure".to_owned();
        vmi.metadata.annotations = Some(BTreeMap::from([(key, value.to_owned())]));
        let pod = launcher_pod(&vmi, &config(json!({})), &images()).unwrap();
        let command = container(&pod, "compute").command.clone().unwrap();
        command.iter().any(|word| word == "--keep-after-failure")
    };
    assert!(keeps("true"));
    assert!(!keeps("false") && !keeps(""));
}

#[test]
fn the_scheduler_is_told_what_manifest_and_configuration_say() {
    let settings = config(json!({
        "developerConfiguration": {"nodeSelectors": {"pool": "vms", "disk": "any"}},
        "defaultRuntimeClass": "fast",
    }));
    let vmi = machine(json!({
        "nodeSelector": {"disk": "ssd", "kubevirt.io/schedulable": "false"},
        "affinity": {"nodeAffinity": {}},
        "tolerations": [{"key": "k", "operator": "Exists"}],
        "priorityClassName": "high",
        "schedulerName": "other",
        "architecture": "amd64",
    }));
    let spec = launcher_pod(&vmi, &settings, &images()).unwrap().spec.unwrap();
    let selector = spec.node_selector.unwrap();
    let selector: Vec<_> = selector.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    assert_eq!(
        selector,
        [
            ("disk", "ssd"),
            ("kubernetes.io/arch", "amd64"),
            ("kubevirt.io/schedulable", "true"),
            ("pool", "vms")
        ]
    );
    assert!(spec.affinity.is_some());
    assert_eq!(spec.tolerations.unwrap().len(), 1);
    assert_eq!(spec.priority_class_name.as_deref(), Some("high"));
    assert_eq!(spec.scheduler_name.as_deref(), Some("other"));
    assert_eq!(spec.runtime_class_name.as_deref(), Some("fast"));
}

#[test]
fn the_hostname_is_a_label() {
    let named = |name: &str, spec: Value| {
        let mut vmi = machine(spec);
        vmi.metadata.name = Some(name.into());
        launcher_pod(&vmi, &config(json!({})), &images()).unwrap().spec.unwrap().hostname.unwrap()
    };
    assert_eq!(named("web", json!({})), "web");
    assert_eq!(named("web.example.org", json!({})), "web");
    assert_eq!(named("web", json!({"hostname": "shop"})), "shop");
    assert_eq!(named(&format!("{}-b", "a".repeat(62)), json!({})), "a".repeat(62));
}

#[test]
fn what_is_not_carried_out_is_refused_with_its_path() {
    for (spec, field) in [
        (
            json!({"volumes": [{"name": "a", "hostDisk": {"path": "/d", "type": "Disk"}}]}),
            "spec.volumes[0].hostDisk",
        ),
        (
            json!({"volumes": [{"name": "a", "containerPath": {"path": "/p"}}]}),
            "spec.volumes[0].containerPath",
        ),
        (
            json!({
                "domain": {"devices": {"interfaces": [{"name": "a"}, {"name": "b"}]}},
                "networks": [{"name": "a", "pod": {}}, {"name": "b", "multus": {"networkName": "n", "default": true}}],
            }),
            "spec.domain.devices.interfaces[1]",
        ),
        (
            json!({
                "domain": {"devices": {"interfaces": [{"name": "a", "masquerade": {}}]}},
                "networks": [{"name": "a", "multus": {"networkName": "n"}}],
            }),
            "spec.domain.devices.interfaces[0].masquerade on a network of Multus",
        ),
        (
            json!({
                "domain": {"devices": {"interfaces": [{"name": "a", "bridge": {}}]}},
                "networks": [{"name": "a", "multus": {"networkName": "n"}}],
                "readinessProbe": {"tcpSocket": {"port": 80}},
            }),
            "spec.readinessProbe.tcpSocket with no interface on the pod's first network",
        ),
        (json!({"livenessProbe": {"exec": {}}}), "spec.livenessProbe.exec.command without a program"),
        (json!({"readinessProbe": {}}), "spec.readinessProbe without a handler"),
        (
            json!({"readinessProbe": {"tcpSocket": {"host": "10.0.0.1", "port": 1}}}),
            "spec.readinessProbe.tcpSocket.host",
        ),
    ] {
        let message = refused(spec);
        assert!(message.starts_with(&format!("{field} is not supported by podvirt; allowed: ")), "{message}");
    }
    let mut without_uid = machine(json!({}));
    without_uid.metadata.uid = None;
    let error = launcher_pod(&without_uid, &config(json!({})), &images()).unwrap_err();
    assert_eq!(error, TemplateError::Identity("uid"));
}

#[test]
fn a_list_of_ports_that_no_variable_holds_is_refused_by_its_interface() {
    let spec = |count: usize| {
        let ports: Vec<_> = (0..count).map(|n| json!({"port": 1 + 2 * n})).collect();
        let interface = json!({"name": "default", "passtBinding": {}, "ports": ports});
        json!({"domain": {"devices": {"interfaces": [interface]}}, "networks": [{"name": "default", "pod": {}}]})
    };
    render(spec(15_000));
    let message = refused(spec(32_000));
    assert!(message.starts_with("spec.domain.devices.interfaces[0].ports: a list that takes "), "{message}");
}

#[test]
fn the_pods_containers_are_told_how_much_to_log() {
    let rendered = |label: Option<&str>, verbosity: Value| {
        let mut vmi = machine(json!({}));
        if let Some(label) = label {
            let labels = vmi.metadata.labels.get_or_insert_default();
            labels.insert(label::LOG_VERBOSITY.to_owned(), label.to_owned());
        }
        let config = config(json!({"developerConfiguration": {"logVerbosity": verbosity}}));
        launcher_pod(&vmi, &config, &images())
    };
    let said = |label: Option<&str>, verbosity: Value| {
        let pod = rendered(label, verbosity).unwrap();
        ["compute", "netd"].map(|name| {
            let mut variables = container(&pod, name).env.iter().flatten();
            let found = variables.find(|variable| variable.name == "VIRT_LAUNCHER_LOG_VERBOSITY");
            found.and_then(|variable| variable.value.clone())
        })
    };
    let both = |number: &str| [Some(number.to_owned()), Some(number.to_owned())];
    assert_eq!(said(None, json!({"virtLauncher": 2})), [None, None], "pods are as they were");
    assert_eq!(said(None, json!({"virtLauncher": 6})), both("6"));
    assert_eq!(said(Some("2"), json!({"virtLauncher": 6})), both("2"), "the machine goes first");
    let refused = rendered(Some("high"), json!({})).unwrap_err().to_string();
    assert_eq!(
        refused,
        "metadata.labels[logVerbosity]: 'high' is not supported by podvirt; allowed: a whole number from 0 to 9"
    );
}
