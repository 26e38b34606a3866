//! Volumes.

use std::collections::BTreeMap;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

use crate::problem::{Problems, Reason};
use crate::vmi::{
    CloudInitSource, DiskBus, HostDiskType, LocalObjectReference, VirtualMachineInstance, Volume,
};

use super::machine::{PATH_IN_IMAGE, is_path_in_image};
use super::{is_dns_label, is_dns_subdomain};

pub(super) fn check(vmi: &VirtualMachineInstance, problems: &mut Problems) {
    let mut names = BTreeMap::new();
    for (n, volume) in vmi.spec.volumes.iter().enumerate() {
        let path = format!("spec.volumes[{n}]");
        if !is_dns_label(&volume.name) {
            problems.invalid(
                format!("{path}.name"),
                &volume.name,
                "at most 63 of a-z, 0-9 and '-' are allowed",
            );
        }
        if let Some(other) = names.insert(&volume.name, n) {
            problems.duplicate(format!("{path}.name"), &volume.name, &format!("spec.volumes[{other}].name"));
        }
        source(volume, &path, problems);
        config(volume, &path, problems);
    }
    let accounts = vmi.spec.volumes.iter().enumerate().filter(|(_, volume)| volume.service_account.is_some());
    for (n, _) in accounts.skip(1) {
        let path = format!("spec.volumes[{n}].serviceAccount");
        problems.add(Reason::FieldValueInvalid, path, "one volume with a ServiceAccount is allowed");
    }
    let dumps = vmi.spec.volumes.iter().enumerate().filter(|(_, volume)| volume.memory_dump.is_some());
    for (n, _) in dumps.skip(1) {
        let path = format!("spec.volumes[{n}].memoryDump");
        problems.add(Reason::FieldValueInvalid, path, "one volume for a memory dump is allowed");
    }
    downward_metrics(vmi, problems);
}

/// Checks the disk with metrics; in upstream's words.
fn downward_metrics(vmi: &VirtualMachineInstance, problems: &mut Problems) {
    let has = |volume: &Volume| volume.downward_metrics.is_some();
    if vmi.spec.volumes.iter().filter(|volume| has(volume)).count() > 1 {
        let told = "spec.volumes must have max one downwardMetric volume set";
        problems.add(Reason::FieldValueInvalid, "spec.volumes", told);
    }
    for (n, disk) in vmi.spec.domain.devices.disks.iter().enumerate() {
        if !vmi.volume_of(disk).is_some_and(has) {
            continue;
        }
        let field = format!("spec.domain.devices.disks[{n}].disk");
        match disk.disk.as_ref().map(|target| target.bus) {
            None => {
                let told = format!(
                    "DownwardMetrics volume must be mapped to a disk, but disk is not set on {field}."
                );
                problems.required(field, told);
            }
            Some(Some(bus)) if bus != DiskBus::Virtio => {
                let bus = bus.as_str();
                let field = format!("{field}.bus");
                let told = format!(
                    "DownwardMetrics volume must be mapped to virtio bus, but {field} is set to {bus}"
                );
                problems.add(Reason::FieldValueInvalid, field, told);
            }
            Some(_) => {}
        }
    }
}

/// Checks the volumes that the firmware's tables are in.
pub(super) fn tables(vmi: &VirtualMachineInstance, problems: &mut Problems) {
    const PATH: &str = "spec.domain.firmware.acpi";
    let Some(acpi) = vmi.spec.domain.firmware.as_ref().and_then(|firmware| firmware.acpi.as_ref()) else {
        return;
    };
    let refs = [("slicNameRef", &acpi.slic_name_ref), ("msdmNameRef", &acpi.msdm_name_ref)];
    if refs.iter().all(|(_, name)| name.is_empty()) {
        problems.add(Reason::FieldValueInvalid, PATH, "slicNameRef or msdmNameRef is required");
    }
    for (field, name) in refs.into_iter().filter(|(_, name)| !name.is_empty()) {
        let is_secret = |volume: &Volume| volume.name == *name && volume.secret.is_some();
        if !vmi.spec.volumes.iter().any(is_secret) {
            problems.invalid(
                format!("{PATH}.{field}"),
                name,
                "the name of a volume with a secret is allowed",
            );
        }
    }
}

