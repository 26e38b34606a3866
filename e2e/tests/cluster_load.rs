//! A machine that starts on a busy cluster: migrations wait in the queue, users have labelled budgets, launchers hang.
//!
//! Most machines here are *parked*: their launcher pods fit no node, and their status says that they run on a node that
//! there is not, so that migrations of them can be asked for. They cost objects and no memory. The machines whose
//! launchers are stopped are real and never let their guests' processors run.
//!
//! How long a machine takes to start is printed, and written as JSON to the file that `PODVIRT_LOAD_RESULT` names. What
//! is asserted is what can be counted.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails it")]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;
use kube::api::{ListParams, Patch, PatchParams};
use podvirt_api::v1::{
    VirtualMachineInstance as Instance, VirtualMachineInstanceMigration as Migration,
    VirtualMachineInstanceMigrationPhase as Phase,
};
use podvirt_e2e::cluster::{BOOT, Cluster, Manifest, Namespace, Node, Security};
use serde_json::json;

/// Machines whose migrations wait.
const PARKED: usize = 500;
/// Those of them that have a budget.
const PROTECTED: usize = 100;
/// Machines whose launchers are stopped.
const HUNG: usize = 20;
/// Machines that are started one after another, without the load and with it.
const STARTS: usize = 3;
/// Migrations of the cluster at a time.
const LIMIT: usize = 5;
/// For hundreds of objects, on a machine that does much else.
const LONG: Duration = Duration::from_secs(300);

/// Launchers on a node that are stopped until this is dropped.
struct Stopped<'c>(Node<'c>);

impl<'c> Stopped<'c> {
    fn all_of(node: Node<'c>) -> Stopped<'c> {
        node.run(&["sh", "-c", "kill -STOP $(pgrep -x virt-launcher)"]).unwrap();
        Stopped(node)
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        // Those whose pods were killed are gone.
        drop(self.0.run(&["sh", "-c", "kill -CONT $(pgrep -x virt-launcher) || true"]));
    }
}

fn list<K>(namespace: &Namespace<'_>) -> Vec<K>
where
    K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned,
{
    namespace.cluster().block_on(namespace.api::<K>().list(&ListParams::default())).unwrap().items
}

/// From the manifest to the running machine on node 1, which is deleted then.
fn start(namespace: &Namespace<'_>, name: &str) -> Duration {
    let spec = "nodeSelector: {kubernetes.io/hostname: node1}";
    let began = Instant::now();
    namespace.apply(&Manifest { name, spec, ..Default::default() }.instance()).unwrap();
    namespace.wait_phase(name, "Running", BOOT).unwrap();
    let took = began.elapsed();
    namespace.kubectl(&["delete", "vmi", name, "--wait=false"]).unwrap();
    namespace.wait_gone::<Instance>(name, BOOT).unwrap();
    took
}

/// Milliseconds of each start, in their order.
fn starts(namespace: &Namespace<'_>, name: &str) -> Vec<u128> {
    let mut took: Vec<u128> =
        (0..STARTS).map(|n| start(namespace, &format!("{name}-{n}")).as_millis()).collect();
    took.sort_unstable();
    took
}

/// Machines that are said to run on a node that there is not, each with a migration that waits.
fn park(namespace: &Namespace<'_>) {
    let names: Vec<String> = (0..PARKED).map(|n| format!("parked-{n}")).collect();
    for (part, names) in names.chunks(50).enumerate() {
        let strategy = if part * 50 < PROTECTED { "LiveMigrate" } else { "None" };
        let spec = format!("nodeSelector: {{parked: here}}, evictionStrategy: {strategy}");
        let all = names.iter().map(|name| Manifest { name, spec: &spec, ..Default::default() }.instance());
        namespace.apply(&all.collect::<Vec<_>>().join("\n---\n")).unwrap();
    }
    let waits =
        |vmi: &Instance| vmi.status.phase.as_ref().is_some_and(|phase| phase.as_str() == "Scheduling");
    namespace
        .until("launcher pods that fit no node", LONG, || {
            let all = list::<Instance>(namespace);
            Ok((all.iter().filter(|vmi| vmi.name_any().starts_with("parked-") && waits(vmi)).count()
                == PARKED)
                .then_some(()))
        })
        .unwrap();
    let api = namespace.api::<Instance>();
    let running = Patch::Merge(json!({"status": {"phase": "Running", "nodeName": "nowhere"}}));
    namespace.cluster().block_on(async {
        for name in &names {
            api.patch(name, &PatchParams::default(), &running).await.unwrap();
        }
    });
    for names in names.chunks(50) {
        let migration = |name: &String| {
            format!(
                "{{apiVersion: kubevirt.io/v1, kind: VirtualMachineInstanceMigration, metadata: {{name: {name}}}, spec: {{vmiName: {name}}}}}"
            )
        };
        namespace.apply(&names.iter().map(migration).collect::<Vec<_>>().join("\n---\n")).unwrap();
    }
}

/// Versions of the budgets, which every write changes.
fn versions(namespace: &Namespace<'_>) -> BTreeMap<String, Option<String>> {
    list::<PodDisruptionBudget>(namespace).iter().map(|b| (b.name_any(), b.resource_version())).collect()
}

/// Whether a budget is that of a machine with a migration, and Kubernetes has taken note of it.
fn is_settled(budget: &PodDisruptionBudget) -> bool {
    let noted = budget.status.as_ref().and_then(|status| status.observed_generation);
    let two = budget.spec.as_ref().and_then(|spec| spec.min_available.as_ref()) == Some(&IntOrString::Int(2));
    two && noted.is_some() && noted == budget.metadata.generation
}

/// Machines whose launchers are stopped, once virt-handler has told so of all of them.
fn hang<'c>(namespace: &Namespace<'c>) -> Stopped<'c> {
    let names: Vec<String> = (0..HUNG).map(|n| format!("hung-{n}")).collect();
    let spec = "nodeSelector: {kubernetes.io/hostname: node1}, startStrategy: Paused";
    let domain = "resources: {requests: {cpu: 10m}}";
    let all = names.iter().map(|name| Manifest { name, spec, domain, ..Default::default() }.instance());
    namespace.apply(&all.collect::<Vec<_>>().join("\n---\n")).unwrap();
    for name in &names {
        namespace.wait_phase(name, "Running", LONG).unwrap();
    }
    let stopped = Stopped::all_of(namespace.cluster().node(1));
    let tells =
        |vmi: &Instance| vmi.status.conditions.iter().any(|c| c.reason.as_deref() == Some("LauncherSilent"));
    for name in &names {
        namespace.wait(name, "the condition of a launcher that hangs", LONG, tells).unwrap();
    }
    stopped
}

