//! `spec.customizeComponents.patches`: what an administrator changes of podvirt's own objects.

use k8s_openapi::DeepMerge;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::Service;
use podvirt_api::budget;
use podvirt_api::error::chain;
use podvirt_api::patch::Patch;
use podvirt_api::v1::{CustomizeComponentsPatch, PatchType};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{MAX_OBJECT_TREE_BYTES, object};
use crate::manifests::Object;

/// Kinds whose objects may be patched. virt-api makes its webhooks and APIServices itself.
const PATCHED: &[&str] = &["Deployment", "DaemonSet", "Service", "PodDisruptionBudget", "NetworkPolicy"];
/// Kinds for which the rules of strategic patches are known.
const STRATEGIC: &[&str] = &["Deployment", "DaemonSet", "Service"];
/// Most patches: each is applied to every object that it is for.
const MAX_PATCHES: usize = 128;
/// Largest document of a merge or strategic patch, in bytes of memory: the objects that it is for are no larger.
const MAX_DOCUMENT_BYTES: usize = MAX_OBJECT_TREE_BYTES;
/// Annotation of a patched object, as upstream's: there are customizations.
const CUSTOMIZED: &str = "kubevirt.io/customizer-identifier";

/// A patch that cannot be applied.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("spec.customizeComponents.patches[{index}]{field}: {why}")]
pub struct PatchError {
    /// Its place in the list.
    pub index: usize,
    /// The field, with a point before it.
    pub field: &'static str,
    /// What is wrong and what is allowed.
    pub why: String,
}

/// Applies every patch to the objects it is for, in the order of the list.
///
/// # Errors
///
/// A patch is for no object of podvirt's, cannot be read, or does not fit.
pub(super) fn apply(objects: &mut [Object], patches: &[CustomizeComponentsPatch]) -> Result<(), PatchError> {
    for (index, patch) in patches.iter().enumerate() {
        let error = |field: &'static str, why: String| PatchError { index, field, why };
        if index >= MAX_PATCHES {
            return Err(error("", format!("at most {MAX_PATCHES} patches are allowed")));
        }
        let change = Change::read(patch).map_err(|(field, why)| error(field, why))?;
        let mut found = false;
        for object in objects.iter_mut().filter(|object| is_for(patch, object)) {
            found = true;
            change.apply(object).map_err(|(field, why)| error(field, why))?;
        }
        if !found {
            let kinds = PATCHED.join(", ");
            let why = format!(
                "{} {:?} is none of podvirt's objects of the kinds {kinds}; '*' stands for all",
                patch.resource_type, patch.resource_name
            );
            return Err(error(".resourceName", why));
        }
    }
    Ok(())
}

fn is_for(patch: &CustomizeComponentsPatch, object: &Object) -> bool {
    let matches = |wanted: &str, name: &str| wanted == "*" || wanted.eq_ignore_ascii_case(name);
    PATCHED.contains(&object.kind.kind)
        && matches(&patch.resource_type, object.kind.kind)
        && matches(&patch.resource_name, object.name())
}

type Refused = (&'static str, String);

/// A patch in its read form, within bounds.
enum Change {
    /// Operations on values by their paths (RFC 6902).
    Json(Patch),
    /// A document that is laid over the object (RFC 7386).
    Merge(Value),
    /// The same, by the rules of the object's kind.
    Strategic(Value),
}

impl Change {
    fn read(patch: &CustomizeComponentsPatch) -> Result<Self, Refused> {
        let text = patch.patch.as_str();
        let document = || {
            let read = budget::parse(text.as_bytes(), MAX_DOCUMENT_BYTES);
            read.map_err(|why| (".patch", format!("cannot be read: {}", chain(&why))))
        };
        match &patch.r#type {
            PatchType::Json => {
                Patch::from_list(text, &[]).map(Self::Json).map_err(|why| (".patch", chain(&why)))
            }
            PatchType::Merge => document().map(Self::Merge),
            PatchType::Strategic => {
                let document = document()?;
                if directive(&document) {
                    let why = "directives of strategic patches ($patch, $retainKeys, $deleteFromPrimitiveList) are not \
                               known: use a patch of type json or merge";
                    return Err((".patch", why.to_owned()));
                }
                Ok(Self::Strategic(document))
            }
            other => Err((".type", format!("'{}': json, merge or strategic is allowed", other.as_str()))),
        }
    }

    fn apply(&self, target: &mut Object) -> Result<(), Refused> {
        let (title, name) = (target.title(), target.value["metadata"]["name"].clone());
        let misfit = |why: String| (".patch", format!("does not fit {title}: {why}"));
        match self {
            Self::Json(operations) => {
                operations.apply(&mut target.value).map_err(|why| misfit(chain(&why)))?;
            }
            Self::Merge(document) => json_patch::merge(&mut target.value, document),
            Self::Strategic(document) => {
                let value = std::mem::take(&mut target.value);
                target.value = match target.kind.kind {
                    "Deployment" => strategic::<Deployment>(value, document),
                    "DaemonSet" => strategic::<DaemonSet>(value, document),
                    "Service" => strategic::<Service>(value, document),
                    _ => {
                        let kinds = STRATEGIC.join(", ");
                        return Err((
                            ".type",
                            format!("'strategic' is allowed for {kinds}; {title}: json or merge"),
                        ));
                    }
                }
                .map_err(|why| misfit(why.to_string()))?;
            }
        }
        if target.value["metadata"]["name"] != name {
            return Err((".patch", format!("{title}: the name cannot be changed")));
        }
        let bytes = budget::weigh(&target.value);
        if bytes > MAX_OBJECT_TREE_BYTES {
            let why = format!(
                "with it {title} takes {bytes} bytes of memory; at most {MAX_OBJECT_TREE_BYTES} are allowed"
            );
            return Err((".patch", why));
        }
        object(&mut target.value["metadata"], "annotations").insert(CUSTOMIZED.to_owned(), json!("true"));
        Ok(())
    }
}

/// Whether a document has a key that is an order to the merger and no field.
fn directive(document: &Value) -> bool {
    match document {
        Value::Object(map) => map.iter().any(|(key, value)| key.starts_with('$') || directive(value)),
        Value::Array(list) => list.iter().any(directive),
        _ => false,
    }
}

/// Merges by the kind's own rules: containers by name, labels by key. A null takes a field away, as in a merge patch.
fn strategic<K>(value: Value, document: &Value) -> Result<Value, serde_json::Error>
where
    K: DeserializeOwned + Serialize + DeepMerge,
{
    let (kind, version) = (value["kind"].clone(), value["apiVersion"].clone());
    let mut merged: K = serde_json::from_value(value)?;
    merged.merge_from(serde_json::from_value(document.clone())?);
    let mut merged = serde_json::to_value(merged)?;
    take_nulls(&mut merged, document);
    merged["kind"] = kind;
    merged["apiVersion"] = version;
    Ok(merged)
}

/// Takes away what `document` sets to null, but for lists.
fn take_nulls(value: &mut Value, document: &Value) {
    let (Value::Object(value), Value::Object(document)) = (value, document) else { return };
    for (key, wanted) in document {
        if wanted.is_null() {
            value.remove(key);
        } else if let Some(value) = value.get_mut(key) {
            take_nulls(value, wanted);
        }
    }
}
