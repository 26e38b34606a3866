//! Hooks for backup tools: annotations of the launcher pod by which Velero, and tools that read the same, run a program in the pod
//! before they take its volumes, and after it.
//!
//! The program is `virt-freezer` in the container `compute`. It has the guest's agent freeze the guest's file systems, and thaw them.
//! A machine switches the hooks off by [`annotation::SKIP_BACKUP_HOOKS`]; where the machine does not have the annotation, the KubeVirt
//! object's counts. Hooks that a user has written into such a machine's annotations are the user's own, and reach the pod as they are.

use std::collections::BTreeMap;

use podvirt_api::names::{annotation, pod};
use podvirt_api::v1::VirtualMachineInstance;

/// Path of the program in the launcher's image.
const PROGRAM: &str = "/usr/bin/virt-freezer";
/// How long a backup tool waits for the freeze.
const TIMEOUT: &str = "60s";
/// Values of the annotation that switch the hooks off: what upstream reads as true.
const TRUE: [&str; 6] = ["1", "t", "T", "TRUE", "true", "True"];

/// Whether this value of [`annotation::SKIP_BACKUP_HOOKS`] switches the hooks off.
pub(crate) fn are_off(value: &str) -> bool {
    TRUE.contains(&value)
}

/// The annotations that the launcher pod of `vmi` is to have for backup tools; `None`: it is to have none of this key. `off` is what
/// the KubeVirt object says.
pub(crate) fn backup_hooks(
    vmi: &VirtualMachineInstance,
    off: bool,
) -> BTreeMap<&'static str, Option<String>> {
    let own = |key: &str| vmi.metadata.annotations.as_ref().and_then(|all| all.get(key));
    let off = own(annotation::SKIP_BACKUP_HOOKS).map_or(off, |value| are_off(value));
    let meta = &vmi.metadata;
    let (name, namespace) =
        (meta.name.as_deref().unwrap_or_default(), meta.namespace.as_deref().unwrap_or_default());
    let command =
        |wish| format!(r#"["{PROGRAM}", "{wish}", "--name", "{name}", "--namespace", "{namespace}"]"#);
    let hooks = [
        (annotation::PRE_BACKUP_CONTAINER, pod::COMPUTE.to_owned()),
        (annotation::PRE_BACKUP_COMMAND, command("--freeze")),
        (annotation::PRE_BACKUP_TIMEOUT, TIMEOUT.to_owned()),
        (annotation::POST_BACKUP_CONTAINER, pod::COMPUTE.to_owned()),
        (annotation::POST_BACKUP_COMMAND, command("--unfreeze")),
    ];
    hooks.map(|(key, value)| (key, if off { own(key).cloned() } else { Some(value) })).into()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn hooks(annotations: Value, off: bool) -> BTreeMap<&'static str, Option<String>> {
        let meta = json!({"name": "web", "namespace": "shop", "annotations": annotations});
        let domain = json!({"memory": {"guest": "64Mi"}, "devices": {}});
        let vmi = json!({"metadata": meta, "spec": {"domain": domain}});
        backup_hooks(&serde_json::from_value(vmi).unwrap(), off)
    }

    #[test]
    fn hooks_freeze_the_guest_before_a_backup_and_thaw_it_after() {
        let all = hooks(Value::Null, false);
        for (key, value) in [
            ("pre.hook.backup.velero.io/container", "compute"),
            (
                "pre.hook.backup.velero.io/command",
                r#"["/usr/bin/virt-freezer", "--freeze", "--name", "web", "--namespace", "shop"]"#,
            ),
            ("pre.hook.backup.velero.io/timeout", "60s"),
            ("post.hook.backup.velero.io/container", "compute"),
            (
                "post.hook.backup.velero.io/command",
                r#"["/usr/bin/virt-freezer", "--unfreeze", "--name", "web", "--namespace", "shop"]"#,
            ),
        ] {
            assert_eq!(all[key].as_deref(), Some(value), "{key}");
        }
        assert_eq!(all.len(), 5);
        let command: Vec<String> =
            serde_json::from_str(all[annotation::PRE_BACKUP_COMMAND].as_ref().unwrap()).unwrap();
        assert_eq!(command.len(), 6, "a list in JSON, for Velero");
    }

    #[test]
    fn the_machines_word_counts_before_the_kubevirt_objects() {
        let skip = |value: &str| json!({"kubevirt.io/skip-backup-hooks": value});
        for (annotations, off, there) in [
            (json!({}), false, true),
            (json!({}), true, false),
            (skip("true"), false, false),
            (skip("True"), true, false),
            (skip("false"), true, true),
            (skip("yes"), true, true),
        ] {
            let found = hooks(annotations.clone(), off);
            assert!(found.values().all(|value| value.is_some() == there), "{annotations} {off}");
        }
    }

    #[test]
    fn a_machine_without_hooks_may_have_its_own() {
        let own = |skip: &str| json!({"kubevirt.io/skip-backup-hooks": skip, "pre.hook.backup.velero.io/command": "[\"sync\"]"});
        let command = |all: BTreeMap<_, Option<String>>| all[annotation::PRE_BACKUP_COMMAND].clone().unwrap();
        assert_eq!(command(hooks(own("true"), false)), "[\"sync\"]");
        assert!(command(hooks(own("false"), false)).contains("virt-freezer"));
    }
}
