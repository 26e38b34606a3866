//! `vnc`: the machine's display in a viewer.
//!
//! VNC viewers speak TCP, so a local port stands between them and the stream. The stream is opened first: a user who has
//! no machine or no right learns it before a viewer starts. One viewer connects, and the command ends with it.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use futures::StreamExt as _;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::time::sleep;
use tokio_tungstenite::tungstenite::Message;

use super::warn_if_paused;
use crate::api::{Cluster, Stream};
use crate::args::{Screenshot, Vnc, VncCommand};
use crate::output::say;
use crate::pump::{End, Options, pump};
use crate::target::{Kind, Object};
use crate::tty::end_signal;

/// How long a viewer that was started may take to connect.
const START: Duration = Duration::from_secs(60);
/// What comes after the viewer went is not looked at.
const LINGER: Options = Options { linger: Duration::from_millis(300) };

pub(super) async fn run(cluster: &Cluster, args: &Vnc) -> anyhow::Result<()> {
    if let Some(VncCommand::Screenshot(args)) = &args.instead {
        return screenshot(cluster, args).await;
    }
    let name = args.name.as_deref().unwrap_or_default();
    let vmi = Object::new(Kind::Vmi, name, cluster.namespace())?;
    let path = format!("vnc?preserveSession={}", args.preserve_session);
    let stream =
        cluster.open(&vmi, &path).await.map_err(|error| error.explain("open the display of", &vmi))?;

    // Only a user who asks for the port itself may let other machines in.
    let address = if args.proxy_only { args.address.as_str() } else { "127.0.0.1" };
    let listener = TcpListener::bind((address.trim_matches(['[', ']']), args.port))
        .await
        .with_context(|| format!("cannot listen on {address} port {}", args.port))?;
    let bound = listener.local_addr().context("cannot tell the local port")?;
    let viewer = if args.proxy_only {
        say(&serde_json::json!({ "port": bound.port() }).to_string())?;
        None
    } else {
        Some(start_viewer(args, bound)?)
    };
    tokio::select! {
        served = serve(cluster, &vmi, stream, listener, viewer) => served,
        signal = end_signal() => signal.map(|_| ()).context("cannot watch signals"),
    }
}

async fn screenshot(cluster: &Cluster, args: &Screenshot) -> anyhow::Result<()> {
    let vmi = Object::new(Kind::Vmi, &args.name, cluster.namespace())?;
    let picture = cluster.screenshot(&vmi, args.move_cursor).await;
    let picture = picture.map_err(|error| error.explain("take a picture of", &vmi))?;
    if args.file == Path::new("-") {
        let mut out = tokio::io::stdout();
        out.write_all(&picture).await.context("cannot write to the standard output")?;
        return out.flush().await.context("cannot write to the standard output");
    }
    tokio::fs::write(&args.file, &picture)
        .await
        .with_context(|| format!("cannot write {}", args.file.display()))
}

async fn serve(
    cluster: &Cluster,
    vmi: &Object,
    mut stream: Stream,
    listener: TcpListener,
    mut viewer: Option<Child>,
) -> anyhow::Result<()> {
    let Some((mut connection, early)) = wait_for_viewer(&mut stream, &listener, &mut viewer).await? else {
        bail!("the display of {vmi} was closed before a viewer connected");
    };
    drop(listener);
    warn_if_paused(cluster, vmi).await;
    let _ = connection.set_nodelay(true);
    connection.write_all(&early).await.context("cannot write to the viewer")?;
    let (reader, writer) = connection.into_split();
    match pump(stream, reader, writer, LINGER).await {
        Ok(End::Local) => Ok(()),
        Ok(end) => match end.trouble() {
            None => Ok(()),
            Some(trouble) => bail!("the display of {vmi} was closed: {trouble}"),
        },
        // The viewer was closed while the display was drawn.
        Err(_) => Ok(()),
    }
}

