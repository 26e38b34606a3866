//! Interfaces that come and go while the machine runs: what the pod has of them, and what it takes to get the rest.
//!
//! # Theory of operation
//!
//! The launcher's pod was made for the interfaces that its machine had then. What the specification asks for beyond that
//! gets to the pod in one of two ways:
//!
//! - *In place.* The pod's annotation [`NETWORKS`] is written to say what is wanted. A controller of dynamic networks, if
//!   the cluster has one, has Multus attach the running pod, or detach it, and Multus tells by [`NETWORK_STATUS`].
//! - *By a migration.* The pod that the machine moves into is made with all of it. Where that is the only way, which is so
//!   for an interface whose netd the pod lacks, the condition `MigrationRequired` is true at once, and otherwise when
//!   nothing has come of the first way within [`GRACE`]. Until then it is false, and names what is waited for.
//!
//! `status.interfaces[]` joins this with the guest's side, which virt-handler writes: an entry has the source
//! `multus-status` while the pod is attached to the network, and `domain` while the guest has the device. virt-handler has
//! the device plugged when the first is there, and the entry of an unplugged interface goes when both are gone; then the
//! interface leaves the specification.
//!
//! Everything here follows from what is seen, at each look. Nothing is done while the machine moves: which pod counts is
//! not certain then.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use podvirt_api::migration::{is_under_way, migratable};
use podvirt_api::names::annotation::{NETWORK_INFO, NETWORK_STATUS, NETWORKS};
use podvirt_api::names::condition::{self as conditions, FALSE, TRUE, reason};
use podvirt_api::names::{event, pod as pod_names};
use podvirt_api::netd::{ENVIRONMENT, NetdSpec};
use podvirt_api::plugin::Joint;
use podvirt_api::v1::{
    Interface, Network, VirtualMachineInstance, VirtualMachineInstanceNetworkInterface as Told,
    VirtualMachineInstancePhase as Phase,
};
use serde_json::Value;

use super::decide::{Action, Decision};
use super::observe;
use super::status::{condition, phase, remove_condition, set_condition};
use crate::template::{self, MULTUS_STATUS};

/// How long a controller of dynamic networks has to attach a running pod (upstream's time).
pub(super) const GRACE: Duration = Duration::from_secs(15);

/// What a pod lacks of an interface.
#[derive(Debug, PartialEq, Eq)]
enum Lack {
    /// Only a pod that is made anew can have it, or be without it.
    Pod(String),
    /// A controller of dynamic networks may attach this pod to the network, or detach it.
    Network(String),
}

/// Brings the status and the pod's annotation to what is there and what is wanted.
pub(super) fn follow(pod: &Pod, decision: &mut Decision, now: Timestamp) {
    let vmi = &mut decision.vmi;
    let moves = vmi.status.migration_state.as_ref().is_some_and(is_under_way);
    if phase(vmi) != Phase::Running || vmi.metadata.deletion_timestamp.is_some() || moves {
        return;
    }
    sources(vmi, pod);
    if let Some(value) = selections(vmi, pod) {
        decision.actions.push(Action::annotate(pod, [(NETWORKS, Some(value))]));
    }
    require(pod, decision, now);
}

/// Has the pods of the machine told what their networks say of their devices, as soon as Multus has said it: what starts in
/// them waits for it, also in one that the machine is to move into.
pub(super) fn tell(pods: &[Arc<Pod>], decision: &mut Decision) {
    for pod in pods.iter().filter(|pod| !observe::is_done(pod) && !observe::is_terminating(pod)) {
        let known = pod.metadata.annotations.as_ref().and_then(|all| all.get(NETWORK_INFO));
        if let Some(value) = template::network_info(&decision.vmi, pod).filter(|told| known != Some(told)) {
            decision.actions.push(Action::annotate(pod, [(NETWORK_INFO, Some(value))]));
        }
    }
}

