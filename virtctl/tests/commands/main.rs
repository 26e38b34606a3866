//! virtctl as its users call it: the real program against an API server in this process, which records what it is
//! asked and answers as the test says.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a helper of a test fails it")]

mod adm;
mod config;
mod console;
mod credentials;
mod expose;
mod fake;
mod guest;
mod help;
mod port_forward;
mod ssh;
mod state;
mod vnc;
mod volume;
