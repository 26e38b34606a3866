//! An older podvirt is updated under a machine that runs; what `make upgrade` has prepared.

use std::time::Duration;

use kube::{Api, ResourceExt};
use podvirt_api::v1::KubeVirt;
use podvirt_e2e::cluster::{Cluster, Namespace, SOON, Security};
use serde_json::json;

use crate::streams::Busy;

/// What the older podvirt's images are called in the cluster.
const OLD: &str = "v0.1.0";
/// And those of this tree.
const NEW: &str = "v0.2.0";
/// The daemons of both nodes, one after the other.
const ROLLOUT: Duration = Duration::from_secs(240);

fn kubevirt(cluster: &Cluster) -> anyhow::Result<KubeVirt> {
    let api: Api<KubeVirt> = Api::namespaced(cluster.client(), "kubevirt");
    Ok(cluster.block_on(async { api.get("kubevirt").await })?)
}

/// Waits until podvirt is carried out in a version.
fn wait_version(namespace: &Namespace<'_>, version: &str) {
    let carried_out = || {
        let kubevirt = kubevirt(namespace.cluster())?;
        let status = &kubevirt.status;
        let available =
            status.conditions.iter().any(|c| c.r#type.as_str() == "Available" && c.status == "True");
        let observed = status.observed_generation == kubevirt.metadata.generation
            && status.observed_kube_virt_version.as_deref() == Some(version);
        Ok((observed && available).then_some(()))
    };
    namespace.until(&format!("podvirt {version} is carried out"), ROLLOUT, carried_out).unwrap();
}

/// Gives virt-operator another version, as a cluster's administrator does it.
fn operator(cluster: &Cluster, version: &str) {
    let manifest = include_str!("../../../deploy/kubevirt-operator.yaml");
    let manifest = manifest.replace("podvirt/virt-operator:dev", &format!("podvirt/virt-operator:{version}"));
    cluster.kubectl_with(&["apply", "--server-side", "--force-conflicts", "-f", "-"], &manifest).unwrap();
}

#[test]
#[ignore = "wants an older podvirt in the cluster: make upgrade FROM=COMMIT"]
fn an_older_podvirt_is_updated_under_a_machine_that_then_moves_to_a_new_launcher() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    wait_version(&namespace, OLD);
    let mut busy = Busy::new(&namespace, 69);
    let old = busy.machine.pod();

    operator(&cluster, NEW);
    wait_version(&namespace, NEW);
    assert_eq!(busy.machine.pod().uid(), old.uid(), "the machine's pod is the same");
    busy.goes_on();
    // The old launcher under the new daemons.
    for verb in ["pause", "unpause"] {
        namespace.virtctl(&[verb, "vmi", busy.machine.name()]).unwrap();
        let told = || {
            let conditions = busy.machine.instance().status.conditions;
            let paused = conditions.iter().any(|c| c.r#type.as_str() == "Paused" && c.status == "True");
            Ok((paused == (verb == "pause")).then_some(()))
        };
        namespace.until("the status tells of the pause", SOON, told).unwrap();
    }
    let outdated = || {
        Ok(busy.machine.instance().labels().contains_key("kubevirt.io/outdatedLauncherImage").then_some(()))
    };
    namespace.until("the label of an older launcher", SOON, outdated).unwrap();

    // From the old launcher to a new one, and on to another new one.
    for _ in 0..2 {
        let source = busy.machine.pod();
        let migration = busy.machine.migrate();
        busy.machine.has_moved(&migration, &source);
        busy.goes_on();
        busy.machine.is_reached();
        let image = busy.machine.instance().status.launcher_container_image_version.unwrap();
        assert!(image.ends_with(NEW), "{image}");
    }
    busy.ends_whole();

    // The way back is refused, and nothing is changed by the attempt.
    let image = format!("podvirt/virt-operator:{OLD}");
    let env = json!([{"name": "VIRT_OPERATOR_IMAGE", "value": image}]);
    let container = json!({"name": "virt-operator", "image": image, "env": env});
    let patch = json!({"spec": {"template": {"spec": {"containers": [container]}}}}).to_string();
    cluster.kubectl(&["-n", "kubevirt", "patch", "deployment", "virt-operator", "-p", &patch]).unwrap();
    let refused = || {
        let conditions = kubevirt(&cluster)?.status.conditions;
        let synchronized = conditions.into_iter().find(|c| c.r#type.as_str() == "Synchronized");
        Ok(synchronized.filter(|c| c.reason.as_deref() == Some("DowngradeRefused")).map(drop))
    };
    namespace.until("the older version is refused", ROLLOUT, refused).unwrap();
    let images = ["-n", "kubevirt", "get", "deployment", "virt-api", "-o", "jsonpath={..image}"];
    let image = cluster.kubectl(&images).unwrap();
    assert!(image.ends_with(NEW), "{image}");
    operator(&cluster, NEW);
    wait_version(&namespace, NEW);
}
