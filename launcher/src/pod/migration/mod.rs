//! The source of a live migration, and what is left to do at its target.
//!
//! ```text
//!  MigrateVirtualMachine ──> the move (libvirt, peer to peer; blocks on a thread) ──> it runs there: Life ends
//!                              │ each 400 ms: progress ──> monitor ──> pause, abort      it runs here: failed
//!  CancelVirtualMachineMigration ──────────────────────────────────────> abort
//! ```
//!
//! libvirt of the source speaks to libvirt of the target over a socket in this pod, and both QEMUs over two more
//! ([`podvirt_proto::migration`]): where they lead is the handlers' affair. The domain goes as it is. Machine type,
//! PCI addresses and MACs are those of the source; its files and sockets have the same paths in every pod of a VMI,
//! so that nothing has to be rewritten, and are made ready at the target before ([`super::prepare`]). Volumes that move to other claims
//! are the exception: [`moved`].
//!
//! That the machine runs at one end only, whatever breaks at the switch-over, is the launchers' own affair: [`word`].
//!
//! What becomes of it is in the report (`Domain.migration`) and is never forgotten while the launcher lives: the same
//! migration asked for again, by a handler that was restarted, is the same one. When the call fails it is asked
//! where the machine is, since a connection that broke says nothing about the machine.

mod disks;
mod downtime;
mod error;
#[cfg(test)]
pub(super) mod fake;
mod monitor;
pub(super) mod moved;
mod word;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use podvirt_api::error::chain;
use podvirt_api::names::annotation::FORCE_MIGRATION_FAILURE;
use podvirt_api::names::{condition, path};
use podvirt_api::storage;
use podvirt_api::v1::VirtualMachineInstance;
use podvirt_proto::cmd::v1 as cmd;
use podvirt_proto::domain::{Status, reason};
use podvirt_proto::migration::{AbortStatus, Migration, Mode, Options, Progress, port, socket_name};
use serde::Deserialize as _;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tracing::{Instrument, debug, info, warn};

use self::downtime::Downtime;
pub(super) use self::error::MigrationError;
use self::monitor::{Monitor, Verdict};
use self::moved::{MovedError, Sizes};
pub(super) use self::word::{listen, take};
use super::agent::ANSWER;
use super::shared::{Facts, Shared};
use super::{backup, nics, report, volumes};
use crate::domain::alias_of;
use crate::hypervisor::{HypervisorError, Move};
use crate::life::Ending;
use crate::life::runner::Wish;

/// Between two looks at the progress.
const INTERVAL: Duration = Duration::from_millis(400);
/// Between two reports of the progress: each is a call to the handler.
const TELL: Duration = Duration::from_secs(2);
/// How long the hypervisor may take to make up its mind about a move whose call failed.
const SETTLE: Duration = Duration::from_secs(60);
/// How long an answer waits for a report that tells the same.
const REPORTED: Duration = Duration::from_secs(5);
/// How long a link that is refreshed is down (upstream's time).
const LINK_DOWN: Duration = Duration::from_millis(100);
const MIB: u64 = 1 << 20;

/// Begins a migration. The same one again changes nothing.
///
/// # Errors
///
/// The request is none, no machine runs here, another migration runs, virt-controller has not said what becomes of the
/// machine's disks, or the guest's file systems are frozen.
pub(super) async fn begin(
    shared: &Arc<Shared>,
    request: cmd::MigrationRequest,
) -> Result<(), MigrationError> {
    let options: Options = read("options", &request.options)?;
    let uid = &options.migration_uid;
    let address = |port| {
        let name = socket_name(uid, port).ok_or_else(|| MigrationError::Uid(uid.clone()))?;
        Ok::<_, MigrationError>(format!("{}/{name}", path::PUBLIC))
    };
    let (libvirt, state, disks) = (address(port::LIBVIRT)?, address(port::DIRECT)?, address(port::BLOCK)?);
    let word = PathBuf::from(address(port::WORD)?);
    if known(shared, uid)? {
        return Ok(());
    }
    let json = request.vmi.map(|vmi| vmi.vmi_json).unwrap_or_default();
    let vmi: VirtualMachineInstance = read("vmi", &json)?;
    if vmi.metadata.annotations.as_ref().is_some_and(|given| given.contains_key(FORCE_MIGRATION_FAILURE)) {
        return Err(MigrationError::Forced);
    }
    backup::may_leave(shared)?;
    let moved = moved::all(&vmi);
    let sizes = moved::sizes(shared, &moved).await?;
    let description = if moved.is_empty() {
        None
    } else {
        let text = shared.call(|h| h.xml_to_move()).await?;
        moved::description(&text, &moved, &sizes)?
    };
    let domain = shared.described().await?;
    nics::may_leave(&domain, &vmi)?;
    volumes::may_leave(&domain, &vmi)?;
    let of_vmi = disks::of(&domain, &vmi)?;
    let to = Move {
        connection: format!("qemu+unix:///session?socket={libvirt}"),
        state: format!("unix://{state}"),
        disks: format!("unix://{disks}"),
        copied: of_vmi.copied,
        description,
        bandwidth_mib: if options.bandwidth == 0 { 0 } else { options.bandwidth.div_ceil(MIB) },
        auto_converge: options.allow_auto_converge,
        // The cluster says that the claim is shared; libvirt knows a few network file systems only.
        is_unsafe: options.is_unsafe || of_vmi.shared,
        held: false,
    };
    let mut begun = false;
    let not_frozen = shared.freezes.none(shared)?;
    shared.facts.send_if_modified(|facts| {
        let busy = facts.migration.as_ref().is_some_and(|m| m.is_running() || m.uid == *uid);
        begun = !busy && facts.ended.is_none();
        if begun {
            facts.migration = Some(Migration {
                uid: uid.clone(),
                start_timestamp_ms: report::millis(report::now()),
                ..Migration::default()
            });
        }
        begun
    });
    // A freeze that comes from now on sees the migration.
    drop(not_frozen);
    if begun {
        info!(migration = uid, copied = ?to.copied, "the machine moves");
        let work = drive(Arc::clone(shared), to, sizes, options, word);
        tokio::spawn(work.in_current_span());
        return Ok(());
    }
    known(shared, uid).map(drop)
}

