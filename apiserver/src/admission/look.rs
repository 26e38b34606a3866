//! Reviews that need other objects than the one under review.

use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client};
use podvirt_api::admission::{migration, snapshot};
use podvirt_api::migration::is_final;
use podvirt_api::names::pod::HOTPLUG_PREFIX;
use podvirt_api::names::{self, label};
use podvirt_api::v1::{
    KubeVirtConfiguration, VirtualMachineInstance, VirtualMachineInstanceMigration as Migration,
    VirtualMachineRestore,
};
use serde_json::json;
use tracing::{info, warn};

use super::evict::{self, Verdict};
use super::review::{Request, Response};
use super::{Looking, judged};
use crate::retry::{self, MAX_ATTEMPTS};

/// Answers a request.
pub async fn answer(
    task: Looking,
    request: &Request,
    config: &KubeVirtConfiguration,
    client: &Client,
) -> Response {
    let answer = match task {
        Looking::ValidateMigrationCreate => migration_create(request, client).await,
        Looking::ValidateRestoreCreate => restore_create(request, client).await,
        Looking::Evict => evict(request, config, client).await,
    };
    answer.unwrap_or_else(|error| {
        warn!(error = &error as &dyn std::error::Error, "the API server cannot be asked for a review");
        match task {
            Looking::ValidateMigrationCreate | Looking::ValidateRestoreCreate => {
                Response::failed(&request.uid, "the API server cannot be asked now".to_owned())
            }
            // What empties a node asks again after 429, and gives up after anything else.
            Looking::Evict => {
                let machine = format!("the machine of pod {}/{}", request.namespace, request.name);
                let message = format!("{machine} cannot be looked up or marked now: {error}; try again");
                Response::later(&request.uid, message)
            }
        }
    })
}

/// Whether an eviction is only tried: by the request, or by the options in the Eviction itself.
fn is_dry_run(request: &Request) -> bool {
    let own = request.object["deleteOptions"]["dryRun"].as_array();
    request.dry_run || own.is_some_and(|list| list.iter().any(|value| value == "All"))
}

async fn migration_create(request: &Request, client: &Client) -> Result<Response, kube::Error> {
    let object = &request.object;
    let (vmi, open) = match migration::vmi_name(object) {
        Some(name) => {
            let vmis: Api<VirtualMachineInstance> = Api::namespaced(client.clone(), &request.namespace);
            let migrations: Api<Migration> = Api::namespaced(client.clone(), &request.namespace);
            let selector = format!("{}={}", label::MIGRATION_VMI, names::label_value(name));
            let params = ListParams::default().labels(&selector);
            let (vmi, of_machine) = tokio::try_join!(vmis.get_opt(name), migrations.list(&params))?;
            let open = of_machine.items.into_iter().filter(|m| {
                // The label of a long name ends with a hash, which another name may have as well.
                m.spec.vmi_name.as_deref() == Some(name) && !is_final(m)
            });
            (vmi, open.map(|m| m.metadata.name.unwrap_or_default()).collect::<Vec<_>>())
        }
        None => (None, Vec::new()),
    };
    Ok(judged(request, migration::validate_create(object, vmi.as_ref(), &open)))
}

async fn restore_create(request: &Request, client: &Client) -> Result<Response, kube::Error> {
    let restores: Api<VirtualMachineRestore> = Api::namespaced(client.clone(), &request.namespace);
    let others = restores.list(&ListParams::default()).await?.items;
    Ok(judged(request, snapshot::validate_restore(&request.object, &others)))
}

async fn evict(
    request: &Request,
    config: &KubeVirtConfiguration,
    client: &Client,
) -> Result<Response, kube::Error> {
    let allowed = || Ok(Response::allowed(&request.uid));
    if request.name.starts_with(HOTPLUG_PREFIX) {
        return evict_attachment(request, client).await;
    }
    if !request.name.starts_with(evict::LAUNCHER_PREFIX) {
        return allowed();
    }
    let pods = Api::namespaced(client.clone(), &request.namespace);
    let Some(pod) = pods.get_opt(&request.name).await? else { return allowed() };
    let Some(name) = evict::machine_of(&pod) else { return allowed() };
    let vmis: Api<VirtualMachineInstance> = Api::namespaced(client.clone(), &request.namespace);
    for attempt in 0..MAX_ATTEMPTS {
        let Some(vmi) = vmis.get_opt(name).await? else { return allowed() };
        let (message, mark) = match evict::judge(&pod, &vmi, config) {
            Verdict::Allow => return allowed(),
            Verdict::Deny { message, mark } => (message, mark),
        };
        if let Some(node) = mark.filter(|_| !is_dry_run(request)) {
            let change = json!({
                "metadata": {"resourceVersion": vmi.metadata.resource_version},
                "status": {"evacuationNodeName": node},
            });
            match vmis.patch(name, &PatchParams::default(), &Patch::Merge(change)).await {
                Ok(_) => {
                    info!(
                        namespace = request.namespace,
                        machine = name,
                        node,
                        "the machine is to leave its node"
                    );
                }
                Err(kube::Error::Api(status)) if status.is_conflict() => {
                    retry::pause(attempt).await;
                    continue;
                }
                Err(error) => return Err(error),
            }
        }
        return Ok(Response::later(&request.uid, message));
    }
    let message = format!("machine {}/{name} keeps changing: try again", request.namespace);
    Ok(Response::later(&request.uid, message))
}

