//! The user who asks: the API server vouches for users by its front-proxy client certificate and names them in headers.
//!
//! The ConfigMap `kube-system/extension-apiserver-authentication` says which CA signs that certificate, which common
//! names it may have and what the headers are called. Without a certificate of that CA the headers mean nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use futures::StreamExt;
use http::{HeaderMap, HeaderValue};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use podvirt_daemon::pki::{TlsError, TrustedClients};
use tracing::{info, warn};

use crate::status::Status;
use crate::tls::Peer;

const NAMESPACE: &str = "kube-system";
const CONFIG_MAP: &str = "extension-apiserver-authentication";

/// Why the ConfigMap is of no use.
#[derive(Debug, thiserror::Error)]
pub enum FrontProxyError {
    /// A key is missing.
    #[error(
        "ConfigMap {NAMESPACE}/{CONFIG_MAP} has no '{0}': the API server runs without an aggregation layer"
    )]
    Missing(&'static str),
    /// A key does not hold what it should.
    #[error("'{key}' of ConfigMap {NAMESPACE}/{CONFIG_MAP} is no list of texts")]
    List {
        /// The key.
        key: &'static str,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// The CA cannot be used.
    #[error("the front proxy's CA cannot be used")]
    Ca(#[from] TlsError),
    /// The watch ended.
    #[error("the watch of ConfigMap {NAMESPACE}/{CONFIG_MAP} ended")]
    Ended,
}

/// What the ConfigMap says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestHeaders {
    /// CA certificates as PEM.
    pub client_ca: String,
    /// Common names the certificate may have; empty: any.
    pub allowed_names: Vec<String>,
    /// Headers that hold the user's name, the first found counts.
    pub username: Vec<String>,
    /// Headers that hold the user's uid.
    pub uid: Vec<String>,
    /// Headers that hold groups, one each.
    pub group: Vec<String>,
    /// Beginnings of headers that hold extra values.
    pub extra_prefix: Vec<String>,
}

impl RequestHeaders {
    /// Reads the ConfigMap's data.
    ///
    /// # Errors
    ///
    /// A key is missing or no list.
    pub fn from_config_map(map: &ConfigMap) -> Result<Self, FrontProxyError> {
        let empty = BTreeMap::new();
        let data = map.data.as_ref().unwrap_or(&empty);
        let list = |key: &'static str| -> Result<Option<Vec<String>>, FrontProxyError> {
            let Some(text) = data.get(key) else { return Ok(None) };
            serde_json::from_str(text).map(Some).map_err(|source| FrontProxyError::List { key, source })
        };
        let needed = |key: &'static str| list(key)?.ok_or(FrontProxyError::Missing(key));
        let ca = "requestheader-client-ca-file";
        Ok(RequestHeaders {
            client_ca: data.get(ca).cloned().ok_or(FrontProxyError::Missing(ca))?,
            allowed_names: list("requestheader-allowed-names")?.unwrap_or_default(),
            username: needed("requestheader-username-headers")?,
            uid: list("requestheader-uid-headers")?.unwrap_or_default(),
            group: needed("requestheader-group-headers")?,
            extra_prefix: needed("requestheader-extra-headers-prefix")?,
        })
    }

    /// Whether the peer is the front proxy.
    ///
    /// # Errors
    ///
    /// It is not.
    fn is_front_proxy(&self, peer: &Peer) -> Result<(), Status> {
        if !peer.has_certificate {
            return Err(Status::unauthorized("requests have to come through the Kubernetes API server"));
        }
        let name = peer.common_name.as_deref().unwrap_or_default();
        if !self.allowed_names.is_empty() && !self.allowed_names.iter().any(|allowed| allowed == name) {
            return Err(Status::unauthorized(format!(
                "the client certificate's name '{name}' is not among the front proxy's"
            )));
        }
        Ok(())
    }

    /// The user who is asking.
    ///
    /// # Errors
    ///
    /// The peer is not the front proxy, names no user, or says something that is no UTF-8.
    pub fn user(&self, peer: &Peer, headers: &HeaderMap) -> Result<User, Status> {
        self.is_front_proxy(peer)?;
        let first = |names: &[String]| {
            let found = names.iter().find_map(|name| headers.get(name)).map(text).transpose();
            found.map(|value| value.filter(|value| !value.is_empty()))
        };
        let name =
            first(&self.username)?.ok_or_else(|| Status::unauthorized("the front proxy named no user"))?;
        let groups = self.group.iter().flat_map(|name| headers.get_all(name)).map(text);
        // A group less could also be a right more.
        let groups = groups.collect::<Result<Vec<String>, Status>>()?;
        let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (header, value) in headers {
            let key = self.extra_prefix.iter().find_map(|prefix| {
                // Header names are in small letters here.
                header.as_str().strip_prefix(&prefix.to_ascii_lowercase())
            });
            if let Some(key) = key {
                extra.entry(percent_decoded(key)).or_default().push(text(value)?);
            }
        }
        Ok(User { name, uid: first(&self.uid)?, groups, extra })
    }
}

