//! The launcher of one virtual machine, as the node meets it: its socket appears ([`watch`]), it is called
//! ([`client`]), and it tells of its machine by itself ([`notify`]); [`report`] keeps what was told last.

pub mod client;
pub mod notify;
pub mod options;
pub mod report;
pub mod watch;
