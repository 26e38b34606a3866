//! What a launcher tells by itself: one server a pod, on a socket in the pod's own volume.
//!
//! The socket says which launcher speaks: a launcher reaches only its own, so it can tell of no machine but its own,
//! and what it tells under another UID is refused. A process of another pod that got hold of the socket is cut off.
//!
//! A report is a trigger; what it says is looked at by the next pass. The report of an end is different: the
//! launcher leaves once it is acknowledged, and no launcher could be asked later. It is on the node's disk
//! ([`crate::record`]) before the answer goes out.
//!
//! Events for the user are passed on, a few a minute: a launcher is not trusted with the API server's disk.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures::StreamExt;
use podvirt_api::names::{path, pod};
use podvirt_proto::domain::{Domain, K8sEvent};
use podvirt_proto::notify::v1 as notify;
use podvirt_proto::notify::v1::notify_server::{Notify, NotifyServer};
use podvirt_proto::{domain, notify::info};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::AbortHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::transport::server::Connected;
use tonic::{Request, Response, Status};
use tracing::Instrument as _;

use super::report::Newest;
use crate::record::Record;
use crate::sockets::{Dir, PodVolumes};

/// Events that a launcher may tell at once.
const EVENTS_AT_ONCE: u32 = 20;
/// Time after which it may tell one more.
const EVENT_EVERY: Duration = Duration::from_secs(5);
/// Connections of a pod at a time. A launcher has use for one, and one more while it reconnects.
const CONNECTIONS: usize = 4;
/// Calls at a time on a connection. A launcher makes one after the other.
const STREAMS: u32 = 4;
/// Largest message: the report of a machine with every list as long as it may be, several times over.
const MAX_MESSAGE: usize = 1 << 20;
/// A connection that is silent for so long is probed, and ended when the launcher does not answer.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// An event for the user of a VMI.
#[derive(Debug)]
pub struct Told {
    /// UID of the VMI.
    pub vmi_uid: String,
    /// What happened.
    pub event: K8sEvent,
}

/// Where the server of one pod puts what it hears.
#[derive(Clone, Debug)]
pub struct Inbox {
    /// UID of the VMI.
    pub vmi_uid: String,
    /// The newest report.
    pub newest: Newest,
    /// Where the report of an end is kept.
    pub record: Record,
    /// UIDs of VMIs that are to be looked at.
    pub triggers: mpsc::Sender<String>,
    /// Events for users.
    pub events: mpsc::Sender<Told>,
}

/// A running server. Dropping it ends it and removes its socket; nothing is taken any more from then on.
#[derive(Debug)]
pub struct Listening {
    dir: Dir,
    task: AbortHandle,
    /// Connections outlive the task that accepted them.
    ended: Arc<AtomicBool>,
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Release);
        self.task.abort();
        self.dir.remove(path::NOTIFY_SOCKET);
    }
}

/// Serves a pod's launcher.
///
/// # Errors
///
/// The pod's volume is not there (`NotFound`), or the socket cannot be made.
pub fn listen(volumes: &PodVolumes, pod_uid: &str, inbox: Inbox) -> io::Result<Listening> {
    let dir = volumes.dir(pod_uid, pod::volume::PUBLIC, "")?;
    let listener = dir.listen(path::NOTIFY_SOCKET, volumes.owner())?;
    let (pod_uid, volumes) = (pod_uid.to_owned(), volumes.clone());
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let incoming = UnixListenerStream::new(listener).filter_map(move |stream| {
        let own = stream.and_then(|stream: UnixStream| volumes.peer(&stream, &pod_uid).map(|_| stream));
        let own = own.inspect_err(|error| tracing::warn!(%error, "a stranger at a launcher's socket"));
        let held = own.ok().and_then(|stream| Held::take(stream, &places));
        std::future::ready(held.map(Ok::<_, io::Error>))
    });
    let span = tracing::info_span!("notify", vmi_uid = inbox.vmi_uid);
    let hears = Hears::new(inbox);
    let ended = Arc::clone(&hears.ended);
    let serve = async move {
        let server = Server::builder()
            .max_concurrent_streams(STREAMS)
            .http2_keepalive_interval(Some(KEEPALIVE))
            .add_service(NotifyServer::new(hears).max_decoding_message_size(MAX_MESSAGE))
            .add_service(info::notify_info_server::NotifyInfoServer::new(Speaks))
            .serve_with_incoming(incoming);
        if let Err(error) = server.await {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "the launcher can no longer tell anything"
            );
        }
    };
    Ok(Listening { dir, task: tokio::spawn(serve.instrument(span)).abort_handle(), ended })
}

/// A connection and its place among its pod's.
#[derive(Debug)]
struct Held {
    stream: UnixStream,
    _place: OwnedSemaphorePermit,
}

impl Held {
    /// `None`: the pod has as many as it may; this connection is closed.
    fn take(stream: UnixStream, places: &Arc<Semaphore>) -> Option<Self> {
        let place = Arc::clone(places).try_acquire_owned();
        let place = place.inspect_err(|_| tracing::debug!("a launcher has too many connections"));
        Some(Self { stream, _place: place.ok()? })
    }
}

