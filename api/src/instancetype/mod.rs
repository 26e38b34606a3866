//! Instance types and preferences: sizes and habits of machines that have a name (`instancetype.kubevirt.io/v1beta1`).
//!
//! ```text
//! VirtualMachine                      VirtualMachine[Cluster]Instancetype ─┐ stored as they are when the machine
//!   spec.instancetype ── Reference ──> VirtualMachine[Cluster]Preference ──┤ is made: ControllerRevision
//!   spec.preference                                                        │ (status.instancetypeRef, preferenceRef)
//!   spec.template ──── attach ──── apply(Specs) ──> the instance <─────────┘
//! ```
//!
//! An instance type is binding: a field that both it and the template set is a conflict, which names the field. A
//! preference only fills in what the template leaves open. Both are applied to the template by [`expand()`], which webhooks,
//! virt-controller and the subresource `expand-spec` share; the object in the cluster stays as its owner wrote it.
//!
//! What is applied is judged as if the template had it: where podvirt does not carry out what an instance type asks for, the
//! VirtualMachine is refused, and [`origin`] tells which field of which object asks.

mod apply;
mod conflict;
mod expand;
pub mod infer;
mod matcher;
pub mod origin;
mod preference;
mod requirements;
mod revision;
#[cfg(test)]
mod tests;
mod topology;

use crate::v1::{VirtualMachineInstancetypeSpec, VirtualMachinePreferenceSpec};

pub use apply::apply;
pub use conflict::{Conflict, Conflicts};
pub(crate) use expand::filled;
pub use expand::{attach, attach_input, expand, expand_template, machine_address};
pub use matcher::{KindError, Matcher, Scope, Subject};
pub use preference::{prefer, prefer_architecture, prefer_machine};
pub use requirements::{Unmet, check_requirements};
pub use revision::{
    REVISION_KIND_LABEL, RevisionError, copied_name, is_of, is_same, revision, spec_of, unlabelled,
};
pub use topology::{Spread, check_spread, spread_of};

/// Group of these resources.
pub const GROUP: &str = "instancetype.kubevirt.io";
/// Their version that podvirt serves.
pub const VERSION: &str = "v1beta1";

/// What a VirtualMachine's instance type and preference say; none of what it does not name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Specs {
    /// The instance type's specification.
    pub instancetype: Option<VirtualMachineInstancetypeSpec>,
    /// The preference's specification.
    pub preference: Option<VirtualMachinePreferenceSpec>,
}

impl Specs {
    /// Whether there is neither.
    pub fn is_empty(&self) -> bool {
        self.instancetype.is_none() && self.preference.is_none()
    }
}

/// Whether a text is not there or says nothing.
fn is_open(text: Option<&str>) -> bool {
    text.is_none_or(str::is_empty)
}

/// Whether a text can be an object's name: what it is asked for by is a part of a path.
pub fn is_name(text: &str) -> bool {
    let is_letter = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
    !text.is_empty() && text.len() <= 253 && text.chars().all(is_letter) && !text.contains("..")
}
