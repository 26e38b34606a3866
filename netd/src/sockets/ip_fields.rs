//! What a connection's packets say in their IP headers.

use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;

use socket2::Socket;

use crate::sys;
use crate::wire::Ip;

/// What the headers of a connection's packets say beside addresses and ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IpFields {
    /// TTL or hop limit.
    pub(crate) ttl: u8,
    /// The six bits of DSCP, in their place in the TOS or traffic class. ECN is between the two ends of a connection.
    pub(crate) dscp: u8,
}

impl IpFields {
    /// Those of a packet of the guest.
    pub(crate) fn from_packet(ip: &Ip) -> IpFields {
        // RFC 1122 3.2.1.7: a TTL of zero is never sent; what arrives with one is the guest's mistake.
        IpFields { ttl: ip.ttl.max(1), dscp: ip.class & !3 }
    }
}

/// Has a connection's packets say `fields` from now on; `now`: what they say already, if it is known. The socket's own DSCP is
/// zero.
///
/// # Errors
/// As setsockopt(2).
pub(crate) fn set_ip_fields(
    s: &Socket,
    family: IpAddr,
    fields: IpFields,
    now: Option<IpFields>,
) -> io::Result<()> {
    if now.is_none_or(|now| now.ttl != fields.ttl) {
        sys::set_ttl(s.as_fd(), family, fields.ttl)?;
    }
    if now.map_or(0, |now| now.dscp) != fields.dscp {
        sys::set_class(s.as_fd(), family, fields.dscp)?;
    }
    Ok(())
}
