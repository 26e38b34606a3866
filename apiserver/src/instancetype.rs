//! Looks up what a VirtualMachine names: its instance type and its preference.

use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::DynamicObject;
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client, ResourceExt};
use podvirt_api::cdi::{self, DataVolume};
use podvirt_api::instancetype::infer::{self, InferError, Inferred, Source};
use podvirt_api::instancetype::{
    self, Conflicts, GROUP, KindError, Matcher, RevisionError, Scope, Specs, Subject, VERSION, is_name,
    is_of, spec_of,
};
use podvirt_api::v1::{KubeVirtConfiguration, VirtualMachine};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Why it was not found.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kind is none of the subject's.
    #[error(transparent)]
    Kind(#[from] KindError),
    /// No object has such a name.
    #[error("{field} '{name}' is not allowed; the name of an object is")]
    Name {
        /// The field.
        field: String,
        /// What stands there.
        name: String,
    },
    /// The stored revision is of no use.
    #[error(transparent)]
    Revision(#[from] RevisionError),
    /// The object cannot be read.
    #[error("{0} cannot be read")]
    Unreadable(String, #[source] serde_json::Error),
    /// A volume does not tell it.
    #[error(transparent)]
    Infer(#[from] InferError),
    /// The API server does not know it, or cannot be asked.
    #[error(transparent)]
    Api(#[from] kube::Error),
}

impl Error {
    /// Whether the API server could not answer, so that a later attempt may tell another thing.
    pub fn is_passing(&self) -> bool {
        match self {
            Error::Api(kube::Error::Api(status)) => !status.is_not_found(),
            Error::Api(_) => true,
            _ => false,
        }
    }

    /// For people: what the API server says is its message.
    pub fn message(&self) -> String {
        match self {
            Error::Api(kube::Error::Api(status)) => status.message.clone(),
            Error::Api(_) => "the API server cannot be asked now".into(),
            Error::Unreadable(_, source) => format!("{self}: {source}"),
            other => other.to_string(),
        }
    }
}

/// Why a machine cannot be had with what it names in its template.
#[derive(Debug, thiserror::Error)]
pub enum ExpandError {
    /// The machine is no JSON.
    #[error(transparent)]
    Object(#[from] serde_json::Error),
    /// What it names is not found.
    #[error("{}", .0.message())]
    Lookup(Error),
    /// What it names contradicts its template.
    #[error("{0}")]
    Conflicts(Conflicts),
}

/// What the machine `object` of `namespace` names; with it, why a part of it was not found.
pub async fn find(client: &Client, namespace: &str, object: &Value) -> (Specs, Vec<Error>) {
    let (instancetype, preference) = tokio::join!(
        find_one(client, namespace, object, Subject::Instancetype),
        find_one(client, namespace, object, Subject::Preference),
    );
    let mut errors = Vec::new();
    let specs = Specs {
        instancetype: instancetype.unwrap_or_else(|error| {
            errors.push(error);
            None
        }),
        preference: preference.unwrap_or_else(|error| {
            errors.push(error);
            None
        }),
    };
    (specs, errors)
}

async fn find_one<T: DeserializeOwned>(
    client: &Client,
    namespace: &str,
    object: &Value,
    subject: Subject,
) -> Result<Option<T>, Error> {
    let Some(matcher) = Matcher::in_object(object, subject) else { return Ok(None) };
    // One that is to be inferred has no name yet.
    let Some(name) = matcher.name() else { return Ok(None) };
    let revisions: Api<ControllerRevision> = Api::namespaced(client.clone(), namespace);
    if let Some(revision) = matcher.revision() {
        let revision = named(format!("spec.{}.revisionName", subject.field()), revision)?;
        return Ok(Some(spec_of(&revisions.get(revision).await?, subject)?));
    }
    let stored = object["status"][subject.status_field()]["controllerRevisionRef"]["name"].as_str();
    if let Some(stored) = stored.filter(|name| is_name(name)) {
        let revision = revisions.get(stored).await?;
        // A machine that was given another one has the old one's revision still.
        if is_of(&revision, name) {
            return Ok(Some(spec_of(&revision, subject)?));
        }
    }
    let scope = matcher.scope(subject)?;
    let name = named(format!("spec.{}.name", subject.field()), name)?;
    let gvk = GroupVersionKind::gvk(GROUP, VERSION, subject.kind(scope));
    let kind = ApiResource::from_gvk_with_plural(&gvk, &subject.plural(scope));
    let api: Api<DynamicObject> = match scope {
        Scope::Namespace => Api::namespaced_with(client.clone(), namespace, &kind),
        Scope::Cluster => Api::all_with(client.clone(), &kind),
    };
    let found = api.get(name).await?;
    let unreadable = |error| Error::Unreadable(format!("{} {name:?}", subject.kind(scope)), error);
    T::deserialize(&found.data["spec"]).map(Some).map_err(unreadable)
}

fn named(field: String, name: &str) -> Result<&str, Error> {
    if is_name(name) { Ok(name) } else { Err(Error::Name { field, name: name.to_owned() }) }
}

/// Puts names in the place of what the machine `object` of `namespace` wants to have inferred from its volumes.
///
/// # Errors
///
/// The field that asks, and why nothing could be inferred.
pub async fn infer(client: &Client, namespace: &str, object: &mut Value) -> Result<(), (String, Error)> {
    for subject in Subject::ALL {
        let matcher = Matcher::in_object(object, subject);
        let Some((matcher, volume)) = matcher.as_ref().and_then(|matcher| Some((matcher, matcher.volume()?)))
        else {
            continue;
        };
        let field = format!("spec.{}.inferFromVolume", subject.field());
        let source = infer::source(object, namespace, volume);
        let inferred = match Box::pin(inferred(client, subject, source)).await {
            Ok(inferred) => Ok(inferred),
            Err(Error::Infer(error)) => Err(error),
            Err(error) => return Err((field, error)),
        };
        let settled = infer::settle(object, subject, matcher, inferred);
        settled.map_err(|error| (field, error.into()))?;
    }
    Ok(())
}

/// What the labels at `source`, or behind it, tell.
async fn inferred(
    client: &Client,
    subject: Subject,
    source: Result<Source, InferError>,
) -> Result<Inferred, Error> {
    let mut source = source?;
    loop {
        source = match &source {
            Source::Claim(place) => {
                let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &place.namespace);
                let name = named("persistentVolumeClaim.claimName".into(), &place.name)?;
                let labels = claims.get_metadata(name).await?.labels().clone();
                return Ok(infer::from_labels(subject, &labels)?);
            }
            Source::DataVolume(place) => {
                let volumes: Api<DataVolume> = Api::namespaced(client.clone(), &place.namespace);
                let name = named("dataVolume.name".into(), &place.name)?;
                match volumes.get_opt(name).await? {
                    // A DataVolume may be deleted once it has done its work.
                    None => Source::Claim(place.clone()),
                    Some(volume) => match infer::from_labels(subject, volume.labels()) {
                        Ok(inferred) => return Ok(inferred),
                        Err(_) => infer::filled_from(&volume.spec, &place.namespace)?,
                    },
                }
            }
            Source::DataSource(place) => {
                let kind =
                    ApiResource::from_gvk(&GroupVersionKind::gvk(cdi::GROUP, cdi::VERSION, "DataSource"));
                let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &place.namespace, &kind);
                let found = api.get(named("sourceRef.name".into(), &place.name)?).await?;
                match infer::from_labels(subject, found.labels()) {
                    Ok(inferred) => return Ok(inferred),
                    Err(_) => {
                        Source::Claim(infer::claim_of_data_source(&found.data["spec"], &place.namespace)?)
                    }
                }
            }
        };
    }
}

/// The machine `vm` of `namespace` with what it names in its template.
///
/// # Errors
///
/// What it names is not found, or contradicts its template.
pub async fn expanded(
    client: &Client,
    namespace: &str,
    vm: &VirtualMachine,
    config: &KubeVirtConfiguration,
) -> Result<VirtualMachine, ExpandError> {
    let object = serde_json::to_value(vm)?;
    let (specs, errors) = find(client, namespace, &object).await;
    if let Some(error) = errors.into_iter().next() {
        return Err(ExpandError::Lookup(error));
    }
    instancetype::expand(vm, &specs, config).map_err(ExpandError::Conflicts)
}
