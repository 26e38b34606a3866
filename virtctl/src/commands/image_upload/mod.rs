//! `image-upload`: has CDI write an image, or the files of an archive, into a claim.
//!
//! ```text
//!  (make the claim or DataVolume) ── wait for CDI's upload pod ── UploadTokenRequest ──> token
//!                                                                       │
//!  file ── POST, token ──> upload proxy ── by the token ──> upload pod ──> claim
//!                                                                       │
//!                                    wait until the pod has succeeded <─┘ ── (DataSource)
//! ```

mod send;
mod wait;
mod wishes;

use anyhow::{Context as _, bail};
use serde_json::{Value, json};

use crate::api::Cluster;
use crate::api::objects::{
    CDI_CONFIGS, CLAIMS, DATA_SOURCES, DATA_VOLUMES, STORAGE_CLASSES, UPLOAD_TOKENS, pointer,
};
use crate::args::ImageUpload;
use crate::output::say;
use crate::target::checked;

use wishes::Wishes;

/// Annotation of a claim: an image is to be uploaded to it.
const UPLOAD: &str = "cdi.kubevirt.io/storage.upload.target";
/// Annotation: the claim is bound at once.
const BIND_NOW: &str = "cdi.kubevirt.io/storage.bind.immediate.requested";
/// Annotation: image or archive.
const CONTENT_TYPE: &str = "cdi.kubevirt.io/storage.contentType";
/// Annotation of a claim: the phase of its upload pod.
const POD_PHASE: &str = "cdi.kubevirt.io/storage.pod.phase";
/// Annotation of a claim: whether its upload pod takes an image.
const POD_READY: &str = "cdi.kubevirt.io/storage.pod.ready";
/// Annotation of a DataVolume: its claim is filled by way of another.
const POPULATOR: &str = "cdi.kubevirt.io/storage.usePopulator";
/// Annotation of a claim: the other one.
const PRIME: &str = "cdi.kubevirt.io/storage.populator.pvcPrime";
/// Annotation of a claim whose DataVolume goes when it is filled.
const GOES: &str = "cdi.kubevirt.io/storage.deleteAfterCompletion";

/// Carries out the command.
pub(super) async fn run(cluster: &Cluster, args: &ImageUpload) -> anyhow::Result<()> {
    let wishes = Wishes::of(args)?;
    let path = wishes.path.display();
    // Before anything is made: there is something to upload.
    let file = std::fs::File::open(&wishes.path).with_context(|| format!("cannot open {path}"))?;
    let upload = Upload { cluster, namespace: checked("namespace", cluster.namespace())?, wishes: &wishes };
    upload.prepare().await?;
    upload.until_ready(args.wait_secs).await?;
    let proxy = match &args.uploadproxy_url {
        Some(url) if !url.is_empty() => url.clone(),
        _ => upload.proxy().await?,
    };
    let proxy = if proxy.contains("://") { proxy } else { format!("https://{proxy}") };
    say(&format!("Uploading data to {proxy}"))?;
    let token = upload.token().await?;
    let sender = send::Sender::new(&proxy, &token, args.insecure)?;
    sender.send(file, args.retry).await?;
    if args.datasource {
        upload.data_source().await?;
    }
    say(
        "Uploading data completed successfully, waiting for processing to complete, you can hit ctrl-c without \
         interrupting the progress",
    )?;
    upload.until_processed().await?;
    say(&format!("Uploading {path} completed successfully"))
}

/// An upload to a claim or a DataVolume.
struct Upload<'a> {
    cluster: &'a Cluster,
    namespace: String,
    wishes: &'a Wishes,
}

