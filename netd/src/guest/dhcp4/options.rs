//! What the DHCPv4 server tells: the values of its options.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::Ipv4Net;

use super::message::{Request, code};
use super::{REBIND, RENEW};
use crate::guest::name;
use crate::net::{Link, LinkV4};

/// Told to a client that does not say what it wants to know. Routes come before the router, as RFC 3442 wants
/// clients to ask for them: they are the ones to keep if room runs out.
const DEFAULT: [u8; 12] = [
    code::CLASSLESS_ROUTES,
    code::ROUTER,
    code::DNS,
    code::MTU,
    code::HOST_NAME,
    code::DOMAIN_NAME,
    code::SEARCH,
    code::BROADCAST,
    code::RENEWAL,
    code::REBINDING,
    code::FQDN,
    code::SUBNET_MASK,
];

/// Codes that carry the protocol itself and cannot be configured.
const PROTOCOL: [u8; 12] = [
    code::PAD,
    code::REQUESTED_ADDRESS,
    code::LEASE_TIME,
    code::OVERLOAD,
    code::MESSAGE_TYPE,
    code::SERVER_ID,
    code::PARAMETER_LIST,
    code::MESSAGE,
    code::MAX_SIZE,
    code::CLIENT_ID,
    code::RELAY_AGENT,
    code::END,
];

/// The options that answer `request`, in the order in which the client asked for them.
pub(super) fn parameters(request: &Request, link: &Link, v4: &LinkV4, lease: bool) -> Vec<(u8, Vec<u8>)> {
    let mut wanted = vec![];
    match request.option(code::PARAMETER_LIST) {
        Some(list) => wanted.extend_from_slice(list),
        None => {
            wanted.extend_from_slice(&DEFAULT);
            wanted.extend(link.dhcp_options.iter().map(|o| o.code));
        }
    }
    // RFC 4702 section 4: a client that sends its name is answered with it.
    if request.option(code::FQDN).is_some() {
        wanted.push(code::FQDN);
    }
    // An address without its mask would get that of its historical class, so the mask is always told.
    let mut told = vec![(code::SUBNET_MASK, mask(v4).octets().to_vec())];
    for code in wanted {
        if PROTOCOL.contains(&code) || told.iter().any(|(c, _)| *c == code) {
            continue;
        }
        if !lease && matches!(code, code::RENEWAL | code::REBINDING) {
            continue;
        }
        let configured = link.dhcp_options.iter().find(|o| o.code == code).map(|o| o.value.clone());
        told.extend(configured.or_else(|| value(code, request, link, v4)).map(|v| (code, v)));
    }
    told
}

fn value(code: u8, request: &Request, link: &Link, v4: &LinkV4) -> Option<Vec<u8>> {
    let value = match code {
        code::ROUTER if v4.default_route => v4.gateway.octets().to_vec(),
        code::DNS => resolvers(link),
        code::HOST_NAME => link.hostname.clone().filter(|h| name::encode(h).is_some())?.into_bytes(),
        code::DOMAIN_NAME => domain(link)?.as_bytes().to_vec(),
        code::MTU => link.mtu.to_be_bytes().to_vec(),
        // RFC 3021: a link of two addresses has no broadcast address.
        code::BROADCAST if v4.prefix_len < 31 => {
            Ipv4Net::new(v4.guest, v4.prefix_len).ok()?.broadcast().octets().to_vec()
        }
        code::RENEWAL => RENEW.to_be_bytes().to_vec(),
        code::REBINDING => REBIND.to_be_bytes().to_vec(),
        code::SEARCH => name::encode_all(&link.search),
        code::CLASSLESS_ROUTES => routes(v4),
        // A client that asks for both takes 121; only an old Windows asks for this option alone.
        code::MS_CLASSLESS_ROUTES => routes(v4),
        code::FQDN => fqdn(request, link)?,
        _ => return None,
    };
    (!value.is_empty()).then_some(value)
}

