//! virt-api: admission webhooks and the aggregated API `subresources.kubevirt.io`.
//!
//! ```text
//!                    ┌──────────────────── virt-api (every replica alike) ───────────────────┐
//!  API server ─TLS──>│ webhooks ───────────> podvirt_api::admission                          │
//!   (front-proxy     │ discovery, OpenAPI                                                    │
//!    certificate)    │ subresources: user from headers ─> SubjectAccessReview ─> table       │
//!                    │    start/stop/restart ─> patches of the VM                            │
//!                    │    pause, guestosinfo ... ──────────────────────mTLS──> virt-handler  │
//!                    │    console, vnc ─────── bytes both ways ────────mTLS──> virt-handler  │
//!                    │    portforward ───────────────────────────────TCP/UDP─> launcher pod  │
//!                    │ a node's machines, for its virt-handler ──────────────> API server    │
//!                    └───────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Replicas share nothing but the cluster: any of them answers any request. Each looks after the
//! certificates ([`podvirt_daemon::pki`]) and applies the objects by which the API server finds them ([`register`]).

#![forbid(unsafe_code)]

pub mod admission;
pub mod authorize;
pub mod config;
pub mod discovery;
mod evacuation;
mod expand;
pub mod front_proxy;
pub mod handler;
pub mod instance;
pub mod instancetype;
pub mod lifecycle;
pub mod limits;
pub mod listen;
mod memory_dump;
pub mod metrics;
pub mod node;
mod objectgraph;
pub mod options;
mod pages;
pub mod presets;
pub mod register;
mod retry;
pub mod server;
pub mod status;
pub mod stream;
pub mod subresource;
pub mod target;
pub mod tls;
pub mod volumes;
