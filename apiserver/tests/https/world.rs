//! virt-api in this process, over real TLS, between a made-up API server and a made-up virt-handler.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::Router;
use axum::body::Body;
use futures::StreamExt as _;
use http::{Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use kube::Client;
use podvirt_daemon::health::Health;
use podvirt_daemon::pki::{
    Identity, KeyPairPem, PathKey, Purpose, WebhookPaths, make_ca, make_leaf, node_name,
};
use podvirt_daemon::shutdown::{Shutdown, Trigger};
use podvirt_daemon::testing::{ca_secret, failure};
use rustls::pki_types::ServerName;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use virt_api::front_proxy::{FrontProxy, RequestHeaders};
use virt_api::handler::Handlers;
use virt_api::limits::Limits;
use virt_api::listen::Server;
use virt_api::metrics::Metrics;
use virt_api::presets::Presets;
use virt_api::server::{App, router};
use virt_api::subresource::Subresources;
use virt_api::tls::server_config;

const HOUR: Duration = Duration::from_secs(3600);

/// The client that calls virt-api.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Caller {
    /// The API server's front proxy.
    FrontProxy,
    /// A holder of a certificate of the front proxy's CA with another name.
    OtherName,
    /// A holder of a certificate of another CA.
    OtherCa,
    /// A client without a certificate.
    Nobody,
}

/// What the made-up API server holds and has seen.
#[derive(Default)]
pub(crate) struct Cluster {
    /// Objects by path.
    pub(crate) objects: BTreeMap<String, Value>,
    /// Creations, patches and deletions: method, path, body.
    pub(crate) writes: Vec<(Method, String, Value)>,
    /// How many patches are answered as if the object had changed before one is taken.
    pub(crate) stale: usize,
    /// What a webhook says of every patched object, if it refuses them.
    pub(crate) refusal: Option<String>,
    /// SubjectAccessReviews.
    pub(crate) reviews: Vec<Value>,
    /// What else was read: path and query.
    pub(crate) reads: Vec<String>,
    /// Called at each request.
    pub(crate) on_request: Option<Box<dyn Fn() + Send>>,
}

/// virt-api and its surroundings.
pub(crate) struct World {
    /// Where virt-api listens.
    pub(crate) address: SocketAddr,
    /// The made-up API server.
    pub(crate) cluster: Arc<Mutex<Cluster>>,
    /// For the made-up virt-handler.
    pub(crate) handler: Identity,
    /// virt-api's metrics.
    pub(crate) metrics: Metrics,
    /// What callers of virt-api may hold.
    pub(crate) limits: Arc<Limits>,
    paths: PathKey,
    api_ca: KeyPairPem,
    proxy_ca: KeyPairPem,
    end: Trigger,
    server: JoinHandle<()>,
}

fn leaf(ca: &KeyPairPem, name: &str, purpose: Purpose) -> KeyPairPem {
    make_leaf(ca, name, &[name.to_owned()], purpose, Timestamp::now(), HOUR).unwrap()
}

/// A VM that waits for requests, and its running instance.
pub(crate) fn vm(strategy: &str) -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
        "metadata": {"name": "vm1", "namespace": "ns", "uid": "u-vm"},
        "spec": {"runStrategy": strategy, "template": {"spec": {"domain": {"devices": {}}}}},
        "status": {"created": true},
    })
}

/// A running instance.
pub(crate) fn vmi() -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"name": "vm1", "namespace": "ns", "uid": "u-vmi"},
        "spec": {"domain": {"devices": {}}},
        "status": {"phase": "Running", "nodeName": "node1"},
    })
}

/// Path of the VM in the API server.
pub(crate) const VM: &str = "/apis/kubevirt.io/v1/namespaces/ns/virtualmachines/vm1";
/// Path of the CA's Secret in the API server.
const CA: &str = "/api/v1/namespaces/kubevirt/secrets/kubevirt-ca";
/// Path of the instance in the API server.
pub(crate) const VMI: &str = "/apis/kubevirt.io/v1/namespaces/ns/virtualmachineinstances/vm1";

fn pods(name: &str) -> Value {
    json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": [{
        "metadata": {"name": name, "namespace": "ns", "ownerReferences": [{"apiVersion": "kubevirt.io/v1",
            "kind": "VirtualMachineInstance", "name": "vm1", "uid": "u-vmi", "controller": true}]},
        "status": {"phase": "Running", "podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]},
    }]})
}

