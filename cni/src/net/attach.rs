//! Making, looking at and removing attachments; what they are is in [`super`].

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;

use futures::TryStreamExt;
use ipnet::IpNet;
use netlink_packet_route::AddressFamily;
use netlink_packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage, MacVlanMode,
};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteScope, RouteType};
use podvirt_api::mac::MacAddr;
use rtnetlink::{Handle, LinkMacVlan, LinkMessageBuilder, LinkUnspec, LinkVeth, RouteMessageBuilder};

use super::{NetError, announce, netns, silence};
use crate::args::Attachment;
use crate::config::{Link, Network};
use crate::result::{Expected, Interface, route_gateway};

/// First part of the alias of the node's end: whose it is.
const ALIAS: &str = "podvirt-cni";

/// An attachment to make.
#[derive(Clone, Debug)]
pub struct Plan<'a> {
    /// Which.
    pub attachment: &'a Attachment,
    /// To this network.
    pub network: &'a Network,
    /// The pod's addresses.
    pub addresses: &'a [IpNet],
    /// The pod's MAC address.
    pub mac: MacAddr,
    /// Whether no frame may leave the pod yet.
    pub silent: bool,
}

/// Makes the attachment: the node's end, if there is one, and the pod's. What was made is gone again after an error.
///
/// # Errors
/// The kernel refuses; the bridge or the master is not there.
pub fn make(plan: &Plan<'_>, pod: &File) -> Result<(Option<Interface>, Interface), NetError> {
    let (made, mtu) = netns::inside(None, |handle| async move { node_side(&handle, plan, pod).await })?;
    let result = netns::inside(Some(pod), |handle| async move { pod_side(&handle, plan).await });
    if let Err(error) = result {
        // What is told is the first error.
        let _gone = remove(plan.attachment, plan.network, Some(pod));
        return Err(error);
    }
    let pod = Interface { name: plan.attachment.ifname.clone(), mac: plan.mac, mtu };
    Ok((made, pod))
}

/// Removes the attachment; that there is nothing of it is no error.
///
/// # Errors
/// The kernel refuses.
pub fn remove(attachment: &Attachment, network: &Network, pod: Option<&File>) -> Result<(), NetError> {
    if matches!(network.link, Link::Bridge(_)) {
        let (name, alias) = (host_name(attachment, network), alias(attachment, network));
        netns::inside(None, |handle| async move {
            match find(&handle, &name).await? {
                // The name is a hash: what another made is left alone. Without an alias it is an ADD's that was killed.
                Some(link) if alias_of(&link).is_none_or(|a| *a == alias) => delete(&handle, &link).await,
                _ => Ok(()),
            }
        })?;
    }
    let Some(pod) = pod else { return Ok(()) };
    let macvlan = matches!(network.link, Link::Macvlan(_));
    netns::inside(Some(pod), |handle| async move {
        if macvlan && let Some(link) = find(&handle, &attachment.ifname).await? {
            delete(&handle, &link).await?;
        }
        Ok(())
    })?;
    // The chains go with their interface, the table does not.
    netns::inside(Some(pod), |_| async { silence::lift(&attachment.ifname) }).map(|_| ())
}

/// Removes what this network has on the node and is in no list; answers what was removed.
///
/// # Errors
/// The kernel refuses.
pub fn collect(network: &Network, valid: &[Attachment]) -> Result<Vec<String>, NetError> {
    let keep: BTreeSet<String> = valid.iter().map(|attachment| alias(attachment, network)).collect();
    let prefix = format!("{ALIAS}:{}:", network.name);
    netns::inside(None, |handle| async move {
        let (mut removed, mut failed) = (Vec::new(), None);
        for link in links(&handle).await? {
            let Some(alias) = alias_of(&link) else { continue };
            if alias.starts_with(&prefix) && !keep.contains(alias) {
                match delete(&handle, &link).await {
                    Ok(()) => removed.push(alias.clone()),
                    Err(error) => failed = failed.or(Some(error)),
                }
            }
        }
        failed.map_or(Ok(removed), Err)
    })
}

/// All interfaces of the namespace that `handle` speaks of.
pub(super) async fn links(handle: &Handle) -> Result<Vec<LinkMessage>, NetError> {
    handle.link().get().execute().try_collect().await.map_err(NetError::netlink("list interfaces"))
}

