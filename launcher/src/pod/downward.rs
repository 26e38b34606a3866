//! Metrics of the node and of the guest for the guest ([`crate::downward`]), while its machine is here.
//!
//! The disk is written as soon as the machine runs, and anew every [`REFRESH`]. The serial port's other end is a socket that QEMU
//! makes; this process is its client, reads one request at a time, and takes one a second ([`PAUSE`]): a guest that asks all the
//! time costs its node no more than that. A guest that does not read its answers keeps its own port busy and nothing else. What
//! fails is told in the log, and tried again.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use podvirt_api::VirtualMachineInstance;
use podvirt_api::names::{path, pod};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tracing::{Instrument, debug, info, warn};

use super::shared::Shared;
use crate::downward::{Metrics, Place, disk, host, request};

/// Between two documents on the disk; upstream's.
const REFRESH: Duration = Duration::from_secs(5);
/// Between two answers on the serial port, upstream's, and between two looks for a machine that runs.
const PAUSE: Duration = Duration::from_secs(1);
/// The program whose version is told.
const EMULATOR: &str = "qemu-system-x86_64";

/// Serves what `vmi` asks for until this is dropped.
///
/// # Errors
///
/// The directory of the serial port's socket cannot be made.
pub(super) fn serve(shared: &Arc<Shared>, vmi: &VirtualMachineInstance) -> Result<JoinSet<()>> {
    let mut tasks = JoinSet::new();
    let has_disk = vmi.spec.volumes.iter().any(|volume| volume.downward_metrics.is_some());
    let has_port = vmi.spec.domain.devices.downward_metrics.is_some();
    if !has_disk && !has_port {
        return Ok(tasks);
    }
    let (disk, socket) = (Path::new(path::DOWNWARD_METRICS_DISK), Path::new(path::DOWNWARD_METRICS_SOCKET));
    if let Some(directory) = socket.parent().filter(|_| has_port) {
        std::fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
    }
    let shared = shared.clone();
    let both = async move {
        let place = place().await;
        let refreshed = async {
            if has_disk {
                refresh(&shared, &place, disk).await;
            }
        };
        let answered = async {
            if has_port {
                port(&shared, &place, socket).await;
            }
        };
        tokio::join!(refreshed, answered);
    };
    tasks.spawn(both.in_current_span());
    Ok(tasks)
}

/// Writes the disk.
async fn refresh(shared: &Arc<Shared>, place: &Place, disk: &Path) {
    loop {
        let Some(document) = document(shared, place).await else {
            sleep(PAUSE).await;
            continue;
        };
        let path = disk.to_owned();
        match tokio::task::spawn_blocking(move || disk::write(&path, &document)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                warn!(%error, disk = %disk.display(), "the metrics for the guest are not written");
            }
            Err(error) => warn!(%error, "the metrics for the guest are not written"),
        }
        sleep(REFRESH).await;
    }
}

/// Answers on the serial port. QEMU makes the socket when it starts.
async fn port(shared: &Arc<Shared>, place: &Place, socket: &Path) {
    loop {
        match UnixStream::connect(socket).await {
            Ok(stream) => {
                info!("the guest can ask for metrics by its serial port");
                if let Err(error) = answer(shared, place, stream).await {
                    warn!(%error, "the serial port for metrics is lost");
                }
            }
            Err(error) => debug!(%error, "the serial port for metrics is not there yet"),
        }
        sleep(PAUSE).await;
    }
}

/// Answers until the other end closes.
async fn answer(shared: &Arc<Shared>, place: &Place, stream: UnixStream) -> std::io::Result<()> {
    let mut port = BufReader::new(stream);
    while let Some(asks) = request::read(&mut port).await? {
        let answer = match asks {
            true => document(shared, place).await.map(|document| format!("{document}\n")),
            false => {
                // What is left of it is no request either.
                let rest = port.buffer().len();
                port.consume(rest);
                Some(request::INVALID.to_owned())
            }
        };
        port.get_mut().write_all(answer.as_deref().unwrap_or(request::NOTHING).as_bytes()).await?;
        sleep(PAUSE).await;
    }
    Ok(())
}

/// The metrics at this time; none while there is no machine, or the hypervisor does not tell.
async fn document(shared: &Arc<Shared>, place: &Place) -> Option<String> {
    let guest = shared.call(|hypervisor| hypervisor.statistics()).await;
    let guest = guest.inspect_err(|error| debug!(%error, "the guest's metrics are not known")).ok()?;
    let read = || host::metrics(Path::new("/proc"), Path::new("/sys"));
    let host = tokio::task::spawn_blocking(read).await.ok()?;
    let xml = Metrics::new(place, &guest, host).to_xml();
    xml.inspect_err(|error| warn!(%error, "the metrics cannot be written as XML")).ok()
}

/// Where the machine is.
async fn place() -> Place {
    let node = std::env::var(pod::NODE_NAME).unwrap_or_default();
    let said = Command::new(EMULATOR).arg("--version").output().await;
    let said = said.map(|said| String::from_utf8_lossy(&said.stdout).into_owned()).unwrap_or_default();
    Place { node, hypervisor: version(&said) }
}

/// The emulator's version, as upstream words it.
fn version(said: &str) -> String {
    let number = said.lines().next().and_then(|line| line.split_once("version "));
    let number = number.and_then(|(_, rest)| rest.split_whitespace().next());
    number.map_or_else(|| "qemu-unknown".to_owned(), |number| format!("QEMU {number}"))
}

#[cfg(test)]
mod tests {
    use podvirt_proto::domain::Status;
    use tokio::io::AsyncReadExt;
    use tokio::sync::mpsc;

    use super::super::migration::fake::Fake;
    use super::super::shared::Identity;
    use super::*;
    use crate::hypervisor::Hypervisor;
    use crate::life::runner::View;

    fn shared(runs: bool) -> Arc<Shared> {
        let shared = Arc::new(Shared::new(Identity::default(), mpsc::channel(1).0));
        if runs {
            let hypervisor: Arc<dyn Hypervisor> = Fake::new(Status::Running).0;
            shared.view.send_replace(View { running: true, hypervisor: Some(hypervisor), ..View::default() });
        }
        shared
    }

    #[test]
    fn the_version_is_the_emulators_own_word() {
        let said = "QEMU emulator version 10.0.3 (Debian 1:10.0.3+ds-0+deb13u1)\nCopyright (c) 2003-2025";
        assert_eq!(version(said), "QEMU 10.0.3");
        assert_eq!(version(""), "qemu-unknown");
    }

    #[tokio::test(start_paused = true)]
    async fn each_request_gets_its_answer_and_what_is_none_is_refused() {
        for (runs, begins) in [(true, "<metrics>\n  <metric type=\"string\""), (false, "<metrics><!-- host")]
        {
            let (guest, port) = UnixStream::pair().unwrap();
            let place = Place { node: "node1".into(), ..Place::default() };
            let shared = shared(runs);
            let served = tokio::spawn(async move { answer(&shared, &place, port).await });
            let mut guest = BufReader::new(guest);
            for (request, begins) in [("POST /x\n", request::INVALID), ("GET /metrics/XML\n\n", begins)] {
                guest.get_mut().write_all(request.as_bytes()).await.unwrap();
                let mut said = String::new();
                while !said.ends_with("\n\n") {
                    let mut byte = [0];
                    guest.read_exact(&mut byte).await.unwrap();
                    said.push(char::from(byte[0]));
                }
                assert!(said.starts_with(begins), "{said}");
            }
            drop(guest);
            served.await.unwrap().unwrap();
        }
    }
}
