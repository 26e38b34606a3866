//! Ports and standard streams.

use std::process::Stdio;

use futures::{SinkExt as _, StreamExt as _};
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::net::{TcpStream, UdpSocket};
use tokio::process::{Child, ChildStdout};
use tokio_tungstenite::tungstenite::Message;

use crate::fake::{Done, Fake, Reply};

const VMI: &str = "/apis/subresources.kubevirt.io/v1/namespaces/blue/virtualmachineinstances/testvmi";

async fn machine() -> Fake {
    Fake::start(|asked| {
        if asked.line.ends_with("/portforward/81/tcp") {
            Reply::status(500, "InternalError", "dialing VM: connection refused")
        } else if asked.line.contains("/portforward/") {
            Reply::echo()
        } else {
            Reply::Json(200, json!({"status": {"phase": "Running"}}))
        }
    })
    .await
}

/// The program, and what it prints: one line for each port once all are there.
fn start(fake: &Fake, words: &[&str]) -> (Child, Lines<BufReader<ChildStdout>>) {
    let mut child = fake
        .command(words)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    (child, lines)
}

async fn address(lines: &mut Lines<BufReader<ChildStdout>>, protocol: &str, remote: u16) -> String {
    let line = lines.next_line().await.unwrap().unwrap();
    let rest = line.strip_prefix(&format!("forwarding {protocol} ")).unwrap();
    rest.strip_suffix(&format!(" to {remote}")).unwrap().to_owned()
}

#[tokio::test]
async fn each_connection_gets_a_stream() {
    let fake = machine().await;
    let (_child, mut lines) = start(&fake, &["port-forward", "vmi/testvmi", "0:80"]);
    let address = address(&mut lines, "tcp", 80).await;
    let sent = vec![7; 200_000];
    let mut all = Vec::new();
    for _ in 0..2 {
        let mut connection = TcpStream::connect(&address).await.unwrap();
        let (mut reader, mut writer) = connection.split();
        let mut heard = vec![0; sent.len()];
        let (wrote, read) = tokio::join!(writer.write_all(&sent), reader.read_exact(&mut heard));
        wrote.unwrap();
        read.unwrap();
        assert_eq!(heard, sent);
        all.push(connection);
    }
    let streams =
        fake.lines().iter().filter(|line| **line == format!("GET {VMI}/portforward/80/tcp")).count();
    assert_eq!(streams, 2);
}

#[tokio::test]
async fn a_port_without_a_listener_ends_its_connection_and_no_other() {
    let fake = machine().await;
    let (mut child, mut lines) = start(&fake, &["port-forward", "vmi/testvmi", "0:81", "tcp/0:80"]);
    let (dead, alive) = (address(&mut lines, "tcp", 81).await, address(&mut lines, "tcp", 80).await);
    let mut told = BufReader::new(child.stderr.take().unwrap()).lines();
    for _ in 0..2 {
        let mut connection = TcpStream::connect(&dead).await.unwrap();
        assert_eq!(connection.read(&mut [0]).await.unwrap(), 0);
        assert_eq!(
            told.next_line().await.unwrap().unwrap(),
            "error: cannot forward tcp port 81 of VMI \"testvmi\" in namespace \"blue\": dialing VM: connection refused"
        );
    }
    let mut connection = TcpStream::connect(&alive).await.unwrap();
    connection.write_all(b"x").await.unwrap();
    assert_eq!(connection.read_u8().await.unwrap(), b'x');
}

#[tokio::test]
async fn the_machines_end_of_a_connection_is_the_connections() {
    let fake = Fake::start(|asked| {
        if !asked.line.contains("/portforward/") {
            return Reply::ok();
        }
        Reply::stream(|mut socket| async move {
            socket.send(Message::binary(&b"bye"[..])).await.unwrap();
            socket.close(None).await.unwrap();
            while let Some(Ok(_)) = socket.next().await {}
        })
    })
    .await;
    let (_child, mut lines) = start(&fake, &["port-forward", "vmi/testvmi", "0:80"]);
    let mut connection = TcpStream::connect(address(&mut lines, "tcp", 80).await).await.unwrap();
    let mut heard = Vec::new();
    connection.read_to_end(&mut heard).await.unwrap();
    assert_eq!(heard, b"bye");
}

