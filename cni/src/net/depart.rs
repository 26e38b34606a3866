//! The other side of a switch-over: what leaves is silent before it is heard elsewhere.
//!
//! A pod whose machine leaves still has the machine's addresses, and its kernel answers for them: to ARP and neighbour
//! solicitations, by retransmissions of connections that have been taken apart, by a RST to whoever meets no socket any
//! more. One such frame, and the switch looks for the machine here again.

use std::fs::File;
use std::net::IpAddr;

use super::activate::{global, name_of};
use super::{NetError, attach, netns, silence};

/// Makes the interfaces of the namespace `pod` silent whose addresses are all among `to`, where their machine goes;
/// answers their names. [`activate`](super::activate()) has them speak again, if the machine stays.
///
/// # Errors
/// There is no such namespace; the kernel refuses. What was made silent stays so.
pub fn depart(pod: &File, to: &[IpAddr]) -> Result<Vec<String>, NetError> {
    netns::inside(Some(pod), |handle| async move {
        let mut silent = Vec::new();
        for link in attach::links(&handle).await? {
            let addresses = attach::addresses(&handle, link.header.index).await?;
            let mut addresses = addresses.iter().map(ipnet::IpNet::addr).filter(global).peekable();
            let leaves = addresses.peek().is_some() && addresses.all(|address| to.contains(&address));
            let Some(name) = name_of(link).filter(|_| leaves) else { continue };
            silence::silence(&name)?;
            silent.push(name);
        }
        Ok(silent)
    })
}
