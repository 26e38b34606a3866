//! Bitmaps of what was changed, in the disks of a domain that runs, as QEMU tells of them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use virt::domain::Domain;

use super::HypervisorError;
use super::libvirt::wrong;

/// A bitmap in a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bitmap {
    /// Alias of the disk.
    alias: String,
    /// QEMU's name of the disk's format node, which has the bitmap.
    node: String,
    /// Name: that of its checkpoint.
    pub(super) name: String,
    /// Whether it can be used: one that was not stored at the end of its domain cannot.
    is_sound: bool,
    /// Whether it is stored in the disk. Jobs have others for themselves.
    pub(super) is_stored: bool,
}

/// Every bitmap of every disk.
///
/// # Errors
///
/// The domain does not run.
pub(super) fn all(domain: &Domain) -> Result<Vec<Bitmap>, HypervisorError> {
    let order = json!({"execute": "query-block"});
    let answer = monitor_command(domain, "read the bitmaps of the disks", &order)?;
    Ok(of_devices(&answer))
}

/// Names of those that can be used, by the alias of the disk that has them.
///
/// # Errors
///
/// The domain does not run.
pub(super) fn sound(domain: &Domain) -> Result<BTreeMap<String, BTreeSet<String>>, HypervisorError> {
    let mut names: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for bitmap in all(domain)?.into_iter().filter(|bitmap| bitmap.is_sound) {
        names.entry(bitmap.alias).or_default().insert(bitmap.name);
    }
    Ok(names)
}

/// Removes a bitmap of which libvirt has no checkpoint.
///
/// # Errors
///
/// The domain does not run, or a job uses the bitmap.
pub(super) fn remove(domain: &Domain, bitmap: &Bitmap) -> Result<(), HypervisorError> {
    let arguments = json!({"node": bitmap.node, "name": bitmap.name});
    let order = json!({"execute": "block-dirty-bitmap-remove", "arguments": arguments});
    monitor_command(domain, "remove a bitmap", &order).map(drop)
}

/// QEMU's answer to an order.
pub(super) fn monitor_command(
    domain: &Domain,
    action: &'static str,
    order: &Value,
) -> Result<Value, HypervisorError> {
    let answer = domain.qemu_monitor_command(&order.to_string(), 0);
    let answer = answer.map_err(|error| wrong(action, error.message().to_owned()))?;
    let answer: Value = serde_json::from_str(&answer).map_err(|error| wrong(action, error.to_string()))?;
    match answer["error"]["desc"].as_str() {
        Some(why) => Err(wrong(action, why.to_owned())),
        None => Ok(answer),
    }
}

/// What QEMU's answer to `query-block` tells. A device is named by its alias, or by a path with that in it.
fn of_devices(answer: &Value) -> Vec<Bitmap> {
    let mut all = Vec::new();
    for device in answer["return"].as_array().into_iter().flatten() {
        let parts = device["qdev"].as_str().unwrap_or_default().split('/');
        let Some(alias) = parts.into_iter().find(|part| part.starts_with("ua-")) else { continue };
        let inserted = &device["inserted"];
        let Some(node) = inserted["node-name"].as_str() else { continue };
        for bitmap in inserted["dirty-bitmaps"].as_array().into_iter().flatten() {
            let Some(name) = bitmap["name"].as_str() else { continue };
            all.push(Bitmap {
                alias: alias.to_owned(),
                node: node.to_owned(),
                name: name.to_owned(),
                is_sound: bitmap["inconsistent"] != Value::Bool(true),
                is_stored: bitmap["persistent"] == Value::Bool(true),
            });
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bitmaps_are_told_of_each_disk() {
        let answer = json!({"return": [
            {"device": "", "qdev": "/machine/peripheral/ua-root/virtio-backend", "inserted": {"node-name": "libvirt-1-format",
                "dirty-bitmaps": [
                    {"name": "a", "recording": true, "persistent": true},
                    {"name": "b", "inconsistent": true, "persistent": true},
                    {"name": "c", "persistent": false},
                    {"granularity": 65536},
                ]}},
            {"device": "", "qdev": "ua-data", "inserted": {"node-name": "libvirt-2-format"}},
            {"device": "", "qdev": "ua-drive"},
            {"device": "pflash0", "inserted": {}},
        ]});
        let root = |name: &str, is_sound, is_stored| Bitmap {
            alias: "ua-root".to_owned(),
            node: "libvirt-1-format".to_owned(),
            name: name.to_owned(),
            is_sound,
            is_stored,
        };
        assert_eq!(
            of_devices(&answer),
            [root("a", true, true), root("b", false, true), root("c", true, false)]
        );
    }
}
