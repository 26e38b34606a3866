//! libvirt, through its C library.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::Duration;

use podvirt_proto::cmd::MAX_PICTURE;
use podvirt_proto::domain::Status;
use podvirt_proto::migration::Progress;
use podvirt_proto::stats::DomainStats;
use serde_json::{Value, json};
use virt::connect::Connect;
use virt::domain::{Domain, MigrateParameters};
use virt::error::{Error, ErrorNumber};
use virt::stream::Stream;
use virt::sys;

use super::events::{self, Subscription};
use super::state::{shutoff, status};
use super::{
    Backups, Connector, DiskError, DomainState, DomainStatus, EventSink, Hypervisor, HypervisorError, Move,
    Picture, Stopped, bulk, disk_errors, fdset, growth, job, slots, usage,
};
use crate::domain::schema::{Domain as Described, Interface, VHOST_USER};

/// Seconds between probes of a silent connection, and how many may stay without answer.
const KEEPALIVE: (i32, u32) = (5, 3);

/// libvirt's word for the SCSI bus.
const SCSI: &str = "scsi";
/// A device that is on the SCSI bus: it takes no port of its own.
const ON_SCSI: &str = "bus=\"scsi\"";

/// Opens connections to a URI such as `qemu:///session` or `test:///default`.
#[derive(Clone, Debug)]
pub struct LibvirtConnector {
    uri: String,
}

impl LibvirtConnector {
    /// A connector to `uri`.
    pub fn new(uri: impl Into<String>) -> Self {
        LibvirtConnector { uri: uri.into() }
    }
}

impl Connector for LibvirtConnector {
    fn connect(&self, name: &str, sink: EventSink) -> Result<Box<dyn Hypervisor>, HypervisorError> {
        events::start_loop()?;
        // libvirt would print each error to stderr beside returning it.
        virt::error::clear_error_callback();
        let connection = Connect::open(Some(&self.uri)).map_err(|e| refused("connect", &e))?;
        // Drivers inside the process have no connection to keep alive and refuse: no loss.
        let _ = connection.set_keep_alive(KEEPALIVE.0, KEEPALIVE.1);
        let subscription = Subscription::new(&connection, name, &sink)?;
        Ok(Box::new(Libvirt { _subscription: subscription, connection, name: name.to_owned() }))
    }
}

pub(super) struct Libvirt {
    // Before the connection: fields are dropped in order.
    _subscription: Subscription,
    connection: Connect,
    name: String,
}

fn refused(action: &'static str, error: &Error) -> HypervisorError {
    HypervisorError::Refused { action, message: error.message().to_owned() }
}

impl Libvirt {
    /// The domain, or none when there is none.
    fn find(&self) -> Result<Option<Domain>, HypervisorError> {
        match Domain::lookup_by_name(&self.connection, &self.name) {
            Ok(domain) => Ok(Some(domain)),
            Err(e) if e.code() == ErrorNumber::NoDomain => Ok(None),
            Err(e) => Err(refused("look up the domain", &e)),
        }
    }

    pub(super) fn domain(&self) -> Result<Domain, HypervisorError> {
        self.find()?.ok_or_else(|| HypervisorError::NotRunning(self.name.clone()))
    }

    /// The error of a call to `domain`: that it does not run is told apart, whatever the driver calls it.
    pub(super) fn failed(&self, domain: &Domain, action: &'static str, error: &Error) -> HypervisorError {
        if domain.is_active().unwrap_or(true) {
            refused(action, error)
        } else {
            HypervisorError::NotRunning(self.name.clone())
        }
    }
}

pub(super) fn wrong(action: &'static str, message: String) -> HypervisorError {
    HypervisorError::Refused { action, message }
}

impl Libvirt {
    /// The running domain's interface with this alias.
    fn interface(&self, alias: &str, action: &'static str) -> Result<Interface, HypervisorError> {
        let described = Described::from_xml(&self.xml()?).map_err(|e| wrong(action, e.to_string()))?;
        let found = described.devices.interfaces.into_iter().find(|i| i.alias.name == alias);
        found.ok_or_else(|| wrong(action, format!("the domain has no interface {alias}")))
    }
}

