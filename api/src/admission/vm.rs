//! VirtualMachines: a run strategy and the template of the instances.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize as _;
use serde_json::{Value, json};

use crate::defaults::Choices;
use crate::fields::{On, Place, Resource, check, check_annotations};
use crate::hooks;
use crate::instancetype::Specs;
use crate::kernel;
use crate::names::annotation;
use crate::problem::{Problem, Problems, Reason};
use crate::v1;

use super::ratchet::Change;
use super::vmi::{no_utility_volumes, reserved_labels, spec_problems, unreadable};
use super::{By, data_volumes, instancetype, numbers, object_at, same, snapshot};

/// Grace period of a VirtualMachine's guest when its template gives none, seconds; upstream's.
pub const DEFAULT_GRACE_PERIOD_SECONDS: i64 = 180;

const TEMPLATE: &str = "spec.template";

/// Sets what must not change between the instances of a VirtualMachine.
///
/// The machine type is the hardware that the guest was installed on: when the cluster's default moves on, the
/// guest keeps its own. The other defaults are set with each instance.
pub fn mutate(object: &mut Value, config: &v1::KubeVirtConfiguration) {
    if is_being_deleted(object) {
        return;
    }
    // A preference has a word in how long a guest is given; virt-controller sets the default where it has none.
    let grace = object["spec"]["preference"].is_null().then_some(DEFAULT_GRACE_PERIOD_SECONDS);
    let Some(spec) = object.pointer_mut("/spec/template/spec") else { return };
    numbers::to_texts(spec);
    let Some(spec) = spec.as_object_mut() else { return };
    let grace = grace.map(|seconds| ("terminationGracePeriodSeconds", json!(seconds)));
    for (name, value) in grace.into_iter().chain([("architecture", json!("amd64"))]) {
        let there = spec.entry(name).or_insert(Value::Null);
        if there.is_null() || there == "" {
            *there = value;
        }
    }
    let machine = object_at(spec, "domain").and_then(|domain| object_at(domain, "machine"));
    if let Some(machine) = machine {
        let kind = machine.entry("type").or_insert(Value::Null);
        if kind.is_null() || kind == "" {
            *kind = Choices::of(config).machine_type.into();
        }
    }
}

/// Judges a new VirtualMachine that names neither an instance type nor a preference.
pub fn validate(object: &Value, config: &v1::KubeVirtConfiguration, by: By) -> Problems {
    validate_with(object, &Specs::default(), config, by)
}

/// Judges a new VirtualMachine by what it names.
pub fn validate_with(object: &Value, specs: &Specs, config: &v1::KubeVirtConfiguration, by: By) -> Problems {
    judge_change(Change { old: &[], new: object }, specs, config, by)
}

/// Judges a change of a VirtualMachine. What is wrong with it already and stays as it is does not count: a machine
/// that older rules took can be started, stopped and relabelled.
pub fn validate_update(old: &Value, new: &Value, config: &v1::KubeVirtConfiguration, by: By) -> Problems {
    validate_update_with(old, new, &Specs::default(), config, by)
}

/// Judges a change of a VirtualMachine, as [`validate_update`], by what it names then.
pub fn validate_update_with(
    old: &Value,
    new: &Value,
    specs: &Specs,
    config: &v1::KubeVirtConfiguration,
    by: By,
) -> Problems {
    // The new object may have the defaults that the webhook sets today.
    let mut filled = old.clone();
    mutate(&mut filled, config);
    let mut problems = judge_change(Change { old: &[old, &filled], new }, specs, config, by);
    if problems.is_empty() && by == By::User && !is_being_deleted(new) {
        snapshot::held(old, new, &mut problems);
    }
    problems
}

/// Judges a change of a VirtualMachine's status, which the daemons keep: a request to plug a volume, which upstream's clients
/// write there, is refused, and what the controllers could not read.
pub fn validate_status(old: &Value, new: &Value, by: By) -> Problems {
    let mut problems = Problems::default();
    if by == By::Daemon {
        return problems;
    }
    let requests = |object: &Value| object["status"]["volumeRequests"].clone();
    let asks = requests(new).as_array().is_some_and(|list| !list.is_empty());
    if asks && !same(&requests(old), &requests(new)) {
        problems.add(
            Reason::FieldValueNotSupported,
            "status.volumeRequests",
            "not supported by podvirt: volumes come and go with the machine's next start; change spec.template.spec.volumes",
        );
    }
    if v1::VirtualMachine::deserialize(old).is_ok()
        && let Err(error) = v1::VirtualMachine::deserialize(new)
    {
        problems.0.extend(unreadable("status", &error).0);
    }
    problems
}

