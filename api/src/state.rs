//! What a machine keeps beside its disks: the variables of its EFI firmware, what its TPM holds, and which blocks of its disks have
//! changed since its last backups ([`crate::backup`]).
//!
//! ```text
//!  efi.persistent, tpm.persistent, tracking ──> a claim, labelled persistent-state-for=<machine>   the backend claim
//!                                       ├── meta/            of the launcher
//!                                       ├── nvram/           NAME_VARS.fd
//!                                       ├── swtpm/           UUID/tpm2/...
//!                                       ├── swtpm-localca/   the authority that signed the TPM's certificates
//!                                       └── cbt/             VOLUME.qcow2, the overlay of a disk
//! ```
//!
//! Names and layout are upstream's. The claim is the virtual machine's, or the instance's where no machine owns it: it goes with
//! its owner. The instance's status names it as an entry of `status.volumeStatus` with the claim's own name.

use crate::backup;
use crate::v1::{Efi, PersistentVolumeClaimInfo, VirtualMachineInstance, VirtualMachineInstanceSpec as Spec};

/// The label of a backend claim; its value is the machine's name. Backend claims' names begin with it as well.
pub const PERSISTENT_STATE_FOR: &str = "persistent-state-for";
/// Size of a new backend claim, bytes (upstream's).
const SIZE: u64 = 10 << 20;
/// Bytes that a claim with overlays has besides, for overlays of disks that are plugged later.
const ROOM: u64 = 54 << 20;
/// Bytes of a disk for which its overlay takes one byte: 8 of its table for each cluster of 64 KiB, and as much again for bitmaps.
const TRACKED_BYTES: u64 = 4096;
/// Label that has CDI fit a new claim to the profile of its storage class, where CDI is set up for that.
pub const APPLY_STORAGE_PROFILE: &str = "cdi.kubevirt.io/applyStorageProfile";
/// Annotation of the storage class that machines have by default.
pub const DEFAULT_VIRT_CLASS: &str = "storageclass.kubevirt.io/is-default-virt-class";
/// Annotation of the storage class that everything has by default.
pub const DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";

/// Longest beginning of a name that Kubernetes adds five letters to.
const LONGEST: usize = 58;

/// How the names of the backend claims of a machine begin, as far as a name of Kubernetes' making has room for it.
pub fn base(machine: &str) -> String {
    let mut base = format!("{PERSISTENT_STATE_FOR}-{machine}");
    base.truncate(LONGEST - 1);
    // A hyphen follows, with which a part of a DNS name cannot begin.
    base.truncate(base.trim_end_matches(['.', '-']).len());
    base
}

/// Whether the machine has a TPM.
pub fn has_tpm(spec: &Spec) -> bool {
    spec.domain.devices.tpm.as_ref().is_some_and(|tpm| tpm.enabled.unwrap_or(true))
}

/// Whether what the machine's TPM holds is kept.
pub fn keeps_tpm(spec: &Spec) -> bool {
    let tpm = spec.domain.devices.tpm.as_ref();
    has_tpm(spec) && tpm.is_some_and(|tpm| tpm.persistent == Some(true))
}

/// The machine's EFI firmware, if it has it.
pub fn efi(spec: &Spec) -> Option<&Efi> {
    spec.domain.firmware.as_ref()?.bootloader.as_ref()?.efi.as_ref()
}

/// Whether the variables of the machine's EFI firmware are kept.
pub fn keeps_efi(spec: &Spec) -> bool {
    efi(spec).is_some_and(|efi| efi.persistent == Some(true))
}

/// Whether something of the machine's firmware or TPM is kept, without which the machine is not what it was.
pub fn is_kept(spec: &Spec) -> bool {
    keeps_tpm(spec) || keeps_efi(spec)
}

/// Whether the machine needs a backend claim.
pub fn has_claim(vmi: &VirtualMachineInstance) -> bool {
    is_kept(&vmi.spec) || backup::is_tracked(vmi)
}

