//! The shell around [`decide_by()`]: caches, writes, events, retries.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt, TryStreamExt, future, stream};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim};
use kube::api::{Patch, PatchParams};
use kube::runtime::controller::{Action as Next, Config, Error as PassError, applier};
use kube::runtime::reflector::store::{Writer, WriterDropped};
use kube::runtime::reflector::{ObjectRef, Store, reflector, store};
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, ResourceExt};
use podvirt_api::instancetype::REVISION_KIND_LABEL;
use podvirt_api::memory_dump::ANNOTATION;
use podvirt_api::v1::{KubeVirtConfiguration, VirtualMachine, VirtualMachineInstance};
use podvirt_daemon::backoff::Backoff;
use podvirt_daemon::events::Recorder;
use podvirt_daemon::patch;
use serde_json::json;
use tokio::sync::broadcast::error::RecvError;
use tracing::Instrument;

use super::act::Target;
use super::data::{machines_on, machines_with};
use super::decide::{Action, Instance, decide_by};
use super::instancetype::{Problem, Shape};
use super::view::Reference;
use super::{Machines, memory_dump, request, tracking};
use crate::data::DataVolumes;
use crate::failure::{Failure, REFUSED};
use crate::kept::{self, Kept, Served};
use crate::metrics::Metrics;
use crate::settings::Settings;
use crate::storage::{Storage, snapshot_statuses};
use crate::vmi::{Change, View};
use crate::{attempt, settings, watch};

/// Machines that are worked on at the same time.
const CONCURRENCY: u16 = 16;
/// When to look again at a machine of which the cache is too old to act on. Its change comes by itself, as a rule.
const STALE_RETRY: Duration = Duration::from_secs(1);
/// When to look again for an instance type that is not there: first, and at most.
const MISSING_RETRY: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30)];

