//! The whole way: a client's request over TLS, and a machine that has dialled.

use axum::body::Body;
use http::Request;
use http_body_util::BodyExt;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use podvirt_api::export::TOKEN_HEADER;
use podvirt_api::export::backup::path;
use podvirt_daemon::pki::{Certificate, KeyPairPem, Purpose, provider};
use podvirt_daemon::serve::PeerCertificate;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::task::{JoinHandle, spawn};
use tokio_rustls::TlsConnector;
use tower::ServiceExt;

use super::super::{Config, router};
use super::nbd::double;
use super::served::{NAME, Served, TOKEN, UID, leaf};
use super::*;

/// An exporter and its clients.
struct Exporter {
    served: Served,
    _files: TempDir,
}

impl std::ops::Deref for Exporter {
    type Target = Served;

    fn deref(&self) -> &Served {
        &self.served
    }
}

impl Exporter {
    async fn new() -> Self {
        let files = tempfile::tempdir().unwrap();
        Exporter { served: Served::new(files.path(), &["root", "data"]).await, _files: files }
    }

    /// Sends a request by a connection of its own, with a certificate or without.
    async fn send(
        &self,
        request: Request<Body>,
        shown: Option<&KeyPairPem>,
    ) -> http::Response<hyper::body::Incoming> {
        let mut roots = RootCertStore::empty();
        roots.add(Certificate::all_from_pem(&self.cas[0].certificate).unwrap().remove(0).der).unwrap();
        let config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let config = match shown {
            None => config.with_no_client_auth(),
            Some(pair) => {
                let key = pair.certified_key().unwrap();
                config.with_client_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(key)))
            }
        };
        let stream = TcpStream::connect(self.address).await.unwrap();
        let name = ServerName::try_from(NAME).unwrap();
        let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap();
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        spawn(connection.with_upgrades());
        sender.send_request(request).await.unwrap()
    }

    async fn ask(&self, path: &str) -> (StatusCode, http::HeaderMap, Vec<u8>) {
        let request = Request::get(path).header("host", NAME).header(TOKEN_HEADER, TOKEN);
        let (head, body) = self.send(request.body(Body::empty()).unwrap(), None).await.into_parts();
        (head.status, head.headers, body.collect().await.unwrap().to_bytes().to_vec())
    }

    async fn map(&self, path: &str) -> Value {
        let (code, head, body) = self.ask(path).await;
        assert_eq!(
            (code, head["content-type"].as_bytes()),
            (StatusCode::OK, &b"application/json"[..]),
            "{path}"
        );
        serde_json::from_slice(&body).unwrap()
    }

    /// Dials as the machine does; its NBD server serves `disks` to the one that takes the stream.
    async fn dial(&self, disks: &[double::Disk]) -> JoinHandle<std::io::Result<()>> {
        let machine = leaf(&self.cas[1], &tunnel_identity(UID), Purpose::Client);
        let answer = self.send(tunnel(), Some(&machine)).await;
        assert_eq!(answer.status(), StatusCode::SWITCHING_PROTOCOLS);
        assert_eq!(answer.headers()["upgrade"], "nbd");
        let disks = disks.to_vec();
        spawn(async move {
            let upgraded = hyper::upgrade::on(answer).await.map_err(std::io::Error::other)?;
            let mut stream = TokioIo::new(upgraded);
            assert_eq!(stream.read_u8().await?, 1);
            double::serve(stream, &disks).await
        })
    }
}

fn tunnel() -> Request<Body> {
    let request = Request::get(TUNNEL_PATH).header("host", NAME).header("connection", "Upgrade");
    request.header("upgrade", "nbd").body(Body::empty()).unwrap()
}

/// Three disks' worth of extents: `root` has changes, and `data` is copied whole.
fn disks() -> Vec<double::Disk> {
    let bytes = |size: u32| (0..size).map(|place| u8::try_from(place % 251).unwrap()).collect::<Vec<_>>();
    let allocation = |told: &[(u32, u32)]| ("base:allocation".to_owned(), told.to_vec());
    let changes = ("qemu:dirty-bitmap:changes".to_owned(), vec![(65_536, 0), (65_536, 1), (1_500_000, 0)]);
    vec![
        double::Disk {
            name: "root".into(),
            data: bytes(1_631_072),
            contexts: vec![allocation(&[(1_631_072, 0)]), changes],
            broken_from: None,
        },
        double::Disk {
            name: "data".into(),
            data: bytes(4096),
            contexts: vec![allocation(&[(1024, 0), (1024, 3), (1024, 0), (1024, 2)])],
            broken_from: None,
        },
    ]
}

