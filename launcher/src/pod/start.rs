//! From SyncVirtualMachine, or SyncMigrationTarget, to a machine that lives.
//!
//! What it waits for on the way stands in the report: what others make ([`super::prepare`]), and QEMU, which opens its
//! devices before it answers libvirt for the first time. One that a netd refuses, or that refuses what netd offers,
//! connects to it again and again and never answers; why is in its log alone. So a start that lasts for [`SLOW`] is told
//! with the last words of that log.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{Instrument, info, warn};

use super::prepare::{Prepared, prepare};
use super::shared::{Facts, Shared, Wanted};
use super::{emulator_log, migration, nics, report};
use crate::hypervisor::Connector;
use crate::life::Ending;
use crate::life::runner::{Life, View, Wish, run as live};

/// After this time a start is slow: QEMU needs a second or two, on a node that is out of breath some more.
const SLOW: Duration = Duration::from_secs(10);
/// Between two looks at what a QEMU that does not start has to say.
const LOOK: Duration = Duration::from_secs(5);

/// Starts the machine.
pub(super) struct Starter {
    pub(super) shared: Arc<Shared>,
    pub(super) connector: Arc<dyn Connector>,
    /// Whether QEMU may translate where there is no KVM.
    pub(super) allow_emulation: bool,
    /// How many hook sidecars the pod has.
    pub(super) hook_sidecars: usize,
    /// What the guest has to shut down.
    pub(super) grace: Duration,
    /// How long there may be no machine.
    pub(super) limit: Duration,
    /// Directory of QEMU's logs, one for each domain.
    pub(super) logs: PathBuf,
}

/// What became of one SyncVirtualMachine.
enum Attempt {
    /// There was a machine, and this is how it ended.
    Ended(Ending),
    /// There was none, for this reason.
    Failed(String),
}

/// Waits for a VMI, makes its machine and lives with it until it ends.
pub(super) async fn run(starter: Starter, syncs: mpsc::Receiver<Wanted>) -> Ending {
    attempts(&starter, syncs, async |wanted, deadline| starter.attempt(wanted, deadline).await).await
}

/// Waits for VMIs until an attempt to make one's machine has led to one, or the time for that is over.
async fn attempts(
    starter: &Starter,
    mut syncs: mpsc::Receiver<Wanted>,
    attempt: impl AsyncFn(&Wanted, Instant) -> Attempt,
) -> Ending {
    let deadline = Instant::now() + starter.limit;
    let mut last = "virt-handler did not call SyncVirtualMachine".to_owned();
    loop {
        let wanted = tokio::select! {
            wanted = syncs.recv() => match wanted {
                Some(wanted) => wanted,
                None => return Ending::NeverStarted,
            },
            () = starter.asked_to_end() => return starter.unmade(false),
            () = sleep_until(deadline) => {
                let seconds = starter.limit.as_secs();
                return Ending::FailedToStart(format!("no machine after {seconds} s: {last}"));
            }
        };
        match attempt(&wanted, deadline).await {
            Attempt::Ended(ending) => return ending,
            Attempt::Failed(reason) => {
                warn!(reason, "the machine is not started");
                starter.shared.facts.send_modify(|facts| facts.message.clone_from(&reason));
                starter.shared.attempted(Err(reason.clone()));
                last = reason;
            }
        }
    }
}

impl Starter {
    async fn asked_to_end(&self) {
        let asked = self.shared.wish.subscribe().wait_for(|wish| *wish > Wish::Run).await.is_ok();
        if !asked {
            std::future::pending::<()>().await;
        }
    }

    /// The end of a machine that was never made.
    fn unmade(&self, incoming: bool) -> Ending {
        let told = *self.shared.wish.borrow() == Wish::Leave;
        if incoming || told { Ending::NeverCame } else { Ending::NeverStarted }
    }

    async fn attempt(&self, wanted: &Wanted, deadline: Instant) -> Attempt {
        let incoming = wanted.incoming;
        info!(incoming, "the machine is prepared");
        let preparing = prepare(&self.shared, wanted, self.allow_emulation, self.hook_sidecars);
        let attempt = match self.prepared(preparing, incoming, deadline).await {
            Ok(prepared) => self.live(prepared, incoming).await,
            Err(attempt) => attempt,
        };
        // Their taps are free for the next attempt.
        self.shared.services.send_modify(BTreeMap::clear);
        attempt
    }

    /// What comes of `preparing`, unless the end is asked for or the time is over before.
    async fn prepared(
        &self,
        preparing: impl Future<Output = anyhow::Result<Prepared>>,
        incoming: bool,
        deadline: Instant,
    ) -> Result<Prepared, Attempt> {
        let prepared = tokio::select! {
            prepared = preparing => prepared,
            () = self.asked_to_end() => return Err(Attempt::Ended(self.unmade(incoming))),
            () = sleep_until(deadline) => {
                let facts = self.shared.facts.borrow();
                let waiting = if facts.waiting_for.is_empty() { "its disks" } else { &facts.waiting_for };
                let seconds = self.limit.as_secs();
                let reason = format!("no machine after {seconds} s: still waiting for {waiting}");
                return Err(Attempt::Ended(Ending::FailedToStart(reason)));
            }
        };
        self.shared.facts.send_modify(Facts::wait_is_over);
        prepared.map_err(|error| Attempt::Failed(format!("{error:#}")))
    }