/// Why a pass failed. It is tried again after a growing delay.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The caches ended.
    #[error("cache of VirtualMachineInstances")]
    Cache(#[from] WriterDropped),
    /// The machine could not be written.
    #[error("VirtualMachine not written")]
    Write(#[from] patch::Error),
    /// The API server could not be asked.
    #[error("API server not asked")]
    Ask(#[source] kube::Error),
    /// An action was refused; people have been told.
    #[error("{0}")]
    Refused(String),
}

impl Failure for Error {
    fn label(&self) -> &'static str {
        match self {
            Self::Cache(_) | Self::Ask(_) => "read",
            Self::Write(_) => "write",
            Self::Refused(_) => REFUSED,
        }
    }
}

pub(super) struct Shell {
    pub(super) client: Client,
    pub(super) recorder: Recorder,
    pub(super) cluster: settings::Cluster,
    pub(super) instances: Store<VirtualMachineInstance>,
    pub(super) data: DataVolumes,
    pub(super) storage: Storage,
    /// Their labels say which machines' disks are tracked.
    pub(super) namespaces: Kept<Namespace>,
    /// Those of instance types and preferences. They may lag: what is not here is asked for.
    pub(super) revisions: Store<ControllerRevision>,
    /// By UID: another machine of the same name starts anew.
    pub(super) backoff: Backoff<String>,
    /// The same of machines whose instance type is not there.
    pub(super) missing: Backoff<String>,
}

impl Shell {
    pub(super) fn new(
        client: Client,
        recorder: Recorder,
        cluster: settings::Cluster,
        instances: Store<VirtualMachineInstance>,
        data: DataVolumes,
        storage: Storage,
        (namespaces, revisions): (Kept<Namespace>, Store<ControllerRevision>),
    ) -> Self {
        let [first, limit] = MISSING_RETRY;
        let (backoff, missing) = (Backoff::default(), Backoff::new(first, limit));
        Shell { client, recorder, cluster, instances, data, storage, namespaces, revisions, backoff, missing }
    }
}

/// What the controller needs of the process, and what others fill.
pub struct Context {
    /// Client for the API server.
    pub client: Client,
    /// Writes events.
    pub recorder: Recorder,
    /// Counts.
    pub metrics: Metrics,
    /// The cluster's configuration.
    pub cluster: settings::Cluster,
    /// Instances.
    pub view: View,
    /// DataVolumes.
    pub data: DataVolumes,
    /// Claims and how snapshots of them are taken.
    pub storage: Storage,
}

/// Runs the controller until it is dropped, and fills `shown` with `writer`. To be run while leading; it leaves nothing behind
/// that runs.
pub async fn run(context: Context, shown: Machines, writer: Writer<VirtualMachine>) {
    let Context { client, recorder, metrics, cluster, view, data, storage } = context;
    let machines = shown.store().clone();
    let (revisions, revision_writer) = store();
    let (namespaces, namespace_writer) = Kept::new();
    let instances = view.store().clone();
    let data_changes = data.changes();
    let of_storage = machines_on(&storage, &shown);
    let of_namespaces = machines_in(&namespaces, &machines, &cluster);
    let of_settings = machines_after_settings(&cluster, &machines);
    let caches = (namespaces.clone(), revisions);
    let shell = Arc::new(Shell::new(client.clone(), recorder, cluster, instances, data, storage, caches));
    let naming = namespaces.keep(watch::all(&client), namespace_writer);
    let forgetful = shell.clone();
    let of_types = watcher::Config::default().labels(REVISION_KIND_LABEL);
    let keeping = reflector(revision_writer, watch::selected(&client, of_types)).for_each(|event| {
        if let Err(error) = event {
            tracing::warn!(error = &error as &dyn std::error::Error, "watch of ControllerRevisions");
        }
        future::ready(())
    });
    let mut roster = watch::Roster::default();
    let of_data = stream::unfold((data_changes, shown.clone()), |(mut changes, known)| async move {
        let found = machines_with(changes.recv().await, &known)?;
        Some((stream::iter(found), (changes, known)))
    });
    let of_machines = reflector(writer, watch::all::<VirtualMachine>(&client))
        .inspect_ok(move |event| shown.taken(event))
        .flat_map(move |event| stream::iter(changed_machine(event, &mut roster, &forgetful)));
    let of_instances =
        stream::unfold((view.changes(), machines.clone()), |(mut changes, known)| async move {
            let found = machines_of(changes.recv().await, &known)?;
            Some((stream::iter(found), (changes, known)))
        });
    let queue = stream::select(of_machines, stream::select(of_instances.flatten(), of_data.flatten()));
    let queue = stream::select(queue, stream::select(of_storage, stream::select(of_namespaces, of_settings)));

    let config = Config::default().concurrency(CONCURRENCY);
    let working = applier(|vm, shell| Box::pin(pass(vm, shell)), retry, shell, machines, queue, config)
        .for_each(|result| {
            count(&metrics, &result);
            match result {
                // A machine that is gone, or an instance without one.
                Ok(_) | Err(PassError::ObjectNotFound(_)) => {}
                // Told by `pass` where it is known what it was about.
                Err(PassError::ReconcilerFailed(..)) => {}
                Err(error) => tracing::warn!(error = &error as &dyn std::error::Error, "watching"),
            }
            future::ready(())
        });
    tokio::join!(keeping, working, naming);
}

fn changed_machine(
    event: Result<Event<VirtualMachine>, watcher::Error>,
    roster: &mut watch::Roster,
    shell: &Shell,
) -> Option<Reference> {
    if let Ok(event) = &event {
        for gone in roster.take(event) {
            shell.backoff.forget(&gone);
            shell.missing.forget(&gone);
        }
    }
    match event {
        Ok(Event::Apply(vm) | Event::InitApply(vm)) => Some(Ok(ObjectRef::from_obj(&vm))),
        Ok(Event::Delete(_) | Event::Init | Event::InitDone) => None,
        Err(error) => Some(Err(error)),
    }
}

/// The machines that an instance's change concerns: the one of its name. An instance that went while no controller watched
/// is missing in a new list, so after one all machines are looked at. `None`: there will be no more changes.
fn machines_of(change: Result<Change, RecvError>, known: &Store<VirtualMachine>) -> Option<Vec<Reference>> {
    match change {
        Ok(Change::Machine(vmi)) => {
            Some(vec![Ok(ObjectRef::new(&vmi.name).within(vmi.namespace.as_deref().unwrap_or_default()))])
        }
        Ok(Change::Pods(_)) => Some(Vec::new()),
        // Too many to say which.
        Ok(Change::All) | Err(RecvError::Lagged(_)) => {
            Some(known.state().iter().map(|vm| Ok(ObjectRef::from_obj(&**vm))).collect())
        }
        Err(RecvError::Closed) => None,
    }
}

/// The machines that a change of a namespace concerns, where its labels say whether their disks are tracked.
fn machines_in(
    namespaces: &Kept<Namespace>,
    known: &Store<VirtualMachine>,
    cluster: &settings::Cluster,
) -> impl Stream<Item = Reference> + Send + use<> {
    let (known, cluster) = (known.clone(), cluster.clone());
    kept::heard(namespaces.changes(), move |changed: Option<&ObjectRef<Namespace>>| {
        if !tracking::asks_for_namespace(&cluster.now_or_default().configuration) {
            return Vec::new();
        }
        let is_in = |vm: &Arc<VirtualMachine>| {
            changed.is_none_or(|changed| vm.namespace().as_deref() == Some(&changed.name))
        };
        known.state().iter().filter(|vm| is_in(vm)).map(|vm| Ok(ObjectRef::from_obj(&**vm))).collect()
    })
}

/// All machines after each change of the cluster's configuration: their status and their instances go by it.
fn machines_after_settings(
    cluster: &settings::Cluster,
    known: &Store<VirtualMachine>,
) -> impl Stream<Item = Reference> + Send + use<> {
    let (known, mut changes) = (known.clone(), cluster.changes());
    let configuration =
        |settings: &Option<Arc<Settings>>| settings.as_ref().map(|settings| settings.configuration.clone());
    // Passes wait for the first settings.
    let last = configuration(&changes.borrow_and_update());
    let found = stream::unfold((changes, last), move |(mut changes, last)| {
        let known = known.clone();
        async move {
            changes.changed().await.ok()?;
            let next = configuration(&changes.borrow_and_update());
            let concerned = if last.is_some() && next != last { known.state() } else { Vec::new() };
            let found: Vec<Reference> = concerned.iter().map(|vm| Ok(ObjectRef::from_obj(&**vm))).collect();
            Some((stream::iter(found), (changes, next)))
        }
    });
    found.flatten()
}

/// Counts a pass.
fn count(
    metrics: &Metrics,
    result: &Result<(ObjectRef<VirtualMachine>, Next), PassError<Error, watcher::Error>>,
) {
    match result {
        Ok(_) => metrics.reconciled("vm", None),
        Err(PassError::ReconcilerFailed(error, _)) => metrics.reconciled("vm", Some(error.label())),
        Err(_) => {}
    }
}

fn retry(vm: Arc<VirtualMachine>, error: &Error, shell: Arc<Shell>) -> Next {
    let delay = shell.backoff.failed(vm.uid().unwrap_or_default());
    Next::requeue(error.longest_retry().map_or(delay, |longest| delay.min(longest)))
}

async fn pass(vm: Arc<VirtualMachine>, shell: Arc<Shell>) -> Result<Next, Error> {
    let span = tracing::info_span!("vm", namespace = vm.namespace(), name = vm.name_any(), uid = vm.uid());
    // Boxed, as the action is: a pass may write several objects, and thousands may wait.
    Box::pin(async {
        match shell.pass(&vm).await {
            Ok(next) => {
                shell.backoff.forget(&vm.uid().unwrap_or_default());
                Ok(next)
            }
            Err(Error::Write(error)) if error.is_stale() => Ok(Next::requeue(STALE_RETRY)),
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "to be tried again");
                Err(error)
            }
        }
    })
    .instrument(span)
    .await
}

