//! The tree of what a machine depends on. Kinds, labels and their order are upstream's; the claims of ephemeral disks, of memory
//! dumps and the sources of sysprep are in it besides.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::TypedObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use podvirt_api::selector::Selector;
use podvirt_api::v1::{
    AccessCredential, InstancetypeStatusRef, VirtualMachine, VirtualMachineInstance,
    VirtualMachineInstanceSpec as Spec, Volume,
};
use serde::Serialize;

/// Label of a node: what kind of dependency it is.
const DEPENDENCY_TYPE: &str = "kubevirt.io/dependency-type";
const STORAGE: &str = "storage";
const NETWORK: &str = "network";
const COMPUTE: &str = "compute";
const CONFIG: &str = "config";

/// A kind of object in the graph.
#[derive(Clone, Copy, Debug)]
struct Sort {
    group: &'static str,
    kind: &'static str,
    dependency: &'static str,
}

const fn sort(group: &'static str, kind: &'static str, dependency: &'static str) -> Sort {
    Sort { group, kind, dependency }
}

const MACHINE: Sort = sort("kubevirt.io", "VirtualMachine", COMPUTE);
const INSTANCE: Sort = sort("kubevirt.io", "VirtualMachineInstance", COMPUTE);
const POD: Sort = sort("", "Pod", COMPUTE);
const DATA_VOLUME: Sort = sort("cdi.kubevirt.io", "DataVolume", STORAGE);
const CLAIM: Sort = sort("", "PersistentVolumeClaim", STORAGE);
const CONFIG_MAP: Sort = sort("", "ConfigMap", CONFIG);
const SECRET: Sort = sort("", "Secret", CONFIG);
const SERVICE_ACCOUNT: Sort = sort("", "ServiceAccount", CONFIG);
const REVISION: Sort = sort("apps", "ControllerRevision", CONFIG);
const NETWORK_DEFINITION: Sort = sort("k8s.cni.cncf.io", "NetworkAttachmentDefinition", NETWORK);

/// What a matcher's kind names, whose resource is its plural in small letters.
const MATCHED: [(Sort, bool); 4] = [
    (sort("instancetype.kubevirt.io", "VirtualMachineInstancetype", CONFIG), true),
    (sort("instancetype.kubevirt.io", "VirtualMachineClusterInstancetype", CONFIG), false),
    (sort("instancetype.kubevirt.io", "VirtualMachinePreference", CONFIG), true),
    (sort("instancetype.kubevirt.io", "VirtualMachineClusterPreference", CONFIG), false),
];

/// `ObjectGraphNode` of upstream's API: an object, and what it depends on.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Node {
    object_reference: TypedObjectReference,
    labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    optional: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    children: Vec<Node>,
}

impl Node {
    fn new(sort: Sort, namespace: &str, name: &str) -> Node {
        Node {
            object_reference: TypedObjectReference {
                api_group: Some(sort.group.into()),
                kind: sort.kind.into(),
                name: name.into(),
                namespace: Some(namespace.into()),
            },
            labels: BTreeMap::from([(DEPENDENCY_TYPE.to_owned(), sort.dependency.to_owned())]),
            optional: false,
            children: Vec::new(),
        }
    }
}

/// What is known of a machine beside its specification.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// The pod of its launcher.
    pub(super) pod: Option<String>,
    /// Its backend claim.
    pub(super) backend: Option<String>,
}

/// Which nodes below the root are answered.
#[derive(Debug)]
pub(super) struct Filter {
    /// Whether those are that the machine could be without.
    pub(super) optional: bool,
    /// What their labels match.
    pub(super) selector: Option<Selector>,
}

impl Filter {
    /// The root with the nodes that pass; what is below one that does not is left out with it.
    pub(super) fn apply(&self, root: Node) -> Node {
        let pass = |node: &Node| {
            (self.optional || !node.optional)
                && self.selector.as_ref().is_none_or(|selector| selector.matches(&node.labels))
        };
        let children = root.children.into_iter().filter(pass).map(|node| self.apply(node)).collect();
        Node { children, ..root }
    }
}

