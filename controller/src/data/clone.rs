//! Whether a machine may have a copy of a claim or of a snapshot: CDI's own rule, asked for the machine's service account.
//!
//! A copy within a namespace is free. Of another namespace, the account needs the right to `create` `datavolumes/source` there;
//! the rights to `create` what reads the source anyway will do as well: `pods` for a claim, `pods` and `pvcs` for a
//! snapshot (so CDI names them).

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use podvirt_api::cdi::GROUP;
use podvirt_api::v1::VirtualMachine;
use serde_json::{Value, json};

/// Account of a machine that names none.
const DEFAULT_ACCOUNT: &str = "default";

/// What is copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Whether it is a snapshot; else a claim.
    pub is_snapshot: bool,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl Source {
    /// What a DataVolume's specification copies, for a DataVolume of `namespace`. None: it copies nothing, or names a DataSource.
    pub fn of(spec: &Value, namespace: &str) -> Option<Source> {
        [("pvc", false), ("snapshot", true)].into_iter().find_map(|(field, is_snapshot)| {
            let source = spec.get("source")?.get(field).filter(|source| source.is_object())?;
            let text = |field: &str| source[field].as_str().filter(|text| !text.is_empty());
            let namespace = text("namespace").unwrap_or(namespace).to_owned();
            Some(Source { is_snapshot, namespace, name: text("name").unwrap_or_default().to_owned() })
        })
    }

    /// The specification's own form.
    pub fn to_spec(&self) -> Value {
        let field = if self.is_snapshot { "snapshot" } else { "pvc" };
        serde_json::json!({ field: {"namespace": self.namespace, "name": self.name} })
    }
}

/// The DataSource that a specification names in place of a source: namespace, which is `namespace` where it names none, and name.
pub fn data_source(spec: &Value, namespace: &str) -> Option<(String, String)> {
    let of = spec.get("sourceRef").filter(|of| of["kind"] == "DataSource")?;
    let own = of["namespace"].as_str().filter(|text| !text.is_empty());
    Some((own.unwrap_or(namespace).to_owned(), of["name"].as_str().unwrap_or_default().to_owned()))
}

/// Replaces by nothing to copy (`blank`) what a DataVolume of `namespace` copies of another namespace, or may copy by a DataSource.
/// `storage` is the size that CDI then wants of a specification without a size.
///
/// It is for a DataVolume whose claim is filled by another hand. CDI proves its author's right by a token as soon as the DataVolume is made,
/// whether or not it ever copies, and a user with the right to change the DataVolume can have it copied later.
pub fn without_foreign_source(spec: &mut Value, namespace: &str, storage: Option<&Quantity>) {
    let is_foreign = Source::of(spec, namespace).is_some_and(|source| source.namespace != namespace);
    if !is_foreign && spec.get("sourceRef").is_none_or(Value::is_null) {
        return;
    }
    let Some(spec) = spec.as_object_mut() else { return };
    spec.remove("sourceRef");
    spec.insert("source".into(), json!({"blank": {}}));
    let field = if spec.get("pvc").is_some_and(Value::is_object) { "pvc" } else { "storage" };
    let Some(storage) = storage else { return };
    let mut place = spec.entry(field).or_insert_with(|| json!({}));
    for field in ["resources", "requests"] {
        let Some(fields) = place.as_object_mut() else { return };
        place = fields.entry(field).or_insert_with(|| json!({}));
    }
    if let Some(requests) = place.as_object_mut() {
        requests.entry("storage").or_insert_with(|| json!(storage));
    }
}

/// The service account that a machine copies with: that of its volume with an account.
pub fn account(vm: &VirtualMachine) -> &str {
    let spec = vm.spec.template.as_ref().and_then(|template| template.spec.as_ref());
    let volumes = spec.into_iter().flat_map(|spec| &spec.volumes);
    let mut named =
        volumes.filter_map(|volume| volume.service_account.as_ref()?.service_account_name.as_deref());
    named.next_back().unwrap_or(DEFAULT_ACCOUNT)
}

/// The account's name as a user of the API server.
pub fn user(namespace: &str, account: &str) -> String {
    format!("system:serviceaccount:{namespace}:{account}")
}

