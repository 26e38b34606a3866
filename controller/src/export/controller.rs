//! The shell around [`super::decide()`]: watches, reads, writes.

use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Service};
use kube::api::ListParams;
use kube::runtime::controller::{Action as Requeue, ReconcileRequest};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher;
use kube::{Api, Client, Resource, ResourceExt};
use podvirt_api::backup;
use podvirt_api::export::{APP, GROUP, POD_LABEL, pod_name, service_name};
use podvirt_api::names::event;
use podvirt_api::v1::{
    VirtualMachine, VirtualMachineBackup as Backup, VirtualMachineExport as Export,
    VirtualMachineSnapshot as Snapshot, VirtualMachineSnapshotContent as Content,
};
use podvirt_daemon::events::Recorder;
use podvirt_daemon::patch;
use serde_json::json;
use tokio::sync::broadcast::error::RecvError;

use super::act::{Scene, act};
use super::authority::Authority;
use super::backup::of_backup;
use super::decide::{Action, Observed, decide};
use super::source::{self, Known, Seen};
use super::view::{Exports, Writers};
use crate::attempt::{self, Attempts, Keeper, STALE_RETRY};
use crate::data::DataVolumes;
use crate::failure::Error;
use crate::kept::{self, Kept, requests, requests_naming, requests_with_text};
use crate::metrics::Metrics;
use crate::settings::Cluster;
use crate::snapshot::Snapshots;
use crate::storage::Storage;
use crate::vm::Machines;
use crate::vmi::{Change, View};
use crate::watch;

/// What the controller needs of the process.
#[derive(Clone)]
pub struct Context {
    /// Client for the API server.
    pub client: Client,
    /// Writes events.
    pub recorder: Recorder,
    /// Counts.
    pub metrics: Metrics,
    /// The cluster's configuration.
    pub cluster: Cluster,
    /// Image of exporter pods.
    pub image: String,
    /// Shows machines.
    pub machines: Machines,
    /// Shows their instances.
    pub view: View,
    /// Claims and their snapshots.
    pub storage: Storage,
    /// DataVolumes.
    pub data: DataVolumes,
    /// Snapshots of machines.
    pub snapshots: Snapshots,
    /// Backups of machines.
    pub backups: Kept<Backup>,
    /// Exports, and the CA of their certificates.
    pub exports: Exports,
}

/// What the reconciliations share.
pub(super) struct Shared {
    pub(super) context: Context,
    pub(super) authority: Authority,
    pods: Kept<Pod>,
    services: Kept<Service>,
    attempts: Attempts,
}

impl Keeper for Shared {
    type Object = Export;
    type Error = Error;

    fn attempts(&self) -> &Attempts {
        &self.attempts
    }

    async fn one(&self, export: &Export) -> Result<Requeue, Error> {
        Box::pin(one(export, self)).await
    }
}

type Request = ReconcileRequest<Export>;

/// Keeps all exports until it is dropped, and fills their cache.
pub async fn run(context: Context, writers: Writers) {
    let client = context.client.clone();
    let Exports { exports, authority } = context.exports.clone();
    let (pods, pod_writer) = Kept::new();
    let (services, service_writer) = Kept::new();
    let attempts = Attempts::new("export", context.metrics.clone());
    let filling = Box::pin(authority.clone().fill(writers.filler));
    let shared =
        Arc::new(Shared { context, authority, pods: pods.clone(), services: services.clone(), attempts });
    let queue = stream::select(of_own(&exports, &shared), of_sources(&exports, &shared.context));
    let keeping = attempt::keep_all(shared, &client, (exports, writers.exports), queue, "exports");
    let labelled = |label: &str| watcher::Config::default().labels(label);
    let service_label = format!("kubevirt.io={APP}");
    // On the heap: together they are more than a thread's stack is for. Those that read are polled before those that fill, and so
    // miss no change.
    futures::join!(
        keeping,
        Box::pin(pods.keep(watch::selected(&client, labelled(POD_LABEL)), pod_writer)),
        Box::pin(services.keep(watch::selected(&client, labelled(&service_label)), service_writer)),
        filling
    );
}

