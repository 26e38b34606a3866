//! Leases: which owner has which address of a network.
//!
//! # Theory of operation
//!
//! Two objects stand in the cluster.
//!
//! ```text
//! lease     one for each interface of a machine           AddressLease, or an IPAMClaim that the pod names
//!           lists its addresses; changed only by a writer that has read its last version
//! address   one for each address that is held             LeasedAddress; its name is made of network and address
//!           says which lease holds it, by UID
//! ```
//!
//! *No address has two leases*, because an object has one name: of two that create it one is refused. *No lease has
//! two sets of addresses*, because the list is written once, on the version that was read ([`acquire`]):
//!
//! ```text
//!           create                 addresses created, then listed by one update
//! (none) ───────────▶ empty ────────────────────────────────────────────────▶ set
//!                       │                                                        │
//!                       └──────────────────▶ ending ◀──────── deletion ──────────┘
//!                          the guard (a finalizer) keeps it
//!                                              │ addresses deleted, then the guard taken off
//!                                              ▼
//!                                            (gone)
//! ```
//!
//! An address that a lease lists is held by it: it is created before it is listed, and deleted only
//!
//! - when its lease is *ending* and nothing of the owner runs any more ([`release`]), or
//! - when its lease is *gone* and no pod that runs has it: a guard can be taken off by hand, and an IPAMClaim be removed by
//!   its author, while a pod uses the address. While the API server does not know the kind of the lease, nothing says that
//!   the lease is gone; or
//! - when its lease is *set* and does not list it. Only an *empty* lease takes up addresses that are held for it
//!   already, and an update on the version of the empty lease fails once it is set: so it is not listed afterwards.
//!
//! A plugin that dies in between leaves addresses that are held and not listed. The next ADD of the machine takes them up, or
//! [`collect`](crate::collect) deletes them.
//!
//! A machine's lease ends with the machine. An ADD that fails leaves it: the machine's other pod may use it, and the
//! next attempt has to get the same. The lease of a pod that is no machine's ends with its DEL.

mod acquire;
mod failures;
#[cfg(test)]
pub(crate) mod race_tests;
mod release;
#[cfg(test)]
pub(crate) mod test_store;

use std::collections::HashSet;
use std::net::IpAddr;

use ipnet::IpNet;
use podvirt_api::mac::MacAddr;

pub use acquire::{Request, acquire, confirm, mac_without_lease};
pub use failures::Failures;
pub use release::{end, sweep};

use crate::error::{Code, Error};
use crate::owner::Owner;

/// Kinds of leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// `addressleases.podvirt.io`.
    AddressLease,
    /// `ipamclaims.k8s.cni.cncf.io`.
    IpamClaim,
}

/// Where a lease is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Which kind.
    pub kind: Kind,
    /// Its namespace: the owner's.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// The one attachment that uses a pod's lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attached {
    /// On which node.
    pub node: String,
    /// The sandbox's identifier.
    pub container: String,
}

/// A lease as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Where it is.
    pub key: Key,
    /// Tells it from another one of that name.
    pub uid: String,
    /// What an update must find again.
    pub version: String,
    /// Deletion was asked for.
    pub ending: bool,
    /// The finalizer is there.
    pub guarded: bool,
    /// Of which network its addresses are.
    pub network: String,
    /// For which interface of the pods.
    pub interface: String,
    /// Whose it is; an IPAMClaim says that by its owner references alone.
    pub owner: Option<Owner>,
    /// Name of the VirtualMachineInstance whose pods use it.
    pub machine: Option<String>,
    /// Its addresses, one of each of the network's sets; empty until they are chosen.
    pub addresses: Vec<IpNet>,
    /// The MAC address; an IPAMClaim has no place for it.
    pub mac: Option<MacAddr>,
    /// Which attachment of a pod uses it.
    pub attached: Option<Attached>,
}

impl Lease {
    /// Whether `address` is among its addresses.
    pub fn lists(&self, address: IpAddr) -> bool {
        self.addresses.iter().any(|a| a.addr() == address)
    }
}

/// The leases of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leases {
    /// Those that were found.
    pub found: Vec<Lease>,
    /// UIDs of those that are there and cannot be read. Addresses stay held for them.
    pub unreadable: HashSet<String>,
    /// IPAMClaims could not be asked for, because the API server does not know their kind (now).
    pub claims_unknown: bool,
}

/// An address that is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Of which network.
    pub network: String,
    /// Which.
    pub address: IpAddr,
    /// By which lease.
    pub lease: Key,
    /// That lease's UID.
    pub lease_uid: String,
    /// UID of this object; empty before it is created.
    pub uid: String,
}

/// The store cannot be used now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {why}")]
pub struct StoreError {
    /// What was asked.
    pub what: String,
    /// What was answered.
    pub why: String,
    /// Whether the API server has answered: other objects may fare better. Without an answer no request will.
    pub is_answered: bool,
}

impl From<StoreError> for Error {
    fn from(e: StoreError) -> Self {
        Error::because(Code::TryAgain, "the leases cannot be read or written now", &e)
    }
}

/// Where leases and addresses are. Every answer is of the state at some moment between the call and its answer.
pub trait Store {
    /// The lease at `key`.
    fn find(&self, key: &Key) -> impl Future<Output = Result<Option<Lease>, StoreError>>;

    /// Makes `lease`; no answer when its name is taken. UID and version are the store's.
    fn create(&self, lease: &Lease) -> impl Future<Output = Result<Option<Lease>, StoreError>>;

    /// Writes `lease` over the version that it has; no answer when that is not the last one.
    fn update(&self, lease: &Lease) -> impl Future<Output = Result<Option<Lease>, StoreError>>;

    /// Asks for the deletion of the version that `lease` has; whether it was the last one. A guarded lease stays, ending.
    fn delete(&self, lease: &Lease) -> impl Future<Output = Result<bool, StoreError>>;

    /// Every lease of the cluster, of both kinds.
    fn leases(&self) -> impl Future<Output = Result<Leases, StoreError>>;

    /// UIDs of those of `addresses`, held for leases of one namespace that were not found, that a pod which runs may use.
    fn in_use(
        &self,
        namespace: &str,
        addresses: &[Held],
    ) -> impl Future<Output = Result<HashSet<String>, StoreError>>;

    /// The addresses that are held, of `network` or of all, but for those whose object cannot be read. [`Store::hold`]
    /// refuses these as well.
    fn addresses(&self, network: Option<&str>) -> impl Future<Output = Result<Vec<Held>, StoreError>>;

    /// The address of `network`, if it is held and its object can be read.
    fn find_address(
        &self,
        network: &str,
        address: IpAddr,
    ) -> impl Future<Output = Result<Option<Held>, StoreError>>;

    /// Makes an address; no answer when another machine holds it.
    fn hold(&self, address: &Held) -> impl Future<Output = Result<Option<Held>, StoreError>>;

    /// Deletes the address with this UID. That it is gone already is no error.
    fn free(&self, address: &Held) -> impl Future<Output = Result<(), StoreError>>;
}
