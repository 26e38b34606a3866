//! The collector: ends leases whose owner is gone, and frees addresses that no lease lists.
//!
//! # Theory of operation
//!
//! A lease names its owner by an owner reference, so the cluster's garbage collector asks for its deletion when the
//! owner is gone; the guard keeps it, *ending*. Watches tell which leases are ending (`ending`). Every few seconds in which
//! there are any, a pass goes over them:
//!
//! 1. The lease is read.
//! 2. For those that are ending, pods and machines of their namespace are read, *after* the lease was seen ending: an
//!    ADD that was answered before has its pod among them, and one that is answered later does not take an ending lease.
//! 3. A lease that no pod uses is ended.
//!
//! Every so often a *thorough* pass lists all leases. It also asks for the deletion of those whose owner is gone and whose owner
//! reference was taken away (a deletion that orphans), and frees addresses that no lease lists ([`ipam::sweep`]). That a lease is not found
//! is not enough for that: an address that a pod which runs has by its own word, or whose IPAMClaim it names, stays held.
//!
//! What fails for one lease or address does not keep the pass from the others: the pass tells the first error when it is done. A
//! lease that cannot be read is left as it is, and its addresses stay held. Where the API server does not answer at all, the pass
//! ends at once.
//!
//! A pod uses its lease until it is gone or has ended: on a node that is cut off a pod stays *Terminating*, and so its
//! addresses stay its own. Any number of collectors may run; nothing is kept between passes.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use podvirt_daemon::shutdown::Shutdown;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;
use tracing::{info, warn};

use crate::cluster::Cluster;
use crate::ending::Ending;
use crate::ipam::{self, Failures, Key, Kind, Lease, Store, StoreError};
use crate::owner;

/// Time between two passes.
const PERIOD: Duration = Duration::from_secs(5);
/// Of so many periods one has a thorough pass: five minutes.
const THOROUGH_PERIODS: u32 = 60;

/// What was done.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    ended: Counter,
    swept: Counter,
    failed: Counter,
}

impl Metrics {
    /// Counters in `registry`.
    pub fn new(registry: &mut Registry) -> Metrics {
        let metrics = Metrics::default();
        registry.register(
            "podvirt_cni_leases_ended",
            "Leases ended because their owner is gone",
            metrics.ended.clone(),
        );
        let help = "Addresses freed that no lease listed";
        registry.register("podvirt_cni_addresses_swept", help, metrics.swept.clone());
        registry.register(
            "podvirt_cni_passes_failed",
            "Passes of the collector that failed",
            metrics.failed.clone(),
        );
        metrics
    }
}

/// What a pass goes over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// The leases with these keys, as far as they are ending.
    Ending(Vec<Key>),
    /// All leases and all addresses.
    Everything,
}

/// Collects until the end is asked for.
pub async fn run(cluster: &Cluster, metrics: &Metrics, shutdown: &Shutdown) {
    let ending = Ending::default();
    let passes = async {
        for period in 0u32.. {
            let scope = match period.is_multiple_of(THOROUGH_PERIODS) {
                true => Scope::Everything,
                false => Scope::Ending(ending.keys()),
            };
            if let Err(error) = Box::pin(collect(cluster, metrics, scope)).await {
                metrics.failed.inc();
                warn!(%error, "leases are collected later");
            }
            tokio::time::sleep(PERIOD).await;
        }
    };
    shutdown.or(async { tokio::join!(ending.follow(cluster), passes) }).await;
}

/// Looks at everything once.
///
/// # Errors
/// The API server does not answer, or refuses; what was done is done.
pub async fn once(cluster: &Cluster, metrics: &Metrics) -> Result<(), StoreError> {
    collect(cluster, metrics, Scope::Everything).await
}