/// Looks whether the attachment is as it was made.
///
/// # Errors
/// It is not, or the kernel refuses.
pub fn check(
    attachment: &Attachment,
    network: &Network,
    expected: &Expected,
    pod: &File,
) -> Result<(), NetError> {
    let changed = |what: String| Err(NetError::Changed(what));
    if let Link::Bridge(bridge) = &network.link {
        let (name, alias) = (host_name(attachment, network), alias(attachment, network));
        netns::inside(None, |handle| async move {
            let bridge_index = required(&handle, bridge, "on the node").await?.header.index;
            let link = required(&handle, &name, "on the node").await?;
            if alias_of(&link) != Some(&alias) {
                return changed(format!("the interface {name:?} of the node is not this attachment's"));
            }
            let port = link.attributes.contains(&LinkAttribute::Controller(bridge_index));
            if !port || !link.header.flags.contains(LinkFlags::Up) {
                return changed(format!("the interface {name:?} is not a port of {bridge:?} that is up"));
            }
            Ok(())
        })?;
    }
    let name = &attachment.ifname;
    netns::inside(Some(pod), |handle| async move {
        let link = required(&handle, name, "in the pod").await?;
        if !link.header.flags.contains(LinkFlags::Up) {
            return changed(format!("the pod's interface {name:?} is down"));
        }
        match mac_of(&link) {
            Some(mac) if mac == expected.mac => {}
            other => {
                return changed(format!(
                    "the pod's interface {name:?} has the MAC address {other:?}, not {}",
                    expected.mac
                ));
            }
        }
        let there = addresses(&handle, link.header.index).await?;
        if let Some(missing) = expected.addresses.iter().find(|a| !there.contains(a)) {
            return changed(format!("the pod's interface {name:?} does not have the address {missing}"));
        }
        let routes = routes(&handle, link.header.index).await?;
        for route in &network.routes {
            let family = |net: &IpNet| net.addr().is_ipv4() == route.destination.addr().is_ipv4();
            if expected.addresses.iter().any(family) && !routes.contains(&route.destination) {
                return changed(format!("the pod has no route to {} over {name:?}", route.destination));
            }
        }
        Ok(())
    })
}

/// Addresses of the interface with this index.
pub(super) async fn addresses(handle: &Handle, index: u32) -> Result<Vec<IpNet>, NetError> {
    let request = handle.address().get().set_link_index_filter(index).execute();
    let found: Vec<AddressMessage> =
        request.try_collect().await.map_err(NetError::netlink("list addresses"))?;
    let address = |message: AddressMessage| {
        let own = |a: &AddressAttribute| match a {
            AddressAttribute::Address(address) => Some(*address),
            _ => None,
        };
        let local = |a: &AddressAttribute| match a {
            AddressAttribute::Local(address) => Some(*address),
            _ => None,
        };
        let attributes = &message.attributes;
        let address = attributes.iter().find_map(local).or_else(|| attributes.iter().find_map(own))?;
        IpNet::new(address, message.header.prefix_len).ok()
    };
    Ok(found.into_iter().filter_map(address).collect())
}

/// The interface `name`, if there is one.
pub(super) async fn find(handle: &Handle, name: &str) -> Result<Option<LinkMessage>, NetError> {
    match handle.link().get().match_name(name.to_owned()).execute().try_next().await {
        Ok(link) => Ok(link),
        Err(rtnetlink::Error::NetlinkError(e)) if e.raw_code() == -(nix::errno::Errno::ENODEV as i32) => {
            Ok(None)
        }
        Err(e) => Err(NetError::netlink(format!("look for the interface {name:?}"))(e)),
    }
}

/// The interface `name`.
pub(crate) async fn required(
    handle: &Handle,
    name: &str,
    place: &'static str,
) -> Result<LinkMessage, NetError> {
    let missing = || NetError::Missing { name: name.to_owned(), place };
    find(handle, name).await?.ok_or_else(missing)
}

/// The MAC address of an interface.
pub(super) fn mac_of(link: &LinkMessage) -> Option<MacAddr> {
    link.attributes.iter().find_map(|a| match a {
        LinkAttribute::Address(bytes) => Some(MacAddr(*bytes.first_chunk::<6>()?)),
        _ => None,
    })
}

