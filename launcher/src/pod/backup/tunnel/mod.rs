//! Streams to an exporter, by which it reads what a backup in pull mode offers.
//!
//! # Theory of operation
//!
//! ```text
//!  launcher ── dials, shows its certificate, GET /tunnel ──> exporter: 101
//!           <── 0x01, once a request needs the stream ──
//!           ── connects to QEMU's NBD socket, and copies both ways, until either end closes
//! ```
//!
//! Nothing dials into the machine's pod, so the launcher keeps streams open ahead ([`plan`]). Each is one NBD session's. An exporter that
//! is not there yet, or is made anew, is dialled until it answers, for as long as the backup runs; what is in the way is told once, not
//! for each attempt. The exporter shows a certificate of a CA that the Export names, with the name that the Export names ([`dial`]).

mod dial;
mod plan;
#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use podvirt_api::error::chain;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadHalf, WriteHalf, split};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinError, JoinSet, id};
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{Instrument as _, info, warn};

use dial::DialError;
pub(super) use dial::{Target, TargetError};
use plan::{Plan, STREAMS, Stage};

/// The byte by which the exporter takes a stream.
const TAKEN: u8 = 1;
/// Bytes that are copied at a time to the NBD server, which hears requests to read alone, and to the exporter.
const COPIED: (usize, usize) = (4 << 10, 256 << 10);
/// Longest time to end a stream in order.
const GOODBYE: Duration = Duration::from_secs(1);

/// How long an exporter is not reached before the report says so.
const LASTS: Duration = Duration::from_secs(15);

/// Is told why the exporter is not reached; nothing: it is.
pub(super) trait Report: Fn(String) + Send + 'static {}
impl<F: Fn(String) + Send + 'static> Report for F {}

