//! What clients may learn without asking for an object: groups, resources, OpenAPI, version.

use podvirt_api::names::NODE_MACHINES;
use serde_json::{Value, json};

use crate::target::{Action, EXPAND, GROUP, SUBRESOURCES, VERSIONS};

/// Verbs of a method in resource lists.
fn verb(method: &http::Method) -> &'static str {
    if *method == http::Method::GET { "get" } else { "update" }
}

/// `APIGroup`.
pub fn group() -> Value {
    let versions: Vec<Value> = VERSIONS
        .iter()
        .map(|version| json!({"groupVersion": format!("{GROUP}/{version}"), "version": version}))
        .collect();
    json!({
        "kind": "APIGroup", "apiVersion": "v1", "name": GROUP,
        "preferredVersion": versions[0], "versions": versions,
    })
}

/// `APIGroupList`.
pub fn groups() -> Value {
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": [group()]})
}

/// `APIResourceList` of a version: what is carried out.
pub fn resources(version: &str) -> Value {
    let mut resources: Vec<Value> = Vec::new();
    for row in SUBRESOURCES.iter().filter(|row| row.action != Action::Refused) {
        resources.push(json!({
            "name": format!("{}/{}", row.kind.plural(), row.name),
            "singularName": "", "namespaced": true, "kind": "", "verbs": [verb(&row.method)],
        }));
    }
    resources.push(json!({
        "name": EXPAND.name, "singularName": "", "namespaced": true, "kind": "", "verbs": [verb(&EXPAND.method)],
    }));
    resources.push(json!({
        "name": NODE_MACHINES, "singularName": "", "namespaced": true, "group": "kubevirt.io", "version": "v1",
        "kind": "VirtualMachineInstance", "verbs": ["get", "list", "watch"],
    }));
    resources.push(json!({
        "name": "version", "singularName": "", "namespaced": false, "kind": "", "verbs": ["get"],
    }));
    resources.push(json!({
        "name": "healthz", "singularName": "", "namespaced": false, "kind": "", "verbs": ["get"],
    }));
    json!({
        "kind": "APIResourceList", "apiVersion": "v1",
        "groupVersion": format!("{GROUP}/{version}"), "resources": resources,
    })
}

/// Paths that the server knows, for `GET /`.
pub fn roots() -> Value {
    let mut paths = vec!["/apis".to_owned(), format!("/apis/{GROUP}")];
    paths.extend(VERSIONS.iter().map(|version| format!("/apis/{GROUP}/{version}")));
    paths.extend(["/openapi/v2", "/openapi/v3"].map(ToOwned::to_owned));
    json!({ "paths": paths })
}

/// The version, in the form of Kubernetes' own: upstream's release whose API this is, and podvirt's own behind it.
/// Upstream's clients compare the first part with theirs.
pub fn version() -> Value {
    json!({
        "gitVersion": concat!("v1.8.0+podvirt.", env!("CARGO_PKG_VERSION")),
        "gitCommit": "", "gitTreeState": "", "buildDate": "", "goVersion": "",
        "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, go_architecture()),
    })
}

/// The architecture as Kubernetes names it.
fn go_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Path of a row with its parameters in braces.
fn path(version: &str, row: &crate::target::Subresource) -> Vec<String> {
    if row.action == Action::Expand {
        return vec![format!("/apis/{GROUP}/{version}/namespaces/{{namespace}}/{}", row.name)];
    }
    let base = format!(
        "/apis/{GROUP}/{version}/namespaces/{{namespace}}/{}/{{name}}/{}",
        row.kind.plural(),
        row.name
    );
    if row.action == Action::PortForward {
        vec![format!("{base}/{{port}}"), format!("{base}/{{port}}/{{protocol}}")]
    } else {
        vec![base]
    }
}

/// Identifier of an operation, unique in the document.
fn operation_id(path: &str) -> String {
    let words = path.split(['/', '-', '{', '}', '.']).filter(|word| !word.is_empty());
    words.map(|word| word[..1].to_ascii_uppercase() + &word[1..]).collect()
}

