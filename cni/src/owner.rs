//! Whose pod it is, from the pod's and its machine's metadata, and whether the machine is in it.
//!
//! A launcher pod is controlled by a VirtualMachineInstance, and that by a VirtualMachine, if there is one: the lease is
//! the last one's in this chain, so that it outlives restarts and migrations. A pod that no machine controls has its
//! leases for itself. Labels alone say nothing: an owner reference does, with the UID of an object that is there.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use podvirt_api::mac::MacAddr;
use podvirt_api::names::annotation::{DEFAULT_NETWORK, NETWORK_STATUS, NETWORKS};
use podvirt_api::names::label;
use podvirt_api::names::pod::PRIMARY_INTERFACE;
use serde::Deserialize;

use crate::args::PodName;
use crate::error::{Code, Error};
use crate::ipam::{Held, Key, Kind};

/// The object that a lease belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// As in an owner reference.
    pub api_version: String,
    /// VirtualMachine, VirtualMachineInstance or Pod.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
}

impl Owner {
    /// Whether it is a pod of no machine.
    pub fn is_pod(&self) -> bool {
        self.kind == "Pod"
    }
}

/// A VirtualMachineInstance, as far as it matters here.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Machine {
    /// Its metadata.
    pub meta: ObjectMeta,
    /// The node that it runs on, by its status.
    pub node: Option<String>,
}

/// A pod that wants an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimant {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's UID.
    pub pod_uid: String,
    /// Whose lease it uses.
    pub owner: Owner,
    /// Name of its VirtualMachineInstance.
    pub machine: Option<String>,
    /// The IPAMClaim that the pod names for the interface.
    pub claim: Option<String>,
    /// Its machine is still to come to it, by a migration: its interface must not be heard yet.
    pub silent: bool,
}

/// An element of [`NETWORKS`], as far as it matters here.
#[derive(Deserialize)]
struct Selection {
    interface: Option<String>,
    #[serde(rename = "ipam-claim-reference")]
    claim: Option<String>,
}

/// The VirtualMachineInstance that controls `pod`.
pub fn machine_of(pod: &ObjectMeta) -> Option<&OwnerReference> {
    controller(pod)
        .filter(|o| o.kind == "VirtualMachineInstance" && o.api_version.starts_with("kubevirt.io/"))
}

/// The pod, as a claimant of `interface`. `machine` is the object that [`machine_of`] names.
///
/// # Errors
/// The pod or the machine is not the one that was meant.
pub fn claimant(
    named: &PodName,
    pod: &Pod,
    machine: Option<&Machine>,
    interface: &str,
) -> Result<Claimant, Error> {
    let meta = &pod.metadata;
    let uid = meta.uid.clone().unwrap_or_default();
    let whole = format!("pod {}/{}", named.namespace, named.name);
    if named.uid.as_ref().is_some_and(|meant| *meant != uid) {
        let meant = named.uid.as_deref().unwrap_or_default();
        return Err(Error::new(
            Code::TryAgain,
            format!("{whole} has the UID {uid}, the call is for {meant}"),
        ));
    }
    let (owner, name) = match (machine_of(meta), machine) {
        (None, _) => {
            let owner = Owner {
                api_version: "v1".into(),
                kind: "Pod".into(),
                name: named.name.clone(),
                uid: uid.clone(),
            };
            (owner, None)
        }
        (Some(reference), Some(machine)) if machine.meta.uid.as_deref() == Some(&reference.uid) => {
            let vm = controller(&machine.meta)
                .filter(|o| o.kind == "VirtualMachine" && o.api_version.starts_with("kubevirt.io/"));
            (owner_by(vm.unwrap_or(reference)), Some(reference.name.clone()))
        }
        (Some(reference), _) => {
            let msg = format!(
                "{whole} is of VirtualMachineInstance {} {}, which is gone",
                reference.name, reference.uid
            );
            return Err(Error::new(Code::TryAgain, msg));
        }
    };
    let of_migration = meta.labels.as_ref().and_then(|l| l.get(label::MIGRATION_JOB));
    // The label stays; a machine that is there may get a further interface in the pod that it runs in.
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref());
    let is_there = node.is_some() && machine.is_some_and(|machine| machine.node.as_ref() == node);
    Ok(Claimant {
        namespace: named.namespace.clone(),
        pod_uid: uid,
        claim: claim_name(meta, interface)?,
        silent: name.is_some() && of_migration.is_some_and(|job| !job.is_empty()) && !is_there,
        owner,
        machine: name,
    })
}

