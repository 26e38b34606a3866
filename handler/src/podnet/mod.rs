//! What the network namespace of a launcher pod has to have before its machine starts.
//!
//! # Theory of operation
//!
//! An interface that is bound by a bridge makes the guest a host of its own on a network of Multus. Multus has given the
//! pod an interface there; the guest takes its place:
//!
//! ```text
//!   guest ── tap<hash> ── k6t-<hash> ── pod<hash> ── the network
//!   MAC: the guest's      no address    no address, and another MAC
//! ```
//!
//! Making these takes CAP_NET_ADMIN over the namespace, which nothing in the pod has; so this process does it, in the
//! namespace of the launcher's process, and QEMU opens the tap, which belongs to its user, without any privilege.
//!
//! A [`plan`] is a pure function: from what the namespace has ([`plan::State`]) to the list of steps that are missing
//! ([`plan::Step`]). [`apply`] reads the one and carries out the other. Nothing is remembered, so it can be done again at
//! any time: a process that died half way is followed by one that finds what is there and does the rest, and with
//! everything there nothing is done at all. It is done before each time that a launcher is given its VMI, and before a
//! launcher is made ready for a machine from another node.
//!
//! *The bridge* has two ports, and what comes in by one goes out by the other. It learns nothing: a frame of another
//! host with the guest's address, which a network that loops back may send, would teach it wrong. It neither runs the
//! spanning tree protocol nor looks into multicast. Frames to 01-80-C2-00-00-00 to -0F end at it, as at any bridge.
//!
//! *The pod* is no host of the network any more. The addresses that the pod's interface had are the guest's to have;
//! left there they would answer for it. IPv4 addresses that the network's plugin has given it are the guest's, by DHCP ([`replace`]). Neither the bridge nor its ports take IPv6 addresses, the bridge answers ARP for
//! no address of the pod's other interfaces, and what comes in by it is not for the pod ([`plan::BRIDGE_SETTINGS`]).
//!
//! *The guest's MAC address* is the guest's alone: where the pod's interface has it, that gets another one. The kernel
//! takes a frame to the address of a port for one to itself.
//!
//! *A migration.* The network may be asked to give the target's pod the guest's MAC address, since it may let pass no
//! other. From the moment in which that interface is up until it gets another address here, the kernel's own frames on it
//! draw the guest's frames to the target. So the source's handler tells the network where the guest is ([`announce()`]) when
//! the target is ready. At the switch-over QEMU tells it, from the target.
//!
//! *Unplugging.* When the guest has let go of an interface that is unplugged while the machine runs, tap and bridge are
//! taken away again. What Multus has made stays until Multus takes it away, or goes with the pod; it keeps no address.
//!
//! *Order.* The tap is made in one moment: it goes away with the descriptor that made it until it is persistent, which is
//! the last thing that is done to it. Interfaces come up last.

mod apply;
pub mod nat;
mod nft;
mod node;
pub mod plan;
#[cfg(test)]
mod pretended;
pub mod replace;
pub mod rules;
mod tap;
#[cfg(test)]
mod tests;
mod vfio;

use podvirt_api::bridge::{self, Bridged};
use podvirt_api::kernel::{self, Masqueraded};
use podvirt_api::names::pod;
use podvirt_api::plugin::Joint;
use podvirt_api::{VirtualMachineInstance, defaults, v1};
use podvirt_cni::net::{NetError, announce, netns};

use plan::Step;
use rtnetlink::Handle;

use crate::ports::Namespace;
use crate::process::Process;

/// User and group that launchers run as.
#[allow(clippy::cast_possible_truncation, reason = "a constant that fits")]
const OWNER: u32 = pod::UID as u32;

