//! Disks.

use std::collections::BTreeSet;
use std::path::Path;

use podvirt_api::VirtualMachineInstance;
use podvirt_api::vmi::{Disk, DiskBus, DiskErrorPolicy, DriverCache, DriverIo, TrayState};

use super::convert::ConvertError;
use super::devices::{alias, path_text, pci_address};
use super::schema as xml;
use super::threads::Own;
use super::{Blocks, Image, ImageFormat, Place};

/// Names of disks in the guest, counted by their prefix, and units of the SCSI controller.
#[derive(Default)]
pub(super) struct DiskNames {
    vd: usize,
    sd: usize,
    taken: BTreeSet<String>,
    units: BTreeSet<usize>,
}

impl DiskNames {
    /// Names and units beside those that the machine's disks have.
    pub(super) fn beside(disks: &[xml::Disk]) -> DiskNames {
        let unit = |disk: &xml::Disk| disk.address.as_ref()?.unit.parse().ok();
        let on_scsi = disks.iter().filter(|disk| disk.target.bus == DiskBus::Scsi.as_str());
        DiskNames {
            taken: disks.iter().map(|disk| disk.target.dev.clone()).collect(),
            units: on_scsi.filter_map(unit).collect(),
            ..DiskNames::default()
        }
    }

    /// The place of the next disk on the SCSI controller. libvirt itself would make another controller, in another PCI slot, for every
    /// 15 disks.
    fn unit(&mut self) -> xml::DiskAddress {
        let unit = (0..).find(|unit| !self.units.contains(unit)).unwrap_or(0);
        self.units.insert(unit);
        xml::DiskAddress {
            kind: "drive".into(),
            controller: "0".into(),
            bus: "0".into(),
            target: "0".into(),
            unit: unit.to_string(),
            ..xml::DiskAddress::default()
        }
    }

    fn next(&mut self, bus: DiskBus) -> String {
        let (prefix, count) = match bus {
            DiskBus::Virtio => ("vd", &mut self.vd),
            DiskBus::Sata | DiskBus::Scsi | DiskBus::Usb => ("sd", &mut self.sd),
        };
        loop {
            let name = format!("{prefix}{}", letters(*count));
            *count += 1;
            if !self.taken.contains(&name) {
                return name;
            }
        }
    }
}

/// a … z, aa … zz and on, as the kernel counts disks.
fn letters(mut n: usize) -> String {
    let mut reversed = Vec::new();
    loop {
        // The remainder is below 26.
        reversed.push(char::from(b'a' + u8::try_from(n % 26).unwrap_or(0)));
        if n < 26 {
            break;
        }
        n = n / 26 - 1;
    }
    reversed.iter().rev().collect()
}

/// Whether the disk is on the virtio bus, where alone disks have threads.
pub(super) fn on_virtio(disk: &Disk) -> bool {
    disk.cdrom.is_none()
        && disk.lun.is_none()
        && disk.disk.as_ref().and_then(|target| target.bus) == Some(DiskBus::Virtio)
}

fn lun_on_file(vmi: &VirtualMachineInstance, disk: &Disk) -> ConvertError {
    let index = vmi.spec.domain.devices.disks.iter().position(|other| other.name == disk.name);
    let claim = vmi.volume_of(disk).and_then(|volume| volume.claim_name());
    let on = match claim {
        Some(claim) => format!("the claim {claim} of the volume {}", disk.name),
        None => format!("the volume {}", disk.name),
    };
    ConvertError::LunOnFile { index: index.unwrap_or_default(), disk: disk.name.clone(), on }
}

