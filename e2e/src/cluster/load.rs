//! A busy cluster: migrations wait in the queue, users have labelled budgets, launchers hang.
//!
//! Most machines here are *parked*: their launcher pods fit no node, and their status says that they run on a node that
//! there is not, so that migrations of them can be asked for. They cost objects and no memory. The machines whose
//! launchers are stopped are real and never let their guests' processors run.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Result;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;
use kube::api::ListParams;
use podvirt_api::v1::{
    VirtualMachineInstance as Instance, VirtualMachineInstanceMigration as Migration,
    VirtualMachineInstanceMigrationPhase as Phase,
};

use super::{BOOT, Manifest, Namespace, Node};

/// For hundreds of objects, on a machine that does much else.
const LONG: Duration = Duration::from_secs(300);
/// Objects that are applied at a time.
const PART: usize = 50;
/// The image of a machine's disk, as the manifests have it.
const TAGGED_IMAGE: &str = "podvirt/disk-tiny:dev";

/// How much of each.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Machines whose migrations wait.
    pub parked: usize,
    /// Those of them that have a budget; a multiple of 50.
    pub protected: usize,
    /// Machines whose launchers are stopped.
    pub hung: usize,
}

impl Load {
    /// What a large cluster may have at a time.
    pub const LARGE: Load = Load { parked: 500, protected: 100, hung: 20 };
}

/// The load on a cluster. Dropping it lets the launchers go on; the objects go with their namespace.
pub struct Loaded<'n, 'c> {
    namespace: &'n Namespace<'c>,
    /// Versions of the budgets when they had been labelled, which every write changes.
    labelled: BTreeMap<String, Option<String>>,
    _stopped: Stopped<'c>,
}

/// Launchers on a node that are stopped until this is dropped.
struct Stopped<'c>(Node<'c>);

impl<'c> Stopped<'c> {
    fn all_of(node: Node<'c>) -> Result<Stopped<'c>> {
        node.run(&["sh", "-c", "kill -STOP $(pgrep -x virt-launcher)"])?;
        Ok(Stopped(node))
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        // Those whose pods were killed are gone.
        drop(self.0.run(&["sh", "-c", "kill -CONT $(pgrep -x virt-launcher) || true"]));
    }
}

/// Milliseconds from the manifest to the running machine on node 1, of `count` machines one after another, each of which
/// is deleted before the next; ascending.
///
/// # Errors
/// A machine does not start, or does not go.
pub fn starts(namespace: &Namespace<'_>, name: &str, count: usize) -> Result<Vec<u64>> {
    let mut took = Vec::with_capacity(count);
    for n in 0..count {
        let name = format!("{name}-{n}");
        let spec = "nodeSelector: {kubernetes.io/hostname: node1}";
        let began = Instant::now();
        namespace.apply(&Manifest { name: &name, spec, ..Default::default() }.instance())?;
        namespace.wait_phase(&name, "Running", BOOT)?;
        took.push(u64::try_from(began.elapsed().as_millis())?);
        namespace.kubectl(&["delete", "vmi", &name, "--wait=false"])?;
        namespace.wait_gone::<Instance>(&name, BOOT)?;
    }
    took.sort_unstable();
    Ok(took)
}

impl<'n, 'c> Loaded<'n, 'c> {
    /// Brings the load about.
    ///
    /// # Errors
    /// It does not come about.
    pub fn new(namespace: &'n Namespace<'c>, load: Load) -> Result<Loaded<'n, 'c>> {
        park(namespace, load)?;
        namespace.until("budgets", LONG, || {
            let settled = list::<PodDisruptionBudget>(namespace)?.iter().filter(|b| is_settled(b)).count();
            Ok((settled == load.protected).then_some(()))
        })?;
        namespace.kubectl(&["label", "pdb", "--all", "team=shop"])?;
        let labelled = versions(namespace)?;
        Ok(Loaded { namespace, labelled, _stopped: hang(namespace, load.hung)? })
    }

    /// How many budgets were labelled, and how many of them were written again since then.
    ///
    /// # Errors
    /// The API server does not answer.
    pub fn rewritten(&self) -> Result<(usize, usize)> {
        let now = versions(self.namespace)?;
        let written = self.labelled.iter().filter(|(name, version)| now.get(*name) != Some(*version));
        Ok((self.labelled.len(), written.count()))
    }

