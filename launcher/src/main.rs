//! The virt-launcher program.

use std::io::IsTerminal;
use std::os::unix::process::CommandExt;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use tracing::{Instrument, error, info, info_span};
use tracing_subscriber::EnvFilter;
use virt_launcher::cli::{Cli, Command, Standalone};
use virt_launcher::process::init;
use virt_launcher::standalone;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = if cli.init || std::process::id() == 1 { split(cli.init) } else { start(&cli) };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            // The log may not stand yet, and its filter may hide errors.
            eprintln!("virt-launcher: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Stays behind as init and runs the same command line in a child.
fn split(subreaper: bool) -> Result<u8> {
    let program = std::env::current_exe().context("cannot find the launcher's own file")?;
    let mut command = std::process::Command::new(program);
    let mut args = std::env::args_os();
    if let Some(name) = args.next() {
        command.arg0(name);
    }
    command.args(args.filter(|a| a != "--init"));
    init::run(&mut command, subreaper).context("cannot run as init")
}

fn start(cli: &Cli) -> Result<u8> {
    init::unblock_signals().context("cannot unblock signals")?;
    let filter = match (&cli.log, std::env::var("RUST_LOG")) {
        (Some(filter), _) => filter.clone(),
        (None, Ok(filter)) => filter,
        (None, Err(_)) => "info".into(),
    };
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::try_new(&filter).with_context(|| format!("log filter '{filter}'"))?)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    let Command::Standalone(args) = &cli.command;
    let vmi = standalone::load(&args.vmi)?;
    if args.check {
        return Ok(0);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let span = info_span!("vmi", name = %vmi.full_name());
    let code = runtime.block_on(run(args, &vmi).instrument(span));
    // Threads that wait for a hypervisor or for the terminal shall not keep the process.
    runtime.shutdown_background();
    code
}

async fn run(args: &Standalone, vmi: &podvirt_api::VirtualMachineInstance) -> Result<u8> {
    let ending = standalone::run(args, vmi).await?;
    let code = ending.exit_code();
    if code == 0 {
        info!(%ending, "the end");
    } else {
        error!(%ending, code, "the end");
    }
    Ok(code)
}
