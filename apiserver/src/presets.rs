//! The presets of all namespaces, as a cache: each new machine is compared with those of its namespace.
//!
//! Users write presets, and the cache lives in a small process. So it holds what counts of each
//! ([`Effect`]), by namespace, within bounds:
//!
//! ```text
//!  preset applied ── fits into its namespace's share and into all ──> in the table
//!        │
//!        └── else ──> noted by its hash: no machine is made in this namespace until it, or another, is deleted
//! ```
//!
//! A preset that is left out silently would give machines that lack what their owner has written; a namespace beyond its share
//! therefore makes no machines, and says why. It is one that its users have filled themselves.

use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, PoisonError, RwLock};

use futures::StreamExt;
use kube::core::DeserializeGuard;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt as _};
use podvirt_api::admission::preset::Effect;
use podvirt_api::v1::VirtualMachineInstancePreset as Preset;
use tracing::warn;

/// Presets that may not be readable: one of these must not end the watch of all.
type Guarded = DeserializeGuard<Preset>;

/// Most presets of a namespace.
pub const MAX_PRESETS: usize = 256;
/// Memory of a namespace's presets, in bytes.
pub const MAX_NAMESPACE_BYTES: usize = 1 << 20;
/// Memory of all presets, in bytes.
pub const MAX_TOTAL_BYTES: usize = 8 << 20;
/// Presets that are listed at a time: each may be as large as etcd takes an object.
const PAGE_SIZE: u32 = 16;

/// Why the presets of a namespace cannot be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PresetsError {
    /// The list has not come yet.
    #[error("the presets are not known yet: try again")]
    Unknown,
    /// There are more than are held.
    #[error(
        "the VirtualMachineInstancePresets of the namespace are too many or too large: at most {MAX_PRESETS} of {MAX_NAMESPACE_BYTES} \
         bytes together are taken; delete some"
    )]
    TooMany,
}

/// The presets as they are now. Clones see the same.
#[derive(Clone, Debug)]
pub struct Presets(Arc<RwLock<Option<Table>>>);

/// The presets of all namespaces.
#[derive(Debug, Default)]
struct Table {
    namespaces: BTreeMap<String, Namespace>,
    bytes: usize,
}

/// The presets of a namespace.
#[derive(Debug, Default)]
struct Namespace {
    presets: BTreeMap<String, Arc<Effect>>,
    bytes: usize,
    /// Hashes of the names of those that have no place.
    left_out: HashSet<u64>,
}

fn hash(name: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}

impl Table {
    fn put(&mut self, namespace: &str, effect: Effect) {
        self.remove(namespace, effect.name());
        let own = self.namespaces.entry(namespace.to_owned()).or_default();
        let bytes = effect.bytes();
        let fits = own.presets.len() < MAX_PRESETS
            && own.bytes + bytes <= MAX_NAMESPACE_BYTES
            && self.bytes + bytes <= MAX_TOTAL_BYTES;
        if !fits {
            own.left_out.insert(hash(effect.name()));
            warn!(
                namespace,
                name = effect.name(),
                "preset has no place: no machine is made in its namespace"
            );
            return;
        }
        own.bytes += bytes;
        self.bytes += bytes;
        own.presets.insert(effect.name().to_owned(), Arc::new(effect));
    }

    fn remove(&mut self, namespace: &str, name: &str) {
        let Some(own) = self.namespaces.get_mut(namespace) else { return };
        own.left_out.remove(&hash(name));
        if let Some(gone) = own.presets.remove(name) {
            own.bytes -= gone.bytes();
            self.bytes -= gone.bytes();
        }
        if own.presets.is_empty() && own.left_out.is_empty() {
            self.namespaces.remove(namespace);
        }
    }

    fn apply(&mut self, guarded: &Guarded) {
        match &guarded.0 {
            Ok(preset) => {
                let namespace = preset.namespace().unwrap_or_default();
                match Effect::of(preset) {
                    Some(effect) => self.put(&namespace, effect),
                    None => self.remove(&namespace, &preset.name_any()),
                }
            }
            Err(error) => {
                let (namespace, name) = (&error.metadata.namespace, &error.metadata.name);
                self.remove(namespace.as_deref().unwrap_or_default(), name.as_deref().unwrap_or_default());
                warn!(
                    namespace,
                    name,
                    error = error as &dyn std::error::Error,
                    "preset cannot be read: it is left out"
                );
            }
        }
    }

    fn forget(&mut self, guarded: &Guarded) {
        let metadata = match &guarded.0 {
            Ok(preset) => &preset.metadata,
            Err(error) => &error.metadata,
        };
        let (namespace, name) = (&metadata.namespace, &metadata.name);
        self.remove(namespace.as_deref().unwrap_or_default(), name.as_deref().unwrap_or_default());
    }
}

