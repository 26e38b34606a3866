//! The other end of netd's control interface: the command `netctl`, and what it is made of.
//!
//! [`client`] asks a running netd by its control socket, [`show`] makes text for people and JSON for programs of the answers,
//! [`upgrade`] puts another netd in the place of the one that runs. The contract with netd is that of `podvirt-proto`; nothing
//! of netd itself is used, so a `netctl` and a netd of different versions understand each other.

pub mod client;
pub mod show;
pub mod upgrade;
