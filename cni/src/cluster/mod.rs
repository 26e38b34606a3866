//! The store of leases that the API server is.
//!
//! Reads name no resource version, so that they are of the newest state. A lease is written by replacing it with the
//! version that was read in it; addresses are deleted with their UID as a precondition.

mod ask;
mod codec;
#[cfg(test)]
mod tests;
mod unreadable;

use std::collections::HashSet;
use std::net::IpAddr;

use ask::{answered, asked, asked_raw, failed, gone_is_none, list, list_if_known, unless};
pub(crate) use codec::is_guarded;
use codec::{address_name, address_object, claim, guard, held, lease, network_label, object, told};
use futures::StreamExt;
use futures::stream::BoxStream;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams, PostParams, Preconditions};
use kube::core::PartialObjectMeta;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client};
use podvirt_api::v1::{VirtualMachine, VirtualMachineInstance};
use unreadable::Unreadable;

use crate::collect::has_ended;
use crate::ipam::{Held, Key, Kind, Lease, Leases, Store, StoreError};
use crate::objects::{AddressLease, IPAMClaim, IpamClaimStatus, LeasedAddress, NETWORK};
use crate::owner::{self, Machine, Owner};

/// Metadata of a lease of either kind.
pub(crate) type LeaseMeta = PartialObjectMeta<DynamicObject>;

/// The API server.
#[derive(Clone)]
pub struct Cluster {
    client: Client,
    unreadable: Unreadable,
}

impl Cluster {
    /// Over `client`.
    pub fn new(client: Client) -> Cluster {
        Cluster { client, unreadable: Unreadable::default() }
    }

    /// The pod, if it is there.
    ///
    /// # Errors
    /// The API server does not answer, or refuses.
    pub async fn pod(&self, namespace: &str, name: &str) -> Result<Option<Pod>, StoreError> {
        let api: Api<Pod> = self.namespaced(namespace);
        asked(&format!("get pod {namespace}/{name}"), api.get_opt(name)).await
    }

    /// Every pod of the namespace.
    ///
    /// # Errors
    /// The API server does not answer, or refuses.
    pub async fn pods(&self, namespace: &str) -> Result<Vec<Pod>, StoreError> {
        list(&format!("list pods in {namespace}"), &self.namespaced(namespace), ListParams::default()).await
    }

    /// The VirtualMachineInstance, if it is there.
    ///
    /// # Errors
    /// The API server does not answer, or refuses.
    pub async fn machine(&self, namespace: &str, name: &str) -> Result<Option<Machine>, StoreError> {
        // As little of it as possible is read: the plugin may be of another release than what writes it.
        let resource = ApiResource::erase::<VirtualMachineInstance>(&());
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), namespace, &resource);
        let found = asked(&format!("get {} {namespace}/{name}", resource.kind), api.get_opt(name)).await?;
        Ok(found.map(|object| Machine {
            meta: object.metadata,
            node: object.data["status"]["nodeName"].as_str().map(str::to_owned),
        }))
    }

    /// Metadata of the object that `owner` means, if one of that name is there.
    ///
    /// # Errors
    /// The API server does not answer, or refuses; the owner is of a kind that owns no leases.
    pub async fn owner(&self, namespace: &str, owner: &Owner) -> Result<Option<ObjectMeta>, StoreError> {
        let resource = match owner.kind.as_str() {
            "VirtualMachine" => ApiResource::erase::<VirtualMachine>(&()),
            "VirtualMachineInstance" => ApiResource::erase::<VirtualMachineInstance>(&()),
            "Pod" => ApiResource::erase::<Pod>(&()),
            other => {
                let what = format!("find the owner {other} {namespace}/{}", owner.name);
                return Err(failed(&what, "a lease is no such object's"));
            }
        };
        self.metadata(namespace, &owner.name, &resource).await
    }

    /// Whether the kinds of leases are there.
    ///
    /// # Errors
    /// The API server does not answer, refuses, or does not know them.
    pub async fn ready(&self) -> Result<(), StoreError> {
        let api: Api<LeasedAddress> = Api::all(self.client.clone());
        asked("list LeasedAddresses", api.list_metadata(&ListParams::default().limit(1))).await.map(|_| ())
    }

    /// Metadata of all leases of a kind, as they change. A watch that breaks off begins anew.
    pub(crate) fn watch(
        &self,
        kind: Kind,
    ) -> BoxStream<'static, Result<watcher::Event<LeaseMeta>, watcher::Error>> {
        let resource = match kind {
            Kind::AddressLease => ApiResource::erase::<AddressLease>(&()),
            Kind::IpamClaim => ApiResource::erase::<IPAMClaim>(&()),
        };
        let api: Api<LeaseMeta> = Api::all_with(self.client.clone(), &resource);
        watcher(api, watcher::Config::default()).default_backoff().boxed()
    }

    async fn metadata(
        &self,
        namespace: &str,
        name: &str,
        resource: &ApiResource,
    ) -> Result<Option<ObjectMeta>, StoreError> {
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), namespace, resource);
        let what = format!("get {} {namespace}/{name}", resource.kind);
        Ok(asked(&what, api.get_metadata_opt(name)).await?.map(|object| object.metadata))
    }

    /// All objects of a kind, untyped: one that the type cannot hold must not spoil the list.
    fn all<K>(&self) -> Api<DynamicObject>
    where
        K: kube::Resource<DynamicType = ()>,
    {
        Api::all_with(self.client.clone(), &ApiResource::erase::<K>(&()))
    }

    fn namespaced<K>(&self, namespace: &str) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), namespace)
    }
}

