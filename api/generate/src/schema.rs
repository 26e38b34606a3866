//! Structural schemas from the model.
//!
//! The API server prunes what a schema does not name and refuses what is of another type, so a schema names all of
//! upstream's fields, those among them that podvirt refuses: a webhook can only tell a user about a field that it
//! still sees. Numbers are bounded as the Rust types are, since the API server holds them to 64 bits whatever their format.

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value, json};

use crate::describe::Docs;
use crate::kubernetes::{self, Shapes};
use crate::model::{Field, Markers, Shape, Types};

/// What a schema is made from.
pub(crate) struct Schemas<'a> {
    pub(crate) types: &'a Types,
    pub(crate) shapes: &'a Shapes,
    pub(crate) docs: &'a Docs,
}

impl Schemas<'_> {
    /// The schema of a resource.
    pub(crate) fn root(&self, kind: &str) -> Result<Value> {
        let mut schema = self.object(kind)?;
        // The API server knows the metadata of an object.
        schema["properties"]["metadata"] = json!({ "type": "object" });
        Ok(schema)
    }

    fn object(&self, name: &str) -> Result<Value> {
        let ty = self.types.get(name).with_context(|| format!("no type {name}"))?;
        let mut properties = Map::new();
        let mut required = Vec::new();
        for field in &ty.fields {
            let schema = self.field(name, field).with_context(|| format!("{name}.{}", field.json))?;
            properties.insert(field.json.clone(), schema);
            if !field.optional {
                required.push(field.json.clone());
            }
        }
        let mut schema = json!({ "type": "object" });
        if let Some(text) = self.docs.of_type(name) {
            schema["description"] = text.into();
        }
        if !properties.is_empty() {
            schema["properties"] = properties.into();
        }
        if !required.is_empty() {
            required.sort();
            schema["required"] = required.into();
        }
        mark_all(&mut schema, (name, ""), &ty.markers)?;
        Ok(schema)
    }

    fn field(&self, owner: &str, field: &Field) -> Result<Value> {
        let mut schema = self.shape(&Shape::parse(&field.go))?;
        if let Some(text) = self.docs.of_field(owner, &field.json) {
            schema["description"] = text.into();
        }
        mark_all(&mut schema, (owner, &field.json), &field.markers)?;
        Ok(schema)
    }

    fn shape(&self, shape: &Shape) -> Result<Value> {
        Ok(match shape {
            Shape::Pointer(inner) => self.shape(inner)?,
            Shape::List(inner) => json!({ "type": "array", "items": self.shape(inner)? }),
            Shape::Map(inner) => json!({ "type": "object", "additionalProperties": self.shape(inner)? }),
            Shape::Named(name) => self.named(name)?,
        })
    }

    fn named(&self, name: &str) -> Result<Value> {
        if let Some(ty) = self.types.get(name) {
            if ty.alias.is_none() {
                return self.object(name);
            }
            let mut schema = json!({ "type": "string" });
            mark_all(&mut schema, (name, ""), &ty.markers)?;
            return Ok(schema);
        }
        if let Some(short) = kubernetes::short(name) {
            return self.of_kubernetes(short);
        }
        Ok(match name {
            "bool" => json!({ "type": "boolean" }),
            "int" => json!({ "type": "integer" }),
            "int64" => json!({ "type": "integer", "format": "int64" }),
            "int32" => int32(),
            "uint" => json!({ "type": "integer", "minimum": 0 }),
            "uint64" => json!({ "type": "integer", "format": "int64", "minimum": 0 }),
            // Upstream's format, which the API server does not look at.
            "uint32" => json!({ "type": "integer", "format": "int32", "minimum": 0, "maximum": u32::MAX }),
            "uint8" => json!({ "type": "integer", "minimum": 0, "maximum": u8::MAX }),
            "float32" => json!({ "type": "number" }),
            "[]byte" => json!({ "type": "string", "format": "byte" }),
            "resource.Quantity" => quantity(),
            "metav1.Time" => json!({ "type": "string", "format": "date-time" }),
            "backupv1.BackupVolumeInfo" => self.object("backup.BackupVolumeInfo")?,
            // Of a project whose types podvirt does not look into, and which it refuses.
            "cdiv1.DataVolumeSpec" => open_object(),
            // Metadata of objects that are made from a template: the API server would keep nothing of it.
            "metav1.ObjectMeta" => open_object(),
            "metav1.ListMeta" => json!({ "type": "object" }),
            "string" | "types.UID" | "metav1.Duration" => json!({ "type": "string" }),
            _ => match name.rsplit('.').next() {
                Some("ResourceList") => json!({ "type": "object", "additionalProperties": quantity() }),
                Some(
                    "ConditionStatus"
                    | "DNSPolicy"
                    | "PersistentVolumeAccessMode"
                    | "PersistentVolumeMode"
                    | "PodQOSClass"
                    | "PullPolicy",
                ) => json!({ "type": "string" }),
                _ => bail!("no schema is known for {name}"),
            },
        })
    }

    fn of_kubernetes(&self, name: &str) -> Result<Value> {
        match name {
            "Quantity" => Ok(quantity()),
            "IntOrString" => Ok(int_or_string()),
            "Time" => Ok(json!({ "type": "string", "format": "date-time" })),
            _ => {
                let shape = self.shapes.get(name).with_context(|| {
                    format!("no shape of {name}: take it from an API server with --kubernetes")
                })?;
                let mut schema = self.resolved(shape)?;
                if name == "LocalObjectReference" {
                    schema["properties"]["name"]["default"] = "".into();
                }
                Ok(schema)
            }
        }
    }

    /// A shape with other shapes in place of its references.
    fn resolved(&self, shape: &Value) -> Result<Value> {
        if let Some(name) = shape.get("$ref").and_then(Value::as_str) {
            return self.of_kubernetes(name);
        }
        if shape["format"] == "int32" {
            return Ok(int32());
        }
        let mut out = Map::new();
        for (key, value) in shape.as_object().context("a shape is no object")? {
            let value = match (key.as_str(), value) {
                ("properties", Value::Object(properties)) => {
                    let resolved: Result<Map<String, Value>> =
                        properties.iter().map(|(k, v)| Ok((k.clone(), self.resolved(v)?))).collect();
                    resolved?.into()
                }
                ("items" | "additionalProperties", inner) => self.resolved(inner)?,
                _ => value.clone(),
            };
            out.insert(key.clone(), value);
        }
        Ok(out.into())
    }
}

