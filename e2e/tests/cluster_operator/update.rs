//! Updates: daemons of two versions, rights of both, and nodes that are away.

use std::time::Duration;

use kube::ResourceExt;
use podvirt_api::v1::{KubeVirt, VirtualMachineInstance};
use podvirt_e2e::cluster::{BOOT, Cluster, Manifest, Namespace, SOON, Security};
use serde_json::{Value, json};

use super::{ROLLOUT, Set, configure, kubevirts, wait_carried_out};

/// podvirt's programs with another tag.
const NEXT: &str = "next";
/// Their images.
const PROGRAMS: [&str; 6] =
    ["virt-api", "virt-controller", "virt-exportproxy", "virt-exportserver", "virt-handler", "virt-launcher"];
/// From the end of a node to the end of an update that does not wait for it: 40 s until the node is NotReady, 300 s until it
/// counts as away and its replicas are made elsewhere.
const ABSENCE: Duration = Duration::from_secs(900);

/// Gives podvirt's images of every node a second name.
fn name_images(cluster: &Cluster) {
    for node in [1, 2] {
        for image in PROGRAMS {
            let (from, to) =
                (format!("docker.io/podvirt/{image}:dev"), format!("docker.io/podvirt/{image}:{NEXT}"));
            let tag = ["ctr", "-n", "k8s.io", "images", "tag", "--force", &from, &to];
            cluster.node(node).run(&tag).unwrap();
        }
    }
}

