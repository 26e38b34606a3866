//! The proxy: requests that name an export are passed on to its exporter, by TLS that its CA vouches for.
//!
//! ```text
//!  /api/export.kubevirt.io/v1beta1/namespaces/NS/virtualmachineexports/NAME/REST
//!       ──> https://SERVICE.NS.svc/REST      SERVICE is in the export's status; it has to be Ready
//! ```
//!
//! It knows no tokens: the exporter checks them. A request leads to Services of exports alone, whose names stand in the status
//! that virt-controller writes, so that the proxy is no way to anything else in the cluster.

mod forward;
mod target;

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::Request;
use kube::runtime::reflector::{ObjectRef, Store};
use podvirt_api::v1::{VirtualMachineExport, VirtualMachineExportPhase as Phase};
use rustls::ClientConfig;

pub use forward::trusting;
pub use target::{Target, target};

/// What the proxy knows.
#[derive(Clone, Debug)]
pub struct Proxy {
    /// Exports.
    pub exports: Store<VirtualMachineExport>,
    /// TLS towards exporters, once their CA is known.
    pub tls: Arc<ArcSwapOption<ClientConfig>>,
}

/// All routes.
pub fn router(proxy: Proxy) -> Router {
    Router::new().route("/healthz", get(async || "OK")).fallback(pass).with_state(proxy)
}

fn refused(code: StatusCode, message: &str) -> Response {
    (code, format!("{message}\n")).into_response()
}

async fn pass(State(proxy): State<Proxy>, request: Request<Body>) -> Response {
    let Some(target) = target(request.uri().path()) else {
        return refused(StatusCode::BAD_REQUEST, "the path names no export");
    };
    let export = ObjectRef::new(target.name).within(target.namespace);
    let Some(export) = proxy.exports.get(&export) else {
        return refused(StatusCode::NOT_FOUND, "there is no such export");
    };
    let service = export.status.service_name.as_deref().filter(|_| export.status.phase == Some(Phase::Ready));
    let Some(service) = service else {
        return refused(StatusCode::SERVICE_UNAVAILABLE, "the export is not ready");
    };
    let Some(tls) = proxy.tls.load_full() else {
        return refused(StatusCode::SERVICE_UNAVAILABLE, "the CA of exports is not known yet");
    };
    let host = format!("{service}.{}.svc", target.namespace);
    let path = match request.uri().query() {
        Some(query) => format!("/{}?{query}", target.rest),
        None => format!("/{}", target.rest),
    };
    match forward::forward(tls, &host, &path, request).await {
        Ok(response) => response,
        Err(error) => {
            tracing::warn!(host, error = &error as &dyn std::error::Error, "not passed on");
            refused(StatusCode::BAD_GATEWAY, "the exporter does not answer")
        }
    }
}
