//! The display, by a port and by a viewer.

use std::process::Stdio;

use futures::{SinkExt as _, StreamExt as _};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;

use crate::fake::{Done, Fake, Reply};

const VNC: &str = "GET /apis/subresources.kubevirt.io/v1/namespaces/blue/virtualmachineinstances/testvmi/vnc";

/// A VNC server as far as the test needs one: it greets, then says what it hears.
fn display() -> Reply {
    Reply::stream(|mut socket| async move {
        socket.send(Message::binary(&b"RFB 003.008\n"[..])).await.unwrap();
        while let Some(Ok(message)) = socket.next().await {
            if message.is_binary() {
                let _ = socket.send(message).await;
            }
        }
    })
}

async fn as_viewer(port: u16) {
    let mut viewer = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let mut greeting = [0; 12];
    viewer.read_exact(&mut greeting).await.unwrap();
    assert_eq!(&greeting, b"RFB 003.008\n");
    viewer.write_all(b"hello").await.unwrap();
    let mut heard = [0; 5];
    viewer.read_exact(&mut heard).await.unwrap();
    assert_eq!(&heard, b"hello");
}

#[tokio::test]
async fn proxy_only_prints_the_port_and_ends_with_its_viewer() {
    let fake = Fake::start(|asked| if asked.line.starts_with(VNC) { display() } else { Reply::ok() }).await;
    let mut child = fake
        .command(&["vnc", "testvmi", "--proxy-only"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).await.unwrap();
    let port = serde_json::from_str::<Value>(&line).unwrap()["port"].as_u64().unwrap();
    assert_eq!(line, format!("{{\"port\":{port}}}\n"));
    as_viewer(u16::try_from(port).unwrap()).await;
    let done = Done::from(child.wait_with_output().await.unwrap());
    assert_eq!((done.code, done.err.as_str()), (Some(0), ""));
    assert_eq!(fake.lines()[0], format!("{VNC}?preserveSession=false"));
}

#[tokio::test]
async fn a_viewer_is_found_and_given_the_port() {
    let fake = Fake::start(|asked| if asked.line.starts_with(VNC) { display() } else { Reply::ok() }).await;
    // The viewer hands its address to the test and goes when the test is done.
    let fifo = fake.home.path().join("address");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    fake.install("vncviewer", &format!("#!/bin/sh\necho \"$1\" >{}\nexec sleep 600\n", fifo.display()));
    let path = fake.path();
    let child = fake
        .command(&["vnc", "testvmi", "--preserve-session"])
        .env("PATH", &path)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let address = tokio::fs::read_to_string(&fifo).await.unwrap();
    let port = address.trim().strip_prefix("127.0.0.1::").unwrap().parse().unwrap();
    as_viewer(port).await;
    let done = Done::from(child.wait_with_output().await.unwrap());
    assert_eq!((done.code, done.out.as_str(), done.err.as_str()), (Some(0), "", ""));
    assert_eq!(fake.lines()[0], format!("{VNC}?preserveSession=true"));
}

#[tokio::test]
async fn viewers_that_fail_or_lack_are_told() {
    let fake = Fake::start(|_| display()).await;
    let done =
        Done::from(fake.command(&["vnc", "testvmi"]).env("PATH", "/nonexistent").output().await.unwrap());
    assert_eq!(done.code, Some(1));
    assert!(
        done.err.contains("no VNC viewer found in $PATH (looked for remote-viewer, vncviewer"),
        "{}",
        done.err
    );
    fake.install("remote-viewer", "#!/bin/sh\nexit 3\n");
    let done = Done::from(fake.command(&["vnc", "testvmi"]).env("PATH", fake.path()).output().await.unwrap());
    assert_eq!(done.code, Some(1));
    assert!(done.err.contains("the viewer ended before it connected (exit status: 3)"), "{}", done.err);
}

#[tokio::test]
async fn a_machine_that_is_not_there_is_told_before_a_port_is_opened() {
    let fake = Fake::start(|_| {
        Reply::status(404, "NotFound", "virtualmachineinstance.kubevirt.io \"testvmi\" not found")
    })
    .await;
    let done = fake.run(&["vnc", "testvmi", "--proxy-only"]).await;
    assert_eq!((done.code, done.out.as_str()), (Some(1), ""));
    assert!(
        done.err.contains(
            "cannot open the display of VMI \"testvmi\" in namespace \"blue\": there is no such vmi"
        ),
        "{}",
        done.err
    );
}

#[tokio::test]
async fn a_display_that_closes_before_its_viewer_comes_is_told() {
    let fake = Fake::start(|_| {
        Reply::stream(|mut socket| async move {
            socket.close(None).await.unwrap();
            while let Some(Ok(_)) = socket.next().await {}
        })
    })
    .await;
    let done = fake.run(&["vnc", "testvmi", "--proxy-only"]).await;
    assert_eq!(done.code, Some(1));
    assert!(done.err.contains("was closed before a viewer connected"), "{}", done.err);
}
