//! virt-exportserver: serves what an exporter pod has mounted, until its deadline.

use std::time::Duration;

use anyhow::{Context, Result};
use jiff::Timestamp;
use podvirt_daemon::serve::serve;
use podvirt_daemon::{crypto, net, shutdown, telemetry};
use virt_export::BOUNDS;
use virt_export::server::{Config, router, tls};

#[tokio::main]
async fn main() -> Result<()> {
    let filter = std::env::var("RUST_LOG").ok();
    let _logs = telemetry::init("virt-exportserver", telemetry::Format::Json, filter.as_deref())?;
    crypto::install();
    let config = Config::from_env(|name| std::env::var(name).ok())?;
    let (end, ending) = shutdown::Shutdown::manual();
    let signalled = shutdown::signal().context("take over signals")?;
    let tls = tls::config(&config)?;
    if let Some(backup) = &config.backup {
        tracing::info!(uid = backup.uid, kind = ?backup.kind, disks = backup.disks.len(), "a backup is served");
    }
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
