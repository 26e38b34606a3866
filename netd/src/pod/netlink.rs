//! Questions to the kernel by netlink. None needs a capability.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use futures::{Stream, TryStreamExt};
use rtnetlink::{Error, Handle, RouteMessageBuilder};

use super::{PodError, PodFacts, facts};

/// Reads the facts of the interface `wanted`, or of the one with the default route; addresses of `present` are kept as long
/// as none is better.
pub(super) async fn read(
    handle: &Handle,
    wanted: Option<&str>,
    present: &[IpAddr],
) -> Result<PodFacts, PodError> {
    let links = all("links", handle.link().get().execute()).await?;
    let addresses = all("addresses", handle.address().get().execute()).await?;
    let v4 = RouteMessageBuilder::<Ipv4Addr>::new().build();
    let mut routes = all("IPv4 routes", handle.route().get(v4).execute()).await?;
    let v6 = RouteMessageBuilder::<Ipv6Addr>::new().build();
    match all("IPv6 routes", handle.route().get(v6).execute()).await {
        Ok(v6) => routes.extend(v6),
        Err(e) if has_no_family(&e) => {}
        Err(e) => return Err(e),
    }
    let hostname = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let hostname = hostname.map(|h| h.trim().to_owned()).filter(|h| !h.is_empty());
    facts::choose(wanted, present, &links, &addresses, &routes, hostname)
}

async fn all<T>(
    what: &'static str,
    messages: impl Stream<Item = Result<T, Error>>,
) -> Result<Vec<T>, PodError> {
    messages.try_collect().await.map_err(|e| PodError::Netlink { what, source: Box::new(e) })
}

/// Whether a kernel without IPv6 said so.
fn has_no_family(error: &PodError) -> bool {
    let PodError::Netlink { source, .. } = error else { return false };
    let Error::NetlinkError(message) = source.as_ref() else { return false };
    [-libc::EAFNOSUPPORT, -libc::EOPNOTSUPP].contains(&message.raw_code())
}
