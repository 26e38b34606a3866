//! What the guest may do on the pod's network: who it may be, and whom it may speak to.
//!
//! [`source`] judges every frame: its addresses must be the guest's. [`egress`] judges the destination of every
//! flow that the guest opens. Both are pure functions of what they are shown and the present
//! [`Link`](crate::net::Link); nothing here keeps state. What comes in is decided by the ports that are forwarded,
//! and by the cluster's own policies, which see ordinary sockets.

pub mod egress;
pub mod source;

pub use egress::{Action, Egress, Rule, Verdict};
