//! `adm`: flags of what an administrator does.

use clap::builder::BoolishValueParser;
use clap::{Args, Subcommand};

/// What an administrator does.
#[derive(Debug, Args)]
pub(crate) struct Adm {
    #[command(subcommand)]
    pub(crate) what: AdmWhat,
}

#[derive(Debug, Subcommand)]
pub(crate) enum AdmWhat {
    /// Show, set or reset the verbosity of the components' logs, 0 to 9. A flag without a value shows.
    LogVerbosity(LogVerbosity),
}

/// What is asked for where a flag has no value: that the verbosity be shown.
pub(crate) const SHOW: u64 = 10;

/// Flags of `adm log-verbosity`.
#[derive(Debug, Default, Args)]
pub(crate) struct LogVerbosity {
    /// Show or set that of virt-api
    #[arg(long, value_name = "0-9", num_args = 0..=1, require_equals = true, default_missing_value = "10", overrides_with = "virt_api")]
    pub(crate) virt_api: Option<u64>,
    /// Show or set that of virt-controller
    #[arg(long, value_name = "0-9", num_args = 0..=1, require_equals = true, default_missing_value = "10", overrides_with = "virt_controller")]
    pub(crate) virt_controller: Option<u64>,
    /// Show or set that of virt-handler
    #[arg(long, value_name = "0-9", num_args = 0..=1, require_equals = true, default_missing_value = "10", overrides_with = "virt_handler")]
    pub(crate) virt_handler: Option<u64>,
    /// Show or set that of virt-launcher
    #[arg(long, value_name = "0-9", num_args = 0..=1, require_equals = true, default_missing_value = "10", overrides_with = "virt_launcher")]
    pub(crate) virt_launcher: Option<u64>,
    /// Show or set that of virt-operator
    #[arg(long, value_name = "0-9", num_args = 0..=1, require_equals = true, default_missing_value = "10", overrides_with = "virt_operator")]
    pub(crate) virt_operator: Option<u64>,
    /// Show or set that of all components
    #[arg(long, value_name = "0-9", num_args = 0..=1, require_equals = true, default_missing_value = "10", overrides_with = "all")]
    pub(crate) all: Option<u64>,
    /// Take back what was set; flags beside it set anew
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false",
          hide_default_value = true, hide_possible_values = true, value_parser = BoolishValueParser::new(), conflicts_with = "all")]
    pub(crate) reset: bool,
}
