//! `virt-launcher run-netd`: the sidecar `netd` of a pod becomes netd.
//!
//! What netd is told of its machine comes in the environment ([`NetdSpec`] in [`ENVIRONMENT`]), since a sidecar runs
//! before virt-handler could hand anything to it. From that and the pod's resolv.conf netd's configuration is written
//! beside the sockets, and the process becomes netd: process 1 of its container, which the kubelet starts again when
//! it ends. Whether a mesh has put its proxy into the pod stands beside it in the environment ([`podvirt_api::mesh::MARKS`]).
//!
//! Pods of earlier releases have a part of the machine's manifest in `VMI_JSON` in place of that. Their sidecar's image
//! may be exchanged while the machine runs, and the environment stays as it was: such a pod is served as before.

use std::convert::Infallible;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use podvirt_api::names::path;
use podvirt_api::netd::{ENVIRONMENT, NetdSpec};
use podvirt_api::{ParseError, VirtualMachineInstance, defaults, mesh};
use serde_json::Value;

use crate::log;
use crate::netd::{NetdSockets, netd_file};

/// The variable that pods of earlier releases have in place of [`ENVIRONMENT`]: a part of the machine's manifest.
pub const VMI_JSON: &str = "VMI_JSON";
/// The pod's resolvers.
const RESOLV_CONF: &str = "/etc/resolv.conf";

/// Writes netd's configuration and becomes `program`.
///
/// # Errors
///
/// The environment does not say what netd is to serve, it has no such interface, or more than one where none is named,
/// or netd cannot be started.
pub fn run(program: &Path, interface: Option<&str>) -> Result<Infallible> {
    let environment = |name: &str| std::env::var(name).ok();
    let spec = spec(environment, interface)?;
    let resolv_conf = std::fs::read_to_string(RESOLV_CONF).unwrap_or_default();
    let file = Path::new(path::NETD).join(format!("n{}.yaml", spec.index));
    let config = config(spec, &resolv_conf, mesh::may_be_in_pod(environment))?;
    std::fs::write(&file, config).with_context(|| format!("cannot write {}", file.display()))?;
    let log = log::filter(None, environment);
    let error = Command::new(program).arg("--config").arg(&file).env(log::RUST_LOG, log).exec();
    Err(error).with_context(|| format!("cannot run {}", program.display()))
}

/// What netd is told of its machine by `environment`, which gives a variable's value; `wanted` is the interface that
/// the command line names.
///
/// # Errors
///
/// The environment does not say it, or names another interface than the command line, or several where none is named.
pub fn spec(environment: impl Fn(&str) -> Option<String>, wanted: Option<&str>) -> Result<NetdSpec> {
    let Some(json) = environment(ENVIRONMENT) else {
        let json = environment(VMI_JSON)
            .with_context(|| format!("the environment has no {ENVIRONMENT} in UTF-8"))?;
        return of_machine(&json, wanted);
    };
    let spec: NetdSpec = serde_json::from_str(&json)
        .with_context(|| format!("{ENVIRONMENT} is not what this release of virt-launcher reads"))?;
    match wanted {
        Some(wanted) if wanted != spec.interface => {
            bail!("--interface names '{wanted}', and {ENVIRONMENT} is for '{}'", spec.interface)
        }
        _ => Ok(spec),
    }
}

/// The text of netd's configuration file for `spec`; `mesh`: a mesh's proxy may be in the pod.
///
/// # Errors
///
/// Something cannot be written as YAML.
pub fn config(spec: NetdSpec, resolv_conf: &str, mesh: bool) -> Result<String> {
    let index = spec.index;
    let (socket, control, steering) =
        (path::netd_socket(index), path::netd_control(index), path::netd_ports(index));
    let hold = path::netd_hold(index);
    let sockets =
        NetdSockets { vhost_user: &socket, control: &control, steering: Some(&steering), hold: Some(&hold) };
    Ok(netd_file(spec, &sockets, resolv_conf, mesh).to_yaml()?)
}