impl Claimant {
    /// The lease of its `interface` on `network`.
    pub fn key(&self, network: &str, interface: &str) -> Key {
        let (kind, name) = match &self.claim {
            Some(name) => (Kind::IpamClaim, name.clone()),
            None => (Kind::AddressLease, lease_name(&self.owner, network, interface)),
        };
        Key { kind, namespace: self.namespace.clone(), name }
    }
}

/// The lease that a pod of no machine has, by what DEL knows of it when the pod is gone.
pub fn key_of_pod(namespace: &str, name: &str, uid: &str, network: &str, interface: &str) -> Key {
    let owner =
        Owner { api_version: "v1".into(), kind: "Pod".into(), name: name.to_owned(), uid: uid.to_owned() };
    Key {
        kind: Kind::AddressLease,
        namespace: namespace.to_owned(),
        name: lease_name(&owner, network, interface),
    }
}

/// Readable at its beginning, and one for each owner, network and interface by the hash at its end.
fn lease_name(owner: &Owner, network: &str, interface: &str) -> String {
    /// What is left of a label's 63 bytes beside the hash.
    const READABLE: usize = 50;
    let mut name: String = format!("{}-{interface}", owner.name)
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' })
        .take(READABLE)
        .collect();
    let [_, hash @ ..] = MacAddr::derived(&[&owner.uid, network, interface]).0;
    name = name.trim_matches('-').to_owned();
    hash.iter().fold(name + "-", |name, byte| format!("{name}{byte:02x}"))
}

fn controller(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references.iter().flatten().find(|o| o.controller == Some(true))
}

fn owner_by(reference: &OwnerReference) -> Owner {
    Owner {
        api_version: reference.api_version.clone(),
        kind: reference.kind.clone(),
        name: reference.name.clone(),
        uid: reference.uid.clone(),
    }
}

/// The IPAMClaim that the pod names for `interface`. Multus calls the interfaces of elements that name none `net1`,
/// `net2` and so on, counting all elements.
fn claim_name(meta: &ObjectMeta, interface: &str) -> Result<Option<String>, Error> {
    let annotation = |key: &str| meta.annotations.as_ref()?.get(key).map(|text| text.trim());
    let read = |key: &str| -> Result<Vec<Selection>, Error> {
        match annotation(key) {
            // The short form, names alone, names no claims.
            Some(text) if text.starts_with('[') => serde_json::from_str(text).map_err(|e| {
                Error::because(Code::Decode, format!("the pod's annotation {key} cannot be read"), &e)
            }),
            _ => Ok(Vec::new()),
        }
    };
    let found = if interface == PRIMARY_INTERFACE {
        read(DEFAULT_NETWORK)?.into_iter().next()
    } else {
        let named = |(i, s): (usize, Selection)| {
            let name = s.interface.clone().unwrap_or_else(|| format!("net{}", i + 1));
            (name == interface).then_some(s)
        };
        read(NETWORKS)?.into_iter().enumerate().find_map(named)
    };
    let Some(claim) = found.and_then(|s| s.claim).filter(|claim| !claim.is_empty()) else { return Ok(None) };
    // A claim need not name an interface, and two of the pod's would get the same addresses.
    let all = read(NETWORKS)?.into_iter().chain(read(DEFAULT_NETWORK)?);
    if all.filter(|s| s.claim.as_ref() == Some(&claim)).count() > 1 {
        let msg = format!("the pod names the IPAMClaim {claim} for several interfaces; allowed: one");
        return Err(Error::new(Code::Lease, msg));
    }
    Ok(Some(claim))
}

