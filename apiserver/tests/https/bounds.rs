//! What connections, bodies and answers are bounded by, and what they give back.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Method, Request, Response};
use http_body_util::Empty;
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, timeout};
use virt_api::limits::Side;

use super::world::{Caller, World};
use super::{ALLOCATOR, API, NO_HANDLER};

/// Longer than anything takes that comes at all.
const TIMEOUT: Duration = Duration::from_secs(40);
/// Larger than any bound on a connection, in virtual time.
const FOR_EVER: Duration = Duration::from_secs(600);
/// Largest answer to a review, in bytes.
const ANSWER_BYTES: usize = 1 << 20;
/// Largest body of a request for a subresource, in bytes.
const OPTIONS_BYTES: usize = 64 << 10;

/// A client over HTTP/2 that takes one byte of each answer in until it asks for more.
type Client = http2::SendRequest<Empty<Bytes>>;

async fn client(world: &World, caller: Caller, source: Ipv4Addr) -> Client {
    let stream = world.connect_from(caller, source, &["h2"]).await.unwrap();
    let mut builder = http2::Builder::new(TokioExecutor::new());
    let (client, connection) =
        builder.initial_stream_window_size(1).handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    client
}

/// An answer that is under way until it is dropped: its client takes no more of it than one byte.
async fn under_way(client: &mut Client) -> Response<Incoming> {
    let request = Request::get("https://virt-api/openapi/v2").body(Empty::new()).unwrap();
    let answer = timeout(TIMEOUT, client.send_request(request)).await.expect("no answer").unwrap();
    assert_eq!(answer.status().as_u16(), 200);
    answer
}

#[tokio::test]
async fn http2_offers_as_many_streams_and_as_large_windows_as_the_budgets_reckon_with() {
    // RFC 9113, sections 3.4, 4.1 and 6.5.2.
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00";
    const SETTINGS: u8 = 4;
    const WINDOW_UPDATE: u8 = 8;
    let world = World::new(NO_HANDLER).await;
    for (caller, streams, window, head) in
        [(Caller::Nobody, 8, 16 << 10, 16 << 10), (Caller::FrontProxy, 64, 64 << 10, 64 << 10)]
    {
        let source = Ipv4Addr::new(127, 0, 5, 1);
        let mut stream = world.connect_from(caller, source, &["h2"]).await.unwrap();
        stream.write_all(PREFACE).await.unwrap();
        let mut next = async |kind: u8| loop {
            let mut head = [0; 9];
            timeout(TIMEOUT, stream.read_exact(&mut head)).await.expect("no frame").unwrap();
            let mut body = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
            stream.read_exact(&mut body).await.unwrap();
            // Not the acknowledgement of the client's own.
            if head[3] == kind && head[4] == 0 {
                return body;
            }
        };
        let number = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().unwrap());
        let settings = next(SETTINGS).await;
        let setting = |id: u8| {
            let found = settings.chunks(6).find(|setting| setting[..2] == [0, id]);
            found.map(|setting| number(&setting[2..]))
        };
        let offered = [setting(3), setting(4), setting(6)];
        assert_eq!(offered, [Some(streams), Some(window), Some(head)], "{caller:?}");
        // All streams' windows fit into the connection's, which begins with 65535 bytes.
        assert_eq!(number(&next(WINDOW_UPDATE).await), streams * window - 65535, "{caller:?}");
    }
}

/// Takes all places that are left to `source` on the API server's side, and then one for another address, so that the
/// oldest connection of `source` gives way.
fn displace_the_oldest(world: &World, source: Ipv4Addr) -> impl Sized + use<> {
    let held: Vec<_> = (0..255).map_while(|_| world.limits.admit(source.into())).collect();
    assert_eq!(held.len(), 255);
    let other = Ipv4Addr::new(127, 0, 5, 250);
    let other = [vouched(world, other), world.limits.admit(other.into())];
    assert!(other.iter().all(Option::is_some));
    (held, other)
}

/// Makes an address the API server's: its connections have no deadlines. For as long as what is returned lives.
fn vouched(world: &World, source: Ipv4Addr) -> Option<virt_api::limits::Place> {
    world.limits.admit(source.into()).and_then(virt_api::limits::Place::vouch)
}