#[tokio::test]
async fn each_sender_of_datagrams_gets_a_stream() {
    let fake = machine().await;
    let (_child, mut lines) = start(&fake, &["port-forward", "vmi/testvmi", "udp/0:53"]);
    let address = address(&mut lines, "udp", 53).await;
    let mut senders = Vec::new();
    for name in [&b"one"[..], b"two"] {
        let sender = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        sender.connect(&address).await.unwrap();
        for size in [name.len(), 0, 1400] {
            let datagram = name.iter().copied().cycle().take(size).collect::<Vec<_>>();
            sender.send(&datagram).await.unwrap();
            let mut heard = [0; 2000];
            let length = sender.recv(&mut heard).await.unwrap();
            assert_eq!(heard[..length], datagram);
        }
        senders.push(sender);
    }
    let streams =
        fake.lines().iter().filter(|line| **line == format!("GET {VMI}/portforward/53/udp")).count();
    assert_eq!(streams, 2);
}

#[tokio::test]
async fn the_standard_streams_are_one_port() {
    let fake = machine().await;
    let mut child = fake
        .command(&["port-forward", "--stdio=true", "vmi/testvmi/blue", "22"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut stdin, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let sent: Vec<_> = (0..300_000).map(|index: usize| u8::try_from(index % 251).unwrap()).collect();
    let mut heard = vec![0; sent.len()];
    let (wrote, read) = tokio::join!(stdin.write_all(&sent), stdout.read_exact(&mut heard));
    wrote.unwrap();
    read.unwrap();
    assert_eq!(heard, sent);
    drop(stdin);
    let done = Done::from(child.wait_with_output().await.unwrap());
    assert_eq!((done.code, done.err.as_str()), (Some(0), ""));
    assert_eq!(fake.lines(), [format!("GET {VMI}/portforward/22/tcp")]);
}

#[tokio::test]
async fn wrong_targets_are_told_at_once() {
    let fake = Fake::start(|asked| {
        let kind =
            if asked.line.contains("virtualmachines/") { "virtualmachine" } else { "virtualmachineinstance" };
        Reply::status(404, "NotFound", &format!("{kind}.kubevirt.io not found"))
    })
    .await;
    for (line, told) in [
        (
            "port-forward vmi/gone 80",
            "cannot forward ports of VMI \"gone\" in namespace \"blue\": there is no such vmi",
        ),
        (
            "port-forward vm/gone/red 80",
            "cannot forward ports of VM \"gone\" in namespace \"red\": there is no such vm",
        ),
        (
            "port-forward --stdio vmi/gone 22",
            "cannot forward tcp port 22 of VMI \"gone\" in namespace \"blue\": there is no such vmi",
        ),
        ("port-forward --stdio vmi/a 22 23", "--stdio forwards one port, not 2"),
        ("port-forward gone 80", "target \"gone\" must have the form"),
        ("port-forward vmi/gone http", "port \"http\" must have the form"),
        ("port-forward vmi/gone", "LOCAL"),
    ] {
        let done = fake.run(&line.split(' ').collect::<Vec<_>>()).await;
        assert_eq!((done.code, done.out.as_str()), (Some(1), ""), "{line}");
        assert!(done.err.contains(told), "{line}: {}", done.err);
    }
}

#[tokio::test]
async fn an_address_of_another_machine_is_told() {
    let fake = machine().await;
    // RFC 5737: no machine has this address.
    let done = fake.run(&["port-forward", "vmi/testvmi", "0:80", "--address", "192.0.2.1"]).await;
    assert_eq!((done.code, done.out.as_str()), (Some(1), ""));
    assert!(done.err.starts_with("error: cannot listen on tcp 192.0.2.1:0: "), "{}", done.err);
}

#[tokio::test]
async fn a_dot_divides_name_and_namespace_where_no_machine_has_the_dotted_name() {
    let fake = Fake::start(|asked| match asked.line.as_str() {
        line if line.ends_with("/blue/virtualmachineinstances/has.dot") => Reply::Json(200, json!({})),
        line if line.starts_with("GET /apis/kubevirt.io/") => {
            Reply::status(404, "NotFound", "virtualmachineinstance.kubevirt.io not found")
        }
        _ => Reply::echo(),
    })
    .await;
    let done = fake.run(&["port-forward", "--stdio", "vmi/old.red", "22"]).await;
    assert_eq!(done.code, Some(0));
    assert!(done.err.contains("vmi/old/red, which is how to write it"), "{}", done.err);
    assert!(
        fake.lines()
            .pop()
            .unwrap()
            .contains("/namespaces/red/virtualmachineinstances/old/portforward/22/tcp")
    );
    let done = fake.run(&["port-forward", "--stdio", "vmi/has.dot", "22"]).await;
    assert_eq!((done.code, done.err.as_str()), (Some(0), ""));
    assert!(
        fake.lines()
            .pop()
            .unwrap()
            .contains("/namespaces/blue/virtualmachineinstances/has.dot/portforward/22/tcp")
    );
}
