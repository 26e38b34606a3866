//! What the pod is: its addresses, routes, MTU and resolvers, read without privilege and kept current.
//!
//! [`read`] asks the kernel by netlink and resolv.conf for [`PodFacts`] and [`ResolvConf`]; [`build_link`] makes
//! the guest's [`Link`] of them and the configuration, a pure function; [`watch()`] does both again whenever
//! something changed and hands out the new snapshot. Everything concerns the network namespace that the calling
//! thread is in.

pub mod cpu;

mod facts;
mod link;
mod netlink;
mod resolv;
#[cfg(test)]
pub(crate) mod testns;
mod watch;

use std::path::Path;

pub use facts::{Family, PodFacts};
pub use link::{Built, LinkError, build_link};
pub use resolv::ResolvConf;
pub use watch::watch;

use crate::config::Config;
use crate::net::Link;
use crate::port::PortRange;

/// The resolver configuration of the pod.
pub const RESOLV_CONF: &str = "/etc/resolv.conf";

/// Why there is no link.
#[derive(Debug, thiserror::Error)]
pub enum PodError {
    /// There is no netlink socket.
    #[error("cannot open a netlink socket")]
    Socket(#[source] std::io::Error),
    /// The kernel refused a question.
    #[error("the kernel did not tell its {what}")]
    Netlink {
        /// What was asked for.
        what: &'static str,
        /// Its answer.
        source: Box<rtnetlink::Error>,
    },
    /// The configured interface does not exist.
    #[error("there is no interface '{0}'")]
    NoInterface(String),
    /// No interface has a default route, and none a global address.
    #[error("no interface has a default route or a global address")]
    NoDefault,
    /// The facts and the configuration give no link.
    #[error(transparent)]
    Link(#[from] LinkError),
}

/// Reads what the pod is, once, and builds the link of it.
///
/// A resolv.conf that cannot be read counts as empty. What the guest is not given stands in the log.
///
/// # Errors
///
/// [`PodError`].
pub async fn read(config: &Config, resolv_conf: &Path) -> Result<Link, PodError> {
    let (connection, handle, _) = rtnetlink::new_connection().map_err(PodError::Socket)?;
    let connection = tokio::spawn(connection);
    let facts = netlink::read(&handle, config.interface.as_deref(), &[]).await;
    connection.abort();
    let built = build_link(config, &facts?, &ResolvConf::read_or_empty(resolv_conf))?;
    built.log();
    Ok(built.link)
}

/// The range of ports that this network namespace gives to outgoing sockets.
pub fn ephemeral_ports() -> Option<PortRange> {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok()?;
    let mut words = text.split_ascii_whitespace().map(|w| w.parse().ok());
    PortRange::new(words.next()??, words.next()??)
}
