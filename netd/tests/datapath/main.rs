//! netd's datapath with real sockets on both sides: the guest is a namespace's own TCP/IP stack.
//!
//! See [`bed`] for the set-up. The tests need root: other users pass them over, loudly.

// The configuration's permission for tests does not reach helpers of an integration test.
#![allow(clippy::unwrap_used, clippy::panic)]

mod addresses;
mod asking;
mod bed;
mod counted;
#[path = "../shared/daemon.rs"]
mod daemon;
mod device;
mod echo;
mod egress;
mod fairness;
mod flight;
mod fragments;
mod hostile;
mod ip_fields;
mod keepalive;
mod limits;
mod marks;
mod memory;
mod migration;
mod pairs;
mod peers;
mod ports;
mod services;
mod silence;
mod source_port;
mod spinning;
mod spoofing;
mod starved;
mod tcp;
mod udp;
mod update;
mod urgent;
mod watch;
