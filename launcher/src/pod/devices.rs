//! Devices of the node that are interfaces of the machine, by SR-IOV: which ones the pod has been given.
//!
//! A network's CNI plugin tells Multus, Multus writes it into the pod's status, virt-controller into an annotation of the pod
//! and the kubelet from there into a file of this container. That takes a moment after the container has started.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use podvirt_api::VirtualMachineInstance;
use podvirt_api::names::path;
use podvirt_api::plugin::Joint;
use podvirt_api::validate::is_pci_address;
use serde_json::Value;
use tokio::time::sleep;

/// Between two looks.
const LOOK: Duration = Duration::from_millis(200);

/// PCI addresses on the node of the interfaces of `vmi` that are its devices, by interface; waits until they are told, and
/// tells `waits` so.
///
/// # Errors
///
/// A network tells of no PCI device, or of what is not one.
pub(super) async fn addresses(
    vmi: &VirtualMachineInstance,
    waits: impl Fn(String),
) -> Result<BTreeMap<String, String>> {
    let interfaces = vmi.spec.domain.devices.interfaces.iter();
    let devices =
        interfaces.filter(|interface| !interface.is_absent() && vmi.joint(interface) == Joint::Device);
    let names: Vec<&str> = devices.map(|interface| interface.name.as_str()).collect();
    if names.is_empty() {
        return Ok(BTreeMap::new());
    }
    let file = Path::new(path::POD_INFO).join(path::NETWORK_INFO);
    waits(format!("what the networks of {} say of their devices, in {}", names.join(", "), file.display()));
    loop {
        let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        if let Some(told) = told(&text, &names).with_context(|| file.display().to_string())? {
            return Ok(told);
        }
        sleep(LOOK).await;
    }
}

/// What `text` tells of the interfaces with these names; none while it lacks one of them.
fn told(text: &str, names: &[&str]) -> Result<Option<BTreeMap<String, String>>> {
    if text.trim().is_empty() {
        return Ok(None);
    }
    let info: Value = serde_json::from_str(text).context("it is no JSON")?;
    let known = info["interfaces"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut told = BTreeMap::new();
    for name in names {
        let Some(one) = known.iter().find(|one| one["network"] == *name) else { return Ok(None) };
        let Some(address) = one.pointer("/deviceInfo/pci/pci-address").and_then(Value::as_str) else {
            bail!(
                "the network of the interface {name} tells of no PCI device: sriov needs a NetworkAttachmentDefinition whose \
                 CNI plugin and device plugin hand one out"
            );
        };
        if !is_pci_address(address) {
            bail!(
                "the network of the interface {name} tells of the PCI device '{address}': no address as in '0000:65:00.2'"
            );
        }
        told.insert((*name).to_owned(), address.to_owned());
    }
    Ok(Some(told))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_of_the_networks_devices() {
        let text = r#"{"interfaces": [
            {"network": "blue", "deviceInfo": {"type": "pci", "version": "1.0.0", "pci": {"pci-address": "0000:65:00.2"}}},
            {"network": "red", "deviceInfo": {"type": "pci", "pci": {"pci-address": "0000:65:01.0"}}, "mac": "02:00:00:00:00:01"},
            {"network": "green", "mac": "02:00:00:00:00:02"},
            {"network": "black", "deviceInfo": {"type": "pci", "pci": {"pci-address": "65:00.2"}}}]}"#;
        let both = told(text, &["red", "blue"]).unwrap().unwrap();
        let expected = [("blue", "0000:65:00.2"), ("red", "0000:65:01.0")];
        assert_eq!(both, expected.map(|(name, address)| (name.to_owned(), address.to_owned())).into());
        for (text, names) in [("", "blue"), ("\n", "blue"), (text, "grey"), ("{}", "blue")] {
            assert_eq!(told(text, &[names]).unwrap(), None, "it is waited for");
        }
        let none = told(text, &["green"]).unwrap_err().to_string();
        assert!(none.starts_with("the network of the interface green tells of no PCI device"), "{none}");
        let wrong = told(text, &["black"]).unwrap_err().to_string();
        assert!(
            wrong.starts_with("the network of the interface black tells of the PCI device '65:00.2'"),
            "{wrong}"
        );
        told("{", &["blue"]).unwrap_err();
    }
}
