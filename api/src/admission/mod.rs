//! What virt-api's webhooks do: defaults set and objects judged, as pure functions.
//!
//! ```text
//! request ── mutate ──> object with its defaults ── validate ──> Problems: none, or each a StatusCause
//! ```
//!
//! The functions take and change JSON, so that a webhook can answer with the difference as a JSON patch and
//! nothing is lost that the types do not know. What an API server checks by itself (names, owner references,
//! the schema of the resource) is not checked again. A mutation leaves an object alone that validation refuses.

pub mod backup;
mod data_volumes;
pub mod export;
pub mod instancetype;
pub mod kubevirt;
pub mod migration;
mod numbers;
pub mod pool;
pub mod preset;
mod probe;
mod ratchet;
pub mod replica_set;
pub mod snapshot;
mod stored;
pub mod vm;
pub mod vmi;

use serde_json::{Map, Value};

use crate::names::{self, annotation};
use crate::v1;

#[cfg(test)]
mod tests;

/// The requester of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// A user.
    User,
    /// One of podvirt's daemons: what is carried out is theirs to change.
    Daemon,
}

impl By {
    /// The requester that `username` is, where podvirt runs in `namespace`.
    pub fn of(username: &str, namespace: &str) -> By {
        if names::is_daemon(username, namespace) { By::Daemon } else { By::User }
    }
}

/// What the KubeVirt object says to webhooks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cluster {
    /// Its configuration.
    pub configuration: v1::KubeVirtConfiguration,
    /// What carries the binding `masquerade` of machines that do not say it; none leaves it to netd.
    pub masquerade: Option<String>,
}

impl Cluster {
    /// What `object` says.
    pub fn of(object: v1::KubeVirt) -> Cluster {
        let annotations = object.metadata.annotations.unwrap_or_default();
        Cluster {
            configuration: object.spec.configuration.unwrap_or_default(),
            masquerade: annotations.get(annotation::MASQUERADE).cloned(),
        }
    }
}

/// Machine types that are allowed when the KubeVirt object names none.
const EMULATED_MACHINES: &[&str] = &["q35*", "pc-q35*"];

/// Whether a machine type is among patterns; a `*` at a pattern's end stands for anything.
fn is_emulated<S: AsRef<str>>(machine: &str, patterns: &[S]) -> bool {
    patterns.iter().any(|pattern| match pattern.as_ref().strip_suffix('*') {
        Some(start) => machine.starts_with(start),
        None => machine == pattern.as_ref(),
    })
}

/// Adds to `into` what only `from` has: members of objects and items behind the end of lists. An empty text counts as not there.
pub(crate) fn add_missing(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (name, value) in from {
                match into.get_mut(name) {
                    Some(there) if !there.is_null() && there != "" => add_missing(there, value),
                    _ => {
                        into.insert(name.clone(), value.clone());
                    }
                }
            }
        }
        (Value::Array(into), Value::Array(from)) => {
            for (there, value) in into.iter_mut().zip(from) {
                add_missing(there, value);
            }
            if let Some(more) = from.get(into.len()..) {
                into.extend_from_slice(more);
            }
        }
        _ => {}
    }
}

/// The object at `name`, made if it is not there; nothing when something else is.
fn object_at<'a>(map: &'a mut Map<String, Value>, name: &str) -> Option<&'a mut Map<String, Value>> {
    let value = map.entry(name).or_insert(Value::Null);
    if value.is_null() {
        *value = Value::Object(Map::new());
    }
    value.as_object_mut()
}

/// Fields of which an empty object, or false, is what holds when they are not set.
const SAY_NOTHING_EMPTY: [&str; 8] = [
    "default",
    "disableHotplug",
    "limits",
    "nodeSelector",
    "overcommitGuestOverhead",
    "readonly",
    "requests",
    "resources",
];
/// Words of which upstream tells an empty one from one that is not set, and refuses it.
const SAY_SOMETHING: [&str; 5] =
    ["errorPolicy", "evictionStrategy", "ioThreadsPolicy", "rebootPolicy", "startStrategy"];

/// Whether a field holds what holds when it is not set.
fn says_nothing(name: &str, value: &Value) -> bool {
    let idle = match value {
        Value::Bool(set) => !set,
        Value::Object(map) => map.iter().all(|(name, value)| value.is_null() || says_nothing(name, value)),
        _ => false,
    };
    idle && SAY_NOTHING_EMPTY.contains(&name) || value == "" && !SAY_SOMETHING.contains(&name)
}

/// Whether two documents say the same: a null, an empty list and an empty text count as not set.
pub(crate) fn same(a: &Value, b: &Value) -> bool {
    fn empty(value: &Value) -> bool {
        match value {
            Value::Null => true,
            Value::Array(items) => items.is_empty(),
            _ => false,
        }
    }
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            fn at<'a>(of: &'a Map<String, Value>, name: &str) -> &'a Value {
                let value = of.get(name).unwrap_or(&Value::Null);
                if says_nothing(name, value) { &Value::Null } else { value }
            }
            let others = b.keys().filter(|name| !a.contains_key(*name));
            a.keys().chain(others).all(|name| same(at(a, name), at(b, name)))
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => a.iter().zip(b).all(|(a, b)| same(a, b)),
        _ => a == b || empty(a) && empty(b),
    }
}
