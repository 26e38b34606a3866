//! One pass over everything, and what starts the next.

use std::sync::Arc;
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::ListParams;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Config, watcher};
use kube::{Api, ResourceExt};
use podvirt_api::admission::kubevirt::validate;
use podvirt_api::error::chain;
use podvirt_api::names;
use podvirt_api::v1::KubeVirt;
use podvirt_daemon::events::Recorder;
use podvirt_daemon::follow::follow;
use podvirt_daemon::patch;
use serde_json::Value;
use tokio::sync::Notify;

use crate::absent;
use crate::cluster::{Cluster, ClusterError, Stored};
use crate::customize::objects;
use crate::foreign::Foreign;
use crate::manifests::{DAEMON_SET, DEFINITION, KINDS, OPTIONAL, Object};
use crate::metrics::Metrics;
use crate::monitoring;
use crate::order::waves;
use crate::remove;
use crate::rollout::{Rollout, trouble};
use crate::status::{DELETION_FAILED, DOWNGRADE, FAILED, INVALID, KUBEVIRT_INSTALLED, Outcome, READY, after};
use crate::target::{Own, Target};
use crate::transition::{is_divided, phases};

/// The KubeVirt object stays until podvirt is removed; upstream's name.
pub const FINALIZER: &str = "foregroundDeleteKubeVirt";
/// Least time between two passes: what changes at once is seen at once.
const SPACING: Duration = Duration::from_millis(500);
/// Longest time between two passes: what is not watched, as the account of Prometheus, is looked at then.
const LONGEST: Duration = Duration::from_secs(300);
/// Wait after a pass that failed.
const RETRY: Duration = Duration::from_secs(5);
/// The daemons' pods.
const PODS: &str = "kubevirt.io in (virt-api,virt-controller,virt-exportproxy,virt-handler)";

/// What a pass needs.
#[derive(Clone)]
pub struct Parts {
    /// The cluster.
    pub cluster: Cluster,
    /// virt-operator's own version and images.
    pub own: Own,
    /// Events on the KubeVirt object.
    pub recorder: Recorder,
    /// What is counted.
    pub metrics: Metrics,
}

/// Passes whenever something changed, for as long as it is polled.
pub async fn run(parts: Parts) {
    let changed = Arc::new(Notify::new());
    let api: Api<KubeVirt> = Api::namespaced(parts.cluster.client().clone(), parts.cluster.namespace());
    let (send, mut seen) = tokio::sync::watch::channel(None);
    let following = async {
        let mut versions = Box::pin(follow(api, names::KUBEVIRT));
        while let Some(version) = versions.next().await {
            match version {
                Ok(kubevirt) => {
                    send.send_replace(Some(kubevirt));
                    changed.notify_one();
                }
                Err(error) => {
                    tracing::warn!(error = &error as &dyn std::error::Error, "watch of the KubeVirt object");
                }
            }
        }
    };
    let passing = async {
        loop {
            changed.notified().await;
            let there = seen.borrow_and_update().clone();
            let again = match there {
                // Not read yet, or there is none: nothing to do.
                None | Some(None) => false,
                Some(Some(kubevirt)) => Box::pin(parts.pass(kubevirt)).await,
            };
            if again {
                tokio::time::sleep(RETRY).await;
                changed.notify_one();
            } else {
                tokio::time::sleep(SPACING).await;
            }
        }
    };
    let looking = async {
        loop {
            tokio::time::sleep(LONGEST).await;
            changed.notify_one();
        }
    };
    tokio::join!(following, passing, looking, watch(&parts.cluster, &changed));
}

/// Tells `changed` of every change of an object that virt-operator has made, of the daemons' pods, and of the kinds of which
/// objects are made where there are any.
async fn watch(cluster: &Cluster, changed: &Notify) {
    let told = |event: Result<(), watcher::Error>, what: &'static str| match event {
        Ok(()) => changed.notify_one(),
        Err(error) => {
            tracing::warn!(what, error = &error as &dyn std::error::Error, "watch failed");
        }
    };
    let mut watches = FuturesUnordered::new();
    for kind in KINDS {
        for place in cluster.places(*kind) {
            let config = Config::default().labels(&Cluster::selector());
            let events = watcher(cluster.metadata(*kind, place), config).default_backoff();
            watches.push(Box::pin(async move {
                events.for_each(async |event| told(event.map(drop), kind.plural)).await;
            }) as std::pin::Pin<Box<dyn Future<Output = ()> + Send + '_>>);
        }
    }
    for kind in OPTIONAL {
        let config = Config::default().fields(&format!("metadata.name={}.{}", kind.plural, kind.group));
        let events = watcher(cluster.metadata(DEFINITION, None), config).default_backoff();
        watches.push(Box::pin(async move {
            events.for_each(async |event| told(event.map(drop), kind.plural)).await;
        }));
    }
    let pods: Api<Pod> = Api::namespaced(cluster.client().clone(), cluster.namespace());
    let events = watcher(pods, Config::default().labels(PODS)).default_backoff();
    watches.push(Box::pin(async move {
        events.for_each(async |event| told(event.map(drop), "pods")).await;
    }));
    while watches.next().await.is_some() {}
}

