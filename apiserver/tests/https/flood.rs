//! A pod that wants to keep the API server out: silent connections and bodies without an end.

use std::io;
use std::net::Ipv4Addr;
use std::time::Duration;

use futures::stream::{self, StreamExt};
use http::{Method, Request};
use http_body_util::StreamBody;
use hyper::body::{Bytes, Frame};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::time::Instant;
use virt_api::limits::{API_SERVER_BODY_BYTES, OTHERS_BODY_BYTES, Side};

use super::NO_HANDLER;
use super::world::{Caller, World};

/// Longer than any answer takes on a busy machine, and far shorter than what is held back takes to end by itself.
const TIMEOUT: Duration = Duration::from_secs(40);
const REVIEWS: &str = "/migration-validate-update";
/// What a body without an end declares, and how much of it comes.
const DECLARED_BYTES: usize = 4 << 20;
const SENT_BYTES: usize = 3 << 20;
const PIECE_BYTES: usize = 16 << 10;

async fn review(world: &World) -> Value {
    let review = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {"uid": "r-1", "operation": "UPDATE", "object": {"spec": {}}, "oldObject": {"spec": {}}},
    })
    .to_string();
    let path = world.review_path(REVIEWS);
    let call = world.call(Caller::Nobody, "", Method::POST, &path, &review);
    let (code, answer) = tokio::time::timeout(TIMEOUT, call).await.expect("no answer").unwrap();
    assert_eq!(code.as_u16(), 200, "{answer}");
    answer["response"]["allowed"].clone()
}

fn buffered(world: &World, side: Side) -> usize {
    let bytes = world.metrics.buffered_bytes.get_or_create(&side.into()).get();
    usize::try_from(bytes).unwrap()
}

async fn until(what: impl Fn() -> bool) {
    let reached = async {
        while !what() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, reached).await.expect("it did not come to that");
}

/// Asks for reviews on `streams` streams of one connection, none of which ever sends its last byte.
async fn endless(world: &World, source: Ipv4Addr, streams: usize) -> JoinSet<()> {
    let stream = world.connect_from(Caller::Nobody, source, &["h2"]).await.unwrap();
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let _ = connection.await;
    });
    for _ in 0..streams {
        let (mut sender, path) = (sender.clone(), world.review_path(REVIEWS));
        tasks.spawn(async move {
            // The server gives a body up that does not come: the next one follows, until the connection is closed or the
            // test has ended.
            while sender.ready().await.is_ok() {
                let pieces = stream::repeat_with(|| {
                    Ok::<_, std::io::Error>(Frame::data(Bytes::from_static(&[b' '; PIECE_BYTES])))
                });
                let pieces = pieces.take(SENT_BYTES / PIECE_BYTES).chain(stream::pending());
                let request = Request::post(format!("https://virt-api{path}"))
                    .header("content-length", DECLARED_BYTES)
                    .body(StreamBody::new(Box::pin(pieces)))
                    .unwrap();
                let _refused = sender.send_request(request).await;
            }
        });
    }
    tasks
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_keeps_no_review_waiting_and_takes_no_more_than_its_budget() {
    let world = World::new(NO_HANDLER).await;
    // A thousand connections that say nothing, of twenty pods.
    let mut silent = Vec::new();
    for n in 0..1000_u16 {
        silent.push(world.tcp(Ipv4Addr::new(127, 0, 1, (n % 20) as u8)).await.unwrap());
    }
    assert_eq!(review(&world).await, json!(true), "also before the API server is known");

    // The API server's address is known by the front proxy's certificate.
    let groups = world.call(Caller::FrontProxy, "jane", Method::GET, "/apis", "");
    assert_eq!(tokio::time::timeout(TIMEOUT, groups).await.expect("no answer").unwrap().0.as_u16(), 200);

    let mut floods = Vec::new();
    for n in 0..25 {
        floods.push(endless(&world, Ipv4Addr::new(127, 0, 2, n), 8).await);
    }
    until(|| buffered(&world, Side::Anyone) >= 3 * SENT_BYTES).await;
    for _ in 0..20 {
        assert_eq!(review(&world).await, json!(true));
        assert!(buffered(&world, Side::Anyone) <= OTHERS_BODY_BYTES);
        assert!(buffered(&world, Side::ApiServer) <= API_SERVER_BODY_BYTES);
    }
    let refused = world.metrics.refused_connections.get_or_create(&Side::Anyone.into()).get();
    assert!(refused >= 20 * (50 - 32), "{refused} silent connections were closed at once");
    drop((floods, silent));
    until(|| buffered(&world, Side::Anyone) == 0).await;
}

#[tokio::test]
async fn an_address_holds_its_share_of_bodies_and_no_more() {
    let world = World::new(NO_HANDLER).await;
    let greedy = endless(&world, Ipv4Addr::new(127, 0, 2, 1), 8).await;
    until(|| buffered(&world, Side::Anyone) >= 2 * SENT_BYTES).await;
    // No connection has shown the certificate: this review takes its place beside the greedy one's.
    assert_eq!(review(&world).await, json!(true));
    assert!(buffered(&world, Side::Anyone) <= 2 * SENT_BYTES, "two of four MiB are an address's eight");
    drop(greedy);
    until(|| buffered(&world, Side::Anyone) == 0).await;
}

