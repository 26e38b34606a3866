//! The daemon: its parts, started and ended together.

use std::net::{Ipv6Addr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Context as _;
use futures::{FutureExt, StreamExt};
use kube::{Api, Client, ResourceExt};
use podvirt_api::names;
use podvirt_api::v1::KubeVirt;
use podvirt_api::verbosity::Component;
use podvirt_daemon::client;
use podvirt_daemon::events::Recorder;
use podvirt_daemon::follow::follow;
use podvirt_daemon::health::{self, Health};
use podvirt_daemon::http::{Exposition, Gate, Readiness};
use podvirt_daemon::pki::{Identity, WatchError, watch_node};
use podvirt_daemon::settings::Settings;
use podvirt_daemon::shutdown::{self, Shutdown};
use podvirt_daemon::telemetry::Logs;
use prometheus_client::registry::Registry;

use crate::cli::Serve;
use crate::labels::{self, Obsolete};
use crate::launcher::options::Options;
use crate::metrics::Metrics;
use crate::migration::Means;
use crate::node::{self, Node, Store};
use crate::record::Records;
use crate::repair::Repairs;
use crate::rest::Server;
use crate::rest::tls::TlsListener;
use crate::sockets::PodVolumes;
use crate::statistics::collect::Statistics;
use crate::{device, heartbeat};

/// Time for the last events.
const LAST_EVENTS: Duration = Duration::from_secs(2);

/// Serves the node until SIGTERM; `logs` follow the KubeVirt object. Its machines go on without.
///
/// # Errors
///
/// A part cannot start, or has failed.
pub async fn serve(settings: Serve, logs: Logs) -> anyhow::Result<()> {
    let shutdown = shutdown::signal()?;
    let client = client::connect().await.context("the API server")?;
    let readiness = Readiness::new();
    let synced = readiness.gate("VMIs");
    let certified = readiness.gate("certificates");

    let store = Store::default();
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry, store.clone(), settings.node_name.clone());
    let volumes = PodVolumes::new(&settings.kubelet_pods_dir);
    let records = Records::open(&settings.records_dir)
        .with_context(|| format!("records in {}", settings.records_dir.display()))?;
    let (node, triggers, mail) = Node::new(
        settings.node_name.clone(),
        client.clone(),
        volumes.clone(),
        records,
        store.clone(),
        metrics.clone(),
    );
    let mut means = Means::new(settings.migration_address.clone());
    means.network = Arc::new(Repairs::new(volumes.clone()));
    let identity = Arc::clone(&means.identity);
    let options = Options::unknown();
    let node = node.with_migrations(means).with_options(options.clone());

    let recorder = Recorder::new(client.clone(), "virt-handler", settings.pod_name.clone());
    let obsolete = Obsolete::unknown();
    let post = tokio::spawn(node::post(recorder.clone(), store.clone(), mail));

    let statistics = Statistics::new(settings.node_name.clone(), store.clone(), volumes.clone());
    let rest = Server::new(settings.node_name.clone(), store, volumes, node.triggers.clone());
    let (settled, has_settled) = tokio::sync::watch::channel(false);
    let plugins = settings.device_plugins_dir.clone();
    let name = settings.node_name.clone();

    let health = Health::default();
    let (own, policies) = Settings::new(Component::Handler { node: settings.node_name.clone() }, logs);
    let ended = tokio::try_join!(
        async {
            let guests = Arc::new(move || {
                let statistics = statistics.clone();
                async move { statistics.text().await.unwrap_or_default() }.boxed()
            });
            let exposition = Exposition::new(registry).with_more(guests);
            podvirt_daemon::http::serve(settings.listen, exposition, readiness, shutdown.clone())
                .await
                .context("health and metrics")
        },
        async { node::run(&node, triggers, &synced, &shutdown).await.context("VMIs of this node") },
        async {
            let told = health.clone();
            let identified = watch_node(client.clone(), &settings.namespace, &settings.node_name, policies);
            serve_by_tls(rest, told, identified, &settings, &identity, &certified, &shutdown).await
        },
        async {
            shutdown
                .or(configuration(
                    client.clone(),
                    &settings.namespace,
                    &own,
                    &options,
                    &obsolete,
                    &metrics,
                    &health,
                ))
                .await;
            Ok(())
        },
        async {
            let tell = |usable| metrics.kvm(usable);
            device::offer(&device::KVM, plugins.clone(), device::probe, tell, &settled, &shutdown).await;
            Ok(())
        },
        async {
            // Machines without it need not wait for it: a pod that asks for it comes where it is offered.
            let (settled, _) = tokio::sync::watch::channel(false);
            device::offer(&device::TUN, plugins.clone(), device::probe_tun, |_| {}, &settled, &shutdown)
                .await;
            Ok(())
        },
        async {
            heartbeat::beat(client.clone(), &name, has_settled, &metrics, &shutdown).await;
            Ok(())
        },
        async {
            let file = &settings.capabilities;
            labels::keep(client.clone(), &name, file, &obsolete, &recorder, &metrics, &shutdown).await;
            Ok(())
        },
    );
    // What is waiting is still written, for a while: events are a courtesy. The connections to launchers ended
    // with the loop, and no launcher can tell anything more.
    drop(node);
    let _late = tokio::time::timeout(LAST_EVENTS, post).await;
    ended.map(drop)
}

