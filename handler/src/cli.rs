//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Parser, Subcommand};
use podvirt_api::names;
use podvirt_daemon::telemetry::Format;

use crate::{device, ports, record};

/// Runs the virtual machines of one node: takes VMIs to their launchers and the launchers' reports back
#[derive(Debug, Parser)]
#[command(name = "virt-handler", version)]
pub struct Cli {
    /// What to do in place of serving the node
    #[command(subcommand)]
    pub command: Option<Command>,
    /// How to serve the node
    #[command(flatten)]
    pub serve: Serve,
}

/// Commands for people.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Steer every port of a pod to its netd, without a cluster
    #[command(subcommand)]
    Ports(ports::Command),
}

/// The daemon's settings.
#[derive(Clone, Debug, clap::Args)]
pub struct Serve {
    /// Name of this node
    #[arg(long, env = "NODE_NAME", default_value = "", hide_default_value = true)]
    pub node_name: String,
    /// Name of this pod, in events
    #[arg(long, env = "POD_NAME")]
    pub pod_name: Option<String>,
    /// Namespace of podvirt
    #[arg(long, env = "POD_NAMESPACE", default_value = names::NAMESPACE)]
    pub namespace: String,
    /// Address of this pod, by which the handlers of other nodes reach it
    #[arg(long, env = "POD_IP", default_value = "", hide_default_value = true)]
    pub migration_address: String,
    /// Where health and metrics are served, without TLS
    #[arg(long, default_value = "[::]:8080")]
    pub listen: SocketAddr,
    /// Where health is told by HTTPS, in upstream's form
    #[arg(long, default_value = "[::]:8443")]
    pub listen_tls: SocketAddr,
    /// Port on which virt-api is served, with TLS both ways
    #[arg(long, default_value_t = 8186)]
    pub console_server_port: u16,
    /// The kubelet's directory of pods
    #[arg(long, default_value = names::path::KUBELET_PODS)]
    pub kubelet_pods_dir: PathBuf,
    /// The kubelet's directory of device plugins
    #[arg(long, default_value = device::DIRECTORY)]
    pub device_plugins_dir: PathBuf,
    /// Where this process keeps what its restart would lose
    #[arg(long, default_value = record::DIRECTORY)]
    pub records_dir: PathBuf,
    /// File that says what QEMU can do on this node, of a container that runs ahead
    #[arg(long, default_value = names::path::CAPABILITIES)]
    pub capabilities: PathBuf,
    /// Form of the log: json or text
    #[arg(long, default_value = "json")]
    pub log_format: Format,
    /// What is logged, in the form of RUST_LOG, which wins; the KubeVirt object says it when neither is given
    #[arg(long)]
    pub log_filter: Option<String>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
        let cli = Cli::try_parse_from(["virt-handler", "--node-name", "n1"]).unwrap();
        assert_eq!((cli.serve.node_name.as_str(), cli.serve.console_server_port), ("n1", 8186));
        let ports = ["virt-handler", "ports", "attach", "--socket", "/s", "--netns", "/n"];
        assert!(Cli::try_parse_from(ports).unwrap().command.is_some());
    }
}
