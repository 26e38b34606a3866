//! The loop that keeps this node's VMIs and their launchers together.
//!
//! ```text
//!  virt-api ────watch──> Store ─┐                      ┌─ look: socket, GetDomain
//!  launcher ──notify──> Newest ─┼─> Queue ──> a pass ──┼─ decide (crate::vm)
//!  socket appears / breaks ─────┘                      ├─ write the status
//!                                                      └─ act: one call to the launcher
//! ```
//!
//! A [`pass`] gets the [`Machine`] of its VMI by value and gives it back: passes over different VMIs run side
//! by side, passes over one VMI never do. All of it is one thread: the work is waiting.
//!
//! A pass waits for its own pod (the launcher, the network backend) and for the API server. What a pod takes its time
//! for costs its own machine alone: a pass has no place to hold among the others, so that launchers that hang, however
//! many, delay no other machine. A launcher that does not answer is looked at less and less often
//! ([`crate::vm::next_look`]). All machines share the API server: what passes ask of it is limited instead
//! ([`pass::within`]).
//!
//! There are two watches: of the VMIs on this node and of those that come to it by a migration ([`migrate`]); a VMI
//! is known while either shows it, and has one [`Machine`] all the time. They go by way of virt-api ([`own`]). While none
//! answers, what is known stands: machines are looked after; what is new is seen, and their status is written, when one
//! answers again.
//!
//! Nothing is concluded from a VMI that is missing before the first lists are complete.

mod machine;
mod migrate;
mod own;
mod pass;
pub(crate) mod pods;
mod post;
mod store;
mod volumes;

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use futures::StreamExt;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use podvirt_api::names::label;
use podvirt_daemon::http::Gate;
use podvirt_daemon::shutdown::Shutdown;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tracing::Instrument as _;

pub use machine::Machine;
pub use post::{Mail, VmiEvent, post};
pub use store::Store;

use crate::launcher::notify::Told;
use crate::launcher::options::Options;
use crate::metrics::Metrics;
use crate::migration::Means;
use crate::queue::{Outcome, Queue};
use crate::record::Records;
use crate::sockets::PodVolumes;
use own::Own;

/// Triggers that wait at most; launchers wait beyond.
const TRIGGERS: usize = 256;

/// What all passes share.
#[derive(Clone)]
pub struct Node {
    /// Name of this node.
    pub name: String,
    /// The API server.
    pub client: Client,
    /// The pods' volumes.
    pub volumes: PodVolumes,
    /// What survives a restart.
    pub records: Records,
    /// This node's VMIs.
    pub store: Store,
    /// UIDs of VMIs to look at.
    pub triggers: mpsc::Sender<String>,
    /// Events that launchers tell.
    pub told: mpsc::Sender<Told>,
    /// Events of our own.
    pub event_queue: mpsc::Sender<VmiEvent>,
    /// What is counted.
    pub metrics: Metrics,
    /// What migrations need.
    pub means: Means,
    /// What the cluster's configuration adds to machines.
    pub options: Options,
}

/// The other end of [`Node::triggers`].
#[derive(Debug)]
pub struct Triggers(mpsc::Receiver<String>);

impl Node {
    /// The node called `name`.
    pub fn new(
        name: String,
        client: Client,
        volumes: PodVolumes,
        records: Records,
        store: Store,
        metrics: Metrics,
    ) -> (Self, Triggers, Mail) {
        let (triggers, triggered) = mpsc::channel(TRIGGERS);
        let (told, hears) = mpsc::channel(TRIGGERS);
        let (event_queue, posted) = mpsc::channel(TRIGGERS);
        let (means, options) = (Means::new(String::new()), Options::default());
        let node = Self {
            name,
            client,
            volumes,
            records,
            store,
            triggers,
            told,
            event_queue,
            metrics,
            means,
            options,
        };
        (node, Triggers(triggered), Mail { told: hears, event_queue: posted })
    }
}

impl Node {
    /// The same with what migrations need.
    #[must_use]
    pub fn with_migrations(self, means: Means) -> Self {
        Self { means, ..self }
    }

    /// The same with what the cluster's configuration adds to machines.
    #[must_use]
    pub fn with_options(self, options: Options) -> Self {
        Self { options, ..self }
    }
}

/// Which VMIs two watches have shown: those on this node, and those that come to it.
#[derive(Debug, Default)]
struct Seen {
    known: [HashSet<String>; 2],
    listed: [HashSet<String>; 2],
    complete: [bool; 2],
}

impl Seen {
    fn knows(&self, uid: &str) -> bool {
        self.known.iter().any(|known| known.contains(uid))
    }
}

