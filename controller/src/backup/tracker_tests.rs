use podvirt_api::v1::{VirtualMachine, VirtualMachineBackupTracker as Tracker, VirtualMachineInstance};
use serde_json::{Value, json};

use super::fixtures::{tracker, vmi, with_checkpoint};
use super::tracker::{Action, Observed, decide, is_pending};

fn vm(state: &str) -> VirtualMachine {
    let vm = json!({"metadata": {"name": "vm"}, "spec": {"template": {}},
        "status": {"changedBlockTracking": {"state": state}}});
    serde_json::from_value(vm).unwrap()
}

fn decided(tracker: &Tracker, state: &str, vmi: Option<&VirtualMachineInstance>) -> Option<Action> {
    decide(&Observed { tracker, vm: Some(&vm(state)), vmi })
}

/// A tracker whose checkpoint is known at `place`, and which is marked or not.
fn known(place: &str, is_marked: bool) -> Tracker {
    let mut of = with_checkpoint();
    of["metadata"]["annotations"]["backup.podvirt.io/defined-for"] = place.into();
    of["status"]["checkpointRedefinitionRequired"] = if is_marked { json!(true) } else { Value::Null };
    tracker(&of)
}

#[test]
fn a_checkpoint_is_redefined_where_it_is_not_known() {
    let (here, redefine) =
        (vmi(&json!({})), Action::Redefine(known("", true).status.latest_checkpoint.unwrap()));
    let starting = vmi(
        &json!({"status": {"phase": "Scheduled", "nodeName": null, "changedBlockTracking": {"state": "Initializing"}}}),
    );
    let initializing = vmi(&json!({"status": {"changedBlockTracking": {"state": "Initializing"}}}));
    let moving = vmi(&json!({"status": {"migrationState": {"migrationUid": "m"}}}));
    let moved =
        json!({"status": {"nodeName": "other", "migrationState": {"migrationUid": "m", "completed": true}}});
    let moved = vmi(&moved);
    let untracked = vmi(&json!({"status": {"changedBlockTracking": {"state": "Disabled"}}}));
    let ended = vmi(&json!({"status": {"phase": "Succeeded"}}));
    let deleted = vmi(&json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
    for (place, is_marked, vmi, wanted) in [
        ("i/n", false, &here, None),
        ("i/n", true, &here, Some(Action::Unmark)),
        ("i/n", false, &initializing, None),
        ("i/n", false, &moved, Some(Action::Mark)),
        ("i/n", true, &moved, Some(redefine.clone())),
        ("i/other", false, &moved, None),
        ("former/n", false, &starting, Some(Action::Mark)),
        ("former/n", true, &starting, None),
        ("former/n", true, &initializing, Some(redefine.clone())),
        ("former/n", true, &here, Some(redefine)),
        ("former/n", false, &moving, None),
        ("former/n", true, &moving, None),
        ("former/n", false, &untracked, None),
        ("former/n", true, &untracked, None),
        ("former/n", false, &ended, None),
        ("former/n", true, &deleted, None),
    ] {
        let tracker = known(place, is_marked);
        assert_eq!(decided(&tracker, "Enabled", Some(vmi)), wanted, "{place} {is_marked} {:?}", vmi.status);
    }
    assert_eq!(decided(&known("former/n", false), "Enabled", None), None);
}

#[test]
fn a_checkpoint_goes_where_changes_are_not_tracked() {
    for (state, goes) in [
        ("Disabled", true),
        ("IncrementalBackupFeatureGateDisabled", true),
        ("Enabled", false),
        ("PendingRestart", false),
        ("Initializing", false),
        // The gate is closed and the selectors select nothing, or the machine is another one of the same name.
        ("", true),
    ] {
        let found = decided(&known("i/n", false), state, None);
        assert_eq!(found, goes.then(|| Action::Forget("c".into())), "{state}");
    }
    let bare = tracker(&json!({}));
    assert_eq!(decided(&bare, "Disabled", None), None);
    let marked = tracker(&json!({"status": {"checkpointRedefinitionRequired": true}}));
    assert_eq!(decided(&marked, "Enabled", None), Some(Action::Unmark));
}

#[test]
fn a_backup_waits_for_what_its_instance_does_not_know() {
    let here = vmi(&json!({}));
    assert!(!is_pending(&known("i/n", false), &here));
    assert!(is_pending(&known("i/n", true), &here));
    assert!(is_pending(&known("i/other", false), &here));
    assert!(is_pending(&known("former/n", false), &here));
    assert!(!is_pending(&tracker(&json!({"status": {"checkpointRedefinitionRequired": true}})), &here));
}
