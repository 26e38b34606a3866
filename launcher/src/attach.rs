//! What an attachment pod does: it hands over the disks of claims that are plugged into a running machine.
//!
//! A running pod gets no further claim. So virt-controller makes another pod on the machine's node, which has the claim; the
//! kubelet attaches it and mounts it there. This program opens the disk when virt-handler asks for it
//! ([`podvirt_proto::volumes`]), and lives until the pod is deleted: as long as it does, the kubelet leaves the claim where it is.
//!
//! A claim without a disk image gets one, as at the start of a machine. Of a claim for a memory dump the dump's file is handed over, of
//! one for a backup its directory. Links on a claim are not followed ([`crate::beneath`]).
//!
//! Storage may hang, and `open` with it, for ever. So each question has a thread, of which a volume has one at a time: a volume
//! whose storage hangs costs itself alone.

use std::collections::HashSet;
use std::fs::File;
use std::os::fd::AsFd as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use podvirt_api::attachment::Attached;
use podvirt_api::memory_dump::MARK;
use podvirt_proto::volumes::{self, Message};
use rustix::fs::OFlags;
use tracing::{info, warn};

use crate::beneath;
use crate::cli::Attach;
use crate::media::claims;

/// Questions that are served at a time, beside one for each volume whose storage hangs.
const SPARE_QUESTIONS: usize = 16;

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
    let places = SPARE_QUESTIONS + all.len();
    let claims = Arc::new(Claims { at: args.claims.clone(), all, opening: Mutex::default() });
    accept(&listener, places, &move |stream: &UnixStream| {
        if let Err(error) = claims.serve(stream) {
            warn!(error = &error as &dyn std::error::Error, "a disk is not handed over");
        }
    });
    Ok(())
}

/// Has each connection answered by a thread of its own, of which there are `places`. One that finds no place is closed: virt-handler
/// asks again.
fn accept(listener: &UnixListener, places: usize, answer: &(impl Fn(&UnixStream) + Clone + Send + 'static)) {
    let busy = Arc::new(());
    for stream in listener.incoming() {
        let place = Arc::clone(&busy);
        let is_free = Arc::strong_count(&busy) <= places + 1;
        let answer = answer.clone();
        let served = match stream {
            Ok(stream) if is_free => std::thread::Builder::new().spawn(move || {
                answer(&stream);
                drop(place);
            }),
            Ok(_) => Err(std::io::Error::other("too many questions are not answered yet")),
            Err(error) => Err(error),
        };
        if let Err(error) = served {
            warn!(%error, "a question is not answered");
        }
    }
}

/// The claims of this pod.
struct Claims {
    /// Where they are mounted.
    at: PathBuf,
    all: Vec<Attached>,
    /// Volumes whose disks are being opened.
    opening: Mutex<HashSet<String>>,
}

impl Claims {
    /// Answers one question.
    fn serve(&self, stream: &UnixStream) -> Result<(), volumes::Error> {
        let (asked, _) = volumes::receive(stream)?;
        match self.open(&asked.volume) {
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

    fn open(&self, name: &str) -> Result<File> {
        let opening = || self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        let is_first = opening().insert(name.to_owned());
        anyhow::ensure!(is_first, "its disk is being opened, and the storage of its claim does not answer");
        let opened = open(name, &self.at, &self.all);
        opening().remove(name);
        opened
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
    // Only a name of this directory: it is virt-controller's, and nothing else is opened.
    anyhow::ensure!(Path::new(file).file_name() == Some(file.as_ref()), "{file:?} is no file's name");
    Ok(beneath::file(claim, file, OFlags::RDWR | OFlags::CREATE)?)
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
        let claims = Claims { at: at.to_owned(), all: volumes(), opening: Mutex::default() };
        let serving = std::thread::spawn(move || claims.serve(&there).unwrap());
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
    #[test]
    fn a_link_to_another_claim_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["data", "books", "dump"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        std::fs::write(dir.path().join("data/disk.img"), "another volume's").unwrap();
        std::os::unix::fs::symlink("../data/disk.img", dir.path().join("books/disk.img")).unwrap();
        std::os::unix::fs::symlink("../data/disk.img", dir.path().join("dump/vm-dump-2.memory.dump"))
            .unwrap();
        for volume in ["books", "dump"] {
            let told = asked(dir.path(), volume).unwrap_err();
            assert!(told.contains("a symbolic link"), "{told}");
        }
        assert_eq!(std::fs::read(dir.path().join("data/disk.img")).unwrap(), b"another volume's");
    }

    #[test]
    fn a_question_that_hangs_keeps_no_other_one_from_its_answer() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        let (first_ends, ended) = std::sync::mpsc::channel();
        let answer = {
            let ended = Arc::new(Mutex::new(ended));
            move |stream: &UnixStream| {
                let mut question = [0];
                (&*stream).read_exact(&mut question).unwrap();
                if question == *b"1" {
                    // Until the other one is answered.
                    ended.lock().unwrap().recv().unwrap();
                }
                (&*stream).write_all(&question).unwrap();
            }
        };
        std::thread::spawn(move || accept(&listener, 2, &answer));
        let ask = |question: &[u8; 1]| {
            let mut stream = UnixStream::connect(&socket).unwrap();
            stream.write_all(question).unwrap();
            stream
        };
        let answered = |mut stream: UnixStream| {
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).map(|_| answer).ok()
        };
        let first = ask(b"1");
        assert_eq!(answered(ask(b"2")).as_deref(), Some(&b"2"[..]));
        first_ends.send(()).unwrap();
        assert_eq!(answered(first).as_deref(), Some(&b"1"[..]));
    }

    #[test]
    fn a_volume_that_is_being_opened_is_not_opened_once_more() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("data")).unwrap();
        let claims = Claims { at: dir.path().to_owned(), all: volumes(), opening: Mutex::default() };
        claims.opening.lock().unwrap().insert("data".to_owned());
        assert!(claims.open("data").unwrap_err().to_string().contains("does not answer"));
        claims.opening.lock().unwrap().clear();
        claims.open("data").unwrap();
        claims.open("data").unwrap();
    }
}
