//! What a namespace has, and the steps of a plan carried out in it: rtnetlink, `/proc/sys/net` and the tap's ioctls, by a
//! thread that is in the namespace.

use std::io;
use std::net::{IpAddr, Ipv4Addr};

use futures::TryStreamExt;
use ipnet::{IpNet, Ipv4Net};
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use netlink_packet_route::link::{
    BridgeStpState, InfoBridgePort, InfoData, InfoKind, InfoMacVlan, InfoPortData, LinkAttribute, LinkFlags,
    LinkInfo, LinkMessage, MacVlanMode,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteScope, RouteType,
};
use podvirt_api::mac::MacAddr;
use podvirt_cni::net::NetError;
use rtnetlink::packet_core::Nla as _;
use rtnetlink::{Handle, LinkBridge, LinkBridgePort, LinkUnspec, RouteMessageBuilder};

use super::plan::{Kind, Link, State, Step};
use super::replace::Way;
use super::{Unplugged, nft, tap};

/// Attribute of a tap device: whether it has several queues (`IFLA_TUN_MULTI_QUEUE`).
const TUN_MULTI_QUEUE: u16 = 7;

fn io_error(what: String) -> impl FnOnce(io::Error) -> NetError {
    move |source| NetError::Io { what, source }
}

fn netlink(what: String) -> impl FnOnce(rtnetlink::Error) -> NetError {
    move |source| NetError::Netlink { what, source }
}

/// What the calling thread's namespace has of these interfaces and settings; `handle` speaks of the same.
///
/// # Errors
/// The kernel does not tell.
pub(super) async fn read(
    handle: &Handle,
    interfaces: &[&str],
    settings: impl IntoIterator<Item = String>,
) -> Result<State, NetError> {
    let all: Vec<LinkMessage> =
        handle.link().get().execute().try_collect().await.map_err(netlink("list interfaces".into()))?;
    let addressed: Vec<AddressMessage> =
        handle.address().get().execute().try_collect().await.map_err(netlink("list addresses".into()))?;
    let mut state = State::default();
    for message in all {
        let Some(name) = name_of(&message) else { continue };
        if interfaces.contains(&name.as_str()) {
            let of_it = addressed.iter().filter(|a| a.header.index == message.header.index);
            let nets: Vec<IpNet> = of_it.clone().filter_map(net).collect();
            state.links.insert(name.clone(), link(&message, of_it.count() > 0));
            state.nets.extend(nets.into_iter().map(|net| (name.clone(), net)));
        }
    }
    let routes: Vec<RouteMessage> = handle
        .route()
        .get(RouteMessageBuilder::<Ipv4Addr>::new().build())
        .execute()
        .try_collect()
        .await
        .map_err(netlink("list routes".into()))?;
    for (index, way) in routes.iter().filter_map(way) {
        let of_it = state.links.iter().find(|(_, link)| link.index == index).map(|(name, _)| name.clone());
        state.ways.extend(of_it.map(|name| (name, way)));
    }
    for key in settings {
        match std::fs::read_to_string(path_of(&key)) {
            Ok(value) => drop(state.settings.insert(key, value.trim().to_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(io_error(format!("cannot read net/{key}"))(error)),
        }
    }
    Ok(state)
}

/// The address itself: where there are two, the other is the peer's.
fn net(message: &AddressMessage) -> Option<IpNet> {
    let find = |wanted: fn(&AddressAttribute) -> Option<IpAddr>| message.attributes.iter().find_map(wanted);
    let local = find(|attribute| match attribute {
        AddressAttribute::Local(address) => Some(*address),
        _ => None,
    });
    let address = local.or_else(|| {
        find(|attribute| match attribute {
            AddressAttribute::Address(address) => Some(*address),
            _ => None,
        })
    });
    IpNet::new(address?, message.header.prefix_len).ok()
}

/// A route of the main table by one interface, with its number.
fn way(message: &RouteMessage) -> Option<(u32, Way)> {
    if message.header.kind != RouteType::Unicast || message.header.table != RouteHeader::RT_TABLE_MAIN {
        return None;
    }
    let (mut to, mut via, mut interface, mut metric) = (Ipv4Addr::UNSPECIFIED, None, None, 0);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(RouteAddress::Inet(address)) => to = *address,
            RouteAttribute::Gateway(RouteAddress::Inet(address)) => via = Some(*address),
            RouteAttribute::Oif(index) => interface = Some(*index),
            RouteAttribute::Priority(priority) => metric = *priority,
            _ => {}
        }
    }
    let to = Ipv4Net::new(to, message.header.destination_prefix_length).ok()?;
    Some((interface?, Way { to, via, metric }))
}