impl Hypervisor for Libvirt {
    fn state(&self) -> Result<DomainState, HypervisorError> {
        let Some(domain) = self.find()? else { return Ok(DomainState::Absent) };
        let (state, reason) = domain.get_state().map_err(|e| refused("read the domain's state", &e))?;
        Ok(match state {
            sys::VIR_DOMAIN_SHUTOFF => DomainState::Off(shutoff(reason)),
            sys::VIR_DOMAIN_CRASHED => DomainState::Off(Stopped::Crashed),
            sys::VIR_DOMAIN_PAUSED
                if matches!(
                    u32::try_from(reason),
                    Ok(sys::VIR_DOMAIN_PAUSED_MIGRATION | sys::VIR_DOMAIN_PAUSED_STARTING_UP)
                ) =>
            {
                DomainState::Moving
            }
            sys::VIR_DOMAIN_PAUSED if u32::try_from(reason) == Ok(sys::VIR_DOMAIN_PAUSED_USER) => {
                DomainState::Held
            }
            _ => DomainState::Active,
        })
    }

    fn status(&self) -> Result<DomainStatus, HypervisorError> {
        let Some(domain) = self.find()? else { return Ok(DomainStatus::default()) };
        let (state, reason) = domain.get_state().map_err(|e| refused("read the domain's state", &e))?;
        Ok(status(state, u32::try_from(reason).unwrap_or(0)))
    }

    fn start(&self, xml: &str, paused: bool) -> Result<(), HypervisorError> {
        let domain =
            Domain::define_xml(&self.connection, xml).map_err(|e| refused("define the domain", &e))?;
        let full = domain.get_xml_desc(sys::VIR_DOMAIN_XML_INACTIVE | sys::VIR_DOMAIN_XML_SECURE);
        let full = full.map_err(|e| refused("read the domain's XML", &e))?;
        let domain = match slots::with_spare(&full) {
            Some(xml) => {
                Domain::define_xml(&self.connection, &xml).map_err(|e| refused("define the domain", &e))?
            }
            None => domain,
        };
        let flags = if paused { sys::VIR_DOMAIN_START_PAUSED } else { 0 };
        domain.create_with_flags(flags).map_err(|e| refused("start the domain", &e))?;
        Ok(())
    }

    fn suspend(&self) -> Result<(), HypervisorError> {
        let domain = self.domain()?;
        if self.status()?.status == Status::Paused {
            return Ok(());
        }
        domain.suspend().map_err(|e| self.failed(&domain, "pause the domain", &e))?;
        Ok(())
    }

    fn disk_errors(&self) -> Result<BTreeMap<String, DiskError>, HypervisorError> {
        disk_errors::all(&self.domain()?)
    }

    fn resume(&self) -> Result<(), HypervisorError> {
        let domain = self.domain()?;
        if self.status()?.status == Status::Running {
            return Ok(());
        }
        domain.resume().map_err(|e| self.failed(&domain, "let the domain run", &e))?;
        Ok(())
    }

    fn reset(&self) -> Result<(), HypervisorError> {
        let domain = self.domain()?;
        domain.reset().map_err(|e| self.failed(&domain, "reset the domain", &e))?;
        Ok(())
    }

    fn reboot(&self) -> Result<(), HypervisorError> {
        let domain = self.domain()?;
        // libvirt tries them in its own order: the agent, if one is connected, comes first.
        let ways = sys::VIR_DOMAIN_REBOOT_GUEST_AGENT | sys::VIR_DOMAIN_REBOOT_ACPI_POWER_BTN;
        domain.reboot(ways).map_err(|e| self.failed(&domain, "reboot the domain", &e))
    }

