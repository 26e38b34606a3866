//! Reviews of VirtualMachines that name an instance type or a preference, which is looked up first.
//!
//! One that does not exist is told by a warning: the machine is stored, and virt-controller waits for it. A machine whose
//! volumes do not tell what they are asked for is refused.

use kube::Client;
use podvirt_api::admission::{Cluster, instancetype};
use podvirt_api::instancetype::{Specs, Subject};
use podvirt_api::problem::{Problem, Problems, Reason};
use serde_json::Value;
use tracing::warn;

use super::review::{Request, Response};
use super::{Alone, answer_with, judged};
use crate::instancetype::{Error, find, infer};

/// Whether the request is about such a machine.
pub fn concerns(task: Alone, request: &Request) -> bool {
    let object = &request.object;
    matches!(task, Alone::MutateVm | Alone::ValidateVm)
        && object["metadata"]["deletionTimestamp"].is_null()
        && Subject::ALL.iter().any(|subject| object["spec"][subject.field()].is_object())
}

/// A machine with what it names, as far as that is there.
pub struct Found {
    object: Value,
    specs: Specs,
    errors: Vec<Error>,
}

/// Looks up what the machine of a request names.
///
/// # Errors
///
/// The answer, where the machine cannot be judged or is refused.
pub async fn look_up(task: Alone, request: &Request, client: &Client) -> Result<Found, Response> {
    let mut object = request.object.clone();
    if task == Alone::MutateVm {
        let mut problems = Problems::default();
        instancetype::check_matchers(None, &object, &mut problems);
        // What is wrong already is told by the validating webhook.
        if problems.is_empty()
            && let Err((field, error)) = infer(client, &request.namespace, &mut object).await
        {
            if error.is_passing() {
                return Err(passing(request, &error));
            }
            let problem = Problem { reason: Reason::FieldValueInvalid, message: error.message(), field };
            return Err(judged(request, Problems(vec![problem])));
        }
    }
    let (specs, errors) = find(client, &request.namespace, &object).await;
    if let Some(error) = errors.iter().find(|error| error.is_passing()) {
        return Err(passing(request, error));
    }
    Ok(Found { object, specs, errors })
}

impl Found {
    /// Answers the request.
    pub fn judge(self, task: Alone, request: &Request, cluster: &Cluster, namespace: &str) -> Response {
        let Found { mut object, specs, errors } = self;
        if task == Alone::MutateVm {
            instancetype::mutate(&mut object, &specs);
        }
        let mut response = answer_with(task, request, &object, &specs, cluster, namespace);
        if task == Alone::ValidateVm && response.allowed {
            let waits =
                |error: &Error| format!("{}: the machine does not start until it is there", error.message());
            response.warnings.extend(errors.iter().map(waits));
        }
        response
    }
}

