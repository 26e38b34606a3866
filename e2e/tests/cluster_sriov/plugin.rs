//! A device plugin of the kubelet's: it offers a device of node1 that is not there.
//!
//! It is served from this process on the node's disk, and goes with the value. The files that it hands out are of VFIO's kind,
//! and no driver is behind them.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hyper_util::rt::TokioIo;
use podvirt_e2e::cluster::Cluster;
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::{Builder, Runtime};
use tokio_stream::wrappers::UnixListenerStream;
use tokio_stream::{Stream, StreamExt as _};
use tonic::transport::{Endpoint, Server, Uri};
use tonic::{Request, Response, Status};
use virt_handler::device::DIRECTORY;
use virt_handler::device::proto::device_plugin_server::{DevicePlugin, DevicePluginServer};
use virt_handler::device::proto::registration_client::RegistrationClient;
use virt_handler::device::proto::{
    AllocateRequest, AllocateResponse, ContainerAllocateResponse, Device, DevicePluginOptions, DeviceSpec,
    Empty, ListAndWatchResponse, PreStartContainerRequest, PreStartContainerResponse,
    PreferredAllocationRequest, PreferredAllocationResponse, RegisterRequest,
};

/// The resource that pods ask for.
pub(crate) const RESOURCE: &str = "example.com/vf";
/// The device's name, which is its PCI address, as the SR-IOV network device plugin names devices.
pub(crate) const ADDRESS: &str = "0000:65:00.2";
/// The files in `/dev/vfio` that go with it: the container of IOMMU groups, and the device's group.
pub(crate) const FILES: [&str; 2] = ["vfio", "12"];
/// Where the node has them. The numbers are those of VFIO, and of a range for local use (the kernel's list of devices).
const MAKE: &str =
    "mkdir -p /run/vf; cd /run/vf; rm -f vfio 12; mknod -m 600 vfio c 10 196; mknod -m 600 12 c 240 0";
/// The plugin's socket.
const SOCKET: &str = "test-vf.sock";

/// The device is offered until this is dropped.
pub(crate) struct Plugin {
    directory: PathBuf,
    has_files: Arc<AtomicBool>,
    _runtime: Runtime,
}

impl Plugin {
    /// Offers it to the kubelet of node1.
    pub(crate) fn new(cluster: &Cluster) -> Plugin {
        let node = cluster.node(1);
        node.run(&["sh", "-c", MAKE]).unwrap();
        let directory = node.directory(DIRECTORY);
        let has_files = Arc::new(AtomicBool::new(false));
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.block_on(serve(&directory, Arc::clone(&has_files)));
        Plugin { directory, has_files, _runtime: runtime }
    }

    /// From now on containers get the files of the device that they are given.
    pub(crate) fn hand_out_files(&self) {
        self.has_files.store(true, Ordering::Relaxed);
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        drop(std::fs::remove_file(self.directory.join(SOCKET)));
    }
}

async fn serve(directory: &Path, has_files: Arc<AtomicBool>) {
    drop(std::fs::remove_file(directory.join(SOCKET)));
    // A socket's path is short: the directory's own need not be.
    let open = File::open(directory).unwrap();
    let short = PathBuf::from(format!("/proc/self/fd/{}", open.as_raw_fd()));
    let listener = UnixListener::bind(short.join(SOCKET)).unwrap();
    let service = DevicePluginServer::new(Offered { has_files });
    tokio::spawn(
        Server::builder().add_service(service).serve_with_incoming(UnixListenerStream::new(listener)),
    );

    let kubelet = short.join("kubelet.sock");
    let connector = tower::service_fn(move |_: Uri| {
        let kubelet = kubelet.clone();
        async move { UnixStream::connect(kubelet).await.map(TokioIo::new) }
    });
    let channel = Endpoint::from_static("http://kubelet").connect_with_connector(connector).await.unwrap();
    let request = RegisterRequest {
        version: "v1beta1".into(),
        endpoint: SOCKET.into(),
        resource_name: RESOURCE.into(),
        options: Some(DevicePluginOptions::default()),
    };
    RegistrationClient::new(channel).register(request).await.unwrap();
}

struct Offered {
    has_files: Arc<AtomicBool>,
}

#[tonic::async_trait]
impl DevicePlugin for Offered {
    async fn get_device_plugin_options(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(DevicePluginOptions::default()))
    }

    type ListAndWatchStream = Pin<Box<dyn Stream<Item = Result<ListAndWatchResponse, Status>> + Send>>;

    async fn list_and_watch(&self, _: Request<Empty>) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let device = Device { id: ADDRESS.into(), health: "Healthy".into() };
        let list = tokio_stream::once(Ok(ListAndWatchResponse { devices: vec![device] }));
        // Its end would be the plugin's.
        Ok(Response::new(Box::pin(list.chain(tokio_stream::pending()))))
    }

    async fn get_preferred_allocation(
        &self,
        _: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        Err(Status::unimplemented("there is one device"))
    }

    async fn allocate(
        &self,
        request: Request<AllocateRequest>,
    ) -> Result<Response<AllocateResponse>, Status> {
        let file = |name: &&str| DeviceSpec {
            container_path: format!("/dev/vfio/{name}"),
            host_path: format!("/run/vf/{name}"),
            permissions: "rwm".into(),
        };
        let files: &[&str] = if self.has_files.load(Ordering::Relaxed) { &FILES } else { &[] };
        let one = ContainerAllocateResponse { devices: files.iter().map(file).collect() };
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
