//! netctl: shows and steers a running netd through its control socket.

mod flows;
mod pcap;
mod top;
mod watch;

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{CommandFactory, Parser, Subcommand, ValueEnum};
use netctl::client::Client;
use netctl::show::{self, PortRow, StatusView};
use netctl::upgrade::Upgrade;
use netd_base::port::PortMap;
use podvirt_proto::descriptors::raise_limit;
use podvirt_proto::hold::{self, Hold};
use podvirt_proto::netd::v1 as proto;
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};

/// Shows and steers a running netd.
#[derive(Debug, Parser)]
#[command(name = "netctl", version)]
struct Args {
    /// Control socket of netd (control.socket in its configuration)
    #[arg(short, long, value_name = "PATH", default_value = "/run/netd/control.sock")]
    socket: PathBuf,
    /// Answer in JSON
    #[arg(short, long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// What netd is doing, and the link of its guest
    Status,
    /// The flow table, or a part of it
    Flows(flows::FlowsArgs),
    /// Rates, and the busiest flows, again and again; ends by q or ctrl-c
    Top(top::TopArgs),
    /// What was not carried, and why
    Drops(watch::DropsArgs),
    /// Frames on the guest's link, as lines or as a pcapng file
    Pcap(pcap::PcapArgs),
    /// Forwarded ports
    Ports {
        #[command(subcommand)]
        change: Option<PortsCommand>,
    },
    /// Write the manual pages into a directory
    #[command(hide = true)]
    Man {
        /// The directory
        dir: PathBuf,
    },
    /// Every counter
    Counters,
    /// The metrics in the OpenMetrics text format
    Metrics,
    /// Put another netd in the place of the running one, which keeps every connection
    Upgrade(UpgradeArgs),
    /// Keep what a netd leaves when it is ended, until the next one collects it (hold.socket)
    Hold {
        /// Socket at which it is left and collected
        #[arg(value_name = "PATH")]
        path: PathBuf,
        /// Seconds after which what no netd collects is dropped
        #[arg(long, value_name = "SECONDS", default_value_t = hold::KEEP.as_secs())]
        keep: u64,
    },
}

#[derive(Debug, clap::Args)]
struct UpgradeArgs {
    /// The new program
    #[arg(long, value_name = "FILE")]
    binary: PathBuf,
    /// Seconds that it may take until it runs in the old one's place
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    timeout: u64,
    /// Stay until the new netd ends, as its parent, and end as it does
    #[arg(long)]
    wait: bool,
    /// Arguments of the new netd; without any those of the running one
    #[arg(last = true)]
    arguments: Vec<OsString>,
}

#[derive(Debug, Subcommand)]
enum PortsCommand {
    /// Open further ports; the exit code is 1 if one cannot be opened
    Add(PortsArgs),
    /// Close ports; connections that came through them go on
    Remove(PortsArgs),
}

