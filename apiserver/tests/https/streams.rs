//! Streams: consoles by way of virt-handler, ports straight to the guest.

use std::time::Duration;

use futures::{SinkExt, StreamExt};
use http::{HeaderValue, Method, Request};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::client::TlsStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::handshake::server::{Request as Asked, Response as Granted};
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Error, Message};

use super::world::{Caller, VMI, World, vmi};
use super::{API, NO_HANDLER};

const SUBPROTOCOL: &str = "plain.kubevirt.io";
/// Largest answer of a virt-handler to a short request, in bytes.
const MAX_ANSWER_BYTES: usize = 4 << 20;
/// Largest picture of a screen, in bytes.
const MAX_PICTURE_BYTES: usize = 16 << 20;

type Socket = WebSocketStream<TlsStream<TcpStream>>;

/// Opens a WebSocket as jane, as the API server would hand it on.
async fn open(world: &World, path: &str) -> Result<Socket, (u16, String)> {
    let mut request: Request<()> =
        format!("wss://virt-api{API}/virtualmachineinstances/vm1/{path}").into_client_request().unwrap();
    let headers = request.headers_mut();
    headers.insert("x-remote-user", HeaderValue::from_static("jane"));
    headers.insert("sec-websocket-protocol", HeaderValue::from_static(SUBPROTOCOL));
    let stream = world.connect(Caller::FrontProxy).await.unwrap();
    match tokio_tungstenite::client_async(request, stream).await {
        Ok((socket, response)) => {
            assert_eq!(response.headers()["sec-websocket-protocol"], SUBPROTOCOL);
            Ok(socket)
        }
        Err(Error::Http(response)) => {
            let body = response.body().clone().unwrap_or_default();
            Err((response.status().as_u16(), String::from_utf8(body).unwrap()))
        }
        Err(error) => panic!("{error}"),
    }
}

/// A virt-handler that serves one connection with `serve`.
async fn handler<F, S>(serve: F) -> World
where
    F: FnOnce(tokio_rustls::server::TlsStream<TcpStream>) -> S + Send + 'static,
    S: Future<Output = ()> + Send,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let world = World::new(listener.local_addr().unwrap().port()).await;
    world.put(VMI, vmi());
    let acceptor = TlsAcceptor::from(world.handler.server_config(true).unwrap());
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        serve(acceptor.accept(stream).await.unwrap()).await;
    });
    world
}

/// Accepts the WebSocket of a console.
async fn accept(
    stream: tokio_rustls::server::TlsStream<TcpStream>,
) -> WebSocketStream<tokio_rustls::server::TlsStream<TcpStream>> {
    // The signature is the library's.
    #[allow(clippy::result_large_err)]
    let check = |asked: &Asked, mut granted: Granted| {
        assert_eq!(asked.uri().path(), "/v1/namespaces/ns/virtualmachineinstances/vm1/console");
        assert_eq!(asked.uri().query(), Some("a=b"));
        assert!(!asked.headers().contains_key("x-remote-user"), "users are not virt-handler's business");
        let protocol = asked.headers()["sec-websocket-protocol"].clone();
        granted.headers_mut().insert("sec-websocket-protocol", protocol);
        Ok(granted)
    };
    tokio_tungstenite::accept_hdr_async(stream, check).await.unwrap()
}

#[tokio::test]
async fn a_console_carries_frames_both_ways_and_the_guests_close_code() {
    let world = handler(async |stream| {
        let mut console = accept(stream).await;
        let Some(Ok(Message::Binary(said))) = console.next().await else { panic!() };
        console.send(Message::binary([b"echo ", &said[..]].concat())).await.unwrap();
        let end = CloseFrame { code: CloseCode::Away, reason: "VM stopped".into() };
        console.close(Some(end)).await.unwrap();
        while console.next().await.is_some() {}
    })
    .await;
    let mut socket = open(&world, "console?a=b").await.unwrap();
    socket.send(Message::binary("login")).await.unwrap();
    assert_eq!(socket.next().await.unwrap().unwrap(), Message::binary("echo login"));
    let Some(Ok(Message::Close(Some(frame)))) = socket.next().await else { panic!() };
    assert_eq!((frame.code, frame.reason.as_str()), (CloseCode::Away, "VM stopped"));
    assert!(!matches!(socket.next().await, Some(Ok(_))), "the connection ends behind the close frame");
}

#[tokio::test]
async fn a_client_that_goes_away_ends_the_console() {
    let (tell, told) = tokio::sync::oneshot::channel();
    let world = handler(async |stream| {
        let mut console = accept(stream).await;
        while let Some(Ok(_)) = console.next().await {}
        tell.send(()).unwrap();
    })
    .await;
    let socket = open(&world, "console?a=b").await.unwrap();
    drop(socket);
    told.await.unwrap();
}

