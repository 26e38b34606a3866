//! A netd's control interface, of which only the flow table answers.

use std::sync::{Arc, Mutex};

use podvirt_proto::netd::v1 as netd;
use podvirt_proto::netd::v1::netd_server::{Netd, NetdServer};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};

use super::Ground;

/// The netd of the machine's first interface.
#[derive(Clone, Default)]
pub(crate) struct FlowTable(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    flows: Vec<netd::Flow>,
    asked: usize,
}

impl FlowTable {
    /// Serves it in the pod.
    pub(crate) fn start(ground: &Ground) -> Self {
        let table = FlowTable::default();
        let incoming = UnixListenerStream::new(ground.listen("netd", "", "n0.ctl"));
        let service = NetdServer::new(table.clone());
        tokio::spawn(tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming));
        table
    }

    /// The table has one connection of the pod's, from `peer`, in this state.
    pub(crate) fn set(&self, peer: &str, state: &str) {
        let flow = netd::Flow {
            kind: netd::FlowKind::Tcp.into(),
            state: state.into(),
            pod_peer: peer.into(),
            ..netd::Flow::default()
        };
        self.0.lock().unwrap().flows = vec![flow];
    }

    /// How often it was asked.
    pub(crate) fn asked(&self) -> usize {
        self.0.lock().unwrap().asked
    }
}

type Answer<T> = Result<Response<T>, Status>;

fn not_here<T>() -> Answer<T> {
    Err(Status::unimplemented("only the flow table answers"))
}

#[tonic::async_trait]
impl Netd for FlowTable {
    type ListFlowsStream = BoxStream<netd::ListFlowsResponse>;
    type CaptureStream = BoxStream<netd::CaptureResponse>;
    type WatchLinkStream = BoxStream<netd::WatchLinkResponse>;

    async fn list_flows(&self, _: Request<netd::ListFlowsRequest>) -> Answer<Self::ListFlowsStream> {
        let mut inner = self.0.lock().unwrap();
        inner.asked += 1;
        let part = netd::ListFlowsResponse { flows: inner.flows.clone() };
        Ok(Response::new(Box::pin(tokio_stream::once(Ok(part)))))
    }

    async fn status(&self, _: Request<netd::StatusRequest>) -> Answer<netd::StatusResponse> {
        not_here()
    }

    async fn watch_link(&self, _: Request<netd::WatchLinkRequest>) -> Answer<Self::WatchLinkStream> {
        not_here()
    }

    async fn list_ports(&self, _: Request<netd::ListPortsRequest>) -> Answer<netd::ListPortsResponse> {
        not_here()
    }

    async fn add_ports(&self, _: Request<netd::AddPortsRequest>) -> Answer<netd::AddPortsResponse> {
        not_here()
    }

    async fn remove_ports(&self, _: Request<netd::RemovePortsRequest>) -> Answer<netd::RemovePortsResponse> {
        not_here()
    }

    async fn counters(&self, _: Request<netd::CountersRequest>) -> Answer<netd::CountersResponse> {
        not_here()
    }

    async fn metrics(&self, _: Request<netd::MetricsRequest>) -> Answer<netd::MetricsResponse> {
        not_here()
    }

    async fn capture(&self, _: Request<netd::CaptureRequest>) -> Answer<Self::CaptureStream> {
        not_here()
    }

    async fn offer(&self, _: Request<netd::OfferRequest>) -> Answer<netd::OfferResponse> {
        not_here()
    }
}