#[derive(Debug, clap::Args)]
struct PortsArgs {
    /// Protocol
    proto: ProtoArg,
    /// Ports of the pod, with the guest's behind ':' where they differ: 80 8000-8099 2222:22
    #[arg(required = true)]
    ports: Vec<PortMap>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ProtoArg {
    Tcp,
    Udp,
}

impl PortsArgs {
    fn rules(&self) -> Vec<proto::PortRule> {
        let transport = match self.proto {
            ProtoArg::Tcp => proto::Transport::Tcp,
            ProtoArg::Udp => proto::Transport::Udp,
        };
        let rule = |(pod, guest): (u16, u16)| proto::PortRule {
            transport: transport.into(),
            pod: pod.into(),
            guest: guest.into(),
        };
        self.ports.iter().flat_map(|map| map.pairs()).map(rule).collect()
    }
}

fn main() -> ExitCode {
    let result = run(&Args::parse());
    match result {
        Ok(code) => code,
        // The reader of the output has enough of it, as in `netctl flows | head`.
        Err(error) if error.downcast_ref::<io::Error>().is_some_and(is_closed_pipe) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("netctl: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn is_closed_pipe(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::BrokenPipe
}

fn run(args: &Args) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(call(args))
}

async fn call(args: &Args) -> Result<ExitCode> {
    match &args.command {
        Command::Upgrade(how) => return upgrade(args, how).await,
        Command::Man { dir } => {
            clap_mangen::generate_to(Args::command(), dir).with_context(|| dir.display().to_string())?;
            return Ok(ExitCode::SUCCESS);
        }
        Command::Hold { path, keep } => return keep_hold(path, Duration::from_secs(*keep)).await,
        _ => {}
    }
    let mut client = Client::connect(&args.socket).await?;
    match &args.command {
        Command::Status => {
            print(args.json, &StatusView::from(client.status().await?), show::status)?;
        }
        Command::Flows(flows) => flows::run(&mut client, flows, args.json).await?,
        Command::Top(top) => top::run(&mut client, top, args.json).await?,
        Command::Drops(drops) => watch::run(&mut client, drops, args.json).await?,
        Command::Pcap(pcap) => pcap::run(&mut client, pcap).await?,
        Command::Ports { change } => {
            let ports = match change {
                None => client.ports().await?,
                Some(PortsCommand::Add(ports)) => client.add_ports(ports.rules()).await?,
                Some(PortsCommand::Remove(ports)) => client.remove_ports(ports.rules()).await?,
            };
            let rows: Vec<PortRow> = ports.into_iter().map(PortRow::from).collect();
            print(args.json, &rows, |rows| show::ports(rows))?;
            if matches!(change, Some(PortsCommand::Add(_))) && rows.iter().any(PortRow::failed) {
                return Ok(ExitCode::FAILURE);
            }
        }
        Command::Counters => {
            let rows = show::counter_rows(client.counters().await?);
            print(args.json, &rows, |rows| show::counters(rows))?;
        }
        // Neither asks the running netd.
        Command::Upgrade(_) | Command::Hold { .. } | Command::Man { .. } => {}
        Command::Metrics => io::stdout().write_all(client.metrics().await?.as_bytes())?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes `value` as JSON or as `text` has it.
fn print<T: Serialize>(json: bool, value: &T, text: impl FnOnce(&T) -> String) -> Result<()> {
    let out = if json { serde_json::to_string_pretty(value)? + "\n" } else { text(value) };
    io::stdout().write_all(out.as_bytes())?;
    Ok(())
}

async fn upgrade(args: &Args, how: &UpgradeArgs) -> Result<ExitCode> {
    let upgrade = Upgrade {
        binary: how.binary.clone(),
        arguments: Some(how.arguments.clone()).filter(|a| !a.is_empty()),
        timeout: Duration::from_secs(how.timeout),
    };
    let mut upgraded = upgrade.run(&args.socket).await?;
    let answers = upgraded.answers;
    let view = serde_json::json!({
        "pid": upgraded.child.id(),
        "generation": upgraded.generation,
        "answers": answers,
    });
    print(args.json, &view, |v| {
        let what = if answers {
            "went on"
        } else {
            "was left running: neither netd answers, and it may have taken over"
        };
        format!("netd {} {what}, update {}\n", v["pid"], v["generation"])
    })?;
    if !how.wait {
        return Ok(if answers { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    let status = tokio::task::spawn_blocking(move || upgraded.child.wait()).await??;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Serves a hold until SIGTERM or SIGINT.
async fn keep_hold(path: &Path, keep: Duration) -> Result<ExitCode> {
    let hold = Hold::listen(path, keep).with_context(|| format!("cannot listen at {}", path.display()))?;
    // A deposit has a descriptor for each flow.
    if let Err(error) = raise_limit() {
        eprintln!("netctl: the limit of descriptors cannot be raised: {error}");
    }
    let (stop, stopped) = UnixStream::pair()?;
    let serving =
        tokio::task::spawn_blocking(move || hold.serve(stopped.as_fd(), |said| eprintln!("{said}")));
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    drop(stop);
    serving.await??;
    Ok(ExitCode::SUCCESS)
}