/// The graph of a VirtualMachine.
pub(super) fn of_machine(vm: &VirtualMachine, found: &Found) -> Node {
    let (namespace, name) = place(&vm.metadata);
    let mut root = Node::new(MACHINE, namespace, name);
    let nodes = &mut root.children;
    if vm.status.created == Some(true) {
        let mut instance = Node::new(INSTANCE, namespace, name);
        instance.children.extend(found.pod.as_deref().map(|pod| Node::new(POD, namespace, pod)));
        nodes.push(instance);
    }
    if let Some(matcher) = &vm.spec.instancetype {
        let named = [&matcher.kind, &matcher.name, &matcher.revision_name].map(Option::as_deref);
        matched(
            nodes,
            namespace,
            "VirtualMachineClusterInstancetype",
            named,
            vm.status.instancetype_ref.as_ref(),
        );
    }
    if let Some(matcher) = &vm.spec.preference {
        let named = [&matcher.kind, &matcher.name, &matcher.revision_name].map(Option::as_deref);
        matched(
            nodes,
            namespace,
            "VirtualMachineClusterPreference",
            named,
            vm.status.preference_ref.as_ref(),
        );
    }
    if let Some(spec) = vm.spec.template.as_ref().and_then(|template| template.spec.as_ref()) {
        of_spec(nodes, namespace, spec, found);
    }
    root
}

/// The graph of an instance.
pub(super) fn of_instance(vmi: &VirtualMachineInstance, found: &Found) -> Node {
    let (namespace, name) = place(&vmi.metadata);
    let mut root = Node::new(INSTANCE, namespace, name);
    root.children.extend(found.pod.as_deref().map(|pod| Node::new(POD, namespace, pod)));
    of_spec(&mut root.children, namespace, &vmi.spec, found);
    root
}

fn place(metadata: &ObjectMeta) -> (&str, &str) {
    (metadata.namespace.as_deref().unwrap_or_default(), metadata.name.as_deref().unwrap_or_default())
}

fn of_spec(nodes: &mut Vec<Node>, namespace: &str, spec: &Spec, found: &Found) {
    let node = |sort, name: &str| Node::new(sort, namespace, name);
    nodes.extend(spec.access_credentials.iter().filter_map(secret).map(|name| node(SECRET, name)));
    spec.volumes.iter().for_each(|volume| of_volume(nodes, namespace, volume));
    nodes.extend(found.backend.as_deref().map(|name| node(CLAIM, name)));
    for network in spec.networks.iter().filter_map(|network| network.multus.as_ref()) {
        let (namespace, name) = match network.network_name.split_once('/') {
            Some((namespace, name)) => (namespace, name),
            None => (namespace, network.network_name.as_str()),
        };
        nodes.push(Node { optional: true, ..Node::new(NETWORK_DEFINITION, namespace, name) });
    }
}

/// The Secret of a credential.
fn secret(credential: &AccessCredential) -> Option<&str> {
    let key = credential.ssh_public_key.as_ref().and_then(|key| key.source.secret.as_ref());
    let password = || credential.user_password.as_ref().and_then(|password| password.source.secret.as_ref());
    key.or_else(password).map(|secret| secret.secret_name.as_str())
}

fn of_volume(nodes: &mut Vec<Node>, namespace: &str, volume: &Volume) {
    let mut add = |sort, name: Option<&str>| {
        nodes.extend(name.filter(|name| !name.is_empty()).map(|name| Node::new(sort, namespace, name)));
    };
    if let Some(source) = &volume.data_volume {
        let claim = Node::new(CLAIM, namespace, &source.name);
        nodes.push(Node { children: vec![claim], ..Node::new(DATA_VOLUME, namespace, &source.name) });
    } else if let Some(source) = &volume.persistent_volume_claim {
        add(CLAIM, Some(&source.claim_name));
    } else if let Some(source) = &volume.memory_dump {
        add(CLAIM, Some(&source.claim_name));
    } else if let Some(source) = volume.ephemeral.as_ref().and_then(|e| e.persistent_volume_claim.as_ref()) {
        add(CLAIM, Some(&source.claim_name));
    } else if let Some(source) = &volume.config_map {
        add(CONFIG_MAP, source.name.as_deref());
    } else if let Some(source) = &volume.secret {
        add(SECRET, source.secret_name.as_deref());
    } else if let Some(source) = &volume.service_account {
        add(SERVICE_ACCOUNT, source.service_account_name.as_deref());
    } else if let Some(source) = &volume.sysprep {
        add(SECRET, source.secret.as_ref().map(|secret| secret.name.as_str()));
        add(CONFIG_MAP, source.config_map.as_ref().map(|map| map.name.as_str()));
    } else if let Some(source) = &volume.cloud_init_no_cloud {
        add(SECRET, source.secret_ref.as_ref().map(|secret| secret.name.as_str()));
        add(SECRET, source.network_data_secret_ref.as_ref().map(|secret| secret.name.as_str()));
    } else if let Some(source) = &volume.cloud_init_config_drive {
        add(SECRET, source.secret_ref.as_ref().map(|secret| secret.name.as_str()));
        add(SECRET, source.network_data_secret_ref.as_ref().map(|secret| secret.name.as_str()));
    }
}

