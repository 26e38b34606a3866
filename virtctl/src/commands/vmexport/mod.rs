//! `vmexport`: makes exports, and downloads what they serve.
//!
//! ```text
//!  create ──> VirtualMachineExport, Secret with a token
//!  download ── (create) ── waits until it is Ready ── link ──┬─ external: by its host, an Ingress
//!                                                            ├─ --service-url: by another address, of the Service
//!                                                            └─ --port-forward: by the API server, to the pod
//!           ── token ──> image, compressed or not ──> file ── (delete)
//! ```
//!
//! An image that is not compressed goes on where it broke off: the server says which version of it is read, so that no file is
//! made of two.

mod connect;
mod download;
mod flags;
mod sparse;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, bail};
use base64::Engine as _;
use podvirt_api::export::{GROUP, TOKEN_KEY, TOKEN_LENGTH, VERSION};
use podvirt_api::names::limits::object_name;
use podvirt_api::v1::{
    VirtualMachineExport, VirtualMachineExportLink as Link, VirtualMachineExportPhase as Phase,
};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::api::Cluster;
use crate::api::objects::{EXPORTS, SECRETS};
use crate::args::{Global, VmExport};
use crate::output;
use crate::target::checked;

use connect::{Reach, Server};
use flags::{Function, Wishes};

/// Time between two looks at an export that is not ready.
const LOOK: Duration = Duration::from_secs(2);
/// Time before another attempt.
const PAUSE: Duration = Duration::from_secs(2);

/// Carries out the command.
pub(super) async fn run(global: &Global, args: &VmExport) -> anyhow::Result<()> {
    let wishes = Wishes::of(args)?;
    let cluster = super::cluster(global).await?;
    let export = Export {
        name: checked("name", &args.name)?,
        namespace: checked("namespace", cluster.namespace())?,
        cluster: &cluster,
        wishes: &wishes,
    };
    match wishes.function {
        Function::Create => match export.create().await? {
            true => Ok(()),
            false => bail!("VirtualMachineExport '{}' already exists", export.path()),
        },
        Function::Delete => export.delete().await,
        Function::Download => export.download().await,
    }
}

/// An export, and what is to become of it.
struct Export<'a> {
    cluster: &'a Cluster,
    wishes: &'a Wishes,
    namespace: String,
    name: String,
}

