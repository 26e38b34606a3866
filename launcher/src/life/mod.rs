//! The life of one virtual machine, from the launcher's start to its exit code.
//!
//! [`machine`] decides, without clock and without input or output; [`runner`] gives it events and time and
//! carries out what it says.

pub mod machine;
mod messages;
pub mod runner;

pub use machine::{Ending, Machine};
