//! `spec.customizeComponents.patches`: what an administrator changes of podvirt's own objects.

use k8s_openapi::DeepMerge;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::Service;
use podvirt_api::v1::{CustomizeComponentsPatch, PatchType};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::object;
use crate::manifests::Object;

/// Kinds whose objects may be patched. virt-api makes its webhooks and APIServices itself.
const PATCHED: &[&str] = &["Deployment", "DaemonSet", "Service", "PodDisruptionBudget", "NetworkPolicy"];
/// Kinds for which the rules of strategic patches are known.
const STRATEGIC: &[&str] = &["Deployment", "DaemonSet", "Service"];
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
        let document: Value = serde_json::from_str(&patch.patch)
            .map_err(|why| error(".patch", format!("{:?} is no JSON: {why}", patch.patch)))?;
        let mut found = false;
        for object in objects.iter_mut().filter(|object| is_for(patch, object)) {
            found = true;
            one(object, &patch.r#type, &document).map_err(|(field, why)| error(field, why))?;
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

fn one(target: &mut Object, kind: &PatchType, document: &Value) -> Result<(), Refused> {
    let (title, name) = (target.title(), target.value["metadata"]["name"].clone());
    let misfit = |why: &dyn std::fmt::Display| (".patch", format!("does not fit {title}: {why}"));
    match kind {
        PatchType::Json => {
            let operations: json_patch::Patch =
                serde_json::from_value(document.clone()).map_err(|why| (".patch", why.to_string()))?;
            json_patch::patch(&mut target.value, &operations).map_err(|why| misfit(&why))?;
        }
        PatchType::Merge => json_patch::merge(&mut target.value, document),
        PatchType::Strategic => {
            if directive(document) {
                let why = "directives of strategic patches ($patch, $retainKeys, $deleteFromPrimitiveList) are not \
                           known: use a patch of type json or merge";
                return Err((".patch", why.to_owned()));
            }
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
            .map_err(|why| misfit(&why))?;
        }
        other => {
            return Err((".type", format!("'{}': json, merge or strategic is allowed", other.as_str())));
        }
    }
    if target.value["metadata"]["name"] != name {
        return Err((".patch", format!("{title}: the name cannot be changed")));
    }
    object(&mut target.value["metadata"], "annotations").insert(CUSTOMIZED.to_owned(), json!("true"));
    Ok(())
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
