//! An index of a cache: names of its objects by a text that each has or has not, a label's value for example.
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
    texts: HashMap<Key, String>,
}

impl Entries {
    fn set(&mut self, namespace: &str, name: &str, text: Option<&str>) {
        let object = (namespace.to_owned(), name.to_owned());
        let before = self.texts.get(&object);
        if before.map(String::as_str) == text {
            return;
        }
        if let Some(before) = self.texts.remove(&object) {
            let key = (namespace.to_owned(), before);
            if let Some(names) = self.names.get_mut(&key) {
                names.remove(name);
                if names.is_empty() {
                    self.names.remove(&key);
                }
            }
        }
        if let Some(text) = text {
            self.names.entry((namespace.to_owned(), text.to_owned())).or_default().insert(name.to_owned());
            self.texts.insert(object, text.to_owned());
        }
    }
}

/// The index of a cache of `K`.
#[derive(Debug)]
pub(crate) struct Index<K> {
    text: fn(&K) -> Option<&str>,
    entries: RwLock<Entries>,
}

impl<K: Kind> Index<K> {
    /// An empty index by the text that `text` finds in an object.
    pub(crate) fn new(text: fn(&K) -> Option<&str>) -> Self {
        Index { text, entries: RwLock::default() }
    }

    /// Takes in an event that `store` has taken in.
    pub(crate) fn apply(&self, event: &Event<K>, store: &Store<K>) {
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        let mut set = |object: &K, text: Option<&str>| {
            let meta = object.meta();
            let (namespace, name) = (meta.namespace.as_deref(), meta.name.as_deref());
            entries.set(namespace.unwrap_or_default(), name.unwrap_or_default(), text);
        };
        match event {
            Event::Init => {}
            Event::Apply(object) | Event::InitApply(object) => set(object, (self.text)(object)),
            Event::Delete(object) => set(object, None),
            Event::InitDone => {
                *entries = Entries::default();
                for object in store.state() {
                    let meta = object.meta();
                    let (namespace, name) = (meta.namespace.as_deref(), meta.name.as_deref());
                    entries.set(
                        namespace.unwrap_or_default(),
                        name.unwrap_or_default(),
                        (self.text)(&object),
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
    use crate::storage::backend::state_of;

    use super::*;

    fn claim(namespace: &str, name: &str, machine: Value) -> PersistentVolumeClaim {
        let labels = json!({"persistent-state-for": machine});
        let meta = json!({"name": name, "namespace": namespace, "labels": if machine.is_null() { Value::Null } else { labels }});
        serde_json::from_value(json!({ "metadata": meta })).unwrap()
    }

    fn take(
        kept: &Kept<PersistentVolumeClaim>,
        writer: &mut Writer<PersistentVolumeClaim>,
        event: Event<PersistentVolumeClaim>,
    ) {
        writer.apply_watcher_event(&event);
        kept.taken(&Ok(event));
    }

    #[test]
    fn it_follows_the_cache() {
        let (kept, mut writer) = Kept::indexed(state_of);
        let found = |kept: &Kept<PersistentVolumeClaim>, machine: &str| -> Vec<String> {
            let all = kept.with_text("ns", machine, state_of);
            all.iter().map(|claim| claim.metadata.name.clone().unwrap()).collect()
        };
        for event in [
            Event::Init,
            Event::InitApply(claim("ns", "a", json!("web"))),
            Event::InitApply(claim("other", "b", json!("web"))),
            Event::InitApply(claim("ns", "c", Value::Null)),
            Event::InitDone,
        ] {
            take(&kept, &mut writer, event);
        }
        assert_eq!(found(&kept, "web"), ["a"], "of the namespace");
        take(&kept, &mut writer, Event::Apply(claim("ns", "c", json!("web"))));
        assert_eq!(found(&kept, "web"), ["a", "c"]);
        take(&kept, &mut writer, Event::Apply(claim("ns", "c", json!("db"))));
        assert_eq!((found(&kept, "web"), found(&kept, "db")), (vec!["a".to_owned()], vec!["c".to_owned()]));
        take(&kept, &mut writer, Event::Delete(claim("ns", "a", json!("web"))));
        assert_eq!(found(&kept, "web"), [""; 0]);
        // What a new list lacks is gone.
        for event in [Event::Init, Event::InitApply(claim("ns", "d", json!("web"))), Event::InitDone] {
            take(&kept, &mut writer, event);
        }
        assert_eq!((found(&kept, "web"), found(&kept, "db")), (vec!["d".to_owned()], vec![]));
        let index = Index::new(state_of);
        index.apply(&Event::InitDone, kept.store());
        assert_eq!(index.names("ns", "web"), ["d"], "no other object is read");
    }
}
