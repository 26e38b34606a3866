//! VirtualMachineInstancePresets: what new machines that a selector finds get into their specification.
//!
//! | part of `spec.domain` | a machine that has none gets it | a machine that has another |
//! |---|---|---|
//! | `resources.requests` | all of them | keeps its own, all of them |
//! | `cpu`, `firmware`, `features`, `devices.watchdog`, `ioThreadsPolicy` | yes | keeps its own |
//! | `clock` without its timer, `clock.timer` | yes | keeps its own |
//!
//! A preset of which a part is in the machine then is named by an annotation of the machine. Presets of one machine that want
//! different things of it are no presets for it: the machine is refused. What a preset says besides has no effect, as upstream.
//! Presets are taken in the order of their names.

use serde::Deserialize as _;
use serde_json::{Map, Value, json};

use crate::fields::{Place, Resource, check};
use crate::names::annotation;
use crate::problem::{Problems, Reason};
use crate::quantity::Quantity;
use crate::selector::{Labels, Selector};
use crate::v1::{self, VirtualMachineInstancePreset as Preset};

use super::ratchet::Change;
use super::vmi::unreadable;
use super::{object_at, same};

/// The parts that a machine gets as a whole.
const PARTS: [&[&str]; 5] =
    [&["cpu"], &["firmware"], &["features"], &["devices", "watchdog"], &["ioThreadsPolicy"]];
/// What a clock says besides its timer.
const CLOCK: [&str; 2] = ["utc", "timezone"];

/// Puts what the presets of its namespace say into a new machine. Returns what is to be told of parts that the machine keeps.
///
/// # Errors
///
/// Presets that are for this machine contradict each other.
pub fn apply<'a>(
    object: &mut Value,
    presets: impl IntoIterator<Item = &'a Preset>,
) -> Result<Vec<String>, Problems> {
    let metadata = &object["metadata"];
    if metadata["annotations"][annotation::EXCLUDE_PRESETS] == "true" {
        return Ok(Vec::new());
    }
    let labels = Labels::deserialize(&metadata["labels"]).unwrap_or_default();
    let mut warnings = Vec::new();
    let mut matching: Vec<(&str, Value)> = Vec::new();
    for preset in presets {
        let name = preset.metadata.name.as_deref().unwrap_or_default();
        let Some(spec) = &preset.spec else { continue };
        match Selector::of(Some(&spec.selector)) {
            Ok(selector) if selector.matches(&labels) => {
                let domain = serde_json::to_value(&spec.domain).unwrap_or_default();
                matching.push((name, domain));
            }
            Ok(_) => {}
            // Admission refuses these; the object came past it.
            Err(error) => warnings.push(format!("preset {name}: spec.selector: {error}")),
        }
    }
    matching.sort_by(|a, b| a.0.cmp(b.0));
    contradictions(&matching)?;
    for (name, preset) in &matching {
        let Some(spec) = object.as_object_mut().and_then(|map| object_at(map, "spec")) else { break };
        let Some(domain) = object_at(spec, "domain") else { break };
        let kept = differences(preset, &Value::Object(domain.clone()));
        if merge(preset, domain) {
            let Some(metadata) = object.as_object_mut().and_then(|map| object_at(map, "metadata")) else {
                break;
            };
            if let Some(annotations) = object_at(metadata, "annotations") {
                annotations.insert(format!("{}{name}", annotation::PRESET_PREFIX), v1::API_VERSION.into());
            }
        }
        warnings.extend(kept.into_iter().map(|what| format!("preset {name} is not applied in part: {what}")));
    }
    Ok(warnings)
}

fn contradictions(presets: &[(&str, Value)]) -> Result<(), Problems> {
    let mut found = Vec::new();
    for (n, (name, preset)) in presets.iter().enumerate() {
        for (other, before) in &presets[..n] {
            let differences = differences(preset, before);
            if !differences.is_empty() {
                found.push(format!("presets '{name}' and '{other}' conflict: {}", differences.join(", ")));
            }
        }
    }
    if found.is_empty() {
        return Ok(());
    }
    let mut problems = Problems::default();
    let message = format!("VirtualMachinePresets cannot be applied due to conflicts: {}", found.join("; "));
    problems.add(Reason::FieldValueInvalid, "metadata.labels", message);
    Err(problems)
}

fn at<'a>(domain: &'a Value, path: &[&str]) -> &'a Value {
    path.iter().fold(domain, |value, name| &value[*name])
}

/// Where a preset wants something else than there is.
fn differences(preset: &Value, there: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let mut note = |path: &str, wanted: &Value, has: &Value| {
        found.push(format!("spec.domain.{path}: {wanted} != {has}"));
    };
    let requests = &there["resources"]["requests"];
    for (name, wanted) in preset["resources"]["requests"].as_object().into_iter().flatten() {
        let has = &requests[name.as_str()];
        if !has.is_null() && !same_quantity(wanted, has) {
            note(&format!("resources.requests[{name}]"), wanted, has);
        }
    }
    for path in PARTS {
        let (wanted, has) = (at(preset, path), at(there, path));
        if !wanted.is_null() && !has.is_null() && !same(wanted, has) {
            note(&path.join("."), wanted, has);
        }
    }
    let (wanted, has) = (&preset["clock"], &there["clock"]);
    if !wanted.is_null() && !has.is_null() {
        if CLOCK.iter().any(|name| !same(&wanted[*name], &has[*name])) {
            note("clock", &offset(wanted), &offset(has));
        }
        let (wanted, has) = (&wanted["timer"], &has["timer"]);
        if !wanted.is_null() && !has.is_null() && !same(wanted, has) {
            note("clock.timer", wanted, has);
        }
    }
    found
}

