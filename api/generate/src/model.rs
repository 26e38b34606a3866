//! The model: upstream's types as data. A type has fields, or is another name of a text with the values known.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;

/// Types by name: those of the group kubevirt.io by their own, those of another group as `<group>.<name>`.
pub(crate) type Types = BTreeMap<String, Type>;

/// One named type.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Type {
    #[serde(default)]
    pub(crate) fields: Vec<Field>,
    pub(crate) alias: Option<String>,
    #[serde(default, rename = "enum")]
    pub(crate) values: Vec<String>,
    /// What upstream says of each value of the type to its schema generator.
    #[serde(default)]
    pub(crate) markers: Markers,
}

/// Values by the markers' names.
pub(crate) type Markers = BTreeMap<String, String>;

/// One field of a type.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Field {
    /// Its name in JSON; empty for an inlined type.
    #[serde(default)]
    pub(crate) json: String,
    /// Its type in Go's notation.
    #[serde(rename = "type")]
    pub(crate) go: String,
    #[serde(default)]
    pub(crate) optional: bool,
    #[serde(default)]
    pub(crate) inline: bool,
    /// What upstream says to its schema generator.
    #[serde(default)]
    pub(crate) markers: Markers,
}

/// A field's type taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    Pointer(Box<Shape>),
    List(Box<Shape>),
    Map(Box<Shape>),
    Named(String),
}

impl Shape {
    pub(crate) fn parse(go: &str) -> Shape {
        if let Some(rest) = go.strip_prefix('*') {
            Shape::Pointer(Box::new(Shape::parse(rest)))
        } else if go == "[]byte" {
            Shape::Named(go.into())
        } else if let Some(rest) = go.strip_prefix("[]") {
            Shape::List(Box::new(Shape::parse(rest)))
        } else if let Some((_, rest)) = go.strip_prefix("map[").and_then(|r| r.split_once(']')) {
            // Every key is a text in JSON.
            Shape::Map(Box::new(Shape::parse(rest)))
        } else {
            Shape::Named(go.into())
        }
    }

    /// The named type at its core.
    pub(crate) fn core(&self) -> &str {
        match self {
            Shape::Pointer(inner) | Shape::List(inner) | Shape::Map(inner) => inner.core(),
            Shape::Named(name) => name,
        }
    }
}

/// The package of the group kubevirt.io.
const CORE: &str = "core/v1";

/// A reference to an object of the same namespace, in Go's notation.
const LOCAL_REFERENCE: &str = "v1.LocalObjectReference";

/// Reads the model and puts the fields of inlined types in place of the inlining.
pub(crate) fn read(path: &Path) -> Result<Types> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let packages: BTreeMap<String, Types> =
        serde_json::from_str(&text).with_context(|| format!("{} is not a model", path.display()))?;
    let core = packages.get(CORE).with_context(|| format!("the model has no package {CORE}"))?;
    let mut types = core.clone();
    for (package, own) in packages.iter().filter(|(package, _)| *package != CORE) {
        let group = package.split('/').next().unwrap_or(package);
        for (name, ty) in own {
            let fields = ty
                .fields
                .iter()
                .map(|field| Field { go: qualified(&field.go, group, own, core), ..field.clone() });
            types.insert(format!("{group}.{name}"), Type { fields: fields.collect(), ..ty.clone() });
        }
    }
    types
        .iter()
        .map(|(name, ty)| {
            let (fields, markers) = (flatten(name, &types)?, with_inlined(ty));
            Ok((name.clone(), Type { fields, markers, ..ty.clone() }))
        })
        .collect()
}

/// The markers of a type: those of what it inlines are its own.
fn with_inlined(ty: &Type) -> Markers {
    let mut markers = ty.markers.clone();
    for field in ty.fields.iter().filter(|field| field.inline) {
        markers.extend(field.markers.clone());
        if field.go == LOCAL_REFERENCE {
            markers.insert("mapType".into(), "atomic".into());
        }
    }
    markers
}

/// The type of a field in a package of another group, by the names of [`Types`].
fn qualified(go: &str, group: &str, own: &Types, core: &Types) -> String {
    let shape = Shape::parse(go);
    let name = shape.core();
    let outer = go.strip_suffix(name).unwrap_or_default();
    // Go's file names the imported package so.
    let imported = ["v1.", "virtv1."].iter().find_map(|package| name.strip_prefix(package));
    match imported.filter(|name| core.contains_key(*name)) {
        Some(name) => format!("{outer}{name}"),
        None if own.contains_key(name) => format!("{outer}{group}.{name}"),
        None => go.to_owned(),
    }
}

fn flatten(name: &str, types: &Types) -> Result<Vec<Field>> {
    let mut fields = Vec::new();
    for field in &types.get(name).with_context(|| format!("no type {name}"))?.fields {
        if !field.inline {
            fields.push(field.clone());
            continue;
        }
        let shape = Shape::parse(&field.go);
        let mut inner = match shape.core() {
            "metav1.TypeMeta" => vec![text("kind"), text("apiVersion")],
            LOCAL_REFERENCE => {
                vec![Field { markers: [("default".into(), String::new())].into(), ..text("name") }]
            }
            "v1.PersistentVolumeClaimVolumeSource" => {
                vec![required("claimName", "string"), optional("readOnly", "bool")]
            }
            own => flatten(own, types).with_context(|| format!("{name} inlines {own}"))?,
        };
        if matches!(shape, Shape::Pointer(_)) {
            for field in &mut inner {
                field.optional = true;
            }
        }
        fields.append(&mut inner);
    }
    Ok(fields)
}

fn required(json: &str, go: &str) -> Field {
    Field { json: json.into(), go: go.into(), optional: false, inline: false, markers: Markers::new() }
}

fn optional(json: &str, go: &str) -> Field {
    Field { optional: true, ..required(json, go) }
}

fn text(json: &str) -> Field {
    optional(json, "string")
}

/// The types that `roots` are made of.
pub(crate) fn reachable(types: &Types, roots: &[&str]) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    let mut todo: Vec<String> = roots.iter().map(|r| (*r).to_owned()).collect();
    while let Some(name) = todo.pop() {
        let Some(ty) = types.get(&name) else { continue };
        if seen.insert(name) {
            todo.extend(ty.fields.iter().map(|f| Shape::parse(&f.go).core().to_owned()));
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_of_another_group_finds_its_own_and_those_of_the_core() {
        let types = |names: &[&str]| {
            names.iter().map(|name| ((*name).to_owned(), Type::default())).collect::<Types>()
        };
        let (own, core) = (types(&["PoolSpec", "CPU"]), types(&["CPU", "VirtualMachineSpec"]));
        for (go, expected) in [
            ("*PoolSpec", "*pool.PoolSpec"),
            ("[]CPU", "[]pool.CPU"),
            ("map[string]v1.CPU", "map[string]CPU"),
            ("virtv1.VirtualMachineSpec", "VirtualMachineSpec"),
            ("v1.LocalObjectReference", "v1.LocalObjectReference"),
            ("*metav1.Time", "*metav1.Time"),
            ("string", "string"),
        ] {
            assert_eq!(qualified(go, "pool", &own, &core), expected);
        }
    }
}