#[tokio::test]
async fn virt_handlers_refusal_is_handed_on() {
    let refuse = async |mut stream: tokio_rustls::server::TlsStream<TcpStream>| {
        let mut request = [0; 4096];
        let _ = stream.read(&mut request).await.unwrap();
        let body = json!({"kind": "Status", "code": 409, "message": "the console is in use"}).to_string();
        let head = format!(
            "HTTP/1.1 409 Conflict\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all((head + &body).as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
    };
    let world = handler(refuse).await;
    let (code, body) = open(&world, "console").await.unwrap_err();
    assert!(code == 409 && body.contains("the console is in use"), "{code} {body}");

    let world = handler(refuse).await;
    let path = format!("{API}/virtualmachineinstances/vm1/pause");
    let (code, body) = world.call(Caller::FrontProxy, "jane", Method::PUT, &path, "").await.unwrap();
    assert_eq!((code.as_u16(), &body["message"]), (409, &json!("the console is in use")));
}

#[tokio::test]
async fn an_answer_of_virt_handler_has_a_size() {
    for (path, most) in
        [("pause", MAX_ANSWER_BYTES), ("console", MAX_ANSWER_BYTES), ("vnc/screenshot", MAX_PICTURE_BYTES)]
    {
        for (bytes, expected) in [(most, 409), (most + 1, 503)] {
            let world = handler(async move |mut stream| {
                let mut request = [0; 4096];
                let _ = stream.read(&mut request).await.unwrap();
                let head = format!("HTTP/1.1 409 Conflict\r\ncontent-length: {bytes}\r\n\r\n");
                stream.write_all(head.as_bytes()).await.unwrap();
                // virt-api closes the connection when it has seen enough.
                let _refused = stream.write_all(&vec![b' '; bytes]).await;
                // What the connection does not take at once stays in TLS' buffer.
                let _refused = stream.flush().await;
                let _ended = stream.read(&mut request).await;
            })
            .await;
            let code = if path == "console" {
                open(&world, path).await.unwrap_err().0
            } else {
                let path = format!("{API}/virtualmachineinstances/vm1/{path}");
                let method = if path.ends_with("screenshot") { Method::GET } else { Method::PUT };
                world.call(Caller::FrontProxy, "jane", method, &path, "").await.unwrap().0.as_u16()
            };
            assert_eq!(code, expected, "{path}: {bytes}");
        }
    }
}

#[tokio::test]
async fn a_stream_needs_an_upgrade_and_a_running_instance() {
    let world = World::new(NO_HANDLER).await;
    let call = async |path: &str| {
        let path = format!("{API}/virtualmachineinstances/vm1/{path}");
        world.call(Caller::FrontProxy, "jane", Method::GET, &path, "").await.unwrap().0.as_u16()
    };
    assert_eq!((call("console").await, call("portforward/22").await), (400, 400));
    assert_eq!(open(&world, "console").await.unwrap_err().0, 404);
    let mut stopped = vmi();
    stopped["status"]["phase"] = json!("Succeeded");
    world.put(VMI, stopped);
    for path in ["console", "vnc", "portforward/22"] {
        let (code, body) = open(&world, path).await.unwrap_err();
        assert!(code == 409 && body.contains("VMI is not running"), "{path}: {code} {body}");
    }
    assert_eq!(open(&world, "portforward/0").await.unwrap_err().0, 400);
}

async fn guest() -> (World, TcpListener, u16) {
    let world = World::new(NO_HANDLER).await;
    world.put(VMI, vmi());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (world, listener, port)
}

#[tokio::test]
async fn a_forwarded_port_carries_bytes_and_ends_with_the_guest() {
    let (world, listener, port) = guest().await;
    let mut socket = open(&world, &format!("portforward/{port}/tcp")).await.unwrap();
    let (mut stream, _) = listener.accept().await.unwrap();
    let long: Vec<u8> = (0..300_000u32).map(|n| n as u8).collect();
    socket.send(Message::binary(long.clone())).await.unwrap();
    let mut got = vec![0; long.len()];
    stream.read_exact(&mut got).await.unwrap();
    assert_eq!(got, long);
    stream.write_all(b"bye").await.unwrap();
    drop(stream);
    assert_eq!(socket.next().await.unwrap().unwrap(), Message::binary("bye"));
    let Some(Ok(Message::Close(Some(frame)))) = socket.next().await else { panic!() };
    assert_eq!(frame.code, CloseCode::Normal);
    assert!(socket.next().await.is_none(), "the connection ends behind the close frame");
}

/// A virt-handler that answers `line` to whether the guest has accepted, and what it was asked; empty: it never answers.
async fn judged(
    line: &'static str,
) -> (World, TcpListener, u16, tokio::sync::mpsc::UnboundedReceiver<String>) {
    let (tell, told) = tokio::sync::mpsc::unbounded_channel();
    let world = handler(async move |mut stream: tokio_rustls::server::TlsStream<TcpStream>| {
        let mut request = vec![0; 4096];
        let length = stream.read(&mut request).await.unwrap();
        tell.send(String::from_utf8_lossy(&request[..length]).into_owned()).unwrap();
        if line.is_empty() {
            std::future::pending::<()>().await;
        }
        stream.write_all(format!("HTTP/1.1 {line}\r\ncontent-length: 0\r\n\r\n").as_bytes()).await.unwrap();
        // Until virt-api goes.
        while stream.read(&mut request).await.is_ok_and(|length| length > 0) {}
    })
    .await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (world, listener, port, told)
}

#[tokio::test]
async fn a_port_is_forwarded_when_the_guest_has_accepted() {
    for line in ["204 No Content", "404 Not Found", "500 Internal Server Error"] {
        let (world, listener, port, mut told) = judged(line).await;
        let mut socket = open(&world, &format!("portforward/{port}/tcp")).await.unwrap();
        let (mut stream, peer) = listener.accept().await.unwrap();
        let asked = told.recv().await.unwrap();
        let expected =
            format!("GET /v1/namespaces/ns/virtualmachineinstances/vm1/accepted?peer={peer} HTTP/1.1\r\n");
        assert!(asked.starts_with(&expected), "{asked}");
        stream.write_all(b"hello").await.unwrap();
        assert_eq!(socket.next().await.unwrap().unwrap(), Message::binary("hello"));
    }
    // What the guest says is word enough.
    let (world, listener, port, _told) = judged("").await;
    let path = format!("portforward/{port}/tcp");
    let (socket, mut stream) = tokio::join!(open(&world, &path), async {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"SSH-2.0-x").await.unwrap();
        stream
    });
    let mut socket = socket.unwrap();
    assert_eq!(socket.next().await.unwrap().unwrap(), Message::binary("SSH-2.0-x"));
    stream.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_virt_handler_that_hangs_keeps_no_port_closed() {
    let (world, listener, port, mut told) = judged("").await;
    let path = format!("portforward/{port}/tcp");
    let mut opening = std::pin::pin!(open(&world, &path));
    let asked = async {
        let (stream, _) = listener.accept().await.unwrap();
        told.recv().await.unwrap();
        stream
    };
    let mut stream = tokio::select! {
        opened = &mut opening => panic!("the guest has not accepted: {}", opened.is_ok()),
        stream = asked => stream,
    };
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(21)).await;
    tokio::time::resume();
    let opened = tokio::time::timeout(Duration::from_secs(20), opening).await;
    let mut socket = opened.expect("the tunnel stays closed").unwrap();
    stream.write_all(b"late").await.unwrap();
    assert_eq!(socket.next().await.unwrap().unwrap(), Message::binary("late"));
}