pub(crate) async fn collect(cluster: &Cluster, metrics: &Metrics, scope: Scope) -> Result<(), StoreError> {
    let mut failures = Failures::default();
    let mut pods_by_namespace = PodsByNamespace::new();
    let thorough = scope == Scope::Everything;
    let leases = match scope {
        Scope::Everything => cluster.leases().await?.found,
        Scope::Ending(keys) => {
            let mut found = Vec::with_capacity(keys.len());
            for key in keys {
                found.extend(failures.note(cluster.find(&key).await)?.flatten());
            }
            found
        }
    };
    for lease in leases.iter().filter(|lease| lease.guarded) {
        let (namespace, name) = (&lease.key.namespace, &lease.key.name);
        if lease.ending {
            let ended = end_unused(cluster, lease, &mut pods_by_namespace, &mut failures).await;
            if failures.note(ended)? == Some(true) {
                metrics.ended.inc();
                let addresses: Vec<String> = lease.addresses.iter().map(ToString::to_string).collect();
                info!(namespace, lease = name, network = lease.network, ?addresses, "lease ended");
            }
        } else if thorough && failures.note(delete_orphan(cluster, lease).await)? == Some(true) {
            // It is ended when it has been read as ending.
            info!(namespace, lease = name, "the owner is gone");
        }
    }
    if thorough {
        for held in ipam::sweep(cluster, &mut failures).await? {
            metrics.swept.inc();
            info!(network = held.network, address = %held.address, "freed an address that no lease listed");
        }
    }
    failures.finish()
}

/// Pods of each namespace, listed once in a pass; `None`: the list failed.
type PodsByNamespace = BTreeMap<String, Option<Vec<Pod>>>;

/// Ends a lease that is ending, unless a pod uses it; whether it was ended.
async fn end_unused(
    cluster: &Cluster,
    lease: &Lease,
    pods_by_namespace: &mut PodsByNamespace,
    failures: &mut Failures,
) -> Result<bool, StoreError> {
    let namespace = &lease.key.namespace;
    if !pods_by_namespace.contains_key(namespace) {
        let pods = failures.note(cluster.pods(namespace).await)?;
        pods_by_namespace.insert(namespace.clone(), pods);
    }
    let Some(Some(pods)) = pods_by_namespace.get(namespace) else { return Ok(false) };
    let machine = match &lease.machine {
        Some(machine) => cluster.machine(namespace, machine).await?,
        None => None,
    };
    let is_used = in_use(lease, pods, machine.as_ref().map(|machine| &machine.meta));
    Ok(!is_used && ipam::end(cluster, lease).await?)
}

/// Asks for the deletion of a lease whose owner is gone; whether its owner is.
async fn delete_orphan(cluster: &Cluster, lease: &Lease) -> Result<bool, StoreError> {
    Ok(is_orphan(cluster, lease).await? && cluster.delete(lease).await?)
}

async fn is_orphan(cluster: &Cluster, lease: &Lease) -> Result<bool, StoreError> {
    match &lease.owner {
        // A claim is its author's to delete.
        None => Ok(false),
        Some(owner) => {
            let there = cluster.owner(&lease.key.namespace, owner).await?;
            Ok(there.is_none_or(|meta| meta.uid.as_deref() != Some(&owner.uid)))
        }
    }
}

/// Whether any of `pods`, those of the lease's namespace, may use `lease`. `machine` is the VirtualMachineInstance that
/// has the name in the lease now.
fn in_use(lease: &Lease, pods: &[Pod], machine: Option<&ObjectMeta>) -> bool {
    let mut alive = pods.iter().filter(|pod| !has_ended(pod));
    let Some(owner) = &lease.owner else {
        return lease.key.kind == Kind::IpamClaim
            && alive.any(|p| owner::names_claim(&p.metadata, &lease.key.name));
    };
    if owner.is_pod() {
        return alive.any(|pod| pod.metadata.uid.as_deref() == Some(&owner.uid));
    }
    // The machine's own: its UID, or that of what controls it.
    let is_owners = |meta: &ObjectMeta| {
        let controllers = meta.owner_references.iter().flatten().filter(|o| o.controller == Some(true));
        let own = meta.uid.iter().map(String::as_str);
        own.chain(controllers.map(|o| o.uid.as_str())).any(|uid| uid == owner.uid)
    };
    if machine.is_some_and(is_owners) {
        return true;
    }
    alive.filter_map(|pod| owner::machine_of(&pod.metadata)).any(|of| {
        lease.machine.as_deref() == Some(of.name.as_str())
            && match machine {
                // A later machine of that name.
                Some(now) if now.uid.as_deref() == Some(&of.uid) => false,
                // The machine is gone and its pod is not: whose it was cannot be said any more, unless it was the owner.
                _ => owner.kind != "VirtualMachineInstance" || owner.uid == of.uid,
            }
    })
}

