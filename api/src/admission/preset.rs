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
//! Presets are taken in the order of their names. Their number is bounded where they are listed; a finding tells where two values differ
//! and how they begin.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io;

use serde::Deserialize as _;
use serde_json::{Map, Value, json};

use crate::budget::weigh;
use crate::fields::{self, Resource, check};
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

/// Largest `spec` of a preset, in bytes of its JSON.
pub const MAX_PRESET_BYTES: usize = 32 << 10;
/// Most findings that are told of the presets of a machine.
const MAX_FINDINGS: usize = 64;
/// Bytes of a value, or of a name in it, that are told at most.
const MAX_SHOWN_BYTES: usize = 100;

/// What counts of a preset.
#[derive(Clone, Debug)]
pub struct Effect {
    name: String,
    selector: Result<Selector, String>,
    /// What the selector takes of memory, by [`weigh`].
    selector_bytes: usize,
    /// The parts of the domain that a machine gets.
    domain: Value,
}

impl Effect {
    /// What counts of `preset`; nothing of one without a specification.
    pub fn of(preset: &Preset) -> Option<Self> {
        let spec = preset.spec.as_ref()?;
        let selector = Selector::of(Some(&spec.selector)).map_err(|error| cut(&error.to_string()).to_owned());
        let selector_bytes = weigh(&serde_json::to_value(&spec.selector).unwrap_or_default());
        let domain = serde_json::to_value(&spec.domain).unwrap_or_default();
        let mut effective = Value::Object(Map::new());
        for path in [&["resources", "requests"][..], &["clock"]].into_iter().chain(PARTS) {
            let value = at(&domain, path);
            if !value.is_null() {
                *path.iter().fold(&mut effective, |parent, name| &mut parent[*name]) = value.clone();
            }
        }
        let name = preset.metadata.name.clone().unwrap_or_default();
        Some(Effect { name, selector, selector_bytes, domain: effective })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes of memory that it takes, by [`weigh`].
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + self.name.len() + self.selector_bytes + weigh(&self.domain)
    }
}

/// Puts what the presets of its namespace say into a new machine. Returns what is to be told of parts that the machine keeps.
///
/// # Errors
///
/// Presets that are for this machine contradict each other.
pub fn apply<'a>(
    object: &mut Value,
    presets: impl IntoIterator<Item = &'a Effect>,
) -> Result<Vec<String>, Problems> {
    let metadata = &object["metadata"];
    if metadata["annotations"][annotation::EXCLUDE_PRESETS] == "true" {
        return Ok(Vec::new());
    }
    let labels = Labels::deserialize(&metadata["labels"]).unwrap_or_default();
    let mut warnings = Findings::default();
    let mut matching: Vec<&Effect> = Vec::new();
    for preset in presets {
        match &preset.selector {
            Ok(selector) if selector.matches(&labels) => matching.push(preset),
            Ok(_) => {}
            // Admission refuses these; the object came past it.
            Err(error) => warnings.add(|| format!("preset {}: spec.selector: {error}", preset.name)),
        }
    }
    matching.sort_by(|a, b| a.name.cmp(&b.name));
    contradictions(&matching)?;
    for preset in matching {
        let (name, preset) = (&preset.name, &preset.domain);
        let Some(spec) = object.as_object_mut().and_then(|map| object_at(map, "spec")) else { break };
        if object_at(spec, "domain").is_none() {
            break;
        }
        let Some(domain) = spec.get_mut("domain") else { break };
        for place in places(preset) {
            let (wanted, has) = (place.of(preset), place.of(domain));
            if !has.is_null() && !place.is_same(&wanted, &has) {
                warnings
                    .add(|| format!("preset {name} is not applied in part: {}", place.unlike(&wanted, &has)));
            }
        }
        let Some(domain) = domain.as_object_mut() else { break };
        if merge(preset, domain) {
            let Some(metadata) = object.as_object_mut().and_then(|map| object_at(map, "metadata")) else {
                break;
            };
            if let Some(annotations) = object_at(metadata, "annotations") {
                annotations.insert(format!("{}{name}", annotation::PRESET_PREFIX), v1::API_VERSION.into());
            }
        }
    }
    Ok(warnings.into_texts())
}

