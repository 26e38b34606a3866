use serde_json::json;

use super::*;

/// A pod that runs and asks for one interface, with this change.
pub(super) fn pod(change: &Value) -> Pod {
    let mut pod = json!({
        "metadata": {"namespace": "shop", "name": "web", "annotations": {
            "k8s.v1.cni.cncf.io/networks": r#"[{"name": "red", "interface": "podred"}]"#,
            "k8s.v1.cni.cncf.io/network-status": "[]",
        }},
        "spec": {"containers": []},
        "status": {"phase": "Running"},
    });
    json_patch::merge(&mut pod, change);
    serde_json::from_value(pod).unwrap()
}

#[test]
fn a_pod_that_runs_in_a_network_of_its_own_is_looked_after() {
    assert!(!is_settled(&pod(&json!({}))).unwrap());
    for settled in [
        json!({"status": {"phase": "Pending"}}),
        json!({"status": {"phase": "Succeeded"}}),
        json!({"spec": {"hostNetwork": true}}),
        json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
        json!({"metadata": {"annotations": {"k8s.v1.cni.cncf.io/networks": "[]"}}}),
    ] {
        assert!(is_settled(&pod(&settled)).unwrap(), "{settled}");
    }
}