/// A header's value: the front proxy writes names of users and groups as UTF-8.
fn text(value: &HeaderValue) -> Result<String, Status> {
    let text = std::str::from_utf8(value.as_bytes());
    text.map(ToOwned::to_owned)
        .map_err(|_| Status::unauthorized("the front proxy named a user or a group that is no UTF-8"))
}

/// Keys of extra values are percent-encoded where a header's name could not carry them.
fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        let code = (*first == b'%')
            .then(|| behind.get(..2).and_then(|hex| std::str::from_utf8(hex).ok()))
            .flatten()
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match code {
            Some(byte) => {
                bytes.push(byte);
                rest = &behind[2..];
            }
            None => {
                bytes.push(*first);
                rest = behind;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A user that the API server authenticated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    /// Name.
    pub name: String,
    /// Identity, where the authenticator knows one.
    pub uid: Option<String>,
    /// Groups.
    pub groups: Vec<String>,
    /// What else the authenticator said.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// The front proxy's trust as it is now.
#[derive(Debug)]
pub struct FrontProxy {
    headers: ArcSwap<RequestHeaders>,
    clients: Arc<TrustedClients>,
}

impl FrontProxy {
    /// The trust that `headers` describe.
    ///
    /// # Errors
    ///
    /// The CA cannot be used.
    pub fn new(headers: RequestHeaders) -> Result<Arc<Self>, FrontProxyError> {
        // Optional: webhooks are called, and health is asked for, without a client certificate.
        let clients = TrustedClients::optional(&headers.client_ca)?;
        Ok(Arc::new(FrontProxy { headers: ArcSwap::from_pointee(headers), clients }))
    }

    /// Verifier for the TLS server; a client may come without a certificate and is anonymous then.
    pub fn clients(&self) -> Arc<TrustedClients> {
        Arc::clone(&self.clients)
    }

    /// The user who is asking.
    ///
    /// # Errors
    ///
    /// See [`RequestHeaders::user`].
    pub fn user(&self, peer: &Peer, headers: &HeaderMap) -> Result<User, Status> {
        self.headers.load().user(peer, headers)
    }

    /// Whether the peer is the front proxy.
    pub fn is(&self, peer: &Peer) -> bool {
        self.headers.load().is_front_proxy(peer).is_ok()
    }

    fn replace(&self, headers: RequestHeaders) -> Result<(), FrontProxyError> {
        self.clients.replace(&headers.client_ca)?;
        self.headers.store(Arc::new(headers));
        Ok(())
    }

    /// Waits for the ConfigMap and follows it from then on.
    ///
    /// # Errors
    ///
    /// The watch ended before the ConfigMap was seen. While it fails it is retried and logged.
    pub async fn watch(client: Client) -> Result<Arc<Self>, FrontProxyError> {
        let api: Api<ConfigMap> = Api::namespaced(client, NAMESPACE);
        let config = watcher::Config::default().fields(&format!("metadata.name={CONFIG_MAP}"));
        let mut maps = Box::pin(watcher(api, config).default_backoff().touched_objects());
        let proxy = loop {
            let read = match maps.next().await.ok_or(FrontProxyError::Ended)? {
                Ok(map) => RequestHeaders::from_config_map(&map).and_then(Self::new),
                Err(error) => {
                    warn!(
                        error = &error as &dyn std::error::Error,
                        "watching {NAMESPACE}/{CONFIG_MAP} failed"
                    );
                    continue;
                }
            };
            match read {
                Ok(proxy) => break proxy,
                Err(error) => {
                    warn!(error = &error as &dyn std::error::Error, "waiting for the front proxy's CA");
                }
            }
        };
        let weak = Arc::downgrade(&proxy);
        tokio::spawn(async move {
            while let Some(event) = maps.next().await {
                let Some(proxy) = weak.upgrade() else { return };
                let outcome = match event {
                    Ok(map) => RequestHeaders::from_config_map(&map).and_then(|new| proxy.replace(new)),
                    Err(error) => {
                        warn!(
                            error = &error as &dyn std::error::Error,
                            "watching {NAMESPACE}/{CONFIG_MAP} failed"
                        );
                        continue;
                    }
                };
                match outcome {
                    Ok(()) => info!("front proxy's CA taken"),
                    Err(error) => {
                        warn!(
                            error = &error as &dyn std::error::Error,
                            "the new front proxy's CA is refused; the old one stays"
                        );
                    }
                }
            }
        });
        Ok(proxy)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn config_map(ca: &str) -> ConfigMap {
        let data = [
            ("requestheader-client-ca-file", ca),
            ("requestheader-allowed-names", r#"["front-proxy-client"]"#),
            ("requestheader-username-headers", r#"["X-Remote-User"]"#),
            ("requestheader-uid-headers", r#"["X-Remote-Uid"]"#),
            ("requestheader-group-headers", r#"["X-Remote-Group"]"#),
            ("requestheader-extra-headers-prefix", r#"["X-Remote-Extra-"]"#),
        ];
        ConfigMap {
            data: Some(data.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()),
            ..ConfigMap::default()
        }
    }

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    fn peer(name: Option<&str>) -> Peer {
        Peer { common_name: name.map(ToOwned::to_owned), has_certificate: name.is_some(), ..Peer::default() }
    }

    #[test]
    fn the_user_is_read_from_the_headers_of_the_front_proxy() {
        let config = RequestHeaders::from_config_map(&config_map("ca")).unwrap();
        let user = config
            .user(
                &peer(Some("front-proxy-client")),
                &headers(&[
                    ("x-remote-user", "jane"),
                    ("x-remote-uid", "u-1"),
                    ("x-remote-group", "devs"),
                    ("x-remote-group", "system:authenticated"),
                    ("x-remote-extra-scopes", "view"),
                    ("x-remote-extra-example.org%2fteam", "a"),
                    ("x-remote-extra-odd%zz", "b"),
                ]),
            )
            .unwrap();
        assert_eq!((user.name.as_str(), user.uid.as_deref()), ("jane", Some("u-1")));
        assert_eq!(user.groups, ["devs", "system:authenticated"]);
        let keys: Vec<&str> = user.extra.keys().map(String::as_str).collect();
        assert_eq!(keys, ["example.org/team", "odd%zz", "scopes"]);
    }

    #[test]
    fn names_may_be_of_any_script_but_have_to_be_text() {
        let config = RequestHeaders::from_config_map(&config_map("ca")).unwrap();
        let named = |name: &'static str, bytes: &[u8]| {
            let mut headers = headers(&[("x-remote-user", "jane")]);
            headers.insert(name, HeaderValue::from_bytes(bytes).unwrap());
            config.user(&peer(Some("front-proxy-client")), &headers)
        };
        assert_eq!(named("x-remote-user", "jörg".as_bytes()).unwrap().name, "jörg");
        assert_eq!(named("x-remote-group", "größe".as_bytes()).unwrap().groups, ["größe"]);
        for name in ["x-remote-user", "x-remote-uid", "x-remote-group", "x-remote-extra-scopes"] {
            assert_eq!(named(name, b"j\xf6rg").unwrap_err().code, 401, "{name}");
        }
    }

    #[test]
    fn only_the_front_proxy_can_name_a_user() {
        let config = RequestHeaders::from_config_map(&config_map("ca")).unwrap();
        let named = headers(&[("x-remote-user", "jane")]);
        for (peer, headers) in [
            (peer(None), &named),
            (peer(Some("kubelet")), &named),
            (peer(Some("")), &named),
            (peer(Some("front-proxy-client")), &HeaderMap::new()),
            (peer(Some("front-proxy-client")), &self::headers(&[("x-remote-user", "")])),
        ] {
            assert_eq!(config.user(&peer, headers).unwrap_err().code, 401, "{peer:?}");
        }
        let any = RequestHeaders { allowed_names: Vec::new(), ..config };
        assert_eq!(any.user(&peer(Some("kubelet")), &named).unwrap().name, "jane");
    }

    #[test]
    fn a_cluster_without_aggregation_is_told() {
        let error = RequestHeaders::from_config_map(&ConfigMap::default()).unwrap_err();
        assert!(error.to_string().contains("requestheader-client-ca-file"), "{error}");
        let mut broken = config_map("ca");
        broken.data.as_mut().unwrap().insert("requestheader-group-headers".into(), "x".into());
        assert!(matches!(RequestHeaders::from_config_map(&broken), Err(FrontProxyError::List { .. })));
    }
}
