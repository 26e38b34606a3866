//! What a guest asks about its addresses, where the kernel carries its interface: DHCP, DHCPv6, router advertisements.
//!
//! virt-handler has made a tap device for it, which belongs to this process's user. The rules in the pod's network
//! namespace give to it what the guest asks and nothing else, and give to the guest what is written to it: no socket and no
//! privilege is needed, and nothing that is written reaches the pod's network. The answers are netd's
//! ([`netd::guest::Services`]), from the pod's addresses, its MTU and its resolv.conf, which are watched. They keep nothing
//! of the guest, so a guest that moved here is answered as before.
//!
//! Behind masquerade the guest's gateway is not this process but the bridge: the answers carry its addresses ([`BRIDGE_MAC`]). A
//! guest that has the pod's address by the binding `bridge`, on the pod's own network or on one of Multus with `ipam`, gets what the
//! pod's interface had there, from the interface that keeps it ([`Bridged::kept`]), the gateway too; of IPv6 it is told nothing.

use std::convert::Infallible;
use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use netd::config::Config;
use netd::guest;
use netd::net::Link;
use netd::time::Clock;
use netd::wire::MacAddr;
use podvirt_api::VirtualMachineInstance;
use podvirt_api::bridge::{Bridged, bridged};
use podvirt_api::kernel::{BRIDGE_MAC, KEPT, SERVICES, masqueraded, replaced};
use podvirt_api::names::{path, pod};
use podvirt_api::netd::NetdSpec;
use tokio::net::unix::pipe;
use tokio::sync::{oneshot, watch};
use tokio::time::{sleep, timeout};
use tracing::{Span, debug, error, info, warn};

use super::link;
use super::shared::{Links, Shared};
use crate::netd::{NetdSockets, netd_file};

/// Where the pod's resolvers are.
const RESOLV_CONF: &str = "/etc/resolv.conf";
/// How long the pod's addresses are waited for: a network may look for duplicates of an IPv6 address first.
const ADDRESS: Duration = Duration::from_secs(10);
/// Between two looks for them.
const LOOK: Duration = Duration::from_millis(200);
/// The longest frame: the kernel's largest MTU and an Ethernet header.
const FRAME: usize = 65_536 + 18;

/// The interface whose guest asks here.
#[derive(Debug)]
pub(super) struct Place {
    /// Place among the machine's interfaces.
    pub(super) index: usize,
    /// Its name.
    pub(super) name: String,
    /// The interface of the pod whose addresses and routes count.
    interface: String,
    /// The tap device by which it asks.
    tap: String,
    /// The Ethernet address of the answers, where that matters to the guest.
    mac: Option<MacAddr>,
}

/// The interfaces of `vmi` whose guest asks here.
pub(super) fn places(vmi: &VirtualMachineInstance) -> Vec<Place> {
    let masqueraded = masqueraded(vmi).map(|one| Place {
        index: one.index,
        name: one.name,
        interface: pod::PRIMARY_INTERFACE.into(),
        tap: SERVICES.into(),
        mac: Some(MacAddr(BRIDGE_MAC.0)),
    });
    let in_place = replaced(vmi).filter(|one| one.is_told).map(Place::of);
    masqueraded.into_iter().chain(in_place).chain(bridged(vmi).into_iter().filter_map(told)).collect()
}

/// An interface on a network of Multus whose guest asks here: one for which virt-handler has kept an address.
pub(super) fn told(one: Bridged) -> Option<Place> {
    (one.is_told && Path::new("/sys/class/net").join(&one.kept).exists()).then(|| Place::of(one))
}

impl Place {
    fn of(one: Bridged) -> Place {
        Place { index: one.index, name: one.name, interface: one.kept, tap: one.services, mac: None }
    }
}

