//! Calls to the virt-handler of an instance's node, over mutual TLS.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use http::{HeaderMap, HeaderName, Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, Client};
use podvirt_api::v1::VirtualMachineInstance;
use podvirt_daemon::pki::{Identity, node_name};
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tracing::{Instrument, debug, info_span, warn};

use crate::status::Status;

/// Port of virt-handler's server.
pub const HANDLER_PORT: u16 = 8186;
/// Longest time until a connection stands.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time a short request may take; a guest agent that hangs is given up by virt-handler before, which waits
/// for a freeze the longest.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(75);
/// Longest time for the word on a guest's acceptance. virt-handler waits for the guest and answers before that: beyond it
/// virt-handler hangs, which is no word about the guest.
const ACCEPTANCE_TIMEOUT: Duration = Duration::from_secs(20);
/// Largest answer to a short request.
pub const MAX_ANSWER_BYTES: usize = 4 << 20;
/// Largest picture of a screen, which is one of these answers.
pub const MAX_PICTURE_BYTES: usize = 16 << 20;

/// Finds and calls virt-handlers.
#[derive(Clone)]
pub struct Handlers {
    client: Client,
    namespace: String,
    identity: Identity,
    port: u16,
}

/// A stream that virt-handler agreed to.
pub struct Agreed {
    /// virt-handler's `101 Switching Protocols`, to be handed to the client.
    pub response: http::response::Parts,
    /// The stream.
    pub stream: TokioIo<hyper::upgrade::Upgraded>,
}

impl Handlers {
    /// Handlers of podvirt in `namespace`, which are shown `identity`.
    pub fn new(client: Client, namespace: &str, identity: Identity, port: u16) -> Self {
        Handlers { client, namespace: namespace.to_owned(), identity, port }
    }