impl Upload<'_> {
    fn path(&self) -> String {
        format!("{}/{}", self.namespace, self.wishes.name)
    }

    async fn find_claim(&self, name: &str) -> anyhow::Result<Option<Value>> {
        match self.cluster.object(CLAIMS, &self.namespace, &checked("name", name)?).await {
            Ok(claim) => Ok(Some(claim)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error.explain_plain(&format!("read PersistentVolumeClaim {}", self.path()))),
        }
    }

    async fn find_data_volume(&self) -> anyhow::Result<Option<Value>> {
        match self.cluster.object(DATA_VOLUMES, &self.namespace, &self.wishes.name).await {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error.explain_plain(&format!("read DataVolume {}", self.path()))),
        }
    }

    /// Sees to it that there is a claim that takes an image.
    async fn prepare(&self) -> anyhow::Result<()> {
        let (name, path) = (&self.wishes.name, self.path());
        let Some(claim) = self.find_claim(name).await? else {
            say(&format!("PVC {path} not found "))?;
            if !self.wishes.creates {
                bail!("persistentvolumeclaims \"{name}\" not found, and --no-create makes none");
            }
            return self.create().await;
        };
        let filled = if self.wishes.claim { None } else { Some(self.filled(&claim).await?) };
        usable(filled.as_ref().unwrap_or(&claim), self.wishes)?;
        if annotation(&claim, UPLOAD).is_none() {
            let changed =
                self.cluster.change(CLAIMS, &self.namespace, name, |claim| Ok(ask_steps(claim))).await;
            changed.map_err(|error| error.explain(&format!("PersistentVolumeClaim {path}")))?;
        }
        say(&format!("Using existing PVC {path}"))
    }

    /// The claim that is filled for a DataVolume whose claim is there.
    async fn filled(&self, claim: &Value) -> anyhow::Result<Value> {
        let (name, path) = (&self.wishes.name, self.path());
        let Some(data_volume) = self.find_data_volume().await? else {
            if annotation(claim, GOES) == Some("true") && annotation(claim, POD_PHASE) == Some("Succeeded") {
                bail!("DataVolume already garbage-collected: Assuming PVC {path} is successfully populated");
            }
            bail!("No DataVolume is associated with the existing PVC {path}");
        };
        if annotation(&data_volume, POPULATOR) != Some("true") {
            return Ok(claim.clone());
        }
        if claim["status"]["phase"] == "Bound" {
            bail!("PVC {name} already successfully populated");
        }
        let prime = annotation(claim, PRIME)
            .with_context(|| format!("Unable to get PVC Prime name from PVC {path}"))?;
        let found = self.find_claim(prime).await?;
        found.with_context(|| format!("Unable to get PVC Prime {}/{prime}", self.namespace))
    }

    async fn create(&self) -> anyhow::Result<()> {
        let Some(size) = &self.wishes.size else {
            bail!("when creating a resource, the size must be specified: --size");
        };
        if let Some(class) = &self.wishes.storage_class {
            let found = self.cluster.cluster_object(STORAGE_CLASSES, &checked("name", class)?).await;
            found.map_err(|error| {
                error.explain_plain(&format!("read StorageClass {class} of --storage-class"))
            })?;
        }
        let (of, kind, manifest) = if self.wishes.claim {
            (CLAIMS, "PersistentVolumeClaim", self.wishes.claim(size))
        } else {
            (DATA_VOLUMES, "DataVolume", self.wishes.data_volume(size))
        };
        let made = self.cluster.create(of, &self.namespace, &manifest).await;
        made.map_err(|error| error.explain_plain(&format!("create {kind} {}", self.path())))?;
        say(&format!("{kind} {} created", self.path()))
    }

    /// The address of CDI's upload proxy, as CDI's configuration says.
    async fn proxy(&self) -> anyhow::Result<String> {
        let config = self.cluster.cluster_object(CDI_CONFIGS, "config").await;
        let config = config.map_err(|error| {
            error.explain_plain(
                "read CDI's configuration, which has the address that --uploadproxy-url does not give",
            )
        })?;
        let told = config["spec"]["uploadProxyURLOverride"].as_str().filter(|url| !url.is_empty());
        let told = told.or_else(|| config["status"]["uploadProxyURL"].as_str().filter(|url| !url.is_empty()));
        let told = told.context(
            "uploadproxy URL not found: CDI's configuration has none, as no Ingress or Route leads to the proxy; \
             --uploadproxy-url gives it",
        )?;
        Ok(told.to_owned())
    }

    async fn token(&self) -> anyhow::Result<String> {
        let request = json!({"apiVersion": "upload.cdi.kubevirt.io/v1beta1", "kind": "UploadTokenRequest",
            "metadata": {"name": "token-for-virtctl"}, "spec": {"pvcName": self.wishes.name}});
        let told = self.cluster.create(UPLOAD_TOKENS, &self.namespace, &request).await;
        let told = told.map_err(|error| error.explain_plain("ask CDI for a token"))?;
        let token = told["status"]["token"].as_str().filter(|token| !token.is_empty());
        Ok(token.context("CDI's answer has no token")?.to_owned())
    }

    async fn data_source(&self) -> anyhow::Result<()> {
        let (name, path) = (&self.wishes.name, self.path());
        let wanted = self.wishes.data_source(&self.namespace);
        let steps = |found: &Value| {
            let (mut spec, mut labels) = (found["spec"].clone(), found["metadata"]["labels"].clone());
            spec["source"]["pvc"] = wanted["spec"]["source"]["pvc"].clone();
            for (label, value) in &self.wishes.labels {
                labels[label] = json!(value);
            }
            let step = |path: &str, value: Value| json!({"op": "add", "path": path, "value": value});
            let labels = Some(labels).filter(Value::is_object).map(|labels| step("/metadata/labels", labels));
            Ok([step("/spec", spec)].into_iter().chain(labels).collect())
        };
        match self.cluster.change(DATA_SOURCES, &self.namespace, name, steps).await {
            Ok(()) => say(&format!("Updated an existing DataSource {path}")),
            Err(error) if error.is_not_found() => {
                let made = self.cluster.create(DATA_SOURCES, &self.namespace, &wanted).await;
                made.map_err(|error| error.explain_plain(&format!("make DataSource {path}")))?;
                say(&format!("Created a new DataSource {path}"))
            }
            Err(error) => Err(error.explain(&format!("DataSource {path}"))),
        }
    }
}