impl Connected for Held {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Held {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Held {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

struct Speaks;

#[tonic::async_trait]
impl info::notify_info_server::NotifyInfo for Speaks {
    async fn info(
        &self,
        _: Request<info::NotifyInfoRequest>,
    ) -> Result<Response<info::NotifyInfoResponse>, Status> {
        Ok(Response::new(info::NotifyInfoResponse {
            supported_notify_versions: vec![podvirt_proto::notify::VERSION.into()],
            supported_domain_versions: vec![domain::VERSION.into()],
            supported_k8s_meta_api_versions: vec!["v1".into()],
            supported_k8s_event_api_versions: vec!["v1".into()],
        }))
    }
}

struct Hears {
    inbox: Inbox,
    bucket: std::sync::Mutex<Bucket>,
    ended: Arc<AtomicBool>,
}

impl Hears {
    fn new(inbox: Inbox) -> Self {
        let bucket = std::sync::Mutex::new(Bucket::full(Instant::now()));
        Self { inbox, bucket, ended: Arc::default() }
    }

    /// Refuses what comes on a connection that has outlived its server.
    fn listens(&self) -> Result<(), Status> {
        if self.ended.load(Ordering::Acquire) {
            return Err(Status::unavailable("this virt-handler listens here no longer"));
        }
        Ok(())
    }
}

#[tonic::async_trait]
impl Notify for Hears {
    async fn handle_domain_event(
        &self,
        request: Request<notify::DomainEventRequest>,
    ) -> Result<Response<notify::Response>, Status> {
        self.listens()?;
        let domain: Domain = serde_json::from_slice(&request.into_inner().domain_json)
            .map_err(|error| Status::invalid_argument(format!("domainJSON: {error}")))?;
        if domain.uid != self.inbox.vmi_uid {
            let message =
                format!("the domain's uid is {:?}; only {} is served here", domain.uid, self.inbox.vmi_uid);
            return Err(Status::permission_denied(message));
        }
        let end = domain.status.is_final();
        tracing::debug!(status = ?domain.status, reason = domain.reason, number = domain.generation, "report");
        if self.inbox.newest.take(domain) && end {
            // Cut as everything that is kept.
            self.inbox
                .record
                .save_end(self.inbox.newest.get())
                .map_err(|error| Status::unavailable(format!("the end cannot be kept: {error}")))?;
        }
        // Waiting here slows down a launcher that tells more than is listened to.
        self.inbox.triggers.send(self.inbox.vmi_uid.clone()).await.map_err(ending)?;
        Ok(Response::new(notify::Response { success: true, message: String::new() }))
    }

    async fn handle_k8s_event(
        &self,
        request: Request<notify::K8sEventRequest>,
    ) -> Result<Response<notify::Response>, Status> {
        self.listens()?;
        let event: K8sEvent = serde_json::from_slice(&request.into_inner().event_json)
            .map_err(|error| Status::invalid_argument(format!("eventJSON: {error}")))?;
        check(&event).map_err(|error| Status::invalid_argument(error.to_string()))?;
        let allowed = match self.bucket.lock() {
            Ok(mut bucket) => bucket.take(Instant::now()),
            Err(poisoned) => poisoned.into_inner().take(Instant::now()),
        };
        if !allowed {
            return Err(Status::resource_exhausted("too many events"));
        }
        let told = Told { vmi_uid: self.inbox.vmi_uid.clone(), event };
        self.inbox.events.send(told).await.map_err(ending)?;
        Ok(Response::new(notify::Response { success: true, message: String::new() }))
    }
}

fn ending<T>(_: mpsc::error::SendError<T>) -> Status {
    Status::unavailable("virt-handler is ending")
}

/// Why an event is not passed on.
#[derive(Debug, thiserror::Error)]
enum EventError {
    #[error("type {0:?}: Normal and Warning are allowed")]
    Type(String),
    #[error("reason {0:?}: 1 to 128 letters and digits are allowed")]
    Reason(String),
}

/// Whether an event can be passed on.
fn check(event: &K8sEvent) -> Result<(), EventError> {
    let (kind, reason) = (&event.kind, &event.reason);
    if !["Normal", "Warning"].contains(&kind.as_str()) {
        return Err(EventError::Type(kind.clone()));
    }
    if reason.is_empty() || reason.len() > 128 || !reason.bytes().all(|b| b.is_ascii_alphanumeric()) {
        return Err(EventError::Reason(reason.clone()));
    }
    Ok(())
}

/// A few at once, and then one now and then.
#[derive(Debug)]
struct Bucket {
    left: u32,
    filled: Instant,
}

impl Bucket {
    fn full(now: Instant) -> Self {
        Self { left: EVENTS_AT_ONCE, filled: now }
    }

    fn take(&mut self, now: Instant) -> bool {
        let periods = now.duration_since(self.filled).as_nanos() / EVENT_EVERY.as_nanos();
        if let Ok(periods @ 1..) = u32::try_from(periods) {
            self.left = self.left.saturating_add(periods).min(EVENTS_AT_ONCE);
            self.filled = now;
        }
        let allowed = self.left > 0;
        self.left = self.left.saturating_sub(1);
        allowed
    }
}

#[cfg(test)]
mod tests {
    use podvirt_proto::domain::Status as State;
    use podvirt_proto::notify::v1::notify_client::NotifyClient;
    use tonic::transport::Endpoint;

