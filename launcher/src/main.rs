//! The virt-launcher program.

use std::io::IsTerminal;
use std::os::unix::process::CommandExt;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use tracing::{Instrument, error, info, info_span, warn};
use tracing_subscriber::EnvFilter;
use virt_launcher::cli::{Cli, Command};
use virt_launcher::life::Ending;
use virt_launcher::process::init;
use virt_launcher::virt_freezer::{self, VirtFreezer};
use virt_launcher::virt_probe::{self, VirtProbe};
use virt_launcher::{
    attach, capabilities, console_log, emulator, mesh, pod, probe, program, run_netd, standalone,
};

fn main() -> ExitCode {
    let called_by = std::env::args_os().next();
    let is = |name| program::is_meant(called_by.as_deref(), name);
    if is(virt_probe::NAME) {
        return ask_launcher(virt_probe::NAME, virt_probe::run(&VirtProbe::parse()));
    }
    if is(virt_freezer::NAME) {
        return ask_launcher(virt_freezer::NAME, virt_freezer::run(&VirtFreezer::parse()));
    }
    if is(emulator::NAME) {
        return match emulator::run() {
            Ok(never) => match never {},
            Err(error) => {
                eprintln!("{}: {error:#}", emulator::NAME);
                ExitCode::FAILURE
            }
        };
    }
    let cli = Cli::parse();
    // netd itself is process 1 of its container, and so is the console's tail: they have no orphans.
    let alone = matches!(cli.command, Command::RunNetd(_) | Command::TailConsole(_));
    let splits = cli.init || (std::process::id() == 1 && !alone);
    let result = if splits { split(&cli) } else { start(&cli) };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            // The log may not stand yet, and its filter may hide errors.
            eprintln!("virt-launcher: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// What the kubelet, or a tool for backups, runs under another name. It logs nothing: its words are those of the caller's event.
fn ask_launcher(name: &str, work: impl Future<Output = Result<ExitCode>>) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let asked = runtime.map_err(anyhow::Error::new).and_then(|runtime| runtime.block_on(work));
    asked.unwrap_or_else(|error| {
        eprintln!("{name}: {error:#}");
        ExitCode::FAILURE
    })
}

/// Stays behind as init and runs the same command line in a child. Behind a pod's machine it asks a mesh's proxy to quit.
fn split(cli: &Cli) -> Result<u8> {
    let program = std::env::current_exe().context("cannot find the launcher's own file")?;
    let mut command = std::process::Command::new(program);
    let mut args = std::env::args_os();
    if let Some(name) = args.next() {
        command.arg0(name);
    }
    command.args(args.filter(|a| a != "--init"));
    let ended = init::run(&mut command, cli.init).context("cannot run as init")?;
    if let Command::Pod(args) = &cli.command {
        log(cli)?;
        // A mesh's proxy that is left would not matter: the container stays, too.
        if args.keep_after_failure && ended.code != 0 && !ended.asked {
            warn!(
                code = ended.code,
                "the machine has failed; its container is kept, to be looked into, until its pod is deleted"
            );
            init::linger().context("cannot wait as init")?;
        }
        mesh::release();
    }
    Ok(ended.code)
}

fn log(cli: &Cli) -> Result<()> {
    let filter = virt_launcher::log::filter(cli.log.as_deref(), |name| std::env::var(name).ok());
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::try_new(&filter).with_context(|| format!("log filter '{filter}'"))?)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    Ok(())
}

fn start(cli: &Cli) -> Result<u8> {
    init::unblock_signals().context("cannot unblock signals")?;
    log(cli)?;
    match &cli.command {
        Command::Standalone(args) => {
            let vmi = standalone::load(&args.vmi)?;
            if args.check {
                return Ok(0);
            }
            let span = info_span!("vmi", name = %vmi.full_name());
            let ending = block_on(standalone::run(args, &vmi).instrument(span))?;
            Ok(told(&ending, ending.exit_code()))
        }
        Command::Pod(args) => {
            let span = info_span!("vmi", name = %format!("{}/{}", args.namespace, args.name), uid = args.uid);
            let end = block_on(pod::run(args).instrument(span))?;
            Ok(told(&end.ending, end.exit_code()))
        }
        Command::Probe(args) => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(probe::run(args))?;
            Ok(0)
        }
        Command::TailConsole(args) => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(console_log::run(args))?;
            Ok(0)
        }
        Command::Attach(args) => {
            attach::run(args)?;
            Ok(0)
        }
        Command::Capabilities(args) => {
            block_on(capabilities::run(args))?;
            Ok(0)
        }
        Command::RunNetd(args) => match run_netd::run(&args.netd, args.interface.as_deref())? {},
    }
}

fn block_on<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let ending = runtime.block_on(work);
    // Threads that wait for a hypervisor or for the terminal shall not keep the process.
    runtime.shutdown_background();
    ending
}

fn told(ending: &Ending, code: u8) -> u8 {
    if code == 0 {
        info!(%ending, "the end");
    } else {
        error!(%ending, code, "the end");
    }
    code
}
