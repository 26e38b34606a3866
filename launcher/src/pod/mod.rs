//! The launcher in a pod: one machine, made by virt-handler's word, told to it, and outlived by nothing.
//!
//! ```text
//!        virt-handler                              this process, child of the container's process 1
//!   ┌───────────────────┐  cmd.v1   ┌────────────────────────────────────────────────────────────────┐
//!   │ launcher-sock <───┼───────────┼─> server ── sync ──> start ── prepare ──> life (crate::life)    │
//!   │                   │           │     │   └─ wish ───────────────────────────────^   │ view       │
//!   │ domain-notify-    │ notify.v1 │     │ pause, reset, …: on the view's connection   v            │
//!   │ pipe.sock    <────┼───────────┼─ notify <── report <──────────────────────── reporter <── agent  │
//!   └───────────────────┘           │                                                  ^────── netd    │
//!                                   └────────────────────────────────────────────────────────────────┘
//! ```
//!
//! States, as the report tells them:
//!
//! 1. **Waiting** (`NoState`): libvirtd is started and the command socket is served as `launcher-init-sock`; once
//!    libvirt answers, the socket is renamed to `launcher-sock`. Without a machine after `--qemu-timeout` the
//!    launcher ends.
//! 2. **Preparing** (`NoState`, `waitingFor` says for what): SyncVirtualMachine brought a VMI that was found valid.
//!    Disks, kernel and netd's socket are made ready. What cannot be made ready is told in the answer and as an
//!    event, and the launcher waits for the next SyncVirtualMachine.
//! 3. **Living**: [`crate::life`] has the machine. A start that the hypervisor refuses leads back to waiting.
//! 4. **Ended** (`Shutoff` or `Crashed`): the last report is told to the handler until it took it, for at most
//!    [`LAST_WORDS`], while GetDomain answers it; then daemons are stopped and the exit code tells it to the pod.
//!
//! A machine that moves: SyncMigrationTarget prepares as SyncVirtualMachine does, but the machine comes from another
//! launcher; MigrateVirtualMachine is the other side, see [`migration`].
//!
//! The handler decides: it asks for shutdown and kill. SIGTERM sets `gracefulShutdownRequested` and leaves the rest
//! to the handler; if no shutdown comes within [`HANDLER_REACTS`], the launcher does it itself, so that a node whose
//! handler is gone still ends its guests cleanly. From the first of the two the grace period runs, and at its end the
//! machine is killed. A machine that ends so has ended with its pod ([`End::with_pod`]), unless the handler has told that the VMI
//! is being deleted: the kubelet may end a pod for reasons of its own.
//!
//! All state is in [`shared::Shared`], in watch channels: a reader sees the last state, and nothing queues up
//! for a reader that is away. A handler that was restarted asks GetDomain, or gets the report again.

mod agent;
mod answers;
mod backup;
mod brought;
mod credentials;
mod described;
mod descriptor;
mod devices;
mod downward;
mod dump;
mod emulator_log;
mod end;
mod flow_limit;
mod freeze;
#[cfg(test)]
mod freezer_tests;
mod growth;
mod held;
mod hold;
mod io_error;
mod kept;
pub(crate) mod link;
mod migration;
mod nics;
mod notify;
mod orders;
mod prepare;
mod probe;
mod refused;
mod report;
mod reporter;
mod server;
mod services;
mod shared;
mod start;
mod statistics;
mod volumes;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use podvirt_api::names::path;
use tokio::net::UnixListener;
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};
use tracing::{Instrument, info, warn};

use crate::cli::Pod;
use crate::hypervisor::{Connector, EventSink, connector};
use crate::life::Ending;
use crate::life::runner::Wish;
use crate::process::daemon::Daemons;
use crate::process::signals::StopSignals;
use crate::rundir::RunDir;
use shared::{Identity, Shared, Wanted};

pub use end::End;

/// How long the handler has, after SIGTERM, to ask for the guest's shutdown before the launcher does.
const HANDLER_REACTS: Duration = Duration::from_secs(3);
/// How long an ended machine's launcher tries to tell so.
const LAST_WORDS: Duration = Duration::from_secs(15);
/// The same after a migration. A handler that does not know that the machine has left takes the launcher's end without
/// a report for the machine's end; and an empty launcher costs next to nothing.
const LAST_WORDS_MIGRATED: Duration = Duration::from_secs(300);
/// Between two looks whether libvirtd answers.
const LIBVIRT_INTERVAL: Duration = Duration::from_millis(100);

/// Runs the machine of a pod until it ends.
///
/// # Errors
///
/// The pod's directories or sockets cannot be used, or libvirt cannot be started.
pub async fn run(args: &Pod) -> Result<End> {
    if args.simulate_crash {
        let annotation = podvirt_api::names::annotation::FAIL_FAST;
        bail!("virt-launcher ends at once, because the machine has the annotation {annotation}");
    }
    let signals = StopSignals::new()?;
    let identity =
        Identity { name: args.name.clone(), namespace: args.namespace.clone(), uid: args.uid.clone() };
    let (sync, syncs) = mpsc::channel(1);
    let shared = Arc::new(Shared::new(identity, sync));
    // A claim has its places there, where it keeps what firmware and TPM hold.
    let kept = if args.shared_state { kept::of_both_nodes() } else { &[] };
    let rundir = RunDir::open(Path::new(path::LIBVIRT_RUNTIME))?
        .with_emulator()?
        .with_config(Path::new(path::PRIVATE), kept)?;
    let mut daemons = Daemons::default();
    let result = with_daemons(args, &shared, &rundir, syncs, signals, &mut daemons).await;
    daemons.stop().await;
    result
}