/// Puts what upstream says of a type, or of a field of a type, into its schema.
fn mark_all(schema: &mut Value, place: (&str, &str), markers: &Markers) -> Result<()> {
    markers.iter().try_for_each(|(marker, value)| mark(schema, place, marker, value))
}

fn mark(schema: &mut Value, place: (&str, &str), marker: &str, value: &str) -> Result<()> {
    let number = || value.parse::<u64>().with_context(|| format!("{marker} is no number: {value}"));
    match marker.trim_end_matches(':') {
        "nullable" => schema["nullable"] = true.into(),
        "kubebuilder:validation:Enum" => schema["enum"] = value.split(';').collect::<Vec<_>>().into(),
        "kubebuilder:validation:MaxItems" => schema["maxItems"] = number()?.into(),
        "kubebuilder:validation:MaxLength" => schema["maxLength"] = number()?.into(),
        "kubebuilder:validation:MinLength" => schema["minLength"] = number()?.into(),
        "kubebuilder:validation:Maximum" => schema["maximum"] = number()?.into(),
        "kubebuilder:validation:Minimum" => schema["minimum"] = number()?.into(),
        "kubebuilder:default" | "default" => {
            schema["default"] = serde_json::from_str(value).unwrap_or_else(|_| value.into());
        }
        "kubebuilder:validation:XValidation:rule" => {
            // One a line.
            let rule = |line: &str| -> Result<Value> {
                let (rule, message) = line.split_once(",message=").context("a rule without a message")?;
                let text = serde_json::from_str::<String>;
                Ok(json!({ "rule": text(rule)?, "message": text(message)? }))
            };
            schema["x-kubernetes-validations"] = value.lines().map(rule).collect::<Result<Vec<_>>>()?.into();
        }
        "kubebuilder:validation:Pattern" => schema["pattern"] = value.into(),
        "kubebuilder:pruning:PreserveUnknownFields" => {
            schema["x-kubernetes-preserve-unknown-fields"] = true.into();
        }
        "listType" => schema["x-kubernetes-list-type"] = value.into(),
        "mapType" => schema["x-kubernetes-map-type"] = value.into(),
        // Two keys, of which the model holds one.
        "listMapKey" if place == ("VirtualMachineInstanceSpec", "topologySpreadConstraints") => {
            schema["x-kubernetes-list-map-keys"] = json!(["topologyKey", "whenUnsatisfiable"]);
        }
        "listMapKey" => schema["x-kubernetes-list-map-keys"] = json!([value]),
        // Strategic merge is not for custom resources; what is optional is so by its type; upstream's generator does not
        // know the misspelt one.
        "patchMergeKey" | "patchStrategy" | "kubebuilder:validation:Optional" | "listtype" => {}
        _ => bail!("the marker {marker} is not known"),
    }
    Ok(())
}

fn int32() -> Value {
    json!({ "type": "integer", "format": "int32", "minimum": i32::MIN, "maximum": i32::MAX })
}

fn open_object() -> Value {
    json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
}

fn int_or_string() -> Value {
    json!({
        "anyOf": [{ "type": "integer" }, { "type": "string" }],
        "minimum": i32::MIN,
        "maximum": i32::MAX,
        "x-kubernetes-int-or-string": true,
    })
}

/// A number with a suffix, in the form that Kubernetes gives.
fn quantity() -> Value {
    json!({
        "anyOf": [{ "type": "integer" }, { "type": "string" }],
        "pattern": r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$",
        "x-kubernetes-int-or-string": true,
    })
}
