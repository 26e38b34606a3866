//! What the test bed's programs share with its harness: a guest's serial [`Console`], and waiting for what another
//! process does.

mod console;
pub mod flood;
pub mod wait;

pub use console::{Console, Output};
