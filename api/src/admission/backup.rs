//! VirtualMachineBackups and their trackers: what the schema does not judge, in upstream's words where upstream judges it.
//!
//! | judged | by |
//! |---|---|
//! | source, `mode`, `pvcName`, `tokenSecretRef`, that the specification stays | the schema's own rules |
//! | the feature gate, `ttlDuration` | here |
//! | that a machine has one backup at a time | virt-controller, by which the later one waits |

use serde_json::Value;

use crate::backup::GATE;
use crate::problem::{Problems, Reason};
use crate::{duration, gates, v1};

/// Judges a new backup.
pub fn validate_backup(object: &Value, config: &v1::KubeVirtConfiguration) -> Problems {
    let mut problems = gate(config);
    if let Some(ttl) = object["spec"]["ttlDuration"].as_str().filter(|ttl| duration::parse(ttl).is_none()) {
        problems.invalid("spec.ttlDuration", ttl, "a span of time is, like 30m or 2h");
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
    fn both_modes_are_allowed_and_a_life_is_a_span_of_time() {
        let judged = |spec: Value| told(&validate_backup(&json!({ "spec": spec }), &config(&[GATE])));
        assert_eq!(judged(json!({"mode": "Push"})), [""; 0]);
        assert_eq!(judged(json!({"mode": "Pull", "tokenSecretRef": "t", "ttlDuration": "1h30m"})), [""; 0]);
        for ttl in ["soon", "", "-5m", "5"] {
            let found = judged(json!({"mode": "Pull", "ttlDuration": ttl}));
            assert!(
                found[0].starts_with("spec.ttlDuration: ") && found[0].contains("30m or 2h"),
                "{found:?}"
            );
        }
    }

    #[test]
    fn what_no_controller_could_read_is_refused() {
        let object = json!({"spec": {"forceFullBackup": "yes"}});
        assert_eq!(validate_backup(&object, &config(&[GATE])).0[0].field, "spec");
        let object = json!({"spec": {"source": {"kind": 1}}});
        assert_eq!(validate_tracker(&object, &config(&[GATE])).0[0].field, "spec");
    }
}
