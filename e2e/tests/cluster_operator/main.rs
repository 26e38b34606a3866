//! virt-operator: podvirt is what the KubeVirt object says.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails it")]

mod update;

use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service};
use kube::{Api, ResourceExt};
use podvirt_api::v1::KubeVirt;
use podvirt_daemon::pki::Certificate;
use podvirt_e2e::cluster::{BOOT, Cluster, Manifest, Namespace, SOON, Security};
use serde_json::{Value, json};

/// The daemons of both nodes, one after the other.
const ROLLOUT: Duration = Duration::from_secs(180);
fn kubevirts(cluster: &Cluster) -> Api<KubeVirt> {
    Api::namespaced(cluster.client(), "kubevirt")
}

fn configure(cluster: &Cluster, spec: Value) -> anyhow::Result<String> {
    let patch = json!({ "spec": spec }).to_string();
    cluster.kubectl(&["-n", "kubevirt", "patch", "kubevirt", "kubevirt", "--type=merge", "-p", &patch])
}

/// Waits until the KubeVirt object, as it is stored now, is carried out.
fn wait_carried_out(namespace: &Namespace<'_>) -> KubeVirt {
    let cluster = namespace.cluster();
    let api = kubevirts(cluster);
    let carried_out = || {
        let kubevirt = cluster.block_on(async { api.get("kubevirt").await })?;
        let available =
            kubevirt.status.conditions.iter().any(|c| c.r#type.as_str() == "Available" && c.status == "True");
        let observed = kubevirt.status.observed_generation == kubevirt.metadata.generation;
        Ok((observed && available).then_some(kubevirt))
    };
    namespace.until("the KubeVirt object is carried out", ROLLOUT, carried_out).unwrap()
}

/// Takes a setting back when it is dropped.
struct Set<'n>(&'n Namespace<'n>, Value);

impl Drop for Set<'_> {
    fn drop(&mut self) {
        drop(configure(self.0.cluster(), self.1.clone()));
        wait_carried_out(self.0);
    }
}

#[test]
fn what_is_changed_by_hand_comes_back_and_settings_that_cannot_be_are_refused() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let services: Api<Service> = Api::namespaced(cluster.client(), "kubevirt");
    let old = cluster.block_on(async { services.get("virt-controller").await }).unwrap();
    cluster.kubectl(&["-n", "kubevirt", "delete", "service", "virt-controller"]).unwrap();
    let again = || {
        let service = cluster.block_on(async { services.get_opt("virt-controller").await })?;
        Ok(service.filter(|service| service.uid() != old.uid()))
    };
    namespace.until("the Service is there again", SOON, again).unwrap();

    for (spec, field) in [
        (json!({"infra": {"replicas": 0}}), "spec.infra.replicas"),
        (json!({"synchronizationPort": "9185"}), "spec.synchronizationPort"),
        (
            json!({"certificateRotateStrategy": {"selfSigned": {"server": {"duration": "200h"}}}}),
            "spec.certificateRotateStrategy.selfSigned.server.duration",
        ),
        (
            json!({"customizeComponents": {"patches": [
                {"resourceType": "Secret", "resourceName": "*", "type": "merge", "patch": "{}"}]}}),
            "spec.customizeComponents.patches[0].resourceName",
        ),
    ] {
        let refused = configure(&cluster, spec).unwrap_err().to_string();
        assert!(refused.contains(field), "{refused}");
    }
    let second = json!({"apiVersion": "kubevirt.io/v1", "kind": "KubeVirt", "spec": {}, "metadata": {"name": "second"}});
    let refused = namespace.apply(&second.to_string()).unwrap_err().to_string();
    assert!(refused.contains("a cluster has one KubeVirt object"), "{refused}");
}

