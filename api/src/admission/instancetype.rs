//! Instance types and preferences: they themselves, and machines that name one.
//!
//! A machine is judged as its instances will be made: with its instance type and its preference applied. What is looked up for
//! it comes as [`Specs`]. One that does not exist is no reason to refuse the machine, as upstream: virt-controller tells that
//! it is missing, and starts the machine once it is there.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize as _;
use serde_json::{Value, json};

use crate::defaults::Choices;
use crate::fields::{On, check_annotations};
use crate::hooks;
use crate::instancetype::origin::Origins;
use crate::instancetype::{
    Matcher, Specs, Subject, check_requirements, expand_template, filled, is_name, prefer_architecture,
    prefer_machine, spread_of,
};
use crate::problem::{Problem, Problems, Reason};
use crate::v1::{
    self, PreferredCpuTopology as Topology, SpreadAcross, VirtualMachineInstanceSpec,
    VirtualMachineInstanceTemplateSpec, VirtualMachineInstancetypeSpec, VirtualMachinePreferenceSpec,
};

use super::vmi::unreadable;
use super::{add_missing, object_at};

/// Deprecated words for a topology, and those in their place.
const DEPRECATED: [(Topology, Topology); 5] = [
    (Topology::PreferSockets, Topology::Sockets),
    (Topology::PreferCores, Topology::Cores),
    (Topology::PreferThreads, Topology::Threads),
    (Topology::PreferSpread, Topology::Spread),
    (Topology::PreferAny, Topology::Any),
];

/// Judges an instance type, of a namespace or of the cluster.
pub fn validate_instancetype(object: &Value) -> Problems {
    let spec = match VirtualMachineInstancetypeSpec::deserialize(&object["spec"]) {
        Ok(spec) => spec,
        Err(error) => return unreadable("spec", &error),
    };
    let mut problems = Problems::default();
    let field = "spec.memory.overcommitPercent";
    let percent = spec.memory.overcommit_percent.unwrap_or(0);
    if !(0..=100).contains(&percent) {
        let message = format!("{field} '{percent}': must be in range between 0 and 100.");
        problems.add(Reason::FieldValueInvalid, field, message);
    }
    if percent != 0 && spec.memory.hugepages.is_some() {
        let message = format!("{field} and spec.memory.hugepages should not be requested together.");
        problems.add(Reason::FieldValueInvalid, field, message);
    }
    problems
}

/// Judges a preference, of a namespace or of the cluster. Beside the problems: what its owner should know.
pub fn validate_preference(object: &Value) -> (Problems, Vec<String>) {
    let spec = match VirtualMachinePreferenceSpec::deserialize(&object["spec"]) {
        Ok(spec) => spec,
        Err(error) => return (unreadable("spec", &error), Vec::new()),
    };
    let mut problems = Problems::default();
    let topology = spec.cpu.as_ref().and_then(|cpu| cpu.preferred_cpu_topology.as_ref());
    let Some(topology) = topology else { return (problems, Vec::new()) };
    if let Topology::Other(word) = topology {
        let message = format!("unknown preferredCPUTopology {word}");
        problems.add(Reason::FieldValueInvalid, "spec.cpu.preferredCPUTopology", message);
    }
    if matches!(topology, Topology::Spread | Topology::PreferSpread) {
        let spread = spread_of(&spec);
        if let SpreadAcross::Other(word) = &spread.across {
            let message = format!("across {word} is not supported");
            problems.add(Reason::FieldValueInvalid, "spec.cpu.spreadOptions.across", message);
        }
        let ratio = "spec.cpu.spreadOptions.ratio";
        if spread.across == SpreadAcross::CoresThreads && spread.ratio != 2 {
            let message =
                "only a ratio of 2 (1 core 2 threads) is allowed when spreading vCPUs over cores and threads";
            problems.add(Reason::FieldValueInvalid, ratio, message);
        } else if spread.ratio == 0 {
            problems.invalid(ratio, 0, "a whole number from 1 on is allowed");
        }
    }
    let deprecated = DEPRECATED.iter().find(|(old, _)| old == topology);
    let warn = |(old, new): &(Topology, Topology)| {
        format!(
            "PreferredCPUTopology {old} is deprecated for removal in a future release, please use {new} instead"
        )
    };
    (problems, deprecated.map(warn).into_iter().collect())
}

