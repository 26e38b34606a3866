//! VirtualMachineSnapshots, VirtualMachineRestores and VirtualMachineClones, in upstream's fields and words.

use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::{data_volumes, object_at, same};
use crate::budget::BudgetError;
use crate::error::chain;
use crate::mac::MacAddr;
use crate::names::limits::{MAX_OBJECT_NAME_BYTES, name_before};
use crate::patch::{MAX_PATCH_OPERATIONS, Patch, PatchError};
use crate::problem::{Problems, Reason};
use crate::v1;
use crate::validate::is_dns_subdomain;

/// Group of what is taken, restored and cloned.
const MACHINES: &str = v1::GROUP;
const MACHINE: &str = "VirtualMachine";
/// Bytes of a patch that are shown of it at most.
const MAX_SHOWN_BYTES: usize = 256;

/// Judges a new snapshot.
pub fn validate_snapshot(object: &Value) -> Problems {
    let mut problems = Problems::default();
    names_machine(&object["spec"]["source"], "spec.source", &mut problems);
    readable::<v1::VirtualMachineSnapshot>(object, &mut problems);
    problems
}

/// Judges a change of a snapshot or of a restore: the specification stays.
pub fn validate_unchanged(old: &Value, new: &Value) -> Problems {
    let mut problems = Problems::default();
    if !same(&old["spec"], &new["spec"]) {
        problems.add(Reason::FieldValueInvalid, "spec", "spec in immutable after creation");
    }
    problems
}

/// Judges the content of a snapshot, which users may write as virt-controller does: virt-controller holds it in memory.
pub fn validate_content(object: &Value) -> Problems {
    let mut problems = Problems::default();
    let templates = &object["spec"]["source"]["virtualMachine"]["spec"]["dataVolumeTemplates"];
    let path = "spec.source.virtualMachine.spec.dataVolumeTemplates";
    data_volumes::check_weight(templates, path, &mut problems);
    readable::<v1::VirtualMachineSnapshotContent>(object, &mut problems);
    problems
}

/// Judges a change of the content of a snapshot: a specification that stays as it was taken is taken.
pub fn validate_content_update(old: &Value, new: &Value) -> Problems {
    if old["spec"] == new["spec"] { Problems::default() } else { validate_content(new) }
}

/// Judges a new restore. `open` are the restores of the same machine that are not complete; `has_target` says whether the machine is
/// there.
pub fn validate_restore(object: &Value, open: &[String], has_target: bool) -> Problems {
    let mut problems = Problems::default();
    let spec = &object["spec"];
    if names_machine(&spec["target"], "spec.target", &mut problems) {
        // virt-api reads the targets of all restores of a namespace at once.
        let name = spec["target"]["name"].as_str().unwrap_or_default();
        if !is_dns_subdomain(name) {
            let allowed = "the name of a VirtualMachine, at most 253 of a-z, 0-9, '-' and '.', is allowed";
            problems.invalid("spec.target.name", name, allowed);
        }
        patches(&spec["patches"], &mut problems);
        overrides(&spec["volumeRestoreOverrides"], &mut problems);
        for (field, what, words) in [
            (
                "volumeRestorePolicy",
                "volume restore policy",
                &["InPlace", "RandomizeNames", "PrefixTargetName"][..],
            ),
            ("volumeOwnershipPolicy", "volume ownership policy", &["Vm", "None"]),
        ] {
            if let Some(word) = spec[field].as_str().filter(|word| !words.contains(word)) {
                let message = format!("{what} \"{word}\" doesn't exist");
                problems.add(Reason::FieldValueInvalid, format!("spec.{field}"), message);
            }
        }
        let words = ["StopTarget", "WaitGracePeriod", "FailImmediate", "WaitEventually"];
        if let Some(word) = spec["targetReadinessPolicy"].as_str().filter(|word| !words.contains(word)) {
            problems.invalid(
                "spec.targetReadinessPolicy",
                word,
                &format!("{} are allowed", words.join(", ")),
            );
        }
    }
    for name in open {
        let message = format!("VirtualMachineRestore {name:?} in progress");
        problems.add(Reason::FieldValueInvalid, "spec.target", message);
    }
    // It replaces claims under their names, which are in use by the machine that the snapshot is of.
    if spec["volumeRestorePolicy"] == "InPlace" && !has_target {
        problems.invalid(
            "spec.volumeRestorePolicy",
            "InPlace",
            "the target does not exist, and has no claims to be replaced: RandomizeNames and PrefixTargetName are allowed",
        );
    }
    readable::<v1::VirtualMachineRestore>(object, &mut problems);
    problems
}

/// What a clone makes, where it does not say: `suffix` are the last letters of the name.
pub fn mutate_clone(object: &mut Value, suffix: &str) {
    let Some(name) = object["spec"]["source"]["name"].as_str() else { return };
    let name = format!(
        "{}-{suffix}",
        name_before(&format!("clone-{name}"), suffix.len() + 1, MAX_OBJECT_NAME_BYTES)
    );
    let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) else { return };
    if spec.get("target").is_none_or(Value::is_null) {
        spec.insert("target".into(), json!({"apiGroup": MACHINES, "kind": MACHINE, "name": name}));
    } else if let Some(target) = object_at(spec, "target")
        && target.get("name").is_none_or(|there| there == "" || there.is_null())
    {
        target.insert("name".into(), name.into());
    }
}

