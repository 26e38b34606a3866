//! What a VirtualMachine's DataVolumes mean to it: a pure function of the machine and the cache.

use podvirt_api::cdi::{DataVolume, Phase};
use podvirt_api::names::{annotation, event};
use podvirt_api::storage::{claim, is_hotpluggable};
use podvirt_api::v1::{DataVolumeTemplateSpec, VirtualMachine, Volume};

use super::{DataVolumes, Served};
use crate::claim::{Ownership, is_of_predecessor, ownership};

/// Kind of the owner of a template's DataVolume.
const VIRTUAL_MACHINE: &str = "VirtualMachine";

/// What is seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Look {
    /// Places in `spec.dataVolumeTemplates` of those whose DataVolume is not there.
    pub missing: Vec<usize>,
    /// Whether the missing ones are made although the machine is not to start yet.
    pub immediate: bool,
    /// Whether the machine may start as far as its templates go.
    pub ready: bool,
    /// Whether it is not known yet which DataVolumes there are.
    pub is_unknown: bool,
    /// What a start waits for first, for people.
    pub waits_for: Option<String>,
    /// Reason and message of what keeps the machine from starting and does not go on by itself.
    pub problem: Option<(&'static str, String)>,
    /// Whether CDI fills the claim of a volume.
    pub fills: bool,
    /// Whether a DataVolume of a volume has an error.
    pub fails: bool,
    /// Claims of the machine's volumes that are no DataVolume's.
    pub claims: Vec<String>,
    /// Whether a claim of the machine's volumes has no storage yet.
    pub unbound: bool,
}

impl Default for Look {
    /// Of a machine without DataVolumes.
    fn default() -> Self {
        Look {
            missing: Vec::new(),
            immediate: true,
            ready: true,
            is_unknown: false,
            waits_for: None,
            problem: None,
            fills: false,
            fails: false,
            claims: Vec::new(),
            unbound: false,
        }
    }
}

/// The name in a template; empty where there is none, which admission refuses.
pub fn name_of(template: &DataVolumeTemplateSpec) -> &str {
    template.metadata.as_ref().and_then(|metadata| metadata.name.as_deref()).unwrap_or_default()
}

/// Looks at the DataVolumes of `vm`, a machine with what it names in its template.
pub fn look(vm: &VirtualMachine, known: &DataVolumes) -> Look {
    let namespace = vm.metadata.namespace.as_deref().unwrap_or_default();
    let annotations = vm.metadata.annotations.as_ref();
    let later = annotations
        .and_then(|all| all.get(annotation::IMMEDIATE_DATA_VOLUMES))
        .is_some_and(|said| said == "false");
    let mut look = Look { immediate: !later, ..Look::default() };
    let templates = &vm.spec.data_volume_templates;
    if !templates.is_empty() && known.served() != Served::Yes {
        look.ready = false;
        look.is_unknown = known.served() == Served::Unknown;
        if known.served() == Served::No {
            let message = "spec.dataVolumeTemplates: this cluster has no DataVolumes (cdi.kubevirt.io/v1beta1); install CDI";
            look.problem = Some((event::FAILED_DATA_VOLUME_CREATE, message.into()));
        }
    } else {
        for (n, template) in templates.iter().enumerate() {
            observe_template(n, vm, known.get(namespace, name_of(template)).as_deref(), &mut look);
        }
    }
    let volumes =
        vm.spec.template.as_ref().and_then(|template| template.spec.as_ref()).map(|spec| &spec.volumes);
    // What is plugged once the machine runs does not keep it from starting.
    for volume in volumes.into_iter().flatten().filter(|volume| !is_hotpluggable(volume)) {
        observe_volume(volume, namespace, known, &mut look);
    }
    look
}

fn observe_template(n: usize, vm: &VirtualMachine, found: Option<&DataVolume>, look: &mut Look) {
    let Some(found) = found else {
        look.missing.push(n);
        look.ready = false;
        return;
    };
    // Its claim, and so the disk, goes with it.
    if ownership(&vm.metadata, &found.metadata) == Ownership::Leaving
        || is_of_predecessor(&vm.metadata, VIRTUAL_MACHINE, &found.metadata)
    {
        look.ready = false;
        let name = found.metadata.name.as_deref().unwrap_or_default();
        look.waits_for.get_or_insert_with(|| format!("DataVolume {name} is being deleted"));
        return;
    }
    if matches!(found.phase(), Phase::Usable | Phase::WaitsForConsumer) {
        return;
    }
    look.ready = false;
    look.waits_for.get_or_insert_with(|| found.progress());
    let error = found.error().or_else(|| found.beyond_quota());
    if let Some(error) = error.filter(|_| look.problem.is_none()) {
        look.problem = Some((event::FAILED_DATA_VOLUME_IMPORT, error));
    }
}

