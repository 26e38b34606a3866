use serde_json::{Value, json};

use super::*;

fn of<T: serde::de::DeserializeOwned>(value: Value) -> Arc<T> {
    Arc::new(serde_json::from_value(value).unwrap())
}

/// The samples of a family, each as its labels' values and its value.
fn samples(families: &[Family], name: &str) -> Vec<(String, f64)> {
    let family = families.iter().find(|family| family.name == name).unwrap();
    let text = |labels: &Labels| labels.iter().map(|(_, v)| v.as_str()).collect::<Vec<_>>().join(" ");
    family.samples.iter().map(|(labels, value)| (text(labels), *value)).collect()
}

#[test]
fn a_machine_has_its_info_and_the_time_of_its_group() {
    let machine = of(json!({
        "metadata": {"name": "web", "namespace": "shop", "creationTimestamp": "1970-01-01T00:00:07Z"},
        "spec": {
            "instancetype": {"name": "small", "kind": "VirtualMachineInstancetype"},
            "template": {
                "metadata": {"annotations": {"vm.kubevirt.io/os": "debian"}},
                "spec": {"domain": {"machine": {"type": "q35"}, "devices": {}}},
            },
        },
        "status": {"printableStatus": "Stopped", "conditions": [
            {"type": "Ready", "status": "False", "lastTransitionTime": "1970-01-01T00:01:00Z"},
            {"type": "LiveMigratable", "status": "True", "lastTransitionTime": "1970-01-01T00:02:00Z"},
        ]},
    }));
    let families = of_machines(&[machine]);
    let info = "web shop debian <none> <none> q35 small <none> stopped non_running";
    assert_eq!(samples(&families, "kubevirt_vm_info"), [(info.to_owned(), 1.0)]);
    let one = |name: &str| samples(&families, name)[0].1;
    assert_eq!(one("kubevirt_vm_create_date_timestamp_seconds"), 7.0);
    assert_eq!(one("kubevirt_vm_non_running_status_last_transition_timestamp_seconds"), 60.0);
    assert_eq!(one("kubevirt_vm_running_status_last_transition_timestamp_seconds"), 0.0);
    assert_eq!(group("ErrorPvcNotFound"), "error");
}

#[test]
fn an_instance_that_is_to_migrate_and_cannot_is_not_evictable() {
    let instance = |name: &str, strategy: &str, migratable: &str| {
        of(json!({
            "metadata": {"name": name, "namespace": "shop"},
            "spec": {"evictionStrategy": strategy, "domain": {"devices": {}}},
            "status": {"nodeName": "node1", "conditions": [{"type": "LiveMigratable", "status": migratable}],
                "migrationState": {
                    "migrationUid": "m", "completed": true, "startTimestamp": "1970-01-01T00:00:01Z",
                    "endTimestamp": "1970-01-01T00:00:03Z",
                },
            },
        }))
    };
    let instances = [
        instance("a", "LiveMigrate", "False"),
        instance("b", "LiveMigrate", "True"),
        instance("c", "None", "False"),
    ];
    let migration =
        of(json!({"metadata": {"name": "move", "namespace": "shop", "uid": "m"}, "spec": {"vmiName": "a"}}));
    let families = of_instances(&instances, &KubeVirtConfiguration::default(), &[migration]);
    let expected = [("node1 shop a", 1.0), ("node1 shop b", 0.0), ("node1 shop c", 0.0)];
    let expected = expected.map(|(labels, value)| (labels.to_owned(), value));
    assert_eq!(samples(&families, "kubevirt_vmi_non_evictable"), expected);
    let begun = &samples(&families, "kubevirt_vmi_migration_start_time_seconds")[0];
    assert_eq!(*begun, ("node1 shop a move".to_owned(), 1.0));
    let ended = &samples(&families, "kubevirt_vmi_migration_end_time_seconds")[0];
    assert_eq!(*ended, ("node1 shop a move succeeded".to_owned(), 3.0));
}

#[test]
fn an_instance_has_its_info_here_until_a_node_has_it() {
    let instance = |name: &str, phase: &str, labels: Value| {
        of(json!({
            "metadata": {"name": name, "namespace": "shop", "uid": name, "labels": labels},
            "spec": {"domain": {"devices": {}}}, "status": {"phase": phase},
        }))
    };
    let on_node = json!({"kubevirt.io/nodeName": "node1"});
    let instances = [
        instance("waits", "Pending", json!({})),
        instance("comes", "Scheduling", json!({})),
        instance("there", "Scheduled", on_node.clone()),
        instance("ended", "Succeeded", on_node),
    ];
    let families = of_instances(&instances, &KubeVirtConfiguration::default(), &[]);
    let family = families.iter().find(|family| family.name == "kubevirt_vmi_info").unwrap();
    let first = |(labels, _): &(Labels, f64)| {
        labels[..4].iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
    };
    let found: Vec<String> = family.samples.iter().map(first).collect();
    let expected =
        ["node= namespace=shop name=waits phase=pending", "node= namespace=shop name=comes phase=scheduling"];
    assert_eq!(found, expected);
    let pod = &family.samples[0].0[16];
    assert!(pod.0 == "vmi_pod" && pod.1.starts_with("virt-launcher-waits-"), "{pod:?}");
}

#[test]
fn migrations_are_counted_by_phase_until_they_are_over() {
    let migration = |name: &str, phase: &str| {
        of(json!({
            "metadata": {"name": name, "namespace": "shop"}, "spec": {"vmiName": "web"}, "status": {"phase": phase},
        }))
    };
    let unseen = of(json!({"metadata": {"name": "u", "namespace": "shop"}, "spec": {"vmiName": "web"}}));
    let phases =
        ["Pending", "Pending", "Scheduling", "Scheduled", "TargetReady", "Running", "Succeeded", "Failed"];
    let mut all: Vec<_> = phases.iter().map(|phase| migration(&phase.to_lowercase(), phase)).collect();
    all.push(unseen);
    let families = of_migrations(&all);
    let count = |phase: &str| samples(&families, &format!("kubevirt_vmi_migrations_in_{phase}_phase"))[0].1;
    assert_eq!(["unset", "pending", "scheduling", "running"].map(count), [1.0, 2.0, 1.0, 3.0]);
    let succeeded = samples(&families, "kubevirt_vmi_migration_succeeded");
    assert_eq!(succeeded, [("web succeeded shop".to_owned(), 1.0)]);
    assert_eq!(samples(&families, "kubevirt_vmi_migration_failed").len(), 1);
}

#[test]
fn a_snapshot_that_is_taken_has_its_time() {
    let snapshot = |name: &str, status: serde_json::Value| {
        of(json!({"metadata": {"name": name, "namespace": "shop"},
            "spec": {"source": {"kind": "VirtualMachine", "name": "web"}}, "status": status}))
    };
    let taken = snapshot("a", json!({"creationTime": "1970-01-01T00:00:07Z"}));
    let families = of_snapshots(&[taken, snapshot("b", json!({"phase": "InProgress"}))]);
    let found = samples(&families, "kubevirt_vmsnapshot_succeeded_timestamp_seconds");
    assert_eq!(found, [("web a shop".to_owned(), 7.0)]);
}