/// The same from a part of the machine's manifest, as earlier releases wrote it.
fn of_machine(json: &str, wanted: Option<&str>) -> Result<NetdSpec> {
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
    let interfaces = &vmi.spec.domain.devices.interfaces;
    let index = match (wanted, interfaces.len()) {
        (Some(name), _) => interfaces
            .iter()
            .position(|interface| interface.name == name)
            .with_context(|| format!("the VMI has no interface '{name}'"))?,
        (None, 0) => bail!("the VMI has no interface"),
        (None, 1) => 0,
        (None, _) => bail!("the VMI has several interfaces: --interface says which one"),
    };
    NetdSpec::of(&vmi, index).with_context(|| format!("{VMI_JSON} is refused"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// What a pod of an earlier release has in its environment.
    fn earlier(interfaces: &Value, networks: &Value) -> String {
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

    fn read(variable: &str, json: &str, wanted: Option<&str>) -> Result<(usize, String)> {
        let spec = spec(|name| (name == variable).then(|| json.to_owned()), wanted)?;
        Ok((spec.index, config(spec, "nameserver 10.96.0.10\n", true)?))
    }

    #[test]
    fn netd_and_the_domain_have_the_same_address() {
        let json = earlier(&json!([{"name": "default"}]), &json!([{"name": "default", "pod": {}}]));
        let mut domain = VirtualMachineInstance::from_value(serde_json::from_str(&json).unwrap()).unwrap();
        defaults::set_defaults(&mut domain);
        let mac = &domain.spec.domain.devices.interfaces[0].mac_address;
        let now = serde_json::to_string(&NetdSpec::of(&domain, 0).unwrap()).unwrap();
        let (index, text) = read(ENVIRONMENT, &now, None).unwrap();
        assert_eq!(index, 0);
        assert!(text.contains(mac.as_str()), "{text}");
        assert!(text.contains("socket: /var/run/kubevirt/netd/n0.sock"), "{text}");
        assert!(text.contains("socket: /var/run/kubevirt/netd/n0.ctl"), "{text}");
        assert!(text.contains("steering: /var/run/kubevirt/netd/n0.ports"), "{text}");
        assert!(text.contains("hold:\n  socket: /var/run/kubevirt/netd/hold"), "{text}");
        assert_eq!(read(VMI_JSON, &json, None).unwrap(), (index, text), "a pod of an earlier release");
    }

    #[test]
    fn a_port_of_a_meshs_is_the_guests_where_no_mesh_is_in_the_pod() {
        let reserves = |ports: Value, mesh| {
            let interfaces = json!([{"name": "default", "ports": ports}]);
            let json = earlier(&interfaces, &json!([{"name": "default", "pod": {}}]));
            let spec = spec(|name| (name == VMI_JSON).then(|| json.clone()), None).unwrap();
            let text = config(spec, "", mesh).unwrap();
            let reserved = netd::config::file::File::parse(&text).unwrap().check().unwrap().ports.reserved;
            [4190, 15090, 15001].map(|port| reserved.contains(netd::port::Proto::Tcp, port))
        };
        let listed = || json!([{"port": 4190}, {"port": 15090}, {"port": 7777}]);
        assert_eq!(reserves(listed(), true), [true; 3]);
        assert_eq!(reserves(listed(), false), [false, false, true]);
        assert_eq!(reserves(json!([]), true), [true; 3]);
        assert_eq!(reserves(json!([]), false), [false, false, true], "all ports: ambient mode may come");
    }

    #[test]
    fn a_pod_of_an_earlier_release_names_one_of_its_interfaces() {
        let none = read(VMI_JSON, &earlier(&json!([]), &json!([])), None);
        assert!(none.is_ok(), "the default interface is added as everywhere");
        let two = earlier(
            &json!([{"name": "a"}, {"name": "b"}]),
            &json!([{"name": "a", "pod": {}}, {"name": "b", "multus": {"networkName": "flat"}}]),
        );
        let refused = |wanted| read(VMI_JSON, &two, wanted).unwrap_err().to_string();
        assert!(refused(None).contains("--interface"));
        assert!(refused(Some("c")).contains("no interface 'c'"));
        let (index, text) = read(VMI_JSON, &two, Some("b")).unwrap();
        assert_eq!(index, 1);
        let name = podvirt_api::names::pod::interface("b");
        assert!(text.contains(&format!("interface: {name}\n")), "{text}");
        assert!(text.contains("bind_interface: \"true\"\n"), "{text}");
        assert!(text.contains("socket: /var/run/kubevirt/netd/n1.sock"), "{text}");
        assert!(text.contains("hold:\n  socket: /var/run/kubevirt/netd/hold1"), "{text}");
        assert!(read(VMI_JSON, "{", None).unwrap_err().to_string().contains("not JSON"));
    }

    #[test]
    fn an_environment_that_says_something_else_is_refused_with_the_reason() {
        let refused = |variable, json, wanted| format!("{:#}", read(variable, json, wanted).unwrap_err());
        assert_eq!(refused("OTHER", "{}", None), "the environment has no NETD_SPEC in UTF-8");
        let spec = r#"{"namespace":"n","machine":"m","interface":"a","index":0,"macAddress":"02:00:00:00:00:01",
            "hostname":"m","fromTheFuture":1}"#;
        let text = refused(ENVIRONMENT, spec, None);
        assert!(text.contains("NETD_SPEC") && text.contains("unknown field `fromTheFuture`"), "{text}");
        let spec = spec.replace(",\"fromTheFuture\":1", "");
        read(ENVIRONMENT, &spec, Some("a")).unwrap();
        let text = refused(ENVIRONMENT, &spec, Some("b"));
        assert_eq!(text, "--interface names 'b', and NETD_SPEC is for 'a'");
    }
}