#[tokio::test]
async fn a_guest_that_refuses_or_is_silent_is_told_before_the_tunnel_opens() {
    let (world, _listener, port, _told) = judged("504 Gateway Timeout").await;
    let (code, body) = open(&world, &format!("portforward/{port}/tcp")).await.unwrap_err();
    assert!(code == 500 && body.contains("timed out"), "{code} {body}");

    let (world, listener, port, _told) = judged("").await;
    let path = format!("portforward/{port}/tcp");
    let (refused, ()) = tokio::join!(open(&world, &path), async {
        // As netd does it: the connection stands, and is reset when the guest has refused.
        let (stream, _) = listener.accept().await.unwrap();
        stream.set_zero_linger().unwrap();
    });
    let (code, body) = refused.unwrap_err();
    assert!(code == 500 && body.contains("connection refused"), "{code} {body}");
}

#[tokio::test]
async fn a_client_that_closes_ends_the_guests_connection_behind_the_last_byte() {
    let (world, listener, port) = guest().await;
    let mut socket = open(&world, &format!("portforward/{port}")).await.unwrap();
    let (mut stream, _) = listener.accept().await.unwrap();
    socket.send(Message::binary("last words")).await.unwrap();
    socket.close(None).await.unwrap();
    let mut got = Vec::new();
    stream.read_to_end(&mut got).await.unwrap();
    assert_eq!(got, b"last words");
    drop(stream);
    while let Some(Ok(_)) = socket.next().await {}
}

