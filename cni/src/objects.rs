//! The kinds of objects that leases are, as the API server has them (`deploy/cni/crds.yaml`).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::{ClusterResourceScope, Metadata, NamespaceResourceScope, Resource};
use serde::{Deserialize, Serialize};

/// Keeps a lease until its addresses are free.
pub const FINALIZER: &str = "podvirt.io/addresses";
/// Label of a LeasedAddress: its network.
pub const NETWORK: &str = "podvirt.io/network";

/// Declares kinds: structs with the fields that every object has, and what a client asks for.
macro_rules! kinds {
    ($($(#[$meta:meta])* $kind:ident, $plural:literal, $group:literal, $version:literal, $scope:ty, $spec:ty, $status:ty;)*) => {$(
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(rename_all = "camelCase")]
        pub struct $kind {
            /// Group and version.
            pub api_version: String,
            /// The kind's name.
            pub kind: String,
            /// What every object has.
            pub metadata: ObjectMeta,
            /// What does not change.
            #[serde(default)]
            pub spec: $spec,
            /// What is leased.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub status: Option<$status>,
        }

        impl $kind {
            /// An object with its kind in it.
            pub fn new(metadata: ObjectMeta, spec: $spec) -> Self {
                let api_version = format!("{}/{}", $group, $version);
                $kind { api_version, kind: stringify!($kind).to_owned(), metadata, spec, status: None }
            }
        }

        impl Resource for $kind {
            const API_VERSION: &'static str = concat!($group, "/", $version);
            const GROUP: &'static str = $group;
            const KIND: &'static str = stringify!($kind);
            const VERSION: &'static str = $version;
            const URL_PATH_SEGMENT: &'static str = $plural;
            type Scope = $scope;
        }

        impl Metadata for $kind {
            type Ty = ObjectMeta;

            fn metadata(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn metadata_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    )*};
}

kinds! {
    /// The addresses of one interface of a virtual machine, for as long as the machine is there.
    AddressLease, "addressleases", "podvirt.io", "v1alpha1", NamespaceResourceScope, AddressLeaseSpec, AddressLeaseStatus;
    /// One address of one network, and the lease that holds it.
    LeasedAddress, "leasedaddresses", "podvirt.io", "v1alpha1", ClusterResourceScope, LeasedAddressSpec, Nothing;
    /// The standard's claim for addresses that outlive a pod.
    IPAMClaim, "ipamclaims", "k8s.cni.cncf.io", "v1alpha1", NamespaceResourceScope, IpamClaimSpec, IpamClaimStatus;
    /// The standard's network that pods are attached to beside their first one.
    NetworkAttachmentDefinition, "network-attachment-definitions", "k8s.cni.cncf.io", "v1", NamespaceResourceScope, DefinitionSpec, Nothing;
}

/// Declares parts of objects.
macro_rules! parts {
    ($($(#[$meta:meta])* $name:ident { $($(#[$fmeta:meta])* $field:ident: $ty:ty,)* })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        pub struct $name { $($(#[$fmeta])* pub $field: $ty,)* }
    )*};
}

parts! {
    /// What a lease is for.
    AddressLeaseSpec {
        /// Name of the network, as its configuration has it.
        network: String,
        /// Name of the pods' interface.
        interface: String,
        /// Whose lease it is.
        owner: OwnerPart,
        /// The VirtualMachineInstance whose pods use it.
        #[serde(skip_serializing_if = "Option::is_none")]
        machine: Option<String>,
    }
    /// What is leased.
    AddressLeaseStatus {
        /// Addresses with the lengths of their prefixes.
        addresses: Vec<String>,
        /// The MAC address of the interface.
        #[serde(skip_serializing_if = "Option::is_none")]
        mac_address: Option<String>,
        /// The attachment that uses the lease, when it is a pod's.
        #[serde(skip_serializing_if = "Option::is_none")]
        attachment: Option<AttachmentPart>,
    }
    /// An owner.
    OwnerPart {
        /// Group and version.
        api_version: String,
        /// VirtualMachine, VirtualMachineInstance or Pod.
        kind: String,
        /// Name.
        name: String,
        /// UID.
        uid: String,
    }
    /// An attachment of a pod.
    AttachmentPart {
        /// Node of the pod.
        node: String,
        /// The sandbox's identifier.
        container: String,
    }
    /// An address.
    LeasedAddressSpec {
        /// Name of the network.
        network: String,
        /// The address.
        address: String,
        /// The lease that holds it.
        lease: LeasePart,
    }
    /// A reference to a lease.
    LeasePart {
        /// AddressLease or IPAMClaim.
        kind: String,
        /// Namespace.
        namespace: String,
        /// Name.
        name: String,
        /// UID.
        uid: String,
    }
    /// An address has no status.
    Nothing {}
    /// What a claim is for.
    IpamClaimSpec {
        /// Name of the network.
        network: String,
        /// Name of the pod's interface.
        interface: String,
    }
    /// What a network is.
    DefinitionSpec {
        /// A plugin's configuration, or a list of them; JSON.
        config: String,
    }
    /// What is claimed.
    IpamClaimStatus {
        /// Addresses with the lengths of their prefixes.
        ips: Vec<String>,
        /// What else its author, or the standard's next version, has there.
        #[serde(flatten)]
        others: serde_json::Map<String, serde_json::Value>,
    }
}
