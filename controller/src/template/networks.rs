//! The machine's networks in the pod: what Multus attaches it to, and a netd for each interface.
//!
//! A network of Multus is an interface of the pod whose name follows from the network's (`pod` and a part of its
//! SHA-256), unless it takes the place of the pod's first network. netd serves either as it serves the pod's own; of an
//! interface that is bound by a bridge no program of the pod but QEMU has a part.
//! An unplugged interface (`state: absent`) has neither; it keeps its place in the list, by which netds are counted.
//! Where a machine has one interface on the pod's first network, its netd has the whole pod; otherwise each netd has
//! the interface that it is for, and no other.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, EnvVar, EnvVarSource, ObjectFieldSelector, Pod};
use podvirt_api::kernel::BRIDGE;
use podvirt_api::mac::MacAddr;
use podvirt_api::names::{PASST_PLUGIN, annotation, path, pod};
use podvirt_api::netd::{ENVIRONMENT, MAX_SPEC_BYTES, NetdSpec};
use podvirt_api::plugin::Joint;
use podvirt_api::resources::PodResources;
use podvirt_api::v1::{
    Interface, KubeVirtConfiguration, MultusNetwork, Network, VirtualMachineInstance,
    VirtualMachineInstanceNetworkInterface,
};
use podvirt_api::{ParseError, defaults, mesh};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::containers::{LAUNCHER, SIDECAR, own};
use super::volumes::mount;
use super::{Identity, Images, TemplateError, verbosity};

const INTERFACES: &str = "spec.domain.devices.interfaces";
/// Where what is told of an interface comes from.
pub(crate) const MULTUS_STATUS: &str = "multus-status";

/// An element of [`annotation::NETWORKS`].
#[derive(Debug, Serialize)]
struct Selection<'a> {
    name: &'a str,
    namespace: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    interface: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mac: Option<String>,
    #[serde(rename = "cni-args", skip_serializing_if = "Option::is_none")]
    arguments: Option<PluginArguments<'a>>,
}

/// What the CNI plugin of a network binding plugin is told.
#[derive(Debug, Serialize)]
struct PluginArguments<'a> {
    /// The network that it is to join the guest with, by its name in `spec.networks`.
    #[serde(rename = "logicNetworkName")]
    network: &'a str,
}

/// An element of [`annotation::NETWORK_STATUS`], as far as it matters here.
#[derive(Debug, Deserialize)]
struct Attached {
    #[serde(default)]
    interface: String,
    #[serde(default)]
    ips: Vec<String>,
    #[serde(default)]
    mac: String,
}

/// Namespace and name of the NetworkAttachmentDefinition that `multus` names in a machine of `namespace`.
fn attachment<'a>(multus: &'a MultusNetwork, namespace: &'a str) -> (&'a str, &'a str) {
    definition(&multus.network_name, namespace)
}

/// Namespace and name of a NetworkAttachmentDefinition that a machine of `namespace` names.
fn definition<'a>(name: &'a str, namespace: &'a str) -> (&'a str, &'a str) {
    name.split_once('/').unwrap_or((namespace, name))
}

