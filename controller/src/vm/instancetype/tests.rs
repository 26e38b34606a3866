//! Machines that name instance types and preferences, before an API server that answers as it is told.

use crate::kept::Kept;
use crate::vm::moves::Moves;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use kube::runtime::reflector::store;
use podvirt_api::instancetype::{Matcher, Scope, Subject, revision};
use podvirt_api::names;
use podvirt_api::v1::{InstancetypeStatusRef, VirtualMachine};
use podvirt_daemon::events::Recorder;
use podvirt_daemon::testing;
use serde_json::{Value, json};

use super::super::reconcile::Shell;
use super::super::{Action, Instance, decide_by};
use super::{Problem, Shape, refs};
use crate::data::{DataVolumes, Look};
use crate::settings::{Cluster, Settings};

const TYPE: &str = "/apis/instancetype.kubevirt.io/v1beta1/virtualmachineclusterinstancetypes/small";
const REVISIONS: &str = "/apis/apps/v1/namespaces/ns/controllerrevisions";
const MACHINE: &str = "/apis/kubevirt.io/v1/namespaces/ns/virtualmachines/vm";
const REVISION: &str = "vm-small-v1beta1-t1-1";

fn machine(more: &Value) -> VirtualMachine {
    let mut vm = json!({
        "metadata": {"name": "vm", "namespace": "ns", "uid": "v1", "resourceVersion": "5", "generation": 1,
            "finalizers": [names::VM_FINALIZER]},
        "spec": {"runStrategy": "Always", "instancetype": {"name": "small"},
            "template": {"spec": {"domain": {"devices": {}}}}},
    });
    json_patch::merge(&mut vm, more);
    serde_json::from_value(vm).unwrap()
}

fn small() -> Value {
    json!({"apiVersion": "instancetype.kubevirt.io/v1beta1", "kind": "VirtualMachineClusterInstancetype",
        "metadata": {"name": "small", "uid": "t1", "generation": 1},
        "spec": {"cpu": {"guest": 2}, "memory": {"guest": "64Mi"}}})
}

fn stored() -> Value {
    let revision = revision(&machine(&json!({})), Subject::Instancetype, Scope::Cluster, &small());
    serde_json::to_value(revision).unwrap()
}

type Asked = Arc<Mutex<VecDeque<testing::Asked>>>;

/// A shell in a cluster of the reference policy `policy`. `answer`: code and body; `None` sends back what came.
fn shell(
    policy: &str,
    answer: impl Fn(&str) -> Option<(u16, Value)> + Send + Sync + 'static,
) -> (Shell, Asked) {
    let (client, asked) = testing::recorded("ns", move |(what, _)| answer(what));
    let recorder = Recorder::new(client.clone(), "virt-controller", None);
    let configuration = serde_json::from_value(json!({"instancetype": {"referencePolicy": policy}})).unwrap();
    let cluster = Cluster::fixed(Settings { configuration, ..Settings::default() });
    (
        Shell::new(
            client,
            recorder,
            cluster,
            store().0,
            DataVolumes::new().0,
            crate::storage::Storage::new().0,
            (Kept::new().0, store().0),
        ),
        asked,
    )
}

fn paths(asked: &Asked) -> Vec<String> {
    asked.lock().unwrap().iter().map(|(what, _)| what.clone()).collect()
}

fn made(shape: Shape) -> VirtualMachine {
    let Shape::Made(made) = shape else { panic!("{shape:?}") };
    *made
}

#[test]
fn a_reference_follows_what_the_machine_names() {
    let follow = |reference: Value, matcher: Value| {
        let reference: InstancetypeStatusRef = serde_json::from_value(reference).unwrap();
        let matcher: Matcher = serde_json::from_value(matcher).unwrap();
        serde_json::to_value(refs::follow(Some(&reference), &matcher)).unwrap()
    };
    let known = json!({"name": "small", "controllerRevisionRef": {"name": "r1"}});
    assert_eq!(follow(known.clone(), json!({"name": "small"})), known);
    assert_eq!(follow(known.clone(), json!({"name": "large"})), json!({"name": "large"}));
    let kind = json!({"name": "small", "kind": "VirtualMachineInstancetype"});
    assert_eq!(follow(known.clone(), kind.clone()), kind);
    let chosen = follow(known, json!({"name": "small", "revisionName": "r2"}));
    assert_eq!(chosen, json!({"name": "small", "controllerRevisionRef": {"name": "r2"}}));
}

