//! virt-operator: see the library.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;
use podvirt_api::names;
use podvirt_api::verbosity::Component;
use podvirt_daemon::events::Recorder;
use podvirt_daemon::http::{self, Readiness};
use podvirt_daemon::leader::{self, LeaseConfig};
use podvirt_daemon::pki::{self, Issuer, LeafRequest, WebhookPaths};
use podvirt_daemon::settings::Settings;
use podvirt_daemon::{client, crypto, registration, shutdown, telemetry};
use prometheus_client::registry::Registry;
use virt_operator::cluster::Cluster;
use virt_operator::metrics::Metrics;
use virt_operator::reconcile::{self, Parts};
use virt_operator::settings;
use virt_operator::target::Own;
use virt_operator::webhook::{self, Judge};

/// Name of the daemon, of its Lease and of the source of its events.
const NAME: &str = "virt-operator";
/// Wait before the certificate is tried again at the start.
const RETRY: Duration = Duration::from_secs(2);

/// Installs, configures, updates and removes podvirt as the KubeVirt object says.
#[derive(Debug, Parser)]
#[command(name = NAME, version)]
struct Flags {
    /// Namespace of podvirt itself and of the KubeVirt object.
    #[arg(long, default_value = names::NAMESPACE)]
    namespace: String,
    /// Address of the webhook.
    #[arg(long, default_value = "[::]:8443")]
    listen_tls: SocketAddr,
    /// Address of /healthz, /readyz and /metrics.
    #[arg(long, default_value = "[::]:8080")]
    listen: SocketAddr,
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
    let namespace = flags.namespace.as_str();
    let replica = leader::replica(NAME);
    let own = Own::from_env(|name| std::env::var(name).ok());
    let client = client::connect().await.context("find the API server")?;
    let shutdown = shutdown::signal().context("take over signals")?;

    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    let readiness = Readiness::new();
    let registered = readiness.gate("webhook");
    let serving = http::serve(flags.listen, Arc::new(registry), readiness, shutdown.clone());
    let serving = tokio::spawn(serving);

    let (settings, policies) = Settings::new(Component::Operator, logs);
    let mut following = std::pin::pin!(settings::follow(client.clone(), namespace, settings));
    let leaves = vec![LeafRequest::of_the_operator(namespace)];
    let issuer = Issuer::new(client.clone(), namespace, leaves, policies);
    let certificate = async {
        while let Err(error) = issuer.ensure().await {
            tracing::warn!(error = &error as &dyn std::error::Error, "no certificate yet");
            tokio::time::sleep(RETRY).await;
        }
        pki::watch(client.clone(), namespace, pki::OPERATOR_SECRET, pki::CA_CONFIG_MAP).await
    };
    // The certificate's life comes with the settings.
    let identity = tokio::select! {
        identity = shutdown.or(certificate) => identity,
        () = &mut following => None,
    };
    let Some(identity) = identity else { return Ok(()) };
    let identity = identity?;
    let tls = identity.server_config(false)?;
    let paths = WebhookPaths::new(client.clone(), namespace);
    let judge = Judge::new(client.clone(), namespace, own.clone(), paths.clone());
    let router = judge.router();

    let mut lease = LeaseConfig::new(namespace, NAME, &replica);
    lease.leading = metrics.leading.clone();
    let parts = Parts {
        cluster: Cluster::new(client.clone(), namespace),
        own,
        recorder: Recorder::new(client.clone(), NAME, Some(replica)),
        metrics: metrics.clone(),
    };
    let leading = leader::run(client.clone(), lease, &shutdown, || Box::pin(reconcile::run(parts.clone())));
    let register = async |ca_bundle: &str| webhook::register(&client, namespace, ca_bundle, &paths).await;
    let keeping = registration::maintain_registration(identity.ca_bundle(), register, || {
        registered.open();
        metrics.ready.set(1);
    });
    tokio::try_join!(
        async {
            let served = http::serve_tls(flags.listen_tls, tls, router, shutdown.clone()).await;
            served.context("serve the webhook")
        },
        async {
            shutdown.or(Box::pin(async { tokio::join!(issuer.run(), keeping, following) })).await;
            Ok(())
        },
        async {
            let ended = Box::pin(leading).await.context("elect a leader")?;
            anyhow::ensure!(ended.is_none(), "the passes ended by themselves");
            Ok(())
        },
    )?;
    serving.await?.context("serve health and metrics")?;
    tracing::info!("ended");
    Ok(())
}
