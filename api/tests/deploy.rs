//! The manifests in `deploy/`, as far as they have to agree with each other.

#![allow(clippy::unwrap_used, clippy::panic, reason = "what a test needs is there or the test fails")]

use serde_json::Value;

/// All objects of a directory of manifests.
fn objects(directory: &str) -> Vec<Value> {
    let path = format!("{}/../deploy/{directory}", env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    for entry in std::fs::read_dir(path).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "yaml") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        for document in text.split("\n---\n") {
            let object: Value = serde_saphyr::from_str(document)
                .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            found.push(object);
        }
    }
    found
}

fn all() -> Vec<Value> {
    [objects("base"), objects("cni"), objects("operator")].concat()
}

fn of_kind<'a>(objects: &'a [Value], kinds: &'a [&str]) -> impl Iterator<Item = &'a Value> {
    objects.iter().filter(move |object| kinds.iter().any(|kind| object["kind"] == *kind))
}

/// Whether a policy's selector selects pods of podvirt with this label `kubevirt.io`.
fn selects(policy: &Value, pod: &Value) -> bool {
    let selector = &policy["spec"]["podSelector"];
    let listed =
        |rule: &Value| rule["key"] == "kubevirt.io" && rule["values"].as_array().unwrap().contains(pod);
    selector["matchLabels"]["kubevirt.io"] == *pod
        || selector["matchExpressions"].as_array().is_some_and(|rules| rules.iter().any(listed))
}

#[test]
fn every_daemon_has_a_priority_class_that_is_there() {
    let objects = all();
    let made: Vec<&Value> = of_kind(&objects, &["PriorityClass"]).map(|o| &o["metadata"]["name"]).collect();
    let mut daemons = 0;
    for daemon in of_kind(&objects, &["Deployment", "DaemonSet"]) {
        let class = &daemon["spec"]["template"]["spec"]["priorityClassName"];
        let known =
            class == "system-node-critical" || class == "system-cluster-critical" || made.contains(&class);
        assert!(known, "{} has the priority class {class}", daemon["metadata"]["name"]);
        daemons += 1;
    }
    assert!(daemons >= 6, "{daemons}");
}

#[test]
fn every_daemon_in_the_pods_network_is_closed_but_for_named_ports() {
    let objects = all();
    for daemon in of_kind(&objects, &["Deployment", "DaemonSet"]) {
        let pod = &daemon["spec"]["template"];
        let label = &pod["metadata"]["labels"]["kubevirt.io"];
        if pod["spec"]["hostNetwork"] == true {
            continue;
        }
        let policies: Vec<&Value> =
            of_kind(&objects, &["NetworkPolicy"]).filter(|policy| selects(policy, label)).collect();
        assert!(!policies.is_empty(), "{label} is open");
        let ports: Vec<&Value> = policies
            .iter()
            .flat_map(|policy| policy["spec"]["ingress"].as_array().into_iter().flatten())
            .flat_map(|rule| {
                rule["ports"].as_array().unwrap_or_else(|| panic!("{label}: all ports are open"))
            })
            .map(|port| &port["port"])
            .collect();
        // Each named port of a policy is one of the pod, and each port of the pod is in a policy.
        let own = pod["spec"]["containers"][0]["ports"].as_array().unwrap();
        for port in own {
            assert!(ports.contains(&&port["name"]), "{label}: nothing may reach {}", port["name"]);
        }
        for port in ports.iter().filter(|port| port.is_string()) {
            assert!(own.iter().any(|known| known["name"] == **port), "{label} has no port {port}");
        }
    }
}

#[test]
fn every_manifest_of_a_directory_is_applied_with_it() {
    for directory in ["base", "cni"] {
        let path = format!("{}/../deploy/{directory}", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(format!("{path}/kustomization.yaml")).unwrap();
        let list: Value = serde_saphyr::from_str(&text).unwrap();
        let listed: Vec<&str> =
            list["resources"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        for entry in std::fs::read_dir(path).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let is_manifest = name.ends_with(".yaml") && name != "kustomization.yaml";
            assert!(!is_manifest || listed.contains(&name.as_str()), "{directory}/{name} is in no list");
        }
    }
}

#[test]
fn only_the_port_of_webhooks_is_open_to_every_pod() {
    let objects = all();
    for policy in of_kind(&objects, &["NetworkPolicy"]) {
        for rule in policy["spec"]["ingress"].as_array().into_iter().flatten() {
            let from = rule["from"].as_array().map(Vec::as_slice).unwrap_or_default();
            let ports: Vec<&Value> =
                rule["ports"].as_array().unwrap().iter().map(|port| &port["port"]).collect();
            let (name, anyone) = (&policy["metadata"]["name"], from.is_empty());
            assert!(!anyone || ports == ["https"], "{name}: every pod reaches {ports:?}");
            // An empty selector selects every pod as well.
            let selectors =
                from.iter().flat_map(|peer| ["podSelector", "namespaceSelector"].map(|kind| &peer[kind]));
            for selector in selectors.filter(|selector| !selector.is_null()) {
                assert!(selector["matchLabels"].is_object(), "{name}: {selector} selects everything");
            }
        }
    }
}
