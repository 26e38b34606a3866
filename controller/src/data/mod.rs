//! DataVolumes: claims that CDI fills with disk images, for machines that name them.
//!
//! ```text
//!  VirtualMachine ── spec.dataVolumeTemplates ──> DataVolume ── CDI ──> claim of the same name, filled
//!        │                                            │                     │
//!        └── is started once all of them are usable <─┘                     │
//!  VirtualMachineInstance ── has its pod once the claims of its volumes are filled <─┘
//! ```
//!
//! What a machine waits for follows from the phase of its DataVolumes ([`podvirt_api::cdi::Phase`]):
//!
//! | phase | VirtualMachine | VirtualMachineInstance |
//! |---|---|---|
//! | usable | starts | gets its pod |
//! | waits for a consumer | starts | gets a [pod that uses its claims first](crate::template::consumer_pod) until CDI has filled the claim |
//! | filling | waits | waits |
//! | failed | waits, DataVolumeError | fails, if it had no pod yet |
//!
//! A DataVolume may copy a claim or a snapshot of another namespace. virt-controller, which makes it, may do so everywhere; so
//! it asks the API server first whether the machine's own service account may ([`clone`]).
//!
//! A cluster without CDI does not serve the kind. Then a claim that a volume calls a DataVolume is used as it is, and a
//! VirtualMachine with templates says what it lacks.

pub mod clone;
pub mod look;
pub mod make;
pub mod template;
mod view;

pub use look::{Look, look};
pub use view::{DataVolumes, keep};

pub use crate::kept::Served;
