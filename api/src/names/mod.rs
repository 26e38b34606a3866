//! Names that several rooms, users and their tools share: labels, annotations, paths, reasons.
//!
//! Where a client can see a name it is upstream's, so that selectors, dashboards and scripts go on working.
//! A name that only podvirt has stands under `podvirt.io/`.

use sha1::{Digest as _, Sha1};

use limits::MAX_HOST_NAME_BYTES;

pub mod annotation;
pub mod condition;
pub mod event;
pub mod label;
pub mod limits;
pub mod path;
pub mod pod;

/// Namespace of podvirt's own objects.
pub const NAMESPACE: &str = "kubevirt";
/// Name of the KubeVirt object, the cluster's configuration.
pub const KUBEVIRT: &str = "kubevirt";
/// The network binding plugin that a machine may name; netd stands in for it.
pub const PASST_PLUGIN: &str = "passt";

/// Finalizer on a VirtualMachineInstance: it stays until its launcher pods are gone.
pub const VMI_FINALIZER: &str = "foregroundDeleteVirtualMachine";
/// Finalizer on a VirtualMachine: it stays until its instance is gone.
pub const VM_FINALIZER: &str = "kubevirt.io/virtualMachineControllerFinalize";

/// Finalizer on a VirtualMachineInstanceMigration: it stays until it has ended and its target pod is gone.
pub const MIGRATION_FINALIZER: &str = "kubevirt.io/migrationJobFinalize";

/// Longest label value (Kubernetes' rule for labels), in bytes.
pub const LABEL_VALUE_MAX_BYTES: usize = 63;

/// Start of the launcher pods' names; the API server adds five letters (`metadata.generateName`).
pub fn launcher_generate_name(vmi: &str) -> String {
    format!("virt-launcher-{vmi}-")
}

/// Name of the launcher pod that is made for `uid`: that of the machine `vmi`, or that of a migration of it.
///
/// It follows from `uid`, so a controller that does not see a pod it has made yet cannot make another.
pub fn launcher_name(vmi: &str, uid: &str) -> String {
    short_name(&launcher_generate_name(vmi), uid)
}

/// A name that begins with `prefix` and ends with letters that follow from `uid`.
pub fn short_name(prefix: &str, uid: &str) -> String {
    // Kubernetes cuts a name that it makes up to what a host name can be; its letters make no words.
    const LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
    const SUFFIX: usize = 5;
    let mut name: String = prefix.chars().take(MAX_HOST_NAME_BYTES - SUFFIX).collect();
    // FNV-1a: the same in every version of this program, which the standard library's hash is not.
    let mut hash =
        uid.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    for _ in 0..SUFFIX {
        name.push(char::from(LETTERS[usize::try_from(hash % 27).unwrap_or(0)]));
        hash /= 27;
    }
    name
}

/// Name of the pod that holds the claims of these volumes, sorted, for the launcher pod with this UID. It follows from both, so that
/// such a pod is not made twice; it has the whole UID, so that two launcher pods never have one name.
pub fn attachment_name<'a>(launcher_uid: &str, volumes: impl IntoIterator<Item = &'a str>) -> String {
    let volumes: Vec<&str> = volumes.into_iter().collect();
    short_name(&format!("{}{launcher_uid}-", pod::HOTPLUG_PREFIX), &volumes.join("/"))
}

/// Name of the pod that is the first to use the claim of a volume, for the launcher pod with this UID.
pub fn first_use_name(launcher_uid: &str, volume: &str) -> String {
    short_name(&format!("{}{launcher_uid}-first-", pod::HOTPLUG_PREFIX), volume)
}

/// Name of the pod that holds the claims of all volumes that are plugged, for a migration's target pod with this UID.
pub fn target_attachment_name(launcher_uid: &str) -> String {
    attachment_name(launcher_uid, [])
}

/// Longest name of a domain in libvirt, in bytes: it is part of the names of files, the longest of which is `NAME-swtpm.log.1`.
const DOMAIN_NAME_MAX_BYTES: usize = 240;

/// Name of a machine's domain in libvirt: namespace and name, as upstream has it.
pub fn domain_name(namespace: &str, machine: &str) -> String {
    limits::shortened(&format!("{namespace}_{machine}"), DOMAIN_NAME_MAX_BYTES)
}

/// So many hexadecimal digits of a name's SHA-1.
fn digits_of(name: &str, count: usize) -> String {
    Sha1::digest(name.as_bytes()).iter().take(count / 2).map(|byte| format!("{byte:02x}")).collect()
}

/// The name of a machine as a label's value: where it is too long, its beginning and eight digits of its SHA-1, as upstream
/// and its virtctl make it. Two machines have two values.
pub fn label_value(name: &str) -> String {
    const DIGITS: usize = 8;
    if name.len() <= LABEL_VALUE_MAX_BYTES {
        return name.to_owned();
    }
    let begin: String = name.chars().take(LABEL_VALUE_MAX_BYTES - DIGITS - 1).collect();
    format!("{begin}-{}", digits_of(name, DIGITS))
}

/// Group of the API that virt-api serves itself.
pub const SUBRESOURCES_GROUP: &str = "subresources.kubevirt.io";
/// Its resource by which a node's virt-handler reads the VirtualMachineInstances of its node, and no others.
pub const NODE_MACHINES: &str = "nodevirtualmachineinstances";