#[tokio::test]
async fn an_instance_type_is_stored_once_and_the_instance_made_from_what_is_stored() {
    let (shell, asked) = shell("reference", |what| what.ends_with(TYPE).then(|| (200, small())));
    let vm = machine(&json!({}));
    let shape = made(shell.shape(&vm).await.unwrap());
    assert_eq!(paths(&asked), [format!("GET {TYPE}"), format!("POST {REVISIONS}")]);
    let reference = json!({"name": "small", "controllerRevisionRef": {"name": REVISION}});
    assert_eq!(json!(shape.status.instancetype_ref), reference);
    assert_eq!(shape.spec.instancetype, vm.spec.instancetype, "the machine goes on naming it");

    let now = jiff::Timestamp::now();
    let plan = decide_by(&vm, Ok(&shape), Instance::None, &Look::default(), &Moves::None, now);
    assert_eq!(json!(plan.status.instancetype_ref), reference);
    let Some(Action::Start(vmi)) = plan.action else { panic!("{plan:?}") };
    let vmi = serde_json::to_value(&*vmi).unwrap();
    assert_eq!(vmi["spec"]["domain"]["memory"]["guest"], "64Mi");
    assert_eq!(vmi["spec"]["domain"]["cpu"]["sockets"], 2);
    assert_eq!(vmi["metadata"]["annotations"]["kubevirt.io/cluster-instancetype-name"], "small");

    // From then on by the revision, whatever becomes of the instance type.
    let (again, asked) = self::shell("reference", |what| what.contains(REVISIONS).then(|| (200, stored())));
    let vm = machine(&json!({ "status": {"instancetypeRef": reference} }));
    let shape = made(again.shape(&vm).await.unwrap());
    assert_eq!(paths(&asked), [format!("GET {REVISIONS}/{REVISION}")]);
    let mut running: podvirt_api::v1::VirtualMachineInstance = serde_json::from_value(vmi).unwrap();
    running.metadata.uid = Some("u1".into());
    let plan = decide_by(&vm, Ok(&shape), Instance::Own(&running), &Look::default(), &Moves::None, now);
    let restart = plan.status.conditions.iter().any(|c| c.r#type.as_str() == "RestartRequired");
    assert!(!restart && plan.action.is_none(), "it is as the shape says: {plan:?}");
}

#[tokio::test]
async fn a_revision_that_is_there_must_say_the_same() {
    let answer = |there: Value| {
        move |what: &str| match what {
            _ if what.ends_with(TYPE) => Some((200, small())),
            _ if what.starts_with("POST") => Some(testing::failure(409, "AlreadyExists", "it is there")),
            _ => Some((200, there.clone())),
        }
    };
    let (same, _) = shell("reference", answer(stored()));
    made(same.shape(&machine(&json!({}))).await.unwrap());
    let mut other = stored();
    other["data"]["spec"]["cpu"]["guest"] = json!(3);
    let (other, _) = shell("reference", answer(other));
    let Shape::Failed(Problem { reason, message }) = other.shape(&machine(&json!({}))).await.unwrap() else {
        panic!()
    };
    assert_eq!(reason, "FailedCreate");
    assert!(
        message.ends_with(&format!("found existing ControllerRevision with unexpected data: {REVISION}")),
        "{message}"
    );
}

#[tokio::test]
async fn a_revision_that_the_garbage_collector_deletes_is_waited_for() {
    let deleted = json!({"metadata": {"deletionTimestamp": "2026-03-01T12:00:00Z"}});
    let former = json!({"metadata": {"ownerReferences": [
        {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "vm", "uid": "v0", "controller": true}]}});
    for more in [deleted, former] {
        let mut there = stored();
        json_patch::merge(&mut there, &more);
        let (shell, _) = shell("reference", move |what| match what {
            _ if what.ends_with(TYPE) => Some((200, small())),
            _ if what.starts_with("POST") => Some(testing::failure(409, "AlreadyExists", "it is there")),
            _ => Some((200, there.clone())),
        });
        let Shape::Failed(problem) = shell.shape(&machine(&json!({}))).await.unwrap() else {
            panic!("{more}")
        };
        assert!(problem.message.ends_with(&format!("{REVISION} is being deleted")), "{}", problem.message);
    }
}

#[tokio::test]
async fn what_is_missing_is_told_and_nothing_is_started() {
    let (shell, _) = shell("reference", |_| {
        Some(testing::failure(
            404,
            "NotFound",
            "virtualmachineclusterinstancetypes.instancetype.kubevirt.io \"small\" not found",
        ))
    });
    let vm = machine(&json!({}));
    let Shape::Failed(problem) = shell.shape(&vm).await.unwrap() else { panic!() };
    assert_eq!(problem.reason, "FailedFindInstancetype");
    let plan =
        decide_by(&vm, Err(&problem), Instance::None, &Look::default(), &Moves::None, jiff::Timestamp::now());
    assert_eq!(plan.action, None);
    assert_eq!(plan.warnings, [("FailedFindInstancetype", problem.message.clone())]);
    let failure = plan.status.conditions.iter().find(|c| c.r#type.as_str() == "Failure").unwrap();
    assert_eq!(failure.reason.as_deref(), Some("FailedFindInstancetype"));
    assert_eq!(plan.status.run_strategy, None, "the strategy has not begun");
    // It is told once.
    let told = VirtualMachine { status: plan.status, ..vm.clone() };
    assert_eq!(
        decide_by(
            &told,
            Err(&problem),
            Instance::None,
            &Look::default(),
            &Moves::None,
            jiff::Timestamp::now()
        )
        .warnings,
        []
    );
    // A machine that runs can be stopped nonetheless.
    let vmi = json!({"metadata": {"name": "vm", "uid": "u1"}, "spec": {"domain": {"devices": {}}}, "status": {"phase": "Running"}});
    let vmi = serde_json::from_value(vmi).unwrap();
    let halted = machine(&json!({"spec": {"runStrategy": "Halted"}}));
    let plan = decide_by(
        &halted,
        Err(&problem),
        Instance::Own(&vmi),
        &Look::default(),
        &Moves::None,
        jiff::Timestamp::now(),
    );
    assert!(matches!(plan.action, Some(Action::Stop { .. })), "{plan:?}");
    // The API server's own trouble is no word about the instance type.
    let (broken, _) = self::shell("reference", |_| Some(testing::failure(500, "InternalError", "etcd")));
    broken.shape(&vm).await.unwrap_err();
}

#[tokio::test]
async fn a_conflict_is_told_and_nothing_is_stored() {
    let (shell, asked) = shell("reference", |what| what.ends_with(TYPE).then(|| (200, small())));
    let memory = json!({"spec": {"template": {"spec": {"domain": {"memory": {"guest": "1Gi"}}}}}});
    let Shape::Failed(problem) = shell.shape(&machine(&memory)).await.unwrap() else { panic!() };
    assert_eq!(problem.reason, "FailedCreate");
    let told = "VM field(s) spec.template.spec.domain.memory.guest conflicts with selected instance type";
    assert_eq!(problem.message, told);
    assert_eq!(paths(&asked), [format!("GET {TYPE}")]);
}

#[tokio::test]
async fn by_the_policy_expand_the_machine_itself_is_written() {
    let answer = |what: &str| match what {
        _ if what.ends_with(TYPE) => Some((200, small())),
        _ if what.contains(REVISIONS) => Some((200, stored())),
        _ => Some((200, serde_json::to_value(machine(&json!({}))).unwrap())),
    };
    let (shell, asked) = shell("expand", answer);
    let shape = shell.shape(&machine(&json!({}))).await.unwrap();
    assert_eq!(shape, Shape::Rewritten);
    let asked = asked.lock().unwrap().clone();
    let (what, patch) = &asked[1];
    assert_eq!(*what, format!("PATCH {MACHINE}"));
    assert_eq!(patch[0], json!({"op": "test", "path": "/metadata/resourceVersion", "value": "5"}));
    let domain = &patch[1]["value"]["spec"]["domain"];
    assert_eq!((&domain["memory"]["guest"], &domain["cpu"]["sockets"]), (&json!("64Mi"), &json!(2)));
    assert_eq!(
        domain["devices"]["interfaces"][0]["macAddress"].as_str().map(str::len),
        Some(17),
        "its guest's address stays"
    );
    assert_eq!(patch[2], json!({"op": "remove", "path": "/spec/instancetype"}));
    // A machine that is stored already stays so, but by expandAll.
    let reference = json!({"status": {"instancetypeRef": {"name": "small", "controllerRevisionRef": {"name": REVISION}}}});
    for (policy, rewritten) in [("expand", false), ("expandAll", true)] {
        let (shell, _) = self::shell(policy, answer);
        let shape = shell.shape(&machine(&reference)).await.unwrap();
        assert_eq!(shape == Shape::Rewritten, rewritten, "{policy}");
    }
}

#[tokio::test]
async fn a_machine_that_names_nothing_any_more_loses_its_own_revisions() {
    let reference = json!({"spec": {"instancetype": null},
        "status": {"instancetypeRef": {"name": "small", "controllerRevisionRef": {"name": REVISION}}}});
    for (owner, deleted) in [("v1", true), ("v2", false)] {
        let (shell, asked) = shell("reference", move |what| {
            let mut there = stored();
            there["metadata"]["ownerReferences"][0]["uid"] = json!(owner);
            what.starts_with("GET").then_some((200, there))
        });
        let shape = made(shell.shape(&machine(&reference)).await.unwrap());
        assert_eq!(shape.status.instancetype_ref, None);
        assert_eq!(paths(&asked).contains(&format!("DELETE {REVISIONS}/{REVISION}")), deleted, "{owner}");
    }
    let (shell, asked) = shell("reference", |_| None);
    let deleted = machine(&json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
    assert_eq!(shell.shape(&deleted).await.unwrap(), Shape::Plain);
    let plain = machine(&json!({"spec": {"instancetype": null}}));
    assert_eq!(shell.shape(&plain).await.unwrap(), Shape::Plain);
    assert_eq!(paths(&asked), [""; 0]);
}

#[tokio::test]
async fn a_revision_that_does_not_say_its_version_is_made_anew() {
    let reference =
        json!({"status": {"instancetypeRef": {"name": "small", "controllerRevisionRef": {"name": "early"}}}});
    let early = |what: &str| {
        let mut there = stored();
        there["metadata"]["name"] = json!("early");
        there["metadata"]["labels"]
            .as_object_mut()
            .unwrap()
            .remove("instancetype.kubevirt.io/object-version");
        match what {
            _ if what.starts_with("GET") => Some((200, there)),
            _ if what.starts_with("PATCH") => Some((200, json!(machine(&json!({}))))),
            _ => None,
        }
    };
    let (shell, asked) = shell("reference", early);
    assert_eq!(shell.shape(&machine(&reference)).await.unwrap(), Shape::Rewritten);
    let path = "/status/instancetypeRef/controllerRevisionRef/name";
    let writes: Vec<_> =
        asked.lock().unwrap().iter().filter(|(what, _)| !what.starts_with("GET")).cloned().collect();
    let what: Vec<&str> = writes.iter().map(|(what, _)| what.as_str()).collect();
    let (post, patch, delete) =
        (format!("POST {REVISIONS}"), format!("PATCH {MACHINE}/status"), format!("DELETE {REVISIONS}/early"));
    assert_eq!(what, [&post, &patch, &delete], "the status never names one that is not there");
    assert_eq!(writes[0].1["metadata"]["name"], REVISION);
    assert_eq!(
        writes[1].1,
        json!([{"op": "test", "path": path, "value": "early"}, {"op": "replace", "path": path, "value": REVISION}])
    );
    // What the machine itself names stays.
    let mut named = reference;
    named["spec"]["instancetype"]["revisionName"] = json!("early");
    let (shell, asked) = self::shell("reference", early);
    assert_eq!(
        made(shell.shape(&machine(&named)).await.unwrap()).status.instancetype_ref,
        machine(&named).status.instancetype_ref
    );
    assert!(paths(&asked).iter().all(|what| what.starts_with("GET")));
}
