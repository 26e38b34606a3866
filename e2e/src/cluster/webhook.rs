//! A webhook of the test's own process that changes the pods of the test's namespace.
//!
//! ```text
//!   pod of the namespace ──> API server ──> this process ──> the pod, changed
//! ```
//!
//! It is a server of this process, registered for one namespace alone, and gone with the value.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Result;
use axum::routing::post;
use axum::{Json, Router};
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use kube::core::DynamicObject;
use kube::core::admission::{AdmissionRequest, AdmissionResponse, AdmissionReview};
use podvirt_daemon::pki::Identity;
use serde_json::{Value, json};
use tokio::io;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::Namespace;
use super::mesh::certificates::Authority;

/// The webhook of a namespace, until this is dropped.
#[must_use = "dropping it takes the webhook away"]
pub struct Webhook<'n> {
    namespace: &'n Namespace<'n>,
}

impl<'n> Webhook<'n> {
    /// Has `change` see, and change, each pod at these operations (`CREATE`, `UPDATE`).
    ///
    /// # Errors
    /// It cannot be served, or the API server refuses it.
    pub fn start(
        namespace: &'n Namespace<'n>,
        operations: &[&str],
        change: impl Fn(&mut Value) + Send + Sync + 'static,
    ) -> Result<Webhook<'n>> {
        let cluster = namespace.cluster();
        let here = cluster.address();
        let authority = Authority::new()?;
        let server = authority.issue(&[here.to_string()])?;
        let tls =
            TlsAcceptor::from(Identity::fixed(&server, &authority.certificate())?.server_config(false)?);
        let listener = std::net::TcpListener::bind((here, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let change = Arc::new(change);
        let answer = move |Json(review): Json<AdmissionReview<DynamicObject>>| {
            let change = Arc::clone(&change);
            async move { Json(reviewed(review, change.as_ref())) }
        };
        // The cluster's own runtime runs only while this process waits for it.
        std::thread::spawn(move || -> Result<()> {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let listener = Listener { tcp: TcpListener::from_std(listener)?, tls };
                Ok(axum::serve(listener, Router::new().route("/pods", post(answer))).await?)
            })
        });
        let webhook = json!({
            "metadata": {"name": namespace.name()},
            "webhooks": [{
                "name": "pods.podvirt.test", "sideEffects": "None", "admissionReviewVersions": ["v1"],
                "failurePolicy": "Fail", "timeoutSeconds": 10, "reinvocationPolicy": "Never",
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace.name()}},
                "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": operations}],
                "clientConfig": {
                    "url": format!("https://{address}/pods"),
                    "caBundle": ByteString(authority.certificate().into_bytes()),
                },
            }],
        });
        let api: Api<MutatingWebhookConfiguration> = Api::all(cluster.client());
        cluster.block_on(api.create(&PostParams::default(), &serde_json::from_value(webhook)?))?;
        Ok(Webhook { namespace })
    }
}

impl Drop for Webhook<'_> {
    fn drop(&mut self) {
        let cluster = self.namespace.cluster();
        let api: Api<MutatingWebhookConfiguration> = Api::all(cluster.client());
        drop(cluster.block_on(api.delete(self.namespace.name(), &DeleteParams::default())));
    }
}

struct Listener {
    tcp: TcpListener,
    tls: TlsAcceptor,
}

impl axum::serve::Listener for Listener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            if let Ok((stream, from)) = self.tcp.accept().await
                && let Ok(stream) = self.tls.accept(stream).await
            {
                return (stream, from);
            }
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.tcp.local_addr()
    }
}

fn reviewed(
    review: AdmissionReview<DynamicObject>,
    change: &impl Fn(&mut Value),
) -> AdmissionReview<DynamicObject> {
    let request: AdmissionRequest<DynamicObject> = match review.try_into() {
        Ok(request) => request,
        Err(error) => return AdmissionResponse::invalid(error).into_review(),
    };
    let response = AdmissionResponse::from(&request);
    let pod = match serde_json::to_value(&request.object) {
        Ok(pod) => pod,
        Err(error) => return AdmissionResponse::invalid(error).into_review(),
    };
    let mut changed = pod.clone();
    change(&mut changed);
    let response = match response.with_patch(json_patch::diff(&pod, &changed)) {
        Ok(response) => response,
        Err(error) => AdmissionResponse::invalid(error),
    };
    response.into_review()
}
