//! A netd's parts that move, made new or of what another netd had.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use podvirt_proto::hold;
use tracing::{info, warn};

use super::take::{CollectError, Collected, Permission, Source};
use crate::config::{Config, SocketRole};
use crate::counters::Counters;
use crate::device::Backend;
use crate::port::PortRule;
use crate::repair::Helper;
use crate::state::{Descriptors, Fd, Missing, Snapshot, text};
use crate::steer::Steering;
use crate::vhost::{Recorded, RingSink, TakeError, Taken};
use crate::worker::{self, Handle, Inherited, SpawnError};

/// What a netd has when it is about to serve.
#[derive(Debug)]
pub struct Parts {
    /// The workers, and the device that they are; frozen when they are another netd's heirs.
    pub backend: Backend,
    /// The counters that others than workers write to.
    pub counters: Arc<Counters>,
    /// The steering of all ports, where that is configured.
    pub steering: Option<Steering>,
    /// What another netd had.
    pub heir: Heir,
}

/// What another netd had; of a new one it is empty.
#[derive(Debug, Default)]
pub struct Heir {
    /// The frontend.
    pub vhost: Option<Taken>,
    /// The control interface's listener.
    pub control: Option<OwnedFd>,
    /// The metrics' listener.
    pub metrics: Option<OwnedFd>,
    /// The listener for the helper that repairs connections.
    pub repair: Option<OwnedFd>,
    /// How many netds had the state before.
    pub generation: u32,
    permission: Option<(Permission, Standing)>,
}

/// Whose state it is, and how long it had stood still at an instant.
#[derive(Debug)]
struct Standing {
    version: String,
    flows: usize,
    since: Instant,
    ago: Duration,
}

