//! The model's numbers; `docs/resources.md` has what was measured beside them.

use super::{MI, Sidecar};
use crate::v1;

/// virt-launcher, as the first process of the pod and as its child that serves the machine: 7 Mi of their own,
/// the rest is their code.
const LAUNCHER: u64 = 24 * MI;
/// libvirt's daemon and its log daemon in session mode: 27 Mi measured.
const LIBVIRT: u64 = 40 * MI;
/// QEMU without a guest: 48 Mi measured, 18 of it code.
const QEMU: u64 = 50 * MI;
/// Each processor: its thread's stack, its state, its part of KVM's page tables. Upstream's number.
const VCPU: u64 = 8 * MI;
/// Threads that do the disks' input and output. Upstream's number.
const IO: u64 = 8 * MI;
/// Frame buffer, 16 Mi, and VNC server. Upstream's number.
const GRAPHICS: u64 = 32 * MI;
/// The emulator of a TPM. Upstream's number.
const TPM: u64 = 53 * MI;
/// One byte of page tables for this many of the guest: 8 for each page of 4096.
const PAGE_TABLE_SHARE: u64 = 512;
/// Code that QEMU's emulator translates, where there is no KVM: 85 to 105 Mi after a small guest has booted.
/// QEMU itself would keep up to 1 Gi for a guest that goes on to run other code.
const TRANSLATED_CODE: u64 = 112 * MI;
/// Firmware of arm64 and its flash, upstream's number.
const ARM64: u64 = 128 * MI;

/// netd: 9 Mi when idle (docs/performance.md), up to 3 Mi of the guest's pages which it touches first, the rest
/// for flows. The limit leaves room for its largest tables.
pub(super) const NETD: Sidecar =
    Sidecar { cpu: 10, memory: 32 * MI, cpu_limit: 1000, memory_limit: 192 * MI, guaranteed_cpu: 500 };

/// A process that opened a file and waits: 1.4 Mi measured. Its limit has room for the image's page cache, which
/// the kernel takes back when it must.
pub(super) const CONTAINER_DISK: Sidecar =
    Sidecar { cpu: 1, memory: 4 * MI, cpu_limit: 100, memory_limit: 40 * MI, guaranteed_cpu: 100 };

/// A process that copies a log: as [`CONTAINER_DISK`]. Upstream's limits.
pub(super) const CONSOLE_LOG: Sidecar =
    Sidecar { cpu: 5, memory: 8 * MI, cpu_limit: 15, memory_limit: 60_000_000, guaranteed_cpu: 15 };

/// virtiofsd: 3 Mi when idle, and [`super::support::OPEN_FILE`] for each file that the guest knows of. The limit is for 65536 files
/// (upstream's, 80 MB, has no such bound: beyond it the kernel ends virtiofsd).
pub(super) const VIRTIOFS: Sidecar =
    Sidecar { cpu: 10, memory: 16 * MI, cpu_limit: 500, memory_limit: 128 * MI, guaranteed_cpu: 100 };

/// A hook sidecar, a program of the machine's users: upstream's limits, and what its own example asks of a node.
pub(super) const HOOK: Sidecar =
    Sidecar { cpu: 10, memory: 32 * MI, cpu_limit: 200, memory_limit: 64_000_000, guaranteed_cpu: 200 };

/// What the programs around a guest need, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryOverhead {
    /// virt-launcher.
    pub launcher: u64,
    /// libvirt.
    pub libvirt: u64,
    /// QEMU without a guest.
    pub qemu: u64,
    /// Processors.
    pub vcpus: u64,
    /// Input and output threads.
    pub io: u64,
    /// Graphics.
    pub graphics: u64,
    /// The emulator of the machine's TPM.
    pub tpm: u64,
    /// Page tables of the guest's memory.
    pub page_tables: u64,
    /// Emulation without KVM.
    pub emulation: u64,
    /// What the architecture adds.
    pub architecture: u64,
}

impl MemoryOverhead {
    /// The model for a machine whose guest has `memory` bytes.
    pub(super) fn for_vmi(spec: &v1::VirtualMachineInstanceSpec, memory: u64, emulated: bool) -> Self {
        let when = |yes: bool, bytes: u64| if yes { bytes } else { 0 };
        MemoryOverhead {
            launcher: LAUNCHER,
            libvirt: LIBVIRT,
            qemu: QEMU,
            vcpus: super::vcpus(spec).saturating_mul(VCPU),
            io: IO,
            graphics: when(spec.domain.devices.autoattach_graphics_device != Some(false), GRAPHICS),
            tpm: when(crate::state::has_tpm(spec), TPM),
            page_tables: memory / PAGE_TABLE_SHARE,
            emulation: when(emulated, TRANSLATED_CODE),
            architecture: when(spec.architecture.as_deref() == Some("arm64"), ARM64),
        }
    }

    /// All of it.
    pub fn total(&self) -> u64 {
        [
            self.launcher,
            self.libvirt,
            self.qemu,
            self.vcpus,
            self.io,
            self.graphics,
            self.tpm,
            self.page_tables,
            self.emulation,
            self.architecture,
        ]
        .into_iter()
        .fold(0, u64::saturating_add)
    }
}
