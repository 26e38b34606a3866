//! Judging the KubeVirt object before it is stored.
//!
//! virt-operator does it and not virt-api: an administrator must be able to mend a setting that keeps virt-api from
//! coming up. Every replica answers, and keeps the webhook's configuration in the cluster. A review is answered at the path that
//! this configuration names, which no pod can guess ([`WebhookPaths`]): an answer tells whether there are machines. What a
//! review may take of memory stands in [`review`].

mod review;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use base64::Engine;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::api::{DynamicObject, ListParams, Patch, PatchParams};
use kube::core::{ApiResource, PartialObjectMeta};
use kube::{Api, Client};
use podvirt_api::admission::kubevirt::{validate, validate_update};
use podvirt_api::error::chain;
use podvirt_api::names;
use podvirt_api::problem::Problems;
use podvirt_api::v1::{KubeVirt, KubeVirtUninstallStrategy};
use podvirt_daemon::pki::{PathError, WebhookPaths};
use review::{Review, ReviewError, cut, read_body};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::customize::{CustomizeError, check};
use crate::rights::ACCOUNT;
use crate::target::{Own, Target};

/// Name of the webhook's configuration.
pub const NAME: &str = "virt-operator-validator";
/// Service in front of virt-operator.
pub const SERVICE: &str = "kubevirt-operator-webhook";
const HOOK: &str = "kubevirt-validator.kubevirt.io";
const PATH: &str = "/kubevirt-validate";
/// Reviews in their read form at a time.
const MAX_REVIEWS_AT_ONCE: usize = 2;

/// Kinds whose objects are workloads, in the order in which they are told.
const WORKLOADS: [(&str, &str, &str, &str); 4] = [
    ("kubevirt.io", "v1", "virtualmachines", "VirtualMachines"),
    ("kubevirt.io", "v1", "virtualmachineinstances", "VirtualMachineInstances"),
    ("kubevirt.io", "v1", "virtualmachineinstancereplicasets", "VirtualMachineInstanceReplicaSets"),
    ("pool.kubevirt.io", "v1beta1", "virtualmachinepools", "VirtualMachinePools"),
];

