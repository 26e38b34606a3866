//! Volumes.

use std::collections::BTreeMap;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

use crate::problem::{Problems, Reason};
use crate::vmi::{CloudInitNoCloudSource, HostDiskType, VirtualMachineInstance, Volume};

use super::is_dns_label;
use super::machine::is_path_in_image;

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
    }
}

fn source(volume: &Volume, path: &str, problems: &mut Problems) {
    let given: Vec<&str> = [
        ("containerDisk", volume.container_disk.is_some()),
        ("hostDisk", volume.host_disk.is_some()),
        ("cloudInitNoCloud", volume.cloud_init_no_cloud.is_some()),
        ("emptyDisk", volume.empty_disk.is_some()),
    ]
    .into_iter()
    .filter_map(|(name, given)| given.then_some(name))
    .collect();
    if given.is_empty() {
        problems
            .required(path, "a source is required: containerDisk, hostDisk, cloudInitNoCloud or emptyDisk");
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
            problems.invalid(
                format!("{path}.containerDisk.path"),
                &disk.path,
                "an absolute path without '..' is allowed",
            );
        }
    }
    if let Some(disk) = &volume.host_disk {
        if disk.path.is_empty() {
            problems.required(format!("{path}.hostDisk.path"), "a path is required");
        } else if !is_path_in_image(&disk.path) {
            problems.invalid(
                format!("{path}.hostDisk.path"),
                &disk.path,
                "an absolute path without '..' is allowed",
            );
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
    if let Some(cloud_init) = &volume.cloud_init_no_cloud {
        no_cloud(cloud_init, &format!("{path}.cloudInitNoCloud"), problems);
    }
}

fn no_cloud(source: &CloudInitNoCloudSource, path: &str, problems: &mut Problems) {
    if source.user_data.is_empty()
        && source.user_data_base64.is_empty()
        && source.network_data.is_empty()
        && source.network_data_base64.is_empty()
    {
        problems.required(path, "userData, userDataBase64, networkData or networkDataBase64 is required");
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
