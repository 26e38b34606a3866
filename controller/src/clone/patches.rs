//! What is otherwise in the machine that a clone makes, as operations of a JSON patch: a pure function.

use std::collections::BTreeMap;

use podvirt_api::snapshot::LAST_RESTORE;
use podvirt_api::v1::{SnapshotVirtualMachine, VirtualMachineCloneSpec};
use regex::Regex;
use serde_json::{Value, json};

/// The operations, each of which is a text.
pub(super) fn patches(vm: &SnapshotVirtualMachine, clone: &VirtualMachineCloneSpec) -> Vec<String> {
    let template = vm.spec.as_ref().and_then(|spec| spec.template.as_ref());
    let spec = template.and_then(|template| template.spec.as_ref());
    let mut all = Vec::new();
    let replace = |path: String, value: &str| json!({"op": "replace", "path": path, "value": value});
    for (place, interface) in spec.into_iter().flat_map(|spec| &spec.domain.devices.interfaces).enumerate() {
        let new = clone.new_mac_addresses.get(&interface.name).map_or("", String::as_str);
        let path = format!("/spec/template/spec/domain/devices/interfaces/{place}/macAddress");
        all.push(replace(path, new));
    }
    let firmware = spec.and_then(|spec| spec.domain.firmware.as_ref());
    let serial = clone.new_sm_bios_serial.as_deref();
    let of_firmware = "/spec/template/spec/domain/firmware";
    match (firmware, serial) {
        (Some(_), serial) => {
            all.push(replace(format!("{of_firmware}/serial"), serial.unwrap_or_default()));
            all.push(replace(format!("{of_firmware}/uuid"), ""));
        }
        (None, Some(serial)) => {
            all.push(json!({"op": "add", "path": of_firmware, "value": {"serial": serial}}));
        }
        (None, None) => {}
    }
    let filters = clone.template.clone().unwrap_or_default();
    let (own, of_instances) =
        (vm.metadata.as_ref(), template.and_then(|template| template.metadata.as_ref()));
    let none = BTreeMap::new();
    let labels = own.and_then(|one| one.labels.as_ref()).unwrap_or(&none);
    let annotations = own.and_then(|one| one.annotations.as_ref()).unwrap_or(&none);
    let template_labels = of_instances.and_then(|one| one.labels.as_ref()).unwrap_or(&none);
    let template_annotations = of_instances.and_then(|one| one.annotations.as_ref()).unwrap_or(&none);
    for (all_of, filters, path) in [
        (labels, &clone.label_filters, "/metadata/labels"),
        (annotations, &clone.annotation_filters, "/metadata/annotations"),
        (template_labels, &filters.label_filters, "/spec/template/metadata/labels"),
        (template_annotations, &filters.annotation_filters, "/spec/template/metadata/annotations"),
    ] {
        // The restore writes its own annotation itself.
        let gone = removed(all_of.keys().map(String::as_str), filters).filter(|name| *name != LAST_RESTORE);
        all.extend(gone.map(|name| json!({"op": "remove", "path": format!("{path}/{}", escaped(name))})));
    }
    let own = all.iter().map(Value::to_string);
    own.chain(clone.patches.iter().cloned()).collect()
}

/// A name as part of a JSON pointer.
fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// The names that the filters leave out. Filters are regular expressions, as upstream takes them; one that begins with `!` leaves
/// out what it matches, and has the last word. Without filters nothing is left out.
fn removed<'a>(names: impl Iterator<Item = &'a str>, filters: &[String]) -> impl Iterator<Item = &'a str> {
    let expression = |filter: &str| {
        let text = if filter == "*" { ".*" } else { filter };
        Regex::new(text)
            .inspect_err(|error| tracing::warn!(filter, %error, "a filter of a clone is left out"))
            .ok()
    };
    let (negative, positive): (Vec<&String>, Vec<&String>) =
        filters.iter().partition(|filter| filter.starts_with('!'));
    let kept: Vec<Regex> = positive.iter().filter_map(|filter| expression(filter)).collect();
    let denied: Vec<Regex> = negative.iter().filter_map(|filter| expression(filter.get(1..)?)).collect();
    let none = filters.is_empty();
    names.filter(move |name| {
        let matches = |all: &[Regex]| all.iter().any(|one| one.is_match(name));
        !none && (!matches(&kept) || matches(&denied))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(clone: Value) -> Vec<Value> {
        let vm: SnapshotVirtualMachine = serde_json::from_value(json!({
            "metadata": {"name": "vm", "labels": {"a/b": "1", "c": "2"},
                "annotations": {"x": "1", LAST_RESTORE: "r"}},
            "spec": {"template": {"metadata": {"labels": {"t": "1"}}, "spec": {"domain": {
                "firmware": {"uuid": "5d307ca9-b3ef-428c-8861-06e72d69f223"},
                "devices": {"interfaces": [{"name": "one", "masquerade": {}}, {"name": "two", "bridge": {}}]},
            }}}},
        }))
        .unwrap();
        let clone: VirtualMachineCloneSpec = serde_json::from_value(clone).unwrap();
        patches(&vm, &clone).iter().map(|text| serde_json::from_str(text).unwrap()).collect()
    }

    #[test]
    fn identities_are_the_new_machines_own() {
        let patches = made(json!({"newMacAddresses": {"two": "02:00:00:00:00:02"}, "newSMBiosSerial": "s",
            "patches": ["{\"op\": \"add\", \"path\": \"/spec/x\", \"value\": 1}"]}));
        let path = "/spec/template/spec/domain";
        assert_eq!(
            patches,
            [
                json!({"op": "replace", "path": format!("{path}/devices/interfaces/0/macAddress"), "value": ""}),
                json!({"op": "replace", "path": format!("{path}/devices/interfaces/1/macAddress"), "value": "02:00:00:00:00:02"}),
                json!({"op": "replace", "path": format!("{path}/firmware/serial"), "value": "s"}),
                json!({"op": "replace", "path": format!("{path}/firmware/uuid"), "value": ""}),
                json!({"op": "add", "path": "/spec/x", "value": 1}),
            ]
        );
    }

    #[test]
    fn filters_say_what_goes_along() {
        let removed = |filters: Value| -> Vec<String> {
            let all = made(filters).into_iter().filter(|one| one["op"] == "remove");
            all.map(|one| one["path"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(removed(json!({})), [""; 0]);
        assert_eq!(removed(json!({"labelFilters": ["*"], "annotationFilters": ["*"]})), [""; 0]);
        assert_eq!(removed(json!({"labelFilters": ["*", "!a/*"]})), ["/metadata/labels/a~1b"]);
        assert_eq!(removed(json!({"labelFilters": ["a/*"]})), ["/metadata/labels/c"]);
        assert_eq!(
            removed(json!({"annotationFilters": ["!x"], "template": {"labelFilters": ["nothing"]}})),
            ["/metadata/annotations/x", "/spec/template/metadata/labels/t"],
            "what no filter takes in is left out"
        );
    }
}