/// Why a change of the KubeVirt object is not allowed.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    /// There is one KubeVirt object, and the daemons know its name.
    #[error(
        "metadata.name: {name} in namespace {namespace}: a cluster has one KubeVirt object, '{only}' in namespace '{home}'",
        only = names::KUBEVIRT
    )]
    Another { name: Value, namespace: Value, home: Arc<str> },
    #[error("{}", told(.0))]
    Fields(Problems),
    #[error(transparent)]
    Unreadable(#[from] serde_json::Error),
    #[error(transparent)]
    Customize(#[from] CustomizeError),
    #[error(
        "spec.uninstallStrategy: '{strategy}': the object is not deleted, there are still {title}; delete them first, or set \
         uninstallStrategy to RemoveWorkloads, which deletes them",
        strategy = BLOCKS.as_str()
    )]
    Workloads { title: &'static str },
    #[error("whether there are {title} cannot be found out")]
    Unknown { title: &'static str, source: kube::Error },
    #[error("request.operation: '{0}': CREATE, UPDATE, DELETE or CONNECT is allowed")]
    Operation(String),
}

fn told(problems: &Problems) -> String {
    let texts: Vec<String> = problems.0.iter().map(ToString::to_string).collect();
    texts.join("; ")
}

/// The strategy by which workloads keep podvirt.
const BLOCKS: KubeVirtUninstallStrategy = KubeVirtUninstallStrategy::BlockUninstallIfWorkloadsExist;

/// What the webhook goes by.
#[derive(Clone)]
pub struct Judge {
    client: Client,
    namespace: Arc<str>,
    own: Arc<Own>,
    paths: WebhookPaths,
    turns: Arc<Semaphore>,
}

impl Judge {
    /// A judge of the KubeVirt object in `namespace`, which is asked at one of `paths`.
    pub fn new(client: Client, namespace: &str, own: Own, paths: WebhookPaths) -> Self {
        Self {
            client,
            namespace: Arc::from(namespace),
            own: Arc::new(own),
            turns: Arc::new(Semaphore::new(MAX_REVIEWS_AT_ONCE)),
            paths,
        }
    }

    /// The webhook's route.
    pub fn router(self) -> Router {
        let router = Router::new().route(&format!("{PATH}/{{token}}"), post(answer));
        router.fallback(async || not_found()).with_state(self)
    }

    async fn judge(&self, review: &Review) -> Result<(), Refusal> {
        let (new, old) = (&review.new, &review.old);
        match review.operation.as_str() {
            "CREATE" => {
                self.only(new)?;
                validate(new).into_result().map_err(Refusal::Fields)?;
                self.fits(new)
            }
            "UPDATE" if !new["metadata"]["deletionTimestamp"].is_null() => Ok(()),
            "UPDATE" => {
                validate_update(old, new).into_result().map_err(Refusal::Fields)?;
                if old["spec"] == new["spec"] { Ok(()) } else { self.fits(new) }
            }
            "DELETE" => self.may_go(old).await,
            "CONNECT" => Ok(()),
            other => Err(Refusal::Operation(other.to_owned())),
        }
    }

    /// Whether it is the one KubeVirt object.
    fn only(&self, new: &Value) -> Result<(), Refusal> {
        let (namespace, name) = (&new["metadata"]["namespace"], &new["metadata"]["name"]);
        if *namespace == *self.namespace && *name == names::KUBEVIRT {
            return Ok(());
        }
        let home = Arc::clone(&self.namespace);
        Err(Refusal::Another { name: name.clone(), namespace: namespace.clone(), home })
    }

    /// Whether podvirt's objects can be made by it.
    fn fits(&self, new: &Value) -> Result<(), Refusal> {
        let kubevirt = KubeVirt::deserialize(new)?;
        let target = Target::of(&kubevirt.spec, &self.own);
        Ok(check(&kubevirt.spec, &target, &self.namespace)?)
    }

    /// Whether podvirt may be removed with the machines that are there.
    async fn may_go(&self, old: &Value) -> Result<(), Refusal> {
        if old["spec"]["uninstallStrategy"].as_str() != Some(BLOCKS.as_str()) {
            return Ok(());
        }
        for (group, version, plural, title) in WORKLOADS {
            let resource = ApiResource {
                group: group.to_owned(),
                version: version.to_owned(),
                api_version: format!("{group}/{version}"),
                kind: title.trim_end_matches('s').to_owned(),
                plural: plural.to_owned(),
            };
            let api: Api<PartialObjectMeta<DynamicObject>> = Api::all_with(self.client.clone(), &resource);
            match api.list(&ListParams::default().limit(1)).await {
                Ok(list) if list.items.is_empty() => {}
                Ok(_) => return Err(Refusal::Workloads { title }),
                // The kind is not there: neither are objects of it.
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(source) => return Err(Refusal::Unknown { title, source }),
            }
        }
        Ok(())
    }
}

/// What a client gets that is not the API server.
fn not_found() -> Response {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "NotFound", "code": 404,
        "message": "the server could not find the requested resource",
    });
    (StatusCode::NOT_FOUND, Json(status)).into_response()
}

async fn answer(State(judge): State<Judge>, Path(token): Path<String>, body: Body) -> Response {
    if !judge.paths.admits(PATH, &token).await {
        return not_found();
    }
    match respond(&judge, body).await {
        Ok(review) => Json(review).into_response(),
        Err(error) => {
            let code = match error {
                ReviewError::Length => StatusCode::PAYLOAD_TOO_LARGE,
                ReviewError::Late => StatusCode::REQUEST_TIMEOUT,
                _ => StatusCode::BAD_REQUEST,
            };
            (code, chain(&error)).into_response()
        }
    }
}

/// The answer to the review in `body`.
async fn respond(judge: &Judge, body: Body) -> Result<Value, ReviewError> {
    let text = read_body(body).await?;
    // The semaphore is never closed. The turn ends behind the answer, which holds nothing of the review's objects.
    let _turn = judge.turns.acquire().await.ok();
    let review = Review::parse(text)?;
    let refusal = judge.judge(&review).await.err().map(|refusal| cut(chain(&refusal)));
    if let Some(why) = &refusal {
        tracing::info!(operation = review.operation, why, "refused");
    }
    Ok(review.answer(refusal.as_deref()))
}

