//! A DHCPv6 server for one client with one address (RFC 8415).
//!
//! As in [`super::dhcp4`] there is no lease database: the first IA_NA of a message has the guest's address
//! and nothing else has anything. A client that holds another address is told at once (NotOnLink, or
//! lifetime zero when it renews). Advertisements carry the highest preference, so that clients do not wait
//! for better offers. The server's DUID is made of netd's Ethernet address, so it stays the same over
//! restarts.
//!
//! Lifetimes are one hour for the reasons given in [`super::dhcp4`].

mod message;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv6Addr, SocketAddrV6};

use super::Handled;
use super::frame::{self, IPV6, MacPair, UDP};
use super::name;
use crate::counters::Reason;
use crate::net::{Link, LinkV6};
use crate::wire::MacAddr;
use message::{Ia, IaKind, Kind, Request, code, push_option};

/// UDP ports (RFC 8415 section 7.2).
pub(super) const SERVER_PORT: u16 = 547;
const CLIENT_PORT: u16 = 546;

/// All relay agents and servers of the link, all servers of the site (RFC 8415 section 7.1).
pub(super) const GROUPS: [Ipv6Addr; 2] =
    [Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2), Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 1, 3)];

/// Message types of the server (RFC 8415 section 7.3), and that of a relay agent.
const ADVERTISE: u8 = 2;
const REPLY: u8 = 7;
const RELAY_FORWARD: u8 = 12;

/// Lifetimes, renewal (T1) and rebinding (T2) times in seconds; T1 and T2 are the fractions of RFC 8415
/// section 21.4.
const LIFETIME: u32 = 3600;
const TIMES: [u32; 2] = [LIFETIME / 2, LIFETIME / 5 * 4];

/// Above all other servers (RFC 8415 section 18.2.1).
const PREFERENCE: u8 = 255;

/// Status codes (RFC 8415 section 21.13).
#[derive(Clone, Copy)]
enum Status {
    Success = 0,
    NoAddrsAvail = 2,
    NoBinding = 3,
    NotOnLink = 4,
    UseMulticast = 5,
    NoPrefixAvail = 6,
}

impl Status {
    fn value(self) -> Vec<u8> {
        let text: &[u8] = match self {
            Status::Success => b"",
            Status::NoAddrsAvail => b"the guest has one address",
            Status::NoBinding => b"not the guest's",
            Status::NotOnLink => b"the guest has another address",
            Status::UseMulticast => b"",
            Status::NoPrefixAvail => b"no prefixes are delegated",
        };
        [&[0, self as u8], text].concat()
    }

    fn option(self) -> (u16, Vec<u8>) {
        (code::STATUS, self.value())
    }

    /// This status inside an identity association.
    fn of(self, ia: &Ia) -> (u16, Vec<u8>) {
        let mut inner = vec![];
        push_option(&mut inner, code::STATUS, &self.value());
        ia.answer([0, 0], &inner)
    }
}

/// Where a message came from and went to.
#[derive(Clone, Copy, Debug)]
pub(super) struct From {
    /// The sender's Ethernet address.
    pub(super) mac: MacAddr,
    /// The sender's address.
    pub(super) address: Ipv6Addr,
    /// Whether it was sent to a group, as it should.
    pub(super) multicast: bool,
}

/// Answers one message of the guest.
pub(super) fn handle(payload: &[u8], from: From, link: &Link, out: &mut Vec<Vec<u8>>) -> Handled {
    let Some(v6) = &link.v6 else { return Handled::Consumed };
    if payload.first() == Some(&RELAY_FORWARD) {
        return Handled::Dropped(Reason::Denied);
    }
    // The DUID need not say anything about the client's Ethernet address: the frame does.
    if link.guest_mac.is_some_and(|m| m != from.mac) {
        return Handled::Dropped(Reason::Spoofed);
    }
    let Some(request) = Request::parse(payload) else { return Handled::Dropped(Reason::Malformed) };
    let duid = server_duid(link.mac);
    if !valid(&request) || from.address.is_unspecified() || from.address.is_multicast() {
        return Handled::Dropped(Reason::Malformed);
    }
    if request.server_id.is_some_and(|id| id != duid) {
        return Handled::Consumed;
    }
    let Some((kind, told)) = answer(&request, from.multicast, link, v6) else { return Handled::Consumed };
    let mut options = vec![(code::SERVER_ID, duid.to_vec())];
    options.extend(request.client_id.map(|id| (code::CLIENT_ID, id.to_vec())));
    options.extend(told);
    let max = usize::from(link.mtu.max(1280)) - IPV6 - UDP;
    out.extend(frame::udp6(
        MacPair { from: link.mac, to: from.mac },
        SocketAddrV6::new(v6.gateway, SERVER_PORT, 0, 0),
        SocketAddrV6::new(from.address, CLIENT_PORT, 0, 0),
        &request.reply(kind, &options, max),
    ));
    Handled::Consumed
}

/// Which identifiers a message must and must not have (RFC 8415 section 16).
fn valid(request: &Request<'_>) -> bool {
    let (client, server) = (request.client_id.is_some(), request.server_id.is_some());
    match request.kind {
        Kind::Solicit | Kind::Confirm | Kind::Rebind => client && !server,
        Kind::Request | Kind::Renew | Kind::Decline | Kind::Release => client && server,
        // Section 16.12: an information request must not have identity associations.
        Kind::InformationRequest => request.ias.is_empty(),
    }
}

type Options = Vec<(u16, Vec<u8>)>;

