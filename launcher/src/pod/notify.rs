//! Tells the handler what happens: notify.v1 on a socket that the handler makes in the pod.
//!
//! The report is a state, not a history: what is told is the last one, and what changed while virt-handler did not listen is told
//! once it does. It goes before events for users, which are a short queue in order: the launcher ends once its
//! last report is taken, and an event that the handler wants later, or not at all, must not hold that up. A handler that was restarted makes its socket
//! anew; that is seen by the socket's inode, looked at every [`INTERVAL`], and the last report is told again. So is
//! it every [`AGAIN`], for a handler that lost what it was told.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use podvirt_proto::domain::{Domain, EventType, K8sEvent, Status};
use podvirt_proto::notify::v1::notify_client::NotifyClient;
use podvirt_proto::notify::v1::{DomainEventRequest, K8sEventRequest, Response};
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep, timeout};
use tonic::Code;
use tonic::transport::{Channel, Endpoint, Uri};
use tracing::{debug, info, warn};

use super::shared::Shared;

/// Between two looks at the socket.
const INTERVAL: Duration = Duration::from_secs(2);
/// The last report is told again after this time.
const AGAIN: Duration = Duration::from_secs(60);
/// How long the handler may take to answer.
const ANSWER: Duration = Duration::from_secs(5);
/// The first pause after a failure, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// Runs until it is aborted.
pub(super) async fn run(socket: PathBuf, shared: Arc<Shared>) {
    let mut pause = PAUSES.0;
    loop {
        let since = Instant::now();
        if let Err(error) = talk(&socket, &shared).await {
            debug!(%error, "the handler is not told");
        }
        if since.elapsed() > PAUSES.1 {
            pause = PAUSES.0;
        }
        sleep(pause).await;
        pause = (pause * 2).min(PAUSES.1);
    }
}

/// The handler's present socket: another inode is another handler.
fn identity(socket: &Path) -> Option<(u64, u64)> {
    socket.metadata().ok().map(|m| (m.dev(), m.ino()))
}

/// Talks to one handler until it is gone.
async fn talk(socket: &Path, shared: &Shared) -> anyhow::Result<()> {
    let present = identity(socket);
    let path = socket.to_owned();
    // The address is for form's sake: the connector knows the way.
    let channel = Endpoint::from_static("http://virt-handler")
        .connect_with_connector(tower::service_fn(move |_: Uri| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        }))
        .await?;
    info!("the handler listens");
    let mut client = NotifyClient::new(channel);
    let mut reports = shared.report.subscribe();
    reports.mark_changed();
    let mut told: Option<(u64, Instant)> = None;
    loop {
        let report = reports.borrow_and_update().clone();
        let due = told.is_none_or(|(number, at)| number != report.generation || at.elapsed() >= AGAIN);
        // Before there was anything there is nothing to tell.
        if due && report.generation > 0 {
            let became = tell_report(&mut client, &report, told.is_none()).await?;
            if became == Became::Settled {
                told = Some((report.generation, Instant::now()));
                shared.taken.send_if_modified(|taken| {
                    let more = report.generation > *taken;
                    *taken = report.generation.max(*taken);
                    more
                });
            }
        }
        // A report that comes meanwhile goes before the next event.
        while let (Some(event), Ok(false)) = (shared.first_event(), reports.has_changed()) {
            if tell_event(&mut client, &event).await? == Became::Later {
                break;
            }
            shared.event_told(&event);
        }
        tokio::select! {
            _ = reports.changed() => {}
            () = shared.event_added.notified() => {}
            () = sleep(INTERVAL) => {
                if identity(socket) != present {
                    anyhow::bail!("another handler listens");
                }
            }
        }
    }
}

/// What became of something told.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Became {
    /// It was taken, or would be refused again.
    Settled,
    /// The handler has no room for it now.
    Later,
}

async fn tell_report(
    client: &mut NotifyClient<Channel>,
    report: &Domain,
    first: bool,
) -> anyhow::Result<Became> {
    let kind = match report.status {
        // It was never there, or it is gone for good.
        Status::NoState => EventType::Modified,
        status if status.is_final() => EventType::Deleted,
        _ if first => EventType::Added,
        _ => EventType::Modified,
    };
    let request = DomainEventRequest {
        domain_json: serde_json::to_vec(report)?,
        status_json: Vec::new(),
        event_type: kind.as_str().to_owned(),
    };
    judge(timeout(ANSWER, client.handle_domain_event(request)).await?, "report")
}

async fn tell_event(client: &mut NotifyClient<Channel>, event: &K8sEvent) -> anyhow::Result<Became> {
    let request = K8sEventRequest { event_json: serde_json::to_vec(event)? };
    judge(timeout(ANSWER, client.handle_k8s_event(request)).await?, "event")
}