/// The configuration that tells the API server of the webhook.
fn configuration(namespace: &str, ca_bundle: &str, path: &str, owner: Option<&str>) -> Value {
    let mut metadata = json!({"name": NAME, "labels": {"kubevirt.io": "virt-operator"}});
    if let Some(uid) = owner {
        metadata["ownerReferences"] = json!([{
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "name": ACCOUNT, "uid": uid,
        }]);
    }
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": metadata,
        "webhooks": [{
            "name": HOOK,
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "failurePolicy": "Fail",
            "matchPolicy": "Equivalent",
            "timeoutSeconds": 10,
            "rules": [{
                "apiGroups": ["kubevirt.io"], "apiVersions": ["v1"], "resources": ["kubevirts"], "scope": "*",
                "operations": ["CREATE", "UPDATE", "DELETE"],
            }],
            "clientConfig": {
                "service": {"namespace": namespace, "name": SERVICE, "port": 443, "path": path},
                "caBundle": base64::engine::general_purpose::STANDARD.encode(ca_bundle),
            },
        }],
    })
}

/// Applies the configuration.
///
/// # Errors
///
/// The API server refuses it, or there is no CA.
pub async fn register(
    client: &Client,
    namespace: &str,
    ca_bundle: &str,
    paths: &WebhookPaths,
) -> Result<(), PathError> {
    let key = paths.read().await?;
    let roles: Api<ClusterRole> = Api::all(client.clone());
    let owner = roles.get_opt(ACCOUNT).await?.and_then(|role| role.metadata.uid);
    let object = configuration(namespace, ca_bundle, &key.path(PATH), owner.as_deref());
    let api: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    api.patch(NAME, &PatchParams::apply(crate::customize::OPERATOR).force(), &Patch::Apply(&object)).await?;
    paths.forget_replaced();
    Ok(())
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::Request;
    use jiff::Timestamp;
    use podvirt_daemon::pki::{PathKey, make_ca};
    use podvirt_daemon::testing::{self, ca_secret};
    use tower::ServiceExt;

    use super::*;

    /// Asks a judge in a cluster whose lists hold `machines`; the refusal's words.
    async fn asked(operation: &str, new: Value, old: Value, machines: usize) -> Option<String> {
        let (code, answer) = asked_at(None, operation, new, old, machines).await;
        assert_eq!((code.as_u16(), &answer["response"]["uid"]), (200, &json!("u")), "{answer}");
        let allowed = answer["response"]["allowed"].as_bool().unwrap();
        (!allowed).then(|| answer["response"]["status"]["message"].as_str().unwrap().to_owned())
    }

    /// The same at a path that is not registered, if one is given; code and body of the answer.
    async fn asked_at(
        path: Option<&str>,
        operation: &str,
        new: Value,
        old: Value,
        machines: usize,
    ) -> (StatusCode, Value) {
        let ca = make_ca(Timestamp::now(), std::time::Duration::from_secs(3600)).unwrap();
        let key = PathKey::new(&ca);
        let client = testing::client("kubevirt", move |_, uri, _| {
            if uri.path().ends_with("/secrets/kubevirt-ca") {
                return (200, ca_secret(&ca));
            }
            let there = if uri.path().ends_with("/virtualmachines") { machines } else { 0 };
            let items = vec![json!({"metadata": {"name": "m"}}); there];
            (200, json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": items}))
        });
        let paths = WebhookPaths::new(client.clone(), "kubevirt");
        let judge = Judge::new(client, "kubevirt", Own::from_env(|_| None), paths);
        let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
            "uid": "u", "operation": operation, "object": new, "oldObject": old, "userInfo": {},
            "kind": {"group": "kubevirt.io", "version": "v1", "kind": "KubeVirt"}, "name": "kubevirt",
            "resource": {"group": "kubevirt.io", "version": "v1", "resource": "kubevirts"},
        }});
        let path = path.map_or_else(|| key.path(PATH), ToOwned::to_owned);
        let request = Request::post(path).header("content-type", "application/json");
        let request = request.body(Body::from(review.to_string())).unwrap();
        let answer = judge.router().oneshot(request).await.unwrap();
        let code = answer.status();
        let body = axum::body::to_bytes(answer.into_body(), 1 << 20).await.unwrap();
        (code, serde_json::from_slice(&body).unwrap())
    }

    fn kubevirt(spec: Value) -> Value {
        json!({"apiVersion": "kubevirt.io/v1", "kind": "KubeVirt", "spec": spec,
            "metadata": {"name": "kubevirt", "namespace": "kubevirt"}})
    }

    #[tokio::test]
    async fn there_is_one_kubevirt_object() {
        assert_eq!(asked("CREATE", kubevirt(json!({})), Value::Null, 0).await, None);
        let mut other = kubevirt(json!({}));
        other["metadata"]["name"] = json!("second");
        assert!(asked("CREATE", other, Value::Null, 0).await.unwrap().contains("one KubeVirt object"));
    }

    #[tokio::test]
    async fn settings_that_cannot_be_carried_out_are_refused_with_their_field() {
        let patch =
            json!({"resourceType": "Deployment", "resourceName": "virt-api", "type": "merge", "patch": "{"});
        let wrong = kubevirt(json!({"customizeComponents": {"patches": [patch]}}));
        let why = asked("UPDATE", wrong.clone(), kubevirt(json!({})), 0).await.unwrap();
        assert!(why.starts_with("spec.customizeComponents.patches[0].patch"), "{why}");
        let mut going = wrong;
        going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert_eq!(
            asked("UPDATE", going, kubevirt(json!({})), 0).await,
            None,
            "its finalizer must be able to go"
        );
        let replicas = kubevirt(json!({"infra": {"replicas": 0}}));
        let why = asked("UPDATE", replicas, kubevirt(json!({})), 0).await.unwrap();
        assert!(why.starts_with("spec.infra.replicas"), "{why}");
    }

    #[tokio::test]
    async fn workloads_keep_podvirt_only_where_the_strategy_says_so() {
        let blocks = kubevirt(json!({"uninstallStrategy": "BlockUninstallIfWorkloadsExist"}));
        let why = asked("DELETE", Value::Null, blocks.clone(), 1).await.unwrap();
        assert!(why.contains("there are still VirtualMachines"), "{why}");
        assert_eq!(asked("DELETE", Value::Null, blocks, 0).await, None);
        assert_eq!(asked("DELETE", Value::Null, kubevirt(json!({})), 1).await, None);
    }

    #[tokio::test]
    async fn a_review_at_another_path_does_not_tell_whether_there_are_machines() {
        let blocks = kubevirt(json!({"uninstallStrategy": "BlockUninstallIfWorkloadsExist"}));
        for path in [PATH.to_owned(), format!("{PATH}/{}", "0".repeat(64))] {
            let (code, answer) = asked_at(Some(&path), "DELETE", Value::Null, blocks.clone(), 1).await;
            assert_eq!((code.as_u16(), &answer["kind"]), (404, &json!("Status")), "{path}");
            assert!(!answer.to_string().contains("VirtualMachines"), "{answer}");
        }
    }

    #[test]
    fn the_configuration_is_what_kubernetes_types_hold() {
        let object = configuration("n", "pem", "/kubevirt-validate/1f", Some("u"));
        let typed: ValidatingWebhookConfiguration = serde_json::from_value(object).unwrap();
        let hook = &typed.webhooks.unwrap()[0];
        assert_eq!(hook.client_config.ca_bundle.as_ref().unwrap().0, b"pem");
        let service = hook.client_config.service.as_ref().unwrap();
        assert_eq!(service.path.as_deref(), Some("/kubevirt-validate/1f"));
        assert_eq!(hook.failure_policy.as_deref(), Some("Fail"));
        assert_eq!(typed.metadata.owner_references.unwrap()[0].uid, "u");
    }
}