/// Kind of a source that is a claim.
const CLAIM: &str = "PersistentVolumeClaim";
/// Text of the exports of claims. No name has a slash.
pub(super) const CLAIM_SOURCE: &str = "/of-claim";
/// Text of the exports of anything else: which claims it has, only a look tells.
pub(super) const OTHER_SOURCE: &str = "/of-others";

/// By which texts the cache is indexed: the names of an export's source and of what is made for the export.
pub(super) fn names(export: &Export) -> Vec<String> {
    let (source, own) = (&export.spec.source, export.name_any());
    let kind = if source.kind == CLAIM { CLAIM_SOURCE } else { OTHER_SOURCE };
    vec![source.name.clone(), pod_name(&own), service_name(&own), kind.to_owned()]
}

/// The export that an object is of.
fn owner<K: Resource<DynamicType = ()>>(object: &K) -> Option<ObjectRef<Export>> {
    let owners = object.meta().owner_references.iter().flatten();
    let is = |owner: &&k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference| {
        owner.kind == "VirtualMachineExport" && owner.api_version.starts_with(GROUP)
    };
    let name = owners.into_iter().find(is)?.name.clone();
    Some(ObjectRef::new(&name).within(object.meta().namespace.as_deref().unwrap_or_default()))
}

/// Exports that have changed, or whose objects have.
fn of_own(
    exports: &Kept<Export>,
    shared: &Shared,
) -> impl Stream<Item = Result<Request, watcher::Error>> + use<> {
    let store = || exports.store().clone();
    let own = kept::own(exports);
    // Of a pod or a Service that is gone nothing but the name is known: it follows from the export's.
    let cache = exports.clone();
    let pods = kept::heard(shared.pods.changes(), move |one: Option<&ObjectRef<Pod>>| {
        requests_naming(&cache, one, |export| {
            one.is_none_or(|one| {
                one.namespace == export.namespace() && one.name == pod_name(&export.name_any())
            })
        })
    });
    let cache = exports.clone();
    let services = kept::heard(shared.services.changes(), move |one: Option<&ObjectRef<Service>>| {
        requests_naming(&cache, one, |export| {
            one.is_none_or(|one| {
                one.namespace == export.namespace() && one.name == service_name(&export.name_any())
            })
        })
    });
    let all = store();
    let authority =
        shared.authority.changes().map(move |()| stream::iter(requests(&all, |_| true))).flatten();
    let all = store();
    let settings = stream::unfold(shared.context.cluster.changes(), async |mut changes| {
        changes.changed().await.ok()?;
        Some(((), changes))
    });
    let settings = settings.map(move |()| stream::iter(requests(&all, |_| true))).flatten();
    let others = stream::select(authority.boxed(), settings.boxed());
    stream::select(own, stream::select(stream::select(pods, services), others))
}

fn has_source(export: &Export, kind: &str, namespace: Option<&String>, name: &str) -> bool {
    let source = &export.spec.source;
    source.kind == kind && source.name == name && export.metadata.namespace.as_ref() == namespace
}