/// The disk of a volume whose image this is.
pub(super) fn disk(
    vmi: &VirtualMachineInstance,
    disk: &Disk,
    image: &Image,
    names: &mut DiskNames,
    virtio: &str,
    queues: Option<u64>,
    own: Own,
) -> Result<xml::Disk, ConvertError> {
    let (device, bus, readonly, tray, pci) = match (&disk.cdrom, &disk.lun) {
        (Some(cdrom), _) => ("cdrom", cdrom.bus, true, cdrom.tray, ""),
        (None, Some(lun)) => ("lun", lun.bus, lun.readonly, None, ""),
        (None, None) => {
            let target = disk.disk.as_ref();
            let claim = vmi.volume_of(disk).and_then(|v| v.persistent_volume_claim.as_ref());
            let readonly = target.is_some_and(|t| t.readonly)
                || claim.is_some_and(|c| c.read_only == Some(true))
                || vmi.volume_of(disk).is_some_and(|v| v.downward_metrics.is_some());
            ("disk", target.and_then(|t| t.bus), readonly, None, target.map_or("", |t| &t.pci_address))
        }
    };
    let bus = bus.unwrap_or(DiskBus::Sata);
    if disk.lun.is_some() && image.place != Place::Block {
        return Err(lun_on_file(vmi, disk));
    }
    let cache = cache(disk, image)?;
    let shared = vmi.volume_of(disk).and_then(|v| v.host_disk.as_ref()).and_then(|h| h.shared);
    Ok(xml::Disk {
        kind: image.overlay.as_ref().map_or(image.place, |_| Place::File).as_str().into(),
        device: device.into(),
        model: (bus == DiskBus::Virtio).then(|| virtio.into()),
        driver: xml::DiskDriver {
            name: "qemu".into(),
            format: image.overlay.as_ref().map_or(image.format, |_| ImageFormat::Qcow2).as_str().into(),
            cache: Some(cache.as_str().into()),
            io: io(disk, image, cache).map(|i: DriverIo| i.as_str().into()),
            // A guest that is told of errors of its node's storage makes its file systems read-only.
            error_policy: Some(disk.error_policy.unwrap_or(DiskErrorPolicy::Stop).as_str().into()),
            discard: (disk.cdrom.is_none() && !image.kept).then(|| "unmap".into()),
            queues: queues.filter(|_| bus == DiskBus::Virtio),
            iothread: own.thread.filter(|_| bus == DiskBus::Virtio),
            iothreads: own.threads.filter(|_| bus == DiskBus::Virtio),
        },
        source: source_of(image)?,
        // Said in full, so that neither libvirt nor QEMU looks for it in the image.
        backing_store: Some(match &image.base {
            None => xml::BackingStore::default(),
            Some(base) => xml::BackingStore {
                kind: Some(base.place.as_str().into()),
                format: Some(xml::TypeOnly { kind: base.format.as_str().into() }),
                source: Some(source(&base.path, base.place)?),
                end: Some(xml::Flag {}),
            },
        }),
        block_io: block_io(disk, image),
        target: xml::DiskTarget {
            dev: names.next(bus),
            bus: bus.as_str().into(),
            tray: tray.map(|t: TrayState| t.as_str().into()),
        },
        serial: (!disk.serial.is_empty()).then(|| disk.serial.clone()),
        readonly: readonly.then_some(xml::Flag {}),
        shareable: (disk.shareable == Some(true) || shared == Some(true)).then_some(xml::Flag {}),
        boot: disk.boot_order.map(|order| xml::Boot { order }),
        alias: alias(&disk.name),
        address: match bus {
            DiskBus::Scsi => Some(names.unit()),
            _ => pci_address(pci).map(on_pci),
        },
    })
}

fn on_pci(address: xml::PciAddress) -> xml::DiskAddress {
    let xml::PciAddress { kind, domain, bus, slot, function } = address;
    xml::DiskAddress { kind, domain, bus, slot, function, ..xml::DiskAddress::default() }
}

/// A drive with another medium, a disk image or a device of raw content; none: it is empty.
///
/// # Errors
///
/// The path is not UTF-8.
pub fn with_medium(drive: xml::Disk, medium: Option<(&Path, Place)>) -> Result<xml::Disk, ConvertError> {
    let place = medium.map_or(Place::File, |(_, place)| place);
    let driver = xml::DiskDriver { format: ImageFormat::Raw.as_str().into(), ..drive.driver };
    Ok(xml::Disk {
        kind: place.as_str().into(),
        source: medium.map(|(path, place)| source(path, place)).transpose()?.unwrap_or_default(),
        backing_store: None,
        driver,
        ..drive
    })
}

/// The sizes that are asked for, or those that the image is read and written by.
fn block_io(disk: &Disk, image: &Image) -> Option<xml::BlockIo> {
    let size = disk.block_size.as_ref()?;
    if let Some(custom) = &size.custom {
        return Some(xml::BlockIo {
            logical: custom.logical.into(),
            physical: custom.physical.into(),
            discard: custom.discard_granularity.map(Into::into),
        });
    }
    size.match_volume.as_ref().filter(|state| state.is_on())?;
    let Blocks { logical, physical, discard } = image.blocks;
    Some(xml::BlockIo { logical, physical, discard: Some(discard) })
}

/// The image, or its overlay with the image as the data of that.
fn source_of(image: &Image) -> Result<xml::DiskSource, ConvertError> {
    let data = source(&image.path, image.place)?;
    let Some(overlay) = &image.overlay else { return Ok(data) };
    let data_store = xml::backup::DataStore {
        kind: image.place.as_str().into(),
        format: xml::TypeOnly { kind: image.format.as_str().into() },
        source: data.into(),
    };
    Ok(xml::DiskSource { data_store: Some(data_store), ..source(overlay, Place::File)? })
}

fn source(path: &Path, place: Place) -> Result<xml::DiskSource, ConvertError> {
    let path = Some(path_text(path)?);
    Ok(match place {
        Place::File => xml::DiskSource { file: path, ..Default::default() },
        Place::Block => xml::DiskSource { dev: path, ..Default::default() },
    })
}

