//! TCP connections of pods whose machines move: the privileged side of their repair.
//!
//! # Theory of operation
//!
//! A network backend takes the sockets of its guest's connections apart at the source and puts them together at the
//! target, all but one step without privilege: TCP_REPAIR itself takes CAP_NET_ADMIN over the pod's network namespace.
//! While a migration lasts, on both nodes, this process offers that step to the pod's backends. They listen, it connects
//! ([`podvirt_proto::repair`]), over netd's `.move` and over passt's `.repair` alike, and again when a backend starts anew.
//!
//! What is asked for is done to sockets that the backend sends, and to nothing else: each must be a TCP socket of the
//! pod's own network namespace, by the namespace's cookie. A pod that sends others gets EPERM for them. So a pod can do no
//! more to its own connections than break them, which it can anyway.
//!
//! At the source a socket is frozen only if the target's pod has its address. The others cannot go on there: the backend
//! ends them while it still can tell their peers.
//!
//! The first request to freeze makes the source silent, as far as its addresses are the target's as well ([`depart`]); a
//! request to thaw, or the migration's failure, has them heard again.
//!
//! For connections that the pod accepted an entry of connection tracking is made before repair ends: the first packet
//! comes from the pod, and rules of a mesh would lead it astray as that of a new connection.
//!
//! Where a machine comes to, the first request to release connections, which a backend makes without any as well, makes
//! the pod's addresses speak before it is carried out ([`arrive`]). A pod may make it too early; the address is its
//! machine's own, and so is the harm.
//!
//! An [`Arming`] is a thread for each socket, for as long as the migration. It keeps nothing: after a restart of this
//! process repair is armed anew from the VMI's status.

mod act;
mod arrive;
mod conntrack;
mod depart;
mod namespace;
mod serve;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use futures::future::BoxFuture;
use nix::sys::eventfd::{EfdFlags, EventFd};
use podvirt_api::mac::MacAddr;
use podvirt_api::names::pod;
use podvirt_proto::repair::{PASST_SUFFIX, SUFFIX};

use crate::activate::activate;
use crate::migration::network::{Armed, Network, PodNetwork};
use crate::podnet::{self, Unplugged, Wanted};
use crate::ports::Namespace;
use crate::process::Process;
use crate::sockets::PodVolumes;
use arrive::{Arrival, Make};
use depart::{Departure, Stay};
use namespace::Inside;
use serve::{Protocol, Server};

/// Repair for the pods of this node, and [`crate::activate`] for those that machines come to.
#[derive(Clone, Debug)]
pub struct Repairs {
    volumes: PodVolumes,
}

impl Repairs {
    /// Repair for backends whose sockets are in these volumes.
    pub fn new(volumes: PodVolumes) -> Repairs {
        Repairs { volumes }
    }
}

impl Network for Repairs {
    fn make<'a>(&'a self, launcher: &'a Process, wanted: Wanted) -> BoxFuture<'a, Result<(), podnet::Error>> {
        Box::pin(async move {
            let launcher = launcher.clone();
            // It waits for threads that enter the namespace.
            let made = tokio::task::spawn_blocking(move || podnet::make(&launcher, &wanted));
            made.await.map_err(io::Error::other)?
        })
    }

    fn clear<'a>(
        &'a self,
        launcher: &'a Process,
        unplugged: Vec<Unplugged>,
    ) -> BoxFuture<'a, Result<(), podnet::Error>> {
        Box::pin(async move {
            let launcher = launcher.clone();
            let cleared = tokio::task::spawn_blocking(move || podnet::clear(&launcher, &unplugged));
            cleared.await.map_err(io::Error::other)?
        })
    }

    fn arm(&self, network: &PodNetwork) -> io::Result<Box<dyn Armed>> {
        let inside = Arc::new(Inside::of(&*namespace(network)?)?.going_to(network.to.clone()));
        let arming = Arming { stop: stop()? };
        let arrival = network.incoming.then(|| arrival(network)).transpose()?.map(Arc::new);
        let to = network.to.as_deref().filter(|_| !network.incoming);
        let departure = to.map(|to| departure(network, to)).transpose()?.map(Arc::new);
        for (index, _) in &network.interfaces {
            for (suffix, protocol) in [(SUFFIX, Protocol::Move), (PASST_SUFFIX, Protocol::Passt)] {
                let directory = self.volumes.dir(&network.pod_uid, pod::volume::NETD, "")?;
                Server {
                    directory,
                    name: format!("n{index}.sock{suffix}"),
                    protocol,
                    inside: inside.clone(),
                    arrival: arrival.clone(),
                    departure: departure.clone(),
                    stop: arming.stop.clone(),
                }
                .start()?;
            }
        }
        Ok(Box::new(arming))
    }

    fn announce<'a>(&'a self, network: &'a PodNetwork) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(async move {
            let (namespace, bridged) = (namespace(network)?, network.bridged.clone());
            let sent = tokio::task::spawn_blocking(move || podnet::announce(&namespace, &bridged));
            sent.await.map_err(io::Error::other)?.map_err(io::Error::other)
        })
    }

    fn activate<'a>(&'a self, network: &'a PodNetwork) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(async { speak(namespace(network)?, guests(network)).await })
    }
}

/// Makes the addresses of a pod speak. On the wire a guest has the MAC address of its pod's interface, but for those that
/// are bound by a bridge.
async fn speak(namespace: Arc<Namespace>, guests: BTreeMap<String, MacAddr>) -> io::Result<()> {
    activate(&namespace, &guests).await.map(drop).map_err(io::Error::other)
}

/// MAC addresses of guests that are not those of the pod's interfaces, by interface.
fn guests(network: &PodNetwork) -> BTreeMap<String, MacAddr> {
    network.bridged.iter().filter_map(|one| Some((one.pod_interface.clone(), one.mac?))).collect()
}

fn namespace(network: &PodNetwork) -> io::Result<Arc<Namespace>> {
    Namespace::of(&network.launcher).map(Arc::new).map_err(io::Error::other)
}

/// The arrival of a machine in a pod, whose network namespace is opened now: later the launcher's process may be gone,
/// and its number another process's.
fn arrival(network: &PodNetwork) -> io::Result<Arrival> {
    Ok(Arrival::new(runtime()?, speaking(namespace(network)?, guests(network))))
}

/// The departure of a machine from a pod, likewise.
fn departure(network: &PodNetwork, to: &[IpAddr]) -> io::Result<Departure> {
    let namespace = namespace(network)?;
    let pod = namespace.file()?;
    Ok(Departure::new(pod, to, Stay { make: speaking(namespace, guests(network)), runtime: runtime()? }))
}

fn speaking(namespace: Arc<Namespace>, guests: BTreeMap<String, MacAddr>) -> Make {
    Box::new(move || -> BoxFuture<'static, io::Result<()>> {
        Box::pin(speak(namespace.clone(), guests.clone()))
    })
}

fn runtime() -> io::Result<tokio::runtime::Handle> {
    tokio::runtime::Handle::try_current().map_err(io::Error::other)
}

fn stop() -> io::Result<Arc<EventFd>> {
    Ok(Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?))
}

/// Repair that is offered until this is dropped; its threads are not waited for.
#[derive(Debug)]
pub struct Arming {
    stop: Arc<EventFd>,
}

impl Armed for Arming {}

impl Drop for Arming {
    fn drop(&mut self) {
        // It can only fail when it is raised already.
        let _ = self.stop.write(1);
    }
}
