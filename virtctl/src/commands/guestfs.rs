//! `guestfs`: a shell with libguestfs' tools in a pod that has a claim. The pod goes with the shell.

use std::time::Duration;

use anyhow::{Context as _, bail};
use k8s_openapi::api::core::v1::Pod;
use podvirt_api::names::limits::object_name;
use podvirt_api::v1::VirtualMachine;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncWriteExt as _, copy};
use tokio::time::{Instant, sleep};

use crate::api::Cluster;
use crate::api::objects::{CLAIMS, MACHINES, PODS};
use crate::args::Guestfs;
use crate::output::{complain, say};
use crate::target::checked;
use crate::tty::{Raw, UntilEscape, end_signal};

/// Name of the image in a registry.
const IMAGE: &str = "libguestfs-tools";
/// Name of the container.
const CONTAINER: &str = "libguestfs";
/// Resource by which a pod gets KVM.
const KVM: &str = "devices.kubevirt.io/kvm";
/// Where a claim's files are, and a claim that is a device (upstream's).
const DIRECTORY: &str = "/disk";
const DEVICE: &str = "/dev/vda";
const PULL_POLICIES: [&str; 3] = ["Always", "IfNotPresent", "Never"];
/// Time between two looks at the pod, and how long it may take to run (upstream's).
const LOOK: Duration = Duration::from_secs(5);
const TIMEOUT: Duration = Duration::from_secs(500);

/// What a server tells of its image.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Image {
    registry: String,
    tag: String,
    digest: String,
    image_prefix: String,
    gs_image: String,
}

impl Image {
    fn name(&self) -> Option<String> {
        if !self.gs_image.is_empty() {
            return Some(self.gs_image.clone());
        }
        let name = format!("{}{IMAGE}", self.image_prefix);
        let name = match (self.digest.as_str(), self.tag.as_str()) {
            ("", "") => return None,
            ("", tag) => format!("{name}:{tag}"),
            (digest, _) => format!("{name}@{digest}"),
        };
        Some(if self.registry.is_empty() { name } else { format!("{}/{name}", self.registry) })
    }
}

/// Carries out the command.
pub(super) async fn run(cluster: &Cluster, args: &Guestfs) -> anyhow::Result<()> {
    if !PULL_POLICIES.contains(&args.pull_policy.as_str()) {
        bail!("Invalid pull policy: {}; {} are allowed", args.pull_policy, PULL_POLICIES.join(", "));
    }
    let (namespace, claim) = (checked("namespace", cluster.namespace())?, checked("name", &args.claim)?);
    let image = match args.image.clone().filter(|image| !image.is_empty()) {
        Some(image) => image,
        None => of_server(cluster).await?,
    };
    say(&format!("Use image: {image} "))?;
    let is_block = match cluster.object(CLAIMS, &namespace, &claim).await {
        Ok(found) => found["spec"]["volumeMode"] == "Block",
        Err(error) if error.is_not_found() => bail!("The PVC {claim} doesn't exist"),
        Err(error) => {
            return Err(error.explain_plain(&format!("read PersistentVolumeClaim {namespace}/{claim}")));
        }
    };
    let pods = cluster.objects(PODS, &namespace, "").await;
    let pods = pods.map_err(|error| error.explain_plain(&format!("list pods of namespace {namespace}")))?;
    if pods.iter().any(|pod| uses(pod, &claim)) {
        bail!("PVC {claim} is used by another pod");
    }
    let vm = match &args.vm {
        None => None,
        Some(name) => {
            let found = cluster.object(MACHINES, &namespace, &checked("name", name)?).await;
            let found =
                found.map_err(|error| error.explain_plain(&format!("read VirtualMachine {name} of --vm")))?;
            Some(serde_json::from_value(found).context("the virtual machine makes no sense")?)
        }
    };
    let manifest = pod(args, &claim, &image, is_block, vm.as_ref());
    let name = pod_name(&claim);
    let made = cluster.create(PODS, &namespace, &manifest).await;
    made.map_err(|error| error.explain_plain(&format!("create Pod {namespace}/{name}")))?;
    say(&format!("The PVC has been mounted at {} ", if is_block { DEVICE } else { DIRECTORY }))?;
    let done = tokio::select! {
        done = shell(cluster, &namespace, &name) => done,
        signal = end_signal() => signal.map(drop).context("cannot watch signals"),
    };
    let gone = cluster.remove(PODS, &namespace, &name).await;
    done.and(gone.map_err(|error| error.explain_plain(&format!("delete Pod {namespace}/{name}"))))
}

