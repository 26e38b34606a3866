//! cloud-init's disk.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::anyhow;
use serde_json::json;

use super::draft::Draft;
use super::params::flag_error;
use crate::args::CreateVm;
use crate::password;

/// Name of the disk's volume.
const DISK: &str = "cloudinitdisk";
/// By it cloud-init knows its own configuration.
const HEADER: &str = "#cloud-config";
const FLAG: &str = "cloud-init";

/// What the flags say of it, and what other flags decide where they do not.
#[derive(Debug)]
pub(super) struct Seed<'a> {
    pub(super) user: Option<&'a str>,
    password_file: Option<&'a Path>,
    keys: &'a [String],
    pub(super) agent_manages_keys: Option<bool>,
    /// Kind of the disk, where it is given.
    pub(super) kind: Option<String>,
    user_data: Option<&'a str>,
    network_data: Option<&'a str>,
}

fn some(text: Option<&String>) -> Option<&str> {
    text.map(String::as_str).filter(|text| !text.is_empty())
}

impl<'a> Seed<'a> {
    pub(super) fn of(flags: &'a CreateVm) -> Seed<'a> {
        Seed {
            user: some(flags.user.as_ref()),
            password_file: flags.password_file.as_deref(),
            keys: &flags.ssh_key,
            agent_manages_keys: flags.ga_manage_ssh,
            kind: flags.cloud_init.clone(),
            user_data: some(flags.cloud_init_user_data.as_ref()),
            network_data: some(flags.cloud_init_network_data.as_ref()),
        }
    }

    /// Adds the disk, if there is something to say or it was asked for.
    pub(super) fn add(&self, draft: &mut Draft) -> anyhow::Result<()> {
        let content = self.password_file.is_some()
            || !self.keys.is_empty()
            || self.agent_manages_keys.is_some()
            || self.user_data.is_some()
            || self.network_data.is_some();
        if !content && self.user.is_none() && self.kind.is_none() {
            return Ok(());
        }
        if self.password_file.is_some() {
            let warning = "--password-file: The password is stored in cleartext in the VM definition!";
            draft.warnings.push(warning.into());
        }
        let field = match self.kind.as_deref().unwrap_or("nocloud").to_ascii_lowercase().as_str() {
            "nocloud" => "cloudInitNoCloud",
            "configdrive" => "cloudInitConfigDrive",
            "none" => {
                if content {
                    draft.warnings.push(
                        "--cloud-init: was set to none, not creating a data source although other cloud-init options \
                         were set"
                            .into(),
                    );
                }
                return Ok(());
            }
            other => {
                return Err(flag_error(
                    FLAG,
                    format!(
                        "invalid cloud-init data source type \"{other}\", supported values are: nocloud, configdrive, none"
                    ),
                ));
            }
        };
        let mut source = json!({});
        if let Some(data) = self.network_data {
            source["networkDataBase64"] = data.into();
        }
        match self.user_data {
            Some(data) => source["userDataBase64"] = data.into(),
            None => {
                let config = self.config()?;
                // A disk that says nothing was not asked for.
                if self.kind.is_none() && config == HEADER && self.network_data.is_none() {
                    return Ok(());
                }
                source["userData"] = config.into();
            }
        }
        draft.add(DISK, field, source).map_err(|error| anyhow!(error))
    }

    fn config(&self) -> anyhow::Result<String> {
        let mut config = HEADER.to_owned();
        if let Some(user) = self.user {
            config += &format!("\nuser: {user}");
        }
        if let Some(path) = self.password_file {
            let text =
                password::read(path).map_err(|error| flag_error("password-file", error.to_string()))?;
            let password = text.trim();
            if !password.is_empty() {
                config += &format!("\npassword: {password}\nchpasswd: {{ expire: False }}");
            }
        }
        if !self.keys.is_empty() {
            config += "\nssh_authorized_keys:";
        }
        for key in self.keys {
            // Writing to a String cannot fail.
            let _ = write!(config, "\n  - {key}");
        }
        if self.agent_manages_keys == Some(true) {
            config += "\nruncmd:\n  - [ setsebool, -P, 'virt_qemu_ga_manage_ssh', 'on' ]";
        }
        Ok(config)
    }
}
