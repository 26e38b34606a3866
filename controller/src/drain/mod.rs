//! Machines that are to leave their node, and what protects a machine that can.
//!
//! ```text
//! kubectl drain ──> eviction ──> virt-api: status.evacuationNodeName, 429 ─┐
//! taint of the node ───────────────────────────────────────────────────────┴─> migration, when there is room
//! ```
//!
//! **Evacuation** makes a VirtualMachineInstanceMigration for each machine whose status names its own node as the one
//! to leave, or whose node has the drain taint. It makes no more at a time than may run, and the node's machines follow
//! as those end; what users have asked for takes no room from them, and waits ([`crate::migration`] lets the more urgent
//! start first). A machine that cannot be migrated is told so once. A migration that was made for an eviction is aborted once the
//! machine's status names the node no longer: its evacuation was cancelled.
//!
//! **Upkeep** gives another pod to machines whose pod lacks what they ask for, or whose launcher is of an older image
//! ([`update`]).
//!
//! **Budgets.** A machine that an eviction must not end has a PodDisruptionBudget over its pods: one must stay, two
//! while it migrates. It holds evictions back also while no virt-api answers.
//!
//! Both look at the caches once a second; [`evacuate`] and [`budget`] are pure functions of what stands there.

pub mod budget;
pub mod evacuate;
pub mod update;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{DeleteParams, EvictParams, Patch, PatchParams, PostParams, Preconditions};
use kube::runtime::WatchStreamExt;
use kube::runtime::reflector::{Store, reflector, store};
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client, ResourceExt};
use podvirt_api::migration::defaults;
use podvirt_api::names::{self, event, label};
use podvirt_api::v1::{KubeVirt, VirtualMachineInstance, VirtualMachineInstanceMigration as Migration};
use podvirt_daemon::backoff::Backoff;
use podvirt_daemon::events::Recorder;
use serde_json::json;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::metrics::Metrics;
use crate::settings::{Cluster, Settings};
use crate::vmi::View;

use budget::Change;

/// Time between two looks at the caches.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Name under which budgets are applied.
const MANAGER: &str = "virt-controller";

struct Drain {
    client: Client,
    recorder: Recorder,
    cluster: Cluster,
    view: View,
    migrations: Store<Migration>,
    nodes: Store<Node>,
    budgets: Store<PodDisruptionBudget>,
    /// Machines that were told that they block a drain.
    told: BTreeSet<String>,
    /// Migrations that were made and are not in the cache yet: `namespace/machine`, and looks left to wait for them.
    asked: Vec<(String, u32)>,
    /// Namespace of the KubeVirt object.
    namespace: String,
    metrics: Metrics,
    /// When machines with an older launcher were evicted last.
    evicted: Option<Instant>,
    /// Which machines were given another pod last.
    turns: update::Turns,
    /// Machines whose migration was refused, and when to ask again: `namespace/machine`.
    refused: BTreeMap<String, Instant>,
    backoff: Backoff<String>,
}

/// Looks that a migration that was made may take to show up in the cache.
const LOOKS: u32 = 10;

/// What it needs of the process: caches that other controllers fill among it.
pub struct Context {
    /// Client for the API server.
    pub client: Client,
    /// Writes events.
    pub recorder: Recorder,
    /// The cluster's configuration.
    pub cluster: Cluster,
    /// Machines.
    pub view: View,
    /// All migrations.
    pub migrations: Store<Migration>,
    /// All nodes.
    pub nodes: Store<Node>,
    /// Namespace of the KubeVirt object.
    pub namespace: String,
    /// Counts.
    pub metrics: Metrics,
}

/// Runs until it is dropped. To be run while leading.
pub async fn run(context: Context) {
    let Context { client, recorder, cluster, view, migrations, nodes, namespace, metrics } = context;
    let (budgets, budget_writer) = store();
    let of_machines = watcher::Config::default().labels(label::CREATED_BY);
    let follow_budgets = reflector(
        budget_writer,
        watcher(Api::<PodDisruptionBudget>::all(client.clone()), of_machines).default_backoff(),
    )
    .for_each(|event| async {
        if let Err(error) = event {
            tracing::warn!(error = &error as &dyn std::error::Error, "watch of budgets");
        }
    });
    let drain = Drain {
        client,
        recorder,
        cluster,
        view,
        migrations,
        nodes,
        budgets,
        told: BTreeSet::new(),
        asked: Vec::new(),
        namespace,
        metrics,
        evicted: None,
        turns: update::Turns::default(),
        refused: BTreeMap::new(),
        backoff: Backoff::default(),
    };
    // Each runs until both are dropped.
    tokio::join!(follow_budgets, drain.look_forever());
}

