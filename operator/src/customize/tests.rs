use podvirt_api::v1::KubeVirtSpec;
use serde_json::{Value, json};

use super::*;
use crate::target::Own;

fn spec(spec: Value) -> KubeVirtSpec {
    serde_json::from_value(spec).unwrap()
}

fn own() -> Own {
    Own { operator_image: "r/p/virt-operator:v2".into(), ..Own::default() }
}

fn made(given: Value) -> Result<Vec<Object>, CustomizeError> {
    let spec = spec(given);
    objects(&spec, &Target::of(&spec, &own()), "elsewhere")
}

fn named<'a>(objects: &'a [Object], kind: &str, name: &str) -> &'a Value {
    &objects.iter().find(|o| o.kind.kind == kind && o.name() == name).unwrap().value
}

#[test]
fn every_object_says_whose_it_is_and_lies_in_the_operators_namespace() {
    let objects = made(json!({"productName": "n", "productVersion": "3"})).unwrap();
    for object in &objects {
        let metadata = &object.value["metadata"];
        assert_eq!(metadata["labels"][MANAGED_BY], "virt-operator");
        assert_eq!(metadata["labels"]["app.kubernetes.io/component"], "kubevirt");
        assert_eq!(metadata["labels"]["app.kubernetes.io/part-of"], "n");
        assert_eq!(metadata["labels"]["app.kubernetes.io/version"], "3");
        assert_eq!(metadata["annotations"][VERSION], "v2");
        assert_eq!(metadata["annotations"][REGISTRY], "r/p");
        assert!(metadata["labels"]["kubevirt.io"].is_string(), "{}", object.title());
        let namespace = object.namespace();
        assert_eq!(namespace.is_some(), object.kind.namespaced, "{}", object.title());
        assert!([None, Some("elsewhere"), Some("kube-system")].contains(&namespace), "{}", object.title());
        let subjects = object.value["subjects"].as_array().into_iter().flatten();
        for account in subjects.filter(|subject| subject["kind"] == "ServiceAccount") {
            assert_eq!(account["namespace"], "elsewhere");
        }
    }
}

#[test]
fn daemons_have_the_targets_images_and_are_told_that_they_are_operated() {
    let objects = made(json!({"imagePullPolicy": "Always", "imagePullSecrets": [{"name": "s"}]})).unwrap();
    let pod = |kind, name| &named(&objects, kind, name)["spec"]["template"]["spec"];
    for (kind, name) in [
        ("Deployment", "virt-api"),
        ("Deployment", "virt-controller"),
        ("Deployment", "virt-exportproxy"),
        ("DaemonSet", "virt-handler"),
    ] {
        let pod = pod(kind, name);
        assert_eq!(pod["containers"][0]["image"], format!("r/p/{name}:v2"));
        assert_eq!(pod["containers"][0]["imagePullPolicy"], "Always");
        assert_eq!(pod["imagePullSecrets"][0]["name"], "s");
        assert_eq!(pod["nodeSelector"]["kubernetes.io/os"], "linux");
        let metadata = &named(&objects, kind, name)["spec"]["template"]["metadata"];
        assert_eq!(metadata["annotations"][VERSION], "v2");
        assert_eq!(metadata["labels"]["kubevirt.io"], name, "the selector's label stays");
    }
    let ahead = &pod("DaemonSet", "virt-handler")["initContainers"][0];
    assert_eq!(ahead["image"], "r/p/virt-launcher:v2", "QEMU is there");
    assert_eq!(ahead["imagePullPolicy"], "Always");
    let variables = pod("Deployment", "virt-controller")["containers"][0]["env"].as_array().unwrap();
    for (name, component) in NAMED_IMAGES {
        let named = variables.iter().find(|variable| variable["name"] == name).unwrap();
        assert_eq!(named["value"], format!("r/p/{component}:v2"));
    }
    let arguments = pod("Deployment", "virt-api")["containers"][0]["args"].as_array().unwrap();
    assert!(arguments.contains(&json!(OPERATED)) && arguments.len() > 1, "{arguments:?}");
}