/// The annotations by which Multus is told what to attach the pod to.
///
/// # Errors
///
/// The machine's own annotations say it, too.
pub(super) fn annotations(
    vmi: &VirtualMachineInstance,
    identity: Identity<'_>,
) -> Result<BTreeMap<String, String>, TemplateError> {
    let mut made = BTreeMap::new();
    let mut selections = Vec::new();
    let plugins = vmi.plugins();
    for network in &vmi.spec.networks {
        let interface = vmi.spec.domain.devices.interfaces.iter().find(|i| i.name == network.name);
        if interface.is_some_and(Interface::is_absent) {
            continue;
        }
        let plugin =
            interface.and_then(|i| i.binding.as_ref()).and_then(|binding| plugins.get(&binding.name));
        let own = plugin.and_then(|plugin| plugin.network_attachment_definition.as_deref());
        let own = own.filter(|name| !name.is_empty()).map(|name| {
            let (namespace, name) = definition(name, identity.namespace);
            let arguments = Some(PluginArguments { network: &network.name });
            Selection { name, namespace, interface: None, mac: None, arguments }
        });
        let Some(multus) = &network.multus else {
            selections.extend(own);
            continue;
        };
        let (namespace, name) = attachment(multus, identity.namespace);
        if network.is_primary() {
            made.insert(annotation::DEFAULT_NETWORK.to_owned(), format!("{namespace}/{name}"));
            selections.extend(own);
            continue;
        }
        let given = interface.and_then(|i| i.mac_address.clone()).filter(|mac| !mac.is_empty());
        let mac = match given {
            Some(mac) => Some(mac),
            // The guest's own frames come by the interface, and the network may look at whose they are.
            None if interface.is_some_and(|i| is_seen(vmi.joint(i))) => {
                let machine = read(vmi)?;
                let interfaces = &machine.spec.domain.devices.interfaces;
                interfaces.iter().find(|i| i.name == network.name).map(|i| i.mac_address.clone())
            }
            None => None,
        };
        selections.push(Selection {
            name,
            namespace,
            interface: Some(pod::interface(&network.name)),
            mac: mac.map(|mac| mac.parse::<MacAddr>().map_or(mac, |mac| mac.to_string())),
            arguments: None,
        });
        // It finds the interface that it is about.
        selections.extend(own);
    }
    let devices = &vmi.spec.domain.devices;
    if devices.interfaces.iter().any(|i| vmi.joint(i) == Joint::Nat) {
        // What the guest sends comes in by the bridge, and is the proxy's as what processes of the pod send is.
        for key in annotation::ISTIO_INTERFACES {
            let said = vmi.metadata.annotations.as_ref().is_some_and(|given| given.contains_key(key));
            made.extend((!said).then(|| (key.to_owned(), BRIDGE.to_owned())));
        }
    }
    if !selections.is_empty() {
        let text = serde_json::to_string(&selections).map_err(|e| TemplateError::Json(e.to_string()))?;
        made.insert(annotation::NETWORKS.to_owned(), text);
    }
    let given = vmi.metadata.annotations.as_ref();
    match made.keys().find(|key| given.is_some_and(|given| given.contains_key(*key))) {
        Some(key) => {
            let field = format!("metadata.annotations[{key}]");
            Err(TemplateError::unsupported(
                field,
                "spec.networks[].multus alone, which writes this annotation",
            ))
        }
        None => Ok(made),
    }
}

/// Whether the guest's own frames go out to the network.
fn is_seen(joint: Joint) -> bool {
    joint.is_bridge() || matches!(joint, Joint::Tap | Joint::Device)
}

/// What Multus is told to attach the pod of `vmi` to beside its first network; none where that is nothing.
///
/// # Errors
///
/// The machine cannot be read, or does not come from an API server.
pub(crate) fn networks(vmi: &VirtualMachineInstance) -> Result<Option<String>, TemplateError> {
    Ok(annotations(vmi, Identity::of(vmi)?)?.remove(annotation::NETWORKS))
}

/// Namespace and name of the NetworkAttachmentDefinition of a network of Multus, as Multus tells it.
pub(crate) fn attachment_of(vmi: &VirtualMachineInstance, network: &Network) -> Option<String> {
    let multus = network.multus.as_ref()?;
    let (namespace, name) = attachment(multus, vmi.metadata.namespace.as_deref().unwrap_or_default());
    Some(format!("{namespace}/{name}"))
}

/// The networks that Multus is asked for: all of Multus' but those of unplugged interfaces.
pub(crate) fn asked(vmi: &VirtualMachineInstance) -> impl Iterator<Item = &Network> {
    let absent = |network: &Network| {
        let interfaces = &vmi.spec.domain.devices.interfaces;
        interfaces.iter().any(|interface| interface.name == network.name && interface.is_absent())
    };
    vmi.spec.networks.iter().filter(move |network| network.multus.is_some() && !absent(network))
}

