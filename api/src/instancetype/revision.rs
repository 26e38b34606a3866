//! ControllerRevisions that keep an instance type or a preference as it was when a VirtualMachine was given it.
//!
//! An instance type may be changed or deleted while machines are of it. So virt-controller stores it once for each machine, as
//! upstream does, and makes all later instances from what is stored. The VirtualMachine owns its revisions. Names, labels
//! and data are upstream's: a revision that upstream's controller has made is read, one of podvirt's is read there.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::names::label_value;
use crate::names::limits::{HASH_DIGITS, MAX_OBJECT_NAME_BYTES, shortened_with};
use crate::v1::{self, VirtualMachine};

use super::matcher::{Scope, Subject};
use super::{GROUP, VERSION};

/// Label of a revision: kind of the object in it.
pub const REVISION_KIND_LABEL: &str = "instancetype.kubevirt.io/object-kind";
const GENERATION_LABEL: &str = "instancetype.kubevirt.io/object-generation";
const NAME_LABEL: &str = "instancetype.kubevirt.io/object-name";
const UID_LABEL: &str = "instancetype.kubevirt.io/object-uid";
const VERSION_LABEL: &str = "instancetype.kubevirt.io/object-version";

/// A revision that does not hold what it should.
#[derive(Debug, thiserror::Error)]
pub enum RevisionError {
    /// It holds something else.
    #[error(
        "unexpected type in ControllerRevision {revision}: {found}; {wanted} of {GROUP}/{VERSION} is allowed"
    )]
    Kind {
        /// Its name.
        revision: String,
        /// What it holds.
        found: String,
        /// What it should hold.
        wanted: &'static str,
    },
    /// What it holds cannot be read.
    #[error("failed to decode object in ControllerRevision {0}")]
    Unreadable(String, #[source] serde_json::Error),
}

/// The revision that keeps `object`, an instance type or a preference of `scope`, for `vm`.
pub fn revision(vm: &VirtualMachine, subject: Subject, scope: Scope, object: &Value) -> ControllerRevision {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    let (name, uid) = (text("name"), text("uid"));
    let generation = object["metadata"]["generation"].as_i64().unwrap_or_default();
    let kind = subject.kind(scope);
    let machine = vm.metadata.name.clone().unwrap_or_default();
    let mut data = object.clone();
    data["apiVersion"] = format!("{GROUP}/{VERSION}").into();
    data["kind"] = kind.into();
    if let Some(metadata) = data["metadata"].as_object_mut() {
        for field in ["labels", "annotations", "finalizers", "ownerReferences", "managedFields"] {
            metadata.remove(field);
        }
    }
    let mut revision = ControllerRevision { data: Some(RawExtension(data)), ..ControllerRevision::default() };
    let metadata = &mut revision.metadata;
    let of_object = format!("-{VERSION}-{uid}-{generation}");
    metadata.name = Some(shortened_with(&format!("{machine}-{name}"), &of_object, MAX_OBJECT_NAME_BYTES));
    metadata.namespace.clone_from(&vm.metadata.namespace);
    let labels = [
        (GENERATION_LABEL, generation.to_string()),
        (REVISION_KIND_LABEL, kind.to_owned()),
        (NAME_LABEL, label_value(&name)),
        (UID_LABEL, uid),
        (VERSION_LABEL, VERSION.to_owned()),
    ];
    metadata.labels = Some(labels.map(|(label, value)| (label.to_owned(), value)).into_iter().collect());
    metadata.owner_references = Some(vec![OwnerReference {
        api_version: v1::API_VERSION.into(),
        kind: "VirtualMachine".into(),
        name: machine,
        uid: vm.metadata.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }]);
    revision
}

/// What a revision keeps.
///
/// # Errors
///
/// It keeps something else than the subject, or something that cannot be read.
pub fn spec_of<T: DeserializeOwned>(
    revision: &ControllerRevision,
    subject: Subject,
) -> Result<T, RevisionError> {
    let nothing = Value::Null;
    let data = revision.data.as_ref().map_or(&nothing, |data| &data.0);
    let name = || revision.metadata.name.clone().unwrap_or_default();
    let is_kind = [Scope::Namespace, Scope::Cluster].iter().any(|scope| data["kind"] == subject.kind(*scope));
    if !is_kind || data["apiVersion"] != format!("{GROUP}/{VERSION}") {
        let text = |field: &str| data[field].as_str().unwrap_or("nothing").to_owned();
        return Err(RevisionError::Kind {
            revision: name(),
            found: format!("{} of {}", text("kind"), text("apiVersion")),
            wanted: subject.kind(Scope::Namespace),
        });
    }
    T::deserialize(&data["spec"]).map_err(|error| RevisionError::Unreadable(name(), error))
}

