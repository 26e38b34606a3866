//! A DHCPv4 server for one client with one address (RFC 2131).
//!
//! It has no lease database: the guest's address is a fact of the [`Link`], and every answer follows from
//! the request and that fact. A request for the guest's address is acknowledged, one for any other is
//! refused at once (DHCPNAK), because this server alone is authoritative for its link; so a guest that
//! comes back from elsewhere, or whose pod has got a new address, starts over without waiting.
//!
//! The lease is one hour. Nothing needs it to end, but renewal is the only way DHCPv4 has to tell a running
//! guest that something changed (resolvers, search domains, MTU, the address itself), and half an hour is
//! soon enough for what does not also bring the link down and up; the price is two frames each half hour.

mod message;
mod options;
#[cfg(test)]
mod tests;

use std::net::{Ipv4Addr, SocketAddrV4};

use super::Handled;
use super::frame::{self, IPV4, MacPair, UDP};
use crate::counters::Reason;
use crate::net::{Link, LinkV4};
use crate::wire::MacAddr;
use message::{HEADER, MessageType, Request, code};

/// UDP ports (RFC 2131 section 4.1).
pub(super) const SERVER_PORT: u16 = 67;
const CLIENT_PORT: u16 = 68;

/// Lease, renewal (T1) and rebinding (T2) times in seconds; T1 and T2 are the fractions of RFC 2131 section
/// 4.4.5.
const LEASE: u32 = 3600;
const RENEW: u32 = LEASE / 2;
const REBIND: u32 = LEASE / 8 * 7;

/// The IP datagram every client takes (RFC 2131 section 2).
const MIN_DATAGRAM: usize = 576;

/// Answers one message of the guest.
pub(super) fn handle(payload: &[u8], link: &Link, out: &mut Vec<Vec<u8>>) -> Handled {
    let Some(request) = Request::parse(payload) else { return Handled::Dropped(Reason::Malformed) };
    let Some(v4) = &link.v4 else { return Handled::Consumed };
    // Behind a relay agent would be another link, whose addresses netd does not know.
    if request.relayed() {
        return Handled::Dropped(Reason::Denied);
    }
    if link.guest_mac.is_some_and(|m| m != request.chaddr) {
        return Handled::Dropped(Reason::Spoofed);
    }
    let answer = match request.kind {
        None => Answer::bootp(v4),
        Some(MessageType::Discover) if request.option(code::RAPID_COMMIT).is_some() => Answer::rapid(v4),
        Some(MessageType::Discover) => Answer::offer(v4),
        Some(MessageType::Request) => match judge(&request, v4) {
            Verdict::Grant => Answer::ack(&request, v4),
            Verdict::Refuse => Answer::nak(),
            Verdict::NotForUs => return Handled::Consumed,
            Verdict::Invalid => return Handled::Dropped(Reason::Malformed),
        },
        Some(MessageType::Inform) => Answer::inform(&request),
        // There is no other address to give, and no address to take back.
        Some(MessageType::Release | MessageType::Decline) => return Handled::Consumed,
        Some(MessageType::Offer | MessageType::Ack | MessageType::Nak) => {
            return Handled::Dropped(Reason::Malformed);
        }
    };
    out.extend(answer.frame(&request, link, v4));
    Handled::Consumed
}

enum Verdict {
    Grant,
    Refuse,
    NotForUs,
    Invalid,
}

/// Tells the four kinds of DHCPREQUEST apart (RFC 2131 section 4.3.2) and whether the address is the guest's.
fn judge(request: &Request, v4: &LinkV4) -> Verdict {
    if request.address(code::SERVER_ID).is_some_and(|s| s != v4.gateway) {
        // SELECTING: another server's offer was taken.
        return Verdict::NotForUs;
    }
    // SELECTING and INIT-REBOOT name the address in the option, RENEWING and REBINDING in ciaddr.
    let wanted = request.address(code::REQUESTED_ADDRESS).unwrap_or(request.ciaddr);
    match wanted {
        Ipv4Addr::UNSPECIFIED => Verdict::Invalid,
        a if a == v4.guest => Verdict::Grant,
        _ => Verdict::Refuse,
    }
}

/// What distinguishes one answer from another (RFC 2131 section 4.3.1, table 3).
struct Answer {
    /// None is plain BOOTP.
    kind: Option<MessageType>,
    rapid: bool,
    ciaddr: Ipv4Addr,
    yiaddr: Ipv4Addr,
}