/// What Multus says of the machine's networks in `pod`; empty while it says nothing.
pub(crate) fn attached(
    vmi: &VirtualMachineInstance,
    pod: &Pod,
) -> Vec<VirtualMachineInstanceNetworkInterface> {
    let text = pod.metadata.annotations.as_ref().and_then(|all| all.get(annotation::NETWORK_STATUS));
    // It is Multus' to write, and what it says is told, not relied on.
    let known: Vec<Attached> = text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let networks = vmi.spec.networks.iter().filter(|network| network.multus.is_some());
    let told = networks.filter_map(|network| {
        let name =
            if network.is_primary() { pod::PRIMARY_INTERFACE.into() } else { pod::interface(&network.name) };
        let found = known.iter().find(|k| k.interface == name)?;
        Some(VirtualMachineInstanceNetworkInterface {
            name: Some(network.name.clone()),
            ip_address: found.ips.first().cloned(),
            ip_addresses: found.ips.clone(),
            mac: Some(found.mac.clone()).filter(|mac| !mac.is_empty()),
            pod_interface_name: Some(name),
            // Of the pod's first network Multus tells as well, and upstream does not name it as the source.
            info_source: (!network.is_primary()).then(|| MULTUS_STATUS.to_owned()),
            ..VirtualMachineInstanceNetworkInterface::default()
        })
    });
    told.collect()
}

/// What the networks of interfaces that want it say of their devices, for [`annotation::NETWORK_INFO`] of `pod`, in upstream's
/// form; none while Multus has said nothing of them.
pub(crate) fn network_info(vmi: &VirtualMachineInstance, pod: &Pod) -> Option<String> {
    let text = pod.metadata.annotations.as_ref()?.get(annotation::NETWORK_STATUS)?;
    let known: Vec<Value> = serde_json::from_str(text).ok()?;
    let interfaces = &vmi.spec.domain.devices.interfaces;
    let wanted = interfaces.iter().filter(|interface| vmi.is_told_of_device(interface));
    let told = wanted.filter_map(|interface| {
        let network = vmi.spec.networks.iter().find(|network| network.name == interface.name)?;
        let name =
            if network.is_primary() { pod::PRIMARY_INTERFACE.into() } else { pod::interface(&network.name) };
        let found = known.iter().find(|status| status["interface"] == *name)?;
        let mut told = json!({"network": network.name});
        for (ours, theirs) in [("deviceInfo", "device-info"), ("mac", "mac")] {
            if let Some(said) = found.get(theirs).filter(|said| !said.is_null() && *said != "") {
                told[ours] = said.clone();
            }
        }
        Some((network.name.clone(), told))
    });
    let told: BTreeMap<_, _> = told.collect();
    (!told.is_empty()).then(|| json!({"interfaces": told.into_values().collect::<Vec<_>>()}).to_string())
}

