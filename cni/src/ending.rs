//! Which leases are ending, by watches of their metadata.
//!
//! A lease ends once in its life, and most of the time none does. So the collector does not list leases to find out: it
//! watches both kinds, and remembers the keys of those that are guarded and ending alone. A watch that breaks off begins
//! with a list, which replaces what was known of its kind when it is complete. What a watch has missed all the same, a
//! thorough pass finds ([`crate::collect`]).

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use futures::StreamExt;
use kube::runtime::watcher::Event;
use tracing::debug;

use crate::cluster::{Cluster, LeaseMeta, is_guarded};
use crate::ipam::{Key, Kind};

/// Keys of the leases that are guarded and ending.
#[derive(Debug, Default)]
pub(crate) struct Ending {
    leases: Mutex<KindKeys>,
    claims: Mutex<KindKeys>,
}

/// The keys of one kind.
#[derive(Debug, Default)]
struct KindKeys {
    keys: BTreeSet<Key>,
    /// Those of a list that is not complete yet.
    listed: BTreeSet<Key>,
}

impl KindKeys {
    fn apply(&mut self, kind: Kind, event: Event<LeaseMeta>) {
        let key = |lease: &LeaseMeta| Key::from_meta(kind, &lease.metadata);
        let is_ending =
            |lease: &LeaseMeta| lease.metadata.deletion_timestamp.is_some() && is_guarded(&lease.metadata);
        match event {
            Event::Init => self.listed.clear(),
            Event::InitApply(lease) => self.listed.extend(is_ending(&lease).then(|| key(&lease))),
            Event::InitDone => self.keys = std::mem::take(&mut self.listed),
            Event::Apply(lease) if is_ending(&lease) => {
                self.keys.insert(key(&lease));
            }
            Event::Apply(lease) | Event::Delete(lease) => {
                self.keys.remove(&key(&lease));
            }
        }
    }
}

impl Ending {
    fn keys_by_kind(&self, kind: Kind) -> &Mutex<KindKeys> {
        match kind {
            Kind::AddressLease => &self.leases,
            Kind::IpamClaim => &self.claims,
        }
    }

    /// The keys now.
    pub(crate) fn keys(&self) -> Vec<Key> {
        let kinds = [Kind::AddressLease, Kind::IpamClaim].map(|kind| self.keys_by_kind(kind));
        let keys = kinds.map(|keys| keys.lock().unwrap_or_else(PoisonError::into_inner).keys.clone());
        keys.into_iter().flatten().collect()
    }

    fn apply(&self, kind: Kind, event: Event<LeaseMeta>) {
        self.keys_by_kind(kind).lock().unwrap_or_else(PoisonError::into_inner).apply(kind, event);
    }

    /// Follows the leases of the cluster for as long as it is polled.
    pub(crate) async fn follow(&self, cluster: &Cluster) {
        let follow = async |kind: Kind| {
            let mut events = cluster.watch(kind);
            while let Some(event) = events.next().await {
                match event {
                    Ok(event) => self.apply(kind, event),
                    // A cluster without IPAMClaims answers so at each attempt.
                    Err(error) => debug!(?kind, error = &error as &dyn std::error::Error, "watch of leases"),
                }
            }
        };
        tokio::join!(follow(Kind::AddressLease), follow(Kind::IpamClaim));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::objects::FINALIZER;

    fn lease(name: &str, guarded: bool, ending: bool) -> LeaseMeta {
        let time = ending.then_some("2026-01-01T00:00:00Z");
        let finalizers = if guarded { vec![FINALIZER] } else { vec!["another"] };
        let meta = json!({"name": name, "namespace": "shop", "uid": name, "deletionTimestamp": time, "finalizers": finalizers});
        serde_json::from_value(json!({"metadata": meta})).unwrap()
    }

    #[test]
    fn what_ends_is_known_until_it_is_gone_and_a_new_list_replaces_it() {
        let ending = Ending::default();
        let names = || ending.keys().into_iter().map(|key| key.name).collect::<Vec<_>>();
        let apply = |event| ending.apply(Kind::AddressLease, event);
        apply(Event::Init);
        for lease in [lease("a", true, true), lease("b", true, false), lease("c", false, true)] {
            apply(Event::InitApply(lease));
        }
        assert!(names().is_empty(), "the list is not complete");
        apply(Event::InitDone);
        assert_eq!(names(), ["a"]);
        apply(Event::Apply(lease("b", true, true)));
        ending.apply(Kind::IpamClaim, Event::Apply(lease("web", true, true)));
        assert_eq!(names(), ["a", "b", "web"]);
        apply(Event::Apply(lease("a", false, true)));
        apply(Event::Delete(lease("b", true, true)));
        assert_eq!(names(), ["web"]);
        // The watch of one kind begins anew.
        apply(Event::Init);
        apply(Event::InitApply(lease("d", true, true)));
        apply(Event::InitDone);
        assert_eq!(names(), ["d", "web"]);
    }
}