impl Store for Cluster {
    async fn find(&self, key: &Key) -> Result<Option<Lease>, StoreError> {
        let what = format!("get {}", told(key));
        match key.kind {
            Kind::AddressLease => {
                let found =
                    asked(&what, self.namespaced::<AddressLease>(&key.namespace).get_opt(&key.name)).await?;
                found.map(|object| lease(&object)).transpose()
            }
            Kind::IpamClaim => {
                let found =
                    asked(&what, self.namespaced::<IPAMClaim>(&key.namespace).get_opt(&key.name)).await?;
                found.map(|object| claim(&object)).transpose()
            }
        }
    }

    async fn create(&self, new: &Lease) -> Result<Option<Lease>, StoreError> {
        let what = format!("create {}", told(&new.key));
        let api: Api<AddressLease> = self.namespaced(&new.key.namespace);
        let made = unless(409, asked_raw(&what, api.create(&PostParams::default(), &object(new))).await?);
        answered(&what, made)?.map(|object| lease(&object)).transpose()
    }

    async fn update(&self, new: &Lease) -> Result<Option<Lease>, StoreError> {
        let what = format!("update {}", told(&new.key));
        match new.key.kind {
            Kind::AddressLease => self.update_lease(&what, new).await,
            Kind::IpamClaim => self.update_claim(&what, new).await,
        }
    }

    async fn delete(&self, old: &Lease) -> Result<bool, StoreError> {
        let what = format!("delete {}", told(&old.key));
        let preconditions =
            Preconditions { uid: Some(old.uid.clone()), resource_version: Some(old.version.clone()) };
        let params = DeleteParams::default().preconditions(preconditions);
        let (name, namespace) = (&old.key.name, &old.key.namespace);
        let deleted = match old.key.kind {
            Kind::AddressLease => {
                asked_raw(&what, self.namespaced::<AddressLease>(namespace).delete(name, &params))
                    .await?
                    .map(|_| ())
            }
            Kind::IpamClaim => {
                asked_raw(&what, self.namespaced::<IPAMClaim>(namespace).delete(name, &params))
                    .await?
                    .map(|_| ())
            }
        };
        Ok(gone_is_none(&what, unless(409, deleted))?.is_some())
    }

    async fn leases(&self) -> Result<Leases, StoreError> {
        let what = "list AddressLeases";
        let leases = list(what, &self.all::<AddressLease>(), ListParams::default()).await?;
        let mut found = self.unreadable.without(what, leases, lease);
        let what = "list IPAMClaims";
        let claims = list_if_known(what, &self.all::<IPAMClaim>(), ListParams::default()).await?;
        let claims_unknown = claims.is_none();
        let claims = self.unreadable.without(what, claims.unwrap_or_default(), claim);
        found.objects.extend(claims.objects);
        found.unreadable.extend(claims.unreadable);
        Ok(Leases { found: found.objects, unreadable: found.unreadable, claims_unknown })
    }

    async fn in_use(&self, namespace: &str, addresses: &[Held]) -> Result<HashSet<String>, StoreError> {
        let pods = self.pods(namespace).await?;
        let alive: Vec<&Pod> = pods.iter().filter(|pod| !has_ended(pod)).collect();
        let uses = |h: &&Held| alive.iter().any(|pod| owner::may_use(pod, h));
        Ok(addresses.iter().filter(uses).map(|h| h.uid.clone()).collect())
    }

