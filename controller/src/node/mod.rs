//! Nodes that fall silent, and the machines on them.
//!
//! virt-handler writes a heartbeat on its node every one to two minutes. A node whose heartbeat stopped gets no
//! new machines (`kubevirt.io/schedulable=false`). Its running machines' status is not written then, so a
//! machine there that has certainly ended is failed here, for its VirtualMachine to start it elsewhere.
//!
//! **Never two of one machine.** That a node is silent does not say that its machines stopped: it may be cut off
//! and go on writing to shared disks. A machine is failed only when both hold:
//!
//! 1. its node cannot speak for it: the node is gone from the cluster, or its heartbeat stopped, or Kubernetes
//!    itself has no word from it (condition Ready is Unknown), and
//! 2. it has no launcher pod left in the API; or an operator vouches for the whole node with the taint
//!    `node.kubernetes.io/out-of-service`.
//!
//! A pod that is left and has ended tells how: the controller of instances judges by its exit code.
//!
//! A pod on a node that does not answer stays in the API, even deleted and past its grace period: only the node's
//! kubelet, or a person who deletes the node, sets the taint or deletes the pod by force, takes it away. All of
//! these say that nothing runs there any more. That is upstream's rule and Kubernetes' own for stateful sets.
//!
//! ```text
//!   nodes (cache) ─┐  every 10 s, from the caches alone
//!                  ├─> silent nodes ─┬─> label (patched on the version that was judged)
//!   machines'     ─┘                 └─> the node's machines and their pods, asked of the API server
//!   labels (cache)                        └─> those without a pod: phase Failed, reason NodeUnresponsive
//! ```
//!
//! A heartbeat carries the node's time. It counts as stopped when it is older than the limit and also has not
//! changed for [`STEADY`] as seen from here, or has not changed for the whole limit: a clock that is wrong on one
//! side makes a node neither silent nor immortal.

mod judge;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Patch, PatchParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{ObjectRef, Store, reflector};
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client, ResourceExt};
use podvirt_api::migration::{is_at_target, is_under_way};
use podvirt_api::names::{event, label};
use podvirt_api::v1::{
    VirtualMachineInstance, VirtualMachineInstancePhase as Phase,
    VirtualMachineInstancePhaseTransitionTimestamp,
};
use podvirt_daemon::events::Recorder;
use podvirt_daemon::patch;
use serde_json::json;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::vmi::View;
use crate::vmi::pods::{is_of, name_of};

pub use judge::{Heartbeats, STEADY, Silence, has_ended, is_vouched_for, may_run, silence};

/// Time between two looks at the caches.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);

/// How the controller judges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// A heartbeat that is older than this has stopped. Upstream's default is five minutes: four missed ones.
    pub heartbeat_limit: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self { heartbeat_limit: Duration::from_secs(300) }
    }
}

