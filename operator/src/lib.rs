//! virt-operator: installs, configures, updates and removes podvirt as the KubeVirt object says.
//!
//! | module | for |
//! |---|---|
//! | [`manifests`] | the objects that make up podvirt, from `deploy/`, and the kinds they are of |
//! | [`transition`] | rights while daemons of two versions run |
//! | [`foreign`] | whether the installation is KubeVirt's own |
//! | [`target`] | which version is to be installed: images, version, registry |
//! | [`customize`] | the objects as the KubeVirt object wants them |
//! | [`order`] | in which order the daemons are replaced, and which versions are refused |
//! | [`absent`] | nodes that have been away for long |
//! | [`rollout`] | whether a daemon's pods are the new ones, and what keeps them from it |
//! | [`status`] | phase and conditions of the KubeVirt object |
//! | [`cluster`] | applying, listing and deleting objects |
//! | [`metrics`] | what is counted |
//! | [`monitoring`] | having that collected by Prometheus, and its alerts |
//! | [`reconcile`] | one pass over everything, and what starts the next |
//! | [`settings`] | settings of the KubeVirt object that are virt-operator's own |
//! | [`remove`] | taking podvirt out of the cluster |
//! | [`webhook`] | judging the KubeVirt object before it is stored |
//! | [`rights`] | virt-operator's own manifest, with the rights that follow from what it installs |
//!
//! # Theory of operation
//!
//! A pass is level-triggered: it reads the KubeVirt object, computes every object of podvirt from it
//! ([`customize`]), applies them by server-side apply in waves ([`order`]), and stops at the first wave whose pods are
//! not all new yet. Nothing is remembered between two passes but in the cluster. A pass starts when the KubeVirt
//! object, an object that carries virt-operator's label, or a daemon's pod changes; applying an object that is as it
//! shall be changes nothing, so passes come to rest by themselves. One more pass starts every few minutes, for what
//! virt-operator does not watch. An object of podvirt's that a user changed or deleted by hand is as it shall be again after
//! the next pass.
//!
//! ```text
//!   KubeVirt object ──┐
//!   own objects ──────┼──> pass: common objects ──> wave 1 ──(rolled out)──> wave 2 ──> wave 3 ──> leftovers deleted
//!   daemons' pods ────┘                               │                                               │
//!                                                     └── Progressing, or Degraded with the reason     └── Available
//! ```
//!
//! A new installation starts the API first, so that objects are judged before controllers act on them. An update
//! starts with virt-handler, so that every node knows what a new controller may ask for, and ends with the API, which
//! admits what is new. Both is upstream's order.

#![forbid(unsafe_code)]

pub mod absent;
pub mod cluster;
pub mod customize;
pub mod foreign;
pub mod manifests;
pub mod metrics;
pub mod monitoring;
pub mod order;
pub mod reconcile;
pub mod remove;
pub mod rights;
pub mod rollout;
pub mod settings;
pub mod status;
pub mod target;
pub mod transition;
pub mod webhook;

#[cfg(test)]
mod shell_tests;
