//! Whether the node's processor can run guests by KVM.

use std::fs::OpenOptions;

pub use podvirt_api::kvm::Verdict;
use podvirt_api::kvm::judge;

/// Looks at this node.
pub fn probe() -> Verdict {
    let device = OpenOptions::new().read(true).write(true).open("/dev/kvm").map(drop);
    let processor = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    judge(device, &processor)
}
