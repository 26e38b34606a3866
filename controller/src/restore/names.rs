//! Names of what a restore makes, which are upstream's.

use podvirt_api::v1::{VirtualMachineRestore as Restore, VolumeRestorePolicy as Policy};

/// Longest name that is made (a DNS label).
const LONGEST: usize = 63;

/// The name of a claim, or of a DataVolume, for a volume whose claim has the name `claim` in the snapshot.
pub(super) fn restored(restore: &Restore, volume: &str, claim: &str) -> String {
    let mut overrides = restore.spec.volume_restore_overrides.iter();
    let of_volume = overrides.find_map(|one| {
        let name = one.restore_name.clone().filter(|name| !name.is_empty())?;
        (one.volume_name.as_deref() == Some(volume)).then_some(name)
    });
    if let Some(name) = of_volume {
        return name;
    }
    match restore.spec.volume_restore_policy {
        Some(Policy::InPlace) => claim.to_owned(),
        Some(Policy::PrefixTargetName) => joined(&restore.spec.target.name, volume),
        _ => format!("restore-{}-{volume}", restore.metadata.uid.as_deref().unwrap_or_default()),
    }
}

/// Two names in one. Where that is too long, the first is cut and has its hash behind it.
pub(crate) fn joined(base: &str, suffix: &str) -> String {
    let name = format!("{base}-{suffix}");
    if name.len() <= LONGEST {
        return name;
    }
    // A hyphen follows, with which a part of a DNS name cannot begin.
    let cut = |text: &str, length: usize| {
        text.chars().take(length).collect::<String>().trim_end_matches('.').to_owned()
    };
    match (LONGEST - 10).checked_sub(suffix.len()).filter(|left| *left > 0) {
        Some(left) => format!("{}-{}-{suffix}", cut(base, left), hash(base)),
        None => cut(&format!("{}-{}", cut(base, LONGEST - 9), hash(&name)), LONGEST),
    }
}

/// FNV-1a of 32 bits.
fn hash(text: &str) -> String {
    let hash =
        text.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    format!("{hash:08x}")
}

#[cfg(test)]
mod tests {
    use podvirt_api::validate::is_dns_subdomain;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_restored_claim_has_a_name_that_kubernetes_takes(
            machine in "([a-z0-9]([-a-z0-9]{0,6}[a-z0-9])?[.]){0,20}[a-z0-9]{1,40}",
            volume in "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?",
        ) {
            for name in [joined(&machine, &volume), joined("persistent-state-for", &machine)] {
                prop_assert!(name.len() <= LONGEST && is_dns_subdomain(&name), "{name}");
            }
        }
    }

    #[test]
    fn a_joined_name_is_no_longer_than_a_label() {
        assert_eq!(joined("vm", "disk"), "vm-disk");
        let long = joined(&"v".repeat(60), "disk");
        assert_eq!((long.len(), &long[long.len() - 5..]), (63, "-disk"));
        assert_eq!(joined("vm", &"d".repeat(62)).len(), 11);
        assert_eq!(hash("a"), "e40c292c", "FNV's own example");
    }
}
