//! The claims that a machine's volumes name.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::Api;
use podvirt_api::v1::VirtualMachineInstance;

use crate::template::{self, claim_names};

/// What keeps a claim from being mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// There is none of this name.
    Missing,
    /// Its volume is a block device.
    Block,
}

/// Looks for every claim of `vmi`; those with a problem, in the order of the volumes.
///
/// # Errors
///
/// The API server could not be asked.
pub async fn problems(
    api: &Api<PersistentVolumeClaim>,
    vmi: &VirtualMachineInstance,
) -> Result<Vec<(String, Problem)>, kube::Error> {
    let mut problems = Vec::new();
    for name in claim_names(vmi) {
        let claim = api.get_opt(name).await?;
        if let Some(problem) = judge(claim.as_ref()) {
            problems.push((name.to_owned(), problem));
        }
    }
    Ok(problems)
}

/// A claim that is not bound is no problem: a storage class may wait for the pod.
fn judge(claim: Option<&PersistentVolumeClaim>) -> Option<Problem> {
    let Some(claim) = claim else { return Some(Problem::Missing) };
    let mode = claim.spec.as_ref().and_then(|spec| spec.volume_mode.as_deref());
    (mode == Some("Block")).then_some(Problem::Block)
}

/// Those of the machine's claims that one node alone can use, in the order of the volumes. `None`: one of them is not
/// there to be asked.
///
/// # Errors
///
/// The API server could not be asked.
pub async fn local(
    api: &Api<PersistentVolumeClaim>,
    vmi: &VirtualMachineInstance,
) -> Result<Option<Vec<String>>, kube::Error> {
    let mut local = Vec::new();
    for (name, read_only) in template::claims(vmi) {
        let Some(claim) = api.get_opt(name).await? else { return Ok(None) };
        if !is_shared(&claim, read_only) {
            local.push(name.to_owned());
        }
    }
    Ok(Some(local))
}

/// Whether two nodes can have the claim mounted at a time.
fn is_shared(claim: &PersistentVolumeClaim, read_only: bool) -> bool {
    let modes = claim.spec.as_ref().and_then(|spec| spec.access_modes.as_deref()).unwrap_or_default();
    modes.iter().any(|mode| mode == "ReadWriteMany" || (read_only && mode == "ReadOnlyMany"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_claim_is_shared_by_its_access_modes() {
        let claim = |modes: &[&str]| -> PersistentVolumeClaim {
            serde_json::from_value(json!({"spec": {"accessModes": modes}})).unwrap()
        };
        assert!(is_shared(&claim(&["ReadWriteOnce", "ReadWriteMany"]), false));
        assert!(!is_shared(&claim(&["ReadWriteOnce"]), true));
        assert!(!is_shared(&claim(&["ReadOnlyMany"]), false), "it is to be written");
        assert!(is_shared(&claim(&["ReadOnlyMany"]), true));
        assert!(!is_shared(&claim(&[]), false));
    }

    #[test]
    fn a_claim_must_exist_and_be_a_file_system_but_need_not_be_bound() {
        let claim = |mode: serde_json::Value| -> PersistentVolumeClaim {
            serde_json::from_value(json!({"spec": {"volumeMode": mode}, "status": {"phase": "Pending"}}))
                .unwrap()
        };
        assert_eq!(judge(None), Some(Problem::Missing));
        assert_eq!(judge(Some(&claim(json!("Block")))), Some(Problem::Block));
        assert_eq!(judge(Some(&claim(json!("Filesystem")))), None);
        assert_eq!(judge(Some(&claim(json!(null)))), None);
    }
}
