//! `virt-handler ports`: the steering without a cluster.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Subcommand;
use nix::sys::signal::{SigSet, Signal};

use super::{Namespace, Steering, lease};

/// What to do with the ports of one pod.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Steer every port of the pod to netd and keep the ports of others out, until SIGTERM or SIGINT; netd keeps
    /// the steering then
    Attach {
        /// netd's socket (its setting ports.steering)
        #[arg(long)]
        socket: PathBuf,
        /// The pod's network namespace: /run/netns/NAME or /proc/PID/ns/net
        #[arg(long)]
        netns: PathBuf,
    },
    /// Steer the ports no longer
    Detach {
        /// netd's socket
        #[arg(long)]
        socket: PathBuf,
    },
}

/// Carries a command out; blocks.
///
/// # Errors
/// What the command meets.
pub fn run(command: Command) -> Result<()> {
    match command {
        Command::Attach { socket, netns } => {
            let mut signals = SigSet::empty();
            signals.add(Signal::SIGTERM);
            signals.add(Signal::SIGINT);
            // Before the thread starts, so that it has them blocked, too.
            signals.thread_block().context("cannot block signals")?;
            let steering = Steering::start(Namespace::open(&netns)?, socket).context("cannot start")?;
            signals.wait().context("cannot wait for a signal")?;
            let report = steering.report();
            steering.end();
            println!(
                "attached: {}, closed ports: {} TCP, {} UDP",
                report.attached, report.closed_tcp, report.closed_udp
            );
            Ok(())
        }
        Command::Detach { socket } => {
            let held = lease::release(&socket)?;
            println!("{}", if held { "detached" } else { "was not attached" });
            Ok(())
        }
    }
}
