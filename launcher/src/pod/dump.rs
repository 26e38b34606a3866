//! Dumps of the guest's memory.
//!
//! The file is on a claim that another pod holds; virt-handler has brought its descriptor as it brings disks ([`super::held`]). libvirt
//! opens the link to it and has QEMU write the memory, as a core in ELF's format; the guest stands still meanwhile. The report tells
//! of the dump from its begin on. It is not asked for twice: a request for the same file is answered alike, whether the dump
//! is being written or was.

use std::sync::Arc;

use podvirt_api::memory_dump;
use podvirt_api::names::path;
use podvirt_api::v1::VirtualMachineInstance;
use podvirt_proto::domain::MemoryDump;
use tracing::{info, warn};

use super::report::{millis, now};
use super::shared::Shared;

/// Why the guest's memory is not written, or its file not let go of.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum DumpError {
    /// The VMI does not know the file.
    #[error("dumpPath: no volume of the VMI's status has the file '{0}'")]
    UnknownFile(String),
    /// Another dump is being written.
    #[error("the guest's memory is being written to {0} already")]
    Busy(String),
    /// The file is not here.
    #[error("volume {0}: the file of its memory dump has not been handed over")]
    NotHandedOver(String),
    /// The dump is being written to it.
    #[error("the guest's memory is being written to {0}")]
    Written(String),
}

/// Begins to write the guest's memory to `file`, which the status of the VMI names.
///
/// # Errors
///
/// The file was not handed over, or another dump is being written.
pub(super) fn begin(shared: &Arc<Shared>, vmi: &VirtualMachineInstance, file: &str) -> Result<(), DumpError> {
    let told = vmi.status.volume_status.iter().find(|told| memory_dump::file(told) == Some(file));
    let volume = told.map(|told| told.name.clone());
    let volume = volume.ok_or_else(|| DumpError::UnknownFile(file.to_owned()))?;
    let known = shared.facts.borrow().dump.clone();
    match known {
        Some(known) if known.file == file => return Ok(()),
        Some(known) if is_being_written(&known) => {
            return Err(DumpError::Busy(known.file));
        }
        _ => {}
    }
    if !shared.held.has(&volume) {
        return Err(DumpError::NotHandedOver(volume));
    }
    let mut dump = MemoryDump {
        file: file.to_owned(),
        volume: volume.clone(),
        started_at_ms: millis(now()),
        ..MemoryDump::default()
    };
    shared.facts.send_modify(|facts| facts.dump = Some(dump.clone()));
    info!(volume, file, "the guest's memory is being written");
    let shared = Arc::clone(shared);
    tokio::spawn(async move {
        let place = path::plugged_image(&volume);
        let written = shared.call(move |hypervisor| hypervisor.dump(&place)).await;
        dump.ended_at_ms = Some(millis(now()));
        match written {
            Ok(()) => info!(volume, file = dump.file, "the guest's memory is written"),
            Err(error) => {
                dump.failure = error.to_string();
                warn!(volume, file = dump.file, %error, "the guest's memory is not written");
            }
        }
        shared.facts.send_modify(|facts| facts.dump = Some(dump));
    });
    Ok(())
}

/// Whether QEMU has the file of the dump open.
fn is_being_written(dump: &MemoryDump) -> bool {
    dump.ended_at_ms.is_none()
}

/// Whether the claim of a volume can be let go of.
///
/// # Errors
///
/// A dump is being written to it.
pub(super) fn may_go(shared: &Shared, volume: &str) -> Result<(), DumpError> {
    let facts = shared.facts.borrow();
    match facts.dump.as_ref().filter(|dump| dump.volume == volume && is_being_written(dump)) {
        Some(dump) => Err(DumpError::Written(dump.file.clone())),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio::sync::mpsc;

    use super::super::shared::Identity;
    use super::*;

    fn vmi() -> VirtualMachineInstance {
        serde_json::from_value(json!({
            "metadata": {"name": "vm", "uid": "u"}, "spec": {"domain": {"devices": {}}},
            "status": {"volumeStatus": [{"name": "dump", "target": "",
                "memoryDumpVolume": {"claimName": "dump", "targetFileName": "f"}}]},
        }))
        .unwrap()
    }

    #[tokio::test]
    async fn a_dump_wants_its_file_and_is_written_once() {
        let shared = Arc::new(Shared::new(Identity::default(), mpsc::channel(1).0));
        let other = begin(&shared, &vmi(), "g").unwrap_err().to_string();
        assert_eq!(other, "dumpPath: no volume of the VMI's status has the file 'g'");
        let early = begin(&shared, &vmi(), "f").unwrap_err().to_string();
        assert_eq!(early, "volume dump: the file of its memory dump has not been handed over");
        let running = MemoryDump { file: "e".into(), volume: "dump".into(), ..MemoryDump::default() };
        shared.facts.send_modify(|facts| facts.dump = Some(running.clone()));
        let busy = begin(&shared, &vmi(), "f").unwrap_err().to_string();
        assert_eq!(busy, "the guest's memory is being written to e already");
        assert_eq!(may_go(&shared, "dump"), Err(DumpError::Written("e".to_owned())));
        assert_eq!(may_go(&shared, "data"), Ok(()));
        let ended = MemoryDump { file: "f".into(), ended_at_ms: Some(1), ..running };
        shared.facts.send_modify(|facts| facts.dump = Some(ended.clone()));
        assert_eq!((begin(&shared, &vmi(), "f"), may_go(&shared, "dump")), (Ok(()), Ok(())));
        assert_eq!(shared.facts.borrow().dump, Some(ended));
    }
}
