//! The client's end of the control interface.

use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use netd_capture::{Direction, Packet};
use podvirt_proto::netd::v1 as proto;
use podvirt_proto::netd::v1::netd_client::NetdClient;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Status, Streaming};

/// The answer of netd takes a turn of its worker's loop; one that takes so long does not come.
const CALL_TIME: Duration = Duration::from_secs(30);
/// A list of all ports of both protocols has about 6 MiB.
const MAX_MESSAGE_BYTES: usize = 64 << 20;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
#[error("cannot reach netd at {path}")]
pub struct ConnectError {
    path: PathBuf,
    source: std::io::Error,
}

/// A connection to the control socket of one netd.
#[derive(Clone, Debug)]
pub struct Client(NetdClient<Channel>);

impl Client {
    /// Connects to the control socket at `path`.
    ///
    /// # Errors
    ///
    /// When no netd listens there, or the caller is not permitted.
    pub async fn connect(path: &Path) -> Result<Client, ConnectError> {
        let failed = |source| ConnectError { path: path.to_owned(), source };
        // The first connection is made here, for its error: the transport's own has lost the system's words.
        let mut first = Some(UnixStream::connect(path).await.map_err(failed)?);
        let socket = path.to_owned();
        let connector = tower::service_fn(move |_: Uri| {
            let (first, socket) = (first.take(), socket.clone());
            async move {
                let stream = match first {
                    Some(stream) => stream,
                    None => UnixStream::connect(socket).await?,
                };
                Ok::<_, std::io::Error>(TokioIo::new(stream))
            }
        });
        // The address is not used, but HTTP/2 wants an authority.
        let channel = Endpoint::from_static("http://netd.invalid")
            .timeout(CALL_TIME)
            .connect_with_connector(connector)
            .await
            .map_err(|error| failed(std::io::Error::other(error)))?;
        Ok(Client(NetdClient::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES)))
    }

    /// What netd is doing.
    ///
    /// # Errors
    ///
    /// The status of the call, as for every call here.
    pub async fn status(&mut self) -> Result<proto::StatusResponse, Status> {
        Ok(self.0.status(proto::StatusRequest {}).await?.into_inner())
    }

    /// The link, and each that follows, until the stream is dropped or netd ends.
    ///
    /// # Errors
    ///
    /// The status of the call.
    pub async fn watch_link(&mut self) -> Result<tonic::Streaming<proto::WatchLinkResponse>, Status> {
        Ok(self.0.watch_link(proto::WatchLinkRequest {}).await?.into_inner())
    }

    /// The part of the flow table that `request` asks for.
    ///
    /// # Errors
    ///
    /// The status of the call.
    pub async fn flows(&mut self, request: proto::ListFlowsRequest) -> Result<Vec<proto::Flow>, Status> {
        let mut parts = self.0.list_flows(request).await?.into_inner();
        let mut flows = Vec::new();
        while let Some(part) = parts.message().await? {
            flows.extend(part.flows);
        }
        Ok(flows)
    }

    /// Every forwarded port.
    ///
    /// # Errors
    ///
    /// The status of the call.
    pub async fn ports(&mut self) -> Result<Vec<proto::Port>, Status> {
        Ok(self.0.list_ports(proto::ListPortsRequest {}).await?.into_inner().ports)
    }

    /// Opens ports and tells for each what became of it.
    ///
    /// # Errors
    ///
    /// The status of the call.
    pub async fn add_ports(&mut self, rules: Vec<proto::PortRule>) -> Result<Vec<proto::Port>, Status> {
        Ok(self.0.add_ports(proto::AddPortsRequest { rules }).await?.into_inner().ports)
    }

    /// Closes ports and answers those that were open.
    ///
    /// # Errors
    ///
    /// The status of the call.
    pub async fn remove_ports(&mut self, rules: Vec<proto::PortRule>) -> Result<Vec<proto::Port>, Status> {
        Ok(self.0.remove_ports(proto::RemovePortsRequest { rules }).await?.into_inner().ports)
    }

    /// Has netd offer everything that it has to another one.
    ///
    /// # Errors
    ///
    /// The status of the call.
    pub async fn offer(&mut self) -> Result<proto::OfferResponse, Status> {
        Ok(self.0.offer(proto::OfferRequest {}).await?.into_inner())
    }

    /// Every counter.
    ///
    /// # Errors
    ///
    /// The status of the call.
    pub async fn counters(&mut self) -> Result<proto::CountersResponse, Status> {
        Ok(self.0.counters(proto::CountersRequest {}).await?.into_inner())
    }

    /// The metrics in the OpenMetrics text format.
    ///
    /// # Errors
    ///
    /// The status of the call.
    pub async fn metrics(&mut self) -> Result<String, Status> {
        Ok(self.0.metrics(proto::MetricsRequest {}).await?.into_inner().text)
    }

    /// Starts a capture: frames come until it is dropped or netd ends.
    ///
    /// # Errors
    ///
    /// The status of the call.
    pub async fn capture(&mut self, request: proto::CaptureRequest) -> Result<Capture, Status> {
        let mut messages = self.0.capture(request).await?.into_inner();
        let first = messages.message().await?.unwrap_or_default();
        Ok(Capture { messages, interface: first.interface.unwrap_or_default() })
    }
}

/// A capture that runs.
#[derive(Debug)]
pub struct Capture {
    messages: Streaming<proto::CaptureResponse>,
    interface: proto::CaptureInterface,
}

/// Some frames of a capture, and its numbers so far.
#[derive(Clone, Debug, Default)]
pub struct Captured {
    /// Frames; there may be none.
    pub packets: Vec<Packet>,
    /// Frames that the filter let through.
    pub matched: u64,
    /// Of these, frames that were lost because too many waited.
    pub dropped: u64,
}

impl Capture {
    /// Where the frames are taken.
    pub fn interface(&self) -> &proto::CaptureInterface {
        &self.interface
    }

    /// Waits for frames, or for numbers, which come every second; None when netd has ended the capture. What is
    /// given up half-way is not lost.
    ///
    /// # Errors
    ///
    /// The status of the call.
    pub async fn next(&mut self) -> Result<Option<Captured>, Status> {
        let Some(m) = self.messages.message().await? else { return Ok(None) };
        let packets = m.frames.into_iter().map(packet).collect();
        Ok(Some(Captured { packets, matched: m.matched, dropped: m.dropped }))
    }
}

/// A frame that netd sent.
fn packet(f: proto::CapturedFrame) -> Packet {
    let direction = match f.direction() {
        proto::FrameDirection::Inbound => Direction::Inbound,
        proto::FrameDirection::Outbound | proto::FrameDirection::Unspecified => Direction::Outbound,
    };
    Packet {
        at: Duration::from_nanos(f.time_ns),
        direction,
        len: f.length,
        gso_size: u16::try_from(f.gso_size).unwrap_or(u16::MAX),
        data: f.data,
    }
}