/// Service account of virt-api.
pub const API_ACCOUNT: &str = "kubevirt-apiserver";
/// Service account of virt-controller.
pub const CONTROLLER_ACCOUNT: &str = "kubevirt-controller";
/// Service account of virt-handler.
pub const HANDLER_ACCOUNT: &str = "kubevirt-handler";

/// Whether a user is one of podvirt's daemons, which run in `namespace`: they may change what users may not.
pub fn is_daemon(username: &str, namespace: &str) -> bool {
    daemons(namespace).iter().any(|daemon| daemon == username)
}

/// Users that podvirt's daemons are where podvirt runs in `namespace`.
pub fn daemons(namespace: &str) -> [String; 3] {
    [API_ACCOUNT, CONTROLLER_ACCOUNT, HANDLER_ACCOUNT]
        .map(|account| format!("system:serviceaccount:{namespace}:{account}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_daemons_accounts_of_the_namespace_are_daemons() {
        assert!(is_daemon("system:serviceaccount:kubevirt:kubevirt-handler", NAMESPACE));
        for other in [
            "system:serviceaccount:kube:kubevirt-handler",
            "kubevirt-handler",
            "system:serviceaccount:kubevirt:x",
        ] {
            assert!(!is_daemon(other, NAMESPACE), "{other}");
        }
    }

    #[test]
    fn other_volumes_or_another_launcher_pod_make_another_name() {
        let name = attachment_name("p1", ["a", "b"]);
        assert_eq!(name, attachment_name("p1", ["a", "b"]));
        for other in
            [attachment_name("p1", ["a"]), attachment_name("p2", ["a", "b"]), target_attachment_name("p1")]
        {
            assert_ne!(name, other);
        }
        let begin = "hp-volume-66a0523a-60ed-4121-bf2c-05c023fb24a3-";
        let [first, second] =
            ["66a0523a-60ed-4121-bf2c-05c023fb24a3", "901cd0be-33d0-4a43-944c-f976fa0261c9"];
        assert_eq!(short_name("", first), short_name("", second), "the five letters are not enough");
        assert_ne!(attachment_name(first, ["data"]), attachment_name(second, ["data"]));
        assert_ne!(first_use_name(first, "data"), first_use_name(second, "data"));
        assert!(attachment_name(first, ["data"]).starts_with(begin));
        for name in [attachment_name(first, ["data"]), first_use_name(first, "data")] {
            assert!(name.len() <= MAX_HOST_NAME_BYTES, "{name}");
        }
    }

    proptest::proptest! {
        #[test]
        fn what_is_made_of_a_users_name_has_room_for_it(
            name in "([a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?[.]){0,12}[a-z0-9]{1,40}",
            volume in "[a-z0-9]{1,63}",
            namespace in "[a-z0-9]{1,63}",
        ) {
            let name = &name[..name.len().min(limits::MAX_OBJECT_NAME_BYTES)];
            let is_object = |name: &str| name.len() <= limits::MAX_OBJECT_NAME_BYTES
                && name.split('.').all(|part| !part.is_empty() && part.bytes().all(|b| b == b'-' || b.is_ascii_alphanumeric())
                    && !part.starts_with('-') && !part.ends_with('-'));
            let name = name.trim_end_matches(['-', '.']);
            for suffix in ["-0", "-v1beta1-11111111-0000-4000-8000-000000000000-9223372036854775807", ".18c0d7a2b3f4e5a6"] {
                let made = limits::shortened_with(name, suffix, limits::MAX_OBJECT_NAME_BYTES);
                proptest::prop_assert!(is_object(&made), "{}", made);
                proptest::prop_assert_ne!(made, limits::shortened_with(&format!("{name}x"), suffix, limits::MAX_OBJECT_NAME_BYTES));
            }
            for container in [pod::container_disk(&volume), pod::virtiofs(&volume)] {
                proptest::prop_assert!(crate::validate::text::is_dns_label(&container), "{}", container);
            }
            let domain = domain_name(&namespace, name);
            proptest::prop_assert!(domain.len() + ".xml.new".len() <= limits::MAX_FILE_NAME_BYTES);
            proptest::prop_assert!(domain.len() + "-swtpm.log.1".len() <= limits::MAX_FILE_NAME_BYTES);
            proptest::prop_assert!(crate::validate::text::is_label_value(&label_value(name)));
            let now = jiff::Timestamp::from_second(1_800_000_000).unwrap();
            let dump = crate::memory_dump::file_name(name, &volume, now);
            proptest::prop_assert!(dump.len() <= limits::MAX_FILE_NAME_BYTES, "{}", dump);
        }
    }

    #[test]
    fn long_names_that_begin_alike_have_two_valid_labels() {
        let begin = "a".repeat(63);
        assert_eq!(label_value(&begin), begin);
        // What upstream's CalculateVirtualMachineInstanceID says.
        let (one, other) = (label_value(&format!("{begin}b")), label_value(&format!("{begin}c")));
        assert_eq!(one, format!("{}-f9ade178", "a".repeat(54)));
        assert_eq!(other, format!("{}-efa59683", "a".repeat(54)));
        for name in [format!("{}.b.{begin}", "a".repeat(53)), format!("{}-.{begin}", "a".repeat(53))] {
            let value = label_value(&name);
            assert!(crate::validate::text::is_label_value(&value), "{value}");
        }
    }
}
