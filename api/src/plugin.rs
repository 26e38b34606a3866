//! What joins a guest's interface with the pod, network binding plugins among it.
//!
//! A cluster's administrator registers plugins in the KubeVirt object (`spec.configuration.network.binding`); a machine names one
//! (`interfaces[].binding.name`). What the plugins of a machine were registered with when it was made is noted in its
//! annotation [`annotation::BINDING_PLUGINS`], in the form of the KubeVirt object. All of podvirt's programs read it there: a
//! registration that changes concerns machines that are made later, and a machine that moves has the same pod again.
//!
//! | `domainAttachmentType` | what podvirt does | what the plugin does |
//! |---|---|---|
//! | `managedTap` | tap and bridge in the pod, as for the binding `bridge`, and no DHCP | what its network or its sidecar does |
//! | `tap` | joins the guest with a tap device of the pod | its network's CNI plugin makes the tap device |
//! | none | nothing | its sidecar adds the interface to the domain |

use std::collections::BTreeMap;

use serde_json::Value;

use crate::names::{PASST_PLUGIN, annotation};
use crate::problem::{Problems, Reason};
use crate::v1::DomainAttachmentType;
use crate::vmi::{Interface, InterfaceState, VirtualMachineInstance};
use crate::{kernel, v1};

/// `domainAttachmentType` of plugins that bring a tap device.
pub const TAP: &str = "tap";
/// The same: podvirt makes tap and bridge.
pub const MANAGED_TAP: &str = "managedTap";

/// `downwardAPI` of plugins whose sidecar is told what the networks say of their devices.
pub const DEVICE_INFO: &str = "device-info";
/// `migration.method` of plugins whose guests learn of their new place by a link that goes down and up.
pub const LINK_REFRESH: &str = "link-refresh";

/// Registrations by the plugin's name.
pub type Plugins = BTreeMap<String, v1::InterfaceBindingPlugin>;

/// What joins a guest's interface with the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Joint {
    /// A netd.
    Netd,
    /// The kernel's NAT, behind a tap device.
    Nat,
    /// A bridge, with a tap device; the binding `bridge`.
    Bridge,
    /// The same for a plugin.
    ManagedTap,
    /// A tap device that a plugin's network has made.
    Tap,
    /// What a plugin's sidecar puts into the domain.
    Sidecar,
    /// A device of the node, by SR-IOV.
    Device,
}

impl Joint {
    /// Whether virt-handler makes a bridge for it.
    pub fn is_bridge(self) -> bool {
        matches!(self, Joint::Bridge | Joint::ManagedTap)
    }

    /// Whether QEMU opens a tap device.
    pub fn has_tap(self) -> bool {
        !matches!(self, Joint::Netd | Joint::Sidecar | Joint::Device)
    }
}

/// The plugins of a machine with these annotations, as they were registered when it was made.
pub fn of(annotations: &BTreeMap<String, String>) -> Plugins {
    annotations
        .get(annotation::BINDING_PLUGINS)
        .and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or_default()
}

/// What an interface says of its binding.
struct Bound<'a> {
    plugin: Option<&'a str>,
    bridge: bool,
    masquerade: bool,
    sriov: bool,
}

fn joint(annotations: Option<&BTreeMap<String, String>>, bound: &Bound<'_>) -> Joint {
    let attachment = |name: &str| {
        of(annotations?)
            .remove(name)
            .and_then(|plugin| plugin.domain_attachment_type)
            .map(|kind| kind.to_string())
    };
    match bound.plugin {
        _ if bound.bridge => Joint::Bridge,
        _ if bound.sriov => Joint::Device,
        _ if bound.masquerade && annotations.is_some_and(kernel::by_nftables) => Joint::Nat,
        Some(name) if name != PASST_PLUGIN => match attachment(name).as_deref() {
            Some(MANAGED_TAP) => Joint::ManagedTap,
            Some(TAP) => Joint::Tap,
            _ => Joint::Sidecar,
        },
        _ => Joint::Netd,
    }
}

impl VirtualMachineInstance {
    /// What joins this interface with the pod.
    pub fn joint(&self, interface: &Interface) -> Joint {
        let bound = Bound {
            plugin: interface.binding.as_ref().map(|plugin| plugin.name.as_str()),
            bridge: interface.bridge.is_some(),
            masquerade: interface.masquerade.is_some(),
            sriov: interface.sriov.is_some(),
        };
        joint(Some(&self.metadata.annotations), &bound)
    }

    /// Whether a netd serves this interface.
    pub fn by_netd(&self, interface: &Interface) -> bool {
        !interface.is_absent() && self.joint(interface) == Joint::Netd
    }
}