#[tokio::test]
async fn data_and_maps_come_from_the_machine() {
    let exporter = Exporter::new().await;
    let disks = disks();
    let mut streams = Vec::new();
    for _ in 0..7 {
        streams.push(exporter.dial(&disks).await);
    }
    let (code, head, body) = exporter.ask("/exports/root/data").await;
    assert_eq!((code, head["content-length"].as_bytes()), (StatusCode::OK, &b"1631072"[..]));
    assert!(body == disks[0].data);
    let (_, head, body) = exporter.ask("/exports/root/data?offset=524287&length=524290").await;
    assert_eq!(head["content-type"], "application/octet-stream");
    assert!(body == disks[0].data[524_287..1_048_577]);
    let (code, head, _) = exporter.ask("/exports/data/data?offset=4096").await;
    assert_eq!(
        (code, head["content-range"].as_bytes()),
        (StatusCode::RANGE_NOT_SATISFIABLE, &b"bytes */4096"[..])
    );

    // What has changed, where the machine tells that.
    let extent = |offset: u64, length: u64, kind: u32, description: &str| json!({"offset": offset, "length": length, "type": kind, "description": description});
    let clean = [extent(0, 65_536, 0, "clean"), extent(131_072, 1_500_000, 0, "clean")];
    let dirty = extent(65_536, 65_536, 1, "dirty");
    let whole = json!({"extents": [clean[0], dirty, clean[1]], "next_offset": null});
    assert_eq!(exporter.map("/exports/root/map").await, whole);
    // A disk that is copied whole, by pages.
    let first = exporter.map("/exports/data/map?page_size=3").await;
    let data =
        [extent(0, 1024, 0, "data"), extent(1024, 1024, 3, "hole,zero"), extent(2048, 1024, 0, "data")];
    assert_eq!(first, json!({"extents": data, "next_offset": 3072}));
    let second = exporter.map("/exports/data/map?page_size=3&offset=3072").await;
    assert_eq!(second, json!({"extents": [extent(3072, 1024, 2, "zero")], "next_offset": null}));

    let (code, ..) = exporter.ask("/exports/data/map?offset=9999").await;
    assert_eq!(code, StatusCode::RANGE_NOT_SATISFIABLE);
    // Each request has taken a stream and said goodbye on it.
    for stream in streams {
        stream.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_stream_that_leads_nowhere_is_passed_over() {
    let exporter = Exporter::new().await;
    let whole = exporter.dial(&disks()).await;
    // The newest ones have no NBD server behind them.
    for _ in 0..2 {
        let machine = leaf(&exporter.cas[1], &tunnel_identity(UID), Purpose::Client);
        let answer = exporter.send(tunnel(), Some(&machine)).await;
        spawn(async move {
            let mut stream = TokioIo::new(hyper::upgrade::on(answer).await.unwrap());
            stream.read_u8().await.unwrap();
        });
    }
    assert_eq!(exporter.ask("/exports/data/data?length=512").await.2.len(), 512);
    whole.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_client_that_leaves_ends_its_session() {
    let exporter = Exporter::new().await;
    let big = double::Disk { name: "root".into(), data: vec![7; 16 << 20], ..double::Disk::default() };
    let stream = exporter.dial(&[big]).await;
    let request = Request::get("/exports/root/data").header("host", NAME).header(TOKEN_HEADER, TOKEN);
    let answer = exporter.send(request.body(Body::empty()).unwrap(), None).await;
    assert_eq!(answer.status(), StatusCode::OK);
    drop(answer);
    // It says goodbye, or is cut off.
    let _ended = stream.await.unwrap();
}

#[tokio::test]
async fn what_the_machine_cannot_serve_is_told() {
    let exporter = Exporter::new().await;
    let _other = exporter.dial(&disks()[1..]).await;
    let (code, _, text) = exporter.ask("/exports/root/map").await;
    let text = String::from_utf8(text).unwrap();
    assert_eq!(code, StatusCode::BAD_GATEWAY);
    assert!(text.contains("export 'root' not present"), "{text}");
    // What breaks on the way is short: the client sees it.
    let broken = double::Disk { broken_from: Some(1_000_000), ..disks().remove(0) };
    let _broken = exporter.dial(&[broken]).await;
    let request = Request::get("/exports/root/data").header("host", NAME).header(TOKEN_HEADER, TOKEN);
    let answer = exporter.send(request.body(Body::empty()).unwrap(), None).await;
    assert_eq!(answer.headers()["content-length"], "1631072");
    answer.into_body().collect().await.unwrap_err();
    for (query, wanted) in [
        ("data?offset=x", "offset: 'x': a number of bytes is allowed\n"),
        ("map?length=-1", "length: '-1': a number of bytes is allowed\n"),
        ("map?page_size=0", "page_size: '0': a number from 1 on is allowed\n"),
    ] {
        let (code, _, text) = exporter.ask(&format!("/exports/root/{query}")).await;
        assert_eq!((code, text.as_slice()), (StatusCode::BAD_REQUEST, wanted.as_bytes()), "{query}");
    }
}

#[tokio::test(start_paused = true)]
async fn without_the_machine_a_request_waits_a_while() {
    let exporter = Exporter::new().await;
    let request = Request::get("/exports/root/data").header(TOKEN_HEADER, TOKEN);
    let begun = Instant::now();
    let answer = router(&exporter.config).oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(answer.headers()["retry-after"], RETRY_SECONDS);
    assert_eq!(begun.elapsed().as_secs(), WAIT.as_secs());
    // Without the token it does not even wait.
    for what in ["data", "map"] {
        let request = Request::get(path("root", what)).body(Body::empty()).unwrap();
        let answer = router(&exporter.config).oneshot(request).await.unwrap();
        assert_eq!(answer.status(), StatusCode::UNAUTHORIZED);
    }
}

#[tokio::test]
async fn the_machine_alone_opens_streams() {
    let exporter = Exporter::new().await;
    let ask = async |name: Option<&str>, request: Request<Body>| {
        let mut request = request;
        if let Some(name) = name {
            let pair = leaf(&exporter.cas[1], name, Purpose::Client);
            let shown = Certificate::all_from_pem(&pair.certificate).unwrap().remove(0).der;
            request.extensions_mut().insert(PeerCertificate(shown));
        }
        router(&exporter.config).oneshot(request).await.unwrap().status()
    };
    assert_eq!(ask(None, tunnel()).await, StatusCode::UNAUTHORIZED);
    for other in ["kubevirt.io:system:client:u-2", "u-1", ""] {
        assert_eq!(ask(Some(other), tunnel()).await, StatusCode::FORBIDDEN, "{other}");
    }
    let machine = tunnel_identity(UID);
    let plain = Request::get(TUNNEL_PATH).body(Body::empty()).unwrap();
    assert_eq!(ask(Some(&machine), plain).await, StatusCode::UPGRADE_REQUIRED);
    let mut token = tunnel();
    token.headers_mut().insert(TOKEN_HEADER, TOKEN.parse().unwrap());
    assert_eq!(ask(None, token).await, StatusCode::UNAUTHORIZED);
    // By TLS: none shown, and one shown of the right name. The certificate of another CA does not get that far.
    assert_eq!(exporter.send(tunnel(), None).await.status(), StatusCode::UNAUTHORIZED);
    let other = leaf(&exporter.cas[1], "kubevirt.io:system:client:u-2", Purpose::Client);
    assert_eq!(exporter.send(tunnel(), Some(&other)).await.status(), StatusCode::FORBIDDEN);
    // An export of something else has no such path.
    let plain = Config { backup: None, ..exporter.config.clone() };
    let answer = router(&plain).oneshot(tunnel()).await.unwrap();
    assert_eq!(answer.status(), StatusCode::NOT_FOUND);
}
