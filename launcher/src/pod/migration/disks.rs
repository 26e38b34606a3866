//! Which disks a migration copies.
//!
//! Made in the pod, and so different in each: overlays over container disks and ephemeral claims, empty disks,
//! cloud-init's. A claim that several nodes may write (`ReadWriteMany`) and a host's disk that is said to be shared
//! are the same at both ends. All else is copied. What the guest cannot write is made anew at the other end.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::domain::schema::Domain;

/// What becomes of a machine's disks.
#[derive(Debug, Default, Eq, PartialEq)]
pub(super) struct Disks {
    /// Places of those that are copied.
    pub(super) copied: Vec<String>,
    /// Whether some are shared.
    pub(super) shared: bool,
}

/// The disks of `domain`, whose VMI is `vmi` with its status.
pub(super) fn of(domain: &Domain, vmi: &Value) -> Disks {
    let shared = shared_volumes(vmi);
    let mut disks = Disks::default();
    for disk in &domain.devices.disks {
        if disk.readonly.is_some() || disk.source.file.is_empty() {
            continue;
        }
        // Our own names; libvirt leaves them alone.
        let volume = disk.alias.name.strip_prefix("ua-").unwrap_or_default();
        if shared.contains(volume) {
            disks.shared = true;
        } else {
            disks.copied.push(disk.target.dev.clone());
        }
    }
    disks
}

fn list<'a>(value: &'a Value, pointer: &str) -> impl Iterator<Item = &'a Value> {
    value.pointer(pointer).and_then(Value::as_array).into_iter().flatten()
}

fn shared_volumes(vmi: &Value) -> BTreeSet<&str> {
    let claimed: BTreeSet<&str> = list(vmi, "/status/volumeStatus")
        .filter(|status| {
            list(status, "/persistentVolumeClaimInfo/accessModes").any(|mode| mode == "ReadWriteMany")
        })
        .filter_map(|status| status["name"].as_str())
        .collect();
    list(vmi, "/spec/volumes")
        .filter_map(|volume| {
            let name = volume["name"].as_str()?;
            let is_claim =
                volume.get("persistentVolumeClaim").is_some() || volume.get("dataVolume").is_some();
            let shared = (is_claim && claimed.contains(name))
                || volume.pointer("/hostDisk/shared").and_then(Value::as_bool) == Some(true);
            shared.then_some(name)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_shared_stays_and_what_cannot_be_written_is_made_anew() {
        let disk = |name: &str, dev: &str, readonly: &str| {
            format!(
                "<disk type='file' device='disk'><source file='/x/{name}'/><target dev='{dev}' bus='virtio'/>\
                 <alias name='ua-{name}'/>{readonly}</disk>"
            )
        };
        let disks = [
            disk("root", "vda", ""),
            disk("data", "vdb", ""),
            disk("other", "vdc", ""),
            disk("lent", "vdd", ""),
            disk("init", "sda", "<readonly/>"),
            disk("temp", "vde", ""),
        ];
        let xml = format!("<domain type='kvm'><name>x</name><devices>{}</devices></domain>", disks.concat());
        let domain = Domain::from_xml(&xml).unwrap();
        let claim = |modes: &[&str]| json!({"accessModes": modes});
        let vmi = json!({
            "spec": {"volumes": [
                {"name": "root", "containerDisk": {"image": "i"}},
                {"name": "data", "persistentVolumeClaim": {"claimName": "a"}},
                {"name": "other", "persistentVolumeClaim": {"claimName": "b"}},
                {"name": "lent", "hostDisk": {"path": "/d", "type": "Disk", "shared": true}},
                {"name": "init", "cloudInitNoCloud": {}},
                {"name": "temp", "ephemeral": {"persistentVolumeClaim": {"claimName": "a"}}},
            ]},
            "status": {"volumeStatus": [
                {"name": "data", "target": "vdb", "persistentVolumeClaimInfo": claim(&["ReadWriteMany"])},
                {"name": "other", "target": "vdc", "persistentVolumeClaimInfo": claim(&["ReadWriteOnce"])},
                {"name": "temp", "target": "vde", "persistentVolumeClaimInfo": claim(&["ReadWriteMany"])},
            ]},
        });
        let expected = Disks { copied: vec!["vda".into(), "vdc".into(), "vde".into()], shared: true };
        assert_eq!(of(&domain, &vmi), expected);
    }
}
