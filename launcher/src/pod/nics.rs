//! Interfaces that come and go while the machine runs.
//!
//! # Theory of operation
//!
//! The handler gives the VMI again whenever it changes, and when the pod has been attached to another network. Each time
//! the machine's interfaces are held against those of the specification:
//!
//! ```text
//! specification    machine    the pod has its tap, or its netd
//! there            lacks it   yes                               it is plugged
//! there            lacks it   no                                nothing: it comes later, or with another pod
//! absent, or gone  has it     -                                 the guest is asked to let go of it, and waited for
//! ```
//!
//! What the machine has stands in [`Facts::interfaces`](super::shared::Facts), and so in the report. A tap is made by
//! virt-handler, at any time; a netd is a container of the pod, so that only an interface for which the pod was made can
//! have one: those that [`super::prepare`] has met. A machine that comes from another node has the interfaces that it had
//! there; [`arrived`] looks which.
//!
//! A guest that does not let go within [`RELEASE`] is told as an error. The handler tries again, each time later, and the
//! next time looks first: it may have let go meanwhile.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use podvirt_api::VirtualMachineInstance;
use podvirt_api::bridge::{Bridged, bridged};
use podvirt_api::names::path;
use podvirt_api::vmi::Interface;
use quick_xml::SeError;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::described::DescribeError;
use super::prepare::{manifest_interfaces, tap};
use super::services::{self, Services};
use super::shared::{ManifestInterface, Shared};
use crate::domain::schema::Domain;
use crate::domain::{ConvertError, Tap, alias_of, plugged};
use crate::hypervisor::HypervisorError;

/// How long a guest has to let go of an interface. A kernel without ACPI's hot-plug waits 5 s before it begins.
const RELEASE: Duration = Duration::from_secs(15);
/// Between two looks at that.
const LOOK: Duration = Duration::from_millis(250);

