//! The facts about a pod's network, chosen from what the kernel tells.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage, AddressScope};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkLayerType, LinkMessage};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteType};

use super::PodError;
use crate::net::Route;
use crate::wire::MacAddr;

/// What the pod's interface has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodFacts {
    /// Name of the interface.
    pub interface: String,
    /// MTU in bytes.
    pub mtu: u32,
    /// Ethernet address, if it is an Ethernet interface.
    pub mac: Option<MacAddr>,
    /// Host name of the pod.
    pub hostname: Option<String>,
    /// IPv4, if it has a global address.
    pub v4: Option<Family<Ipv4Addr, Ipv4Net>>,
    /// IPv6, if it has a global address.
    pub v6: Option<Family<Ipv6Addr, Ipv6Net>>,
    /// Every address of this interface by which the pod reaches itself, in order.
    pub own: Vec<IpAddr>,
    /// The same of the pod's other interfaces.
    pub others: Vec<IpAddr>,
}

/// One address family of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Family<A, N> {
    /// The preferred global address.
    pub address: A,
    /// Its prefix length.
    pub prefix_len: u8,
    /// Next hop of the default route, on the link or not; none when there is none or it has no next hop.
    pub gateway: Option<A>,
    /// Whether there is a default route by this interface.
    pub default_route: bool,
    /// Further routes: not the default, not the address's own network, not to the gateway itself.
    pub routes: Vec<Route<N, A>>,
}

/// A unicast route of the main table, one for each of its next hops.
struct PodRoute {
    interface: u32,
    to: IpNet,
    via: Option<IpAddr>,
    metric: u32,
}

/// Chooses the interface, `wanted` or the one with the best default route, and its facts. Of addresses that are as good as
/// each other those of `present` are taken.
pub(super) fn choose(
    wanted: Option<&str>,
    present: &[IpAddr],
    links: &[LinkMessage],
    addresses: &[AddressMessage],
    routes: &[RouteMessage],
    hostname: Option<String>,
) -> Result<PodFacts, PodError> {
    let mut routes: Vec<PodRoute> = routes.iter().flat_map(pod_routes).collect();
    routes.sort_by_key(|r| r.metric);
    let link = match wanted {
        Some(name) => links
            .iter()
            .find(|l| link_name(l) == Some(name))
            .ok_or_else(|| PodError::NoInterface(name.into()))?,
        None => default_link(links, addresses, &routes).ok_or(PodError::NoDefault)?,
    };
    let index = link.header.index;
    let mtu = link.attributes.iter().find_map(|a| match a {
        LinkAttribute::Mtu(mtu) => Some(*mtu),
        _ => None,
    });
    let mac = link.attributes.iter().find_map(|a| match a {
        LinkAttribute::Address(bytes) if link.header.link_layer_type == LinkLayerType::Ether => {
            bytes.as_slice().try_into().ok().map(MacAddr)
        }
        _ => None,
    });
    routes.retain(|r| r.interface == index);
    let v4 =
        best_address(addresses, index, IpAddr::is_ipv4, present).map(|net| family(net, &routes, v4_net, v4));
    let v6 =
        best_address(addresses, index, IpAddr::is_ipv6, present).map(|net| family(net, &routes, v6_net, v6));
    let (own, others) = addresses.iter().partition(|a| a.header.index == index);
    Ok(PodFacts {
        interface: link_name(link).unwrap_or_default().to_owned(),
        // Every interface tells its MTU; Ethernet's is the safe one if it should not.
        mtu: mtu.unwrap_or(1500),
        mac,
        hostname,
        v4: v4.flatten(),
        v6: v6.flatten(),
        own: in_order(own),
        others: in_order(others),
    })
}

/// The address itself: on a point-to-point link IFA_ADDRESS is the peer's.
fn address_of(message: &AddressMessage) -> Option<IpAddr> {
    let (mut local, mut address) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Local(a) => local = Some(*a),
            AddressAttribute::Address(a) => address = Some(*a),
            _ => {}
        }
    }
    local.or(address)
}

/// Each address once, in order.
fn in_order(messages: Vec<&AddressMessage>) -> Vec<IpAddr> {
    // Those of every machine are closed without being named, and with them the link-local ones, which come and go with
    // interfaces.
    let named = |a: &IpAddr| match a {
        IpAddr::V4(a) => !a.is_loopback(),
        IpAddr::V6(a) => !(a.is_loopback() || a.is_unicast_link_local()),
    };
    let mut addresses: Vec<IpAddr> = messages.into_iter().filter_map(address_of).filter(named).collect();
    addresses.sort_unstable();
    addresses.dedup();
    addresses
}

fn link_name(link: &LinkMessage) -> Option<&str> {
    link.attributes.iter().find_map(|a| match a {
        LinkAttribute::IfName(name) => Some(name.as_str()),
        _ => None,
    })
}

/// The link of the best IPv4 default route, else IPv6, else the first that is up and has a global address.
fn default_link<'a>(
    links: &'a [LinkMessage],
    addresses: &[AddressMessage],
    routes: &[PodRoute],
) -> Option<&'a LinkMessage> {
    let usable = |l: &&LinkMessage| !l.header.flags.contains(LinkFlags::Loopback);
    let by_index = |index| links.iter().filter(usable).find(|l| l.header.index == index);
    let default = |v4: bool| {
        let mut found = routes.iter().filter(|r| r.to.prefix_len() == 0 && r.to.addr().is_ipv4() == v4);
        found.find_map(|r| by_index(r.interface))
    };
    default(true).or_else(|| default(false)).or_else(|| {
        links.iter().filter(usable).find(|l| {
            l.header.flags.contains(LinkFlags::Up)
                && best_address(addresses, l.header.index, |_| true, &[]).is_some()
        })
    })
}