/// Runs until `shutdown`. Machines go on without.
///
/// # Errors
///
/// The records cannot be read.
pub async fn run(
    node: &Node,
    mut triggers: Triggers,
    synced: &Gate,
    shutdown: &Shutdown,
) -> std::io::Result<()> {
    let api: Api<Own> = Api::all(node.client.clone());
    let watch = |label: &str| {
        let config = watcher::Config::default().labels(&format!("{label}={}", node.name));
        Box::pin(watcher(api.clone(), config).default_backoff())
    };
    let here = watch(label::NODE_NAME).map(|event| (0, event));
    let coming = watch(label::MIGRATION_TARGET_NODE_NAME).map(|event| (1, event));
    let mut watch = futures::stream::select(here, coming);

    let mut queue = Queue::<String>::default();
    let mut machines = HashMap::<String, Machine>::new();
    for record in node.records.all()? {
        machines.insert(record.uid(), Machine::of(record));
    }
    let mut passes = JoinSet::new();
    let mut running = HashMap::new();
    let mut seen = Seen::default();
    let mut complete = false;
    loop {
        let due = queue.next_due().filter(|_| complete);
        let wake = async {
            match due {
                Some(due) => tokio::time::sleep_until(due.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = shutdown.requested() => break,
            event = watch.next() => match event {
                Some((which, Ok(watcher::Event::Init))) => seen.listed[which].clear(),
                Some((which, Ok(watcher::Event::InitApply(Own(vmi))))) => {
                    if let Some(uid) = node.store.put(vmi) {
                        seen.listed[which].insert(uid.clone());
                        queue.add(uid, Instant::now());
                    }
                }
                Some((which, Ok(watcher::Event::Apply(Own(vmi))))) => {
                    if let Some(uid) = node.store.put(vmi) {
                        seen.known[which].insert(uid.clone());
                        queue.add(uid, Instant::now());
                    }
                }
                // What it has is the VMI before it lost the label: the other watch, if it shows it, knows better.
                Some((which, Ok(watcher::Event::Delete(Own(vmi))))) => {
                    if let Some(uid) = vmi.metadata.uid {
                        seen.known[which].remove(&uid);
                        if !seen.knows(&uid) {
                            node.store.remove(&uid);
                        }
                        queue.add(uid, Instant::now());
                    }
                }
                Some((which, Ok(watcher::Event::InitDone))) => {
                    seen.known[which] = std::mem::take(&mut seen.listed[which]);
                    seen.complete[which] = true;
                    if seen.complete != [true; 2] {
                        continue;
                    }
                    let unlisted = node.store.retain(|uid| seen.knows(uid));
                    for uid in unlisted.into_iter().chain(machines.keys().cloned()) {
                        queue.add(uid, Instant::now());
                    }
                    complete = true;
                    synced.open();
                }
                Some((_, Err(error))) => {
                    tracing::warn!(error = &error as &dyn std::error::Error, "virt-api does not show this node's VMIs; trying again");
                }
                None => break,
            },
            Some(uid) = triggers.0.recv() => queue.add(uid, Instant::now()),
            Some(ended) = passes.join_next_with_id() => {
                let now = Instant::now();
                match ended {
                    Ok((id, (machine, outcome))) => {
                        let uid: String = running.remove(&id).unwrap_or_default();
                        if outcome != Outcome::Forget {
                            machines.insert(uid.clone(), machine);
                        }
                        queue.done(&uid, outcome, now);
                        node.metrics.passed(outcome);
                    }
                    Err(error) => {
                        // What it knew is seen again.
                        tracing::error!(%error, "a pass ended before its time");
                        let uid: String = running.remove(&error.id()).unwrap_or_default();
                        queue.done(&uid, Outcome::Failed, now);
                    }
                }
            }
            () = wake => {}
        }
        while let Some(uid) = complete.then(|| queue.next(Instant::now())).flatten() {
            let machine = machines.remove(&uid).unwrap_or_default();
            let (node, key) = (node.clone(), uid.clone());
            let span = span(&node, &uid, &machine);
            let task = passes.spawn(async move { pass::pass(&node, &key, machine).await }.instrument(span));
            running.insert(task.id(), uid);
        }
        node.metrics.depth(queue.depth(Instant::now()));
    }
    Ok(())
}

fn span(node: &Node, uid: &str, machine: &Machine) -> tracing::Span {
    let (namespace, name) = match node.store.get(uid) {
        Some(vmi) => (vmi.metadata.namespace.clone(), vmi.metadata.name.clone()),
        None => machine.name().unzip(),
    };
    // Not `name`: that is the span's own in the log.
    tracing::info_span!("pass", namespace, vmi = name, uid)
}