impl Drain {
    async fn look_forever(mut self) {
        self.view.complete().await;
        // An error is a cache whose feeder is gone, which happens only at the end.
        if self.migrations.wait_until_ready().await.is_err()
            || self.nodes.wait_until_ready().await.is_err()
            || self.budgets.wait_until_ready().await.is_err()
        {
            return;
        }
        let mut ticks = interval(LOOK_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.look().await;
        }
    }

    async fn look(&mut self) {
        let settings = self.cluster.settings().await;
        let config = &settings.configuration;
        let (machines, migrations) = (self.view.machines(), self.migrations.state());
        for change in budget::changes(&machines, &migrations, &self.budgets.state(), config) {
            let (namespace, name) = change.object();
            if let Err(error) = self.keep(&change).await {
                tracing::warn!(
                    namespace,
                    name,
                    error = &error as &dyn std::error::Error,
                    "budget not written"
                );
            }
        }
        let key = defaults(config).node_drain_taint_key.unwrap_or_default();
        let tainted: BTreeSet<String> = self
            .nodes
            .state()
            .iter()
            .filter(|node| evacuate::is_tainted(node, &key))
            .map(|n| n.name_any())
            .collect();
        self.forget_seen(&migrations);
        let asked = self.asked(&machines);
        let plan = evacuate::plan(&machines, &migrations, &tainted, &asked, config);
        for migration in &plan.abort {
            self.abort(migration, "its machine's evacuation was cancelled").await;
        }
        for machine in plan.migrate {
            self.migrate(&machine, &evacuate::migration(&machine), "to empty the node").await;
        }
        self.update(&machines, &migrations, &settings).await;
        for (machine, why) in &plan.blocked {
            if self.told.insert(machine.uid().unwrap_or_default()) {
                let message =
                    format!("the machine holds up the drain of its node: it cannot be migrated: {why}");
                self.recorder.warning(machine.as_ref(), event::EVACUATION_BLOCKED, &message).await;
            }
        }
        let blocked: BTreeSet<String> =
            plan.blocked.iter().filter_map(|(machine, _)| machine.uid()).collect();
        self.told.retain(|uid| blocked.contains(uid));
    }