fn mask(v4: &LinkV4) -> Ipv4Addr {
    Ipv4Net::new(v4.guest, v4.prefix_len).map_or(Ipv4Addr::BROADCAST, |n| n.netmask())
}

fn resolvers(link: &Link) -> Vec<u8> {
    let usable = |a: &Ipv4Addr| !a.is_loopback() && !a.is_unspecified() && !a.is_multicast();
    let v4 = link.dns.iter().filter_map(|a| if let IpAddr::V4(a) = a { Some(*a) } else { None });
    v4.filter(usable).flat_map(|a| a.octets()).collect()
}

/// The guest's domain: what follows the host name in its full name, else the first search domain.
fn domain(link: &Link) -> Option<&str> {
    let of_fqdn = link.fqdn.as_deref().and_then(|f| f.split_once('.')).map(|(_, d)| d);
    let domain = of_fqdn.filter(|d| name::encode(d).is_some());
    domain.or_else(|| link.search.iter().map(String::as_str).find(|d| name::encode(d).is_some()))
}

/// Classless routes (RFC 3442), none when mask and router say it all.
///
/// A gateway outside the prefix (a pod with a /32) is first made reachable by a route on the link, and so
/// is every other next hop. The default route is among them, since a client that takes these ignores the
/// router option.
fn routes(v4: &LinkV4) -> Vec<u8> {
    let on_link = |a: Ipv4Addr| Ipv4Net::new(v4.guest, v4.prefix_len).is_ok_and(|n| n.contains(&a));
    if (on_link(v4.gateway) || !v4.default_route) && v4.routes.is_empty() {
        return vec![];
    }
    let mut told: Vec<(Ipv4Net, Ipv4Addr)> = vec![];
    let mut tell = |net: Ipv4Net, via: Ipv4Addr| {
        let route = (net.trunc(), via);
        if !told.contains(&route) {
            told.push(route);
        }
    };
    let gateway = Some(v4.gateway).filter(|_| v4.default_route);
    let hops = gateway.into_iter().chain(v4.routes.iter().filter_map(|r| r.via));
    for hop in hops.filter(|h| !on_link(*h)) {
        tell(hop.into(), Ipv4Addr::UNSPECIFIED);
    }
    for route in v4.routes.iter().filter(|r| r.to.prefix_len() > 0) {
        tell(route.to, route.via.unwrap_or(Ipv4Addr::UNSPECIFIED));
    }
    if let Some(gateway) = gateway {
        tell(Ipv4Net::default(), gateway);
    }
    let mut value = vec![];
    for (net, via) in told {
        value.push(net.prefix_len());
        let significant = usize::from(net.prefix_len()).div_ceil(8);
        value.extend(net.addr().octets().into_iter().take(significant));
        value.extend_from_slice(&via.octets());
    }
    value
}

/// Flags of the client FQDN option (RFC 4702 section 2.1).
const FQDN_S: u8 = 1;
const FQDN_O: u8 = 2;
const FQDN_E: u8 = 4;
const FQDN_N: u8 = 8;

/// The client FQDN option (RFC 4702): the guest's name, and that this server updates no zone.
fn fqdn(request: &Request, link: &Link) -> Option<Vec<u8>> {
    let fqdn = link.fqdn.as_deref()?;
    let encoded = name::encode(fqdn)?;
    let asked = request.option(code::FQDN).and_then(|v| v.first().copied()).unwrap_or(FQDN_E);
    // RFC 4702 section 4: O says that the client's S was overridden, E is copied.
    let overridden = if asked & FQDN_S != 0 { FQDN_O } else { 0 };
    let mut value = vec![FQDN_N | overridden | (asked & FQDN_E), u8::MAX, u8::MAX];
    // The deprecated form of section 2.3.1 is plain text.
    value.extend_from_slice(if asked & FQDN_E != 0 { &encoded } else { fqdn.as_bytes() });
    Some(value)
}