/// What keeps an interface from coming, from going, or from being left behind.
#[derive(Debug, thiserror::Error)]
pub(super) enum NicError {
    /// With this interface.
    #[error("interface {interface}")]
    Interface {
        /// Its name.
        interface: String,
        /// What.
        source: Obstacle,
    },
    /// Its tap, or what answers the guest there, cannot be had.
    #[error(transparent)]
    Tap(#[from] anyhow::Error),
}

/// What is wrong with one interface.
#[derive(Debug, thiserror::Error)]
pub(super) enum Obstacle {
    /// It is not known what the machine has.
    #[error(transparent)]
    Undescribed(#[from] DescribeError),
    /// The hypervisor refuses.
    #[error(transparent)]
    Refused(#[from] HypervisorError),
    /// The device cannot be made.
    #[error(transparent)]
    Device(#[from] ConvertError),
    /// The device cannot be described.
    #[error(transparent)]
    Unwritten(#[from] SeError),
    /// The guest was asked, and keeps it.
    #[error("the guest has not let go of it within {} s", RELEASE.as_secs())]
    Kept,
    /// The machine would leave without it.
    #[error("it is unplugged, and the guest has not let go of it yet")]
    Leaving,
}

impl NicError {
    fn of<E: Into<Obstacle>>(interface: &str) -> impl FnOnce(E) -> NicError {
        move |error| NicError::Interface { interface: interface.to_owned(), source: error.into() }
    }
}

/// Brings the running machine's interfaces to those of `vmi`, as far as the pod has what they need.
///
/// # Errors
///
/// The hypervisor refuses, or the guest does not let go; the interface is named. What was done stays.
pub(super) async fn change(shared: &Arc<Shared>, vmi: &VirtualMachineInstance) -> Result<(), NicError> {
    let known = shared.facts.borrow().interfaces.clone();
    for name in superfluous(&known, vmi) {
        unplug(shared, &name).await.map_err(NicError::of(&name))?;
        shared.services.send_modify(|services| drop(services.remove(&name)));
        note(shared, &name, None);
    }
    let taps: Vec<Bridged> = bridged(vmi);
    for (index, interface) in missing(&known, vmi) {
        let name = &interface.name;
        let (mut sockets, mut tap_of) = (BTreeMap::new(), BTreeMap::<String, Tap>::new());
        if vmi.by_netd(interface) {
            sockets.insert(name.clone(), path::netd_socket(index));
        } else {
            let Some(wanted) = taps.iter().find(|tap| tap.name == *name && is_there(tap)) else { continue };
            let (_, made) = tap(wanted.clone())?;
            if let Some(place) = services::told(wanted.clone()) {
                Services::start(shared, vmi, &place).await?;
            }
            tap_of.insert(name.clone(), made);
        }
        let device = plugged(vmi, interface, &sockets, &tap_of).map_err(NicError::of(name))?;
        let xml = device.to_xml().map_err(NicError::of(name))?;
        info!(interface = name, "the interface is plugged");
        shared.call(move |hypervisor| hypervisor.plug(&xml)).await.map_err(NicError::of(name))?;
        let new = manifest_interfaces(vmi, &tap_of).into_iter().find(|one| one.name == *name);
        note(shared, name, new);
    }
    Ok(())
}

/// Interfaces that the machine has and is not to have.
fn superfluous(known: &[ManifestInterface], vmi: &VirtualMachineInstance) -> Vec<String> {
    let wanted = |name: &str| {
        vmi.spec.domain.devices.interfaces.iter().any(|one| one.name == name && !one.is_absent())
    };
    known.iter().filter(|one| !one.unplugged && !wanted(&one.name)).map(|one| one.name.clone()).collect()
}

/// Interfaces that the machine is to have, lacks and may get in this pod, with their places.
fn missing<'a>(known: &[ManifestInterface], vmi: &'a VirtualMachineInstance) -> Vec<(usize, &'a Interface)> {
    let interfaces = vmi.spec.domain.devices.interfaces.iter().enumerate();
    let lacks = |(index, wanted): &(usize, &Interface)| {
        let here = known.iter().find(|one| one.name == wanted.name);
        let mac = wanted.mac_address.replace('-', ":").to_ascii_lowercase();
        match here {
            _ if wanted.is_absent() => false,
            Some(here) if !here.unplugged => false,
            Some(here) if vmi.by_netd(wanted) => here.by_netd && here.index == *index && here.mac == mac,
            // The netd of one that came later is in another pod.
            None if vmi.by_netd(wanted) => false,
            _ => true,
        }
    };
    interfaces.filter(lacks).collect()
}

/// Whether virt-handler has made the tap device.
fn is_there(tap: &Bridged) -> bool {
    Path::new("/sys/class/net").join(&tap.tap).exists()
}

/// Has the guest let go of an interface.
async fn unplug(shared: &Shared, name: &str) -> Result<(), Obstacle> {
    let alias = alias_of(name);
    if !has(shared, &alias).await? {
        return Ok(());
    }
    info!(interface = name, "the interface is unplugged");
    let asked = alias.clone();
    shared.call(move |hypervisor| hypervisor.unplug(&asked)).await?;
    let end = Instant::now() + RELEASE;
    while has(shared, &alias).await? {
        if Instant::now() >= end {
            return Err(Obstacle::Kept);
        }
        sleep(LOOK).await;
    }
    Ok(())
}

/// Whether the machine has an interface with this alias.
async fn has(shared: &Shared, alias: &str) -> Result<bool, DescribeError> {
    Ok(aliases(shared).await?.iter().any(|there| there == alias))
}

/// The aliases of the machine's interfaces.
async fn aliases(shared: &Shared) -> Result<Vec<String>, DescribeError> {
    let domain = shared.described().await?;
    Ok(domain.devices.interfaces.into_iter().map(|interface| interface.alias.name).collect())
}

/// Notes that the machine has an interface, or has it no more.
fn note(shared: &Shared, name: &str, new: Option<ManifestInterface>) {
    shared.facts.send_modify(|facts| match (facts.interfaces.iter_mut().find(|one| one.name == name), new) {
        (Some(present), Some(new)) => *present = new,
        (Some(present), None) => present.unplugged = true,
        (None, Some(new)) => facts.interfaces.push(new),
        (None, None) => {}
    });
}

/// Looks which interfaces a machine has that came from another node: those of its specification may be more.
pub(super) async fn arrived(shared: &Shared) {
    match aliases(shared).await {
        Ok(there) => shared.facts.send_modify(|facts| {
            for interface in &mut facts.interfaces {
                interface.unplugged = !interface.foreign && !there.contains(&alias_of(&interface.name));
            }
        }),
        Err(error) => {
            let error = &error as &dyn std::error::Error;
            warn!(error, "which interfaces the machine has is not known");
        }
    }
}

/// Whether the machine, which has the interfaces of `domain`, can leave with those of `vmi`: the other pod is made with
/// these, and lacks one that the guest has not let go of yet.
///
/// # Errors
///
/// It is named.
pub(super) fn may_leave(
    domain: &Domain,
    vmi: &podvirt_api::v1::VirtualMachineInstance,
) -> Result<(), NicError> {
    let wanted = &vmi.spec.domain.devices.interfaces;
    // A specification without any is that of a machine which got its only one by default.
    let kept = |alias: &str| {
        wanted.is_empty() || wanted.iter().any(|one| alias_of(&one.name) == alias && !one.is_absent())
    };
    match domain.devices.interfaces.iter().map(|one| &one.alias.name).find(|alias| !kept(alias)) {
        Some(alias) => Err(NicError::of(alias.strip_prefix("ua-").unwrap_or(alias))(Obstacle::Leaving)),
        None => Ok(()),
    }
}

#[cfg(test)]
#[path = "nics_tests.rs"]
mod tests;
