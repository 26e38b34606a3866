//! The command line as a type. Names, short forms and meanings of flags are upstream's.

use std::path::PathBuf;

use clap::builder::BoolishValueParser;
use clap::{Args, Parser, Subcommand};

pub(crate) use adm::{Adm, AdmWhat, LogVerbosity, SHOW};
pub(crate) use create::{Create, CreateInstancetype, CreatePreference, CreateVm, What};
pub(crate) use credentials::{AddSshKey, Credentials, CredentialsWhat, Key, RemoveSshKey, SetPassword};
pub(crate) use export::VmExport;
pub(crate) use expose::Expose;
pub(crate) use guestfs::Guestfs;
pub(crate) use image_upload::ImageUpload;
pub(crate) use memory_dump::MemoryDump;
pub(crate) use object_graph::ObjectGraph;

mod adm;
mod create;
mod credentials;
mod export;
mod expose;
mod guestfs;
mod image_upload;
mod memory_dump;
mod object_graph;

/// The whole command line.
#[derive(Debug, Parser)]
#[command(name = "virtctl")]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

/// Flags of every command: which cluster, as whom, in which namespace. `virtctl options` lists them.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Global {
    /// Namespace of the object
    #[arg(short, long, global = true, hide = true, value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,
    /// Path of the kubeconfig file; otherwise $KUBECONFIG, ~/.kube/config or the pod's service account
    #[arg(long, global = true, hide = true, value_name = "PATH")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig to use
    #[arg(long, global = true, hide = true, value_name = "NAME")]
    pub(crate) context: Option<String>,
    /// Cluster of the kubeconfig to use
    #[arg(long, global = true, hide = true, value_name = "NAME")]
    pub(crate) cluster: Option<String>,
    /// User of the kubeconfig to use
    #[arg(long, global = true, hide = true, value_name = "NAME")]
    pub(crate) user: Option<String>,
    /// Address of the Kubernetes API server
    #[arg(short, long, global = true, hide = true, value_name = "URL")]
    pub(crate) server: Option<String>,
    /// Bearer token for the API server
    #[arg(long, global = true, hide = true, value_name = "TOKEN")]
    pub(crate) token: Option<String>,
    /// File with the certificate of the authority that signed the API server's
    #[arg(long, global = true, hide = true, value_name = "PATH")]
    pub(crate) certificate_authority: Option<PathBuf>,
    /// File with the client's certificate
    #[arg(long, global = true, hide = true, value_name = "PATH")]
    pub(crate) client_certificate: Option<PathBuf>,
    /// File with the client's private key
    #[arg(long, global = true, hide = true, value_name = "PATH")]
    pub(crate) client_key: Option<PathBuf>,
    /// Do not check the API server's certificate. A machine on the way can then read and change everything
    #[arg(long, global = true, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true",
          default_value = "false", hide_default_value = true, hide_possible_values = true, value_parser = BoolishValueParser::new())]
    pub(crate) insecure_skip_tls_verify: bool,
    /// Name that the API server's certificate must have, if not that of its address
    #[arg(long, global = true, hide = true, value_name = "NAME")]
    pub(crate) tls_server_name: Option<String>,
    /// User to impersonate
    #[arg(long = "as", global = true, hide = true, value_name = "USER")]
    pub(crate) impersonate: Option<String>,
    /// Group to impersonate, may be repeated
    #[arg(long = "as-group", global = true, hide = true, value_name = "GROUP")]
    pub(crate) impersonate_groups: Vec<String>,
    /// UID to impersonate
    #[arg(long = "as-uid", global = true, hide = true, value_name = "UID")]
    pub(crate) impersonate_uid: Option<String>,
    /// How long to wait for one answer of the API server: 10s, 2m; 0 waits for ever. Streams are not limited
    #[arg(
        long,
        global = true,
        hide = true,
        value_name = "DURATION",
        default_value = "0",
        hide_default_value = true
    )]
    pub(crate) request_timeout: String,
    /// What to log to stderr: 3 what is done, 6 each request, 8 everything
    #[arg(
        short = 'v',
        long = "v",
        global = true,
        hide = true,
        value_name = "LEVEL",
        default_value_t = 0,
        hide_default_value = true
    )]
    pub(crate) verbosity: u8,
}