/// Exports whose sources have changed.
fn of_sources(
    exports: &Kept<Export>,
    context: &Context,
) -> impl Stream<Item = Result<Request, watcher::Error>> + use<> {
    let cache = exports.clone();
    let machines = kept::heard(context.machines.changes(), move |one: Option<&ObjectRef<VirtualMachine>>| {
        requests_naming(&cache, one, |export| {
            one.is_none_or(|one| has_source(export, "VirtualMachine", one.namespace.as_ref(), &one.name))
        })
    });
    let cache = exports.clone();
    let snapshots =
        kept::heard(context.snapshots.snapshots.changes(), move |one: Option<&ObjectRef<Snapshot>>| {
            requests_naming(&cache, one, |export| {
                one.is_none_or(|one| {
                    has_source(export, "VirtualMachineSnapshot", one.namespace.as_ref(), &one.name)
                })
            })
        });
    let cache = exports.clone();
    let shown = context.snapshots.contents.clone();
    let contents =
        kept::heard(context.snapshots.contents.changes(), move |one: Option<&ObjectRef<Content>>| {
            let Some(one) = one else { return requests(cache.store(), |_| true) };
            let namespace = one.namespace.clone().unwrap_or_default();
            let content = shown.get(&namespace, &one.name);
            let snapshot = content.and_then(|content| content.spec.virtual_machine_snapshot_name.clone());
            let snapshot = snapshot.unwrap_or_default();
            requests_with_text(&cache, &namespace, &snapshot, |export| {
                has_source(export, "VirtualMachineSnapshot", one.namespace.as_ref(), &snapshot)
            })
        });
    let cache = exports.clone();
    let claims = kept::heard(
        context.storage.claims.changes(),
        move |one: Option<&ObjectRef<PersistentVolumeClaim>>| {
            let Some(one) = one else { return requests(cache.store(), |_| true) };
            let namespace = one.namespace.as_deref().unwrap_or_default();
            let mut found = requests_with_text(&cache, namespace, &one.name, |export| {
                has_source(export, CLAIM, one.namespace.as_ref(), &one.name)
            });
            let is_of_others = |export: &Export| export.spec.source.kind != CLAIM;
            found.extend(requests_with_text(&cache, namespace, OTHER_SOURCE, is_of_others));
            found
        },
    );
    let cache = exports.clone();
    let backups = kept::heard(context.backups.changes(), move |one: Option<&ObjectRef<Backup>>| {
        requests_naming(&cache, one, |export| {
            one.is_none_or(|one| has_source(export, backup::KIND, one.namespace.as_ref(), &one.name))
        })
    });
    let instances = of_instances(context, exports.clone());
    stream::select(
        stream::select(machines, stream::select(snapshots, contents)),
        stream::select(claims, stream::select(instances, backups)),
    )
}

/// Exports that may have a claim which an instance uses.
fn of_instances(
    context: &Context,
    exports: Kept<Export>,
) -> impl Stream<Item = Result<Request, watcher::Error>> + use<> {
    stream::unfold((context.view.changes(), exports), async |(mut changes, exports)| {
        let found = match changes.recv().await {
            Ok(Change::Machine(vmi) | Change::Pods(vmi)) => {
                let namespace = vmi.namespace.as_deref().unwrap_or_default();
                let mut found = requests_with_text(&exports, namespace, &vmi.name, |export| {
                    has_source(export, "VirtualMachine", vmi.namespace.as_ref(), &vmi.name)
                });
                let is_of_claim = |export: &Export| export.spec.source.kind == CLAIM;
                found.extend(requests_with_text(&exports, namespace, CLAIM_SOURCE, is_of_claim));
                found
            }
            Ok(Change::All) | Err(RecvError::Lagged(_)) => requests(exports.store(), |_| true),
            Err(RecvError::Closed) => return None,
        };
        Some((stream::iter(found), (changes, exports)))
    })
    .flatten()
}

/// What is seen of the source, and the machine and the snapshot's content behind it.
async fn look(
    export: &Export,
    context: &Context,
) -> Result<(Seen, Option<Arc<VirtualMachine>>, Option<Arc<Content>>), Error> {
    let namespace = export.namespace().unwrap_or_default();
    let name = export.spec.source.name.as_str();
    let known = Known { storage: &context.storage, data: &context.data };
    Ok(match export.spec.source.kind.as_str() {
        "VirtualMachine" => {
            let vm = context.machines.store().get(&ObjectRef::new(name).within(&namespace));
            let vmi = context.view.machine(&namespace, name);
            (source::of_machine(&namespace, name, vm.as_deref(), vmi.as_deref(), known), vm, None)
        }
        "VirtualMachineSnapshot" => {
            let snapshot = context.snapshots.snapshots.get(&namespace, name);
            let content = snapshot.as_ref().and_then(|snapshot| context.snapshots.content_of(snapshot));
            let seen = source::of_snapshot(export, snapshot.as_deref(), content.as_deref(), known);
            (seen, None, content)
        }
        backup::KIND => {
            let backup = context.backups.get(&namespace, name);
            (of_backup(export, backup.as_deref()), None, None)
        }
        _ => {
            let mut in_use = false;
            if context.storage.claims.get(&namespace, name).is_some() {
                let pods: Api<Pod> = Api::namespaced(context.client.clone(), &namespace);
                let pods = pods.list(&ListParams::default()).await?;
                in_use = pods.items.iter().any(|pod| source::uses(pod, name, export));
            }
            (source::of_claim(&namespace, name, in_use, known), None, None)
        }
    })
}

