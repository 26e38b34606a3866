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
//! | [`listen`] | connections by TLS, as many as there is room for |

#![forbid(unsafe_code)]

pub mod listen;
pub mod proxy;
pub mod server;
