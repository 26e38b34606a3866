//! Leases and addresses as objects, and back.

use std::net::IpAddr;

use ipnet::IpNet;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use podvirt_api::mac::MacAddr;

use super::ask::failed;
use crate::ipam::{Attached, Held, Key, Kind, Lease, StoreError};
use crate::objects::{
    AddressLease, AddressLeaseSpec, AddressLeaseStatus, AttachmentPart, FINALIZER, IPAMClaim, LeasePart,
    LeasedAddress, LeasedAddressSpec, NETWORK, OwnerPart,
};
use crate::owner::Owner;

/// Longest value of a label (Kubernetes).
const LABEL_MAX: usize = 63;

pub(super) fn told(key: &Key) -> String {
    format!("{} {}/{}", kind_name(key.kind), key.namespace, key.name)
}

pub(super) fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::AddressLease => "AddressLease",
        Kind::IpamClaim => "IPAMClaim",
    }
}

/// Name of the object of `address`: the one thing that makes an address unique, so it must never change.
pub(super) fn address_name(network: &str, address: IpAddr) -> String {
    let address = match address {
        IpAddr::V4(a) => a.octets().map(|o| o.to_string()).join("-"),
        IpAddr::V6(a) => a.segments().map(|s| format!("{s:04x}")).join("-"),
    };
    format!("{}.{address}", network_label(network))
}

/// The network as a label's value and the first part of a name. Names that cannot be so are cut and get a hash: of two
/// networks that meet there, only one could hold an address that both have.
pub(super) fn network_label(network: &str) -> String {
    let good = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    if network.len() <= LABEL_MAX - 12 && network.bytes().all(good) && !network.ends_with('-') {
        return network.to_owned();
    }
    let readable: String = network
        .chars()
        .map(|c| c.to_ascii_lowercase())
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .take(LABEL_MAX - 12)
        .collect();
    let [_, hash @ ..] = MacAddr::derived(&[network]).0;
    hash.iter()
        .fold(format!("{}--", readable.trim_end_matches('-')), |name, byte| format!("{name}{byte:02x}"))
}

pub(super) fn guard(meta: &mut ObjectMeta, on: bool) {
    let finalizers = meta.finalizers.get_or_insert_default();
    finalizers.retain(|f| f != FINALIZER);
    if on {
        finalizers.push(FINALIZER.to_owned());
    }
}

pub(crate) fn is_guarded(meta: &ObjectMeta) -> bool {
    meta.finalizers.iter().flatten().any(|f| f == FINALIZER)
}

pub(super) fn object(lease: &Lease) -> AddressLease {
    let owner = lease.owner.as_ref();
    let reference = owner.map(|o| OwnerReference {
        api_version: o.api_version.clone(),
        kind: o.kind.clone(),
        name: o.name.clone(),
        uid: o.uid.clone(),
        controller: None,
        block_owner_deletion: None,
    });
    let optional = |text: &String| Some(text.clone()).filter(|t| !t.is_empty());
    let metadata = ObjectMeta {
        name: Some(lease.key.name.clone()),
        namespace: Some(lease.key.namespace.clone()),
        uid: optional(&lease.uid),
        resource_version: optional(&lease.version),
        owner_references: reference.map(|r| vec![r]),
        finalizers: lease.guarded.then(|| vec![FINALIZER.to_owned()]),
        labels: Some([(NETWORK.to_owned(), network_label(&lease.network))].into()),
        ..ObjectMeta::default()
    };
    let spec = AddressLeaseSpec {
        network: lease.network.clone(),
        interface: lease.interface.clone(),
        owner: owner.map_or_else(OwnerPart::default, |o| OwnerPart {
            api_version: o.api_version.clone(),
            kind: o.kind.clone(),
            name: o.name.clone(),
            uid: o.uid.clone(),
        }),
        machine: lease.machine.clone(),
    };
    let mut object = AddressLease::new(metadata, spec);
    object.status = Some(AddressLeaseStatus {
        addresses: lease.addresses.iter().map(ToString::to_string).collect(),
        mac_address: lease.mac.map(|mac| mac.to_string()),
        attachment: lease
            .attached
            .as_ref()
            .map(|a| AttachmentPart { node: a.node.clone(), container: a.container.clone() }),
    });
    object
}

