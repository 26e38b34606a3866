//! The switch-over: an interface that was silent speaks, and tells where its addresses are now.

use std::fs::File;
use std::net::IpAddr;

use futures::TryStreamExt;
use netlink_packet_route::link::{LinkAttribute, LinkMessage};
use netlink_packet_route::neighbour::{NeighbourMessage, NeighbourState};
use podvirt_api::mac::MacAddr;
use rtnetlink::Handle;

use super::{NetError, announce, attach, depart, netns, silence};

/// What was activated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Activated {
    /// Whether the interface was silent until now.
    pub was_silent: bool,
    /// The MAC address that was announced.
    pub mac: MacAddr,
    /// The addresses that were announced.
    pub addresses: Vec<IpAddr>,
}

/// Ends the silence of `interface` in the namespace `pod`, and announces its addresses with `mac`, the guest's, or
/// the interface's own where the guest has none of its own. It may be called again at any time.
///
/// # Errors
/// There is no such namespace or interface; the kernel refuses.
pub fn activate(pod: &File, interface: &str, mac: Option<MacAddr>) -> Result<Activated, NetError> {
    netns::inside(Some(pod), |handle| async move {
        let link = attach::required(&handle, interface, "in the pod").await?;
        let index = link.header.index;
        let addresses: Vec<IpAddr> =
            attach::addresses(&handle, index).await?.iter().map(ipnet::IpNet::addr).filter(global).collect();
        let no_mac = || NetError::Changed(format!("the interface {interface:?} has no MAC address"));
        let mac = mac.or_else(|| attach::mac_of(&link)).ok_or_else(no_mac)?;
        // Nothing that can fail for long stands before this.
        depart::send(&handle, index).await?;
        let was_silent = silence::lift(interface)?;
        announce::send(interface, &announce::frames(mac, &addresses))?;
        forget_unanswered(&handle, index).await?;
        Ok(Activated { was_silent, mac, addresses })
    })
}

/// Interfaces in the namespace `pod` that are silent.
///
/// # Errors
/// The kernel refuses.
pub fn silent_interfaces(pod: &File) -> Result<Vec<String>, NetError> {
    netns::inside(Some(pod), |handle| async move {
        let links = attach::links(&handle).await?;
        let mut silent = Vec::new();
        for name in links.into_iter().filter_map(name_of) {
            if silence::is_silent(&name)? {
                silent.push(name);
            }
        }
        Ok(silent)
    })
}

/// Whether an address is one that others know.
pub(super) fn global(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(_) => true,
        IpAddr::V6(a) => !a.is_unicast_link_local(),
    }
}

/// The name of an interface.
pub(super) fn name_of(link: LinkMessage) -> Option<String> {
    link.attributes.into_iter().find_map(|attribute| match attribute {
        LinkAttribute::IfName(name) => Some(name),
        _ => None,
    })
}

/// Announces once more what `activated` says: frames are lost, and a switch port may just have come up.
///
/// # Errors
/// As [`activate`].
pub fn announce_again(pod: &File, interface: &str, activated: &Activated) -> Result<(), NetError> {
    let frames = announce::frames(activated.mac, &activated.addresses);
    netns::inside(Some(pod), |_| async move { announce::send(interface, &frames) })
}

/// Neighbours that could not answer are asked anew at once, not after a second or more.
async fn forget_unanswered(handle: &Handle, index: u32) -> Result<(), NetError> {
    let neighbours: Vec<NeighbourMessage> = handle
        .neighbours()
        .get()
        .execute()
        .try_collect()
        .await
        .map_err(NetError::netlink("list neighbours"))?;
    let unanswered = |n: &NeighbourMessage| {
        n.header.ifindex == index
            && matches!(
                n.header.state,
                NeighbourState::Incomplete | NeighbourState::Failed | NeighbourState::Probe
            )
    };
    for neighbour in neighbours.into_iter().filter(unanswered) {
        match handle.neighbours().del(neighbour).execute().await {
            // It has changed meanwhile, or is gone.
            Ok(()) | Err(rtnetlink::Error::NetlinkError(_)) => {}
            Err(e) => return Err(NetError::netlink("forget a neighbour")(e)),
        }
    }
    Ok(())
}
