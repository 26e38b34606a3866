//! Whether a machine may have a copy of a claim or of a snapshot: CDI's own rule, asked for the machine's service account.
//!
//! A copy within a namespace is free. Of another namespace, the account needs the right to `create` `datavolumes/source` there;
//! the rights to `create` what reads the source anyway will do as well: `pods` for a claim, `pods` and `pvcs` for a
//! snapshot (so CDI names them).

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use podvirt_api::cdi::{FILLED_ALREADY, GROUP};
use podvirt_api::v1::VirtualMachine;
use serde_json::Value;

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

/// Whether a DataVolume with these annotations is copied in no case.
pub fn is_filled_already(annotations: Option<&std::collections::BTreeMap<String, String>>) -> bool {
    annotations.is_some_and(|all| FILLED_ALREADY.iter().any(|one| all.contains_key(*one)))
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
    use serde_json::json;

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