    /// Address of the virt-handler on `node`.
    async fn address(&self, node: &str) -> Result<SocketAddr, Status> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let params =
            ListParams::default().labels("kubevirt.io=virt-handler").fields(&format!("spec.nodeName={node}"));
        let found = pods.list(&params).await?;
        let ip = found
            .items
            .iter()
            .filter(|pod| pod.metadata.deletion_timestamp.is_none())
            .filter_map(|pod| pod.status.as_ref()?.pod_ip.as_ref()?.parse::<IpAddr>().ok())
            .next();
        let ip = ip.ok_or_else(|| Status::unavailable(format!("no virt-handler is ready on node {node}")))?;
        Ok(SocketAddr::new(ip, self.port))
    }

    /// A connection to the virt-handler of `vmi`'s node.
    async fn connect<B>(&self, vmi: &VirtualMachineInstance) -> Result<http1::SendRequest<B>, Status>
    where
        B: hyper::body::Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let node = vmi.status.node_name.as_deref().unwrap_or_default();
        let address = self.address(node).await?;
        let connect = async {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            // A node shows its own name: one that was taken over cannot answer for another.
            let tls = self.identity.client_config(&node_name(node)).map_err(std::io::Error::other)?;
            let name = ServerName::from(address.ip());
            let stream = TlsConnector::from(tls).connect(name, stream).await?;
            http1::handshake(TokioIo::new(stream)).await.map_err(std::io::Error::other)
        };
        let connected = tokio::time::timeout(CONNECT_TIMEOUT, connect).await;
        let (sender, connection) = match connected {
            Ok(Ok(connected)) => connected,
            Ok(Err(error)) => {
                let why = &error as &dyn std::error::Error;
                warn!(node, %address, error = why, "virt-handler cannot be reached");
                return Err(Status::unavailable(format!(
                    "virt-handler on node {node} cannot be reached: {error}"
                )));
            }
            Err(_) => {
                return Err(Status::unavailable(format!("virt-handler on node {node} does not answer")));
            }
        };
        let span = info_span!("handler", node, %address);
        tokio::spawn(
            async move {
                if let Err(error) = connection.with_upgrades().await {
                    debug!(%error, "the connection to virt-handler ended");
                }
            }
            .instrument(span),
        );
        Ok(sender)
    }

    fn request<B>(
        &self,
        vmi: &VirtualMachineInstance,
        method: Method,
        subresource: &str,
        query: Option<&str>,
        body: B,
    ) -> Result<Request<B>, Status> {
        let namespace = vmi.metadata.namespace.as_deref().unwrap_or_default();
        let name = vmi.metadata.name.as_deref().unwrap_or_default();
        let query = query.map(|query| format!("?{query}")).unwrap_or_default();
        Request::builder()
            .method(method)
            .uri(format!("/v1/namespaces/{namespace}/virtualmachineinstances/{name}/{subresource}{query}"))
            .header(header::HOST, "virt-handler")
            .body(body)
            .map_err(|error| Status::internal(error.to_string()))
    }

    /// Carries a short request to virt-handler, and its answer of at most `most` bytes back.
    ///
    /// # Errors
    ///
    /// virt-handler cannot be reached, does not answer in time, or answers more. What it answers, errors too, is a success here.
    pub async fn call(
        &self,
        vmi: &VirtualMachineInstance,
        method: Method,
        subresource: &str,
        body: Bytes,
        most: usize,
    ) -> Result<Response, Status> {
        let mut sender = self.connect(vmi).await?;
        let mut request = self.request(vmi, method, subresource, None, Full::new(body))?;
        let json = header::HeaderValue::from_static("application/json");
        request.headers_mut().insert(header::CONTENT_TYPE, json);
        let answer = async {
            let response = sender.send_request(request).await.map_err(|e| e.to_string())?;
            let (parts, body) = response.into_parts();
            let body = Limited::new(body, most).collect().await.map_err(|e| e.to_string())?;
            Ok::<_, String>((parts, body.to_bytes()))
        };
        match tokio::time::timeout(REQUEST_TIMEOUT, answer).await {
            Ok(Ok((parts, body))) => Ok(handed_on(&parts, Body::from(body))),
            Ok(Err(error)) => Err(Status::unavailable(format!("virt-handler failed: {error}"))),
            Err(_) => Err(Status::unavailable("virt-handler does not answer")),
        }
    }

    /// Whether the guest accepts the connection that has come to its pod from `peer`; the answer comes when the guest has
    /// accepted, or has not answered in virt-handler's time.
    ///
    /// # Errors
    ///
    /// `TimedOut`: the guest does not answer.
    pub async fn accepted(&self, vmi: &VirtualMachineInstance, peer: SocketAddr) -> std::io::Result<()> {
        let query = format!("peer={peer}");
        let answer = async {
            let mut sender = self.connect(vmi).await?;
            let request =
                self.request(vmi, Method::GET, "accepted", Some(&query), Full::<Bytes>::default())?;
            let response = sender.send_request(request).await;
            let response = response.map_err(|e| Status::unavailable(format!("virt-handler failed: {e}")))?;
            Ok::<_, Status>(response.status())
        };
        let silent = |_| Err(Status::unavailable("virt-handler does not answer"));
        match tokio::time::timeout(ACCEPTANCE_TIMEOUT, answer).await.unwrap_or_else(silent) {
            Ok(StatusCode::NO_CONTENT) => Ok(()),
            Ok(StatusCode::GATEWAY_TIMEOUT) => Err(std::io::ErrorKind::TimedOut.into()),
            // A mesh's proxy has taken the connection, or virt-handler is an older one.
            Ok(status) => {
                debug!(%peer, %status, "whether the guest accepts is not known");
                Ok(())
            }
            Err(status) => {
                warn!(%peer, ?status, "whether the guest accepts cannot be asked");
                Ok(())
            }
        }
    }

    /// Asks virt-handler for a stream with the client's own upgrade request.
    ///
    /// # Errors
    ///
    /// Outer: virt-handler cannot be reached. Inner: it answered something else than an agreement.
    pub async fn upgrade(
        &self,
        vmi: &VirtualMachineInstance,
        subresource: &str,
        query: Option<&str>,
        headers: &HeaderMap,
    ) -> Result<Result<Agreed, Response>, Status> {
        let mut sender = self.connect(vmi).await?;
        let mut request = self.request(vmi, Method::GET, subresource, query, Full::<Bytes>::default())?;
        for name in UPGRADE_HEADERS {
            for value in headers.get_all(&name) {
                request.headers_mut().append(name.clone(), value.clone());
            }
        }
        let response = tokio::time::timeout(CONNECT_TIMEOUT, sender.send_request(request)).await;
        let mut response: http::Response<Incoming> = match response {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return Err(Status::unavailable(format!("virt-handler failed: {error}"))),
            Err(_) => return Err(Status::unavailable("virt-handler does not answer")),
        };
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            let (parts, body) = response.into_parts();
            let body = Limited::new(body, MAX_ANSWER_BYTES).collect().await;
            let body = body.map_err(|e| Status::unavailable(format!("virt-handler failed: {e}")))?;
            return Ok(Err(handed_on(&parts, Body::from(body.to_bytes()))));
        }
        let upgraded = hyper::upgrade::on(&mut response)
            .await
            .map_err(|e| Status::unavailable(format!("virt-handler gave up the stream: {e}")))?;
        let (parts, _) = response.into_parts();
        Ok(Ok(Agreed { response: parts, stream: TokioIo::new(upgraded) }))
    }
}

/// Headers of an upgrade that go to virt-handler and back.
pub const UPGRADE_HEADERS: [HeaderName; 7] = [
    header::CONNECTION,
    header::UPGRADE,
    header::SEC_WEBSOCKET_KEY,
    header::SEC_WEBSOCKET_VERSION,
    header::SEC_WEBSOCKET_PROTOCOL,
    header::SEC_WEBSOCKET_EXTENSIONS,
    header::SEC_WEBSOCKET_ACCEPT,
];

/// virt-handler's answer for the client: status, type and body.
fn handed_on(parts: &http::response::Parts, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = parts.status;
    if let Some(kind) = parts.headers.get(header::CONTENT_TYPE) {
        response.headers_mut().insert(header::CONTENT_TYPE, kind.clone());
    }
    response
}