/// The image that the server names.
async fn of_server(cluster: &Cluster) -> anyhow::Result<String> {
    let told: Image = match cluster.guestfs().await {
        Ok(told) => told,
        Err(error) if error.code() == Some(501) => bail!(
            "this server has no image with libguestfs' tools: --image names one, for instance \
             --image=quay.io/kubevirt/{IMAGE}:v1.8.0"
        ),
        Err(error) => return Err(error.explain_plain("ask for the image with libguestfs' tools")),
    };
    told.name().context("Neither the digest nor the tag for the image has been specified; --image names one")
}

fn pod_name(claim: &str) -> String {
    object_name(&format!("{IMAGE}-{claim}"))
}

/// Whether a pod has the claim and has not ended.
fn uses(pod: &Value, claim: &str) -> bool {
    let has_ended = ["Succeeded", "Failed"].iter().any(|phase| pod["status"]["phase"] == *phase);
    let volumes = pod["spec"]["volumes"].as_array();
    !has_ended
        && volumes.into_iter().flatten().any(|volume| volume["persistentVolumeClaim"]["claimName"] == claim)
}

fn pod(args: &Guestfs, claim: &str, image: &str, is_block: bool, vm: Option<&VirtualMachine>) -> Value {
    let appliance = "/usr/local/lib/guestfs/appliance";
    let mut container = json!({
        "name": CONTAINER,
        "image": image,
        "imagePullPolicy": args.pull_policy,
        "command": ["/entrypoint.sh"],
        "stdin": true,
        "tty": true,
        "env": [
            {"name": "LIBGUESTFS_BACKEND", "value": "direct"},
            {"name": "LIBGUESTFS_PATH", "value": appliance},
            {"name": "LIBGUESTFS_TMPDIR", "value": "/tmp/guestfs"},
            {"name": "HOME", "value": "/home/guestfs"},
        ],
        "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [
            {"name": "libguestfs-tmp-dir", "mountPath": "/tmp/guestfs"},
            {"name": "guestfs", "mountPath": "/home/guestfs"},
        ],
    });
    if args.kvm {
        container["resources"] = json!({"limits": {KVM: "1"}});
    }
    if is_block {
        container["volumeDevices"] = json!([{"name": "volume", "devicePath": DEVICE}]);
    } else {
        container["workingDir"] = json!(DIRECTORY);
        if let Some(mounts) = container["volumeMounts"].as_array_mut() {
            mounts.push(json!({"name": "volume", "mountPath": DIRECTORY}));
        }
    }
    let mut security = json!({"runAsNonRoot": !args.root, "seccompProfile": {"type": "RuntimeDefault"}});
    let ids = [("runAsUser", args.uid), ("runAsGroup", args.gid), ("fsGroup", args.fs_group)];
    for (field, given) in ids {
        if let Some(id) = given.or_else(|| args.root.then_some(0)) {
            security[field] = json!(id);
        }
    }
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod_name(claim)},
        "spec": {
            "restartPolicy": "Never",
            "securityContext": security,
            "containers": [container],
            "volumes": [
                {"name": "volume", "persistentVolumeClaim": {"claimName": claim}},
                {"name": "libguestfs-tmp-dir", "emptyDir": {}},
                {"name": "guestfs", "emptyDir": {}},
            ],
        },
    });
    let template = vm.and_then(|vm| vm.spec.template.as_ref());
    if let Some(spec) = template.and_then(|template| template.spec.as_ref()) {
        pod["spec"]["tolerations"] = json!(spec.tolerations);
        pod["spec"]["affinity"] = json!(spec.affinity);
        pod["spec"]["nodeSelector"] = json!(spec.node_selector);
    }
    if let Some(metadata) = template.and_then(|template| template.metadata.as_ref()) {
        pod["metadata"]["labels"] = json!(metadata.labels);
    }
    pod
}