    fn picture(&self) -> Result<Picture, HypervisorError> {
        const ACTION: &str = "take a picture of the screen";
        let domain = self.domain()?;
        let stream = Stream::new(&self.connection, 0).map_err(|e| refused(ACTION, &e))?;
        let mime = domain.screenshot(&stream, 0, 0).map_err(|e| self.failed(&domain, ACTION, &e))?;
        let (mut data, mut part) = (Vec::new(), vec![0; 64 << 10]);
        loop {
            match stream.recv(&mut part).map_err(|e| refused(ACTION, &e))? {
                0 => break,
                size => data.extend_from_slice(&part[..size]),
            }
            if data.len() > MAX_PICTURE {
                // libvirt would hold the rest of it.
                let _ = stream.abort();
                return Err(wrong(ACTION, format!("it has more than {MAX_PICTURE} bytes")));
            }
        }
        stream.finish().map_err(|e| refused(ACTION, &e))?;
        Ok(Picture { mime, data })
    }

    fn shutdown(&self) -> Result<(), HypervisorError> {
        let domain = self.domain()?;
        domain.shutdown().map_err(|e| self.failed(&domain, "shut the domain down", &e))?;
        Ok(())
    }

    fn destroy(&self) -> Result<(), HypervisorError> {
        let domain = self.domain()?;
        domain.destroy().map_err(|e| self.failed(&domain, "destroy the domain", &e))
    }

    fn undefine(&self) -> Result<(), HypervisorError> {
        const ACTION: &str = "undefine the domain";
        let domain = self.domain()?;
        let described = Described::from_xml(&self.xml()?).map_err(|e| wrong(ACTION, e.to_string()))?;
        // What firmware and TPM have kept is not libvirt's to remove; without a word on it libvirt refuses. Its test driver
        // refuses the word.
        let keeps = described.os.nvram.is_some() || !described.devices.tpms.is_empty();
        let keep = sys::VIR_DOMAIN_UNDEFINE_KEEP_NVRAM | sys::VIR_DOMAIN_UNDEFINE_KEEP_TPM;
        domain.undefine_flags(if keeps { keep } else { 0 }).map_err(|e| refused(ACTION, &e))
    }

    fn xml(&self) -> Result<String, HypervisorError> {
        let domain = self.domain()?;
        domain.get_xml_desc(0).map_err(|e| self.failed(&domain, "read the domain's XML", &e))
    }

    fn agent(&self, command: &str, timeout: Duration) -> Result<String, HypervisorError> {
        let domain = self.domain()?;
        let seconds = i32::try_from(timeout.as_secs()).unwrap_or(i32::MAX).max(1);
        domain.qemu_agent_command(command, seconds, 0).map_err(|e| {
            match (self.failed(&domain, "ask the guest agent", &e), e.code()) {
                (
                    HypervisorError::Refused { action, message },
                    ErrorNumber::AgentUnresponsive | ErrorNumber::AgentCommandTimeout,
                ) => HypervisorError::Silent { action, message },
                (other, _) => other,
            }
        })
    }

    fn migrate(&self, to: &Move) -> Result<(), HypervisorError> {
        let domain = self.domain()?;
        let mut flags = sys::VIR_MIGRATE_LIVE
            | sys::VIR_MIGRATE_PEER2PEER
            | sys::VIR_MIGRATE_PERSIST_DEST
            | sys::VIR_MIGRATE_ABORT_ON_ERROR;
        let mut parameters = MigrateParameters {
            uri: Some(to.state.clone()),
            bandwidth: (to.bandwidth_mib > 0).then_some(to.bandwidth_mib),
            ..MigrateParameters::default()
        };
        if !to.copied.is_empty() {
            // Only the topmost layer: what lies below is at the other end already.
            flags |= sys::VIR_MIGRATE_NON_SHARED_INC;
            parameters.migrate_disks.clone_from(&to.copied);
            parameters.disks_uri = Some(to.disks.clone());
        }
        parameters.dest_xml.clone_from(&to.description);
        parameters.persist_xml.clone_from(&to.description);
        if to.auto_converge {
            flags |= sys::VIR_MIGRATE_AUTO_CONVERGE;
        }
        if to.is_unsafe {
            flags |= sys::VIR_MIGRATE_UNSAFE;
        }
        if to.held {
            flags |= sys::VIR_MIGRATE_PAUSED;
        }
        domain
            .migrate_to_uri3(Some(&to.connection), parameters, flags)
            .map_err(|e| self.failed(&domain, "move the domain", &e))
    }

