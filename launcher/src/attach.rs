//! What an attachment pod does: it hands over the disks of claims that are plugged into a running machine.
//!
//! A running pod gets no further claim. So virt-controller makes another pod on the machine's node, which has the claim; the
//! kubelet attaches it and mounts it there. This program opens the disk when virt-handler asks for it
//! ([`podvirt_proto::volumes`]), and lives until the pod is deleted: as long as it does, the kubelet leaves the claim where it is.
//!
//! A claim without a disk image gets one, as at the start of a machine. Of a claim for a memory dump the dump's file is handed over, of
//! one for a backup its directory.

use std::fs::{File, OpenOptions};
use std::os::fd::AsFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use anyhow::{Context, Result};
use podvirt_api::attachment::Attached;
use podvirt_api::memory_dump::MARK;
use podvirt_proto::volumes::{self, Message};
use tracing::{info, warn};

use crate::cli::Attach;
use crate::media::claims;

/// Serves until the process is ended.
///
/// # Errors
///
/// The volumes cannot be read, or the socket cannot be made.
pub fn run(args: &Attach) -> Result<()> {
    let all: Vec<Attached> = serde_json::from_str(&args.volumes).context("--volumes")?;
    let socket = args.socket.display();
    if args.socket.exists() {
        // Of a container that was started before in this pod.
        std::fs::remove_file(&args.socket).with_context(|| format!("cannot remove {socket}"))?;
    }
    let listener = UnixListener::bind(&args.socket).with_context(|| format!("cannot listen on {socket}"))?;
    let names: Vec<&str> = all.iter().map(|volume| volume.name.as_str()).collect();
    info!(%socket, volumes = names.join(", "), "ready for virt-handler");
    for stream in listener.incoming() {
        let served =
            stream.map_err(volumes::Error::from).and_then(|stream| serve(&stream, &args.claims, &all));
        if let Err(error) = served {
            warn!(error = &error as &dyn std::error::Error, "a disk is not handed over");
        }
    }
    Ok(())
}

/// Answers one question.
fn serve(stream: &UnixStream, at: &Path, all: &[Attached]) -> Result<(), volumes::Error> {
    let (asked, _) = volumes::receive(stream)?;
    match open(&asked.volume, at, all) {
        Ok(disk) => {
            info!(volume = asked.volume, "its disk is handed over");
            volumes::send(stream, &asked, Some(disk.as_fd()))
        }
        Err(error) => {
            let error = format!("{error:#}");
            warn!(volume = asked.volume, error, "its disk cannot be opened");
            volumes::send(stream, &Message { error, ..asked }, None)
        }
    }
}

fn open(name: &str, at: &Path, all: &[Attached]) -> Result<File> {
    let volume = all.iter().find(|volume| volume.name == name);
    let volume = volume.with_context(|| format!("this pod does not have the volume {name}"))?;
    if let Some(file) = &volume.dump {
        return dump(&at.join(name), file)
            .with_context(|| format!("the file of the memory dump on the claim of the volume {name}"));
    }
    if volume.is_directory {
        return directory(&at.join(name));
    }
    Ok(claims::open(&at.join(name), name, &volume.claim, volume.read_only)?)
}

/// The directory of a claim, which a backup writes into.
fn directory(claim: &Path) -> Result<File> {
    let directory = File::open(claim).with_context(|| claim.display().to_string())?;
    anyhow::ensure!(directory.metadata()?.is_dir(), "its claim is a device: a backup writes files");
    Ok(directory)
}

