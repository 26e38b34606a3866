//! Whether changed blocks of a machine's disks are tracked, so that its backups can be incremental ([`podvirt_api::backup`]).
//!
//! # Theory of operation
//!
//! The KubeVirt object selects machines, by their labels or by those of their namespaces
//! (`changedBlockTrackingLabelSelectors`), while the feature gate is open. A disk has an overlay from the start of its guest to
//! its end, so a change takes effect with the next instance. The instance is told at its making; virt-handler tells from then on how
//! it is.
//!
//! ```text
//!                      selected                                  not selected, or the gate is closed
//!  no instance         Initializing; Enabled stays               Disabled; with a closed gate IncrementalBackupFeatureGateDisabled
//!                                                                where the selectors select, else nothing
//!  instance with none  PendingRestart                            as without an instance
//!  instance has some   as the instance says                      PendingRestart
//! ```
//!
//! A machine of which nothing was ever said has no state at all while it is not selected.

use std::collections::BTreeMap;

use podvirt_api::backup::{self, GATE};
use podvirt_api::gates;
use podvirt_api::selector::Selector;
use podvirt_api::v1::{
    ChangedBlockTrackingState as State, ChangedBlockTrackingStatus as Status, KubeVirtConfiguration,
    VirtualMachine, VirtualMachineInstance,
};

use super::decide::{Action, Instance, Plan};

/// What the cluster's configuration says of a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    /// Whether the feature gate is open.
    pub(super) is_allowed: bool,
    /// Whether the selectors select the machine.
    pub(super) is_selected: bool,
}

/// Whether labels of namespaces matter.
pub(super) fn asks_for_namespace(config: &KubeVirtConfiguration) -> bool {
    let selectors = config.changed_block_tracking_label_selectors.as_ref();
    selectors.is_some_and(|selectors| selectors.namespace_label_selector.is_some())
}

/// What `config` says of `vm`, whose namespace has the labels `namespace`.
pub(super) fn wanted(
    vm: &VirtualMachine,
    namespace: &BTreeMap<String, String>,
    config: &KubeVirtConfiguration,
) -> Wanted {
    let none = BTreeMap::new();
    let labels = vm.metadata.labels.as_ref().unwrap_or(&none);
    let selectors = config.changed_block_tracking_label_selectors.as_ref();
    let is_selected = selectors.is_some_and(|selectors| {
        [
            (&selectors.virtual_machine_label_selector, labels),
            (&selectors.namespace_label_selector, namespace),
        ]
        .into_iter()
        // A selector that cannot be read selects nothing.
        .any(|(selector, labels)| Selector::of(selector.as_ref()).is_ok_and(|it| it.matches(labels)))
    });
    Wanted { is_allowed: gates::is_open(config, GATE), is_selected }
}

/// Writes into `plan` what the status of the machine is to say, and what an instance is told that the plan makes.
pub(super) fn follow(vm: &VirtualMachine, instance: Instance<'_>, wanted: Wanted, plan: &mut Plan) {
    let vmi = match instance {
        Instance::Own(vmi) => Some(vmi),
        Instance::None | Instance::Orphan(_) | Instance::Foreign(_) => None,
    };
    plan.status.changed_block_tracking = told(vm, vmi, wanted);
    if let Some(Action::Start(vmi)) = &mut plan.action {
        vmi.status.changed_block_tracking = of_new(vm, wanted);
    }
}

/// What the status of the machine is to say; none: nothing.
fn told(vm: &VirtualMachine, vmi: Option<&VirtualMachineInstance>, wanted: Wanted) -> Option<Status> {
    let known = vm.status.changed_block_tracking.as_ref();
    let state = next(known, vmi, wanted)?;
    Some(Status { state, ..Status::default() })
}

fn next(known: Option<&Status>, vmi: Option<&VirtualMachineInstance>, wanted: Wanted) -> Option<State> {
    let of_instance = vmi.map(|vmi| backup::state(vmi.status.changed_block_tracking.as_ref()));
    let has_some = matches!(of_instance, Some(State::Initializing | State::Enabled));
    if wanted.is_allowed && wanted.is_selected {
        return Some(match of_instance {
            None if known.is_some_and(|known| known.state == State::Enabled) => State::Enabled,
            None => State::Initializing,
            Some(state) if has_some => state,
            Some(_) => State::PendingRestart,
        });
    }
    if has_some {
        return Some(State::PendingRestart);
    }
    match (wanted.is_allowed, wanted.is_selected) {
        (false, true) => Some(State::IncrementalBackupFeatureGateDisabled),
        (false, false) => None,
        (true, _) => known.map(|_| State::Disabled),
    }
}

