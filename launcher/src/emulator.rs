//! QEMU with the devices of plugged claims: what libvirt starts as the emulator.
//!
//! A running QEMU is handed the device of a claim that is plugged by its monitor. A QEMU that starts with such a disk, or that a machine
//! with one comes to from another node, needs it before it has a monitor, and libvirt has no words to hand it over. So libvirt finds
//! this program under the emulator's name. It asks the launcher for the devices that were handed over, adds each to its set on QEMU's
//! command line, and becomes QEMU:
//!
//! ```text
//!  libvirtd ──exec──> virt-launcher, called qemu-system-x86_64 ──exec──> QEMU -add-fd fd=7,set=… …
//!                          └─ the launcher's socket: a descriptor for each device in /var/run/kubevirt/hotplug-disks
//! ```
//!
//! A disk may use a part of a plugged device. libvirt then has QEMU open the whole device for reading first, and for writing when the
//! guest's disk is there. The device's set has a descriptor for writing alone. So this program changes QEMU's arguments: a device of a
//! set is opened for writing from the start.
//!
//! Without KVM, QEMU translates the guest's code, by default with a thread for each of the guest's processors. Such a thread may use the
//! guest's memory map after another thread has replaced it. On a busy node QEMU 10.0 then ends while a machine of two processors boots
//! (`iotlb_to_section: Assertion ... failed`). libvirt has no setting for the number of threads. So this program has QEMU translate
//! with one thread.
//!
//! A QEMU without a machine's name is started as it is: libvirt asks it what it can do.

use std::ffi::OsString;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use podvirt_api::names::path;
use podvirt_proto::volumes;
use rustix::io::FdFlags;

use crate::fdset;

/// The name under which virt-launcher is this program: the emulator's.
pub const NAME: &str = "qemu-system-x86_64";
/// The option of a QEMU that has a machine.
const MACHINE_NAME: &str = "-name";
/// The option of what carries out the guest's code, and its value where QEMU translates it.
const ACCELERATOR: &str = "-accel";
const TRANSLATION: &str = "tcg";

/// Becomes QEMU.
///
/// # Errors
///
/// The launcher does not hand over a device, or there is no QEMU. It returns in no other case.
pub fn run() -> Result<std::convert::Infallible> {
    let mut args = std::env::args_os();
    let called_by = args.next().unwrap_or_default();
    let mut args: Vec<OsString> = args.collect();
    let mut devices = Vec::new();
    if args.iter().any(|arg| arg == MACHINE_NAME) {
        let socket = Path::new(path::SOCKETS).join(path::VOLUMES_SOCKET);
        devices = handed_over(Path::new(path::HOTPLUG_DISKS), &socket)?;
        translate_with_one_thread(&mut args);
    }
    let qemu = real(Path::new(&called_by))?;
    let mut command = Command::new(&qemu);
    command.args(args.into_iter().map(writable));
    for (set, device) in &devices {
        // It is for the program that this process becomes.
        rustix::io::fcntl_setfd(device, FdFlags::empty()).context("cannot keep a device open")?;
        command.arg("-add-fd").arg(format!("fd={},set={set}", device.as_raw_fd()));
    }
    let error = command.exec();
    Err(error).with_context(|| format!("cannot run {}", qemu.display()))
}

/// The argument of QEMU's. Where it has QEMU open a device of a set for reading first, it is changed to opening the device for writing.
fn writable(argument: OsString) -> OsString {
    const FOR_READING_FIRST: &str = "\"auto-read-only\":true";
    match argument.to_str().filter(|text| text.contains(&format!("\"filename\":\"{}/", path::FDSETS))) {
        Some(text) => text.replace(FOR_READING_FIRST, "\"read-only\":false").into(),
        None => argument,
    }
}

/// Has QEMU translate with one thread, if it translates.
fn translate_with_one_thread(args: &mut [OsString]) {
    for index in 1..args.len() {
        let translates = args[index - 1] == ACCELERATOR
            && args[index].to_str().is_some_and(|value| value.split(',').next() == Some(TRANSLATION));
        if translates {
            args[index].push(",thread=single");
        }
    }
}

