//! Of disks: blocks, threads, and devices that take SCSI commands.

use crate::problem::{Problems, Reason};
use crate::vmi::{BlockSize, Disk, DiskBus, IoThreadsPolicy, VirtualMachineInstance, Volume};

/// Sizes of blocks that a disk may have, bytes.
const BLOCKS: std::ops::RangeInclusive<u32> = 512..=2 << 20;

/// Checks how many threads do the input and output of disks.
pub(super) fn threads(vmi: &VirtualMachineInstance, problems: &mut Problems) {
    let domain = &vmi.spec.domain;
    let count = domain.io_threads.as_ref().and_then(|threads| threads.supplemental_pool_thread_count);
    if domain.io_threads_policy == Some(IoThreadsPolicy::SupplementalPool)
        && count.is_none_or(|count| count == 0)
    {
        problems.required(
            "spec.domain.ioThreads.supplementalPoolThreadCount",
            "the policy supplementalPool takes at least 1",
        );
    }
}

/// Checks one disk.
pub(super) fn check(vmi: &VirtualMachineInstance, disk: &Disk, path: &str, problems: &mut Problems) {
    if let Some(size) = &disk.block_size {
        block_size(size, bus(disk), path, problems);
    }
    let named = disk.disk.is_some() || disk.cdrom.is_some() || disk.lun.is_some();
    if disk.dedicated_io_thread == Some(true) && named && bus(disk).is_some_and(|bus| bus != DiskBus::Virtio)
    {
        problems.add(
            Reason::FieldValueNotSupported,
            format!("{path}.dedicatedIOThread"),
            "disks on the virtio bus alone have threads of their own",
        );
    }
    let on_claim = vmi
        .volume_of(disk)
        .is_none_or(|volume| volume.persistent_volume_claim.is_some() || volume.data_volume.is_some());
    if disk.lun.is_some() && !on_claim {
        problems.add(
            Reason::FieldValueInvalid,
            format!("{path}.lun"),
            "a volume with persistentVolumeClaim or dataVolume is allowed",
        );
    }
    if vmi.volume_of(disk).is_some_and(|volume| volume.memory_dump.is_some()) {
        problems.add(Reason::FieldValueInvalid, path, "its volume takes a memory dump, and has no disk");
    } else if vmi.volume_of(disk).is_some_and(Volume::is_hotpluggable) {
        plugged(disk, path, problems);
    }
}

/// Checks the disk of a volume that is plugged once the machine runs: upstream's rule.
fn plugged(disk: &Disk, path: &str, problems: &mut Problems) {
    if disk.lun.is_some() {
        problems.add(
            Reason::FieldValueNotSupported,
            format!("{path}.lun"),
            "its volume is hotpluggable; allowed: disk and cdrom",
        );
        return;
    }
    // The drive of a CD-ROM is there from the start, whatever its bus.
    let target = disk.disk.as_ref();
    if let Some(bus) =
        target.and_then(|target| target.bus).filter(|bus| !matches!(bus, DiskBus::Virtio | DiskBus::Scsi))
    {
        problems.invalid(
            format!("{path}.disk.bus"),
            bus.as_str(),
            "the volume is hotpluggable, for which virtio and scsi are allowed",
        );
    }
    if disk.dedicated_io_thread == Some(true) {
        problems.add(
            Reason::FieldValueNotSupported,
            format!("{path}.dedicatedIOThread"),
            "its volume is hotpluggable, and threads are made when the machine starts; allowed: false",
        );
    }
}

fn bus(disk: &Disk) -> Option<DiskBus> {
    match (&disk.disk, &disk.lun, &disk.cdrom) {
        (Some(disk), ..) => disk.bus,
        (None, Some(lun), _) => lun.bus,
        (None, None, cdrom) => cdrom.as_ref().and_then(|cdrom| cdrom.bus),
    }
}

