//! `objectgraph`: what a machine depends on.

use clap::Args;
use clap::builder::BoolishValueParser;

use super::Format;

#[derive(Debug, Args)]
pub(crate) struct ObjectGraph {
    /// Name of the virtual machine, or of the virtual machine instance with --vmi
    #[arg(value_name = "VM|VMI")]
    pub(crate) name: String,
    /// Print the graph of the virtual machine instance instead of the virtual machine's
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false",
          hide_default_value = true, hide_possible_values = true, value_parser = BoolishValueParser::new())]
    pub(crate) vmi: bool,
    /// Leave out what the machine could be without
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false",
          hide_default_value = true, hide_possible_values = true, value_parser = BoolishValueParser::new())]
    pub(crate) exclude_optional: bool,
    /// Labels of the nodes that are printed; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_delimiter = ',')]
    pub(crate) selector: Vec<String>,
    /// How to print it: json or yaml
    #[arg(short, long, value_name = "FORMAT", default_value = "json", hide_possible_values = true)]
    pub(crate) output: Format,
}
