//! Whether a processor can run guests by KVM: the one rule of node agent and launcher.

use std::io;

/// Whether KVM is of use, and why.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Verdict {
    /// Whether it is.
    pub usable: bool,
    /// For people.
    pub why: String,
}

/// Judges by the attempt to open `/dev/kvm` for reading and writing, and by the text of `/proc/cpuinfo`.
///
/// The device alone proves nothing: it is there on hosts whose processor has no virtualization, and QEMU then fails
/// at the start or, worse, later.
pub fn judge(device: io::Result<()>, cpuinfo: &str) -> Verdict {
    let (usable, why) = match device {
        Err(error) => (false, format!("/dev/kvm: {error}")),
        // There are no such flags elsewhere: on arm64 the device exists only where it works.
        Ok(()) if !cfg!(target_arch = "x86_64") => (true, "/dev/kvm opens".into()),
        Ok(()) => {
            let flags = cpuinfo.lines().find_map(|line| line.strip_prefix("flags")).unwrap_or_default();
            match flags.split_ascii_whitespace().find(|flag| ["vmx", "svm"].contains(flag)) {
                Some(flag) => (true, format!("/dev/kvm and {flag}")),
                None => (false, "/dev/kvm opens but the processor has neither vmx nor svm".into()),
            }
        }
    };
    Verdict { usable, why }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kvm_needs_the_device_and_the_processors_feature() {
        let denied = || Err(io::Error::from(io::ErrorKind::PermissionDenied));
        let intel = "processor\t: 0\nflags\t\t: fpu vmx sse\n";
        assert!(judge(Ok(()), intel).usable);
        assert!(judge(Ok(()), "flags\t\t: fpu svm\n").usable);
        assert!(!judge(denied(), intel).usable);
        assert!(judge(Ok(()), "flags\t: fpu svm_lock\nvmx flags\t: vnmi vmx\n").why.contains("neither"));
        assert!(!judge(Ok(()), "").usable);
    }
}