/// A handler that refuses what it understood would refuse it again; anything else that fails is the connection's.
fn judge(answer: Result<tonic::Response<Response>, tonic::Status>, what: &str) -> anyhow::Result<Became> {
    let refusal = match answer {
        Ok(answer) if answer.get_ref().success => return Ok(Became::Settled),
        Ok(answer) => answer.into_inner().message,
        Err(status) => match status.code() {
            Code::ResourceExhausted => {
                debug!(message = status.message(), "the handler wants the {what} later");
                return Ok(Became::Later);
            }
            Code::InvalidArgument | Code::OutOfRange | Code::PermissionDenied | Code::Unimplemented => {
                status.message().to_owned()
            }
            _ => return Err(status.into()),
        },
    };
    warn!(message = refusal, "the handler refuses the {what}");
    Ok(Became::Settled)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use podvirt_proto::notify::v1::notify_server::{Notify, NotifyServer};
    use tokio::net::UnixListener;
    use tokio::sync::mpsc;
    use tokio_stream::wrappers::UnixListenerStream;
    use tonic::{Request, Status as Refusal};

    use super::super::shared::Identity;
    use super::*;

    struct Handler(Mutex<mpsc::UnboundedSender<String>>);

    #[tonic::async_trait]
    impl Notify for Handler {
        async fn handle_domain_event(
            &self,
            request: Request<DomainEventRequest>,
        ) -> Result<tonic::Response<Response>, Refusal> {
            let request = request.into_inner();
            let domain: Domain = serde_json::from_slice(&request.domain_json).unwrap();
            let line = format!("{} {:?} {}", request.event_type, domain.status, domain.generation);
            self.0.lock().unwrap().send(line).unwrap();
            Ok(tonic::Response::new(Response { success: true, message: String::new() }))
        }

        async fn handle_k8s_event(
            &self,
            request: Request<K8sEventRequest>,
        ) -> Result<tonic::Response<Response>, Refusal> {
            let event: K8sEvent = serde_json::from_slice(&request.into_inner().event_json).unwrap();
            self.0.lock().unwrap().send(event.reason.clone()).unwrap();
            match event.reason.as_str() {
                "Bad" => return Err(Refusal::invalid_argument("bad")),
                "Busy" => return Err(Refusal::resource_exhausted("busy")),
                _ => {}
            }
            Ok(tonic::Response::new(Response { success: true, message: String::new() }))
        }
    }

    fn handler(socket: &Path) -> (tokio::task::JoinHandle<()>, mpsc::UnboundedReceiver<String>) {
        let _ = std::fs::remove_file(socket);
        let listener = UnixListener::bind(socket).unwrap();
        let (sender, receiver) = mpsc::unbounded_channel();
        let task = tokio::spawn(async move {
            tonic::transport::Server::builder()
                .add_service(NotifyServer::new(Handler(Mutex::new(sender))))
                .serve_with_incoming(UnixListenerStream::new(listener))
                .await
                .unwrap();
        });
        (task, receiver)
    }

    #[tokio::test]
    async fn the_last_report_is_told_to_every_handler_that_comes() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("notify.sock");
        let shared = Arc::new(Shared::new(Identity::default(), mpsc::channel(1).0));
        let set = |generation, status| {
            shared.report.send_modify(|r| (r.generation, r.status) = (generation, status));
        };
        set(1, Status::Running);
        set(2, Status::Paused);
        shared.event("Normal", "Early", "before a handler listened");
        let notifier = tokio::spawn(run(socket.clone(), shared.clone()));
        let (first, mut heard) = handler(&socket);
        assert_eq!(heard.recv().await.unwrap(), "ADDED Paused 2");
        assert_eq!(heard.recv().await.unwrap(), "Early");
        set(3, Status::Running);
        assert_eq!(heard.recv().await.unwrap(), "MODIFIED Running 3");
        shared.taken.subscribe().wait_for(|taken| *taken == 3).await.unwrap();
        first.abort();
        let (_second, mut heard) = handler(&socket);
        assert_eq!(heard.recv().await.unwrap(), "ADDED Running 3");
        set(4, Status::Shutoff);
        assert_eq!(heard.recv().await.unwrap(), "DELETED Shutoff 4");
        notifier.abort();
    }

    #[tokio::test]
    async fn an_event_that_is_refused_holds_up_no_report() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("notify.sock");
        let shared = Arc::new(Shared::new(Identity::default(), mpsc::channel(1).0));
        let set = |generation, status| {
            shared.report.send_modify(|r| (r.generation, r.status) = (generation, status));
        };
        for reason in ["Bad", "Good", "Busy", "Last"] {
            shared.event("Normal", reason, "");
        }
        set(1, Status::Running);
        let (_handler, mut heard) = handler(&socket);
        let notifier = tokio::spawn(run(socket.clone(), shared.clone()));
        for expected in ["ADDED Running 1", "Bad", "Good", "Busy"] {
            assert_eq!(heard.recv().await.unwrap(), expected);
        }
        set(2, Status::Paused);
        // Not told as the first report of a new connection: the connection still stands.
        let report = loop {
            match heard.recv().await.unwrap() {
                busy if busy == "Busy" => {}
                other => break other,
            }
        };
        assert_eq!(report, "MODIFIED Paused 2");
        shared.taken.subscribe().wait_for(|taken| *taken == 2).await.unwrap();
        assert_eq!(shared.first_event().unwrap().reason, "Busy");
        notifier.abort();
    }
}
