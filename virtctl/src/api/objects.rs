//! Objects as kubectl handles them: read, made, changed by a JSON patch, deleted.

use http::header::{self, HeaderValue};
use http::{Method, Request};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{AttachParams, AttachedProcess};
use kube::client::Body;
use serde::Serialize;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};

use super::{Cluster, List, with_json};
use crate::explain::{ApiError, Asked, Cause};

/// A kind of objects of a namespace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resource {
    group: &'static str,
    version: &'static str,
    plural: &'static str,
}

/// `Secret`.
pub(crate) const SECRETS: Resource = Resource { group: "", version: "v1", plural: "secrets" };
/// `Service`.
pub(crate) const SERVICES: Resource = Resource { group: "", version: "v1", plural: "services" };
/// `PersistentVolumeClaim`.
pub(crate) const CLAIMS: Resource = Resource { group: "", version: "v1", plural: "persistentvolumeclaims" };
/// `DataVolume`.
pub(crate) const DATA_VOLUMES: Resource =
    Resource { group: "cdi.kubevirt.io", version: "v1beta1", plural: "datavolumes" };
/// `DataSource`.
pub(crate) const DATA_SOURCES: Resource =
    Resource { group: "cdi.kubevirt.io", version: "v1beta1", plural: "datasources" };
/// `CDIConfig`, of the cluster.
pub(crate) const CDI_CONFIGS: Resource =
    Resource { group: "cdi.kubevirt.io", version: "v1beta1", plural: "cdiconfigs" };
/// `UploadTokenRequest`.
pub(crate) const UPLOAD_TOKENS: Resource =
    Resource { group: "upload.cdi.kubevirt.io", version: "v1beta1", plural: "uploadtokenrequests" };
/// `StorageClass`, of the cluster.
pub(crate) const STORAGE_CLASSES: Resource =
    Resource { group: "storage.k8s.io", version: "v1", plural: "storageclasses" };
/// `Pod`.
pub(crate) const PODS: Resource = Resource { group: "", version: "v1", plural: "pods" };
/// `Event`.
pub(crate) const EVENTS: Resource = Resource { group: "", version: "v1", plural: "events" };
/// `VirtualMachineExport`.
pub(crate) const EXPORTS: Resource =
    Resource { group: "export.kubevirt.io", version: "v1beta1", plural: "virtualmachineexports" };
/// `VirtualMachine`.
pub(crate) const MACHINES: Resource =
    Resource { group: "kubevirt.io", version: "v1", plural: "virtualmachines" };
/// `KubeVirt`.
pub(crate) const KUBEVIRTS: Resource = Resource { group: "kubevirt.io", version: "v1", plural: "kubevirts" };

impl Resource {
    fn root(self) -> String {
        match self.group {
            "" => format!("/api/{}", self.version),
            group => format!("/apis/{group}/{}", self.version),
        }
    }

    fn collection(self, namespace: &str) -> String {
        format!("{}/namespaces/{namespace}/{}", self.root(), self.plural)
    }

    fn asked(self, verb: &'static str) -> Asked {
        Asked { verb, group: self.group, resource: self.plural.into() }
    }
}

/// Names and namespaces are checked ones.
impl Cluster {
    /// Reads an object.
    ///
    /// # Errors
    /// When the answer is no success or no JSON.
    pub(crate) async fn object(&self, of: Resource, namespace: &str, name: &str) -> Result<Value, ApiError> {
        let path = format!("{}/{name}", of.collection(namespace));
        self.json(path).await.map_err(|cause| self.error(&of.asked("get"), cause))
    }

    /// Reads an object of the cluster.
    ///
    /// # Errors
    /// When the answer is no success or no JSON.
    pub(crate) async fn cluster_object(&self, of: Resource, name: &str) -> Result<Value, ApiError> {
        let path = format!("{}/{}/{name}", of.root(), of.plural);
        self.json(path).await.map_err(|cause| self.error(&of.asked("get"), cause))
    }

    /// Reads the objects that `query` selects.
    ///
    /// # Errors
    /// When the answer is no success or no JSON.
    pub(crate) async fn objects(
        &self,
        of: Resource,
        namespace: &str,
        query: &str,
    ) -> Result<Vec<Value>, ApiError> {
        let path = format!("{}?{query}", of.collection(namespace));
        let list: List = self.json(path).await.map_err(|cause| self.error(&of.asked("list"), cause))?;
        Ok(list.items)
    }