/// What an instance type's or a preference's matcher names, and how it is stored: by the machine's status, or, before there is
/// one, as the specification says.
fn matched(
    nodes: &mut Vec<Node>,
    namespace: &str,
    by_default: &str,
    [kind, name, revision]: [Option<&str>; 3],
    told: Option<&InstancetypeStatusRef>,
) {
    let kind = kind.filter(|kind| !kind.is_empty()).unwrap_or(by_default);
    let plain = kind.to_ascii_lowercase();
    let plain = plain.strip_suffix('s').unwrap_or(&plain);
    let found = MATCHED.iter().find(|(sort, _)| sort.kind.eq_ignore_ascii_case(plain));
    if let (Some((sort, namespaced)), Some(name)) = (found, name) {
        let namespace = if *namespaced { namespace } else { "" };
        nodes.push(Node { optional: true, ..Node::new(*sort, namespace, name) });
    }
    let stored = match told {
        Some(told) => told.controller_revision_ref.as_ref().and_then(|revision| revision.name.as_deref()),
        None => revision.filter(|name| !name.is_empty()),
    };
    nodes.extend(stored.map(|name| Node::new(REVISION, namespace, name)));
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// The tree in short: kind/namespace/name, what is optional with a question mark.
    fn told(node: &Node) -> Value {
        let reference = &node.object_reference;
        let namespace = reference.namespace.as_deref().unwrap_or_default();
        let mark = if node.optional { "?" } else { "" };
        let name = format!("{}/{namespace}/{}{mark}", reference.kind, reference.name);
        if node.children.is_empty() {
            json!(name)
        } else {
            json!({ name: node.children.iter().map(told).collect::<Vec<_>>() })
        }
    }

    fn spec() -> Value {
        json!({
            "domain": {"devices": {}},
            "accessCredentials": [
                {"sshPublicKey": {"source": {"secret": {"secretName": "keys"}}, "propagationMethod": {"noCloud": {}}}},
                {"userPassword": {"source": {"secret": {"secretName": "words"}}, "propagationMethod": {"qemuGuestAgent": {}}}},
            ],
            "networks": [
                {"name": "default", "pod": {}},
                {"name": "a", "multus": {"networkName": "blue"}},
                {"name": "b", "multus": {"networkName": "other/red"}},
            ],
            "volumes": [
                {"name": "a", "dataVolume": {"name": "dv"}},
                {"name": "b", "persistentVolumeClaim": {"claimName": "claim"}},
                {"name": "c", "configMap": {"name": "map"}},
                {"name": "d", "secret": {"secretName": "secret"}},
                {"name": "e", "serviceAccount": {"serviceAccountName": "account"}},
                {"name": "f", "cloudInitNoCloud": {"secretRef": {"name": "user"}, "networkDataSecretRef": {"name": "network"}}},
                {"name": "g", "containerDisk": {"image": "image"}},
                {"name": "h", "memoryDump": {"claimName": "dump"}},
                {"name": "i", "ephemeral": {"persistentVolumeClaim": {"claimName": "base"}}},
                {"name": "j", "sysprep": {"configMap": {"name": "answers"}}},
            ],
        })
    }

    fn of_spec_told() -> Vec<Value> {
        vec![
            json!("Secret/ns/keys"),
            json!("Secret/ns/words"),
            json!({"DataVolume/ns/dv": ["PersistentVolumeClaim/ns/dv"]}),
            json!("PersistentVolumeClaim/ns/claim"),
            json!("ConfigMap/ns/map"),
            json!("Secret/ns/secret"),
            json!("ServiceAccount/ns/account"),
            json!("Secret/ns/user"),
            json!("Secret/ns/network"),
            json!("PersistentVolumeClaim/ns/dump"),
            json!("PersistentVolumeClaim/ns/base"),
            json!("ConfigMap/ns/answers"),
            json!("PersistentVolumeClaim/ns/persistent-state-for-vm"),
            json!("NetworkAttachmentDefinition/ns/blue?"),
            json!("NetworkAttachmentDefinition/other/red?"),
        ]
    }

    fn machine(more: Value, status: Value) -> VirtualMachine {
        let mut vm = json!({"metadata": {"name": "vm", "namespace": "ns"},
            "spec": {"template": {"spec": spec()}}, "status": status});
        json_patch::merge(&mut vm["spec"], &more);
        serde_json::from_value(vm).unwrap()
    }

    fn found() -> Found {
        Found { pod: Some("virt-launcher-vm-x".into()), backend: Some("persistent-state-for-vm".into()) }
    }

    #[test]
    fn an_instance_has_its_pod_and_what_its_specification_names() {
        let vmi = json!({"metadata": {"name": "vm", "namespace": "ns"}, "spec": spec()});
        let root = of_instance(&serde_json::from_value(vmi).unwrap(), &found());
        let mut all = vec![json!("Pod/ns/virt-launcher-vm-x")];
        all.extend(of_spec_told());
        assert_eq!(told(&root), json!({"VirtualMachineInstance/ns/vm": all}));
    }

    #[test]
    fn a_machine_has_its_instance_and_its_instance_type_besides() {
        let instancetype = json!({"instancetype": {"name": "small", "kind": "VirtualMachineInstancetype"},
            "preference": {"name": "linux", "revisionName": "linux-1"}});
        let status = json!({"created": true,
            "instancetypeRef": {"name": "small", "controllerRevisionRef": {"name": "small-1"}}});
        let mut all = vec![
            json!({"VirtualMachineInstance/ns/vm": ["Pod/ns/virt-launcher-vm-x"]}),
            json!("VirtualMachineInstancetype/ns/small?"),
            json!("ControllerRevision/ns/small-1"),
            json!("VirtualMachineClusterPreference//linux?"),
            json!("ControllerRevision/ns/linux-1"),
        ];
        all.extend(of_spec_told());
        let root = of_machine(&machine(instancetype, status), &found());
        assert_eq!(told(&root), json!({"VirtualMachine/ns/vm": all}));
        let off = of_machine(&machine(json!({}), json!({})), &Found { pod: None, ..found() });
        assert_eq!(told(&off), json!({"VirtualMachine/ns/vm": of_spec_told()}));
    }

    #[test]
    fn the_filter_leaves_out_what_is_optional_and_what_does_not_match() {
        let vm = machine(json!({"instancetype": {"name": "small"}}), json!({"created": true}));
        let labels = |text: Value| {
            let selector = serde_json::from_value(json!({ "matchLabels": text })).unwrap();
            Some(Selector::of(Some(&selector)).unwrap())
        };
        let count = |filter: Filter| filter.apply(of_machine(&vm, &found())).children.len();
        assert_eq!(count(Filter { optional: true, selector: None }), 17);
        assert_eq!(count(Filter { optional: false, selector: None }), 14);
        let compute = Filter { optional: true, selector: labels(json!({DEPENDENCY_TYPE: COMPUTE})) };
        let root = compute.apply(of_machine(&vm, &found()));
        let expected = json!({"VirtualMachineInstance/ns/vm": ["Pod/ns/virt-launcher-vm-x"]});
        assert_eq!(told(&root), json!({"VirtualMachine/ns/vm": [expected]}));
        assert_eq!(count(Filter { optional: true, selector: labels(json!({DEPENDENCY_TYPE: "none"})) }), 0);
    }

    #[test]
    fn a_node_is_written_as_upstream_writes_it() {
        let root = of_machine(
            &machine(json!({"template": {"spec": {"volumes": null}}}), json!({})),
            &Found::default(),
        );
        let network = json!({
            "objectReference": {"apiGroup": "k8s.cni.cncf.io", "kind": "NetworkAttachmentDefinition", "name": "red",
                "namespace": "other"},
            "labels": {"kubevirt.io/dependency-type": "network"}, "optional": true,
        });
        assert_eq!(serde_json::to_value(&root).unwrap()["children"][3], network);
    }
}
