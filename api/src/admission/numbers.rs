//! Quantities that are written as numbers.
//!
//! `cpu: 0.5` is a number in YAML and JSON. Kubernetes takes it for the resources of a pod, but the schema of a
//! CustomResourceDefinition takes texts and whole numbers only; a webhook comes before it.

use serde_json::Value;

/// Makes texts of the quantities in the specification of a machine that are numbers with a fraction.
pub(super) fn to_texts(spec: &mut Value) {
    const MAPS: [&str; 2] = ["/domain/resources/requests", "/domain/resources/limits"];
    const FIELDS: [&str; 2] = ["/domain/memory/guest", "/domain/memory/maxGuest"];
    for map in MAPS {
        let entries = spec.pointer_mut(map).and_then(Value::as_object_mut);
        entries.into_iter().flatten().for_each(|(_, value)| to_text(value));
    }
    for field in FIELDS {
        spec.pointer_mut(field).into_iter().for_each(to_text);
    }
    let volumes = spec.get_mut("volumes").and_then(Value::as_array_mut);
    for volume in volumes.into_iter().flatten() {
        volume.pointer_mut("/emptyDisk/capacity").into_iter().for_each(to_text);
    }
}

fn to_text(value: &mut Value) {
    if let Value::Number(number) = value
        && number.is_f64()
    {
        *value = Value::String(number.to_string());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fractions_become_texts_and_whole_numbers_stay() {
        let mut spec = json!({
            "domain": {
                "resources": {"requests": {"cpu": 0.5, "memory": 2_222_222.2}, "limits": {"cpu": 2, "memory": "1Gi"}},
                "memory": {"guest": 1.5e9},
            },
            "volumes": [{"name": "v", "emptyDisk": {"capacity": 1e9}}, {"name": "w"}],
        });
        to_texts(&mut spec);
        assert_eq!(spec["domain"]["resources"]["requests"], json!({"cpu": "0.5", "memory": "2222222.2"}));
        assert_eq!(spec["domain"]["resources"]["limits"], json!({"cpu": 2, "memory": "1Gi"}));
        assert_eq!(spec["domain"]["memory"]["guest"], "1500000000.0");
        assert_eq!(spec["volumes"][0]["emptyDisk"]["capacity"], "1000000000.0");
        let mut none = json!({"domain": {"devices": {}}});
        to_texts(&mut none);
        assert_eq!(none, json!({"domain": {"devices": {}}}));
    }
}