/// Which of the interfaces that were made for `one` are in the calling thread's namespace.
///
/// # Errors
/// The kernel does not tell.
pub(super) async fn made(handle: &Handle, one: &Unplugged) -> Result<Vec<String>, NetError> {
    let all: Vec<LinkMessage> =
        handle.link().get().execute().try_collect().await.map_err(netlink("list interfaces".into()))?;
    let there = |name: &String, fits: fn(Kind) -> bool| {
        let mut messages = all.iter().filter(|message| name_of(message) == Some(name));
        messages.any(|message| fits(link(message, false).kind)).then(|| name.clone())
    };
    let taps = one.taps.iter().filter_map(|name| there(name, |kind| matches!(kind, Kind::Tap { .. })));
    Ok(taps.chain(one.bridges.iter().filter_map(|name| there(name, |kind| kind == Kind::Bridge))).collect())
}

/// Removes an interface.
///
/// # Errors
/// The kernel refuses.
pub(super) async fn remove(handle: &Handle, name: &str) -> Result<(), NetError> {
    let index = index_of(handle, name).await?;
    handle.link().del(index).execute().await.map_err(netlink(format!("cannot remove {name}")))
}

fn path_of(setting: &str) -> String {
    format!("/proc/sys/net/{setting}")
}

fn name_of(message: &LinkMessage) -> Option<&String> {
    message.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::IfName(name) => Some(name),
        _ => None,
    })
}

fn link(message: &LinkMessage, addresses: bool) -> Link {
    let mut link = Link {
        index: message.header.index,
        kind: Kind::Other,
        mac: None,
        mtu: 0,
        up: message.header.flags.contains(LinkFlags::Up),
        controller: None,
        learns: None,
        addresses,
    };
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::Address(bytes) => link.mac = bytes.first_chunk::<6>().map(|bytes| MacAddr(*bytes)),
            LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
            LinkAttribute::Controller(index) => link.controller = Some(*index).filter(|index| *index != 0),
            LinkAttribute::LinkInfo(infos) => {
                link.kind = kind(infos);
                link.learns = infos.iter().find_map(learns);
            }
            _ => {}
        }
    }
    link
}

fn kind(infos: &[LinkInfo]) -> Kind {
    let Some(kind) = infos.iter().find_map(|info| match info {
        LinkInfo::Kind(kind) => Some(kind),
        _ => None,
    }) else {
        return Kind::Other;
    };
    let has = |matches: fn(&InfoData) -> bool| {
        infos.iter().any(|info| matches!(info, LinkInfo::Data(data) if matches(data)))
    };
    match kind {
        InfoKind::Bridge => Kind::Bridge,
        InfoKind::Tun => Kind::Tap {
            several: has(|data| match data {
                // The crate knows no attribute of it by name.
                InfoData::Tun(attributes) => attributes.iter().any(|attribute| {
                    let mut value = vec![0; attribute.value_len()];
                    attribute.emit_value(&mut value);
                    attribute.kind() == TUN_MULTI_QUEUE && value.iter().any(|byte| *byte != 0)
                }),
                _ => false,
            }),
        },
        InfoKind::MacVlan => {
            let alone = has(|data| match data {
                InfoData::MacVlan(infos) => infos.contains(&InfoMacVlan::Mode(MacVlanMode::Passthrough)),
                _ => false,
            });
            if alone { Kind::Passthru } else { Kind::Filtered }
        }
        InfoKind::IpVlan => Kind::Filtered,
        _ => Kind::Other,
    }
}

fn learns(info: &LinkInfo) -> Option<bool> {
    let LinkInfo::PortData(InfoPortData::BridgePort(port)) = info else { return None };
    port.iter().find_map(|info| match info {
        InfoBridgePort::Learning(learns) => Some(*learns),
        _ => None,
    })
}