    /// How many migrations have begun and not ended.
    ///
    /// # Errors
    /// The API server does not answer.
    pub fn begun(&self) -> Result<usize> {
        let waits = |m: &Migration| {
            matches!(m.status.phase, None | Some(Phase::Pending | Phase::Succeeded | Phase::Failed))
        };
        Ok(list::<Migration>(self.namespace)?.iter().filter(|m| !waits(m)).count())
    }
}

fn list<K>(namespace: &Namespace<'_>) -> Result<Vec<K>>
where
    K: kube::Resource<Scope = NamespaceResourceScope, DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned,
{
    Ok(namespace.cluster().block_on(namespace.api::<K>().list(&ListParams::default()))?.items)
}

/// Machines that are said to run on a node that there is not, each with a migration that waits.
fn park(namespace: &Namespace<'_>, load: Load) -> Result<()> {
    // The pod of a parked machine has never pulled its image, and by a tag alone its migration would be refused.
    let pinned = format!("{TAGGED_IMAGE}@sha256:{}", "0".repeat(64));
    let names: Vec<String> = (0..load.parked).map(|n| format!("parked-{n}")).collect();
    for (part, names) in names.chunks(PART).enumerate() {
        let strategy = if part * PART < load.protected { "LiveMigrate" } else { "None" };
        let spec = format!("nodeSelector: {{parked: here}}, evictionStrategy: {strategy}");
        let instance = |name| Manifest { name, spec: &spec, ..Default::default() }.instance();
        let all = names.iter().map(|name| instance(name).replace(TAGGED_IMAGE, &pinned));
        namespace.apply(&all.collect::<Vec<_>>().join("\n---\n"))?;
    }
    let waits = |vmi: &Instance| {
        let phase = vmi.status.phase.as_ref();
        vmi.name_any().starts_with("parked-") && phase.is_some_and(|phase| phase.as_str() == "Scheduling")
    };
    namespace.until("launcher pods that fit no node", LONG, || {
        let waiting = list::<Instance>(namespace)?.iter().filter(|vmi| waits(vmi)).count();
        Ok((waiting == load.parked).then_some(()))
    })?;
    for names in names.chunks(PART) {
        // What a user writes into a status is undone.
        let patch =
            ["patch", "vmi", "--as=system:serviceaccount:kubevirt:kubevirt-controller", "--type=merge"];
        let running = ["--patch", r#"{"status": {"phase": "Running", "nodeName": "nowhere"}}"#];
        let names = names.iter().map(String::as_str);
        namespace.kubectl(&patch.into_iter().chain(running).chain(names).collect::<Vec<_>>())?;
    }
    for names in names.chunks(PART) {
        let migration = |name: &String| {
            format!(
                "{{apiVersion: kubevirt.io/v1, kind: VirtualMachineInstanceMigration, metadata: {{name: {name}}}, spec: {{vmiName: {name}}}}}"
            )
        };
        namespace.apply(&names.iter().map(migration).collect::<Vec<_>>().join("\n---\n"))?;
    }
    Ok(())
}

fn versions(namespace: &Namespace<'_>) -> Result<BTreeMap<String, Option<String>>> {
    let budgets: Vec<PodDisruptionBudget> = list(namespace)?;
    Ok(budgets.iter().map(|b| (b.name_any(), b.resource_version())).collect())
}

/// Whether a budget is that of a machine with a migration, and Kubernetes has taken note of it.
fn is_settled(budget: &PodDisruptionBudget) -> bool {
    let noted = budget.status.as_ref().and_then(|status| status.observed_generation);
    let two = budget.spec.as_ref().and_then(|spec| spec.min_available.as_ref()) == Some(&IntOrString::Int(2));
    two && noted.is_some() && noted == budget.metadata.generation
}

/// Machines whose launchers are stopped, once virt-handler has told so of all of them.
fn hang<'c>(namespace: &Namespace<'c>, count: usize) -> Result<Stopped<'c>> {
    let names: Vec<String> = (0..count).map(|n| format!("hung-{n}")).collect();
    let spec = "nodeSelector: {kubernetes.io/hostname: node1}, startStrategy: Paused";
    let domain = "resources: {requests: {cpu: 10m}}";
    let all = names.iter().map(|name| Manifest { name, spec, domain, ..Default::default() }.instance());
    namespace.apply(&all.collect::<Vec<_>>().join("\n---\n"))?;
    for name in &names {
        namespace.wait_phase(name, "Running", LONG)?;
    }
    let stopped = Stopped::all_of(namespace.cluster().node(1))?;
    // virt-handler asks a launcher that is settled every five minutes, and at once when its VMI changes.
    let words = ["label", "vmi"].into_iter().chain(names.iter().map(String::as_str)).chain(["asked=now"]);
    namespace.kubectl(&words.collect::<Vec<_>>())?;
    let tells =
        |vmi: &Instance| vmi.status.conditions.iter().any(|c| c.reason.as_deref() == Some("LauncherSilent"));
    for name in &names {
        namespace.wait(name, "the condition of a launcher that hangs", LONG, tells)?;
    }
    Ok(stopped)
}
