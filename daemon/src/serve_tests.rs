use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsConnector;

use super::*;
use crate::pki::{Identity, KeyPairPem, Purpose, TrustedClients, common_name, make_ca, make_leaf, provider};

const DAY: Duration = Duration::from_secs(86_400);
const NAME: &str = "server.test";

fn leaf(ca: &KeyPairPem, name: &str, purpose: Purpose) -> KeyPairPem {
    make_leaf(ca, name, &[name.to_owned()], purpose, jiff::Timestamp::now(), DAY).unwrap()
}

/// Tells what the certificate says that a client has shown.
async fn shown(request: Request<Body>) -> String {
    let certificate = request.extensions().get::<PeerCertificate>();
    certificate.and_then(|shown| common_name(&shown.0)).unwrap_or_else(|| "stranger".to_owned())
}

/// Says back what it hears, by another protocol than HTTP.
async fn echo(mut request: Request<Body>) -> Response {
    let taken = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let mut stream = TokioIo::new(taken.await.unwrap());
        let mut heard = [0; 5];
        stream.read_exact(&mut heard).await.unwrap();
        stream.write_all(&heard).await.unwrap();
        stream.shutdown().await.unwrap();
    });
    let fields = [(header::CONNECTION, "upgrade"), (header::UPGRADE, "echo")];
    (StatusCode::SWITCHING_PROTOCOLS, fields).into_response()
}

struct Server {
    address: SocketAddr,
    ca: KeyPairPem,
}

impl Server {
    /// Takes clients of its own CA by their certificates, and all others without.
    async fn start() -> (Self, crate::shutdown::Trigger) {
        let ca = make_ca(jiff::Timestamp::now(), DAY).unwrap();
        let identity = Identity::fixed(&leaf(&ca, NAME, Purpose::Server), &ca.certificate).unwrap();
        let tls = identity.server_config_with(TrustedClients::optional(&ca.certificate).unwrap()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (end, shutdown) = Shutdown::manual();
        let routes = Router::new().route("/shown", get(shown)).route("/echo", get(echo));
        let bounds = Bounds {
            places: Limits { total: 4, per_source: 4 },
            head_timeout: Duration::from_secs(10),
            max_head_bytes: 16 << 10,
            lifetime: None,
            finish: Duration::from_secs(5),
        };
        tokio::spawn(serve(listener, Some(tls), routes, bounds, shutdown));
        (Server { address, ca }, end)
    }

    /// Sends `request`, and returns all that comes back; without a certificate, or with that of `client`.
    async fn ask(&self, client: Option<&KeyPairPem>, request: &str) -> io::Result<String> {
        let config = match client {
            Some(pair) => Identity::fixed(pair, &self.ca.certificate).unwrap().client_config(NAME).unwrap(),
            None => {
                let mut roots = rustls::RootCertStore::empty();
                let ca = crate::pki::Certificate::all_from_pem(&self.ca.certificate).unwrap().remove(0);
                roots.add(ca.der).unwrap();
                let config = rustls::ClientConfig::builder_with_provider(provider());
                let config = config.with_safe_default_protocol_versions().unwrap();
                Arc::new(config.with_root_certificates(roots).with_no_client_auth())
            }
        };
        let stream = TcpStream::connect(self.address).await?;
        let mut stream = TlsConnector::from(config).connect(NAME.try_into().unwrap(), stream).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        Ok(text)
    }
}

#[tokio::test]
async fn handlers_see_the_certificate_that_a_client_has_shown() {
    let (server, _end) = Server::start().await;
    let request = "GET /shown HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let known = leaf(&server.ca, "known", Purpose::Client);
    let told = server.ask(Some(&known), request).await.unwrap();
    assert!(told.ends_with("\r\n\r\nknown"), "{told}");
    let told = server.ask(None, request).await.unwrap();
    assert!(told.ends_with("\r\n\r\nstranger"), "{told}");
    // A certificate of another CA, and one that is not for clients, are turned away in the handshake.
    let other = make_ca(jiff::Timestamp::now(), DAY).unwrap();
    for wrong in [leaf(&other, "known", Purpose::Client), leaf(&server.ca, "known", Purpose::Server)] {
        server.ask(Some(&wrong), request).await.unwrap_err();
    }
}

#[tokio::test]
async fn a_handler_takes_a_connection_over() {
    let (server, _end) = Server::start().await;
    let request = "GET /echo HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\nhello";
    let told = server.ask(None, request).await.unwrap();
    assert!(told.starts_with("HTTP/1.1 101") && told.ends_with("\r\n\r\nhello"), "{told}");
}