#[test]
fn long_a_machine_starts_while_much_else_waits_and_hangs() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let without = starts(&namespace, "before");
    println!("starts without load: {without:?} ms");

    park(&namespace);
    namespace
        .until("budgets", LONG, || {
            Ok((list::<PodDisruptionBudget>(&namespace).iter().filter(|b| is_settled(b)).count()
                == PROTECTED)
                .then_some(()))
        })
        .unwrap();
    namespace.kubectl(&["label", "pdb", "--all", "team=shop"]).unwrap();
    let labelled = versions(&namespace);
    let _stopped = hang(&namespace);
    let with = starts(&namespace, "under");

    let (plain, loaded) = (without[STARTS / 2], with[STARTS / 2]);
    let result = json!({
        "parked_migrations": PARKED, "labelled_budgets": labelled.len(), "stopped_launchers": HUNG,
        "starts_without_ms": without, "starts_with_ms": with,
        "percent": loaded * 100 / plain.max(1),
    });
    println!("{result:#}");
    if let Some(path) = std::env::var_os("PODVIRT_LOAD_RESULT") {
        std::fs::write(path, format!("{result:#}\n")).unwrap();
    }

    let now = versions(&namespace);
    let written = labelled.iter().filter(|(name, version)| now.get(*name) != Some(*version)).count();
    // A migration that finds no node for its target pod ends after five minutes, and its budget changes with it.
    assert!(written <= PROTECTED / 10, "{written} of {} labelled budgets were written again", labelled.len());
    let begun = list::<Migration>(&namespace)
        .iter()
        .filter(|m| !matches!(m.status.phase, None | Some(Phase::Pending | Phase::Succeeded | Phase::Failed)))
        .count();
    assert!(begun <= LIMIT, "{begun} migrations have begun");
}
