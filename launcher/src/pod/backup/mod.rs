//! Backups of the running machine's disks ([`podvirt_api::backup`]).
//!
//! # Theory of operation
//!
//! ```text
//!  Start ──> admitted ──> file systems frozen ──> libvirt's job begins ──> thawed ──> the job runs ──> complete | failed | aborted
//!              │             │                       │                                 │   │ pull: Export ──> streams to an exporter
//!              refused       told as a warning       refused: what was made is removed └───┘
//! ```
//!
//! In push mode QEMU copies the disks into files, and the job ends when everything is copied. In pull mode ([`pull`]) QEMU offers the
//! disks as they were when the job began, an exporter reads them, and the job ends when the launcher is asked to abort it: that is its
//! good end. Ended otherwise, it has failed.
//!
//! What QEMU writes goes into the directory of a claim that another pod holds; virt-handler has brought its descriptor as it brings disks
//! ([`super::held`]). In it `<machine>/<checkpoint>/` is made ([`place`]), with a qcow2 file for each disk: the copy, or, in pull mode, what the disk
//! was where the guest has written meanwhile. The guest stands still for the begin of the job alone, so that all disks are of one
//! moment. A job that fails takes its files along, and one in pull mode does so in any case. One in pull mode fails before its claim is full
//! ([`room`]).
//!
//! A Start is not carried out twice: one for the backup that runs, or was the last one, is answered alike. A backup is noted before
//! anything is done for it, so that of two at the same time one is refused. The report tells of the backup's disks from its begin on,
//! and of its end until the next one.
//!
//! An incremental backup has what has changed since a checkpoint. A disk that has no bitmap of that name, because it came later, is in
//! it whole. libvirt knows a checkpoint until its domain ends; virt-controller has it made known again at the next start ([`redefine`]).
//! Where that has not happened, it is done here.

mod begin;
mod checkpoint;
mod describe;
mod error;
#[cfg(test)]
pub(super) mod fake;
mod follow;
mod place;
mod pull;
#[cfg(test)]
mod pull_tests;
mod room;
#[cfg(test)]
mod tests;
mod tunnel;

use std::sync::Arc;

use podvirt_api::backup::{self, Command, Options};
use podvirt_api::validate::is_dns_subdomain;
use podvirt_proto::domain::Backup;
use podvirt_proto::migration::Migration;

use super::shared::Shared;

pub(super) use checkpoint::{Unknown, redefine};
pub(super) use error::{BackupError, UnderWay};
pub(super) use pull::Pull;
use tunnel::Target;

/// Carries out what the subresource `backup` asks for, of the machine `machine`.
///
/// # Errors
///
/// Why it is refused.
pub(super) async fn command(
    shared: &Arc<Shared>,
    machine: &str,
    options: Options,
) -> Result<(), BackupError> {
    let asked_at = options.backup_start_time.as_ref().ok_or(BackupError::Missing("backupStartTime"))?.0;
    // It becomes a part of paths.
    if !is_dns_subdomain(&options.backup_name) {
        return Err(BackupError::Name(options.backup_name));
    }
    let wanted = Backup {
        name: options.backup_name.clone(),
        asked_at_ms: u64::try_from(asked_at.as_millisecond()).unwrap_or_default(),
        checkpoint: backup::checkpoint(&options.backup_name, asked_at),
        ..Backup::default()
    };
    match options.cmd {
        Command::Start => {
            if !reserve(shared, &wanted)? {
                return Ok(());
            }
            let started = Box::pin(begin::start(shared, machine, wanted, options)).await;
            if started.is_err() {
                shared.facts.send_modify(|facts| facts.backup = None);
            }
            started
        }
        Command::Export => {
            under_way(shared, &wanted)?;
            let (told, of) = (Arc::downgrade(shared), wanted.clone());
            let report = move |why| {
                if let Some(shared) = told.upgrade() {
                    unreached(&shared, &of, why);
                }
            };
            shared.pull.export(&wanted, Target::new(&options)?, report)
        }
        Command::Abort => {
            under_way(shared, &wanted)?;
            abort(shared, &wanted).await
        }
    }
}

/// Notes that a backup is about to begin, so that no other one begins and the machine does not leave. Whether it was not noted before.
///
/// # Errors
///
/// Another backup is under way, or the machine moves.
fn reserve(shared: &Shared, wanted: &Backup) -> Result<bool, BackupError> {
    let mut reserved = Ok(false);
    shared.facts.send_if_modified(|facts| {
        reserved = match &facts.backup {
            Some(known) if is_same(known, wanted) => Ok(false),
            Some(other) if is_running(other) => Err(BackupError::Busy(other.name.clone())),
            _ if facts.migration.as_ref().is_some_and(Migration::is_running) => Err(BackupError::Moves),
            _ => Ok(true),
        };
        let is_new = matches!(reserved, Ok(true));
        if is_new {
            facts.backup = Some(wanted.clone());
        }
        is_new
    });
    reserved
}

/// Has the job ended. What becomes of it, the report tells.
async fn abort(shared: &Arc<Shared>, wanted: &Backup) -> Result<(), BackupError> {
    if shared.pull.stop(wanted) == Some(false) {
        // It has been asked to end before.
        return Ok(());
    }
    let aborted = shared.call(|hypervisor| hypervisor.backups()?.abort()).await;
    Ok(aborted.inspect_err(|_| shared.pull.goes_on(wanted))?)
}

/// Notes why the exporter of a backup that runs is not reached; nothing: it is.
fn unreached(shared: &Shared, wanted: &Backup, why: String) {
    shared.facts.send_if_modified(|facts| match &mut facts.backup {
        Some(known) if is_same(known, wanted) && is_running(known) && known.unreached != why => {
            known.unreached = why;
            true
        }
        _ => false,
    });
}

/// Whether this backup is the one that runs.
///
/// # Errors
///
/// It is not.
fn under_way(shared: &Shared, wanted: &Backup) -> Result<(), BackupError> {
    let facts = shared.facts.borrow();
    match facts.backup.as_ref().is_some_and(|known| is_same(known, wanted) && is_running(known)) {
        true => Ok(()),
        false => Err(BackupError::NotUnderWay(wanted.name.clone())),
    }
}

fn is_same(known: &Backup, wanted: &Backup) -> bool {
    known.name == wanted.name && known.asked_at_ms == wanted.asked_at_ms
}

/// Whether libvirt's job runs, or is about to.
fn is_running(backup: &Backup) -> bool {
    backup.ended_at_ms.is_none()
}

/// Whether the claim of a volume can be let go of.
///
/// # Errors
///
/// A backup is under way.
pub(super) fn may_go(shared: &Shared, volume: &str) -> Result<(), UnderWay> {
    let facts = shared.facts.borrow();
    match facts.backup.as_ref().filter(|backup| is_running(backup)) {
        Some(running) if backup::target_volume(&running.name) == volume => {
            Err(UnderWay::Writes(running.name.clone()))
        }
        _ => Ok(()),
    }
}

/// Whether the machine can leave.
///
/// # Errors
///
/// A backup is under way: it is named.
pub(super) fn may_leave(shared: &Shared) -> Result<(), UnderWay> {
    let facts = shared.facts.borrow();
    match facts.backup.as_ref().filter(|backup| is_running(backup)) {
        Some(running) => Err(UnderWay::Leaving(running.name.clone())),
        None => Ok(()),
    }
}
