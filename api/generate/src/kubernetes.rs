//! Shapes of Kubernetes' own types: what an API server's OpenAPI document says of them, without its prose.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

use crate::model::{self, Shape};
use crate::{MESSAGES, crd};

/// Schemas by the types' short names; one refers to another as `{"$ref": name}`.
pub(crate) type Shapes = BTreeMap<String, Value>;

/// What a shape keeps: its form. Enumerations are left to the API server that makes the pod, which may know more.
const KEPT: &[&str] = &[
    "type",
    "format",
    "required",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-map-type",
];

/// Types that have a form of their own in a CustomResourceDefinition.
const OWN_FORM: &[&str] = &["Quantity", "IntOrString", "Time"];

/// Reads the shapes.
pub(crate) fn read(path: &Path) -> Result<Shapes> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} has no shapes", path.display()))
}

/// The short name of one of Kubernetes' types, if it has a shape of its own.
pub(crate) fn short(go: &str) -> Option<&str> {
    let (package, name) = go.split_once('.')?;
    let scalar = [
        "ConditionStatus",
        "DNSPolicy",
        "PersistentVolumeAccessMode",
        "PersistentVolumeMode",
        "PodQOSClass",
        "PullPolicy",
        "ResourceList",
    ];
    match package {
        "k8sv1" | "corev1" | "v1" => (!scalar.contains(&name)).then_some(name),
        "intstr" => Some(name),
        "metav1" => (name == "LabelSelector").then_some(name),
        _ => None,
    }
}

/// Writes the shapes of the types that the model uses from an OpenAPI document.
pub(crate) fn extract(model: &Path, openapi: &Path, shapes: &Path) -> Result<()> {
    let types = model::read(model)?;
    let document: Value = serde_json::from_str(&std::fs::read_to_string(openapi)?)?;
    let schemas = document["components"]["schemas"].as_object().context("the document has no schemas")?;
    let by_name: BTreeMap<&str, &Value> = schemas
        .iter()
        .filter(|(name, _)| name.starts_with("io.k8s.api.core.v1.") || name.contains(".apimachinery."))
        .map(|(name, schema)| (name.rsplit('.').next().unwrap_or(name), schema))
        .collect();

    let served: Vec<String> = crd::kinds().collect();
    let roots: Vec<&str> = served.iter().map(String::as_str).chain(MESSAGES.iter().copied()).collect();
    let mut todo: BTreeSet<String> = BTreeSet::new();
    for name in model::reachable(&types, &roots) {
        for field in &types[&name].fields {
            let shape = Shape::parse(&field.go);
            let name = short(shape.core()).filter(|name| !OWN_FORM.contains(name));
            todo.extend(name.map(str::to_owned));
        }
    }
    let mut found = Shapes::new();
    while let Some(name) = todo.pop_first() {
        let schema = by_name.get(name.as_str()).with_context(|| format!("the document has no {name}"))?;
        let mut needs = BTreeSet::new();
        let shape = cleaned(schema, &mut needs)?;
        found.insert(name, shape);
        todo.extend(needs.into_iter().filter(|n| !found.contains_key(n)));
    }
    std::fs::write(shapes, format!("{}\n", serde_json::to_string_pretty(&found)?))?;
    println!("{}: {} shapes", shapes.display(), found.len());
    Ok(())
}

fn cleaned(schema: &Value, needs: &mut BTreeSet<String>) -> Result<Value> {
    let reference = schema.get("$ref").or_else(|| schema.pointer("/allOf/0/$ref"));
    if let Some(reference) = reference {
        let name = reference.as_str().and_then(|r| r.rsplit('.').next()).context("a reference is no text")?;
        if !OWN_FORM.contains(&name) {
            needs.insert(name.to_owned());
        }
        return Ok(json!({ "$ref": name }));
    }
    let mut clean = Map::new();
    for (key, value) in schema.as_object().context("a schema is no object")? {
        match key.as_str() {
            "properties" => {
                let properties = value.as_object().context("properties are no object")?;
                let cleaned: Result<Map<String, Value>> =
                    properties.iter().map(|(k, v)| Ok((k.clone(), cleaned(v, needs)?))).collect();
                clean.insert(key.clone(), cleaned?.into());
            }
            "items" | "additionalProperties" => {
                clean.insert(key.clone(), cleaned(value, needs)?);
            }
            kept if KEPT.contains(&kept) => {
                clean.insert(key.clone(), value.clone());
            }
            _ => {}
        }
    }
    Ok(clean.into())
}
