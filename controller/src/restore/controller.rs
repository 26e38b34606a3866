//! The shell around [`super::decide()`]: watches, reads, writes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Patch, PatchParams};
use kube::runtime::controller::Action as Requeue;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::reflector::store::Writer;
use kube::{Api, Client, ResourceExt};
use podvirt_api::cdi::DataVolume;
use podvirt_api::error::chain;
use podvirt_api::names::event;
use podvirt_api::snapshot::{RESTORE_FINALIZER, content_name, restores, set_condition};
use podvirt_api::v1::{
    SnapshotConditionType as Condition, StateChangeRequestAction, VirtualMachine, VirtualMachineInstance,
    VirtualMachineRestore as Restore, VirtualMachineRestoreStatus as Status,
    VirtualMachineSnapshot as Snapshot, VirtualMachineSnapshotContent as Content,
    VirtualMachineSnapshotPhase as Phase,
};
use podvirt_daemon::events::Recorder;
use podvirt_daemon::patch;
use serde_json::json;

use super::decide::{Next, Observed, STOPPING, decide};
use super::queue::queue;
use super::{act, claim, machine, settle};
use crate::attempt::{self, Attempts, Keeper, STALE_RETRY};
use crate::data::DataVolumes;
use crate::data::look::name_of;
use crate::failure::Error;
use crate::kept::Kept;
use crate::metrics::Metrics;
use crate::snapshot::{Snapshots, stop};
use crate::storage::Storage;
use crate::vm::{Machines, Strategy, is_final};
use crate::vmi::View;

/// How often what is waited for is looked at. Its change comes by itself, as a rule.
const AGAIN: Duration = Duration::from_secs(5);

/// What the controller needs of the process.
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
    /// Claims and their snapshots.
    pub storage: Storage,
    /// DataVolumes.
    pub data: DataVolumes,
    /// Snapshots and contents.
    pub snapshots: Snapshots,
    /// Restores.
    pub restores: Kept<Restore>,
}

/// What the reconciliations share.
pub(super) struct Shared {
    pub(super) context: Context,
    attempts: Attempts,
}

impl Shared {
    pub(super) fn new(context: Context) -> Self {
        let attempts = Attempts::new("restore", context.metrics.clone());
        Self { context, attempts }
    }
}

impl Keeper for Shared {
    type Object = Restore;
    type Error = Error;

    fn attempts(&self) -> &Attempts {
        &self.attempts
    }

    async fn one(&self, restore: &Restore) -> Result<Requeue, Error> {
        Box::pin(one(restore, self)).await
    }
}

/// Keeps all restores until it is dropped, and fills their cache.
pub async fn run(context: Context, writer: Writer<Restore>) {
    let (queue, client) = (queue(&context), context.client.clone());
    let kept = (context.restores.clone(), writer);
    attempt::keep_all(Arc::new(Shared::new(context)), &client, kept, queue, "restores").await;
}

pub(super) async fn one(restore: &Restore, shared: &Shared) -> Result<Requeue, Error> {
    let context = &shared.context;
    context.view.complete().await;
    context.machines.store().wait_until_ready().await?;
    context.snapshots.snapshots.store().wait_until_ready().await?;
    context.snapshots.contents.store().wait_until_ready().await?;
    context.storage.claims.store().wait_until_ready().await?;
    let pass = Pass::new(context, restore).await?;
    let next = pass.decide();
    if next == Next::Rest {
        return Ok(Requeue::await_change());
    }
    if !attempt::is_current(&pass.api, restore).await? {
        return Ok(Requeue::requeue(STALE_RETRY));
    }
    let told = next.clone();
    match Box::pin(pass.carry_out(next)).await {
        Err(error) if error.is_stale() => Ok(Requeue::requeue(STALE_RETRY)),
        Err(Error::Refused(message)) => {
            pass.problem(&message).await?;
            Err(Error::Refused(message))
        }
        Err(error) => {
            tracing::debug!(?told, "not done");
            pass.problem(&error.told()).await?;
            Err(error)
        }
        Ok(again) => Ok(again.map_or_else(Requeue::await_change, Requeue::requeue)),
    }
}

