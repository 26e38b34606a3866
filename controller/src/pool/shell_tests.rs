//! The shell before an API server that answers as it is told and keeps what it was asked.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use kube::runtime::reflector::store::Writer;
use kube::runtime::watcher::Event;
use podvirt_api::v1::{VirtualMachine, VirtualMachineInstance, VirtualMachinePool as Pool};
use podvirt_daemon::events::Recorder;
use podvirt_daemon::testing::{self, Asked};
use serde_json::{Value, json};

use super::controller::{Context, Shared, one};
use super::tests::{pool, vm, vmi};
use crate::failure::Error;
use crate::metrics::Metrics;
use crate::vm::Machines;
use crate::vmi::View;

/// What the API server does with a request; `None`: what was sent comes back.
type Answer = Box<dyn Fn(&Asked) -> Option<(u16, Value)> + Send + Sync>;

struct Server {
    asked: Arc<Mutex<VecDeque<Asked>>>,
    shared: Shared,
    machines: Writer<VirtualMachine>,
    _instances: Writer<VirtualMachineInstance>,
}

impl Server {
    /// A server that has `there` as the pool is, and the revision `web-2` of it.
    fn new(
        there: &Pool,
        vms: Vec<VirtualMachine>,
        vmis: Vec<VirtualMachineInstance>,
        answer: Answer,
    ) -> Self {
        let revision = json!({"metadata": {"name": "web-2", "ownerReferences": [{"apiVersion": "pool.kubevirt.io/v1beta1",
            "kind": "VirtualMachinePool", "name": "web", "uid": "p1", "controller": true}]},
            "revision": 2, "data": there.spec});
        let there = serde_json::to_value(there).unwrap();
        let (client, asked) = testing::recorded("shop", move |asked| {
            answer(asked).or_else(|| match asked.0.as_str() {
                READ => Some((200, there.clone())),
                REVISIONS => Some((
                    200,
                    json!({"apiVersion": "apps/v1", "kind": "ControllerRevisionList",
                    "metadata": {}, "items": [revision]}),
                )),
                what if what.starts_with("DELETE") => {
                    Some((200, json!({"kind": "Status", "status": "Success"})))
                }
                _ => None,
            })
        });
        let (view, mut instances) = View::new();
        view.fill_pods();
        fill(&mut instances, vmis);
        let (shown, mut machines) = Machines::new();
        fill(&mut machines, vms);
        let context = Context {
            recorder: Recorder::new(client.clone(), "virt-controller", None),
            client,
            metrics: Metrics::new(&mut Default::default()),
            machines: shown,
            view,
        };
        Server { asked, shared: Shared::new(context), machines, _instances: instances }
    }

    /// What was asked since the last call, events by their reasons alone.
    fn asked(&self) -> Vec<String> {
        let asked = std::mem::take(&mut *self.asked.lock().unwrap());
        let told = |(what, body): Asked| match body["reason"].as_str() {
            Some(reason) if what.ends_with("/events") => format!("event {reason}"),
            _ => what,
        };
        asked.into_iter().map(told).collect()
    }
}

fn fill<K>(writer: &mut Writer<K>, objects: Vec<K>)
where
    K: kube::Resource<DynamicType = ()> + Clone + 'static,
{
    writer.apply_watcher_event(&Event::Init);
    for object in objects {
        writer.apply_watcher_event(&Event::InitApply(object));
    }
    writer.apply_watcher_event(&Event::InitDone);
}

const READ: &str = "GET /apis/pool.kubevirt.io/v1beta1/namespaces/shop/virtualmachinepools/web";
const STATUS: &str = "PATCH /apis/pool.kubevirt.io/v1beta1/namespaces/shop/virtualmachinepools/web/status";
const REVISIONS: &str = "GET /apis/apps/v1/namespaces/shop/controllerrevisions";
const REMEMBER: &str = "POST /apis/apps/v1/namespaces/shop/controllerrevisions";
const CREATE: &str = "POST /apis/kubevirt.io/v1/namespaces/shop/virtualmachines";
const UPDATE: &str = "PATCH /apis/kubevirt.io/v1/namespaces/shop/virtualmachines/web-0";
const RESTART: &str = "DELETE /apis/kubevirt.io/v1/namespaces/shop/virtualmachineinstances/web-0";

fn one_replica(more: &Value) -> Pool {
    let mut all = json!({"spec": {"replicas": 1}});
    json_patch::merge(&mut all, more);
    pool(&all)
}

#[tokio::test]
async fn a_missing_vm_is_made_once_after_its_revision() {
    let pool = one_replica(&json!({"metadata": {"generation": 3}}));
    let made = |(what, _): &Asked| match what.as_str() {
        CREATE => Some((201, serde_json::to_value(vm(0, &json!({}))).unwrap())),
        _ => None,
    };
    let mut server = Server::new(&pool, vec![], vec![], Box::new(made));
    one(&pool, &server.shared).await.unwrap();
    let revision = server.asked.lock().unwrap().iter().find(|(what, _)| what == REMEMBER).unwrap().1.clone();
    assert_eq!((&revision["metadata"]["name"], &revision["revision"]), (&json!("web-3"), &json!(3)));
    assert_eq!(revision["data"]["replicas"], 1);
    assert_eq!(server.asked(), [REVISIONS, READ, REMEMBER, CREATE, "event SuccessfulCreate", STATUS]);
    one(&pool, &server.shared).await.unwrap();
    assert!(!server.asked().contains(&CREATE.to_owned()), "the VM was not seen yet");
    server.machines.apply_watcher_event(&Event::Apply(vm(0, &json!({}))));
    one(&pool, &server.shared).await.unwrap();
    let asked = server.asked();
    assert!(!asked.contains(&CREATE.to_owned()) && !asked.contains(&REVISIONS.to_owned()), "{asked:?}");
}

