//! Streams between a client and a guest.
//!
//! A console or VNC stream is a WebSocket between the client and virt-handler; virt-api joins the two connections
//! and moves bytes ([`join`]). A forwarded port ends here: virt-api is the WebSocket's server and the guest's TCP or
//! UDP peer ([`tunnel`]). In both, each direction reads only after the last bytes were taken by the other side, so a slow end
//! slows the other one down and nothing piles up.

pub mod frame;
pub mod join;
pub mod tunnel;
pub mod upgrade;