/// Why a stream has not come about.
#[derive(Debug, thiserror::Error)]
enum StreamError {
    /// The exporter is not reached.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// It takes too long.
    #[error("no answer within {} s", dial::LONGEST.as_secs())]
    Late,
    /// It takes a stream otherwise than it should.
    #[error("it takes a stream by {0:#04x}; {taken:#04x} is allowed", taken = TAKEN)]
    Taken(u8),
    /// It has ended a stream without taking it.
    #[error("it has closed a stream")]
    Closed(#[source] io::Error),
    /// There is no NBD server.
    #[error("{}: the machine's NBD server", .socket.display())]
    Nbd {
        /// Its socket.
        socket: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The stream's task has failed.
    #[error(transparent)]
    Task(#[from] JoinError),
}

/// What is dialled.
trait Dial: std::fmt::Display + Send + Sync + 'static {
    /// A stream.
    type Stream: AsyncRead + AsyncWrite + Send + 'static;

    /// Opens a stream; why there is none.
    fn dial(&self) -> impl Future<Output = Result<Self::Stream, DialError>> + Send;
}

impl Dial for Target {
    type Stream = hyper_util::rt::TokioIo<hyper::upgrade::Upgraded>;

    async fn dial(&self) -> Result<Self::Stream, DialError> {
        Target::dial(self).await
    }
}

/// Streams to an exporter, until it is dropped.
#[derive(Debug)]
pub(super) struct Tunnel {
    target: watch::Sender<Arc<Target>>,
    task: AbortHandle,
}

impl Tunnel {
    /// Opens streams to `target`, which lead to the NBD server at `socket`. `report` is told why the exporter is not reached, where that
    /// lasts, and nothing once it is.
    pub(super) fn open(target: Target, socket: PathBuf, report: impl Report) -> Self {
        let (target, aimed) = watch::channel(Arc::new(target));
        Tunnel { target, task: tokio::spawn(run(aimed, socket, report).in_current_span()).abort_handle() }
    }

    /// Dials `target` from now on. Streams that stand go on.
    pub(super) fn aim(&self, target: Target) {
        self.target.send_replace(Arc::new(target));
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What has been told, so that it is not told again.
#[derive(Debug, Default)]
struct Told {
    is_reached: bool,
    failure: Option<String>,
    /// Since when no stream has come about, if the last attempt failed.
    since: Option<Instant>,
    /// Whether the report says so.
    is_reported: bool,
}

impl Told {
    /// Whether it is news that a stream is so far. A failure behind a stream that was of use is.
    fn reaches(&mut self, stage: Stage) -> bool {
        if stage == Stage::Serving {
            self.failure = None;
        }
        !std::mem::replace(&mut self.is_reached, true)
    }

    /// What the report is to say of a failure: nothing before it has lasted, since an exporter takes a while to start.
    fn reports(&mut self, why: &str, now: Instant) -> Option<String> {
        let since = *self.since.get_or_insert(now);
        self.is_reported |= now.saturating_duration_since(since) >= LASTS;
        self.is_reported.then(|| why.to_owned())
    }

    /// Whether the report says of a failure that is over now.
    fn recovers(&mut self) -> bool {
        self.since = None;
        std::mem::take(&mut self.is_reported)
    }

    /// Whether it is news that this has failed.
    fn fails(&mut self, why: &str) -> bool {
        let is_news = self.failure.as_deref() != Some(why);
        if is_news {
            self.failure = Some(why.to_owned());
        }
        is_news
    }
}

/// Keeps streams open, without end.
async fn run<D: Dial>(mut aimed: watch::Receiver<Arc<D>>, socket: PathBuf, report: impl Report) {
    let socket: Arc<Path> = socket.into();
    let (reaches, mut reached) = mpsc::channel(STREAMS);
    let (mut streams, mut plan, mut told) = (JoinSet::new(), Plan::default(), Told::default());
    loop {
        let now = Instant::now();
        for _ in 0..plan.due(now) {
            let (target, socket) = (Arc::clone(&aimed.borrow_and_update()), Arc::clone(&socket));
            let stream = streams.spawn(stream(target, socket, reaches.clone()).in_current_span());
            plan.dials(stream.id());
        }
        let pause = async {
            match plan.wakes(now) {
                Some(moment) => sleep_until(moment).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            // Ahead of its end, which may be there as well.
            Some((stream, stage)) = reached.recv() => {
                plan.reaches(&stream, stage);
                if told.recovers() {
                    report(String::new());
                }
                if told.reaches(stage) {
                    info!(exporter = %**aimed.borrow(), "the backup's exporter is reached");
                }
            }
            Some(ended) = streams.join_next_with_id() => {
                let (stream, failure) = match ended {
                    Ok((stream, ended)) => (stream, ended.err()),
                    Err(error) => (error.id(), Some(error.into())),
                };
                let failure = failure.map(|error| chain(&error));
                plan.ends(&stream, failure.is_some(), Instant::now());
                if let Some(why) = failure.as_ref().and_then(|why| told.reports(why, Instant::now())) {
                    report(why);
                }
                if let Some(why) = failure.filter(|why| told.fails(why)) {
                    let exporter = aimed.borrow().to_string();
                    warn!(exporter, why, "no stream to the backup's exporter: the launcher goes on trying");
                }
            }
            Ok(()) = aimed.changed() => {
                plan.restart();
                if told.recovers() {
                    report(String::new());
                }
                told = Told::default();
            }
            () = pause => {}
        }
    }
}

/// One stream, from the dialling to its end.
async fn stream<D: Dial>(
    target: Arc<D>,
    socket: Arc<Path>,
    reaches: mpsc::Sender<(tokio::task::Id, Stage)>,
) -> Result<(), StreamError> {
    let dialled = timeout(dial::LONGEST, target.dial()).await;
    let stream = dialled.map_err(|_| StreamError::Late)??;
    // The receiver lives longer than the streams.
    let _ = reaches.send((id(), Stage::Parked)).await;
    let (mut from_exporter, to_exporter) = split(stream);
    match from_exporter.read_u8().await {
        Ok(TAKEN) => {}
        Ok(other) => return Err(StreamError::Taken(other)),
        Err(error) => return Err(StreamError::Closed(error)),
    }
    let nbd = UnixStream::connect(&socket).await;
    let nbd = nbd.map_err(|source| StreamError::Nbd { socket: socket.to_path_buf(), source })?;
    let (from_nbd, to_nbd) = split(nbd);
    let _ = reaches.send((id(), Stage::Serving)).await;
    // How a stream ends that was used is its users' affair.
    tokio::select! {
        () = pass_on(from_exporter, to_nbd, COPIED.0) => {}
        () = pass_on(from_nbd, to_exporter, COPIED.1) => {}
    }
    Ok(())
}

/// Copies until `from` ends, and tells `to` so; `size`: bytes at a time.
async fn pass_on<A: AsyncRead, B: AsyncWrite>(mut from: ReadHalf<A>, mut to: WriteHalf<B>, size: usize) {
    let mut bytes = vec![0; size];
    let copied = async {
        loop {
            let length = from.read(&mut bytes).await?;
            let Some(read @ [_, ..]) = bytes.get(..length) else { return Ok::<_, std::io::Error>(()) };
            to.write_all(read).await?;
            // TLS keeps what it was given until then.
            to.flush().await?;
        }
    };
    if copied.await.is_ok() {
        let _ = timeout(GOODBYE, to.shutdown()).await;
    }
}