fn passing(request: &Request, error: &Error) -> Response {
    warn!(error = error as &dyn std::error::Error, "the API server cannot be asked for a review");
    Response::failed(&request.uid, "the API server cannot be asked now".to_owned())
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use podvirt_daemon::testing;
    use serde_json::json;

    use super::*;

    /// A cluster with an instance type, a preference and a claim that names the first.
    fn cluster() -> Client {
        testing::client("shop", |_, uri, _| {
            let found = match uri.path() {
                "/apis/instancetype.kubevirt.io/v1beta1/virtualmachineclusterinstancetypes/small" => {
                    json!({"apiVersion": "instancetype.kubevirt.io/v1beta1", "kind": "VirtualMachineClusterInstancetype",
                        "metadata": {"name": "small"}, "spec": {"cpu": {"guest": 1}, "memory": {"guest": "64Mi"}}})
                }
                "/apis/instancetype.kubevirt.io/v1beta1/namespaces/shop/virtualmachinepreferences/q35" => {
                    json!({"apiVersion": "instancetype.kubevirt.io/v1beta1", "kind": "VirtualMachinePreference",
                        "metadata": {"name": "q35", "namespace": "shop"}, "spec": {"machine": {"preferredMachineType": "pc-q35-9.0"}}})
                }
                "/api/v1/namespaces/shop/persistentvolumeclaims/disk" => {
                    json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": {"name": "disk",
                        "labels": {"instancetype.kubevirt.io/default-instancetype": "small"}}})
                }
                path => return testing::failure(404, "NotFound", &format!("{path} not found")),
            };
            (200, found)
        })
    }

    fn request(spec: &Value) -> Request {
        let mut object = json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": "vm", "namespace": "shop"},
            "spec": {"runStrategy": "Halted", "template": {"spec": {"domain": {"devices": {}},
                "volumes": [{"name": "root", "persistentVolumeClaim": {"claimName": "disk"}}]}}},
        });
        json_patch::merge(&mut object, &json!({ "spec": spec }));
        serde_json::from_value(
            json!({"uid": "r", "operation": "CREATE", "namespace": "shop", "object": object,
            "userInfo": {"username": "jane"}}),
        )
        .unwrap()
    }

    /// What is stored of a machine, and what is told of it.
    async fn stored(spec: Value) -> Result<(Value, Vec<String>), String> {
        let client = cluster();
        let mut request = request(&spec);
        let refusal = |response: &Response| response.status.as_ref().map(|status| status.message.clone());
        for task in [Alone::MutateVm, Alone::ValidateVm] {
            assert!(concerns(task, &request) || task == Alone::ValidateVm);
            let response = match look_up(task, &request, &client).await {
                Ok(found) => found.judge(task, &request, &Cluster::default(), "kubevirt"),
                Err(response) => response,
            };
            if let Some(message) = refusal(&response) {
                return Err(message);
            }
            if let Some(patch) = &response.patch {
                let text = base64::engine::general_purpose::STANDARD.decode(patch).unwrap();
                let patch: json_patch::Patch = serde_json::from_slice(&text).unwrap();
                json_patch::patch(&mut request.object, &patch).unwrap();
            }
            if task == Alone::ValidateVm {
                return Ok((request.object["spec"].clone(), response.warnings));
            }
        }
        unreachable!()
    }

    #[tokio::test]
    async fn what_a_volume_tells_is_stored_and_the_preferences_hardware_too() {
        let spec = json!({"instancetype": {"inferFromVolume": "root"},
            "preference": {"name": "q35", "kind": "VirtualMachinePreference"}});
        let (spec, warnings) = stored(spec).await.unwrap();
        assert_eq!(spec["instancetype"], json!({"name": "small"}));
        assert_eq!(spec["template"]["spec"]["domain"]["machine"]["type"], "pc-q35-9.0");
        assert_eq!(warnings, [""; 0]);
    }

    #[tokio::test]
    async fn what_is_not_there_is_warned_of_and_a_volume_that_tells_nothing_is_refused() {
        let (_, warnings) = stored(json!({"instancetype": {"name": "large"}})).await.unwrap();
        assert_eq!(warnings.len(), 1);
        assert!(warnings[0].contains("virtualmachineclusterinstancetypes/large not found"), "{warnings:?}");
        let refused = stored(json!({"preference": {"inferFromVolume": "root"}})).await.unwrap_err();
        let told = "spec.preference.inferFromVolume: unable to find required instancetype.kubevirt.io/default-preference \
                    label on the volume";
        assert_eq!(refused, told);
        let ignored = json!({"inferFromVolume": "root", "inferFromVolumeFailurePolicy": "Ignore"});
        let memory = json!({"spec": {"domain": {"memory": {"guest": "64Mi"}}}});
        let (spec, _) = stored(json!({"preference": ignored, "template": memory})).await.unwrap();
        assert_eq!(spec.get("preference"), None);
        // A name becomes a part of a path.
        let refused = stored(json!({"instancetype": {"name": "../../secrets/x"}})).await.unwrap_err();
        assert!(refused.starts_with("spec.instancetype.name: '../../secrets/x' is not allowed"), "{refused}");
    }
}