/// Whether a machine may come here with its volumes, whose VMI is `json`: before anything is made ready for it.
///
/// # Errors
///
/// virt-controller has not said what becomes of the volumes, or it contradicts what the machine's status tells of them.
pub(super) fn admit(json: &[u8]) -> Result<(), MigrationError> {
    let vmi: VirtualMachineInstance = read("vmi", json)?;
    storage::verdict(&vmi)?;
    Ok(())
}

fn read<T: DeserializeOwned>(part: &'static str, json: &[u8]) -> Result<T, MigrationError> {
    serde_json::from_slice(json).map_err(|source| MigrationError::Unreadable { part, source })
}

/// Whether this migration was begun already.
fn known(shared: &Shared, uid: &str) -> Result<bool, MigrationError> {
    let facts = shared.facts.borrow();
    match &facts.migration {
        Some(present) if present.uid == uid => return Ok(true),
        Some(present) if present.is_running() => {
            return Err(MigrationError::Busy(present.uid.clone()));
        }
        _ => {}
    }
    if let Some(ended) = &facts.ended {
        return Err(MigrationError::Ended(ended.message.clone()));
    }
    if facts.started_at.is_none() {
        return Err(MigrationError::NoMachine);
    }
    if *shared.wish.borrow() > Wish::Leave {
        return Err(MigrationError::Ending);
    }
    Ok(false)
}

/// Until the report tells which migration runs, or has ended, as it is known now: virt-handler, which reads the report after
/// an answer, must not find less in it.
pub(super) async fn reported(shared: &Shared) {
    let Some(known) = shared.facts.borrow().migration.clone() else { return };
    let mut reports = shared.report.subscribe();
    let told = reports.wait_for(|report| {
        let told = report.migration.as_ref().filter(|told| told.uid == known.uid);
        told.is_some_and(|told| told.completed || !known.completed)
    });
    if timeout(REPORTED, told).await.is_err() {
        warn!("the report is late: the hypervisor does not answer");
    }
}

/// Has the present migration aborted.
///
/// # Errors
///
/// There is none.
pub(super) fn cancel(shared: &Shared) -> Result<(), MigrationError> {
    let mut running = false;
    shared.facts.send_if_modified(|facts| {
        let Some(present) = facts.migration.as_mut().filter(|m| m.is_running()) else { return false };
        running = true;
        present.abort_status.replace(AbortStatus::Aborting).is_none()
    });
    if !running {
        return Err(MigrationError::NoMigration);
    }
    shared.abort.notify_one();
    Ok(())
}

/// Ends what a migration began, where the machine is now.
///
/// # Errors
///
/// No machine runs here, its definition cannot be kept, or a link does not come up again.
pub(super) async fn finalize(shared: &Shared, vmi: Option<&cmd::Vmi>) -> Result<(), MigrationError> {
    let vmi: Value = vmi.and_then(|vmi| serde_json::from_slice(&vmi.vmi_json).ok()).unwrap_or_default();
    if shared.facts.borrow().started_at.is_none() {
        if !shared.facts.borrow().awaited {
            return Err(MigrationError::NoMachine);
        }
        word::from_handler(shared, !is_paused(&vmi)).await?;
    }
    shared.call(|h| h.keep()).await?;
    if vmi.pointer("/status/migrationState/mode").and_then(Value::as_str) == Some("Paused") {
        // The migration alone made it stand still.
        shared.call(|h| h.resume()).await?;
    }
    if *shared.agent_connected.borrow() {
        let time = i64::try_from(report::now().as_nanos()).unwrap_or(i64::MAX);
        // The guest's clock stood still for a moment; that is all there is to lose.
        if let Err(error) = shared.agent_command("guest-set-time", json!({"time": time}), ANSWER).await {
            warn!(%error, "the guest's time is not set");
        }
    }
    refresh_links(shared, &vmi).await
}

