use std::sync::Arc;

use jiff::SignedDuration;
use podvirt_api::v1::KubeVirtConfiguration;
use serde_json::json;

use super::super::decide::{Observed, decide};
use super::*;
use crate::settings::Settings;
use crate::template::{Images, launcher_pod};

fn at(seconds: i64) -> Timestamp {
    "2026-01-01T12:00:00Z".parse::<Timestamp>().unwrap() + SignedDuration::from_secs(seconds)
}

/// A machine that runs, with these interfaces beside the pod's own, each on the network `net-<name>`; its status has these.
fn machine(nics: &[(&str, &str, &str)], told: Value) -> VirtualMachineInstance {
    let interfaces =
        nics.iter().map(|(name, binding, state)| json!({"name": name, *binding: {}, "state": state}));
    let networks =
        nics.iter().map(|(name, ..)| json!({"name": name, "multus": {"networkName": format!("net-{name}")}}));
    let own = json!({"name": "default", "passtBinding": {}});
    serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "shop", "uid": "m1", "labels": {"kubevirt.io/nodeName": "n1"}},
        "spec": {
            "domain": {"memory": {"guest": "64Mi"},
                "devices": {"interfaces": std::iter::once(own).chain(interfaces).collect::<Value>()}},
            "networks": std::iter::once(json!({"name": "default", "pod": {}})).chain(networks).collect::<Value>(),
        },
        "status": {"phase": "Running", "nodeName": "n1", "activePods": {"p1": "n1"}, "interfaces": told,
            "conditions": [{"type": "LiveMigratable", "status": "True"}]},
    }))
    .unwrap()
}

/// The pod that was made for `vmi`, attached to networks by name of interface and network.
fn pod(vmi: &VirtualMachineInstance, attached: &[(&str, &str)]) -> Arc<Pod> {
    let images = Images { launcher: "l".into(), ..Images::default() };
    let mut pod = launcher_pod(vmi, &KubeVirtConfiguration::default(), &images).unwrap();
    pod.metadata.uid = Some("p1".into());
    pod.spec.as_mut().unwrap().node_name = Some("n1".into());
    pod.status = serde_json::from_value(json!({"phase": "Running"})).unwrap();
    let status: Value = attached
        .iter()
        .map(|(name, network)| json!({"name": network, "interface": pod_names::interface(name), "mac": "02:00:00:00:00:05"}))
        .collect();
    let annotations = pod.metadata.annotations.as_mut().unwrap();
    annotations.insert(NETWORK_STATUS.into(), status.to_string());
    Arc::new(pod)
}

fn look(vmi: &VirtualMachineInstance, pod: &Arc<Pod>, now: Timestamp) -> Decision {
    let settings = Settings::default();
    let pods = [pod.clone()];
    let seen = Observed { pods: &pods, ..Observed::alone(vmi, &settings, "l") };
    decide(&seen, now)
}

fn required(vmi: &VirtualMachineInstance) -> Option<(&str, &str)> {
    let found = condition(&vmi.status, conditions::MIGRATION_REQUIRED)?;
    Some((found.status.as_str(), found.message.as_deref().unwrap_or_default()))
}

/// The networks that the pod's annotation is to have.
fn annotated(decision: &Decision) -> Option<Vec<String>> {
    decision.actions.iter().find_map(|action| match action {
        Action::Annotate { annotations, .. } => {
            let list: Vec<Value> = serde_json::from_str(annotations.get(NETWORKS)?.as_ref()?).unwrap();
            Some(list.iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect())
        }
        _ => None,
    })
}

fn sources_of(vmi: &VirtualMachineInstance) -> Vec<(&str, &str)> {
    let told = vmi.status.interfaces.iter();
    told.map(|t| (t.name.as_deref().unwrap_or_default(), t.info_source.as_deref().unwrap_or_default()))
        .collect()
}

#[test]
fn a_new_bridge_is_asked_for_in_place_and_after_the_grace_by_a_migration() {
    let before = machine(&[("one", "bridge", "up")], json!([]));
    let pod = pod(&before, &[("one", "shop/net-one")]);
    let told = json!([{"name": "default", "infoSource": "domain"}, {"name": "one", "infoSource": "domain"}]);
    let vmi = machine(&[("one", "bridge", "up"), ("two", "bridge", "up")], told);

    let first = look(&vmi, &pod, at(0));
    assert_eq!(annotated(&first), Some(vec!["net-one".into(), "net-two".into()]));
    let (status, message) = required(&first.vmi).unwrap();
    assert_eq!(status, "False");
    assert!(message.starts_with("interface two: the pod is not attached to its network;"), "{message}");
    assert_eq!(first.look_again, Some(GRACE));
    assert_eq!(sources_of(&first.vmi), [("default", "domain"), ("one", "domain, multus-status")]);

    let later = look(&first.vmi, &pod, at(14));
    assert_eq!((required(&later.vmi).unwrap().0, later.look_again), ("False", Some(Duration::from_secs(1))));
    let due = look(&later.vmi, &pod, at(15));
    assert_eq!(required(&due.vmi).unwrap().0, "True");
    assert!(
        due.notes.iter().any(|note| note.warning && note.reason == "MigrationRequired"),
        "{:?}",
        due.notes
    );
    let again = look(&due.vmi, &pod, at(99));
    assert_eq!((required(&again.vmi).unwrap().0, again.notes.len()), ("True", 0), "told once");
}

