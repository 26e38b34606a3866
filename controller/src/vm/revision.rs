//! ControllerRevisions: the specification with which a VirtualMachine was started last.
//!
//! As with upstream, the status of an instance names the revision that the instance was made from. The revision's data are
//! `{"spec": ...}` of the VirtualMachine, its number is the VirtualMachine's generation. A VirtualMachine has one revision: a start
//! deletes those of earlier generations. The VirtualMachine owns it, so the garbage collector deletes it after the VirtualMachine.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt};
use podvirt_api::names::label;
use podvirt_api::v1::VirtualMachine;
use serde_json::json;

/// Name of the revision that the machine is started with, as upstream has it.
pub fn name(vm: &VirtualMachine) -> String {
    format!(
        "revision-start-vm-{}-{}",
        vm.uid().unwrap_or_default(),
        vm.metadata.generation.unwrap_or_default()
    )
}

/// The revision of the machine as it is.
pub fn of(vm: &VirtualMachine) -> ControllerRevision {
    let mut revision = ControllerRevision {
        data: Some(RawExtension(json!({ "spec": vm.spec }))),
        revision: vm.metadata.generation.unwrap_or_default(),
        ..ControllerRevision::default()
    };
    revision.metadata.name = Some(name(vm));
    revision.metadata.namespace = vm.namespace();
    revision.metadata.labels =
        Some(BTreeMap::from([(label::CREATED_BY.to_owned(), vm.uid().unwrap_or_default())]));
    revision.metadata.owner_references = vm.controller_owner_ref(&()).map(|owner| vec![owner]);
    revision
}

/// Writes the revision of the machine as it is, and deletes its earlier ones.
///
/// # Errors
/// The API server refuses, or cannot be asked.
pub async fn renew(client: &Client, vm: &VirtualMachine) -> Result<(), kube::Error> {
    let revisions =
        Api::<ControllerRevision>::namespaced(client.clone(), &vm.namespace().unwrap_or_default());
    match revisions.create(&PostParams::default(), &of(vm)).await {
        // An earlier attempt of the same start has made it: a generation has one specification.
        Err(kube::Error::Api(status)) if status.is_already_exists() => {}
        made => drop(made?),
    }
    let own =
        ListParams::default().labels(&format!("{}={}", label::CREATED_BY, vm.uid().unwrap_or_default()));
    for old in revisions.list_metadata(&own).await?.items {
        if old.name_any() == name(vm) {
            continue;
        }
        match revisions.delete(&old.name_any(), &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            gone => drop(gone?),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn machine() -> VirtualMachine {
        serde_json::from_value(json!({
            "metadata": {"name": "vm", "namespace": "ns", "uid": "v1", "generation": 3},
            "spec": {"runStrategy": "Manual", "template": {"spec": {"domain": {"devices": {}}}}},
        }))
        .unwrap()
    }

    #[test]
    fn a_revision_has_the_machines_specification_and_belongs_to_it() {
        let revision = of(&machine());
        assert_eq!(revision.metadata.name.as_deref(), Some("revision-start-vm-v1-3"));
        assert_eq!(revision.revision, 3);
        let data: Value = revision.data.unwrap().0;
        assert_eq!(data["spec"]["runStrategy"], "Manual");
        let owner = &revision.metadata.owner_references.unwrap()[0];
        assert_eq!((owner.uid.as_str(), owner.controller), ("v1", Some(true)));
    }

    #[tokio::test]
    async fn earlier_revisions_go() {
        let (client, asked) = podvirt_daemon::testing::recorded("ns", |(what, _)| match what {
            _ if what.starts_with("GET") => Some((
                200,
                json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": {}, "items": [
                    {"metadata": {"name": "revision-start-vm-v1-1"}}, {"metadata": {"name": "revision-start-vm-v1-3"}}]}),
            )),
            _ if what.starts_with("DELETE") => Some((200, json!({"kind": "Status", "status": "Success"}))),
            _ => None,
        });
        renew(&client, &machine()).await.unwrap();
        let asked: Vec<String> = asked.lock().unwrap().iter().map(|(what, _)| what.clone()).collect();
        let path = "/apis/apps/v1/namespaces/ns/controllerrevisions";
        assert_eq!(asked[0], format!("POST {path}"));
        assert!(asked[1].starts_with(&format!("GET {path}")), "{asked:?}");
        assert_eq!(asked[2..], [format!("DELETE {path}/revision-start-vm-v1-1")]);
    }
}
