//! What the networks of a launcher pod take of its node: devices that a device plugin hands out.
//!
//! A NetworkAttachmentDefinition names in [`annotation::RESOURCE_NAME`] the resource by which a pod asks for a device of its
//! network. As upstream, the container `compute` asks for one for each of the pod's networks that names a resource. So a
//! pod is made once all of its NetworkAttachmentDefinitions exist.

use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::{ApiResource, DynamicObject};
use kube::{Api, Client};
use podvirt_api::names::{annotation, pod as pod_names};
use serde::Deserialize;

/// Why it is not known what a pod's networks take.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Some do not exist.
    #[error("no such NetworkAttachmentDefinition: {}", .0.join(", "))]
    Missing(Vec<String>),
    /// It could not be read.
    #[error("read NetworkAttachmentDefinition {name}")]
    Read {
        /// Its namespace and name.
        name: String,
        /// What the client says.
        source: kube::Error,
    },
}

impl Error {
    /// What people are told of it: with what the API server has said.
    pub fn told(&self) -> String {
        match self {
            Error::Missing(_) => self.to_string(),
            Error::Read { source, .. } => format!("{self}: {}", reason_of(source)),
        }
    }
}

/// What the API server has said, or why it was not asked.
pub(crate) fn reason_of(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}

/// An element of [`annotation::NETWORKS`].
#[derive(Debug, Deserialize)]
struct Selection {
    name: String,
    namespace: String,
}

/// `pod` with what its networks take.
///
/// # Errors
///
/// A NetworkAttachmentDefinition does not exist or cannot be read.
pub(crate) async fn with_resources(client: &Client, pod: &Pod) -> Result<Pod, Error> {
    let mut pod = pod.clone();
    let resource = ApiResource {
        group: "k8s.cni.cncf.io".into(),
        version: "v1".into(),
        api_version: "k8s.cni.cncf.io/v1".into(),
        kind: "NetworkAttachmentDefinition".into(),
        plural: "network-attachment-definitions".into(),
    };
    let mut missing = Vec::new();
    for Selection { name, namespace } in selections(&pod) {
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &namespace, &resource);
        let full = format!("{namespace}/{name}");
        let found = match api.get_metadata_opt(&name).await {
            Ok(Some(found)) => found,
            Ok(None) => {
                missing.push(full);
                continue;
            }
            Err(source) => return Err(Error::Read { name: full, source }),
        };
        let resource = found.metadata.annotations.as_ref().and_then(|all| all.get(annotation::RESOURCE_NAME));
        if let Some(resource) = resource.filter(|resource| !resource.is_empty()) {
            ask(&mut pod, resource);
        }
    }
    if missing.is_empty() { Ok(pod) } else { Err(Error::Missing(missing)) }
}

/// The networks that Multus is asked for.
fn selections(pod: &Pod) -> Vec<Selection> {
    let annotations = pod.metadata.annotations.as_ref();
    let of = |key: &str| annotations.and_then(|all| all.get(key));
    let others = of(annotation::NETWORKS).and_then(|text| serde_json::from_str::<Vec<Selection>>(text).ok());
    let first = of(annotation::DEFAULT_NETWORK).and_then(|text| {
        let (namespace, name) = text.split_once('/')?;
        Some(Selection { name: name.to_owned(), namespace: namespace.to_owned() })
    });
    first.into_iter().chain(others.unwrap_or_default()).collect()
}

/// Has `compute` ask for one more of a resource.
fn ask(pod: &mut Pod, resource: &str) {
    let containers = pod.spec.iter_mut().flat_map(|spec| &mut spec.containers);
    for Container { resources, .. } in containers.filter(|c| c.name == pod_names::COMPUTE) {
        let ResourceRequirements { requests, limits, .. } = resources.get_or_insert_default();
        for amounts in [requests, limits] {
            let amount = amounts.get_or_insert_default().entry(resource.to_owned()).or_default();
            let known: u64 = amount.0.parse().unwrap_or_default();
            *amount = Quantity(known.saturating_add(1).to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_network_is_looked_at_and_each_device_is_asked_for() {
        let mut pod: Pod = serde_json::from_value(json!({
            "metadata": {"annotations": {
                "k8s.v1.cni.cncf.io/networks": "[{\"name\": \"vf\", \"namespace\": \"shop\", \"interface\": \"pod1\"}, \
                                                 {\"name\": \"vf\", \"namespace\": \"tools\"}]",
                "v1.multus-cni.io/default-network": "shop/first",
            }},
            "spec": {"containers": [
                {"name": "compute", "resources": {"requests": {"cpu": "1"}}}, {"name": "hook-sidecar-0"},
            ]},
        }))
        .unwrap();
        let asked: Vec<_> =
            selections(&pod).into_iter().map(|one| format!("{}/{}", one.namespace, one.name)).collect();
        assert_eq!(asked, ["shop/first", "shop/vf", "tools/vf"]);
        for resource in ["intel.com/vf", "intel.com/vf", "other.example/nic"] {
            ask(&mut pod, resource);
        }
        let containers = &pod.spec.unwrap().containers;
        assert_eq!(
            serde_json::to_value(containers[0].resources.as_ref().unwrap()).unwrap(),
            json!({
                "requests": {"cpu": "1", "intel.com/vf": "2", "other.example/nic": "1"},
                "limits": {"intel.com/vf": "2", "other.example/nic": "1"},
            })
        );
        assert_eq!(containers[1].resources, None);
    }
}