/// Size of a new backend claim, bytes. `tracked`: bytes of the disks whose changes are tracked; none where they are not.
pub fn size(tracked: Option<u64>) -> u64 {
    let overlays = |disks: u64| disks.div_ceil(TRACKED_BYTES).saturating_add(ROOM);
    SIZE.saturating_add(tracked.map_or(0, overlays)).next_multiple_of(1 << 20)
}

/// The backend claim that the machine's status names.
pub fn claim(vmi: &VirtualMachineInstance) -> Option<&str> {
    told(vmi)?.claim_name.as_deref()
}

/// What the machine's status tells of its backend claim: the entry whose name has that of such claims in it, as that of one which a
/// restore has made.
pub fn told(vmi: &VirtualMachineInstance) -> Option<&PersistentVolumeClaimInfo> {
    let base = base(vmi.metadata.name.as_deref()?);
    let is_volume = |name: &str| vmi.spec.volumes.iter().any(|volume| volume.name == name);
    let mut told =
        vmi.status.volume_status.iter().filter(|told| told.name.contains(&base) && !is_volume(&told.name));
    told.find_map(|told| told.persistent_volume_claim_info.as_ref())
}

/// Whether claims with these modes are on several nodes at a time.
pub fn is_shared(modes: &[String]) -> bool {
    modes.iter().any(|mode| mode == "ReadWriteMany")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn machine(firmware: Value, tpm: Value) -> VirtualMachineInstance {
        serde_json::from_value(json!({
            "metadata": {"name": "web"},
            "spec": {"domain": {"firmware": firmware, "devices": {"tpm": tpm}}},
            "status": {"volumeStatus": [
                {"name": "root", "persistentVolumeClaimInfo": {"claimName": "root"}},
                {"name": "persistent-state-for-web-x7", "persistentVolumeClaimInfo": {"claimName": "persistent-state-for-web-x7"}},
            ]},
        }))
        .unwrap()
    }

    #[test]
    fn what_is_kept_is_said_of_firmware_and_tpm_alone() {
        let efi = |persistent: bool| json!({"bootloader": {"efi": {"persistent": persistent}}});
        for (firmware, tpm, has, keeps) in [
            (Value::Null, Value::Null, false, (false, false)),
            (efi(false), json!({}), true, (false, false)),
            (efi(true), Value::Null, false, (true, false)),
            (json!({"bootloader": {"bios": {}}}), json!({"persistent": true}), true, (false, true)),
            (Value::Null, json!({"persistent": true, "enabled": false}), false, (false, false)),
            (efi(true), json!({"persistent": true, "enabled": true}), true, (true, true)),
        ] {
            let spec = machine(firmware, tpm.clone()).spec;
            assert_eq!(has_tpm(&spec), has, "{tpm}");
            assert_eq!((keeps_efi(&spec), keeps_tpm(&spec)), keeps, "{tpm}");
            assert_eq!(is_kept(&spec), keeps.0 || keeps.1);
        }
    }

    #[test]
    fn tracked_disks_have_their_overlays_on_the_claim() {
        let mut vmi = machine(Value::Null, Value::Null);
        assert!(!has_claim(&vmi));
        vmi.status =
            serde_json::from_value(json!({"changedBlockTracking": {"state": "Initializing"}})).unwrap();
        assert!(has_claim(&vmi) && !is_kept(&vmi.spec));
        vmi.status = serde_json::from_value(json!({"changedBlockTracking": {"state": "Disabled"}})).unwrap();
        assert!(!has_claim(&vmi));
        let sizes = [None, Some(0), Some(1 << 30), Some(1 << 40)].map(|tracked| size(tracked) >> 20);
        assert_eq!(sizes, [10, 64, 65, 320]);
    }

    #[test]
    fn the_claim_is_what_the_status_names() {
        let mut vmi = machine(Value::Null, Value::Null);
        assert_eq!(claim(&vmi), Some("persistent-state-for-web-x7"));
        vmi.metadata.name = Some("other".into());
        assert_eq!(claim(&vmi), None);
    }
}
