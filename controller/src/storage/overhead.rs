//! The part of a claim that its file system takes. CDI makes claims larger by it than the disks that it puts on them.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use podvirt_api::cdi::CdiConfig;

use crate::kept::Kept;

/// Of every claim, where CDI says nothing (upstream's).
const DEFAULT: &str = "0.055";
/// Of a block device, which has no file system.
const NOTHING: &str = "0";

/// The part of `claim` that its file system takes, from 0 to 1: as CDI says for its storage class, or for all.
pub fn overhead(claim: &PersistentVolumeClaim, data_settings: &Kept<CdiConfig>) -> String {
    let settings = data_settings.named(CdiConfig::NAME);
    let Some(told) = settings.as_ref().and_then(|settings| settings.status.filesystem_overhead.as_ref())
    else {
        return DEFAULT.to_owned();
    };
    let spec = claim.spec.as_ref();
    if spec.and_then(|spec| spec.volume_mode.as_deref()) == Some("Block") {
        return NOTHING.to_owned();
    }
    let class = spec.and_then(|spec| spec.storage_class_name.as_ref());
    class.and_then(|class| told.storage_class.get(class)).unwrap_or(&told.global).clone()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn it_is_what_cdi_says_for_the_class_or_for_all() {
        let told = json!({"metadata": {"name": "config"}, "status": {"filesystemOverhead":
            {"global": "0.06", "storageClass": {"slow": "0.1"}}}});
        let settings = |list: Value| Kept::with(serde_json::from_value::<Vec<CdiConfig>>(list).unwrap()).0;
        let of = |spec: Value, settings: &Kept<CdiConfig>| {
            overhead(&serde_json::from_value(json!({"spec": spec})).unwrap(), settings)
        };
        let cdi = settings(json!([told]));
        assert_eq!(of(json!({"storageClassName": "slow"}), &cdi), "0.1");
        assert_eq!(of(json!({"storageClassName": "fast"}), &cdi), "0.06");
        assert_eq!(of(json!({}), &cdi), "0.06");
        assert_eq!(of(json!({"storageClassName": "slow", "volumeMode": "Block"}), &cdi), "0");
        let begins = settings(json!([{"metadata": {"name": "config"}, "status": {}}]));
        for none in [settings(json!([])), begins] {
            assert_eq!(of(json!({"storageClassName": "slow"}), &none), "0.055");
        }
    }
}
