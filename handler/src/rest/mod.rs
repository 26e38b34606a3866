//! The server that virt-api calls for one machine: its streams, its guest, its buttons.
//!
//! Only virt-api may call: the connection is TLS both ways, and the client's certificate must carry virt-api's
//! name ([`tls`]). Which user may do what was decided by virt-api. A VMI is looked up in this node's store, so a
//! request for a machine of another node finds nothing.
//!
//! Errors are Kubernetes' `Status` objects; virt-api hands them on as they are.

mod accepted;
mod backup;
mod guest;
mod lifecycle;
mod status;
mod stream;
pub mod tls;

use std::sync::Arc;

use axum::Router;
use axum::routing::{get, put};
use podvirt_api::v1::VirtualMachineInstance;
use tokio::sync::mpsc;

pub use status::Failure;
use stream::Seats;

use crate::launcher::client::Client;
use crate::node::Store;
use crate::sockets::PodVolumes;

/// What requests work with.
#[derive(Clone, Debug)]
pub struct Server {
    node: String,
    store: Store,
    volumes: PodVolumes,
    triggers: mpsc::Sender<String>,
    seats: Seats,
}

impl Server {
    /// A server for the VMIs in `store`, on the node called `node`.
    pub fn new(node: String, store: Store, volumes: PodVolumes, triggers: mpsc::Sender<String>) -> Self {
        Self { node, store, volumes, triggers, seats: Seats::default() }
    }

    /// The routes.
    pub fn router(self) -> Router {
        let vmi = Router::new()
            .route("/console", get(stream::console))
            .route("/vnc", get(stream::vnc))
            .route("/vnc/screenshot", get(lifecycle::screenshot))
            .route("/pause", put(lifecycle::pause))
            .route("/unpause", put(lifecycle::unpause))
            .route("/reset", put(lifecycle::reset))
            .route("/softreboot", put(lifecycle::soft_reboot))
            .route("/freeze", put(lifecycle::freeze))
            .route("/unfreeze", put(lifecycle::unfreeze))
            .route("/backup", put(backup::backup))
            .route("/redefine-checkpoint", put(backup::redefine_checkpoint))
            .route("/accepted", get(accepted::accepted))
            .route("/guestosinfo", get(lifecycle::guest_os_info))
            .route("/userlist", get(lifecycle::user_list))
            .route("/filesystemlist", get(lifecycle::filesystem_list));
        Router::new()
            .nest("/v1/namespaces/{namespace}/virtualmachineinstances/{name}", vmi)
            .fallback(async || Failure::not_found("the server could not find the requested resource"))
            .with_state(self)
    }

    /// The VMI of a request and its pod's UID.
    fn find(&self, namespace: &str, name: &str) -> Result<(Arc<VirtualMachineInstance>, String), Failure> {
        let vmi = self.store.find(namespace, name).ok_or_else(|| {
            Failure::not_found(format!(
                "virtualmachineinstances.kubevirt.io \"{name}\" not found on this node"
            ))
        })?;
        // The pod that was found to be the machine's, not the one that the VMI names.
        let pod = vmi.metadata.uid.as_deref().and_then(|uid| self.store.pod(uid));
        let pod = pod.filter(|pod| vmi.status.active_pods.get(pod).is_some_and(|on| *on == self.node));
        let pod = pod.ok_or_else(not_running)?;
        Ok((vmi, pod))
    }

    /// A connection to the launcher of a pod.
    async fn launcher(&self, pod_uid: &str) -> Result<Client, Failure> {
        let (client, _) = Client::connect(&self.volumes, pod_uid).await?;
        Ok(client)
    }

    /// Has the VMI looked at: its status is out of date.
    async fn look_at(&self, vmi: &VirtualMachineInstance) {
        if let Some(uid) = &vmi.metadata.uid {
            // A closed channel: this process is ending.
            let _ending = self.triggers.send(uid.clone()).await;
        }
    }
}

fn not_running() -> Failure {
    Failure::conflict("VMI is not running")
}

#[cfg(test)]
mod tests;