/// A request failed. All is looked at again in ten seconds.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("API server not asked")]
    Ask(#[from] kube::Error),
    #[error("not written")]
    Write(#[from] patch::Error),
}

struct Watch {
    client: Client,
    recorder: Recorder,
    config: Config,
    nodes: Store<Node>,
    view: View,
    heartbeats: Heartbeats,
}

/// Runs the controller until it is dropped, and fills `nodes` by `writer`; `view` shows machines. To be run while
/// leading; it leaves nothing behind that runs.
pub async fn run(
    client: Client,
    recorder: Recorder,
    config: Config,
    view: View,
    (nodes, writer): (Store<Node>, Writer<Node>),
) {
    let node_events = watcher(Api::<Node>::all(client.clone()), watcher::Config::default())
        .default_backoff()
        // Lists of images make up most of a node.
        .modify(|node| {
            node.managed_fields_mut().clear();
            if let Some(status) = &mut node.status {
                status.images = None;
            }
        });
    let follow_nodes = reflector(writer, node_events).for_each(|event| async {
        if let Err(error) = event {
            tracing::warn!(error = &error as &dyn std::error::Error, "watching nodes");
        }
    });
    let watch = Watch { client, recorder, config, nodes, view, heartbeats: Heartbeats::default() };
    // Both run until they are dropped.
    tokio::join!(follow_nodes, watch.look_forever());
}

impl Watch {
    async fn look_forever(mut self) {
        // An error is a cache whose feeder is gone, which happens only at the end.
        if self.nodes.wait_until_ready().await.is_err() {
            return;
        }
        self.view.complete().await;
        let mut ticks = interval(LOOK_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.look().await;
        }
    }

    /// Judges all nodes that exist or that a machine is said to be on.
    async fn look(&mut self) {
        let populated: BTreeSet<String> = self.view.machines().iter().filter_map(|m| node_of(m)).collect();
        let existing = self.nodes.state();
        let mut names: BTreeSet<String> = existing.iter().map(|node| node.name_any()).collect();
        self.heartbeats.keep(&names);
        names.extend(populated.iter().cloned());
        for name in names {
            let node = self.nodes.get(&ObjectRef::new(&name));
            let steady = node.as_deref().map(|node| self.heartbeats.observe(node, Instant::now().into_std()));
            let steady = steady.unwrap_or_default();
            let Some(why) = silence(node.as_deref(), steady, Timestamp::now(), self.config.heartbeat_limit)
            else {
                continue;
            };
            let handled = async {
                if let Some(node) = node.as_deref().filter(|_| why == Silence::Heartbeat) {
                    self.close(node).await?;
                }
                if populated.contains(&name) {
                    self.fail_ended(&name, node.as_deref(), why).await
                } else {
                    Ok(())
                }
            };
            if let Err(error) = handled.await {
                tracing::warn!(node = name, error = &error as &dyn std::error::Error, "to be tried again");
            }
        }
    }

    /// Keeps new machines off a node.
    async fn close(&self, node: &Node) -> Result<(), Error> {
        if node.labels().get(label::SCHEDULABLE).is_none_or(|value| value != "true") {
            return Ok(());
        }
        let change = json!({"metadata": {
            "resourceVersion": node.resource_version(),
            "labels": {label::SCHEDULABLE: "false"},
        }});
        let nodes = Api::<Node>::all(self.client.clone());
        match nodes.patch_metadata(&node.name_any(), &PatchParams::default(), &Patch::Merge(change)).await {
            Ok(_) => {
                tracing::warn!(node = node.name_any(), "heartbeat stopped: the node takes no new machines");
                let message =
                    "virt-handler's heartbeat stopped: no virtual machines are started on this node";
                self.recorder.warning(node, event::NODE_UNRESPONSIVE, message).await;
                Ok(())
            }
            // It was written meanwhile, by its heartbeat as like as not.
            Err(kube::Error::Api(status)) if status.is_conflict() || status.is_not_found() => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Fails the machines of a silent node that have ended for certain.
    async fn fail_ended(&self, name: &str, node: Option<&Node>, why: Silence) -> Result<(), Error> {
        let vouched = node.is_some_and(is_vouched_for);
        for known in self.suspects(name, vouched) {
            let (namespace, uid) = (known.namespace().unwrap_or_default(), known.uid().unwrap_or_default());
            // Asked of the API server as things are now: a pod that a cache does not know yet runs as well.
            let machines = Api::<VirtualMachineInstance>::namespaced(self.client.clone(), &namespace);
            let machine = machines.get_opt(&known.name_any()).await?;
            let is_same = |machine: &VirtualMachineInstance| machine.metadata.uid == known.metadata.uid;
            let Some(machine) = machine.filter(|machine| is_same(machine) && is_open(machine, name)) else {
                continue;
            };
            // By its name: labels, which a list would go by, are set by any user who may write pods.
            let pods = Api::<Pod>::namespaced(self.client.clone(), &namespace);
            let pod = pods.get_opt(&name_of(&machine)).await?;
            if !has_ended(pod.as_ref().filter(|pod| is_of(pod, &uid)), vouched) {
                continue;
            }
            match self.fail(&machine, name, why).await {
                Err(Error::Write(error)) if error.is_stale() => {}
                other => other?,
            }
        }
        Ok(())
    }

    /// Machines of a silent node whose pods have ended or are gone as far as the caches know. A pod that is there still is told of by its
    /// watch once it goes: the API server is not asked for it meanwhile.
    fn suspects(&self, node: &str, vouched: bool) -> Vec<Arc<VirtualMachineInstance>> {
        let has_pod = |machine: &VirtualMachineInstance| {
            let (name, pods) = (name_of(machine), self.view.pods_of(&machine.uid().unwrap_or_default()));
            pods.iter().any(|pod| pod.name_any() == name && !has_ended(Some(pod), vouched))
        };
        let machines = self.view.machines().into_iter();
        let of_node =
            machines.filter(|machine| node_of(machine).as_deref() == Some(node) && is_open(machine, node));
        of_node.filter(|machine| !has_pod(machine)).collect()
    }

    async fn fail(&self, machine: &VirtualMachineInstance, node: &str, why: Silence) -> Result<(), Error> {
        let api = Api::<VirtualMachineInstance>::namespaced(
            self.client.clone(),
            &machine.namespace().unwrap_or_default(),
        );
        if patch::status(&api, machine, &failed(machine, Timestamp::now())).await?.is_some() {
            let message =
                format!("node {node}: {why}, and no pod of the machine is left there: it has failed");
            tracing::warn!(
                namespace = machine.namespace(),
                name = machine.name_any(),
                node,
                "machine failed: {why}"
            );
            self.recorder.warning(machine, event::NODE_UNRESPONSIVE, &message).await;
        }
        Ok(())
    }
}

/// The node that a machine's label says it is on.
fn node_of(machine: &VirtualMachineInstance) -> Option<String> {
    machine.labels().get(label::NODE_NAME).filter(|name| !name.is_empty()).cloned()
}

/// Whether a machine's phase is the node's to write, and was not written to an end yet.
fn is_open(machine: &VirtualMachineInstance, node: &str) -> bool {
    // A guest that was seen at a migration's target is alive there, and virt-handler of that node will say so.
    let left = machine.status.migration_state.as_ref().is_some_and(|s| is_under_way(s) && is_at_target(s));
    !left
        && machine.status.node_name.as_deref() == Some(node)
        && matches!(machine.status.phase, Some(Phase::Scheduled | Phase::Running | Phase::Unknown))
}

/// The machine as it is once it has failed with its node.
fn failed(machine: &VirtualMachineInstance, now: Timestamp) -> VirtualMachineInstance {
    let mut failed = machine.clone();
    failed.status.phase = Some(Phase::Failed);
    failed.status.reason = Some(event::NODE_UNRESPONSIVE.to_owned());
    failed.status.phase_transition_timestamps.push(VirtualMachineInstancePhaseTransitionTimestamp {
        phase: Some(Phase::Failed),
        phase_transition_timestamp: Some(Some(Time(now))),
    });
    failed
}
