//! Dumps of a guest's memory onto a claim: what virt-api, virt-controller, virt-handler and virt-launcher agree on.
//!
//! ```text
//!  virt-api          status.memoryDumpRequest of the VirtualMachine: a claim, Associating
//!  virt-controller   the claim as a volume `memoryDump` of the template and of the instance: InProgress
//!                    an attachment pod has the claim; the instance's status names the file
//!  virt-handler      carries the file's descriptor from there to the launcher, and asks for the dump
//!  virt-launcher     has libvirt write the guest's memory, and tells when it has
//!  virt-controller   the volume leaves the instance: Unmounting, and once no pod has the claim, Completed
//! ```
//!
//! The volume stays in the template until the dump is dissociated: it says that the claim belongs to the machine, for snapshots too.

use jiff::Timestamp;

use crate::names::limits::{MAX_FILE_NAME_BYTES, shortened_with};
use crate::quantity::Quantity;
use crate::v1::{
    MemoryDumpPhase as Phase, MemoryDumpVolumeSource, VirtualMachine, VirtualMachineInstance, Volume,
    VolumePhase, VolumeStatus,
};

/// Annotation of a claim with a dump: the dump's file, or that there is none.
pub const ANNOTATION: &str = "kubevirt.io/memory-dump";
/// What [`ANNOTATION`] says of a dump that has failed.
pub const FAILED: &str = "Memory dump failed";
/// What is in the name of every file of a dump.
pub const MARK: &str = "memory.dump";
/// What a dump has beside the guest's memory, bytes: upstream's.
const OVERHEAD: u64 = 100 << 20;
/// The part of a claim that is its file system's own, per mille: CDI's default.
const FILE_SYSTEM: u64 = 55;
/// Sizes that are asked for are multiples of it, bytes.
const ALIGNMENT: u64 = 1 << 20;

/// The volume that has a dump on the claim of this name.
pub fn volume(claim: &str) -> Volume {
    let source = MemoryDumpVolumeSource {
        claim_name: claim.to_owned(),
        hotpluggable: Some(true),
        ..MemoryDumpVolumeSource::default()
    };
    Volume { name: claim.to_owned(), memory_dump: Some(source), ..Volume::default() }
}

/// Whether `volume` of the template of `vm` is to be in its instance. All volumes are but that of a dump, which is while the dump is
/// written.
pub fn is_for_instance(vm: &VirtualMachine, volume: &Volume) -> bool {
    if volume.memory_dump.is_none() {
        return true;
    }
    let request = vm.status.memory_dump_request.as_ref();
    request.is_some_and(|request| {
        request.claim_name == volume.name && matches!(request.phase, Phase::Associating | Phase::InProgress)
    })
}

/// Name of the file of a dump that begins now.
pub fn file_name(machine: &str, volume: &str, now: Timestamp) -> String {
    let suffix = format!("-{}.{MARK}", now.strftime("%Y%m%d-%H%M%S"));
    shortened_with(&format!("{machine}-{volume}"), &suffix, MAX_FILE_NAME_BYTES)
}

/// The file of the dump that a volume of the instance gets.
pub fn file(told: &VolumeStatus) -> Option<&str> {
    told.memory_dump_volume.as_ref()?.target_file_name.as_deref().filter(|name| !name.is_empty())
}

/// Whether the launcher has the file of a dump, by the volume's phase.
pub fn has_file(phase: Option<&VolumePhase>) -> bool {
    matches!(
        phase,
        Some(
            VolumePhase::MemoryDumpInProgress
                | VolumePhase::MemoryDumpCompleted
                | VolumePhase::MemoryDumpFailed
        )
    )
}

/// Bytes that a claim must have been asked for to take a dump of the machine's memory.
pub fn needed(vmi: &VirtualMachineInstance) -> u64 {
    let domain = &vmi.spec.domain;
    let bytes = |text: &str| text.parse::<Quantity>().ok().map(|quantity| quantity.value());
    let guest = domain.memory.as_ref().and_then(|memory| bytes(&memory.guest.as_ref()?.0));
    let resources = domain.resources.as_ref();
    let requests = || bytes(&resources?.requests.as_ref()?.get("memory")?.0);
    let limits = || bytes(&resources?.limits.as_ref()?.get("memory")?.0);
    let size = guest.or_else(requests).or_else(limits).unwrap_or_default().saturating_add(OVERHEAD);
    let whole = size.saturating_add(size / 1000 * FILE_SYSTEM);
    whole.div_ceil(ALIGNMENT).saturating_mul(ALIGNMENT)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn the_volume_is_in_the_instance_while_the_dump_is_written() {
        let vm = |request: Value| -> VirtualMachine {
            serde_json::from_value(
                json!({"metadata": {"name": "vm"}, "spec": {}, "status": {"memoryDumpRequest": request}}),
            )
            .unwrap()
        };
        for (phase, is) in [
            ("Associating", true),
            ("InProgress", true),
            ("Unmounting", false),
            ("Completed", false),
            ("Failed", false),
            ("Dissociating", false),
        ] {
            let vm = vm(json!({"claimName": "dump", "phase": phase}));
            assert_eq!(is_for_instance(&vm, &volume("dump")), is, "{phase}");
            assert!(!is_for_instance(&vm, &volume("other")) && is_for_instance(&vm, &Volume::default()));
        }
        assert!(!is_for_instance(&vm(Value::Null), &volume("dump")));
    }

    #[test]
    fn a_claim_is_larger_than_the_memory() {
        let vmi = |domain: Value| -> VirtualMachineInstance {
            serde_json::from_value(json!({"metadata": {}, "spec": {"domain": domain}})).unwrap()
        };
        const MIB: u64 = 1 << 20;
        // 228 MiB and 5.5 %.
        let asked = vmi(json!({"devices": {}, "resources": {"requests": {"memory": "128Mi"}}}));
        assert_eq!(needed(&asked), 241 * MIB);
        let guest = vmi(
            json!({"devices": {}, "memory": {"guest": "1Gi"}, "resources": {"requests": {"memory": "128Mi"}}}),
        );
        assert_eq!(needed(&guest), 1186 * MIB);
    }

    #[test]
    fn a_file_is_named_by_its_machine_its_claim_and_the_time() {
        let now = "2026-01-02T03:04:05Z".parse().unwrap();
        assert_eq!(file_name("vm", "dump", now), "vm-dump-20260102-030405.memory.dump");
    }
}
