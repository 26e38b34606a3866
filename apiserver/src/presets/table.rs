//! The cache's table: what counts of each preset, by namespace.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::ResourceExt as _;
use podvirt_api::admission::preset::Effect;
use tracing::warn;

use super::list::LeftOut;
use super::{Cached, Effects, Guarded, MAX_NAMESPACE_BYTES, MAX_PRESETS, MAX_TOTAL_BYTES};

/// The presets of a namespace.
#[derive(Debug, Default)]
pub(super) struct Namespace {
    presets: BTreeMap<String, Arc<Effect>>,
    bytes: usize,
}

impl Namespace {
    pub(super) fn insert_effect(&mut self, effect: Effect) {
        self.remove(effect.name());
        self.bytes += effect.bytes();
        self.presets.insert(effect.name().to_owned(), Arc::new(effect));
    }

    fn remove(&mut self, name: &str) {
        if let Some(gone) = self.presets.remove(name) {
            self.bytes -= gone.bytes();
        }
    }

    /// Whether there are more than a namespace may have.
    pub(super) fn is_too_large(&self) -> bool {
        self.presets.len() > MAX_PRESETS || self.bytes > MAX_NAMESPACE_BYTES
    }

    /// The presets in the order of their names.
    pub(super) fn effects(&self) -> Effects {
        self.presets.values().cloned().collect()
    }
}

/// The presets of all namespaces.
#[derive(Debug, Default)]
pub(super) struct Table {
    namespaces: BTreeMap<String, Namespace>,
    bytes: usize,
    /// Namespaces that have no place.
    left_out: BTreeMap<String, Arc<LeftOut>>,
}

impl Table {
    fn insert_preset(&mut self, namespace: &str, effect: Effect) {
        if let Some(left_out) = self.left_out.get(namespace) {
            left_out.change();
            return;
        }
        let own = self.namespaces.entry(namespace.to_owned()).or_default();
        self.bytes -= own.bytes;
        own.insert_effect(effect);
        self.bytes += own.bytes;
        if own.is_too_large() {
            warn!(namespace, "the presets are more than a namespace may have: no machine is made in it");
            self.leave_out(namespace);
        }
        while self.bytes > MAX_TOTAL_BYTES {
            let largest = self.namespaces.iter().max_by_key(|(_, own)| own.bytes);
            let Some(largest) = largest.map(|(name, _)| name.clone()) else { break };
            warn!(
                namespace = largest,
                "the cache has no place for the presets of the namespace: they are listed for new machines"
            );
            self.leave_out(&largest);
        }
    }

    fn remove(&mut self, namespace: &str, name: &str) {
        if let Some(left_out) = self.left_out.get(namespace) {
            left_out.change();
            return;
        }
        let Some(own) = self.namespaces.get_mut(namespace) else { return };
        self.bytes -= own.bytes;
        own.remove(name);
        self.bytes += own.bytes;
        if own.presets.is_empty() {
            self.namespaces.remove(namespace);
        }
    }

    /// Takes a namespace's place.
    fn leave_out(&mut self, namespace: &str) {
        if let Some(own) = self.namespaces.remove(namespace) {
            self.bytes -= own.bytes;
        }
        self.left_out.insert(namespace.to_owned(), Arc::new(LeftOut::new(namespace)));
    }

    /// Whether a namespace has no place.
    pub(super) fn leaves_out(&self) -> bool {
        !self.left_out.is_empty()
    }

    /// What is known of a namespace.
    pub(super) fn cached(&self, namespace: &str) -> Cached {
        match self.left_out.get(namespace) {
            Some(left_out) => Cached::LeftOut(Arc::clone(left_out)),
            None => Cached::Whole(self.namespaces.get(namespace).map(Namespace::effects).unwrap_or_default()),
        }
    }

