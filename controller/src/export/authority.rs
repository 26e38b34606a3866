//! What exports need of podvirt's own namespace: the CA that signs their certificates, and the host that leads to the proxy.

use std::sync::Arc;

use futures::{Stream, StreamExt};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::api::networking::v1::Ingress;
use kube::runtime::reflector::store::Writer;
use kube::runtime::watcher;
use kube::{Api, Client};
use podvirt_api::export::CA;
use podvirt_daemon::follow::follow;
use podvirt_daemon::pki::{CA_BUNDLE_KEY, KeyPairPem, key_pair};
use tokio::sync::watch as channel;

use super::external::{External, ROUTE_CA, Route, Shown, certificate_for, find};
use crate::kept::Kept;
use crate::watch;

/// The CA as virt-api keeps it.
#[derive(Clone, Debug, Default)]
pub(super) struct Ca {
    /// What signs.
    pub(super) pair: Option<Arc<KeyPairPem>>,
    /// What clients are to trust.
    pub(super) bundle: Option<Arc<str>>,
}

/// What is known of podvirt's namespace. Clones see the same.
#[derive(Clone)]
pub(super) struct Authority {
    ca: channel::Receiver<Ca>,
    ingresses: Kept<Ingress>,
    routes: Kept<Route>,
    client: Client,
    namespace: String,
}

/// What fills it.
pub(super) struct Filler {
    ca: channel::Sender<Ca>,
    ingresses: Writer<Ingress>,
    routes: Writer<Route>,
}

impl Authority {
    /// Nothing is known yet.
    pub(super) fn new(client: Client, namespace: &str) -> (Self, Filler) {
        let (sender, ca) = channel::channel(Ca::default());
        let (ingresses, ingress_writer) = Kept::new();
        let (routes, route_writer) = Kept::new();
        let filler = Filler { ca: sender, ingresses: ingress_writer, routes: route_writer };
        (Self { ca, ingresses, routes, client, namespace: namespace.to_owned() }, filler)
    }

    /// As a test gives it; `ca` signs, and is trusted.
    #[cfg(test)]
    pub(super) fn with(client: Client, ca: Option<KeyPairPem>) -> Self {
        let bundle = ca.as_ref().map(|pair| Arc::from(pair.certificate.as_str()));
        let (own, filler) = Self::new(client, "kubevirt");
        filler.ca.send_replace(Ca { pair: ca.map(Arc::new), bundle });
        own
    }

    /// The CA.
    pub(super) fn ca(&self) -> Ca {
        self.ca.borrow().clone()
    }

    /// Word that something has changed.
    pub(super) fn changes(&self) -> impl Stream<Item = ()> + Send + use<> {
        let ca = futures::stream::unfold(self.ca.clone(), async |mut ca| {
            ca.changed().await.ok()?;
            Some(((), ca))
        });
        let ingresses = crate::kept::heard(self.ingresses.changes(), |_| vec![()]);
        let routes = crate::kept::heard(self.routes.changes(), |_| vec![()]);
        futures::stream::select(ca.boxed(), futures::stream::select(ingresses.boxed(), routes.boxed()))
    }

    /// The host that leads to the proxy, with its certificate as far as virt-controller may read it.
    pub(super) async fn external(&self) -> Option<External> {
        let (ingresses, routes) = (self.ingresses.all(), self.routes.all());
        let found = find(ingresses.iter().map(Arc::as_ref), routes.iter().map(Arc::as_ref));
        let (host, shown) = found?;
        let pem = self.shown(&shown).await.unwrap_or_else(|error| {
            tracing::warn!(
                host,
                error = &error as &dyn std::error::Error,
                "the certificate of exports' host is not read"
            );
            None
        });
        let certificate = certificate_for(&host, &pem.unwrap_or_default(), Timestamp::now());
        Some(External { host, certificate })
    }

    async fn shown(&self, shown: &Shown) -> Result<Option<String>, kube::Error> {
        match shown {
            Shown::Secret(name) => {
                let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
                let secret = secrets.get_opt(name).await?;
                let pem = secret.and_then(|secret| secret.data?.remove("tls.crt"));
                Ok(pem.and_then(|pem| String::from_utf8(pem.0).ok()))
            }
            Shown::Routes => {
                let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), &self.namespace);
                Ok(maps.get_opt(ROUTE_CA.0).await?.and_then(|map| map.data?.remove(ROUTE_CA.1)))
            }
            Shown::Nowhere => Ok(None),
        }
    }

    /// Keeps it filled until it is dropped.
    pub(super) async fn fill(self, filler: Filler) {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), &self.namespace);
        let pairs = each(follow(secrets, CA), "Secret", |secret: Option<Secret>| {
            let pair = secret.as_ref().and_then(key_pair).map(Arc::new);
            filler.ca.send_modify(|ca| ca.pair = pair);
        });
        let bundles = each(follow(maps, CA), "ConfigMap", |map: Option<ConfigMap>| {
            let bundle = map.and_then(|map| map.data?.remove(CA_BUNDLE_KEY)).map(Arc::from);
            filler.ca.send_if_modified(|ca| {
                let news = ca.bundle != bundle;
                ca.bundle = bundle;
                news
            });
        });
        let within = || watcher::Config::default();
        let (client, namespace) = (self.client.clone(), self.namespace.clone());
        let ingresses = watch::of(Api::namespaced(client.clone(), &namespace), within());
        let routes = || watch::of(Api::namespaced(client.clone(), &namespace), within());
        futures::join!(
            pairs,
            bundles,
            self.ingresses.keep(ingresses, filler.ingresses),
            self.routes.keep_if_there(routes, filler.routes)
        );
    }
}

/// Hands each version of the CA's object to `take`.
async fn each<K>(
    versions: impl Stream<Item = Result<Option<K>, watcher::Error>>,
    what: &str,
    take: impl Fn(Option<K>),
) {
    let mut versions = std::pin::pin!(versions);
    while let Some(seen) = versions.next().await {
        match seen {
            Ok(version) => take(version),
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "watch of {what} {CA}");
            }
        }
    }
}
