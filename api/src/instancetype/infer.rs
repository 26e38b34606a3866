//! Instance types and preferences that a volume's labels tell.
//!
//! A claim that an image was imported into can say by its labels which instance type and which preference suit the image. A
//! VirtualMachine asks for them by `inferFromVolume`; the webhook puts the names in its place once, before the VirtualMachine
//! is stored.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::matcher::{Matcher, Subject};

/// Why nothing could be inferred.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InferError {
    /// The machine has no such volume.
    #[error("unable to find volume {0} to infer defaults")]
    NoVolume(String),
    /// The volume is none that has labels.
    #[error("unable to infer defaults from volume {0} as type is not supported")]
    VolumeType(String),
    /// The volume does not say.
    #[error("unable to find required {0} label on the volume")]
    NoLabel(&'static str),
}

impl InferError {
    /// Whether the machine may do without, if its failure policy says so.
    pub fn is_ignorable(&self) -> bool {
        !matches!(self, InferError::NoVolume(_))
    }
}

/// Where the labels are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// On the claim of this name.
    Claim(String),
    /// On a `DataVolume`. Podvirt carries none out, and refuses the machine for its volume.
    DataVolume,
}

/// What labels tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inferred {
    name: String,
    kind: Option<String>,
}

/// Where the labels of the volume `name` of the machine `object` are.
///
/// # Errors
///
/// There is no such volume, or it is of a type without labels.
pub fn source(object: &Value, name: &str) -> Result<Source, InferError> {
    let volumes = object["spec"]["template"]["spec"]["volumes"].as_array();
    let volume = volumes.into_iter().flatten().find(|volume| volume["name"] == name);
    let volume = volume.ok_or_else(|| InferError::NoVolume(name.to_owned()))?;
    if let Some(claim) = volume["persistentVolumeClaim"]["claimName"].as_str() {
        return Ok(Source::Claim(claim.to_owned()));
    }
    if volume["dataVolume"].is_object() {
        return Ok(Source::DataVolume);
    }
    Err(InferError::VolumeType(name.to_owned()))
}

/// What the labels of a volume tell.
///
/// # Errors
///
/// They name nothing.
pub fn from_labels(subject: Subject, labels: &BTreeMap<String, String>) -> Result<Inferred, InferError> {
    let [name, kind] = subject.default_labels();
    let inferred = labels.get(name).ok_or(InferError::NoLabel(name))?;
    Ok(Inferred { name: inferred.clone(), kind: labels.get(kind).filter(|kind| !kind.is_empty()).cloned() })
}

/// Puts what was inferred into the machine `object`, or takes the matcher away where its failure is to be ignored.
///
/// # Errors
///
/// The failure, where it is not to be ignored.
pub fn settle(
    object: &mut Value,
    subject: Subject,
    matcher: &Matcher,
    inferred: Result<Inferred, InferError>,
) -> Result<(), InferError> {
    let ignores = matcher.ignores_failure();
    let Some(spec) = object["spec"].as_object_mut() else { return Ok(()) };
    match inferred {
        Ok(Inferred { name, kind }) => {
            let mut named = json!({ "name": name });
            if let Some(kind) = kind {
                named["kind"] = kind.into();
            }
            spec.insert(subject.field().into(), named);
            // Clients that let the inference fail give a memory for that case, which would be a conflict now.
            let domain = spec.get_mut("template").and_then(|template| template.pointer_mut("/spec/domain"));
            if let (true, Subject::Instancetype, Some(Value::Object(domain))) = (ignores, subject, domain) {
                domain.remove("memory");
            }
            Ok(())
        }
        Err(error) if ignores && error.is_ignorable() => {
            spec.remove(subject.field());
            Ok(())
        }
        Err(error) => Err(error),
    }
}