/// Notes in the status which networks the pod is attached to.
fn sources(vmi: &mut VirtualMachineInstance, pod: &Pod) {
    let attached = template::attached(vmi, pod);
    let secondary = secondary(vmi).map(|(_, network)| network.name.clone()).collect::<Vec<_>>();
    let of = |name: &String| attached.iter().find(|told| told.name.as_ref() == Some(name));
    for name in &secondary {
        match vmi.status.interfaces.iter_mut().find(|told| told.name.as_ref() == Some(name)) {
            None => vmi.status.interfaces.extend(of(name).cloned()),
            Some(told) => told.info_source = source(told.info_source.as_deref(), of(name).is_some()),
        }
    }
    vmi.status.interfaces.retain(|told| {
        told.info_source.is_some() || !told.name.as_ref().is_some_and(|name| secondary.contains(name))
    });
}

/// The sources, with Multus among them or without.
fn source(known: Option<&str>, attached: bool) -> Option<String> {
    let known = known.unwrap_or_default().split(", ").filter(|word| !word.is_empty());
    let mut words: Vec<&str> = known.collect();
    match (words.contains(&MULTUS_STATUS), attached) {
        (false, true) => words.push(MULTUS_STATUS),
        (true, false) => words.retain(|word| *word != MULTUS_STATUS),
        _ => {}
    }
    Some(words.join(", ")).filter(|words| !words.is_empty())
}

/// Interfaces on networks of Multus beside the pod's own.
fn secondary(vmi: &VirtualMachineInstance) -> impl Iterator<Item = (&Interface, &Network)> {
    let networks = vmi.spec.networks.iter().filter(|n| n.multus.is_some() && !n.is_primary());
    networks.filter_map(|network| {
        let interfaces = &vmi.spec.domain.devices.interfaces;
        Some((interfaces.iter().find(|interface| interface.name == network.name)?, network))
    })
}

fn told<'a>(vmi: &'a VirtualMachineInstance, name: &str) -> Option<&'a Told> {
    vmi.status.interfaces.iter().find(|told| told.name.as_deref() == Some(name))
}

fn has(told: Option<&Told>, source: &str) -> bool {
    let known = told.and_then(|told| told.info_source.as_deref()).unwrap_or_default();
    known.split(", ").any(|word| word == source)
}

/// What the pod's annotation has to be, where it is otherwise. What is there of a network stays as it is: a controller of
/// dynamic networks looks at networks that come and go alone. A network is taken out once the guest has let go of it.
fn selections(vmi: &VirtualMachineInstance, pod: &Pod) -> Option<String> {
    let read = |text: &str| serde_json::from_str::<Vec<Value>>(text).ok();
    let present = pod.metadata.annotations.as_ref().and_then(|all| all.get(NETWORKS));
    let mut list = present.map_or_else(|| Some(Vec::new()), |text| read(text))?;
    let wanted = template::networks(vmi).ok()?.map_or_else(|| Some(Vec::new()), |text| read(&text))?;
    let interface = |value: &Value| value["interface"].as_str().map(str::to_owned);
    let present: BTreeSet<_> = list.iter().filter_map(interface).collect();
    let left: BTreeSet<_> = secondary(vmi)
        .filter(|(interface, _)| interface.is_absent() && !has(told(vmi, &interface.name), DOMAIN))
        .map(|(_, network)| pod_names::interface(&network.name))
        .collect();
    list.retain(|value| interface(value).is_none_or(|name| !left.contains(&name)));
    list.extend(
        wanted.into_iter().filter(|value| interface(value).is_some_and(|name| !present.contains(&name))),
    );
    let after: BTreeSet<_> = list.iter().filter_map(interface).collect();
    (after != present).then(|| Value::from(list).to_string())
}

/// Source of what the guest's devices tell.
const DOMAIN: &str = "domain";

