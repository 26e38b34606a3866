//! The netd process against frontends and control clients that mean it no good.
//!
//! Each test has a network namespace and a netd of its own, the program as it is shipped. What counts is always the
//! same: netd lives, serves the next one, has no descriptor more than before, and does not grow. The tests need root
//! and are passed over, loudly, without.

// The configuration's permission for tests does not reach helpers of an integration test.
#![allow(clippy::unwrap_used, clippy::panic)]

mod bed;
mod control;
#[path = "../shared/daemon.rs"]
mod daemon;
mod frontend;
mod message;
#[path = "../shared/pod.rs"]
mod pod;