impl Shell {
    pub(super) async fn pass(&self, vm: &VirtualMachine) -> Result<Next, Error> {
        // Nothing is decided by defaults that the cluster may not have.
        let settings = self.cluster.settings().await;
        self.instances.wait_until_ready().await?;
        let namespace = vm.namespace().unwrap_or_default();
        let vmi = self.instances.get(&ObjectRef::new(&vm.name_any()).within(&namespace));
        let shape = Box::pin(self.shape(vm)).await?;
        let judged = match &shape {
            Shape::Plain => Ok(vm),
            Shape::Made(made) => Ok(&**made),
            Shape::Failed(problem) => Err(problem),
            Shape::Rewritten => return Ok(Next::await_change()),
        };
        let data = self.look_at_data(judged.unwrap_or(vm), vmi.as_deref()).await?;
        let instance = Instance::of(vm, vmi.as_deref());
        let moves = self.look_at_moves(judged.unwrap_or(vm), instance).await?;
        let mut plan = decide_by(vm, judged, instance, &data, &moves, Timestamp::now());
        let tracked = self.observe_tracking(vm, &settings.configuration);
        let Some(tracked) = tracked else { return Ok(Next::requeue(STALE_RETRY)) };
        tracking::follow(vm, instance, tracked, &mut plan);
        if let Some(statuses) = snapshot_statuses(vm, &self.storage, &self.data) {
            plan.status.volume_snapshot_statuses = statuses;
        }

        // What cannot be taken back rests on the instance itself, never on a cache that may lag.
        let drops = request::drops(&vm.status, &plan.status);
        if drops || matches!(plan.action, Some(Action::RemoveFinalizer)) {
            let instances = Api::<VirtualMachineInstance>::namespaced(self.client.clone(), &namespace);
            let there = instances.get_metadata_opt(&vm.name_any()).await.map_err(Error::Ask)?;
            if there.and_then(|there| there.uid()) != vmi.as_ref().and_then(|vmi| vmi.uid()) {
                return Ok(Next::requeue(STALE_RETRY));
            }
        }

        self.note_dump(vm).await?;
        let machines = Api::<VirtualMachine>::namespaced(self.client.clone(), &namespace);
        let wanted = VirtualMachine { status: plan.status, ..vm.clone() };
        let written = patch::status_subresource(&machines, vm, &wanted).await?;
        for (reason, message) in &plan.warnings {
            self.recorder.warning(vm, reason, message).await;
        }
        if let Some(action) = plan.action {
            // What was just written on top of the cached state proves that the cache is right.
            let proven = written.is_some();
            let vm = written.as_ref().unwrap_or(vm);
            if !proven && !attempt::is_current(&machines, vm).await.map_err(Error::Ask)? {
                return Ok(Next::requeue(STALE_RETRY));
            }
            let shape = judged.unwrap_or(vm);
            if !Box::pin(self.act(Target { machines: &machines, vm }, shape, action)).await? {
                return Ok(Next::requeue(STALE_RETRY));
            }
        }
        if data.is_unknown {
            return Ok(Next::requeue(STALE_RETRY));
        }
        let uid = vm.uid().unwrap_or_default();
        if let Err(Problem { reason, message }) = judged {
            let again = self.missing.failed(uid);
            tracing::info!(reason, message, retry_s = again.as_secs_f32(), "the machine has no shape");
            return Ok(Next::requeue(again));
        }
        self.missing.forget(&uid);
        Ok(plan.again_after.map_or_else(Next::await_change, Next::requeue))
    }

