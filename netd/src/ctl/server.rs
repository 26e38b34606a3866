//! The gRPC server of the control interface.
//!
//! [`Control`]'s calls that block for a turn of the worker's loop run on the runtime's blocking threads.

use std::future::Future;
use std::io;
use std::os::unix::net::UnixListener;
use std::sync::Arc;

use podvirt_proto::netd::v1 as proto;
use podvirt_proto::netd::v1::netd_server::{Netd, NetdServer};
use tokio::sync::watch;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};

use super::capture::{CaptureStream, Captures};
use super::convert;
use super::link::{self, LinkStream};
use super::metrics::Metrics;
use crate::config::ports::Reserved;
use crate::control::{Control, FlowQuery, PortInfo};
use crate::net::Link;
use crate::port::PortRule;
use crate::update::Offers;

/// Rows in one message of the flow table.
const FLOWS_PER_MESSAGE: usize = 256;
/// Calls at once on one connection.
const CALLS: usize = 8;
/// Every port of both protocols: more rules in one request are a mistake.
const MAX_RULES: usize = 2 * 65_535;

/// The control interface over one [`Control`].
pub struct ControlServer {
    control: Arc<dyn Control>,
    metrics: Arc<Metrics>,
    reserved: Reserved,
    name: String,
    captures: Captures,
    links: watch::Receiver<Arc<Link>>,
    /// Becomes true when the server ends: calls that last until then have no end of their own.
    ending: watch::Sender<bool>,
    offers: Option<Arc<Offers>>,
}

impl ControlServer {
    /// Serves `control`, `metrics` and the link that `links` has; ports of `reserved` cannot be added.
    pub fn new(
        control: Arc<dyn Control>,
        metrics: Arc<Metrics>,
        links: watch::Receiver<Arc<Link>>,
        reserved: Reserved,
    ) -> ControlServer {
        ControlServer {
            control,
            metrics,
            reserved,
            name: String::new(),
            captures: Captures::new(),
            links,
            ending: watch::Sender::new(false),
            offers: None,
        }
    }

    /// Serves offers to other netds as well.
    #[must_use]
    pub fn with_offers(self, offers: Arc<Offers>) -> ControlServer {
        ControlServer { offers: Some(offers), ..self }
    }

    /// Tells this name of the guest.
    #[must_use]
    pub fn named(self, name: &str) -> ControlServer {
        ControlServer { name: name.to_owned(), ..self }
    }

    /// Serves on `listener`, which does not block, until `stop` is ready and the calls of that moment are answered.
    ///
    /// # Errors
    ///
    /// When the listener cannot be used at all; what goes wrong with one connection ends that connection.
    pub async fn serve(self, listener: UnixListener, stop: impl Future<Output = ()>) -> io::Result<()> {
        let incoming = UnixListenerStream::new(tokio::net::UnixListener::from_std(listener)?);
        let ending = self.ending.clone();
        let stop = async move {
            stop.await;
            ending.send_replace(true);
        };
        tonic::transport::Server::builder()
            .concurrency_limit_per_connection(CALLS)
            .add_service(NetdServer::new(self))
            .serve_with_incoming_shutdown(incoming, stop)
            .await
            .map_err(io::Error::other)
    }

    async fn call<T: Send + 'static>(
        &self,
        f: impl FnOnce(&dyn Control) -> T + Send + 'static,
    ) -> Result<T, Status> {
        let control = self.control.clone();
        let task = tokio::task::spawn_blocking(move || f(control.as_ref()));
        task.await.map_err(|_| Status::internal("the call did not end as it should"))
    }
}

/// The rules of a request.
pub(super) fn rules(rules: &[proto::PortRule]) -> Result<Vec<PortRule>, Status> {
    if rules.len() > MAX_RULES {
        return Err(Status::invalid_argument(format!("at most {MAX_RULES} rules are allowed")));
    }
    let read = |(i, r)| convert::rule(r).map_err(|e| Status::invalid_argument(format!("rules[{i}].{e}")));
    rules.iter().enumerate().map(read).collect()
}

fn ports(ports: &[PortInfo]) -> Vec<proto::Port> {
    ports.iter().map(convert::port).collect()
}

#[tonic::async_trait]
impl Netd for ControlServer {
    type CaptureStream = CaptureStream;
    type WatchLinkStream = LinkStream;
    type ListFlowsStream = tokio_stream::Iter<std::vec::IntoIter<Result<proto::ListFlowsResponse, Status>>>;

    async fn status(
        &self,
        _: Request<proto::StatusRequest>,
    ) -> Result<Response<proto::StatusResponse>, Status> {
        let status = self.call(Control::status).await?;
        let status = status.ok_or_else(|| Status::unavailable("netd's worker has ended"))?;
        let generation = self.offers.as_ref().map_or(0, |o| o.generation());
        Ok(Response::new(proto::StatusResponse { generation, ..convert::status(&status, &self.name) }))
    }