/// Takes links down and up again, where a network binding plugin asks for that: the guest asks for its address anew. Whether it
/// does is the guest's; but no link stays down.
async fn refresh_links(shared: &Shared, vmi: &Value) -> Result<(), MigrationError> {
    let refreshed = VirtualMachineInstance::deserialize(vmi).map(|vmi| vmi.refreshed_links());
    for name in refreshed.unwrap_or_default() {
        let set = |up| {
            let alias = alias_of(&name);
            shared.call(move |hypervisor| hypervisor.set_link(&alias, up))
        };
        if let Err(error) = set(false).await {
            warn!(%error, interface = name, "the link is not refreshed");
        }
        // A guest may take no note of a link that comes back at once.
        sleep(LINK_DOWN).await;
        // virt-handler asks again after an error.
        set(true).await.map_err(|source| MigrationError::Link { interface: name.clone(), source })?;
    }
    Ok(())
}

/// Whether the machine is paused, by its VMI.
fn is_paused(vmi: &Value) -> bool {
    let mut conditions = vmi.pointer("/status/conditions").and_then(Value::as_array).into_iter().flatten();
    conditions.any(|one| one["type"] == condition::PAUSED && one["status"] == "True")
}

/// Notes that the machine has left.
fn left(shared: &Shared) {
    shared.facts.send_if_modified(|facts| settle(facts, |_| true, Ok(())));
}

/// Notes the end of a life in its migration, whose call may not have come back yet.
pub(super) fn ended(facts: &mut Facts, ending: &Ending) {
    let result = match ending {
        Ending::Migrated => Ok(()),
        other => Err(format!("the machine ended: {other}")),
    };
    settle(facts, |_| true, result);
}

/// Notes what became of the migration that runs, if it `is` the one; whether it was.
fn settle(facts: &mut Facts, is: impl Fn(&Migration) -> bool, result: Result<(), String>) -> bool {
    let running = facts.migration.as_mut().filter(|present| present.is_running() && is(present));
    let Some(present) = running else { return false };
    present.completed = true;
    present.end_timestamp_ms = Some(report::millis(report::now()));
    present.failed = result.is_err();
    let aborted = if result.is_err() { AbortStatus::Succeeded } else { AbortStatus::Failed };
    present.abort_status = present.abort_status.map(|_| aborted);
    present.failure_reason = result.err().unwrap_or_default();
    true
}

/// What [`drive`] keeps in mind.
struct Drive<'a> {
    shared: &'a Shared,
    monitor: Monitor,
    begun: Instant,
    told: Option<Instant>,
    downtime: Option<Downtime>,
    /// The limit that the hypervisor has.
    limit: Duration,
    paused: bool,
    /// Why it is to be given up, and whether the hypervisor took note.
    give_up: Option<(String, bool)>,
}

async fn drive(shared: Arc<Shared>, mut to: Move, moved: Sizes, options: Options, socket: PathBuf) {
    let promised = async {
        let mut promise = word::promise(&socket).await?;
        moved::make_room(&moved, promise.as_mut()).await?;
        Ok::<_, MovedError>(promise)
    };
    let promise = match promised.await {
        Ok(promise) => promise,
        Err(error) => return over(&shared, &options, Err(chain(&error))),
    };
    if promise.is_none() {
        warn!("the target does not wait for a word: libvirt switches over alone");
    }
    to.held = promise.is_some();
    // A machine that its user has paused is paused there as well.
    let status = shared.call(|h| h.status()).await.map(|status| status.status);
    let run = status != Ok(Status::Paused);
    let runtime = || PathBuf::from(path::LIBVIRT_RUNTIME);
    let giver = promise.map(|promise| promise.keep(Arc::clone(&shared), runtime(), run));
    let mut drive = Drive {
        shared: &shared,
        monitor: Monitor::new(&options),
        begun: Instant::now(),
        told: None,
        downtime: (options.max_downtime_ms > 0)
            .then(|| Downtime::new(Duration::from_millis(options.max_downtime_ms))),
        limit: Duration::ZERO,
        paused: false,
        give_up: None,
    };
    // A small machine is copied before the monitor has looked.
    drive.limit_downtime(&Progress::default()).await;
    let call = shared.call(move |hypervisor| hypervisor.migrate(&to));
    tokio::pin!(call);
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let result = loop {
        tokio::select! {
            result = &mut call => break result,
            // Early; an old one does no harm.
            () = shared.abort.notified() => {}
            _ = ticks.tick() => {}
        }
        drive.look().await;
    };
    let mut result = result;
    if let Some(giver) = giver
        && giver.end(&shared, result.is_ok()).await
    {
        // libvirt was told nothing of the machine's end.
        result = Ok(());
    }
    let result = drive.outcome(result).await;
    over(&shared, &options, result);
}

