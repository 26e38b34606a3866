//! The serial console, with and without a terminal.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::{SinkExt as _, StreamExt as _};
use nix::pty::openpty;
use nix::sys::signal::{Signal, kill};
use nix::sys::termios::{LocalFlags, tcgetattr};
use nix::unistd::Pid;
use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;

use crate::fake::{Asked, Done, Fake, Reply};

const CONSOLE: &str =
    "GET /apis/subresources.kubevirt.io/v1/namespaces/blue/virtualmachineinstances/testvmi/console";

fn on_console(asked: &Asked, reply: impl FnOnce() -> Reply) -> Reply {
    if asked.line == CONSOLE { reply() } else { Reply::Json(200, json!({"status": {"phase": "Running"}})) }
}

#[tokio::test]
async fn what_is_typed_arrives_up_to_the_escape_key() {
    let (heard, mut hears) = mpsc::unbounded_channel();
    let fake = Fake::start(move |asked| {
        let heard = heard.clone();
        on_console(asked, || {
            Reply::stream(|mut socket| async move {
                socket.send(Message::binary(&b"login: "[..])).await.unwrap();
                while let Some(Ok(message)) = socket.next().await {
                    if message.is_binary() {
                        heard.send(message.into_data().to_vec()).unwrap();
                    }
                }
            })
        })
    })
    .await;
    let mut child = fake
        .command(&["console", "testvmi"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"root\r\x1dnot this").await.unwrap();
    let done = Done::from(child.wait_with_output().await.unwrap());
    assert_eq!((done.code, done.out.as_str()), (Some(0), "login: "), "{}", done.err);
    assert_eq!(
        done.err,
        "Successfully connected to testvmi console. Press Ctrl+] or Ctrl+5 to exit console.\n"
    );
    let mut all = Vec::new();
    while let Some(more) = hears.recv().await {
        all.extend(more);
        if all.len() >= 5 {
            break;
        }
    }
    assert_eq!(all, b"root\r");
    assert_eq!(fake.seen()[0].headers["sec-websocket-protocol"], "plain.kubevirt.io");
}

#[tokio::test]
async fn a_machine_on_its_way_is_waited_for() {
    let asked = Arc::new(AtomicUsize::new(0));
    let fake = Fake::start(move |request| {
        let asked = Arc::clone(&asked);
        on_console(request, || match asked.fetch_add(1, Ordering::Relaxed) {
            0 => Reply::status(
                400,
                "BadRequest",
                "Unable to connect to VirtualMachineInstance because phase is Scheduling instead of Running",
            ),
            _ => Reply::echo(),
        })
    })
    .await;
    let done = fake.run(&["console", "testvmi"]).await;
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(
        done.err.starts_with("Waiting for VMI \"testvmi\" in namespace \"blue\": Unable to connect"),
        "{}",
        done.err
    );
    assert_eq!(fake.lines().iter().filter(|line| *line == CONSOLE).count(), 2);
}

#[tokio::test]
async fn waiting_is_bounded_and_useless_waiting_is_not_done() {
    for (code, reason, message, words, told) in [
        (
            400,
            "BadRequest",
            "VMI is not running",
            &["console", "testvmi", "--timeout=0"][..],
            "virtctl start testvmi -n blue",
        ),
        (
            404,
            "NotFound",
            "virtualmachineinstance.kubevirt.io \"testvmi\" not found",
            &["console", "testvmi"],
            "there is no such vmi",
        ),
        (
            400,
            "BadRequest",
            "No serial consoles are present.",
            &["console", "testvmi"],
            "No serial consoles are present.",
        ),
    ] {
        let fake = Fake::start(move |asked| on_console(asked, || Reply::status(code, reason, message))).await;
        let done = fake.run(words).await;
        assert_eq!(done.code, Some(1));
        assert!(
            done.err.contains("cannot connect to the console of VMI \"testvmi\" in namespace \"blue\""),
            "{}",
            done.err
        );
        assert!(done.err.contains(told), "{}", done.err);
        assert_eq!(fake.seen().len(), 1);
    }
}

#[tokio::test]
async fn a_console_that_is_taken_away_is_explained() {
    let fake = Fake::start(|asked| {
        on_console(asked, || {
            Reply::stream(|mut socket| async move {
                let frame = CloseFrame { code: 1011.into(), reason: "the launcher is gone".into() };
                socket.close(Some(frame)).await.unwrap();
                while let Some(Ok(_)) = socket.next().await {}
            })
        })
    })
    .await;
    let mut child = fake
        .command(&["console", "testvmi"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let keep = child.stdin.take();
    let done = Done::from(child.wait_with_output().await.unwrap());
    assert_eq!(done.code, Some(1));
    assert!(done.err.contains("You were disconnected from the console of VMI \"testvmi\" in namespace \"blue\": the server failed (code 1011): the launcher is gone"), "{}", done.err);
    assert!(!done.err.contains("may have"), "the reason is known: {}", done.err);
    drop(keep);
}

#[tokio::test]
async fn a_paused_machine_is_told() {
    let fake = Fake::start(|asked| match asked.line.as_str() {
        CONSOLE => Reply::echo(),
        _ => Reply::Json(200, json!({"status": {"conditions": [{"type": "Paused", "status": "True"}]}})),
    })
    .await;
    let done = fake.run(&["console", "testvmi"]).await;
    assert_eq!(done.code, Some(0));
    assert!(
        done.err.starts_with("Warning: testvmi is paused. Console will be active after unpause.\n"),
        "{}",
        done.err
    );
}

/// How a console on a terminal is ended.
enum How {
    Key,
    Signal(Signal),
}

#[tokio::test]
async fn the_terminal_is_raw_meanwhile_and_restored_however_it_ends() {
    for how in [How::Key, How::Signal(Signal::SIGTERM), How::Signal(Signal::SIGHUP)] {
        let (heard, mut hears) = mpsc::unbounded_channel();
        let fake = Fake::start(move |asked| {
            let heard = heard.clone();
            on_console(asked, || {
                Reply::stream(|mut socket| async move {
                    while let Some(Ok(message)) = socket.next().await {
                        if message.is_binary() {
                            heard.send(message.into_data().to_vec()).unwrap();
                        }
                    }
                })
            })
        })
        .await;
        let terminal = openpty(None, None).unwrap();
        let before = tcgetattr(terminal.slave.as_fd()).unwrap();
        assert!(before.local_flags.contains(LocalFlags::ICANON | LocalFlags::ISIG));
        let end = |fd: &OwnedFd| Stdio::from(fd.try_clone().unwrap());
        let mut child = fake
            .command(&["console", "testvmi"])
            .stdin(end(&terminal.slave))
            .stdout(end(&terminal.slave))
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut keyboard = File::from(terminal.master);
        // A terminal that is not raw gives a line only when it ends, and Ctrl+C never.
        keyboard.write_all(b"x").unwrap();
        assert_eq!(hears.recv().await.unwrap(), b"x");
        assert!(
            !tcgetattr(terminal.slave.as_fd())
                .unwrap()
                .local_flags
                .intersects(LocalFlags::ICANON | LocalFlags::ISIG)
        );
        keyboard.write_all(b"\x03").unwrap();
        assert_eq!(hears.recv().await.unwrap(), b"\x03");
        match how {
            How::Key => keyboard.write_all(b"\x1d").unwrap(),
            How::Signal(signal) => {
                kill(Pid::from_raw(i32::try_from(child.id().unwrap()).unwrap()), signal).unwrap();
            }
        }
        let status = child.wait().await.unwrap();
        assert_eq!(status.code(), Some(0));
        assert_eq!(tcgetattr(terminal.slave.as_fd()).unwrap(), before);
    }
}