/// The commands, in the order help lists them.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Add a volume to a running virtual machine.
    Addvolume(AddVolume),
    /// Administrate the installation.
    Adm(Adm),
    /// Connect to a console of a virtual machine instance.
    Console(Console),
    /// Create a manifest from flags; nothing is made in the cluster.
    Create(Create),
    /// Change SSH keys and passwords of a virtual machine's users.
    Credentials(Credentials),
    /// Cancel the evacuation of a virtual machine or of a node: what was to leave stays.
    EvacuateCancel(EvacuateCancel),
    /// Print a virtual machine with its instance type and its preference in its template.
    Expand(Expand),
    /// Expose a virtual machine instance, virtual machine or replica set as a new service.
    Expose(Box<Expose>),
    /// Return full list of filesystems available on the guest machine.
    Fslist(Instance),
    /// Start a shell with libguestfs' tools in a pod that has a claim.
    Guestfs(Box<Guestfs>),
    /// Return guest agent info about operating system.
    Guestosinfo(Instance),
    /// Upload a VM image to a DataVolume or PersistentVolumeClaim.
    ImageUpload(Box<ImageUpload>),
    /// Dump the memory of a running virtual machine to a claim.
    MemoryDump(Box<MemoryDump>),
    /// Migrate a virtual machine: it moves to another node while it runs.
    Migrate(Migrate),
    /// Cancel the migration of a virtual machine: it stays where it is.
    MigrateCancel(MigrateCancel),
    /// Print what a virtual machine or virtual machine instance depends on.
    Objectgraph(ObjectGraph),
    /// Pause a virtual machine: its guest stops, its memory stays.
    Pause(Pause),
    /// List the devices of nodes that virtual machines may have.
    PermittedDevices,
    /// Forward local ports to a virtual machine or virtual machine instance.
    PortForward(PortForward),
    /// Remove a volume from a running virtual machine.
    Removevolume(RemoveVolume),
    /// Reset a virtual machine instance: it starts anew at once, and what its guest has not written is lost.
    Reset(Instance),
    /// Restart a virtual machine.
    Restart(Restart),
    /// Copy files from and to a virtual machine instance with the local scp.
    Scp(Scp),
    /// Soft reboot a virtual machine instance: its guest is asked to reboot.
    SoftReboot(Instance),
    /// Open an SSH connection to a virtual machine instance with the local ssh.
    Ssh(Ssh),
    /// Start a virtual machine.
    Start(Start),
    /// Stop a virtual machine.
    Stop(Stop),
    /// Unpause a virtual machine.
    Unpause(Pause),
    /// Return full list of logged in users on the guest machine.
    Userlist(Instance),
    /// Print the client and server version information.
    Version(Version),
    /// Export a VM volume.
    Vmexport(Box<VmExport>),
    /// Open a VNC connection to a virtual machine instance.
    Vnc(Vnc),
    /// List the flags that every command takes.
    #[command(hide = true)]
    Options,
}

/// A flag in the way of upstream's: alone it is true, `--flag=false` takes it back.
#[derive(Debug, Args)]
pub(crate) struct DryRun {
    /// Have the request checked without carrying it out
    #[arg(long = "dry-run", num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false",
          hide_default_value = true, hide_possible_values = true, value_parser = BoolishValueParser::new())]
    pub(crate) dry_run: bool,
}

/// How hard a machine is ended.
#[derive(Debug, Args)]
pub(crate) struct Ending {
    /// End the machine without waiting for its guest; needs --grace-period. May lose data of the guest
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false",
          hide_default_value = true, hide_possible_values = true, value_parser = BoolishValueParser::new())]
    pub(crate) force: bool,
    /// Seconds the guest gets to end; needs --force. Only 0 is carried out at present
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    pub(crate) grace_period: Option<i64>,
}

#[derive(Debug, Args)]
pub(crate) struct Start {
    /// Name of the virtual machine
    #[arg(value_name = "VM")]
    pub(crate) name: String,
    /// Start the machine paused
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false",
          hide_default_value = true, hide_possible_values = true, value_parser = BoolishValueParser::new())]
    pub(crate) paused: bool,
    #[command(flatten)]
    pub(crate) dry_run: DryRun,
}

#[derive(Debug, Args)]
pub(crate) struct Stop {
    /// Name of the virtual machine
    #[arg(value_name = "VM")]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) ending: Ending,
    #[command(flatten)]
    pub(crate) dry_run: DryRun,
}

#[derive(Debug, Args)]
pub(crate) struct Restart {
    /// Name of the virtual machine
    #[arg(value_name = "VM")]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) ending: Ending,
    #[command(flatten)]
    pub(crate) dry_run: DryRun,
}

#[derive(Debug, Args)]
pub(crate) struct Pause {
    /// What is named: vm or vmi (or virtualmachine, virtualmachineinstance, singular or plural)
    #[arg(value_name = "vm|vmi")]
    pub(crate) kind: String,
    /// Name of the virtual machine or virtual machine instance
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) dry_run: DryRun,
}

/// An instance, and no flag.
#[derive(Debug, Args)]
pub(crate) struct Instance {
    /// Name of the virtual machine instance
    #[arg(value_name = "VMI")]
    pub(crate) name: String,
}

