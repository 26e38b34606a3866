//! Watches: an unreadable object does not end them, and after a break they tell which objects were deleted meanwhile.
//!
//! A typed list fails as a whole when one of its objects is not of the type, and with it the watch: nothing in the
//! cluster would be kept any more. Admission refuses such objects; one that came past it (it was stored before, or
//! while the webhooks were not registered) is logged and left out here. Its last readable version, if there was
//! one, stays in the caches: a decision from it is refused by its resource version.
//!
//! A watch that broke begins with a new list, and of what was deleted meanwhile there is no word but that the list lacks
//! it. A [`Roster`] tells, so that what is kept for each object goes with the object.

use std::collections::HashSet;

use futures::{Stream, StreamExt, future};
use kube::core::DeserializeGuard;
use kube::core::error_boundary::InvalidObject;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;

/// The changes of all objects of a kind in the cluster, without what only the API server needs.
pub fn all<K>(client: &Client) -> impl Stream<Item = Result<Event<K>, watcher::Error>> + Send + use<K>
where
    K: Resource<DynamicType = ()> + Clone + Default + DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    selected(client, watcher::Config::default())
}

/// As [`all`], of the objects that `config` selects.
pub fn selected<K>(
    client: &Client,
    config: watcher::Config,
) -> impl Stream<Item = Result<Event<K>, watcher::Error>> + Send + use<K>
where
    K: Resource<DynamicType = ()> + Clone + Default + DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    of(Api::all(client.clone()), config)
}

/// As [`selected`], of the objects that are to be had from `api`.
pub fn of<K>(
    api: Api<DeserializeGuard<K>>,
    config: watcher::Config,
) -> impl Stream<Item = Result<Event<K>, watcher::Error>> + Send + use<K>
where
    K: Resource<DynamicType = ()> + Clone + Default + DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    watcher(api, config)
        .default_backoff()
        .filter_map(|event| future::ready(event.map(readable).transpose()))
        // The record of which client wrote which field is half of an object, and nothing here reads it.
        .modify(|object: &mut K| object.meta_mut().managed_fields = None)
}

/// The change, if its object can be read. That an object is gone can be told without it.
fn readable<K>(event: Event<DeserializeGuard<K>>) -> Option<Event<K>>
where
    K: Resource<DynamicType = ()> + Default,
{
    Some(match event {
        Event::Apply(object) => Event::Apply(object_of(object)?),
        Event::InitApply(object) => Event::InitApply(object_of(object)?),
        Event::Delete(DeserializeGuard(Ok(object))) => Event::Delete(object),
        Event::Delete(DeserializeGuard(Err(InvalidObject { metadata, .. }))) => {
            let mut gone = K::default();
            *gone.meta_mut() = metadata;
            Event::Delete(gone)
        }
        Event::Init => Event::Init,
        Event::InitDone => Event::InitDone,
    })
}

/// UIDs of the objects that a watch has shown.
#[derive(Debug, Default)]
pub struct Roster {
    known: HashSet<String>,
    /// Those of a list that is not complete yet.
    listed: HashSet<String>,
}

impl Roster {
    /// Takes a change in; returns UIDs of objects that are gone.
    pub fn take<K: Resource>(&mut self, event: &Event<K>) -> Vec<String> {
        let uid = |object: &K| object.meta().uid.clone().unwrap_or_default();
        match event {
            Event::Apply(object) => drop(self.known.insert(uid(object))),
            Event::InitApply(object) => drop(self.listed.insert(uid(object))),
            Event::Delete(object) => {
                let uid = uid(object);
                self.known.remove(&uid);
                return vec![uid];
            }
            Event::Init => self.listed.clear(),
            Event::InitDone => {
                let known = std::mem::replace(&mut self.known, std::mem::take(&mut self.listed));
                return known.into_iter().filter(|uid| !self.known.contains(uid)).collect();
            }
        }
        Vec::new()
    }
}

/// The object, or a line in the log.
pub fn object_of<K: Resource<DynamicType = ()>>(object: DeserializeGuard<K>) -> Option<K> {
    object
        .0
        .inspect_err(|error| {
            tracing::error!(
                kind = %K::kind(&()),
                namespace = error.metadata.namespace,
                name = error.metadata.name,
                uid = error.metadata.uid,
                error = error as &dyn std::error::Error,
                "object cannot be read: it is left alone until it is corrected or deleted"
            );
        })
        .ok()
}

#[cfg(test)]
mod tests {
    use kube::ResourceExt;
    use kube::core::ObjectList;
    use podvirt_api::v1::VirtualMachine;
    use serde_json::{Value, json};

    use super::*;

    fn list() -> Vec<DeserializeGuard<VirtualMachine>> {
        let vm = |name: &str, template: Value| {
            json!({"metadata": {"name": name, "namespace": "ns", "uid": name}, "spec": {
                "runStrategy": "Always",
                "template": {"metadata": template, "spec": {"domain": {"devices": {}}}},
            }})
        };
        let list: ObjectList<DeserializeGuard<VirtualMachine>> = serde_json::from_value(json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineList", "metadata": {},
            "items": [vm("bad", json!({"name": 123})), vm("good", json!({"labels": {"a": "b"}}))],
        }))
        .unwrap();
        list.items
    }

    #[test]
    fn an_unreadable_object_leaves_the_others_of_the_list() {
        let seen: Vec<_> = list().into_iter().filter_map(|vm| readable(Event::InitApply(vm))).collect();
        let [Event::InitApply(vm)] = &seen[..] else { panic!("{seen:?}") };
        assert_eq!(vm.name_any(), "good");
        assert_eq!(vm.spec.template.as_ref().unwrap().metadata.as_ref().unwrap().labels.iter().len(), 1);
        let changed: Vec<_> = list().into_iter().filter_map(|vm| readable(Event::Apply(vm))).collect();
        assert_eq!(changed.len(), 1);
    }

    #[test]
    fn what_a_new_list_lacks_is_gone() {
        let vm = |uid: &str| {
            let mut vm = VirtualMachine::default();
            vm.metadata.uid = Some(uid.into());
            vm
        };
        let mut roster = Roster::default();
        let mut gone = |events: Vec<Event<VirtualMachine>>| {
            events.iter().flat_map(|event| roster.take(event)).collect::<Vec<_>>()
        };
        let list = |uids: &[&str]| {
            let objects = uids.iter().map(|uid| Event::InitApply(vm(uid)));
            [Event::Init].into_iter().chain(objects).chain([Event::InitDone]).collect::<Vec<_>>()
        };
        assert_eq!(gone(list(&["a", "b"])), [""; 0]);
        assert_eq!(gone(vec![Event::Apply(vm("c")), Event::Delete(vm("a"))]), ["a"]);
        assert_eq!(gone(vec![Event::Init, Event::InitApply(vm("b"))]), [""; 0], "a list that breaks off");
        let mut lacked = gone(list(&["d"]));
        lacked.sort();
        assert_eq!(lacked, ["b", "c"]);
        assert_eq!(gone(list(&["d"])), [""; 0]);
    }

    #[test]
    fn that_an_unreadable_object_is_gone_is_told() {
        let gone: Vec<_> = list().into_iter().filter_map(|vm| readable(Event::Delete(vm))).collect();
        let [Event::Delete(bad), Event::Delete(_)] = &gone[..] else { panic!("{gone:?}") };
        assert_eq!((bad.name_any(), bad.namespace()), ("bad".into(), Some("ns".into())));
    }
}
