//! A pod of virt-operator that was taken over, by its service account's token: it gives rights that it has itself, and none beyond.

use podvirt_e2e::cluster::Cluster;
use serde_json::{Value, json};

use super::PODVIRT;
use super::tenant::{Answer, Tenant};

/// virt-operator's service account.
const ACCOUNT: &str = "kubevirt-operator";
const RBAC: &str = "rbac.authorization.k8s.io";
/// What the API server says of a right that the account has not.
const NOT_HELD: &str = "attempting to grant RBAC permissions not currently held";

/// A role with one right.
fn role(group: &str, resource: &str, verb: &str) -> Value {
    json!({
        "apiVersion": format!("{RBAC}/v1"), "kind": "ClusterRole", "metadata": {"name": "loot"},
        "rules": [{"apiGroups": [group], "resources": [resource], "verbs": [verb]}],
    })
}

/// A binding of the account to the role with all rights.
fn binding(kind: &str) -> Value {
    json!({
        "apiVersion": format!("{RBAC}/v1"), "kind": kind, "metadata": {"name": "loot"},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "namespace": PODVIRT, "name": ACCOUNT}],
    })
}

#[test]
fn a_virt_operator_that_was_taken_over_gives_no_right_that_it_has_not() {
    let cluster = Cluster::get().unwrap();
    let token = cluster.kubectl(&["-n", PODVIRT, "create", "token", ACCOUNT]).unwrap();
    let operator = Tenant::by_token(&cluster, token.trim(), PODVIRT);
    // The API server stores nothing of what it allows.
    let post = |place: &str, object: &Value| -> Answer {
        operator.asks("POST", &format!("/apis/{RBAC}/v1/{place}?dryRun=All"), object)
    };
    // A right of virt-controller's, which shows that the rest fails for its reason.
    let given = post("clusterroles", &role("kubevirt.io", "virtualmachines", "list"));
    assert_eq!(given.0, 200, "{given:?}");
    for (place, object) in [
        ("clusterroles", role("*", "*", "*")),
        ("clusterroles", role("", "pods/exec", "create")),
        ("clusterroles", role("", "nodes", "delete")),
        ("clusterrolebindings", binding("ClusterRoleBinding")),
        ("namespaces/kube-system/rolebindings", binding("RoleBinding")),
    ] {
        let (code, text) = post(place, &object);
        eprintln!("{place}: {code} {text}");
        assert!(code == 403 && text.contains(NOT_HELD), "{place}: {object}: {code}: {text}");
    }
}
