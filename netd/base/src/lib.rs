//! What the crates of netd share: time that is handed in, the bytes in which state moves to another netd, and ports.
//!
//! Protocol code takes the time as an argument ([`time::Time`]); only the program's outermost loop has a
//! [`time::Clock`]. [`codec`] writes the variables of a state machine into a stream that later and earlier versions
//! read. [`port`] has the rules that lead ports of the pod to ports of the guest, and their text.

pub mod codec;
pub mod port;
pub mod time;