    pub(super) fn apply(&mut self, guarded: &Guarded) {
        match &guarded.0 {
            Ok(preset) => {
                let namespace = preset.namespace().unwrap_or_default();
                match Effect::of(preset) {
                    Some(effect) => self.insert_preset(&namespace, effect),
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

    pub(super) fn forget(&mut self, guarded: &Guarded) {
        let metadata = match &guarded.0 {
            Ok(preset) => &preset.metadata,
            Err(error) => &error.metadata,
        };
        let (namespace, name) = (&metadata.namespace, &metadata.name);
        self.remove(namespace.as_deref().unwrap_or_default(), name.as_deref().unwrap_or_default());
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

    /// How many presets the cache has of a namespace that has its place.
    fn count(table: &Table, namespace: &str) -> Option<usize> {
        match table.cached(namespace) {
            Cached::Whole(effects) => Some(effects.len()),
            Cached::LeftOut(_) => None,
        }
    }

    #[test]
    fn a_namespace_beyond_its_bound_is_left_out_and_the_others_go_on() {
        let mut table = Table::default();
        for n in 0..MAX_PRESETS {
            table.insert_preset("full", effect(&format!("p{n}"), 0));
        }
        table.insert_preset("other", effect("p", 0));
        assert_eq!(count(&table, "full"), Some(MAX_PRESETS));
        table.insert_preset("full", effect("more", 0));
        assert_eq!((count(&table, "full"), table.leaves_out()), (None, true));
        assert_eq!((count(&table, "other"), count(&table, "none")), (Some(1), Some(0)));
        table.remove("full", "more");
        assert_eq!(count(&table, "full"), None, "what it has besides is not in the cache");
    }

    #[test]
    fn the_largest_namespaces_are_left_out_where_all_take_too_much() {
        let mut table = Table::default();
        table.insert_preset("shop", effect("p", 30 << 10));
        for namespace in 0..16 {
            for n in 0..30 {
                table.insert_preset(&format!("n{namespace}"), effect(&format!("p{n}"), 30 << 10));
            }
        }
        table.insert_preset("small", effect("p", 0));
        assert!(table.bytes <= MAX_TOTAL_BYTES);
        assert_eq!((count(&table, "shop"), count(&table, "small")), (Some(1), Some(1)));
        let whole = (0..16).filter(|n| count(&table, &format!("n{n}")) == Some(30)).count();
        assert!((6..10).contains(&whole), "{whole} of the others are in the cache");
    }

    #[test]
    fn a_selector_counts_as_what_it_takes() {
        let values: Vec<String> = (0..8_000).map(|n| n.to_string()).collect();
        let selector = json!({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": values}]});
        let preset =
            json!({"metadata": {"name": "p"}, "spec": {"selector": selector, "domain": {"devices": {}}}});
        let effect = Effect::of(&serde_json::from_value(preset).unwrap()).unwrap();
        let texts: usize = values.iter().map(|value| size_of::<String>() + value.len()).sum();
        assert!(effect.bytes() > texts, "{} bytes", effect.bytes());
    }

    #[test]
    fn the_table_is_bounded_in_bytes_and_counts_what_is_replaced_and_removed() {
        let mut table = Table::default();
        for namespace in 0..32 {
            for n in 0..24 {
                table.insert_preset(&format!("n{namespace}"), effect(&format!("p{n}"), 30 << 10));
            }
        }
        assert!((MAX_TOTAL_BYTES / 2..=MAX_TOTAL_BYTES).contains(&table.bytes), "{} bytes", table.bytes);
        assert!(table.namespaces.values().all(|own| own.bytes <= MAX_NAMESPACE_BYTES));
        assert_eq!(table.bytes, table.namespaces.values().map(|own| own.bytes).sum::<usize>());
        let whole: Vec<String> = table.namespaces.keys().cloned().collect();
        table.insert_preset(&whole[0], effect("p0", 0));
        for namespace in whole {
            for n in 0..24 {
                table.remove(&namespace, &format!("p{n}"));
            }
        }
        assert_eq!((table.bytes, table.namespaces.len()), (0, 0));
    }
}