/// What a pass has seen.
struct Pass<'a> {
    context: &'a Context,
    api: Api<Restore>,
    restore: &'a Restore,
    target: Option<Arc<VirtualMachine>>,
    runs: bool,
    snapshot: Result<(Arc<Snapshot>, Arc<Content>), String>,
    claims: BTreeMap<String, Arc<PersistentVolumeClaim>>,
    waiting: Vec<String>,
    data: BTreeMap<String, Arc<DataVolume>>,
    now: Timestamp,
}

impl<'a> Pass<'a> {
    async fn new(context: &'a Context, restore: &'a Restore) -> Result<Pass<'a>, Error> {
        let namespace = restore.namespace().unwrap_or_default();
        let target =
            context.machines.store().get(&ObjectRef::new(&restore.spec.target.name).within(&namespace));
        let snapshot = snapshot(context, restore);
        let goes_on = restores(restore) && restore.metadata.deletion_timestamp.is_none();
        let mut runs = false;
        if goes_on {
            // What is going to be taken from a machine must not be in use, whatever the caches say of the machine and of its instance. An
            // instance that has ended uses nothing: it may stay for long, as that of a machine that the user starts.
            let instances: Api<VirtualMachineInstance> = Api::namespaced(context.client.clone(), &namespace);
            let instance = instances.get_opt(&restore.spec.target.name).await?;
            runs = instance.is_some_and(|vmi| !is_final(&vmi));
        }
        let mut names: Vec<String> =
            restore.status.restores.iter().map(|to| to.persistent_volume_claim.clone()).collect();
        let noted = restore.status.restores.iter().filter_map(|to| to.data_volume_name.clone());
        let mut volumes: Vec<String> = noted.collect();
        // Patches are applied only where something is decided by them.
        if goes_on
            && !runs
            && let Ok((_, content)) = &snapshot
            && let Some(stored) = &content.spec.source.virtual_machine
            && let Ok(vm) = machine::restored(restore, stored, target.as_deref())
        {
            let of = vm.spec.data_volume_templates.iter().map(|template| name_of(template).to_owned());
            volumes.extend(of);
            names.extend(volumes.clone());
        }
        let found = |name: String| Some((name.clone(), context.storage.claims.get(&namespace, &name)?));
        let claims = names.into_iter().filter_map(found).collect();
        let found = |name: String| Some((name.clone(), context.data.get(&namespace, &name)?));
        let data = volumes.into_iter().filter_map(found).collect();
        let all = context.storage.classes.all();
        let waits =
            all.iter().filter(|one| one.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"));
        let waiting = waits.map(|one| one.name_any()).collect();
        let api = Api::namespaced(context.client.clone(), &namespace);
        Ok(Pass {
            context,
            api,
            restore,
            target,
            runs,
            snapshot,
            claims,
            waiting,
            data,
            now: Timestamp::now(),
        })
    }

    fn decide(&self) -> Next {
        let snapshot = self.snapshot.as_ref().map(|(snapshot, content)| (&**snapshot, &**content));
        decide(&Observed {
            restore: self.restore,
            target: self.target.as_deref(),
            runs: self.runs,
            snapshot: snapshot.map_err(String::as_str),
            claims: &self.claims,
            waiting: &self.waiting,
            data: &self.data,
            now: self.now,
        })
    }