/// What a new instance is told; none: nothing.
fn of_new(vm: &VirtualMachine, wanted: Wanted) -> Option<Status> {
    let state = match (wanted.is_allowed, wanted.is_selected) {
        (true, true) => State::Initializing,
        (true, false) if vm.status.changed_block_tracking.is_some() => State::Disabled,
        _ => return None,
    };
    Some(Status { state, ..Status::default() })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn vm(state: Option<&str>) -> VirtualMachine {
        let tracking = state.map(|state| json!({ "state": state }));
        serde_json::from_value(
            json!({"metadata": {"name": "vm", "labels": {"backup": "nightly"}}, "spec": {},
            "status": {"changedBlockTracking": tracking}}),
        )
        .unwrap()
    }

    fn vmi(state: Option<&str>) -> VirtualMachineInstance {
        let tracking = state.map(|state| json!({ "state": state }));
        serde_json::from_value(json!({"metadata": {"name": "vm"}, "spec": {"domain": {"devices": {}}},
            "status": {"changedBlockTracking": tracking}}))
        .unwrap()
    }

    const SELECTED: Wanted = Wanted { is_allowed: true, is_selected: true };
    const OTHER: Wanted = Wanted { is_allowed: true, is_selected: false };
    const CLOSED: Wanted = Wanted { is_allowed: false, is_selected: true };
    const NOTHING: Wanted = Wanted { is_allowed: false, is_selected: false };

    #[test]
    fn the_state_follows_from_instance_and_selection() {
        for (wanted, known, instance, next) in [
            (SELECTED, None, None, Some("Initializing")),
            (SELECTED, Some("Disabled"), None, Some("Initializing")),
            (SELECTED, Some("Enabled"), None, Some("Enabled")),
            (SELECTED, None, Some(None), Some("PendingRestart")),
            (SELECTED, Some("Disabled"), Some(Some("Disabled")), Some("PendingRestart")),
            (SELECTED, Some("PendingRestart"), Some(Some("Initializing")), Some("Initializing")),
            (SELECTED, Some("Initializing"), Some(Some("Enabled")), Some("Enabled")),
            (OTHER, None, None, None),
            (OTHER, None, Some(None), None),
            (OTHER, Some("Enabled"), Some(Some("Enabled")), Some("PendingRestart")),
            (OTHER, Some("PendingRestart"), Some(Some("Disabled")), Some("Disabled")),
            (OTHER, Some("Enabled"), None, Some("Disabled")),
            (CLOSED, Some("Enabled"), Some(Some("Enabled")), Some("PendingRestart")),
            (CLOSED, Some("Enabled"), None, Some("IncrementalBackupFeatureGateDisabled")),
            (CLOSED, None, Some(None), Some("IncrementalBackupFeatureGateDisabled")),
            (NOTHING, Some("Enabled"), None, None),
        ] {
            let vmi = instance.map(vmi);
            let told = told(&vm(known), vmi.as_ref(), wanted);
            let told = told.map(|told| told.state.as_str().to_owned());
            assert_eq!(told.as_deref(), next, "{wanted:?} {known:?} {instance:?}");
        }
    }

    #[test]
    fn a_new_instance_begins_to_be_tracked_or_is_told_that_it_is_not() {
        let told = |known, wanted| of_new(&vm(known), wanted).map(|told| told.state.as_str().to_owned());
        assert_eq!(told(Some("Enabled"), SELECTED).as_deref(), Some("Initializing"));
        assert_eq!(told(Some("PendingRestart"), OTHER).as_deref(), Some("Disabled"));
        assert_eq!((told(None, OTHER), told(Some("Enabled"), CLOSED)), (None, None));
    }

    #[test]
    fn selectors_are_about_machines_or_their_namespaces() {
        let config = |selectors: Value, gates: Value| -> KubeVirtConfiguration {
            serde_json::from_value(json!({"changedBlockTrackingLabelSelectors": selectors,
                "developerConfiguration": {"featureGates": gates}}))
            .unwrap()
        };
        let labels = |key: &str| BTreeMap::from([(key.to_owned(), "true".to_owned())]);
        let of_machine = json!({"virtualMachineLabelSelector": {"matchLabels": {"backup": "nightly"}}});
        let of_namespace = json!({"namespaceLabelSelector": {"matchLabels": {"tracked": "true"}}});
        let gate = json!(["IncrementalBackup"]);
        let said = |selectors: &Value, namespace: &str| {
            wanted(&vm(None), &labels(namespace), &config(selectors.clone(), gate.clone()))
        };
        assert_eq!(said(&of_machine, "other"), SELECTED);
        assert_eq!(said(&of_namespace, "tracked"), SELECTED);
        assert_eq!(said(&of_namespace, "other"), OTHER);
        assert_eq!(said(&Value::Null, "tracked"), OTHER);
        let unreadable = json!({"virtualMachineLabelSelector": {"matchExpressions": [{"key": "backup", "operator": "Has"}]}});
        assert_eq!(said(&unreadable, "other"), OTHER);
        assert_eq!(wanted(&vm(None), &labels("x"), &config(of_machine.clone(), json!([]))), CLOSED);
        assert!(asks_for_namespace(&config(of_namespace, Value::Null)));
        assert!(!asks_for_namespace(&config(of_machine, Value::Null)));
    }
}
