//! What a manifest is made of, as flags add to it.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::params::{Params, flag_error};

/// A manifest that is being made.
#[derive(Debug, Default)]
pub(super) struct Draft {
    /// Volumes in the order in which they are booted where no order is given.
    pub(super) volumes: Vec<Value>,
    /// Disks whose place among those that are booted is given.
    pub(super) disks: Vec<Value>,
    pub(super) credentials: Vec<Value>,
    /// Templates of DataVolumes.
    pub(super) data_volumes: Vec<Value>,
    /// Volumes by that place.
    boot_orders: BTreeMap<u32, String>,
    /// What the user should know.
    pub(super) warnings: Vec<String>,
}

impl Draft {
    /// The volume of this name.
    pub(super) fn volume(&self, name: &str) -> Option<&Value> {
        self.volumes.iter().find(|volume| volume["name"] == name)
    }

    /// Adds a volume, which no other has the name of.
    pub(super) fn add(&mut self, name: &str, kind: &str, source: Value) -> Result<(), String> {
        if self.volume(name).is_some() {
            return Err(format!("there is already a volume with name \"{name}\""));
        }
        let mut volume = Map::new();
        volume.insert("name".into(), name.into());
        volume.insert(kind.into(), source);
        self.volumes.push(Value::Object(volume));
        Ok(())
    }

    /// Adds the volume of a flag, and its disk where its place among those that are booted is given.
    pub(super) fn add_disk(
        &mut self,
        flag: &'static str,
        name: &str,
        boot_order: Option<u32>,
        kind: &str,
        source: Value,
    ) -> anyhow::Result<()> {
        if !is_label(name) {
            let why = "1 to 63 of a-z, 0-9 and '-' are allowed, with a letter or a digit at both ends";
            return Err(flag_error(flag, format!("invalid name \"{name}\": {why}")));
        }
        self.add(name, kind, source).map_err(|error| flag_error(flag, error))?;
        if let Some(order) = boot_order {
            if self.boot_orders.insert(order, name.to_owned()).is_some() {
                return Err(flag_error(flag, format!("bootorder {order} was specified multiple times")));
            }
            self.disks.push(json!({"name": name, "bootOrder": order}));
        }
        Ok(())
    }

    /// The volume that is booted first.
    pub(super) fn first(&self) -> Option<&str> {
        let ordered = self.boot_orders.values().next().map(String::as_str);
        ordered.or_else(|| self.volumes.first()?["name"].as_str())
    }
}

/// Whether a text is a label by RFC 1123.
fn is_label(text: &str) -> bool {
    let inside = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=63).contains(&text.len())
        && text.chars().all(inside)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// Adds container disks.
pub(super) fn container_disks(draft: &mut Draft, machine: &str, flags: &[String]) -> anyhow::Result<()> {
    const FLAG: &str = "volume-containerdisk";
    for (place, text) in flags.iter().enumerate() {
        let mut params = Params::read(FLAG, text)?;
        let (image, name, order) = (params.text("src"), params.text("name"), params.boot_order()?);
        params.done()?;
        let Some(image) = image else { return Err(params.error("src must be specified")) };
        let name = name.map_or_else(|| format!("{machine}-containerdisk-{place}"), str::to_owned);
        draft.add_disk(FLAG, &name, order, "containerDisk", json!({"image": image}))?;
    }
    Ok(())
}

/// Adds claims.
pub(super) fn claims(draft: &mut Draft, flags: &[String]) -> anyhow::Result<()> {
    const FLAG: &str = "volume-pvc";
    for text in flags {
        let mut params = Params::read(FLAG, text)?;
        let (claim, name, order) = (params.source("pvc")?, params.text("name"), params.boot_order()?);
        params.done()?;
        let source = json!({"claimName": claim});
        draft.add_disk(FLAG, name.unwrap_or(claim), order, "persistentVolumeClaim", source)?;
    }
    Ok(())
}

/// Adds the answers of Windows' set-up.
pub(super) fn sysprep(draft: &mut Draft, flag: Option<&String>) -> anyhow::Result<()> {
    const FLAG: &str = "volume-sysprep";
    let Some(text) = flag else { return Ok(()) };
    let mut params = Params::read(FLAG, text)?;
    let (name, kind) = (params.source("configmap or secret")?, params.text("type"));
    params.done()?;
    let field = match kind.unwrap_or("configmap").to_ascii_lowercase().as_str() {
        "configmap" => "configMap",
        "secret" => "secret",
        other => {
            let why =
                format!("invalid sysprep source type \"{other}\", supported values are: configmap, secret");
            return Err(params.error(why));
        }
    };
    draft
        .add("sysprepdisk", "sysprep", json!({field: {"name": name}}))
        .map_err(|error| flag_error(FLAG, error))
}
