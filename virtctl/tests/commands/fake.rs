//! An API server whose answers the test decides.

use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::{Arc, Mutex};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use futures::future::BoxFuture;
use http::{HeaderMap, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::RootCertStore;
use rustls::pki_types::PrivateKeyDer;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;

/// The server's side of a stream.
pub(crate) type Socket = WebSocketStream<TokioIo<hyper::upgrade::Upgraded>>;

/// What was asked.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    /// `PUT /apis/...?query`.
    pub(crate) line: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

/// What is answered.
pub(crate) enum Reply {
    Json(u16, Value),
    Text(u16, &'static str),
    /// A WebSocket, and the function that speaks on it.
    Stream(Box<dyn FnOnce(Socket) -> BoxFuture<'static, ()> + Send>),
}

impl Reply {
    pub(crate) fn ok() -> Self {
        Self::Json(200, json!({}))
    }

    /// Kubernetes' form of an error.
    pub(crate) fn status(code: u16, reason: &str, message: &str) -> Self {
        Self::Json(
            code,
            json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": message}),
        )
    }

    pub(crate) fn stream<F>(speaker: impl FnOnce(Socket) -> F + Send + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Self::Stream(Box::new(|socket| Box::pin(speaker(socket))))
    }

    /// A machine that says all it hears.
    pub(crate) fn echo() -> Self {
        use futures::{SinkExt as _, StreamExt as _};
        Self::stream(|mut socket| async move {
            while let Some(Ok(message)) = socket.next().await {
                if message.is_binary() {
                    let _ = socket.send(message).await;
                }
            }
        })
    }
}

type Handler = Arc<dyn Fn(&Asked) -> Reply + Send + Sync>;

/// The server, and a home directory with a kubeconfig that leads to it.
pub(crate) struct Fake {
    pub(crate) home: tempfile::TempDir,
    seen: Arc<Mutex<Vec<Asked>>>,
}

impl Fake {
    /// Plain HTTP.
    pub(crate) async fn start(handler: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let cluster = json!({"server": format!("http://{}", listener.local_addr().unwrap())});
        let fake = Self::new(&cluster, &json!({}));
        let (handler, seen): (Handler, _) = (Arc::new(handler), Arc::clone(&fake.seen));
        tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                tokio::spawn(serve(connection, Arc::clone(&handler), Arc::clone(&seen)));
            }
        });
        fake
    }

    /// HTTPS, for clients with a certificate only.
    pub(crate) async fn start_tls(handler: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Self {
        let issuer = authority();
        let (server, server_key) = signed(&issuer.1, "apiserver");
        let (client, client_key) = signed(&issuer.1, "user");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(issuer.0.der().clone()).unwrap();
        let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(
            Arc::new(roots),
            Arc::clone(&provider),
        )
        .build()
        .unwrap();
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier)
            .with_single_cert(
                vec![server.der().clone()],
                PrivateKeyDer::try_from(server_key.serialize_der()).unwrap(),
            )
            .unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));

        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let text = |pem: String| BASE64_STANDARD.encode(pem);
        let fake = Self::new(
            &json!({
                "server": format!("https://{}", listener.local_addr().unwrap()),
                "certificate-authority-data": text(issuer.0.pem()),
            }),
            &json!({
                "client-certificate-data": text(client.pem()),
                "client-key-data": text(client_key.serialize_pem()),
            }),
        );
        let (handler, seen): (Handler, _) = (Arc::new(handler), Arc::clone(&fake.seen));
        tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                let (acceptor, handler, seen) = (acceptor.clone(), Arc::clone(&handler), Arc::clone(&seen));
                tokio::spawn(async move {
                    if let Ok(connection) = acceptor.accept(connection).await {
                        serve(connection, handler, seen).await;
                    }
                });
            }
        });
        fake
    }

    fn new(cluster: &Value, user: &Value) -> Self {
        let home = tempfile::tempdir().unwrap();
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": user}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", "namespace": "blue"}}],
        });
        std::fs::create_dir(home.path().join(".kube")).unwrap();
        std::fs::write(home.path().join(".kube/config"), kubeconfig.to_string()).unwrap();
        Self { home, seen: Arc::default() }
    }

    /// The program with these words, to be started.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        command(self.home.path(), words)
    }

    /// The program with these words, run to its end.
    pub(crate) async fn run(&self, words: &[&str]) -> Done {
        Done::from(self.command(words).output().await.unwrap())
    }

    /// All that was asked, in order.
    pub(crate) fn seen(&self) -> Vec<Asked> {
        self.seen.lock().unwrap().clone()
    }

    /// The request lines of all that was asked.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.seen().into_iter().map(|asked| asked.line).collect()
    }

    /// A program of that name in a directory that [`Fake::path`] names first.
    pub(crate) fn install(&self, name: &str, script: &str) {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = self.home.path().join("bin");
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join(name), script).unwrap();
        std::fs::set_permissions(dir.join(name), std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// `$PATH` with the installed programs before the machine's.
    pub(crate) fn path(&self) -> String {
        format!("{}:/usr/bin:/bin", self.home.path().join("bin").display())
    }
}

