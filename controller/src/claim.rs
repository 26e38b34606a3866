//! Whose an object is, by its labels and its controller reference: the rules of Kubernetes' own controllers.
//!
//! | the object's controller | its labels | |
//! |---|---|---|
//! | this owner | selected | it is the owner's |
//! | this owner | not selected | it is released, unless the owner is being deleted |
//! | none | selected | it is adopted, unless either is being deleted |
//! | another, or none and not selected | | it is none of the owner's business |

use std::collections::HashMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use podvirt_api::selector::{Labels, Selector};

/// What becomes of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// It is the owner's.
    Own,
    /// It becomes the owner's.
    Adopt,
    /// It was the owner's.
    Release,
    /// It is not the owner's.
    Leave,
}

/// Judges `object` for `owner`.
pub(crate) fn claim(owner: &ObjectMeta, selector: &Selector, object: &ObjectMeta) -> Claim {
    let none = Labels::new();
    let selected = selector.matches(object.labels.as_ref().unwrap_or(&none));
    let owner_stays = owner.deletion_timestamp.is_none();
    match controller_of(object) {
        Some(reference) if Some(&reference.uid) != owner.uid.as_ref() => Claim::Leave,
        Some(_) if selected || !owner_stays => Claim::Own,
        Some(_) => Claim::Release,
        None if selected && owner_stays && object.deletion_timestamp.is_none() => Claim::Adopt,
        None => Claim::Leave,
    }
}

/// Whose an object is to an owner that would make one of its name, or delete it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ownership {
    /// The owner controls it.
    Ours,
    /// Nothing controls it.
    Unowned,
    /// Another object controls it, an earlier one of the owner's name for example.
    Foreign,
    /// It is being deleted, whosever it is.
    Leaving,
}

/// Judges `object` for `owner`. A name says nothing of it: only the owner's UID does.
pub(crate) fn ownership(owner: &ObjectMeta, object: &ObjectMeta) -> Ownership {
    match controller_of(object) {
        _ if object.deletion_timestamp.is_some() => Ownership::Leaving,
        None => Ownership::Unowned,
        Some(reference) if Some(&reference.uid) == owner.uid.as_ref() => Ownership::Ours,
        Some(_) => Ownership::Foreign,
    }
}

/// Whether an earlier object of the owner's kind and name controls `object`, which the garbage collector deletes.
pub(crate) fn is_of_predecessor(owner: &ObjectMeta, kind: &str, object: &ObjectMeta) -> bool {
    ownership(owner, object) == Ownership::Foreign
        && controller_of(object)
            .is_some_and(|reference| reference.kind == kind && Some(&reference.name) == owner.name.as_ref())
}

/// The controller reference of an object.
pub(crate) fn controller_of(object: &ObjectMeta) -> Option<&OwnerReference> {
    object.owner_references.iter().flatten().find(|reference| reference.controller == Some(true))
}

/// The owners of an object once `owner` controls it.
pub(crate) fn owners_with(object: &ObjectMeta, owner: OwnerReference) -> Vec<OwnerReference> {
    let mut owners = owners_without(object, &owner.uid);
    owners.push(owner);
    owners
}

/// The owners of an object without the one with this UID.
pub(crate) fn owners_without(object: &ObjectMeta, uid: &str) -> Vec<OwnerReference> {
    object.owner_references.iter().flatten().filter(|reference| reference.uid != uid).cloned().collect()
}

/// The UIDs of objects, and whether each is being deleted: what [`crate::expectations::Expectations::look`] takes.
pub(crate) fn there<'a>(objects: impl Iterator<Item = &'a ObjectMeta>) -> HashMap<String, bool> {
    objects.filter_map(|object| Some((object.uid.clone()?, object.deletion_timestamp.is_some()))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn meta(value: Value) -> ObjectMeta {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn an_object_is_claimed_as_the_table_says() {
        let labels = serde_json::from_value(json!({"matchLabels": {"app": "web"}})).unwrap();
        let selector = Selector::of(Some(&labels)).unwrap();
        let stays = meta(json!({"uid": "o"}));
        let goes = meta(json!({"uid": "o", "deletionTimestamp": "2026-03-01T12:00:00Z"}));
        let reference = |uid: &str| json!([{"apiVersion": "v1", "kind": "K", "name": "n", "uid": uid, "controller": true}]);
        let (web, db) = (json!({"app": "web"}), json!({"app": "db"}));
        for (owners, labels, expected, while_deleted) in [
            (reference("o"), &web, Claim::Own, Claim::Own),
            (reference("o"), &db, Claim::Release, Claim::Own),
            (json!([]), &web, Claim::Adopt, Claim::Leave),
            (json!([]), &db, Claim::Leave, Claim::Leave),
            (reference("p"), &web, Claim::Leave, Claim::Leave),
        ] {
            let mut object = json!({"labels": labels, "ownerReferences": owners});
            assert_eq!(claim(&stays, &selector, &meta(object.clone())), expected, "{object}");
            assert_eq!(claim(&goes, &selector, &meta(object.clone())), while_deleted, "{object}");
            object["deletionTimestamp"] = json!("2026-03-01T12:00:00Z");
            let going = claim(&stays, &selector, &meta(object));
            assert_eq!(going, if expected == Claim::Adopt { Claim::Leave } else { expected });
        }
    }

    #[test]
    fn an_object_is_ours_by_the_uid_and_not_by_the_name() {
        let owner = meta(json!({"name": "web", "uid": "n2"}));
        let by = |name: &str, uid: &str, controller: bool| {
            meta(json!({"ownerReferences": [
                {"apiVersion": "v1", "kind": "K", "name": name, "uid": uid, "controller": controller}]}))
        };
        assert_eq!(ownership(&owner, &by("web", "n2", true)), Ownership::Ours);
        assert_eq!(ownership(&owner, &by("web", "n1", true)), Ownership::Foreign);
        assert_eq!(ownership(&owner, &by("web", "n2", false)), Ownership::Unowned);
        let none = meta(json!({}));
        assert_eq!(
            ownership(&none, &by("web", "n2", true)),
            Ownership::Foreign,
            "an owner that is not made yet"
        );
        let mut leaving = by("web", "n2", true);
        leaving.deletion_timestamp =
            meta(json!({"deletionTimestamp": "2026-03-01T12:00:00Z"})).deletion_timestamp;
        assert_eq!(ownership(&owner, &leaving), Ownership::Leaving);
        assert!(is_of_predecessor(&owner, "K", &by("web", "n1", true)));
        assert!(!is_of_predecessor(&owner, "K", &by("db", "n1", true)), "another machine that lives");
        assert!(!is_of_predecessor(&owner, "K", &by("web", "n2", true)));
    }

    #[test]
    fn other_owners_stay() {
        let reference = |uid: &str, controller: bool| OwnerReference {
            uid: uid.into(),
            controller: controller.then_some(true),
            ..OwnerReference::default()
        };
        let object =
            ObjectMeta { owner_references: Some(vec![reference("a", false)]), ..ObjectMeta::default() };
        let with = owners_with(&object, reference("o", true));
        assert_eq!(with.iter().map(|owner| owner.uid.as_str()).collect::<Vec<_>>(), ["a", "o"]);
        let object = ObjectMeta { owner_references: Some(with), ..ObjectMeta::default() };
        assert_eq!(controller_of(&object).map(|owner| owner.uid.as_str()), Some("o"));
        assert_eq!(owners_without(&object, "o"), [reference("a", false)]);
    }
}
