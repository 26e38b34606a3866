//! `podvirt-cni dynamic`: a controller of dynamic networks. It has Multus attach pods that run, and detach them.
//!
//! # Theory of operation
//!
//! Multus attaches a pod to the networks of the annotation [`NETWORKS`](podvirt_api::names::annotation::NETWORKS) while
//! the pod is made, and tells what came of it in a second one,
//! [`NETWORK_STATUS`]. Of a change of the first one it does not hear. This controller, one on each node, does:
//!
//! ```text
//! the annotations differ   what the first asks for and the second lacks, and the other way round   [`difference`]
//!   the pod's sandbox      the container runtime tells it and its network namespace               [`sandbox`]
//!   DEL, ADD               one interface after another; what fails does not keep the others back  [`attachments`]
//!                          Multus' daemon carries them out                                        [`multus`]
//! the annotations agree    the second one is written, and an event says what was done
//! ```
//!
//! An event of the pod says what failed, whatever it was: an annotation that cannot be read, the runtime, a network.
//!
//! Nothing is kept between two attempts: they begin from the pod as the API server has it. An ADD that fails is followed by
//! a DEL of the same interface, as the specification wants it; so what an attempt has left behind that ended before it
//! could write, the next one clears away with its first ADD, and makes with its second. The same DEL would take away an interface
//! that is another network's: what the pod has by the second annotation, or names twice in the first one, is refused.
//!
//! Multus looks at the namespace of a network while a pod is made, not when it is asked by this controller, which can
//! read the networks of all namespaces. Where namespaces are to be isolated, it looks itself ([`isolation`]).
//!
//! When the pod ends, Multus detaches what it attached when the pod began. An interface that came later goes with the pod's
//! network namespace; what its plugin keeps beside that (addresses of `host-local`) is the plugin's to collect. Addresses
//! of podvirt-cni are the machine's.

mod attachments;
pub mod difference;
mod error;
mod isolation;
pub mod multus;
pub mod sandbox;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use kube::runtime::controller::{Action, Config, Controller};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use podvirt_api::names::annotation::NETWORK_STATUS;
use podvirt_daemon::backoff::Backoff;
use podvirt_daemon::events::Recorder;
use podvirt_daemon::http::{Gate, Readiness};
use podvirt_daemon::shutdown::Shutdown;
use serde_json::{Value, json};
use tracing::{debug, info, warn};

use difference::{Difference, Told};
use isolation::Isolation;
use multus::{Multus, Subject};
use sandbox::Runtime;

pub use error::{Error, Failure};

/// Pods that are worked on at a time.
const CONCURRENCY: u16 = 4;
/// Between two looks at whether Multus' daemon is there.
const LOOK: Duration = Duration::from_secs(5);
/// Events' reasons, as upstream's controller has them.
const ADDED: &str = "AddedInterface";
const REMOVED: &str = "RemovedInterface";
const FAILED_TO_ADD: &str = "FailedAddingInterface";
const FAILED_TO_REMOVE: &str = "FailedRemovingInterface";

/// Where things are.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The node's name
    #[arg(long, env = "NODE_NAME")]
    pub node: String,
    /// Which pods are looked after, by labels
    #[arg(long, default_value = "kubevirt.io=virt-launcher")]
    pub selector: String,
    /// The socket of the node's container runtime
    #[arg(long, default_value = "/run/containerd/containerd.sock")]
    pub runtime: PathBuf,
    /// The socket of Multus' daemon
    #[arg(long, default_value = "/run/multus/multus.sock")]
    pub multus: PathBuf,
    /// Refuse networks of other namespaces than the pod's: for clusters where Multus has namespaceIsolation
    #[arg(long)]
    pub namespace_isolation: bool,
    /// With --namespace-isolation: namespaces whose networks every pod may use, as Multus' globalNamespaces
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "default",
        requires = "namespace_isolation"
    )]
    pub global_namespaces: Vec<String>,
    /// Address of /healthz, /readyz and /metrics
    #[arg(long, default_value = "[::]:8080")]
    pub listen: SocketAddr,
}

/// The controller of one node.
pub struct Dynamic {
    client: Client,
    recorder: Recorder,
    runtime: Runtime,
    multus: Multus,
    isolation: Isolation,
    backoff: Backoff<ObjectRef<Pod>>,
}

