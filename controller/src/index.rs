//! An index of a cache: names of its objects by texts that each has, a label's value or names of others for example.
//!
//! It may name objects that are gone or have another text by now, and never lacks one that the cache has: [`Kept`](crate::kept::Kept)
//! reads each object that is named.

use std::collections::{BTreeSet, HashMap};
use std::sync::{PoisonError, RwLock};

use kube::runtime::reflector::Store;
use kube::runtime::watcher::Event;

use crate::kept::Kind;

/// A namespace, and a name or a text.
type Key = (String, String);

#[derive(Debug, Default)]
struct Entries {
    names: HashMap<Key, BTreeSet<String>>,
    texts: HashMap<Key, BTreeSet<String>>,
}

impl Entries {
    fn set(&mut self, namespace: &str, name: &str, texts: Vec<String>) {
        let object = (namespace.to_owned(), name.to_owned());
        let texts = BTreeSet::from_iter(texts);
        let before = self.texts.remove(&object).unwrap_or_default();
        for text in before.difference(&texts) {
            let key = (namespace.to_owned(), text.clone());
            if let Some(names) = self.names.get_mut(&key) {
                names.remove(name);
                if names.is_empty() {
                    self.names.remove(&key);
                }
            }
        }
        for text in texts.difference(&before) {
            self.names.entry((namespace.to_owned(), text.clone())).or_default().insert(name.to_owned());
        }
        if !texts.is_empty() {
            self.texts.insert(object, texts);
        }
    }
}

/// The index of a cache of `K`.
#[derive(Debug)]
pub(crate) struct Index<K> {
    texts: fn(&K) -> Vec<String>,
    entries: RwLock<Entries>,
}

impl<K: Kind> Index<K> {
    /// An empty index by the texts that `texts` finds in an object.
    pub(crate) fn new(texts: fn(&K) -> Vec<String>) -> Self {
        Index { texts, entries: RwLock::default() }
    }

    /// Takes in an event that `store` has taken in.
    pub(crate) fn apply(&self, event: &Event<K>, store: &Store<K>) {
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        let mut set = |object: &K, texts: Vec<String>| {
            let meta = object.meta();
            let (namespace, name) = (meta.namespace.as_deref(), meta.name.as_deref());
            entries.set(namespace.unwrap_or_default(), name.unwrap_or_default(), texts);
        };
        match event {
            Event::Init => {}
            Event::Apply(object) | Event::InitApply(object) => set(object, (self.texts)(object)),
            Event::Delete(object) => set(object, Vec::new()),
            Event::InitDone => {
                *entries = Entries::default();
                for object in store.state() {
                    let meta = object.meta();
                    let (namespace, name) = (meta.namespace.as_deref(), meta.name.as_deref());
                    entries.set(
                        namespace.unwrap_or_default(),
                        name.unwrap_or_default(),
                        (self.texts)(&object),
                    );
                }
            }
        }
    }

    /// Names of the objects of a namespace that have this text.
    pub(crate) fn names(&self, namespace: &str, text: &str) -> Vec<String> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let names = entries.names.get(&(namespace.to_owned(), text.to_owned()));
        names.into_iter().flatten().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PersistentVolumeClaim;
    use kube::runtime::reflector::store::Writer;
    use serde_json::{Value, json};

    use crate::kept::Kept;
    use crate::storage::backend::state_label;

    use super::*;

    fn machines(claim: &PersistentVolumeClaim) -> Vec<String> {
        state_label(claim).map(str::to_owned).into_iter().collect()
    }

    fn claim(namespace: &str, name: &str, machine: Value) -> PersistentVolumeClaim {
        let labels = json!({"persistent-state-for": machine});
        let meta = json!({"name": name, "namespace": namespace, "labels": if machine.is_null() { Value::Null } else { labels }});
        serde_json::from_value(json!({ "metadata": meta })).unwrap()
    }

    fn apply_event(
        cache: &Kept<PersistentVolumeClaim>,
        writer: &mut Writer<PersistentVolumeClaim>,
        event: Event<PersistentVolumeClaim>,
    ) {
        writer.apply_watcher_event(&event);
        cache.taken(&Ok(event));
    }

    #[test]
    fn it_follows_the_cache() {
        let (cache, mut writer) = Kept::indexed(machines);
        let found = |cache: &Kept<PersistentVolumeClaim>, machine: &str| -> Vec<String> {
            let all = cache.with_text("ns", machine);
            all.iter().map(|claim| claim.metadata.name.clone().unwrap()).collect()
        };
        for event in [
            Event::Init,
            Event::InitApply(claim("ns", "a", json!("web"))),
            Event::InitApply(claim("other", "b", json!("web"))),
            Event::InitApply(claim("ns", "c", Value::Null)),
            Event::InitDone,
        ] {
            apply_event(&cache, &mut writer, event);
        }
        assert_eq!(found(&cache, "web"), ["a"], "of the namespace");
        apply_event(&cache, &mut writer, Event::Apply(claim("ns", "c", json!("web"))));
        assert_eq!(found(&cache, "web"), ["a", "c"]);
        apply_event(&cache, &mut writer, Event::Apply(claim("ns", "c", json!("db"))));
        assert_eq!((found(&cache, "web"), found(&cache, "db")), (vec!["a".to_owned()], vec!["c".to_owned()]));
        apply_event(&cache, &mut writer, Event::Delete(claim("ns", "a", json!("web"))));
        assert_eq!(found(&cache, "web"), [""; 0]);
        // What a new list lacks is gone.
        for event in [Event::Init, Event::InitApply(claim("ns", "d", json!("web"))), Event::InitDone] {
            apply_event(&cache, &mut writer, event);
        }
        assert_eq!((found(&cache, "web"), found(&cache, "db")), (vec!["d".to_owned()], vec![]));
        let index = Index::new(machines);
        index.apply(&Event::InitDone, cache.store());
        assert_eq!(index.names("ns", "web"), ["d"], "no other object is read");
    }

    #[test]
    fn an_object_is_found_by_each_of_its_texts_for_as_long_as_it_has_it() {
        let mut entries = Entries::default();
        let texts = |texts: &[&str]| texts.iter().map(ToString::to_string).collect::<Vec<_>>();
        let found = |entries: &Entries, text: &str| {
            let names = entries.names.get(&("ns".to_owned(), text.to_owned()));
            names.into_iter().flatten().cloned().collect::<Vec<_>>()
        };
        entries.set("ns", "a", texts(&["web", "root", "web"]));
        entries.set("ns", "b", texts(&["web"]));
        assert_eq!((found(&entries, "web"), found(&entries, "root")), (texts(&["a", "b"]), texts(&["a"])));
        entries.set("ns", "a", texts(&["data", "web"]));
        assert_eq!((found(&entries, "root"), found(&entries, "data")), (Vec::new(), texts(&["a"])));
        entries.set("ns", "a", Vec::new());
        assert_eq!((found(&entries, "web"), found(&entries, "data")), (texts(&["b"]), Vec::new()));
        entries.set("ns", "b", Vec::new());
        assert!(entries.names.is_empty() && entries.texts.is_empty(), "nothing is left of what is gone");
    }
}