/// Judges a clone.
pub fn validate_clone(object: &Value) -> Problems {
    let mut problems = Problems::default();
    let spec = &object["spec"];
    let template = &spec["template"];
    for (filters, field) in [
        (&spec["annotationFilters"], "spec.annotations"),
        (&spec["labelFilters"], "spec.labels"),
        (&template["annotationFilters"], "spec.template.annotations"),
        (&template["labelFilters"], "spec.template.labels"),
    ] {
        check_filters(filters, field, &mut problems);
    }
    let (source, target) = (&spec["source"], &spec["target"]);
    let text = |of: &Value, field: &str| of[field].as_str().unwrap_or_default().to_owned();
    let mut invalid = |field: &str, message: &str| problems.add(Reason::FieldValueInvalid, field, message);
    if source.is_null() {
        invalid("spec.Source", "Source cannot be nil");
    } else {
        if ![MACHINE, "VirtualMachineSnapshot"].contains(&text(source, "kind").as_str()) {
            invalid("spec.Source.Kind", "Source kind is not supported");
        }
        if text(source, "apiGroup").is_empty() {
            invalid("spec.Source.APIGroup", "Source's APIGroup cannot be empty");
        }
        if text(source, "kind").is_empty() {
            invalid("spec.Source", "Source's Kind cannot be empty");
        }
        if text(source, "name").is_empty() {
            invalid("spec.Source.Name", "Source's name cannot be empty");
        }
    }
    if !target.is_null() && target["kind"] != MACHINE {
        invalid("spec.Target.Kind", "Target kind is not supported");
    }
    if source["kind"] == MACHINE && target["kind"] == MACHINE && text(source, "name") == text(target, "name")
    {
        let message = "Target name cannot be equal to source name when both are VirtualMachines";
        invalid("spec.target.name", message);
    }
    for (interface, address) in spec["newMacAddresses"].as_object().into_iter().flatten() {
        let address = address.as_str().unwrap_or_default();
        if !address.is_empty() && address.parse::<MacAddr>().is_err() {
            let message = format!("interface {interface} has malformed MAC address ({address}).");
            problems.add(Reason::FieldValueInvalid, format!("spec.newMacAddresses.{interface}"), message);
        }
    }
    let texts = spec["patches"].as_array().into_iter().flatten();
    let mut is_json = true;
    for (place, patch) in texts.enumerate().map(|(place, patch)| (place, patch.as_str().unwrap_or_default()))
    {
        if serde_json::from_str::<IgnoredAny>(patch).is_err() {
            is_json = false;
            let shown = &patch[..patch.floor_char_boundary(MAX_SHOWN_BYTES)];
            let message = format!("patch is not valid JSON ({shown})");
            problems.add(Reason::FieldValueInvalid, format!("spec.patches[{place}]"), message);
        }
    }
    if is_json {
        patches(&spec["patches"], &mut problems);
    }
    readable::<v1::VirtualMachineClone>(object, &mut problems);
    problems
}

/// Judges a change of a clone: a specification that stays as it was taken is taken.
pub fn validate_clone_update(old: &Value, new: &Value) -> Problems {
    if same(&old["spec"], &new["spec"]) { Problems::default() } else { validate_clone(new) }
}

/// Whether a reference is to a VirtualMachine.
fn names_machine(reference: &Value, field: &str, problems: &mut Problems) -> bool {
    match reference["apiGroup"].as_str() {
        None => problems.add(Reason::FieldValueNotFound, format!("{field}.apiGroup"), "missing apiGroup"),
        Some(MACHINES) if reference["kind"] == MACHINE => return true,
        Some(MACHINES) => problems.add(Reason::FieldValueInvalid, format!("{field}.kind"), "invalid kind"),
        Some(_) => problems.add(Reason::FieldValueInvalid, format!("{field}.apiGroup"), "invalid apiGroup"),
    }
    false
}

/// An object that the controllers cannot read would be left alone by them for ever.
pub(super) fn readable<T: serde::de::DeserializeOwned>(object: &Value, problems: &mut Problems) {
    if problems.is_empty()
        && let Err(error) = T::deserialize(object)
    {
        problems.add(Reason::FieldValueTypeInvalid, "spec", error.to_string());
    }
}

/// Beginnings of the paths that patches may change of the machine that is made: its labels, its annotations and its specification.
pub const PATCHED_PATHS: [&str; 3] = ["/metadata/labels/", "/metadata/annotations/", "/spec/"];