/// Notes and tells what became of a migration.
fn over(shared: &Shared, options: &Options, result: Result<(), String>) {
    match &result {
        Ok(()) => info!("the machine has moved"),
        Err(reason) => warn!(reason, "the machine has not moved"),
    }
    let is = |migration: &Migration| migration.uid == options.migration_uid;
    shared.facts.send_if_modified(|facts| settle(facts, is, result));
}

impl Drive<'_> {
    async fn look(&mut self) {
        let wanted = self.shared.facts.borrow().migration.as_ref().and_then(|m| m.abort_status);
        if wanted == Some(AbortStatus::Aborting) {
            self.give_up.get_or_insert_with(|| ("it was aborted".into(), false));
        }
        if let Some((reason, false)) = &self.give_up {
            match self.shared.call(|h| h.abort_move()).await {
                Ok(()) => {
                    info!(reason, "the move is aborted");
                    self.give_up = Some((reason.clone(), true));
                }
                // It has not begun yet, or is over.
                Err(error) => debug!(%error, "the move is not aborted yet"),
            }
        }
        let progress = match self.shared.call(|h| h.progress()).await {
            Ok(progress) => progress,
            Err(error) => {
                debug!(%error, "the move's progress is not known");
                None
            }
        };
        if let Some(progress) = progress {
            self.limit_downtime(&progress).await;
            self.tell(progress);
        }
        let known = progress.map(|p| (p.total, p.remaining)).filter(|(total, _)| *total > 0);
        match self.monitor.look(self.begun.elapsed(), known) {
            Verdict::Continue => {}
            Verdict::Pause => {
                warn!("time is up: the guest stands still until it has moved");
                self.paused = self.shared.call(|h| h.suspend()).await.is_ok();
                self.change(|present| present.mode = Mode::Paused);
            }
            Verdict::GiveUp(reason) => {
                self.give_up.get_or_insert((reason, false));
            }
        }
    }

    async fn limit_downtime(&mut self, progress: &Progress) {
        let now = self.begun.elapsed();
        let limit = self.downtime.as_mut().map(|downtime| downtime.limit(now, progress));
        let Some(limit) = limit.filter(|limit| *limit != self.limit) else { return };
        match self.shared.call(move |h| h.limit_downtime(limit)).await {
            Ok(()) => self.limit = limit,
            // The next look tries again.
            Err(error) => debug!(%error, "the downtime is not limited yet"),
        }
    }

    fn tell(&mut self, progress: Progress) {
        if self.told.is_some_and(|told| told.elapsed() < TELL) {
            return;
        }
        self.told = Some(Instant::now());
        self.change(|present| present.progress = Some(progress));
    }

    fn change(&self, change: impl FnOnce(&mut Migration)) {
        self.shared.facts.send_if_modified(|facts| facts.migration.as_mut().map(change).is_some());
    }

    /// Where the machine is, after the call came back.
    async fn outcome(&mut self, result: Result<(), HypervisorError>) -> Result<(), String> {
        let Err(error) = result else { return Ok(()) };
        let reason = match self.give_up.take() {
            Some((reason, _)) => format!("{reason}: {error}"),
            None => error.to_string(),
        };
        let end = Instant::now() + SETTLE;
        while Instant::now() < end {
            if let Some(ended) = &self.shared.facts.borrow().ended {
                return if ended.reason == reason::MIGRATED { Ok(()) } else { Err(reason) };
            }
            match self.shared.call(|h| h.status()).await.map(|s| (s.status, s.reason)) {
                // libvirt has not decided yet, or cannot be asked.
                Ok((Status::Paused, reason::MIGRATION)) | Err(_) => {}
                // Its end is about to be noted, with how it came.
                Ok((status, _)) if !status.is_active() => {}
                Ok(_) => break,
            }
            sleep(INTERVAL).await;
        }
        if self.paused
            && let Err(error) = self.shared.call(|h| h.resume()).await
        {
            warn!(%error, "the guest stands still: the migration stopped it and it cannot be resumed");
        }
        Err(reason)
    }
}

#[cfg(test)]
mod tests;