#[tokio::test]
async fn a_connection_that_is_served_gives_way_to_another_address() {
    let world = World::new(NO_HANDLER).await;
    let source = Ipv4Addr::new(127, 0, 5, 2);
    let _api_server = vouched(&world, source).unwrap();
    let mut oldest = world.connect_from(Caller::Nobody, source, &["http/1.1"]).await.unwrap();
    oldest.write_all(b"GET /healthz HTTP/1.1\r\nhost: virt-api\r\n\r\n").await.unwrap();
    let mut answer = [0; 4096];
    let bytes = timeout(TIMEOUT, oldest.read(&mut answer)).await.expect("no answer").unwrap();
    assert!(answer[..bytes].starts_with(b"HTTP/1.1 200"));
    let _held = displace_the_oldest(&world, source);
    let closed = timeout(TIMEOUT, oldest.read(&mut answer)).await.expect("it is still served");
    assert!(!matches!(closed, Ok(1..)), "{closed:?}");
}

#[tokio::test]
async fn a_connection_that_is_to_end_gives_way_as_well() {
    let world = World::new(NO_HANDLER).await;
    let source = Ipv4Addr::new(127, 0, 5, 3);
    let _api_server = vouched(&world, source).unwrap();
    let mut client = client(&world, Caller::Nobody, source).await;
    let _answer = under_way(&mut client).await;
    world.end();
    let refused = async {
        let request = || Request::get("https://virt-api/healthz").body(Empty::new()).unwrap();
        while client.send_request(request()).await.is_ok() {}
    };
    timeout(TIMEOUT, refused).await.expect("the server says that it ends");
    let _held = displace_the_oldest(&world, source);
    timeout(TIMEOUT, world.ended()).await.expect("it waits for the connection");
}

#[tokio::test]
async fn at_a_stop_answers_to_others_have_ten_seconds() {
    for (caller, seconds) in [(Caller::Nobody, Some(10)), (Caller::FrontProxy, None)] {
        let world = World::new(NO_HANDLER).await;
        let mut client = client(&world, caller, Ipv4Addr::new(127, 0, 5, 4)).await;
        let _answer = under_way(&mut client).await;
        tokio::time::pause();
        let begin = Instant::now();
        world.end();
        let ended = timeout(FOR_EVER, world.ended()).await;
        let took = ended.ok().map(|()| begin.elapsed().as_secs_f64().round() as u64);
        assert_eq!(took, seconds, "{caller:?}");
        tokio::time::resume();
    }
}

fn review(uid: &str, operation: &str, object: &Value) -> String {
    json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {"uid": uid, "operation": operation, "namespace": "ns", "object": object, "oldObject": object},
    })
    .to_string()
}

#[tokio::test]
async fn an_answer_to_a_review_has_a_size() {
    let world = World::new(NO_HANDLER).await;
    // The review's own identity comes back.
    let call = async |bytes: usize| {
        let review = review(&"u".repeat(bytes), "UPDATE", &json!({"spec": {}}));
        let path = world.review_path("/migration-validate-update");
        world.call(Caller::Nobody, "", Method::POST, &path, &review).await.unwrap()
    };
    let (code, answer) = call(1000).await;
    assert_eq!(code.as_u16(), 200);
    let most = ANSWER_BYTES - (answer.to_string().len() - 1000);
    assert_eq!(call(most).await.0.as_u16(), 200);
    let (code, answer) = call(most + 1).await;
    let why = format!(
        "the answer to the AdmissionReview has {} bytes; {ANSWER_BYTES} are allowed",
        ANSWER_BYTES + 1
    );
    assert_eq!((code.as_u16(), &answer["message"]), (400, &json!(why)));
}

#[tokio::test]
async fn a_reviews_text_is_forgotten_before_others_are_asked_about_it() {
    let world = World::new(NO_HANDLER).await;
    // What was in memory at each request to the API server.
    let seen: Arc<Mutex<Vec<i64>>> = Arc::default();
    let (buffered, log) = (world.metrics.buffered_bytes.clone(), Arc::clone(&seen));
    world.cluster.lock().unwrap().on_request = Some(Box::new(move || {
        log.lock().unwrap().push(buffered.get_or_create(&Side::Anyone.into()).get());
    }));
    let review = review("r", "CREATE", &json!({"metadata": {"name": "m"}, "spec": {"vmiName": "vm1"}}));
    let path = world.review_path("/migration-validate-create");
    let (code, _) = world.call(Caller::Nobody, "", Method::POST, &path, &review).await.unwrap();
    assert_eq!(code.as_u16(), 200);
    let seen = seen.lock().unwrap();
    assert!(!seen.is_empty() && seen.iter().all(|bytes| *bytes == 0), "{seen:?}");
}