/// Sets in a machine what its preference says and the machine keeps for itself: the hardware that its guest is installed on.
pub fn mutate(object: &mut Value, specs: &Specs) {
    let Some(preference) = &specs.preference else { return };
    let class =
        preference.volumes.as_ref().and_then(|volumes| volumes.preferred_storage_class_name.as_deref());
    if let Some(class) = class.filter(|class| !class.is_empty()) {
        prefer_storage_class(object, class);
    }
    let mut preferred = VirtualMachineInstanceSpec::default();
    prefer_architecture(preference, &mut preferred);
    prefer_machine(preference, &mut preferred);
    let spec = object.pointer_mut("/spec/template/spec").and_then(Value::as_object_mut);
    let Some(spec) = spec else { return };
    let is_open = |value: &Value| value.is_null() || value == "";
    if let Some(architecture) = preferred.architecture {
        let there = spec.entry("architecture").or_insert(Value::Null);
        if is_open(there) {
            *there = architecture.into();
        }
    }
    if let Some(kind) = preferred.domain.machine.and_then(|machine| machine.r#type)
        && let Some(machine) = object_at(spec, "domain").and_then(|domain| object_at(domain, "machine"))
    {
        let there = machine.entry("type").or_insert(Value::Null);
        if is_open(there) {
            *there = kind.into();
        }
    }
}

/// Has the claims of DataVolume templates be of the storage class `class` where they name none.
fn prefer_storage_class(object: &mut Value, class: &str) {
    let templates = object.pointer_mut("/spec/dataVolumeTemplates").and_then(Value::as_array_mut);
    for template in templates.into_iter().flatten() {
        for claim in ["/spec/pvc", "/spec/storage"] {
            let claim = template.pointer_mut(claim).and_then(Value::as_object_mut);
            for claim in claim.into_iter() {
                let own = claim.entry("storageClassName").or_insert(Value::Null);
                if own.is_null() {
                    *own = class.into();
                }
            }
        }
    }
}

/// Judges how a machine names its instance type and its preference.
pub fn check_matchers(old: Option<&Value>, object: &Value, problems: &mut Problems) {
    for subject in Subject::ALL {
        if let Some(matcher) = Matcher::in_object(object, subject) {
            let before = old.and_then(|old| Matcher::in_object(old, subject));
            check_matcher(subject, &matcher, before.as_ref(), problems);
        }
    }
}

fn check_matcher(subject: Subject, matcher: &Matcher, before: Option<&Matcher>, problems: &mut Problems) {
    let field = format!("spec.{}", subject.field());
    let not_supported = Reason::FieldValueNotSupported;
    match (matcher.name(), matcher.volume()) {
        (None, None) => {
            let kind = subject.matcher();
            let message = format!("Either Name or InferFromVolume should be provided within the {kind}");
            problems.add(Reason::FieldValueNotFound, &field, message);
        }
        (Some(_), Some(_)) => problems.add(
            not_supported,
            format!("{field}.name"),
            "Name already set, should be cleared before setting inferFromVolume",
        ),
        _ => {}
    }
    for (part, name) in [("name", matcher.name()), ("revisionName", matcher.revision())] {
        if let Some(name) = name.filter(|name| !is_name(name)) {
            problems.invalid(
                format!("{field}.{part}"),
                name.escape_debug(),
                "the name of an object is allowed",
            );
        }
    }
    let has_kind = matcher.kind.as_deref().is_some_and(|kind| !kind.is_empty());
    if matcher.volume().is_some() && has_kind {
        problems.add(
            not_supported,
            format!("{field}.kind"),
            "Kind already set, should be cleared before setting inferFromVolume",
        );
    }
    if let Err(error) = matcher.scope(subject) {
        problems.add(not_supported, format!("{field}.kind"), error.to_string());
    }
    let moved = before.filter(|before| before.name() != matcher.name());
    if moved.is_some_and(|before| before.revision() == matcher.revision()) && matcher.revision().is_some() {
        problems.add(
            Reason::FieldValueInvalid,
            format!("{field}.revisionName"),
            "the Matcher Name has been updated without updating the RevisionName",
        );
    }
}

/// A template as instances are made from it.
pub(super) struct Made {
    /// The template.
    pub(super) template: Value,
    /// What is wrong with it already.
    pub(super) problems: Problems,
    own: Value,
    names: [String; 2],
    origins: Origins,
    /// An instance type is named and not there.
    is_incomplete: bool,
}

/// Applies what a machine names to its template.
///
/// # Errors
///
/// The instance type and the template contradict each other, or the preference requires more.
pub(super) fn make(
    object: &Value,
    specs: &Specs,
    config: &v1::KubeVirtConfiguration,
) -> Result<Made, Problems> {
    let own = object["spec"]["template"].clone();
    let name = |subject: Subject| {
        let matcher = Matcher::in_object(object, subject).unwrap_or_default();
        let kind = matcher.scope(subject).map_or("", |scope| subject.kind(scope));
        format!("{kind} {:?}", matcher.name().unwrap_or_default())
    };
    let is_incomplete = specs.instancetype.is_none() && !object["spec"]["instancetype"].is_null();
    let mut made = Made {
        template: own.clone(),
        problems: Problems::default(),
        own,
        names: Subject::ALL.map(name),
        origins: Origins::of(specs),
        is_incomplete,
    };
    if specs.is_empty() {
        return Ok(made);
    }
    let mut template = VirtualMachineInstanceTemplateSpec::deserialize(&made.own)
        .map_err(|error| unreadable("spec.template", &error))?;
    let choices = Choices::of(config);
    expand_template("spec.template.spec", specs, &mut template, &choices)
        .map_err(|conflicts| conflicts.problems())?;
    if !is_incomplete {
        let spec = template.spec.as_ref().map(|spec| filled(spec, &choices)).unwrap_or_default();
        check_requirements(specs, &spec).map_err(|unmet| unmet.problems())?;
    }
    made.annotations(template.metadata.as_ref(), config);
    // A type keeps what it reads; what it wrote can be written.
    if let Ok(mut written) = serde_json::to_value(&template) {
        add_missing(&mut written, &made.own);
        made.template = written;
    }
    Ok(made)
}

impl Made {
    /// Judges the annotations that were added; those of the template are judged with it.
    fn annotations(&mut self, metadata: Option<&ObjectMeta>, config: &v1::KubeVirtConfiguration) {
        let own = &self.own["metadata"]["annotations"];
        let all = metadata.and_then(|metadata| metadata.annotations.as_ref()).into_iter().flatten();
        let added: serde_json::Map<String, Value> = all
            .filter(|(key, _)| own[key.as_str()].is_null())
            .map(|(key, value)| (key.clone(), json!(value)))
            .collect();
        let mut found = Problems::default();
        let added = Value::Object(added);
        check_annotations(On::Vmi, &added, "metadata.annotations", &mut found);
        hooks::check_allowed(&added, "metadata.annotations", config, &mut found);
        let found: Vec<Problem> = found.0.into_iter().filter_map(|problem| self.explain(problem)).collect();
        self.problems.0.extend(found);
    }

    /// A problem of the made template as one of the machine, with the field of the instance type or the preference that asks
    /// for it. Nothing: the instance type, which is not there yet, may see to it.
    pub(super) fn explain(&self, problem: Problem) -> Option<Problem> {
        if self.is_incomplete && problem.reason == Reason::FieldValueRequired && is_sized(&problem.field) {
            return None;
        }
        let mut message = problem.message;
        if let Some((subject, field)) = self.origins.find(&problem.field, &self.own) {
            let name = &self.names[usize::from(subject == Subject::Preference)];
            message = format!("{message}; {name} asks for it by {field}");
        }
        Some(Problem { message, field: format!("spec.template.{}", problem.field), ..problem })
    }
}

/// Whether an instance type sets a field in any case.
fn is_sized(field: &str) -> bool {
    ["spec.domain.memory", "spec.domain.cpu", "spec.domain.resources"]
        .iter()
        .any(|part| field.starts_with(part))
}
