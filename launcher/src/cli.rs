//! The command line.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

/// Runs one virtual machine through libvirt
///
/// Exit codes: 0 the guest shut down (asked or on its own), 1 it did not start (in a pod also: it was not to), 2 wrong command line, 3 it
/// crashed, 4 it was killed after its grace period, 5 it was destroyed from outside, 6 it is not known.
#[derive(Clone, Debug, Parser)]
#[command(name = "virt-launcher", version)]
pub struct Cli {
    /// Log level or filter, e.g. info or virt_launcher=debug; the environment's RUST_LOG when not given
    #[arg(long, global = true, value_name = "FILTER")]
    pub log: Option<String>,
    /// Reap orphans and pass signals on, as when the launcher is process 1
    #[arg(long, global = true)]
    pub init: bool,
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Run the machine of a manifest, without a cluster
    Standalone(Standalone),
    /// Run the machine of this pod: what the container compute does
    Pod(Pod),
    /// Serve the pod's network to the machine: what the container netd does; NETD_SPEC tells it of the machine
    RunNetd(RunNetd),
    /// Ask whether the guest accepts connections at a TCP port; the exit code tells: what the kubelet runs
    Probe(Probe),
    /// Copy the log of the guest's serial console to the standard output: what the container guest-console-log does
    TailConsole(TailConsole),
    /// Hand over the disks of this pod's claims: what an attachment pod does for volumes that are plugged into a running machine
    Attach(Attach),
    /// Ask libvirt what QEMU can do on this node: what runs ahead of virt-handler
    Capabilities(Capabilities),
}

/// Which log is copied.
#[derive(Clone, Debug, Args)]
pub struct TailConsole {
    /// The log; it may come later
    #[arg(long, value_name = "FILE")]
    pub log_file: PathBuf,
}

/// Whose disks are handed over, and where.
#[derive(Clone, Debug, Args)]
pub struct Attach {
    /// Socket to listen on
    #[arg(long, value_name = "SOCKET")]
    pub socket: PathBuf,
    /// Directory in which the claims are, under their volumes' names: mounted, or devices
    #[arg(long, value_name = "DIR")]
    pub claims: PathBuf,
    /// The volumes, as JSON: for each its name, whether it is read only, and what is told of its claim
    #[arg(long, value_name = "JSON")]
    pub volumes: String,
}

/// Where the answers go.
#[derive(Clone, Debug, Args)]
pub struct Capabilities {
    /// File for them
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Directory for libvirt's state; at most 32 bytes long
    #[arg(long, value_name = "DIR", default_value = "/run/virt-launcher")]
    pub run_dir: PathBuf,
}

/// How a pod's machine is run.
#[derive(Clone, Debug, Args)]
pub struct Pod {
    /// Name of the VirtualMachineInstance
    #[arg(long)]
    pub name: String,
    /// Its namespace
    #[arg(long)]
    pub namespace: String,
    /// Its UID
    #[arg(long)]
    pub uid: String,
    /// Seconds that the guest has to shut down
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub grace_period_seconds: u64,
    /// How long there may be no machine, e.g. 240s or 4m
    #[arg(long, value_name = "DURATION", default_value = "240s", value_parser = duration)]
    pub qemu_timeout: Duration,
    /// Let QEMU translate where KVM cannot be used
    #[arg(long)]
    pub allow_emulation: bool,
    /// End at once, as if virt-launcher had crashed: for upstream's tests of machines that are started again
    #[arg(long)]
    pub simulate_crash: bool,
    /// Keep the container when the machine has failed, until the kubelet stops it with SIGTERM
    #[arg(long)]
    pub keep_after_failure: bool,
    /// What firmware and TPM keep is on a claim that the node has which the machine may move to
    #[arg(long)]
    pub shared_state: bool,
    /// How many hook sidecars the pod has
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    pub hook_sidecars: usize,
}