/// Whether the KubeVirt object stays until podvirt is removed.
fn holds(kubevirt: &KubeVirt) -> bool {
    kubevirt.finalizers().iter().any(|finalizer| finalizer == FINALIZER)
}

/// Whether the API server took a write. A refusal is logged, but for a conflict: the watch brings the newer object then.
fn written(result: Result<(), patch::Error>) -> bool {
    match result {
        Ok(()) => true,
        Err(error) if error.is_stale() => false,
        Err(error) => {
            tracing::warn!(error = &error as &dyn std::error::Error, "the KubeVirt object is not written");
            false
        }
    }
}

impl Parts {
    /// One pass. Whether it shall be tried again without a change.
    pub(crate) async fn pass(&self, kubevirt: KubeVirt) -> bool {
        self.metrics.passes.inc();
        let target = Target::of(&kubevirt.spec, &self.own);
        let deleting = kubevirt.metadata.deletion_timestamp.is_some();
        if !deleting && !holds(&kubevirt) {
            // virt-operator makes nothing before its finalizer is in the object, since what it makes must be removed with the
            // object. The finalizer is a change of the object, which starts the next pass.
            return !written(self.hold(&kubevirt, true).await);
        }
        let outcome =
            if deleting { remove::pass(&self.cluster).await } else { self.install(&kubevirt, &target).await };
        let outcome = outcome.unwrap_or_else(|error| {
            let reason = if deleting { DELETION_FAILED } else { FAILED };
            Outcome::Failed { reason, message: format!("An error occurred: {}", chain(&error)) }
        });
        let failed = matches!(outcome, Outcome::Failed { .. });
        if failed {
            self.metrics.failures.inc();
        }
        let told = written(Box::pin(self.tell(&kubevirt, &target, &outcome)).await);
        // An object that is refused for what it says is judged again when it changes; no time helps.
        let passes = matches!(outcome, Outcome::Failed { reason: FAILED | DELETION_FAILED, .. });
        passes || !told
    }

    /// Takes or gives back the finalizer by which the KubeVirt object stays until podvirt is removed.
    async fn hold(&self, kubevirt: &KubeVirt, holds: bool) -> Result<(), patch::Error> {
        let api: Api<KubeVirt> = Api::namespaced(self.cluster.client().clone(), self.cluster.namespace());
        let mut held = kubevirt.clone();
        held.finalizers_mut().retain(|finalizer| finalizer != FINALIZER);
        if holds {
            held.finalizers_mut().push(FINALIZER.to_owned());
        }
        patch::metadata(&api, kubevirt, &held).await.map(drop)
    }

    /// Brings everything to where it shall be, as far as it goes now.
    async fn install(&self, kubevirt: &KubeVirt, target: &Target) -> Result<Outcome, ClusterError> {
        let failed = |reason, message| Ok(Outcome::Failed { reason, message });
        // The webhook may have been away when the object was stored.
        let document = serde_json::to_value(kubevirt).unwrap_or_default();
        if let Err(problems) = validate(&document).into_result() {
            let texts: Vec<String> = problems.0.iter().map(ToString::to_string).collect();
            return failed(INVALID, texts.join("; "));
        }
        let served = self.cluster.served().await?;
        let there = self.cluster.all(&served).await?;
        if let Some(foreign) = Foreign::find(&there) {
            return failed(KUBEVIRT_INSTALLED, foreign.to_string());
        }
        let order = match waves(kubevirt.status.observed_kube_virt_version.as_deref(), &target.version) {
            Ok(order) => order,
            Err(refused) => return failed(DOWNGRADE, refused.to_string()),
        };
        let objects = match objects(&kubevirt.spec, target, self.cluster.namespace()) {
            Ok(objects) => objects,
            Err(error) => return failed(INVALID, error.to_string()),
        };
        let observed = kubevirt.status.observed_deployment_id.as_deref();
        let updates = observed.is_some_and(|id| !id.is_empty() && id != target.id);
        let phases = phases(&objects, &self.stored_at_other_versions(&there, target).await?, updates);
        for object in &phases.first {
            self.cluster.keep(object, &there).await?;
        }
        let mut absent = Vec::new();
        for wave in order {
            let (mut waiting, mut pods) = (Vec::new(), None);
            for object in objects.iter().filter(|object| object.wave() == wave) {
                let mut away = Vec::new();
                if object.kind == DAEMON_SET {
                    let pods = self.daemons_pods(&mut pods).await;
                    away = absent::find(&self.cluster, pods, object.name(), target).await;
                }
                let stored = self.cluster.apply(&absent::with_room(object, away.len())).await?;
                let mut rollout = Rollout::judge(object, &stored, &[]);
                // Named also where Kubernetes has tainted the node, and does not count it for the DaemonSet.
                if !rollout.serves && !away.is_empty() {
                    rollout = Rollout::judge(object, &stored, &away);
                }
                absent.extend(away);
                if !rollout.serves {
                    waiting.push(rollout);
                }
            }
            if !waiting.is_empty() {
                let waits: Vec<String> = waiting.iter().map(Rollout::told).collect();
                let stuck = waiting.into_iter().find_map(|rollout| rollout.stuck);
                let trouble = self.daemons_pods(&mut pods).await.iter().find_map(trouble).or(stuck);
                return Ok(Outcome::Waits { waits: waits.join("; "), trouble });
            }
        }
        for object in &phases.last {
            self.cluster.keep(object, &there).await?;
        }
        // Last: podvirt is there also where something is wrong with the monitoring.
        let monitoring = monitoring::wanted(&self.cluster, &served, &kubevirt.spec, target).await?;
        for object in &monitoring {
            self.cluster.keep(object, &there).await?;
        }
        self.forget(&[objects, monitoring].concat(), &there).await?;
        if absent.is_empty() {
            return Ok(Outcome::Available);
        }
        Ok(Outcome::AvailableBut { absent: absent::message(&absent) })
    }

