//! What controllers ask of a machine by its subresources, as a user would.

use http::Request;
use kube::{Client, ResourceExt};
use podvirt_api::names::SUBRESOURCES_GROUP;
use podvirt_api::snapshot::failure_deadline;
use podvirt_api::v1::{VirtualMachine, VirtualMachineSnapshot as Snapshot};
use serde_json::{Value, json};

/// Path of a subresource of a machine or its instance.
pub(crate) fn path(of: &impl ResourceExt, resource: &str, what: &str) -> String {
    let (namespace, name) = (of.namespace().unwrap_or_default(), of.name_any());
    format!("/apis/{SUBRESOURCES_GROUP}/v1/namespaces/{namespace}/{resource}/{name}/{what}")
}

/// Sends `body` to a subresource; its answer.
pub(crate) async fn put(client: &Client, path: String, body: &Value) -> Result<String, kube::Error> {
    let body = serde_json::to_vec(body).map_err(kube::Error::SerdeError)?;
    let request = Request::put(path).header(http::header::CONTENT_TYPE, "application/json").body(body);
    let request =
        request.map_err(kube::core::request::Error::BuildRequest).map_err(kube::Error::BuildRequest)?;
    client.request_text(request).await
}

/// Freezes the guest's file systems, for no longer than the snapshot may take.
pub(crate) async fn freeze(
    client: &Client,
    vm: &VirtualMachine,
    snapshot: &Snapshot,
) -> Result<(), kube::Error> {
    let seconds = failure_deadline(snapshot).map_or(0, |limit| limit.as_secs().max(1));
    let body = json!({"unfreezeTimeout": format!("{seconds}s")});
    put(client, path(vm, "virtualmachineinstances", "freeze"), &body).await.map(drop)
}

/// Thaws the guest's file systems.
pub(crate) async fn thaw(client: &Client, vm: &VirtualMachine) -> Result<(), kube::Error> {
    match put(client, path(vm, "virtualmachineinstances", "unfreeze"), &json!({})).await {
        // The instance has gone.
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        done => done.map(drop),
    }
}

/// Stops the machine.
pub(crate) async fn stop(client: &Client, vm: &VirtualMachine) -> Result<(), kube::Error> {
    put(client, path(vm, "virtualmachines", "stop"), &json!({})).await.map(drop)
}
