//! `--access-cred`: SSH keys and passwords from Secrets.

use serde_json::{Value, json};

use super::cloud_init::Seed;
use super::draft::Draft;
use super::params::Params;

const FLAG: &str = "access-cred";

/// Adds credentials; by the way in which they reach the guest they decide what cloud-init is given, where its flags do not.
pub(super) fn add(draft: &mut Draft, seed: &mut Seed<'_>, flags: &[String]) -> anyhow::Result<()> {
    for text in flags {
        let mut params = Params::read(FLAG, text)?;
        let secret = params.source("secret")?;
        let (kind, method, user) = (params.text("type"), params.text("method"), params.text("user"));
        params.done()?;
        let method = method.map(str::to_ascii_lowercase);
        let (field, way) = match kind.unwrap_or("ssh").to_ascii_lowercase().as_str() {
            "ssh" => ("sshPublicKey", ssh(&params, seed, method.as_deref().unwrap_or("ga"), user)?),
            "password" => ("userPassword", password(&params, method.as_deref().unwrap_or("ga"), user)?),
            other => {
                let why = format!(
                    "invalid access credential type \"{other}\", supported values are: ssh, password"
                );
                return Err(params.error(why));
            }
        };
        let source = json!({"secret": {"secretName": secret}});
        draft.credentials.push(json!({field: {"source": source, "propagationMethod": way}}));
    }
    Ok(())
}

const NO_USER: &str = "user cannot be specified with selected access credential type and method";

fn ssh(params: &Params<'_>, seed: &mut Seed<'_>, method: &str, user: Option<&str>) -> anyhow::Result<Value> {
    let field = match method {
        "ga" => {
            let Some(user) = user.or(seed.user) else {
                return Err(params.error(
                    "user must be specified with access credential ssh method ga (\"--user\" flag or param \"user\")",
                ));
            };
            // The agent may not write keys everywhere unless it is let.
            seed.agent_manages_keys.get_or_insert(true);
            return Ok(json!({"qemuGuestAgent": {"users": [user]}}));
        }
        "nocloud" => "noCloud",
        "configdrive" => "configDrive",
        other => {
            return Err(params.error(format!(
                "invalid access credentials ssh method \"{other}\", supported values are: ga, nocloud, configdrive"
            )));
        }
    };
    if user.is_some() {
        return Err(params.error(NO_USER));
    }
    let kind = seed.kind.get_or_insert_with(|| method.to_owned());
    if !kind.eq_ignore_ascii_case(method) {
        return Err(params.error(format!(
            "method param and value passed to --cloud-init have to match: {method} vs {kind}"
        )));
    }
    Ok(json!({field: {}}))
}

fn password(params: &Params<'_>, method: &str, user: Option<&str>) -> anyhow::Result<Value> {
    if method != "ga" {
        return Err(params.error(format!(
            "invalid access credentials password method \"{method}\", supported values are: ga"
        )));
    }
    if user.is_some() {
        return Err(params.error(NO_USER));
    }
    Ok(json!({"qemuGuestAgent": {}}))
}
