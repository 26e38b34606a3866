//! virt-exportproxy: leads clients from outside the cluster to exporters.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result};
use arc_swap::ArcSwapOption;
use clap::Parser;
use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::runtime::watcher;
use kube::runtime::{WatchStreamExt, reflector};
use podvirt_api::export::CA;
use podvirt_api::names;
use podvirt_api::v1::VirtualMachineExport;
use podvirt_daemon::follow::follow;
use podvirt_daemon::http::Readiness;
use podvirt_daemon::pki::{self, CA_BUNDLE_KEY};
use podvirt_daemon::serve::serve;
use podvirt_daemon::{client, crypto, http, net, shutdown, telemetry};
use prometheus_client::registry::Registry;
use virt_export::BOUNDS;
use virt_export::proxy::{Proxy, router, trusting};

/// Name of the daemon.
const NAME: &str = "virt-exportproxy";

/// Leads clients from outside the cluster to exporters.
#[derive(Debug, Parser)]
#[command(name = NAME, version)]
struct Flags {
    /// Namespace of podvirt itself.
    #[arg(long, default_value = names::NAMESPACE)]
    namespace: String,
    /// Address of exports, and of /healthz, by HTTPS.
    #[arg(long, default_value = "[::]:8443")]
    listen_tls: SocketAddr,
    /// Address of /healthz, /readyz and /metrics.
    #[arg(long, default_value = "[::]:8080")]
    listen: SocketAddr,
    /// How logs are written: json or text.
    #[arg(long, default_value = "json")]
    log_format: telemetry::Format,
    /// What is logged, in the form of RUST_LOG.
    #[arg(long)]
    log_filter: Option<String>,
}

#[tokio::main]
async fn main() -> Result<()> {
    let flags = Flags::parse();
    let _logs = telemetry::init(NAME, flags.log_format, flags.log_filter.as_deref())?;
    crypto::install();
    let client = client::connect().await.context("find the API server")?;
    let shutdown = shutdown::signal().context("take over signals")?;
    let readiness = Readiness::new();
    let (listed, trusted) = (readiness.gate("exports"), readiness.gate("CA"));
    let served = readiness.gate("certificate");
    let health = http::serve(flags.listen, Arc::new(Registry::default()), readiness, shutdown.clone());

    let (exports, writer) = reflector::store();
    let tls: Arc<ArcSwapOption<rustls::ClientConfig>> = Arc::default();
    let all: Api<VirtualMachineExport> = Api::all(client.clone());
    let slim = |export: &mut VirtualMachineExport| {
        export.metadata.managed_fields = None;
        export.metadata.annotations = None;
        export.status.links = None;
    };
    let watched = watcher::watcher(all, watcher::Config::default()).default_backoff().modify(slim);
    let watching = reflector::reflector(writer, watched).for_each(|event| {
        if let Err(error) = event {
            tracing::warn!(error = &error as &dyn std::error::Error, "watch of exports");
        }
        std::future::ready(())
    });
    let shown = exports.clone();
    let opening = async {
        if shown.wait_until_ready().await.is_ok() {
            listed.open();
        }
    };
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), &flags.namespace);
    let trusting_ = follow(maps, CA).for_each(|seen| {
        match seen {
            Ok(Some(map)) => {
                match map.data.as_ref().and_then(|data| data.get(CA_BUNDLE_KEY)).map(|pem| trusting(pem)) {
                    Some(Ok(config)) => {
                        tls.store(Some(config));
                        trusted.open();
                    }
                    Some(Err(error)) => {
                        let error = &*error as &dyn std::error::Error;
                        tracing::warn!(error, "the CA of exports cannot be used");
                    }
                    None => tracing::warn!("ConfigMap {CA} has no certificates"),
                }
            }
            Ok(None) => tracing::warn!("ConfigMap {CA} is not there yet; virt-api makes it"),
            Err(error) => tracing::warn!(error = &error as &dyn std::error::Error, "watch of ConfigMap {CA}"),
        }
        std::future::ready(())
    });
    let proxy = Proxy { exports, tls: tls.clone() };
    let serving = async {
        let identity = pki::watch(client, &flags.namespace, pki::EXPORT_PROXY_SECRET, pki::CA_CONFIG_MAP);
        let Some(identity) = shutdown.or(identity).await else { return Ok(()) };
        let mut config = identity?.server_config(false)?;
        Arc::make_mut(&mut config).alpn_protocols = vec![b"http/1.1".to_vec()];
        let listener = net::listen(flags.listen_tls).await?;
        served.open();
        serve(listener, Some(config), router(proxy), BOUNDS, shutdown.clone()).await?;
        anyhow::Ok(())
    };
    let watches = async {
        futures::join!(watching, opening, trusting_);
        anyhow::bail!("a watch has ended by itself")
    };
    tokio::select! {
        served = async { tokio::try_join!(async { health.await.context("serve health") }, serving) } => drop(served?),
        ended = watches => ended?,
    }
    tracing::info!("ended");
    Ok(())
}