/// The devices of volumes that have a link in `links`, with the numbers of their sets, from the launcher behind `socket`.
fn handed_over(links: &Path, socket: &Path) -> Result<Vec<(u64, OwnedFd)>> {
    let entries = match std::fs::read_dir(links) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| links.display().to_string()),
    };
    let mut devices = Vec::new();
    for entry in entries {
        let name = entry.with_context(|| links.display().to_string())?.file_name();
        // Disk images have an extension; QEMU opens these itself.
        let Some(volume) = name.to_str().filter(|name| !name.contains('.')) else { continue };
        let stream =
            UnixStream::connect(socket).with_context(|| format!("cannot connect to {}", socket.display()))?;
        let device = volumes::ask(&stream, volume).with_context(|| format!("volume {volume}"))?;
        devices.push((fdset::number(volume), device));
    }
    Ok(devices)
}

/// The emulator itself: the first of its name in `PATH` that is not this program.
fn real(called_by: &Path) -> Result<PathBuf> {
    let own = called_by.parent().map(Path::to_owned).unwrap_or_default();
    let all = std::env::var_os("PATH").unwrap_or_default();
    let mut found = std::env::split_paths(&all).filter(|dir| *dir != own).map(|dir| dir.join(NAME));
    match found.find(|program| program.is_file()) {
        Some(program) => Ok(program),
        None => bail!("{NAME} is not in PATH"),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd as _;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn devices_are_asked_for_and_images_left_to_qemu() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        let links = dir.path().join("links");
        assert!(handed_over(&links, &socket).unwrap().is_empty());
        std::fs::create_dir(&links).unwrap();
        for name in ["data", "files.img"] {
            std::fs::write(links.join(name), "").unwrap();
        }
        let asked = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let (message, _) = volumes::receive(&stream).unwrap();
            let disk = File::open("/proc/self/exe").unwrap();
            volumes::send(&stream, &message, Some(disk.as_fd())).unwrap();
            message.volume
        });
        let devices = handed_over(&links, &socket).unwrap();
        assert_eq!((asked.join().unwrap().as_str(), devices.len()), ("data", 1));
        assert_eq!(devices[0].0, fdset::number("data"));
    }

    #[test]
    fn translation_has_one_thread_and_kvm_is_left_alone() {
        let changed = |args: &[&str]| {
            let mut args: Vec<OsString> = args.iter().map(OsString::from).collect();
            translate_with_one_thread(&mut args);
            args.into_iter().map(|arg| arg.into_string().unwrap()).collect::<Vec<_>>()
        };
        // As libvirt 11 writes them.
        assert_eq!(
            changed(&["-name", "tcg", "-accel", "tcg,tb-size=64", "-cpu", "max"]),
            ["-name", "tcg", "-accel", "tcg,tb-size=64,thread=single", "-cpu", "max"]
        );
        assert_eq!(changed(&["-accel", "tcg"]), ["-accel", "tcg,thread=single"]);
        for other in [&["-accel", "kvm"][..], &["-accel"], &["-smbios", "tcg"], &[]] {
            assert_eq!(changed(other), other);
        }
    }

    #[test]
    fn a_part_of_a_device_is_opened_for_writing() {
        // As libvirt 11 writes them.
        let node = |file: &str, opened: &str| {
            format!(
                "{{\"driver\":\"host_device\",\"filename\":\"{file}\",\"node-name\":\"n\",{opened},\"discard\":\"unmap\"}}"
            )
        };
        let first = "\"auto-read-only\":true";
        let set = fdset::place("data").display().to_string();
        let changed = writable(node(&set, first).into());
        assert_eq!(changed, OsString::from(node(&set, "\"read-only\":false")));
        for other in [node("/dev/data", first), node(&set, "\"read-only\":true")] {
            assert_eq!(writable(other.clone().into()), OsString::from(other));
        }
    }
}