    /// Does what comes next; returns when to look again if nothing happens before.
    async fn carry_out(&self, next: Next) -> Result<Option<Duration>, Error> {
        let (context, restore, target) = (self.context, self.restore, self.target.as_deref());
        let mut status = restore.status.clone();
        match next {
            Next::Rest => {}
            Next::Begin => {
                status.complete = Some(false);
                self.say(&mut status, true, "Initializing VirtualMachineRestore");
                self.say_ready(&mut status, false, "Initializing VirtualMachineRestore");
                self.write(status).await?;
            }
            Next::End => self.end(status).await?,
            Next::Adopt => self.adopt().await?,
            Next::Wait(reason) => {
                let message =
                    "Restore target VMI still exists, please stop the restore target to proceed with restore";
                self.wait(status, reason, message).await?;
                return Ok(Some(AGAIN));
            }
            Next::Stop => {
                match stop_target(context, target).await? {
                    None => self.wait(status, STOPPING, STOPPING).await?,
                    Some(answer) => {
                        let why = format!("Restore target was not stopped: {answer}");
                        self.wait(status, &why, &why).await?;
                    }
                }
                return Ok(Some(AGAIN));
            }
            Next::Fail(why) => {
                if let Some(vm) = target {
                    settle::let_go(context, restore, vm).await?;
                }
                let message = format!("VirtualMachineRestore failed {why}");
                context.recorder.warning(restore, event::RESTORE_FAILED, &message).await;
                self.say(&mut status, false, why);
                self.say_ready(&mut status, false, why);
                set_condition(&mut status.conditions, Condition::Failure, true, why, self.now);
                self.write(status).await?;
            }
            Next::Problem(why) => return Err(Error::Refused(why)),
            Next::Hold => {
                if let Some(vm) = target {
                    let machines: Api<VirtualMachine> =
                        Api::namespaced(context.client.clone(), &vm.namespace().unwrap_or_default());
                    let mut held = vm.clone();
                    held.status.restore_in_progress = Some(restore.name_any());
                    patch::status_subresource(&machines, vm, &held).await?;
                }
            }
            Next::Note(noted) => {
                status.restores = noted;
                self.making(status).await?;
            }
            Next::Claims(steps) => {
                let content = self.content()?;
                if let Some(noted) = act::change_claims(context, restore, target, content, &steps).await? {
                    status.restores = noted;
                }
                self.making(status).await?;
                return Ok(Some(AGAIN));
            }
            Next::Mark(noted) => {
                act::mark(context, restore, &noted).await?;
                status.restores = noted;
                self.updating(status).await?;
                return Ok(Some(AGAIN));
            }
            Next::DataVolumes(places) => {
                let content = self.content()?;
                let stored = content.spec.source.virtual_machine.clone().unwrap_or_default();
                let vm = machine::restored(restore, &stored, target);
                let vm = vm.map_err(|error| Error::Refused(chain(&error)))?;
                act::make_data(context, restore, target, &vm, &places).await?;
                self.updating(status).await?;
                return Ok(Some(AGAIN));
            }
            Next::Obsolete(names) => {
                status.deleted_data_volumes = names;
                self.updating(status).await?;
            }
            Next::Machine(vm) => {
                act::write_machine(context, restore, target, &vm).await?;
                self.updating(status).await?;
                return Ok(Some(AGAIN));
            }
            Next::Settle => self.settle(status).await?,
        }
        Ok(None)
    }

    fn content(&self) -> Result<&Content, Error> {
        self.snapshot.as_ref().map(|(_, content)| &**content).map_err(|why| Error::Refused(why.clone()))
    }

    async fn adopt(&self) -> Result<(), Error> {
        let mut metadata = json!({"resourceVersion": self.restore.resource_version()});
        if let Some(vm) = self.target.as_deref().filter(|_| self.restore.owner_references().is_empty()) {
            metadata["ownerReferences"] = json!(claim::owner(vm).map(|owner| vec![owner]));
        }
        let mut finalizers = self.restore.finalizers().to_vec();
        if !finalizers.iter().any(|one| one == RESTORE_FINALIZER) {
            finalizers.push(RESTORE_FINALIZER.to_owned());
            metadata["finalizers"] = json!(finalizers);
        }
        let change = Patch::Merge(json!({ "metadata": metadata }));
        match self.api.patch(&self.restore.name_any(), &PatchParams::default(), &change).await {
            Err(kube::Error::Api(status)) if status.is_conflict() || status.is_not_found() => {
                Err(Error::Stale)
            }
            done => Ok(done.map(drop)?),
        }
    }

    async fn end(&self, mut status: Status) -> Result<(), Error> {
        if let Some(vm) = self.target.as_deref() {
            settle::let_go(self.context, self.restore, vm).await?;
        }
        self.say(&mut status, false, "VM restore is deleting");
        self.say_ready(&mut status, false, "VM restore is deleting");
        let wanted = Restore { status, ..self.restore.clone() };
        let written = patch::status_subresource(&self.api, self.restore, &wanted).await?.unwrap_or(wanted);
        let mut free = written.clone();
        free.finalizers_mut().retain(|one| one != RESTORE_FINALIZER);
        match patch::metadata(&self.api, &written, &free).await {
            Err(patch::Error::Gone(_)) => Ok(()),
            done => Ok(done.map(drop)?),
        }
    }