/// The containers `netd`: one for each interface that a netd serves ([`Joint::Netd`]).
pub(super) fn netds(
    vmi: &VirtualMachineInstance,
    config: &KubeVirtConfiguration,
    images: &Images,
    resources: &PodResources,
) -> Result<Vec<Container>, TemplateError> {
    let interfaces = &vmi.spec.domain.devices.interfaces;
    let mut primary = None;
    for (n, interface) in interfaces.iter().enumerate() {
        if let Some(binding) = other_binding(interface) {
            let field = format!("{INTERFACES}[{n}].{binding}");
            return Err(TemplateError::unsupported(
                field,
                "passtBinding, masquerade, bridge, sriov and binding",
            ));
        }
        if let Some(binding) = interface.binding.as_ref()
            && binding.name != PASST_PLUGIN
            && vmi.plugin_of(interface).is_none()
        {
            let field = format!("{INTERFACES}[{n}].binding.name: {}", binding.name);
            return Err(TemplateError::unsupported(
                field,
                "plugins that were registered when the machine was made",
            ));
        }
        let Some(network) = vmi.spec.networks.iter().find(|network| network.name == interface.name) else {
            let field = format!("{INTERFACES}[{n}] without a network of its name");
            return Err(TemplateError::unsupported(field, "interfaces that spec.networks has"));
        };
        if network.multus.is_some() && interface.masquerade.is_some() {
            let field = format!("{INTERFACES}[{n}].masquerade on a network of Multus");
            return Err(TemplateError::unsupported(field, "passtBinding"));
        }
        if network.is_primary() && primary.replace(n).is_some() {
            let field = format!("{INTERFACES}[{n}]");
            return Err(TemplateError::unsupported(field, "one interface on the pod's first network"));
        }
    }
    let by_netd = |index: &usize| vmi.by_netd(&interfaces[*index]);
    if !(0..interfaces.len()).any(|index| by_netd(&index)) {
        return Ok(Vec::new());
    }
    let machine = read(vmi)?;
    let container = |index: usize| {
        // Nothing of it is secret: a pod's environment is no place for what volumes hold.
        let mut spec = NetdSpec::of(&machine, index).map_err(TemplateError::Invalid)?;
        spec.flows = spec.flows.or(images.netd_flows);
        let value = serde_json::to_string(&spec).map_err(|e| TemplateError::Json(e.to_string()))?;
        if value.len() > MAX_SPEC_BYTES {
            let field =
                format!("{INTERFACES}[{index}].ports: a list that takes {} bytes as ranges", value.len());
            return Err(TemplateError::unsupported(
                field,
                "ports in fewer ranges, or no list, which means all ports",
            ));
        }
        let told = EnvVar { name: ENVIRONMENT.into(), value: Some(value), value_from: None };
        let environment = std::iter::once(told).chain(marks()).chain(verbosity::variable(vmi, config)?);
        Ok(Container {
            command: Some(vec![LAUNCHER.to_owned(), "run-netd".into()]),
            env: Some(environment.collect()),
            restart_policy: Some(SIDECAR.into()),
            volume_mounts: Some(vec![mount(pod::volume::NETD, path::NETD)]),
            ..own(&pod::netd(index), config, images, &resources.netd)
        })
    };
    (0..interfaces.len()).filter(by_netd).map(container).collect()
}

/// Whether a mesh has put its proxy into the pod: what its injector writes into the pod is not there yet.
fn marks() -> impl Iterator<Item = EnvVar> {
    mesh::MARKS.into_iter().map(|(name, field)| {
        let field = ObjectFieldSelector { field_path: field.into(), ..ObjectFieldSelector::default() };
        let source = EnvVarSource { field_ref: Some(field), ..EnvVarSource::default() };
        EnvVar { name: name.into(), value: None, value_from: Some(source) }
    })
}

/// The machine as the launcher will read it, with its defaults: netd and the domain must come to the same addresses.
fn read(vmi: &VirtualMachineInstance) -> Result<podvirt_api::VirtualMachineInstance, TemplateError> {
    let value = serde_json::to_value(vmi).map_err(|e| TemplateError::Json(e.to_string()))?;
    let mut machine =
        podvirt_api::VirtualMachineInstance::from_value(value).map_err(|error| match error {
            ParseError::Invalid(problems) => TemplateError::Invalid(problems),
            error => TemplateError::Json(error.to_string()),
        })?;
    defaults::set_defaults(&mut machine);
    Ok(machine)
}

/// A binding of the interface that is not carried out.
fn other_binding(interface: &Interface) -> Option<&'static str> {
    [
        ("macvtap", interface.macvtap.is_some()),
        ("passt", interface.passt.is_some()),
        ("slirp", interface.slirp.is_some()),
    ]
    .into_iter()
    .find_map(|(name, given)| given.then_some(name))
}
