//! Judges a document by the table.

use std::sync::LazyLock;

use serde_json::{Map, Value};

use super::{Kind, Node, Support, VMI};
use crate::problem::{Problems, Reason};
use crate::quantity::Quantity;

static TREE: LazyLock<Node> = LazyLock::new(|| Node::build(VMI));

/// Tells every field of `document` that podvirt does not know or carry out and every value of a wrong type.
pub fn check(document: &Value, problems: &mut Problems) {
    match document {
        Value::Object(map) => object(&TREE, map, "", problems),
        other => wrong_type("", other, "an object", problems),
    }
}

fn object(node: &Node, map: &Map<String, Value>, path: &str, problems: &mut Problems) {
    for (name, value) in map {
        let here = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        let Some(child) = node.children.get(name.as_str()) else {
            problems.add(Reason::FieldValueNotSupported, here, "unknown field");
            continue;
        };
        if value.is_null() {
            continue;
        }
        let kind = match child.field {
            Some(field) => match field.support {
                Support::Carried => field.kind,
                Support::Kept => continue,
                Support::Refused => {
                    let note =
                        if field.note.is_empty() { String::new() } else { format!("; {}", field.note) };
                    problems.add(
                        Reason::FieldValueNotSupported,
                        here,
                        format!("not supported by podvirt{note}"),
                    );
                    continue;
                }
            },
            None => Kind::Object,
        };
        scalar_or_deeper(child, kind, value, &here, problems);
    }
}

fn scalar_or_deeper(node: &Node, kind: Kind, value: &Value, here: &str, problems: &mut Problems) {
    match (kind, value) {
        (Kind::Object, Value::Object(map)) => object(node, map, here, problems),
        (Kind::Object, other) => wrong_type(here, other, "an object", problems),
        (Kind::List, Value::Array(items)) => {
            for (n, item) in items.iter().enumerate() {
                let at = format!("{here}[{n}]");
                match item {
                    Value::Object(map) => object(node, map, &at, problems),
                    other => wrong_type(&at, other, "an object", problems),
                }
            }
        }
        (Kind::List, other) => wrong_type(here, other, "a list of objects", problems),
        (Kind::Texts, Value::Array(items)) => {
            for (n, item) in items.iter().enumerate() {
                scalar_or_deeper(node, Kind::Text, item, &format!("{here}[{n}]"), problems);
            }
        }
        (Kind::Texts, other) => wrong_type(here, other, "a list of texts", problems),
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
                problems.invalid(here, text.escape_debug(), "a text without control characters is allowed");
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
            if !names.contains(&text.as_str()) {
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
