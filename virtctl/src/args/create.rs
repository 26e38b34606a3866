//! `create`: flags that become a manifest.

use std::path::PathBuf;

use clap::builder::BoolishValueParser;
use clap::{Args, Subcommand};

/// What a manifest is made of.
#[derive(Debug, Args)]
pub(crate) struct Create {
    #[command(subcommand)]
    pub(crate) what: What,
}

#[derive(Debug, Subcommand)]
pub(crate) enum What {
    /// Create a VirtualMachineInstancetype or VirtualMachineClusterInstancetype manifest.
    Instancetype(CreateInstancetype),
    /// Create a VirtualMachinePreference or VirtualMachineClusterPreference manifest.
    Preference(CreatePreference),
    /// Create a VirtualMachine manifest.
    Vm(Box<CreateVm>),
}

/// Flags of `create instancetype`.
#[derive(Debug, Args)]
pub(crate) struct CreateInstancetype {
    /// Name of the instance type; a random one when not given
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Number of processors of the guest
    #[arg(long, value_name = "NUMBER")]
    pub(crate) cpu: u32,
    /// Memory of the guest
    #[arg(long, value_name = "QUANTITY")]
    pub(crate) memory: String,
    /// A vGPU of the node: name:NAME,devicename:RESOURCE; may be repeated
    #[arg(long, value_name = "PARAMETERS")]
    pub(crate) gpu: Vec<String>,
    /// A device of the node: name:NAME,devicename:RESOURCE; may be repeated
    #[arg(long, value_name = "PARAMETERS")]
    pub(crate) hostdevice: Vec<String>,
    /// Threads of disks: auto or shared
    #[arg(long, value_name = "POLICY")]
    pub(crate) iothreadspolicy: Option<String>,
    /// Whether it is of a namespace, as with --namespace, not of the cluster
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false",
          hide_default_value = true, hide_possible_values = true, value_parser = BoolishValueParser::new())]
    pub(crate) namespaced: bool,
}

/// Flags of `create preference`.
#[derive(Debug, Args)]
pub(crate) struct CreatePreference {
    /// Name of the preference; a random one when not given
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// How processors are shown to the guest: sockets, cores, threads, spread or any
    #[arg(long, value_name = "TOPOLOGY")]
    pub(crate) cpu_topology: Option<String>,
    /// Machine type
    #[arg(long, value_name = "TYPE")]
    pub(crate) machine_type: Option<String>,
    /// Storage class of volumes
    #[arg(long, value_name = "NAME")]
    pub(crate) volume_storage_class: Option<String>,
    /// Whether it is of a namespace, as with --namespace, not of the cluster
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false",
          hide_default_value = true, hide_possible_values = true, value_parser = BoolishValueParser::new())]
    pub(crate) namespaced: bool,
}

/// Flags of `create vm`. Those that are `None` were not given, which matters: some take effect only where others were not.
#[derive(Debug, Default, Args)]
pub(crate) struct CreateVm {
    /// Name of the machine; a random one when not given
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Run strategy: Always, Manual, Halted, Once or RerunOnFailure; Always when not given
    #[arg(long, value_name = "STRATEGY")]
    pub(crate) run_strategy: Option<String>,
    /// Seconds that the guest has to shut down
    #[arg(long, value_name = "SECONDS", default_value_t = 180, allow_negative_numbers = true)]
    pub(crate) termination_grace_period: i64,