impl v1::VirtualMachineInstance {
    /// What joins this interface with the pod.
    pub fn joint(&self, interface: &v1::Interface) -> Joint {
        let bound = Bound {
            plugin: interface.binding.as_ref().map(|plugin| plugin.name.as_str()),
            bridge: interface.bridge.is_some(),
            masquerade: interface.masquerade.is_some(),
            sriov: interface.sriov.is_some(),
        };
        joint(self.metadata.annotations.as_ref(), &bound)
    }

    /// Whether a netd serves this interface.
    pub fn by_netd(&self, interface: &v1::Interface) -> bool {
        !interface.is_absent() && self.joint(interface) == Joint::Netd
    }

    /// Whether QEMU opens tap devices for the machine.
    pub fn has_taps(&self) -> bool {
        let interfaces = &self.spec.domain.devices.interfaces;
        interfaces.iter().any(|interface| !interface.is_absent() && self.joint(interface).has_tap())
    }

    /// The plugins of the machine, as they were registered when it was made.
    pub fn plugins(&self) -> Plugins {
        self.metadata.annotations.as_ref().map(of).unwrap_or_default()
    }

    /// The plugin that joins this interface with the pod; none where podvirt itself does, and where it is not noted.
    pub fn plugin_of(&self, interface: &v1::Interface) -> Option<v1::InterfaceBindingPlugin> {
        let name = &interface.binding.as_ref()?.name;
        if name == PASST_PLUGIN { None } else { self.plugins().remove(name) }
    }

    /// Whether what the network of this interface says of its device is told in the pod.
    pub fn is_told_of_device(&self, interface: &v1::Interface) -> bool {
        let by_plugin = || self.plugin_of(interface).is_some_and(|plugin| is_told_of_device(&plugin));
        !interface.is_absent() && (interface.sriov.is_some() || by_plugin())
    }

    /// The interfaces whose link goes down and up when the machine has moved. One whose link is down stays as it is.
    pub fn refreshed_links(&self) -> Vec<String> {
        let refreshed = |interface: &&v1::Interface| {
            let method = self.plugin_of(interface).and_then(|plugin| plugin.migration?.method);
            interface.state.as_ref().is_none_or(|state| state.as_str() == InterfaceState::Up.as_str())
                && method.is_some_and(|method| method.as_str() == LINK_REFRESH)
        };
        let interfaces = &self.spec.domain.devices.interfaces;
        interfaces.iter().filter(refreshed).map(|interface| interface.name.clone()).collect()
    }
}

/// Whether the sidecar of a plugin is told what the networks say of their devices.
pub fn is_told_of_device(plugin: &v1::InterfaceBindingPlugin) -> bool {
    plugin.downward_api.as_ref().is_some_and(|kind| kind.as_str() == DEVICE_INFO)
}

/// The value of [`annotation::BINDING_PLUGINS`] for a machine of `object`'s specification: what the plugins are registered with
/// that its interfaces name. None where these name no registered one.
pub fn noted(object: &Value, config: &v1::KubeVirtConfiguration) -> Option<String> {
    let named = named(object);
    let plugins: Plugins = registered(config)
        .filter(|(name, _)| named.iter().any(|(_, wanted)| *wanted == **name))
        .map(|(name, plugin)| (name.clone(), plugin.clone()))
        .collect();
    if plugins.is_empty() { None } else { serde_json::to_string(&plugins).ok() }
}

/// The interfaces that name a plugin other than `passt`: their places and the plugins' names.
fn named(object: &Value) -> Vec<(usize, String)> {
    let interfaces = object["spec"]["domain"]["devices"]["interfaces"].as_array();
    let name = |(n, interface): (usize, &Value)| {
        Some((n, interface["binding"]["name"].as_str().filter(|name| *name != PASST_PLUGIN)?.to_owned()))
    };
    interfaces.into_iter().flatten().enumerate().filter_map(name).collect()
}

fn registered(
    config: &v1::KubeVirtConfiguration,
) -> impl Iterator<Item = (&String, &v1::InterfaceBindingPlugin)> {
    config.network.iter().flat_map(|network| &network.binding)
}

/// Judges the plugins that the interfaces of a machine name; `config` has what is registered.
pub(crate) fn check(object: &Value, config: &v1::KubeVirtConfiguration, problems: &mut Problems) {
    for (n, name) in named(object) {
        let field = format!("spec.domain.devices.interfaces[{n}].binding.name");
        let Some((_, plugin)) = registered(config).find(|(known, _)| **known == name) else {
            let known: Vec<&str> = registered(config).map(|(known, _)| known.as_str()).collect();
            let known = [&[PASST_PLUGIN], &known[..]].concat().join(", ");
            let allowed = format!(
                "a plugin that spec.configuration.network.binding of the KubeVirt object registers is allowed, or {PASST_PLUGIN}: {known}"
            );
            problems.invalid(field, &name, &allowed);
            continue;
        };
        if let Some(lacks) = unusable(plugin) {
            problems.add(
                Reason::FieldValueNotSupported,
                field,
                format!("the plugin {name} has {lacks} (spec.configuration.network.binding[{name}] of the KubeVirt object)"),
            );
        }
    }
}