/// Whether its containers have ended for good, and with them its network namespace.
pub(crate) fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::owner::Owner;

    fn lease(kind: &str, uid: &str, machine: Option<&str>) -> Lease {
        Lease {
            key: Key { kind: Kind::AddressLease, namespace: "shop".into(), name: "web-net1".into() },
            uid: "l1".into(),
            version: "1".into(),
            ending: true,
            guarded: true,
            network: "flat".into(),
            interface: "net1".into(),
            owner: Some(Owner {
                api_version: "kubevirt.io/v1".into(),
                kind: kind.into(),
                name: "web".into(),
                uid: uid.into(),
            }),
            machine: machine.map(str::to_owned),
            addresses: Vec::new(),
            mac: None,
            attached: None,
        }
    }

    fn pod(uid: &str, machine: Option<&str>, phase: &str) -> Pod {
        let owners: Value = machine.map_or(json!([]), |uid| {
            json!([{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "web", "uid": uid, "controller": true}])
        });
        serde_json::from_value(
            json!({"metadata": {"uid": uid, "ownerReferences": owners}, "status": {"phase": phase}}),
        )
        .unwrap()
    }

    fn vmi(uid: &str, vm: Option<&str>) -> ObjectMeta {
        let owners: Value = vm.map_or(json!([]), |uid| {
            json!([{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "web", "uid": uid, "controller": true}])
        });
        serde_json::from_value(json!({"name": "web", "uid": uid, "ownerReferences": owners})).unwrap()
    }

    #[test]
    fn a_machines_lease_is_used_while_its_instance_or_any_of_its_pods_is_there() {
        let lease = lease("VirtualMachine", "v1", Some("web"));
        let running = [pod("p1", Some("i1"), "Running")];
        assert!(in_use(&lease, &running, Some(&vmi("i1", Some("v1")))));
        assert!(in_use(&lease, &[], Some(&vmi("i1", Some("v1")))), "its pod is about to come");
        assert!(in_use(&lease, &running, None), "the pod is still ending");
        assert!(!in_use(&lease, &[pod("p1", Some("i1"), "Failed")], None));
        assert!(!in_use(&lease, &[], None));
        assert!(!in_use(&lease, &[pod("p9", None, "Running")], None), "a pod of no machine");
    }

    #[test]
    fn a_later_machine_of_the_same_name_does_not_use_the_earlier_ones_lease() {
        let old = lease("VirtualMachine", "v1", Some("web"));
        let pods = [pod("p2", Some("i2"), "Running")];
        assert!(!in_use(&old, &pods, Some(&vmi("i2", Some("v2")))));
        let both = [pod("p1", Some("i1"), "Running"), pod("p2", Some("i2"), "Running")];
        assert!(in_use(&old, &both, Some(&vmi("i2", Some("v2")))), "the earlier one's pod is still there");
        let alone = lease("VirtualMachineInstance", "i1", Some("web"));
        assert!(!in_use(&alone, &pods, None), "the pod is of another instance");
        assert!(in_use(&alone, &both, None));
    }

    #[test]
    fn leases_of_pods_and_claims_are_used_by_the_pods_that_have_or_name_them() {
        let of_pod = lease("Pod", "p1", None);
        assert!(in_use(&of_pod, &[pod("p1", None, "Running")], None));
        assert!(!in_use(&of_pod, &[pod("p1", None, "Succeeded"), pod("p2", None, "Running")], None));
        let mut claim = lease("", "", None);
        (claim.owner, claim.key.kind, claim.key.name) = (None, Kind::IpamClaim, "web.flat".into());
        let mut user = pod("p1", None, "Running");
        let text = json!([{"name": "flat", "ipam-claim-reference": "web.flat"}]).to_string();
        user.metadata.annotations =
            Some([(podvirt_api::names::annotation::NETWORKS.to_owned(), text)].into());
        assert!(in_use(&claim, &[user], None));
        assert!(!in_use(&claim, &[pod("p1", None, "Running")], None));
    }
}