/// Checks a volume whose disk holds the files of a ConfigMap, a Secret, the downward API or a ServiceAccount.
fn config(volume: &Volume, path: &str, problems: &mut Problems) {
    let name = |of: &LocalObjectReference| of.name.clone();
    let named = [
        ("configMap.name", volume.config_map.as_ref().map(|source| source.name.clone())),
        ("secret.secretName", volume.secret.as_ref().map(|source| source.secret_name.clone())),
        (
            "serviceAccount.serviceAccountName",
            volume.service_account.as_ref().map(|source| source.service_account_name.clone()),
        ),
        (
            "sysprep.configMap.name",
            volume.sysprep.as_ref().and_then(|source| source.config_map.as_ref()).map(name),
        ),
        ("sysprep.secret.name", volume.sysprep.as_ref().and_then(|source| source.secret.as_ref()).map(name)),
    ];
    for (field, name) in named {
        if name.is_some_and(|name| !is_dns_subdomain(&name)) {
            problems.required(
                format!("{path}.{field}"),
                "a name of at most 253 of a-z, 0-9, '-' and '.' is required",
            );
        }
    }
    if let Some(source) = &volume.sysprep
        && source.config_map.is_some() == source.secret.is_some()
    {
        problems.required(format!("{path}.sysprep"), "either configMap or secret is required");
    }
    let labels = [
        ("configMap", volume.config_map.as_ref().map(|source| &source.volume_label)),
        ("secret", volume.secret.as_ref().map(|source| &source.volume_label)),
        ("downwardAPI", volume.downward_api.as_ref().map(|source| &source.volume_label)),
    ];
    for (source, label) in labels {
        // The disk has the label as its volume identifier, 32 bytes long (ECMA-119, 8.4.7), and again as Joliet's, whose letters
        // take two bytes.
        if let Some(label) = label.filter(|label| label.len() > 16 || !label.is_ascii()) {
            let field = format!("{path}.{source}.volumeLabel");
            problems.invalid(field, label.escape_debug(), "at most 16 ASCII letters are allowed");
        }
    }
}

fn source(volume: &Volume, path: &str, problems: &mut Problems) {
    let given: Vec<&str> = [
        ("containerDisk", volume.container_disk.is_some()),
        ("hostDisk", volume.host_disk.is_some()),
        ("cloudInitNoCloud", volume.cloud_init_no_cloud.is_some()),
        ("cloudInitConfigDrive", volume.cloud_init_config_drive.is_some()),
        ("persistentVolumeClaim", volume.persistent_volume_claim.is_some()),
        ("dataVolume", volume.data_volume.is_some()),
        ("ephemeral", volume.ephemeral.is_some()),
        ("emptyDisk", volume.empty_disk.is_some()),
        ("configMap", volume.config_map.is_some()),
        ("secret", volume.secret.is_some()),
        ("downwardAPI", volume.downward_api.is_some()),
        ("serviceAccount", volume.service_account.is_some()),
        ("memoryDump", volume.memory_dump.is_some()),
        ("sysprep", volume.sysprep.is_some()),
        ("downwardMetrics", volume.downward_metrics.is_some()),
    ]
    .into_iter()
    .filter_map(|(name, given)| given.then_some(name))
    .collect();
    if given.is_empty() {
        problems.required(
            path,
            "a source is required: containerDisk, persistentVolumeClaim, dataVolume, ephemeral, emptyDisk, hostDisk, \
             cloudInitNoCloud, cloudInitConfigDrive, configMap, secret, downwardAPI, serviceAccount, sysprep, memoryDump \
             or downwardMetrics",
        );
    } else if given.len() > 1 {
        problems.add(
            Reason::FieldValueInvalid,
            path,
            format!("one source is allowed; there are {}", given.join(", ")),
        );
    }
    if let Some(disk) = &volume.container_disk {
        if disk.image.is_empty() {
            problems.required(format!("{path}.containerDisk.image"), "an image is required");
        }
        if !disk.path.is_empty() && !is_path_in_image(&disk.path) {
            problems.invalid(format!("{path}.containerDisk.path"), &disk.path, PATH_IN_IMAGE);
        }
    }
    if let Some(disk) = &volume.host_disk {
        if disk.path.is_empty() {
            problems.required(format!("{path}.hostDisk.path"), "a path is required");
        } else if !is_path_in_image(&disk.path) {
            problems.invalid(format!("{path}.hostDisk.path"), &disk.path, PATH_IN_IMAGE);
        }
        let capacity = format!("{path}.hostDisk.capacity");
        match (disk.kind, &disk.capacity) {
            (None, _) => {
                problems.required(format!("{path}.hostDisk.type"), "'Disk' or 'DiskOrCreate' is required");
            }
            (Some(HostDiskType::DiskOrCreate), None) => {
                problems.required(capacity, "the size of a disk that may be made is required");
            }
            (_, Some(size)) if !size.is_positive() => {
                problems.invalid(capacity, size, "a size above zero is allowed");
            }
            _ => {}
        }
    }
    if let Some(disk) = &volume.empty_disk {
        let field = format!("{path}.emptyDisk.capacity");
        match &disk.capacity {
            None => problems.required(field, "a size is required"),
            Some(size) if !size.is_positive() => {
                problems.invalid(field, size, "a size above zero is allowed");
            }
            Some(_) => {}
        }
    }
    if let Some(source) = &volume.persistent_volume_claim {
        claim(&source.claim_name, format!("{path}.persistentVolumeClaim.claimName"), problems);
    }
    if let Some(source) = &volume.memory_dump {
        claim(&source.claim_name, format!("{path}.memoryDump.claimName"), problems);
    }
    if let Some(source) = &volume.data_volume {
        claim(&source.name, format!("{path}.dataVolume.name"), problems);
    }
    if let Some(source) = &volume.ephemeral {
        let path = format!("{path}.ephemeral.persistentVolumeClaim");
        match &source.persistent_volume_claim {
            Some(source) => claim(&source.claim_name, format!("{path}.claimName"), problems),
            None => problems.required(path, "a claim is required"),
        }
    }
    for (name, source) in [
        ("cloudInitNoCloud", &volume.cloud_init_no_cloud),
        ("cloudInitConfigDrive", &volume.cloud_init_config_drive),
    ] {
        if let Some(source) = source {
            cloud_init(source, &format!("{path}.{name}"), problems);
        }
    }
}

