//! Rights while daemons of two versions run.
//!
//! # Theory of operation
//!
//! An update replaces the daemons one after another. Until the last one is new, or for as long as something holds the
//! update up, both versions do their work and need their rights:
//!
//! ```text
//!   first   NAME        as the older version left it, with its rules
//!           NAME-next   the new version's rules, bound to the same accounts
//!             │
//!             ▼  all daemons are new
//!   last    NAME        the new version's rules; what is not of this version is deleted, NAME-next with it
//! ```
//!
//! Only roles from which the new version takes a rule are treated so; the others get their new rules at once. A role
//! with the rules of both versions would be simpler, but Kubernetes refuses it: virt-operator can give no right that it has
//! not, and its own rights are those of the new version already. It refuses for the same reason to let virt-operator write a binding of
//! a role that has more rights, whatever changes in the binding: the bindings of a role that stays are written after the role.
//!
//! The annotation [`IDENTIFIER`] of a stored role tells whether it is another version's. Where an update is taken back, the role
//! is of the version that is wanted, and `NAME-next` stays until the daemons are the older ones again.
//!
//! What forbids something, and was not there before, comes last as well: admission policies and their bindings, and network
//! policies that let nothing in. A policy that is there is replaced at once, as the new daemons may need what it allows now: what a
//! new release's policies allow has to include what the daemons of the release before do.

use serde_json::{Value, json};

use crate::customize::IDENTIFIER;
use crate::manifests::{CLUSTER_ROLE, CLUSTER_ROLE_BINDING, Kind, Object, ROLE, ROLE_BINDING, Wave};

/// Kinds of roles, and of what binds them.
const ROLE_AND_BINDING_KINDS: [Kind; 4] = [CLUSTER_ROLE, CLUSTER_ROLE_BINDING, ROLE, ROLE_BINDING];
/// End of the name of a role that has the new version's rules until all daemons are new.
const NEXT_SUFFIX: &str = "-next";

/// The objects of [`Wave::Common`] in the order of an update.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Phases {
    /// What is applied before the daemons.
    pub first: Vec<Object>,
    /// What is applied once all daemons are new.
    pub last: Vec<Object>,
}

/// Divides the common objects; `stored` are the roles and policies that virt-operator has made, whole. `updates` tells
/// whether daemons of another version may run.
pub fn phases(objects: &[Object], stored: &[Value], updates: bool) -> Phases {
    let there = |object: &Object| stored.iter().find(|stored| is_same(object, stored));
    let successors = |object: &Object| match there(object) {
        Some(there) if takes_rules(object, there) => next(object, objects),
        _ => Vec::new(),
    };
    let stay: Vec<&Object> = objects.iter().filter(|object| !successors(object).is_empty()).collect();
    let mut phases = Phases::default();
    for object in objects.iter().filter(|object| object.wave() == Wave::Common) {
        let successors = successors(object);
        let is_bound_late = stay.iter().any(|role| binds(object, role));
        let forbids_anew = updates && there(object).is_none() && forbids(object);
        if !successors.is_empty() || is_bound_late || forbids_anew {
            phases.last.push(object.clone());
        } else {
            phases.first.push(object.clone());
        }
        phases.first.extend(successors);
    }
    phases
}

/// Kinds whose stored objects [`phases`] goes by.
pub fn is_divided(kind: Kind) -> bool {
    [CLUSTER_ROLE, ROLE].contains(&kind) || FORBIDDING_KINDS.contains(&kind.kind)
}

