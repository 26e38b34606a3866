//! Carrying out what was decided on a migration.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, ResourceExt};
use podvirt_api::names::label::MIGRATION_NAME;
use podvirt_api::names::{event, label_value};
use podvirt_api::state::PERSISTENT_STATE_FOR;
use podvirt_api::v1::VirtualMachineInstanceMigration as Migration;

use serde_json::json;

use super::controller::{Error, Shared, write_migration};
use super::decide::{self, Action};
use super::host_model;
use crate::attachments;
use crate::vmi::pods;

/// Asks for what was decided.
pub(super) async fn carry_out(migration: &Migration, action: Action, shared: &Shared) -> Result<(), Error> {
    let namespace = migration.namespace().unwrap_or_default();
    let client = shared.context.client.clone();
    match action {
        Action::Create(pod) => {
            Box::pin(create(&Api::namespaced(client, &namespace), migration, &pod, shared)).await
        }
        Action::CreateClaim(claim) => {
            let (name, api) =
                (claim.name_any(), Api::<PersistentVolumeClaim>::namespaced(client, &namespace));
            match api.create(&PostParams::default(), &claim).await {
                Ok(_) => Ok(()),
                // Its name follows from the migration.
                Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
                Err(source) => Err(Error::Create { name, source }),
            }
        }
        Action::KeepClaim { name, uid, machine } => {
            let api: Api<PersistentVolumeClaim> = Api::namespaced(client, &namespace);
            let labels = json!({PERSISTENT_STATE_FOR: label_value(&machine), MIGRATION_NAME: null});
            let body = json!({"metadata": {"uid": uid, "labels": labels}});
            match api.patch(&name, &PatchParams::default(), &Patch::Merge(&body)).await {
                Ok(_) => Ok(()),
                Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
                Err(source) => Err(Error::Update { name, source }),
            }
        }
        Action::DeleteClaim { name, uid } => {
            let api: Api<PersistentVolumeClaim> = Api::namespaced(client, &namespace);
            delete(&api, name, uid).await.map(|_| ())
        }
        Action::DeletePod { name, uid } => {
            let api: Api<Pod> = Api::namespaced(client, &namespace);
            if delete(&api, name.clone(), uid).await? {
                tracing::info!(pod = name, "target pod deleted");
                let message = format!("deleted target pod {name}");
                shared.context.recorder.normal(migration, event::SUCCESSFUL_DELETE, &message).await;
            }
            Ok(())
        }
        Action::DeleteMigration { name, uid } => {
            let api: Api<Migration> = Api::namespaced(client, &namespace);
            delete(&api, name, uid).await.map(|_| ())
        }
    }
}

async fn create(api: &Api<Pod>, migration: &Migration, pod: &Pod, shared: &Shared) -> Result<(), Error> {
    let name = pod.name_any();
    let pod = match attachments::with_resources(&shared.context.client, pod).await {
        Ok(pod) => pod,
        Err(error) => {
            let decision = decide::refused(migration, &error.told(), false, Timestamp::now());
            write_migration(migration, &decision, None, shared).await?;
            return Err(error.into());
        }
    };
    // From here on it counts, also before the cache shows it.
    shared.start(migration);
    match api.create(&PostParams::default(), &pod).await {
        Ok(_) => {
            tracing::info!(pod = name, "target pod made");
            let message = format!("made target pod {name}");
            shared.context.recorder.normal(migration, event::SUCCESSFUL_CREATE, &message).await;
            tell_nowhere(migration, &pod, shared).await;
            Ok(())
        }
        Err(kube::Error::Api(status)) if status.is_already_exists() => {
            let there =
                api.get_opt(&name).await.map_err(|source| Error::Read { name: name.clone(), source })?;
            let machine = pods::owner(&pod).map(|owner| owner.uid.clone());
            match there {
                Some(there) if pods::owner(&there).map(|owner| owner.uid.clone()) != machine => {
                    Err(Error::Taken(name))
                }
                // Ours, or gone by now: the watch tells.
                _ => Ok(()),
            }
        }
        Err(source) => {
            shared.stop(&migration.uid().unwrap_or_default());
            let (why, forbidden) = match &source {
                kube::Error::Api(status) => (status.message.clone(), status.is_forbidden()),
                other => (other.to_string(), false),
            };
            let decision = decide::refused(migration, &why, forbidden, Timestamp::now());
            write_migration(migration, &decision, None, shared).await?;
            Err(Error::Create { name, source })
        }
    }
}

/// Tells on the machine that no other node has the model of a processor that it has.
async fn tell_nowhere(migration: &Migration, pod: &Pod, shared: &Shared) {
    let (view, nodes) = (&shared.context.view, shared.context.nodes.state());
    let name = migration.spec.vmi_name.as_deref().unwrap_or_default();
    let Some(vmi) = view.machine(&migration.namespace().unwrap_or_default(), name) else { return };
    let source = vmi.status.node_name.as_deref().unwrap_or_default();
    if let Some(labels) = host_model::nowhere(pod, source, nodes.iter().map(AsRef::as_ref)) {
        let message =
            format!("no other node has all labels of the machine's processor: {}", labels.join(", "));
        shared.context.recorder.warning(vmi.as_ref(), event::NO_NODES_FOR_HOST_MODEL, &message).await;
    }
}

/// Deletes the very object. Whether it was there.
async fn delete<K>(api: &Api<K>, name: String, uid: String) -> Result<bool, Error>
where
    K: Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let params = DeleteParams {
        preconditions: Some(Preconditions { uid: Some(uid), resource_version: None }),
        ..DeleteParams::default()
    };
    match api.delete(&name, &params).await {
        Ok(_) => Ok(true),
        // Gone, or another one has its name.
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(false),
        Err(source) => Err(Error::Delete { name, source }),
    }
}