/// Carries a step out.
///
/// # Errors
/// The kernel refuses.
pub(super) async fn apply(handle: &Handle, step: &Step) -> Result<(), NetError> {
    let change = LinkUnspec::new_with_name;
    let links = handle.link();
    let (what, message) = match step {
        Step::Bridge(name, mac) => {
            let made = LinkBridge::new(name)
                .down()
                .address(mac.0.to_vec())
                .stp_state(BridgeStpState::Disabled)
                .mcast_snooping(false);
            let what = format!("cannot make the bridge {name}");
            return links.add(made.build()).execute().await.map_err(netlink(what));
        }
        Step::Tap(name, several) => {
            let what = format!("cannot make the tap device {name} by /dev/net/tun");
            return tap::make(name, *several, super::OWNER).map_err(io_error(what));
        }
        Step::Set(key, value) => {
            let what = format!("cannot set net/{key} to {value}");
            return std::fs::write(path_of(key), value).map_err(io_error(what));
        }
        Step::Bare(name) => return bare(handle, name).await,
        Step::Way(name, way) => {
            let index = index_of(handle, name).await?;
            let mut route = RouteMessageBuilder::<Ipv4Addr>::new()
                .destination_prefix(way.to.addr(), way.to.prefix_len())
                .output_interface(index)
                .priority(way.metric);
            route = match way.via {
                // Whether it is on the link the network has decided.
                Some(via) => route.gateway(via).onlink(),
                None => route.scope(RouteScope::Link),
            };
            let what = format!("cannot keep the route to {} by {name}", way.to);
            return handle.route().add(route.build()).execute().await.map_err(netlink(what));
        }
        Step::Net(name, net) => {
            let index = index_of(handle, name).await?;
            let mut request = handle.address().add(index, net.addr(), net.prefix_len());
            if net.addr().is_ipv6() {
                // There is one neighbour, whose addresses are known.
                request.message_mut().attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
            }
            return request.execute().await.map_err(netlink(format!("cannot give {name} the address {net}")));
        }
        Step::Rules(rules) => {
            return nft::run(rules).map_err(io_error("cannot set the rules of nftables".into()));
        }
        Step::Unlearn(name) => {
            let index = index_of(handle, name).await?;
            let what = format!("cannot keep the bridge from learning of {name}");
            let port = LinkBridgePort::new(index).learning(false).build();
            return links.set_port(port).execute().await.map_err(netlink(what));
        }
        Step::Join(name, bridge) => {
            let index = index_of(handle, bridge).await?;
            (format!("cannot make {name} a port of {bridge}"), change(name).controller(index))
        }
        Step::Down(name) => (format!("cannot take {name} down"), change(name).down()),
        Step::Up(name) => (format!("cannot take {name} up"), change(name).up()),
        Step::Address(name, mac) => {
            (format!("cannot give {name} the MAC address {mac}"), change(name).address(mac.0.to_vec()))
        }
        Step::Mtu(name, mtu) => (format!("cannot set the MTU of {name} to {mtu}"), change(name).mtu(*mtu)),
    };
    links.set(message.build()).execute().await.map_err(netlink(what))
}

async fn index_of(handle: &Handle, name: &str) -> Result<u32, NetError> {
    let found = handle.link().get().match_name(name.to_owned()).execute().try_next().await;
    let found = found.map_err(netlink(format!("look for the interface {name}")))?;
    let missing = || NetError::Missing { name: name.to_owned(), place: "in the pod" };
    Ok(found.ok_or_else(missing)?.header.index)
}

/// Removes the addresses of an interface. Its routes go with them.
async fn bare(handle: &Handle, name: &str) -> Result<(), NetError> {
    let index = index_of(handle, name).await?;
    let there: Vec<AddressMessage> = handle
        .address()
        .get()
        .set_link_index_filter(index)
        .execute()
        .try_collect()
        .await
        .map_err(netlink(format!("list the addresses of {name}")))?;
    // Those of IPv6 may have gone with the setting before.
    for address in there.into_iter().filter(|address| address.header.index == index) {
        let removed = handle.address().del(address).execute().await;
        removed.map_err(netlink(format!("cannot remove an address of {name}")))?;
    }
    Ok(())
}

/// Names of the interfaces of the calling thread's namespace with what they are, for tests.
#[cfg(test)]
pub(super) async fn all(handle: &Handle) -> std::collections::BTreeMap<String, Link> {
    let all: Vec<LinkMessage> = handle.link().get().execute().try_collect().await.unwrap();
    all.iter().filter_map(|message| Some((name_of(message)?.clone(), link(message, false)))).collect()
}