/// The file of a memory dump on a claim, which has one dump at a time: those of before make room.
fn dump(claim: &Path, file: &str) -> Result<File> {
    for entry in std::fs::read_dir(claim)? {
        let entry = entry?;
        let other = entry.file_name();
        if other != file && other.to_string_lossy().contains(MARK) {
            std::fs::remove_file(entry.path())?;
        }
    }
    let options = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o660).clone();
    // Only a name of this directory: it is virt-controller's, and nothing else is opened.
    anyhow::ensure!(Path::new(file).file_name() == Some(file.as_ref()), "{file:?} is no file's name");
    Ok(options.open(claim.join(file))?)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use serde_json::json;

    use super::*;

    fn volumes() -> Vec<Attached> {
        let claim = |name: &str| json!({"claimName": name, "requests": {"storage": "4Mi"}, "capacity": {"storage": "4Mi"}});
        let all = json!([
            {"name": "data", "claim": claim("a")}, {"name": "books", "readOnly": true, "claim": claim("b")},
            {"name": "device", "claim": {"claimName": "c", "volumeMode": "Block"}},
            {"name": "dump", "dump": "vm-dump-2.memory.dump", "claim": claim("d")},
            {"name": "copies", "isDirectory": true, "claim": claim("f")},
            {"name": "device-for-copies", "isDirectory": true, "claim": {"claimName": "g", "volumeMode": "Block"}},
            {"name": "wrong", "dump": "../vm.memory.dump", "claim": claim("e")},
        ]);
        serde_json::from_value(all).unwrap()
    }

    /// What is handed over of a volume, or why it is not.
    fn asked(at: &Path, volume: &str) -> Result<File, String> {
        let (here, there) = UnixStream::pair().unwrap();
        let (at, all) = (at.to_owned(), volumes());
        let serving = std::thread::spawn(move || serve(&there, &at, &all).unwrap());
        let disk = volumes::ask(&here, volume);
        serving.join().unwrap();
        disk.map(File::from).map_err(|error| error.to_string())
    }

    #[test]
    fn disks_are_handed_over_to_be_written_or_read_and_made_where_there_is_none() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["data", "books"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        let mut disk = asked(dir.path(), "data").unwrap();
        assert_eq!(disk.metadata().unwrap().len(), 4 << 20);
        disk.write_all(b"written").unwrap();
        assert!(std::fs::read(dir.path().join("data/disk.img")).unwrap().starts_with(b"written"));

        let told = asked(dir.path(), "books").unwrap_err();
        assert!(told.contains("claim b of the volume books"), "{told}");
        std::fs::write(dir.path().join("books/disk.img"), "text").unwrap();
        let mut disk = asked(dir.path(), "books").unwrap();
        let mut text = String::new();
        disk.read_to_string(&mut text).unwrap();
        assert_eq!(text, "text");
        assert!(disk.write_all(b"x").is_err());
    }

    #[test]
    fn a_memory_dump_gets_a_file_in_the_place_of_the_last_one() {
        let dir = tempfile::tempdir().unwrap();
        let claim = dir.path().join("dump");
        std::fs::create_dir(&claim).unwrap();
        for (name, text) in [("vm-dump-1.memory.dump", "old"), ("notes", "kept")] {
            std::fs::write(claim.join(name), text).unwrap();
        }
        asked(dir.path(), "dump").unwrap().write_all(b"memory").unwrap();
        let mut names: Vec<_> = std::fs::read_dir(&claim)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, ["notes", "vm-dump-2.memory.dump"]);
        // A launcher that asks again gets the file as it is.
        let mut text = String::new();
        asked(dir.path(), "dump").unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "memory");
        std::fs::create_dir(dir.path().join("wrong")).unwrap();
        let told = asked(dir.path(), "wrong").unwrap_err();
        assert!(told.contains("is no file's name"), "{told}");
    }

    #[test]
    fn a_backup_gets_the_directory_of_its_claim() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("copies")).unwrap();
        let given = asked(dir.path(), "copies").unwrap();
        std::fs::write(format!("/proc/self/fd/{}/file", std::os::fd::AsRawFd::as_raw_fd(&given)), "text")
            .unwrap();
        assert_eq!(std::fs::read_to_string(dir.path().join("copies/file")).unwrap(), "text");
        std::fs::write(dir.path().join("device-for-copies"), "").unwrap();
        let told = asked(dir.path(), "device-for-copies").unwrap_err();
        assert!(told.contains("a backup writes files"), "{told}");
    }

    #[test]
    fn what_is_no_disk_of_this_pods_is_not_handed_over() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(asked(dir.path(), "other").unwrap_err(), "this pod does not have the volume other");
        std::fs::write(dir.path().join("device"), "").unwrap();
        let told = asked(dir.path(), "device").unwrap_err();
        assert!(told.contains("claim c of the volume device") && told.contains("no block device"), "{told}");
    }
}
