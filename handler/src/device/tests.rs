use std::sync::atomic::{AtomicBool, Ordering};

use futures::StreamExt;
use hyper_util::rt::TokioIo;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Endpoint, Server};
use tonic::{Request, Response, Status};

use super::proto::device_plugin_client::DevicePluginClient;
use super::proto::registration_server::{Registration, RegistrationServer};
use super::proto::{AllocateRequest, ContainerAllocateRequest, Empty, RegisterRequest};
use super::*;

struct Kubelet(mpsc::UnboundedSender<RegisterRequest>);

#[tonic::async_trait]
impl Registration for Kubelet {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        self.0.send(request.into_inner()).unwrap();
        Ok(Response::new(Empty {}))
    }
}

/// Starts a kubelet, as its restart does: with a new socket.
fn kubelet(directory: &Path) -> mpsc::UnboundedReceiver<RegisterRequest> {
    let socket = directory.join("kubelet.sock");
    // Another inode even on a file system that reuses them at once.
    if socket.exists() {
        std::fs::rename(&socket, directory.join("old")).unwrap();
    }
    let incoming = UnixListenerStream::new(UnixListener::bind(socket).unwrap());
    let (registered, registrations) = mpsc::unbounded_channel();
    let service = RegistrationServer::new(Kubelet(registered));
    tokio::spawn(Server::builder().add_service(service).serve_with_incoming(incoming));
    registrations
}

async fn plugin(directory: &Path, endpoint: &str) -> DevicePluginClient<tonic::transport::Channel> {
    let path = directory.join(endpoint);
    let connector = tower::service_fn(move |_| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    let channel = Endpoint::from_static("http://plugin").connect_with_connector(connector).await.unwrap();
    DevicePluginClient::new(channel)
}

#[tokio::test]
async fn a_kubelet_gets_the_device_and_gets_it_again_after_its_restart() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let mut first = kubelet(path);
    let (trigger, shutdown) = Shutdown::manual();
    let (settled, mut is_settled) = watch::channel(false);
    let usable = std::sync::Arc::new(AtomicBool::new(true));
    let offering = {
        let (path, usable) = (path.to_owned(), usable.clone());
        tokio::spawn(async move {
            let probe = || Verdict { usable: usable.load(Ordering::Relaxed), why: "test".into() };
            offer(&KVM, path, probe, |_| {}, &settled, &shutdown).await;
        })
    };

    let request = first.recv().await.unwrap();
    assert_eq!(
        (request.version.as_str(), request.resource_name.as_str()),
        ("v1beta1", "devices.kubevirt.io/kvm")
    );
    is_settled.wait_for(|settled| *settled).await.unwrap();
    let mut client = plugin(path, &request.endpoint).await;
    let mut lists = client.list_and_watch(Empty {}).await.unwrap().into_inner();
    let devices = lists.next().await.unwrap().unwrap().devices;
    assert_eq!((devices.len(), devices[7].health.as_str()), (COPIES, "Healthy"));
    let container = ContainerAllocateRequest { devices_ids: vec![devices[7].id.clone()] };
    let request = AllocateRequest { container_requests: vec![container.clone(), container] };
    let given = client.allocate(request).await.unwrap().into_inner().container_responses;
    assert_eq!((given.len(), given[1].devices[0].host_path.as_str()), (2, "/dev/kvm"));

    // The device breaks; the kubelet's restart makes it be looked at.
    usable.store(false, Ordering::Relaxed);
    std::fs::write(path.join("something"), "").unwrap();
    let devices = lists.next().await.unwrap().unwrap().devices;
    assert_eq!(devices[0].health, "Unhealthy");
    usable.store(true, Ordering::Relaxed);

    let mut second = kubelet(path);
    assert!(second.recv().await.is_some());

    // Another process empties the directory, as an old kubelet did at its start.
    std::fs::remove_file(path.join("kubevirt-kvm.sock")).unwrap();
    let request = second.recv().await.unwrap();
    plugin(path, &request.endpoint).await.get_device_plugin_options(Empty {}).await.unwrap();

    trigger.request();
    offering.await.unwrap();
}

#[tokio::test]
async fn where_kvm_is_of_no_use_the_node_has_none_of_it() {
    let directory = tempfile::tempdir().unwrap();
    let (trigger, shutdown) = Shutdown::manual();
    let (settled, mut is_settled) = watch::channel(false);
    let path = directory.path().to_owned();
    let offering = tokio::spawn(async move {
        let probe = || Verdict { usable: false, why: "test".into() };
        offer(&KVM, path, probe, |_| {}, &settled, &shutdown).await;
    });
    // Machines without KVM wait for no kubelet.
    is_settled.wait_for(|settled| *settled).await.unwrap();
    let mut kubelet = kubelet(directory.path());
    let request = kubelet.recv().await.unwrap();
    let mut client = plugin(directory.path(), &request.endpoint).await;
    let mut lists = client.list_and_watch(Empty {}).await.unwrap().into_inner();
    let devices = lists.next().await.unwrap().unwrap().devices;
    assert!(devices.iter().all(|device| device.health == "Unhealthy"));
    trigger.request();
    offering.await.unwrap();
}
