//! VirtualMachines: machines that outlive their guests' runs.
//!
//! A VirtualMachine has at most one VirtualMachineInstance, of its own name and with its controller reference:
//! that is one run. This controller makes and deletes the instance as `runStrategy` and the requests in
//! `status.stateChangeRequests` say, and tells in `status` how it is.
//!
//! ```text
//!             no instance                      instance lives            instance ended
//! Always      start (after the back-off)       a stop request deletes    delete
//! Rerun..     start if asked, or new here      a stop request deletes    delete; failed, or ended with its pod: ask for a start
//! Manual      start if asked                   a stop request deletes    leave; a start request deletes
//! Once        start if asked, or new here      a stop request deletes    leave; a start request deletes
//! Halted      start request: become Always     delete                    delete
//! ```
//!
//! "New here": `status.runStrategy` is another one still, the machine was not started by this strategy yet. An
//! instance of an older generation that ended, or is being deleted, then makes room for a start, too. A machine that
//! is newly halted forgets the starts it was asked for before.
//!
//! One pass of [`decide()`] looks at the machine, its instance and the clock and gives the new status and at most
//! one action. The shell in [`reconcile`] writes the status first, so that what the action rests on (a counted
//! failure, a request of its own) is not lost by a crash in between, then acts; the instance's change calls for
//! the next pass. Every write is tied to what was read by resource version or UID. An instance is made, a request
//! dropped, the finalizer taken away only after a look at the API server itself, never from a cache alone.
//!
//! A machine that names an instance type or a preference is decided on by its [shape](instancetype): its template with both
//! applied. Without it nothing is started.
//!
//! A machine whose template names [DataVolumes](crate::data) starts once CDI has filled them; those of its
//! `dataVolumeTemplates` are made for it, at once or with its first start.
//!
//! An instance of the machine's name that has no controller, as `--cascade=orphan` leaves it, becomes the machine's own. One that
//! another object controls is left alone, and told in the condition Failure.

mod act;
pub mod condition;
mod data;
pub mod decide;
pub mod failed;
pub mod failure;
pub mod instance;
pub mod instancetype;
mod memory_dump;
pub mod moves;
pub mod nics;
pub mod placement;
pub mod printable;
pub mod reconcile;
pub mod request;
pub mod revision;
#[cfg(test)]
mod shell_tests;
#[cfg(test)]
mod tests;
mod tracking;
mod view;
pub mod volumes;

use podvirt_api::v1::{
    VirtualMachine, VirtualMachineInstance, VirtualMachineInstancePhase as Phase, VirtualMachineRunStrategy,
};

pub use decide::{Action, Instance, Plan, decide, decide_by};
pub use reconcile::{Context, run};
pub use view::{Changed, Machines};

/// When a machine shall run: the strategies that podvirt carries out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// Always.
    Always,
    /// Never.
    Halted,
    /// When asked.
    Manual,
    /// Until it ends without a failure.
    RerunOnFailure,
    /// One time.
    Once,
}

/// The specification does not say when the machine shall run, or says something podvirt does not do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StrategyError {
    /// Both of the exclusive fields are there.
    #[error("spec.running and spec.runStrategy: only one of them is allowed")]
    Both,
    /// An unknown strategy, or one that podvirt does not carry out.
    #[error("spec.runStrategy {0:?}: Always, Halted, Manual, RerunOnFailure and Once are allowed")]
    NotSupported(String),
}

impl Strategy {
    /// The strategy of a machine. None given: halted.
    ///
    /// # Errors
    ///
    /// See [`StrategyError`].
    pub fn of(vm: &VirtualMachine) -> Result<Self, StrategyError> {
        let word = match (vm.spec.running, &vm.spec.run_strategy) {
            (Some(_), Some(_)) => return Err(StrategyError::Both),
            (Some(true), None) => return Ok(Self::Always),
            (Some(false) | None, None) => return Ok(Self::Halted),
            (None, Some(word)) => word,
        };
        match word {
            VirtualMachineRunStrategy::Always => Ok(Self::Always),
            VirtualMachineRunStrategy::Halted => Ok(Self::Halted),
            VirtualMachineRunStrategy::Manual => Ok(Self::Manual),
            VirtualMachineRunStrategy::RerunOnFailure => Ok(Self::RerunOnFailure),
            VirtualMachineRunStrategy::Once => Ok(Self::Once),
            VirtualMachineRunStrategy::WaitAsReceiver | VirtualMachineRunStrategy::Other(_) => {
                Err(StrategyError::NotSupported(word.to_string()))
            }
        }
    }

    /// Its word in the API.
    pub fn word(self) -> VirtualMachineRunStrategy {
        match self {
            Self::Always => VirtualMachineRunStrategy::Always,
            Self::Halted => VirtualMachineRunStrategy::Halted,
            Self::Manual => VirtualMachineRunStrategy::Manual,
            Self::RerunOnFailure => VirtualMachineRunStrategy::RerunOnFailure,
            Self::Once => VirtualMachineRunStrategy::Once,
        }
    }
}

/// Whether an instance has ended.
pub(crate) fn is_final(vmi: &VirtualMachineInstance) -> bool {
    matches!(vmi.status.phase, Some(Phase::Succeeded | Phase::Failed))
}
