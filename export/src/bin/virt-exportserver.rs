//! virt-exportserver: serves what an exporter pod has mounted, until its deadline.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use jiff::Timestamp;
use podvirt_daemon::pki::{KeyPairPem, provider};
use podvirt_daemon::serve::serve;
use podvirt_daemon::{crypto, net, shutdown, telemetry};
use rustls::ServerConfig;
use virt_export::BOUNDS;
use virt_export::server::{Config, router};

#[tokio::main]
async fn main() -> Result<()> {
    let filter = std::env::var("RUST_LOG").ok();
    let _logs = telemetry::init("virt-exportserver", telemetry::Format::Json, filter.as_deref())?;
    crypto::install();
    let config = Config::from_env(|name| std::env::var(name).ok())?;
    let (end, ending) = shutdown::Shutdown::manual();
    let signalled = shutdown::signal().context("take over signals")?;
    let tls = tls(&config)?;
    let listener =
        net::listen(config.listen).await.with_context(|| format!("listen on {}", config.listen))?;
    let serving = serve(listener, Some(tls), router(&config), BOUNDS, ending);
    let deadline = async {
        let Some(deadline) = config.deadline else { return std::future::pending().await };
        let left = Duration::try_from(deadline.duration_since(Timestamp::now())).unwrap_or_default();
        tracing::info!(%deadline, "deadline");
        tokio::time::sleep(left).await;
    };
    let ended = async {
        tokio::select! {
            () = signalled.requested() => {}
            () = deadline => tracing::info!("the deadline is reached"),
        }
        end.request();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        served = serving => served.context("serve")?,
        () = ended => {}
    }
    tracing::info!("ended");
    Ok(())
}

fn tls(config: &Config) -> Result<Arc<ServerConfig>> {
    let read = |path: &std::path::Path| {
        std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))
    };
    let pair = KeyPairPem { certificate: read(&config.certificate)?, key: read(&config.key)? };
    let key = pair.certified_key().context("the certificate cannot be used")?;
    let mut tls = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(key)));
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(tls))
}