#[test]
fn long_an_update_that_fails_says_so_and_is_taken_back_and_one_that_goes_leaves_machines_alone() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    wait_carried_out(&namespace);
    namespace.apply(&Manifest { name: "stays", ..Manifest::default() }.instance()).unwrap();
    let machine = namespace.wait_phase("stays", "Running", BOOT).unwrap();

    let _back = Set(&namespace, json!({"imageTag": null}));
    configure(&cluster, json!({"imageTag": "no-such-tag"})).unwrap();
    let api = kubevirts(&cluster);
    let told = || {
        let kubevirt = cluster.block_on(async { api.get("kubevirt").await })?;
        let failed = kubevirt
            .status
            .conditions
            .into_iter()
            .find(|c| c.r#type.as_str() == "Synchronized" && c.status == "False");
        Ok(failed.and_then(|condition| condition.message))
    };
    let message = namespace.until("the update says why it fails", SOON, told).unwrap();
    assert!(message.contains("virt-handler") && message.contains("no-such-tag"), "{message}");
    let ready = cluster.kubectl(&[
        "-n",
        "kubevirt",
        "get",
        "deployment",
        "virt-api",
        "-o",
        "jsonpath={.status.readyReplicas}",
    ]);
    assert_eq!(ready.unwrap(), "2", "virt-api goes last");
    configure(&cluster, json!({"imageTag": null})).unwrap();
    wait_carried_out(&namespace);

    name_images(&cluster);
    configure(&cluster, json!({"imageTag": NEXT})).unwrap();
    // In the middle of it virt-operator dies, and gives nothing back.
    let handlers = || {
        let args = [
            "-n",
            "kubevirt",
            "get",
            "daemonset",
            "virt-handler",
            "-o",
            "jsonpath={.status.updatedNumberScheduled}",
        ];
        Ok((cluster.kubectl(&args)? == "1").then_some(()))
    };
    namespace.until("one of two virt-handlers is new", SOON, handlers).unwrap();
    let kill = ["delete", "pod", "-l", "kubevirt.io=virt-operator", "--force", "--grace-period=0"];
    cluster.kubectl(&[&["-n", "kubevirt"], &kill[..]].concat()).unwrap();
    let kubevirt = wait_carried_out(&namespace);
    assert_eq!(kubevirt.status.observed_kube_virt_version.as_deref(), Some(NEXT));
    let still = namespace.wait_phase("stays", "Running", SOON).unwrap();
    assert_eq!(still.metadata.uid, machine.metadata.uid);
    namespace.apply(&Manifest { name: "new", ..Manifest::default() }.instance()).unwrap();
    let new = namespace.wait_phase("new", "Running", BOOT).unwrap();
    let image =
        |machine: &VirtualMachineInstance| machine.status.launcher_container_image_version.clone().unwrap();
    assert!(image(&new).ends_with(NEXT) && !image(&still).ends_with(NEXT));
    // The old launcher under the new daemons.
    namespace.virtctl(&["pause", "vmi", "stays"]).unwrap();
    // virt-api goes by what the status tells.
    let paused = |machine: &VirtualMachineInstance| {
        machine.status.conditions.iter().any(|c| c.r#type.as_str() == "Paused" && c.status == "True")
    };
    namespace.wait("stays", "the status tells of the pause", SOON, paused).unwrap();
    namespace.virtctl(&["unpause", "vmi", "stays"]).unwrap();
    let outdated = "kubevirt.io/outdatedLauncherImage";
    let labelled = |machine: &VirtualMachineInstance| machine.labels().contains_key(outdated);
    namespace.wait("stays", "the label of an older launcher", SOON, labelled).unwrap();
    assert!(!labelled(&new));
    let counted = || {
        let kubevirt = cluster.block_on(async { api.get("kubevirt").await })?;
        Ok((kubevirt.status.outdated_virtual_machine_instance_workloads == Some(1)).then_some(()))
    };
    namespace.until("the number of machines with an older launcher", SOON, counted).unwrap();
    let _methods = Set(&namespace, json!({"workloadUpdateStrategy": null}));
    configure(
        &cluster,
        json!({"workloadUpdateStrategy": {"workloadUpdateMethods": ["LiveMigrate", "Evict"]}}),
    )
    .unwrap();
    let moved = |machine: &VirtualMachineInstance| !labelled(machine) && image(machine).ends_with(NEXT);
    let moved = namespace.wait("stays", "a launcher of the new version", ROLLOUT, moved).unwrap();
    assert_eq!(moved.metadata.uid, machine.metadata.uid);
    assert_ne!(moved.status.node_name, machine.status.node_name);
    namespace.kubectl(&["delete", "vmi", "stays", "new"]).unwrap();
}

/// The rules of a role of virt-controller's, or none where there is no such role.
fn rules(cluster: &Cluster, name: &str) -> Option<Vec<Value>> {
    let role = cluster.kubectl(&["get", "clusterrole", name, "-o", "json"]).ok()?;
    let role: Value = serde_json::from_str(&role).unwrap();
    Some(role["rules"].as_array().unwrap().clone())
}

/// virt-operator is away until this is dropped.
struct Away<'n>(&'n Namespace<'n>);

impl<'n> Away<'n> {
    fn new(namespace: &'n Namespace<'n>) -> Self {
        let this = Away(namespace);
        this.scale(0);
        let gone = || Ok(this.pods()?.is_empty().then_some(()));
        namespace.until("virt-operator is away", SOON, gone).unwrap();
        this
    }

    fn scale(&self, replicas: u8) {
        let replicas = format!("--replicas={replicas}");
        let scale = ["-n", "kubevirt", "scale", "deployment", "virt-operator", &replicas];
        self.0.cluster().kubectl(&scale).unwrap();
    }

    fn pods(&self) -> anyhow::Result<String> {
        let pods = ["-n", "kubevirt", "get", "pods", "-l", "kubevirt.io=virt-operator", "-o", "name"];
        self.0.cluster().kubectl(&pods)
    }
}

impl Drop for Away<'_> {
    fn drop(&mut self) {
        self.scale(2);
    }
}

