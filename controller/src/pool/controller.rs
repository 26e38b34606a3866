//! The shell around [`super::decide()`]: watches, reads, writes.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use futures::{Stream, stream};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::runtime::controller::{Action as Requeue, ReconcileRequest};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use podvirt_api::v1::{VirtualMachine, VirtualMachineInstance, VirtualMachinePool as Pool};
use podvirt_daemon::events::Recorder;
use podvirt_daemon::patch;

use super::act;
use super::decide::{Observed, decide};
use super::revision::Known;
use super::status::status;
use crate::attempt::{self, Attempts, Keeper, Outcome, STALE_RETRY};
use crate::claim;
use crate::expectations::Expectations;
use crate::failure::Error;
use crate::kept::{self, Kept};
use crate::metrics::Metrics;
use crate::vm::Machines;
use crate::vmi::View;

/// What the controller needs of the process.
#[derive(Clone)]
pub struct Context {
    /// Client for the API server.
    pub client: Client,
    /// Writes events.
    pub recorder: Recorder,
    /// Counts.
    pub metrics: Metrics,
    /// Shows VMs.
    pub machines: Machines,
    /// Shows instances.
    pub view: View,
}

/// What the reconciliations share.
pub(super) struct Shared {
    pub(super) context: Context,
    pub(super) expectations: Expectations,
    pub(super) revisions: Known,
    attempts: Attempts,
}

impl Shared {
    pub(super) fn new(context: Context) -> Self {
        let attempts = Attempts::new("pool", context.metrics.clone());
        Self { context, expectations: Expectations::default(), revisions: Known::default(), attempts }
    }
}

impl Keeper for Shared {
    type Object = Pool;
    type Error = Error;

    fn attempts(&self) -> &Attempts {
        &self.attempts
    }

    async fn one(&self, pool: &Pool) -> Result<Requeue, Error> {
        one(pool, self).await
    }

    fn forget(&self, uid: &String) {
        self.expectations.forget(uid);
        self.revisions.forget(uid);
        self.attempts.forget(uid);
    }
}

type Request = ReconcileRequest<Pool>;

/// Keeps all pools until it is dropped.
pub async fn run(context: Context) {
    let (pools, writer) = Kept::new();
    let client = context.client.clone();
    let queue = stream::select(kept::own(&pools), changes(&context, pools.store()));
    attempt::keep_all(Arc::new(Shared::new(context)), &client, (pools, writer), queue, "pools").await;
}

/// Pools whose VMs or instances changed.
fn changes(
    context: &Context,
    pools: &Store<Pool>,
) -> impl Stream<Item = Result<Request, watcher::Error>> + use<> {
    let seen = (pools.clone(), context.machines.clone());
    let of_vms = kept::heard(context.machines.changes(), move |vm: Option<&ObjectRef<VirtualMachine>>| {
        of_vm(&seen.0, &seen.1, vm.map(|vm| (vm.namespace.as_deref(), &*vm.name)))
    });
    // The name of an instance is its VM's.
    let seen = (pools.clone(), context.machines.clone());
    let of_instances = context.view.heard(move |vmi: Option<&ObjectRef<VirtualMachineInstance>>| {
        of_vm(&seen.0, &seen.1, vmi.map(|vmi| (vmi.namespace.as_deref(), &*vmi.name)))
    });
    stream::select(of_vms, of_instances)
}

/// Requests to look at the pools that a change of the VM of this namespace and name is about; at all, where it is not said which.
fn of_vm(
    pools: &Store<Pool>,
    machines: &Machines,
    vm: Option<(Option<&str>, &str)>,
) -> Vec<Result<Request, watcher::Error>> {
    let found = match vm {
        Some((namespace, name)) => {
            let namespace = namespace.unwrap_or_default();
            let vm = machines.store().get(&ObjectRef::new(name).within(namespace));
            concerned(&pools.state(), namespace, vm.as_deref())
        }
        None => pools.state(),
    };
    found.iter().map(|pool| Ok(Request::from(ObjectRef::from_obj(pool.as_ref())))).collect()
}