/// The steps that ask CDI for an upload to the claim.
fn ask_steps(claim: &Value) -> Vec<Value> {
    let step = |path: &str, value: Value| json!({"op": "add", "path": path, "value": value});
    let mut steps = Vec::new();
    if claim["metadata"]["annotations"].is_null() {
        steps.push(step("/metadata/annotations", json!({})));
    }
    steps.push(step(&pointer(&["metadata", "annotations", UPLOAD]), json!("")));
    steps
}

fn annotation<'o>(object: &'o Value, name: &str) -> Option<&'o str> {
    object["metadata"]["annotations"][name].as_str()
}

/// Whether an image can be uploaded to a claim that is there.
fn usable(claim: &Value, wishes: &Wishes) -> anyhow::Result<()> {
    let name = &wishes.name;
    if annotation(claim, POD_PHASE) == Some("Succeeded") {
        bail!("PVC {name} already successfully imported/cloned/updated");
    }
    if wishes.creates && annotation(claim, UPLOAD).is_none() {
        bail!(
            "PVC {name} not available for upload: it has no annotation {UPLOAD}; --no-create takes it all the same"
        );
    }
    if wishes.archive && annotation(claim, CONTENT_TYPE) != Some("archive") {
        bail!("PVC {name} doesn't have archive contentType annotation");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_used_once_and_for_what_it_was_made() {
        let claim = |annotations: Value| json!({"metadata": {"annotations": annotations}});
        let wishes = |creates, archive| Wishes { name: "web".into(), creates, archive, ..Wishes::default() };
        for (annotations, wishes, says) in [
            (json!({UPLOAD: ""}), wishes(true, false), ""),
            (json!({}), wishes(false, false), ""),
            (json!({}), wishes(true, false), "not available for upload"),
            (
                json!({UPLOAD: "", POD_PHASE: "Succeeded"}),
                wishes(false, false),
                "already successfully imported",
            ),
            (json!({UPLOAD: "", CONTENT_TYPE: "archive"}), wishes(true, true), ""),
            (
                json!({UPLOAD: "", CONTENT_TYPE: "kubevirt"}),
                wishes(true, true),
                "archive contentType annotation",
            ),
        ] {
            let said = usable(&claim(annotations.clone()), &wishes)
                .map_or_else(|e| e.to_string(), |()| String::new());
            assert!(said.contains(says) && said.is_empty() == says.is_empty(), "{annotations}: {said}");
        }
    }
}
