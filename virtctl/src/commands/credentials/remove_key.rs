//! `credentials remove-ssh-key`: a key leaves the Secrets that the machine has for the user.

use anyhow::bail;
use serde_json::Value;

use super::{Machine, key, secrets};
use crate::api::Cluster;
use crate::api::objects::SECRETS;
use crate::args::RemoveSshKey;
use crate::output::say;
use crate::target::checked;

pub(super) async fn run(cluster: &Cluster, args: &RemoveSshKey) -> anyhow::Result<()> {
    let key = key(&args.key)?;
    let machine = Machine::read(cluster, &args.of.vm).await?;
    let user = &args.of.user;
    let mut assigned = secrets::with_keys_of(&machine, user);
    if assigned.is_empty() {
        return say(&format!("No secrets associated with user {user}"));
    }
    if let Some(wanted) = args.of.secret.as_deref().filter(|name| !name.is_empty()) {
        assigned.retain(|name| *name == wanted);
        if assigned.is_empty() {
            bail!("secret {wanted} is not associated with user {user}");
        }
    }
    for name in assigned {
        remove(cluster, &machine, &checked("secret", name)?, &key, args.of.force).await?;
    }
    Ok(())
}

async fn remove(
    cluster: &Cluster,
    machine: &Machine,
    name: &str,
    key: &str,
    force: bool,
) -> anyhow::Result<()> {
    let namespace = &machine.namespace;
    let steps = |secret: &Value| {
        if !force {
            secrets::check_owned(secret, name, machine)?;
        }
        Ok(secrets::remove_steps(secret, key))
    };
    match cluster.change(SECRETS, namespace, name, steps).await {
        // Then it has no key.
        Err(error) if error.is_not_found() => Ok(()),
        changed => {
            changed.map_err(|error| error.explain(&format!("the secret {name:?} in namespace {namespace:?}")))
        }
    }
}
