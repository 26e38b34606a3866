//! `objectgraph`: what a machine depends on, as a tree: for tools that back machines up or move them elsewhere.
//!
//! [`graph`] draws the tree from the machine and from what is looked up here: its launcher's pod, and the backend claim of a
//! VirtualMachine, which its specification does not name.

mod graph;

use axum::Json;
use axum::response::{IntoResponse, Response};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use podvirt_api::backup;
use podvirt_api::selector::Selector;
use podvirt_api::state;
use podvirt_api::v1::{VirtualMachine, VirtualMachineInstance};
use serde::Deserialize;

use crate::pages;
use crate::status::Status;
use crate::target::{Kind, Target};
use crate::{instance, options};

use graph::{Filter, Found};

/// `ObjectGraphOptions` of upstream's API.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Options {
    /// Whether what the machine could be without is in the graph; it is by default.
    include_optional_nodes: Option<bool>,
    /// Labels of the nodes that are in the graph.
    label_selector: Option<LabelSelector>,
}

impl Options {
    fn filter(self) -> Result<Filter, Status> {
        let selector = match &self.label_selector {
            None => None,
            Some(selector) => Some(Selector::of(Some(selector)).map_err(|error| {
                Status::bad_request(format!("labelSelector of the options is not allowed: {error}"))
            })?),
        };
        Ok(Filter { optional: self.include_optional_nodes != Some(false), selector })
    }
}

/// Answers with the graph of a VirtualMachine or of an instance.
///
/// # Errors
///
/// There is none of the name, or the options cannot be read.
pub(crate) async fn answer(
    client: &Client,
    kind: Kind,
    target: &Target,
    body: &[u8],
) -> Result<Response, Status> {
    let filter = options::read::<Options>(body)?.filter()?;
    let missing = || Status::not_found(kind.in_errors(), &target.name);
    let vmis: Api<VirtualMachineInstance> = Api::namespaced(client.clone(), &target.namespace);
    let node = match kind {
        Kind::VirtualMachine => {
            let vms: Api<VirtualMachine> = Api::namespaced(client.clone(), &target.namespace);
            let vm = vms.get_opt(&target.name).await?.ok_or_else(missing)?;
            let created = vm.status.created == Some(true);
            let vmi = if created { vmis.get_opt(&target.name).await? } else { None };
            let pod = match &vmi {
                Some(vmi) => launcher(vmi, &instance::launchers(client, vmi).await?),
                None => None,
            };
            let spec = vm.spec.template.as_ref().and_then(|template| template.spec.as_ref());
            let is_tracked = backup::has_overlays(vm.status.changed_block_tracking.as_ref());
            let keeps = is_tracked || spec.is_some_and(state::is_kept);
            let backend = if keeps { backend_claim(client, target).await? } else { None };
            graph::of_machine(&vm, &Found { pod, backend })
        }
        Kind::Instance => {
            let vmi = vmis.get_opt(&target.name).await?.ok_or_else(missing)?;
            let pod = launcher(&vmi, &instance::launchers(client, &vmi).await?);
            let backend = state::claim(&vmi).map(ToOwned::to_owned);
            graph::of_instance(&vmi, &Found { pod, backend })
        }
    };
    Ok(Json(filter.apply(node)).into_response())
}

/// The pod that an instance is in: of several, as in a migration, the one on the instance's node that has not ended.
fn launcher(vmi: &VirtualMachineInstance, pods: &[Pod]) -> Option<String> {
    let has_ended = |pod: &Pod| {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        matches!(phase, Some("Succeeded" | "Failed"))
    };
    let is_there = |pod: &Pod| {
        pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref()) == vmi.status.node_name.as_ref()
    };
    pods.iter().max_by_key(|pod| (!has_ended(pod), is_there(pod))).map(ResourceExt::name_any)
}

/// The newest backend claim of a machine that is not on its way out; `None` where the machine has not had one yet.
async fn backend_claim(client: &Client, target: &Target) -> Result<Option<String>, Status> {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &target.namespace);
    let params = ListParams::default().labels(&format!("{}={}", state::PERSISTENT_STATE_FOR, target.name));
    let mut newest = None;
    pages::each_metadata(&claims, params, |claim| {
        if claim.metadata.deletion_timestamp.is_none() {
            let made = claim.metadata.creation_timestamp.map(|time| time.0);
            newest = newest.take().max(Some((made, claim.metadata.name.unwrap_or_default())));
        }
    })
    .await?;
    Ok(newest.map(|(_, name)| name))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_pod_of_a_machine_that_has_moved_is_the_one_it_runs_in() {
        let vmi = json!({"metadata": {"name": "vm"}, "spec": {"domain": {"devices": {}}}, "status": {"nodeName": "node2"}});
        let vmi: VirtualMachineInstance = serde_json::from_value(vmi).unwrap();
        let pod = |name: &str, node: &str, phase: &str| -> Pod {
            let pod = json!({"metadata": {"name": name}, "spec": {"nodeName": node, "containers": []}, "status": {"phase": phase}});
            serde_json::from_value(pod).unwrap()
        };
        let left = pod("left", "node1", "Succeeded");
        let target = pod("target", "node1", "Running");
        let here = pod("here", "node2", "Running");
        let failed = pod("failed", "node2", "Failed");
        for pods in
            [[here.clone(), left.clone(), target.clone(), failed.clone()], [failed, target, left, here]]
        {
            assert_eq!(launcher(&vmi, &pods).as_deref(), Some("here"));
        }
        assert_eq!(launcher(&vmi, &[]), None);
    }
}
