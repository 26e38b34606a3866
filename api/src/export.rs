//! VirtualMachineExports: names, paths and lives. Names and words are upstream's.
//!
//! The controller that makes an exporter pod, the server in it and the proxy before it agree by what stands here.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::duration;
use crate::names::limits::object_name;
use crate::v1::{ExportCondition, ExportConditionType, VirtualMachineExport};

/// Group of exports.
pub const GROUP: &str = "export.kubevirt.io";
/// Version of the group that is stored.
pub const VERSION: &str = "v1beta1";
/// Plural of the kind.
pub const PLURAL: &str = "virtualmachineexports";

/// Label of exporter pods, by which the Service of an export finds its pod; its value follows from the export's name.
pub const POD_LABEL: &str = "kubevirt.io.virt-export-service";
/// Value of the label `kubevirt.io` of the Services of exports.
pub const APP: &str = "virt-exporter";
/// Annotation of an exporter pod: the lives of certificates that its own was made by.
pub const CERT_PARAMETERS: &str = "kubevirt.io/export.certParameters";
/// Annotation of a claim: what it holds, by CDI.
pub const CONTENT_TYPE: &str = "cdi.kubevirt.io/storage.contentType";
/// Value of [`CONTENT_TYPE`] of a claim with a machine's disk.
pub const DISK_CONTENT: &str = "kubevirt";

/// Secret of the CA that signs the certificates of exporter pods, and the ConfigMap of those that are trusted.
pub const CA: &str = "kubevirt-export-ca";
/// Name of the proxy's Deployment and Service.
pub const PROXY: &str = "virt-exportproxy";
/// Header and query parameter with the token.
pub const TOKEN_HEADER: &str = "x-kubevirt-export-token";
/// Key of the token in its Secret.
pub const TOKEN_KEY: &str = "token";
/// Letters of a token that is generated.
pub const TOKEN_LENGTH: usize = 20;
/// Port that the exporter serves on.
pub const PORT: u16 = 8443;
/// Port of its Service.
pub const SERVICE_PORT: u16 = 443;
/// Path of the exporter's readiness.
pub const READY_PATH: &str = "/exportready";
/// Paths of manifests, behind `/internal` or `/external`: all but the token's Secret, and that Secret.
pub const MANIFEST_PATHS: [&str; 2] = ["/manifests/all", "/manifests/secret"];
/// Mount points of the certificate, of the token and of the manifests' data in the exporter.
pub const CERTIFICATE_DIRECTORY: &str = "/cert";
/// As [`CERTIFICATE_DIRECTORY`].
pub const TOKEN_DIRECTORY: &str = "/token";
/// As [`CERTIFICATE_DIRECTORY`].
pub const MANIFEST_DIRECTORY: &str = "/manifest_data";
/// Where claims with a file system are mounted, each by its volume's name.
pub const FILE_SYSTEMS: &str = "/export-volumes";
/// Where claims that are block devices are, each by its volume's name.
pub const DEVICES: &str = "/dev/export-volumes";

/// Life of an export that says none.
pub const TTL: Duration = Duration::from_secs(2 * 3600);

/// Names in the data of the ConfigMap that the exporter makes manifests of.
pub mod data {
    /// The machine.
    pub const MACHINE: &str = "virtualmachine-manifest";
    /// Name of the export.
    pub const EXPORT: &str = "export-name";
    /// Host and path at which clients in the cluster find the exporter.
    pub const INTERNAL_HOST: &str = "internal_host";
    /// ConfigMap with the CA for them.
    pub const INTERNAL_CA: &str = "internal_ca_cm";
    /// Host and path at which clients outside the cluster find it.
    pub const EXTERNAL_HOST: &str = "external_host";
    /// ConfigMap with the CA for them.
    pub const EXTERNAL_CA: &str = "external_ca_cm";
    /// Start of the names of DataVolumes; the claim's name follows.
    pub const DATA_VOLUME: &str = "dv-";
}

/// Formats of a volume's path, by the variable of the exporter's environment that names it.
pub const FORMATS: [(&str, &str); 4] = [
    ("EXPORT_RAW_URI", "disk.img"),
    ("EXPORT_RAW_GZIP_URI", "disk.img.gz"),
    ("EXPORT_DIR_URI", "dir/"),
    ("EXPORT_ARCHIVE_URI", "disk.tar.gz"),
];

/// Variables of the environment of an exporter whose source is a backup in pull mode. Volumes of the backup are counted from 0, as claims
/// are: `BACKUP0_BACKUP_PATH` is the first volume's name, `BACKUP0_DATA_URI` and `BACKUP0_MAP_URI` are its paths.
pub mod backup {
    /// Certificates, as PEM, of which the launcher's has to be.
    pub const CA: &str = "BACKUP_CACERT";
    /// The backup's UID.
    pub const UID: &str = "BACKUP_UID";
    /// `Full` or `Incremental`.
    pub const TYPE: &str = "BACKUP_TYPE";
    /// Path at which the launcher offers connections to its NBD server.
    pub const TUNNEL_PATH: &str = "/tunnel";
    /// Name of the bitmap, among the metadata of the NBD server's exports, of what has changed since the last backup.
    pub const BITMAP: &str = "changes";

    /// Path of a volume's data, or of the map of what is in it; `what`: `data` or `map`.
    pub fn path(volume: &str, what: &str) -> String {
        format!("/exports/{volume}/{what}")
    }
}

/// Longest label.
const LABEL: usize = 63;
/// Start of the names of an export's objects.
const PREFIX: &str = "virt-export";

/// FNV-1a, as eight digits.
fn digest(text: &str) -> String {
    let hash =
        text.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    format!("{hash:08x}")
}

