//! Reviews that need other objects than the one under review.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, Resource as _};
use podvirt_api::admission::{migration, snapshot};
use podvirt_api::migration::is_final;
use podvirt_api::names::pod::HOTPLUG_PREFIX;
use podvirt_api::names::{self, label};
use podvirt_api::v1::{
    KubeVirtConfiguration, VirtualMachine, VirtualMachineInstance,
    VirtualMachineInstanceMigration as Migration, VirtualMachineRestore,
};
use podvirt_api::validate::{is_dns_label, is_dns_subdomain};
use serde::Deserialize;
use serde_json::{Value, json};
use tracing::{info, warn};

use super::evict::{self, Verdict};
use super::review::{Request, Response};
use super::{Lookup, judged};
use crate::pages;
use crate::retry::{self, MAX_ATTEMPTS};

/// Answers a request.
pub async fn answer(
    task: Lookup,
    request: &Request,
    config: &KubeVirtConfiguration,
    client: &Client,
) -> Response {
    let answer = match task {
        Lookup::ValidateMigrationCreate => migration_create(request, client).await,
        Lookup::ValidateRestoreCreate => restore_create(request, client).await,
        Lookup::Evict => Box::pin(evict(request, config, client)).await,
    };
    answer.unwrap_or_else(|error| {
        warn!(error = &error as &dyn std::error::Error, "the API server cannot be asked for a review");
        match task {
            Lookup::ValidateMigrationCreate | Lookup::ValidateRestoreCreate => {
                Response::failed(&request.uid, "the API server cannot be asked now".to_owned())
            }
            // What empties a node asks again after 429, and gives up after anything else.
            Lookup::Evict => {
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
            let mut open = Vec::new();
            let listed = pages::each(&migrations, params, |migration| {
                // The label of a long name ends with a hash, which another name may have as well.
                if migration.spec.vmi_name.as_deref() == Some(name) && !is_final(&migration) {
                    open.push(migration.metadata.name.unwrap_or_default());
                }
            });
            let (vmi, ()) = tokio::try_join!(vmis.get_opt(name), listed)?;
            (vmi, open)
        }
        None => (None, Vec::new()),
    };
    Ok(judged(request, migration::validate_create(object, vmi.as_ref(), &open)))
}

async fn restore_create(request: &Request, client: &Client) -> Result<Response, kube::Error> {
    let target = request.object["spec"]["target"]["name"].as_str().unwrap_or_default();
    // They become parts of paths; the API server knows none of another form.
    let (open, has_target) = if is_dns_label(&request.namespace) && is_dns_subdomain(target) {
        let vms: Api<VirtualMachine> = Api::namespaced(client.clone(), &request.namespace);
        let listed = open_restores(client, &request.namespace, target);
        let (open, vm) = tokio::try_join!(listed, vms.get_metadata_opt(target))?;
        (open, vm.is_some())
    } else {
        (Vec::new(), false)
    };
    Ok(judged(request, snapshot::validate_restore(&request.object, &open, has_target)))
}

/// A list in the form that `kubectl get` shows: of each object its columns.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Table {
    metadata: ListMeta,
    column_definitions: Vec<Column>,
    rows: Vec<Row>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Column {
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Row {
    cells: Vec<Value>,
}

/// Names of the restores of a machine that are not complete. They are read as a table: a user's restore may be large, and
/// there may be many.
async fn open_restores(client: &Client, namespace: &str, target: &str) -> Result<Vec<String>, kube::Error> {
    const ACCEPT: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
    const MAX_PAGES: usize = 32;
    let base = VirtualMachineRestore::url_path(&(), Some(namespace));
    let mut open = Vec::new();
    let mut following = String::new();
    for _ in 0..MAX_PAGES {
        // The serializer is no value to be held while the API server is asked.
        let query = {
            let mut query = form_urlencoded::Serializer::new(String::new());
            query.append_pair("includeObject", "None").append_pair("limit", "500");
            if !following.is_empty() {
                query.append_pair("continue", &following);
            }
            query.finish()
        };
        let request = http::Request::get(format!("{base}?{query}")).header(http::header::ACCEPT, ACCEPT);
        let request = request.body(Vec::new()).map_err(kube::Error::HttpError)?;
        let table: Table = client.request(request).await?;
        let place = |name: &str| table.column_definitions.iter().position(|column| column.name == name);
        let (name, target_name, complete) = (place("Name"), place("TargetName"), place("Complete"));
        for row in &table.rows {
            let cell =
                |place: Option<usize>| place.and_then(|place| row.cells.get(place)).unwrap_or(&Value::Null);
            let is_complete = [json!(true), json!("true")].contains(cell(complete));
            if cell(target_name) == target && !is_complete {
                open.push(cell(name).as_str().unwrap_or_default().to_owned());
            }
        }
        following = table.metadata.continue_.unwrap_or_default();
        if following.is_empty() {
            break;
        }
    }
    Ok(open)
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

    use super::*;

    /// A client whose API server answers by `answer`, and what it was asked: method, path and query, body.
    type Requests = Arc<Mutex<Vec<(String, Value)>>>;

    fn server(answer: impl Fn(&str) -> (u16, Value) + Send + Sync + 'static) -> (Client, Requests) {
        let requests = Requests::default();
        let log = requests.clone();
        let client = testing::client("shop", move |method, uri, body| {
            let what = format!("{method} {uri}");
            let answer = answer(&what);
            log.lock().unwrap().push((what, body));
            answer
        });
        (client, requests)
    }

    fn failure(code: u16, reason: &str) -> (u16, Value) {
        testing::failure(code, reason, reason)
    }

    fn request(value: Value) -> Request {
        serde_json::from_value(value).unwrap()
    }

    async fn answered(task: Lookup, request: &Request, client: &Client) -> Value {
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
            let (client, requests) = server(move |what| {
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
            let response = answered(Lookup::Evict, &review, &client).await;
            assert_eq!((&response["allowed"], &response["status"]["code"]), (&json!(false), &json!(429)));
            assert_eq!(response["status"]["reason"], "TooManyRequests");
            let requests = requests.lock().unwrap();
            let patches: Vec<_> = requests.iter().filter(|(what, _)| what.starts_with("PATCH")).collect();
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
        let (client, requests) =
            server(|what| if what.contains("/pods/") { (200, pod()) } else { failure(404, "NotFound") });
        let other = request(json!({"uid": "r", "namespace": "shop", "name": "web-1"}));
        assert_eq!(answered(Lookup::Evict, &other, &client).await["allowed"], true);
        assert_eq!(requests.lock().unwrap().len(), 0, "the API server was not asked");
        let launcher = request(json!({"uid": "r", "namespace": "shop", "name": "virt-launcher-web-x"}));
        assert_eq!(answered(Lookup::Evict, &launcher, &client).await["allowed"], true);
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
            let (client, requests) = server(move |what| {
                let found = match what {
                    _ if what.contains("/pods/hp-volume-x") => &own,
                    _ if what.contains("/pods/virt-launcher-web-x") => &launcher,
                    _ => &machine,
                };
                if found.is_null() { failure(404, "NotFound") } else { (200, found.clone()) }
            });
            let review = request(json!({"uid": "r", "namespace": "shop", "name": "hp-volume-x"}));
            let response = answered(Lookup::Evict, &review, &client).await;
            assert_eq!(response["allowed"], allowed, "{response}");
            assert!(allowed || response["status"]["code"] == 429, "{response}");
            assert!(
                requests.lock().unwrap().iter().all(|(what, _)| what.starts_with("GET")),
                "nothing is marked"
            );
        }
    }

    #[tokio::test]
    async fn a_migration_is_judged_by_its_machine_and_its_open_migrations() {
        for (phase, allowed) in [("Running", false), ("Succeeded", true)] {
            let (client, requests) = server(move |what| {
                let list = json!({"items": [{"metadata": {"name": "first"}, "spec": {"vmiName": "web"},
                    "status": {"phase": phase}}], "metadata": {}});
                if what.contains("migrations") { (200, list) } else { (200, vmi()) }
            });
            let review = request(json!({"uid": "r", "operation": "CREATE", "namespace": "shop",
                "object": {"spec": {"vmiName": "web"}}}));
            let response = answered(Lookup::ValidateMigrationCreate, &review, &client).await;
            assert_eq!(response["allowed"], allowed, "{response}");
            assert!(allowed || response["status"]["message"].as_str().unwrap().contains("'first'"));
            let requests = requests.lock().unwrap();
            assert!(
                requests.iter().any(|(what, _)| what.contains("labelSelector=kubevirt.io%2Fvmi-name%3Dweb")),
                "{requests:?}"
            );
        }
    }

    #[tokio::test]
    async fn a_restore_is_judged_by_the_others_of_its_target_which_are_read_as_a_table() {
        let target = json!({"apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "web"});
        let columns = ["Name", "TargetKind", "TargetName", "Complete"].map(|name| json!({"name": name}));
        for (policy, other, complete, machine, problem) in [
            (Value::Null, "web", json!(true), 404, None),
            (Value::Null, "web", json!(false), 404, Some("VirtualMachineRestore \"first\" in progress")),
            (Value::Null, "web", Value::Null, 404, Some("in progress")),
            (Value::Null, "db", json!(false), 404, None),
            (json!("InPlace"), "db", json!(false), 200, None),
            (json!("InPlace"), "db", json!(false), 404, Some("InPlace")),
        ] {
            let rows = json!([{"cells": ["first", "VirtualMachine", other, complete]}]);
            let columns = columns.clone();
            let (client, requests) = server(move |what| {
                let metadata = json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": {"name": "web"}});
                match what {
                    _ if what.contains("virtualmachines/web") && machine == 200 => (200, metadata),
                    _ if what.contains("virtualmachines/web") => failure(404, "NotFound"),
                    // Two pages.
                    _ if what.contains("continue") => {
                        (200, json!({"kind": "Table", "columnDefinitions": columns, "rows": rows}))
                    }
                    _ => (200, json!({"kind": "Table", "metadata": {"continue": "more"}, "rows": []})),
                }
            });
            let object = json!({"metadata": {"name": "r"}, "spec": {"target": target,
                "virtualMachineSnapshotName": "s", "volumeRestorePolicy": policy}});
            let review =
                request(json!({"uid": "r", "operation": "CREATE", "namespace": "shop", "object": object}));
            let response = answered(Lookup::ValidateRestoreCreate, &review, &client).await;
            assert_eq!(response["allowed"], problem.is_none(), "{response}");
            let told = response["status"]["message"].as_str().unwrap_or_default();
            assert!(told.contains(problem.unwrap_or_default()), "{told}");
            let requests = requests.lock().unwrap();
            let lists: Vec<_> =
                requests.iter().filter(|(what, _)| what.contains("virtualmachinerestores")).collect();
            assert_eq!(lists.len(), 2);
            assert!(lists.iter().all(|(what, _)| what.contains("includeObject=None&limit=500")), "{lists:?}");
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
            let response = answered(Lookup::Evict, &review, &client).await;
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
        assert_eq!(answered(Lookup::ValidateMigrationCreate, &review, &client).await["status"]["code"], 500);
    }
}
