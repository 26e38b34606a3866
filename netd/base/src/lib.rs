//! What the crates of netd share: time that is handed in, and the bytes in which state moves to another netd.
//!
//! Protocol code takes the time as an argument ([`time::Time`]); only the program's outermost loop has a
//! [`time::Clock`]. [`codec`] writes the variables of a state machine into a stream that later and earlier versions
//! read.

pub mod codec;
pub mod time;
