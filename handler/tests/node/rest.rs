//! What virt-api asks for: buttons, connections, consoles.

use std::net::SocketAddr;

use futures::{SinkExt, StreamExt};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{Error, Message};

use crate::support::api::Api;
use crate::support::launcher::Launcher;
use crate::support::netd::FlowTable;
use crate::support::{Ground, VMI, vmi, within};

/// Serves the REST interface without TLS and returns its address.
pub(crate) async fn rest(server: virt_handler::rest::Server) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(axum::serve(listener, server.router()).into_future());
    address
}

const PATH: &str = "/v1/namespaces/n/virtualmachineinstances/a";

pub(crate) async fn put(address: SocketAddr, what: &str) -> String {
    call(address, "PUT", what).await
}

async fn call(address: SocketAddr, method: &str, what: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!(
        "{method} {PATH}/{what} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn buttons_work_once() {
    let (ground, api) = (Ground::new(), Api::start().await);
    api.put(vmi("Scheduled"));
    let handler = ground.handler(&api);
    let address = rest(handler.rest.clone()).await;
    let _launcher = Launcher::start(&ground);
    api.wait_phase("Running").await;

    assert!(put(address, "pause").await.starts_with("HTTP/1.1 202"));
    let paused = |vmi: &serde_json::Value| vmi["status"]["conditions"][0]["reason"] == "PausedByUser";
    api.wait("the pause is told", paused).await;
    let again = put(address, "pause").await;
    assert!(again.starts_with("HTTP/1.1 409") && again.contains("VMI is already paused"), "{again}");
    assert!(put(address, "unpause").await.starts_with("HTTP/1.1 202"));
    assert!(put(address, "freeze").await.contains("guest agent"), "there is no agent");
    assert!(put(address, "dance").await.starts_with("HTTP/1.1 404"));
    let picture = call(address, "GET", "vnc/screenshot").await;
    assert!(picture.starts_with("HTTP/1.1 200") && picture.ends_with("<script>"), "{picture}");
    assert!(
        picture.contains("content-type: application/octet-stream\r\n"),
        "no type of the launcher's: {picture}"
    );
    handler.stop().await;
}

#[tokio::test]
async fn a_connection_is_accepted_when_the_guest_says_so() {
    let (ground, api) = (Ground::new(), Api::start().await);
    let mut machine = vmi("Scheduled");
    machine["spec"]["networks"] = json!([{"name": "default", "pod": {}}]);
    machine["spec"]["domain"]["devices"]["interfaces"] = json!([{"name": "default", "masquerade": {}}]);
    api.put(machine);
    let handler = ground.handler(&api);
    let address = rest(handler.rest.clone()).await;
    let _launcher = Launcher::start(&ground);
    api.wait_phase("Running").await;
    let ask = async |peer: &str| call(address, "GET", &format!("accepted?peer={peer}")).await;

    let answer = ask("10.1.0.2:4000").await;
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("netd cannot be reached"), "{answer}");
    let netd = FlowTable::start(&ground);
    netd.set("[::ffff:10.1.0.2]:4000", "ESTABLISHED");
    assert!(ask("10.1.0.2:4000").await.starts_with("HTTP/1.1 204"));
    // One that is over, or that a mesh's proxy has taken.
    let answer = ask("[fd00::2]:4000").await;
    assert!(answer.starts_with("HTTP/1.1 404") && answer.contains("from [fd00::2]:4000"), "{answer}");
    // A guest that takes its time.
    netd.set("10.1.0.2:4000", "SYN-SENT");
    let before = netd.asked();
    let (answer, ()) = tokio::join!(ask("10.1.0.2:4000"), async {
        within("netd is asked again", async {
            while netd.asked() < before + 3 {
                tokio::task::yield_now().await;
            }
        })
        .await;
        netd.set("10.1.0.2:4000", "ESTABLISHED");
    });
    assert!(answer.starts_with("HTTP/1.1 204"), "{answer}");
    for wrong in ["", "?peer=", "?peer=10.1.0.2", "?peer=x:1"] {
        let answer = call(address, "GET", &format!("accepted{wrong}")).await;
        assert!(answer.starts_with("HTTP/1.1 400"), "{wrong}: {answer}");
    }
    handler.stop().await;
}

#[tokio::test]
async fn a_console_carries_bytes_until_another_client_takes_it() {
    let (ground, api) = (Ground::new(), Api::start().await);
    api.put(vmi("Scheduled"));
    let handler = ground.handler(&api);
    let address = rest(handler.rest.clone()).await;
    let open = async |query: &str| {
        let mut request = format!("ws://{address}{PATH}/console{query}").into_client_request().unwrap();
        request.headers_mut().insert("sec-websocket-protocol", "plain.kubevirt.io".parse().unwrap());
        let stream = TcpStream::connect(address).await.unwrap();
        tokio_tungstenite::client_async(request, stream).await
    };
    let refused = async |query: &str| match open(query).await {
        Err(Error::Http(answer)) => answer.status().as_u16(),
        other => panic!("{other:?}"),
    };
    api.wait("the VMI is known", |_| true).await;
    within("a VMI on its way", async { while refused("").await != 400 {} }).await;

    let _launcher = Launcher::start(&ground);
    api.wait_phase("Running").await;
    let machine = ground.volume("private").join(VMI);
    within("no console yet", async { while refused("").await != 409 {} }).await;
    std::fs::create_dir(&machine).unwrap();
    let serial = ground.listen("private", VMI, "virt-serial0");

    let (mut first, answer) = open("").await.unwrap();
    assert_eq!(answer.headers()["sec-websocket-protocol"], "plain.kubevirt.io");
    let (mut guest, _) = serial.accept().await.unwrap();
    guest.write_all(b"login: ").await.unwrap();
    assert_eq!(first.next().await.unwrap().unwrap(), Message::binary(&b"login: "[..]));
    first.send(Message::binary(&b"root\r"[..])).await.unwrap();
    let mut said = [0; 5];
    guest.read_exact(&mut said).await.unwrap();
    assert_eq!(&said, b"root\r");

    assert_eq!(refused("?preserveSession=true").await, 409);
    let (mut second, _) = open("").await.unwrap();
    // The first client's connection ends without a Close frame: only then does upstream's virtctl tell its user.
    assert!(matches!(first.next().await, Some(Err(_))));
    assert_eq!(guest.read(&mut said).await.unwrap(), 0, "the first one's connection is closed");

    let (guest, _) = serial.accept().await.unwrap();
    drop(guest);
    assert!(
        matches!(second.next().await, Some(Ok(Message::Close(Some(why)))) if why.reason.contains("machine"))
    );
    handler.stop().await;
}
