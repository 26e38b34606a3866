//! `credentials set-password`: a user's password comes into the Secret that the machine has for passwords.

use anyhow::{Context as _, bail};

use super::{Machine, secrets};
use crate::api::Cluster;
use crate::args::SetPassword;
use crate::output::say;
use crate::password;
use crate::target::checked;

pub(super) async fn run(cluster: &Cluster, args: &SetPassword) -> anyhow::Result<()> {
    let password = match (&args.password.password_file, &args.password.password) {
        (Some(path), _) => password::read(path).context("--password-file")?,
        (None, given) => given.clone().unwrap_or_default(),
    };
    if password.is_empty() {
        bail!("the password is empty");
    }
    let machine = Machine::read(cluster, &args.of.vm).await?;
    let assigned = secrets::with_passwords(&machine);
    if assigned.is_empty() {
        bail!("no secrets assigned to UserPassword AccessCredentials");
    }
    let name = checked("secret", secrets::choose(args.of.secret.as_deref(), &assigned)?)?;
    let steps = |secret: &serde_json::Value| {
        if !args.of.force {
            secrets::check_owned(secret, &name, &machine)?;
        }
        Ok(secrets::write_steps(secret, &args.of.user, &password))
    };
    machine.change_secret(cluster, &name, steps).await?;
    say(&format!("Successfully set password in secret \"{name}\""))
}