/// Says whether it takes a migration.
fn require(pod: &Pod, decision: &mut Decision, now: Timestamp) {
    let kind = conditions::MIGRATION_REQUIRED;
    let lacks: Vec<Lack> = secondary(&decision.vmi)
        .filter_map(|(interface, network)| lack(&decision.vmi, interface, network, pod))
        .collect();
    let at_once = lacks.iter().any(|lack| matches!(lack, Lack::Pod(_)));
    let said: Vec<&str> = lacks.iter().map(|(Lack::Pod(said) | Lack::Network(said))| said.as_str()).collect();
    let status = &decision.vmi.status;
    let known = condition(status, kind).map(|c| (c.status == TRUE, c.last_transition_time.clone().flatten()));
    if said.is_empty() {
        remove_condition(&mut decision.vmi.status, kind);
        return;
    }
    let left = match &known {
        _ if at_once => Duration::ZERO,
        Some((true, _)) => Duration::ZERO,
        Some((false, since)) => {
            let waited = since.as_ref().map(|since| now.duration_since(since.0));
            GRACE.saturating_sub(waited.and_then(|w| Duration::try_from(w).ok()).unwrap_or_default())
        }
        None => GRACE,
    };
    if !left.is_zero() {
        let message = format!("{}; a controller of dynamic networks may see to it", said.join("; "));
        set_condition(&mut decision.vmi.status, kind, FALSE, reason::AUTO_MIGRATION_PENDING, &message, now);
        decision.look_again = Some(decision.look_again.map_or(left, |other| other.min(left)));
        return;
    }
    let message = match migratable(&decision.vmi) {
        Ok(()) => format!("{}; a migration sees to it", said.join("; ")),
        Err(why) => format!(
            "{}; a migration would see to it, but the machine cannot be migrated: {why}; start it anew",
            said.join("; ")
        ),
    };
    let reason = reason::AUTO_MIGRATION_DUE_TO_LIVE_UPDATE;
    set_condition(&mut decision.vmi.status, kind, TRUE, reason, &message, now);
    if !matches!(known, Some((true, _))) {
        decision.warn(event::MIGRATION_REQUIRED, message);
    }
}

/// What `pod` lacks of an interface, or has too much.
fn lack(vmi: &VirtualMachineInstance, interface: &Interface, network: &Network, pod: &Pod) -> Option<Lack> {
    let name = &interface.name;
    let told = told(vmi, name);
    let attached = has(told, MULTUS_STATUS);
    if interface.is_absent() {
        let left = attached && !has(told, DOMAIN);
        return left
            .then(|| Lack::Network(format!("interface {name}: the pod is attached to its network still")));
    }
    if vmi.joint(interface) == Joint::Netd && !has_netd(pod, name) {
        return Some(Lack::Pod(format!("interface {name}: the pod has no netd for it")));
    }
    if vmi.joint(interface).has_tap() && !has_tun(pod) {
        return Some(Lack::Pod(format!("interface {name}: the pod has no {}", pod_names::TUN_DEVICE)));
    }
    if !attached {
        return Some(Lack::Network(format!("interface {name}: the pod is not attached to its network")));
    }
    let wanted = template::attachment_of(vmi, network)?;
    let other = network_of(pod, &pod_names::interface(&network.name)).filter(|there| *there != wanted)?;
    Some(Lack::Pod(format!("interface {name}: the pod is attached to {other}, not to {wanted}")))
}

/// Whether the pod has a netd that was made for the interface.
fn has_netd(pod: &Pod, interface: &str) -> bool {
    let containers = pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
    let specs = containers
        .flat_map(|container| container.env.iter().flatten())
        .filter(|variable| variable.name == ENVIRONMENT)
        .filter_map(|variable| serde_json::from_str::<NetdSpec>(variable.value.as_deref()?).ok());
    specs.into_iter().any(|spec| spec.interface == interface)
}

/// Whether QEMU may open tap devices in the pod.
fn has_tun(pod: &Pod) -> bool {
    let compute = pod.spec.iter().flat_map(|spec| &spec.containers).find(|c| c.name == pod_names::COMPUTE);
    let limits = compute.and_then(|compute| compute.resources.as_ref()?.limits.as_ref());
    limits.is_some_and(|limits| limits.contains_key(pod_names::TUN_DEVICE))
}

/// Namespace and name of the network that Multus has made this interface of the pod for.
fn network_of(pod: &Pod, interface: &str) -> Option<String> {
    let text = pod.metadata.annotations.as_ref()?.get(NETWORK_STATUS)?;
    let known: Vec<Value> = serde_json::from_str(text).ok()?;
    let found = known.iter().find(|network| network["interface"].as_str() == Some(interface))?;
    found["name"].as_str().map(str::to_owned)
}

#[cfg(test)]
#[path = "nics_tests.rs"]
mod tests;