async fn node_side(
    handle: &Handle,
    plan: &Plan<'_>,
    pod: &File,
) -> Result<(Option<Interface>, u32), NetError> {
    let ifname = &plan.attachment.ifname;
    let (lower, wanted) = match &plan.network.link {
        Link::Bridge(name) => (name, Some((InfoKind::Bridge, "bridge"))),
        Link::Macvlan(name) => (name, None),
    };
    let lower_link = required(handle, lower, "on the node").await?;
    if let Some((kind, wanted)) = wanted
        && !is_kind(&lower_link, &kind)
    {
        return Err(NetError::Kind { name: lower.clone(), wanted });
    }
    let lower_index = lower_link.header.index;
    let mtu = plan.network.mtu.or_else(|| mtu_of(&lower_link)).unwrap_or(1500);
    let inside = |builder: LinkMessageBuilder<LinkUnspec>| {
        builder.address(plan.mac.0.to_vec()).mtu(mtu).setns_by_fd(pod.as_raw_fd()).build()
    };
    match &plan.network.link {
        Link::Macvlan(_) => {
            let link = LinkMacVlan::new(ifname, lower_index, MacVlanMode::Bridge)
                .address(plan.mac.0.to_vec())
                .mtu(mtu)
                .setns_by_fd(pod.as_raw_fd())
                .build();
            let made = handle.link().add(link).execute().await;
            made.map_err(NetError::netlink(format!("make {ifname:?} on {lower:?}")))?;
            Ok((None, mtu))
        }
        Link::Bridge(_) => {
            let name = host_name(plan.attachment, plan.network);
            let peer = inside(LinkUnspec::new_with_name(ifname));
            let pair =
                LinkVeth::new(&name, ifname).set_info_data(InfoData::Veth(InfoVeth::Peer(peer))).mtu(mtu);
            let made = handle.link().add(pair.build()).execute().await;
            made.map_err(NetError::netlink(format!("make the pair of {name:?} and {ifname:?}")))?;
            match port(handle, plan, &name, lower_index).await {
                Ok(mac) => Ok((Some(Interface { name, mac, mtu }), mtu)),
                Err(error) => {
                    if let Ok(Some(link)) = find(handle, &name).await {
                        // What is told is the first error.
                        let _gone = delete(handle, &link).await;
                    }
                    Err(error)
                }
            }
        }
    }
}

/// Makes the node's end a port of the bridge; the node itself does not talk over it.
async fn port(handle: &Handle, plan: &Plan<'_>, name: &str, bridge: u32) -> Result<MacAddr, NetError> {
    let link = required(handle, name, "on the node").await?;
    let alias = alias(plan.attachment, plan.network);
    // By itself: the kernel takes an alias in a message of its own only where nothing else fails.
    let set =
        handle.link().set(LinkUnspec::new_with_index(link.header.index).alias(alias).build()).execute().await;
    set.map_err(NetError::netlink(format!("name {name:?}")))?;
    sysctl(&format!("ipv6/conf/{name}/disable_ipv6"), "1")?;
    let up = LinkUnspec::new_with_index(link.header.index).controller(bridge).up().build();
    let set = handle.link().set(up).execute().await;
    set.map_err(NetError::netlink(format!("make {name:?} a port")))?;
    Ok(mac_of(&link).unwrap_or(MacAddr([0; 6])))
}

async fn pod_side(handle: &Handle, plan: &Plan<'_>) -> Result<(), NetError> {
    let name = &plan.attachment.ifname;
    let index = required(handle, name, "in the pod").await?.header.index;
    if plan.silent {
        silence::silence(name)?;
    }
    let ipv6 = plan.addresses.iter().any(|a| a.addr().is_ipv6());
    if ipv6 {
        // Also for the link-local address, which the kernel makes of the MAC address: unique as that is.
        sysctl(&format!("ipv6/conf/{name}/accept_dad"), "0")?;
        // The runtime may have turned it off for the whole pod.
        sysctl(&format!("ipv6/conf/{name}/disable_ipv6"), "0")?;
    }
    let up = LinkUnspec::new_with_index(index).up().build();
    handle.link().set(up).execute().await.map_err(NetError::netlink(format!("set {name:?} up")))?;
    for address in plan.addresses {
        let mut request = handle.address().add(index, address.addr(), address.prefix_len());
        if address.addr().is_ipv6() {
            request.message_mut().header.flags = AddressHeaderFlags::Nodad;
        }
        request.execute().await.map_err(NetError::netlink(format!("give {name:?} the address {address}")))?;
    }
    for route in &plan.network.routes {
        let destination = route.destination;
        let of_family = |a: &IpNet| a.addr().is_ipv4() == destination.addr().is_ipv4();
        if !plan.addresses.iter().any(of_family) {
            continue;
        }
        let gateway = route_gateway(plan.network, route, plan.addresses);
        let request = handle.route().add(route_message(index, destination, gateway));
        request.execute().await.map_err(NetError::netlink(format!("add the route to {destination}")))?;
    }
    if !plan.silent {
        let addresses: Vec<IpAddr> = plan.addresses.iter().map(IpNet::addr).collect();
        announce::send(name, &announce::frames(plan.mac, &addresses))?;
    }
    Ok(())
}