    use super::*;
    use crate::record::Records;

    #[test]
    fn events_are_limited_but_not_for_ever() {
        let start = Instant::now();
        let mut bucket = Bucket::full(start);
        assert_eq!((0..100).filter(|_| bucket.take(start)).count(), EVENTS_AT_ONCE as usize);
        assert!(bucket.take(start + EVENT_EVERY));
        assert!(!bucket.take(start + EVENT_EVERY));
        let later = start + EVENT_EVERY * 1000;
        assert_eq!((0..100).filter(|_| bucket.take(later)).count(), EVENTS_AT_ONCE as usize);
    }

    #[test]
    fn events_that_kubernetes_would_refuse_are_refused_here() {
        let event = |kind: &str, reason: &str| K8sEvent {
            kind: kind.into(),
            reason: reason.into(),
            message: String::new(),
        };
        check(&event("Warning", "DiskSlow")).unwrap();
        assert!(check(&event("Bad", "X")).unwrap_err().to_string().contains("\"Bad\""));
        check(&event("Normal", "")).unwrap_err();
        check(&event("Normal", "two words")).unwrap_err();
    }

    #[tokio::test]
    async fn reports_reach_the_next_pass_and_an_end_the_disk() {
        let records = tempfile::tempdir().unwrap();
        let records = Records::open(records.path()).unwrap();
        let record = records.make("n", "a", "vmi-1", "pod-1");
        record.save().unwrap();
        let (triggers, mut triggered) = mpsc::channel(8);
        let (events, mut told) = mpsc::channel(8);
        let newest = Newest::default();
        let inbox = Inbox { vmi_uid: "vmi-1".into(), newest: newest.clone(), record, triggers, events };
        let hears = Hears::new(inbox);
        let ended = Arc::clone(&hears.ended);
        let (near, far) = tokio::io::duplex(1 << 16);
        let server =
            tokio::spawn(Server::builder().add_service(NotifyServer::new(hears)).serve_with_incoming(
                futures::stream::once(async { Ok::<_, io::Error>(near) }).chain(futures::stream::pending()),
            ));
        let mut far = Some(hyper_util::rt::TokioIo::new(far));
        let connector = tower::service_fn(move |_| {
            std::future::ready(far.take().ok_or(io::Error::from(io::ErrorKind::NotFound)))
        });
        let channel =
            Endpoint::from_static("http://handler").connect_with_connector(connector).await.unwrap();
        let mut client = NotifyClient::new(channel);
        let mut send = async |domain: Domain| {
            let domain_json = serde_json::to_vec(&domain).unwrap();
            let request = notify::DomainEventRequest {
                domain_json,
                event_type: "MODIFIED".into(),
                ..Default::default()
            };
            client.handle_domain_event(request).await.map(|answer| answer.into_inner().success)
        };
        let report = |uid: &str, generation, status| Domain {
            uid: uid.into(),
            generation,
            status,
            ..Domain::default()
        };

        assert!(send(report("vmi-1", 1, State::Running)).await.unwrap());
        assert_eq!(triggered.recv().await.as_deref(), Some("vmi-1"));
        assert_eq!(newest.get().unwrap().status, State::Running);
        assert!(records.all().unwrap()[0].end().is_none());

        let stranger = send(report("vmi-2", 2, State::Shutoff)).await.unwrap_err();
        assert_eq!(stranger.code(), tonic::Code::PermissionDenied);
        assert_eq!(newest.get().unwrap().status, State::Running);

        assert!(send(report("vmi-1", 3, State::Shutoff)).await.unwrap());
        assert_eq!(records.all().unwrap()[0].end().unwrap().status, State::Shutoff);

        let event =
            K8sEvent { kind: "Normal".into(), reason: "Waiting".into(), message: "for a disk".into() };
        let event_json = serde_json::to_vec(&event).unwrap();
        client.handle_k8s_event(notify::K8sEventRequest { event_json }).await.unwrap();
        assert_eq!(told.recv().await.unwrap().event, event);

        ended.store(true, Ordering::Release);
        let event_json = serde_json::to_vec(&event).unwrap();
        let late = client.handle_k8s_event(notify::K8sEventRequest { event_json }).await.unwrap_err();
        assert_eq!(late.code(), tonic::Code::Unavailable);
        let late = client.handle_domain_event(notify::DomainEventRequest::default()).await.unwrap_err();
        assert_eq!(late.code(), tonic::Code::Unavailable);
        server.abort();
    }

    #[tokio::test]
    async fn a_pod_has_a_few_connections() {
        let places = Arc::new(Semaphore::new(CONNECTIONS));
        let take = || Held::take(UnixStream::pair().unwrap().0, &places);
        let mut held: Vec<_> = (0..CONNECTIONS).map(|_| take().unwrap()).collect();
        assert!(take().is_none());
        held.pop();
        assert!(take().is_some());
    }
}
