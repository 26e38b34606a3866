//! From SyncVirtualMachine, or SyncMigrationTarget, to a machine that lives.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tracing::{Instrument, info, warn};

use super::prepare::{Prepared, prepare};
use super::shared::{Shared, Wanted};
use super::{migration, report};
use crate::hypervisor::Connector;
use crate::life::Ending;
use crate::life::runner::{Life, View, Wish, run as live};

/// Starts the machine.
pub(super) struct Starter {
    pub(super) shared: Arc<Shared>,
    pub(super) connector: Arc<dyn Connector>,
    /// Whether QEMU may translate where there is no KVM.
    pub(super) allow_emulation: bool,
    /// What the guest has to shut down.
    pub(super) grace: Duration,
    /// How long there may be no machine.
    pub(super) limit: Duration,
}

/// What became of one SyncVirtualMachine.
enum Attempt {
    /// There was a machine, and this is how it ended.
    Ended(Ending),
    /// There was none, for this reason.
    Failed(String),
}

/// Waits for a VMI, makes its machine and lives with it until it ends.
pub(super) async fn run(starter: Starter, mut syncs: mpsc::Receiver<Wanted>) -> Ending {
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
        match starter.attempt(&wanted, deadline).await {
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
        let Wanted { vmi, incoming } = wanted;
        info!(incoming, "the machine is prepared");
        let prepared = tokio::select! {
            prepared = prepare(&self.shared, vmi, self.allow_emulation) => prepared,
            () = self.asked_to_end() => return Attempt::Ended(self.unmade(*incoming)),
            () = sleep_until(deadline) => {
                let facts = self.shared.facts.borrow();
                let waiting = if facts.waiting_for.is_empty() { "its disks" } else { &facts.waiting_for };
                let seconds = self.limit.as_secs();
                let reason = format!("no machine after {seconds} s: still waiting for {waiting}");
                return Attempt::Ended(Ending::FailedToStart(reason));
            }
        };
        self.shared.facts.send_modify(|facts| facts.waiting_for.clear());
        match prepared {
            Ok(prepared) => self.live(prepared, *incoming).await,
            Err(error) => Attempt::Failed(format!("{error:#}")),
        }
    }

    async fn live(&self, prepared: Prepared, incoming: bool) -> Attempt {
        let Prepared { name, xml, paused, interfaces, files, holds } = prepared;
        self.shared.facts.send_modify(|facts| {
            facts.interfaces = interfaces;
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
        let life = Life { connector: self.connector.clone(), name, xml, paused, grace: self.grace, word };
        let views = self.shared.view.subscribe();
        let living = live(life, self.shared.wish.subscribe(), self.shared.view.clone());
        tokio::pin!(living);
        let ending = tokio::select! {
            ending = &mut living => {
                if let (Ending::FailedToStart(reason), false) = (&ending, incoming) {
                    return Attempt::Failed(reason.clone());
                }
                self.shared.attempted(Err(ending.to_string()));
                ending
            }
            () = self.arrives(views, incoming) => living.await,
        };
        drop(words);
        // The disks are opened by way of these until the end.
        drop((files, holds));
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
        self.shared.facts.send_modify(|facts| {
            facts.message.clear();
            facts.started_at = Some(report::now());
        });
        if !incoming {
            self.shared.attempted(Ok(()));
        }
    }
}
