//! Free PCI slots, for devices that are plugged while a machine runs.
//!
//! On the machine type q35 a device is plugged into a PCI Express root port of its own, and ports do not come while a
//! machine runs. libvirt makes as many as the devices need that a machine starts with. So a machine gets [`SPARE`] more,
//! behind those: every device stays at the address at which the guest has known it.

use crate::domain::schema::Domain;

/// Devices that can be plugged while the machine runs.
pub(super) const SPARE: usize = 4;

const ROOT_PORT: &str = "pcie-root-port";
const END: &str = "</devices>";

/// `xml`, which libvirt has filled in, with as many root ports as are missing; none where it needs none, or has none.
pub(super) fn with_spare(xml: &str) -> Option<String> {
    let domain = Domain::from_xml(xml).ok()?;
    let pci: Vec<_> = domain.devices.controllers.iter().filter(|c| c.kind == "pci").collect();
    if !pci.iter().any(|c| c.model.as_deref() == Some("pcie-root")) {
        return None;
    }
    let last = pci.iter().filter_map(|c| c.index.parse::<usize>().ok()).max()?;
    let missing = SPARE.saturating_sub(free(xml)?);
    let end = xml.rfind(END)?;
    let ports: String = (1..=missing)
        .map(|n| format!("<controller type='pci' index='{}' model='{ROOT_PORT}'/>", last + n))
        .collect();
    (missing > 0).then(|| format!("{}{ports}{}", &xml[..end], &xml[end..]))
}

/// How many root ports of the machine have no device; none where its XML cannot be read.
pub(super) fn free(xml: &str) -> Option<usize> {
    let domain = Domain::from_xml(xml).ok()?;
    let ports = domain.devices.controllers.iter().filter(|c| c.model.as_deref() == Some(ROOT_PORT));
    Some(ports.filter(|port| port.index.parse().is_ok_and(|bus| !is_taken(xml, bus))).count())
}

/// Whether a device is on this bus. Devices of every kind have the same word for it, so that none need be known here.
fn is_taken(xml: &str, bus: u32) -> bool {
    xml.contains(&format!("bus='0x{bus:02x}'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine as libvirt fills it in: a port for the network card, one for the disk.
    fn machine(more: &str) -> String {
        format!(
            "<domain type='kvm'><name>vm</name><devices>\
             <controller type='pci' index='0' model='pcie-root'/>\
             <controller type='pci' index='1' model='pcie-root-port'><address type='pci' domain='0x0000' bus='0x00' slot='0x02' function='0x0'/></controller>\
             <controller type='pci' index='2' model='pcie-root-port'><address type='pci' domain='0x0000' bus='0x00' slot='0x02' function='0x1'/></controller>\
             <interface type='ethernet'><address type='pci' domain='0x0000' bus='0x01' slot='0x00' function='0x0'/></interface>\
             {more}</devices></domain>"
        )
    }

    #[test]
    fn ports_are_added_behind_those_that_are_there() {
        let disk = "<disk type='file'><address type='pci' domain='0x0000' bus='0x02' slot='0x00' function='0x0'/></disk>";
        let full = machine(disk);
        assert_eq!(free(&full), Some(0));
        let more = with_spare(&full).unwrap();
        assert_eq!(free(&more), Some(SPARE));
        let added = Domain::from_xml(&more).unwrap().devices.controllers;
        let indices: Vec<&str> = added.iter().map(|c| c.index.as_str()).collect();
        assert_eq!(indices, ["0", "1", "2", "3", "4", "5", "6"]);
        assert!(
            more.contains(disk) && with_spare(&more).is_none(),
            "nothing else changes, and once is enough"
        );

        let one_free = machine("");
        assert_eq!(free(&one_free), Some(1));
        assert_eq!(free(&with_spare(&one_free).unwrap()), Some(SPARE));
    }

    #[test]
    fn a_machine_without_pci_express_is_left_alone() {
        assert_eq!(with_spare("<domain type='test'><name>vm</name><devices></devices></domain>"), None);
        let old = machine("").replace("model='pcie-root'", "model='pci-root'");
        assert_eq!(with_spare(&old), None);
        assert_eq!(with_spare("no XML"), None);
    }
}
