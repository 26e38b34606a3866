//! Writing the labels: at the start, when the KubeVirt object changes, and now and then, since others may write them, too.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, ObjectReference};
use kube::api::{Patch, PatchParams};
use kube::core::PartialObjectMeta;
use kube::runtime::events::EventType;
use kube::{Api, Client, ResourceExt};
use podvirt_api::names::{annotation, event};
use podvirt_api::v1::KubeVirt;
use podvirt_daemon::events::Recorder;
use podvirt_daemon::shutdown::Shutdown;
use podvirt_proto::capabilities::{Capabilities, read};
use serde_json::{Map, Value, json};
use tokio::sync::watch;

use super::{is_own, labels, named, obsolete_host_model};
use crate::metrics::Metrics;

/// Time between two looks.
const PERIOD: Duration = Duration::from_secs(180);
/// Time until labels that could not be written are tried again.
const RETRY: Duration = Duration::from_secs(5);
/// Time for a request that the server does not answer.
const DEADLINE: Duration = Duration::from_secs(10);

/// The obsolete models that the KubeVirt object names. Clones share them.
#[derive(Clone, Debug)]
pub struct Obsolete(watch::Sender<Option<Named>>);

/// None where it names none.
type Named = Option<BTreeSet<String>>;

impl Obsolete {
    /// None yet: the KubeVirt object has not been seen.
    pub fn unknown() -> Self {
        Self(watch::Sender::new(None))
    }

    /// Takes what the KubeVirt object says now. Any change of it is an occasion to look at the labels, as with
    /// upstream: a user who has spoiled them has them mended at once by it.
    pub fn take(&self, kubevirt: Option<&KubeVirt>) {
        self.0.send_replace(Some(named(kubevirt)));
    }
}

/// Keeps the labels of `node` by what the file says, until `shutdown`; they stay behind.
pub async fn keep(
    client: Client,
    node: &str,
    file: &Path,
    obsolete: &Obsolete,
    recorder: &Recorder,
    metrics: &Metrics,
    shutdown: &Shutdown,
) {
    let api: Api<Node> = Api::all(client);
    let mut known = obsolete.0.subscribe();
    let waited = shutdown.or(known.wait_for(Option::is_some)).await;
    if waited.is_none_or(|seen| seen.is_err()) {
        return;
    }
    let capabilities = match read(file) {
        Ok(capabilities) => capabilities,
        Err(error) => {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, file = %file.display(), "what QEMU can do here is not known: the node gets no labels of it");
            return;
        }
    };
    metrics.machine_types(node, &capabilities.machine_types);
    let mut told = None;
    loop {
        let named = known.borrow_and_update().clone().flatten();
        let pause = match written(&api, node, &labels(&capabilities, named.as_ref())).await {
            Ok(uid) => {
                tell(recorder, node, &uid, &capabilities, named.as_ref(), &mut told).await;
                PERIOD
            }
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(node, error, "the node's labels are not written");
                RETRY
            }
        };
        tokio::select! {
            () = shutdown.requested() => return,
            () = tokio::time::sleep(pause) => {}
            // A sender that is gone says nothing new.
            Ok(()) = known.changed() => {}
        }
    }
}

/// Tells once that the host's own model is obsolete, and again when it has become so anew.
async fn tell(
    recorder: &Recorder,
    node: &str,
    uid: &str,
    capabilities: &Capabilities,
    named: Option<&BTreeSet<String>>,
    told: &mut Option<String>,
) {
    let model = obsolete_host_model(capabilities, named).map(str::to_owned);
    if let Some(model) = model.as_ref().filter(|_| *told != model) {
        let object = ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Node".into()),
            name: Some(node.to_owned()),
            uid: Some(uid.to_owned()),
            ..ObjectReference::default()
        };
        let message = format!(
            "the model nearest to this node's processor, {model}, is among spec.configuration.obsoleteCPUModels: machines that \
             ask for the host's own model do not come here"
        );
        recorder.publish(&object, EventType::Warning, event::HOST_MODEL_IS_OBSOLETE, &message).await;
    }
    *told = model;
}