/// A clock without its timer.
fn offset(clock: &Value) -> Value {
    let said = CLOCK.into_iter().filter(|name| !clock[*name].is_null());
    said.map(|name| (name.to_owned(), clock[name].clone())).collect::<Map<_, _>>().into()
}

fn same_quantity(a: &Value, b: &Value) -> bool {
    let read = |value: &Value| match value {
        Value::String(text) => text.parse::<Quantity>().ok(),
        other => other.to_string().parse().ok(),
    };
    match (read(a), read(b)) {
        (Some(a), Some(b)) => a == b,
        _ => a == b,
    }
}

/// Puts into a domain what it has not. Whether a part of the preset is in it then.
fn merge(preset: &Value, domain: &mut Map<String, Value>) -> bool {
    let mut applied = false;
    let requests = &preset["resources"]["requests"];
    if let Some(wanted) = requests.as_object().filter(|wanted| !wanted.is_empty()) {
        applied |= fill(domain, &["resources", "requests"], requests, |has| {
            let has = has.as_object();
            has.is_some_and(|has| {
                let is = |(name, value): (&String, &Value)| {
                    has.get(name).is_some_and(|there| same_quantity(value, there))
                };
                has.len() == wanted.len() && wanted.iter().all(is)
            })
        });
    }
    for path in PARTS {
        let wanted = at(preset, path);
        applied |= !wanted.is_null() && fill(domain, path, wanted, |has| same(wanted, has));
    }
    let clock = &preset["clock"];
    if !clock.is_null() {
        applied |= fill(domain, &["clock"], &offset(clock), |has| same(clock, has));
        let timer = &clock["timer"];
        applied |= !timer.is_null() && fill(domain, &["clock", "timer"], timer, |has| same(timer, has));
    }
    applied
}

/// Sets a part that is not there. Whether the part is as wanted then.
fn fill(
    domain: &mut Map<String, Value>,
    path: &[&str],
    value: &Value,
    as_wanted: impl Fn(&Value) -> bool,
) -> bool {
    let Some((last, parents)) = path.split_last() else { return false };
    let parent = parents.iter().try_fold(domain, |map, name| object_at(map, name));
    let Some(parent) = parent else { return false };
    let there = parent.entry(*last).or_insert(Value::Null);
    if there.is_null() {
        *there = value.clone();
    }
    as_wanted(there)
}

/// Judges a new preset.
pub fn validate(object: &Value) -> Problems {
    judge(Change { old: &[], new: object })
}

/// Judges a change of a preset. What is wrong with it already and stays as it is does not count.
pub fn validate_update(old: &Value, new: &Value) -> Problems {
    if !new["metadata"]["deletionTimestamp"].is_null() {
        return Problems::default();
    }
    judge(Change { old: &[old], new })
}

fn judge(change: Change<'_>) -> Problems {
    let object = change.new;
    let mut problems = Problems::default();
    check(Resource::Preset, Place::Cluster, object, &mut problems);
    if object["spec"]["domain"].is_null() {
        problems.required("spec.domain", "missing domain.");
    }
    let disks = object["spec"]["domain"]["devices"]["disks"].as_array();
    for (n, disk) in disks.into_iter().flatten().enumerate() {
        if ["disk", "lun", "cdrom"].iter().filter(|target| !disk[**target].is_null()).count() > 1 {
            let path = format!("spec.domain.devices.disks[{n}]");
            problems.add(Reason::FieldValueInvalid, path, "one of disk, lun and cdrom is allowed");
        }
    }
    match Preset::deserialize(object) {
        Ok(preset) => {
            let selector = preset.spec.map(|spec| Selector::of(Some(&spec.selector)));
            if let Some(Err(error)) = selector {
                problems.add(Reason::FieldValueInvalid, "spec.selector", error.to_string());
            }
        }
        Err(error) if problems.is_empty() => problems = unreadable("spec", &error),
        Err(_) => {}
    }
    change.ratchet(problems)
}

/// Tells what a preset says without effect.
pub fn warnings(object: &Value) -> Vec<String> {
    let domain = &object["spec"]["domain"];
    let mut found = Vec::new();
    let mut look = |value: &Value, path: &str, effective: &[&str]| {
        for (name, _) in value.as_object().into_iter().flatten().filter(|(_, value)| !same(value, &json!([])))
        {
            if !effective.contains(&name.as_str()) {
                found.push(format!(
                    "{path}.{name}: without effect; presets set resources.requests, cpu, firmware, clock, features and \
                     devices.watchdog"
                ));
            }
        }
    };
    let effective = ["resources", "cpu", "firmware", "clock", "features", "ioThreadsPolicy", "devices"];
    look(domain, "spec.domain", &effective);
    look(&domain["resources"], "spec.domain.resources", &["requests"]);
    look(&domain["devices"], "spec.domain.devices", &["watchdog"]);
    found
}
