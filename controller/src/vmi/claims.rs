//! The claims that a machine's volumes name.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::Api;
use podvirt_api::v1::VirtualMachineInstance;

use crate::template::claim_names;

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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