/// Checks the name of a claim, or of a DataVolume, whose claim has its name.
fn claim(name: &str, field: String, problems: &mut Problems) {
    if name.is_empty() {
        problems.required(field, "a claim's name is required");
    } else if !is_dns_subdomain(name) {
        problems.invalid(field, name, "a-z, 0-9, '-' and '.' are allowed");
    }
}

fn cloud_init(source: &CloudInitSource, path: &str, problems: &mut Problems) {
    // A reference without a name asks for nothing.
    let named = |secret: &Option<LocalObjectReference>| secret.as_ref().is_some_and(|s| !s.name.is_empty());
    let (user_secret, network_secret) = (named(&source.secret_ref), named(&source.network_data_secret_ref));
    for (field, secret) in
        [("secretRef", &source.secret_ref), ("networkDataSecretRef", &source.network_data_secret_ref)]
    {
        if let Some(secret) = secret.as_ref().filter(|s| !s.name.is_empty() && !is_dns_subdomain(&s.name)) {
            problems.invalid(
                format!("{path}.{field}.name"),
                &secret.name,
                "a Secret's name, at most 253 of a-z, 0-9, '-' and '.', is allowed",
            );
        }
    }
    if source.user_data.is_empty()
        && source.user_data_base64.is_empty()
        && source.network_data.is_empty()
        && source.network_data_base64.is_empty()
        && !user_secret
        && !network_secret
    {
        problems.required(
            path,
            "userData, userDataBase64, secretRef, networkData, networkDataBase64 or networkDataSecretRef is required",
        );
    }
    for (secret, secret_given, plain, encoded, given) in [
        (
            "secretRef",
            user_secret,
            "userData",
            "userDataBase64",
            !(source.user_data.is_empty() && source.user_data_base64.is_empty()),
        ),
        (
            "networkDataSecretRef",
            network_secret,
            "networkData",
            "networkDataBase64",
            !(source.network_data.is_empty() && source.network_data_base64.is_empty()),
        ),
    ] {
        if secret_given && given {
            problems.add(
                Reason::FieldValueInvalid,
                format!("{path}.{secret}"),
                format!("only one of {secret}, {plain} and {encoded} is allowed"),
            );
        }
    }
    for (plain, plain_text, encoded, encoded_text) in [
        ("userData", &source.user_data, "userDataBase64", &source.user_data_base64),
        ("networkData", &source.network_data, "networkDataBase64", &source.network_data_base64),
    ] {
        let field = format!("{path}.{encoded}");
        if !plain_text.is_empty() && !encoded_text.is_empty() {
            problems.add(
                Reason::FieldValueInvalid,
                field.clone(),
                format!("only one of {plain} and {encoded} is allowed"),
            );
        }
        if let Err(error) = BASE64_STANDARD.decode(encoded_text) {
            problems.add(Reason::FieldValueInvalid, field, format!("base64 is allowed: {error}"));
        }
    }
}