/// The machine with the MAC address that virt-handler has kept for it, where it takes the pod's place on the pod's network.
///
/// # Errors
///
/// virt-handler has kept none.
pub(super) fn in_place(vmi: &VirtualMachineInstance) -> Result<VirtualMachineInstance> {
    let mut vmi = vmi.clone();
    let Some(one) = replaced(&vmi) else { return Ok(vmi) };
    let file = format!("/sys/class/net/{KEPT}/address");
    let mac =
        std::fs::read_to_string(&file).with_context(|| format!("the interface {}: {file}", one.name))?;
    if let Some(interface) = vmi.spec.domain.devices.interfaces.get_mut(one.index) {
        mac.trim().clone_into(&mut interface.mac_address);
    }
    Ok(vmi)
}

/// Answers until it is dropped; [`Shared::services`] has it.
#[derive(Debug)]
pub(super) struct Services {
    /// Its end is the thread's.
    _stop: oneshot::Sender<()>,
}

impl Services {
    /// Answers the guest of `vmi`, whose interface is `one`, on a thread of its own, until the machine or the attempt to start
    /// it has ended. The report has the pod's addresses from now on. Where it is answered already, nothing is done.
    ///
    /// # Errors
    ///
    /// The pod has no address, or the tap device cannot be opened.
    pub(super) async fn start(shared: &Arc<Shared>, vmi: &VirtualMachineInstance, one: &Place) -> Result<()> {
        if shared.services.borrow().contains_key(&one.name) {
            return Ok(());
        }
        let resolv_conf = std::fs::read_to_string(RESOLV_CONF).unwrap_or_default();
        let config = Arc::new(config(vmi, one, &resolv_conf)?);
        let what = || format!("the interface {}", one.name);
        let link = Arc::new(first_link(&config).await.with_context(what)?);
        let at = || format!("the tap device {} of {}", one.tap, what());
        let tap = netd::sys::open_tap(&one.tap).with_context(at)?;
        tell(shared, &one.name, &link);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().with_context(at)?;
        let (stop, stopped) = oneshot::channel();
        let (told, name, span) = (shared.clone(), one.name.clone(), Span::current());
        let serve = move || {
            let _named = span.enter();
            runtime.block_on(async {
                tokio::select! {
                    served = run(tap, config, link, |link| tell(&told, &name, link)) => {
                        let Err(error) = served;
                        error!(%error, "the guest's questions about its addresses are not answered any more");
                    }
                    // The machine has ended.
                    _ = stopped => {}
                }
            });
        };
        std::thread::Builder::new().name("dhcp".into()).spawn(serve).with_context(at)?;
        info!(interface = one.name, "the guest's questions about its addresses are answered here");
        shared.services.send_modify(|all| drop(all.insert(one.name.clone(), Services { _stop: stop })));
        Ok(())
    }
}

/// Answers by `tap`, with `link` and what follows it.
async fn run(
    tap: File,
    config: Arc<Config>,
    link: Arc<Link>,
    tell: impl Fn(&Link),
) -> std::io::Result<Infallible> {
    // A device without seeking as any pipe; the type wants no more.
    let (reader, writer) = (pipe::Receiver::from_file_unchecked(tap.try_clone()?)?, tap);
    let (links, seen) = watch::channel(link.clone());
    let watching = async {
        let watched = netd::pod::watch(config, RESOLV_CONF.into(), link, async |link| {
            tell(&link);
            links.send_replace(link);
        });
        if let Err(error) = watched.await {
            warn!(%error, "the pod's addresses are not watched");
        }
        std::future::pending().await
    };
    tokio::select! {
        never = watching => never,
        ended = serve(&reader, &writer, seen) => ended,
    }
}

/// What the guest is told, as its netd would be told it.
fn config(vmi: &VirtualMachineInstance, one: &Place, resolv_conf: &str) -> Result<Config> {
    let mut spec = NetdSpec::of(vmi, one.index)?;
    spec.pod_interface = Some(one.interface.clone());
    // There is no netd: nothing is opened at these.
    let (socket, control) = (path::netd_socket(one.index), path::netd_control(one.index));
    let sockets = NetdSockets { vhost_user: &socket, control: &control, steering: None, hold: None };
    let mut config = netd_file(spec, &sockets, resolv_conf, true).check()?;
    config.mac = one.mac;
    Ok(config)
}