#[derive(Debug, Args)]
pub(crate) struct Expand {
    /// Name of the virtual machine
    #[arg(long, value_name = "VM", required_unless_present = "file", conflicts_with = "file")]
    pub(crate) vm: Option<String>,
    /// File with the manifest of a virtual machine, YAML or JSON; - is the standard input
    #[arg(short, long, value_name = "PATH")]
    pub(crate) file: Option<PathBuf>,
    /// How to print it: yaml or json
    #[arg(short, long, value_name = "FORMAT", default_value = "yaml", hide_possible_values = true)]
    pub(crate) output: Format,
}

/// How an object is printed.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum Format {
    Yaml,
    Json,
}

/// The machine whose volumes change.
#[derive(Debug, Args)]
pub(crate) struct OfVolume {
    /// Name of the virtual machine, or of a virtual machine instance that belongs to none
    #[arg(value_name = "VM")]
    pub(crate) name: String,
    /// Has no effect any more: what is asked of a virtual machine stays in its specification
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false",
          hide_default_value = true, hide_possible_values = true, value_parser = BoolishValueParser::new())]
    pub(crate) persist: bool,
    #[command(flatten)]
    pub(crate) dry_run: DryRun,
}

/// What a plugged disk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum DiskType {
    Disk,
    Lun,
}

#[derive(Debug, Args)]
pub(crate) struct AddVolume {
    #[command(flatten)]
    pub(crate) common: OfVolume,
    /// Name of the DataVolume or claim, which the volume gets
    #[arg(long, value_name = "NAME")]
    pub(crate) volume_name: String,
    /// Serial number of the disk; the volume's name when not given
    #[arg(long)]
    pub(crate) serial: Option<String>,
    /// Cache mode of the disk: none, writethrough or writeback
    #[arg(long, value_name = "MODE")]
    pub(crate) cache: Option<String>,
    /// What the guest gets
    #[arg(long, value_name = "TYPE", default_value = "disk")]
    pub(crate) disk_type: DiskType,
    /// Bus of the disk: scsi or virtio
    #[arg(long, default_value = "scsi")]
    pub(crate) bus: String,
}

#[derive(Debug, Args)]
pub(crate) struct RemoveVolume {
    #[command(flatten)]
    pub(crate) common: OfVolume,
    /// Name of the volume, or of its DataVolume or claim
    #[arg(long, value_name = "NAME")]
    pub(crate) volume_name: String,
}

#[derive(Debug, Args)]
pub(crate) struct Migrate {
    /// Name of the virtual machine
    #[arg(value_name = "VM")]
    pub(crate) name: String,
    /// Label that the new node must have besides those that the machine asks for; may be repeated
    #[arg(long = "addedNodeSelector", value_name = "KEY=VALUE", value_delimiter = ',')]
    pub(crate) added_node_selector: Vec<String>,
    #[command(flatten)]
    pub(crate) dry_run: DryRun,
}

#[derive(Debug, Args)]
pub(crate) struct MigrateCancel {
    /// Name of the virtual machine
    #[arg(value_name = "VM")]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) dry_run: DryRun,
}

#[derive(Debug, Args)]
pub(crate) struct EvacuateCancel {
    /// What is named: vm, vmi or node
    #[arg(value_name = "vm|vmi|node")]
    pub(crate) kind: String,
    /// Name of the virtual machine, virtual machine instance or node
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) dry_run: DryRun,
}

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
    /// Fail rather than take over the display from who is connected to it
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

#[derive(Debug, Args)]
pub(crate) struct Version {
    /// Print the client's version only; asks no server
    #[arg(short, long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false",
          hide_default_value = true, hide_possible_values = true, value_parser = BoolishValueParser::new())]
    pub(crate) client: bool,
}

impl Global {
    /// The flags that lead another virtctl to the same cluster as the same user, for a command line that is handed to
    /// another program. The namespace is not among them: targets name it.
    pub(crate) fn connection_flags(&self) -> Vec<String> {
        let mut flags = Vec::new();
        let mut text = |flag: &str, value: &Option<String>| {
            flags.extend(value.iter().map(|value| format!("--{flag}={value}")));
        };
        text("context", &self.context);
        text("cluster", &self.cluster);
        text("user", &self.user);
        text("server", &self.server);
        text("token", &self.token);
        text("tls-server-name", &self.tls_server_name);
        text("as", &self.impersonate);
        text("as-uid", &self.impersonate_uid);
        for path in [
            ("kubeconfig", &self.kubeconfig),
            ("certificate-authority", &self.certificate_authority),
            ("client-certificate", &self.client_certificate),
            ("client-key", &self.client_key),
        ] {
            flags.extend(path.1.iter().map(|value| format!("--{}={}", path.0, value.display())));
        }
        flags.extend(self.impersonate_groups.iter().map(|group| format!("--as-group={group}")));
        if self.insecure_skip_tls_verify {
            flags.push("--insecure-skip-tls-verify".into());
        }
        if self.verbosity > 0 {
            flags.push(format!("--v={}", self.verbosity));
        }
        flags
    }
}
