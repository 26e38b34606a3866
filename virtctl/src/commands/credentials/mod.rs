//! `credentials`: changes the Secrets that a machine's users get their keys and passwords from.
//!
//! A machine names such Secrets in its `accessCredentials`. Those that the guest's agent carries out
//! (`qemuGuestAgent`) are changed while the guest runs; a Secret that the machine does not own may be another machine's too,
//! and is changed only by `--force`.

mod add_key;
mod remove_key;
mod secrets;
mod set_password;

use anyhow::{Context as _, bail};
use serde_json::Value;

use crate::api::Cluster;
use crate::api::objects::{MACHINES, SECRETS};
use crate::args::{Credentials, CredentialsWhat, Key};
use crate::target::checked;

pub(super) async fn run(cluster: &Cluster, args: &Credentials) -> anyhow::Result<()> {
    match &args.what {
        CredentialsWhat::AddSshKey(args) => add_key::run(cluster, args).await,
        CredentialsWhat::RemoveSshKey(args) => remove_key::run(cluster, args).await,
        CredentialsWhat::SetPassword(args) => set_password::run(cluster, args).await,
    }
}

/// A virtual machine as it is stored.
struct Machine {
    namespace: String,
    name: String,
    object: Value,
}

impl Machine {
    async fn read(cluster: &Cluster, name: &str) -> anyhow::Result<Machine> {
        let (namespace, name) = (checked("namespace", cluster.namespace())?, checked("name", name)?);
        let object = cluster.object(MACHINES, &namespace, &name).await.map_err(|error| {
            error.explain_plain(&format!("read the VM {name:?} in namespace {namespace:?}"))
        })?;
        Ok(Machine { namespace, name, object })
    }

    /// Changes a Secret of its namespace by the steps that `decide` has for it.
    async fn change_secret(
        &self,
        cluster: &Cluster,
        name: &str,
        decide: impl FnMut(&Value) -> anyhow::Result<Vec<Value>>,
    ) -> anyhow::Result<()> {
        let namespace = &self.namespace;
        let changed = cluster.change(SECRETS, namespace, name, decide).await;
        changed.map_err(|error| error.explain(&format!("the secret {name:?} in namespace {namespace:?}")))
    }

    /// Its `accessCredentials`, if it has the field.
    fn credentials(&self) -> Option<&Vec<Value>> {
        credentials(&self.object)
    }
}

/// The `accessCredentials` of a machine, if it has the field.
fn credentials(machine: &Value) -> Option<&Vec<Value>> {
    machine["spec"]["template"]["spec"]["accessCredentials"].as_array()
}

/// The key that the flags say, without blanks around it.
fn key(flags: &Key) -> anyhow::Result<String> {
    let text = match (&flags.value, &flags.file) {
        (Some(value), _) if !value.is_empty() => value.clone(),
        (_, Some(file)) => std::fs::read_to_string(file)
            .with_context(|| format!("error getting ssh key: cannot read {}", file.display()))?,
        _ => bail!("error getting ssh key: one of --file, or --value must be specified"),
    };
    match text.trim() {
        "" => bail!("error getting ssh key: it is empty"),
        key => Ok(key.to_owned()),
    }
}