/// The namespace does not get what it has to have.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be entered, or is the node's own.
    #[error(transparent)]
    Namespace(#[from] crate::ports::Error),
    /// What is there cannot be used.
    #[error(transparent)]
    Unusable(#[from] plan::Unusable),
    /// The kernel.
    #[error(transparent)]
    Net(#[from] NetError),
    /// The launcher's `/dev/net/tun`, its files in `/dev/vfio`, or what it may lock of its memory.
    #[error(transparent)]
    Device(std::io::Error),
    /// Files or threads.
    #[error("the pod's network namespace cannot be worked in")]
    Io(#[from] std::io::Error),
}

/// What a machine has in the network namespace of its pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Its interfaces that are bound by a bridge.
    pub bridged: Vec<Bridged>,
    /// The one on the pod's network, where the kernel carries its masquerade.
    pub masqueraded: Option<Masqueraded>,
    /// The one that takes the pod's place on the pod's network.
    pub replaced: Option<Bridged>,
    /// Whether QEMU opens a tap device that a plugin's network has made.
    pub brought: bool,
    /// Bytes that QEMU locks, where the guest has devices of the node.
    pub locked: Option<u64>,
}

impl Wanted {
    /// Whether QEMU opens tap devices.
    fn has_taps(&self) -> bool {
        self.brought || !self.bridged.is_empty() || self.masqueraded.is_some() || self.replaced.is_some()
    }
}

/// The interfaces of `vmi` that are bound by a bridge. Names and addresses are those to which its launcher comes.
pub fn bridged(vmi: &v1::VirtualMachineInstance) -> Vec<Bridged> {
    wanted(vmi).bridged
}

/// What `vmi` is to have in the network namespace of its pod. Names and addresses are those to which its launcher comes.
pub fn wanted(vmi: &v1::VirtualMachineInstance) -> Wanted {
    let locked = vfio::locked(vmi);
    if !vmi.has_taps() {
        return Wanted { locked, ..Wanted::default() };
    }
    // What cannot be read the launcher refuses with its reason.
    let read =
        serde_json::to_value(vmi).ok().and_then(|value| VirtualMachineInstance::from_value(value).ok());
    read.map_or_else(Wanted::default, |mut machine| {
        // Before the defaults: without an Ethernet address of its own the guest has the pod's.
        let replaced = kernel::replaced(&machine);
        defaults::set_defaults(&mut machine);
        Wanted {
            bridged: bridge::bridged(&machine),
            masqueraded: kernel::masqueraded(&machine),
            replaced,
            brought: vmi.spec.domain.devices.interfaces.iter().any(|one| vmi.joint(one) == Joint::Tap),
            locked,
        }
    })
}

/// The same for a machine that runs, without interfaces on networks to which the pod is not attached by the status of `vmi`:
/// these come later, or with another pod.
pub fn attached(vmi: &v1::VirtualMachineInstance) -> Wanted {
    let mut wanted = wanted(vmi);
    wanted.bridged.retain(|one| crate::vm::is_attached(vmi, &one.name));
    wanted
}

/// What was made for an interface that is unplugged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unplugged {
    /// The tap devices in the pod.
    pub taps: [String; 2],
    /// The bridges in the pod.
    pub bridges: [String; 2],
}

/// What may have been made for interfaces of `vmi` that are unplugged.
pub fn unplugged(vmi: &v1::VirtualMachineInstance) -> Vec<Unplugged> {
    let interfaces = vmi.spec.domain.devices.interfaces.iter();
    let unplugged = interfaces.filter(|interface| interface.is_absent() && vmi.joint(interface).is_bridge());
    let made = |name: &str| Unplugged {
        taps: [pod::tap(name), pod::services(name)],
        bridges: [pod::bridge(name), pod::kept(name)],
    };
    unplugged.map(|one| made(&one.name)).collect()
}

/// Takes away what was made for these interfaces in the network namespace of `launcher`. What Multus has made is Multus' to
/// take away. Blocks.
///
/// # Errors
/// What is left stays; calling again does the rest.
pub fn clear(launcher: &Process, unplugged: &[Unplugged]) -> Result<(), Error> {
    if unplugged.is_empty() {
        return Ok(());
    }
    clear_in(&Namespace::of(launcher)?.file()?, unplugged)
}

fn clear_in(namespace: &std::fs::File, unplugged: &[Unplugged]) -> Result<(), Error> {
    netns::inside(Some(namespace), |handle| async move {
        for one in unplugged {
            for name in apply::made(&handle, one).await? {
                tracing::info!(name, "unplugged");
                apply::remove(&handle, &name).await?;
            }
        }
        Ok(())
    })?;
    Ok(())
}

/// Makes what a machine needs in the network namespace of `launcher`. Blocks.
///
/// # Errors
/// What was made stays; calling again does the rest.
pub fn make(launcher: &Process, wanted: &Wanted) -> Result<(), Error> {
    if *wanted == Wanted::default() {
        return Ok(());
    }
    if let Some(bytes) = wanted.locked {
        vfio::hand_over(launcher, OWNER).map_err(Error::Device)?;
        vfio::allow(launcher, bytes).map_err(Error::Device)?;
    }
    if !wanted.has_taps() {
        return Ok(());
    }
    node::hand_over(launcher, OWNER).map_err(Error::Device)?;
    let namespace = Namespace::of(launcher)?.file()?;
    make_in(&namespace, wanted)
}

/// Tells the networks that the guests are here: switches learn it from a frame of each. Blocks.
///
/// # Errors
/// An interface does not send.
pub fn announce(namespace: &Namespace, bridged: &[Bridged]) -> Result<(), Error> {
    if bridged.is_empty() {
        return Ok(());
    }
    let pod = namespace.file()?;
    netns::inside(Some(&pod), |_| async move {
        for one in bridged {
            // Of its addresses only the guest knows; where it is answers them all.
            let Some(mac) = one.mac else { continue };
            announce::send(&one.pod_interface, &announce::frames(mac, &[]))?;
        }
        Ok(())
    })?;
    Ok(())
}

fn make_in(namespace: &std::fs::File, wanted: &Wanted) -> Result<(), Error> {
    netns::inside(Some(namespace), |handle| async move {
        let networks = wanted.bridged.iter().map(|one| (one, false));
        for (one, in_place) in networks.chain(wanted.replaced.iter().map(|one| (one, true))) {
            let settings = replace::settings(one).into_iter().map(|(key, _)| key);
            let state = apply::read(&handle, &replace::interfaces(one), settings).await?;
            // A network without `ipam` leaves addresses to the guest; the pod's own network has one.
            let is_told = in_place || replace::is_addressed(&state, one);
            match if is_told { replace::plan(&state, one) } else { plan::plan(&state, one) } {
                Ok(steps) => carry_out(&handle, &one.name, &steps).await?,
                Err(unusable) => return Ok(Err(unusable)),
            }
        }
        if let Some(one) = &wanted.masqueraded {
            let settings = nat::settings().into_iter().map(|(key, _)| key);
            let state = apply::read(&handle, &nat::INTERFACES, settings).await?;
            match nat::plan(&state, one) {
                Ok(steps) => carry_out(&handle, &one.name, &steps).await?,
                Err(unusable) => return Ok(Err(unusable)),
            }
        }
        Ok(Ok(()))
    })??;
    Ok(())
}

async fn carry_out(handle: &Handle, interface: &str, steps: &[Step]) -> Result<(), NetError> {
    if !steps.is_empty() {
        tracing::info!(interface, ?steps, "joined");
    }
    for step in steps {
        apply::apply(handle, step).await?;
    }
    Ok(())
}
