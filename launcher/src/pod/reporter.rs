//! Keeps the report: asks the hypervisor whenever something may have changed, and joins what the others found.
//!
//! Nothing is taken from events but that something happened: the state is asked for anew, so a lost event loses
//! nothing that the next one, or the next connection, does not bring.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use podvirt_proto::domain::{Status, reason};
use tokio::time::sleep;
use tracing::{debug, info};

use super::freeze::Guest as _;
use super::report::{self, Seen, Shape};
use super::shared::Shared;
use super::{agent, credentials, io_error, link};
use crate::domain::schema::Domain as Xml;
use crate::domain::{AGENT_CHANNEL, name_of};
use crate::hypervisor::{DiskError, DomainStatus, Hypervisor, HypervisorError};
use crate::life::machine::Word;

/// The state is asked for again after this time, whatever happened.
const RECHECK: Duration = Duration::from_secs(15);

/// Runs until it is aborted.
pub(super) async fn run(shared: Arc<Shared>) {
    let mut view = shared.view.subscribe();
    let mut facts = shared.facts.subscribe();
    let mut agent = shared.agent.subscribe();
    let mut links = shared.links.subscribe();
    let mut word = shared.word.subscribe();
    let mut seen = Seen::default();
    let mut reboots = 0;
    let agent_poll = agent::poll(&shared);
    let link_watch = link::watch(&shared);
    let credentials_poll = credentials::poll(&shared);
    let io_error_poll = io_error::poll(&shared);
    tokio::pin!(agent_poll, link_watch, credentials_poll, io_error_poll);
    loop {
        let rebooted = view.borrow_and_update().reboots;
        if std::mem::replace(&mut reboots, rebooted) != rebooted {
            // No file system stays frozen in a kernel that starts anew.
            shared.set_frozen(false);
        }
        match shared.call(look).await {
            Ok(look) => {
                seen.domain = look.domain;
                // While the machine is on trial, QEMU has forgotten what had failed.
                if look.disk_errors.is_some() || !facts.borrow().on_trial {
                    seen.disk_errors = look.disk_errors.unwrap_or_default();
                }
                // A domain that is going down has no XML to speak of: what was known stays.
                if let Some(shape) = look.xml {
                    seen.agent_connected = shape.agent_connected;
                    seen.shape = shape;
                }
            }
            Err(HypervisorError::NotRunning(_)) => debug!("no hypervisor to ask"),
            // The link is down or about to be: what was known last holds.
            Err(error) => debug!(%error, "the hypervisor does not tell the machine's state"),
        }
        shared.agent_connected.send_if_modified(|connected| {
            let changed = *connected != seen.agent_connected;
            *connected = seen.agent_connected;
            changed
        });
        seen.agent.clone_from(&agent.borrow_and_update());
        seen.links.clone_from(&links.borrow_and_update());
        seen.promised = *word.borrow_and_update() == Word::Awaited;
        let known = facts.borrow_and_update().clone();
        publish(&shared, &known, &seen);
        tokio::select! {
            _ = view.changed() => {}
            _ = facts.changed() => {}
            _ = agent.changed() => {}
            _ = links.changed() => {}
            _ = word.changed() => {}
            () = sleep(RECHECK) => {}
            () = &mut agent_poll => {}
            () = &mut link_watch => {}
            () = &mut credentials_poll => {}
            () = &mut io_error_poll => {}
        }
    }
}

fn publish(shared: &Shared, facts: &super::shared::Facts, seen: &Seen) {
    shared.report.send_if_modified(|present| {
        let Some(next) = report::next(present, facts, seen, report::now()) else { return false };
        if next.status != present.status || next.reason != present.reason {
            info!(status = ?next.status, reason = next.reason, "the machine is reported");
            for_users(shared, next.status, &next.reason);
        }
        *present = next;
        true
    });
}

/// Tells the VMI's user of states that were not asked for.
fn for_users(shared: &Shared, status: Status, why: &str) {
    match (status, why) {
        (Status::Paused, reason::CRASHED) | (Status::Crashed, reason::PANICKED) => {
            shared.event("Warning", "GuestPanicked", "the guest's kernel told that it panicked");
        }
        (Status::Crashed, _) => shared.event("Warning", "Crashed", "QEMU ended unexpectedly"),
        _ => {}
    }
}

struct Look {
    domain: DomainStatus,
    xml: Option<Shape>,
    /// Disks that have stopped the machine, by volume, if it is stopped.
    disk_errors: Option<BTreeMap<String, DiskError>>,
}

fn look(hypervisor: &dyn Hypervisor) -> Result<Look, HypervisorError> {
    let domain = hypervisor.status()?;
    let xml = match domain.status {
        status if !status.is_active() => None,
        Status::Shutdown => None,
        _ => hypervisor.xml().ok().and_then(|xml| Xml::from_xml(&xml).ok()),
    };
    let is_stopped = domain == DomainStatus { status: Status::Paused, reason: reason::IO_ERROR };
    let by_volume = |(alias, error): (String, DiskError)| Some((name_of(&alias)?.to_owned(), error));
    let disk_errors = is_stopped.then(|| {
        let all = hypervisor.disk_errors().unwrap_or_else(|error| {
            debug!(%error, "the hypervisor does not tell which disks have failed");
            BTreeMap::new()
        });
        all.into_iter().filter_map(by_volume).collect()
    });
    Ok(Look { domain, xml: xml.map(shape), disk_errors })
}

fn shape(xml: Xml) -> Shape {
    let channel = xml.devices.channels.iter().find(|c| c.target.name == AGENT_CHANNEL);
    let agent_connected = channel.and_then(|c| c.target.state.as_deref()) == Some("connected");
    // A drive without a medium has no source.
    let tracked = xml.devices.disks.iter().filter(|disk| disk.is_tracked());
    let tracked = tracked.filter_map(|disk| Some(name_of(&disk.alias.name)?.to_owned())).collect();
    let disks = xml.devices.disks.into_iter().filter(|disk| disk.source.path().is_some());
    let disks = disks.filter_map(|disk| Some((name_of(&disk.alias.name)?.to_owned(), disk.target.dev)));
    Shape {
        machine: Some(xml.os.kind.machine),
        memory_kib: xml.current_memory.filter(|memory| memory.unit == "KiB").map(|memory| memory.amount),
        disks: disks.collect(),
        tracked,
        agent_connected,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hypervisors_xml_tells_memory_and_places_of_disks() {
        let xml = Xml::from_xml(
            "<domain type='kvm'><name>n</name><memory unit='KiB'>65536</memory>\
             <currentMemory unit='KiB'>32768</currentMemory><os><type machine='pc-q35-10.1'>hvm</type></os><devices>\
             <disk type='file' device='disk'><source file='/root.qcow2'/><target dev='vda' bus='virtio'/>\
             <alias name='ua-root'/></disk>\
             <disk type='file' device='disk'><source file='/data.qcow2'><dataStore type='file'><format type='raw'/>\
             <source file='/data.img'/></dataStore></source><target dev='vdb' bus='virtio'/><alias name='ua-data'/></disk>\
             <disk type='file' device='cdrom'><target dev='sda' bus='sata'/><alias name='ua-empty'/></disk>\
             <channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0' state='connected'/></channel>\
             </devices></domain>",
        );
        let expected = Shape {
            machine: Some("pc-q35-10.1".into()),
            memory_kib: Some(32768),
            disks: [("root".to_owned(), "vda".to_owned()), ("data".to_owned(), "vdb".to_owned())].into(),
            tracked: ["data".to_owned()].into(),
            agent_connected: true,
        };
        assert_eq!(shape(xml.unwrap()), expected);
    }
}
