//! Processes: the duties of process 1, and daemons that are kept running.

pub mod daemon;
pub mod init;