impl Presets {
    /// No presets, and none will come.
    pub fn none() -> Self {
        Presets(Arc::new(RwLock::new(Some(Table::default()))))
    }

    /// The presets, and what follows them for as long as it is polled; it calls `known` once they are known.
    pub fn follow(client: Client, known: impl Fn() + Send) -> (Self, impl Future<Output = ()> + Send) {
        let presets = Presets(Arc::default());
        let table = presets.clone();
        let follow = async move {
            let config = watcher::Config::default().page_size(PAGE_SIZE);
            let events = watcher(Api::<Guarded>::all(client), config).default_backoff();
            let mut events = Box::pin(events);
            // What a new list has, until it is whole.
            let mut listed = Table::default();
            while let Some(event) = events.next().await {
                match event {
                    Ok(Event::Init) => listed = Table::default(),
                    Ok(Event::InitApply(preset)) => listed.apply(&preset),
                    Ok(Event::InitDone) => {
                        table.change(|table| *table = Some(std::mem::take(&mut listed)));
                        known();
                    }
                    Ok(Event::Apply(preset)) => {
                        table.change(|table| table.get_or_insert_default().apply(&preset));
                    }
                    Ok(Event::Delete(preset)) => {
                        table.change(|table| table.get_or_insert_default().forget(&preset));
                    }
                    Err(error) => {
                        warn!(error = &error as &dyn std::error::Error, "watching the presets failed");
                    }
                }
            }
        };
        (presets, follow)
    }

    fn change(&self, change: impl FnOnce(&mut Option<Table>)) {
        change(&mut self.0.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// Those of a namespace, in the order of their names.
    ///
    /// # Errors
    ///
    /// They are not known yet, or more than are held.
    pub fn effects(&self, namespace: &str) -> Result<Vec<Arc<Effect>>, PresetsError> {
        let table = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let table = table.as_ref().ok_or(PresetsError::Unknown)?;
        match table.namespaces.get(namespace) {
            Some(own) if !own.left_out.is_empty() => Err(PresetsError::TooMany),
            Some(own) => Ok(own.presets.values().cloned().collect()),
            None => Ok(Vec::new()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn effect(name: &str, bytes: usize) -> Effect {
        let preset = json!({"metadata": {"name": name, "managedFields": [{"manager": "x".repeat(bytes)}]},
            "spec": {"selector": {}, "domain": {"cpu": {"model": "x".repeat(bytes)}, "devices": {}}}});
        Effect::of(&serde_json::from_value(preset).unwrap()).unwrap()
    }

    fn presets(table: Table) -> Presets {
        Presets(Arc::new(RwLock::new(Some(table))))
    }

    #[test]
    fn a_namespace_beyond_its_share_says_so_and_the_others_go_on() {
        assert_eq!(Presets(Arc::default()).effects("a").unwrap_err(), PresetsError::Unknown);
        let mut table = Table::default();
        for n in 0..MAX_PRESETS {
            table.put("full", effect(&format!("p{n}"), 0));
        }
        table.put("other", effect("p", 0));
        let known = presets(table);
        assert_eq!(known.effects("full").unwrap().len(), MAX_PRESETS);
        known.change(|table| table.as_mut().unwrap().put("full", effect("more", 0)));
        assert_eq!(known.effects("full").unwrap_err(), PresetsError::TooMany);
        assert_eq!((known.effects("other").unwrap().len(), known.effects("none").unwrap().len()), (1, 0));
        known.change(|table| table.as_mut().unwrap().remove("full", "more"));
        assert_eq!(known.effects("full").unwrap().len(), MAX_PRESETS);
    }

    #[test]
    fn the_table_is_bounded_in_bytes_and_counts_what_is_replaced_and_removed() {
        let mut table = Table::default();
        for namespace in 0..32 {
            for n in 0..64 {
                table.put(&format!("n{namespace}"), effect(&format!("p{n}"), 30 << 10));
            }
        }
        assert!(table.bytes <= MAX_TOTAL_BYTES);
        assert!(table.namespaces.values().all(|own| own.bytes <= MAX_NAMESPACE_BYTES));
        assert_eq!(table.bytes, table.namespaces.values().map(|own| own.bytes).sum::<usize>());
        table.put("n0", effect("p0", 0));
        for namespace in 0..32 {
            for n in 0..64 {
                table.remove(&format!("n{namespace}"), &format!("p{n}"));
            }
        }
        assert_eq!((table.bytes, table.namespaces.len()), (0, 0));
    }
}