/// The cache mode: past the node's page cache where that can be, so that the disk is the same on another node and the node's
/// memory holds nothing of it; else through it, written at once.
fn cache(disk: &Disk, image: &Image) -> Result<DriverCache, ConvertError> {
    let given = disk.cache.or((disk.shareable == Some(true)).then_some(DriverCache::None));
    match given {
        Some(cache @ (DriverCache::WriteThrough | DriverCache::WriteBack))
            if disk.shareable == Some(true) =>
        {
            Err(ConvertError::SharedCache { disk: disk.name.clone(), cache: cache.as_str() })
        }
        Some(DriverCache::None) if !image.direct => {
            let path = image.path.display().to_string();
            Err(ConvertError::NoDirectIo { disk: disk.name.clone(), path })
        }
        Some(cache) => Ok(cache),
        None if image.direct => Ok(DriverCache::None),
        None => Ok(DriverCache::WriteThrough),
    }
}

/// How input and output are done: by the kernel itself where it does not have to wait for a place to be found for what is
/// written. Past the page cache alone it can.
fn io(disk: &Disk, image: &Image, cache: DriverCache) -> Option<DriverIo> {
    disk.io.or((cache == DriverCache::None && image.allocated).then_some(DriverIo::Native))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_are_counted_as_the_kernel_does() {
        assert_eq!(letters(0), "a");
        assert_eq!(letters(25), "z");
        assert_eq!(letters(26), "aa");
        assert_eq!(letters(701), "zz");
        assert_eq!(letters(702), "aaa");
    }

    #[test]
    fn sata_scsi_and_usb_share_their_names() {
        let mut names = DiskNames::default();
        let given = [DiskBus::Sata, DiskBus::Virtio, DiskBus::Scsi, DiskBus::Usb].map(|bus| names.next(bus));
        assert_eq!(given, ["sda", "vda", "sdb", "sdc"]);
        let there = |dev: &str, bus: &str, unit: &str| {
            let address = xml::DiskAddress { unit: unit.into(), ..xml::DiskAddress::default() };
            let target = xml::DiskTarget { dev: dev.into(), bus: bus.into(), tray: None };
            xml::Disk { target, address: Some(address), ..xml::Disk::default() }
        };
        let disks =
            [("vda", "virtio", ""), ("vdc", "virtio", ""), ("sda", "sata", "0"), ("sdb", "scsi", "1")];
        let mut more = DiskNames::beside(&disks.map(|(dev, bus, unit)| there(dev, bus, unit)));
        let given = [DiskBus::Virtio, DiskBus::Virtio, DiskBus::Scsi].map(|bus| more.next(bus));
        assert_eq!(given, ["vdb", "vdd", "sdc"]);
        // What is not on the SCSI controller takes none of its units.
        assert_eq!([(); 3].map(|()| more.unit().unit), ["0", "2", "3"]);
    }

    #[test]
    fn a_lun_over_a_file_is_refused_with_its_disk_its_volume_and_its_claim() {
        let vmi = "{metadata: {name: vm}, spec: {domain: {devices: {disks: [{name: root}, {name: data, lun: {bus: scsi}}]}}, \
                   volumes: [{name: data, persistentVolumeClaim: {claimName: files}}]}}";
        let vmi: VirtualMachineInstance = serde_saphyr::from_str(vmi).unwrap();
        let of = |place| {
            let image = Image { place, ..Image::new("/d", ImageFormat::Raw) };
            let (lun, own) = (&vmi.spec.domain.devices.disks[1], Own::default());
            disk(&vmi, lun, &image, &mut DiskNames::default(), "virtio", None, own)
                .map_err(|error| error.to_string())
        };
        let told = "spec.domain.devices.disks[1].lun: the disk data is on the claim files of the volume data, which is a file here; a \
                    LUN wants a claim with volumeMode Block";
        assert_eq!(of(Place::File).unwrap_err(), told);
        of(Place::Block).unwrap();
    }

    #[test]
    fn the_page_cache_is_passed_by_where_that_can_be() {
        let of = |disk: &str, direct: bool, allocated: bool| {
            let disk: Disk = serde_saphyr::from_str(disk).unwrap();
            let image = Image { direct, allocated, ..Image::new("/d", ImageFormat::Raw) };
            let cache = cache(&disk, &image).map_err(|error| error.to_string())?;
            Ok::<_, String>((cache.as_str(), io(&disk, &image, cache).map(DriverIo::as_str)))
        };
        assert_eq!(of("{name: d}", true, false), Ok(("none", None)));
        assert_eq!(of("{name: d}", true, true), Ok(("none", Some("native"))));
        assert_eq!(of("{name: d, io: threads}", true, true), Ok(("none", Some("threads"))));
        assert_eq!(of("{name: d}", false, true), Ok(("writethrough", None)));
        assert_eq!(of("{name: d, cache: writeback}", true, true), Ok(("writeback", None)));
        assert_eq!(of("{name: d, shareable: true}", true, false), Ok(("none", None)));
        for disk in ["{name: d, cache: none}", "{name: d, shareable: true}"] {
            let told = of(disk, false, false).unwrap_err();
            assert!(told.contains("disk d") && told.contains("/d"), "{told}");
        }
        let told = of("{name: d, shareable: true, cache: writeback}", true, false).unwrap_err();
        assert!(told.contains("disk d") && told.contains("cache mode writeback"), "{told}");
    }
}
