//! Ending leases, and freeing what is left over; the states are in [`super`].

use std::collections::{BTreeMap, HashMap};

use tracing::warn;

use super::{Failures, Held, Kind, Lease, Store, StoreError};

/// Ends `lease` and frees its addresses; nothing that uses them may be left. Whether it was the lease's last version:
/// if not, it is as it was. It may be called again after it was cut off anywhere.
///
/// Addresses that a set lease does not list are left to [`sweep`]: a list of the network is as long as the network has addresses. An
/// ending lease lists what it will ever list, so the version that is given tells all.
///
/// # Errors
/// The store fails; the lease is ending then or as it was.
pub async fn end<S: Store>(store: &S, lease: &Lease) -> Result<bool, StoreError> {
    // First of all: from here on no machine acquires it.
    if !lease.ending && !store.delete(lease).await? {
        return Ok(false);
    }
    let mut held = Vec::new();
    if lease.addresses.is_empty() {
        // Only a list tells what was held for it in vain.
        held = store.addresses(Some(&lease.network)).await?;
    }
    for listed in &lease.addresses {
        held.extend(store.find_address(&lease.network, listed.addr()).await?);
    }
    for held in held.iter().filter(|held| held.lease_uid == lease.uid) {
        store.free(held).await?;
    }
    while let Some(now) = store.find(&lease.key).await? {
        if now.uid != lease.uid || !now.guarded {
            break;
        }
        if store.update(&Lease { guarded: false, ..now }).await?.is_some() {
            break;
        }
    }
    Ok(true)
}

/// Frees the addresses that no lease lists or ever will, and that no pod uses; answers them. What fails for one address
/// is noted in `failures`.
///
/// # Errors
/// The store does not answer; what was freed is free.
pub async fn sweep<S: Store>(store: &S, failures: &mut Failures) -> Result<Vec<Held>, StoreError> {
    // Addresses first: the lease of an address is older than it, and is missing below only when it is gone.
    let held = store.addresses(None).await?;
    if held.is_empty() {
        return Ok(held);
    }
    let leases = store.leases().await?;
    let by_uid: HashMap<&str, &Lease> =
        leases.found.iter().map(|lease| (lease.uid.as_str(), lease)).collect();
    let (mut needless, mut unknown) = (Vec::new(), 0_usize);
    let mut orphans: BTreeMap<String, Vec<Held>> = BTreeMap::new();
    for h in held {
        match by_uid.get(h.lease_uid.as_str()) {
            Some(lease) if lease.addresses.is_empty() || lease.lists(h.address) => {}
            Some(_) => needless.push(h),
            None if leases.unreadable.contains(&h.lease_uid) => {}
            None if h.lease.kind == Kind::IpamClaim && leases.claims_unknown => unknown += 1,
            None => orphans.entry(h.lease.namespace.clone()).or_default().push(h),
        }
    }
    if unknown > 0 {
        warn!(
            addresses = unknown,
            "the API server does not know IPAMClaims: addresses that they hold stay held"
        );
    }
    for (namespace, orphans) in orphans {
        // Where the pods are not known, the addresses stay held.
        let Some(used) = failures.note(store.in_use(&namespace, &orphans).await)? else { continue };
        for h in orphans {
            if used.contains(&h.uid) {
                warn!(network = h.network, address = %h.address, namespace, lease = h.lease.name,
                    "the lease is gone and a pod uses its address: it stays held until the pod has ended");
            } else {
                needless.push(h);
            }
        }
    }
    let mut freed = Vec::with_capacity(needless.len());
    for h in needless {
        freed.extend(failures.note(store.free(&h).await)?.map(|()| h));
    }
    Ok(freed)
}
