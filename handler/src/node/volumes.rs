//! Disks of volumes that are plugged: from the pod that holds their claims to the machine's launcher.
//!
//! virt-controller makes the attachment pod and names it in the VMI's status. As with launcher pods what the VMI says
//! of it is not believed: the pod must be controlled by the machine's launcher pod and be on this node, and the process
//! that answers at its socket must be one of the pod's. What it hands over is a regular file, a block device or a
//! directory, and nothing else ([`podvirt_proto::volumes`]). virt-handler opens no path of a pod's, and mounts nothing:
//! it carries descriptors.
//!
//! Both ends are programs of a tenant's pods, which may stall: no thread waits for them, and each has one deadline for all of its
//! message.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::Duration;

use podvirt_api::names::{path, pod::volume, target_attachment_name};
use podvirt_api::storage::{is_hotpluggable, volumes as volumes_of};
use podvirt_api::v1::VirtualMachineInstance;
use podvirt_proto::volumes::{self, Incoming, MESSAGE_TIMEOUT, Message};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout};

use super::{Node, pods};
use crate::launcher::client::Error;
use crate::migration;

/// How long the program of an attachment pod that runs may take to listen.
const BEGIN: Duration = Duration::from_secs(10);
/// Between two looks for its socket.
const LOOK: Duration = Duration::from_millis(200);

/// A volume whose disk is ready to be handed over.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Ready {
    volume: String,
    /// Name and UID of the attachment pod.
    pod: String,
    uid: String,
}

/// Brings the launcher in the pod with `launcher_uid` the disks that it does not have yet: `held` are the volumes of those that it has.
///
/// # Errors
///
/// The first volume whose disk could not be brought, and why. The others were tried all the same.
pub(super) async fn deliver(
    node: &Node,
    vmi: &VirtualMachineInstance,
    launcher_uid: &str,
    held: &[String],
) -> Result<(), Error> {
    let mut failed = Ok(());
    for ready in
        ready(vmi, &node.name, launcher_uid).into_iter().filter(|ready| !held.contains(&ready.volume))
    {
        match carry(node, vmi, launcher_uid, &ready).await {
            Ok(()) => {
                tracing::info!(volume = ready.volume, pod_uid = ready.uid, "the disk is with the launcher");
            }
            Err(source) => {
                let error = Error::Disk { volume: ready.volume, source };
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "a disk is not brought to the launcher"
                );
                failed = failed.and(Err(error));
            }
        }
    }
    failed
}

/// Volumes of the machine whose attachment pods are ready, for the launcher pod with this UID on the node `on`.
fn ready(vmi: &VirtualMachineInstance, on: &str, launcher_uid: &str) -> Vec<Ready> {
    let is_wanted =
        |name: &str| volumes_of(vmi).any(|volume| volume.name == name && is_hotpluggable(&volume));
    let told = vmi.status.volume_status.iter().filter(|told| is_wanted(&told.name));
    let target = vmi.status.migration_state.as_ref().filter(|_| migration::is_awaited(vmi, on));
    let target =
        target.and_then(|state| state.target_attachment_pod_uid.clone()).filter(|uid| !uid.is_empty());
    told.filter_map(|told| {
        let hotplug = told.hotplug_volume.as_ref()?;
        let own = || Some((hotplug.attach_pod_name.clone()?, hotplug.attach_pod_uid.clone()?));
        let (pod, uid) = match &target {
            Some(uid) => (target_attachment_name(launcher_uid), uid.clone()),
            None => own()?,
        };
        (!uid.is_empty()).then(|| Ready { volume: told.name.clone(), pod, uid })
    })
    .collect()
}

async fn carry(
    node: &Node,
    vmi: &VirtualMachineInstance,
    launcher_uid: &str,
    ready: &Ready,
) -> anyhow::Result<()> {
    pods::attachment(node, vmi, &ready.pod, &ready.uid, launcher_uid).await?;
    let attachment = connect(node, &ready.uid, volume::HOTPLUG_DISKS, path::ATTACHMENT_SOCKET).await?;
    let disk = Carried(Some(exchange(&attachment, &ready.volume, None).await?.disk(&ready.volume)?));
    let launcher = connect(node, launcher_uid, volume::SOCKETS, path::VOLUMES_SOCKET).await?;
    let disk = disk.0.as_ref().map(OwnedFd::as_fd);
    exchange(&launcher, &ready.volume, disk).await?.taken(&ready.volume)?;
    Ok(())
}

/// A disk on its way. Closing a file on NFS may wait for a server that is gone, which must not hold up this process's one thread.
struct Carried(Option<OwnedFd>);

impl Drop for Carried {
    fn drop(&mut self) {
        drop(self.0.take().map(|disk| spawn_blocking(|| drop(disk))));
    }
}

/// Sends what is said of a volume, and receives the answer.
async fn exchange(
    stream: &UnixStream,
    volume: &str,
    disk: Option<BorrowedFd<'_>>,
) -> Result<Incoming, volumes::Error> {
    // A new connection has room for it.
    volumes::send(stream, &Message::of(volume), disk)?;
    let mut incoming = Incoming::default();
    let received = async {
        while !stream.async_io(Interest::READABLE, || incoming.read(stream)).await? {}
        Ok::<_, io::Error>(())
    };
    timeout(MESSAGE_TIMEOUT, received).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    Ok(incoming)
}

/// Connects to a socket in a volume of a pod, behind which a process of the pod is.
async fn connect(node: &Node, pod_uid: &str, volume: &str, name: &str) -> anyhow::Result<UnixStream> {
    let end = Instant::now() + BEGIN;
    let stream = loop {
        let connected = async { node.volumes.dir(pod_uid, volume, "")?.connect(name).await };
        match connected.await {
            Err(error)
                if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
                    && Instant::now() < end =>
            {
                sleep(LOOK).await;
            }
            Err(error) => {
                return Err(anyhow::Error::new(error).context(format!("the socket {name} of its pod")));
            }
            Ok(stream) => break stream,
        }
    };
    node.volumes.peer(&stream, pod_uid)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use tokio::io::AsyncWriteExt as _;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_end_that_sends_a_byte_now_and_then_is_given_up_as_a_silent_one() {
        let (here, mut there) = UnixStream::pair().unwrap();
        let begin = Instant::now();
        let drips = tokio::spawn(async move {
            while there.write_all(b"x").await.is_ok() {
                sleep(MESSAGE_TIMEOUT / 2 + Duration::from_secs(1)).await;
            }
        });
        let Err(volumes::Error::Connection(error)) = exchange(&here, "data", None).await else {
            panic!("no message came")
        };
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        // The third byte would begin it anew.
        assert!(begin.elapsed() < MESSAGE_TIMEOUT + Duration::from_secs(1), "{:?}", begin.elapsed());
        drop(here);
        drips.await.unwrap();
    }

    #[tokio::test]
    async fn a_disk_goes_from_one_end_to_the_other() {
        let (attachment, there) = UnixStream::pair().unwrap();
        let disk = tempfile::tempfile().unwrap();
        volumes::send(&there, &Message::of("data"), Some(disk.as_fd())).unwrap();
        let carried = exchange(&attachment, "data", None).await.unwrap().disk("data").unwrap();
        File::from(carried).set_len(7).unwrap();
        assert_eq!(disk.metadata().unwrap().len(), 7);
        volumes::send(&there, &Message::of("other"), None).unwrap();
        exchange(&attachment, "data", Some(disk.as_fd())).await.unwrap().taken("data").unwrap_err();
    }
}