#[tokio::test]
async fn options_have_a_size() {
    let world = World::new(NO_HANDLER).await;
    let call = async |method: Method, path: &str, bytes: usize| {
        let path = format!("{API}/{path}");
        let body = format!("{{{}}}", " ".repeat(bytes - 2));
        world.call(Caller::FrontProxy, "jane", method, &path, &body).await.unwrap().0.as_u16()
    };
    // There is no such machine.
    for (method, path) in [
        (Method::PUT, "virtualmachines/vm1/start"),
        (Method::PUT, "virtualmachineinstances/vm1/pause"),
        (Method::GET, "virtualmachineinstances/vm1/guestosinfo"),
    ] {
        assert_eq!(call(method.clone(), path, OPTIONS_BYTES).await, 404, "{method} {path}");
        assert_eq!(call(method.clone(), path, OPTIONS_BYTES + 1).await, 413, "{method} {path}");
    }
}

/// Half of a body has come: how many seconds later the server answers, and by what.
async fn answer_to_half_a_body(caller: Caller, side: Side, head: &str) -> (u64, String) {
    let world = World::new(NO_HANDLER).await;
    let mut stream = world.connect_from(caller, Ipv4Addr::new(127, 0, 5, 5), &["http/1.1"]).await.unwrap();
    let head = match head.strip_prefix("POST ") {
        Some(webhook) => format!("POST {}", world.review_path(webhook)),
        None => head.to_owned(),
    };
    let head =
        format!("{head} HTTP/1.1\r\nhost: virt-api\r\nx-remote-user: jane\r\ncontent-length: 9\r\n\r\n{{");
    stream.write_all(head.as_bytes()).await.unwrap();
    let buffered = world.metrics.buffered_bytes.get_or_create(&side.into()).clone();
    let read = async {
        while buffered.get() != 1 {
            tokio::task::yield_now().await;
        }
    };
    timeout(TIMEOUT, read).await.expect("the half is not read");
    tokio::time::pause();
    let (begin, mut answer) = (Instant::now(), vec![0; 1024]);
    let bytes = timeout(FOR_EVER, stream.read(&mut answer)).await.expect("the rest is waited for").unwrap();
    let seconds = begin.elapsed().as_secs_f64().round() as u64;
    tokio::time::resume();
    assert_eq!(buffered.get(), 0);
    (seconds, String::from_utf8_lossy(&answer[..bytes]).into_owned())
}

#[tokio::test]
async fn a_body_whose_end_does_not_come_is_given_up_in_time() {
    let review = "POST /migration-validate-update";
    let (put, get) = (
        format!("PUT {API}/virtualmachines/vm1/start"),
        format!("GET {API}/virtualmachineinstances/vm1/userlist"),
    );
    for (caller, side, head, seconds) in [
        (Caller::Nobody, Side::Anyone, review, 3),
        (Caller::FrontProxy, Side::ApiServer, review, 8),
        (Caller::FrontProxy, Side::ApiServer, &put, 8),
        (Caller::FrontProxy, Side::ApiServer, &get, 8),
    ] {
        let (took, answer) = answer_to_half_a_body(caller, side, head).await;
        assert!(answer.starts_with("HTTP/1.1 408"), "{head} of {caller:?}: {answer}");
        assert_eq!(took, seconds, "{head} of {caller:?}");
    }
}

#[tokio::test]
async fn a_short_review_of_many_levels_takes_no_more_memory_than_its_budget() {
    let world = World::new(NO_HANDLER).await;
    let chain = format!("{}0{}", r#"{"":"#.repeat(110), "}".repeat(110));
    for (chains, code, most) in [(1_000, 400, 32 << 20), (180, 200, 72 << 20)] {
        let chains = vec![chain.as_str(); chains].join(",");
        let body = format!(
            r#"{{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {{"uid": "r",
                "operation": "CREATE", "namespace": "ns", "object": {{"x": [{chains}]}}}}}}"#
        );
        ALLOCATOR.reset_peak_usage();
        let before = ALLOCATOR.current_usage();
        let path = world.review_path("/virtualmachineinstances-mutate");
        let (got, answer) = world.call(Caller::Nobody, "", Method::POST, &path, &body).await.unwrap();
        assert_eq!(got.as_u16(), code, "{}", answer["message"]);
        let bytes = ALLOCATOR.peak_usage().saturating_sub(before);
        assert!(bytes < most, "a review of {} bytes took {bytes}", body.len());
    }
}