/// Kinds whose objects may forbid what was allowed.
const FORBIDDING_KINDS: [&str; 3] =
    ["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "NetworkPolicy"];

/// Every role and binding that an update may need beside `objects`, for the names in virt-operator's own rights.
pub(crate) fn successors(objects: &[Object]) -> Vec<Object> {
    objects.iter().flat_map(|object| next(object, objects)).collect()
}

/// Whether `binding` gives the role.
fn binds(binding: &Object, role: &Object) -> bool {
    let reference = &binding.value["roleRef"];
    ROLE_AND_BINDING_KINDS.contains(&binding.kind)
        && reference["kind"] == role.kind.kind
        && reference["name"] == role.name()
        && (role.kind == CLUSTER_ROLE || binding.namespace() == role.namespace())
}

/// The role of the new version's rules beside `role`, and its bindings. None for a role that no daemon's account has.
fn next(role: &Object, objects: &[Object]) -> Vec<Object> {
    if ![CLUSTER_ROLE, ROLE].contains(&role.kind) {
        return Vec::new();
    }
    let binds_account = |binding: &&Object| {
        let subjects = binding.value["subjects"].as_array();
        binds(binding, role)
            && subjects.is_some_and(|all| all.iter().any(|one| one["kind"] == "ServiceAccount"))
    };
    let renamed = |object: &Object| {
        let mut next = object.clone();
        next.value["metadata"]["name"] = json!(format!("{}{NEXT_SUFFIX}", object.name()));
        next
    };
    let mut found: Vec<Object> = objects.iter().filter(binds_account).map(renamed).collect();
    for binding in &mut found {
        binding.value["roleRef"]["name"] = json!(format!("{}{NEXT_SUFFIX}", role.name()));
    }
    if !found.is_empty() {
        found.insert(0, renamed(role));
    }
    found
}

/// Whether `stored` is another version's, and allows what `role` does not.
fn takes_rules(role: &Object, stored: &Value) -> bool {
    let identifier = |value: &Value| value["metadata"]["annotations"][IDENTIFIER].clone();
    let rules = |value: &Value| value["rules"].as_array().cloned().unwrap_or_default();
    let new = rules(&role.value);
    identifier(&role.value) != identifier(stored) && rules(stored).iter().any(|rule| !allow(&new, rule))
}

/// Whether the object allows nothing, and so takes something away where there was no such object.
fn forbids(object: &Object) -> bool {
    let lets_in = object.value["spec"]["ingress"].as_array().is_some_and(|rules| !rules.is_empty());
    FORBIDDING_KINDS.contains(&object.kind.kind) && !(object.kind.kind == "NetworkPolicy" && lets_in)
}

fn is_same(object: &Object, stored: &Value) -> bool {
    stored["kind"] == object.kind.kind
        && stored["metadata"]["name"] == object.name()
        && stored["metadata"]["namespace"].as_str() == object.namespace()
}

/// Whether `rules` allow what the rule `wanted` allows, each pair of resource and verb by itself.
pub(crate) fn allow(rules: &[Value], wanted: &Value) -> bool {
    let has = |list: &Value, item: &Value| {
        list.as_array().is_some_and(|list| list.contains(item) || list.contains(&json!("*")))
    };
    let each = |name: &str| wanted[name].as_array().cloned().unwrap_or_default();
    let names = match wanted["resourceNames"].as_array() {
        Some(names) => names.clone(),
        None => vec![Value::Null],
    };
    let urls = each("nonResourceURLs");
    let verbs = each("verbs");
    let on_urls = urls.iter().all(|url| {
        verbs.iter().all(|verb| {
            rules.iter().any(|rule| has(&rule["nonResourceURLs"], url) && has(&rule["verbs"], verb))
        })
    });
    on_urls
        && each("apiGroups").iter().all(|group| {
            each("resources").iter().all(|resource| {
                verbs.iter().all(|verb| {
                    names.iter().all(|name| {
                        rules.iter().any(|rule| {
                            has(&rule["apiGroups"], group)
                                && has(&rule["resources"], resource)
                                && has(&rule["verbs"], verb)
                                && (rule["resourceNames"].is_null() || has(&rule["resourceNames"], name))
                        })
                    })
                })
            })
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifests::{all, kind_of};

    fn object(value: Value) -> Object {
        Object { kind: kind_of(&value).unwrap(), value }
    }

    fn role(id: &str, resources: &[&str]) -> Object {
        object(json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": "r", "annotations": {(IDENTIFIER): id}},
            "rules": [{"apiGroups": [""], "resources": resources, "verbs": ["get"]}],
        }))
    }

    fn binding() -> Object {
        object(json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "b"},
            "roleRef": {"kind": "ClusterRole", "name": "r"}, "subjects": [{"kind": "ServiceAccount", "name": "a"}],
        }))
    }

    fn names(objects: &[Object]) -> Vec<String> {
        objects.iter().map(Object::title).collect()
    }

    #[test]
    fn a_role_that_loses_a_rule_is_changed_last_and_has_a_successor_until_then() {
        let new = [role("v2", &["pods"]), binding()];
        let phases = |stored: &Object| phases(&new, std::slice::from_ref(&stored.value), true);
        let narrowed = phases(&role("v1", &["pods", "secrets"]));
        assert_eq!(names(&narrowed.first), ["ClusterRole r-next", "ClusterRoleBinding b-next"]);
        assert_eq!(narrowed.first[1].value["roleRef"]["name"], "r-next");
        assert_eq!(narrowed.first[0].value["rules"], new[0].value["rules"]);
        // virt-operator may write no binding of a role with rights that it has not itself any more.
        assert_eq!(names(&narrowed.last), ["ClusterRole r", "ClusterRoleBinding b"]);

        for (stored, why) in [
            (role("v1", &["pods"]), "nothing is lost"),
            (role("v2", &["pods", "secrets"]), "what was added by hand is no version's"),
        ] {
            let phases = phases(&stored);
            assert_eq!((names(&phases.first).len(), phases.last), (2, Vec::new()), "{why}");
        }
        let unbound = super::phases(&new[..1], &[role("v1", &["secrets"]).value], true);
        assert_eq!(names(&unbound.first), ["ClusterRole r"], "no daemon has it");
    }

    #[test]
    fn a_new_policy_that_only_forbids_comes_last_in_an_update() {
        let policy = |ingress: Value| {
            object(json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
                "metadata": {"name": "p", "namespace": "n"}, "spec": {"ingress": ingress}}))
        };
        let (closed, open) = (policy(json!([])), policy(json!([{"ports": []}])));
        let last = |object: &Object, stored: &[Value], updates| {
            phases(std::slice::from_ref(object), stored, updates).last.len()
        };
        assert_eq!(last(&closed, &[], true), 1);
        assert_eq!(last(&closed, &[], false), 0, "an installation");
        assert_eq!(last(&closed, std::slice::from_ref(&closed.value), true), 0, "it is there");
        assert_eq!(last(&open, &[], true), 0);
    }

    #[test]
    fn every_account_of_podvirts_keeps_its_rights_in_an_update() {
        let objects = all().unwrap();
        let found = names(&successors(&objects));
        for role in [
            "ClusterRole kubevirt-handler-next",
            "ClusterRole kubevirt-controller-next",
            "Role kubevirt-controller-next",
        ] {
            assert!(found.contains(&role.to_owned()), "{role}: {found:?}");
        }
        assert!(!found.iter().any(|title| title.contains("kubevirt.io:")), "a role of users: {found:?}");
    }
}
