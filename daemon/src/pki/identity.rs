//! A daemon's view of the PKI: its own key and the trusted CAs, always the newest.

use std::sync::{Arc, OnceLock, Weak};

use arc_swap::ArcSwap;
use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use rustls::pki_types::ServerName;
use rustls::server::NoServerSessionStorage;
use rustls::server::danger::ClientCertVerifier;
use rustls::{ClientConfig, ServerConfig};
use tokio::sync::watch as channel;
use tokio::task::AbortHandle;
use tracing::{debug, info, warn};

use super::CA_BUNDLE_KEY;
use super::certificate::{Certificate, CertificateError, KeyPairPem};
use super::issuer::key_pair;
use super::tls::{CurrentKey, NamedServer, TlsError, TrustedClients, TrustedServers, provider};

/// Why the PKI cannot be followed.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// A watch ended, which it only does when the client is gone.
    #[error("the watch of the certificates ended")]
    Ended,
}

#[derive(Debug)]
struct Shared {
    key: Arc<CurrentKey>,
    clients: Arc<TrustedClients>,
    servers: Arc<TrustedServers>,
    bundle: channel::Sender<Arc<str>>,
    follower: OnceLock<AbortHandle>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(follower) = self.follower.get() {
            follower.abort();
        }
    }
}

/// A key with its certificate and the CAs of its peers. Cheap to clone; follows every rotation as long as a
/// clone, or a TLS configuration made of it, lives.
#[derive(Clone, Debug)]
pub struct Identity(Arc<Shared>);

/// Ties the follower's life to the configurations as well.
#[derive(Debug)]
struct Resolver(Arc<Shared>);

impl rustls::server::ResolvesServerCert for Resolver {
    fn resolve(&self, hello: rustls::server::ClientHello<'_>) -> Option<Arc<rustls::sign::CertifiedKey>> {
        rustls::server::ResolvesServerCert::resolve(&*self.0.key, hello)
    }
}

impl rustls::client::ResolvesClientCert for Resolver {
    fn resolve(
        &self,
        hints: &[&[u8]],
        schemes: &[rustls::SignatureScheme],
    ) -> Option<Arc<rustls::sign::CertifiedKey>> {
        rustls::client::ResolvesClientCert::resolve(&*self.0.key, hints, schemes)
    }

    fn has_certs(&self) -> bool {
        true
    }
}

impl Identity {
    /// An identity of given certificates, which stays what it is until [`Identity::replace`] is called.
    ///
    /// # Errors
    ///
    /// Key, certificate or CAs cannot be used.
    pub fn fixed(pair: &KeyPairPem, ca_bundle: &str) -> Result<Self, TlsError> {
        Ok(Identity(Arc::new(Shared {
            key: Arc::new(CurrentKey(ArcSwap::from_pointee(pair.certified_key()?))),
            clients: TrustedClients::required(ca_bundle)?,
            servers: Arc::new(TrustedServers::new(ca_bundle)?),
            bundle: channel::Sender::new(Arc::from(ca_bundle)),
            follower: OnceLock::new(),
        })))
    }

    /// Takes another key and other CAs; connections that stand go on. Nothing changes when a part is unusable.
    ///
    /// # Errors
    ///
    /// Key, certificate or CAs cannot be used.
    pub fn replace(&self, pair: &KeyPairPem, ca_bundle: &str) -> Result<(), TlsError> {
        self.0.replace(pair, ca_bundle)
    }

    /// The trusted CA certificates as PEM, and every later version of them.
    pub fn ca_bundle(&self) -> channel::Receiver<Arc<str>> {
        self.0.bundle.subscribe()
    }

    /// TLS for a server that shows this identity. With `require_client_ca` a client needs a client certificate
    /// of the trusted CAs; without it, clients are not asked. No ALPN is set.
    ///
    /// # Errors
    ///
    /// rustls has no protocol version in common with the provider.
    pub fn server_config(&self, require_client_ca: bool) -> Result<Arc<ServerConfig>, TlsError> {
        let verifier: Arc<dyn ClientCertVerifier> = if require_client_ca {
            Arc::clone(&self.0.clients) as Arc<dyn ClientCertVerifier>
        } else {
            rustls::server::WebPkiClientVerifier::no_client_auth()
        };
        self.server_config_with(verifier)
    }

    /// TLS for a server that shows this identity and judges clients by `verifier`.
    ///
    /// # Errors
    ///
    /// As [`Identity::server_config`].
    pub fn server_config_with(
        &self,
        verifier: Arc<dyn ClientCertVerifier>,
    ) -> Result<Arc<ServerConfig>, TlsError> {
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Config)?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::new(Resolver(Arc::clone(&self.0))));
        // A resumed session would carry a client past a CA that is no longer trusted.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }

    /// TLS for a client that shows this identity to a server whose certificate is of the trusted CAs and names
    /// `server_name`, whatever name or address was dialled.
    ///
    /// # Errors
    ///
    /// `server_name` is none.
    pub fn client_config(&self, server_name: &str) -> Result<Arc<ClientConfig>, TlsError> {
        let name = ServerName::try_from(server_name.to_owned())
            .map_err(|_| TlsError::ServerName(server_name.to_owned()))?;
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Config)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(NamedServer {
                trusted: Arc::clone(&self.0.servers),
                name,
            }))
            .with_client_cert_resolver(Arc::new(Resolver(Arc::clone(&self.0))));
        config.resumption = rustls::client::Resumption::disabled();
        Ok(Arc::new(config))
    }
}

