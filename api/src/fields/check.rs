//! Judges a document by the table.

use std::sync::LazyLock;

use serde_json::{Map, Value};

use super::{Field, KUBEVIRT, Kind, Node, POOL, PRESET, REPLICA_SET, Resource, Support, VMI};
use crate::problem::{Problems, Reason};
use crate::quantity::Quantity;

static VMI_TREE: LazyLock<Node> = LazyLock::new(|| Node::build(VMI));
static VM_TREE: LazyLock<Node> = LazyLock::new(|| Node::of_vm(&VMI_TREE));
static KUBEVIRT_TREE: LazyLock<Node> = LazyLock::new(|| Node::build(KUBEVIRT));
static PRESET_TREE: LazyLock<Node> =
    LazyLock::new(|| Node::with(PRESET, "spec.domain", &VMI_TREE, "spec.domain"));
static POOL_TREE: LazyLock<Node> = LazyLock::new(|| Node::build(POOL));
static REPLICA_SET_TREE: LazyLock<Node> =
    LazyLock::new(|| Node::with(REPLICA_SET, "spec.template.spec", &VMI_TREE, "spec"));

/// Where a document is to be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In a cluster.
    Cluster,
    /// By `virt-launcher` alone.
    Alone,
}

impl Resource {
    /// The kind's table.
    fn tree(self) -> &'static Node {
        match self {
            Resource::Vmi => &VMI_TREE,
            Resource::Vm => &VM_TREE,
            Resource::KubeVirt => &KUBEVIRT_TREE,
            Resource::ReplicaSet => &REPLICA_SET_TREE,
            Resource::Pool => &POOL_TREE,
            Resource::Preset => &PRESET_TREE,
        }
    }
}

/// Tells every field of `document` that podvirt does not know or carry out and every value of a wrong type.
pub fn check(resource: Resource, place: Place, document: &Value, problems: &mut Problems) {
    match document {
        Value::Object(map) => Check { place, problems }.object(resource.tree(), map, ""),
        other => wrong_type("", other, "an object", problems),
    }
}

/// Fields of which upstream tells an empty text from one that is not set, and refuses it.
const MUST_SAY: &[&str] = &[
    "apiVersion",
    "kind",
    "spec.domain.devices.disks[].errorPolicy",
    "spec.domain.devices.panicDevices[].model",
    "spec.domain.devices.video.type",
    "spec.domain.rebootPolicy",
    "spec.evictionStrategy",
    "spec.runStrategy",
    "spec.startStrategy",
];

/// Takes the words out of a document that say nothing: empty texts where one of some words is allowed.
pub(crate) fn drop_open_words(resource: Resource, document: &mut Value) {
    fn of(node: &Node, value: &mut Value) {
        match value {
            Value::Object(map) => {
                map.retain(|name, value| {
                    let field = node.children.get(name.as_str()).and_then(|child| child.field);
                    !(*value == "" && field.is_some_and(|field| matches!(field.kind, Kind::OneOf(_))))
                });
                for (name, value) in map {
                    if let Some(child) = node.children.get(name.as_str()) {
                        of(child, value);
                    }
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| of(node, item)),
            _ => {}
        }
    }
    of(resource.tree(), document);
}

/// Most elements of a list of a machine, as the schema of the resource has it for most. A mutating webhook comes before the schema, and
/// checks compare the elements of a list with those of others.
pub const MAX_ELEMENTS: usize = 256;
/// Most ports that an interface lists: all, of two protocols.
pub const MAX_PORTS: usize = 2 * 65_536;

/// Most elements of the list at a path of a table; those of the KubeVirt object are an administrator's.
fn max_elements(path: &str) -> usize {
    match path {
        "spec.domain.devices.interfaces[].ports" => MAX_PORTS,
        path if path.starts_with("spec.configuration.") => usize::MAX,
        _ => MAX_ELEMENTS,
    }
}

struct Check<'a> {
    place: Place,
    problems: &'a mut Problems,
}

/// Why a field is refused at a place, or nothing when it is carried out there.
fn refusal(field: &Field, place: Place) -> Option<String> {
    match (field.support, place) {
        (Support::Carried | Support::Kept, _)
        | (Support::Cluster, Place::Cluster)
        | (Support::Alone, Place::Alone) => None,
        (Support::Cluster, Place::Alone) => Some("not supported by podvirt outside a cluster".into()),
        (Support::Alone, Place::Cluster) => {
            Some(format!("not supported by podvirt in a cluster; {}", field.note))
        }
        (Support::Refused, _) if field.note.is_empty() => Some("not supported by podvirt".into()),
        (Support::Refused, _) => Some(format!("not supported by podvirt; {}", field.note)),
    }
}

