//! `create preference`: the specification of a preference, from flags.

use serde_json::{Map, Value, json};

use super::params::flag_error;
use crate::args::CreatePreference;

/// How processors may be shown to a guest; the second five are the older words.
const TOPOLOGIES: [&str; 10] = [
    "sockets",
    "cores",
    "threads",
    "spread",
    "any",
    "preferSockets",
    "preferCores",
    "preferThreads",
    "preferSpread",
    "preferAny",
];

/// Makes the specification.
pub(super) fn spec(flags: &CreatePreference) -> anyhow::Result<Value> {
    let mut spec = Map::new();
    if let Some(topology) = &flags.cpu_topology {
        if !TOPOLOGIES.contains(&topology.as_str()) {
            let why = "CPU topology must have a value of sockets, cores, threads or spread";
            return Err(flag_error("cpu-topology", why));
        }
        spec.insert("cpu".into(), json!({"preferredCPUTopology": topology}));
    }
    if let Some(machine) = &flags.machine_type {
        spec.insert("machine".into(), json!({"preferredMachineType": machine}));
    }
    if let Some(class) = &flags.volume_storage_class {
        spec.insert("volumes".into(), json!({"preferredStorageClassName": class}));
    }
    Ok(spec.into())
}