/// Name of a copy of the revision called `name`, which goes with the object `to` in place of `from`.
///
/// A revision whose name has nothing of `from` keeps its name.
pub fn copied_name(name: &str, from: &str, to: &str) -> String {
    let (begin, of_object) = name.split_at(name.rfind(&format!("-{VERSION}-")).unwrap_or(name.len()));
    let is_hash = |hash: &str| hash.len() == HASH_DIGITS && hash.bytes().all(|b| b.is_ascii_hexdigit());
    let renamed = match begin.rsplit_once('-') {
        _ if begin.contains(from) => begin.replacen(from, to, 1),
        // It was cut within the name of `from`; its hash is of the whole.
        Some((cut, hash)) if is_hash(hash) && from.starts_with(cut) => format!("{to}-{hash}"),
        _ => return name.to_owned(),
    };
    shortened_with(&renamed, of_object, MAX_OBJECT_NAME_BYTES)
}

/// What a revision keeps that does not say by its label of which version it is, and of which scope that is.
pub fn unlabelled(revision: &ControllerRevision, subject: Subject) -> Option<(Scope, Value)> {
    let labels = revision.metadata.labels.as_ref();
    if labels.is_some_and(|labels| labels.contains_key(VERSION_LABEL)) {
        return None;
    }
    let object = &revision.data.as_ref()?.0;
    let scope = [Scope::Namespace, Scope::Cluster]
        .into_iter()
        .find(|scope| object["kind"] == subject.kind(*scope))?;
    (object["apiVersion"] == format!("{GROUP}/{VERSION}")).then(|| (scope, object.clone()))
}

/// Whether a revision keeps an object of this name.
pub fn is_of(revision: &ControllerRevision, name: &str) -> bool {
    let none = BTreeMap::new();
    let name = label_value(name);
    revision.metadata.labels.as_ref().unwrap_or(&none).get(NAME_LABEL).is_some_and(|known| *known == name)
}

/// Whether two revisions keep the same specification.
pub fn is_same(a: &ControllerRevision, b: &ControllerRevision) -> bool {
    let spec = |revision: &ControllerRevision| revision.data.as_ref().map(|data| data.0["spec"].clone());
    spec(a).zip(spec(b)).is_some_and(|(a, b)| crate::admission::same(&a, &b))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_revision_of_long_names_is_one_that_kubernetes_takes_and_is_found_by_its_object() {
        let vm: VirtualMachine = serde_json::from_value(json!({
            "metadata": {"name": "m".repeat(253), "uid": "v1"}, "spec": {"template": {}},
        }))
        .unwrap();
        let uid = "11111111-0000-4000-8000-000000000000";
        for length in [5, 63, 64, 253] {
            let name = "t".repeat(length);
            let object =
                |generation: i64| json!({"metadata": {"name": name, "uid": uid, "generation": generation}});
            let made = revision(&vm, Subject::Instancetype, Scope::Namespace, &object(1));
            let own = made.metadata.name.clone().unwrap();
            assert!(own.len() <= MAX_OBJECT_NAME_BYTES && own.ends_with(&format!("-{uid}-1")), "{own}");
            let labels = made.metadata.labels.as_ref().unwrap();
            assert!(labels.values().all(|value| crate::validate::text::is_label_value(value)), "{labels:?}");
            assert!(is_of(&made, &name) && !is_of(&made, "t"));
            let next = revision(&vm, Subject::Instancetype, Scope::Namespace, &object(2));
            assert_ne!(next.metadata.name, made.metadata.name);
        }
    }

    #[test]
    fn a_copy_of_a_revision_has_another_name_within_the_limit() {
        let of_object = "-v1beta1-11111111-0000-4000-8000-000000000000-1";
        let plain = format!("web-small{of_object}");
        assert_eq!(copied_name(&plain, "web", "snap"), format!("snap-small{of_object}"));
        assert_eq!(copied_name("by-hand", "web", "snap"), "by-hand");
        for (from, to) in [(3, 253), (253, 3), (253, 253), (150, 230)] {
            let (from, to) = ("m".repeat(from), "s".repeat(to));
            let own =
                |kind: &str| shortened_with(&format!("{from}-{kind}"), of_object, MAX_OBJECT_NAME_BYTES);
            let [copy, other] = ["small", "large"].map(|kind| copied_name(&own(kind), &from, &to));
            assert!(copy.starts_with('s') && copy.ends_with(of_object), "{copy}");
            assert!(copy.len() <= MAX_OBJECT_NAME_BYTES && copy != other, "{copy}");
            let back = copied_name(&copy, &to, &from);
            assert!(back.starts_with('m') && back.len() <= MAX_OBJECT_NAME_BYTES, "{back}");
        }
    }
}
