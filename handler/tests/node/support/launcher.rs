//! A launcher: it serves the command socket, remembers what it was told and has a machine to tell of.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use http::{Request, Response};
use hyper_util::rt::TokioIo;
use podvirt_api::names::path::NOTIFY_SOCKET;
use podvirt_proto::cmd::v1 as cmd;
use podvirt_proto::domain::{Domain, Status, reason};
use podvirt_proto::notify::v1::DomainEventRequest;
use podvirt_proto::notify::v1::notify_client::NotifyClient;
use podvirt_proto::stats::{DomainStats, Memory};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::body::Body;
use tonic::server::{Grpc, NamedService};
use tonic::transport::{Endpoint, Server};
use tonic_prost::ProstCodec;
use virt_handler::sockets::Dir;

use super::stall::Stall;
use super::{Ground, POD, VMI, within};

/// The launcher.
pub(crate) struct Launcher {
    shared: Arc<Shared>,
    public: Arc<Dir>,
    stall: Stall,
    // A runtime of its own: what dies with it dies at once, connections among it.
    process: Option<Runtime>,
}

struct Shared {
    /// Answers no call.
    hangs: bool,
    /// Calls that are not answered yet.
    open: watch::Sender<usize>,
    domain: Mutex<Domain>,
    refusal: Mutex<String>,
    /// What it answers about what its machine has used.
    statistics: Mutex<String>,
    calls: watch::Sender<Vec<String>>,
}

impl Launcher {
    /// Starts one whose machine does not run yet.
    pub(crate) fn start(ground: &Ground) -> Self {
        Self::of(ground, VMI, POD, false)
    }

    /// Starts one for this VMI in this pod that takes connections and never answers a call.
    pub(crate) fn hung(ground: &Ground, vmi: &str, pod: &str) -> Self {
        Self::of(ground, vmi, pod, true)
    }

    fn of(ground: &Ground, vmi: &str, pod: &str, hangs: bool) -> Self {
        let domain = Domain { uid: vmi.into(), name: "a".into(), namespace: "n".into(), ..Domain::default() };
        let shared = Arc::new(Shared {
            hangs,
            open: watch::channel(0).0,
            domain: Mutex::new(domain),
            refusal: Mutex::default(),
            statistics: Mutex::new(serde_json::to_string(&statistics()).unwrap()),
            calls: watch::channel(Vec::new()).0,
        });
        let process =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let entered = process.enter();
        let incoming = UnixListenerStream::new(ground.listen_of(pod, "sockets", "", "launcher-init-sock"));
        let stall = Stall::default();
        let taken = stall.clone();
        let incoming = incoming.map(move |stream| stream.map(|stream| taken.take(stream)));
        process
            .spawn(Server::builder().add_service(Service(Arc::clone(&shared))).serve_with_incoming(incoming));
        drop(entered);
        let sockets = ground.volume_of(pod, "sockets");
        std::fs::rename(sockets.join("launcher-init-sock"), sockets.join("launcher-sock")).unwrap();
        let public = Arc::new(ground.dir(pod, "public", ""));
        Self { shared, public, stall, process: Some(process) }
    }

    /// Calls by the connections that it has are not answered any more.
    pub(crate) fn stall(&self) {
        self.stall.now();
    }

    /// What it answers to the next VMIs; empty: it takes them.
    pub(crate) fn refuse(&self, why: &str) {
        *self.shared.refusal.lock().unwrap() = why.into();
    }

    /// What it answers about what its machine has used.
    pub(crate) fn answer_statistics(&self, text: String) {
        *self.shared.statistics.lock().unwrap() = text;
    }

    /// Its machine is in this state from now on; the handler is not told.
    pub(crate) fn set(&self, status: Status, reason: &str) {
        self.shared.set(status, reason);
    }

    /// Its machine has ended for this reason with its pod; the handler is not told.
    pub(crate) fn end_with_pod(&self, reason: &str) {
        self.shared.set(Status::Shutoff, reason);
        self.shared.domain.lock().unwrap().ended_with_pod = true;
    }

    /// Tells the handler of its machine.
    pub(crate) async fn tell(&self) {
        let domain = self.shared.domain.lock().unwrap().clone();
        let public = Arc::clone(&self.public);
        within("the handler listens", async {
            while public.connect(NOTIFY_SOCKET).await.is_err() {
                tokio::task::yield_now().await;
            }
        })
        .await;
        let connector = tower::service_fn(move |_| {
            let public = Arc::clone(&public);
            async move { public.connect(NOTIFY_SOCKET).await.map(TokioIo::new) }
        });
        let channel =
            Endpoint::from_static("http://handler").connect_with_connector(connector).await.unwrap();
        let domain_json = serde_json::to_vec(&domain).unwrap();
        let request = DomainEventRequest { domain_json, event_type: "MODIFIED".into(), ..Default::default() };
        let answer = NotifyClient::new(channel).handle_domain_event(request).await.unwrap();
        assert!(answer.into_inner().success);
    }