    async fn settle(&self, mut status: Status) -> Result<(), Error> {
        let (context, restore) = (self.context, self.restore);
        let Some(vm) = self.target.as_deref() else { return Err(Error::Stale) };
        settle::tidy(context, restore, vm).await?;
        settle::let_go(context, restore, vm).await?;
        status.complete = Some(true);
        status.restore_time = Some(Some(Time(self.now)));
        self.say(&mut status, false, "Operation complete");
        self.say_ready(&mut status, true, "Operation complete");
        self.write(status).await?;
        tracing::info!(vm = vm.name_any(), "restored");
        let message = format!("Successfully completed VirtualMachineRestore {}", restore.name_any());
        context.recorder.normal(restore, event::RESTORE_COMPLETE, &message).await;
        Ok(())
    }

    async fn making(&self, mut status: Status) -> Result<(), Error> {
        self.say(&mut status, true, "Creating new PVCs");
        self.say_ready(&mut status, false, "Waiting for new PVCs");
        self.write(status).await
    }

    async fn updating(&self, mut status: Status) -> Result<(), Error> {
        self.say(&mut status, true, "Updating target spec");
        self.say_ready(&mut status, false, "Waiting for target update");
        self.write(status).await
    }

    /// Tells that the target runs, by an event only the first time.
    async fn wait(&self, mut status: Status, reason: &str, message: &str) -> Result<(), Error> {
        let before = status.clone();
        self.say(&mut status, false, reason);
        self.say_ready(&mut status, false, reason);
        if status != before {
            self.context.recorder.warning(self.restore, event::RESTORE_TARGET_NOT_READY, message).await;
        }
        self.write(status).await
    }

    /// Tells why it does not go on, by an event only the first time.
    async fn problem(&self, why: &str) -> Result<(), Error> {
        let mut status = self.restore.status.clone();
        self.say(&mut status, false, why);
        self.say_ready(&mut status, false, why);
        if status != self.restore.status {
            let message = format!("VirtualMachineRestore encountered error {why}");
            self.context.recorder.warning(self.restore, event::RESTORE_ERROR, &message).await;
        }
        match self.write(status).await {
            Err(error) if error.is_stale() => Ok(()),
            done => done,
        }
    }

    fn say(&self, status: &mut Status, progresses: bool, reason: &str) {
        set_condition(&mut status.conditions, Condition::Progressing, progresses, reason, self.now);
    }

    fn say_ready(&self, status: &mut Status, ready: bool, reason: &str) {
        set_condition(&mut status.conditions, Condition::Ready, ready, reason, self.now);
    }

    async fn write(&self, status: Status) -> Result<(), Error> {
        let wanted = Restore { status, ..self.restore.clone() };
        patch::status_subresource(&self.api, self.restore, &wanted).await?;
        Ok(())
    }
}

/// Asks the target to stop, unless it has been asked; what it answers where it does not stop.
async fn stop_target(context: &Context, target: Option<&VirtualMachine>) -> Result<Option<String>, Error> {
    let Some(vm) = target else { return Ok(None) };
    let requests = &vm.status.state_change_requests;
    let stops = requests.iter().any(|request| request.action == StateChangeRequestAction::Stop);
    if stops || Strategy::of(vm) == Ok(Strategy::Halted) {
        return Ok(None);
    }
    match stop(&context.client, vm).await {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(None),
        Err(kube::Error::Api(status)) if status.is_conflict() => Ok(Some(status.message)),
        done => Ok(done.map(|()| None)?),
    }
}

/// The snapshot of a restore and its content, or what they lack, in upstream's words.
fn snapshot(context: &Context, restore: &Restore) -> Result<(Arc<Snapshot>, Arc<Content>), String> {
    let namespace = restore.namespace().unwrap_or_default();
    let name = &restore.spec.virtual_machine_snapshot_name;
    let key = format!("{namespace}/{name}");
    let snapshot = context.snapshots.snapshots.get(&namespace, name);
    let snapshot = snapshot.ok_or_else(|| format!("VMSnapshot {key} does not exist"))?;
    if snapshot.status.phase == Some(Phase::Failed) {
        return Err(format!("VMSnapshot {key} failed and is invalid to use"));
    }
    if snapshot.status.ready_to_use != Some(true) {
        return Err(format!("VMSnapshot {key} not ready"));
    }
    let content = context.snapshots.content_of(&snapshot);
    let key = format!("{namespace}/{}", content_name(&snapshot));
    let content = content.ok_or_else(|| format!("VMSnapshotContent {key} does not exist"))?;
    if content.status.ready_to_use != Some(true) {
        return Err(format!("VMSnapshotContent {key} not ready"));
    }
    Ok((snapshot, content))
}