    /// The roles and policies as they are stored, if any of them is of another version than `target`.
    async fn stored_at_other_versions(
        &self,
        there: &[Stored],
        target: &Target,
    ) -> Result<Vec<Value>, ClusterError> {
        let mut found = Vec::new();
        for kind in KINDS.iter().filter(|kind| is_divided(**kind)) {
            let is_other = |own: &&Stored| own.kind == *kind && own.identifier.as_ref() != Some(&target.id);
            if there.iter().any(|own| is_other(&own)) {
                found.extend(self.cluster.documents(*kind).await?);
            }
        }
        Ok(found)
    }

    /// The daemons' pods, listed once in a wave. Without them the pass goes on: nothing is known of why it waits then.
    async fn daemons_pods<'a>(&self, listed: &'a mut Option<Vec<Pod>>) -> &'a [Pod] {
        if listed.is_none() {
            let pods: Api<Pod> = Api::namespaced(self.cluster.client().clone(), self.cluster.namespace());
            let list = pods.list(&ListParams::default().labels(PODS)).await;
            *listed = Some(list.map(|list| list.items).unwrap_or_default());
        }
        listed.as_deref().unwrap_or_default()
    }

    /// Deletes what an older version had made and this version has not. Definitions stay: their objects go with them.
    async fn forget(&self, objects: &[Object], there: &[Stored]) -> Result<(), ClusterError> {
        let stored = there.iter().filter(|stored| stored.kind != DEFINITION && !stored.deleting);
        let is_old = |stored: &&Stored| !objects.iter().any(|object| stored.is(object));
        self.cluster.delete_all(stored.filter(is_old)).await
    }

    /// Writes the status, and an event when something begins or ends; lets the object go when nothing is left of podvirt.
    async fn tell(&self, old: &KubeVirt, target: &Target, outcome: &Outcome) -> Result<(), patch::Error> {
        let api: Api<KubeVirt> = Api::namespaced(self.cluster.client().clone(), self.cluster.namespace());
        let own_version = Target::of(&Default::default(), &self.own).version;
        let mut new = old.clone();
        new.status = after(
            &old.status,
            old.metadata.generation,
            target,
            &own_version,
            outcome,
            &Time(Timestamp::now()),
        );
        let written = patch::status_subresource(&api, old, &new).await?;
        if written.is_some() {
            self.event(old, &new, outcome).await;
        }
        if *outcome == Outcome::Deleted {
            self.hold(&written.unwrap_or_else(|| old.clone()), false).await?;
        }
        Ok(())
    }

    /// Tells of what a condition says for the first time.
    async fn event(&self, old: &KubeVirt, new: &KubeVirt, outcome: &Outcome) {
        let reason = |kubevirt: &KubeVirt, kind: &str| {
            let condition = kubevirt.status.conditions.iter().find(|c| c.r#type.as_str() == kind);
            condition.and_then(|condition| condition.reason.clone())
        };
        let differs = |kind: &str| reason(old, kind) != reason(new, kind);
        match outcome {
            Outcome::Available | Outcome::AvailableBut { .. } if differs("Available") => {
                let version = new.status.observed_kube_virt_version.as_deref().unwrap_or_default();
                let text = format!("Version {version} of podvirt is installed and ready.");
                self.recorder.normal(new, READY, &text).await;
            }
            Outcome::Waits { waits, trouble: Some(trouble) } if differs("Synchronized") => {
                self.recorder.warning(new, FAILED, &format!("{waits}: {trouble}")).await;
            }
            Outcome::Failed { reason: word, message } if differs("Synchronized") => {
                self.recorder.warning(new, word, message).await;
            }
            _ => {}
        }
    }
}
