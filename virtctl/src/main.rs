//! virtctl: the user's command line for virtual machines.
//!
//! # Theory of operation
//!
//! kubectl makes, lists and deletes virtual machines: they are objects like all others. virtctl does what no object
//! stands for: it asks for a state (start, stop, restart, pause) and it opens streams into a machine (console, VNC,
//! ports). Both are subresources of the aggregated API `subresources.kubevirt.io`, so the API server does all
//! authentication and authorization, and virtctl needs nothing but the user's kubeconfig.
//!
//! ```text
//! args ── help (program name, examples)
//!   │
//!   ├─ config   kubeconfig + flags ─> one cluster, one identity, one namespace
//!   ├─ target   `vmi/name/namespace`, `udp/53:5353` ─> checked values (pure)
//!   ├─ api      PUT for a state; WebSocket `plain.kubevirt.io` for a stream, on the same TLS identity
//!   ├─ explain  an answer that is no success ─> what it means and what to do about it (pure)
//!   ├─ pump     WebSocket <─> anything that reads and writes, with back-pressure and a clean close
//!   ├─ tty      raw mode that is undone however the command ends
//!   └─ commands one file each
//! ```
//!
//! Command names, flags and success lines are upstream's, so that habits and scripts hold.

#![forbid(unsafe_code)]

mod api;
mod args;
mod commands;
mod config;
mod explain;
mod help;
mod output;
mod password;
mod pump;
mod random;
mod target;
mod tty;
mod web;

use std::process::ExitCode;

use tracing_subscriber::filter::LevelFilter;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    let cli = match help::parse(&arguments) {
        Ok(cli) => cli,
        // Help that was asked for goes to stdout and is a success.
        Err(error) => {
            let failed = error.use_stderr();
            return match error.print() {
                Ok(()) if !failed => ExitCode::SUCCESS,
                _ => ExitCode::FAILURE,
            };
        }
    };
    log_to_stderr(cli.global.verbosity);
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            output::complain(&format!("error: cannot start: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let result = runtime.block_on(commands::run(cli));
    // A read of the standard input cannot be cancelled: nothing waits for it.
    runtime.shutdown_background();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::complain(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Logs to stderr what `-v` asks for: 3 what is done, 6 each request, 8 all there is. Nothing by default: what a user
/// has to know is said by the command itself.
fn log_to_stderr(verbosity: u8) {
    let level = match verbosity {
        0..=2 => return,
        3..=5 => LevelFilter::INFO,
        6..=7 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::stderr).init();
}