/// The type and the options of the answer; none where silence is the answer.
fn answer(request: &Request<'_>, multicast: bool, link: &Link, v6: &LinkV6) -> Option<(u8, Options)> {
    let parameters = || parameters(request, link);
    if !multicast {
        // Section 18.3: no client was told that unicast is allowed.
        return match request.kind {
            Kind::Request | Kind::Renew | Kind::Release | Kind::Decline => {
                Some((REPLY, vec![Status::UseMulticast.option()]))
            }
            Kind::Solicit | Kind::Confirm | Kind::Rebind | Kind::InformationRequest => None,
        };
    }
    let mut options = vec![];
    let mut kind = REPLY;
    match request.kind {
        Kind::Solicit => {
            if request.rapid_commit {
                options.push((code::RAPID_COMMIT, vec![]));
            } else {
                kind = ADVERTISE;
                options.push((code::PREFERENCE, vec![PREFERENCE]));
            }
            options.extend(associations(request, v6));
            options.extend(parameters());
        }
        Kind::Request | Kind::Renew | Kind::Rebind => {
            options.extend(associations(request, v6));
            options.extend(parameters());
        }
        Kind::Confirm => {
            // Section 18.3.3. Another address of the same prefix is no good either: only one is carried.
            let mut held = request.ias.iter().flat_map(|ia| &ia.addresses).peekable();
            held.peek()?;
            let fine = held.all(|a| *a == v6.guest);
            options.push(if fine { Status::Success } else { Status::NotOnLink }.option());
        }
        Kind::Release | Kind::Decline => {
            options.push(Status::Success.option());
            let foreign = |ia: &&Ia| ia.kind != IaKind::Na || !ia.addresses.contains(&v6.guest);
            options.extend(request.ias.iter().filter(foreign).map(|ia| Status::NoBinding.of(ia)));
        }
        Kind::InformationRequest => {
            if request.wants(code::REFRESH_TIME) {
                options.push((code::REFRESH_TIME, TIMES[0].to_be_bytes().to_vec()));
            }
            options.extend(parameters());
        }
    }
    Some((kind, options))
}

/// The answers to the identity associations of a message.
fn associations(request: &Request<'_>, v6: &LinkV6) -> Options {
    let renewal = matches!(request.kind, Kind::Renew | Kind::Rebind);
    let mut given = false;
    let answer = |ia: &Ia| {
        if ia.kind == IaKind::Na && !given {
            given = true;
            return address(request.kind, ia, v6);
        }
        let none = if ia.kind == IaKind::Pd { Status::NoPrefixAvail } else { Status::NoAddrsAvail };
        // Section 18.3.4: what was never given cannot be extended.
        if renewal { Status::NoBinding.of(ia) } else { none.of(ia) }
    };
    request.ias.iter().map(answer).collect()
}

/// The answer to the association that has the guest's address.
fn address(kind: Kind, ia: &Ia, v6: &LinkV6) -> (u16, Vec<u8>) {
    let foreign = ia.addresses.iter().filter(|a| **a != v6.guest);
    // Section 18.3.2. In a Solicit addresses are mere wishes.
    if kind == Kind::Request && foreign.clone().next().is_some() {
        return Status::NotOnLink.of(ia);
    }
    let mut inner = vec![];
    push_address(&mut inner, v6.guest, LIFETIME);
    if kind != Kind::Solicit {
        // Section 18.3.4: lifetime zero takes away what a renewing client should not have.
        for a in foreign {
            push_address(&mut inner, *a, 0);
        }
    }
    ia.answer(TIMES, &inner)
}

fn push_address(to: &mut Vec<u8>, address: Ipv6Addr, lifetime: u32) {
    let mut value = address.octets().to_vec();
    // Preferred and valid lifetime.
    value.extend_from_slice(&lifetime.to_be_bytes());
    value.extend_from_slice(&lifetime.to_be_bytes());
    push_option(to, code::IA_ADDRESS, &value);
}

/// What else the client is told, as far as it asked.
fn parameters(request: &Request<'_>, link: &Link) -> Options {
    let mut told = vec![];
    if request.wants(code::DNS) {
        let usable = |a: &Ipv6Addr| !a.is_loopback() && !a.is_unspecified() && !a.is_multicast();
        let v6 = link.dns.iter().filter_map(|a| if let IpAddr::V6(a) = a { Some(*a) } else { None });
        told.push((code::DNS, v6.filter(usable).flat_map(|a| a.octets()).collect()));
    }
    if request.wants(code::SEARCH) {
        told.push((code::SEARCH, name::encode_all(&link.search)));
    }
    if request.fqdn.is_some() || request.wants(code::FQDN) {
        told.extend(fqdn(request, link).map(|v| (code::FQDN, v)));
    }
    told.retain(|(_, value)| !value.is_empty());
    told
}

/// Flags of the client FQDN option (RFC 4704 section 4.1).
const FQDN_S: u8 = 1;
const FQDN_O: u8 = 2;
const FQDN_N: u8 = 4;

/// The client FQDN option (RFC 4704): the guest's name, and that this server updates no zone.
fn fqdn(request: &Request<'_>, link: &Link) -> Option<Vec<u8>> {
    let asked = request.fqdn.and_then(|v| v.first().copied()).unwrap_or(0);
    let overridden = if asked & FQDN_S != 0 { FQDN_O } else { 0 };
    let mut value = vec![FQDN_N | overridden];
    value.extend(name::encode(link.fqdn.as_deref()?)?);
    Some(value)
}

/// A DUID of the link-layer address alone (RFC 8415 section 11.4).
fn server_duid(mac: MacAddr) -> [u8; 10] {
    let [a, b, c, d, e, f] = mac.0;
    [0, 3, 0, 1, a, b, c, d, e, f]
}