    /// Memory of the guest; 512Mi when not given
    #[arg(long, value_name = "QUANTITY", conflicts_with_all = ["instancetype", "infer_instancetype", "infer_instancetype_from"])]
    pub(crate) memory: Option<String>,
    /// Instance type: NAME, virtualmachineinstancetype/NAME or virtualmachineclusterinstancetype/NAME
    #[arg(long, value_name = "[KIND/]NAME", conflicts_with_all = ["infer_instancetype", "infer_instancetype_from"])]
    pub(crate) instancetype: Option<String>,
    /// Whether the instance type is that which the volume that is booted first says
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "true|false",
          hide_possible_values = true, value_parser = BoolishValueParser::new(), conflicts_with = "infer_instancetype_from")]
    pub(crate) infer_instancetype: Option<bool>,
    /// Volume that says the instance type
    #[arg(long, value_name = "VOLUME")]
    pub(crate) infer_instancetype_from: Option<String>,

    /// Preference: NAME, virtualmachinepreference/NAME or virtualmachineclusterpreference/NAME
    #[arg(long, value_name = "[KIND/]NAME", conflicts_with_all = ["infer_preference", "infer_preference_from"])]
    pub(crate) preference: Option<String>,
    /// Whether the preference is that which the volume that is booted first says
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "true|false",
          hide_possible_values = true, value_parser = BoolishValueParser::new(), conflicts_with = "infer_preference_from")]
    pub(crate) infer_preference: Option<bool>,
    /// Volume that says the preference
    #[arg(long, value_name = "VOLUME")]
    pub(crate) infer_preference_from: Option<String>,

    /// A container disk: src:IMAGE, and name:NAME, bootorder:NUMBER; may be repeated
    #[arg(long, value_name = "PARAMETERS")]
    pub(crate) volume_containerdisk: Vec<String>,
    /// A claim: src:NAME, and name:NAME, bootorder:NUMBER; may be repeated
    #[arg(long, value_name = "PARAMETERS")]
    pub(crate) volume_pvc: Vec<String>,
    /// A DataVolume, whose volume CDI fills: type:blank, type:ds, type:pvc, type:snapshot, type:gcs, type:http, type:imageio, type:registry,
    /// type:s3 or type:vddk, and size:QUANTITY, name:NAME, bootorder:NUMBER and what the source needs, such as src:[NAMESPACE/]NAME or
    /// url:URL; may be repeated
    #[arg(long, value_name = "PARAMETERS")]
    pub(crate) volume_import: Vec<String>,
    /// The same as --volume-import=type:ds,...
    #[arg(long, value_name = "PARAMETERS", hide = true)]
    pub(crate) volume_datasource: Vec<String>,
    /// The same as --volume-import=type:pvc,...
    #[arg(long, value_name = "PARAMETERS", hide = true)]
    pub(crate) volume_clone_pvc: Vec<String>,
    /// The same as --volume-import=type:blank,...
    #[arg(long, value_name = "PARAMETERS", hide = true)]
    pub(crate) volume_blank: Vec<String>,
    /// Answers of Windows' set-up: src:NAME, and type:configmap or type:secret
    #[arg(long, value_name = "PARAMETERS")]
    pub(crate) volume_sysprep: Option<String>,

    /// User in the guest, for cloud-init
    #[arg(long, value_name = "USER")]
    pub(crate) user: Option<String>,
    /// File with the user's password, which the manifest has in clear text; - is the standard input
    #[arg(long, value_name = "PATH")]
    pub(crate) password_file: Option<PathBuf>,
    /// Public SSH keys of the user, for cloud-init
    #[arg(long, value_name = "KEY", value_delimiter = ',')]
    pub(crate) ssh_key: Vec<String>,
    /// Whether cloud-init lets the guest's agent manage SSH keys
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "true|false",
          hide_possible_values = true, value_parser = BoolishValueParser::new())]
    pub(crate) ga_manage_ssh: Option<bool>,
    /// Credentials from a Secret: src:NAME, and type:ssh or type:password, method:ga, method:nocloud or method:configdrive,
    /// user:USER; may be repeated
    #[arg(long, value_name = "PARAMETERS")]
    pub(crate) access_cred: Vec<String>,

    /// Kind of cloud-init's disk: nocloud, configdrive or none; nocloud when not given
    #[arg(long, value_name = "KIND")]
    pub(crate) cloud_init: Option<String>,
    /// cloud-init's user data, in base64
    #[arg(long, value_name = "BASE64", conflicts_with_all = ["user", "password_file", "ssh_key", "ga_manage_ssh"])]
    pub(crate) cloud_init_user_data: Option<String>,
    /// cloud-init's network data, in base64
    #[arg(long, value_name = "BASE64")]
    pub(crate) cloud_init_network_data: Option<String>,
}