/// Judges whether a new machine notes each registered plugin that its interfaces name. The replica of virt-api that noted them
/// may have learned of a registration later than the one that judges; nothing would join such an interface with the pod.
pub(crate) fn check_noted(object: &Value, config: &v1::KubeVirtConfiguration, problems: &mut Problems) {
    let text = object["metadata"]["annotations"][annotation::BINDING_PLUGINS].as_str();
    let noted: Plugins = text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    for (n, name) in named(object) {
        if !noted.contains_key(&name) && registered(config).any(|(known, _)| *known == name) {
            problems.add(
                Reason::FieldValueInvalid,
                format!("spec.domain.devices.interfaces[{n}].binding.name"),
                format!(
                    "the plugin {name} was registered a moment ago, and not every replica of virt-api knew it when this \
                     machine was made: make it again"
                ),
            );
        }
    }
}

/// Why podvirt cannot use a plugin of this registration.
fn unusable(plugin: &v1::InterfaceBindingPlugin) -> Option<String> {
    let kind = plugin.domain_attachment_type.as_ref().filter(|kind| !kind.is_empty());
    let has_sidecar = plugin.sidecar_image.as_ref().is_some_and(|image| !image.is_empty());
    match kind.map(DomainAttachmentType::as_str) {
        None if !has_sidecar => {
            return Some(
                "neither a domainAttachmentType nor a sidecarImage: nothing joins the guest with the pod"
                    .into(),
            );
        }
        None | Some(TAP | MANAGED_TAP) => {}
        Some(other) => {
            return Some(format!("the domainAttachmentType '{other}'; {TAP} and {MANAGED_TAP} are allowed"));
        }
    }
    let told =
        plugin.downward_api.as_ref().map(v1::NetworkBindingDownwardApiType::as_str).unwrap_or_default();
    if !["", DEVICE_INFO].contains(&told) {
        return Some(format!("the downwardAPI '{told}'; {DEVICE_INFO} is allowed"));
    }
    let method = plugin.migration.as_ref().and_then(|migration| migration.method.as_ref());
    let method = method.map(v1::MigrationMethod::as_str).unwrap_or_default();
    (!["", LINK_REFRESH].contains(&method))
        .then(|| format!("the migration.method '{method}'; {LINK_REFRESH} is allowed"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config(binding: &Value) -> v1::KubeVirtConfiguration {
        serde_json::from_value(json!({"network": {"binding": binding}})).unwrap()
    }

    fn machine(bindings: Value, registered: &Value) -> VirtualMachineInstance {
        let mut object = json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": {"name": "vm"},
            "spec": {"domain": {"devices": {"interfaces": bindings}}},
        });
        if let Some(text) = noted(&object, &config(registered)) {
            object["metadata"]["annotations"] = json!({annotation::BINDING_PLUGINS: text});
        }
        VirtualMachineInstance::from_value(object).unwrap()
    }

    #[test]
    fn a_registration_says_what_joins_guest_and_pod() {
        let registered = json!({
            "flat": {"domainAttachmentType": "managedTap"},
            "own": {"domainAttachmentType": "tap", "networkAttachmentDefinition": "net/own"},
            "user": {"sidecarImage": "registry.example/user:1"},
            "idle": {"sidecarImage": "registry.example/idle:1"},
        });
        let named = |name: &str| json!({"name": name, "binding": {"name": name}});
        let vmi = machine(
            json!([named("flat"), named("own"), named("user"), named("passt"), named("none"), {"name": "b", "bridge": {}}, {"name": "v", "sriov": {}}]),
            &registered,
        );
        let interfaces = &vmi.spec.domain.devices.interfaces;
        let joints: Vec<Joint> = interfaces.iter().map(|interface| vmi.joint(interface)).collect();
        use Joint::{Bridge, Device, ManagedTap, Netd, Sidecar, Tap};
        assert_eq!(joints, [ManagedTap, Tap, Sidecar, Netd, Sidecar, Bridge, Device]);
        let taps: Vec<bool> = joints.iter().map(|joint| joint.has_tap()).collect();
        assert_eq!(taps, [true, true, false, false, false, true, false]);
        let noted = of(&vmi.metadata.annotations);
        assert_eq!(noted.keys().collect::<Vec<_>>(), ["flat", "own", "user"], "those alone that it names");
        let wire: v1::VirtualMachineInstance = serde_json::from_value(json!({
            "metadata": {"annotations": vmi.metadata.annotations},
            "spec": {"domain": {"devices": {"interfaces": [named("own"), named("user")]}}},
        }))
        .unwrap();
        assert!(wire.has_taps());
        assert_eq!(wire.joint(&wire.spec.domain.devices.interfaces[0]), Tap);
        assert!(machine(json!([named("passt")]), &registered).metadata.annotations.is_empty());
    }

    #[test]
    fn a_registration_says_what_is_told_of_devices_and_which_links_are_refreshed() {
        let registered = json!({
            "fresh": {"domainAttachmentType": "tap", "migration": {"method": "link-refresh"}},
            "still": {"domainAttachmentType": "tap", "migration": {}},
            "told": {"sidecarImage": "i", "downwardAPI": "device-info"},
        });
        let vmi: v1::VirtualMachineInstance = serde_json::from_value(json!({
            "metadata": {"annotations": {annotation::BINDING_PLUGINS: registered.to_string()}},
            "spec": {"domain": {"devices": {"interfaces": [
                {"name": "a", "binding": {"name": "fresh"}}, {"name": "b", "binding": {"name": "still"}},
                {"name": "c", "binding": {"name": "fresh"}, "state": "down"}, {"name": "d", "binding": {"name": "told"}},
                {"name": "e", "binding": {"name": "fresh"}, "state": "up"}, {"name": "f", "masquerade": {}},
                {"name": "g", "sriov": {}}, {"name": "h", "sriov": {}, "state": "absent"},
            ]}}},
        }))
        .unwrap();
        assert_eq!(vmi.refreshed_links(), ["a", "e"]);
        let interfaces = &vmi.spec.domain.devices.interfaces;
        let told: Vec<_> = interfaces.iter().filter(|i| vmi.is_told_of_device(i)).map(|i| &i.name).collect();
        assert_eq!(told, ["d", "g"]);
    }

    #[test]
    fn a_plugin_that_is_registered_and_not_noted_is_refused() {
        let registered = config(&json!({"own": {"domainAttachmentType": "tap"}}));
        let said = |noted_by: &v1::KubeVirtConfiguration| {
            let mut object = json!({"spec": {"domain": {"devices": {"interfaces": [
                {"name": "a", "binding": {"name": "own"}}, {"name": "b", "binding": {"name": "passt"}},
            ]}}}});
            if let Some(text) = noted(&object, noted_by) {
                object["metadata"]["annotations"] = json!({annotation::BINDING_PLUGINS: text});
            }
            let mut problems = Problems::default();
            check_noted(&object, &registered, &mut problems);
            problems.0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
        };
        assert_eq!(said(&registered), "");
        let late = said(&config(&json!({})));
        assert!(late.contains("interfaces[0].binding.name") && late.contains("make it again"), "{late}");
    }

    #[test]
    fn what_is_not_registered_or_not_carried_out_is_refused() {
        let said = |plugin: &str, registered: &Value| {
            let object = json!({"spec": {"domain": {"devices": {"interfaces": [
                {"name": "a", "masquerade": {}}, {"name": "b", "binding": {"name": plugin}},
            ]}}}});
            let mut problems = Problems::default();
            check(&object, &config(registered), &mut problems);
            problems.0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
        };
        let field = "spec.domain.devices.interfaces[1].binding.name: ";
        let registered = json!({
            "flat": {"domainAttachmentType": "managedTap", "migration": {"method": "link-refresh"}},
            "user": {"sidecarImage": "i", "downwardAPI": "device-info", "migration": {}},
        });
        for known in ["flat", "user", "passt"] {
            assert_eq!(said(known, &registered), "");
        }
        let refused = said("other", &registered);
        assert!(
            refused.starts_with(&format!("{field}'other' is not allowed;"))
                && refused.ends_with(": passt, flat, user"),
            "{refused}"
        );
        for (plugin, part) in [
            (json!({}), "neither a domainAttachmentType nor a sidecarImage"),
            (
                json!({"domainAttachmentType": "hub"}),
                "the domainAttachmentType 'hub'; tap and managedTap are allowed",
            ),
            (
                json!({"sidecarImage": "i", "downwardAPI": "pod-info"}),
                "the downwardAPI 'pod-info'; device-info is allowed",
            ),
            (
                json!({"domainAttachmentType": "tap", "migration": {"method": "reset"}}),
                "the migration.method 'reset'; link-refresh is allowed",
            ),
        ] {
            let refused = said("x", &json!({"x": plugin}));
            assert!(
                refused.starts_with(field)
                    && refused.contains(part)
                    && refused.contains("network.binding[x]"),
                "{refused}"
            );
        }
    }
}