    /// Gives another pod to machines that need one, as far as the cluster's strategy says so, and tells how many they are.
    async fn update(
        &mut self,
        machines: &[Arc<VirtualMachineInstance>],
        migrations: &[Arc<Migration>],
        settings: &Settings,
    ) {
        let asked = self.asked(machines);
        let due = self.evicted.is_none_or(|at| at.elapsed() >= settings.batch_interval);
        let plan = update::plan(machines, migrations, &asked, settings, due, &mut self.turns);
        for migration in &plan.abort {
            self.abort(migration, "its machine's volumes stay on their claims").await;
        }
        for machine in &plan.migrate {
            self.migrate(machine, &update::migration(machine), "to give it another pod").await;
        }
        if !plan.evict.is_empty() {
            self.evicted = Some(Instant::now());
        }
        for machine in &plan.evict {
            self.evict(machine).await;
        }
        self.metrics.outdated(plan.outdated);
        let outdated = i64::try_from(plan.outdated).unwrap_or(i64::MAX);
        if settings.is_there && settings.outdated != Some(outdated) {
            let api: Api<KubeVirt> = Api::namespaced(self.client.clone(), &self.namespace);
            let status =
                Patch::Merge(json!({"status": {"outdatedVirtualMachineInstanceWorkloads": outdated}}));
            if let Err(error) = api.patch_status(names::KUBEVIRT, &PatchParams::default(), &status).await {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "the number of machines with an older launcher is not told"
                );
            }
        }
    }

    /// Deletes a migration, which ends it unless the guest has moved.
    async fn abort(&self, migration: &Migration, why: &str) {
        let (namespace, name) = (migration.namespace().unwrap_or_default(), migration.name_any());
        let api: Api<Migration> = Api::namespaced(self.client.clone(), &namespace);
        let params = DeleteParams {
            preconditions: Some(Preconditions { uid: migration.uid(), resource_version: None }),
            ..DeleteParams::default()
        };
        match api.delete(&name, &params).await {
            Ok(_) => tracing::info!(namespace, migration = name, why, "migration aborted"),
            // Gone, or another one has its name.
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => {}
            Err(error) => tracing::warn!(
                namespace,
                migration = name,
                error = &error as &dyn std::error::Error,
                why,
                "migration not aborted"
            ),
        }
    }

    /// Evicts the pod of a machine: its guest shuts down, and its run strategy decides what follows.
    async fn evict(&self, machine: &VirtualMachineInstance) {
        let namespace = machine.namespace().unwrap_or_default();
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &namespace);
        let pods = self.view.pods_of(&machine.uid().unwrap_or_default());
        for pod in pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()) {
            match api.evict(&pod.name_any(), &EvictParams::default()).await {
                Ok(_) => {
                    tracing::info!(namespace, machine = machine.name_any(), "evicted for an update");
                    let message = "evicted the machine to give it another pod";
                    self.recorder.normal(machine, event::SUCCESSFUL_EVICT, message).await;
                }
                Err(error) => {
                    let message = format!("the machine cannot be evicted to give it another pod: {error}");
                    self.recorder.warning(machine, event::FAILED_EVICT, &message).await;
                }
            }
        }
    }

    /// Forgets what was asked for and is in the cache now, or will not come any more.
    fn forget_seen(&mut self, migrations: &[Arc<Migration>]) {
        for (_, left) in &mut self.asked {
            *left = left.saturating_sub(1);
        }
        let seen: BTreeSet<String> = migrations
            .iter()
            .filter(|m| !podvirt_api::migration::is_final(m))
            .map(|m| evacuate::key(m.namespace(), m.spec.vmi_name.as_deref()))
            .collect();
        self.asked.retain(|(machine, left)| *left > 0 && !seen.contains(machine));
    }

    /// What was asked for before this look at `machines`.
    fn asked(&mut self, machines: &[Arc<VirtualMachineInstance>]) -> evacuate::Asked {
        let there: BTreeSet<String> = machines
            .iter()
            .map(|machine| evacuate::key(machine.namespace(), machine.metadata.name.as_deref()))
            .collect();
        self.refused.retain(|machine, _| {
            let stays = there.contains(machine);
            if !stays {
                self.backoff.forget(machine);
            }
            stays
        });
        let now = Instant::now();
        let rest = self.refused.iter().filter(|(_, until)| **until > now);
        evacuate::Asked {
            made: self.asked.iter().map(|(machine, _)| machine.clone()).collect(),
            refused: rest.map(|(machine, _)| machine.clone()).collect(),
        }
    }

    async fn migrate(
        &mut self,
        machine: &podvirt_api::v1::VirtualMachineInstance,
        migration: &Migration,
        why: &str,
    ) {
        let namespace = machine.namespace().unwrap_or_default();
        let api: Api<Migration> = Api::namespaced(self.client.clone(), &namespace);
        let key = evacuate::key(machine.namespace(), machine.metadata.name.as_deref());
        match api.create(&PostParams::default(), migration).await {
            Ok(made) => {
                self.backoff.forget(&key);
                self.refused.remove(&key);
                tracing::info!(
                    namespace,
                    machine = machine.name_any(),
                    migration = made.name_any(),
                    why,
                    "migration asked for"
                );
                let message = format!("made migration {} {why}", made.name_any());
                self.recorder.normal(machine, event::SUCCESSFUL_CREATE, &message).await;
                self.asked.push((key, LOOKS));
            }
            Err(error) => {
                let again = self.backoff.failed(key.clone());
                self.refused.insert(key, Instant::now() + again);
                tracing::warn!(
                    namespace,
                    machine = machine.name_any(),
                    error = &error as &dyn std::error::Error,
                    why,
                    ?again,
                    "migration not asked for"
                );
            }
        }
    }

    async fn keep(&self, change: &Change) -> Result<(), kube::Error> {
        let (namespace, name) = change.object();
        let api: Api<PodDisruptionBudget> = Api::namespaced(self.client.clone(), namespace);
        match change {
            Change::Apply(budget) => {
                let params = PatchParams::apply(MANAGER).force();
                api.patch(name, &params, &Patch::Apply(budget.as_ref())).await.map(|_| ())
            }
            Change::Delete { uid, .. } => {
                let params = DeleteParams {
                    preconditions: Some(Preconditions { uid: Some(uid.clone()), resource_version: None }),
                    ..DeleteParams::default()
                };
                match api.delete(name, &params).await {
                    Ok(_) => Ok(()),
                    Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
                    Err(error) => Err(error),
                }
            }
        }
    }
}