#[test]
fn long_a_role_that_loses_a_rule_has_it_until_all_daemons_are_new() {
    const ROLE: &str = "kubevirt-controller";
    const NEXT_ROLE: &str = "kubevirt-controller-next";
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    wait_carried_out(&namespace);
    let _back = Set(&namespace, json!({"imageTag": null}));
    // An update that does not get on, so that what is in the middle of it can be seen.
    configure(&cluster, json!({"imageTag": "no-such-tag"})).unwrap();
    let stuck = || {
        let kubevirt = cluster.block_on(async { kubevirts(&cluster).get("kubevirt").await })?;
        let mut conditions = kubevirt.status.conditions.into_iter();
        Ok(conditions.find(|c| c.r#type.as_str() == "Synchronized" && c.status == "False"))
    };
    namespace.until("an update that waits", SOON, stuck).unwrap();

    // The role as an older version may have left it: with a right that virt-operator has not, and so cannot give.
    let older = json!({"apiGroups": ["clone.kubevirt.io"], "resources": ["virtualmachineclones"], "verbs": ["deletecollection"]});
    let lost = |rule: &Value| *rule == older;
    let away = Away::new(&namespace);
    let mut rules_before = rules(&cluster, ROLE).unwrap();
    rules_before.push(older.clone());
    let annotations = json!({"kubevirt.io/install-strategy-identifier": "older"});
    let patch = json!({"metadata": {"annotations": annotations}, "rules": rules_before}).to_string();
    cluster.kubectl(&["patch", "clusterrole", ROLE, "--type=merge", "-p", &patch]).unwrap();
    drop(away);

    let next =
        namespace.until("a role of the new version", ROLLOUT, || Ok(rules(&cluster, NEXT_ROLE))).unwrap();
    assert!(!next.iter().any(lost) && next.len() == rules_before.len() - 1, "{next:?}");
    let bound = || cluster.kubectl(&["get", "clusterrolebinding", NEXT_ROLE]).ok();
    namespace.until("the new version's binding", SOON, || Ok(bound())).unwrap();
    assert!(
        rules(&cluster, ROLE).unwrap().iter().any(lost),
        "daemons of the older version have their rights"
    );

    configure(&cluster, json!({"imageTag": null})).unwrap();
    wait_carried_out(&namespace);
    assert!(!rules(&cluster, ROLE).unwrap().iter().any(lost), "all daemons are new");
    let gone = || Ok((rules(&cluster, NEXT_ROLE).is_none() && bound().is_none()).then_some(()));
    namespace.until("what is for the time of the update alone is gone", SOON, gone).unwrap();
    // The role is bound still: virt-controller makes the pod.
    namespace.apply(&Manifest { name: "made", ..Manifest::default() }.instance()).unwrap();
    namespace.wait_phase("made", "Running", BOOT).unwrap();
    namespace.kubectl(&["delete", "vmi", "made"]).unwrap();
}

#[test]
fn long_an_update_ends_beside_a_node_that_is_away() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    wait_carried_out(&namespace);
    name_images(&cluster);
    let down = cluster.node(2).kill().unwrap();
    let _back = Set(&namespace, json!({"imageTag": null}));
    cluster.node(2).wait_ready(false, ABSENCE).unwrap();
    configure(&cluster, json!({"imageTag": NEXT})).unwrap();
    let api = kubevirts(&cluster);
    let carried_out = || {
        let kubevirt = cluster.block_on(async { api.get("kubevirt").await })?;
        let done = kubevirt.status.observed_kube_virt_version.as_deref() == Some(NEXT);
        Ok((done && degraded(&kubevirt).is_some_and(|(reason, _)| reason == "NodesNotReady"))
            .then_some(kubevirt))
    };
    let result = namespace.until("the update ends without the node", ABSENCE, carried_out);
    let images = handler_images(&cluster);
    down.repair().unwrap();
    let (_, message) = degraded(&result.unwrap()).unwrap();
    assert!(message.contains("node2"), "{message}");
    assert!(images.iter().any(|(node, image)| node == "node1" && image.ends_with(NEXT)), "{images:?}");

    // The node is back, and gets the new version.
    let all_new = || {
        let images = handler_images(&cluster);
        Ok((images.len() == 2 && images.iter().all(|(_, image)| image.ends_with(NEXT))).then_some(()))
    };
    namespace.until("the node that is back has the new version", ROLLOUT, all_new).unwrap();
    let mended = || {
        let kubevirt = cluster.block_on(async { api.get("kubevirt").await })?;
        Ok(degraded(&kubevirt).is_none().then_some(()))
    };
    namespace.until("nothing is said of nodes any more", ROLLOUT, mended).unwrap();
}

/// Reason and message of the condition Degraded, where it is True.
fn degraded(kubevirt: &KubeVirt) -> Option<(String, String)> {
    let mut conditions = kubevirt.status.conditions.iter();
    let degraded = conditions.find(|c| c.r#type.as_str() == "Degraded" && c.status == "True")?;
    Some((degraded.reason.clone().unwrap_or_default(), degraded.message.clone().unwrap_or_default()))
}

/// Node and image of each pod of virt-handler.
fn handler_images(cluster: &Cluster) -> Vec<(String, String)> {
    let columns = r"jsonpath={range .items[*]}{.spec.nodeName} {.spec.containers[0].image}{'\n'}{end}";
    let pods = ["-n", "kubevirt", "get", "pods", "-l", "kubevirt.io=virt-handler", "-o", columns];
    let text = cluster.kubectl(&pods).unwrap();
    text.lines().filter_map(|line| line.split_once(' ')).map(|(n, i)| (n.into(), i.into())).collect()
}