    fn progress(&self) -> Result<Option<Progress>, HypervisorError> {
        let domain = self.domain()?;
        job::progress(&domain).map_err(|e| self.failed(&domain, "ask for the move's progress", &e))
    }

    fn statistics(&self) -> Result<DomainStats, HypervisorError> {
        const ACTION: &str = "read the domain's statistics";
        let domain = self.domain()?;
        let failed = |error: Error| self.failed(&domain, ACTION, &error);
        let answer = bulk::statistics(&domain).map_err(failed)?;
        let described = Described::from_xml(&self.xml()?).map_err(|e| wrong(ACTION, e.to_string()))?;
        let mut stats = usage::usage(&answer, &usage::names(&described));
        stats.name = self.name.clone();
        stats.uuid = described.uuid;
        let vcpus = usize::try_from(stats.vcpus).unwrap_or(0);
        let node = self.connection.get_node_info().map_err(|e| refused(ACTION, &e))?;
        let cores = node.nodes * node.sockets * node.cores * node.threads;
        // A driver may not know it, and the numbers are of use without.
        if let Ok(map) = bulk::affinity(&domain, vcpus, usize::try_from(cores).unwrap_or(0)) {
            stats.cpu_map_set = !map.is_empty();
            stats.cpu_map = map;
        }
        Ok(stats)
    }

    fn limit_downtime(&self, limit: Duration) -> Result<(), HypervisorError> {
        let domain = self.domain()?;
        let limit = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        domain
            .migrate_set_max_downtime(limit, 0)
            .map_err(|e| self.failed(&domain, "limit the downtime", &e))?;
        Ok(())
    }

    fn abort_move(&self) -> Result<(), HypervisorError> {
        let domain = self.domain()?;
        job::abort(&domain).map_err(|e| self.failed(&domain, "abort the move", &e))
    }

    fn set_link(&self, alias: &str, up: bool) -> Result<(), HypervisorError> {
        const ACTION: &str = "change the link";
        let domain = self.domain()?;
        let mut interface = self.interface(alias, ACTION)?;
        if interface.is_vhost_user() {
            // libvirt changes nothing of such an interface while it runs; QEMU does. The link that the domain's XML names
            // stays as it was: at the next node it is the VMI's.
            let order = json!({"execute": "set_link", "arguments": {"name": alias, "up": up}});
            let told = domain.qemu_monitor_command(&order.to_string(), 0);
            let told = told.map_err(|e| self.failed(&domain, ACTION, &e))?;
            let answer: Value = serde_json::from_str(&told).map_err(|e| wrong(ACTION, e.to_string()))?;
            return match answer["error"]["desc"].as_str() {
                Some(error) => Err(wrong(ACTION, error.to_owned())),
                None => Ok(()),
            };
        }
        interface.set_link(up);
        let xml = interface.to_xml().map_err(|e| wrong(ACTION, e.to_string()))?;
        let changed = domain.update_device_flags(&xml, sys::VIR_DOMAIN_AFFECT_LIVE);
        changed.map(drop).map_err(|e| self.failed(&domain, ACTION, &e))
    }

    fn grow(&self, alias: &str, size: u64) -> Result<bool, HypervisorError> {
        let domain = self.domain()?;
        let described =
            Described::from_xml(&self.xml()?).map_err(|e| wrong("let a disk grow", e.to_string()))?;
        growth::grow(&domain, &described, alias, size)
    }

    fn plug(&self, device: &str) -> Result<(), HypervisorError> {
        const ACTION: &str = "plug the device";
        let domain = self.domain()?;
        let xml = self.xml()?;
        let described = Described::from_xml(&xml).map_err(|e| wrong(ACTION, e.to_string()))?;
        if device.contains(VHOST_USER) && described.memory_backing.is_none() {
            let message = "the machine was started without an interface that a netd serves, so that no netd can be \
                           given its memory; start it anew";
            return Err(wrong(ACTION, message.to_owned()));
        }
        let on_scsi = device.contains(ON_SCSI);
        if on_scsi && !described.devices.controllers.iter().any(|controller| controller.kind == SCSI) {
            let message = "the machine was started by an earlier release, without a controller for disks on the SCSI bus; start it \
                           anew, or plug the disk on the virtio bus";
            return Err(wrong(ACTION, message.to_owned()));
        }
        if !on_scsi && slots::free(&xml) == Some(0) {
            let message = format!(
                "the machine has no free PCI port left: {} devices can be plugged while it runs; start it anew",
                slots::SPARE
            );
            return Err(wrong(ACTION, message));
        }
        let plugged = domain.attach_device_flags(device, sys::VIR_DOMAIN_AFFECT_LIVE);
        plugged.map(drop).map_err(|e| self.failed(&domain, ACTION, &e))
    }