impl Answer {
    fn new(kind: MessageType, yiaddr: Ipv4Addr) -> Answer {
        Answer { kind: Some(kind), rapid: false, ciaddr: Ipv4Addr::UNSPECIFIED, yiaddr }
    }

    fn offer(v4: &LinkV4) -> Answer {
        Answer::new(MessageType::Offer, v4.guest)
    }

    fn ack(request: &Request, v4: &LinkV4) -> Answer {
        Answer { ciaddr: request.ciaddr, ..Answer::new(MessageType::Ack, v4.guest) }
    }

    /// The acknowledgement without an offer before it (RFC 4039 section 4).
    fn rapid(v4: &LinkV4) -> Answer {
        Answer { rapid: true, ..Answer::new(MessageType::Ack, v4.guest) }
    }

    fn nak() -> Answer {
        Answer::new(MessageType::Nak, Ipv4Addr::UNSPECIFIED)
    }

    /// To a client that configured its address by itself: parameters, but no address (RFC 2131 section
    /// 4.3.5).
    fn inform(request: &Request) -> Answer {
        Answer { ciaddr: request.ciaddr, ..Answer::new(MessageType::Ack, Ipv4Addr::UNSPECIFIED) }
    }

    /// RFC 1534 section 2: a DHCP server may serve BOOTP clients, and a fixed address is what they expect.
    fn bootp(v4: &LinkV4) -> Answer {
        Answer { kind: None, ..Answer::new(MessageType::Ack, v4.guest) }
    }

    fn frame(&self, request: &Request, link: &Link, v4: &LinkV4) -> Option<Vec<u8>> {
        let (to, mac) = self.destination(request);
        frame::udp4(
            MacPair { from: link.mac, to: mac },
            SocketAddrV4::new(v4.gateway, SERVER_PORT),
            SocketAddrV4::new(to, CLIENT_PORT),
            &request.reply(
                self.ciaddr,
                self.yiaddr,
                &self.options(request, link, v4),
                max_len(request, link),
            ),
        )
    }

    /// RFC 2131 section 4.1.
    fn destination(&self, request: &Request) -> (Ipv4Addr, MacAddr) {
        let refused = self.kind == Some(MessageType::Nak);
        if !refused && !self.ciaddr.is_unspecified() {
            (self.ciaddr, request.chaddr)
        } else if refused || request.wants_broadcast() || self.yiaddr.is_unspecified() {
            (Ipv4Addr::BROADCAST, MacAddr::BROADCAST)
        } else {
            (self.yiaddr, request.chaddr)
        }
    }

    fn options(&self, request: &Request, link: &Link, v4: &LinkV4) -> Vec<(u8, Vec<u8>)> {
        let mut options = vec![];
        let lease = self.kind.is_some() && !self.yiaddr.is_unspecified();
        if let Some(kind) = self.kind {
            options.push((code::MESSAGE_TYPE, vec![kind as u8]));
            options.push((code::SERVER_ID, v4.gateway.octets().to_vec()));
        }
        if lease {
            options.push((code::LEASE_TIME, LEASE.to_be_bytes().to_vec()));
        }
        if self.rapid {
            options.push((code::RAPID_COMMIT, vec![]));
        }
        // RFC 6842 section 3: a client that sends its identifier finds it in every answer.
        options.extend(request.option(code::CLIENT_ID).map(|id| (code::CLIENT_ID, id.to_vec())));
        if self.kind == Some(MessageType::Nak) {
            options.push((code::MESSAGE, format!("the address is {}", v4.guest).into_bytes()));
        } else {
            options.extend(options::parameters(request, link, v4, lease));
        }
        options
    }
}

/// The longest reply: what the client takes (RFC 2132 section 9.10), within the link's MTU.
fn max_len(request: &Request, link: &Link) -> usize {
    let told = request.option(code::MAX_SIZE).and_then(|v| v.first_chunk::<2>());
    let told = told.map_or(MIN_DATAGRAM, |v| usize::from(u16::from_be_bytes(*v)));
    let datagram = told.min(usize::from(link.mtu)).max(MIN_DATAGRAM);
    (datagram - IPV4 - UDP).max(HEADER)
}