#[test]
fn long_daemons_have_the_replicas_and_the_changes_that_the_object_says() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let before = wait_carried_out(&namespace);
    let mut customize = serde_json::to_value(&before.spec.customize_components).unwrap();
    let _back = Set(&namespace, json!({"infra": null, "customizeComponents": customize.clone()}));
    let label = json!({"resourceType": "Deployment", "resourceName": "virt-controller", "type": "strategic",
        "patch": json!({"metadata": {"labels": {"podvirt.io/test": "there"}}}).to_string()});
    customize["patches"].as_array_mut().unwrap().push(label);
    configure(&cluster, json!({"infra": {"replicas": 1}, "customizeComponents": customize})).unwrap();
    wait_carried_out(&namespace);
    let deployments: Api<Deployment> = Api::namespaced(cluster.client(), "kubevirt");
    for name in ["virt-api", "virt-controller"] {
        let deployment = cluster.block_on(async { deployments.get(name).await }).unwrap();
        assert_eq!(deployment.spec.as_ref().unwrap().replicas, Some(1), "{name}");
        let labelled = deployment.labels().contains_key("podvirt.io/test");
        assert_eq!(labelled, name == "virt-controller", "{name}");
    }
}

/// The certificates in `pem`, those of the newest first.
fn certificates(pem: &[u8]) -> Vec<Certificate> {
    Certificate::all_from_pem(std::str::from_utf8(pem).unwrap()).unwrap()
}

/// Seconds that a certificate lives.
fn life(certificate: &Certificate) -> i64 {
    certificate.not_after.as_second() - certificate.not_before.as_second()
}

#[test]
fn long_certificates_live_as_long_as_the_object_says() {
    /// A certificate begins to be valid before it is made, in seconds.
    const BEFORE: i64 = 300;
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let _back = Set(&namespace, json!({"certificateRotateStrategy": null}));
    let lives = json!({"ca": {"duration": "40m", "renewBefore": "20m"}, "server": {"duration": "20m"}});
    configure(&cluster, json!({"certificateRotateStrategy": {"selfSigned": lives}})).unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client(), "kubevirt");
    let both = || {
        let map = cluster.block_on(async { maps.get("kubevirt-ca").await })?;
        let trusted = certificates(map.data.unwrap()["ca-bundle"].as_bytes());
        Ok((life(&trusted[0]) == 40 * 60 + BEFORE).then_some(trusted.len()))
    };
    let trusted = namespace.until("a CA that lives shorter", SOON, both).unwrap();
    assert!(trusted > 1, "the old one is trusted until its certificates are replaced");
    let secrets: Api<Secret> = Api::namespaced(cluster.client(), "kubevirt");
    for name in ["kubevirt-virt-api-certs", "kubevirt-operator-certs"] {
        let replaced = || {
            let secret = cluster.block_on(async { secrets.get(name).await })?;
            let leaf = certificates(&secret.data.unwrap()["tls.crt"].0).remove(0);
            Ok((life(&leaf) == 20 * 60 + BEFORE).then_some(()))
        };
        namespace.until("a certificate that lives shorter", ROLLOUT, replaced).unwrap();
    }
    // Webhooks, virt-handlers and virt-api go by the new ones.
    namespace.apply(&Manifest { name: "trusted", ..Manifest::default() }.instance()).unwrap();
    namespace.wait_phase("trusted", "Running", BOOT).unwrap();
    namespace.virtctl(&["pause", "vmi", "trusted"]).unwrap();
    namespace.kubectl(&["delete", "vmi", "trusted"]).unwrap();
}

