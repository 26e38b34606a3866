//! What the API server does with objects, as far as leases lean on it: names are taken once, replacing and deleting mind
//! versions and UIDs, finalizers hold, lists come in parts. Tests of the library and of the program share it.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails it")]

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// The objects, and the rules by which they change.
#[derive(Default)]
pub(crate) struct Server {
    clock: u64,
    /// By path.
    pub(crate) objects: BTreeMap<String, Value>,
    /// Whether the kind IPAMClaim is known.
    pub(crate) claims: bool,
    /// Method and path of each request.
    pub(crate) requests: Vec<String>,
    /// Requests to paths that end in this are forbidden.
    pub(crate) refused: Option<String>,
    /// Lists of which a part was answered, by the version that they are of.
    lists: BTreeMap<u64, Vec<Value>>,
}

fn refusal(code: u16) -> (u16, Value) {
    let reason = match code {
        403 => "Forbidden",
        404 => "NotFound",
        _ => "Conflict",
    };
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": "no"});
    (code, status)
}

impl Server {
    /// The answer to a request: its status and its body.
    pub(crate) fn answer(&mut self, method: &str, path: &str, query: &str, body: &Value) -> (u16, Value) {
        self.requests.push(format!("{method} {path}"));
        if path.contains("k8s.cni.cncf.io") && !self.claims {
            return refusal(404);
        }
        if self.refused.as_ref().is_some_and(|end| path.ends_with(end.as_str())) {
            return refusal(403);
        }
        self.clock += 1;
        let version = self.clock.to_string();
        let object = path.strip_suffix("/status").unwrap_or(path).to_owned();
        match method {
            "GET" if self.objects.contains_key(&object) => (200, self.objects[&object].clone()),
            "GET" if is_list(&object) => (200, self.list(&object, query)),
            "POST" => {
                let name = body["metadata"]["name"].as_str().unwrap();
                let at = format!("{object}/{name}");
                if self.objects.contains_key(&at) {
                    return refusal(409);
                }
                let mut new = body.clone();
                new["metadata"]["uid"] = json!(format!("u{version}"));
                new["metadata"]["resourceVersion"] = json!(version);
                self.objects.insert(at, new.clone());
                (201, new)
            }
            "PUT" => {
                let Some(old) = self.objects.get(&object) else { return refusal(404) };
                if old["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"] {
                    return refusal(409);
                }
                let mut new = if path.ends_with("/status") { old.clone() } else { body.clone() };
                // The status of a claim is its own resource.
                let status =
                    if path.ends_with("/status") || !path.contains("ipamclaims") { body } else { old };
                new["status"] = status["status"].clone();
                new["metadata"]["resourceVersion"] = json!(version);
                let ending = !new["metadata"]["deletionTimestamp"].is_null();
                if ending && new["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty) {
                    self.objects.remove(&object);
                } else {
                    self.objects.insert(object, new.clone());
                }
                (200, new)
            }
            "DELETE" => {
                let Some(old) = self.objects.get_mut(&object) else { return refusal(404) };
                for (key, condition) in body["preconditions"].as_object().into_iter().flatten() {
                    if !condition.is_null() && old["metadata"][key] != *condition {
                        return refusal(409);
                    }
                }
                if old["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty) {
                    return (200, self.objects.remove(&object).unwrap());
                }
                old["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
                old["metadata"]["resourceVersion"] = json!(version);
                (200, old.clone())
            }
            _ => refusal(404),
        }
    }

    /// One object at a time, whatever was asked for. As of a real API server, all parts of a list are of one moment:
    /// that of the first.
    fn list(&mut self, path: &str, query: &str) -> Value {
        let get = |key: &str| query.split('&').find_map(|pair| pair.strip_prefix(key)?.strip_prefix('='));
        let token = get("continue").and_then(|token| token.split_once('.'));
        let (version, from) = match token {
            Some((version, from)) => (version.parse().unwrap(), from.parse::<usize>().unwrap()),
            None => {
                let all = self.of_kind(path, get("labelSelector"));
                self.lists.insert(self.clock, all);
                (self.clock, 0)
            }
        };
        let all = &self.lists[&version];
        let item: Vec<Value> = all.iter().skip(from).take(1).cloned().collect();
        let next = from + 1;
        let next = if next < all.len() { format!("{version}.{next}") } else { String::new() };
        if next.is_empty() {
            self.lists.remove(&version);
        }
        json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": version.to_string(), "continue": next}, "items": item})
    }

    /// The objects of the kind that `path` lists which have the label `selector`.
    fn of_kind(&self, path: &str, selector: Option<&str>) -> Vec<Value> {
        let plural = path.rsplit('/').next().unwrap();
        let label = selector.map(|s| s.replace("%2F", "/").replace("%3D", "="));
        let label = label.as_deref().and_then(|s| s.split_once('='));
        let is_asked = |(at, object): &(&String, &Value)| {
            let in_place = at.split('/').rev().nth(1) == Some(plural);
            in_place && label.is_none_or(|(key, value)| object["metadata"]["labels"][key] == value)
        };
        self.objects.iter().filter(is_asked).map(|(_, object)| object.clone()).collect()
    }
}

fn is_list(path: &str) -> bool {
    ["addressleases", "leasedaddresses", "ipamclaims", "pods"].iter().any(|plural| path.ends_with(plural))
}