#[tokio::test]
async fn a_body_that_is_too_long_is_refused_by_its_declared_length() {
    let world = World::new(NO_HANDLER).await;
    let stream = world.connect(Caller::Nobody).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let body = StreamBody::new(Box::pin(stream::pending::<Result<Frame<Bytes>, std::io::Error>>()));
    let request = Request::post(world.review_path(REVIEWS))
        .header("host", "virt-api")
        .header("content-length", DECLARED_BYTES + 1)
        .body(body)
        .unwrap();
    let response = tokio::time::timeout(TIMEOUT, sender.send_request(request)).await.expect("no answer");
    assert_eq!(response.unwrap().status().as_u16(), 413);
}

/// What the server still says, and for how much of the test's own time it keeps the connection.
async fn until_closed(stream: &mut (impl AsyncRead + Unpin)) -> (String, u64) {
    let (begin, mut said) = (Instant::now(), Vec::new());
    let _reset = stream.read_to_end(&mut said).await;
    (String::from_utf8_lossy(&said).into_owned(), begin.elapsed().as_secs_f64().round() as u64)
}

#[tokio::test(start_paused = true)]
async fn a_client_that_stops_halfway_is_closed_in_time() {
    let world = World::new(NO_HANDLER).await;
    let source = Ipv4Addr::new(127, 0, 3, 1);
    let mut silent = world.tcp(source).await.unwrap();
    assert_eq!(until_closed(&mut silent).await.1, 5, "no handshake");
    for protocols in [&["http/1.1"] as &[_], &["h2"], &[]] {
        let mut silent = world.connect_from(Caller::Nobody, source, protocols).await.unwrap();
        assert_eq!(until_closed(&mut silent).await.1, 5, "nothing behind the handshake, {protocols:?}");
    }
    let mut half = world.connect_from(Caller::Nobody, source, &["http/1.1"]).await.unwrap();
    half.write_all(b"GET /healthz HTTP/1.1\r\nhost: virt-api\r\nx: ").await.unwrap();
    assert_eq!(until_closed(&mut half).await.1, 5, "half a head");
}

#[tokio::test(start_paused = true)]
async fn no_connection_of_others_lives_for_ever() {
    let world = World::new(NO_HANDLER).await;
    let source = Ipv4Addr::new(127, 0, 3, 2);
    let begin = Instant::now();
    let mut busy = world.connect_from(Caller::Nobody, source, &["http/1.1"]).await.unwrap();
    let mut answer = [0; 4096];
    while busy.write_all(b"GET /healthz HTTP/1.1\r\nhost: virt-api\r\n\r\n").await.is_ok()
        && busy.read(&mut answer).await.is_ok_and(|bytes| bytes > 0)
    {
        assert!(begin.elapsed() < Duration::from_secs(120), "it goes on for ever");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert!(begin.elapsed() >= Duration::from_secs(59), "{:?}", begin.elapsed());
    // The API server keeps its connections.
    let mut idle = world.connect_from(Caller::FrontProxy, source, &["http/1.1"]).await.unwrap();
    tokio::time::sleep(Duration::from_secs(600)).await;
    idle.write_all(b"GET /healthz HTTP/1.1\r\nhost: virt-api\r\n\r\n").await.unwrap();
    let bytes = idle.read(&mut answer).await.unwrap();
    assert!(answer[..bytes].starts_with(b"HTTP/1.1 200"));
}

#[tokio::test(start_paused = true)]
async fn connections_that_say_nothing_have_no_more_places_than_there_are() {
    let world = World::new(NO_HANDLER).await;
    let mut silent = Vec::new();
    for n in 0..384_u16 {
        silent.push(world.tcp(Ipv4Addr::new(127, 0, 4, (n / 32) as u8)).await.unwrap());
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let is_open = |stream: &tokio::net::TcpStream| {
        stream.try_read(&mut [0]).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    };
    assert_eq!(silent.iter().filter(|stream| is_open(stream)).count(), 256);
}

#[tokio::test]
async fn a_head_and_a_review_have_a_size() {
    let world = World::new(NO_HANDLER).await;
    let long = "x".repeat(20 << 10);
    let head = format!("GET /healthz HTTP/1.1\r\nhost: virt-api\r\nx: {long}\r\n\r\n");
    for (caller, code) in [(Caller::Nobody, "HTTP/1.1 431"), (Caller::FrontProxy, "HTTP/1.1 200")] {
        let source = Ipv4Addr::new(127, 0, 3, 3);
        let mut stream = world.connect_from(caller, source, &["http/1.1"]).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = vec![0; 64];
        let bytes = stream.read(&mut answer).await.unwrap();
        assert!(answer[..bytes].starts_with(code.as_bytes()), "{}", String::from_utf8_lossy(&answer));
    }
    let many = format!("{{\"items\": [{}0]}}", "0,".repeat(300_000));
    let path = world.review_path(REVIEWS);
    let (code, answer) = world.call(Caller::Nobody, "", Method::POST, &path, &many).await.unwrap();
    assert_eq!(code.as_u16(), 400);
    assert!(answer["message"].as_str().unwrap().contains("bytes of memory"), "{answer}");
}

#[tokio::test]
async fn a_review_waits_for_its_turn() {
    let world = World::new(NO_HANDLER).await;
    let source = Ipv4Addr::LOCALHOST.into();
    let turns = (world.limits.review(source).await, world.limits.review(source).await);
    let early = tokio::time::timeout(Duration::from_millis(300), review(&world)).await;
    assert!(early.is_err(), "two at a time are not the API server's");
    drop(turns);
    assert_eq!(review(&world).await, json!(true));
}