async fn with_daemons(
    args: &Pod,
    shared: &Arc<Shared>,
    rundir: &RunDir,
    syncs: mpsc::Receiver<Wanted>,
    signals: StopSignals,
    daemons: &mut Daemons,
) -> Result<End> {
    daemons.libvirt(rundir)?;
    // A machine without it lives as well, and only netd's next restart would be noticed.
    let _hold = hold::Hold::start(0).inspect_err(|error| warn!("{error:#}")).ok();
    let connector = connector(&rundir.libvirt_uri())?;
    let grace = Duration::from_secs(args.grace_period_seconds);

    let listener = listen(&init_socket())?;
    let server = tokio::spawn(server::serve(listener, shared.clone()).in_current_span());
    let volumes = tokio::spawn(held::serve(held::listen()?, shared.clone()).in_current_span());
    let reporter = tokio::spawn(reporter::run(shared.clone()).in_current_span());
    let notifier = tokio::spawn(
        notify::run(Path::new(path::PUBLIC).join(path::NOTIFY_SOCKET), shared.clone()).in_current_span(),
    );
    let stopper = tokio::spawn(on_stop(signals, shared.clone(), grace).in_current_span());

    let ready = async {
        answers(connector.clone()).await;
        std::fs::rename(init_socket(), command_socket()).context("cannot rename the command socket")?;
        info!(socket = %command_socket().display(), "ready for the handler");
        Ok::<_, anyhow::Error>(())
    };
    let starter = start::Starter {
        shared: shared.clone(),
        connector: connector.clone(),
        allow_emulation: args.allow_emulation,
        hook_sidecars: args.hook_sidecars,
        grace,
        limit: args.qemu_timeout,
        logs: rundir.join("cache/libvirt/qemu/log"),
    };
    let live = start::run(starter, syncs);
    let ending = tokio::select! {
        ending = live => ending,
        failed = async { match ready.await { Ok(()) => std::future::pending().await, Err(error) => error } } => {
            return Err(failed);
        }
    };

    let panicked = shared.view.borrow().panicked;
    let end = End::new(ending, &shared.facts.borrow());
    shared.facts.send_modify(|facts| {
        facts.ended = Some(end.last_state(panicked, facts.emulator_output.as_deref()));
        migration::ended(facts, &end.ending);
    });
    let last_words = if end.ending == Ending::Migrated { LAST_WORDS_MIGRATED } else { LAST_WORDS };
    let hooks = shared.hooks.borrow().clone();
    let (told, ()) = tokio::join!(timeout(last_words, shared.told()), hooks.shutdown());
    if told.is_err() {
        warn!("the handler did not take the last report");
    }
    for task in [stopper, notifier, reporter, server, volumes] {
        task.abort();
    }
    Ok(end)
}

/// The command socket while the launcher starts, and afterwards.
fn init_socket() -> PathBuf {
    Path::new(path::SOCKETS).join(path::LAUNCHER_INIT_SOCKET)
}

fn command_socket() -> PathBuf {
    Path::new(path::SOCKETS).join(path::LAUNCHER_SOCKET)
}

fn listen(socket: &Path) -> Result<UnixListener> {
    for leftover in [init_socket(), command_socket()] {
        match std::fs::remove_file(&leftover) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot remove {}", leftover.display()));
            }
            _ => {}
        }
    }
    UnixListener::bind(socket).with_context(|| format!("cannot listen on {}", socket.display()))
}

/// Until libvirtd answers. It is kept running, so there is no end to this but the launcher's own.
async fn answers(connector: Arc<dyn Connector>) {
    loop {
        let connector = connector.clone();
        let sink: EventSink = Arc::new(|_| {});
        let tried = tokio::task::spawn_blocking(move || connector.connect("", sink).map(drop));
        match tried.await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => tracing::debug!(%error, "libvirt does not answer yet"),
            Err(error) => warn!(%error, "the attempt to reach libvirt failed"),
        }
        sleep(LIBVIRT_INTERVAL).await;
    }
}

/// Waits for signals that ask for the end.
async fn on_stop(mut signals: StopSignals, shared: Arc<Shared>, grace: Duration) {
    let mut wish: watch::Receiver<Wish> = shared.wish.subscribe();
    let signal = signals.next().await;
    info!(signal, "asked to end; the handler is to shut the guest down");
    shared.facts.send_modify(|facts| {
        facts.stop_requested = true;
        facts.kill_at = Some(report::now() + HANDLER_REACTS + grace);
    });
    let react = async {
        if wish.wait_for(|wish| *wish > Wish::Run).await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    if shared.has_machine() && timeout(HANDLER_REACTS, react).await.is_err() {
        info!("the handler did nothing");
    }
    shared.wish_for(Wish::ShutDown);
    // The watch stays until the end: a second signal must not kill the launcher under its guest.
    loop {
        let signal = signals.next().await;
        info!(signal, "asked to end again");
    }
}
