//! One server of the device plugin interface, and its registration.

use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::pin::Pin;

use anyhow::Context as _;
use futures::{Stream, StreamExt};
use hyper_util::rt::TokioIo;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio_stream::wrappers::{UnixListenerStream, WatchStream};
use tonic::transport::{Endpoint, Server, Uri};
use tonic::{Request, Response, Status};

use super::proto::device_plugin_server::{DevicePlugin, DevicePluginServer};
use super::proto::registration_client::RegistrationClient;
use super::proto::{
    AllocateRequest, AllocateResponse, ContainerAllocateResponse, Device, DevicePluginOptions, DeviceSpec,
    Empty, ListAndWatchResponse, PreStartContainerRequest, PreStartContainerResponse,
    PreferredAllocationRequest, PreferredAllocationResponse, RegisterRequest,
};
use super::{COPIES, Device as Offered};

/// The kubelet's socket in its directory of device plugins.
pub(super) const KUBELET_SOCKET: &str = "kubelet.sock";
/// Version of the interface.
const VERSION: &str = "v1beta1";

/// A server that runs. Dropping it ends it.
pub(super) struct Plugin {
    device: &'static Offered,
    healthy: watch::Sender<bool>,
    server: AbortHandle,
    socket: u64,
}

impl Drop for Plugin {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Plugin {
    /// Starts to serve on a new socket in `directory`; the devices are of use or not.
    pub(super) fn serve(device: &'static Offered, directory: &Path, healthy: bool) -> io::Result<Self> {
        let path = directory.join(device.socket);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&path)?;
        let socket = std::fs::symlink_metadata(&path)?.ino();
        let (healthy, health) = watch::channel(healthy);
        let service = DevicePluginServer::new(Copies { device, health });
        let serve = async move {
            let ended =
                Server::builder().add_service(service).serve_with_incoming(UnixListenerStream::new(listener));
            if let Err(error) = ended.await {
                tracing::warn!(error = &error as &dyn std::error::Error, "the device plugin's server ended");
            }
        };
        Ok(Self { device, healthy, server: tokio::spawn(serve).abort_handle(), socket })
    }

    /// Tells the kubelet of the server.
    pub(super) async fn register(&self, directory: &Path) -> anyhow::Result<()> {
        let path = directory.join(KUBELET_SOCKET);
        let connector = tower::service_fn(move |_: Uri| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        });
        let channel = Endpoint::from_static("http://kubelet").connect_with_connector(connector).await;
        let request = RegisterRequest {
            version: VERSION.into(),
            endpoint: self.device.socket.into(),
            resource_name: self.device.resource.into(),
            options: Some(DevicePluginOptions::default()),
        };
        let mut client = RegistrationClient::new(channel.context("the kubelet's socket")?);
        client.register(request).await.context("the kubelet does not take the plugin")?;
        Ok(())
    }

    /// Tells the kubelet whether the devices are of use.
    pub(super) fn healthy(&self, healthy: bool) {
        self.healthy.send_if_modified(|known| std::mem::replace(known, healthy) != healthy);
    }

    /// Whether the kubelet can reach the server: its socket is where it was told.
    pub(super) fn is_reachable(&self, directory: &Path) -> bool {
        std::fs::symlink_metadata(directory.join(self.device.socket))
            .is_ok_and(|metadata| metadata.file_type().is_socket() && metadata.ino() == self.socket)
            && !self.server.is_finished()
    }
}

/// The copies of one device.
struct Copies {
    device: &'static Offered,
    health: watch::Receiver<bool>,
}

fn devices(of: &Offered, healthy: bool) -> ListAndWatchResponse {
    let health = if healthy { "Healthy" } else { "Unhealthy" };
    let device = |number| Device { id: format!("{}{number}", of.copy), health: health.into() };
    ListAndWatchResponse { devices: (0..COPIES).map(device).collect() }
}

#[tonic::async_trait]
impl DevicePlugin for Copies {
    async fn get_device_plugin_options(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(DevicePluginOptions::default()))
    }

    type ListAndWatchStream = Pin<Box<dyn Stream<Item = Result<ListAndWatchResponse, Status>> + Send>>;

    async fn list_and_watch(&self, _: Request<Empty>) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let device = self.device;
        let lists = WatchStream::new(self.health.clone()).map(|healthy| Ok(devices(device, healthy)));
        Ok(Response::new(Box::pin(lists)))
    }

    async fn get_preferred_allocation(
        &self,
        _: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        Err(Status::unimplemented("one copy of the device is as good as another"))
    }

    async fn allocate(
        &self,
        request: Request<AllocateRequest>,
    ) -> Result<Response<AllocateResponse>, Status> {
        let node = DeviceSpec {
            container_path: self.device.path.into(),
            host_path: self.device.path.into(),
            permissions: "rw".into(),
        };
        let one = ContainerAllocateResponse { devices: vec![node] };
        let containers = request.into_inner().container_requests.len();
        Ok(Response::new(AllocateResponse { container_responses: vec![one; containers] }))
    }

    async fn pre_start_container(
        &self,
        _: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        Err(Status::unimplemented("there is nothing to do before a start"))
    }
}