#[test]
fn a_pod_that_was_attached_in_place_needs_no_migration() {
    let vmi = machine(&[("one", "bridge", "up"), ("two", "bridge", "up")], json!([{"name": "one"}]));
    let attached = pod(&vmi, &[("one", "shop/net-one"), ("two", "shop/net-two")]);
    let decision = look(&look(&vmi, &pod(&vmi, &[]), at(0)).vmi, &attached, at(20));
    assert_eq!((required(&decision.vmi), annotated(&decision)), (None, None));
    let two = decision.vmi.status.interfaces.iter().find(|told| told.name.as_deref() == Some("two")).unwrap();
    assert_eq!(two.info_source.as_deref(), Some("multus-status"));
    assert_eq!(two.pod_interface_name, Some(pod_names::interface("two")));
}

#[test]
fn what_others_have_added_to_the_pods_networks_stays() {
    let before = machine(&[("one", "bridge", "up"), ("two", "bridge", "up")], json!([]));
    let mut pod = (*pod(&before, &[("one", "shop/net-one"), ("two", "shop/net-two")])).clone();
    // As a controller of IPAMClaims does it while the pod is made.
    let annotations = pod.metadata.annotations.as_mut().unwrap();
    let mut list: Vec<Value> = serde_json::from_str(&annotations[NETWORKS]).unwrap();
    for (element, claim) in list.iter_mut().zip(["web.one", "web.two"]) {
        element["ipam-claim-reference"] = claim.into();
    }
    annotations.insert(NETWORKS.into(), Value::from(list).to_string());
    let told = json!([{"name": "one", "infoSource": "domain, multus-status"}, {"name": "two", "infoSource": "multus-status"}]);
    let vmi =
        machine(&[("one", "bridge", "up"), ("two", "bridge", "absent"), ("three", "bridge", "up")], told);
    let decision = look(&vmi, &Arc::new(pod), at(0));
    let written = decision.actions.iter().find_map(|action| match action {
        Action::Annotate { annotations, .. } => {
            serde_json::from_str::<Vec<Value>>(annotations.get(NETWORKS)?.as_ref()?).ok()
        }
        _ => None,
    });
    let claims: Vec<(String, Value)> = written
        .unwrap()
        .into_iter()
        .map(|one| (one["name"].as_str().unwrap().to_owned(), one["ipam-claim-reference"].clone()))
        .collect();
    assert_eq!(claims, [("net-one".to_owned(), json!("web.one")), ("net-three".to_owned(), Value::Null)]);
}

#[test]
fn what_the_pod_cannot_get_takes_a_migration_at_once() {
    let bare = machine(&[], json!([]));
    let bridged = machine(&[("one", "bridge", "up")], json!([]));
    for (made_for, binding, why) in [
        (&bare, "passtBinding", "interface two: the pod has no netd for it;"),
        (&bare, "bridge", "interface two: the pod has no devices.kubevirt.io/tun;"),
        (&bridged, "passtBinding", "interface two: the pod has no netd for it;"),
    ] {
        let vmi = machine(&[("two", binding, "up")], json!([]));
        let decision = look(&vmi, &pod(made_for, &[]), at(0));
        let (status, message) = required(&decision.vmi).unwrap();
        assert_eq!(status, "True", "{message}");
        assert!(message.starts_with(why) && message.ends_with("a migration sees to it"), "{message}");
        assert_eq!(required(&look(&decision.vmi, &pod(&vmi, &[("two", "shop/net-two")]), at(1)).vmi), None);
    }
    let mut fixed = machine(&[("two", "passtBinding", "up")], json!([]));
    fixed.status.conditions = serde_json::from_value(
        json!([{"type": "LiveMigratable", "status": "False", "message": "volume root"}]),
    )
    .unwrap();
    let decision = look(&fixed, &pod(&bare, &[]), at(0));
    assert!(required(&decision.vmi).unwrap().1.contains("cannot be migrated: volume root; start it anew"));
}

