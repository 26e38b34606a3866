//! What podvirt's daemons tell of themselves to tools of the cluster.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails it")]

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, ListParams, Patch, PatchParams};
use podvirt_api::v1::KubeVirt;
use podvirt_e2e::cluster::{Cluster, SOON, Security};
use podvirt_e2e::log_line;
use serde_json::{Value, json};

/// The configuration's version by which a daemon goes.
fn version(cluster: &Cluster, pod: &Pod) -> u64 {
    let path = format!("/api/v1/namespaces/kubevirt/pods/https:{}:8443/proxy/healthz", pod.name_any());
    let said: Value = serde_json::from_str(&cluster.kubectl(&["get", "--raw", &path]).unwrap()).unwrap();
    assert_eq!(said["apiserver"]["connectivity"], "ok", "{said}");
    said["config-resource-version"].as_str().unwrap().parse().unwrap()
}

/// The versions are compared as numbers, as upstream's tools do.
#[test]
fn each_daemon_tells_the_version_of_the_configuration_by_which_it_goes() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let pods: Api<Pod> = Api::namespaced(cluster.client(), "kubevirt");
    let params = ListParams::default().labels("kubevirt.io in (virt-api, virt-controller, virt-handler)");
    let daemons = cluster.block_on(async { pods.list(&params).await }).unwrap().items;
    assert_eq!(daemons.len(), 6, "two of each");

    let kubevirts: Api<KubeVirt> = Api::namespaced(cluster.client(), "kubevirt");
    let mark = Patch::Merge(json!({"metadata": {"annotations": {"test.podvirt.io/mark": namespace.name()}}}));
    let changed = cluster
        .block_on(async { kubevirts.patch("kubevirt", &PatchParams::default(), &mark).await })
        .unwrap();
    let wanted: u64 = changed.resource_version().unwrap().parse().unwrap();
    for pod in &daemons {
        let what = format!("version {wanted} of the configuration in {}", pod.name_any());
        namespace.until(&what, SOON, || Ok((version(&cluster, pod) >= wanted).then_some(()))).unwrap();
    }
}

/// It runs behind the others, whose machines the daemons have told of.
#[test]
fn each_line_of_the_daemons_logs_is_json_with_each_key_once() {
    let cluster = Cluster::get().unwrap();
    let pods: Api<Pod> = Api::namespaced(cluster.client(), "kubevirt");
    let names = "kubevirt.io in (virt-operator, virt-api, virt-controller, virt-handler, virt-exportproxy)";
    let params = ListParams::default().labels(names).fields("status.phase=Running");
    let daemons = cluster.block_on(async { pods.list(&params).await }).unwrap().items;
    assert!(daemons.len() >= 6, "two of each");
    for pod in &daemons {
        let name = pod.name_any();
        let log = cluster.kubectl(&["-n", "kubevirt", "logs", "--tail=-1", &name]).unwrap();
        assert!(!log.is_empty(), "{name}");
        for line in log.lines() {
            log_line::check(line).unwrap_or_else(|error| panic!("{name}: {error}: {line}"));
        }
    }
}
