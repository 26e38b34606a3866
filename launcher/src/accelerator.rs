//! Whether the processor can run the guest or QEMU has to translate it.

use std::fs::OpenOptions;
use std::io;

use crate::domain::Accelerator;

/// Chooses, with the reason for people.
///
/// `/dev/kvm` alone proves nothing: it is there on hosts whose processor has no virtualization, and QEMU then
/// fails at the start or, worse, later.
pub fn choose() -> (Accelerator, String) {
    let kvm = OpenOptions::new().read(true).write(true).open("/dev/kvm").map(drop);
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    decide(kvm, &cpuinfo)
}

fn decide(kvm: io::Result<()>, cpuinfo: &str) -> (Accelerator, String) {
    let flags = cpuinfo.lines().find_map(|l| l.strip_prefix("flags")).unwrap_or_default();
    let has = |flag: &str| flags.split_ascii_whitespace().any(|f| f == flag);
    match kvm {
        Err(error) => (Accelerator::Tcg, format!("/dev/kvm: {error}")),
        Ok(()) if has("vmx") => (Accelerator::Kvm, "/dev/kvm and vmx".into()),
        Ok(()) if has("svm") => (Accelerator::Kvm, "/dev/kvm and svm".into()),
        Ok(()) => (Accelerator::Tcg, "/dev/kvm opens but the processor has neither vmx nor svm".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kvm_needs_the_device_and_the_processors_feature() {
        let denied = || Err(io::Error::from(io::ErrorKind::PermissionDenied));
        let intel = "processor\t: 0\nflags\t\t: fpu vmx sse\n";
        let amd = "flags\t\t: fpu svm\n";
        assert_eq!(decide(Ok(()), intel).0, Accelerator::Kvm);
        assert_eq!(decide(Ok(()), amd).0, Accelerator::Kvm);
        assert_eq!(decide(denied(), intel).0, Accelerator::Tcg);
        assert_eq!(decide(Ok(()), "flags\t: fpu svm_lock\nvmx flags\t: vnmi vmx\n").0, Accelerator::Tcg);
        assert_eq!(decide(Ok(()), "").0, Accelerator::Tcg);
    }
}