#[test]
fn another_network_takes_a_migration() {
    let vmi = machine(&[("one", "bridge", "up")], json!([{"name": "one", "infoSource": "domain"}]));
    let decision = look(&vmi, &pod(&vmi, &[("one", "shop/other")]), at(0));
    let (status, message) = required(&decision.vmi).unwrap();
    assert_eq!(status, "True");
    assert!(
        message.starts_with("interface one: the pod is attached to shop/other, not to shop/net-one"),
        "{message}"
    );
    assert_eq!(annotated(&decision), None);
}

#[test]
fn an_unplugged_interface_leaves_the_pod_after_the_guest() {
    let told = |source: &str| json!([{"name": "one", "infoSource": source}]);
    let pod = pod(&machine(&[("one", "bridge", "up")], json!([])), &[("one", "shop/net-one")]);
    let absent = |source: &str| machine(&[("one", "bridge", "absent")], told(source));
    let held = look(&absent("domain, multus-status"), &pod, at(0));
    assert_eq!((annotated(&held), required(&held.vmi)), (None, None), "the guest has it");

    let released = look(&absent("multus-status"), &pod, at(0));
    assert_eq!(annotated(&released), Some(vec![]));
    assert_eq!(required(&released.vmi).unwrap().0, "False");
    let due = look(&released.vmi, &pod, at(16));
    let (status, message) = required(&due.vmi).unwrap();
    assert_eq!(status, "True");
    assert!(message.starts_with("interface one: the pod is attached to its network still"), "{message}");

    // The pod at a migration's target was never attached; a pod may also be detached in place.
    let other = self::pod(&due.vmi, &[]);
    let gone = look(&due.vmi, &other, at(17));
    assert_eq!((required(&gone.vmi), sources_of(&gone.vmi), annotated(&gone)), (None, vec![], None));
}

#[test]
fn nothing_is_done_while_the_machine_moves_or_does_not_run() {
    let vmi = machine(&[("one", "bridge", "up")], json!([]));
    let bare = pod(&machine(&[], json!([])), &[]);
    for status in [
        json!({"phase": "Running", "migrationState": {"migrationUid": "u", "sourcePod": "p1", "targetPod": "t"}}),
        json!({"phase": "Scheduled"}),
        json!({"phase": "Failed"}),
    ] {
        let mut other = vmi.clone();
        other.status = serde_json::from_value(status).unwrap();
        let mut decision =
            Decision { vmi: other.clone(), actions: Vec::new(), notes: Vec::new(), look_again: None };
        follow(&bare, &mut decision, at(0));
        assert_eq!((decision.vmi, decision.actions.len()), (other, 0));
    }
}

#[test]
fn a_pod_is_told_what_multus_says_of_devices() {
    for told in [json!({"name": "red", "binding": {"name": "told"}}), json!({"name": "red", "sriov": {}})] {
        is_told_of_the_device(told);
    }
}

/// The pod of a machine with a bridge, and with the interface `red`, which is told of its device.
fn is_told_of_the_device(red: Value) {
    let registered = json!({"told": {"sidecarImage": "i", "downwardAPI": "device-info"}});
    let mut vmi = machine(&[("blue", "bridge", "up"), ("red", "bridge", "up")], json!([]));
    vmi.status.phase = Some(Phase::Scheduling);
    vmi.metadata.annotations =
        Some([("podvirt.io/binding-plugins".to_owned(), registered.to_string())].into());
    vmi.spec.domain.devices.interfaces[2] = serde_json::from_value(red).unwrap();
    let told = |decision: &Decision| {
        decision.actions.iter().find_map(|action| match action {
            Action::Annotate { annotations, .. } => annotations.get(NETWORK_INFO)?.clone(),
            _ => None,
        })
    };
    let mut there = Arc::unwrap_or_clone(pod(&vmi, &[("blue", "shop/net-blue")]));
    assert_eq!(told(&look(&vmi, &Arc::new(there.clone()), at(0))), None, "Multus has not said anything yet");
    let device = json!({"type": "pci", "version": "1.0.0", "pci": {"pci-address": "0000:65:00.2"}});
    let status = json!([
        {"name": "shop/net-blue", "interface": pod_names::interface("blue"), "mac": "02:00:00:00:00:05"},
        {"name": "shop/net-red", "interface": pod_names::interface("red"), "mac": "", "device-info": device},
    ]);
    let annotations = there.metadata.annotations.get_or_insert_default();
    annotations.insert(NETWORK_STATUS.into(), status.to_string());
    let value = told(&look(&vmi, &Arc::new(there.clone()), at(0))).unwrap();
    let expected = json!({"interfaces": [{"network": "red", "deviceInfo": device}]});
    assert_eq!(serde_json::from_str::<Value>(&value).unwrap(), expected);
    there.metadata.annotations.get_or_insert_default().insert(NETWORK_INFO.into(), value);
    assert_eq!(told(&look(&vmi, &Arc::new(there), at(0))), None, "once");
}
