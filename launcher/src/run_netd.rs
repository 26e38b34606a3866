//! `virt-launcher run-netd`: the sidecar `netd` of a pod becomes netd.
//!
//! The VMI comes in the environment, since a sidecar runs before anybody could hand it one. From it and the pod's
//! resolv.conf netd's configuration is written beside the sockets, and the process becomes netd: process 1 of its
//! container, which the kubelet starts again when it ends.

use std::convert::Infallible;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use podvirt_api::names::path;
use podvirt_api::{ParseError, VirtualMachineInstance, defaults};
use serde_json::Value;

use crate::netd::{NetdConfig, NetdSockets};

/// The environment's variable with the VMI.
pub const VMI_JSON: &str = "VMI_JSON";
/// The pod's resolvers.
const RESOLV_CONF: &str = "/etc/resolv.conf";

/// Writes netd's configuration and becomes `program`.
///
/// # Errors
///
/// There is no VMI in the environment, it has no such interface, or more than one where none is named, or netd cannot
/// be started.
pub fn run(program: &Path, interface: Option<&str>) -> Result<Infallible> {
    let json = std::env::var(VMI_JSON).with_context(|| format!("the environment's {VMI_JSON}"))?;
    let resolv_conf = std::fs::read_to_string(RESOLV_CONF).unwrap_or_default();
    let (index, config) = config(&json, interface, &resolv_conf)?;
    let file = Path::new(path::NETD).join(format!("n{index}.yaml"));
    std::fs::write(&file, config).with_context(|| format!("cannot write {}", file.display()))?;
    let error = Command::new(program).arg("--config").arg(&file).exec();
    Err(error).with_context(|| format!("cannot run {}", program.display()))
}

/// Index of the interface, and netd's configuration for it.
fn config(json: &str, wanted: Option<&str>, resolv_conf: &str) -> Result<(usize, String)> {
    let mut value: Value = serde_json::from_str(json).with_context(|| format!("{VMI_JSON} is not JSON"))?;
    // What is stored is nothing of the network's, and its contents were not handed over.
    if let Some(spec) = value.get_mut("spec").and_then(Value::as_object_mut) {
        spec.remove("volumes");
        if let Some(devices) = spec.get_mut("domain").and_then(|d| d.get_mut("devices")) {
            devices.as_object_mut().map(|d| d.remove("disks"));
        }
    }
    let mut vmi = match VirtualMachineInstance::from_value(value) {
        Ok(vmi) => vmi,
        Err(ParseError::Invalid(problems)) => bail!("{VMI_JSON} is refused:\n{problems}"),
        Err(error) => return Err(error.into()),
    };
    defaults::set_defaults(&mut vmi);
    let mut interfaces = vmi.spec.domain.devices.interfaces.iter().enumerate();
    let (index, interface) = match wanted {
        Some(name) => interfaces
            .find(|(_, interface)| interface.name == name)
            .with_context(|| format!("the VMI has no interface '{name}'"))?,
        None => {
            let first = interfaces.next().context("the VMI has no interface")?;
            if interfaces.next().is_some() {
                bail!("the VMI has several interfaces: --interface says which one");
            }
            first
        }
    };
    let (socket, control, steering) =
        (path::netd_socket(index), path::netd_control(index), path::netd_ports(index));
    let hold = path::netd_hold(index);
    let sockets =
        NetdSockets { vhost_user: &socket, control: &control, steering: Some(&steering), hold: Some(&hold) };
    Ok((index, NetdConfig::new(&vmi, interface, &sockets, resolv_conf).to_yaml()?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn vmi(interfaces: &Value, networks: &Value) -> String {
        json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": {"name": "vm", "namespace": "shop", "uid": "u-1"},
            "spec": {
                "domain": {"devices": {"interfaces": interfaces, "disks": [{"name": "secret"}]}},
                "networks": networks,
                "volumes": [{"name": "secret"}],
            },
        })
        .to_string()
    }

    #[test]
    fn netd_and_the_domain_have_the_same_address() {
        let json = vmi(&json!([{"name": "default"}]), &json!([{"name": "default", "pod": {}}]));
        let (index, text) = config(&json, None, "nameserver 10.96.0.10\n").unwrap();
        let mut domain = VirtualMachineInstance::from_value(serde_json::from_str(&json).unwrap()).unwrap();
        defaults::set_defaults(&mut domain);
        let mac = &domain.spec.domain.devices.interfaces[0].mac_address;
        assert_eq!(index, 0);
        assert!(text.contains(mac.as_str()), "{text}");
        assert!(text.contains("socket: /var/run/kubevirt/netd/n0.sock"), "{text}");
        assert!(text.contains("socket: /var/run/kubevirt/netd/n0.ctl"), "{text}");
        assert!(text.contains("steering: /var/run/kubevirt/netd/n0.ports"), "{text}");
        assert!(text.contains("hold:\n  socket: /var/run/kubevirt/netd/hold"), "{text}");
    }

    #[test]
    fn of_several_interfaces_one_is_named() {
        let none = config(&vmi(&json!([]), &json!([])), None, "");
        assert!(none.is_ok(), "the default interface is added as everywhere");
        let two = vmi(
            &json!([{"name": "a"}, {"name": "b"}]),
            &json!([{"name": "a", "pod": {}}, {"name": "b", "multus": {"networkName": "flat"}}]),
        );
        let refused = |wanted| config(&two, wanted, "").unwrap_err().to_string();
        assert!(refused(None).contains("--interface"));
        assert!(refused(Some("c")).contains("no interface 'c'"));
        let (index, text) = config(&two, Some("b"), "").unwrap();
        assert_eq!(index, 1);
        let name = podvirt_api::names::pod::interface("b");
        assert!(text.contains(&format!("interface: {name}\nbind_interface: true\n")), "{text}");
        assert!(text.contains("socket: /var/run/kubevirt/netd/n1.sock"), "{text}");
        assert!(text.contains("hold:\n  socket: /var/run/kubevirt/netd/hold1"), "{text}");
        assert!(config("{", None, "").unwrap_err().to_string().contains("not JSON"));
    }
}