/// `base-suffix`, shortened with a digest where it is longer than a label; as upstream's library does.
fn joined(base: &str, suffix: &str) -> String {
    let name = format!("{base}-{suffix}");
    if name.len() <= LABEL {
        return name;
    }
    match LABEL.checked_sub(10 + suffix.len()) {
        Some(room) if room > 0 => {
            format!("{}-{}-{suffix}", base.get(..room).unwrap_or(base), digest(base))
        }
        _ => format!("{}-{}", base.get(..LABEL - 9).unwrap_or(base), digest(&name)),
    }
}

/// Name of the Service of an export.
pub fn service_name(export: &str) -> String {
    let mut suffix = export.replace('.', "-");
    // One letter more would leave no letter before the digest.
    if suffix.len() == LABEL - 10 {
        suffix.pop();
    }
    joined(PREFIX, &suffix)
}

/// Host by which clients in the cluster find an export, and the first name in its certificate.
pub fn host(export: &str, namespace: &str) -> String {
    format!("{}.{namespace}.svc", service_name(export))
}

/// Name of the exporter pod.
pub fn pod_name(export: &str) -> String {
    joined(PREFIX, export)
}

/// Value of [`POD_LABEL`].
pub fn label_value(export: &str) -> String {
    if export.len() <= LABEL { export.to_owned() } else { joined(PREFIX, export) }
}

/// Name of the token's Secret where none is given.
pub fn token_secret_name(export: &str) -> String {
    joined("export-token", export)
}

/// Name of the ConfigMap with what manifests are made of.
pub fn manifest_name(export: &str) -> String {
    object_name(&format!("exporter-vm-manifest-{export}"))
}

/// Name of the ConfigMap with the CA that manifests have.
pub fn ca_name(export: &str) -> String {
    object_name(&format!("export-ca-cm-{export}"))
}

/// Name of the Secret with the header of the token that manifests have.
pub fn header_secret_name(export: &str) -> String {
    object_name(&format!("header-secret-{export}"))
}

/// Key of a claim's DataVolume in the data of the ConfigMap that manifests are made of; it may be as long as an object's name.
pub fn data_volume_key(claim: &str) -> String {
    object_name(&format!("{}{claim}", data::DATA_VOLUME))
}

/// Name of the claim that a snapshot's claim is restored to.
pub fn restored_name(export: &str, claim: &str) -> String {
    object_name(&format!("{export}-{claim}"))
}

/// Name of a claim's volume in the exporter pod.
pub fn volume_name(claim: &str) -> String {
    let name = claim.replace('.', "-");
    if name.len() <= LABEL { name } else { joined(PREFIX, &name) }
}

/// Path of a claim in a format.
pub fn volume_path(claim: &str, file: &str) -> String {
    format!("/volumes/{claim}/{file}")
}

/// Path of an export at the proxy.
pub fn proxy_path(namespace: &str, export: &str) -> String {
    format!("/api/{GROUP}/{VERSION}/namespaces/{namespace}/{PLURAL}/{export}")
}

/// When an export goes.
pub fn expires(export: &VirtualMachineExport) -> Option<Timestamp> {
    let ttl = export.spec.ttl_duration.as_deref().and_then(duration::parse).unwrap_or(TTL);
    export.metadata.creation_timestamp.as_ref()?.0.checked_add(ttl).ok()
}

/// Sets a condition, which keeps its time while it says the same.
pub fn set_condition(
    conditions: &mut Vec<ExportCondition>,
    kind: ExportConditionType,
    status: bool,
    reason: &str,
    message: &str,
    now: Timestamp,
) {
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let wanted = ExportCondition {
        r#type: kind,
        status: if status { "True" } else { "False" }.to_owned(),
        reason: some(reason),
        message: some(message),
        last_transition_time: Some(Some(Time(now))),
        ..ExportCondition::default()
    };
    let same = |one: &ExportCondition| {
        one.status == wanted.status && one.reason == wanted.reason && one.message == wanted.message
    };
    match conditions.iter_mut().find(|condition| condition.r#type == wanted.r#type) {
        Some(there) if same(there) => {}
        Some(there) => *there = wanted,
        None => conditions.push(wanted),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_upstreams() {
        assert_eq!(service_name("my.disk"), "virt-export-my-disk");
        assert_eq!(host("my.disk", "shop"), "virt-export-my-disk.shop.svc");
        assert_eq!(pod_name("my.disk"), "virt-export-my.disk");
        assert_eq!(token_secret_name("x"), "export-token-x");
        let long = "a".repeat(70);
        for name in [service_name(&long), pod_name(&long), label_value(&long), volume_name(&long)] {
            assert!(name.len() <= LABEL && name.starts_with("virt-export-"), "{name}");
        }
        let edge = service_name(&"b".repeat(53));
        assert!(edge.starts_with(|first: char| first.is_ascii_lowercase()) && edge.len() <= LABEL, "{edge}");
        assert_eq!(label_value("short"), "short");
        // Of the reference implementation of FNV-1a.
        assert_eq!((digest(""), digest("foobar")), ("811c9dc5".into(), "bf9cf968".into()));
    }

    #[test]
    fn an_export_lives_as_long_as_it_says() {
        let export = |ttl: Option<&str>| -> VirtualMachineExport {
            serde_json::from_value(serde_json::json!({
                "metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"},
                "spec": {"source": {"kind": "PersistentVolumeClaim", "name": "c"}, "ttlDuration": ttl},
            }))
            .unwrap()
        };
        assert_eq!(expires(&export(None)).unwrap().to_string(), "2026-01-01T02:00:00Z");
        assert_eq!(expires(&export(Some("90s"))).unwrap().to_string(), "2026-01-01T00:01:30Z");
    }
}