/// Compares each preset with what those before it want together: a part has one preset that was the first to want it.
fn contradictions(presets: &[&Effect]) -> Result<(), Problems> {
    let mut wants: HashMap<Place<'_>, &Effect> = HashMap::new();
    let mut found = Findings::default();
    for preset in presets {
        let mut unlike: Vec<(&str, String)> = Vec::new();
        for place in places(&preset.domain) {
            let Some(first) = wants.get(&place) else {
                wants.insert(place, preset);
                continue;
            };
            let (wanted, has) = (place.of(&preset.domain), place.of(&first.domain));
            if !found.is_full() && unlike.len() < MAX_FINDINGS && !place.is_same(&wanted, &has) {
                unlike.push((&first.name, place.unlike(&wanted, &has)));
            }
        }
        unlike.sort_by_key(|(first, _)| *first);
        for same in unlike.chunk_by(|a, b| a.0 == b.0) {
            let texts: Vec<&str> = same.iter().map(|(_, text)| text.as_str()).collect();
            let other = same.first().map_or("", |(first, _)| first);
            found.add(|| format!("presets '{}' and '{other}' conflict: {}", preset.name, texts.join(", ")));
        }
    }
    let found = found.into_texts();
    if found.is_empty() {
        return Ok(());
    }
    let mut problems = Problems::default();
    let message = format!("VirtualMachinePresets cannot be applied due to conflicts: {}", found.join("; "));
    problems.add(Reason::FieldValueInvalid, "metadata.labels", message);
    Err(problems)
}

/// What is told, as far as it is told.
#[derive(Default)]
struct Findings {
    texts: Vec<String>,
    is_cut: bool,
}

impl Findings {
    fn is_full(&self) -> bool {
        self.texts.len() >= MAX_FINDINGS
    }

    fn add(&mut self, text: impl FnOnce() -> String) {
        if self.is_full() {
            self.is_cut = true;
        } else {
            self.texts.push(text());
        }
    }

    fn into_texts(mut self) -> Vec<String> {
        if self.is_cut {
            self.texts.push(format!("and more than these {MAX_FINDINGS}"));
        }
        self.texts
    }
}

fn at<'a>(domain: &'a Value, path: &[&str]) -> &'a Value {
    path.iter().fold(domain, |value, name| &value[*name])
}

/// A part of a domain that presets set, and by which they are compared.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
enum Place<'a> {
    /// A request for a resource.
    Request(&'a str),
    /// A part that a machine gets as a whole.
    Part(&'static [&'static str]),
    /// The clock without its timer.
    Offset,
    /// The clock's timer.
    Timer,
}

/// The parts that a preset sets.
fn places(preset: &Value) -> impl Iterator<Item = Place<'_>> {
    let requests = preset["resources"]["requests"].as_object();
    let requests = requests.into_iter().flat_map(Map::keys).map(|name| Place::Request(name));
    let others = PARTS.map(Place::Part).into_iter().chain([Place::Offset, Place::Timer]);
    requests.chain(others).filter(|place| !place.of(preset).is_null())
}

impl Place<'_> {
    fn of<'a>(&self, domain: &'a Value) -> Cow<'a, Value> {
        match self {
            Place::Request(name) => Cow::Borrowed(&domain["resources"]["requests"][*name]),
            Place::Part(path) => Cow::Borrowed(at(domain, path)),
            Place::Offset if domain["clock"].is_null() => Cow::Owned(Value::Null),
            Place::Offset => Cow::Owned(offset(&domain["clock"])),
            Place::Timer => Cow::Borrowed(&domain["clock"]["timer"]),
        }
    }

    fn is_same(&self, a: &Value, b: &Value) -> bool {
        match self {
            Place::Request(_) => same_quantity(a, b),
            Place::Offset => CLOCK.iter().all(|name| same(&a[*name], &b[*name])),
            Place::Part(_) | Place::Timer => same(a, b),
        }
    }

    /// That two values differ, in a few words however long they are.
    fn unlike(&self, wanted: &Value, has: &Value) -> String {
        let path = match self {
            Place::Request(name) => format!("resources.requests[{}]", cut(name)),
            Place::Part(path) => path.join("."),
            Place::Offset => "clock".into(),
            Place::Timer => "clock.timer".into(),
        };
        format!("spec.domain.{path}: {} != {}", shown(wanted), shown(has))
    }
}

/// The beginning of a text.
fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_SHOWN_BYTES)]
}

/// The beginning of a value's JSON; the rest is never written.
fn shown(value: &Value) -> String {
    struct Start(Vec<u8>);
    impl io::Write for Start {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let room = MAX_SHOWN_BYTES.saturating_sub(self.0.len());
            if room == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            let taken = &bytes[..bytes.len().min(room)];
            self.0.extend_from_slice(taken);
            Ok(taken.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut start = Start(Vec::with_capacity(MAX_SHOWN_BYTES));
    let end = if serde_json::to_writer(&mut start, value).is_ok() { "" } else { "..." };
    format!("{}{end}", String::from_utf8_lossy(&start.0))
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
    check(Resource::Preset, fields::Place::Cluster, object, &mut problems);
    // Each new machine is compared with all presets of its namespace, which virt-api has in memory.
    let bytes = object["spec"].to_string().len();
    if bytes > MAX_PRESET_BYTES {
        let message = format!("it has {bytes} bytes; at most {MAX_PRESET_BYTES} are allowed");
        problems.add(Reason::FieldValueInvalid, "spec", message);
    }
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