/// Why there are no parts.
#[derive(Debug, thiserror::Error)]
pub enum BeginError {
    /// The other netd, or the hold, has nothing to take over.
    #[error("there is nothing to take over")]
    Nothing,
    /// It cannot be collected.
    #[error("nothing can be taken over")]
    Collect(#[from] CollectError),
    /// The workers.
    #[error("cannot start the workers")]
    Worker(#[from] SpawnError),
    /// The steering.
    #[error("ports.steering: {path}")]
    Steering {
        /// Where the sockets are to be lent.
        path: String,
        /// What the system says.
        source: io::Error,
    },
    /// The frontend.
    #[error(transparent)]
    Frontend(#[from] TakeError),
    /// A descriptor is not there.
    #[error(transparent)]
    Missing(#[from] Missing),
    /// The configuration does not fit what is to be taken over.
    #[error("{field} is {value}, and netd runs with {running}: an update keeps it")]
    Changed {
        /// The field.
        field: &'static str,
        /// What it is.
        value: String,
        /// What the other netd has.
        running: String,
    },
}

/// Makes a netd's parts: of what `takeover` or the configured hold has, or new.
///
/// A netd that was told which netd to follow ends when it cannot; a netd that finds nothing of use in the hold begins
/// anew.
///
/// # Errors
/// [`BeginError`].
pub fn begin(
    config: &Config,
    takeover: Option<Source>,
    settings: &dyn Fn(&Arc<Counters>) -> worker::Settings,
    later: &[PortRule],
) -> Result<Parts, BeginError> {
    let new = |collected| Parts::new(settings(&Arc::default()), config, later.to_vec(), collected);
    if let Some(source) = takeover {
        let collected = source.collect()?.ok_or(BeginError::Nothing)?;
        if let Err(error) = same_control(config, &collected.snapshot) {
            collected.split().0.refuse(&error.to_string());
            return Err(error);
        }
        return new(Some(collected));
    }
    let Some(path) = &config.hold else { return new(None) };
    match Source::connect(path).and_then(Source::collect) {
        Ok(None) => info!(hold = %path.display(), "nothing is deposited"),
        // As at the first start in a pod, where the hold has made nothing yet.
        Err(CollectError::Wire(hold::Error::Io(error))) if error.kind() == io::ErrorKind::NotFound => {
            info!(hold = %path.display(), "there is no hold: nothing is collected");
        }
        Err(error) => warn!(hold = %path.display(), %error, "nothing can be collected"),
        Ok(Some(collected)) => match new(Some(collected)) {
            Ok(parts) => return Ok(parts),
            Err(error) => warn!(%error, "the deposit is of no use: its connections end"),
        },
    }
    new(None)
}

impl Parts {
    /// Makes the parts. Those that go on with what was collected do nothing before [`Heir::go`].
    ///
    /// # Errors
    /// [`BeginError`]; the other netd, or the hold, still has the state.
    pub fn new(
        settings: worker::Settings,
        config: &Config,
        later: Vec<PortRule>,
        collected: Option<Collected>,
    ) -> Result<Parts, BeginError> {
        let steers = config.ports.steering.as_deref().filter(|_| config.ports.is_steered());
        let counters = settings.counters.clone();
        let Some(collected) = collected else {
            let worker = worker::spawn(settings)?;
            let steering = steers.map(|path| steering(path, config, later)).transpose()?;
            if let Some(steering) = &steering {
                let sockets = steering.sockets().map_err(|source| wrong(steers, source))?;
                worker.steer(sockets);
            }
            return Ok(Parts { backend: Backend::new(worker), counters, steering, heir: Heir::default() });
        };
        let (ago, since) = (collected.ago(), Instant::now());
        let (permission, snapshot, fds) = collected.split();
        let standing =
            Standing { version: snapshot.origin.version.clone(), flows: snapshot.flows(), since, ago };
        match Parts::heir(settings, config, later, (snapshot, fds), &standing) {
            Ok((backend, steering, heir)) => {
                let heir = Heir { permission: Some((permission, standing)), ..heir };
                Ok(Parts { backend, counters, steering, heir })
            }
            Err(error) => {
                permission.refuse(&error.to_string());
                Err(error)
            }
        }
    }

    /// The parts that go on with what another netd had.
    fn heir(
        mut settings: worker::Settings,
        config: &Config,
        later: Vec<PortRule>,
        (mut snapshot, mut fds): (Snapshot, Descriptors),
        standing: &Standing,
    ) -> Result<(Backend, Option<Steering>, Heir), BeginError> {
        let steers = config.ports.steering.as_deref().filter(|_| config.ports.is_steered());
        let listeners = std::mem::take(&mut snapshot.listeners);
        let vhost_user = &config.vhost_user.socket;
        let changed = listeners.vhost_user.as_ref().filter(|(at, _)| *at != text(vhost_user));
        if let Some((running, _)) = changed.filter(|_| config.vhost_user.mode == SocketRole::Server) {
            let (value, running) = (text(vhost_user), running.clone());
            return Err(BeginError::Changed { field: "vhost_user.socket", value, running });
        }
        let mut at = |path: Option<&Path>, which: Option<(String, Fd)>| {
            fds.take_if(which.filter(|(at, _)| path.is_some_and(|p| *at == text(p))).map(|(_, fd)| fd))
        };
        let listener = at(Some(vhost_user), listeners.vhost_user)?;
        let control = at(config.control.as_ref().map(|c| c.path.as_path()), listeners.control)?;
        let repair = at(Some(&Helper::path(vhost_user)), listeners.repair)?;
        let metrics = listeners.metrics.filter(|(at, _)| config.metrics_listen == Some(*at));
        let metrics = fds.take_if(metrics.map(|(_, fd)| fd))?;
        let steering = match (steers, snapshot.steering.take()) {
            (Some(path), Some(state)) => {
                let running = state.listener.as_ref().map(|(at, _)| at.clone()).unwrap_or_default();
                Steering::take(path, &config.ports, later, state, &mut fds)
                    .map_err(|source| wrong(steers, source))?
                    .ok_or_else(|| changed_steering(Some(path), running))
                    .map(Some)?
            }
            (None, None) => None,
            (at, state) => {
                let running = state.and_then(|s| s.listener).map_or("none".to_owned(), |(at, _)| at);
                return Err(changed_steering(at, running));
            }
        };
        settings.counters.restore(&snapshot.counters);
        settings.counters.updates.add(1);
        let recorded = snapshot.frontend.take().map(|f| Recorded::new(f, &mut fds)).transpose()?;
        let ago = standing.ago + standing.since.elapsed();
        settings.inherited = Some(Inherited { workers: snapshot.workers, ago, fds });
        let backend = Backend::new(worker::spawn(settings)?);
        let sink: Arc<dyn RingSink> = Arc::new(backend.clone());
        let vhost = Taken::new(listener, recorded, &sink, config.vhost_user.queue_pairs)?;
        let generation = snapshot.origin.generation.saturating_add(1);
        let heir = Heir { vhost: Some(vhost), control, metrics, repair, generation, permission: None };
        Ok((backend, steering, heir))
    }
}

impl Heir {
    /// Asks for the permission to go on and lets the workers go on; a new netd needs none.
    ///
    /// # Errors
    /// The other netd or the hold has changed its mind, or is gone: this netd must end.
    pub fn go(&mut self, worker: &Handle) -> Result<(), hold::Error> {
        let Some((permission, standing)) = self.permission.take() else { return Ok(()) };
        permission.go()?;
        worker.thaw();
        let pause = standing.ago + standing.since.elapsed();
        info!(
            from = standing.version,
            generation = self.generation,
            flows = standing.flows,
            pause_us = u64::try_from(pause.as_micros()).unwrap_or(u64::MAX),
            "went on where another netd stopped"
        );
        Ok(())
    }
}

/// A program that has another netd take the place of the running netd waits for it at the running netd's control socket.
fn same_control(config: &Config, snapshot: &Snapshot) -> Result<(), BeginError> {
    let Some((running, _)) = &snapshot.listeners.control else { return Ok(()) };
    let value = config.control.as_ref().map_or("none".to_owned(), |at| text(&at.path));
    if value == *running {
        return Ok(());
    }
    Err(BeginError::Changed { field: "control.socket", value, running: running.clone() })
}

fn steering(path: &Path, config: &Config, later: Vec<PortRule>) -> Result<Steering, BeginError> {
    Steering::open(path, &config.ports, later).map_err(|source| wrong(Some(path), source))
}

fn wrong(path: Option<&Path>, source: io::Error) -> BeginError {
    BeginError::Steering { path: path.map(text).unwrap_or_default(), source }
}

fn changed_steering(path: Option<&Path>, running: String) -> BeginError {
    BeginError::Changed { field: "ports.steering", value: path.map_or("none".to_owned(), text), running }
}