/// How a pod's network is served.
#[derive(Clone, Debug, Args)]
pub struct RunNetd {
    /// The netd to become
    #[arg(long, value_name = "PROGRAM", default_value = "/usr/bin/netd")]
    pub netd: PathBuf,
    /// The machine's interface; needed where it has several
    #[arg(long, value_name = "NAME")]
    pub interface: Option<String>,
}

/// What of the guest is looked at.
#[derive(Clone, Debug, Args)]
pub struct Probe {
    /// netd's control socket
    #[arg(long, value_name = "SOCKET")]
    pub netd: PathBuf,
    /// The pod's port
    #[arg(long)]
    pub port: u16,
    /// How long the guest may take, e.g. 1s
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = duration)]
    pub timeout: Duration,
}

/// Whole seconds, minutes or hours; seconds without a unit.
fn duration(text: &str) -> Result<Duration, String> {
    let allowed = || format!("'{text}' is no duration; a number with s, m or h is allowed, such as 240s");
    let (number, unit) = text.split_at(text.trim_end_matches(char::is_alphabetic).len());
    let factor = match unit {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return Err(allowed()),
    };
    let seconds = number.parse::<u32>().map_err(|_| allowed())?;
    Ok(Duration::from_secs(u64::from(seconds) * factor))
}

/// How a machine is run without a cluster.
#[derive(Clone, Debug, Args)]
pub struct Standalone {
    /// Manifest of a VirtualMachineInstance, YAML or JSON; - is standard input
    #[arg(long, value_name = "FILE")]
    pub vmi: PathBuf,
    /// Check the manifest, tell every problem, and end
    #[arg(long)]
    pub check: bool,
    /// Directory for sockets, logs, made disks and libvirt's state; at most 32 bytes long
    #[arg(long, value_name = "DIR", default_value = "/run/virt-launcher")]
    pub run_dir: PathBuf,
    /// Directory that stands for the image of spec.domain.firmware.kernelBoot.container
    #[arg(long, value_name = "DIR")]
    pub kernel_root: Option<PathBuf>,
    /// File that stands for the image of a containerDisk volume; may be given for each
    #[arg(long = "container-disk", value_name = "VOLUME=FILE")]
    pub container_disks: Vec<ContainerDisk>,
    /// vhost-user socket of a backend that runs already, in place of one that is started
    #[arg(long, value_name = "PATH", conflicts_with = "netd")]
    pub netd_socket: Option<PathBuf>,
    /// The netd to start, a path or a name in PATH
    #[arg(long, value_name = "PROGRAM", default_value = "netd")]
    pub netd: PathBuf,
    /// libvirt to use, e.g. qemu:///session, in place of one that is started
    #[arg(long, value_name = "URI")]
    pub connect: Option<String>,
    /// Attach this terminal to the guest's serial console; ^] detaches
    #[arg(long)]
    pub console: bool,
}

/// A volume and the file that stands for its image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerDisk {
    /// The volume's name.
    pub volume: String,
    /// The file.
    pub file: PathBuf,
}

impl FromStr for ContainerDisk {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((volume, file)) if !volume.is_empty() && !file.is_empty() => {
                Ok(ContainerDisk { volume: volume.into(), file: file.into() })
            }
            _ => Err("VOLUME=FILE is allowed".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn durations_have_units() {
        assert_eq!(duration("240s"), Ok(Duration::from_secs(240)));
        assert_eq!(duration("4m"), Ok(Duration::from_secs(240)));
        assert_eq!(duration("7"), Ok(Duration::from_secs(7)));
        for wrong in ["", "s", "-1s", "1d", "4m0s", "99999999999s"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn container_disks_name_volume_and_file() {
        let disk: ContainerDisk = "root=/images/a=b.qcow2".parse().unwrap();
        assert_eq!((disk.volume.as_str(), disk.file), ("root", PathBuf::from("/images/a=b.qcow2")));
        assert!("root".parse::<ContainerDisk>().is_err());
        assert!("=x".parse::<ContainerDisk>().is_err());
    }
}
