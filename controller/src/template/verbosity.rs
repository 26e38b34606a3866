//! How much the pod's own containers log.

use k8s_openapi::api::core::v1::EnvVar;
use podvirt_api::names::label;
use podvirt_api::v1::{KubeVirtConfiguration, VirtualMachineInstance};
use podvirt_api::verbosity::{Component, DEFAULT, ENVIRONMENT, parse};

use super::TemplateError;

/// The variable that says it, of the containers of virt-launcher and netd; none by default. The machine's label goes before
/// the cluster's configuration.
pub(super) fn variable(
    vmi: &VirtualMachineInstance,
    config: &KubeVirtConfiguration,
) -> Result<Option<EnvVar>, TemplateError> {
    let label = vmi.metadata.labels.as_ref().and_then(|labels| labels.get(label::LOG_VERBOSITY));
    let number = match label {
        None => Component::Launcher.verbosity(Some(config)),
        Some(text) => parse(text).ok_or_else(|| {
            let field = format!("metadata.labels[{}]: '{text}'", label::LOG_VERBOSITY);
            TemplateError::unsupported(field, "a whole number from 0 to 9")
        })?,
    };
    let variable = EnvVar { name: ENVIRONMENT.into(), value: Some(number.to_string()), value_from: None };
    Ok((label.is_some() || number != DEFAULT).then_some(variable))
}
