use std::collections::BTreeSet;

use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

use super::rules::{ALERTS, RECORDS};
use super::*;

/// Words of an expression that are no metrics: operators and functions of PromQL, and labels after `by`.
const EXPRESSION_WORDS: &[&str] = &[
    "and",
    "or",
    "by",
    "sum",
    "count",
    "vector",
    "clamp_min",
    "max",
    "max_over_time",
    "node",
    "namespace",
    "name",
    "vmi",
    "vmim",
    "phase",
    "guest_os_name",
    "guest_os_version_id",
    "guest_os_kernel_release",
];
/// Where the names of series are that there are of machines alone.
const MACHINE_METRIC_SOURCES: [&str; 4] = [
    include_str!("../../../api/src/vmi_info.rs"),
    include_str!("../../../controller/src/objects.rs"),
    include_str!("../../../handler/src/metrics.rs"),
    include_str!("../../../handler/src/statistics/families.rs"),
];
/// What is not of podvirt's daemons: Prometheus' own, and kube-state-metrics'.
const OTHERS: &[&str] = &[
    "up",
    "kube_node_status_allocatable",
    "kube_daemonset_status_number_ready",
    "kube_daemonset_status_desired_number_scheduled",
    "kube_pod_status_phase",
];

/// The names in an expression, without those of labels in braces.
fn names(expression: &str) -> BTreeSet<String> {
    let mut outside = String::new();
    let mut depth = 0;
    for letter in expression.chars() {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ if depth == 0 => outside.push(letter),
            _ => {}
        }
    }
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let words =
        outside.split(|c| !is_word(c)).filter(|word| word.starts_with(|c: char| c.is_ascii_alphabetic()));
    words.filter(|word| !EXPRESSION_WORDS.contains(word)).map(str::to_owned).collect()
}

/// What the daemons show that are named in a rule.
fn shown() -> String {
    let (mut own, mut controller) = (Registry::default(), Registry::default());
    crate::metrics::Metrics::register(&mut own);
    virt_controller::metrics::Metrics::new(&mut controller);
    let mut text = String::new();
    encode(&mut text, &own).unwrap();
    encode(&mut text, &controller).unwrap();
    text
}

#[test]
fn each_metric_that_a_rule_names_is_shown_by_a_daemon_or_computed_before() {
    let shown = shown();
    let is_in = |source: &str, name: &str| source.contains(&format!("\"{name}\""));
    let is_shown = |name: &str| {
        // Statistics of guests stand without the beginning that all have, and counters without their end.
        let short = name.strip_prefix("kubevirt_vmi_").unwrap_or(name);
        let short = short.strip_suffix("_total").unwrap_or(short);
        shown.lines().any(|line| line.starts_with(&format!("{name} ")))
            || MACHINE_METRIC_SOURCES.iter().any(|source| is_in(source, name) || is_in(source, short))
    };
    let mut computed = BTreeSet::new();
    let mut checked = 0;
    let expressions = RECORDS.iter().map(|(name, expression)| (*name, *expression));
    for (name, expression) in expressions.chain(ALERTS.iter().map(|alert| (alert.name, alert.expression))) {
        let names = names(expression);
        assert!(!names.is_empty(), "{name}");
        for metric in names {
            let known = is_shown(&metric) || computed.contains(&metric) || OTHERS.contains(&metric.as_str());
            assert!(known, "{name}: {metric} is in no daemon: {shown}");
            checked += 1;
        }
        computed.insert(name.to_owned());
    }
    assert!(checked > 35, "{checked}");
    assert!(!is_shown("kubevirt_virt_operator"), "a part of a name is none");
    assert_eq!(
        names("sum by (namespace) (a_b{c='d', e=~'f.*'}) - g != 0"),
        BTreeSet::from(["a_b".to_owned(), "g".to_owned()])
    );
}

#[test]
fn alerts_are_told_apart_and_parentheses_close() {
    let names: BTreeSet<&str> = ALERTS.iter().map(|alert| alert.name).collect();
    assert_eq!(names.len(), ALERTS.len());
    for alert in &ALERTS {
        for (open, close) in [('(', ')'), ('{', '}')] {
            let count = |wanted| alert.expression.chars().filter(|c| *c == wanted).count();
            assert_eq!(count(open), count(close), "{}", alert.name);
        }
        assert_eq!(alert.expression.matches('\'').count() % 2, 0, "{}", alert.name);
    }
}

#[test]
fn prometheus_is_looked_for_where_the_object_says_or_where_it_usually_is() {
    let of = |spec: Value| {
        let spec: KubeVirtSpec = serde_json::from_value(spec).unwrap();
        let places = Place::candidates(&spec).into_iter();
        places.map(|place| [place.namespace, place.account, place.monitors].join("/")).collect::<Vec<_>>()
    };
    assert_eq!(
        of(json!({})),
        ["openshift-monitoring/prometheus-k8s/openshift-monitoring", "monitoring/prometheus-k8s/monitoring"]
    );
    assert_eq!(of(json!({"monitorNamespace": "m", "monitorAccount": "p"})), ["m/p/m"]);
    assert_eq!(
        of(json!({"monitorNamespace": "", "serviceMonitorNamespace": "s"})),
        ["openshift-monitoring/prometheus-k8s/s", "monitoring/prometheus-k8s/s"]
    );
}

#[test]
fn what_is_made_fits_together() {
    let place = Place { account: "p".into(), namespace: "m".into(), monitors: "s".into() };
    let objects = objects(&place, "virt");
    let titles: Vec<String> = objects
        .iter()
        .map(|object| format!("{} in {}", object.title(), object.namespace().unwrap()))
        .collect();
    assert_eq!(
        titles,
        [
            "Role kubevirt-monitoring in virt",
            "RoleBinding kubevirt-monitoring in virt",
            "NetworkPolicy podvirt-monitoring in virt",
            "ServiceMonitor prometheus-kubevirt-rules in s",
            "PrometheusRule prometheus-kubevirt-rules in virt",
        ]
    );
    assert_eq!(objects[1].value["subjects"][0]["namespace"], "m");
    // The Service is found by the ServiceMonitor, and finds every daemon; virt-operator comes by its own manifest.
    let made = crate::manifests::all().unwrap();
    let labels = &objects[3].value["spec"]["selector"]["matchLabels"];
    let label = |value: &Value| value[COLLECTED].clone();
    let services: Vec<&Object> = made
        .iter()
        .filter(|object| {
            object.kind.kind == "Service" && label(&object.value["metadata"]["labels"]) == label(labels)
        })
        .collect();
    let [service] = services[..] else { panic!("{services:?}") };
    let port = &service.value["spec"]["ports"][0];
    assert_eq!((&port["name"], &port["targetPort"]), (&json!("metrics"), &json!("metrics")));
    let operator =
        crate::manifests::documents(include_str!("../../../deploy/operator/virt-operator.yaml")).unwrap();
    let templates = made.iter().map(|object| &object.value).chain(&operator);
    let templates: Vec<&Value> = templates.filter(|value| value["spec"]["template"].is_object()).collect();
    assert_eq!(templates.len(), 5);
    for daemon in templates {
        let template = &daemon["spec"]["template"];
        assert_eq!(
            label(&template["metadata"]["labels"]),
            label(&service.value["spec"]["selector"]),
            "{daemon}"
        );
        let ports = template["spec"]["containers"][0]["ports"].as_array().unwrap();
        assert!(ports.iter().any(|port| port["name"] == "metrics"), "{daemon}");
    }
}
