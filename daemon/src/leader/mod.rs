//! One working replica among several, by a Lease of `coordination.k8s.io`.
//!
//! ```text
//!              lease free, or not changed for its whole duration; write accepted
//!   candidate ──────────────────────────────────────────────────────────────────> leader ─┐ renewed every
//!       ^                                                                           │  ^  │ retry_period
//!       │   write refused (another one wrote), lease gone, or                       │  └──┘
//!       └── no renewal accepted for renew_deadline: the work is dropped <───────────┤
//!                                                                                   │ work ended, or shutdown:
//!                                                                                   └─> lease given back
//! ```
//!
//! All writes carry the resource version that was read, so of two replicas that try at once one is refused.
//!
//! **Fencing.** A leader counts from when it *sent* its last accepted renewal and works for `renew_deadline`
//! (10 s). Other replicas count from when they *saw* that renewal, which is later, and wait for
//! `lease_duration` (15 s). No clocks are compared. The work is a future that is looked at only while the
//! deadline has not passed and is dropped then; it must start nothing that outlives it (no detached tasks). What
//! can be left is a request that was sent before: writes of controllers carry resource versions for that.
//!
//! A replica that lost is a candidate again and calls for new work, which begins without old caches.

mod election;
#[cfg(test)]
mod tests;

use std::hash::{BuildHasher, RandomState};
use std::pin::pin;
use std::sync::{Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::PostParams;
use kube::{Api, Client};
use prometheus_client::metrics::gauge::Gauge;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use self::election::{Election, Step};
use crate::shutdown::Shutdown;

/// How long a release may take at the end: the pod's grace period is 30 s.
const RELEASE_LIMIT: Duration = Duration::from_secs(3);

/// The times of an election. The default is that of Kubernetes' own daemons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// A lease that was not renewed for this long is free. Whole seconds.
    pub lease_duration: Duration,
    /// A leader that could not renew for this long stops. Must be less than `lease_duration`.
    pub renew_deadline: Duration,
    /// Time between two attempts to take or to renew.
    pub retry_period: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }
}

/// Which lease, and for which replica.
#[derive(Clone, Debug)]
pub struct LeaseConfig {
    /// Namespace of the lease.
    pub namespace: String,
    /// Name of the lease (`virt-controller`).
    pub name: String,
    /// This replica, unique among all that live: the pod's name, which tools look for in the lease.
    pub identity: String,
    /// The times.
    pub timing: Timing,
    /// Is 1 while this replica leads, else 0.
    pub leading: Gauge,
}

impl LeaseConfig {
    /// A lease with the usual times. A container that was started again in the same pod has its predecessor's identity: it
    /// finds the lease its own, and leaves it to others for twice the time that it runs. The two never live at
    /// the same time.
    pub fn new(namespace: &str, name: &str, replica: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            identity: replica.to_owned(),
            timing: Timing::default(),
            leading: Gauge::default(),
        }
    }
}

/// Names this replica of `daemon`: by the name of its pod, which `POD_NAME` in the environment says, or by a random word.
pub fn replica(daemon: &str) -> String {
    std::env::var("POD_NAME")
        .ok()
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| format!("{daemon}_{:016x}", RandomState::new().hash_one(std::process::id())))
}

/// The times do not make a safe election.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("lease times {0:?}: retry_period < renew_deadline < lease_duration, in whole seconds, is allowed")]
pub struct TimingError(Timing);

/// What an API server does with leases. [`Api`] in a daemon, a table in tests.
pub(crate) trait Store {
    async fn read(&self) -> Result<Option<Lease>, kube::Error>;
    async fn create(&self, lease: &Lease) -> Result<Lease, kube::Error>;
    async fn replace(&self, lease: &Lease) -> Result<Lease, kube::Error>;
}

struct ApiServer {
    api: Api<Lease>,
    name: String,
}

impl Store for ApiServer {
    async fn read(&self) -> Result<Option<Lease>, kube::Error> {
        self.api.get_opt(&self.name).await
    }

    async fn create(&self, lease: &Lease) -> Result<Lease, kube::Error> {
        self.api.create(&PostParams::default(), lease).await
    }

    async fn replace(&self, lease: &Lease) -> Result<Lease, kube::Error> {
        self.api.replace(&self.name, &PostParams::default(), lease).await
    }
}

/// Runs `work` whenever this replica leads, until it returns while leading or `shutdown` is requested.
///
/// Returns what `work` returned; `None` at a shutdown. `work` is called again each time the lead is won, and its
/// future is dropped when the lead is lost or at a shutdown. The lease is given back at the end.
///
/// # Errors
///
/// The times in `config` are no election. Trouble with the API server is waited out.
pub async fn run<F, W, T>(
    client: Client,
    config: LeaseConfig,
    shutdown: &Shutdown,
    work: F,
) -> Result<Option<T>, TimingError>
where
    F: FnMut() -> W,
    W: Future<Output = T>,
{
    let api = Api::namespaced(client, &config.namespace);
    let store = ApiServer { api, name: config.name.clone() };
    run_on(&store, config, shutdown, work).await
}

