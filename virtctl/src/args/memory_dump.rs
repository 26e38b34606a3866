//! `memory-dump`: the memory of running machines.

use std::path::PathBuf;

use clap::Args;
use clap::builder::BoolishValueParser;

#[derive(Debug, Default, Args)]
pub(crate) struct MemoryDump {
    /// What to do: get, download or remove
    #[arg(value_name = "get|download|remove")]
    pub(crate) function: String,
    /// Name of the virtual machine
    #[arg(value_name = "VM")]
    pub(crate) name: String,
    /// Claim that the dump is written to; that of the last dump when not given
    #[arg(long, value_name = "NAME")]
    pub(crate) claim_name: Option<String>,
    /// Make the claim, as large as the dump needs
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false",
          hide_default_value = true, hide_possible_values = true, value_parser = BoolishValueParser::new())]
    pub(crate) create_claim: bool,
    /// Storage class of a claim that is made
    #[arg(long, value_name = "CLASS")]
    pub(crate) storage_class: Option<String>,
    /// Access mode of a claim that is made: ReadWriteOnce or ReadWriteMany
    #[arg(long, value_name = "MODE")]
    pub(crate) access_mode: Option<String>,
    /// File that the dump is downloaded to, once it is complete
    #[arg(long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Form of the download: gzip (a compressed archive, the default) or raw (an archive)
    #[arg(long, value_name = "FORMAT")]
    pub(crate) format: Option<String>,
    /// Reach the exporter by way of the API server, where no Ingress leads to it
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false",
          hide_default_value = true, hide_possible_values = true, value_parser = BoolishValueParser::new())]
    pub(crate) port_forward: bool,
    /// Taken for the sake of scripts, and not needed: --port-forward opens no local port
    #[arg(long, value_name = "PORT", default_value = "0", hide_default_value = true)]
    pub(crate) local_port: String,
}
