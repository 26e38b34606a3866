//! What the exporter makes manifests of: pure functions of the machine and its claims.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use podvirt_api::cdi;
use podvirt_api::export::{ca_name, data, data_volume_key, host, proxy_path};
use podvirt_api::snapshot::claim;
use podvirt_api::v1::{VirtualMachine, VirtualMachineExport as Export};
use serde_json::{Value, json};

use super::external::External;

/// What of a machine belongs to the cluster where it is.
const LEFT_OUT: [&str; 1] = ["status"];

/// Metadata of a machine that its copy has.
const METADATA: [&str; 4] = ["name", "namespace", "labels", "annotations"];

/// The claims of a machine's volumes.
pub(super) fn claims(vm: &VirtualMachine) -> Vec<String> {
    let spec = vm.spec.template.as_ref().and_then(|template| template.spec.as_ref());
    spec.iter().flat_map(|spec| &spec.volumes).filter_map(claim).map(str::to_owned).collect()
}

/// A source of a DataVolume whose address the exporter fills in.
fn blank() -> Value {
    json!({"http": {"url": ""}})
}

/// The machine without what is the cluster's, with its templates' sources blank.
fn machine(vm: &VirtualMachine) -> Value {
    let mut object = json!(vm);
    if let Some(fields) = object.as_object_mut() {
        LEFT_OUT.iter().for_each(|field| drop(fields.remove(*field)));
    }
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.retain(|name, _| METADATA.contains(&name.as_str()));
    }
    let claims = claims(vm);
    for template in object["spec"]["dataVolumeTemplates"].as_array_mut().into_iter().flatten() {
        let is_exported =
            template["metadata"]["name"].as_str().is_some_and(|name| claims.iter().any(|c| c == name));
        if let Some(spec) = template["spec"].as_object_mut().filter(|_| is_exported) {
            spec.remove("sourceRef");
            spec.insert("source".into(), blank());
        }
    }
    object
}

/// A DataVolume that fills a claim like the present claim.
fn data_volume(claim: &PersistentVolumeClaim) -> Value {
    let spec = claim.spec.clone().unwrap_or_default();
    json!({
        "apiVersion": format!("{}/{}", cdi::GROUP, cdi::VERSION),
        "kind": cdi::DATA_VOLUME,
        "metadata": {"name": claim.metadata.name, "namespace": claim.metadata.namespace},
        "spec": {
            "source": blank(),
            "storage": {
                "accessModes": spec.access_modes,
                "volumeMode": spec.volume_mode,
                "resources": spec.resources,
            },
        },
    })
}

fn ca(export: &str, bundle: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": ca_name(export)},
        "data": {"ca.pem": bundle},
    })
}

/// The data; `claims` are those of the machine's volumes.
pub(super) fn data(
    export: &Export,
    vm: &VirtualMachine,
    claims: &[PersistentVolumeClaim],
    bundle: &str,
    external: Option<&External>,
) -> BTreeMap<String, String> {
    let [name, namespace] =
        [&export.metadata.name, &export.metadata.namespace].map(|text| text.as_deref().unwrap_or_default());
    let mut all = BTreeMap::from([
        (data::EXPORT.to_owned(), name.to_owned()),
        (data::MACHINE.to_owned(), machine(vm).to_string()),
        (data::INTERNAL_HOST.to_owned(), host(name, namespace)),
        (data::INTERNAL_CA.to_owned(), ca(name, bundle.trim()).to_string()),
    ]);
    if let Some(external) = external {
        let host = format!("{}{}", external.host, proxy_path(namespace, name));
        all.insert(data::EXTERNAL_HOST.to_owned(), host);
        all.insert(data::EXTERNAL_CA.to_owned(), ca(name, &external.certificate).to_string());
    }
    let templates = &vm.spec.data_volume_templates;
    for claim in claims {
        let name = claim.metadata.name.as_deref().unwrap_or_default();
        let has_template = |template: &podvirt_api::v1::DataVolumeTemplateSpec| {
            template.metadata.as_ref().and_then(|metadata| metadata.name.as_deref()) == Some(name)
        };
        if !templates.iter().any(has_template) {
            all.insert(data_volume_key(name), data_volume(claim).to_string());
        }
    }
    all
}
