//! `create vm`: the manifest of a VirtualMachine, from flags. Pure but for the file with a password.
//!
//! Flags add volumes in a fixed order, which is the order in which they are booted where no boot order is given: container
//! disks, claims, DataVolumes, the rest. An instance type and a preference that no flag names are those that the volume which is booted first
//! says, if that is a claim or a DataVolume that may say it; whether it says any, virt-api finds out.

use anyhow::{anyhow, bail};
use podvirt_api::quantity::Quantity;
use serde_json::{Value, json};

use super::cloud_init::Seed;
use super::credentials;
use super::draft::{self, Draft};
use super::import;
use super::params::{flag_error, split_prefixed};
use crate::args::CreateVm;

const RUN_STRATEGIES: [&str; 5] = ["Always", "Manual", "Halted", "Once", "RerunOnFailure"];
/// Memory of a guest when no flag says any.
const MEMORY: &str = "512Mi";

/// A manifest, and what its user should know.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) manifest: Value,
    pub(super) warnings: Vec<String>,
}

/// Makes the manifest of the machine `name`.
pub(super) fn manifest(flags: &CreateVm, name: &str, namespace: Option<&str>) -> anyhow::Result<Made> {
    let mut draft = Draft::default();
    let mut seed = Seed::of(flags);
    let mut spec = json!({"runStrategy": run_strategy(flags)?});
    let mut memory = Some(memory(flags)?);
    if let Some(word) = &flags.instancetype {
        spec["instancetype"] = matcher("instancetype", word)?;
        memory = None;
    }
    if let Some(word) = &flags.preference {
        spec["preference"] = matcher("preference", word)?;
    }
    draft::container_disks(&mut draft, name, &flags.volume_containerdisk)?;
    draft::claims(&mut draft, &flags.volume_pvc)?;
    import::volumes(&mut draft, flags)?;
    draft::sysprep(&mut draft, flags.volume_sysprep.as_ref())?;
    credentials::add(&mut draft, &mut seed, &flags.access_cred)?;
    seed.add(&mut draft)?;

    let of_type =
        Inference { asked: flags.infer_instancetype, from: flags.infer_instancetype_from.as_deref() };
    if flags.instancetype.is_none()
        && flags.memory.is_none()
        && let Some(inferred) = of_type.of(&draft)?
    {
        spec["instancetype"] = inferred;
        if of_type.is_explicit() {
            memory = None;
        }
    }
    let of_preference =
        Inference { asked: flags.infer_preference, from: flags.infer_preference_from.as_deref() };
    if flags.preference.is_none()
        && let Some(inferred) = of_preference.of(&draft)?
    {
        spec["preference"] = inferred;
    }

    let mut instance = json!({
        "domain": {"devices": {}, "resources": {}},
        "terminationGracePeriodSeconds": flags.termination_grace_period,
    });
    if let Some(guest) = memory {
        instance["domain"]["memory"] = json!({"guest": guest});
    }
    if !draft.disks.is_empty() {
        instance["domain"]["devices"]["disks"] = draft.disks.into();
    }
    if !draft.volumes.is_empty() {
        instance["volumes"] = draft.volumes.into();
    }
    if !draft.credentials.is_empty() {
        instance["accessCredentials"] = draft.credentials.into();
    }
    if !draft.data_volumes.is_empty() {
        spec["dataVolumeTemplates"] = draft.data_volumes.into();
    }
    spec["template"] = json!({"metadata": {}, "spec": instance});
    let mut metadata = json!({"name": name});
    if let Some(namespace) = namespace {
        metadata["namespace"] = namespace.into();
    }
    let manifest = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": metadata, "spec": spec, "status": {},
    });
    Ok(Made { manifest, warnings: draft.warnings })
}

fn run_strategy(flags: &CreateVm) -> anyhow::Result<&'static str> {
    let Some(word) = &flags.run_strategy else { return Ok(RUN_STRATEGIES[0]) };
    let known = RUN_STRATEGIES.iter().find(|known| known.eq_ignore_ascii_case(word));
    known.copied().ok_or_else(|| {
        let why =
            format!("invalid run strategy \"{word}\", supported values are: {}", RUN_STRATEGIES.join(", "));
        flag_error("run-strategy", why)
    })
}

fn memory(flags: &CreateVm) -> anyhow::Result<&str> {
    let word = flags.memory.as_deref().unwrap_or(MEMORY);
    let amount = word.parse::<Quantity>();
    amount.map(|_| word).map_err(|error| flag_error("memory", format!("\"{word}\": {error}")))
}

/// An instance type or a preference by name, with its kind where that is given; virt-api knows the kind that is meant without one.
fn matcher(flag: &'static str, word: &str) -> anyhow::Result<Value> {
    let (kind, name) = split_prefixed(word).map_err(|error| flag_error(flag, error))?;
    let known = [format!("virtualmachine{flag}"), format!("virtualmachinecluster{flag}")];
    let mut matcher = json!({"name": name});
    if let Some(kind) = kind.map(str::to_ascii_lowercase) {
        if !known.contains(&kind) {
            let why = format!("invalid {flag} kind \"{kind}\", supported values are: {}", known.join(", "));
            return Err(flag_error(flag, why));
        }
        matcher["kind"] = kind.into();
    }
    Ok(matcher)
}

/// Whether a volume says an instance type or a preference.
struct Inference<'a> {
    asked: Option<bool>,
    from: Option<&'a str>,
}

impl Inference<'_> {
    /// Whether a flag asks for it: then it must be possible.
    fn is_explicit(&self) -> bool {
        self.asked.is_some() || self.from.is_some()
    }

    /// What the machine is to be told, if it is wanted and possible.
    fn of(&self, draft: &Draft) -> anyhow::Result<Option<Value>> {
        if self.asked == Some(false) && self.from.is_none() {
            return Ok(None);
        }
        match self.volume(draft) {
            Ok(volume) if self.is_explicit() => Ok(Some(json!({"inferFromVolume": volume}))),
            // The volume may say nothing, and the machine is good all the same.
            Ok(volume) => {
                Ok(Some(json!({"inferFromVolume": volume, "inferFromVolumeFailurePolicy": "Ignore"})))
            }
            Err(error) if self.is_explicit() => Err(error),
            Err(_) => Ok(None),
        }
    }

    fn volume<'v>(&'v self, draft: &'v Draft) -> anyhow::Result<&'v str> {
        let Some(name) = self.from.filter(|name| !name.is_empty()).or_else(|| draft.first()) else {
            bail!("at least one volume is needed to infer an instance type or preference");
        };
        let volume = draft.volume(name).ok_or_else(|| anyhow!("there is no volume with name \"{name}\""))?;
        if let Some(data) = volume["dataVolume"]["name"].as_str() {
            let spec =
                draft.data_volumes.iter().find(|one| one["metadata"]["name"] == data).map(|one| &one["spec"]);
            let says = |spec: &Value| {
                ["pvc", "registry", "snapshot"].iter().any(|kind| spec["source"][kind].is_object())
                    || spec["sourceRef"]["kind"] == "DataSource"
            };
            if spec.is_some_and(says) {
                return Ok(name);
            }
            bail!(
                "this datavolume is not valid to infer an instancetype or preference from (source needs to be PVC, Registry or \
                 Snapshot, sourceRef needs to be DataSource)"
            );
        }
        if !volume["persistentVolumeClaim"].is_object() {
            bail!("inference of instancetype or preference works only with datasources, datavolumes or pvcs");
        }
        Ok(name)
    }
}
