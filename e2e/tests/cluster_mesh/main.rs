//! Machines in service meshes, with the real Envoy as the proxy.
//!
//! ```text
//!   test, 192.168.77.100 ──> pod: rules ──> Envoy ── 127.0.0.6 ──> netd ──> guest
//!                            guest ──> netd ──> rules ──> Envoy ──> test
//! ```
//!
//! What is the mesh's own part is rebuilt ([`podvirt_e2e::cluster::mesh`]). A peer that the test is itself says what comes out
//! of the pod. In [`istiod`] all of that is Istio's.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails it")]

mod ambient;
mod istiod;
mod linkerd;
mod machine;
mod moving;
mod policy;
mod sidecar;
