//! The shell around [`super::decide()`]: watches, reads, writes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::BoxStream;
use futures::{Stream, StreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::runtime::controller::{Action as Requeue, ReconcileRequest};
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use podvirt_api::backup::is_pulled;
use podvirt_api::migration::is_final;
use podvirt_api::names::condition::TRUE;
use podvirt_api::names::event;
use podvirt_api::v1::{
    VirtualMachine, VirtualMachineBackup as Backup, VirtualMachineBackupTracker as Tracker,
    VirtualMachineExport as Export, VirtualMachineInstance, VirtualMachineInstanceMigration as Migration,
    VirtualMachineInstanceMigrationCondition as MigrationCondition,
};
use podvirt_daemon::events::Recorder;
use podvirt_daemon::patch;

use super::act::act;
use super::decide::{Observed, decide, is_deleted, refused};
use super::plan::Note;
use super::status::{Phase, phase};
use super::{instance, orphan, tracker, trackers};
use crate::attempt::{self, Attempts, Keeper, STALE_RETRY};
use crate::export::Exports;
use crate::failure::Error;
use crate::kept::{self, Kept, requests, requests_naming, requests_with_text};
use crate::metrics::Metrics;
use crate::migration::admit::Urgency;
use crate::storage::Storage;
use crate::vm::Machines;
use crate::vmi::View;

/// How often it is looked which machines are to leave their nodes.
const EVACUATION_POLL_INTERVAL: Duration = Duration::from_secs(5);

/// What the controllers need of the process.
#[derive(Clone)]
pub struct Context {
    /// Client for the API server.
    pub client: Client,
    /// Writes events.
    pub recorder: Recorder,
    /// Counts.
    pub metrics: Metrics,
    /// Shows machines.
    pub machines: Machines,
    /// Shows their instances.
    pub view: View,
    /// Claims.
    pub storage: Storage,
    /// Exports, and the CA of their certificates.
    pub exports: Exports,
    /// All migrations.
    pub migrations: Store<Migration>,
}

impl Context {
    /// Waits until the caches of others are filled.
    pub(super) async fn complete(&self) -> Result<(), Error> {
        self.view.complete().await;
        self.migrations.wait_until_ready().await?;
        Ok(self.machines.store().wait_until_ready().await?)
    }

    /// The machines that are to leave their nodes and have not begun to, by namespace and name. A migration that rests after failures
    /// does not count: backups have their turn meanwhile.
    fn evacuating(&self) -> BTreeSet<(String, String)> {
        let is_waiting = |migration: &Arc<Migration>| {
            let rests = |one: &MigrationCondition| {
                [event::MIGRATION_BACKOFF, event::MACHINE_NOT_RUNNING].contains(&one.r#type.as_str())
                    && one.status == TRUE
            };
            !is_final(migration)
                && Urgency::of(migration) == Urgency::Critical
                && !migration.status.conditions.iter().any(rests)
        };
        let all = self.migrations.state().into_iter().filter(is_waiting);
        all.filter_map(|one| Some((one.namespace()?, one.spec.vmi_name.clone()?))).collect()
    }
}

/// What the reconciliations share.
pub(super) struct Shared {
    pub(super) context: Context,
    pub(super) backups: Kept<Backup>,
    pub(super) trackers: Kept<Tracker>,
    attempts: Attempts,
}

impl Shared {
    pub(super) fn new(context: Context, backups: Kept<Backup>, trackers: Kept<Tracker>) -> Self {
        let attempts = Attempts::new("backup", context.metrics.clone());
        Self { context, backups, trackers, attempts }
    }

    /// The tracker that is the source of a backup.
    fn tracker(&self, backup: &Backup) -> Option<Arc<Tracker>> {
        let namespace = backup.metadata.namespace.as_deref().unwrap_or_default();
        let named = tracker::names_tracker(backup);
        named.then(|| self.trackers.get(namespace, &backup.spec.source.name)).flatten()
    }

    /// Name of the machine of a backup. Of one whose tracker has gone it is the machine that is held, or has the claim, if any does.
    fn machine(&self, backup: &Backup) -> Option<String> {
        if !tracker::names_tracker(backup) {
            return Some(backup.spec.source.name.clone());
        }
        if let Some(tracker) = self.tracker(backup) {
            return Some(tracker.spec.source.name.clone());
        }
        let namespace = backup.namespace();
        let held = |vmi: &Arc<VirtualMachineInstance>| {
            vmi.namespace() == namespace
                && (instance::told_of(vmi, backup).is_some() || instance::has_target(vmi, backup))
        };
        self.context.view.machines().into_iter().find(held).map(|vmi| vmi.name_any())
    }
}

impl Keeper for Shared {
    type Object = Backup;
    type Error = Error;

    fn attempts(&self) -> &Attempts {
        &self.attempts
    }

    async fn one(&self, backup: &Backup) -> Result<Requeue, Error> {
        match Box::pin(one(backup, self)).await {
            Err(error) if error.is_stale() => Ok(Requeue::requeue(STALE_RETRY)),
            done => done,
        }
    }
}

type Request = ReconcileRequest<Backup>;

/// Text of the open backups whose source is a tracker: the tracker tells of which machine. No name has a slash.
const TRACKER_SOURCE: &str = "/of-tracker";

/// An empty cache of backups, and what fills it. A change of what a backup rests on asks who is concerned; thousands may be stored.
pub fn cache() -> (Kept<Backup>, Writer<Backup>) {
    Kept::indexed(names)
}

/// By which texts the cache is indexed: what an open backup names, and the export of one in pull mode.
pub(super) fn names(backup: &Backup) -> Vec<String> {
    let mut names = Vec::new();
    if is_open(backup) {
        names.push(backup.spec.source.name.clone());
        names.extend(backup.spec.pvc_name.clone());
        if tracker::names_tracker(backup) {
            names.push(TRACKER_SOURCE.to_owned());
        }
    }
    if is_pulled(backup) {
        names.push(backup.name_any());
    }
    names
}

/// Whether something is left to do for a backup.
fn is_open(backup: &Backup) -> bool {
    phase(&backup.status) != Phase::Done || is_deleted(backup)
}

/// Keeps all backups and trackers until it is dropped, and fills the cache of backups.
pub async fn run(context: Context, (backups, backup_writer): (Kept<Backup>, Writer<Backup>)) {
    let (known, tracker_writer) = Kept::indexed(trackers::names);
    let shared = Arc::new(Shared::new(context.clone(), backups.clone(), known.clone()));
    let changed = stream::select(changes(&shared), evacuations(&shared));
    let queue = stream::select(kept::own(&backups), changed);
    let client = context.client.clone();
    let kept = (backups.clone(), backup_writer);
    let keeping = attempt::keep_all(shared, &client, kept, queue, "backups");
    // Backups read trackers, and so are polled before what fills them.
    let left = orphan::release_forever(context.clone(), backups.clone());
    futures::join!(Box::pin(keeping), Box::pin(trackers::run(context, (known, tracker_writer))), left);
}

/// Backups that something else has changed for.
pub(super) fn changes(shared: &Arc<Shared>) -> impl Stream<Item = Result<Request, watcher::Error>> + use<> {
    let Context { machines, view, storage, exports, .. } = &shared.context;
    let of_machine = |shared: Arc<Shared>| {
        move |one: Option<(Option<String>, String)>| {
            let backups = &shared.backups;
            let Some((namespace, name)) = one else { return requests(backups.store(), is_open) };
            let is = |backup: &Backup| {
                is_open(backup)
                    && backup.metadata.namespace == namespace
                    && shared.machine(backup).is_none_or(|machine| machine == name)
            };
            let here = namespace.as_deref().unwrap_or_default();
            let mut found = requests_with_text(backups, here, &name, |backup| {
                !tracker::names_tracker(backup) && is(backup)
            });
            found.extend(requests_with_text(backups, here, TRACKER_SOURCE, |backup| {
                tracker::names_tracker(backup) && is(backup)
            }));
            found
        }
    };
    let found = of_machine(Arc::clone(shared));
    let machines = kept::heard(machines.changes(), move |one: Option<&ObjectRef<VirtualMachine>>| {
        found(one.map(|one| (one.namespace.clone(), one.name.clone())))
    });
    let found = of_machine(Arc::clone(shared));
    let instances = view.heard(move |one: Option<&ObjectRef<VirtualMachineInstance>>| {
        found(one.map(|one| (one.namespace.clone(), one.name.clone())))
    });
    let cache = shared.backups.clone();
    let trackers = kept::heard(shared.trackers.changes(), move |one: Option<&ObjectRef<Tracker>>| {
        let is = |backup: &Backup, one: &ObjectRef<Tracker>| {
            one.namespace == backup.namespace() && one.name == backup.spec.source.name
        };
        requests_naming(&cache, one, |backup| {
            tracker::names_tracker(backup) && is_open(backup) && one.is_none_or(|one| is(backup, one))
        })
    });
    let cache = shared.backups.clone();
    let claims =
        kept::heard(storage.claims.changes(), move |one: Option<&ObjectRef<PersistentVolumeClaim>>| {
            let is = |backup: &Backup, one: &ObjectRef<PersistentVolumeClaim>| {
                one.namespace == backup.namespace() && backup.spec.pvc_name.as_ref() == Some(&one.name)
            };
            let waits = |backup: &Backup| phase(&backup.status) == Phase::Initializing;
            requests_naming(&cache, one, |backup| waits(backup) && one.is_none_or(|one| is(backup, one)))
        });
    let cache = shared.backups.clone();
    let exports = kept::heard(exports.exports.changes(), move |one: Option<&ObjectRef<Export>>| {
        let is = |backup: &Backup, one: &ObjectRef<Export>| {
            one.namespace == backup.namespace() && one.name == backup.name_any()
        };
        requests_naming(&cache, one, |backup| is_pulled(backup) && one.is_none_or(|one| is(backup, one)))
    });
    let all: [BoxStream<'static, _>; 5] =
        [machines.boxed(), instances.boxed(), trackers.boxed(), claims.boxed(), exports.boxed()];
    stream::select_all(all)
}

/// Backups whose machines are to leave their nodes, or were when it was looked last. No change of the machine tells of that.
pub(super) fn evacuations(
    shared: &Arc<Shared>,
) -> impl Stream<Item = Result<Request, watcher::Error>> + use<> {
    let before = BTreeSet::new();
    stream::unfold((Arc::clone(shared), before), async |(shared, before)| {
        tokio::time::sleep(EVACUATION_POLL_INTERVAL).await;
        let now = shared.context.evacuating();
        let is_open = |backup: &Backup| phase(&backup.status) != Phase::Done;
        let leaves = |backup: &Backup| {
            let machine = shared.machine(backup).map(|name| (backup.namespace().unwrap_or_default(), name));
            machine.is_some_and(|machine| now.contains(&machine) || before.contains(&machine))
        };
        let is_quiet = now.is_empty() && before.is_empty();
        let found = match is_quiet {
            true => Vec::new(),
            false => requests(shared.backups.store(), |backup| is_open(backup) && leaves(backup)),
        };
        Some((stream::iter(found), (shared, now)))
    })
    .flatten()
}

pub(super) async fn one(backup: &Backup, shared: &Shared) -> Result<Requeue, Error> {
    let context = &shared.context;
    context.complete().await?;
    context.storage.claims.store().wait_until_ready().await?;
    shared.trackers.store().wait_until_ready().await?;
    context.exports.exports.store().wait_until_ready().await?;
    let namespace = backup.namespace().unwrap_or_default();
    let machine = shared.machine(backup).unwrap_or_default();
    let vmi = context.view.machine(&namespace, &machine);
    let tracker = shared.tracker(backup);
    let claim = backup.spec.pvc_name.as_ref().and_then(|name| context.storage.claims.get(&namespace, name));
    let export = context.exports.exports.get(&namespace, &backup.name_any());
    let told = vmi.as_deref().and_then(instance::told);
    let holder = told.and_then(|told| {
        let named = shared.backups.get(&namespace, told.backup_name.as_deref()?)?;
        instance::is_of(told, &named).then_some(named)
    });
    let seen = Observed {
        backup,
        tracker: tracker.as_deref(),
        machine: &machine,
        is_there: context.machines.store().get(&ObjectRef::new(&machine).within(&namespace)).is_some(),
        vmi: vmi.as_deref(),
        claim: claim.as_deref(),
        export: export.as_deref(),
        holder: holder.as_deref(),
        evacuates: context.evacuating().contains(&(namespace.clone(), machine.clone())),
        now: Timestamp::now(),
    };
    let mut plan = decide(&seen);
    let api: Api<Backup> = Api::namespaced(context.client.clone(), &namespace);
    let mut told = Ok(());
    let mut old = backup.clone();
    if let Some(action) = &plan.action {
        if !attempt::is_current(&api, backup).await? {
            return Err(Error::Stale);
        }
        match act(context, &api, &seen, action).await {
            Ok(written) => old = written.unwrap_or(old),
            Err(Error::Refused(why)) => {
                let Some(other) = refused(&seen, action, &why) else { return Err(Error::Refused(why)) };
                plan = other;
                told = Err(Error::Refused(why));
            }
            Err(error) => return Err(error),
        }
    }
    if plan.status != backup.status {
        let wanted = Backup { status: plan.status, ..old.clone() };
        patch::status_subresource(&api, &old, &wanted).await?;
    }
    if let Some(Note { warns, reason, message }) = &plan.note {
        tracing::info!(reason, message);
        if *warns {
            context.recorder.warning(backup, reason, message).await;
        } else {
            context.recorder.normal(backup, reason, message).await;
        }
    }
    told.map(|()| plan.again_after.map_or_else(Requeue::await_change, Requeue::requeue))
}