/// The pools that a change of a VM is about: its controller. Of a VM that is gone that is not known any more.
pub(super) fn concerned(pools: &[Arc<Pool>], namespace: &str, vm: Option<&VirtualMachine>) -> Vec<Arc<Pool>> {
    let is = |pool: &Pool| {
        let Some(vm) = vm else { return true };
        claim::controller_of(&vm.metadata).is_some_and(|owner| Some(&owner.uid) == pool.metadata.uid.as_ref())
    };
    let here = pools.iter().filter(|pool| pool.metadata.namespace.as_deref() == Some(namespace));
    here.filter(|pool| is(pool)).cloned().collect()
}

pub(super) async fn one(pool: &Pool, shared: &Shared) -> Result<Requeue, Error> {
    let context = &shared.context;
    context.view.complete().await;
    context.machines.store().wait_until_ready().await?;
    let (namespace, uid) = (pool.namespace().unwrap_or_default(), pool.uid().unwrap_or_default());
    let mut machines = context.machines.store().state();
    machines.retain(|vm| vm.metadata.namespace.as_deref() == Some(namespace.as_str()));
    let instances = instances(&machines, &uid, &context.view);
    let metadata = machines.iter().map(|vm| &vm.metadata);
    let metadata = metadata.chain(instances.values().map(|vmi| &vmi.metadata));
    shared.expectations.look(&uid, &claim::there(metadata));
    let wait = shared.expectations.wait(&uid, Instant::now());
    let of_namespace: Api<ControllerRevision> = Api::namespaced(context.client.clone(), &namespace);
    let revisions = shared.revisions.of(&of_namespace, pool).await?;
    let seen = Observed {
        pool,
        machines: &machines,
        instances: &instances,
        revisions: &revisions,
        waits: wait.is_some(),
    };
    let plan = decide(&seen, Timestamp::now());
    let pools: Api<Pool> = Api::namespaced(context.client.clone(), &namespace);
    if !plan.actions.is_empty() && !attempt::is_current(&pools, pool).await? {
        return Ok(Requeue::requeue(STALE_RETRY));
    }
    let result = act::carry_out(pool, &plan.actions, shared).await;
    let outcome = match &result {
        Err(Error::Refused(message)) => {
            Outcome::Failed { reason: plan.stage.failure(), message: message.clone() }
        }
        _ if wait.is_some() => Outcome::Waited,
        _ => Outcome::Done,
    };
    let (status, notes) = status(pool, &plan, outcome, Timestamp::now());
    let wanted = Pool { status, ..pool.clone() };
    match patch::status_subresource(&pools, pool, &wanted).await {
        Ok(_) => {}
        Err(error) if error.is_stale() => {
            result?;
            return Ok(Requeue::requeue(STALE_RETRY));
        }
        Err(error) => return Err(error.into()),
    }
    for note in notes {
        if note.warning {
            context.recorder.warning(pool, note.reason, &note.message).await;
        } else {
            context.recorder.normal(pool, note.reason, &note.message).await;
        }
    }
    result?;
    // Revisions are not watched: what was done to them calls for no pass by itself.
    let goes_on = plan.actions.iter().any(|action| matches!(action, super::Action::Remember));
    let again = wait.into_iter().chain(plan.look_again).chain(goes_on.then_some(STALE_RETRY)).min();
    Ok(again.map_or_else(Requeue::await_change, Requeue::requeue))
}

/// The instances of the pool's VMs, by their names.
fn instances(
    machines: &[Arc<VirtualMachine>],
    pool: &str,
    view: &View,
) -> HashMap<String, Arc<VirtualMachineInstance>> {
    let own = machines
        .iter()
        .filter(|vm| claim::controller_of(&vm.metadata).is_some_and(|owner| owner.uid == pool));
    own.filter_map(|vm| {
        let name = vm.name_any();
        let vmi = view.machine(&vm.namespace().unwrap_or_default(), &name)?;
        Some((name, vmi))
    })
    .collect()
}