    async fn watch_link(
        &self,
        _: Request<proto::WatchLinkRequest>,
    ) -> Result<Response<Self::WatchLinkStream>, Status> {
        let (links, refused) = (self.links.clone(), self.control.refused());
        Ok(Response::new(link::stream(links, refused, self.ending.subscribe())))
    }

    async fn offer(&self, _: Request<proto::OfferRequest>) -> Result<Response<proto::OfferResponse>, Status> {
        let offers = self.offers.clone().ok_or_else(|| Status::unimplemented("there is nothing to offer"))?;
        let generation = offers.generation();
        let task = tokio::task::spawn_blocking(move || offers.open());
        let offer = task.await.map_err(|_| Status::internal("the call did not end as it should"))?;
        let offer = offer.map_err(|e| Status::unavailable(format!("nothing can be offered: {e}")))?;
        Ok(Response::new(proto::OfferResponse {
            takeover: offer.name,
            arguments: offer.arguments,
            directory: offer.directory.into_os_string().into_encoded_bytes(),
            pid: std::process::id(),
            generation,
        }))
    }

    async fn list_flows(
        &self,
        request: Request<proto::ListFlowsRequest>,
    ) -> Result<Response<Self::ListFlowsStream>, Status> {
        let query = FlowQuery::try_from(request.into_inner());
        let query = query.map_err(|e| Status::invalid_argument(e.to_string()))?;
        let rows = query.rows();
        let mut flows = self.call(move |c| c.flows(query)).await?;
        flows.truncate(rows);
        let message = |part: &[crate::control::FlowInfo]| {
            Ok(proto::ListFlowsResponse { flows: part.iter().map(convert::flow).collect() })
        };
        let messages: Vec<_> = flows.chunks(FLOWS_PER_MESSAGE).map(message).collect();
        Ok(Response::new(tokio_stream::iter(messages)))
    }

    async fn list_ports(
        &self,
        _: Request<proto::ListPortsRequest>,
    ) -> Result<Response<proto::ListPortsResponse>, Status> {
        let list = self.call(Control::ports).await?;
        Ok(Response::new(proto::ListPortsResponse { ports: ports(&list) }))
    }

    async fn add_ports(
        &self,
        request: Request<proto::AddPortsRequest>,
    ) -> Result<Response<proto::AddPortsResponse>, Status> {
        let rules = rules(&request.into_inner().rules)?;
        tracing::info!(rules = rules.len(), "asked to open ports");
        let (reserved, free): (Vec<PortRule>, Vec<PortRule>) =
            rules.into_iter().partition(|r| self.reserved.contains(r.proto, r.pod));
        let mut list = self.call(|c| c.add_ports(free)).await?;
        list.extend(reserved.into_iter().map(|rule| PortInfo {
            rule,
            error: Some("the port is reserved by the configuration (ports.reserved)".into()),
            shut: false,
        }));
        Ok(Response::new(proto::AddPortsResponse { ports: ports(&list) }))
    }

    async fn remove_ports(
        &self,
        request: Request<proto::RemovePortsRequest>,
    ) -> Result<Response<proto::RemovePortsResponse>, Status> {
        let rules = rules(&request.into_inner().rules)?;
        tracing::info!(rules = rules.len(), "asked to close ports");
        let list = self.call(|c| c.remove_ports(rules)).await?;
        Ok(Response::new(proto::RemovePortsResponse { ports: ports(&list) }))
    }

    async fn counters(
        &self,
        _: Request<proto::CountersRequest>,
    ) -> Result<Response<proto::CountersResponse>, Status> {
        Ok(Response::new(convert::counters(&self.control.counters())))
    }

    async fn metrics(
        &self,
        _: Request<proto::MetricsRequest>,
    ) -> Result<Response<proto::MetricsResponse>, Status> {
        let metrics = self.metrics.clone();
        let text = self.call(move |_| metrics.text()).await?;
        Ok(Response::new(proto::MetricsResponse { text }))
    }

    async fn capture(
        &self,
        request: Request<proto::CaptureRequest>,
    ) -> Result<Response<Self::CaptureStream>, Status> {
        let status = self.call(Control::status).await?;
        let status = status.ok_or_else(|| Status::unavailable("netd's worker has ended"))?;
        let mac = status.guest_mac.map(|m| m.to_string()).unwrap_or_default();
        let name = if self.name.is_empty() { "netd" } else { &self.name };
        let ending = self.ending.subscribe();
        let stream = self.captures.start(self.control.clone(), &request.into_inner(), (name, mac), ending)?;
        Ok(Response::new(stream))
    }
}