impl Check<'_> {
    fn object(&mut self, node: &Node, map: &Map<String, Value>, path: &str) {
        for (name, value) in map {
            let here = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            let Some(child) = node.children.get(name.as_str()) else {
                self.problems.add(Reason::FieldValueNotSupported, here, "unknown field");
                continue;
            };
            if value.is_null() {
                continue;
            }
            let kind = match child.field {
                Some(field) => match refusal(field, self.place) {
                    None if field.support == Support::Kept => continue,
                    None => field.kind,
                    // An empty list asks for nothing.
                    Some(_) if value.as_array().is_some_and(Vec::is_empty) => continue,
                    Some(message) => {
                        self.problems.add(Reason::FieldValueNotSupported, here, message);
                        continue;
                    }
                },
                None => Kind::Object,
            };
            self.value(child, kind, value, &here);
        }
    }

    fn value(&mut self, node: &Node, kind: Kind, value: &Value, here: &str) {
        let problems = &mut *self.problems;
        let max = max_elements(node.path());
        if let Some(length) =
            value.as_array().map(Vec::len).filter(|length| *length > max && kind != Kind::Any)
        {
            let message = format!("a list of {length} elements is not allowed; at most {max} are");
            problems.add(Reason::FieldValueInvalid, here, message);
            return;
        }
        match (kind, value) {
            (Kind::Object, Value::Object(map)) => self.object(node, map, here),
            (Kind::Object, other) => wrong_type(here, other, "an object", problems),
            (Kind::List, Value::Array(items)) => {
                for (n, item) in items.iter().enumerate() {
                    let at = format!("{here}[{n}]");
                    match item {
                        Value::Object(map) => self.object(node, map, &at),
                        other => wrong_type(&at, other, "an object", self.problems),
                    }
                }
            }
            (Kind::List, other) => wrong_type(here, other, "a list of objects", problems),
            (Kind::Texts, Value::Array(items)) => {
                for (n, item) in items.iter().enumerate() {
                    self.value(node, Kind::Text, item, &format!("{here}[{n}]"));
                }
            }
            (Kind::SomeOf(names), Value::Array(items)) => {
                for (n, item) in items.iter().enumerate() {
                    self.value(node, Kind::OneOf(names), item, &format!("{here}[{n}]"));
                }
            }
            (Kind::Texts | Kind::SomeOf(_), other) => wrong_type(here, other, "a list of texts", problems),
            (Kind::TextMap, Value::Object(map)) => {
                for (name, item) in map.iter().filter(|(_, item)| !item.is_string()) {
                    wrong_type(&format!("{here}[{name}]"), item, "a text", problems);
                }
            }
            (Kind::TextMap, other) => wrong_type(here, other, "a map of texts", problems),
            (Kind::QuantityMap, Value::Object(map)) => {
                for (name, item) in map {
                    quantity(&format!("{here}.{name}"), item, problems);
                }
            }
            (Kind::QuantityMap, other) => wrong_type(here, other, "a map of quantities", problems),
            (Kind::Quantity, value) => quantity(here, value, problems),
            (Kind::Text, Value::String(text)) => {
                // These go into XML, command lines and DHCP, none of which can carry control characters.
                if text.chars().any(char::is_control) {
                    problems.invalid(
                        here,
                        text.escape_debug(),
                        "a text without control characters is allowed",
                    );
                }
            }
            (Kind::Lines, Value::String(_)) | (Kind::Bool, Value::Bool(_)) | (Kind::Any, _) => {}
            (Kind::Text | Kind::Lines, other) => wrong_type(here, other, "a text", problems),
            (Kind::Bool, other) => wrong_type(here, other, "true or false", problems),
            (Kind::Int(min, max), value) => match value.as_i64() {
                Some(number) if (min..=max).contains(&number) => {}
                Some(number) => {
                    problems.invalid(here, number, &format!("a whole number from {min} to {max} is allowed"));
                }
                None => wrong_type(here, value, "a whole number", problems),
            },
            (Kind::OneOf(names), Value::String(text)) => {
                // Go writes an empty text for a word that is not set.
                let is_cluster = node.path().starts_with("spec.configuration.");
                let is_open = text.is_empty() && !is_cluster && !MUST_SAY.contains(&node.path());
                if !is_open && !names.contains(&text.as_str()) {
                    let allowed = names.join(", ");
                    problems.add(
                        Reason::FieldValueNotSupported,
                        here,
                        format!("'{text}' is not supported by podvirt; allowed: {allowed}"),
                    );
                }
            }
            (Kind::OneOf(names), other) => {
                wrong_type(here, other, &format!("one of {}", names.join(", ")), problems);
            }
        }
    }
}

fn quantity(here: &str, value: &Value, problems: &mut Problems) {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        other => return wrong_type(here, other, "a quantity", problems),
    };
    if let Err(error) = text.parse::<Quantity>() {
        problems.invalid(here, text, &error.to_string());
    }
}

fn wrong_type(here: &str, value: &Value, wanted: &str, problems: &mut Problems) {
    let mut shown = value.to_string();
    if shown.chars().count() > 60 {
        shown = shown.chars().take(57).chain("...".chars()).collect();
    }
    problems.add(
        Reason::FieldValueTypeInvalid,
        if here.is_empty() { "." } else { here },
        format!("{shown} has the wrong type; {wanted} is allowed"),
    );
}