#[tokio::test]
async fn an_outdated_vm_is_written_as_it_was_seen_and_its_instance_restarted_then() {
    let old = one_replica(&json!({}));
    let mut new = old.clone();
    new.metadata.generation = Some(3);
    let template = new.spec.virtual_machine_template.as_mut().unwrap();
    template.spec.as_mut().unwrap().template.as_mut().unwrap().spec.as_mut().unwrap().hostname =
        Some("h".into());
    let there = serde_json::to_value(&new).unwrap();
    let answer = move |(what, _): &Asked| match what.as_str() {
        READ => Some((200, there.clone())),
        // Not the patch, which would come back else.
        UPDATE => Some((200, serde_json::to_value(vm(0, &json!({}))).unwrap())),
        _ => None,
    };
    let server =
        Server::new(&old, vec![vm(0, &json!({}))], vec![vmi(0, "web-2", &json!({}))], Box::new(answer));
    one(&new, &server.shared).await.unwrap();
    let patch = server.asked.lock().unwrap().iter().find(|(what, _)| what == UPDATE).unwrap().1.clone();
    assert_eq!(patch[1], json!({"op": "test", "path": "/metadata/resourceVersion", "value": "9"}));
    assert_eq!(patch[4]["value"]["template"]["spec"]["hostname"], "h");
    assert_eq!(server.asked(), [REVISIONS, READ, REMEMBER, UPDATE, "event SuccessfulUpdate", STATUS]);
    // The VM is seen with its new revision.
    let newer = json!({"metadata": {"labels": {"kubevirt.io/vm-pool-revision-name": "web-3"}}});
    let mut server = server;
    server.machines.apply_watcher_event(&Event::Apply(vm(0, &newer)));
    one(&new, &server.shared).await.unwrap();
    let body = server.asked.lock().unwrap().iter().find(|(what, _)| what == RESTART).unwrap().1.clone();
    assert_eq!(body["preconditions"]["uid"], "i0");
    one(&new, &server.shared).await.unwrap();
    let again = server.asked().iter().filter(|what| *what == RESTART).count();
    assert_eq!(again, 1, "the deletion was not seen yet");
}

#[tokio::test]
async fn a_vm_that_changed_meanwhile_is_left_for_the_next_pass() {
    let old = one_replica(&json!({}));
    let new = one_replica(&json!({"metadata": {"generation": 3},
        "spec": {"virtualMachineTemplate": {"spec": {"runStrategy": "Manual"}}}}));
    let there = serde_json::to_value(&new).unwrap();
    let answer = move |(what, _): &Asked| match what.as_str() {
        READ => Some((200, there.clone())),
        UPDATE => Some(testing::failure(
            422,
            "Invalid",
            "the server rejected our request due to an error in our request",
        )),
        _ => None,
    };
    let server = Server::new(&old, vec![vm(0, &json!({}))], vec![], Box::new(answer));
    one(&new, &server.shared).await.unwrap();
    assert!(server.asked().iter().all(|what| !what.starts_with("event")), "nothing failed");
}

#[tokio::test]
async fn a_refusal_is_told_on_the_pool() {
    let pool = one_replica(&json!({}));
    let answer =
        |(what, _): &Asked| (what == CREATE).then(|| testing::failure(403, "Forbidden", "exceeded quota"));
    let server = Server::new(&pool, vec![], vec![], Box::new(answer));
    let error = one(&pool, &server.shared).await.unwrap_err();
    assert!(matches!(&error, Error::Refused(message) if message.ends_with("exceeded quota")), "{error}");
    let written = server.asked.lock().unwrap().iter().find(|(what, _)| what == STATUS).unwrap().1.clone();
    assert_eq!(written["status"]["conditions"][0]["reason"], "FailedScaleOut");
    assert_eq!(
        server.asked(),
        [REVISIONS, READ, CREATE, "event FailedCreate", STATUS, "event FailedScaleOut"]
    );
}

#[tokio::test]
async fn a_revision_of_another_object_is_not_taken_for_the_pools() {
    let pool = one_replica(&json!({"metadata": {"generation": 3}}));
    let answer = |(what, _): &Asked| match what.as_str() {
        REMEMBER => Some(testing::failure(409, "AlreadyExists", "there is one")),
        "GET /apis/apps/v1/namespaces/shop/controllerrevisions/web-3" => {
            Some((200, json!({"metadata": {"name": "web-3"}, "revision": 3})))
        }
        _ => None,
    };
    let server = Server::new(&pool, vec![], vec![], Box::new(answer));
    let error = one(&pool, &server.shared).await.unwrap_err();
    assert!(error.to_string().contains("web-3 belongs to another object"), "{error}");
    assert!(!server.asked().contains(&CREATE.to_owned()));
}
