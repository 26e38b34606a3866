//! VirtualMachineBackups and their trackers: what the schema does not judge, in upstream's words where upstream judges it.
//!
//! | judged | by |
//! |---|---|
//! | source, `pvcName`, `tokenSecretRef`, that the specification stays | the schema's own rules |
//! | the feature gate, `spec.mode` | here |
//! | that a machine has one backup at a time | virt-controller, by which the later one waits |

use serde_json::Value;

use crate::backup::GATE;
use crate::gates;
use crate::problem::{Problems, Reason};
use crate::v1;

/// Judges a new backup.
pub fn validate_backup(object: &Value, config: &v1::KubeVirtConfiguration) -> Problems {
    let mut problems = gate(config);
    let mode = object["spec"]["mode"].as_str().filter(|mode| !mode.is_empty());
    if let Some(mode) = mode.filter(|mode| *mode != v1::BackupMode::Push.as_str()) {
        let allowed = "Push is allowed: podvirt does not carry out pull mode";
        let told = format!("'{mode}' is not supported by podvirt; {allowed}");
        problems.add(Reason::FieldValueNotSupported, "spec.mode", told);
    }
    super::snapshot::readable::<v1::VirtualMachineBackup>(object, &mut problems);
    problems
}

/// Judges a new tracker.
pub fn validate_tracker(object: &Value, config: &v1::KubeVirtConfiguration) -> Problems {
    let mut problems = gate(config);
    super::snapshot::readable::<v1::VirtualMachineBackupTracker>(object, &mut problems);
    problems
}

fn gate(config: &v1::KubeVirtConfiguration) -> Problems {
    let mut problems = Problems::default();
    if !gates::is_open(config, GATE) {
        problems.add(Reason::FieldValueInvalid, "spec", format!("{GATE} feature gate not enabled"));
    }
    problems
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn told(problems: &Problems) -> Vec<String> {
        problems.0.iter().map(ToString::to_string).collect()
    }

    fn config(gates: &[&str]) -> v1::KubeVirtConfiguration {
        serde_json::from_value(json!({"developerConfiguration": {"featureGates": gates}})).unwrap()
    }

    #[test]
    fn the_gate_has_to_be_open() {
        let object = json!({"spec": {"source": {"kind": "VirtualMachine", "name": "vm"}, "pvcName": "to"}});
        let closed = ["spec: IncrementalBackup feature gate not enabled"];
        for judge in [validate_backup, validate_tracker] {
            assert_eq!(told(&judge(&object, &config(&["Snapshot"]))), closed);
            assert_eq!(told(&judge(&object, &config(&[GATE]))), [""; 0]);
        }
    }

    #[test]
    fn what_is_pulled_is_refused() {
        let judged = |mode: Value| told(&validate_backup(&json!({"spec": {"mode": mode}}), &config(&[GATE])));
        assert_eq!(judged(json!("Push")), [""; 0]);
        assert_eq!(judged(Value::Null), [""; 0]);
        let wanted = "spec.mode: 'Pull' is not supported by podvirt; Push is allowed: podvirt does not carry out pull mode";
        assert_eq!(judged(json!("Pull")), [wanted]);
    }

    #[test]
    fn what_no_controller_could_read_is_refused() {
        let object = json!({"spec": {"forceFullBackup": "yes"}});
        assert_eq!(validate_backup(&object, &config(&[GATE])).0[0].field, "spec");
        let object = json!({"spec": {"source": {"kind": 1}}});
        assert_eq!(validate_tracker(&object, &config(&[GATE])).0[0].field, "spec");
    }
}