impl Cluster {
    fn answer(&mut self, method: &Method, path: &str, query: &str, body: Value) -> (u16, Value) {
        self.on_request.iter().for_each(|called| called());
        if path.ends_with("/subjectaccessreviews") {
            let allowed = body["spec"]["user"] == "jane";
            self.reviews.push(body.clone());
            let mut answer = body;
            answer["status"] = json!({"allowed": allowed});
            return (201, answer);
        }
        if *method == Method::GET {
            self.reads.push(format!("{path}?{query}"));
        }
        match *method {
            Method::PATCH => {
                self.writes.push((method.clone(), format!("{path}?{query}"), body));
                if self.stale > 0 {
                    self.stale -= 1;
                    // An API server's own words for a `test` that fails.
                    let message = "the server rejected our request due to an error in our request";
                    return failure(422, "Invalid", message);
                }
                if let Some(refusal) = &self.refusal {
                    return failure(422, "Invalid", refusal);
                }
                let object = path.trim_end_matches("/status");
                self.objects
                    .get(object)
                    .map_or_else(|| failure(404, "NotFound", "NotFound"), |o| (200, o.clone()))
            }
            Method::POST => {
                self.writes.push((method.clone(), format!("{path}?{query}"), body.clone()));
                (201, body)
            }
            Method::DELETE => {
                self.writes.push((method.clone(), path.to_owned(), body));
                (200, json!({"kind": "Status", "status": "Success"}))
            }
            _ if path.ends_with("/pods") && query.contains("virt-handler") => {
                if self.objects.contains_key("no-handler") {
                    return (200, json!({"kind": "PodList", "metadata": {}, "items": []}));
                }
                (200, pods("virt-handler-1"))
            }
            _ if path.ends_with("/pods") => (200, pods("virt-launcher-vm1-abcde")),
            _ if path.ends_with("/pods/virt-launcher-vm1-abcde") => {
                (200, pods("virt-launcher-vm1-abcde")["items"][0].clone())
            }
            _ => self
                .objects
                .get(path)
                .map_or_else(|| failure(404, "NotFound", "NotFound"), |o| (200, o.clone())),
        }
    }
}

/// A client of `cluster`, whose watches tell one line and stay open.
fn client(cluster: Arc<Mutex<Cluster>>) -> Client {
    let served = move |method: Method, uri: Uri, body: Bytes| {
        let (path, query) = (uri.path(), uri.query().unwrap_or_default());
        let body = serde_json::from_slice(&body).unwrap_or_default();
        let (code, body) = cluster.lock().unwrap().answer(&method, path, query, body);
        let body = if query.contains("watch=true") {
            let line = futures::stream::iter([Ok::<_, std::convert::Infallible>(format!("{body}\n"))]);
            Body::from_stream(line.chain(futures::stream::pending()))
        } else {
            Body::from(body.to_string())
        };
        let json = [("content-type", "application/json")];
        std::future::ready((StatusCode::from_u16(code).unwrap(), json, body))
    };
    Client::new(Router::new().fallback(served), "default")
}

impl World {
    /// virt-api, whose virt-handlers listen on `handler_port` of 127.0.0.1.
    pub(crate) async fn new(handler_port: u16) -> World {
        World::with_presets(handler_port, Presets::none()).await
    }

