//! virt-handler; see the library.

use std::io::Write;

use anyhow::{Context, bail};
use clap::Parser;
use podvirt_daemon::{crypto, telemetry};
use virt_handler::cli::{Cli, Command};
use virt_handler::{ports, serve};

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    if let Some(Command::Ports(command)) = cli.command {
        telemetry::init("virt-handler ports", telemetry::Format::Text, Some("info"))?;
        return ports::run(command);
    }
    if cli.serve.node_name.is_empty() {
        bail!("--node-name, or NODE_NAME in the environment: the name of this node is needed");
    }
    let logs = telemetry::init("virt-handler", cli.serve.log_format, cli.serve.log_filter.as_deref())?;
    crypto::install();
    // One thread: the work is waiting, and each thread would cost memory on every node.
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("the runtime")?;
    let ended = runtime.block_on(serve::serve(cli.serve, logs));
    std::io::stderr().flush().ok();
    ended
}
