//! Which disks of a domain have failed, as QEMU tells of them.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use virt::domain::Domain;

use super::bitmaps::monitor_command;
use super::{DiskError, HypervisorError};

/// The disks whose last request has failed since the domain was let run, by alias.
///
/// # Errors
///
/// The domain does not run.
pub(super) fn all(domain: &Domain) -> Result<BTreeMap<String, DiskError>, HypervisorError> {
    let order = json!({"execute": "query-block"});
    Ok(errors_by_device(&monitor_command(domain, "ask which disks have failed", &order)?))
}

/// What QEMU's answer to `query-block` tells. A device is named by its alias, or by a path with that in it.
fn errors_by_device(answer: &Value) -> BTreeMap<String, DiskError> {
    let devices = answer["return"].as_array().into_iter().flatten();
    let failed = devices.filter_map(|device| {
        let error = match device["io-status"].as_str()? {
            "nospace" => DiskError::NoSpace,
            "failed" => DiskError::Failed,
            _ => return None,
        };
        let alias = device["qdev"].as_str()?.split('/').find(|part| part.starts_with("ua-"))?;
        Some((alias.to_owned(), error))
    });
    failed.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_disks_are_told_by_their_aliases() {
        let answer = json!({"return": [
            {"device": "", "qdev": "/machine/peripheral/ua-root/virtio-backend", "io-status": "ok"},
            {"device": "", "qdev": "/machine/peripheral/ua-full/virtio-backend", "io-status": "nospace"},
            {"device": "", "qdev": "ua-broken", "io-status": "failed"},
            {"device": "", "qdev": "ua-drive"},
            {"device": "pflash0", "io-status": "failed"},
        ]});
        let expected =
            [("ua-full".to_owned(), DiskError::NoSpace), ("ua-broken".to_owned(), DiskError::Failed)];
        assert_eq!(errors_by_device(&answer), expected.into());
    }
}