/// Judges the eviction of an attachment pod.
async fn evict_attachment(request: &Request, client: &Client) -> Result<Response, kube::Error> {
    let allowed = || Ok(Response::allowed(&request.uid));
    let pods: Api<Pod> = Api::namespaced(client.clone(), &request.namespace);
    let Some(pod) = pods.get_opt(&request.name).await? else { return allowed() };
    let Some((launcher, uid)) = evict::launcher_of(&pod) else { return allowed() };
    let owner = pods.get_opt(launcher).await?;
    let Some(owner) = owner.filter(|owner| owner.metadata.uid.as_deref() == Some(uid)) else {
        return allowed();
    };
    let Some(machine) = evict::machine_of(&owner).filter(|_| !evict::has_ended(&owner)) else {
        return allowed();
    };
    let vmis: Api<VirtualMachineInstance> = Api::namespaced(client.clone(), &request.namespace);
    if vmis.get_metadata_opt(machine).await?.is_none() {
        return allowed();
    }
    let message = format!(
        "pod {} holds disks that are plugged into the running VMI \"{}/{machine}\": it goes with its launcher pod {launcher}",
        request.name, request.namespace
    );
    Ok(Response::later(&request.uid, message))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use podvirt_daemon::testing;
    use serde_json::Value;

    use super::*;

    /// A client whose API server answers by `answer`, and what it was asked: method, path and query, body.
    type Asked = Arc<Mutex<Vec<(String, Value)>>>;

    fn server(answer: impl Fn(&str) -> (u16, Value) + Send + Sync + 'static) -> (Client, Asked) {
        let asked = Asked::default();
        let log = asked.clone();
        let client = testing::client("shop", move |method, uri, body| {
            let what = format!("{method} {uri}");
            let answer = answer(&what);
            log.lock().unwrap().push((what, body));
            answer
        });
        (client, asked)
    }

    fn failure(code: u16, reason: &str) -> (u16, Value) {
        testing::failure(code, reason, reason)
    }

    fn request(value: Value) -> Request {
        serde_json::from_value(value).unwrap()
    }

    async fn answered(task: Looking, request: &Request, client: &Client) -> Value {
        let answer = answer(task, request, &KubeVirtConfiguration::default(), client).await;
        answer.into_review()["response"].clone()
    }

    fn pod() -> Value {
        json!({"metadata": {"name": "virt-launcher-web-x", "labels": {"kubevirt.io": "virt-launcher",
            "kubevirt.io/created-by": "m1"}, "annotations": {"kubevirt.io/domain": "web"}}, "status": {"phase": "Running"}})
    }

    fn vmi() -> Value {
        json!({"metadata": {"name": "web", "namespace": "shop", "uid": "m1", "resourceVersion": "7"},
            "spec": {"domain": {"devices": {}}, "evictionStrategy": "LiveMigrate"},
            "status": {"phase": "Running", "nodeName": "n1", "conditions": [{"type": "LiveMigratable", "status": "True"}]}})
    }

    #[tokio::test]
    async fn an_eviction_is_held_back_and_marks_the_machine_once_it_is_meant() {
        let tried = json!({"deleteOptions": {"dryRun": ["All"]}});
        for (dry_run, object) in [(false, Value::Null), (true, Value::Null), (true, tried)] {
            let conflicts = Mutex::new(1);
            let (client, asked) = server(move |what| {
                if what.starts_with("PATCH") {
                    let mut left = conflicts.lock().unwrap();
                    if *left > 0 {
                        *left -= 1;
                        return failure(409, "Conflict");
                    }
                }
                if what.contains("/pods/") { (200, pod()) } else { (200, vmi()) }
            });
            let review = request(json!({"uid": "r", "operation": "CREATE", "namespace": "shop",
                "name": "virt-launcher-web-x", "dryRun": dry_run && object.is_null(), "object": object}));
            let response = answered(Looking::Evict, &review, &client).await;
            assert_eq!((&response["allowed"], &response["status"]["code"]), (&json!(false), &json!(429)));
            assert_eq!(response["status"]["reason"], "TooManyRequests");
            let asked = asked.lock().unwrap();
            let patches: Vec<_> = asked.iter().filter(|(what, _)| what.starts_with("PATCH")).collect();
            // Changed in between, it is read and marked anew.
            assert_eq!(patches.len(), if dry_run { 0 } else { 2 });
            for (_, body) in patches {
                assert_eq!(
                    *body,
                    json!({"metadata": {"resourceVersion": "7"}, "status": {"evacuationNodeName": "n1"}})
                );
            }
        }
    }

    #[tokio::test]
    async fn what_is_no_launcher_or_has_no_machine_is_evicted() {
        let (client, asked) =
            server(|what| if what.contains("/pods/") { (200, pod()) } else { failure(404, "NotFound") });
        let other = request(json!({"uid": "r", "namespace": "shop", "name": "web-1"}));
        assert_eq!(answered(Looking::Evict, &other, &client).await["allowed"], true);
        assert_eq!(asked.lock().unwrap().len(), 0, "the API server was not asked");
        let launcher = request(json!({"uid": "r", "namespace": "shop", "name": "virt-launcher-web-x"}));
        assert_eq!(answered(Looking::Evict, &launcher, &client).await["allowed"], true);
    }

    #[tokio::test]
    async fn an_attachment_pod_stays_as_long_as_its_launcher_lives() {
        let attachment = json!({"metadata": {"name": "hp-volume-x", "labels": {"kubevirt.io": "hotplug-disk"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "virt-launcher-web-x", "uid": "p1",
                "controller": true}]}, "status": {"phase": "Running"}});
        let launcher = |uid: &str, phase: &str| {
            let mut pod = pod();
            (pod["metadata"]["uid"], pod["status"]["phase"]) = (uid.into(), phase.into());
            pod
        };
        let gone = json!(null);
        for (launcher, machine, allowed) in [
            (launcher("p1", "Running"), vmi(), false),
            (launcher("p1", "Pending"), vmi(), false),
            (launcher("p1", "Failed"), vmi(), true),
            (launcher("p1", "Succeeded"), vmi(), true),
            (launcher("p2", "Running"), vmi(), true),
            (gone.clone(), vmi(), true),
            (launcher("p1", "Running"), gone, true),
        ] {
            let own = attachment.clone();
            let (client, asked) = server(move |what| {
                let found = match what {
                    _ if what.contains("/pods/hp-volume-x") => &own,
                    _ if what.contains("/pods/virt-launcher-web-x") => &launcher,
                    _ => &machine,
                };
                if found.is_null() { failure(404, "NotFound") } else { (200, found.clone()) }
            });
            let review = request(json!({"uid": "r", "namespace": "shop", "name": "hp-volume-x"}));
            let response = answered(Looking::Evict, &review, &client).await;
            assert_eq!(response["allowed"], allowed, "{response}");
            assert!(allowed || response["status"]["code"] == 429, "{response}");
            assert!(
                asked.lock().unwrap().iter().all(|(what, _)| what.starts_with("GET")),
                "nothing is marked"
            );
        }
    }

    #[tokio::test]
    async fn a_migration_is_judged_by_its_machine_and_its_open_migrations() {
        for (phase, allowed) in [("Running", false), ("Succeeded", true)] {
            let (client, asked) = server(move |what| {
                let list = json!({"items": [{"metadata": {"name": "first"}, "spec": {"vmiName": "web"},
                    "status": {"phase": phase}}], "metadata": {}});
                if what.contains("migrations") { (200, list) } else { (200, vmi()) }
            });
            let review = request(json!({"uid": "r", "operation": "CREATE", "namespace": "shop",
                "object": {"spec": {"vmiName": "web"}}}));
            let response = answered(Looking::ValidateMigrationCreate, &review, &client).await;
            assert_eq!(response["allowed"], allowed, "{response}");
            assert!(allowed || response["status"]["message"].as_str().unwrap().contains("'first'"));
            let asked = asked.lock().unwrap();
            assert!(
                asked.iter().any(|(what, _)| what.contains("labelSelector=kubevirt.io%2Fvmi-name%3Dweb")),
                "{asked:?}"
            );
        }
    }

    #[tokio::test]
    async fn an_eviction_that_cannot_be_judged_now_is_to_be_asked_for_again() {
        // The pod, its machine and the mark: each may be what fails.
        for (failing, code) in [("/pods/", 500), ("GET", 503), ("PATCH", 500), ("PATCH", 403)] {
            let (client, _) = server(move |what| {
                let pods = what.contains("/pods/");
                if what.contains(failing) && (failing != "GET" || !pods) {
                    return failure(code, "InternalError");
                }
                if pods { (200, pod()) } else { (200, vmi()) }
            });
            let review = request(json!({"uid": "r", "namespace": "shop", "name": "virt-launcher-web-x"}));
            let response = answered(Looking::Evict, &review, &client).await;
            let status = &response["status"];
            assert_eq!((&response["allowed"], &status["code"]), (&json!(false), &json!(429)), "{failing}");
            assert_eq!(status["reason"], "TooManyRequests");
            let message = status["message"].as_str().unwrap();
            assert!(
                message.contains("shop/virt-launcher-web-x") && message.contains("try again"),
                "{message}"
            );
        }
    }

    #[tokio::test]
    async fn a_migration_that_cannot_be_judged_is_no_verdict() {
        let (client, _) = server(|_| failure(500, "InternalError"));
        let review =
            request(json!({"uid": "r", "namespace": "shop", "object": {"spec": {"vmiName": "web"}}}));
        assert_eq!(answered(Looking::ValidateMigrationCreate, &review, &client).await["status"]["code"], 500);
    }
}