/// Whether `pod` names the IPAMClaim `claim` for any of its interfaces.
pub fn names_claim(pod: &ObjectMeta, claim: &str) -> bool {
    let texts = [NETWORKS, DEFAULT_NETWORK].into_iter().filter_map(|key| pod.annotations.as_ref()?.get(key));
    let lists = texts.filter_map(|text| serde_json::from_str::<Vec<Selection>>(text).ok());
    lists.flatten().any(|s| s.claim.as_deref() == Some(claim))
}

/// Whether `pod` may use the address: it names the IPAMClaim that holds it, or has the address by its status or by the
/// word of Multus.
pub fn may_use(pod: &Pod, held: &Held) -> bool {
    if held.lease.kind == Kind::IpamClaim && names_claim(&pod.metadata, &held.lease.name) {
        return true;
    }
    let is_it = |text: &str| text.parse() == Ok(held.address);
    let own = pod.status.iter().flat_map(|status| status.pod_ips.iter().flatten());
    if own.into_iter().any(|ip| is_it(&ip.ip)) {
        return true;
    }
    let text = pod.metadata.annotations.as_ref().and_then(|all| all.get(NETWORK_STATUS));
    let networks = text.and_then(|text| serde_json::from_str::<Vec<Attached>>(text).ok());
    networks.into_iter().flatten().flat_map(|network| network.ips).any(|ip| is_it(&ip))
}

/// An element of [`NETWORK_STATUS`], as far as it matters here.
#[derive(Deserialize)]
struct Attached {
    #[serde(default)]
    ips: Vec<String>,
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(owner: Value, extra: Value) -> Pod {
        let mut object =
            json!({"metadata": {"name": "virt-launcher-web-x", "namespace": "shop", "uid": "p1"}});
        object["metadata"]["ownerReferences"] = owner;
        for (key, value) in extra.as_object().unwrap() {
            object["metadata"][key] = value.clone();
        }
        serde_json::from_value(object).unwrap()
    }

    fn by_vmi() -> Value {
        json!([{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "web", "uid": "i1", "controller": true}])
    }

    fn vmi(owner: Value) -> Machine {
        let meta = json!({"name": "web", "uid": "i1", "ownerReferences": owner});
        Machine { meta: serde_json::from_value(meta).unwrap(), node: Some("node1".into()) }
    }

    fn by_vm() -> Value {
        json!([{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "web", "uid": "v1", "controller": true}])
    }

    fn named() -> PodName {
        PodName { namespace: "shop".into(), name: "virt-launcher-web-x".into(), uid: Some("p1".into()) }
    }

    #[test]
    fn the_lease_is_the_virtual_machines_where_there_is_one() {
        let one = claimant(&named(), &pod(by_vmi(), json!({})), Some(&vmi(by_vm())), "net1").unwrap();
        assert_eq!((one.owner.kind.as_str(), one.owner.uid.as_str()), ("VirtualMachine", "v1"));
        assert_eq!((one.machine.as_deref(), one.silent), (Some("web"), false));
        let alone = claimant(&named(), &pod(by_vmi(), json!({})), Some(&vmi(json!([]))), "net1").unwrap();
        assert_eq!((alone.owner.kind.as_str(), alone.owner.uid.as_str()), ("VirtualMachineInstance", "i1"));
        let plain = claimant(&named(), &pod(json!([]), json!({})), None, "net1").unwrap();
        assert!(plain.owner.is_pod() && plain.machine.is_none());
    }

    #[test]
    fn source_and_target_of_a_migration_have_one_lease_and_the_target_is_silent() {
        let labels = json!({"labels": {"kubevirt.io/migrationJobUID": "m1"}, "name": "virt-launcher-web-y", "uid": "p2"});
        let target = PodName { name: "virt-launcher-web-y".into(), uid: None, ..named() };
        let target = claimant(&target, &pod(by_vmi(), labels), Some(&vmi(by_vm())), "net1").unwrap();
        let source = claimant(&named(), &pod(by_vmi(), json!({})), Some(&vmi(by_vm())), "net1").unwrap();
        assert!(target.silent && !source.silent);
        assert_eq!(target.key("flat", "net1"), source.key("flat", "net1"));
        assert_ne!(target.key("flat", "net1"), source.key("flat", "net2"));
        assert_ne!(target.key("flat", "net1"), source.key("other", "net1"));
        assert!(source.key("flat", "net1").name.starts_with("web-net1-"));
        let labels = json!({"labels": {"kubevirt.io/migrationJobUID": "m1"}});
        assert!(
            !claimant(&named(), &pod(json!([]), labels), None, "net1").unwrap().silent,
            "no machine migrates"
        );
    }

