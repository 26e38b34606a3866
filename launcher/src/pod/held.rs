//! The disks of plugged volumes that this process has: taken from virt-handler, kept, and given to QEMU.
//!
//! A disk image QEMU opens by a link to this process's descriptor, as with container disks. A device it may not open, since the
//! pod was made without it: it gets the descriptor itself, into a set ([`crate::fdset`]). A link stands at the set's path, because
//! libvirt looks whether there is something.
//!
//! | | disk image | device |
//! |---|---|---|
//! | `/var/run/kubevirt/hotplug-disks/` | `<volume>.img`, a link to the descriptor | `<volume>`, a link to the set's path |
//! | the machine's definition names | that link | `/dev/fdset/<number>` |
//!
//! Of a claim that a backup writes into, the link `<volume>` leads to the descriptor of its directory.
//!
//! On the socket a message with a descriptor is virt-handler's, which hands a disk over; one without is from the program that
//! becomes QEMU ([`crate::emulator`]), which asks for one.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Seek as _, SeekFrom};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::{FileTypeExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use podvirt_api::error::chain;
use podvirt_api::names::path;
use podvirt_proto::volumes::{self, Error, Message};
use rustix::fs::OFlags;
use tokio::net::UnixListener;
use tokio::time::sleep;
use tracing::{info, warn};

use super::shared::Shared;
use crate::fdset;

/// Before the next connection is taken after one that could not be.
const PAUSE: Duration = Duration::from_millis(250);

/// What was handed over of a volume.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    /// A disk image, or the file of a memory dump.
    File,
    /// A block device.
    Device,
    /// The directory of a claim, which a backup writes into.
    Directory,
}

/// The disk of a volume.
#[derive(Debug)]
pub(super) struct Disk {
    file: Arc<File>,
    kind: Kind,
}

/// Disks that were handed over, by volume.
#[derive(Debug, Default)]
pub(super) struct Held(Mutex<BTreeMap<String, Disk>>);

impl Held {
    fn all(&self) -> MutexGuard<'_, BTreeMap<String, Disk>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn has(&self, volume: &str) -> bool {
        self.all().contains_key(volume)
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.all().keys().cloned().collect()
    }

    /// The device of a volume; none where it has a disk image.
    pub(super) fn device(&self, volume: &str) -> Option<Arc<File>> {
        self.all().get(volume).filter(|disk| disk.kind == Kind::Device).map(|disk| Arc::clone(&disk.file))
    }

    /// The directory of a volume's claim, where that is what was handed over.
    pub(super) fn directory(&self, volume: &str) -> Option<Arc<File>> {
        self.all().get(volume).filter(|disk| disk.kind == Kind::Directory).map(|disk| Arc::clone(&disk.file))
    }

    /// Keeps the disk of a volume, unless there is one.
    fn keep(&self, volume: &str, file: File) -> Result<(), Error> {
        let mut all = self.all();
        if all.contains_key(volume) {
            return Ok(());
        }
        let is = file.metadata()?.file_type();
        let kind = match (is.is_block_device(), is.is_dir()) {
            (true, _) => Kind::Device,
            (_, true) => Kind::Directory,
            _ => Kind::File,
        };
        let disk = Disk { file: Arc::new(file), kind };
        for (link, target) in links(volume, &disk) {
            if let Some(directory) = link.parent() {
                std::fs::create_dir_all(directory)?;
            }
            remove(&link)?;
            symlink(target, &link)?;
        }
        all.insert(volume.to_owned(), disk);
        Ok(())
    }

    /// Closes the disk of a volume, as far as this process has it open.
    pub(super) fn release(&self, volume: &str) {
        let Some(disk) = self.all().remove(volume) else { return };
        for (link, _) in links(volume, &disk) {
            if let Err(error) = remove(&link) {
                warn!(volume, link = %link.display(), %error, "the link to its disk stays");
            }
        }
    }
}

/// The links of a disk, and where they lead.
fn links(volume: &str, disk: &Disk) -> Vec<(PathBuf, PathBuf)> {
    let descriptor = PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), disk.file.as_raw_fd()));
    match disk.kind {
        Kind::Device => {
            let set = fdset::place(volume);
            vec![(set.clone(), descriptor), (path::plugged_device(volume), set)]
        }
        Kind::File => vec![(path::plugged_image(volume), descriptor)],
        Kind::Directory => vec![(path::plugged_device(volume), descriptor)],
    }
}

/// Removes a file, if it is there.
fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Has what is read and written by `device` go past the page cache, or through it. QEMU takes a descriptor only if it was opened
/// as QEMU would open it.
pub(super) fn set_direct(device: &File, direct: bool) -> io::Result<()> {
    let mut flags = rustix::fs::fcntl_getfl(device)?;
    flags.set(OFlags::DIRECT, direct);
    Ok(rustix::fs::fcntl_setfl(device, flags)?)
}

/// Bytes of a device.
pub(super) fn size(device: &File) -> io::Result<u64> {
    (&*device).seek(SeekFrom::End(0))
}

/// The socket on which disks are handed over.
pub(super) fn listen() -> Result<UnixListener> {
    let socket = Path::new(path::SOCKETS).join(path::VOLUMES_SOCKET);
    remove(&socket).with_context(|| format!("cannot remove {}", socket.display()))?;
    UnixListener::bind(&socket).with_context(|| format!("cannot listen on {}", socket.display()))
}

/// Takes disks, and gives those that are asked for, until it is aborted.
pub(super) async fn serve(listener: UnixListener, shared: Arc<Shared>) {
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                warn!(%error, "no connection for a disk");
                sleep(PAUSE).await;
                continue;
            }
        };
        let shared = shared.clone();
        // Each with a thread: the other end may be silent.
        let served = tokio::task::spawn_blocking(move || one(stream, &shared));
        tokio::spawn(async move {
            if let Err(error) = served.await.unwrap_or_else(|error| Err(io::Error::other(error).into())) {
                warn!(error = &error as &dyn std::error::Error, "a disk is not handed over");
            }
        });
    }
}

/// Serves one connection.
fn one(stream: tokio::net::UnixStream, shared: &Shared) -> Result<(), Error> {
    let stream = stream.into_std()?;
    stream.set_nonblocking(false)?;
    let (message, disk) = volumes::receive(&stream)?;
    let volume = message.volume.as_str();
    let Some(disk) = disk else {
        return match shared.held.device(volume) {
            Some(device) => volumes::send(&stream, &message, Some(device.as_fd())),
            None => refuse(&stream, volume, "the launcher has no device of it"),
        };
    };
    match keep(volume, File::from(disk), shared) {
        Ok(()) => {
            info!(volume, "its disk was handed over");
            volumes::send(&stream, &message, None)
        }
        Err(error) => {
            let error = chain(&error);
            warn!(volume, error, "its disk is not taken");
            refuse(&stream, volume, &error)
        }
    }
}

fn refuse(stream: &std::os::unix::net::UnixStream, volume: &str, error: &str) -> Result<(), Error> {
    volumes::send(stream, &Message { error: error.to_owned(), ..Message::of(volume) }, None)
}

fn keep(volume: &str, disk: File, shared: &Shared) -> Result<(), Error> {
    volumes::check(&disk)?;
    // It becomes a part of paths.
    if !podvirt_api::validate::is_dns_label(volume) {
        return Err(Error::Other(volume.to_owned()));
    }
    shared.held.keep(volume, disk)?;
    shared.facts.send_if_modified(|facts| facts.volumes.insert(volume.to_owned()));
    Ok(())
}
