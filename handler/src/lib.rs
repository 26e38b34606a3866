//! virt-handler: the one privileged process of podvirt, on every node.
//!
//! It turns VMIs into orders to their launchers and launchers' reports into VMIs' status. Its parts:
//!
//! | module | does |
//! |---|---|
//! | [`vm`] | decides, as a pure function, what a machine needs and what its VMI says |
//! | [`node`] | watches VMIs, looks at launchers, carries decisions out |
//! | [`queue`] | says when a VMI is looked at |
//! | [`sockets`], [`launcher`] | finds launchers, calls them, hears them |
//! | [`process`] | holds a process, so that its number cannot lead to another one |
//! | [`migration`] | moves machines from and to other nodes |
//! | [`record`] | keeps what a restart would lose |
//! | [`metrics`] | counts |
//! | [`statistics`] | tells what guests have used |
//! | [`device`] | offers `/dev/kvm` and `/dev/net/tun` to pods |
//! | [`heartbeat`] | says that this node takes machines |
//! | [`labels`] | says what QEMU can do on this node |
//! | [`rest`] | serves consoles, screens and buttons to virt-api |
//! | [`repair`] | repairs the TCP connections of pods whose machines move |
//! | [`podnet`] | makes what a pod's network namespace has to have: bridges and taps |
//! | [`ports`] | steers every port of a pod to netd |
//! | [`activate`] | makes the target of a migration heard |

pub mod activate;
pub mod cli;
pub mod device;
pub mod heartbeat;
pub mod labels;
pub mod launcher;
pub mod metrics;
pub mod migration;
pub mod node;
pub mod podnet;
pub mod ports;
pub mod process;
pub mod queue;
pub mod record;
pub mod repair;
pub mod rest;
pub mod serve;
mod socket_options;
pub mod sockets;
pub mod statistics;
pub mod vm;