    #[test]
    fn a_pod_that_its_machine_has_come_to_is_heard_at_once() {
        let labels = json!({"labels": {"kubevirt.io/migrationJobUID": "m1"}});
        let mut pod = pod(by_vmi(), labels);
        let silent = |pod: &Pod| claimant(&named(), pod, Some(&vmi(by_vm())), "net1").unwrap().silent;
        let on = |node: &str| serde_json::from_value(json!({"nodeName": node, "containers": []})).unwrap();
        pod.spec = on("node2");
        assert!(silent(&pod), "the machine is on node1");
        pod.spec = on("node1");
        assert!(!silent(&pod));
    }

    #[test]
    fn a_pod_cannot_claim_a_machine_that_is_not_its_own() {
        let gone = claimant(&named(), &pod(by_vmi(), json!({})), None, "net1").unwrap_err();
        assert_eq!(gone.code, Code::TryAgain);
        let mut other = vmi(by_vm());
        other.meta.uid = Some("i2".into());
        assert!(claimant(&named(), &pod(by_vmi(), json!({})), Some(&other), "net1").is_err());
        let meant = PodName { uid: Some("p0".into()), ..named() };
        assert!(claimant(&meant, &pod(by_vmi(), json!({})), Some(&vmi(by_vm())), "net1").is_err());
    }

    #[test]
    fn the_claim_of_an_interface_is_found_by_name_or_by_number() {
        let networks = json!([
            {"name": "a", "ipam-claim-reference": "web.a"},
            {"name": "b", "interface": "podc0ffee", "ipam-claim-reference": "web.b"},
            {"name": "c"},
        ]);
        let pod = pod(
            json!([]),
            json!({"annotations": {NETWORKS: networks.to_string(), DEFAULT_NETWORK: "[{\"name\": \"d\", \"ipam-claim-reference\": \"web.d\"}]"}}),
        );
        let claim = |interface| claimant(&named(), &pod, None, interface).unwrap().claim;
        assert_eq!(claim("net1").as_deref(), Some("web.a"));
        assert_eq!(claim("podc0ffee").as_deref(), Some("web.b"));
        assert_eq!(claim("net3"), None);
        assert_eq!(claim("eth0").as_deref(), Some("web.d"));
        assert!(names_claim(&pod.metadata, "web.b") && !names_claim(&pod.metadata, "web.c"));
        let key = claimant(&named(), &pod, None, "net1").unwrap().key("flat", "net1");
        assert_eq!((key.kind, key.name.as_str()), (Kind::IpamClaim, "web.a"));
    }

    #[test]
    fn a_claim_is_of_one_interface() {
        let networks = json!([
            {"name": "a", "ipam-claim-reference": "web.a"},
            {"name": "b", "ipam-claim-reference": "web.a"},
            {"name": "c", "ipam-claim-reference": "web.c"},
        ]);
        let pod = pod(json!([]), json!({"annotations": {NETWORKS: networks.to_string()}}));
        let error = claimant(&named(), &pod, None, "net2").unwrap_err();
        assert!(error.code == Code::Lease && error.msg.contains("web.a"), "{error}");
        assert_eq!(claimant(&named(), &pod, None, "net3").unwrap().claim.as_deref(), Some("web.c"));
    }

    #[test]
    fn del_finds_the_lease_of_a_pod_that_is_gone() {
        let one = claimant(&named(), &pod(json!([]), json!({})), None, "net1").unwrap();
        assert_eq!(key_of_pod("shop", "virt-launcher-web-x", "p1", "flat", "net1"), one.key("flat", "net1"));
    }
}