/// Waits for the pod and connects this terminal to its shell.
async fn shell(cluster: &Cluster, namespace: &str, name: &str) -> anyhow::Result<()> {
    let end = Instant::now() + TIMEOUT;
    loop {
        let found = cluster.object(PODS, namespace, name).await;
        let found = found.map_err(|error| error.explain_plain(&format!("read Pod {namespace}/{name}")))?;
        let pod: Pod = serde_json::from_value(found).context("the pod makes no sense")?;
        let status = pod.status.unwrap_or_default();
        match status.phase.as_deref() {
            Some("Running") => break,
            Some("Pending") | None => {}
            Some(phase) => bail!("Pod is not in running state but got {phase}"),
        }
        for container in status.container_statuses.iter().flatten() {
            let waiting = container.state.as_ref().and_then(|state| state.waiting.as_ref());
            if let Some(waiting) = waiting {
                complain(&format!(
                    "Waiting for container {} still in pending, reason: {}, message: {} ",
                    container.name,
                    waiting.reason.as_deref().unwrap_or_default(),
                    waiting.message.as_deref().unwrap_or_default()
                ));
            }
        }
        if Instant::now() >= end {
            bail!("timeout in waiting for the containers to be started in pod {name}");
        }
        sleep(LOOK).await;
    }
    let mut attached = cluster.attach(namespace, name, CONTAINER).await;
    let attached = attached
        .as_mut()
        .map_err(|error| anyhow::anyhow!("cannot attach to Pod {namespace}/{name}: {error}"))?;
    let (stdin, stdout) = (attached.stdin(), attached.stdout());
    let (mut stdin, mut stdout) = stdin.zip(stdout).context("the pod's shell has no streams")?;
    complain("If you don't see a command prompt, try pressing enter. Ctrl+] or Ctrl+5 leaves.");
    let raw = Raw::enter().context("cannot switch the terminal to raw mode")?;
    let (mut input, mut output) = (UntilEscape::new(tokio::io::stdin()), tokio::io::stdout());
    let done = tokio::select! {
        typed = copy(&mut input, &mut stdin) => typed,
        shown = copy(&mut stdout, &mut output) => shown,
    };
    drop(raw);
    output.flush().await?;
    done.map(drop).context("the connection to the pod broke off")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_image_is_the_servers() {
        let of = |told: Value| serde_json::from_value::<Image>(told).unwrap().name();
        assert_eq!(of(json!({"gsImage": "own/image:1", "tag": "v1"})).as_deref(), Some("own/image:1"));
        let tagged = of(json!({"registry": "quay.io/kubevirt", "tag": "v1", "imagePrefix": "my-"}));
        assert_eq!(tagged.as_deref(), Some("quay.io/kubevirt/my-libguestfs-tools:v1"));
        let digest = of(json!({"tag": "v1", "digest": "sha256:a"}));
        assert_eq!(digest.as_deref(), Some("libguestfs-tools@sha256:a"));
        assert_eq!(of(json!({"registry": "quay.io/kubevirt"})), None);
    }

    #[test]
    fn the_pod_has_the_claim_and_no_more_rights_than_are_asked_for() {
        let args = Guestfs {
            kvm: true,
            pull_policy: "Never".into(),
            fs_group: Some(2000),
            uid: Some(7),
            ..Guestfs::default()
        };
        let vm = json!({"metadata": {}, "spec": {"template": {"metadata": {"labels": {"a": "b"}},
            "spec": {"domain": {"devices": {}}, "nodeSelector": {"disk": "fast"}}}}});
        let vm: VirtualMachine = serde_json::from_value(vm).unwrap();
        let made = pod(&args, "data", "image:1", false, Some(&vm));
        let spec = &made["spec"];
        let security = json!({"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}, "runAsUser": 7, "fsGroup": 2000});
        assert_eq!(spec["securityContext"], security);
        let container = &spec["containers"][0];
        assert_eq!(container["resources"]["limits"], json!({"devices.kubevirt.io/kvm": "1"}));
        assert_eq!(container["volumeMounts"][2], json!({"name": "volume", "mountPath": "/disk"}));
        assert_eq!(
            (&spec["nodeSelector"], &made["metadata"]["labels"]),
            (&json!({"disk": "fast"}), &json!({"a": "b"}))
        );
        assert!(uses(&made, "data") && !uses(&made, "other"));
        let mut ended = made.clone();
        ended["status"] = json!({"phase": "Succeeded"});
        assert!(!uses(&ended, "data"), "an importer's pod that has ended has let go of the claim");
        let root = pod(&Guestfs { root: true, ..Guestfs::default() }, "data", "image:1", true, None);
        assert_eq!(root["spec"]["securityContext"]["runAsUser"], 0);
        let container = &root["spec"]["containers"][0];
        assert_eq!(container["volumeDevices"], json!([{"name": "volume", "devicePath": "/dev/vda"}]));
        assert_eq!(container.get("resources"), None);
    }
}
