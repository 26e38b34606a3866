//! Taking a lease; the states are in [`super`].

use std::collections::BTreeSet;
use std::net::IpAddr;

use podvirt_api::mac::MacAddr;

use super::{Attached, Held, Key, Kind, Lease, Store, StoreError};
use crate::config::Network;
use crate::error::{Code, Error};
use crate::owner::Owner;
use crate::range::RangeSet;

/// How often a lease that others change is read anew. Each time another machine was served.
const ATTEMPTS: usize = 16;

/// A request for a lease.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The lease.
    pub key: Key,
    /// Addresses of this network.
    pub network: &'a Network,
    /// For this interface.
    pub interface: &'a str,
    /// Whose it will be.
    pub owner: &'a Owner,
    /// Name of the VirtualMachineInstance.
    pub machine: Option<&'a str>,
    /// The attachment, when the lease is a pod's.
    pub attached: Option<Attached>,
}

/// The lease of `request`, set: made when there is none.
///
/// # Errors
/// No address is left; the lease is for another interface or network; another lease holds the wished address; the lease
/// is ending; the store fails.
pub async fn acquire<S: Store>(store: &S, request: &Request<'_>) -> Result<Lease, Error> {
    let mut held = Vec::new();
    let result = attempts(store, request, &mut held).await;
    let listed = |lease: &Lease| held.iter().all(|h| lease.lists(h.address));
    if !result.as_ref().is_ok_and(listed) {
        // What cannot be tidied now is collected later.
        let _later = tidy(store, &request.key, held).await;
    }
    result
}

/// Whether `lease` still is what it was: to be asked when everything that rests on it is done.
///
/// # Errors
/// It is not, or the store fails.
pub async fn confirm<S: Store>(store: &S, lease: &Lease) -> Result<(), Error> {
    match store.find(&lease.key).await? {
        Some(now) if now.uid == lease.uid && !now.ending && now.addresses == lease.addresses => Ok(()),
        _ => Err(ending(&lease.key)),
    }
}

/// The MAC address of an interface on a network that gives no addresses: the same for all pods of one owner.
pub fn mac_without_lease(network: &Network, owner: &Owner, interface: &str) -> MacAddr {
    network.mac.unwrap_or_else(|| MacAddr::derived(&[&network.name, &owner.uid, interface]))
}

async fn attempts<S: Store>(store: &S, request: &Request<'_>, held: &mut Vec<Held>) -> Result<Lease, Error> {
    for _ in 0..ATTEMPTS {
        let Some(lease) = find_or_create(store, request).await? else { continue };
        if lease.ending {
            return Err(ending(&lease.key));
        }
        // A claim need not say which interface it is for: upstream's controller makes claims that do not.
        let named = lease.key.kind == Kind::AddressLease || !lease.interface.is_empty();
        if lease.network != request.network.name || (named && lease.interface != request.interface) {
            let msg = format!(
                "{} is for the interface {:?} of network {:?}; the pod uses it for {:?} of {:?}",
                told(&lease.key),
                lease.interface,
                lease.network,
                request.interface,
                request.network.name
            );
            return Err(Error::new(Code::Lease, msg));
        }
        if !lease.guarded {
            // Before anything is held: it may not be deleted without the addresses being freed.
            store.update(&Lease { guarded: true, ..lease }).await?;
            continue;
        }
        let mut wanted = lease.clone();
        if lease.addresses.is_empty() {
            let mut listed = None;
            for set in &request.network.sets {
                let address = choose(store, request, &lease, set, &mut listed, held).await?;
                wanted.addresses.extend(set.with_prefix(address));
            }
        } else {
            fits(&lease, request)?;
        }
        if lease.key.kind == Kind::AddressLease {
            wanted.mac = request.network.mac.or(lease.mac).or_else(|| Some(derive(request, &wanted)));
            wanted.attached.clone_from(&request.attached);
        }
        if wanted != lease {
            match store.update(&wanted).await? {
                Some(updated) => wanted = updated,
                None => continue,
            }
        }
        if wanted.mac.is_none() {
            wanted.mac = request.network.mac.or_else(|| Some(derive(request, &wanted)));
        }
        return Ok(wanted);
    }
    Err(Error::new(Code::TryAgain, format!("{} is being changed by others", told(&request.key))))
}

async fn find_or_create<S: Store>(store: &S, request: &Request<'_>) -> Result<Option<Lease>, Error> {
    let found = store.find(&request.key).await?;
    if found.is_some() {
        return Ok(found);
    }
    if request.key.kind == Kind::IpamClaim {
        // The claim's author knows what the claim belongs to; the plugin does not.
        return Err(Error::new(Code::TryAgain, format!("{} is not there", told(&request.key))));
    }
    let lease = Lease {
        key: request.key.clone(),
        uid: String::new(),
        version: String::new(),
        ending: false,
        guarded: true,
        network: request.network.name.clone(),
        interface: request.interface.to_owned(),
        owner: Some(request.owner.clone()),
        machine: request.machine.map(str::to_owned),
        addresses: Vec::new(),
        mac: None,
        attached: request.attached.clone(),
    };
    Ok(store.create(&lease).await?)
}

