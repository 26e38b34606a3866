//! Tap devices that the network of a network binding plugin has made (`domainAttachmentType: tap`).
//!
//! The device is `tap0` or `tap<hash>` beside the pod's interface, or the pod's interface itself, as upstream looks for them.
//! Whether it has several queues is the plugin's choice, and QEMU cannot open one of either kind as the other.

use std::path::Path;

use anyhow::{Context, Result, bail};
use podvirt_api::VirtualMachineInstance;
use podvirt_api::bridge::queue_pairs;
use podvirt_api::kernel::TAP;
use podvirt_api::names::pod;
use podvirt_api::vmi::Interface;

use crate::domain::Tap;

/// A tap device's flag of several queues (`IFF_MULTI_QUEUE` of the kernel's `if_tun.h`).
const MULTI_QUEUE: u32 = 0x0100;
/// The fewest queue pairs with which QEMU opens a device of several.
const SEVERAL: u64 = 2;

/// The name of `interface` and its tap device, from the pod's interfaces below `net`.
///
/// # Errors
///
/// There is none.
pub(super) fn tap(net: &Path, vmi: &VirtualMachineInstance, interface: &Interface) -> Result<(String, Tap)> {
    let network = vmi.network_of(interface).filter(|network| !network.is_primary());
    let (tap, own) = network.map_or_else(
        || (TAP.to_owned(), pod::PRIMARY_INTERFACE.to_owned()),
        |network| (pod::tap(&network.name), pod::interface(&network.name)),
    );
    let name = [&tap, &own].into_iter().find(|name| net.join(name).join("tun_flags").exists());
    let Some(name) = name else {
        bail!(
            "the interface {}: its network binding plugin has made no tap device: neither {tap} nor {own} is one",
            interface.name
        );
    };
    let number = |of: &str, file: &str| {
        let path = net.join(of).join(file);
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let digits = text.trim();
        let read = match digits.strip_prefix("0x") {
            Some(digits) => u32::from_str_radix(digits, 16),
            None => digits.parse(),
        };
        read.with_context(|| format!("{}: {text:?} is no number", path.display()))
    };
    let wanted = queue_pairs(vmi, interface);
    let queues = if number(name, "tun_flags")? & MULTI_QUEUE == 0 { 1 } else { wanted.max(SEVERAL) };
    // The network's, which a plugin need not have given to the device beside it.
    let mtu = number(if net.join(&own).exists() { &own } else { name }, "mtu")?;
    Ok((interface.name.clone(), Tap { name: name.clone(), mtu, queues }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The pod's interfaces: names, MTUs, and flags of tap devices.
    fn pod(interfaces: &[(&str, &str, Option<&str>)]) -> tempfile::TempDir {
        let net = tempfile::tempdir().unwrap();
        for (name, mtu, flags) in interfaces {
            let directory = net.path().join(name);
            std::fs::create_dir(&directory).unwrap();
            std::fs::write(directory.join("mtu"), format!("{mtu}\n")).unwrap();
            if let Some(flags) = flags {
                std::fs::write(directory.join("tun_flags"), format!("{flags}\n")).unwrap();
            }
        }
        net
    }

    fn found(net: &tempfile::TempDir, index: usize, several: bool) -> Result<(String, Tap)> {
        let mut vmi = VirtualMachineInstance::from_value(json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": {"name": "vm"},
            "spec": {
                "networks": [{"name": "default", "pod": {}}, {"name": "blue", "multus": {"networkName": "n"}}],
                "domain": {"cpu": {"cores": 4}, "devices": {
                    "networkInterfaceMultiqueue": several,
                    "interfaces": [{"name": "default", "binding": {"name": "own"}}, {"name": "blue", "binding": {"name": "own"}}],
                }},
            },
        }))
        .unwrap();
        podvirt_api::defaults::set_defaults(&mut vmi);
        tap(net.path(), &vmi, &vmi.spec.domain.devices.interfaces[index])
    }

    #[test]
    fn the_device_is_beside_the_pods_interface_or_is_it() {
        let net = pod(&[
            ("eth0", "1450", None),
            ("tap0", "1500", Some("0x1002")),
            ("pod16477688c0e", "9000", Some("0x5002")),
        ]);
        let device = |index| found(&net, index, false).unwrap();
        let expected = |name: &str, mtu| Tap { name: name.into(), mtu, queues: 1 };
        assert_eq!(device(0), ("default".into(), expected("tap0", 1450)), "the network's MTU");
        assert_eq!(device(1), ("blue".into(), expected("pod16477688c0e", 9000)));
        let net = pod(&[("eth0", "1450", None), ("pod16477688c0e", "1500", None)]);
        let error = found(&net, 1, false).unwrap_err().to_string();
        assert!(error.contains("neither tap16477688c0e nor pod16477688c0e is one"), "{error}");
    }

    #[test]
    fn a_device_is_opened_as_it_was_made() {
        let queues = |flags: &str, several| {
            let net = pod(&[("eth0", "1500", None), ("tap0", "1500", Some(flags))]);
            found(&net, 0, several).unwrap().1.queues
        };
        assert_eq!((queues("0x1002", false), queues("0x1002", true)), (1, 1));
        assert_eq!((queues("0x1102", false), queues("0x1102", true)), (2, 4));
    }
}
