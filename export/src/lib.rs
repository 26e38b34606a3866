//! What serves exports: the server in an exporter pod, and the proxy that leads to exporter pods from outside the cluster.
//!
//! ```text
//!  client ──── token ────────────────────────> virt-exportserver ── reads ──> claims, mounted
//!  client ── Ingress ──> virt-exportproxy ──> virt-exportserver
//! ```
//!
//! | module | for |
//! |---|---|
//! | [`server`] | images, directories and manifests by HTTPS, for clients with the token |
//! | [`proxy`] | requests that name an export, passed on to its server |

#![forbid(unsafe_code)]

pub mod proxy;
pub mod server;

use std::time::Duration;

use podvirt_daemon::connections::Limits;
use podvirt_daemon::serve::Bounds;

/// What connections for downloads may take. All clients from outside the cluster come from the proxy's address, and how long an answer
/// takes has no bound until the pod is to end.
pub const BOUNDS: Bounds = Bounds {
    places: Limits { total: 256, per_source: 192 },
    head_timeout: Duration::from_secs(15),
    max_head_bytes: 32 << 10,
    lifetime: None,
    finish: Duration::from_secs(20),
};