/// The viewer's connection and what the display said meanwhile (VNC servers speak first); none when it was closed.
async fn wait_for_viewer(
    stream: &mut Stream,
    listener: &TcpListener,
    viewer: &mut Option<Child>,
) -> anyhow::Result<Option<(TcpStream, Vec<u8>)>> {
    let mut early = Vec::new();
    let started = viewer.is_some();
    let late = sleep(START);
    tokio::pin!(late);
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (connection, _) = accepted.context("cannot accept the viewer's connection")?;
                return Ok(Some((connection, early)));
            }
            // No more than one message is held: the rest waits at the server.
            message = stream.next(), if early.is_empty() => match message {
                Some(Ok(Message::Binary(data))) => early = data.into(),
                Some(Ok(Message::Close(_)) | Err(_)) | None => return Ok(None),
                Some(Ok(_)) => {}
            },
            status = ended(viewer) => {
                bail!("the viewer ended before it connected ({})", status.context("cannot watch the viewer")?);
            }
            () = &mut late, if started => bail!("the viewer did not connect within {} seconds", START.as_secs()),
        }
    }
}

async fn ended(viewer: &mut Option<Child>) -> std::io::Result<std::process::ExitStatus> {
    match viewer {
        Some(viewer) => viewer.wait().await,
        None => std::future::pending().await,
    }
}

fn start_viewer(args: &Vnc, address: SocketAddr) -> anyhow::Result<Child> {
    let (program, words) = match (&args.vnc_type, &args.vnc_path) {
        (Some(kind), Some(path)) => {
            if !path.exists() {
                bail!("--vnc-path {} does not exist", path.display());
            }
            let Some(words) = words_of_type(kind, address) else {
                bail!("--vnc-type {kind:?} is not known: use tiger, real, chicken or remote-viewer");
            };
            (path.display().to_string(), words)
        }
        _ => match find_viewer(address, is_in_path) {
            Some((program, words)) => (program.to_owned(), words),
            None => bail!(
                "no VNC viewer found in $PATH (looked for {})\n  \
                 Install one, name one by --vnc-type and --vnc-path, or connect your own with --proxy-only.",
                VIEWERS.map(|(program, _)| program).join(", ")
            ),
        },
    };
    tracing::info!(?words, "running {program}");
    Command::new(&program)
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("cannot run {program}"))
}

/// Viewers in the order they are looked for, and the type that tells how each is called.
const VIEWERS: [(&str, &str); 5] = [
    ("remote-viewer", "remote-viewer"),
    ("vncviewer", "tiger"),
    ("xtigervncviewer", "tiger"),
    ("vinagre", "remote-viewer"),
    ("krdc", "remote-viewer"),
];

fn find_viewer(address: SocketAddr, present: impl Fn(&str) -> bool) -> Option<(&'static str, Vec<String>)> {
    let (program, kind) = VIEWERS.into_iter().find(|(program, _)| present(program))?;
    Some((program, words_of_type(kind, address)?))
}

/// How a viewer of this type is told where to connect.
fn words_of_type(kind: &str, address: SocketAddr) -> Option<Vec<String>> {
    // One colon would be a display number to them where the port is small.
    let double = format!("{}::{}", address.ip(), address.port());
    Some(match kind {
        "remote-viewer" => vec![format!("vnc://{address}")],
        "tiger" | "chicken" => vec![double],
        "real" => vec![double, "-WarnUnencrypted=0".into(), "-Shared=0".into(), "-ShareFiles=0".into()],
        _ => return None,
    })
}

fn is_in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| Path::new(&dir).join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_viewer_there_is_taken() {
        let address = "127.0.0.1:5901".parse().unwrap();
        let found = |names: &'static [&'static str]| find_viewer(address, |name| names.contains(&name));
        assert_eq!(
            found(&["vncviewer", "remote-viewer"]),
            Some(("remote-viewer", vec!["vnc://127.0.0.1:5901".into()]))
        );
        assert_eq!(found(&["krdc", "vncviewer"]), Some(("vncviewer", vec!["127.0.0.1::5901".into()])));
        assert_eq!(found(&[]), None);
    }
}
