//! Following one object of the API: each of its versions, and that it is not there.

use futures::{Stream, StreamExt};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

/// The object `name`: each version of it, and `None` whenever there is none. The first item comes once the API server
/// has answered; an item after that may be equal to the one before it. A watch that fails is an item, too, and goes on
/// after a pause that grows.
pub fn follow<K>(
    api: Api<K>,
    name: &str,
) -> impl Stream<Item = Result<Option<K>, watcher::Error>> + Send + use<K>
where
    K: Resource + Clone + std::fmt::Debug + DeserializeOwned + Send + 'static,
{
    let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut listed = None;
    let seen = move |event: Result<Event<K>, watcher::Error>| {
        let item = event.map(|event| step(event, &mut listed)).transpose();
        async move { item }
    };
    watcher(api, config).default_backoff().filter_map(seen)
}

/// What an event of the watch says of the object, if it says something.
fn step<K>(event: Event<K>, listed: &mut Option<K>) -> Option<Option<K>> {
    match event {
        Event::Init => {
            *listed = None;
            None
        }
        Event::InitApply(object) => {
            *listed = Some(object);
            None
        }
        Event::InitDone => Some(listed.take()),
        Event::Apply(object) => Some(Some(object)),
        Event::Delete(_) => Some(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_without_the_object_says_so_and_changes_follow() {
        let mut listed = None;
        assert_eq!(step(Event::Init, &mut listed), None);
        assert_eq!(step::<u8>(Event::InitDone, &mut listed), Some(None));
        assert_eq!(step(Event::Apply(1), &mut listed), Some(Some(1)));
        assert_eq!(step(Event::Delete(1), &mut listed), Some(None));
        step(Event::Init, &mut listed);
        assert_eq!(step(Event::InitApply(2), &mut listed), None, "until the list is complete");
        assert_eq!(step(Event::InitDone, &mut listed), Some(Some(2)));
    }
}
