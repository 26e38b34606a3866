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
pub(crate) use reach::{Console, PortForward, Scp, Screenshot, Ssh, SshFlags, Vnc, VncCommand};
pub(crate) use volumes::{AddVolume, DiskType, RemoveVolume};

mod adm;
mod create;
mod credentials;
mod export;
mod expose;
mod guestfs;
mod image_upload;
mod memory_dump;
mod object_graph;
mod reach;
mod volumes;

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