/// The link of the pod as it is now.
async fn first_link(config: &Config) -> Result<Link> {
    let tries = async {
        loop {
            match netd::pod::read(config, Path::new(RESOLV_CONF)).await {
                Ok(link) => return link,
                Err(error) => debug!(%error, "the pod has no link yet"),
            }
            sleep(LOOK).await;
        }
    };
    match timeout(ADDRESS, tries).await {
        Ok(link) => Ok(link),
        Err(_) => Ok(netd::pod::read(config, Path::new(RESOLV_CONF)).await?),
    }
}

/// Has the report tell the pod's addresses, IPv4 first.
fn tell(shared: &Shared, name: &str, link: &Link) {
    let v4 = link.v4.iter().map(|family| family.pod.to_string());
    let addresses = v4.chain(link.v6.iter().map(|family| family.pod.to_string()));
    link::set(shared, Links::from([(name.to_owned(), addresses.collect())]));
}

/// Answers what `reader` has by `writer`, from the present link.
async fn serve(
    reader: &pipe::Receiver,
    mut writer: &File,
    mut links: watch::Receiver<Arc<Link>>,
) -> std::io::Result<Infallible> {
    let clock = Clock::new();
    let mut services = guest::Services::new();
    services.link_up(clock.now());
    let mut buffer = vec![0; FRAME];
    let mut answers = Vec::new();
    loop {
        let link = links.borrow_and_update().clone();
        let due = services.poll_at().map(|at| at.since(clock.now()));
        let timer = async {
            match due {
                Some(due) => sleep(due).await,
                None => std::future::pending().await,
            }
        };
        let changed = async {
            if links.changed().await.is_err() {
                // It is watched no more: this link holds.
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            readable = reader.readable() => {
                readable?;
                match reader.try_read(&mut buffer) {
                    Ok(length) => {
                        let frame = buffer.get(..length).unwrap_or_default();
                        let handled = services.handle(frame, &link, clock.now(), &mut answers);
                        debug!(length, ?handled, answers = answers.len(), "the guest asks");
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    // A device that is down: virt-handler takes it up.
                    Err(error) => {
                        debug!(%error, "nothing can be read from the guest");
                        sleep(LOOK).await;
                    }
                }
            }
            () = timer => services.poll(clock.now(), &link, &mut answers),
            () = changed => services.link_up(clock.now()),
        }
        for answer in answers.drain(..) {
            match writer.write(&answer) {
                Ok(_) => {}
                // The guest asks again.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => debug!(%error, "an answer was not sent"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_guest_is_told_of_the_bridge_and_of_all_that_the_manifest_adds() {
        let mut vmi = VirtualMachineInstance::from_value(json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": {"name": "web", "namespace": "shop", "annotations": {"podvirt.io/masquerade": "nftables"}},
            "spec": {
                "subdomain": "db",
                "networks": [{"name": "default", "pod": {"vmNetworkCIDR": "192.0.2.64/26"}}],
                "domain": {"devices": {"interfaces": [{
                    "name": "default", "masquerade": {}, "macAddress": "52:54:00:00:00:01",
                    "dhcpOptions": {"bootFileName": "b.efi"},
                }]}},
            },
        }))
        .unwrap();
        podvirt_api::defaults::set_defaults(&mut vmi);
        let places = places(&vmi);
        let [one] = places.as_slice() else { panic!("{places:?}") };
        let config = config(&vmi, one, "search shop.svc.cluster.local\n").unwrap();
        assert_eq!(config.mac, Some(MacAddr([2, 0, 0, 0, 0, 0])));
        assert_eq!(config.interface.as_deref(), Some("eth0"));
        let masquerade = config.masquerade;
        assert_eq!(masquerade.guest_v4.to_string(), "192.0.2.66");
        assert_eq!((masquerade.gateway_v4.to_string().as_str(), masquerade.prefix_v4), ("192.0.2.65", 26));
        assert_eq!(config.guest.fqdn.as_deref(), Some("web.db.shop.svc.cluster.local"));
        assert_eq!(config.guest.dhcp_options.len(), 1);
    }
}