impl Shared {
    fn replace(&self, pair: &KeyPairPem, ca_bundle: &str) -> Result<(), TlsError> {
        let key = pair.certified_key()?;
        self.clients.replace(ca_bundle)?;
        self.servers.replace(ca_bundle)?;
        self.key.0.store(Arc::new(key));
        self.bundle.send_if_modified(|old| {
            let changed = **old != *ca_bundle;
            if changed {
                *old = Arc::from(ca_bundle);
            }
            changed
        });
        Ok(())
    }
}

/// What the two watches have shown last.
#[derive(Default)]
struct Seen {
    pair: Option<KeyPairPem>,
    bundle: Option<String>,
}

/// Waits until the Secret and the ConfigMap exist and are usable, and follows both from then on.
///
/// # Errors
///
/// The watches ended before both were seen. While they fail they are retried with back-off and logged.
pub async fn watch(
    client: Client,
    namespace: &str,
    secret_name: &str,
    ca_config_map: &str,
) -> Result<Identity, WatchError> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let fields = watcher::Config::default().fields(&format!("metadata.name={secret_name}"));
    let pairs = watcher(secrets, fields)
        .default_backoff()
        .touched_objects()
        .filter_map(async |event| log_error(event).map(|secret| Update::Pair(key_pair(&secret))));
    let bundles = bundles(client, namespace, ca_config_map).map(Update::Bundle);
    let updates = futures::stream::select(Box::pin(pairs), Box::pin(bundles));
    follow(updates, secret_name.to_owned()).await
}

/// Every version of the trusted CA certificates; `None` when the ConfigMap holds none.
pub(super) fn bundles(
    client: Client,
    namespace: &str,
    ca_config_map: &str,
) -> impl Stream<Item = Option<String>> + Send + use<> {
    let config_maps: Api<ConfigMap> = Api::namespaced(client, namespace);
    let fields = watcher::Config::default().fields(&format!("metadata.name={ca_config_map}"));
    watcher(config_maps, fields).default_backoff().touched_objects().filter_map(async |event| {
        log_error(event).map(|map| map.data.as_ref().and_then(|data| data.get(CA_BUNDLE_KEY)).cloned())
    })
}

/// Waits until `updates` has shown a usable key and usable CAs, and follows it from then on. `of` names the key in
/// the log.
pub(super) async fn follow(
    mut updates: impl Stream<Item = Update> + Send + Unpin + 'static,
    of: String,
) -> Result<Identity, WatchError> {
    let mut seen = Seen::default();
    let identity = loop {
        let update = updates.next().await.ok_or(WatchError::Ended)?;
        seen.take(update);
        let (Some(pair), Some(bundle)) = (&seen.pair, &seen.bundle) else {
            debug!(of, "waiting for the certificates");
            continue;
        };
        match Identity::fixed(pair, bundle) {
            Ok(identity) => break identity,
            Err(error) => {
                warn!(of, error = &error as &dyn std::error::Error, "certificates are not usable yet");
            }
        }
    };
    let shared: Weak<Shared> = Arc::downgrade(&identity.0);
    let follower = tokio::spawn(async move {
        while let Some(update) = updates.next().await {
            seen.take(update);
            let (Some(pair), Some(bundle), Some(shared)) = (&seen.pair, &seen.bundle, shared.upgrade())
            else {
                return;
            };
            match shared.replace(pair, bundle) {
                Ok(()) => info!(of, until = expiry(pair), "certificates taken"),
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    warn!(of, error, "the new certificates are not usable; the old ones stay");
                }
            }
        }
    });
    // The cell was empty: this is its one writer.
    let _ = identity.0.follower.set(follower.abort_handle());
    Ok(identity)
}

/// A version of the key or of the CAs; `None` when it holds nothing usable.
pub(super) enum Update {
    /// The key with its certificate.
    Pair(Option<KeyPairPem>),
    /// The trusted CA certificates.
    Bundle(Option<String>),
}

impl Seen {
    /// Keeps what was there before when the new version holds nothing: a deleted Secret is made anew soon.
    fn take(&mut self, update: Update) {
        match update {
            Update::Pair(Some(pair)) => self.pair = Some(pair),
            Update::Bundle(Some(bundle)) => self.bundle = Some(bundle),
            Update::Pair(None) | Update::Bundle(None) => {}
        }
    }
}

fn log_error<T>(event: Result<T, watcher::Error>) -> Option<T> {
    event
        .inspect_err(|error| {
            warn!(error = error as &dyn std::error::Error, "watching the certificates failed");
        })
        .ok()
}

fn expiry(pair: &KeyPairPem) -> String {
    Certificate::all_from_pem(&pair.certificate)
        .and_then(|all| all.into_iter().next().ok_or(CertificateError::NoCertificate))
        .map_or_else(|e| e.to_string(), |leaf| leaf.not_after.to_string())
}
