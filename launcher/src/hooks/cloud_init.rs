//! What a cloud-init gets, in the form in which sidecars are given it.

use std::error::Error;
use std::fmt;

use serde_json::{Map, Value, json};
use tokio::runtime::Handle;

use super::{CallError, Hooks, Waits};
use crate::media::cloud_init::{Change, Kind, Seed};

/// What a sidecar is given: the present form, and the older one.
pub(super) struct Given {
    pub(super) data: Vec<u8>,
    pub(super) source: Vec<u8>,
}

/// What it answers, likewise.
#[derive(Default)]
pub(super) struct Answer {
    pub(super) data: Vec<u8>,
    pub(super) source: Vec<u8>,
}

/// Fields of both forms, upstream's names.
const SOURCE: &str = "DataSource";
const USER: &str = "UserData";
const NETWORK: &str = "NetworkData";
const NO_CLOUD: &str = "NoCloudMetaData";
const CONFIG_DRIVE: &str = "ConfigDriveMetaData";

/// The word for a source, and the field of its description of the machine.
fn names(kind: Kind) -> (&'static str, &'static str) {
    match kind {
        Kind::NoCloud => ("noCloud", NO_CLOUD),
        Kind::ConfigDrive => ("configDrive", CONFIG_DRIVE),
    }
}

/// `seed` for a sidecar.
pub(super) fn given(seed: &Seed) -> Result<Given, CallError> {
    let text = |what: &'static str, bytes: &[u8]| {
        let text = std::str::from_utf8(bytes).map(str::to_owned);
        text.map_err(|source| CallError::Binary { what, volume: seed.volume.clone(), source })
    };
    let (user, network) = (text("user data", &seed.user)?, text("network data", &seed.network)?);
    let (source, meta) = names(seed.kind);
    let mut data = json!({
        SOURCE: source, NO_CLOUD: null, CONFIG_DRIVE: null, USER: user, NETWORK: network,
        "DevicesData": null, "VolumeName": seed.volume,
    });
    data[meta] = Value::Object(seed.meta.clone());
    let old: Map<String, Value> = [("userData", user), ("networkData", network)]
        .into_iter()
        .filter(|(_, text)| !text.is_empty())
        .map(|(name, text)| (name.to_owned(), Value::String(text)))
        .collect();
    Ok(Given { data: data.to_string().into_bytes(), source: Value::Object(old).to_string().into_bytes() })
}

/// What becomes of `seed` by an answer. One in the present form counts if it has user data and describes the machine; else
/// the older form counts.
pub(super) fn taken(mut seed: Seed, answer: &Answer) -> Result<Seed, CallError> {
    let read = |what: &'static str, bytes: &[u8]| -> Result<Value, CallError> {
        if bytes.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(bytes).map_err(|source| CallError::NoJson { what, source })
    };
    let text = |value: &Value, field: &str| value[field].as_str().unwrap_or_default().as_bytes().to_vec();
    let data = read("cloudInitData", &answer.data)?;
    let user = text(&data, USER);
    if !user.is_empty() && (data[NO_CLOUD].is_object() || data[CONFIG_DRIVE].is_object()) {
        let (source, meta) = names(seed.kind);
        let given = data[SOURCE].as_str().unwrap_or(source);
        if given != source {
            let given = given.to_owned();
            return Err(CallError::OtherSource { given, needed: source, volume: seed.volume });
        }
        if let Some(meta) = data[meta].as_object() {
            seed.meta.clone_from(meta);
        }
        return Ok(Seed { user, network: text(&data, NETWORK), ..seed });
    }
    let source = read("cloudInitNoCloudSource", &answer.source)?;
    if !source.is_object() {
        return Err(CallError::NoData);
    }
    Ok(Seed { user: text(&source, "userData"), network: text(&source, "networkData"), ..seed })
}

/// Asks a machine's sidecars from a thread that may block.
pub struct CloudInit<'a> {
    /// The sidecars.
    pub hooks: &'a Hooks,
    /// The machine as JSON.
    pub vmi: &'a [u8],
    /// Where they are asked.
    pub handle: Handle,
    /// Told what is waited for.
    pub waits: Waits<'a>,
}

impl fmt::Debug for CloudInit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The machine may hold secrets.
        f.debug_struct("CloudInit").field("hooks", self.hooks).finish_non_exhaustive()
    }
}

impl Change for CloudInit<'_> {
    fn change(&self, seed: Seed) -> Result<Seed, Box<dyn Error + Send + Sync>> {
        let asked = self.hooks.pre_cloud_init_iso(seed, self.vmi, self.waits);
        Ok(self.handle.block_on(asked)?)
    }
}