/// Makes the node's labels of this kind those that are wanted, unless the node is to be left alone. The node's UID.
async fn written(
    api: &Api<Node>,
    node: &str,
    wanted: &BTreeMap<String, String>,
) -> Result<String, PatchError> {
    // virt-handler has no right to read nodes; an empty patch changes nothing and is answered by what is there.
    let there = patched(api, node, &json!({})).await?;
    if there.annotations().contains_key(annotation::SKIP_NODE) {
        return Ok(there.uid().unwrap_or_default());
    }
    let changes = changes(there.labels(), wanted);
    if !changes.is_empty() {
        patched(api, node, &json!({"metadata": {"labels": changes}})).await?;
        tracing::info!(node, labels = changes.len(), "the node's labels are written");
    }
    Ok(there.uid().unwrap_or_default())
}

/// Why the node is as it was.
#[derive(Debug, thiserror::Error)]
enum PatchError {
    #[error(transparent)]
    Refused(#[from] kube::Error),
    #[error("no answer within {} s", DEADLINE.as_secs())]
    Late,
}

async fn patched(api: &Api<Node>, node: &str, patch: &Value) -> Result<PartialObjectMeta<Node>, PatchError> {
    let (parameters, patch) = (PatchParams::default(), Patch::Merge(patch));
    let request = api.patch_metadata(node, &parameters, &patch);
    Ok(tokio::time::timeout(DEADLINE, request).await.map_err(|_| PatchError::Late)??)
}

/// What has to change of the labels that are there: also those of this kind go that are not wanted.
fn changes(there: &BTreeMap<String, String>, wanted: &BTreeMap<String, String>) -> Map<String, Value> {
    let gone = there.keys().filter(|key| is_own(key) && !wanted.contains_key(*key));
    let new = wanted.iter().filter(|(key, value)| there.get(*key) != Some(*value));
    gone.map(|key| (key.clone(), Value::Null))
        .chain(new.map(|(key, value)| (key.clone(), Value::String(value.clone()))))
        .collect()
}

#[cfg(test)]
mod tests {
    use podvirt_daemon::testing;

    use super::*;

    const MODEL: &str = "cpu-model.node.kubevirt.io/Nehalem";

    fn wanted() -> BTreeMap<String, String> {
        [(MODEL.to_owned(), "true".to_owned())].into()
    }

    fn node(labels: &Value, annotations: &Value) -> Value {
        json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
            "metadata": {"name": "n1", "uid": "u1", "labels": labels, "annotations": annotations}})
    }

    async fn asked(there: Value) -> Vec<testing::Asked> {
        let (client, asked) = testing::recorded("default", move |_| Some((200, there.clone())));
        assert_eq!(written(&Api::all(client), "n1", &wanted()).await.unwrap(), "u1");
        let asked = asked.lock().unwrap();
        asked.iter().cloned().collect()
    }

    #[tokio::test]
    async fn what_is_there_is_looked_at_and_what_differs_is_written() {
        let labels = json!({"zone": "a", "cpu-model.node.kubevirt.io/Old": "true"});
        let asked = asked(node(&labels, &json!({}))).await;
        assert_eq!(asked.len(), 2);
        assert_eq!(asked[0], ("PATCH /api/v1/nodes/n1".to_owned(), json!({})));
        let expected =
            json!({"metadata": {"labels": {MODEL: "true", "cpu-model.node.kubevirt.io/Old": null}}});
        assert_eq!(asked[1].1, expected);
    }

    #[tokio::test]
    async fn labels_that_are_right_and_nodes_that_are_to_be_left_alone_are_not_written() {
        assert_eq!(asked(node(&json!({MODEL: "true", "zone": "a"}), &json!({}))).await.len(), 1);
        let skip = json!({"node-labeller.kubevirt.io/skip-node": "true"});
        assert_eq!(asked(node(&json!({}), &skip)).await.len(), 1);
    }

    #[tokio::test]
    async fn that_the_own_model_is_obsolete_is_told_once() {
        let (client, asked) = testing::recorded("default", |_| None);
        let recorder = Recorder::new(client, "virt-handler", None);
        let capabilities = Capabilities {
            host_model: Some(podvirt_proto::capabilities::HostModel {
                name: "EPYC".into(),
                ..Default::default()
            }),
            ..Capabilities::default()
        };
        let named = BTreeSet::from(["EPYC".to_owned()]);
        let mut told = None;
        for named in [None, Some(&named), Some(&named), None] {
            tell(&recorder, "n1", "u1", &capabilities, named, &mut told).await;
        }
        let asked = asked.lock().unwrap();
        assert_eq!(asked.len(), 1);
        assert_eq!(asked[0].1["reason"], "HostModelIsObsolete");
        assert_eq!(asked[0].1["regarding"]["kind"], "Node");
    }
}