#[test]
fn infra_and_workloads_say_where_daemons_run_and_how_many() {
    let rule = |name: &str| json!({"key": name, "operator": "Exists"});
    let term = json!({"topologyKey": "zone", "labelSelector": {"matchLabels": {"kubevirt.io": "virt-api"}}});
    let objects = made(json!({
        "infra": {"replicas": 3, "nodePlacement": {"nodeSelector": {"infra": "yes"}, "tolerations": [rule("infra")],
            "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}},
        "workloads": {"nodePlacement": {"nodeSelector": {"vms": "yes"}}},
    }))
    .unwrap();
    let api = &named(&objects, "Deployment", "virt-api")["spec"];
    assert_eq!(api["replicas"], 3);
    let pod = &api["template"]["spec"];
    assert_eq!(pod["nodeSelector"], json!({"infra": "yes", "kubernetes.io/os": "linux"}));
    let tolerations = pod["tolerations"].as_array().unwrap();
    assert_eq!(tolerations.len(), 2, "its own and the new one");
    let apart = &pod["affinity"]["podAntiAffinity"];
    assert_eq!(apart["requiredDuringSchedulingIgnoredDuringExecution"], json!([term]));
    assert!(apart["preferredDuringSchedulingIgnoredDuringExecution"].is_array(), "its own stays");
    let handler = &named(&objects, "DaemonSet", "virt-handler")["spec"];
    assert_eq!(handler["template"]["spec"]["nodeSelector"]["vms"], "yes");
    assert_eq!(handler["replicas"], Value::Null);
}

#[test]
fn flags_are_handed_to_each_daemon() {
    let flags =
        json!({"api": {"log-level": "debug"}, "controller": {"log-filter": "trace"}, "handler": {"x": ""}});
    let objects = made(json!({"customizeComponents": {"flags": flags}})).unwrap();
    let last = |kind, name| {
        let pod = &named(&objects, kind, name)["spec"]["template"]["spec"];
        pod["containers"][0]["args"].as_array().unwrap().last().unwrap().clone()
    };
    assert_eq!(last("Deployment", "virt-api"), "--log-level=debug");
    assert_eq!(last("Deployment", "virt-controller"), "--log-filter=trace");
    assert_eq!(last("DaemonSet", "virt-handler"), "--x");
}

fn patched(kind: &str, name: &str, form: &str, patch: &str) -> Result<Vec<Object>, CustomizeError> {
    made(json!({"customizeComponents": {"patches": [
        {"resourceType": kind, "resourceName": name, "type": form, "patch": patch}]}}))
}

#[test]
fn patches_of_each_type_change_what_they_name_and_nothing_else() {
    let plain = made(json!({})).unwrap();
    let strategic = r#"{"metadata":{"annotations":{"a":"b"}},
        "spec":{"template":{"spec":{"containers":[{"name":"virt-api","env":[{"name":"NEW","value":"1"}]}]}}}}"#;
    let objects = patched("Deployment", "virt-api", "strategic", strategic).unwrap();
    let api = named(&objects, "Deployment", "virt-api");
    let variables = api["spec"]["template"]["spec"]["containers"][0]["env"].as_array().unwrap();
    assert!(
        variables.len() > 1 && variables.iter().any(|variable| variable["name"] == "NEW"),
        "{variables:?}"
    );
    assert_eq!(api["metadata"]["annotations"]["a"], "b");
    assert_eq!(api["metadata"]["annotations"][VERSION], "v2");
    assert_eq!((&api["kind"], &api["apiVersion"]), (&json!("Deployment"), &json!("apps/v1")));
    let controller = named(&objects, "Deployment", "virt-controller");
    assert_eq!(controller, named(&plain, "Deployment", "virt-controller"));

    let merge = patched("*", "virt-api", "merge", r#"{"metadata":{"labels":{"a":"b"}}}"#).unwrap();
    for kind in ["Deployment", "Service", "PodDisruptionBudget"] {
        assert_eq!(named(&merge, kind, "virt-api")["metadata"]["labels"]["a"], "b", "{kind}");
    }
    let json = r#"[{"op":"replace","path":"/spec/replicas","value":5}]"#;
    let json = patched("deployment", "virt-controller", "json", json).unwrap();
    assert_eq!(named(&json, "Deployment", "virt-controller")["spec"]["replicas"], 5);
    let null = r#"{"spec":{"template":{"spec":{"affinity":null}}}}"#;
    let null = patched("Deployment", "virt-api", "strategic", null).unwrap();
    assert_eq!(named(&null, "Deployment", "virt-api")["spec"]["template"]["spec"]["affinity"], Value::Null);
}

#[test]
fn a_patch_that_cannot_be_applied_is_named() {
    let refused = |kind, name, form, patch| patched(kind, name, form, patch).unwrap_err().to_string();
    let api = |form, patch| refused("Deployment", "virt-api", form, patch);
    let begins = |text: String, field: &str| {
        let begin = format!("spec.customizeComponents.patches[0]{field}: ");
        assert!(text.starts_with(&begin), "{text}");
    };
    begins(api("merge", "{"), ".patch");
    begins(api("json", r#"[{"op":"remove","path":"/nothing"}]"#), ".patch");
    begins(api("strategic", r#"{"spec":{"$patch":"delete"}}"#), ".patch");
    begins(api("merge", r#"{"metadata":{"name":"other"}}"#), ".patch");
    begins(api("other", "{}"), ".type");
    begins(refused("NetworkPolicy", "*", "strategic", "{}"), ".type");
    begins(refused("Secret", "*", "merge", "{}"), ".resourceName");
    begins(refused("Deployment", "virt-template", "merge", "{}"), ".resourceName");
}

#[test]
fn patches_are_bounded_in_number_size_and_what_they_make() {
    let refused =
        |form: &str, patch: &str| patched("Deployment", "virt-api", form, patch).unwrap_err().to_string();
    // Thirty doublings of four bytes: gigabytes.
    let mut doublings = vec![json!({"op": "add", "path": "/spec/a", "value": [0]})];
    doublings.resize(31, json!({"op": "copy", "from": "/spec/a", "path": "/spec/a/-"}));
    let why = refused("json", &Value::from(doublings).to_string());
    assert!(why.contains("'copy' is not allowed"), "{why}");
    let moved = r#"[{"op":"move","from":"/spec","path":"/a"}]"#;
    assert!(refused("json", moved).contains("'move' is not allowed"));

    let list = Value::from(vec![json!({"a": 0}); 4_000]);
    for (form, patch) in [
        ("json", json!([{"op": "add", "path": "/spec/a", "value": list}])),
        ("merge", json!({"spec": {"a": list}})),
        ("strategic", json!({"spec": {"template": {"spec": {"volumes": list}}}})),
    ] {
        let why = refused(form, &patch.to_string());
        assert!(why.starts_with("spec.customizeComponents.patches[0].patch: "), "{form}: {why}");
        assert!(why.contains("bytes of memory"), "{form}: {why}");
    }
    // What each of many patches adds counts together.
    let small = Value::from(vec![json!({"a": 0}); 400]);
    let one = |n: usize| {
        let patch = json!({"spec": {(n.to_string()): small}}).to_string();
        json!({"resourceType": "Deployment", "resourceName": "virt-api", "type": "merge", "patch": patch})
    };
    let many = |count: usize| {
        made(json!({"customizeComponents": {"patches": (0..count).map(one).collect::<Vec<_>>()}}))
    };
    assert!(many(2).is_ok());
    let why = many(8).unwrap_err().to_string();
    assert!(why.contains("Deployment virt-api takes") && !why.contains("patches[0]"), "{why}");

    let none = json!({"resourceType": "Service", "resourceName": "virt-api", "type": "merge", "patch": "{}"});
    let patches = json!({"customizeComponents": {"patches": vec![none; 129]}});
    let why = made(patches).unwrap_err().to_string();
    assert!(why.contains("patches[128]: at most 128"), "{why}");
}

#[test]
fn a_placement_that_makes_a_daemon_too_large_is_refused() {
    let term = json!({"weight": 1, "preference": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}});
    let list = json!({"preferredDuringSchedulingIgnoredDuringExecution": vec![term; 1_000]});
    let infra = json!({"infra": {"nodePlacement": {"affinity": {"nodeAffinity": list}}}});
    let why = made(infra).unwrap_err().to_string();
    assert!(why.starts_with("spec.infra: with it Deployment virt-api takes"), "{why}");
}
