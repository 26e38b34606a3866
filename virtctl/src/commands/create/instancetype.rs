//! `create instancetype`: the specification of an instance type, from flags.

use anyhow::{anyhow, bail};
use podvirt_api::quantity::Quantity;
use serde_json::{Value, json};

use super::params::{Params, flag_error};
use crate::args::CreateInstancetype;

/// Makes the specification.
pub(super) fn spec(flags: &CreateInstancetype) -> anyhow::Result<Value> {
    let memory = &flags.memory;
    memory.parse::<Quantity>().map_err(|error| anyhow!("--memory \"{memory}\": {error}"))?;
    if flags.cpu == 0 {
        bail!("cpu value must be greater than zero");
    }
    let mut spec = json!({"cpu": {"guest": flags.cpu}, "memory": {"guest": memory}});
    for (field, flag, texts) in
        [("gpus", "gpu", &flags.gpu), ("hostDevices", "hostdevice", &flags.hostdevice)]
    {
        if !texts.is_empty() {
            let devices: anyhow::Result<Vec<Value>> = texts.iter().map(|text| device(flag, text)).collect();
            spec[field] = devices?.into();
        }
    }
    if let Some(policy) = &flags.iothreadspolicy {
        if !["auto", "shared"].contains(&policy.as_str()) {
            return Err(flag_error("iothreadspolicy", "IOThread must be of value auto or shared"));
        }
        spec["ioThreadsPolicy"] = policy.as_str().into();
    }
    Ok(spec)
}

/// A device of the node by the name of its resource.
fn device(flag: &'static str, text: &str) -> anyhow::Result<Value> {
    let mut params = Params::read(flag, text)?;
    let (name, device) = (params.text("name"), params.text("devicename"));
    params.done()?;
    let Some(name) = name else { return Err(params.error("name must be specified")) };
    let Some(device) = device else { return Err(params.error("deviceName must be specified")) };
    Ok(json!({"name": name, "deviceName": device}))
}