    fn unplug(&self, alias: &str) -> Result<(), HypervisorError> {
        const ACTION: &str = "unplug the device";
        let domain = self.domain()?;
        let described = Described::from_xml(&self.xml()?).map_err(|e| wrong(ACTION, e.to_string()))?;
        let disk = described.devices.disks.into_iter().find(|disk| disk.alias.name == alias);
        let xml = match disk {
            Some(disk) => disk.to_xml(),
            None => self.interface(alias, ACTION)?.to_xml(),
        };
        let xml = xml.map_err(|e| wrong(ACTION, e.to_string()))?;
        let unplugged = domain.detach_device_flags(&xml, sys::VIR_DOMAIN_AFFECT_LIVE);
        unplugged.map(drop).map_err(|e| self.failed(&domain, ACTION, &e))
    }

    fn xml_to_move(&self) -> Result<String, HypervisorError> {
        let domain = self.domain()?;
        let xml = domain.get_xml_desc(sys::VIR_DOMAIN_XML_MIGRATABLE);
        xml.map_err(|e| self.failed(&domain, "read the domain's XML", &e))
    }

    fn capacity(&self, alias: &str) -> Result<u64, HypervisorError> {
        const ACTION: &str = "ask how large a disk is";
        let described = Described::from_xml(&self.xml()?).map_err(|e| wrong(ACTION, e.to_string()))?;
        growth::capacity(&self.domain()?, growth::disk(&described, alias)?)
    }

    fn change_medium(&self, drive: &str) -> Result<(), HypervisorError> {
        let domain = self.domain()?;
        let changed = domain.update_device_flags(drive, sys::VIR_DOMAIN_AFFECT_LIVE);
        changed.map(drop).map_err(|e| self.failed(&domain, "change the medium in the drive", &e))
    }

    fn hand_over(&self, device: &File, set: u64) -> Result<(), HypervisorError> {
        fdset::add(&self.domain()?, device.as_fd(), set)
    }

    fn dump(&self, place: &Path) -> Result<(), HypervisorError> {
        const ACTION: &str = "dump the memory";
        let place = place.to_str().ok_or_else(|| wrong(ACTION, "the path is no text".to_owned()))?;
        let domain = self.domain()?;
        let (format, flags) = (sys::VIR_DOMAIN_CORE_DUMP_FORMAT_RAW, sys::VIR_DUMP_MEMORY_ONLY);
        let dumped = domain.core_dump_with_format(place, format, flags);
        dumped.map(drop).map_err(|e| self.failed(&domain, ACTION, &e))
    }

    fn take_back(&self, set: u64) -> Result<(), HypervisorError> {
        fdset::remove(&self.domain()?, set)
    }

    fn backups(&self) -> Result<&dyn Backups, HypervisorError> {
        Ok(self)
    }

    fn keep(&self) -> Result<(), HypervisorError> {
        let domain = self.domain()?;
        if domain.is_persistent().unwrap_or(false) {
            return Ok(());
        }
        let xml = domain
            .get_xml_desc(sys::VIR_DOMAIN_XML_INACTIVE | sys::VIR_DOMAIN_XML_SECURE)
            .map_err(|e| self.failed(&domain, "read the domain's XML", &e))?;
        Domain::define_xml(&self.connection, &xml).map_err(|e| refused("define the domain", &e))?;
        Ok(())
    }
}

#[cfg(test)]
#[path = "libvirt_tests.rs"]
mod tests;