fn block_size(size: &BlockSize, bus: Option<DiskBus>, path: &str, problems: &mut Problems) {
    let Some(custom) = &size.custom else { return };
    let field = |name: &str| format!("{path}.blockSize.custom.{name}");
    if size.match_volume.as_ref().is_some_and(crate::vmi::FeatureState::is_on) {
        let why = "only one of custom and matchVolume is allowed";
        problems.add(Reason::FieldValueInvalid, format!("{path}.blockSize"), why);
    } else if custom.logical > custom.physical {
        let allowed = format!("at most physical, {}, is allowed", custom.physical);
        problems.invalid(field("logical"), custom.logical, &allowed);
    } else if bus == Some(DiskBus::Sata) && custom.logical != *BLOCKS.start() {
        problems.invalid(field("logical"), custom.logical, "on the SATA bus 512 is allowed");
    } else if let Some(granularity) = custom.discard_granularity
        && granularity.checked_rem(custom.logical).is_some_and(|rest| rest != 0)
    {
        let allowed = format!("a multiple of logical, {}, is allowed", custom.logical);
        problems.invalid(field("discardGranularity"), granularity, &allowed);
    } else {
        for (name, size) in [("logical", custom.logical), ("physical", custom.physical)] {
            if !BLOCKS.contains(&size) || !size.is_power_of_two() {
                problems.invalid(field(name), size, "a power of two from 512 to 2097152 is allowed");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(domain: &str) -> Vec<String> {
        let text = format!(
            "{{apiVersion: kubevirt.io/v1, kind: VirtualMachineInstance, metadata: {{name: vm}}, spec: {{volumes: [{{name: d, \
             emptyDisk: {{capacity: 1Mi}}}}], domain: {{memory: {{guest: 64Mi}}, {domain}}}}}}}"
        );
        let vmi = VirtualMachineInstance::from_value(serde_saphyr::from_str(&text).unwrap()).unwrap();
        let mut problems = Problems::default();
        threads(&vmi, &mut problems);
        vmi.spec.domain.devices.disks.iter().for_each(|disk| check(&vmi, disk, "disks[0]", &mut problems));
        problems.to_string().lines().map(str::to_owned).collect()
    }

    fn disk(text: &str) -> Vec<String> {
        told(&format!("devices: {{disks: [{{name: d, {text}}}]}}"))
    }

    #[test]
    fn sizes_of_blocks_are_powers_of_two_that_fit_each_other() {
        for good in [
            "blockSize: {custom: {logical: 512, physical: 4096}}, disk: {bus: sata}",
            "blockSize: {custom: {logical: 4096, physical: 4096, discardGranularity: 8192}}, disk: {bus: virtio}",
            "blockSize: {custom: {logical: 4096, physical: 4096}, matchVolume: {enabled: false}}, disk: {bus: scsi}",
            "blockSize: {matchVolume: {}}",
        ] {
            assert_eq!(disk(good), [""; 0], "{good}");
        }
        for (bad, field) in [
            ("custom: {logical: 4096, physical: 512}", "disks[0].blockSize.custom.logical: "),
            ("custom: {logical: 256, physical: 512}", "disks[0].blockSize.custom.logical: "),
            ("custom: {logical: 512, physical: 4194304}", "disks[0].blockSize.custom.physical: "),
            ("custom: {logical: 512, physical: 513}", "disks[0].blockSize.custom.physical: "),
            (
                "custom: {logical: 512, physical: 512, discardGranularity: 100}",
                "disks[0].blockSize.custom.discardGranularity: ",
            ),
            ("custom: {logical: 512, physical: 512}, matchVolume: {}", "disks[0].blockSize: "),
        ] {
            let told = disk(&format!("blockSize: {{{bad}}}, disk: {{bus: virtio}}"));
            assert!(told.len() == 1 && told[0].starts_with(field), "{bad}: {told:?}");
        }
        let sata = disk("blockSize: {custom: {logical: 4096, physical: 4096}}, disk: {bus: sata}");
        assert_eq!(
            sata,
            ["disks[0].blockSize.custom.logical: '4096' is not allowed; on the SATA bus 512 is allowed"]
        );
    }

    #[test]
    fn threads_and_scsi_devices_are_where_they_can_be() {
        assert_eq!(disk("dedicatedIOThread: true, disk: {bus: virtio}"), [""; 0]);
        let found = disk("dedicatedIOThread: true, disk: {bus: scsi}");
        assert!(found[0].starts_with("disks[0].dedicatedIOThread: "), "{found:?}");
        assert!(disk("lun: {bus: scsi}")[0].starts_with("disks[0].lun: "));
        assert_eq!(
            told("ioThreadsPolicy: supplementalPool, ioThreads: {supplementalPoolThreadCount: 2}"),
            [""; 0]
        );
        assert_eq!(told("ioThreadsPolicy: supplementalPool").len(), 1);
        assert_eq!(
            told("ioThreadsPolicy: supplementalPool, ioThreads: {supplementalPoolThreadCount: 0}").len(),
            1
        );
    }
}
