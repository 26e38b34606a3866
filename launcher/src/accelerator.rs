//! Whether the processor can run the guest or QEMU has to translate it.

use std::fs::OpenOptions;

use podvirt_api::kvm::judge;

use crate::domain::Accelerator;

/// Chooses, with the reason for people.
pub fn choose() -> (Accelerator, String) {
    let device = OpenOptions::new().read(true).write(true).open("/dev/kvm").map(drop);
    let processor = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let verdict = judge(device, &processor);
    (if verdict.usable { Accelerator::Kvm } else { Accelerator::Tcg }, verdict.why)
}
