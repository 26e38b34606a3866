//! Makes the DataVolumes that a machine's templates ask for.

use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::{ApiResource, DynamicObject, PostParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client, ResourceExt};
use podvirt_api::cdi::{self, DataVolume};
use podvirt_api::names::event;
use podvirt_api::v1::{DataVolumeTemplateSpec, VirtualMachine};
use podvirt_daemon::events::Recorder;
use serde_json::Value;

use super::clone::{self, Source};
use super::template::data_volume;

/// Why a DataVolume was not made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The machine's service account may not copy the source.
    #[error("User {user} has insufficient permissions in clone source namespace {namespace}")]
    Unauthorized {
        /// The account.
        user: String,
        /// The namespace of what is to be copied.
        namespace: String,
    },
    /// The DataSource that the template names tells of nothing that can be copied.
    #[error("DataSource {0} has no source")]
    NoSource(String),
    /// The API server refused or could not be asked.
    #[error(transparent)]
    Api(#[from] kube::Error),
}

impl Error {
    /// Reason of the event that tells of it.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Unauthorized { .. } => event::UNAUTHORIZED_DATA_VOLUME_CREATE,
            Self::NoSource(_) | Self::Api(_) => event::FAILED_DATA_VOLUME_CREATE,
        }
    }

    /// For people: what the API server says is its message.
    pub fn told(&self) -> String {
        match self {
            Self::Api(source) => crate::attachments::reason_of(source),
            other => other.to_string(),
        }
    }
}

/// Makes the DataVolume of one of the templates of `vm`, which is the machine with what it names in its template.
///
/// # Errors
///
/// [`Error`]. A DataVolume of this name that is there already is none.
pub async fn make(
    client: &Client,
    recorder: &Recorder,
    vm: &VirtualMachine,
    template: &DataVolumeTemplateSpec,
) -> Result<(), Error> {
    let namespace = vm.namespace().unwrap_or_default();
    let mut wanted = data_volume(vm, template);
    let name = wanted.name_any();
    let source = resolve(client, &mut wanted.data["spec"], &namespace).await?;
    if let Some(source) = &source {
        let account = clone::account(vm);
        // Annotations by which CDI takes a claim as filled are the template's author's own, and CDI copies all the same where there is no
        // such claim.
        if source.namespace != namespace && !may_copy(client, source, &namespace, account).await? {
            let user = clone::user(&namespace, account);
            return Err(Error::Unauthorized { user, namespace: source.namespace.clone() });
        }
        if !source.is_snapshot {
            let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &source.namespace);
            if claims.get_metadata_opt(&source.name).await?.is_none() {
                let message = format!(
                    "Source PVC {} not available: Target PVC {name} will remain unpopulated until source is created",
                    source.name
                );
                recorder.warning(vm, event::SOURCE_CLAIM_NOT_AVAILABLE, &message).await;
            }
        }
    }
    let api: Api<DynamicObject> =
        Api::namespaced_with(client.clone(), &namespace, &ApiResource::erase::<DataVolume>(&()));
    match api.create(&PostParams::default(), &wanted).await {
        Ok(_) => {
            tracing::info!(data_volume = name, "DataVolume made");
            recorder
                .normal(vm, event::SUCCESSFUL_DATA_VOLUME_CREATE, &format!("Created DataVolume {name}"))
                .await;
            Ok(())
        }
        Err(kube::Error::Api(status)) if status.is_already_exists() && is_there(&api, &name).await? => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Whether there is a DataVolume of this name: a claim alone may be in the way.
async fn is_there(api: &Api<DynamicObject>, name: &str) -> Result<bool, kube::Error> {
    Ok(api.get_metadata_opt(name).await?.is_some())
}

/// What the specification copies, if anything; a DataSource's own source is put in its place, so that what was judged is what is
/// copied.
async fn resolve(client: &Client, spec: &mut Value, namespace: &str) -> Result<Option<Source>, Error> {
    let Some((of, name)) = clone::data_source(spec, namespace) else {
        let source = Source::of(spec, namespace);
        if let Some(source) = &source {
            spec["source"] = source.to_spec();
        }
        return Ok(source);
    };
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk(cdi::GROUP, cdi::VERSION, "DataSource"));
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &of, &kind);
    let found = api.get(&name).await?;
    // One that refers to another DataSource tells in its status where that leads.
    let refers = found.data["spec"]["source"]["dataSource"].is_object();
    let holder = if refers { &found.data["status"] } else { &found.data["spec"] };
    let source = Source::of(holder, &of).ok_or_else(|| Error::NoSource(format!("{of}/{name}")))?;
    if let Some(spec) = spec.as_object_mut() {
        spec.remove("sourceRef");
        spec.insert("source".into(), source.to_spec());
    }
    Ok(Some(source))
}

async fn may_copy(
    client: &Client,
    source: &Source,
    namespace: &str,
    account: &str,
) -> Result<bool, kube::Error> {
    let api: Api<SubjectAccessReview> = Api::all(client.clone());
    for list in clone::questions(source, namespace, account) {
        let mut allowed = true;
        for question in list {
            let answer = api.create(&PostParams::default(), &question).await?;
            allowed &= answer.status.is_some_and(|status| status.allowed);
        }
        if allowed {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use podvirt_daemon::testing;
    use serde_json::json;

    use super::*;

    /// What is asked for a template that copies a claim of another namespace, and what comes of it.
    async fn made(annotations: Value, allowed: bool) -> (Result<(), Error>, Vec<String>) {
        let vm: VirtualMachine = serde_json::from_value(json!({
            "metadata": {"name": "thief", "namespace": "shop", "uid": "v1"},
            "spec": {
                "dataVolumeTemplates": [{"metadata": {"name": "loot", "annotations": annotations}, "spec": {
                    "source": {"pvc": {"namespace": "bank", "name": "ledger"}}, "storage": {}}}],
                "template": {"spec": {"domain": {"devices": {}}}},
            },
        }))
        .unwrap();
        let (client, asked) = testing::recorded("shop", move |(what, body)| {
            let mut answer = body.clone();
            if what.ends_with("/subjectaccessreviews") {
                answer["status"] = json!({"allowed": allowed});
            }
            Some(match what.starts_with("POST") {
                true => (201, answer),
                false => testing::failure(404, "NotFound", "not here"),
            })
        });
        let recorder = Recorder::new(client.clone(), "virt-controller", None);
        let done = make(&client, &recorder, &vm, &vm.spec.data_volume_templates[0]).await;
        let asked = asked.lock().unwrap().iter().map(|(what, _)| what.clone()).collect();
        (done, asked)
    }

    #[tokio::test]
    async fn a_copy_of_another_namespace_needs_the_right_whatever_the_annotations_say() {
        for annotation in ["checkStaticVolume", "prePopulated", "none"] {
            let annotations = json!({ format!("cdi.kubevirt.io/storage.{annotation}"): "loot" });
            let (done, asked) = made(annotations.clone(), false).await;
            assert!(matches!(done, Err(Error::Unauthorized { .. })), "{annotation}: {done:?}");
            assert!(asked.iter().all(|what| what.ends_with("/subjectaccessreviews")), "{asked:?}");
            let (done, asked) = made(annotations, true).await;
            assert!(done.is_ok(), "{annotation}: {done:?}");
            assert!(asked.iter().any(|what| what.starts_with("POST") && what.ends_with("/datavolumes")));
        }
    }
}
