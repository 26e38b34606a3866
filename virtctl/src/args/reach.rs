//! Ways into a machine: its console, its screen, its ports, SSH.

use std::path::PathBuf;

use clap::builder::BoolishValueParser;
use clap::{Args, Subcommand};

#[derive(Debug, Args)]
pub(crate) struct Console {
    /// Name of the virtual machine instance
    #[arg(value_name = "VMI")]
    pub(crate) name: String,
    /// Minutes to wait for the virtual machine instance to be ready; 0 does not wait
    #[arg(long, value_name = "MINUTES", default_value_t = 5)]
    pub(crate) timeout: u32,
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Vnc {
    /// Name of the virtual machine instance
    #[arg(value_name = "VMI", required = true)]
    pub(crate) name: Option<String>,
    #[command(subcommand)]
    pub(crate) instead: Option<VncCommand>,
    /// Start no viewer: print the port as JSON and wait for one viewer to connect
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false",
          hide_default_value = true, hide_possible_values = true, value_parser = BoolishValueParser::new())]
    pub(crate) proxy_only: bool,
    /// Local port to listen on; 0 takes a free one
    #[arg(long, default_value_t = 0)]
    pub(crate) port: u16,
    /// Local address to listen on, with --proxy-only; 0.0.0.0 lets every machine of the network in
    #[arg(long, default_value = "127.0.0.1")]
    pub(crate) address: String,
    /// Fail rather than take over the display from a client that is connected to it
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false",
          hide_default_value = true, hide_possible_values = true, value_parser = BoolishValueParser::new())]
    pub(crate) preserve_session: bool,
    /// Kind of the viewer --vnc-path names: tiger, remote-viewer, chicken, real
    #[arg(long, value_name = "TYPE", requires = "vnc_path")]
    pub(crate) vnc_type: Option<String>,
    /// Path of the viewer to start
    #[arg(long, value_name = "PATH", requires = "vnc_type")]
    pub(crate) vnc_path: Option<PathBuf>,
}

/// What is done with a display other than to show it.
#[derive(Debug, Subcommand)]
pub(crate) enum VncCommand {
    /// Take a picture of the display.
    Screenshot(Screenshot),
}

#[derive(Debug, Args)]
pub(crate) struct Screenshot {
    /// Name of the virtual machine instance
    #[arg(value_name = "VMI")]
    pub(crate) name: String,
    /// File to write, in the format PNG; - is the standard output
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Move the pointer before, to wake a screen saver. Taken for the sake of scripts, and not carried out
    #[arg(short, long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false",
          hide_default_value = true, hide_possible_values = true, value_parser = BoolishValueParser::new())]
    pub(crate) move_cursor: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PortForward {
    /// What to forward to: vmi/NAME or vm/NAME, and /NAMESPACE
    #[arg(value_name = "TYPE/NAME[/NAMESPACE]")]
    pub(crate) target: String,
    /// Ports: LOCAL or LOCAL:TARGET, with tcp/ or udp/ before; local port 0 takes a free one
    #[arg(value_name = "[PROTOCOL/]LOCAL[:TARGET]", required = true)]
    pub(crate) ports: Vec<String>,
    /// Forward the standard input and output to the one port given; what ssh calls as its ProxyCommand
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false",
          hide_default_value = true, hide_possible_values = true, value_parser = BoolishValueParser::new())]
    pub(crate) stdio: bool,
    /// Local address to listen on; 0.0.0.0 lets every machine of the network in
    #[arg(long, default_value = "127.0.0.1")]
    pub(crate) address: String,
}

/// Flags that ssh and scp share.
#[derive(Debug, Args)]
pub(crate) struct SshFlags {
    /// User in the guest; otherwise $USER
    #[arg(short = 'l', long, value_name = "USER")]
    pub(crate) username: Option<String>,
    /// Private key; otherwise what ssh finds, and the agent
    #[arg(short, long, value_name = "PATH")]
    pub(crate) identity_file: Option<PathBuf>,
    /// File with the guests' host keys; otherwise ssh's own. Guests are known as vmi.NAME.NAMESPACE
    #[arg(long, value_name = "PATH")]
    pub(crate) known_hosts: Option<PathBuf>,
    /// Port of the guest's SSH server
    #[arg(short, long, default_value_t = 22)]
    pub(crate) port: u16,
    /// Option for the local ssh, for example -t "-o StrictHostKeyChecking=no"; may be repeated
    #[arg(short = 't', long, value_name = "OPTION", allow_hyphen_values = true)]
    pub(crate) local_ssh_opts: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Ssh {
    /// What to connect to: vmi/NAME or vm/NAME, with USER@ before and /NAMESPACE behind
    #[arg(value_name = "[USER@]TYPE/NAME[/NAMESPACE]")]
    pub(crate) target: String,
    #[command(flatten)]
    pub(crate) flags: SshFlags,
    /// Command to run in the guest instead of a shell
    #[arg(short, long, value_name = "COMMAND", allow_hyphen_values = true)]
    pub(crate) command: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Scp {
    /// File to copy: a local path, or USER@TYPE/NAME/NAMESPACE:PATH, where USER@ and /NAMESPACE may be left out
    #[arg(value_name = "SOURCE")]
    pub(crate) source: String,
    /// Where to copy it: the same
    #[arg(value_name = "DESTINATION")]
    pub(crate) destination: String,
    #[command(flatten)]
    pub(crate) flags: SshFlags,
    /// Copy directories with all they hold
    #[arg(short, long)]
    pub(crate) recursive: bool,
    /// Keep times and modes of the files
    #[arg(long)]
    pub(crate) preserve: bool,
}
