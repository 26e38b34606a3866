//! libvirt's answers, read.

use std::collections::BTreeSet;

use podvirt_proto::capabilities::{Capabilities, HostModel, Tsc};
use quick_xml::{DeError, SeError};
use serde::{Deserialize, Serialize};

/// `<capabilities>`.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Host {
    host: HostPart,
    guest: Vec<Guest>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct HostPart {
    cpu: HostCpu,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct HostCpu {
    counter: Vec<Counter>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Counter {
    #[serde(rename = "@name")]
    name: String,
    #[serde(rename = "@frequency")]
    frequency: u64,
    #[serde(rename = "@scaling")]
    scaling: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Guest {
    arch: Arch,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Arch {
    #[serde(rename = "@name")]
    name: String,
    machine: Vec<Machine>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Machine {
    #[serde(rename = "@deprecated")]
    deprecated: String,
    #[serde(rename = "$text")]
    name: String,
}

/// `<domainCapabilities>`.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Domain {
    cpu: Modes,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Modes {
    mode: Vec<Mode>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Mode {
    #[serde(rename = "@name")]
    name: String,
    // Other elements may stand between two of these.
    model: Vec<Model>,
    vendor: String,
    feature: Vec<Feature>,
}

#[derive(Clone, Default, Deserialize, Serialize)]
#[serde(default)]
struct Model {
    #[serde(rename = "@fallback", skip_serializing_if = "String::is_empty")]
    fallback: String,
    #[serde(rename = "@usable", skip_serializing)]
    usable: String,
    #[serde(rename = "$text")]
    name: String,
}

#[derive(Default, Deserialize, Serialize)]
#[serde(default)]
struct Feature {
    #[serde(rename = "@policy")]
    policy: String,
    #[serde(rename = "@name")]
    name: String,
}

/// `<cpu>`.
#[derive(Default, Deserialize, Serialize)]
#[serde(default, rename = "cpu")]
struct Cpu {
    model: Model,
    vendor: String,
    feature: Vec<Feature>,
}

/// Reads libvirt's capabilities.
pub(super) fn host(xml: &str, arch: &str, into: &mut Capabilities) -> Result<(), DeError> {
    let told: Host = quick_xml::de::from_str(xml)?;
    let machines = told.guest.into_iter().map(|guest| guest.arch).filter(|of| of.name == arch);
    into.machine_types = machines
        .flat_map(|of| of.machine)
        .map(|machine| (machine.name, machine.deprecated == "yes"))
        .collect();
    let tsc = told.host.cpu.counter.into_iter().find(|counter| counter.name == "tsc");
    into.tsc = tsc.map(|tsc| Tsc { frequency: tsc.frequency, scalable: tsc.scaling == "yes" });
    Ok(())
}

/// What is wrong with a domain's capabilities.
#[derive(Debug, thiserror::Error)]
pub(super) enum DomainError {
    #[error("not understood")]
    Read(#[from] DeError),
    #[error("the host's own model cannot be written")]
    Write(#[from] SeError),
}

/// Reads a domain's capabilities; returns the host's own model as `<cpu>`, if there is one.
pub(super) fn domain(xml: &str, into: &mut Capabilities) -> Result<Option<String>, DomainError> {
    let told: Domain = quick_xml::de::from_str(xml)?;
    let mut host = None;
    for mode in told.cpu.mode {
        match (mode.name.as_str(), mode.model.first()) {
            ("host-model", Some(model)) => {
                into.host_model = Some(HostModel {
                    name: model.name.clone(),
                    vendor: mode.vendor.clone(),
                    required_features: required(&mode.feature),
                });
                let cpu = Cpu { model: model.clone(), vendor: mode.vendor, feature: mode.feature };
                host = Some(quick_xml::se::to_string(&cpu)?);
            }
            ("custom", _) => {
                // `unknown`: the hypervisor does not tell; the guest's start does.
                into.models =
                    mode.model.into_iter().map(|model| (model.name, model.usable != "no")).collect();
            }
            _ => {}
        }
    }
    Ok(host)
}

/// The features that an expanded `<cpu>` has.
pub(super) fn features(xml: &str) -> Result<BTreeSet<String>, DeError> {
    let cpu: Cpu = quick_xml::de::from_str(xml)?;
    Ok(required(&cpu.feature))
}

fn required(features: &[Feature]) -> BTreeSet<String> {
    features
        .iter()
        .filter(|feature| feature.policy == "require")
        .map(|feature| feature.name.clone())
        .collect()
}
