//! podvirt-cni: called by a container runtime, with CNI_COMMAND in its environment, the plugin; else `install`, `collect`
//! and `dynamic`.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig};
use podvirt_cni::args::{Call, Command};
use podvirt_cni::cluster::Cluster;
use podvirt_cni::error::{Code, Error};
use podvirt_cni::plugin::Plugin;
use podvirt_cni::{collect, config, dynamic, install, result};
use podvirt_daemon::http::{self, Readiness};
use podvirt_daemon::{client, crypto, shutdown, telemetry};
use prometheus_client::registry::Registry;

const NAME: &str = "podvirt-cni";
/// Names another directory than [`install::DIRECTORY`].
const DIRECTORY: &str = "PODVIRT_CNI_DIR";

/// Addresses that belong to virtual machines: a CNI plugin.
#[derive(Debug, Parser)]
#[command(name = NAME, version)]
struct Flags {
    /// How logs are written: json or text
    #[arg(long, default_value = "json", global = true)]
    log_format: telemetry::Format,
    /// What is logged, in the form of RUST_LOG
    #[arg(long, default_value = "info", global = true)]
    log_filter: String,
    #[command(subcommand)]
    mode: Mode,
}

#[derive(Debug, Subcommand)]
enum Mode {
    /// Put the plugin onto the node and keep its credentials fresh, until SIGTERM
    Install(install::Options),
    /// Free the addresses of virtual machines that are gone, until SIGTERM
    Collect {
        /// Address of /healthz, /readyz and /metrics
        #[arg(long, default_value = "[::]:8080")]
        listen: SocketAddr,
        /// Look at everything once, and end
        #[arg(long, conflicts_with = "listen")]
        once: bool,
    },
    /// Attach pods of the node that run to networks of Multus, and detach them, until SIGTERM
    Dynamic(dynamic::Options),
}

fn main() -> ExitCode {
    if std::env::var_os("CNI_COMMAND").is_some() {
        return plugin();
    }
    match daemon() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{NAME}: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn plugin() -> ExitCode {
    let mut config = Vec::new();
    let read = std::io::stdin().read_to_end(&mut config);
    let version = config::version_of(&config);
    let answer = match read {
        Ok(_) => answer(&config),
        Err(e) => Err(Error::because(Code::Io, "standard input cannot be read", &e)),
    };
    let (text, code) = match answer {
        Ok(None) => return ExitCode::SUCCESS,
        Ok(Some(value)) => (value.to_string(), ExitCode::SUCCESS),
        Err(error) => (error.json(&version), ExitCode::FAILURE),
    };
    match writeln!(std::io::stdout(), "{text}") {
        Ok(()) => code,
        Err(_) => ExitCode::FAILURE,
    }
}

fn answer(config: &[u8]) -> Result<Option<serde_json::Value>, Error> {
    let call = Call::read(|name| std::env::var(name).ok())?;
    // The one command that needs no node.
    if call.command == Command::Version {
        return Ok(Some(result::versions()));
    }
    crypto::install();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| Error::because(Code::Io, "a runtime cannot be started", &e))?;
    runtime.block_on(async {
        let plugin = on_node().await.map_err(|error| {
            let code = if call.command == Command::Status { Code::Unavailable } else { Code::TryAgain };
            Error::because(code, "podvirt-cni is not installed on this node", error.as_ref())
        })?;
        Box::pin(plugin.run(&call, config)).await
    })
}

/// The plugin as the installer has set it up.
async fn on_node() -> Result<Plugin<Cluster>> {
    let directory =
        std::env::var_os(DIRECTORY).map_or_else(|| Path::new(install::DIRECTORY).to_owned(), PathBuf::from);
    let path = directory.join("node");
    let node = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let path = directory.join("kubeconfig");
    let kubeconfig = Kubeconfig::read_from(&path).with_context(|| format!("read {}", path.display()))?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .with_context(|| format!("use {}", path.display()))?;
    // The environment is the container runtime's: its proxy is for images.
    config.proxy_url = None;
    let client = client::with_answers_as_they_come(config).context("make a client")?;
    Ok(Plugin { api: Cluster::new(client), node: node.trim().to_owned() })
}

fn daemon() -> Result<()> {
    let flags = Flags::parse();
    telemetry::init(NAME, flags.log_format, Some(&flags.log_filter))?;
    crypto::install();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let shutdown = shutdown::signal().context("take over signals")?;
        match flags.mode {
            Mode::Install(options) => install::run(&options, &shutdown).await,
            Mode::Collect { once: true, .. } => {
                let client = client::connect().await.context("find the API server")?;
                let (cluster, metrics) = (Cluster::new(client), collect::Metrics::default());
                collect::once(&cluster, &metrics).await.context("collect leases")
            }
            Mode::Collect { listen, once: false } => {
                let client = client::connect().await.context("find the API server")?;
                let mut registry = Registry::default();
                let metrics = collect::Metrics::new(&mut registry);
                let serving = http::serve(listen, Arc::new(registry), Readiness::new(), shutdown.clone());
                let cluster = Cluster::new(client);
                let collecting = async {
                    collect::run(&cluster, &metrics, &shutdown).await;
                    Ok(())
                };
                let serving = async { serving.await.context("serve health and metrics") };
                tokio::try_join!(serving, collecting).map(|_| ())
            }
            Mode::Dynamic(options) => {
                let client = client::connect().await.context("find the API server")?;
                let readiness = Readiness::new();
                let work = async {
                    Box::pin(dynamic::run(&options, client, &readiness, &shutdown)).await;
                    Ok(())
                };
                let registry = Arc::new(Registry::default());
                let serving = http::serve(options.listen, registry, readiness.clone(), shutdown.clone());
                let serving = async { serving.await.context("serve health and metrics") };
                tokio::try_join!(serving, work).map(|_| ())
            }
        }
    })
}
