//! `virt-api`: see the library.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use arc_swap::ArcSwap;
use clap::Parser;
use kube::Client;
use podvirt_api::export;
use podvirt_api::verbosity::Component;
use podvirt_daemon::health::Health;
use podvirt_daemon::http::Readiness;
use podvirt_daemon::pki::{self, Issuer, LeafRequest, Signer, WebhookPaths};
use podvirt_daemon::settings::Settings;
use podvirt_daemon::shutdown::Shutdown;
use podvirt_daemon::telemetry::Logs;
use podvirt_daemon::{client, crypto, http, net, registration, shutdown, telemetry};
use prometheus_client::registry::Registry;
use tracing::{info, warn};
use virt_api::front_proxy::FrontProxy;
use virt_api::handler::{HANDLER_PORT, Handlers};
use virt_api::limits::Limits;
use virt_api::listen::Server;
use virt_api::metrics::Metrics;
use virt_api::presets::Presets;
use virt_api::server::{App, router};
use virt_api::subresource::Subresources;
use virt_api::{config, register, tls};

/// Time between a request to end and the end of accepting: Services have to forget this replica first.
const DRAIN: Duration = Duration::from_secs(5);
/// Longest time for requests under way after that.
const FINISH: Duration = Duration::from_secs(15);
/// Wait before the certificates are tried again at the start.
const RETRY: Duration = Duration::from_secs(2);

/// Admission webhooks and the aggregated API of podvirt.
#[derive(Debug, Parser)]
#[command(name = "virt-api", version)]
struct Args {
    /// Address of the HTTPS server.
    #[arg(long, default_value = "[::]:8443")]
    listen_tls: SocketAddr,
    /// Address of the HTTP server of health and metrics.
    #[arg(long, default_value = "[::]:8080")]
    listen: SocketAddr,
    /// podvirt's own namespace.
    #[arg(long, default_value = podvirt_api::names::NAMESPACE)]
    namespace: String,
    /// Leave it to virt-operator to judge the KubeVirt object.
    #[arg(long)]
    operated: bool,
    /// Port of virt-handler's HTTPS server.
    #[arg(long, default_value_t = HANDLER_PORT)]
    console_server_port: u16,
    /// Form of the log lines: json or text.
    #[arg(long, default_value = "json")]
    log_format: telemetry::Format,
    /// What is logged, in the form of RUST_LOG; the KubeVirt object says it when not given.
    #[arg(long, alias = "log-level")]
    log_filter: Option<String>,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let logs = telemetry::init("virt-api", args.log_format, args.log_filter.as_deref())?;
    crypto::install();
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(run(args, logs))
}

async fn run(args: Args, logs: Logs) -> anyhow::Result<()> {
    let shutdown = shutdown::signal()?;
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    let readiness = Readiness::new();
    let (serving, registered) = (readiness.gate("certificates"), readiness.gate("registration"));
    let (presets_known, configured) = (readiness.gate("presets"), readiness.gate("configuration"));
    let health = http::serve(args.listen, Arc::new(registry), readiness, shutdown.clone());
    let health = tokio::spawn(health);

    let client = client::connect().await.context("no way to the API server")?;
    let namespace = args.namespace.as_str();
    let (own, policies) = Settings::new(Component::Api, logs);
    let configuration = Arc::new(ArcSwap::default());
    let known = Health::default();
    let mut following = std::pin::pin!(config::follow(
        client.clone(),
        namespace,
        Arc::clone(&configuration),
        own,
        known.clone(),
        move || configured.open()
    ));
    let leaves = LeafRequest::of_the_daemons(namespace);
    let issuer = Issuer::new(client.clone(), namespace, leaves, policies.clone());
    let exports =
        Issuer::new(client.clone(), namespace, Vec::new(), policies.clone()).with_ca(export::CA, export::CA);
    let signer = Signer::new(client.clone(), namespace, podvirt_api::names::HANDLER_ACCOUNT, policies);
    // The certificates' lives come with the configuration.
    let started = tokio::select! {
        started = shutdown.or(start(client.clone(), &issuer, namespace)) => started,
        () = &mut following => None,
    };
    let Some(started) = started else { return Ok(()) };
    let (identity, towards_handlers, proxy) = started?;

    let handlers = Handlers::new(client.clone(), namespace, towards_handlers, args.console_server_port);
    let limits = Limits::new(metrics.clone());
    let (close, closing) = Shutdown::manual();
    let paths = WebhookPaths::new(client.clone(), namespace);
    let (presets, presets_followed) = Presets::follow(client.clone(), move || presets_known.open());
    let app = App {
        client: client.clone(),
        proxy: Arc::clone(&proxy),
        subresources: Subresources::new(
            client.clone(),
            handlers,
            metrics.clone(),
            Arc::clone(&configuration),
        ),
        config: configuration,
        presets,
        paths: paths.clone(),
        health: known,
        namespace: Arc::from(namespace),
        limits: Arc::clone(&limits),
        metrics,
        closing,
    };
    let listener = net::listen(args.listen_tls)
        .await
        .with_context(|| format!("{} cannot be listened on", args.listen_tls))?;
    let tls = tls::server_config(&identity, &proxy)?;
    info!(address = %args.listen_tls, "serving the API");
    serving.open();

    let drained = {
        let (shutdown, serving) = (shutdown.clone(), serving.clone());
        async move {
            shutdown.requested().await;
            serving.set(false);
            tokio::time::sleep(DRAIN).await;
            // Those whose watches end here find another replica now.
            close.request();
        }
    };
    let server = Server { listener, tls, proxy, limits, router: router(app) }.run(drained);
    let background = Box::pin(async {
        let register = async |ca_bundle: &str| {
            register::register(&client, namespace, args.operated, ca_bundle, &paths).await
        };
        let opened = || registered.open();
        tokio::join!(
            issuer.run(),
            exports.run(),
            signer.run(),
            following,
            presets_followed,
            registration::maintain_registration(identity.ca_bundle(), register, opened),
        );
    });
    let at_last = async {
        shutdown.requested().await;
        tokio::time::sleep(DRAIN + FINISH).await;
    };
    tokio::select! {
        () = server => {}
        () = async { shutdown.or(background).await; std::future::pending().await } => {}
        () = at_last => warn!("requests that did not end in time are broken off"),
    }
    health.await?.context("the HTTP server ended")
}

/// Waits for everything without which nothing can be served.
async fn start(
    client: Client,
    issuer: &Issuer,
    namespace: &str,
) -> anyhow::Result<(pki::Identity, pki::Identity, Arc<FrontProxy>)> {
    while let Err(error) = issuer.ensure().await {
        warn!(error = &error as &dyn std::error::Error, "the certificates cannot be brought into order yet");
        tokio::time::sleep(RETRY).await;
    }
    let identity = pki::watch(client.clone(), namespace, pki::API_SERVER_SECRET, pki::CA_CONFIG_MAP).await?;
    let towards_handlers =
        pki::watch(client.clone(), namespace, pki::HANDLER_CLIENT_SECRET, pki::CA_CONFIG_MAP).await?;
    let proxy = FrontProxy::watch(client).await?;
    Ok((identity, towards_handlers, proxy))
}