    /// The same with these presets.
    pub(crate) async fn with_presets(handler_port: u16, presets: Presets) -> World {
        podvirt_daemon::crypto::install();
        let (api_ca, proxy_ca) =
            (make_ca(Timestamp::now(), HOUR).unwrap(), make_ca(Timestamp::now(), HOUR).unwrap());
        let identity =
            Identity::fixed(&leaf(&api_ca, "virt-api", Purpose::Server), &api_ca.certificate).unwrap();
        let towards =
            Identity::fixed(&leaf(&api_ca, "virt-api", Purpose::Client), &api_ca.certificate).unwrap();
        let handler =
            Identity::fixed(&leaf(&api_ca, &node_name("node1"), Purpose::Node), &api_ca.certificate).unwrap();
        let proxy = FrontProxy::new(RequestHeaders {
            client_ca: proxy_ca.certificate.clone(),
            allowed_names: vec!["front-proxy-client".into()],
            username: vec!["X-Remote-User".into()],
            uid: Vec::new(),
            group: vec!["X-Remote-Group".into()],
            extra_prefix: vec!["X-Remote-Extra-".into()],
        })
        .unwrap();

        let cluster = Arc::new(Mutex::new(Cluster::default()));
        let client = client(Arc::clone(&cluster));
        cluster.lock().unwrap().objects.insert(CA.to_owned(), ca_secret(&api_ca));
        let paths = WebhookPaths::new(client.clone(), "kubevirt");
        let key = paths.read().await.unwrap();
        cluster.lock().unwrap().reads.clear();
        let handlers = Handlers::new(client.clone(), "kubevirt", towards, handler_port);
        let metrics = Metrics::default();
        let limits = Limits::new(metrics.clone());
        let (end, ended) = Shutdown::manual();
        let app = App {
            client: client.clone(),
            proxy: Arc::clone(&proxy),
            subresources: Subresources::new(client, handlers, metrics.clone(), Arc::default()),
            config: Arc::new(ArcSwap::default()),
            presets,
            paths,
            health: Health::default(),
            namespace: Arc::from("kubevirt"),
            limits: Arc::clone(&limits),
            metrics: metrics.clone(),
            closing: ended.clone(),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let tls = server_config(&identity, &proxy).unwrap();
        let server = Server { listener, tls, proxy, limits: Arc::clone(&limits), router: router(app) };
        let server = tokio::spawn(async move { server.run(ended.requested()).await });
        World { address, cluster, handler, metrics, limits, paths: key, api_ca, proxy_ca, end, server }
    }

    /// The path at which the API server asks a webhook, by its plain path.
    pub(crate) fn review_path(&self, webhook: &str) -> String {
        self.paths.path(webhook)
    }

    /// Another CA in the API server; the paths that it makes.
    pub(crate) fn rotate_ca(&self) -> PathKey {
        let ca = make_ca(Timestamp::now(), HOUR).unwrap();
        self.put(CA, ca_secret(&ca));
        PathKey::new(&ca)
    }

    /// Asks virt-api to end.
    pub(crate) fn end(&self) {
        self.end.request();
    }

    /// Waits until virt-api has ended.
    pub(crate) async fn ended(self) {
        self.server.await.unwrap();
    }

    /// Puts an object into the API server.
    pub(crate) fn put(&self, path: &str, object: Value) {
        self.cluster.lock().unwrap().objects.insert(path.to_owned(), object);
    }

    /// What was written to the API server.
    pub(crate) fn writes(&self) -> Vec<(Method, String, Value)> {
        self.cluster.lock().unwrap().writes.clone()
    }

    /// A connection to virt-api from another address of this machine, before its handshake.
    pub(crate) async fn tcp(&self, source: Ipv4Addr) -> std::io::Result<TcpStream> {
        let socket = TcpSocket::new_v4()?;
        socket.bind((source, 0).into())?;
        // As Go's clients do: a window's last piece waits for a delayed acknowledgement otherwise, 40 ms.
        socket.set_nodelay(true)?;
        socket.connect(self.address).await
    }

    /// A TLS connection to virt-api.
    pub(crate) async fn connect(&self, caller: Caller) -> std::io::Result<TlsStream<TcpStream>> {
        self.connect_from(caller, Ipv4Addr::LOCALHOST, &[]).await
    }

    /// A TLS connection to virt-api from another address of this machine, for one of `protocols`.
    pub(crate) async fn connect_from(
        &self,
        caller: Caller,
        source: Ipv4Addr,
        protocols: &[&str],
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let other = make_ca(Timestamp::now(), HOUR).unwrap();
        let (ca, name) = match caller {
            Caller::FrontProxy | Caller::Nobody => (&self.proxy_ca, "front-proxy-client"),
            Caller::OtherName => (&self.proxy_ca, "kubelet"),
            Caller::OtherCa => (&other, "front-proxy-client"),
        };
        let identity = Identity::fixed(&leaf(ca, name, Purpose::Client), &self.api_ca.certificate).unwrap();
        let mut config = Arc::unwrap_or_clone(identity.client_config("virt-api").unwrap());
        if matches!(caller, Caller::Nobody) {
            config.client_auth_cert_resolver = Arc::new(NoCertificate);
        }
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        let stream = self.tcp(source).await?;
        let name = ServerName::from(self.address.ip());
        TlsConnector::from(Arc::new(config)).connect(name, stream).await
    }

    /// One request as `user`; returns status and body.
    pub(crate) async fn call(
        &self,
        caller: Caller,
        user: &str,
        method: Method,
        path: &str,
        body: &str,
    ) -> Result<(StatusCode, Value), Box<dyn std::error::Error>> {
        let response = self.send(caller, user, None, method, path, body).await?;
        let code = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        Ok((code, serde_json::from_slice(&body).unwrap_or(Value::Null)))
    }

    /// One request as `user`, whose token is bound to a pod on `node`; returns the answer's head.
    pub(crate) async fn send(
        &self,
        caller: Caller,
        user: &str,
        node: Option<&str>,
        method: Method,
        path: &str,
        body: &str,
    ) -> Result<http::Response<Incoming>, Box<dyn std::error::Error>> {
        let stream = self.connect(caller).await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "virt-api")
            .header("content-type", "application/json")
            .header("x-remote-user", user)
            .header("x-remote-group", "devs");
        if let Some(node) = node {
            // As the API server writes it.
            request = request.header("x-remote-extra-authentication.kubernetes.io%2fnode-name", node);
        }
        Ok(sender.send_request(request.body(Full::new(Bytes::from(body.to_owned())))?).await?)
    }
}

#[derive(Debug)]
struct NoCertificate;

impl rustls::client::ResolvesClientCert for NoCertificate {
    fn resolve(&self, _: &[&[u8]], _: &[rustls::SignatureScheme]) -> Option<Arc<rustls::sign::CertifiedKey>> {
        None
    }

    fn has_certs(&self) -> bool {
        false
    }
}
