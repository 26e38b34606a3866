//! What upstream stores with a new instance where the manifest is silent, beside the defaults that podvirt itself goes by.
//!
//! Clients read instances back: they find here what upstream's virt-api would have written. A text that is empty, and a number of
//! a probe that is below 1, say nothing and are replaced.

use serde_json::{Map, Value, json};

use crate::quantity::Quantity;
use crate::v1;

/// What a machine's processor is where nothing says it.
const CPU_MODEL: &str = "host-model";
/// The KubeVirt object's `cpuRequest` where it says nothing; upstream writes any other one into instances.
const CPU_REQUEST: &str = "100m";

/// Sets what the specification of a new instance leaves open.
pub(super) fn fill(spec: &mut Value, config: &v1::KubeVirtConfiguration) {
    let strategy = config.eviction_strategy.as_ref().map_or("None", |strategy| strategy.as_str());
    set(spec, "evictionStrategy", json!(strategy));
    for probe in ["livenessProbe", "readinessProbe"] {
        if let Some(probe) = spec.get_mut(probe) {
            for (name, number) in [
                ("timeoutSeconds", 1),
                ("periodSeconds", 10),
                ("successThreshold", 1),
                ("failureThreshold", 3),
            ] {
                number_at_least_one(probe, name, number);
            }
        }
    }
    for volume in spec.get_mut("volumes").and_then(Value::as_array_mut).into_iter().flatten() {
        let Some(disk) = volume.get_mut("containerDisk") else { continue };
        let image = disk["image"].as_str().unwrap_or_default();
        let policy =
            if image.ends_with(":latest") || !image.contains([':', '@']) { "Always" } else { "IfNotPresent" };
        set(disk, "imagePullPolicy", json!(policy));
    }
    let Some(domain) = spec.get_mut("domain") else { return };
    if let Some(cpu) = domain.get_mut("cpu") {
        set(cpu, "model", json!(CPU_MODEL));
    }
    for (parent, names, field) in [
        ("/clock/timer", &["hpet", "pit", "rtc", "kvm", "hyperv"][..], "present"),
        ("/features", &["acpi", "apic", "smm", "pvspinlock"][..], "enabled"),
    ] {
        for name in names {
            if let Some(one) = domain.pointer_mut(parent).and_then(|parent| parent.get_mut(*name)) {
                set(one, field, json!(true));
            }
        }
    }
    cpu_request(domain, config);
}

/// Writes the processors that the pod asks for: what the limit says, or the cluster.
fn cpu_request(domain: &mut Value, config: &v1::KubeVirtConfiguration) {
    let amount = |value: &Value| {
        let text = value.as_str().map(str::to_owned).or_else(|| value.as_number().map(ToString::to_string));
        text.and_then(|text| text.parse::<Quantity>().ok()).filter(Quantity::is_positive)
    };
    let resources = &domain["resources"];
    if amount(&resources["requests"]["cpu"]).is_some() {
        return;
    }
    let limit = &resources["limits"]["cpu"];
    let of_cluster = config.cpu_request.as_ref().filter(|request| {
        let (given, usual) = (request.0.parse::<Quantity>(), CPU_REQUEST.parse::<Quantity>());
        resources["requests"]["cpu"].is_null() && given.is_ok() && given != usual
    });
    let request = match (amount(limit), of_cluster) {
        (Some(_), _) => limit.clone(),
        (None, Some(request)) => json!(request.0),
        (None, None) => return,
    };
    let Some(domain) = domain.as_object_mut() else { return };
    let resources = super::object_at(domain, "resources");
    if let Some(requests) = resources.and_then(|resources| super::object_at(resources, "requests")) {
        requests.insert("cpu".to_owned(), request);
    }
}

/// Sets a member of an object that has none, or an empty text.
fn set(object: &mut Value, name: &str, value: Value) {
    let Some(map) = object.as_object_mut() else { return };
    if is_open(map, name) {
        map.insert(name.to_owned(), value);
    }
}

fn is_open(map: &Map<String, Value>, name: &str) -> bool {
    map.get(name).is_none_or(|there| there.is_null() || there == "")
}

fn number_at_least_one(object: &mut Value, name: &str, value: i64) {
    let Some(map) = object.as_object_mut() else { return };
    if is_open(map, name) || map.get(name).and_then(Value::as_i64).is_some_and(|number| number < 1) {
        map.insert(name.to_owned(), json!(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_is_stored_as_upstream_stores_it() {
        let mut spec = json!({
            "evictionStrategy": "",
            "readinessProbe": {"tcpSocket": {"port": 22}, "periodSeconds": 0, "failureThreshold": -1, "timeoutSeconds": 5},
            "volumes": [{"containerDisk": {"image": "disk"}}, {"containerDisk": {"image": "r:5000/disk:v1"}},
                {"containerDisk": {"image": "disk:latest", "imagePullPolicy": "Never"}}, {"emptyDisk": {}}],
            "domain": {
                "cpu": {"cores": 1}, "clock": {"timer": {"hpet": {"present": false}, "rtc": {}}},
                "features": {"acpi": {}, "smm": {"enabled": null}, "apic": {"enabled": false}},
                "resources": {"limits": {"cpu": 2}},
            },
        });
        fill(&mut spec, &v1::KubeVirtConfiguration::default());
        let wanted = json!({
            "evictionStrategy": "None",
            "readinessProbe": {"tcpSocket": {"port": 22}, "periodSeconds": 10, "failureThreshold": 3, "timeoutSeconds": 5,
                "successThreshold": 1},
            "volumes": [{"containerDisk": {"image": "disk", "imagePullPolicy": "Always"}},
                {"containerDisk": {"image": "r:5000/disk:v1", "imagePullPolicy": "IfNotPresent"}},
                {"containerDisk": {"image": "disk:latest", "imagePullPolicy": "Never"}}, {"emptyDisk": {}}],
            "domain": {
                "cpu": {"cores": 1, "model": "host-model"},
                "clock": {"timer": {"hpet": {"present": false}, "rtc": {"present": true}}},
                "features": {"acpi": {"enabled": true}, "smm": {"enabled": true}, "apic": {"enabled": false}},
                "resources": {"limits": {"cpu": 2}, "requests": {"cpu": 2}},
            },
        });
        assert_eq!(spec, wanted);
        fill(&mut spec, &v1::KubeVirtConfiguration::default());
        assert_eq!(spec, wanted, "a second webhook changes nothing");
    }

    #[test]
    fn the_cluster_says_what_the_manifest_does_not() {
        let config: v1::KubeVirtConfiguration =
            serde_json::from_value(json!({"cpuRequest": "250m", "evictionStrategy": "LiveMigrate"})).unwrap();
        let mut spec = json!({"domain": {}});
        fill(&mut spec, &config);
        assert_eq!(spec["evictionStrategy"], "LiveMigrate");
        assert_eq!(spec["domain"]["resources"]["requests"]["cpu"], "250m");
        let usual: v1::KubeVirtConfiguration = serde_json::from_value(json!({"cpuRequest": "0.1"})).unwrap();
        let mut spec = json!({"domain": {}});
        fill(&mut spec, &usual);
        assert_eq!(spec["domain"], json!({}));
    }
}