/// Looks after the node's pods until the end is asked for. It is ready while Multus' daemon is there.
pub async fn run(options: &Options, client: Client, readiness: &Readiness, shutdown: &Shutdown) {
    let gate = readiness.gate("multus");
    let dynamic = Arc::new(Dynamic {
        recorder: Recorder::new(client.clone(), "podvirt-cni", Some(options.node.clone())),
        client: client.clone(),
        runtime: Runtime::at(&options.runtime),
        multus: Multus::at(&options.multus),
        isolation: Isolation::of(options),
        backoff: Backoff::default(),
    });
    let config = watcher::Config::default()
        .fields(&format!("spec.nodeName={}", options.node))
        .labels(&options.selector);
    let work = Controller::new(Api::<Pod>::all(client), config)
        .with_config(Config::default().concurrency(CONCURRENCY))
        .run(
            |pod, dynamic| async move { Box::pin(dynamic.reconcile(&pod)).await },
            |pod, error, dynamic| dynamic.failed(&pod, error),
            Arc::clone(&dynamic),
        )
        .for_each(|result| async move {
            match result {
                Ok(_) | Err(kube::runtime::controller::Error::ReconcilerFailed(..)) => {}
                Err(error) => debug!(error = &error as &dyn std::error::Error, "watch of pods"),
            }
        });
    let looked = watch_multus(&dynamic.multus, &gate);
    shutdown.or(async { tokio::join!(Box::pin(work), looked) }).await;
}

/// The daemon is ready while Multus' is there.
async fn watch_multus(multus: &Multus, gate: &Gate) {
    let mut told = None;
    loop {
        let serves = multus.serves().await;
        gate.set(serves);
        if told.replace(serves) != Some(serves) {
            info!(serves, "Multus' daemon");
        }
        tokio::time::sleep(LOOK).await;
    }
}

impl Dynamic {
    async fn reconcile(&self, seen: &Pod) -> Result<Action, Error> {
        let reference = ObjectRef::from_obj(seen);
        if self.settled(seen).await? {
            self.backoff.forget(&reference);
            return Ok(Action::await_change());
        }
        // The cache may lack what was written a moment ago, and what was done must not be done again.
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &seen.namespace().unwrap_or_default());
        let read = api.get_opt(&seen.name_any()).await;
        let read = read.map_err(|error| Error::Cluster("read the pod", Box::new(error)))?;
        let Some(pod) = read.filter(|pod| pod.metadata.uid == seen.metadata.uid) else {
            return Ok(Action::await_change());
        };
        if !self.settled(&pod).await? {
            self.settle(&api, &pod).await?;
        }
        self.backoff.forget(&reference);
        Ok(Action::await_change())
    }

    fn failed(&self, pod: &Arc<Pod>, error: &Error) -> Action {
        let delay = self.backoff.failed(ObjectRef::from_obj(pod.as_ref()));
        let (namespace, name) = (pod.namespace(), pod.name_any());
        warn!(namespace, name, ?delay, error = error as &dyn std::error::Error, "tried again later");
        Action::requeue(delay)
    }

    /// Whether there is nothing to do for `pod`. What cannot be read is told by an event.
    async fn settled(&self, pod: &Pod) -> Result<bool, Error> {
        match is_settled(pod) {
            Ok(settled) => Ok(settled),
            Err(error) => Err(self.warned(pod, FAILED_TO_ADD, error.into()).await),
        }
    }

    /// Brings `pod` to what it asks for, as far as it goes, and writes how far that was.
    async fn settle(&self, api: &Api<Pod>, pod: &Pod) -> Result<(), Error> {
        let wanted = difference::difference(pod)?;
        let Some(before) = Told::of(pod)? else { return Ok(()) };
        let uid = pod.uid().unwrap_or_default();
        let sandbox = match self.runtime.sandbox(&uid).await {
            Ok(sandbox) => sandbox,
            Err(error) => {
                let reason = if wanted.detach.is_empty() { FAILED_TO_ADD } else { FAILED_TO_REMOVE };
                return Err(self.warned(pod, reason, error.into()).await);
            }
        };
        let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
        let subject = Subject { namespace: &namespace, name: &name, uid: &uid, sandbox: &sandbox };
        let mut told = before.clone();
        let mut errors = Box::pin(self.carry_out(pod, subject, &wanted, &mut told)).await;
        if told != before {
            let annotations = json!({NETWORK_STATUS: told.text()});
            let patch = json!({"metadata": {"uid": uid, "annotations": annotations}});
            let written =
                api.patch_status(&name, &PatchParams::default(), &Patch::<Value>::Merge(patch)).await;
            errors.extend(written.err().map(|error| Error::Cluster("write the pod", Box::new(error))));
        }
        Error::all(errors)
    }
}

/// Whether there is nothing to do for the pod: it is as it asks to be, or it does not run (any more, or yet).
fn is_settled(pod: &Pod) -> Result<bool, difference::Unreadable> {
    let runs = pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running");
    let of_node = pod.spec.as_ref().and_then(|spec| spec.host_network) == Some(true);
    if !runs || of_node || pod.metadata.deletion_timestamp.is_some() {
        return Ok(true);
    }
    Ok(difference::difference(pod)? == Difference::default())
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