    async fn live(&self, prepared: Prepared, incoming: bool) -> Attempt {
        let Prepared { name, xml, authors, paused, interfaces, made, files, holds, metrics } = prepared;
        self.shared.facts.send_modify(|facts| {
            facts.interfaces = interfaces;
            facts.made = made;
            facts.awaited = incoming;
        });
        let xml = (!incoming).then_some(xml);
        let mut words = JoinSet::new();
        if incoming {
            match migration::listen() {
                Ok(listener) => {
                    words.spawn(migration::take(self.shared.clone(), listener).in_current_span());
                }
                Err(error) => warn!(%error, "sources cannot give their word; libvirt switches over alone"),
            }
        }
        let word = self.shared.word.subscribe();
        let log = self.logs.join(format!("{name}.log"));
        let life = Life { connector: self.connector.clone(), name, xml, paused, grace: self.grace, word };
        let views = self.shared.view.subscribe();
        let living = live(life, self.shared.wish.subscribe(), self.shared.view.clone());
        tokio::pin!(living);
        let ending = tokio::select! {
            ending = &mut living => {
                self.shared.facts.send_modify(Facts::wait_is_over);
                if let (Ending::FailedToStart(reason), false) = (&ending, incoming) {
                    return Attempt::Failed(by(reason, authors.as_deref()));
                }
                self.shared.attempted(Err(ending.to_string()));
                ending
            }
            () = self.arrives(views, incoming) => living.await,
            () = self.explains(&log) => living.await,
        };
        drop(words);
        // Where the guest's kernel has panicked, QEMU's log has no cause.
        let panicked = self.shared.view.borrow().panicked;
        if matches!(ending, Ending::Crashed | Ending::Lost) && !panicked {
            let output = emulator_log::output(&emulator_log::tail(&log));
            warn!(output, "QEMU ended by itself; the end of its log");
            self.shared.facts.send_modify(|facts| facts.emulator_output = output);
        }
        // The disks are opened by way of these until the end.
        drop((files, holds, metrics));
        Attempt::Ended(ending)
    }

    /// Until the machine runs; tells so.
    async fn arrives(&self, mut views: watch::Receiver<View>, incoming: bool) {
        if incoming {
            // From here on it may come.
            if views.wait_for(|view| view.hypervisor.is_some()).await.is_err() {
                return;
            }
            info!("ready for the machine from the other node");
            self.shared.attempted(Ok(()));
        }
        if views.wait_for(|view| view.running).await.is_err() {
            return;
        }
        // The report does not wait for a look at the interfaces, for which libvirt may take its time at a switch-over: a
        // machine that is not told of would be taken for lost. What changes it waits.
        let looks = if incoming { Some(self.shared.changing.lock().await) } else { None };
        self.shared.facts.send_modify(|facts| {
            facts.message.clear();
            facts.wait_is_over();
            facts.started_at = Some(report::now());
        });
        if looks.is_some() {
            nics::arrived(&self.shared).await;
        }
        drop(looks);
        if !incoming {
            self.shared.attempted(Ok(()));
        }
    }

    /// Tells that QEMU is waited for while it starts, and after a while why; never ends.
    async fn explains(&self, log: &Path) {
        let mut views = self.shared.view.subscribe();
        if views.wait_for(|view| view.starting).await.is_err() {
            return std::future::pending().await;
        }
        self.shared.facts.send_modify(|facts| facts.wait_for(QEMU, report::now()));
        let starts = async {
            sleep(SLOW).await;
            loop {
                let words = emulator_log::last_message(&emulator_log::tail(log));
                self.shared.facts.send_modify(|facts| facts.explain(slow(words.as_deref())));
                sleep(LOOK).await;
            }
        };
        // Not the view itself: a future that holds it keeps the life from showing the next one.
        let started = async { views.wait_for(|view| !view.starting).await.is_ok() };
        tokio::select! {
            () = starts => {}
            // The end of this wait is told with what has come of it.
            _ = started => std::future::pending().await,
        }
    }
}

/// Why a start failed, with the hook sidecars that have had a say in the domain.
fn by(reason: &str, authors: Option<&str>) -> String {
    authors.map_or_else(
        || reason.to_owned(),
        |authors| format!("{reason}; the domain's XML is as changed by {authors}"),
    )
}

/// What is waited for while the hypervisor starts the domain.
const QEMU: &str = "QEMU, which is starting";

/// What is told of a start that lasts.
fn slow(words: Option<&str>) -> String {
    match words {
        Some(words) => format!("{QEMU}; the last line of its log: {words}"),
        None => format!("{QEMU}; its log says nothing yet"),
    }
}

#[cfg(test)]
#[path = "start_tests.rs"]
mod tests;
