//! `create`: writes manifests; asks no cluster.

mod cloud_init;
mod credentials;
mod draft;
mod import;
mod instancetype;
mod params;
mod preference;
#[cfg(test)]
mod tests;
mod vm;

use anyhow::Context as _;
use serde_json::{Value, json};

use crate::args::{Create, Global, What};
use crate::output::{complain, say};
use crate::random;

/// Random letters of a name that no flag says.
const LETTERS: usize = 5;

pub(super) fn run(global: &Global, args: &Create) -> anyhow::Result<()> {
    let namespace = global.namespace.as_deref();
    let manifest = match &args.what {
        What::Vm(flags) => {
            let name = flags.name.clone().filter(|name| !name.is_empty());
            let name = name.unwrap_or_else(|| random::name("vm-", LETTERS));
            let made = vm::manifest(flags, &name, namespace)?;
            for warning in made.warnings {
                complain(&format!("WARNING: {warning}"));
            }
            made.manifest
        }
        What::Instancetype(flags) => {
            let spec = instancetype::spec(flags)?;
            of_group("Instancetype", flags.name.as_deref(), flags.namespaced, namespace, &spec)
        }
        What::Preference(flags) => {
            let spec = preference::spec(flags)?;
            of_group("Preference", flags.name.as_deref(), flags.namespaced, namespace, &spec)
        }
    };
    let text = serde_saphyr::to_string(&manifest).context("cannot write the manifest")?;
    say(text.trim_end())
}

/// The manifest of a VirtualMachine`kind`, or of the VirtualMachineCluster`kind` where nothing says a namespace.
fn of_group(
    kind: &str,
    name: Option<&str>,
    namespaced: bool,
    namespace: Option<&str>,
    spec: &Value,
) -> Value {
    let of_cluster = !namespaced && namespace.is_none();
    let prefix = if of_cluster { "cluster" } else { "" };
    let random = || random::name(&format!("{prefix}{}-", kind.to_ascii_lowercase()), LETTERS);
    let mut metadata = json!({"name": name.map_or_else(random, str::to_owned)});
    if let Some(namespace) = namespace {
        metadata["namespace"] = namespace.into();
    }
    json!({
        "apiVersion": "instancetype.kubevirt.io/v1beta1",
        "kind": format!("VirtualMachine{}{kind}", if of_cluster { "Cluster" } else { "" }),
        "metadata": metadata,
        "spec": spec,
    })
}
