//! The subresource `evacuate/cancel`: takes back that a machine is to leave its node.
//!
//! The mark that was read first is the one that is taken off. One that the eviction from another node has set meanwhile stays.

use json_patch::Patch as JsonPatch;
use kube::Api;
use kube::api::{Patch, PatchParams};
use podvirt_api::v1::{EvacuateCancelOptions, VirtualMachineInstance};
use serde_json::json;

use crate::lifecycle::{remove, test};
use crate::options;
use crate::retry::{self, MAX_ATTEMPTS};
use crate::status::Status;
use crate::target::Kind;

/// Where the mark is.
const MARK: [&str; 2] = ["status", "evacuationNodeName"];

/// Takes off the mark by which an eviction tells an instance to leave its node. virt-controller aborts the migration that was made for it.
///
/// # Errors
///
/// The instance is missing, is to leave another node, or keeps changing.
pub(crate) async fn cancel(
    api: &Api<VirtualMachineInstance>,
    name: &str,
    options: EvacuateCancelOptions,
) -> Result<(), Status> {
    let dry_run = options::is_dry_run(&options.dry_run)?;
    let params = PatchParams { dry_run, ..PatchParams::default() };
    let kind = Kind::Instance.in_errors();
    let mut wanted = options.evacuation_node_name;
    for attempt in 0..MAX_ATTEMPTS {
        let vmi = api.get_opt(name).await?.ok_or_else(|| Status::not_found(kind, name))?;
        let Some(node) = vmi.status.evacuation_node_name else { return Ok(()) };
        if wanted.is_empty() {
            wanted.clone_from(&node);
        }
        if wanted != node {
            let why = format!("it is to leave node {node}, not {wanted}");
            return Err(Status::conflict(kind, name, &why));
        }
        // Whatever else changes meanwhile: this mark goes.
        let patch = JsonPatch(vec![
            test(&["metadata", "uid"], json!(vmi.metadata.uid)),
            test(&MARK, json!(node)),
            remove(&MARK),
        ]);
        match api.patch(name, &params, &Patch::Json::<()>(patch)).await {
            Ok(_) => return Ok(()),
            Err(error) if Status::is_outdated(&error) => retry::pause(attempt).await,
            Err(error) => return Err(error.into()),
        }
    }
    Err(Status::conflict(kind, name, "the VMI keeps changing; please try again"))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use http::Method;
    use kube::Client;
    use podvirt_daemon::testing;
    use serde_json::Value;

    use super::*;

    /// A client of an API server with a machine, and the machine, which `interfere` changes before the first patch.
    fn server(interfere: impl Fn(&mut Value) + Send + Sync + 'static) -> (Client, Arc<Mutex<Value>>) {
        let machine = json!({"metadata": {"name": "web", "namespace": "shop", "uid": "m1"},
            "spec": {"domain": {"devices": {}}}, "status": {"evacuationNodeName": "n1"}});
        let machine = Arc::new(Mutex::new(machine));
        let (stored, is_first) = (Arc::clone(&machine), Mutex::new(true));
        let client = testing::client("shop", move |method, _, body| {
            let mut machine = stored.lock().unwrap();
            if *method == Method::PATCH {
                if std::mem::take(&mut *is_first.lock().unwrap()) {
                    interfere(&mut machine);
                }
                let patch: JsonPatch = serde_json::from_value(body).unwrap();
                if json_patch::patch(&mut machine, &patch).is_err() {
                    // An API server's own words for a `test` that fails.
                    let message = "the server rejected our request due to an error in our request";
                    return testing::failure(422, "Invalid", message);
                }
            }
            (200, machine.clone())
        });
        (client, machine)
    }

    #[tokio::test(start_paused = true)]
    async fn the_mark_that_was_read_is_taken_off_and_no_other() {
        let canceled = async |wanted: &str, interfere: fn(&mut Value)| {
            let (client, machine) = server(interfere);
            let options = EvacuateCancelOptions {
                evacuation_node_name: wanted.into(),
                ..EvacuateCancelOptions::default()
            };
            let outcome = cancel(&Api::namespaced(client, "shop"), "web", options).await;
            let mark = machine.lock().unwrap()["status"]["evacuationNodeName"].clone();
            (outcome.map_err(|status| status.code), mark)
        };
        for wanted in ["", "n1"] {
            // Changes of other fields do not matter.
            let other: fn(&mut Value) = |machine| machine["metadata"]["labels"] = json!({"a": "b"});
            assert_eq!(canceled(wanted, other).await, (Ok(()), Value::Null));
            let another: fn(&mut Value) = |machine| machine["status"]["evacuationNodeName"] = json!("n2");
            assert_eq!(canceled(wanted, another).await, (Err(409), json!("n2")));
            let none: fn(&mut Value) = |machine| machine["status"] = json!({});
            assert_eq!(canceled(wanted, none).await, (Ok(()), Value::Null));
            // A machine of the same name that is made meanwhile is judged anew.
            let newer: fn(&mut Value) = |machine| machine["metadata"]["uid"] = json!("m2");
            assert_eq!(canceled(wanted, newer).await, (Ok(()), Value::Null));
        }
        assert_eq!(canceled("n2", |_| ()).await, (Err(409), json!("n1")));
    }
}
