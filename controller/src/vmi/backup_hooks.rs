//! Hooks for backup tools on the pods of machines that run.
//!
//! A pod is made with the annotations of [`template::backup_hooks`]. A user may switch the hooks off, or on, while the machine runs:
//! by the machine's annotation, or by that of the KubeVirt object, a change of which has all machines looked at.

use std::sync::Arc;

use futures::{Stream, StreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::controller::ReconcileRequest;
use kube::runtime::reflector::Store;
use kube::runtime::watcher;
use podvirt_api::v1::{VirtualMachineInstance, VirtualMachineInstancePhase as Phase};
use tokio::sync::watch;

use super::decide::{Action, Decision};
use super::status::phase;
use crate::kept;
use crate::settings::Settings;
use crate::template;

/// Has the annotations of the pod of a machine that runs written as they are to be, where they are otherwise.
pub(super) fn follow(pod: &Pod, settings: &Settings, decision: &mut Decision) {
    if phase(&decision.vmi) != Phase::Running {
        return;
    }
    let there = pod.metadata.annotations.as_ref();
    let mut hooks = template::backup_hooks(&decision.vmi, settings.backup_hooks_are_off);
    hooks.retain(|key, value| there.and_then(|all| all.get(*key)) != value.as_ref());
    if !hooks.is_empty() {
        decision.actions.push(Action::annotate(pod, hooks));
    }
}

/// All machines, each time the KubeVirt object switches the hooks off or on.
pub(super) fn of_cluster(
    changes: watch::Receiver<Option<Arc<Settings>>>,
    machines: Store<VirtualMachineInstance>,
) -> impl Stream<Item = Result<ReconcileRequest<VirtualMachineInstance>, watcher::Error>> {
    let before = said(&changes);
    let switched = stream::unfold((changes, before), async |(mut changes, mut before)| {
        loop {
            changes.changed().await.ok()?;
            let now = said(&changes);
            // No machine is looked at before the settings were read for the first time.
            let is_switched = before.is_some() && now != before;
            before = now;
            if is_switched {
                return Some(((), (changes, before)));
            }
        }
    });
    switched.map(move |()| stream::iter(kept::requests(&machines, |_| true))).flatten()
}

/// Whether the hooks are off, as the KubeVirt object says it; none before it was read.
fn said(settings: &watch::Receiver<Option<Arc<Settings>>>) -> Option<bool> {
    settings.borrow().as_ref().map(|settings| settings.backup_hooks_are_off)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use kube::runtime::reflector::store;
    use kube::runtime::watcher::Event;
    use serde_json::{Value, json};

    use super::*;

    fn machine(phase: &str, annotations: &Value) -> VirtualMachineInstance {
        serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "shop", "uid": "m1", "annotations": annotations},
            "spec": {"domain": {"memory": {"guest": "64Mi"}, "devices": {}}},
            "status": {"phase": phase},
        }))
        .unwrap()
    }

    fn settings(backup_hooks_are_off: bool) -> Settings {
        Settings { backup_hooks_are_off, ..Settings::default() }
    }

    /// What is written into the annotations of a pod that was made for `made_for`.
    fn written(made_for: &VirtualMachineInstance, vmi: &VirtualMachineInstance, off: bool) -> Value {
        let images = settings(false).images("launcher:1", Default::default());
        let mut pod = template::launcher_pod(made_for, &Default::default(), &images).unwrap();
        pod.metadata.uid = Some("p1".into());
        let mut decision =
            Decision { vmi: vmi.clone(), actions: Vec::new(), notes: Vec::new(), look_again: None };
        follow(&pod, &settings(off), &mut decision);
        match &decision.actions[..] {
            [] => Value::Null,
            [Action::Annotate { uid, annotations, .. }] if uid == "p1" => json!(annotations),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_pod_gets_and_loses_its_hooks_with_one_write() {
        let off = json!({"kubevirt.io/skip-backup-hooks": "true"});
        let (with, without) = (machine("Running", &json!({})), machine("Running", &off));
        assert_eq!(written(&with, &with, false), Value::Null);
        assert_eq!(written(&without, &without, false), Value::Null);
        let none = json!({
            "pre.hook.backup.velero.io/container": null, "pre.hook.backup.velero.io/command": null,
            "pre.hook.backup.velero.io/timeout": null, "post.hook.backup.velero.io/container": null,
            "post.hook.backup.velero.io/command": null,
        });
        assert_eq!(written(&with, &without, false), none);
        assert_eq!(written(&with, &with, true), none, "by the KubeVirt object");
        let back = written(&without, &with, false);
        assert_eq!(
            (back.as_object().unwrap().len(), &back["pre.hook.backup.velero.io/timeout"]),
            (5, &json!("60s"))
        );
        assert_eq!(written(&with, &machine("Scheduled", &off), false), Value::Null, "once it runs");
    }

    #[test]
    fn all_machines_are_looked_at_when_the_kubevirt_object_switches_the_hooks_alone() {
        let (machines, mut writer) = store();
        for event in [Event::Init, Event::InitApply(machine("Running", &json!({}))), Event::InitDone] {
            writer.apply_watcher_event(&event);
        }
        let (sender, receiver) = watch::channel(None);
        let mut stream = Box::pin(of_cluster(receiver, machines));
        let mut asked = |settings: Settings| {
            sender.send_replace(Some(Arc::new(settings)));
            let found = stream.next().now_or_never().flatten().map(|request| request.unwrap().obj_ref.name);
            assert!(stream.next().now_or_never().is_none(), "once");
            found
        };
        assert_eq!(asked(settings(false)), None, "read for the first time");
        assert_eq!(asked(settings(true)).as_deref(), Some("web"));
        assert_eq!(asked(Settings { batch: 3, ..settings(true) }), None, "another change");
        assert_eq!(asked(settings(false)).as_deref(), Some("web"));
    }
}