/// An address of `set` that is held for `lease`.
///
/// The first candidate follows from the lease's UID and is most often free, so it is asked for without a list: a list is as
/// long as the network has addresses. `listed` is the list of this attempt, read when a candidate was not free. An
/// earlier attempt has asked for the same first candidate, so that what it left behind is found then.
async fn choose<S: Store>(
    store: &S,
    request: &Request<'_>,
    lease: &Lease,
    set: &RangeSet,
    listed: &mut Option<Vec<Held>>,
    made: &mut Vec<Held>,
) -> Result<IpAddr, Error> {
    let network = &request.network.name;
    let wish = request.network.wishes.iter().copied().find(|a| set.offers(*a));
    let holding = |address| Held {
        network: network.clone(),
        address,
        lease: lease.key.clone(),
        lease_uid: lease.uid.clone(),
        uid: String::new(),
    };
    if let Some(address) = wish {
        if let Some(new) = store.hold(&holding(address)).await? {
            made.push(new);
            return Ok(address);
        }
        return match store.find_address(network, address).await? {
            Some(h) if h.lease_uid == lease.uid => Ok(address),
            Some(h) => {
                let msg =
                    format!("the address {address} of network {network:?} is held by {}", told(&h.lease));
                Err(Error::new(Code::Lease, msg))
            }
            None => {
                let msg =
                    format!("the address {address} is being freed, or its LeasedAddress cannot be read");
                Err(Error::new(Code::TryAgain, msg))
            }
        };
    }
    let [.., a, b, c, d, e] = MacAddr::derived(&[&lease.uid]).0;
    let start = u64::from_be_bytes([0, 0, 0, a, b, c, d, e]);
    let mut taken = BTreeSet::new();
    let mut is_listed = false;
    loop {
        if let Some(held) = listed.as_ref().filter(|_| !is_listed) {
            // An earlier attempt, or one that runs now, has come this far.
            let own = held.iter().filter(|h| h.lease_uid == lease.uid && set.offers(h.address));
            if let Some(address) = own.map(|h| h.address).min() {
                return Ok(address);
            }
            taken.extend(held.iter().map(|h| h.address));
            is_listed = true;
        }
        let Some(address) = set.choose(start, &taken) else { break };
        if let Some(new) = store.hold(&holding(address)).await? {
            made.push(new);
            return Ok(address);
        }
        taken.insert(address);
        if listed.is_none() {
            *listed = Some(store.addresses(Some(network)).await?);
        }
    }
    let msg = format!("network {network:?} has no address left for {}", told(&lease.key));
    Err(Error::new(Code::Exhausted, msg))
}

/// A lease that is set stays as it is: the machine may run with it at this moment.
fn fits(lease: &Lease, request: &Request<'_>) -> Result<(), Error> {
    let network = request.network;
    let refuse = |why: String| {
        let told = told(&lease.key);
        Err(Error::new(Code::Lease, format!("{told} {why}; it can be deleted while the machine is stopped")))
    };
    for (i, set) in network.sets.iter().enumerate() {
        if !lease.addresses.iter().any(|a| set.with_prefix(a.addr()) == Some(*a)) {
            return refuse(format!("has no address of ipam.ranges[{i}] of network {:?}", network.name));
        }
    }
    if lease.addresses.len() != network.sets.len() {
        return refuse(format!(
            "has {} addresses, the network gives {}",
            lease.addresses.len(),
            network.sets.len()
        ));
    }
    match network.wishes.iter().find(|wish| !lease.lists(**wish)) {
        Some(wish) => refuse(format!("does not have {wish}, which the pod asks for")),
        None => Ok(()),
    }
}

/// A MAC address that is as unique on the network as the first address is: `02:70` and an IPv4 address, or `02` and 40
/// bits of a hash.
fn derive(request: &Request<'_>, lease: &Lease) -> MacAddr {
    let ipv4 = lease.addresses.iter().find_map(|a| match a.addr() {
        IpAddr::V4(a) => Some(a.octets()),
        IpAddr::V6(_) => None,
    });
    match ipv4 {
        Some([a, b, c, d]) => MacAddr([0x02, 0x70, a, b, c, d]),
        None => MacAddr::derived(&[&request.network.name, &lease.uid]),
    }
}

/// Frees what was held in vain, if no other ADD can have taken it up.
async fn tidy<S: Store>(store: &S, key: &Key, held: Vec<Held>) -> Result<(), StoreError> {
    if held.is_empty() {
        return Ok(());
    }
    let lease = store.find(key).await?;
    for h in held {
        let needless = match &lease {
            Some(lease) if lease.uid == h.lease_uid => {
                !lease.lists(h.address) && (lease.ending || !lease.addresses.is_empty())
            }
            _ => true,
        };
        if needless {
            store.free(&h).await?;
        }
    }
    Ok(())
}

fn ending(key: &Key) -> Error {
    Error::new(Code::TryAgain, format!("{} is ending: its owner is gone, or it was deleted", told(key)))
}

fn told(key: &Key) -> String {
    let kind = match key.kind {
        Kind::AddressLease => "AddressLease",
        Kind::IpamClaim => "IPAMClaim",
    };
    format!("{kind} {}/{}", key.namespace, key.name)
}