    /// Whether changes of the machine's disks are to be tracked; none while that is not known yet.
    fn observe_tracking(
        &self,
        vm: &VirtualMachine,
        config: &KubeVirtConfiguration,
    ) -> Option<tracking::Wanted> {
        let mut labels = BTreeMap::new();
        if tracking::asks_for_namespace(config) {
            if self.namespaces.served() == Served::Unknown {
                return None;
            }
            let namespace = self.namespaces.named(&vm.namespace().unwrap_or_default());
            labels = namespace.and_then(|namespace| namespace.metadata.labels.clone()).unwrap_or_default();
        }
        Some(tracking::wanted(vm, &labels, config))
    }

    /// Writes on the claim of a memory dump what is on it, before the machine's status says that the dump is done.
    async fn note_dump(&self, vm: &VirtualMachine) -> Result<(), Error> {
        let Some((name, text)) = memory_dump::annotation(vm) else { return Ok(()) };
        let namespace = vm.namespace().unwrap_or_default();
        let known = self.storage.claims.get(&namespace, name);
        // A claim that is gone has nothing on it.
        if known.is_none() && self.storage.claims.served() == Served::Yes {
            return Ok(());
        }
        if known.is_some_and(|claim| claim.annotations().get(ANNOTATION).is_some_and(|there| there == text)) {
            return Ok(());
        }
        let claims = Api::<PersistentVolumeClaim>::namespaced(self.client.clone(), &namespace);
        let change = json!({"metadata": {"annotations": {ANNOTATION: text}}});
        match claims.patch_metadata(name, &PatchParams::default(), &Patch::Merge(change)).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
            Err(error) => Err(Error::Ask(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;

    use super::*;

    #[tokio::test]
    async fn a_change_of_the_settings_leads_to_a_pass_of_every_machine() {
        let (known, mut writer) = store();
        let mut vm = VirtualMachine::default();
        (vm.metadata.name, vm.metadata.namespace) = (Some("vm".into()), Some("ns".into()));
        writer.apply_watcher_event(&Event::Apply(vm));
        let (sender, cluster) = settings::Cluster::changing();
        let mut machines = Box::pin(machines_after_settings(&cluster, &known));
        let configured = |emulation: bool, secrets: &[&str]| {
            let configuration = json!({"developerConfiguration": {"useEmulation": emulation}});
            Some(Arc::new(Settings {
                configuration: serde_json::from_value(configuration).unwrap(),
                image_pull_secrets: secrets.iter().map(|name| (*name).to_owned()).collect(),
                ..Settings::default()
            }))
        };
        let mut asked = |settings| {
            sender.send_replace(settings);
            machines.next().now_or_never().map(|vm| vm.unwrap().unwrap().name)
        };
        assert_eq!(asked(configured(false, &[])), None, "passes wait for the first ones");
        assert_eq!(asked(configured(true, &[])).as_deref(), Some("vm"));
        assert_eq!(asked(configured(true, &["s"])), None, "no machine goes by them");
        assert_eq!(asked(configured(false, &["s"])).as_deref(), Some("vm"));
    }

    #[test]
    fn passes_are_counted_with_what_has_failed() {
        let mut registry = Registry::default();
        let metrics = Metrics::new(&mut registry);
        let vm = || ObjectRef::new("vm");
        let failed = |error| Err(PassError::ReconcilerFailed(error, Box::new(vm().erase())));
        for result in [
            Ok((vm(), Next::await_change())),
            failed(Error::Refused("no".into())),
            failed(Error::Ask(kube::Error::LinesCodecMaxLineLengthExceeded)),
            Err(PassError::ObjectNotFound(Box::new(vm().erase()))),
        ] {
            count(&metrics, &result);
        }
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        let mut lines: Vec<&str> = text.lines().filter(|line| line.contains("controller=\"vm\"")).collect();
        lines.sort_unstable();
        let line = |result: &str| {
            format!("podvirt_controller_reconciles_total{{controller=\"vm\",result=\"{result}\"}} 1")
        };
        assert_eq!(lines, [line("read"), line("refused"), line("success")]);
    }

    fn shell() -> Shell {
        let (client, _) = podvirt_daemon::testing::idle("ns");
        let recorder = Recorder::new(client.clone(), "virt-controller", None);
        let cluster = settings::Cluster::fixed(settings::Settings::default());
        Shell::new(
            client,
            recorder,
            cluster,
            store().0,
            DataVolumes::new().0,
            Storage::new().0,
            (Kept::new().0, store().0),
        )
    }

    #[tokio::test]
    async fn a_machine_that_a_quota_refuses_is_tried_again_soon_however_often_it_failed() {
        let vm = Arc::new(VirtualMachine::default());
        for (error, longest) in [
            (Error::Refused("exceeded quota".into()), 30),
            (Error::Ask(kube::Error::LinesCodecMaxLineLengthExceeded), 300),
        ] {
            let shell = Arc::new(shell());
            let all: Vec<Next> = (0..20).map(|_| retry(vm.clone(), &error, shell.clone())).collect();
            assert_eq!(all.last(), Some(&Next::requeue(Duration::from_secs(longest))), "{error}");
        }
    }

    #[tokio::test]
    async fn the_failures_of_a_machine_that_went_unseen_are_forgotten() {
        let mut vm = VirtualMachine::default();
        vm.metadata.uid = Some("v1".into());
        vm.metadata.name = Some("vm".into());
        let shell = shell();
        let mut roster = watch::Roster::default();
        let first = shell.backoff.failed("v1".into());
        for event in [Event::Init, Event::InitApply(vm), Event::InitDone] {
            changed_machine(Ok(event), &mut roster, &shell);
        }
        assert!(shell.backoff.failed("v1".into()) > first);
        shell.missing.failed("v1".into());
        for event in [Event::Init, Event::InitDone] {
            changed_machine(Ok(event), &mut roster, &shell);
        }
        assert_eq!((shell.backoff.failing(), shell.missing.failing()), (0, 0));
    }
}