async fn run_on<F, W, T>(
    store: &impl Store,
    config: LeaseConfig,
    shutdown: &Shutdown,
    mut work: F,
) -> Result<Option<T>, TimingError>
where
    F: FnMut() -> W,
    W: Future<Output = T>,
{
    let timing = config.timing;
    let whole = timing.lease_duration.subsec_nanos() == 0;
    if !whole
        || timing.retry_period >= timing.renew_deadline
        || timing.renew_deadline >= timing.lease_duration
    {
        return Err(TimingError(timing));
    }
    let mut election = Election::new(&config.identity, &config.namespace, &config.name, timing);
    let mut others = None;
    while !shutdown.is_requested() {
        attempt(store, &mut election, &timing, &config.identity).await;
        if election.leads_until().is_none() {
            tell_leader(&mut others, election.holder());
            // Candidates that started together must not stay in step.
            if shutdown.or(sleep(jittered(timing.retry_period))).await.is_none() {
                break;
            }
            continue;
        }
        tracing::info!(lease = config.name, identity = config.identity, "leading");
        config.leading.set(1);
        let ended = lead(store, &mut election, &config, shutdown, work()).await;
        config.leading.set(0);
        others = None;
        if let Some(ended) = ended {
            release(store, &mut election).await;
            return Ok(Some(ended));
        }
        if !shutdown.is_requested() {
            tracing::warn!(
                lease = config.name,
                identity = config.identity,
                "the lead is lost, work is stopped"
            );
        }
    }
    release(store, &mut election).await;
    Ok(None)
}

/// Until when the lead holds; moved by renewals while the work runs.
struct Deadline(Mutex<Instant>);

impl Deadline {
    fn new(at: std::time::Instant) -> Self {
        Self(Mutex::new(Instant::from_std(at)))
    }

    fn get(&self) -> Instant {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, at: std::time::Instant) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::from_std(at);
    }
}

/// Works and renews until the work ends (`Some`), the lead is lost or a shutdown is requested.
async fn lead<T>(
    store: &impl Store,
    election: &mut Election,
    config: &LeaseConfig,
    shutdown: &Shutdown,
    work: impl Future<Output = T>,
) -> Option<T> {
    let until = Deadline::new(election.leads_until()?);
    let renewing = async {
        loop {
            sleep(config.timing.retry_period).await;
            attempt(store, election, &config.timing, &config.identity).await;
            match election.leads_until() {
                Some(end) => until.set(end),
                None => return,
            }
        }
    };
    // The deadline may move while it is waited for.
    let expired = async {
        while Instant::now() < until.get() {
            sleep_until(until.get()).await;
        }
    };
    let mut work = Box::pin(work);
    // A process that was held up finds its timer and other wakings at once: the clock decides, not their order.
    let fenced = std::future::poll_fn(|context| {
        if Instant::now() >= until.get() { Poll::Pending } else { work.as_mut().poll(context) }
    });
    let (renewing, expired) = (pin!(renewing), pin!(expired));
    tokio::select! {
        biased;
        () = expired => None,
        () = shutdown.requested() => None,
        () = renewing => None,
        value = fenced => Some(value),
    }
}

/// One attempt to take or to renew the lease. An answer that does not come leaves a leader time for another attempt.
async fn attempt(store: &impl Store, election: &mut Election, timing: &Timing, identity: &str) {
    let sent = Instant::now();
    let limit = sent + timing.renew_deadline / 2;
    // Boxed: a request is large, and this future is kept by every leader for its life.
    match timeout_at(limit, Box::pin(exchange(store, election, sent))).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            tracing::warn!(identity, error = &error as &dyn std::error::Error, "lease not reached");
        }
        Err(_) => tracing::warn!(identity, "lease not reached in {:?}", timing.renew_deadline / 2),
    }
}

async fn exchange(store: &impl Store, election: &mut Election, sent: Instant) -> Result<(), kube::Error> {
    if let Some(renewal) = election.renewal(sent.into_std(), Timestamp::now()) {
        let answer = store.replace(&renewal).await;
        if !matches!(&answer, Err(kube::Error::Api(status)) if status.is_conflict()) {
            return settle(election, answer, sent);
        }
        let read = store.read().await?;
        return match election.recovery(read.as_ref(), Timestamp::now()) {
            Some(renewal) => settle(election, store.replace(&renewal).await, sent),
            None => {
                election.refused();
                Ok(())
            }
        };
    }
    let read = store.read().await?;
    // A lease that is found free was so before the answer: the lead counts from the request that takes it.
    let sent = Instant::now();
    match election.judge(read.as_ref(), sent.into_std(), Timestamp::now()) {
        Step::Wait => Ok(()),
        Step::Create(lease) => settle(election, store.create(&lease).await, sent),
        Step::Replace(lease) => settle(election, store.replace(&lease).await, sent),
    }
}

fn settle(
    election: &mut Election,
    answer: Result<Lease, kube::Error>,
    sent: Instant,
) -> Result<(), kube::Error> {
    match answer {
        Ok(written) => election.acknowledged(written, sent.into_std()),
        Err(kube::Error::Api(status))
            if status.is_conflict() || status.is_not_found() || status.is_already_exists() =>
        {
            election.refused();
        }
        Err(error) => return Err(error),
    }
    Ok(())
}

async fn release(store: &impl Store, election: &mut Election) {
    let Some(lease) = election.release(Timestamp::now()) else { return };
    match tokio::time::timeout(RELEASE_LIMIT, store.replace(&lease)).await {
        Ok(Ok(_)) => tracing::info!("lease released"),
        Ok(Err(error)) => {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "lease not released: it runs out by itself"
            );
        }
        Err(_) => tracing::warn!("lease not released in time: it runs out by itself"),
    }
}

fn tell_leader(known: &mut Option<String>, holder: Option<&str>) {
    if known.as_deref() != holder {
        tracing::info!(leader = holder, "another replica leads");
        *known = holder.map(str::to_owned);
    }
}

/// `period` and up to a fifth more.
fn jittered(period: Duration) -> Duration {
    let part = u32::try_from(RandomState::new().hash_one(0_u8) % 1000).unwrap_or(0);
    period + period / 5 * part / 1000
}