fn route_message(index: u32, destination: IpNet, gateway: Option<IpAddr>) -> RouteMessage {
    // A router outside of the subnet is on the link nevertheless.
    match destination {
        IpNet::V4(net) => {
            let route = RouteMessageBuilder::<std::net::Ipv4Addr>::new()
                .destination_prefix(net.addr(), net.prefix_len())
                .output_interface(index);
            match gateway {
                Some(IpAddr::V4(gateway)) => route.gateway(gateway).onlink().build(),
                _ => route.scope(RouteScope::Link).build(),
            }
        }
        IpNet::V6(net) => {
            let route = RouteMessageBuilder::<std::net::Ipv6Addr>::new()
                .destination_prefix(net.addr(), net.prefix_len())
                .output_interface(index);
            match gateway {
                Some(IpAddr::V6(gateway)) => route.gateway(gateway).onlink().build(),
                _ => route.build(),
            }
        }
    }
}

async fn routes(handle: &Handle, index: u32) -> Result<Vec<IpNet>, NetError> {
    let mut found = Vec::new();
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        let mut message = RouteMessage::default();
        message.header.address_family = family;
        let list: Vec<RouteMessage> = handle
            .route()
            .get(message)
            .execute()
            .try_collect()
            .await
            .map_err(NetError::netlink("list routes"))?;
        let over = |r: &RouteMessage| r.attributes.contains(&RouteAttribute::Oif(index));
        for route in list.into_iter().filter(|r| over(r) && r.header.kind == RouteType::Unicast) {
            let any: IpAddr = match family {
                AddressFamily::Inet => std::net::Ipv4Addr::UNSPECIFIED.into(),
                _ => std::net::Ipv6Addr::UNSPECIFIED.into(),
            };
            let destination = route.attributes.iter().find_map(|a| match a {
                RouteAttribute::Destination(RouteAddress::Inet(a)) => Some(IpAddr::from(*a)),
                RouteAttribute::Destination(RouteAddress::Inet6(a)) => Some(IpAddr::from(*a)),
                _ => None,
            });
            found.extend(IpNet::new(destination.unwrap_or(any), route.header.destination_prefix_length).ok());
        }
    }
    Ok(found)
}

async fn delete(handle: &Handle, link: &LinkMessage) -> Result<(), NetError> {
    match handle.link().del(link.header.index).execute().await {
        Err(rtnetlink::Error::NetlinkError(e)) if e.raw_code() == -(nix::errno::Errno::ENODEV as i32) => {
            Ok(())
        }
        other => other.map_err(NetError::netlink("remove an interface")),
    }
}

fn is_kind(link: &LinkMessage, wanted: &InfoKind) -> bool {
    link.attributes.iter().any(|a| match a {
        LinkAttribute::LinkInfo(infos) => infos.iter().any(|i| matches!(i, LinkInfo::Kind(k) if k == wanted)),
        _ => false,
    })
}

fn mtu_of(link: &LinkMessage) -> Option<u32> {
    link.attributes.iter().find_map(|a| match a {
        LinkAttribute::Mtu(mtu) => Some(*mtu),
        _ => None,
    })
}

fn alias_of(link: &LinkMessage) -> Option<&String> {
    link.attributes.iter().find_map(|a| match a {
        LinkAttribute::IfAlias(alias) => Some(alias),
        _ => None,
    })
}

/// Names of networks have no ':', nor have identifiers.
fn alias(attachment: &Attachment, network: &Network) -> String {
    format!("{ALIAS}:{}:{}:{}", network.name, attachment.container, attachment.ifname)
}

/// Name of the node's end: `pv` and ten digits of a hash.
pub(crate) fn host_name(attachment: &Attachment, network: &Network) -> String {
    let [_, hash @ ..] = MacAddr::derived(&[&network.name, &attachment.container, &attachment.ifname]).0;
    hash.iter().fold("pv".to_owned(), |name, byte| format!("{name}{byte:02x}"))
}

/// Writes a setting of the calling thread's network namespace. Where the kernel has no IPv6 there is nothing to set.
fn sysctl(name: &str, value: &str) -> Result<(), NetError> {
    match fs::write(format!("/proc/sys/net/{name}"), value) {
        Err(e)
            if e.kind() == io::ErrorKind::NotFound && !fs::exists("/proc/sys/net/ipv6").unwrap_or(true) =>
        {
            Ok(())
        }
        other => other.map_err(|e| NetError::io(format!("cannot set net/{name} to {value}"), e)),
    }
}