impl Export<'_> {
    fn path(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// Tells the user; beside what is downloaded to the standard output.
    fn tell(&self, line: &str) -> anyhow::Result<()> {
        if self.wishes.file.is_some() || self.wishes.function != Function::Download {
            output::say(line)
        } else {
            output::complain(line);
            Ok(())
        }
    }

    async fn find(&self) -> anyhow::Result<Option<VirtualMachineExport>> {
        match self.cluster.object(EXPORTS, &self.namespace, &self.name).await {
            Ok(object) => Ok(Some(serde_json::from_value(object).context("the export makes no sense")?)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error.explain_plain(&format!("read VirtualMachineExport {}", self.path()))),
        }
    }

    /// Makes the export and its token. Whether it was not there before.
    async fn create(&self) -> anyhow::Result<bool> {
        if self.find().await?.is_some() {
            return Ok(false);
        }
        let secret = object_name(&format!("secret-{}", self.name));
        let mut spec = json!({"tokenSecretRef": secret, "source": self.wishes.source});
        if let Some(ttl) = &self.wishes.ttl {
            spec["ttlDuration"] = json!(ttl);
        }
        let some = |all: &BTreeMap<String, String>| (!all.is_empty()).then(|| all.clone());
        let manifest = json!({
            "apiVersion": format!("{GROUP}/{VERSION}"),
            "kind": "VirtualMachineExport",
            "metadata": {
                "name": self.name,
                "namespace": self.namespace,
                "labels": some(&self.wishes.labels),
                "annotations": some(&self.wishes.annotations),
            },
            "spec": spec,
        });
        let made = self.cluster.create(EXPORTS, &self.namespace, &manifest).await;
        let made =
            made.map_err(|error| error.explain_plain(&format!("make VirtualMachineExport {}", self.path())))?;
        let secret = self.token(&secret, &made)?;
        match self.cluster.create(SECRETS, &self.namespace, &secret).await {
            Ok(_) => {}
            Err(error) if error.code() == Some(409) => {}
            Err(error) => return Err(error.explain_plain("make the Secret of its token")),
        }
        self.tell(&format!("VirtualMachineExport '{}' created succesfully", self.path()))?;
        Ok(true)
    }

    fn token(&self, name: &str, export: &Value) -> anyhow::Result<Value> {
        let token = crate::random::secret(TOKEN_LENGTH)?;
        Ok(json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": name,
                "namespace": self.namespace,
                "ownerReferences": [{
                    "apiVersion": format!("{GROUP}/{VERSION}"),
                    "kind": "VirtualMachineExport",
                    "name": self.name,
                    "uid": export["metadata"]["uid"],
                    "controller": true,
                    "blockOwnerDeletion": false,
                }],
            },
            "type": "Opaque",
            "stringData": {TOKEN_KEY: token},
        }))
    }

    async fn delete(&self) -> anyhow::Result<()> {
        match self.cluster.remove(EXPORTS, &self.namespace, &self.name).await {
            Ok(()) => self.tell(&format!("VirtualMachineExport '{}' deleted succesfully", self.path())),
            Err(error) if error.is_not_found() => {
                self.tell(&format!("VirtualMachineExport '{}' does not exist", self.path()))
            }
            Err(error) => Err(error.explain_plain(&format!("delete VirtualMachineExport {}", self.path()))),
        }
    }

    async fn download(&self) -> anyhow::Result<()> {
        // An export that was there before stays.
        let is_own = self.wishes.source.is_some() && self.create().await?;
        let done = self.fetch().await;
        let deletes = self.wishes.deletes || is_own && !self.wishes.keeps;
        if deletes && !self.wishes.manifest {
            let deleted = self.delete().await;
            return done.and(deleted);
        }
        done
    }

    /// Fetches what is wanted, several times where it fails.
    async fn fetch(&self) -> anyhow::Result<()> {
        let mut target = download::Target::open(self.wishes)?;
        for attempt in 0..=self.wishes.retries {
            let failed = match self.attempt(&mut target).await? {
                None => {
                    if !self.wishes.manifest {
                        self.tell("Download finished succesfully")?;
                    }
                    return Ok(());
                }
                Some(failed) => failed,
            };
            output::complain(&failed);
            if attempt < self.wishes.retries {
                self.tell("Retrying...")?;
                sleep(PAUSE).await;
            }
        }
        bail!("retry count reached, exiting unsuccesfully")
    }

    /// One attempt; what a further one may do better.
    async fn attempt(&self, target: &mut download::Target) -> anyhow::Result<Option<String>> {
        let export = self.ready().await?;
        let link = self.link(&export).context("the export has no link")?.clone();
        let token = self.read_token(&export).await?;
        let server = Server {
            cluster: self.cluster,
            reach: self.reach()?,
            cert: &link.cert,
            token: &token,
            insecure: self.wishes.insecure,
        };
        if self.wishes.manifest {
            return self.manifests(&server, &link, target).await;
        }
        let volume = self.volume(&link)?;
        let wanted = download::Wanted::of(volume, self.wishes);
        let wanted = wanted.with_context(|| {
            format!("unable to get a valid URL from '{}' VirtualMachineExport", self.path())
        })?;
        download::fetch(&server, &wanted, target).await
    }

    fn link<'l>(&self, export: &'l VirtualMachineExport) -> Option<&'l Link> {
        let links = export.status.links.as_ref()?;
        if self.wishes.is_direct() { links.internal.as_ref() } else { links.external.as_ref() }
    }

    fn reach(&self) -> anyhow::Result<Reach> {
        if self.wishes.forwards {
            return Ok(Reach::Pod { namespace: self.namespace.clone(), export: self.name.clone() });
        }
        match &self.wishes.service {
            Some(address) => Reach::address(address),
            None => Ok(Reach::Named),
        }
    }

    /// The export once it is ready.
    async fn ready(&self) -> anyhow::Result<VirtualMachineExport> {
        let end = Instant::now() + self.wishes.timeout;
        let mut found: Option<VirtualMachineExport>;
        loop {
            found = self.find().await?;
            let Some(export) = &found else {
                bail!("unable to get '{}' VirtualMachineExport", self.path());
            };
            let what = if export.status.phase != Some(Phase::Ready) {
                "status to be ready"
            } else if self.link(export).is_none() {
                if self.wishes.is_direct() {
                    "internal links to be available"
                } else {
                    "external links to be available"
                }
            } else {
                return Ok(found.unwrap_or_default());
            };
            if Instant::now() >= end {
                break;
            }
            self.tell(&format!("waiting for VM Export {} {what}...", self.name))?;
            sleep(LOOK).await;
        }
        let conditions = found.into_iter().flat_map(|export| export.status.conditions);
        let said: Vec<String> = conditions
            .filter(|one| one.status != "True")
            .map(|one| {
                let text = |text: Option<String>| text.unwrap_or_default();
                format!("{}: {} {}", one.r#type.as_str(), text(one.reason), text(one.message))
                    .trim()
                    .to_owned()
            })
            .collect();
        let said = if said.is_empty() {
            "no Ingress or Route leads to virt-exportproxy; --port-forward or --service-url goes without"
                .to_owned()
        } else {
            said.join("; ")
        };
        bail!("timed out waiting for the condition: {said}")
    }

    async fn read_token(&self, export: &VirtualMachineExport) -> anyhow::Result<String> {
        let name = export.status.token_secret_ref.as_deref().context("the export names no token")?;
        let secret = self.cluster.object(SECRETS, &self.namespace, &checked("name", name)?).await;
        let secret = secret.map_err(|error| error.explain_plain(&format!("read Secret {name}")))?;
        let text = secret["data"][TOKEN_KEY].as_str().context("the Secret has no token")?;
        let token =
            base64::engine::general_purpose::STANDARD.decode(text).context("the token is no base64")?;
        String::from_utf8(token).context("the token is no text")
    }

    fn volume<'l>(&self, link: &'l Link) -> anyhow::Result<&'l podvirt_api::v1::VirtualMachineExportVolume> {
        let path = self.path();
        match (link.volumes.as_slice(), &self.wishes.volume) {
            ([], _) => bail!("unable to access the volume info from '{path}' VirtualMachineExport"),
            ([one], None) => Ok(one),
            (_, None) => bail!(
                "detected more than one downloadable volume in '{path}' VirtualMachineExport: Select the expected volume \
                 using the --volume flag"
            ),
            (all, Some(name)) => {
                let names: Vec<&str> = all.iter().map(|volume| volume.name.as_str()).collect();
                all.iter().find(|volume| volume.name == *name).with_context(|| {
                    format!(
                        "'{path}' VirtualMachineExport has no volume {name}; {} are allowed",
                        names.join(", ")
                    )
                })
            }
        }
    }

    async fn manifests(
        &self,
        server: &Server<'_>,
        link: &Link,
        target: &mut download::Target,
    ) -> anyhow::Result<Option<String>> {
        let wanted: &[&str] =
            if self.wishes.include_secret { &["all", "auth-header-secret"] } else { &["all"] };
        let mut text = Vec::new();
        for kind in wanted {
            let found = link.manifests.iter().find(|manifest| manifest.r#type.as_str() == *kind);
            let found = found.with_context(|| {
                format!("unable to access the manifest info from '{}' VirtualMachineExport", self.path())
            })?;
            match server.text(&found.url, self.wishes.accept).await? {
                Ok(more) => text.extend(more),
                Err(refused) => return Ok(Some(refused)),
            }
        }
        target.write_all(&text).await?;
        Ok(None)
    }
}
