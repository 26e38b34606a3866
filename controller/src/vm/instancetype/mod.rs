//! Instance types and preferences of VirtualMachines.
//!
//! A machine that names one is decided on by its *shape*: the machine with both applied to its template. The object in the
//! cluster keeps its template; instances, digests and restarts follow the shape.
//!
//! ```text
//!                    refs::follow
//!  spec.instancetype ────────────> status.instancetypeRef ── has a revision ──> ControllerRevision ──┐
//!  spec.preference                 status.preferenceRef   ── has none ──> the object itself          ├──> Specs
//!                                                                           │ stored as a revision <─┘      │
//!                                                                           v                               v
//!                                                              status.*Ref.controllerRevisionRef     template: Shape::Made
//! ```
//!
//! A revision is made once: what becomes of the instance type later does not change the machine. When the machine names another
//! one, or another revision, the reference follows; the revision before stays until the machine goes, as upstream. A machine
//! that names none any more loses its references, and with them the revisions that it owns.
//!
//! What cannot be found or applied is [`Shape::Failed`]: nothing is started, a stop is still carried out, the condition Failure and
//! an event say why, and the machine is looked at again after 1 s, 2 s, and so on up to 30 s.
//!
//! By the reference policies `expand` and `expandAll` of the KubeVirt object the shape is written into the machine itself, which
//! names neither from then on: [`Shape::Rewritten`].
//!
//! A revision without the label of its version, as early releases of upstream's have made them, is made anew. One that holds
//! an earlier version than v1beta1 cannot be read, as with upstream's 1.8; a machine with one tells so.

mod find;
pub mod refs;
mod renew;
mod shape;
mod store;
#[cfg(test)]
mod tests;

use podvirt_api::instancetype::Subject;
use podvirt_api::names::event;
use podvirt_api::v1::VirtualMachine;

/// What a machine is decided on by.
#[derive(Clone, Debug, PartialEq)]
pub enum Shape {
    /// The VirtualMachine as it is stored: it names no instance type and no preference, or is being deleted.
    Plain,
    /// The VirtualMachine with the template that its instances are made from, and with the references to the instance type
    /// and the preference that its status is to have.
    Made(Box<VirtualMachine>),
    /// Nothing can be decided: an instance type or a preference is missing or does not fit.
    Failed(Problem),
    /// It was written anew, and its change calls for the next pass.
    Rewritten,
}

/// Why a machine has no shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Reason of condition and event.
    pub reason: &'static str,
    /// For people.
    pub message: String,
}

impl Problem {
    /// It is not found, or cannot be read.
    fn not_found(subject: Subject, message: impl Into<String>) -> Self {
        let reason = match subject {
            Subject::Instancetype => event::FAILED_FIND_INSTANCETYPE,
            Subject::Preference => event::FAILED_FIND_PREFERENCE,
        };
        Problem { reason, message: message.into() }
    }

    /// It cannot be applied.
    fn not_applied(message: impl Into<String>) -> Self {
        Problem { reason: event::FAILED_CREATE, message: message.into() }
    }
}
