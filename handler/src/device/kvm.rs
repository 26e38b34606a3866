//! Whether the node's processor can run guests by KVM.

use std::fs::OpenOptions;

pub use podvirt_api::kvm::Verdict;
use podvirt_api::kvm::judge;

use super::Device;

/// `/dev/kvm`.
pub const KVM: Device = Device {
    name: "KVM",
    resource: podvirt_api::names::pod::KVM_DEVICE,
    path: "/dev/kvm",
    socket: "kubevirt-kvm.sock",
    copy: "kvm",
};

/// Looks at this node.
pub fn probe() -> Verdict {
    let device = OpenOptions::new().read(true).write(true).open(KVM.path).map(drop);
    let processor = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    judge(device, &processor)
}