    async fn addresses(&self, network: Option<&str>) -> Result<Vec<Held>, StoreError> {
        let params = network.map_or_else(ListParams::default, |network| {
            ListParams::default().labels(&format!("{NETWORK}={}", network_label(network)))
        });
        let what = format!("list LeasedAddresses of {}", network.unwrap_or("all networks"));
        let found = list(&what, &self.all::<LeasedAddress>(), params).await?;
        let mut held = self.unreadable.without(&what, found, codec::held).objects;
        held.retain(|h| network.is_none_or(|n| n == h.network));
        Ok(held)
    }

    async fn find_address(&self, network: &str, address: IpAddr) -> Result<Option<Held>, StoreError> {
        let what = format!("get the LeasedAddress of {address} on {network}");
        let name = address_name(network, address);
        let found = asked(&what, self.all::<LeasedAddress>().get_opt(&name)).await?;
        let mut held = self.unreadable.without(&what, found.into_iter().collect(), codec::held).objects;
        held.retain(|h| h.network == network && h.address == address);
        Ok(held.pop())
    }

    async fn hold(&self, address: &Held) -> Result<Option<Held>, StoreError> {
        let what = format!("create the LeasedAddress of {} on {}", address.address, address.network);
        let api: Api<LeasedAddress> = Api::all(self.client.clone());
        let made = unless(
            409,
            asked_raw(&what, api.create(&PostParams::default(), &address_object(address))).await?,
        );
        answered(&what, made)?.map(|object| held(&object)).transpose()
    }

    async fn free(&self, address: &Held) -> Result<(), StoreError> {
        let what = format!("delete the LeasedAddress of {} on {}", address.address, address.network);
        let api: Api<LeasedAddress> = Api::all(self.client.clone());
        let uid = Preconditions { uid: Some(address.uid.clone()), resource_version: None };
        let params = DeleteParams::default().preconditions(uid);
        let name = address_name(&address.network, address.address);
        let deleted = asked_raw(&what, api.delete(&name, &params)).await?.map(|_| ());
        // Another UID: the object of this UID is gone.
        gone_is_none(&what, unless(409, deleted)).map(|_| ())
    }
}

impl Cluster {
    /// Others' labels, finalizers and owner references stay.
    async fn update_lease(&self, what: &str, new: &Lease) -> Result<Option<Lease>, StoreError> {
        let api: Api<AddressLease> = self.namespaced(&new.key.namespace);
        let found = asked(what, api.get_opt(&new.key.name)).await?;
        let Some(mut stored) = found.filter(|o| is_version(&o.metadata, new)) else { return Ok(None) };
        guard(&mut stored.metadata, new.guarded);
        stored.status = object(new).status;
        let replaced = asked_raw(what, api.replace(&new.key.name, &PostParams::default(), &stored)).await?;
        gone_is_none(what, unless(409, replaced))?.map(|object| lease(&object)).transpose()
    }

    /// A claim is another author's: only what is ours is changed. Addresses are its status, the guard is not.
    async fn update_claim(&self, what: &str, new: &Lease) -> Result<Option<Lease>, StoreError> {
        let api: Api<IPAMClaim> = self.namespaced(&new.key.namespace);
        let found = asked(what, api.get_opt(&new.key.name)).await?;
        let Some(mut object) = found.filter(|o| is_version(&o.metadata, new)) else { return Ok(None) };
        let old = claim(&object)?;
        let params = PostParams::default();
        let replaced = if old.guarded == new.guarded {
            let others = object.status.take().unwrap_or_default().others;
            let ips = new.addresses.iter().map(ToString::to_string).collect();
            object.status = Some(IpamClaimStatus { ips, others });
            asked_raw(what, api.replace_status(&new.key.name, &params, &object)).await?
        } else {
            guard(&mut object.metadata, new.guarded);
            asked_raw(what, api.replace(&new.key.name, &params, &object)).await?
        };
        gone_is_none(what, unless(409, replaced))?.map(|object| claim(&object)).transpose()
    }
}

fn is_version(meta: &ObjectMeta, lease: &Lease) -> bool {
    meta.uid.as_deref() == Some(&lease.uid) && meta.resource_version.as_deref() == Some(&lease.version)
}
