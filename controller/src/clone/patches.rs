//! What is otherwise in the machine that a clone makes, as operations of a JSON patch: a pure function.

use std::collections::BTreeMap;

use podvirt_api::snapshot::LAST_RESTORE;
use podvirt_api::v1::{SnapshotVirtualMachine, VirtualMachineCloneSpec};
use regex::{RegexBuilder, RegexSet, RegexSetBuilder};
use serde_json::{Value, json};

/// Most filters of a list.
const MAX_FILTERS: usize = 64;
/// Longest filter, bytes.
const MAX_FILTER_BYTES: usize = 256;
/// Most memory that the compiled filters of a list take, bytes.
const MAX_FILTERS_BYTES: usize = 1 << 20;

/// Filters of a clone that are not applied: they would take memory and time of all machines' controller.
#[derive(Debug, thiserror::Error)]
pub(super) enum FilterError {
    #[error("{field}: {count} filters; at most {MAX_FILTERS} are allowed")]
    Many { field: &'static str, count: usize },
    #[error("{field}: a filter of {length} bytes; at most {MAX_FILTER_BYTES} are allowed")]
    Long { field: &'static str, length: usize },
    #[error("{field}: the filters compile to more than {MAX_FILTERS_BYTES} bytes")]
    Large { field: &'static str },
}

/// The operations, each of which is a text.
///
/// # Errors
///
/// [`FilterError`].
pub(super) fn patches(
    vm: &SnapshotVirtualMachine,
    clone: &VirtualMachineCloneSpec,
) -> Result<Vec<String>, FilterError> {
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
    for (all_of, filters, path, field) in [
        (labels, &clone.label_filters, "/metadata/labels", "spec.labelFilters"),
        (annotations, &clone.annotation_filters, "/metadata/annotations", "spec.annotationFilters"),
        (
            template_labels,
            &filters.label_filters,
            "/spec/template/metadata/labels",
            "spec.template.labelFilters",
        ),
        (
            template_annotations,
            &filters.annotation_filters,
            "/spec/template/metadata/annotations",
            "spec.template.annotationFilters",
        ),
    ] {
        let filters = Filters::parse(filters, field)?;
        let names = all_of.keys().map(String::as_str);
        // The restore writes its own annotation itself.
        let gone = names.filter(|name| filters.removes(name) && *name != LAST_RESTORE);
        all.extend(gone.map(|name| json!({"op": "remove", "path": format!("{path}/{}", escaped(name))})));
    }
    let own = all.iter().map(Value::to_string);
    Ok(own.chain(clone.patches.iter().cloned()).collect())
}

/// A name as part of a JSON pointer.
fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// Filters are regular expressions, as upstream takes them; one that begins with `!` leaves out what it matches, and has the last word.
/// Without filters nothing is left out.
struct Filters {
    positive: RegexSet,
    negative: RegexSet,
    none: bool,
}

impl Filters {
    fn parse(filters: &[String], field: &'static str) -> Result<Self, FilterError> {
        if filters.len() > MAX_FILTERS {
            return Err(FilterError::Many { field, count: filters.len() });
        }
        if let Some(long) = filters.iter().find(|filter| filter.len() > MAX_FILTER_BYTES) {
            return Err(FilterError::Long { field, length: long.len() });
        }
        let (mut positive, mut negative) = (Vec::new(), Vec::new());
        for filter in filters {
            let (list, text) = match filter.strip_prefix('!') {
                Some(text) => (&mut negative, text),
                None => (&mut positive, filter.as_str()),
            };
            let text = if text == "*" { ".*" } else { text };
            match RegexBuilder::new(text).size_limit(MAX_FILTERS_BYTES).build() {
                Ok(_) => list.push(text),
                Err(regex::Error::CompiledTooBig(_)) => return Err(FilterError::Large { field }),
                Err(error) => tracing::warn!(filter, %error, "a filter of a clone is left out"),
            }
        }
        let set = |texts: &[&str]| {
            let set = RegexSetBuilder::new(texts).size_limit(MAX_FILTERS_BYTES).build();
            set.map_err(|_| FilterError::Large { field })
        };
        Ok(Self { positive: set(&positive)?, negative: set(&negative)?, none: filters.is_empty() })
    }

    /// Whether a name is left out.
    fn removes(&self, name: &str) -> bool {
        !self.none && (!self.positive.is_match(name) || self.negative.is_match(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tried(clone: Value) -> Result<Vec<String>, FilterError> {
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
        patches(&vm, &clone)
    }

    fn made(clone: Value) -> Vec<Value> {
        tried(clone).unwrap().iter().map(|text| serde_json::from_str(text).unwrap()).collect()
    }

    #[test]
    fn filters_that_cost_too_much_are_refused() {
        let error = |filters: Value| tried(filters).unwrap_err().to_string();
        let many = vec![r"\w{300}"; 5000];
        assert_eq!(
            error(json!({"labelFilters": many})),
            "spec.labelFilters: 5000 filters; at most 64 are allowed"
        );
        let long = "a".repeat(10 << 20);
        let why = "spec.template.annotationFilters: a filter of 10485760 bytes; at most 256 are allowed";
        assert_eq!(error(json!({"template": {"annotationFilters": [long]}})), why);
        let large = "spec.annotationFilters: the filters compile to more than 1048576 bytes";
        assert_eq!(error(json!({"annotationFilters": [r"\w{300}"]})), large);
        // Each is small enough, and all of them are not.
        let each: Vec<String> = (0..64).map(|n| format!(r"\w{{8}}{n}")).collect();
        assert_eq!(error(json!({"annotationFilters": each})), large);
        assert_eq!(made(json!({"labelFilters": ["a/*", "[", "c"]})).len(), 4, "what is none is left out");
        let most: Vec<String> = (0..64).map(|n| format!("!{}{n}", "a".repeat(200))).collect();
        assert!(tried(json!({"labelFilters": most})).is_ok());
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