#[tokio::test]
async fn what_a_guest_says_after_the_clients_close_is_delivered_before_the_answer() {
    let (world, listener, port) = guest().await;
    let mut socket = open(&world, &format!("portforward/{port}")).await.unwrap();
    let (mut stream, _) = listener.accept().await.unwrap();
    // A whole message, a Ping and a Close, each masked with zeros, past a library that would end with the Close.
    let frames = [&b"\x82\x83\0\0\0\0GET"[..], b"\x89\x81\0\0\0\0p", b"\x88\x82\0\0\0\0\x03\xe8"].concat();
    let raw = socket.get_mut();
    raw.write_all(&frames).await.unwrap();
    let mut asked = Vec::new();
    stream.read_to_end(&mut asked).await.unwrap();
    assert_eq!(asked, b"GET");
    stream.write_all(b"page").await.unwrap();
    drop(stream);
    let mut answer = Vec::new();
    raw.read_to_end(&mut answer).await.unwrap();
    assert_eq!(answer, b"\x8a\x01p\x82\x04page\x88\x02\x03\xe8", "Pong, data, Close, and a clean end of TLS");
}

#[tokio::test]
async fn a_client_that_breaks_the_protocol_is_told() {
    let (world, listener, port) = guest().await;
    let mut socket = open(&world, &format!("portforward/{port}")).await.unwrap();
    let (mut stream, _) = listener.accept().await.unwrap();
    socket.get_mut().write_all(b"\x82\x03GET").await.unwrap();
    let Some(Ok(Message::Close(Some(frame)))) = socket.next().await else { panic!() };
    assert_eq!((frame.code, frame.reason.as_str()), (CloseCode::Protocol, "the frame is not masked"));
    assert_eq!(stream.read(&mut [0; 8]).await.unwrap(), 0);
}

#[tokio::test]
async fn a_guest_that_breaks_the_connection_is_told_as_an_error() {
    let (world, listener, port) = guest().await;
    let mut socket = open(&world, &format!("portforward/{port}")).await.unwrap();
    let (stream, _) = listener.accept().await.unwrap();
    stream.set_zero_linger().unwrap();
    drop(stream);
    let Some(Ok(Message::Close(Some(frame)))) = socket.next().await else { panic!() };
    assert_eq!(frame.code, CloseCode::Error);
    assert!(frame.reason.contains("reset"), "{}", frame.reason);
}

#[tokio::test]
async fn a_port_without_a_listener_is_told_before_the_upgrade() {
    let (world, listener, port) = guest().await;
    drop(listener);
    let (code, body) = open(&world, &format!("portforward/{port}")).await.unwrap_err();
    assert!(code == 500 && body.contains("refused"), "{code} {body}");
}

#[tokio::test]
async fn a_udp_port_keeps_datagrams_apart() {
    let world = World::new(NO_HANDLER).await;
    world.put(VMI, vmi());
    let guest = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let port = guest.local_addr().unwrap().port();
    let mut socket = open(&world, &format!("portforward/{port}/udp")).await.unwrap();
    socket.send(Message::binary("one")).await.unwrap();
    socket.send(Message::binary("two")).await.unwrap();
    let mut buffer = [0; 64];
    for word in ["one", "two"] {
        let (length, peer) = guest.recv_from(&mut buffer).await.unwrap();
        assert_eq!(&buffer[..length], word.as_bytes());
        guest.send_to(&buffer[..length], peer).await.unwrap();
        assert_eq!(socket.next().await.unwrap().unwrap(), Message::binary(word));
    }
    socket.send(Message::binary(vec![0; 65_508])).await.unwrap();
    let Some(Ok(Message::Close(Some(frame)))) = socket.next().await else { panic!() };
    assert_eq!(frame.code, CloseCode::Size);
}

#[tokio::test]
async fn the_handler_of_another_node_is_not_spoken_to() {
    // It shows the certificate of node1.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let world = World::new(listener.local_addr().unwrap().port()).await;
    let mut elsewhere = vmi();
    elsewhere["status"]["nodeName"] = "node2".into();
    world.put(VMI, elsewhere);
    let acceptor = TlsAcceptor::from(world.handler.server_config(true).unwrap());
    let shaken = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        acceptor.accept(stream).await.map(drop)
    });
    let (code, message) = open(&world, "console?a=b").await.map(drop).unwrap_err();
    assert_eq!(code, 503, "{message}");
    assert!(message.contains("virt-handler on node node2 cannot be reached"), "{message}");
    shaken.await.unwrap().unwrap_err();
}
