//! ICMP between the guest and the pod: errors told to the guest, and echo.
//!
//! The pod's sockets report errors without the packet that caused them: an errno, or a `sock_extended_err`
//! with the ICMP type and code that arrived. A guest believes an error only if it quotes its own packet. So
//! a flow rebuilds that packet ([`quote_udp`], [`quote_echo`], [`quote_tcp_syn`]; or has it at hand), names
//! what happened ([`IcmpError`], [`IcmpError::from_extended`]), and [`error_frame`] makes the frame, if the
//! rules of RFC 1122 section
//! 3.2.2 and RFC 4443 section 2.4 permit one. How many go out in a second is the caller's to bound
//! ([`ErrorLimiter`]).
//!
//! Echo requests ([`parse_echo`]) leave through ping sockets, which choose their own identifier; the reply
//! ([`echo_reply_frame`]) is built from the request's.

mod echo;
mod error;
mod limit;
mod packet;
mod quote;
#[cfg(test)]
mod tests;

pub use echo::{EchoReply, EchoRequest, echo_reply_frame, parse_echo};
pub use error::{IcmpError, error_frame};
pub use limit::ErrorLimiter;
pub use quote::{quote_echo, quote_tcp_syn, quote_udp};