/// What the API server is asked of `account` of `namespace`: the account may copy `source` if in one of the lists everything is
/// allowed.
pub fn questions(source: &Source, namespace: &str, account: &str) -> Vec<Vec<SubjectAccessReview>> {
    let ask = |group: &str, resource: &str, subresource: &str| SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(user(namespace, account)),
            groups: Some(vec![
                "system:serviceaccounts".into(),
                format!("system:serviceaccounts:{namespace}"),
                "system:authenticated".into(),
            ]),
            resource_attributes: Some(ResourceAttributes {
                namespace: Some(source.namespace.clone()),
                name: Some(source.name.clone()),
                verb: Some("create".into()),
                group: Some(group.to_owned()),
                resource: Some(resource.to_owned()),
                subresource: Some(subresource.to_owned()),
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    };
    let mut reading = vec![ask("", "pods", "")];
    if source.is_snapshot {
        reading.push(ask("", "pvcs", ""));
    }
    vec![vec![ask(GROUP, "datavolumes", "source")], reading]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_copied_is_in_the_specification_or_in_a_data_source() {
        let claim = json!({"source": {"pvc": {"namespace": "images", "name": "debian"}}});
        let source = Source::of(&claim, "shop").unwrap();
        assert_eq!(source, Source { is_snapshot: false, namespace: "images".into(), name: "debian".into() });
        assert_eq!(source.to_spec(), claim["source"]);
        let snapshot = Source::of(&json!({"source": {"snapshot": {"name": "s"}}}), "shop").unwrap();
        assert_eq!((snapshot.is_snapshot, snapshot.namespace.as_str()), (true, "shop"));
        assert_eq!(Source::of(&json!({"source": {"blank": {}}}), "shop"), None);
        let referred = json!({"sourceRef": {"kind": "DataSource", "name": "debian", "namespace": "images"}});
        assert_eq!(data_source(&referred, "shop"), Some(("images".into(), "debian".into())));
        assert_eq!(
            data_source(&json!({"sourceRef": {"kind": "DataSource", "name": "d"}}), "shop").unwrap().0,
            "shop"
        );
        assert_eq!(data_source(&claim, "shop"), None);
    }

    #[test]
    fn what_another_hand_fills_copies_nothing_of_another_namespace() {
        let made = |spec: Value| {
            let mut spec = spec;
            without_foreign_source(&mut spec, "shop", Some(&Quantity("20Gi".into())));
            spec
        };
        let sized =
            json!({"source": {"blank": {}}, "storage": {"resources": {"requests": {"storage": "20Gi"}}}});
        for source in [
            json!({"source": {"pvc": {"namespace": "bank", "name": "ledger"}}}),
            json!({"source": {"snapshot": {"namespace": "bank", "name": "ledger"}}, "storage": {}}),
            json!({"sourceRef": {"kind": "DataSource", "namespace": "bank", "name": "ledger"}}),
            // A DataSource of the own namespace can lead to any other.
            json!({"sourceRef": {"kind": "DataSource", "name": "ledger"}}),
        ] {
            assert_eq!(made(source.clone()), sized, "{source}");
        }
        let own = json!({"source": {"pvc": {"namespace": "shop", "name": "ledger"}}});
        let size = json!({"source": {"pvc": {"namespace": "bank", "name": "x"}}, "pvc": {"resources": {"requests": {"storage": "1Gi"}}}});
        for same in [own, json!({"source": {"http": {"url": "u"}}}), json!({})] {
            assert_eq!(made(same.clone()), same);
        }
        assert_eq!(made(size)["pvc"]["resources"]["requests"]["storage"], "1Gi", "the own size stays");
    }

    #[test]
    fn the_account_is_that_of_a_volume() {
        let vm = |volumes: Value| -> VirtualMachine {
            serde_json::from_value(
                json!({"spec": {"template": {"spec": {"domain": {"devices": {}}, "volumes": volumes}}}}),
            )
            .unwrap()
        };
        assert_eq!(account(&vm(json!([]))), "default");
        assert_eq!(
            account(&vm(json!([{"name": "a", "serviceAccount": {"serviceAccountName": "builder"}}]))),
            "builder"
        );
    }

    #[test]
    fn a_snapshot_needs_more_rights_than_a_claim_where_the_explicit_one_is_missing() {
        let asked = |is_snapshot: bool| -> Vec<Vec<String>> {
            let source = Source { is_snapshot, namespace: "images".into(), name: "debian".into() };
            let resource = |review: SubjectAccessReview| {
                assert_eq!(review.spec.user.as_deref(), Some("system:serviceaccount:shop:builder"));
                let of = review.spec.resource_attributes.unwrap();
                assert_eq!((of.namespace.as_deref(), of.verb.as_deref()), (Some("images"), Some("create")));
                format!("{}/{}", of.resource.unwrap(), of.subresource.unwrap())
            };
            let lists = questions(&source, "shop", "builder");
            lists.into_iter().map(|list| list.into_iter().map(resource).collect()).collect()
        };
        assert_eq!(asked(false), [vec!["datavolumes/source"], vec!["pods/"]]);
        assert_eq!(asked(true), [vec!["datavolumes/source"], vec!["pods/", "pvcs/"]]);
    }
}
