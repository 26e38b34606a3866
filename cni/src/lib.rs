//! podvirt-cni: a CNI plugin whose addresses belong to virtual machines, not to pods.
//!
//! # Theory of operation
//!
//! A runtime calls the binary for one interface of one pod ([`args`], [`config`]). The plugin asks the API server whose
//! pod it is ([`owner`]), takes the machine's lease ([`ipam`]), makes the interface ([`net`]) and prints the result
//! ([`result`]). It keeps no state of its own: what is leased stands in the API server, what is attached in the kernel.
//!
//! Both pods of a machine that migrates find the same lease, so they get the same addresses and the same MAC address.
//! The target's interface is *silent*: complete, with its addresses and routes, but not a frame leaves or enters it.
//! virt-handler lifts that at the switch-over and announces the addresses ([`net::activate`]).
//!
//! | module | does |
//! |---|---|
//! | [`args`], [`config`], [`error`], [`result`] | the CNI specification's words |
//! | [`range`] | which addresses a network has, and which one is taken next |
//! | [`owner`] | whose pod it is |
//! | [`ipam`] | leases: which owner has which address, over any store |
//! | [`cluster`], [`objects`] | that store: the API server |
//! | [`net`] | interfaces, silence, announcements |
//! | [`plugin`] | the six commands |
//! | [`dynamic`] | attaches pods that run to networks of Multus, whatever their plugin |
//! | [`collect`] | frees what no machine needs any more |
//! | [`install`] | puts the plugin onto a node |

pub mod args;
pub mod cluster;
pub mod collect;
pub mod config;
pub mod dynamic;
mod ending;
pub mod error;
pub mod install;
pub mod ipam;
pub mod net;
pub mod objects;
pub mod owner;
pub mod plugin;
pub mod range;
pub mod result;
