//! What firmware and TPM keep.
//!
//! libvirt asks whether the next node has a TPM's directory as well before it makes it, and takes one that is not there for one
//! of this node: so the launcher makes it first. An empty one is filled as one that is new.
//!
//! Two nodes' emulators of a TPM on one directory: from version 0.8 on swtpm hands its lock over, and libvirt is told that the directory
//! is of both nodes. An older one keeps its lock to its end. Then libvirt has the state copied, to where it is, and the launcher that
//! the machine comes to takes the lock's file away, so that its own emulator has a lock of its own. The machine's own emulator stands
//! still at that time.
//!
//! Before a snapshot of the claim is taken the files are written out: the guest's agent freezes the guest's own file systems, and
//! knows nothing of these.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use podvirt_api::VirtualMachineInstance;
use podvirt_api::names::path;
use tracing::warn;

/// Directories deep that files may lie: a TPM's state is in one of the machine's UUID, in it in one of the version.
const DEPTH: u32 = 3;

/// What an emulator says that hands its lock over.
const HANDS_OVER: &str = "cmdarg-migration";

/// Directories that libvirt is told to be of both nodes, of a machine whose claim is.
pub(super) fn of_both_nodes() -> &'static [&'static str] {
    if hands_over() { &[path::NVRAM, path::SWTPM, path::OVERLAYS] } else { &[path::NVRAM, path::OVERLAYS] }
}

/// Whether the emulator hands the lock of its directory over in a migration.
fn hands_over() -> bool {
    let told = Command::new("swtpm").args(["socket", "--print-capabilities"]).output();
    told.is_ok_and(|told| String::from_utf8_lossy(&told.stdout).contains(HANDS_OVER))
}

/// Makes the directory of a TPM that is kept, where libvirt has it.
pub(super) fn make_place(vmi: &VirtualMachineInstance, incoming: bool) -> Result<()> {
    let domain = &vmi.spec.domain;
    let firmware = domain.firmware.as_ref();
    let kept = domain.devices.tpm.as_ref().is_some_and(podvirt_api::vmi::Tpm::is_kept);
    let Some(firmware) = firmware.filter(|_| kept) else { return Ok(()) };
    // libvirt's spelling.
    let place = Path::new(path::SWTPM).join(firmware.uuid.to_lowercase()).join("tpm2");
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&place);
    made.with_context(|| format!("cannot make {}", place.display()))?;
    let lock = place.join(".lock");
    if incoming && lock.exists() && !hands_over() {
        fs::remove_file(&lock).with_context(|| format!("cannot remove {}", lock.display()))?;
    }
    Ok(())
}

/// Has all files below the directories written to their storage. One that is not there has none.
pub(super) async fn write_out(directories: &'static [&'static str]) {
    let done = tokio::task::spawn_blocking(move || {
        for directory in directories {
            match below(Path::new(directory), DEPTH) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    warn!(directory, %error, "what the machine keeps is not written out");
                }
                _ => {}
            }
        }
    });
    if let Err(error) = done.await {
        warn!(%error, "what the machine keeps is not written out");
    }
}

fn below(directory: &Path, depth: u32) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() && depth > 0 {
            below(&entry.path(), depth - 1)?;
        } else if kind.is_file() {
            // A lock of swtpm's may have gone meanwhile.
            match File::open(entry.path()) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                file => file?.sync_all()?,
            }
        }
    }
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_below_are_found_as_deep_as_they_may_lie() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("uuid/tpm2");
        fs::create_dir_all(&deep).unwrap();
        fs::write(deep.join("tpm2-00.permall"), "x").unwrap();
        below(dir.path(), DEPTH).unwrap();
        let missing = below(&dir.path().join("none"), DEPTH).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }
}