    /// Waits until the method was called.
    pub(crate) async fn called(&self, method: &str) {
        let mut calls = self.shared.calls.subscribe();
        within(method, calls.wait_for(|calls| calls.iter().any(|call| call == method))).await.unwrap();
    }

    /// Calls that wait for an answer.
    pub(crate) fn open_calls(&self) -> watch::Receiver<usize> {
        self.shared.open.subscribe()
    }

    pub(crate) fn calls(&self, method: &str) -> usize {
        self.shared.calls.borrow().iter().filter(|call| *call == method).count()
    }

    /// Dies as a process does: its sockets stay as files.
    pub(crate) fn die(self) {
        drop(self);
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        self.process.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

impl Shared {
    fn set(&self, status: Status, reason: &str) {
        let mut domain = self.domain.lock().unwrap();
        domain.generation += 1;
        domain.status = status;
        domain.reason = reason.into();
    }

    fn order(&self, method: &str) -> cmd::Response {
        let mut message = String::new();
        match method {
            "SyncVirtualMachine" => {
                message = self.refusal.lock().unwrap().clone();
                if message.is_empty() {
                    self.set(Status::Running, reason::BOOTED);
                }
            }
            "PauseVirtualMachine" => self.set(Status::Paused, reason::USER),
            "UnpauseVirtualMachine" => self.set(Status::Running, reason::UNPAUSED),
            "KillVirtualMachine" => self.set(Status::Shutoff, reason::DESTROYED),
            "ShutdownVirtualMachine" | "SyncMigrationTarget" | "FinalizeVirtualMachineMigration" => {}
            "SignalTargetPodCleanup" => self.set(Status::Shutoff, reason::FAILED),
            _ => message = format!("{method} is not to be called here"),
        }
        cmd::Response { success: message.is_empty(), message }
    }
}

/// A call that is not answered yet.
struct Open(Arc<Shared>);

impl Open {
    fn new(shared: &Arc<Shared>) -> Self {
        shared.open.send_modify(|open| *open += 1);
        Self(Arc::clone(shared))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.send_modify(|open| *open -= 1);
    }
}

/// The methods that are called, without the dozens that are not.
#[derive(Clone)]
struct Service(Arc<Shared>);

impl NamedService for Service {
    const NAME: &'static str = "kubevirt.cmd.v1.Cmd";
}

impl tower::Service<Request<Body>> for Service {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let shared = Arc::clone(&self.0);
        let method = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
        Box::pin(async move {
            let _open = Open::new(&shared);
            if shared.hangs {
                return std::future::pending().await;
            }
            let done = method.clone();
            let answer = if method == "GetDomain" {
                let domain = serde_json::to_string(&*shared.domain.lock().unwrap()).unwrap();
                let answer = tower::service_fn(move |_: tonic::Request<cmd::EmptyRequest>| {
                    let response = Some(cmd::Response { success: true, message: String::new() });
                    let answer = cmd::DomainResponse { response, domain: domain.clone() };
                    std::future::ready(Ok(tonic::Response::new(answer)))
                });
                Grpc::new(ProstCodec::default()).unary(answer, request).await
            } else if method == "GetDomainStats" {
                let domain_stats = shared.statistics.lock().unwrap().clone();
                let answer = tower::service_fn(move |_: tonic::Request<cmd::EmptyRequest>| {
                    let response = Some(cmd::Response { success: true, message: String::new() });
                    let domain_stats = domain_stats.clone();
                    let answer = cmd::DomainStatsResponse { response, domain_stats };
                    std::future::ready(Ok(tonic::Response::new(answer)))
                });
                Grpc::new(ProstCodec::default()).unary(answer, request).await
            } else if method == "GetScreenshot" {
                let answer = tower::service_fn(|_: tonic::Request<cmd::VmiRequest>| {
                    let response = Some(cmd::Response { success: true, message: String::new() });
                    let answer = cmd::ScreenshotResponse {
                        response,
                        mime: "text/html".into(),
                        data: b"<script>".into(),
                    };
                    std::future::ready(Ok(tonic::Response::new(answer)))
                });
                Grpc::new(ProstCodec::default()).unary(answer, request).await
            } else {
                let shared = Arc::clone(&shared);
                let answer = tower::service_fn(move |_: tonic::Request<cmd::VmiRequest>| {
                    std::future::ready(Ok(tonic::Response::new(shared.order(&method))))
                });
                Grpc::new(ProstCodec::default()).unary(answer, request).await
            };
            shared.calls.send_modify(|calls| calls.push(done));
            Ok(answer)
        })
    }
}

fn statistics() -> DomainStats {
    let memory = Memory { rss: Some(2), ..Memory::default() };
    DomainStats { name: "n_a".into(), memory: Some(memory), ..Default::default() }
}
