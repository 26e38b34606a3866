//! VMs with their instance type and their preference in their template: `expand-spec` and `expand-vm-spec`.

use axum::Json;
use axum::response::{IntoResponse, Response};
use kube::{Api, Client};
use podvirt_api::admission::Cluster;
use podvirt_api::budget;
use podvirt_api::fields::{Place, Resource, check};
use podvirt_api::problem::Problems;
use podvirt_api::v1::VirtualMachine;
use serde_json::Value;

use crate::instancetype::expanded;
use crate::status::{Cause, Details, Status};
use crate::target::{Kind, Target};

/// Most bytes of memory that a document becomes.
const MAX_DOCUMENT_TREE_BYTES: usize = 4 << 20;

/// Answers with a VM of the cluster.
///
/// # Errors
///
/// There is none of the name, or what it names is not there.
pub(crate) async fn stored(client: &Client, cluster: &Cluster, target: &Target) -> Result<Response, Status> {
    let vms: Api<VirtualMachine> = Api::namespaced(client.clone(), &target.namespace);
    let kind = Kind::VirtualMachine.in_errors();
    let vm = vms.get_opt(&target.name).await?.ok_or_else(|| Status::not_found(kind, &target.name))?;
    let expanded = expanded(client, &target.namespace, &vm, &cluster.configuration).await;
    Ok(Json(expanded.map_err(|error| Status::internal(error.to_string()))?).into_response())
}

/// Answers with the VM that `body` is; nothing is stored.
///
/// # Errors
///
/// It is none, or what it names is not there.
pub(crate) async fn given(
    client: &Client,
    cluster: &Cluster,
    target: &Target,
    body: &[u8],
) -> Result<Response, Status> {
    let mut vm = read(body, &target.namespace)?;
    vm.metadata.namespace = Some(target.namespace.clone());
    let expanded = expanded(client, &target.namespace, &vm, &cluster.configuration).await;
    Ok(Json(expanded.map_err(|error| Status::bad_request(error.to_string()))?).into_response())
}

fn read(body: &[u8], namespace: &str) -> Result<VirtualMachine, Status> {
    if body.is_empty() {
        return Err(Status::bad_request("empty request body"));
    }
    let unreadable = |error: &dyn std::fmt::Display| {
        Status::bad_request(format!("Can not unmarshal Request body to struct, error: {error}"))
    };
    let object: Value = budget::parse(body, MAX_DOCUMENT_TREE_BYTES).map_err(|error| unreadable(&error))?;
    let mut problems = Problems::default();
    check(Resource::Vm, Place::Cluster, &object, &mut problems);
    if !problems.is_empty() {
        let mut status = Status::bad_request("Object is not a valid VirtualMachine");
        let cause = |problem: podvirt_api::Problem| Cause {
            reason: format!("{:?}", problem.reason),
            message: problem.message,
            field: problem.field,
        };
        let causes = problems.0.into_iter().map(cause).collect();
        status.details = Some(Box::new(Details { causes, ..Details::default() }));
        return Err(status);
    }
    let vm: VirtualMachine = serde_json::from_value(object).map_err(|error| unreadable(&error))?;
    match vm.metadata.namespace.as_deref() {
        Some(other) if !other.is_empty() && other != namespace => {
            Err(Status::bad_request(format!("VM namespace must be empty or {namespace}")))
        }
        _ => Ok(vm),
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use podvirt_daemon::testing;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_short_document_that_becomes_large_is_refused() {
        let maps = "{},".repeat(80_000);
        let text = format!(r#"{{"spec": {{"dataVolumeTemplates": [{{"spec": {{"x": [{maps}{{}}]}}}}]}}}}"#);
        assert!(text.len() < crate::subresource::MAX_DOCUMENT_BYTES);
        let refused = read(text.as_bytes(), "ns").unwrap_err();
        assert_eq!(refused.code, 400);
        assert!(refused.message.contains("bytes of memory"), "{}", refused.message);
    }

    fn cluster() -> Client {
        testing::client("ns", |_, uri, _| match uri.path() {
            "/apis/instancetype.kubevirt.io/v1beta1/namespaces/ns/virtualmachineinstancetypes/small" => {
                let found = json!({"apiVersion": "instancetype.kubevirt.io/v1beta1", "kind": "VirtualMachineInstancetype",
                    "metadata": {"name": "small"}, "spec": {"cpu": {"guest": 2}, "memory": {"guest": "64Mi"}}});
                (200, found)
            }
            "/apis/kubevirt.io/v1/namespaces/ns/virtualmachines/vm" => (200, machine(&json!({}))),
            path => testing::failure(404, "NotFound", &format!("{path} not found")),
        })
    }

    fn machine(spec: &Value) -> Value {
        let mut vm = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": "vm"}, "spec": {
            "runStrategy": "Halted", "instancetype": {"name": "small", "kind": "VirtualMachineInstancetype"},
            "template": {"spec": {"domain": {"devices": {}}}}}});
        json_patch::merge(&mut vm, &json!({ "spec": spec }));
        vm
    }

    async fn answered(answer: Result<Response, Status>) -> Result<Value, (u16, String)> {
        let response = answer.map_err(|status| (status.code, status.message))?;
        Ok(serde_json::from_slice(&response.into_body().collect().await.unwrap().to_bytes()).unwrap())
    }

    #[tokio::test]
    async fn a_stored_machine_and_one_that_is_sent_are_expanded() {
        let (client, config) = (cluster(), Cluster::default());
        let path = |rest: &str| format!("/apis/subresources.kubevirt.io/v1/namespaces/ns/{rest}");
        let target = Target::parse(&path("virtualmachines/vm/expand-spec")).unwrap();
        let of_cluster = answered(stored(&client, &config, &target).await).await.unwrap();
        let target = Target::parse(&path("expand-vm-spec")).unwrap();
        let send = async |vm: Value| {
            answered(given(&client, &config, &target, vm.to_string().as_bytes()).await).await
        };
        let sent = send(machine(&json!({}))).await.unwrap();
        for vm in [of_cluster, sent] {
            assert_eq!((&vm["kind"], &vm["spec"].get("instancetype")), (&json!("VirtualMachine"), &None));
            assert_eq!(vm["spec"]["template"]["spec"]["domain"]["cpu"]["sockets"], 2);
        }
        let conflict = json!({"template": {"spec": {"domain": {"memory": {"guest": "1Gi"}}}}});
        let (code, message) = send(machine(&conflict)).await.unwrap_err();
        assert_eq!(code, 400);
        assert!(message.contains("spec.template.spec.domain.memory.guest conflicts"), "{message}");
        let (code, message) = send(machine(&json!({"instancetype": {"kind": null}}))).await.unwrap_err();
        assert_eq!(code, 400);
        assert!(message.ends_with("virtualmachineclusterinstancetypes/small not found"), "{message}");
        let mut elsewhere = machine(&json!({}));
        elsewhere["metadata"]["namespace"] = json!("other");
        assert_eq!(send(elsewhere).await, Err((400, "VM namespace must be empty or ns".into())));
        let wrong = send(machine(&json!({"size": 1}))).await;
        assert_eq!(wrong, Err((400, "Object is not a valid VirtualMachine".into())));
    }
}
