//! Which sandbox a pod has, and where its network namespace is: the container runtime's word (CRI).

use std::path::Path;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};

use proto::runtime_service_client::RuntimeServiceClient;

/// The runtime's interface.
pub(crate) mod proto {
    #![allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic, clippy::nursery)]
    #![allow(clippy::large_futures, clippy::uninlined_format_args, rust_2018_idioms)]
    #![allow(dead_code, reason = "the runtime's side is served by tests alone")]
    tonic::include_proto!("runtime.v1");
}

/// Label that the kubelet gives a sandbox: its pod's UID.
const POD_UID: &str = "io.kubernetes.pod.uid";
/// Longest time for an answer.
const ASK: Duration = Duration::from_secs(10);

/// A pod's sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sandbox {
    /// Its identifier, by which plugins know the pod.
    pub id: String,
    /// Where its network namespace is on the node.
    pub namespace: String,
}

/// The runtime did not tell.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It did not answer, or refused.
    #[error("ask the container runtime")]
    Runtime(#[source] Box<tonic::Status>),
    /// It has none, or several, that is ready.
    #[error("the container runtime has {0} ready sandboxes of the pod; there has to be one")]
    Count(usize),
    /// The status lacks it.
    #[error("the container runtime does not tell the network namespace of sandbox {0}")]
    Untold(String),
}

/// The container runtime of the node.
#[derive(Clone, Debug)]
pub struct Runtime(RuntimeServiceClient<Channel>);

impl Runtime {
    /// The one that serves `socket`. It is asked for when it is needed, so it may restart.
    pub fn at(socket: &Path) -> Runtime {
        let socket = socket.to_owned();
        // The authority is never looked at: there is one server behind the socket.
        let endpoint = Endpoint::from_static("http://runtime").connect_timeout(ASK).timeout(ASK);
        let connect = tower::service_fn(move |_: Uri| {
            let socket = socket.clone();
            async move { UnixStream::connect(socket).await.map(TokioIo::new) }
        });
        Runtime(RuntimeServiceClient::new(endpoint.connect_with_connector_lazy(connect)))
    }

    /// The sandbox of the pod with this UID.
    ///
    /// # Errors
    /// The runtime does not answer, or has no such sandbox.
    pub async fn sandbox(&self, pod_uid: &str) -> Result<Sandbox, Error> {
        let mut client = self.0.clone();
        let state = proto::PodSandboxStateValue { state: proto::PodSandboxState::SandboxReady.into() };
        let filter = proto::PodSandboxFilter {
            state: Some(state),
            label_selector: [(POD_UID.to_owned(), pod_uid.to_owned())].into(),
        };
        let request = proto::ListPodSandboxRequest { filter: Some(filter) };
        let listed = client.list_pod_sandbox(request).await.map_err(failed)?.into_inner().items;
        let [only] = listed.as_slice() else { return Err(Error::Count(listed.len())) };
        let request = proto::PodSandboxStatusRequest { pod_sandbox_id: only.id.clone(), verbose: true };
        let told = client.pod_sandbox_status(request).await.map_err(failed)?.into_inner();
        let namespace = told.info.get("info").and_then(|info| namespace(info));
        let namespace = namespace.ok_or_else(|| Error::Untold(only.id.clone()))?;
        Ok(Sandbox { id: only.id.clone(), namespace })
    }
}

fn failed(status: tonic::Status) -> Error {
    Error::Runtime(Box::new(status))
}

/// The path of the network namespace in what a runtime tells of a sandbox: its OCI specification is a part of that.
fn namespace(info: &str) -> Option<String> {
    let info: serde_json::Value = serde_json::from_str(info).ok()?;
    let namespaces = info["runtimeSpec"]["linux"]["namespaces"].as_array()?;
    let network = namespaces.iter().find(|namespace| namespace["type"] == "network")?;
    Some(network["path"].as_str().filter(|path| !path.is_empty())?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::proto::runtime_service_server::{RuntimeService, RuntimeServiceServer};
    use super::*;
    use tokio::net::UnixListener;
    use tokio_stream::wrappers::UnixListenerStream;
    use tonic::{Request, Response, Status};

    /// A runtime with these ready sandboxes; of each it tells this.
    struct Pretended {
        sandboxes: &'static [&'static str],
        info: &'static str,
    }

    #[tonic::async_trait]
    impl RuntimeService for Pretended {
        async fn list_pod_sandbox(
            &self,
            request: Request<proto::ListPodSandboxRequest>,
        ) -> Result<Response<proto::ListPodSandboxResponse>, Status> {
            let filter = request.into_inner().filter.unwrap();
            assert_eq!(filter.state.unwrap().state, 0, "ready ones");
            assert_eq!(filter.label_selector.get(POD_UID).map(String::as_str), Some("u1"));
            let items = self.sandboxes.iter().map(|id| proto::PodSandbox { id: (*id).into() }).collect();
            Ok(Response::new(proto::ListPodSandboxResponse { items }))
        }

        async fn pod_sandbox_status(
            &self,
            request: Request<proto::PodSandboxStatusRequest>,
        ) -> Result<Response<proto::PodSandboxStatusResponse>, Status> {
            let request = request.into_inner();
            assert_eq!((request.pod_sandbox_id.as_str(), request.verbose), ("s1", true));
            let info = [("info".to_owned(), self.info.to_owned())].into();
            Ok(Response::new(proto::PodSandboxStatusResponse { info }))
        }
    }

    async fn asked(sandboxes: &'static [&'static str], info: &'static str) -> Result<Sandbox, Error> {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("runtime.sock");
        let listener = UnixListenerStream::new(UnixListener::bind(&socket).unwrap());
        let service = RuntimeServiceServer::new(Pretended { sandboxes, info });
        let serving = tonic::transport::Server::builder().add_service(service).serve_with_incoming(listener);
        tokio::select! {
            served = serving => panic!("{served:?}"),
            answer = async { Runtime::at(&socket).sandbox("u1").await } => answer,
        }
    }

    #[tokio::test]
    async fn the_runtime_tells_sandbox_and_namespace() {
        let info = r#"{"pid": 7, "runtimeSpec": {"linux": {"namespaces": [
            {"type": "ipc"}, {"type": "network", "path": "/var/run/netns/cni-1"}]}}}"#;
        let told = asked(&["s1"], info).await.unwrap();
        assert_eq!(told, Sandbox { id: "s1".into(), namespace: "/var/run/netns/cni-1".into() });
    }

    #[tokio::test]
    async fn a_pod_without_one_sandbox_or_without_a_namespace_is_told() {
        assert!(matches!(asked(&[], "").await, Err(Error::Count(0))));
        assert!(matches!(asked(&["s1", "s2"], "").await, Err(Error::Count(2))));
        // A pod in its node's network has no path.
        let info = r#"{"runtimeSpec": {"linux": {"namespaces": [{"type": "network"}]}}}"#;
        assert!(matches!(asked(&["s1"], info).await, Err(Error::Untold(id)) if id == "s1"));
    }
}
