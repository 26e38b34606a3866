//! Writing what changed of an object, and nothing else.
//!
//! Several daemons write the status of one VirtualMachineInstance, which has no status subresource, and each
//! knows the object from a cache that may be old. So a writer sends a JSON merge patch (RFC 7386) of the fields
//! it changed, with the resource version it read: the API server refuses it with a conflict if another client wrote in
//! between, and the writer decides again from the newer object. Lists are replaced whole, which the resource
//! version makes safe. When nothing changed nothing is sent, so that controllers do not wake each other.

use std::fmt::Debug;

use kube::api::{Api, Patch, PatchParams};
use kube::{Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

/// Why an object was not written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another client wrote the object since it was read: read it again and decide again.
    #[error("{0} was changed in between")]
    Conflict(String),
    /// The object is gone, or it is another one of the same name.
    #[error("{0} is gone")]
    Gone(String),
    /// The object cannot be written as JSON.
    #[error("object as JSON")]
    Json(#[from] serde_json::Error),
    /// The API server refused or could not be reached.
    #[error("write {name}")]
    Api {
        /// Name of the object.
        name: String,
        /// What the client says.
        source: kube::Error,
    },
}

impl Error {
    /// Whether reading again and deciding again is all there is to do: no failure to be told.
    pub fn is_stale(&self) -> bool {
        matches!(self, Self::Conflict(_) | Self::Gone(_))
    }
}

/// The operation of a JSON patch (RFC 6902) by which a patch is refused if the object is not as it was read.
///
/// Values cannot be compared instead: the API server compares texts as they are written, and knows several ways to write `&`.
pub fn unchanged(object: &impl ResourceExt) -> Value {
    json!({"op": "test", "path": "/metadata/resourceVersion", "value": object.resource_version()})
}

/// The operation of a JSON patch that replaces the list at `path`; none where it stays as it is.
pub fn list(path: &str, old: &Value, new: &Value) -> Option<Value> {
    (old != new).then(|| json!({"op": "add", "path": path, "value": new}))
}

/// Writes the difference of `old` and `new` in status, labels, annotations and finalizers through the object
/// itself, for kinds without a status subresource. `None`: nothing differs, nothing was sent.
///
/// # Errors
///
/// See [`Error`].
pub async fn status<K>(api: &Api<K>, old: &K, new: &K) -> Result<Option<K>, Error>
where
    K: Resource + Clone + Serialize + DeserializeOwned + Debug,
{
    send(api, old, document(old, new, &["status"])?, None).await
}

/// Writes the difference of `old` and `new` in status through the status subresource.
///
/// Metadata does not pass there: use [`metadata`] for it. `None`: nothing differs, nothing was sent.
///
/// # Errors
///
/// See [`Error`].
pub async fn status_subresource<K>(api: &Api<K>, old: &K, new: &K) -> Result<Option<K>, Error>
where
    K: Resource + Clone + Serialize + DeserializeOwned + Debug,
{
    let (before, after) = (serde_json::to_value(old)?, serde_json::to_value(new)?);
    let changed =
        part(&before, &after, "status").map(|change| Map::from_iter([("status".to_owned(), change)]));
    send(api, old, changed, Some("status")).await
}

/// Writes the difference of `old` and `new` in labels, annotations and finalizers.
///
/// # Errors
///
/// See [`Error`].
pub async fn metadata<K>(api: &Api<K>, old: &K, new: &K) -> Result<Option<K>, Error>
where
    K: Resource + Clone + Serialize + DeserializeOwned + Debug,
{
    send(api, old, document(old, new, &[])?, None).await
}

/// The patch of the named top-level fields and of the metadata that daemons write. `None`: no difference.
fn document<K: Serialize>(old: &K, new: &K, fields: &[&str]) -> Result<Option<Map<String, Value>>, Error> {
    let (before, after) = (serde_json::to_value(old)?, serde_json::to_value(new)?);
    let mut patch = Map::new();
    for field in fields {
        if let Some(change) = part(&before, &after, field) {
            patch.insert((*field).to_owned(), change);
        }
    }
    let (before, after) = (&before["metadata"], &after["metadata"]);
    let metadata: Map<_, _> = ["labels", "annotations", "finalizers"]
        .into_iter()
        .filter_map(|field| Some((field.to_owned(), part(before, after, field)?)))
        .collect();
    if !metadata.is_empty() {
        patch.insert("metadata".to_owned(), Value::Object(metadata));
    }
    Ok((!patch.is_empty()).then_some(patch))
}

/// The change of one field of two objects.
fn part(before: &Value, after: &Value, field: &str) -> Option<Value> {
    let nothing = Value::Object(Map::new());
    match (before.get(field), after.get(field)) {
        (None, None) => None,
        // A status that empties is emptied field by field: the API server keeps an object that is left out.
        (Some(before @ Value::Object(_)), None) => difference(before, &nothing),
        (Some(_), None) => Some(Value::Null),
        (None, Some(after)) => difference(&nothing, after),
        (Some(before), Some(after)) => difference(before, after),
    }
}

/// The merge patch that makes `before` into `after`. `None`: they are equal.
fn difference(before: &Value, after: &Value) -> Option<Value> {
    match (before, after) {
        (Value::Object(before), Value::Object(after)) => {
            let mut patch = Map::new();
            // A null is a field that is not there: that is how the API server keeps it.
            let set =
                |of: &Map<String, Value>, key: &String| of.get(key).is_some_and(|value| !value.is_null());
            for key in before.keys().filter(|key| set(before, key) && !set(after, key)) {
                patch.insert(key.clone(), Value::Null);
            }
            for (key, value) in after.iter().filter(|(_, value)| !value.is_null()) {
                let change = match before.get(key) {
                    Some(old) => difference(old, value),
                    None => Some(value.clone()),
                };
                if let Some(change) = change {
                    patch.insert(key.clone(), change);
                }
            }
            (!patch.is_empty()).then_some(Value::Object(patch))
        }
        (before, after) => (before != after).then(|| after.clone()),
    }
}

async fn send<K>(
    api: &Api<K>,
    old: &K,
    patch: Option<Map<String, Value>>,
    subresource: Option<&str>,
) -> Result<Option<K>, Error>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let Some(mut patch) = patch else { return Ok(None) };
    let name = old.name_any();
    if let Some(version) = old.resource_version() {
        let metadata = patch.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
        metadata["resourceVersion"] = Value::String(version);
    }
    let (params, patch) = (PatchParams::default(), Patch::Merge(Value::Object(patch)));
    let written = match subresource {
        Some(subresource) => api.patch_subresource(subresource, &name, &params, &patch).await,
        None => api.patch(&name, &params, &patch).await,
    };
    match written {
        Ok(object) => Ok(Some(object)),
        Err(kube::Error::Api(status)) if status.is_conflict() => Err(Error::Conflict(name)),
        Err(kube::Error::Api(status)) if status.is_not_found() => Err(Error::Gone(name)),
        Err(source) => Err(Error::Api { name, source }),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_difference_turns_one_object_into_the_other() {
        for (before, after, patch) in [
            (json!({}), json!({}), None),
            (json!({"a": 1, "b": {"c": 2}}), json!({"a": 1, "b": {"c": 2}}), None),
            (json!({"a": 1}), json!({"a": 2}), Some(json!({"a": 2}))),
            (json!({"a": 1, "b": 2}), json!({"b": 2}), Some(json!({"a": null}))),
            (json!({"a": {"b": 1, "c": 2}}), json!({"a": {"b": 1}}), Some(json!({"a": {"c": null}}))),
            (json!({"a": [1, 2]}), json!({"a": [2]}), Some(json!({"a": [2]}))),
            (json!({"a": [1]}), json!({}), Some(json!({"a": null}))),
            (json!({}), json!({"a": {"b": [1]}}), Some(json!({"a": {"b": [1]}}))),
            (json!({"a": {"b": 1}}), json!({"a": 3}), Some(json!({"a": 3}))),
            (json!({}), json!({"a": null}), None),
            (json!({"a": null}), json!({}), None),
            (json!({"a": 1}), json!({"a": null}), Some(json!({"a": null}))),
        ] {
            assert_eq!(difference(&before, &after), patch, "{before} -> {after}");
        }
    }

    #[test]
    fn only_status_and_the_writable_metadata_are_sent() {
        let old = json!({
            "metadata": {"name": "x", "resourceVersion": "7", "labels": {"a": "1", "b": "2"}, "finalizers": ["f"]},
            "spec": {"x": 1},
            "status": {"phase": "Pending", "nodeName": "n"},
        });
        let new = json!({
            "metadata": {"name": "y", "labels": {"a": "1", "c": "3"}, "annotations": {"k": "v"}},
            "spec": {"x": 2},
            "status": {"phase": "Running", "nodeName": "n"},
        });
        assert_eq!(
            document(&old, &new, &["status"]).unwrap().map(Value::Object),
            Some(json!({
                "metadata": {"labels": {"b": null, "c": "3"}, "annotations": {"k": "v"}, "finalizers": null},
                "status": {"phase": "Running"},
            }))
        );
        assert_eq!(document(&old, &old, &["status"]).unwrap(), None);
    }

    #[test]
    fn a_status_that_is_left_out_is_emptied() {
        let (old, new) = (json!({"status": {"ready": true, "a": {"b": 1}}}), json!({}));
        assert_eq!(part(&old, &new, "status"), Some(json!({"ready": null, "a": null})));
        assert_eq!(part(&new, &old, "status"), Some(json!({"ready": true, "a": {"b": 1}})));
    }
}
