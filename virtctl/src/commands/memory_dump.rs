//! `memory-dump`: has the memory of a running machine written to a claim, and downloads it by an export of the claim.

use std::time::Duration;

use anyhow::{Context as _, bail};
use podvirt_api::memory_dump::needed;
use podvirt_api::names::limits::object_name;
use podvirt_api::state::APPLY_STORAGE_PROFILE;
use podvirt_api::v1::{MemoryDumpPhase as Phase, VirtualMachine, VirtualMachineInstance};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::vmexport;
use crate::api::Cluster;
use crate::api::objects::{CLAIMS, MACHINES};
use crate::args::{Global, MemoryDump, VmExport};
use crate::output::{complain, say};
use crate::target::{Kind, Object, checked};

/// Time between two looks (upstream's).
const LOOK: Duration = Duration::from_secs(2);
/// How long a dump may take (upstream's).
const TIMEOUT: Duration = Duration::from_secs(600);
/// How often a download is tried again: the claim's former pod may be on its way out (upstream's).
const RETRIES: i64 = 2;

/// Carries out the command.
pub(super) async fn run(global: &Global, args: &MemoryDump) -> anyhow::Result<()> {
    let cluster = super::cluster(global).await?;
    let machine = Machine { vm: Object::new(Kind::Vm, &args.name, cluster.namespace())?, cluster: &cluster };
    match args.function.as_str() {
        "get" => {
            machine.get(args).await?;
            if args.output.is_some() { machine.download(global, args).await } else { Ok(()) }
        }
        "download" => machine.download(global, args).await,
        "remove" => machine.remove().await,
        other => bail!("invalid action type {other}; get, download and remove are allowed"),
    }
}

struct Machine<'a> {
    cluster: &'a Cluster,
    vm: Object,
}

impl Machine<'_> {
    async fn read(&self) -> anyhow::Result<VirtualMachine> {
        let found = self.cluster.object(MACHINES, &self.vm.namespace, &self.vm.name).await;
        let found = found.map_err(|error| error.explain("read", &self.vm))?;
        serde_json::from_value(found).context("the virtual machine makes no sense")
    }

    async fn get(&self, args: &MemoryDump) -> anyhow::Result<()> {
        let claim = args.claim_name.as_deref().filter(|name| !name.is_empty());
        if args.create_claim {
            let claim = claim.context("missing claim name: --create-claim needs --claim-name")?;
            self.make_claim(&checked("name", claim)?, args).await?;
        }
        let request = claim.map_or_else(|| json!({"claimName": ""}), |claim| json!({"claimName": claim}));
        let asked = self.cluster.put(&self.vm, "memorydump", &with_phase(request)).await;
        asked.map_err(|error| error.explain("dump the memory of", &self.vm))?;
        say(&format!("Successfully submitted memory dump request of VM {}", self.vm.name))
    }

    async fn make_claim(&self, name: &str, args: &MemoryDump) -> anyhow::Result<()> {
        let mode = mode(args.access_mode.as_deref())?;
        if self.read().await?.status.memory_dump_request.is_some() {
            bail!(
                "please remove current memory dump association before creating a new claim for a new memory dump"
            );
        }
        let path = format!("{}/{name}", self.vm.namespace);
        match self.cluster.object(CLAIMS, &self.vm.namespace, name).await {
            Ok(_) => bail!(
                "PVC {path} already exists, check if it should be created if not remove create flag (--create-claim)"
            ),
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error.explain_plain(&format!("read PersistentVolumeClaim {path}"))),
        }
        let vmi = Object::new(Kind::Vmi, &self.vm.name, &self.vm.namespace)?;
        let found = self.cluster.get(&vmi).await.map_err(|error| error.explain("read", &vmi))?;
        let found: VirtualMachineInstance =
            serde_json::from_value(found).context("the virtual machine instance makes no sense")?;
        let manifest = claim(name, needed(&found), mode, args.storage_class.as_deref());
        let made = self.cluster.create(CLAIMS, &self.vm.namespace, &manifest).await;
        made.map_err(|error| error.explain_plain(&format!("create PersistentVolumeClaim {path}")))?;
        say(&format!("PVC {path} created"))
    }

    async fn download(&self, global: &Global, args: &MemoryDump) -> anyhow::Result<()> {
        let output =
            args.output.clone().context("missing outputFile to download the memory dump: --output")?;
        let claim = self.complete().await?;
        let export = VmExport {
            function: "download".into(),
            name: object_name(&format!("export-{}-{claim}", self.vm.name)),
            pvc: Some(claim),
            output: Some(output),
            format: args.format.clone().filter(|format| !format.is_empty()),
            port_forward: args.port_forward,
            local_port: args.local_port.clone(),
            retry: RETRIES,
            ..VmExport::default()
        };
        Box::pin(vmexport::run(global, &export)).await
    }

    /// The claim of the dump, once it is complete.
    async fn complete(&self) -> anyhow::Result<String> {
        let end = Instant::now() + TIMEOUT;
        loop {
            let request = self.read().await?.status.memory_dump_request;
            let request = request.with_context(|| format!("VM {} has no memory dump", self.vm.name))?;
            match request.phase {
                Phase::Completed => {
                    complain("Memory dump completed successfully");
                    return Ok(request.claim_name);
                }
                Phase::Failed => {
                    bail!(request.message.unwrap_or_else(|| "the memory dump has failed".into()))
                }
                phase if Instant::now() >= end => {
                    bail!("the memory dump is in phase {} after {} s", phase.as_str(), TIMEOUT.as_secs())
                }
                phase => complain(&format!(
                    "Waiting for memorydump {} to complete, current phase: {}...",
                    request.claim_name,
                    phase.as_str()
                )),
            }
            sleep(LOOK).await;
        }
    }

    async fn remove(&self) -> anyhow::Result<()> {
        let asked = self.cluster.put(&self.vm, "removememorydump", &json!({})).await;
        asked.map_err(|error| error.explain("remove the memory dump of", &self.vm))?;
        say(&format!("Successfully submitted remove memory dump association of VM {}", self.vm.name))
    }
}

