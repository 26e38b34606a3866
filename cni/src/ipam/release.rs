//! Ending leases, and freeing what is left over; the states are in [`super`].

use tracing::warn;

use super::{Held, Kind, Lease, Store, StoreError};

/// Ends `lease` and frees its addresses; nothing that uses them may be left. Whether it was the lease's last version:
/// if not, it is as it was. It may be called again after it was cut off anywhere.
///
/// # Errors
/// The store fails; the lease is ending then or as it was.
pub async fn end<S: Store>(store: &S, lease: &Lease) -> Result<bool, StoreError> {
    // First of all: from here on no machine acquires it.
    if !lease.ending && !store.delete(lease).await? {
        return Ok(false);
    }
    for held in store.addresses(Some(&lease.network)).await? {
        if held.lease_uid == lease.uid {
            store.free(&held).await?;
        }
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

/// Frees the addresses that no lease lists or ever will, and that no pod uses; answers them.
///
/// # Errors
/// The store fails; what was freed is free.
pub async fn sweep<S: Store>(store: &S) -> Result<Vec<Held>, StoreError> {
    // Addresses first: the lease of an address is older than it, and is missing below only when it is gone.
    let held = store.addresses(None).await?;
    if held.is_empty() {
        return Ok(held);
    }
    let leases = store.leases().await?;
    let (mut needless, mut orphans, mut unknown) = (Vec::new(), Vec::new(), 0_usize);
    for h in held {
        match leases.found.iter().find(|lease| lease.uid == h.lease_uid) {
            Some(lease) if lease.addresses.is_empty() || lease.lists(h.address) => {}
            Some(_) => needless.push(h),
            None if h.lease.kind == Kind::IpamClaim && leases.claims_unknown => unknown += 1,
            None => orphans.push(h),
        }
    }
    if unknown > 0 {
        warn!(
            addresses = unknown,
            "the API server does not know IPAMClaims: addresses that they hold stay held"
        );
    }
    if !orphans.is_empty() {
        let used = store.in_use(&orphans).await?;
        for h in &orphans {
            if used.contains(&h.uid) {
                warn!(network = h.network, address = %h.address, namespace = h.lease.namespace, lease = h.lease.name,
                    "the lease is gone and a pod uses its address: it stays held until the pod has ended");
            }
        }
        needless.extend(orphans.into_iter().filter(|h| !used.contains(&h.uid)));
    }
    for h in &needless {
        store.free(h).await?;
    }
    Ok(needless)
}