    /// Makes an object and returns it as it is stored.
    ///
    /// # Errors
    /// When the answer is no success or no JSON.
    pub(crate) async fn create(
        &self,
        of: Resource,
        namespace: &str,
        manifest: &impl Serialize,
    ) -> Result<Value, ApiError> {
        self.send(of, ("create", Method::POST), of.collection(namespace), manifest).await
    }

    /// Changes an object by the steps of a JSON patch (RFC 6902).
    ///
    /// # Errors
    /// When the answer is no success or no JSON.
    pub(crate) async fn patch(
        &self,
        of: Resource,
        namespace: &str,
        name: &str,
        steps: &[Value],
    ) -> Result<Value, ApiError> {
        self.send(of, ("patch", Method::PATCH), format!("{}/{name}", of.collection(namespace)), &steps).await
    }

    /// Deletes an object.
    ///
    /// # Errors
    /// When the answer is no success.
    pub(crate) async fn remove(&self, of: Resource, namespace: &str, name: &str) -> Result<(), ApiError> {
        let fail = |cause| self.error(&of.asked("delete"), cause);
        let request = Request::delete(format!("{}/{name}", of.collection(namespace)))
            .header(header::ACCEPT, "application/json")
            .body(Body::empty())
            .map_err(|error| fail(Cause::Protocol(error.to_string())))?;
        self.limited(self.answer(request)).await.map_err(fail)?;
        Ok(())
    }

    /// A connection to a port of a pod, by way of the API server.
    ///
    /// # Errors
    /// When the API server does not lead there.
    pub(crate) async fn pod_port(
        &self,
        namespace: &str,
        pod: &str,
        port: u16,
    ) -> Result<impl AsyncRead + AsyncWrite + Unpin + Send + use<>, ApiError> {
        let asked = Asked { verb: "create", group: "", resource: "pods/portforward".into() };
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let opened = pods.portforward(pod, &[port]).await;
        let mut forwarder = opened.map_err(|error| self.error(&asked, Cause::Protocol(error.to_string())))?;
        let stream = forwarder.take_stream(port);
        // It works by a task of its own, which ends with the stream.
        stream.ok_or_else(|| self.error(&asked, Cause::Protocol("there is no stream".into())))
    }

    /// The standard streams of a pod's container, which has a terminal.
    ///
    /// # Errors
    /// When the API server does not lead there.
    pub(crate) async fn attach(
        &self,
        namespace: &str,
        pod: &str,
        container: &str,
    ) -> Result<AttachedProcess, ApiError> {
        let asked = Asked { verb: "create", group: "", resource: "pods/attach".into() };
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let params = AttachParams::interactive_tty().container(container);
        let attached = pods.attach(pod, &params).await;
        attached.map_err(|error| self.error(&asked, Cause::Protocol(error.to_string())))
    }

    async fn send(
        &self,
        of: Resource,
        (verb, method): (&'static str, Method),
        path: String,
        body: &impl Serialize,
    ) -> Result<Value, ApiError> {
        let fail = |cause| self.error(&of.asked(verb), cause);
        let is_patch = method == Method::PATCH;
        let mut request = with_json(method, path, body).map_err(fail)?;
        if is_patch {
            let kind = HeaderValue::from_static("application/json-patch+json");
            request.headers_mut().insert(header::CONTENT_TYPE, kind);
        }
        self.decoded(request).await.map_err(fail)
    }
}

/// A place in a document (RFC 6901).
pub(crate) fn pointer(parts: &[&str]) -> String {
    parts.iter().map(|part| format!("/{}", part.replace('~', "~0").replace('/', "~1"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_have_the_paths_of_their_groups() {
        assert_eq!(SECRETS.collection("blue"), "/api/v1/namespaces/blue/secrets");
        assert_eq!(MACHINES.collection("blue"), "/apis/kubevirt.io/v1/namespaces/blue/virtualmachines");
        assert_eq!(pointer(&["data", "a/b~c"]), "/data/a~1b~0c");
    }
}