/// The program in an empty environment.
pub(crate) fn command(home: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(program());
    command.args(words).env_clear().env("HOME", home).env("USER", "tester").kill_on_drop(true);
    command
}

pub(crate) fn program() -> PathBuf {
    env!("CARGO_BIN_EXE_virtctl").into()
}

/// How the program ended.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl From<Output> for Done {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            out: String::from_utf8_lossy(&output.stdout).into(),
            err: String::from_utf8_lossy(&output.stderr).into(),
        }
    }
}

async fn serve<S>(connection: S, handler: Handler, seen: Arc<Mutex<Vec<Asked>>>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |request| answer(request, Arc::clone(&handler), Arc::clone(&seen)));
    let server = hyper::server::conn::http1::Builder::new();
    let _ = server.serve_connection(TokioIo::new(connection), service).with_upgrades().await;
}

async fn answer(
    mut request: http::Request<Incoming>,
    handler: Handler,
    seen: Arc<Mutex<Vec<Asked>>>,
) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let body = request.body_mut().collect().await?.to_bytes();
    let asked = Asked {
        line: format!("{} {}", request.method(), request.uri()),
        headers: request.headers().clone(),
        body: String::from_utf8_lossy(&body).into(),
    };
    let reply = handler(&asked);
    let key = asked.headers.get(header::SEC_WEBSOCKET_KEY).map(|key| derive_accept_key(key.as_bytes()));
    seen.lock().unwrap().push(asked);
    let response = Response::builder();
    Ok(match reply {
        Reply::Json(code, value) => response
            .status(code)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::from(value.to_string())),
        Reply::Text(code, text) => response.status(code).body(Full::from(text)),
        Reply::Stream(speaker) => {
            let key = key.expect("a stream was asked for without a WebSocket");
            tokio::spawn(async move {
                let upgraded = hyper::upgrade::on(request).await.unwrap();
                speaker(WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, None).await)
                    .await;
            });
            response
                .status(StatusCode::SWITCHING_PROTOCOLS)
                .header(header::CONNECTION, "upgrade")
                .header(header::UPGRADE, "websocket")
                .header(header::SEC_WEBSOCKET_ACCEPT, key)
                .header(header::SEC_WEBSOCKET_PROTOCOL, "plain.kubevirt.io")
                .body(Full::default())
        }
    }
    .unwrap())
}

fn authority() -> (rcgen::Certificate, Issuer<'static, KeyPair>) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, "authority");
    let key = KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap();
    (certificate, Issuer::new(params, key))
}

fn signed(issuer: &Issuer<'static, KeyPair>, name: &str) -> (rcgen::Certificate, KeyPair) {
    let mut params = CertificateParams::new(vec!["127.0.0.1".into()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    let key = KeyPair::generate().unwrap();
    (params.signed_by(&key, issuer).unwrap(), key)
}