fn observe_volume(volume: &Volume, namespace: &str, known: &DataVolumes, look: &mut Look) {
    let Some(claim) = claim(volume) else { return };
    let data = volume.data_volume.as_ref().and_then(|data| known.get(namespace, &data.name));
    let Some(data) = data else {
        look.claims.push(claim.name.to_owned());
        return;
    };
    look.fails |= data.error().is_some();
    let bound = data.condition("Bound").is_some_and(|condition| condition.status == "True");
    match data.phase() {
        Phase::Usable => look.unbound |= !bound,
        Phase::WaitsForConsumer => {
            look.unbound |= !bound;
            look.fills |= bound;
        }
        Phase::Filling | Phase::Failed => look.fills = true,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn machine(more: Value) -> VirtualMachine {
        let mut vm = json!({
            "metadata": {"name": "vm", "namespace": "ns"},
            "spec": {
                "dataVolumeTemplates": [{"metadata": {"name": "root"}, "spec": {}}, {"metadata": {"name": "data"}, "spec": {}}],
                "template": {"spec": {"domain": {"devices": {}}, "volumes": [
                    {"name": "a", "dataVolume": {"name": "root"}}, {"name": "b", "persistentVolumeClaim": {"claimName": "data"}},
                ]}},
            },
        });
        json_patch::merge(&mut vm, &more);
        serde_json::from_value(vm).unwrap()
    }

    fn volume(name: &str, phase: &str, bound: &str) -> DataVolume {
        serde_json::from_value(
            json!({"metadata": {"name": name, "namespace": "ns"}, "status": {"phase": phase,
            "conditions": [{"type": "Bound", "status": bound}]}}),
        )
        .unwrap()
    }

    fn seen(vm: &VirtualMachine, volumes: Vec<DataVolume>) -> Look {
        let (known, _writer) = DataVolumes::with(volumes);
        look(vm, &known)
    }

    #[test]
    fn a_machine_starts_once_each_template_is_usable_or_waits_for_it() {
        let vm = machine(json!({}));
        let none = seen(&vm, vec![]);
        assert_eq!((none.missing, none.ready, none.immediate, none.problem), (vec![0, 1], false, true, None));
        let filling =
            seen(&vm, vec![volume("root", "Succeeded", "True"), volume("data", "ImportInProgress", "True")]);
        assert_eq!(
            (filling.missing, filling.ready, filling.fills),
            (vec![], false, false),
            "of the volumes' own DataVolumes"
        );
        assert_eq!(filling.waits_for.unwrap(), "DataVolume data: ImportInProgress");
        let ready = seen(
            &vm,
            vec![
                volume("root", "PendingPopulation", "False"),
                volume("data", "WaitForFirstConsumer", "False"),
            ],
        );
        assert_eq!((ready.ready, ready.unbound, ready.fills), (true, true, false));
        assert_eq!(ready.claims, ["data"]);
        let later = machine(
            json!({"metadata": {"annotations": {"kubevirt.io/immediate-data-volume-creation": "false"}}}),
        );
        assert!(!seen(&later, vec![]).immediate);
    }

    #[test]
    fn what_the_garbage_collector_deletes_is_waited_for_and_neither_used_nor_made() {
        let vm = machine(json!({"metadata": {"uid": "n2"}}));
        let by = |kind: &str, name: &str, uid: &str, deleted: Value| {
            let owner =
                json!({"apiVersion": "v1", "kind": kind, "name": name, "uid": uid, "controller": true});
            let mut root = serde_json::to_value(volume("root", "Succeeded", "True")).unwrap();
            json_patch::merge(
                &mut root,
                &json!({"metadata": {"ownerReferences": [owner], "deletionTimestamp": deleted}}),
            );
            let root = serde_json::from_value(root).unwrap();
            let look = seen(&vm, vec![root, volume("data", "Succeeded", "True")]);
            assert_eq!(look.missing, Vec::<usize>::new());
            (look.ready, look.waits_for)
        };
        let goes = (false, Some("DataVolume root is being deleted".to_owned()));
        assert_eq!(by("VirtualMachine", "vm", "n1", Value::Null), goes, "of a machine of the name before");
        assert_eq!(by("VirtualMachine", "vm", "n2", json!("2026-03-01T12:00:00Z")), goes);
        for (kind, name, uid) in
            [("VirtualMachine", "vm", "n2"), ("VirtualMachine", "db", "d1"), ("Importer", "vm", "i1")]
        {
            assert_eq!(by(kind, name, uid, Value::Null), (true, None), "{kind} {name} {uid}");
        }
    }

    #[test]
    fn what_does_not_go_on_by_itself_is_a_problem() {
        let vm = machine(json!({}));
        let failed = seen(&vm, vec![volume("root", "Failed", "True"), volume("data", "Succeeded", "True")]);
        let (reason, message) = failed.problem.unwrap();
        assert_eq!((reason, message.as_str()), ("FailedDataVolumeImport", "DataVolume root has failed"));
        assert!(failed.fails && !failed.ready);
    }

    #[test]
    fn a_cluster_without_the_kind_is_a_problem_of_templates_alone() {
        let (unknown, _writer) = DataVolumes::new();
        let vm = machine(json!({}));
        let look_ = look(&vm, &unknown);
        assert_eq!((look_.ready, look_.problem), (false, None), "not known yet");
        let none = machine(json!({"spec": {"dataVolumeTemplates": null}}));
        let look_ = look(&none, &unknown);
        assert_eq!((look_.ready, look_.claims), (true, vec!["root".to_owned(), "data".to_owned()]));
    }
}