fn judge_change(change: Change<'_>, specs: &Specs, config: &v1::KubeVirtConfiguration, by: By) -> Problems {
    // One object that the controllers cannot read would end their lists of all: no exception while it is deleted. One
    // that they could not read before may lose its finalizers.
    let unread = unread(change.new).filter(|_| change.old.first().is_none_or(|old| unread(old).is_none()));
    if is_being_deleted(change.new) {
        // Only its finalizers go; an object that older rules took must not stay for ever.
        return unread.unwrap_or_default();
    }
    let mut problems = judge(change, specs, config, by);
    if let Some(unread) = unread.filter(|_| problems.0.is_empty()) {
        problems = unread;
    }
    problems
}

/// Why the controllers could not read the object, if so.
fn unread(object: &Value) -> Option<Problems> {
    let error = v1::VirtualMachine::deserialize(object).err()?;
    let metadata = &object["spec"]["template"]["metadata"];
    match Option::<ObjectMeta>::deserialize(metadata) {
        Err(error) => Some(unreadable("spec.template.metadata", &error)),
        Ok(_) => Some(unreadable("spec", &error)),
    }
}

fn judge(change: Change<'_>, specs: &Specs, config: &v1::KubeVirtConfiguration, by: By) -> Problems {
    let object = change.new;
    let mut problems = Problems::default();
    check(Resource::Vm, Place::Cluster, object, &mut problems);
    instancetype::check_matchers(change.old.first().copied(), object, &mut problems);
    let spec = &object["spec"];
    run_strategy(spec, &mut problems);
    let template = &spec["template"];
    if template.is_null() {
        problems.required(TEMPLATE, "a template is required");
        return change.ratchet(problems);
    }
    if by == By::User {
        reserved_labels(&template["metadata"]["labels"], "spec.template.metadata.labels", &mut problems);
    }
    check_annotations(On::Vm, &object["metadata"]["annotations"], "metadata.annotations", &mut problems);
    let wishes = &template["metadata"]["annotations"];
    check_annotations(On::Vmi, wishes, "spec.template.metadata.annotations", &mut problems);
    hooks::check_allowed(wishes, "spec.template.metadata.annotations", config, &mut problems);
    data_volumes::check(object, &mut problems);
    let mut problems = change.ratchet(problems);
    if problems.0.iter().any(|p| p.field.starts_with("spec.template.spec")) {
        return problems;
    }
    let made = match instancetype::make(object, specs, config) {
        Ok(made) => made,
        Err(found) => {
            problems.0.extend(found.0);
            return change.ratchet(problems);
        }
    };
    problems.0.extend(made.problems.0.iter().cloned());
    let template = &made.template;
    let found = of_template(template, &object["metadata"]["name"], object, config);
    problems.0.extend(found.into_iter().filter_map(|problem| made.explain(problem)));
    change.ratchet(problems)
}

/// What is wrong with the instances, called `name`, that the template of `object` makes; fields are the instance's.
pub(super) fn of_template(
    template: &Value,
    name: &Value,
    object: &Value,
    config: &v1::KubeVirtConfiguration,
) -> Vec<Problem> {
    let wishes = &template["metadata"]["annotations"];
    let judged = |way: &str| {
        let mut annotations = wishes.as_object().cloned().unwrap_or_default();
        annotations.insert(annotation::MASQUERADE.into(), way.into());
        let instance = json!({
            "apiVersion": v1::API_VERSION,
            "kind": "VirtualMachineInstance",
            "metadata": {
                "name": name,
                "namespace": object["metadata"]["namespace"],
                "labels": template["metadata"]["labels"],
                "annotations": annotations,
            },
            "spec": template["spec"],
        });
        let mut problems = spec_problems(&instance, config);
        no_utility_volumes(&instance, &mut problems);
        let mut problems = problems.0;
        // A VirtualMachine may lack its memory: its instance is refused then, and it says so.
        problems.retain(|p| p.field != "spec.domain.memory.guest" || p.reason != Reason::FieldValueRequired);
        problems
    };
    match wishes[annotation::MASQUERADE].as_str() {
        Some(way) => judged(way),
        // The cluster will say what carries masquerade, which is not known here: what is wrong by either way is.
        None => {
            let by_netd = judged(kernel::BY_NETD);
            let by_kernel = judged(kernel::BY_NFTABLES).into_iter();
            by_kernel.filter(|problem| by_netd.contains(problem)).collect()
        }
    }
}

pub(super) fn is_being_deleted(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

fn run_strategy(spec: &Value, problems: &mut Problems) {
    let given = |name: &str| !spec[name].is_null() && spec[name] != "";
    match (given("running"), given("runStrategy")) {
        (true, true) => problems.add(
            Reason::FieldValueInvalid,
            "spec.running",
            "running and runStrategy exclude each other; running is deprecated: use runStrategy",
        ),
        (false, false) => problems.required(
            "spec.runStrategy",
            "a run strategy is required: Always, Halted, Manual, RerunOnFailure or Once",
        ),
        _ => {}
    }
}