async fn complete(shared: &Shared) -> Result<(), Error> {
    let context = &shared.context;
    context.view.complete().await;
    context.machines.store().wait_until_ready().await?;
    context.snapshots.snapshots.store().wait_until_ready().await?;
    context.snapshots.contents.store().wait_until_ready().await?;
    context.backups.store().wait_until_ready().await?;
    shared.pods.store().wait_until_ready().await?;
    shared.services.store().wait_until_ready().await?;
    Ok(context.storage.claims.store().wait_until_ready().await?)
}

async fn one(export: &Export, shared: &Shared) -> Result<Requeue, Error> {
    complete(shared).await?;
    let context = &shared.context;
    let namespace = export.namespace().unwrap_or_default();
    let (seen, vm, content) = look(export, context).await?;
    let pod = shared.pods.get(&namespace, &pod_name(&export.name_any()));
    let pod = pod.filter(|pod| owner(pod.as_ref()).is_some_and(|of| of.name == export.name_any()));
    let server = context.cluster.settings().await.rotation.server;
    let nanoseconds = |span: Duration| u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
    // As upstream's encoder writes them.
    let parameters = json!({
        "Duration": nanoseconds(server.duration),
        "RenewBefore": nanoseconds(server.renew_before),
    })
    .to_string();
    let bundle = shared.authority.ca().bundle;
    let external = shared.authority.external().await;
    let now = Timestamp::now();
    let mut plan = decide(&Observed {
        export,
        source: &seen,
        pod: pod.as_deref(),
        has_service: shared.services.get(&namespace, &service_name(&export.name_any())).is_some(),
        parameters: &parameters,
        bundle: bundle.as_deref(),
        external: external.as_ref(),
        now,
    });
    let api: Api<Export> = Api::namespaced(context.client.clone(), &namespace);
    let acts = plan.actions.iter().any(|action| *action != Action::MakeCertificate);
    if acts && !attempt::is_current(&api, export).await? {
        return Ok(Requeue::requeue(STALE_RETRY));
    }
    let scene = Scene {
        source: &seen,
        pod: pod.as_deref(),
        vm: vm.as_deref(),
        content: content.as_deref(),
        parameters: &parameters,
        now,
    };
    let mut refused = None;
    let mut made = None;
    for action in &plan.actions {
        match Box::pin(act(shared, export, &scene, &mut made, action)).await {
            Ok(()) => {}
            Err(Error::Refused(message)) => {
                refused = Some(message);
                break;
            }
            Err(error) => return Err(error),
        }
    }
    if plan.actions.contains(&Action::Expire) {
        return refused.map_or_else(|| Ok(Requeue::await_change()), |message| Err(Error::Refused(message)));
    }
    if let Some(message) = &refused {
        let is_ready = |one: &&mut podvirt_api::v1::ExportCondition| one.r#type.as_str() == "Ready";
        let ready = plan.status.conditions.iter_mut().find(is_ready);
        if let Some(ready) = ready.filter(|ready| ready.status != "True") {
            ready.message = Some(message.clone());
        }
        let known = |one: &podvirt_api::v1::ExportCondition| one.message.as_ref() == Some(message);
        if !export.status.conditions.iter().any(known) {
            context.recorder.warning(export, event::FAILED_CREATE, message).await;
        }
    }
    let wanted = Export { status: plan.status, ..export.clone() };
    match patch::status_subresource(&api, export, &wanted).await {
        Ok(_) => {}
        Err(error) if error.is_stale() => return Ok(Requeue::requeue(STALE_RETRY)),
        Err(error) => return Err(error.into()),
    }
    match refused {
        Some(message) => Err(Error::Refused(message)),
        None => Ok(plan.again_after.map_or_else(Requeue::await_change, Requeue::requeue)),
    }
}