/// Judges the patches of a restore or a clone by the rules by which the restore applies them.
fn patches(patches: &Value, problems: &mut Problems) {
    let texts = patches.as_array().into_iter().flatten().map(|patch| patch.as_str().unwrap_or_default());
    let texts: Vec<&str> = texts.collect();
    let Err(error) = Patch::from_operations(&texts, &PATCHED_PATHS) else { return };
    // Each operation with its own words, where one is to blame.
    let before = problems.0.len();
    for text in texts.iter().take(MAX_PATCH_OPERATIONS) {
        if let Err(error) = Patch::from_operations(&[text], &PATCHED_PATHS) {
            problems.add(Reason::FieldValueInvalid, "spec.patches", patch_message(&error, text));
        }
    }
    if problems.0.len() == before {
        problems.add(Reason::FieldValueInvalid, "spec.patches", chain(&error));
    }
}

/// What is wrong with one operation, in upstream's words where upstream has them.
fn patch_message(error: &PatchError, text: &str) -> String {
    match error {
        PatchError::NoOperation { .. } | PatchError::Unreadable(BudgetError::Json(_)) => {
            let shown = &text[..text.floor_char_boundary(MAX_SHOWN_BYTES)];
            format!("patch format is not valid - an operation of a JSON patch expected: {shown}")
        }
        PatchError::Path { path, .. } => {
            format!("patching is valid only for elements under /spec/ only: \"path\": \"{path}\"")
        }
        PatchError::Op { op, .. } => {
            format!("op \"{op}\" is not allowed; add, replace, remove and test are: {text}")
        }
        other => chain(other),
    }
}

fn overrides(overrides: &Value, problems: &mut Problems) {
    for (place, one) in overrides.as_array().into_iter().flatten().enumerate() {
        let field = format!("spec.volumeRestoreOverrides[{place}]");
        if one["volumeName"].as_str().unwrap_or_default().is_empty() {
            problems.required(format!("{field}.volumeName"), "must provide a volume name");
        }
        let named = one["restoreName"].as_str().is_some_and(|name| !name.is_empty());
        if !named && one["annotations"].is_null() && one["labels"].is_null() {
            problems.required(field, "must provide at least one overriden field");
        }
    }
}

/// Most filters of a list.
pub const MAX_FILTERS: usize = 32;
/// Longest filter, in bytes.
pub const MAX_FILTER_BYTES: usize = 256;

fn check_filters(filters: &Value, field: &str, problems: &mut Problems) {
    let list = filters.as_array().map_or(&[][..], Vec::as_slice);
    if list.len() > MAX_FILTERS {
        let message = format!("there are {} filters; at most {MAX_FILTERS} are allowed", list.len());
        problems.add(Reason::FieldValueInvalid, field, message);
        return;
    }
    if let Some(long) = list.iter().filter_map(Value::as_str).find(|filter| filter.len() > MAX_FILTER_BYTES) {
        let message = format!("a filter has {} bytes; at most {MAX_FILTER_BYTES} are allowed", long.len());
        problems.add(Reason::FieldValueInvalid, field, message);
        return;
    }
    for filter in filters.as_array().into_iter().flatten().filter_map(Value::as_str) {
        let mut letters = filter.chars();
        let (first, last) = (letters.next(), letters.next_back());
        let middle = letters.as_str();
        if last.is_none() {
            if first == Some('!') {
                let message = "a negation character is not a valid filter";
                problems.add(Reason::FieldValueInvalid, field, message);
            }
            continue;
        }
        let mut refuse = |what: &str, letter: char, rule: &str| {
            let message = format!(
                "{field} filter {filter} is invalid: cannot contain a {what} character ({letter}); FilterRules: {rule}"
            );
            problems.add(Reason::FieldValueInvalid, field, message);
        };
        if middle.contains('!') || last == Some('!') {
            refuse("negation", '!', "NegationChar can be only used at the beginning of the filter");
        }
        if middle.contains('*') || first == Some('*') {
            refuse("wildcard", '*', "WildcardChar can be only at the end of the filter");
        }
    }
}

/// Judges a change of a machine while a snapshot of it is taken, or it is restored.
pub(super) fn held(old: &Value, new: &Value, problems: &mut Problems) {
    let (before, after) = (&old["spec"], &new["spec"]);
    let refuse = |problems: &mut Problems, message: String| {
        problems.add(Reason::FieldValueNotSupported, "spec", message);
    };
    if let Some(name) = new["status"]["snapshotInProgress"].as_str() {
        let volumes = |spec: &Value| spec["template"]["spec"]["volumes"].clone();
        if !same(&volumes(before), &volumes(after)) {
            return refuse(
                problems,
                format!("Cannot update vm disks or volumes until snapshot {name:?} completes"),
            );
        }
        if !same(&before["running"], &after["running"])
            || !same(&before["runStrategy"], &after["runStrategy"])
        {
            return refuse(
                problems,
                format!("Cannot update vm running state until snapshot {name:?} completes"),
            );
        }
    }
    if let Some(name) = new["status"]["restoreInProgress"].as_str() {
        let strategy = |spec: &Value| match spec["running"].as_bool() {
            Some(true) => "Always".to_owned(),
            Some(false) => "Halted".to_owned(),
            None => spec["runStrategy"].as_str().unwrap_or_default().to_owned(),
        };
        if strategy(before) != strategy(after) {
            refuse(problems, format!("Cannot update VM runStrategy until restore {name:?} completes"));
        }
    }
}

#[cfg(test)]
#[path = "snapshot_tests.rs"]
mod tests;
