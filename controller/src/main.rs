//! virt-controller: runs the controllers in the replica that leads; health, metrics and the configuration in each.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;
use kube::Client;
use podvirt_api::names;
use podvirt_api::verbosity::Component;
use podvirt_daemon::events::Recorder;
use podvirt_daemon::health::{self, Health};
use podvirt_daemon::http::{self, Readiness};
use podvirt_daemon::leader::{self, LeaseConfig};
use podvirt_daemon::settings::Settings;
use podvirt_daemon::shutdown::{self, Shutdown};
use podvirt_daemon::{client, crypto, pki, telemetry};
use prometheus_client::registry::Registry;
use virt_controller::metrics::Metrics;
use virt_controller::work::Parts;
use virt_controller::{node, settings, work};

/// Name of the daemon, of its Lease and of the source of its events.
const NAME: &str = "virt-controller";
/// Names the launcher's image where the flag does not.
const LAUNCHER_IMAGE: &str = "LAUNCHER_IMAGE";
/// Names the image of exporter pods where the flag does not.
const EXPORTER_IMAGE: &str = "EXPORTER_IMAGE";
/// How often an API server that does not answer is asked.
const API_RETRY: Duration = Duration::from_secs(2);

/// Keeps podvirt's virtual machines as their objects say.
#[derive(Debug, Parser)]
#[command(name = NAME, version)]
struct Flags {
    /// Namespace of podvirt itself: of the KubeVirt object and of the Lease.
    #[arg(long, default_value = names::NAMESPACE)]
    namespace: String,
    /// Image of virt-launcher; the variable LAUNCHER_IMAGE when not given.
    #[arg(long)]
    launcher_image: Option<String>,
    /// Image of virt-exportserver; the variable EXPORTER_IMAGE when not given.
    #[arg(long)]
    exporter_image: Option<String>,
    /// Seconds without a heartbeat after which a node gets no new machines.
    #[arg(long, default_value_t = 300)]
    node_heartbeat_limit: u64,
    /// Address of /healthz, /readyz and /metrics.
    #[arg(long, default_value = "[::]:8080")]
    listen: SocketAddr,
    /// Address of /healthz by HTTPS, in upstream's form.
    #[arg(long, default_value = "[::]:8443")]
    listen_tls: SocketAddr,
    /// How logs are written: json or text.
    #[arg(long, default_value = "json")]
    log_format: telemetry::Format,
    /// What is logged, in the form of RUST_LOG; the KubeVirt object says it when not given.
    #[arg(long)]
    log_filter: Option<String>,
}

#[tokio::main]
async fn main() -> Result<()> {
    let flags = Flags::parse();
    let logs = telemetry::init(NAME, flags.log_format, flags.log_filter.as_deref())?;
    crypto::install();
    let launcher_image = image(flags.launcher_image, LAUNCHER_IMAGE, "launcher")?;
    let exporter_image = image(flags.exporter_image, EXPORTER_IMAGE, "exporter")?;
    let replica = leader::replica(NAME);
    let client = client::connect().await.context("find the API server")?;
    let shutdown = shutdown::signal().context("take over signals")?;

    let mut registry = Registry::default();
    let metrics = Metrics::new(&mut registry);
    let mut lease = LeaseConfig::new(&flags.namespace, NAME, &replica);
    lease.leading = metrics.leading.clone();
    let readiness = Readiness::new();
    let reached = readiness.gate("API server");

    let serving = http::serve(flags.listen, Arc::new(registry), readiness, shutdown.clone());
    let recorder = Recorder::new(client.clone(), NAME, Some(replica));
    let health = Health::default();
    // Its certificate is virt-api's to make.
    let (own, _) = Settings::new(Component::Controller, logs);
    let (cluster, following) = settings::follow(client.clone(), &flags.namespace, own, health.clone());
    let telling = shutdown.or(tell(client.clone(), &flags.namespace, flags.listen_tls, health, &shutdown));
    let leading = async {
        if shutdown.or(reachable(&client)).await.is_none() {
            return Ok(());
        }
        // A replica that waits for the lead is ready, too: it takes over at any time.
        reached.open();
        metrics.ready.set(1);
        let parts = Parts {
            client: client.clone(),
            namespace: flags.namespace.clone(),
            recorder,
            metrics,
            launcher_image,
            exporter_image,
            cluster,
            nodes: node::Config { heartbeat_limit: Duration::from_secs(flags.node_heartbeat_limit) },
        };
        lead(client, lease, &shutdown, parts).await
    };
    tokio::try_join!(
        async { serving.await.context("serve health and metrics") },
        async { telling.await.transpose().map(drop).context("serve health by HTTPS") },
        async {
            shutdown.or(following).await;
            Ok(())
        },
        Box::pin(leading)
    )?;
    tracing::info!("ended");
    Ok(())
}

/// The image that a flag or a variable names.
fn image(flag: Option<String>, variable: &str, of: &str) -> Result<String> {
    let named = flag.or_else(|| std::env::var(variable).ok()).filter(|image| !image.is_empty());
    named.with_context(|| format!("the {of}'s image is not known: set --{of}-image or {variable}"))
}

/// Serves health by HTTPS, once virt-api has made the certificate.
async fn tell(
    client: Client,
    namespace: &str,
    listen: SocketAddr,
    health: Health,
    shutdown: &Shutdown,
) -> Result<()> {
    let identity = pki::watch(client, namespace, pki::CONTROLLER_SECRET, pki::CA_CONFIG_MAP).await?;
    let tls = identity.server_config(false)?;
    http::serve_tls(listen, tls, health::router(health), shutdown.clone()).await.map_err(Into::into)
}

/// Works whenever this replica leads, until the end is asked for.
async fn lead(client: Client, lease: LeaseConfig, shutdown: &Shutdown, parts: Parts) -> Result<()> {
    let work = || Box::pin(work::run(parts.clone()));
    let ended = leader::run(client, lease, shutdown, work).await.context("elect a leader")?;
    // Controllers run until they are dropped.
    anyhow::ensure!(ended.is_none(), "the controllers ended by themselves");
    Ok(())
}

/// Returns once the API server answers.
async fn reachable(client: &Client) {
    loop {
        match client.apiserver_version().await {
            Ok(version) => {
                tracing::info!(version = version.git_version, "API server reached");
                return;
            }
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "API server not reached");
                tokio::time::sleep(API_RETRY).await;
            }
        }
    }
}
