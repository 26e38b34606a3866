//! From SyncVirtualMachine to a machine that lives.

use std::sync::Arc;
use std::time::Duration;

use podvirt_api::VirtualMachineInstance;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

use super::prepare::{Prepared, prepare};
use super::report;
use super::shared::Shared;
use crate::hypervisor::Connector;
use crate::life::Ending;
use crate::life::runner::{Life, Wish, run as live};

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
pub(super) async fn run(starter: Starter, mut syncs: mpsc::Receiver<Box<VirtualMachineInstance>>) -> Ending {
    let deadline = Instant::now() + starter.limit;
    let mut last = "virt-handler did not call SyncVirtualMachine".to_owned();
    loop {
        let vmi = tokio::select! {
            vmi = syncs.recv() => match vmi {
                Some(vmi) => vmi,
                None => return Ending::NeverStarted,
            },
            () = starter.asked_to_end() => return Ending::NeverStarted,
            () = sleep_until(deadline) => {
                let seconds = starter.limit.as_secs();
                return Ending::FailedToStart(format!("no machine after {seconds} s: {last}"));
            }
        };
        match starter.attempt(&vmi, deadline).await {
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

    async fn attempt(&self, vmi: &VirtualMachineInstance, deadline: Instant) -> Attempt {
        info!("the machine is prepared");
        let prepared = tokio::select! {
            prepared = prepare(&self.shared, vmi, self.allow_emulation) => prepared,
            () = self.asked_to_end() => return Attempt::Ended(Ending::NeverStarted),
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
            Ok(prepared) => self.live(prepared).await,
            Err(error) => Attempt::Failed(format!("{error:#}")),
        }
    }

    async fn live(&self, prepared: Prepared) -> Attempt {
        let Prepared { name, xml, paused, interfaces, files } = prepared;
        self.shared.facts.send_modify(|facts| facts.interfaces = interfaces);
        let life = Life { connector: self.connector.clone(), name, xml, paused, grace: self.grace };
        let mut views = self.shared.view.subscribe();
        let living = live(life, self.shared.wish.subscribe(), self.shared.view.clone());
        tokio::pin!(living);
        let runs = async { views.wait_for(|view| view.running).await.map(drop) };
        let ended = tokio::select! {
            ending = &mut living => Some(ending),
            _ = runs => None,
        };
        let ending = match ended {
            Some(Ending::FailedToStart(reason)) => return Attempt::Failed(reason),
            Some(ending) => {
                self.shared.attempted(Err(ending.to_string()));
                ending
            }
            None => {
                self.shared.facts.send_modify(|facts| {
                    facts.message.clear();
                    facts.started_at = Some(report::now());
                });
                self.shared.attempted(Ok(()));
                living.await
            }
        };
        // The disks are opened by way of these until the end.
        drop(files);
        Attempt::Ended(ending)
    }
}
