//! Instance types and preferences that a volume's labels tell.
//!
//! A claim that an image was imported into can say by its labels which instance type and which preference suit the image. A
//! VirtualMachine asks for them by `inferFromVolume`; the webhook puts the names in its place once, before the VirtualMachine
//! is stored. Of a DataVolume the labels are looked for where upstream looks:
//!
//! ```text
//!  persistentVolumeClaim ──────────────────────────────> the claim
//!  dataVolume ── of a template ── its source ──────────> the claim that it copies
//!     │               │                 └─ sourceRef ──> the DataSource, then the claim that this names
//!     │               └ not of a template: the DataVolume's own labels, then its source as above
//!     └ there is no such DataVolume (any more) ────────> the claim of its name
//! ```

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
    /// The DataVolume is filled from what has no labels.
    #[error("unable to infer defaults from DataVolumeSpec as DataVolumeSource is not supported")]
    DataVolumeSource,
    /// The DataVolume refers to what is no DataSource.
    #[error("unable to infer defaults from DataVolumeSourceRef as Kind {0} is not supported")]
    SourceRef(String),
    /// The DataSource is no claim.
    #[error("unable to infer defaults from DataSource that doesn't provide DataVolumeSourcePVC")]
    DataSource,
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
    /// On a claim.
    Claim(Place),
    /// On a DataVolume, or on what it is filled from; without one of this name on the claim of its name.
    DataVolume(Place),
    /// On a DataSource, or on the claim that it names.
    DataSource(Place),
}

/// Where an object is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl Place {
    /// What a reference says, which is to `namespace` where it names none.
    fn of(reference: &Value, namespace: &str) -> Place {
        let text = |field: &str| reference[field].as_str().filter(|text| !text.is_empty());
        Place {
            namespace: text("namespace").unwrap_or(namespace).to_owned(),
            name: text("name").unwrap_or_default().to_owned(),
        }
    }
}

/// What labels tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inferred {
    name: String,
    kind: Option<String>,
}

/// Where the labels of the volume `name` of the machine `object`, which is in `namespace`, are.
///
/// # Errors
///
/// There is no such volume, or it is of a type without labels.
pub fn source(object: &Value, namespace: &str, name: &str) -> Result<Source, InferError> {
    let volumes = object["spec"]["template"]["spec"]["volumes"].as_array();
    let volume = volumes.into_iter().flatten().find(|volume| volume["name"] == name);
    let volume = volume.ok_or_else(|| InferError::NoVolume(name.to_owned()))?;
    let own = |name: &str| Place { namespace: namespace.to_owned(), name: name.to_owned() };
    if let Some(claim) = volume["persistentVolumeClaim"]["claimName"].as_str() {
        return Ok(Source::Claim(own(claim)));
    }
    let Some(data) = volume["dataVolume"]["name"].as_str() else {
        return Err(InferError::VolumeType(name.to_owned()));
    };
    let templates = object["spec"]["dataVolumeTemplates"].as_array();
    match templates.into_iter().flatten().find(|template| template["metadata"]["name"] == data) {
        Some(template) => filled_from(&template["spec"], namespace),
        None => Ok(Source::DataVolume(own(data))),
    }
}

/// Where the labels are of what a DataVolume of `namespace` with the specification `spec` is filled from.
///
/// # Errors
///
/// It is filled from something without labels.
pub fn filled_from(spec: &Value, namespace: &str) -> Result<Source, InferError> {
    let claim = &spec["source"]["pvc"];
    if claim.is_object() {
        return Ok(Source::Claim(Place::of(claim, namespace)));
    }
    let reference = &spec["sourceRef"];
    match reference["kind"].as_str() {
        Some("DataSource") => Ok(Source::DataSource(Place::of(reference, namespace))),
        Some(kind) => Err(InferError::SourceRef(kind.to_owned())),
        None => Err(InferError::DataVolumeSource),
    }
}

/// The claim that the DataSource with the specification `spec`, which is in `namespace`, names.
///
/// # Errors
///
/// It names none.
pub fn claim_of_data_source(spec: &Value, namespace: &str) -> Result<Place, InferError> {
    let claim = &spec["source"]["pvc"];
    claim.is_object().then(|| Place::of(claim, namespace)).ok_or(InferError::DataSource)
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