pub(super) fn lease(object: &AddressLease) -> Result<Lease, StoreError> {
    let key = Key::from_meta(Kind::AddressLease, &object.metadata);
    let status = object.status.clone().unwrap_or_default();
    let owner = &object.spec.owner;
    let mac = status.mac_address.as_deref().map(str::parse).transpose();
    Ok(Lease {
        addresses: addresses(&key, &status.addresses)?,
        mac: mac.map_err(|e| failed(&format!("read {}", told(&key)), &format!("status.macAddress: {e}")))?,
        attached: status.attachment.map(|a| Attached { node: a.node, container: a.container }),
        network: object.spec.network.clone(),
        interface: object.spec.interface.clone(),
        owner: Some(Owner {
            api_version: owner.api_version.clone(),
            kind: owner.kind.clone(),
            name: owner.name.clone(),
            uid: owner.uid.clone(),
        }),
        machine: object.spec.machine.clone(),
        ..bare(key, &object.metadata)
    })
}

pub(super) fn claim(object: &IPAMClaim) -> Result<Lease, StoreError> {
    let key = Key::from_meta(Kind::IpamClaim, &object.metadata);
    Ok(Lease {
        addresses: addresses(&key, object.status.as_ref().map_or(&[], |s| &s.ips))?,
        network: object.spec.network.clone(),
        interface: object.spec.interface.clone(),
        ..bare(key, &object.metadata)
    })
}

pub(super) fn bare(key: Key, meta: &ObjectMeta) -> Lease {
    Lease {
        key,
        uid: meta.uid.clone().unwrap_or_default(),
        version: meta.resource_version.clone().unwrap_or_default(),
        ending: meta.deletion_timestamp.is_some(),
        guarded: is_guarded(meta),
        network: String::new(),
        interface: String::new(),
        owner: None,
        machine: None,
        addresses: Vec::new(),
        mac: None,
        attached: None,
    }
}

impl Key {
    /// The key of the lease that `meta` is the metadata of.
    pub(crate) fn from_meta(kind: Kind, meta: &ObjectMeta) -> Key {
        let text = |t: &Option<String>| t.clone().unwrap_or_default();
        Key { kind, namespace: text(&meta.namespace), name: text(&meta.name) }
    }
}

pub(super) fn addresses(key: &Key, texts: &[String]) -> Result<Vec<IpNet>, StoreError> {
    let read = |text: &String| {
        text.parse()
            .map_err(|e| failed(&format!("read {}", told(key)), &format!("the address {text:?}: {e}")))
    };
    texts.iter().map(read).collect()
}

pub(super) fn address_object(held: &Held) -> LeasedAddress {
    let label = network_label(&held.network);
    let metadata = ObjectMeta {
        name: Some(address_name(&held.network, held.address)),
        labels: Some([(NETWORK.to_owned(), label)].into()),
        ..ObjectMeta::default()
    };
    let lease = LeasePart {
        kind: kind_name(held.lease.kind).to_owned(),
        namespace: held.lease.namespace.clone(),
        name: held.lease.name.clone(),
        uid: held.lease_uid.clone(),
    };
    let address = held.address.to_string();
    LeasedAddress::new(metadata, LeasedAddressSpec { network: held.network.clone(), address, lease })
}

