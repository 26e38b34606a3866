//! An entry of connection tracking, made by ctnetlink (linux/netfilter/nfnetlink_conntrack.h).

use std::io;
use std::net::{IpAddr, SocketAddr};

use netlink_sys::Socket;

/// `NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_NEW`.
const NEW: u16 = 1 << 8;
/// NLM_F_REQUEST | NLM_F_ACK | NLM_F_EXCL | NLM_F_CREATE.
const FLAGS: u16 = 0x1 | 0x4 | 0x200 | 0x400;
const NLMSG_ERROR: u16 = 2;
/// Set in the type of an attribute that has attributes in it.
const NESTED: u16 = 0x8000;
/// Bytes of `nlmsghdr`.
const HEADER: usize = 16;
/// Seconds until the entry ends when nothing comes.
const TIMEOUT: u32 = 600;
/// IPS_SEEN_REPLY | IPS_ASSURED | IPS_CONFIRMED.
const STATUS: u32 = 0x2 | 0x4 | 0x8;
/// TCP_CONNTRACK_ESTABLISHED.
const ESTABLISHED: u8 = 3;
/// IP_CT_TCP_FLAG_BE_LIBERAL: the windows are not known, so none is checked.
const LIBERAL: u8 = 0x8;

/// Makes the entry of an established connection that `client` opened to `pod`; one that is there stays.
///
/// # Errors
/// As the kernel answers: without connection tracking, EINVAL or EOPNOTSUPP.
pub(super) fn insert(netfilter: &Socket, client: SocketAddr, pod: SocketAddr) -> io::Result<()> {
    netfilter.send(&message(client, pod), 0)?;
    let (answer, _) = netfilter.recv_from_full()?;
    match result(&answer) {
        0 | libc::EEXIST => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// The errno in an acknowledgement.
fn result(answer: &[u8]) -> i32 {
    let kind = answer.get(4..6).and_then(<[u8]>::first_chunk).map(|k| u16::from_ne_bytes(*k));
    let code = answer.get(HEADER..).and_then(<[u8]>::first_chunk).map(|c| i32::from_ne_bytes(*c));
    match (kind, code) {
        (Some(NLMSG_ERROR), Some(code)) => -code,
        _ => libc::EPROTO,
    }
}

fn attribute(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    out.extend(((value.len() + 4) as u16).to_ne_bytes());
    out.extend(kind.to_ne_bytes());
    out.extend(value);
    out.resize(out.len().next_multiple_of(4), 0);
}

fn nested(out: &mut Vec<u8>, kind: u16, inside: impl FnOnce(&mut Vec<u8>)) {
    let mut value = Vec::new();
    inside(&mut value);
    attribute(out, kind | NESTED, &value);
}

fn tuple(out: &mut Vec<u8>, kind: u16, from: SocketAddr, to: SocketAddr) {
    nested(out, kind, |out| {
        // CTA_TUPLE_IP: CTA_IP_V4_SRC, _DST or the same of IPv6.
        nested(out, 1, |out| {
            for (at, ip) in [(0u16, from.ip()), (1, to.ip())] {
                match ip {
                    IpAddr::V4(a) => attribute(out, 1 + at, &a.octets()),
                    IpAddr::V6(a) => attribute(out, 3 + at, &a.octets()),
                }
            }
        });
        // CTA_TUPLE_PROTO: CTA_PROTO_NUM, _SRC_PORT, _DST_PORT.
        nested(out, 2, |out| {
            attribute(out, 1, &[libc::IPPROTO_TCP as u8]);
            attribute(out, 2, &from.port().to_be_bytes());
            attribute(out, 3, &to.port().to_be_bytes());
        });
    });
}

/// The request.
fn message(client: SocketAddr, pod: SocketAddr) -> Vec<u8> {
    let family = if client.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 } as u8;
    // nfgenmsg: family, version, resource.
    let mut body = vec![family, 0, 0, 0];
    tuple(&mut body, 1, client, pod);
    tuple(&mut body, 2, pod, client);
    attribute(&mut body, 3, &STATUS.to_be_bytes());
    // CTA_PROTOINFO, CTA_PROTOINFO_TCP: state, flags of both directions with their masks.
    nested(&mut body, 4, |out| {
        nested(out, 1, |out| {
            attribute(out, 1, &[ESTABLISHED]);
            attribute(out, 4, &[LIBERAL, LIBERAL]);
            attribute(out, 5, &[LIBERAL, LIBERAL]);
        });
    });
    attribute(&mut body, 7, &TIMEOUT.to_be_bytes());
    let mut message = ((HEADER + body.len()) as u32).to_ne_bytes().to_vec();
    message.extend(NEW.to_ne_bytes());
    message.extend(FLAGS.to_ne_bytes());
    // Number and port.
    message.extend([0; 8]);
    message.extend(body);
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_both_directions() {
        let m = message("192.0.2.7:5000".parse().unwrap(), "10.9.0.2:22".parse().unwrap());
        assert_eq!(m.len() % 4, 0);
        assert_eq!(u32::from_ne_bytes(*m.first_chunk().unwrap()) as usize, m.len());
        let find = |part: &[u8]| m.windows(part.len()).filter(|w| *w == part).count();
        assert_eq!((find(&[192, 0, 2, 7]), find(&[10, 9, 0, 2])), (2, 2));
        assert_eq!(find(&5000u16.to_be_bytes()), 2);
    }

    #[test]
    fn what_is_no_acknowledgement_is_an_error() {
        let mut ack = vec![0; HEADER + 4];
        assert_eq!(result(&ack), libc::EPROTO);
        ack[4] = 2;
        assert_eq!(result(&ack), 0);
        ack[HEADER..].copy_from_slice(&(-libc::EEXIST).to_ne_bytes());
        assert_eq!(result(&ack), libc::EEXIST);
        assert_eq!(result(&[]), libc::EPROTO);
    }
}
