//! Processes: the duties of process 1, daemons that are kept running, the signals that ask for the end.

pub mod daemon;
pub mod init;
pub mod signals;