pub(super) fn held(object: &LeasedAddress) -> Result<Held, StoreError> {
    let name = object.metadata.name.clone().unwrap_or_default();
    let what = format!("read LeasedAddress {name}");
    let lease = &object.spec.lease;
    let kind = match lease.kind.as_str() {
        "AddressLease" => Kind::AddressLease,
        "IPAMClaim" => Kind::IpamClaim,
        other => {
            return Err(failed(
                &what,
                &format!("spec.lease.kind is {other:?}; allowed: AddressLease, IPAMClaim"),
            ));
        }
    };
    let address: IpAddr =
        object.spec.address.parse().map_err(|e| failed(&what, &format!("spec.address: {e}")))?;
    Ok(Held {
        network: object.spec.network.clone(),
        address,
        lease: Key { kind, namespace: lease.namespace.clone(), name: lease.name.clone() },
        lease_uid: lease.uid.clone(),
        uid: object.metadata.uid.clone().unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_addresss_name_is_a_valid_name_and_its_own() {
        let name = |network: &str, address: &str| address_name(network, address.parse().unwrap());
        assert_eq!(name("flat", "172.30.0.9"), "flat.172-30-0-9");
        assert_eq!(name("flat", "fd00:30::9"), "flat.fd00-0030-0000-0000-0000-0000-0000-0009");
        assert_eq!(name("flat", "fd00:30:0::9"), name("flat", "fd00:30::0009"));
        for (a, b) in [("Flat", "flat"), ("a.b", "a-b"), ("a_b", "a-b"), ("x-", "x")] {
            assert_ne!(name(a, "10.0.0.1"), name(b, "10.0.0.1"), "{a} {b}");
        }
        let long = "n".repeat(200);
        for network in ["Flat", "a.b", "a_b", "x-", "9", &long] {
            let label = network_label(network);
            assert!(label.len() <= LABEL_MAX, "{label}");
            assert!(
                label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-'),
                "{label}"
            );
            assert!(!label.starts_with('-') && !label.ends_with('-'), "{label}");
        }
    }

    #[test]
    fn a_lease_and_an_address_come_back_as_they_were_written() {
        let written = Lease {
            key: Key { kind: Kind::AddressLease, namespace: "shop".into(), name: "web-net1-00".into() },
            uid: "u1".into(),
            version: "7".into(),
            ending: false,
            guarded: true,
            network: "flat".into(),
            interface: "net1".into(),
            owner: Some(Owner {
                api_version: "kubevirt.io/v1".into(),
                kind: "VirtualMachine".into(),
                name: "web".into(),
                uid: "v1".into(),
            }),
            machine: Some("web".into()),
            addresses: vec!["172.30.0.9/24".parse().unwrap(), "fd00:30::9/64".parse().unwrap()],
            mac: Some(MacAddr([2, 0, 0, 0, 0, 9])),
            attached: Some(Attached { node: "n1".into(), container: "c0ffee".into() }),
        };
        let json = serde_json::to_value(object(&written)).unwrap();
        assert_eq!(
            (&json["apiVersion"], &json["kind"]),
            (&"podvirt.io/v1alpha1".into(), &"AddressLease".into())
        );
        assert_eq!(json["metadata"]["ownerReferences"][0]["kind"], "VirtualMachine");
        assert_eq!(lease(&serde_json::from_value(json).unwrap()).unwrap(), written);

        let address = Held {
            network: "flat".into(),
            address: "172.30.0.9".parse().unwrap(),
            lease: written.key.clone(),
            lease_uid: "u1".into(),
            uid: String::new(),
        };
        let json = serde_json::to_value(address_object(&address)).unwrap();
        assert_eq!(json["metadata"]["name"], "flat.172-30-0-9");
        assert_eq!(held(&serde_json::from_value(json).unwrap()).unwrap(), address);
    }

    #[test]
    fn the_guard_leaves_others_finalizers_alone() {
        let mut meta =
            ObjectMeta { finalizers: Some(vec!["a".into(), FINALIZER.into()]), ..ObjectMeta::default() };
        guard(&mut meta, false);
        assert_eq!(meta.finalizers.as_deref(), Some(&["a".to_owned()][..]));
        guard(&mut meta, true);
        assert!(is_guarded(&meta));
    }
}