/// The request with the field that upstream's type requires; virt-api sets it.
fn with_phase(mut request: Value) -> Value {
    request["phase"] = json!("");
    request
}

fn mode(given: Option<&str>) -> anyhow::Result<&str> {
    match given.filter(|mode| !mode.is_empty()) {
        None => Ok("ReadWriteOnce"),
        Some(mode @ ("ReadWriteOnce" | "ReadWriteMany")) => Ok(mode),
        Some("ReadOnlyMany") => {
            bail!(
                "cannot dump memory to a readonly pvc, use either ReadWriteOnce or ReadWriteMany if supported"
            )
        }
        Some(mode) => {
            bail!(
                "--access-mode={mode}: invalid access mode, use either ReadWriteOnce or ReadWriteMany if supported"
            )
        }
    }
}

fn claim(name: &str, bytes: u64, mode: &str, class: Option<&str>) -> Value {
    let mut claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "labels": {APPLY_STORAGE_PROFILE: "true"}},
        "spec": {"accessModes": [mode], "resources": {"requests": {"storage": format!("{}Mi", bytes >> 20)}}},
    });
    if let Some(class) = class.filter(|class| !class.is_empty()) {
        claim["spec"]["storageClassName"] = json!(class);
    }
    claim
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_made_as_large_as_is_needed_and_can_be_written() {
        let made = claim("dump", 241 << 20, mode(None).unwrap(), Some("fast"));
        let expected = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": "dump", "labels": {"cdi.kubevirt.io/applyStorageProfile": "true"}},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "241Mi"}}, "storageClassName": "fast"},
        });
        assert_eq!(made, expected);
        assert_eq!(mode(Some("ReadWriteMany")).unwrap(), "ReadWriteMany");
        for (given, says) in [("ReadOnlyMany", "readonly pvc"), ("RWX", "--access-mode=RWX")] {
            let error = mode(Some(given)).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