#[test]
fn running_daemons_log_as_much_as_the_object_says() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let set =
        |verbosity: Value| json!({"configuration": {"developerConfiguration": {"logVerbosity": verbosity}}});
    let _back = Set(&namespace, set(Value::Null));
    let all =
        json!({"virtAPI": 3, "virtController": 3, "virtHandler": 3, "virtOperator": 3, "virtLauncher": 3});
    configure(&cluster, set(all)).unwrap();
    for daemon in ["virt-api", "virt-controller", "virt-handler", "virt-operator"] {
        let app = format!("kubevirt.io={daemon}");
        let logs = ["-n", "kubevirt", "logs", "-l", &app, "--tail=-1", "--prefix"];
        let taken = || {
            let text = cluster.kubectl(&logs)?;
            let lines = text.lines().filter(|line| line.contains("another filter of the log"));
            Ok((lines.filter(|line| line.contains("\"verbosity\":3")).count() >= 2).then_some(()))
        };
        namespace.until(&format!("both pods of {daemon} take the number"), SOON, taken).unwrap();
    }
    // The containers of a machine that starts now log as much.
    namespace.apply(&Manifest { name: "told", ..Manifest::default() }.instance()).unwrap();
    namespace.wait_phase("told", "Running", BOOT).unwrap();
    let pod = namespace.launcher("told").unwrap().name_any();
    for container in ["compute", "netd"] {
        let logged =
            || Ok(namespace.kubectl(&["logs", &pod, "-c", container])?.contains("DEBUG").then_some(()));
        namespace.until(&format!("{container} logs what is for debugging"), BOOT, logged).unwrap();
    }
}

/// A kind of the Prometheus operator, as far as an API server wants to know it.
fn monitoring_kind(kind: &str, plural: &str) -> Value {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.monitoring.coreos.com")},
        "spec": {
            "group": "monitoring.coreos.com", "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.to_lowercase(), "listKind": format!("{kind}List")},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
        },
    })
}

/// Takes kinds away when it is dropped.
struct Kinds<'c>(&'c Cluster);

impl Drop for Kinds<'_> {
    fn drop(&mut self) {
        let names = ["servicemonitors.monitoring.coreos.com", "prometheusrules.monitoring.coreos.com"];
        drop(self.0.kubectl(&["delete", "crd", "--ignore-not-found", names[0], names[1]]));
    }
}

#[test]
fn what_prometheus_needs_comes_with_its_kinds_and_goes_with_the_setting() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    namespace.kubectl(&["create", "serviceaccount", "prometheus"]).unwrap();
    let _kinds = Kinds(&cluster);
    let _back = Set(&namespace, json!({"monitorNamespace": null, "monitorAccount": null}));
    configure(&cluster, json!({"monitorNamespace": namespace.name(), "monitorAccount": "prometheus"}))
        .unwrap();
    wait_carried_out(&namespace);
    for kind in [
        monitoring_kind("ServiceMonitor", "servicemonitors"),
        monitoring_kind("PrometheusRule", "prometheusrules"),
    ] {
        cluster.kubectl_with(&["apply", "-f", "-"], &kind.to_string()).unwrap();
    }
    let name = "prometheus-kubevirt-rules";
    let made = [
        (namespace.name(), "servicemonitor", name),
        ("kubevirt", "prometheusrule", name),
        ("kubevirt", "rolebinding", "kubevirt-monitoring"),
        ("kubevirt", "networkpolicy", "podvirt-monitoring"),
    ];
    for (place, kind, name) in made {
        let there = || Ok(cluster.kubectl(&["-n", place, "get", kind, name]).is_ok().then_some(()));
        namespace.until(&format!("{kind} {name} is made"), ROLLOUT, there).unwrap();
    }
    let endpoints = cluster.kubectl(&[
        "-n",
        "kubevirt",
        "get",
        "endpoints",
        "kubevirt-prometheus-metrics",
        "-o",
        "jsonpath={.subsets[*].addresses[*].targetRef.name}",
    ]);
    let endpoints = endpoints.unwrap();
    for daemon in ["virt-api", "virt-controller", "virt-handler", "virt-operator"] {
        assert!(endpoints.contains(daemon), "{daemon} is not collected: {endpoints}");
    }
    configure(&cluster, json!({"monitorNamespace": "no-such-namespace"})).unwrap();
    for (place, kind, name) in made {
        let gone = || Ok(cluster.kubectl(&["-n", place, "get", kind, name]).is_err().then_some(()));
        namespace.until(&format!("{kind} {name} is deleted"), ROLLOUT, gone).unwrap();
    }
}