/// The interface's preferred global address: neither deprecated, nor tentative, nor secondary (for IPv6:
/// temporary, RFC 8981) if there is a choice, then the one that is in use already, then the one that the kernel tells first:
/// the oldest of IPv4, the newest of IPv6.
fn best_address(
    addresses: &[AddressMessage],
    index: u32,
    family: fn(&IpAddr) -> bool,
    present: &[IpAddr],
) -> Option<IpNet> {
    let candidates = addresses.iter().filter(|a| a.header.index == index);
    let candidates = candidates.filter(|a| a.header.scope == AddressScope::Universe).filter_map(|a| {
        let flags = a.attributes.iter().find_map(|attribute| match attribute {
            AddressAttribute::Flags(f) => Some(*f),
            _ => None,
        });
        let flags = flags.unwrap_or(AddressFlags::from_bits_retain(a.header.flags.bits().into()));
        let ip = address_of(a).filter(family)?;
        if flags.contains(AddressFlags::Dadfailed) {
            return None;
        }
        let rank = [AddressFlags::Deprecated, AddressFlags::Tentative, AddressFlags::Secondary];
        let rank = (rank.map(|f| flags.contains(f)), !present.contains(&ip));
        Some((rank, IpNet::new(ip, a.header.prefix_len).ok()?))
    });
    candidates.min_by_key(|(rank, _)| *rank).map(|(_, net)| net)
}

fn pod_routes(message: &RouteMessage) -> Vec<PodRoute> {
    if message.header.kind != RouteType::Unicast {
        return Vec::new();
    }
    let ip = |a: &RouteAddress| match a {
        RouteAddress::Inet(a) => Some(IpAddr::V4(*a)),
        RouteAddress::Inet6(a) => Some(IpAddr::V6(*a)),
        _ => None,
    };
    let any = match u8::from(message.header.address_family).into() {
        libc::AF_INET => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        libc::AF_INET6 => IpAddr::from(Ipv6Addr::UNSPECIFIED),
        _ => return Vec::new(),
    };
    let (mut to, mut interface, mut via, mut metric) = (any, None, None, 0);
    let mut table = u32::from(message.header.table);
    let mut hops = Vec::new();
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(a) => to = ip(a).unwrap_or(to),
            RouteAttribute::Oif(index) => interface = Some(*index),
            RouteAttribute::Gateway(a) => via = ip(a),
            RouteAttribute::Priority(n) => metric = *n,
            RouteAttribute::Table(n) => table = *n,
            RouteAttribute::MultiPath(list) => {
                hops.extend(list.iter().map(|hop| {
                    let via = hop.attributes.iter().find_map(|a| match a {
                        RouteAttribute::Gateway(a) => ip(a),
                        _ => None,
                    });
                    (hop.interface_index, via)
                }));
            }
            _ => {}
        }
    }
    let Ok(to) = IpNet::new(to, message.header.destination_prefix_length) else { return Vec::new() };
    if table != u32::from(RouteHeader::RT_TABLE_MAIN) {
        return Vec::new();
    }
    hops.extend(interface.map(|index| (index, via)));
    hops.into_iter().map(|(interface, via)| PodRoute { interface, to: to.trunc(), via, metric }).collect()
}

fn v4(a: IpAddr) -> Option<Ipv4Addr> {
    if let IpAddr::V4(a) = a { Some(a) } else { None }
}

fn v6(a: IpAddr) -> Option<Ipv6Addr> {
    if let IpAddr::V6(a) = a { Some(a) } else { None }
}

fn v4_net(n: IpNet) -> Option<Ipv4Net> {
    if let IpNet::V4(n) = n { Some(n) } else { None }
}

fn v6_net(n: IpNet) -> Option<Ipv6Net> {
    if let IpNet::V6(n) = n { Some(n) } else { None }
}

/// The facts of the family of `net`, from the interface's routes in the order of their metrics.
fn family<A: Copy, N: Copy + PartialEq>(
    net: IpNet,
    routes: &[PodRoute],
    to_net: fn(IpNet) -> Option<N>,
    to_address: fn(IpAddr) -> Option<A>,
) -> Option<Family<A, N>> {
    let default = routes.iter().find(|r| r.to.prefix_len() == 0 && to_net(r.to).is_some());
    let gateway = default.and_then(|r| r.via);
    let mut further: Vec<Route<N, A>> = Vec::new();
    for route in routes {
        let Some(to) = to_net(route.to) else { continue };
        let link_local =
            matches!(route.to.addr(), IpAddr::V6(a) if a.is_unicast_link_local() || a.is_multicast());
        let to_gateway = route.via.is_none() && gateway.is_some_and(|g| route.to == IpNet::from(g));
        let own = route.via.is_none() && route.to == net.trunc();
        if route.to.prefix_len() == 0 || link_local || to_gateway || own || further.iter().any(|f| f.to == to)
        {
            continue;
        }
        further.push(Route { to, via: route.via.and_then(to_address) });
    }
    Some(Family {
        address: to_address(net.addr())?,
        prefix_len: net.prefix_len(),
        gateway: gateway.and_then(to_address),
        default_route: default.is_some(),
        routes: further,
    })
}

#[cfg(test)]
mod tests;
