//! Names that are made of other names, within the limits of what takes them.
//!
//! A user's name has up to 253 letters. What podvirt makes of it adds something, or goes where fewer are allowed:
//!
//! | the name goes into | limit in bytes | function |
//! |---|---|---|
//! | a label's value | 63 | [`label_value`](super::label_value), upstream's form |
//! | an object's name | 253 | [`object_name`] |
//! | an event's name, to which a recorder adds its own | 253 less that | [`name_before`] |
//! | a host's name and the names of pods | 63 | [`short_name`](super::short_name), [`host_name`] |
//! | a file's name, of which a program makes further ones (`NAME.xml.new`) | 255 less that | [`name_before`] |
//!
//! A name that fits stays as it is. A longer one is cut, and ends with a hash of the whole: two names stay two names.

use sha2::{Digest as _, Sha256};

/// Longest name of an object (a DNS subdomain), in bytes.
pub const MAX_OBJECT_NAME_BYTES: usize = 253;
/// Longest name of a file, in bytes.
pub const MAX_FILE_NAME_BYTES: usize = 255;
/// Longest name of a host (a DNS label), and so of a pod that podvirt names, in bytes.
pub const MAX_HOST_NAME_BYTES: usize = 63;
/// Digits of the hash at the end of a name that was cut.
pub(crate) const HASH_DIGITS: usize = 16;

/// `name` as the name of an object.
///
/// ```
/// use podvirt_api::names::limits::object_name;
///
/// assert_eq!(object_name("web-small-v1"), "web-small-v1");
/// assert_eq!(object_name(&"web".repeat(100)).len(), 253);
/// ```
pub fn object_name(name: &str) -> String {
    shortened(name, MAX_OBJECT_NAME_BYTES)
}

/// `name` as the name of a host.
pub fn host_name(name: &str) -> String {
    shortened(name, MAX_HOST_NAME_BYTES)
}

/// `name` so that a suffix of `suffix` bytes can be added to it where `max` bytes are allowed.
pub fn name_before(name: &str, suffix: usize, max: usize) -> String {
    shortened(name, max.saturating_sub(suffix))
}

/// `name` and `suffix` in at most `max` bytes, with as much of the name as there is room for.
pub fn shortened_with(name: &str, suffix: &str, max: usize) -> String {
    format!("{}{suffix}", name_before(name, suffix.len(), max))
}

/// `name` in at most `max` bytes, but no fewer than its hash has.
pub fn shortened(name: &str, max: usize) -> String {
    if name.len() <= max {
        return name.to_owned();
    }
    let digest = Sha256::digest(name);
    let digits: String = digest.iter().take(HASH_DIGITS / 2).map(|byte| format!("{byte:02x}")).collect();
    let end = name.floor_char_boundary(max.saturating_sub(HASH_DIGITS + 1));
    // A part of a DNS name begins and ends with a letter or a digit.
    let begin = name[..end].trim_end_matches(['-', '.']);
    if begin.is_empty() { digits } else { format!("{begin}-{digits}") }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{attachment_name, domain_name, label_value, launcher_name, pod, short_name};
    use super::*;
    use crate::export::{ca_name, data_volume_key, header_secret_name, manifest_name, restored_name};
    use crate::instancetype::copied_name;
    use crate::validate::text::{is_dns_label, is_dns_subdomain, is_label_value};

    /// Names that Kubernetes takes for an object: DNS subdomains.
    fn object() -> impl Strategy<Value = String> {
        let label = "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?";
        prop::collection::vec(label, 1..40).prop_map(|labels| {
            let mut name = labels.join(".");
            name.truncate(MAX_OBJECT_NAME_BYTES);
            name.trim_end_matches(['.', '-']).to_owned()
        })
    }

    proptest! {
        #[test]
        fn every_name_that_is_made_of_an_objects_name_is_within_its_limit(
            name in object(), other in object(), uid in "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
        ) {
            for label in [label_value(&name), label_value(&other)] {
                prop_assert!(is_label_value(&label), "{label}");
            }
            for (made, max) in [
                (object_name(&format!("{name}-{other}-v1beta1-{uid}-1")), MAX_OBJECT_NAME_BYTES),
                (object_name(&format!("{name}-{other}")), MAX_OBJECT_NAME_BYTES),
                (format!("{}.{:016x}", name_before(&name, 17, MAX_OBJECT_NAME_BYTES), u64::MAX), MAX_OBJECT_NAME_BYTES),
                (host_name(&format!("{name}-{other}")), MAX_HOST_NAME_BYTES),
                (launcher_name(&name, &uid), MAX_HOST_NAME_BYTES),
                (short_name(&format!("{name}-"), &uid), MAX_HOST_NAME_BYTES),
                (manifest_name(&name), MAX_OBJECT_NAME_BYTES),
                (restored_name(&name, &other), MAX_OBJECT_NAME_BYTES),
                (ca_name(&name), MAX_OBJECT_NAME_BYTES),
                (header_secret_name(&name), MAX_OBJECT_NAME_BYTES),
                (data_volume_key(&name), MAX_OBJECT_NAME_BYTES),
                (copied_name(&format!("vm-small-v1beta1-{uid}-1"), "vm", &name), MAX_OBJECT_NAME_BYTES),
                (format!("{}-abcde", crate::state::base(&name)), MAX_HOST_NAME_BYTES),
                (attachment_name(&uid, [name.as_str(), &other]), MAX_HOST_NAME_BYTES),
            ] {
                prop_assert!(made.len() <= max, "{made} has {} bytes", made.len());
                prop_assert!(is_dns_subdomain(&made), "{made}");
            }
            let dump = crate::memory_dump::file_name(&name, &label_value(&other), jiff::Timestamp::MAX);
            prop_assert!(dump.len() <= MAX_FILE_NAME_BYTES, "{dump}");
            let domain = domain_name(&host_name(&other), &name);
            for suffix in [".xml.new", "-swtpm.log.1"] {
                prop_assert!(domain.len() + suffix.len() <= MAX_FILE_NAME_BYTES, "{domain}{suffix}");
            }
            let volume = host_name(&other.replace('.', "-"));
            for container in [pod::container_disk(&volume), pod::virtiofs(&volume)] {
                prop_assert!(is_dns_label(&container), "{container}");
            }
        }

        #[test]
        fn names_stay_apart_when_they_are_cut(name in object(), max in 17usize..253) {
            let other = format!("{name}x");
            prop_assert_ne!(shortened(&name, max), shortened(&other, max));
            prop_assert!(shortened(&name, max).len() <= max);
        }
    }

    #[test]
    fn a_name_that_fits_stays_and_a_longer_one_ends_with_its_hash() {
        let longest = "a".repeat(MAX_OBJECT_NAME_BYTES);
        assert_eq!(object_name(&longest), longest);
        let cut = object_name(&format!("{longest}b"));
        // `printf a…ab | sha256sum`: the first 16 digits.
        assert_eq!((cut.len(), &cut[..237]), (253, &format!("{}-", "a".repeat(236))[..]));
        assert_eq!(
            shortened("ab.-c.example-of-a-name", 21),
            format!("ab-{}", &shortened("ab.-c.example-of-a-name", 16))
        );
    }
}
