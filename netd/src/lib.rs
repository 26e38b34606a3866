//! netd: a vhost-user network backend that needs no privilege.
//!
//! netd runs in the pod of a virtual machine and connects the guest's virtio-net device to ordinary sockets
//! of the pod. There is no TCP/IP stack in the middle: the guest's TCP endpoint and the pod's kernel socket
//! are the two ends, netd translates between them, and the kernel's socket buffers are the only queues.
//!
//! A frame's way from the guest is [`ring`] → [`wire`] → [`flow`] → translator ([`tcp`], [`udp`], [`icmp`],
//! [`guest`]) → [`sys`] socket call, and back the same way. One [`worker`] owns all of it and lends time; the
//! translators never look at a clock or a socket. [`vhost`] speaks the vhost-user protocol, [`pod`] reads the
//! pod's addresses, [`egress`] and [`spoof`] say what the guest may do, [`ctl`] is the control plane, [`update`] hands
//! all of it over to another netd on the same machine, and [`device`] to one on another machine.
//!
//! `unsafe` is allowed in [`ring`] (guest memory, and system calls on it) and in [`sys`] (socket options and calls
//! that no crate wraps).
//!
//! [`time`], [`codec`] and [`port`], [`wire`], [`ring`], [`tcp`] are crates of their own (`netd-base`, `netd-wire`, `netd-ring`,
//! `netd-tcp`), and so are captured frames (`netd-capture`); they use nothing of netd's. The command `netctl` is a crate that uses
//! nothing of netd's either: what is between the two is the contract in `podvirt-proto`.
//!
//! # Order
//!
//! A module uses what stands before it in this list, read line by line, and nothing that stands behind it; the test
//! `order` fails where one does.
//!
//! ```text
//! values       counters  limits  stop
//! kernel       sys  sockets
//! the link     flow  egress  net  spoof  frag  shared
//! translators  guest  icmp  udp
//! the pod      config  pod  repair
//! views        tap  control
//! what moves   state
//! both sides   vhost  worker  steer
//! moving       device  update
//! the process  ctl  sandbox  launch  man
//! ```

pub mod config;
pub mod control;
pub mod counters;
pub mod ctl;
pub mod device;
pub mod egress;
pub mod flow;
pub mod frag;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
pub mod guest;
pub mod icmp;
pub mod launch;
pub mod limits;
pub mod man;
pub mod net;
pub mod pod;
pub mod repair;
pub mod sandbox;
pub mod shared;
pub mod sockets;
pub mod spoof;
pub mod state;
pub mod steer;
pub mod stop;
pub mod sys;
pub mod tap;
pub mod udp;
pub mod update;
pub mod vhost;
pub mod worker;

pub use netd_base::{codec, port, time};
pub use netd_ring as ring;
pub use netd_tcp as tcp;
pub use netd_wire as wire;