/// Takes what of the KubeVirt object is this daemon's own, and what launchers are told beside their VMI, and tells `health`
/// which version of it there is. What else a machine needs of it comes with the machine.
async fn configuration(
    client: Client,
    namespace: &str,
    own: &Settings,
    options: &Options,
    obsolete: &Obsolete,
    metrics: &Metrics,
    health: &Health,
) {
    let api: Api<KubeVirt> = Api::namespaced(client, namespace);
    let mut versions = Box::pin(follow(api, names::KUBEVIRT));
    while let Some(seen) = versions.next().await {
        match seen {
            Ok(kubevirt) => {
                own.take(kubevirt.as_ref());
                options.take(kubevirt.as_ref());
                metrics.configured(kubevirt.as_ref());
                obsolete.take(kubevirt.as_ref());
                health.applied(kubevirt.as_ref().and_then(ResourceExt::resource_version));
            }
            Err(error) => {
                health.failed(&error);
                tracing::warn!(error = &error as &dyn std::error::Error, "watch of the KubeVirt object");
            }
        }
    }
}

/// Serves virt-api, lets machines move, and tells health by HTTPS, once there is a certificate.
async fn serve_by_tls(
    rest: Server,
    health: Health,
    identified: impl Future<Output = Result<Identity, WatchError>>,
    settings: &Serve,
    migrations: &OnceLock<Identity>,
    certified: &Gate,
    shutdown: &Shutdown,
) -> anyhow::Result<()> {
    let Some(identity) = shutdown.or(identified).await else { return Ok(()) };
    let identity = identity.context("certificates")?;
    let (config, open) = (identity.server_config(true)?, identity.server_config(false)?);
    let address = SocketAddr::from((Ipv6Addr::UNSPECIFIED, settings.console_server_port));
    let listener = TlsListener::bind(address, config).await.with_context(|| address.to_string())?;
    // This is its one writer.
    drop(migrations.set(identity));
    certified.open();
    tracing::info!(%address, "serving virt-api");
    // Streams are cut at the end: they have no end of their own.
    let streams = async {
        let served = shutdown.or(axum::serve(listener, rest.router()).into_future()).await;
        served.transpose().map(drop).context("the server for virt-api")
    };
    let health = async {
        let router = health::router(health);
        podvirt_daemon::http::serve_tls(settings.listen_tls, open, router, shutdown.clone())
            .await
            .context("health by HTTPS")
    };
    tokio::try_join!(streams, health).map(drop)
}
