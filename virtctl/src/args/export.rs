//! `vmexport`: exports, and downloads of them.

use std::path::PathBuf;

use clap::Args;
use clap::builder::BoolishValueParser;

#[derive(Debug, Default, Args)]
pub(crate) struct VmExport {
    /// What to do: create, download or delete
    #[arg(value_name = "create|download|delete")]
    pub(crate) function: String,
    /// Name of the VirtualMachineExport
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Sets VirtualMachine as vmexport kind and specifies the vm name.
    #[arg(long, value_name = "VM", conflicts_with_all = ["snapshot", "pvc"])]
    pub(crate) vm: Option<String>,
    /// Sets VirtualMachineSnapshot as vmexport kind and specifies the snapshot name.
    #[arg(long, value_name = "SNAPSHOT", conflicts_with = "pvc")]
    pub(crate) snapshot: Option<String>,
    /// Sets PersistentVolumeClaim as vmexport kind and specifies the PVC name.
    #[arg(long, value_name = "PVC")]
    pub(crate) pvc: Option<String>,
    /// Specifies the output path of the volume to be downloaded; - is the standard output.
    #[arg(long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Specifies the volume to be downloaded.
    #[arg(long, value_name = "VOLUME")]
    pub(crate) volume: Option<String>,
    /// Used to specify the format of the downloaded image: gzip (default) or raw.
    #[arg(long, value_name = "FORMAT")]
    pub(crate) format: Option<String>,
    /// Do not check the server's certificate. A machine on the way can then read and change everything
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false",
          hide_default_value = true, hide_possible_values = true, value_parser = BoolishValueParser::new())]
    pub(crate) insecure: bool,
    /// Retain the vmexport object after the download, also where it was created for it.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false",
          hide_default_value = true, hide_possible_values = true, value_parser = BoolishValueParser::new(),
          conflicts_with = "delete_vme")]
    pub(crate) keep_vme: bool,
    /// Delete the vmexport object after the download, also where it was there before.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false",
          hide_default_value = true, hide_possible_values = true, value_parser = BoolishValueParser::new())]
    pub(crate) delete_vme: bool,
    /// Time after its creation at which the export is deleted; two hours when not given.
    #[arg(long, value_name = "DURATION")]
    pub(crate) ttl: Option<String>,
    /// Manifest output format: yaml (default) or json.
    #[arg(long, value_name = "FORMAT")]
    pub(crate) manifest_output_format: Option<String>,
    /// Address of the exporter's Service, to take instead of the external link: a NodePort, for instance.
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(crate) service_url: Option<String>,
    /// Reach the exporter by way of the API server, where no Ingress leads to it.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false",
          hide_default_value = true, hide_possible_values = true, value_parser = BoolishValueParser::new())]
    pub(crate) port_forward: bool,
    /// Taken for the sake of scripts, and not needed: --port-forward opens no local port.
    #[arg(long, value_name = "PORT", default_value = "0", hide_default_value = true)]
    pub(crate) local_port: String,
    /// How often to try again when the server does not answer well, or the connection breaks.
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 0,
        hide_default_value = true,
        allow_negative_numbers = true
    )]
    pub(crate) retry: i64,
    /// With --manifest, print the Secret with which CDI imports the volumes, too.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false",
          hide_default_value = true, hide_possible_values = true, value_parser = BoolishValueParser::new())]
    pub(crate) include_secret: bool,
    /// Instead of downloading a volume, retrieve the VM manifest.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false",
          hide_default_value = true, hide_possible_values = true, value_parser = BoolishValueParser::new())]
    pub(crate) manifest: bool,
    /// Labels of the export and of its pod; may be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_delimiter = ',')]
    pub(crate) labels: Vec<String>,
    /// Annotations of the export and of its pod; may be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_delimiter = ',')]
    pub(crate) annotations: Vec<String>,
    /// How long to wait for the export to be ready; two minutes when not given.
    #[arg(long, value_name = "DURATION")]
    pub(crate) readiness_timeout: Option<String>,
}