/// An operation; `parameter` makes one in the form of the document's version.
fn operation(row: &crate::target::Subresource, path: &str, parameter: impl Fn(&str) -> Value) -> Value {
    let parameters: Vec<Value> = ["namespace", "name", "port", "protocol"]
        .into_iter()
        .filter(|name| path.contains(&format!("{{{name}}}")))
        .map(parameter)
        .collect();
    json!({
        row.method.as_str().to_ascii_lowercase(): {
            "operationId": operation_id(path),
            "parameters": parameters,
            "responses": {"200": {"description": "OK"}, "default": {"description": "A Kubernetes Status"}},
        }
    })
}

fn paths(versions: &[&str], parameter: impl Fn(&str) -> Value + Copy) -> Value {
    let mut paths = serde_json::Map::new();
    for version in versions {
        for row in SUBRESOURCES.iter().chain([&EXPAND]).filter(|row| row.action != Action::Refused) {
            for path in path(version, row) {
                let operation = operation(row, &path, parameter);
                paths.insert(path, operation);
            }
        }
    }
    Value::Object(paths)
}

fn info() -> Value {
    json!({"title": "podvirt subresources", "version": concat!("v", env!("CARGO_PKG_VERSION"))})
}

/// OpenAPI 2.0 of both versions.
pub fn openapi_v2() -> Value {
    let parameter = |name: &str| json!({"name": name, "in": "path", "required": true, "type": "string"});
    json!({"swagger": "2.0", "info": info(), "paths": paths(&VERSIONS, parameter), "definitions": {}})
}

/// OpenAPI 3.0 of a version.
pub fn openapi_v3(version: &str) -> Value {
    let parameter =
        |name: &str| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}});
    json!({"openapi": "3.0.0", "info": info(), "paths": paths(&[version], parameter), "components": {"schemas": {}}})
}

/// Where the OpenAPI 3.0 documents are. The hash changes with the document, which clients keep.
pub fn openapi_v3_index() -> Value {
    let paths: serde_json::Map<String, Value> = VERSIONS
        .iter()
        .map(|version| {
            let key = format!("apis/{GROUP}/{version}");
            let hash = hash(&openapi_v3(version).to_string());
            let url = format!("/openapi/v3/{key}?hash={hash:016X}");
            (key, json!({ "serverRelativeURL": url }))
        })
        .collect();
    json!({ "paths": paths })
}

/// FNV-1a, which is the same in every build.
pub fn hash(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_holds_what_is_carried_out_and_nothing_else() {
        let list = resources("v1");
        assert_eq!(list["groupVersion"], "subresources.kubevirt.io/v1");
        let names: Vec<&str> =
            list["resources"].as_array().unwrap().iter().map(|r| r["name"].as_str().unwrap()).collect();
        for name in [
            "virtualmachines/start",
            "virtualmachines/portforward",
            "virtualmachineinstances/console",
            "virtualmachineinstances/pause",
            "virtualmachines/expand-spec",
            "virtualmachines/objectgraph",
            "virtualmachineinstances/objectgraph",
            "expand-vm-spec",
            "version",
        ] {
            assert!(names.contains(&name), "{name}");
        }
        assert!(!names.contains(&"virtualmachineinstances/vsock"));
        assert_eq!(group()["name"], "subresources.kubevirt.io");
        assert_eq!(group()["preferredVersion"]["version"], "v1");
    }

    #[test]
    fn documents_have_unique_operations_and_all_parameters() {
        for document in [openapi_v2(), openapi_v3("v1"), openapi_v3("v1alpha3")] {
            let mut ids = std::collections::BTreeSet::new();
            for (path, methods) in document["paths"].as_object().unwrap() {
                for operation in methods.as_object().unwrap().values() {
                    assert!(ids.insert(operation["operationId"].to_string()), "{path}");
                    let parameters = operation["parameters"].as_array().unwrap().len();
                    assert_eq!(parameters, path.matches('{').count(), "{path}");
                }
            }
            assert!(ids.len() > 10);
        }
    }

    #[test]
    fn the_index_names_each_versions_document() {
        let index = openapi_v3_index();
        let url = index["paths"]["apis/subresources.kubevirt.io/v1"]["serverRelativeURL"].as_str().unwrap();
        assert!(url.starts_with("/openapi/v3/apis/subresources.kubevirt.io/v1?hash="), "{url}");
        assert_ne!(hash("a"), hash("b"));
    }
}
