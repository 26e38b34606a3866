//! A machine that the hypervisor has stopped because one of its disks failed or is full: it is let run again by itself.
//!
//! # Theory of operation
//!
//! ```text
//!             a disk fails                      after FIRST_RETRY_DELAY, later each time
//!  Running ─────────────────> Paused, IOError ───────────────────────────────────> on trial ──> Running
//!                                   ^ ^                                               │  after TRIAL_PERIOD
//!                                   │ └───────── a disk fails again ──────────────────┘
//!                                   └ unpause of a user: at once
//! ```
//!
//! QEMU repeats the requests that have failed as soon as the machine runs. Storage that has room again, or answers again, takes
//! them; otherwise QEMU stops the machine within moments. So the report says that the machine is paused until the trial is over: its
//! watchers see it stand still once, and not with each attempt.
//!
//! A machine that a user has paused has another reason to stand still, and is left alone. So is one that is being migrated: the
//! migration fails by the same disk, and what is written about the pause then is the migration's.

use std::future::pending;
use std::time::Duration;

use podvirt_proto::domain::{Domain, Status, reason};
use tokio::time::sleep;
use tracing::{debug, info};

use super::shared::Shared;
use crate::hypervisor::{DomainStatus, Hypervisor, HypervisorError};

/// The time between a failure and the first attempt to let the machine run.
const FIRST_RETRY_DELAY: Duration = Duration::from_secs(5);
/// The longest time between two attempts.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(60);
/// How long a machine has to run until its disks count as mended.
const TRIAL_PERIOD: Duration = Duration::from_secs(2);

/// Lets the machine run again after a failure of a disk; never ends.
pub(super) async fn poll(shared: &Shared) {
    let mut reports = shared.report.subscribe();
    loop {
        if reports.wait_for(is_stopped).await.is_err() {
            return pending().await;
        }
        let mut delay = FIRST_RETRY_DELAY;
        loop {
            tokio::select! {
                () = sleep(delay) => {}
                _ = reports.wait_for(|report| !is_stopped(report)) => break,
            }
            let moves = shared
                .facts
                .borrow()
                .migration
                .as_ref()
                .is_some_and(podvirt_proto::migration::Migration::is_running);
            if !moves {
                attempt(shared).await;
            }
            delay = (delay * 2).min(MAX_RETRY_DELAY);
        }
    }
}

fn is_stopped(report: &Domain) -> bool {
    report.status == Status::Paused && report.reason == reason::IO_ERROR
}

/// Lets the machine run, and waits until it has run for a while or has been stopped again.
async fn attempt(shared: &Shared) {
    shared.facts.send_modify(|facts| facts.on_trial = true);
    match shared.call(resume_stopped).await {
        Ok(true) => {
            info!("the machine is let run again after a failure of a disk");
            sleep(TRIAL_PERIOD).await;
        }
        Ok(false) => {}
        Err(error) => debug!(%error, "the machine cannot be let run"),
    }
    shared.facts.send_modify(|facts| facts.on_trial = false);
}

/// Lets the machine run if a disk has stopped it. Whether it has.
fn resume_stopped(hypervisor: &dyn Hypervisor) -> Result<bool, HypervisorError> {
    let stopped = DomainStatus { status: Status::Paused, reason: reason::IO_ERROR };
    if hypervisor.status()? != stopped {
        return Ok(false);
    }
    hypervisor.resume()?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use podvirt_proto::migration::Migration;
    use tokio::sync::mpsc;
    use tokio::time::Instant;

    use super::super::migration::fake::Fake;
    use super::super::shared::Identity;
    use super::*;
    use crate::life::runner::View;

    const STOPPED: DomainStatus = DomainStatus { status: Status::Paused, reason: reason::IO_ERROR };

    /// A machine that a disk has stopped, as the report says it.
    fn stopped() -> (Arc<Shared>, Arc<Fake>) {
        let shared = Arc::new(Shared::new(Identity::default(), mpsc::channel(1).0));
        let (hypervisor, _) = Fake::new(Status::Paused);
        *hypervisor.status.lock().unwrap() = STOPPED;
        let view = View { running: true, hypervisor: Some(hypervisor.clone()), ..View::default() };
        shared.view.send_replace(view);
        report(&shared, STOPPED);
        let polled = shared.clone();
        tokio::spawn(async move { poll(&polled).await });
        (shared, hypervisor)
    }

    fn report(shared: &Shared, status: DomainStatus) {
        shared.report.send_modify(|report| {
            (report.status, report.reason) = (status.status, status.reason.to_owned());
        });
    }

    /// The time until the next attempt begins; the machine stops again, or does not.
    async fn next_attempt(shared: &Shared, hypervisor: &Fake, fails: bool) -> Duration {
        let (begin, mut facts) = (Instant::now(), shared.facts.subscribe());
        facts.wait_for(|facts| facts.on_trial).await.unwrap();
        let waited = begin.elapsed();
        while *hypervisor.status.lock().unwrap() == STOPPED {
            tokio::task::yield_now().await;
        }
        if fails {
            *hypervisor.status.lock().unwrap() = STOPPED;
        }
        facts.wait_for(|facts| !facts.on_trial).await.unwrap();
        waited
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_that_a_disk_has_stopped_is_let_run_again_and_again() {
        let (shared, hypervisor) = stopped();
        for delay in [5, 10, 20, 40, 60, 60] {
            assert_eq!(next_attempt(&shared, &hypervisor, true).await, Duration::from_secs(delay));
        }
        next_attempt(&shared, &hypervisor, false).await;
        let running = DomainStatus { status: Status::Running, reason: reason::UNPAUSED };
        report(&shared, running);
        tokio::task::yield_now().await;
        // The next failure is another one.
        *hypervisor.status.lock().unwrap() = STOPPED;
        report(&shared, STOPPED);
        assert_eq!(next_attempt(&shared, &hypervisor, false).await, FIRST_RETRY_DELAY);
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_that_stands_still_for_another_reason_is_left_alone() {
        let by_user = DomainStatus { status: Status::Paused, reason: reason::USER };
        let (shared, hypervisor) = stopped();
        // The report lags behind the hypervisor, then it does not.
        for reported in [STOPPED, by_user] {
            *hypervisor.status.lock().unwrap() = by_user;
            report(&shared, reported);
            sleep(Duration::from_secs(600)).await;
            assert_eq!(*hypervisor.status.lock().unwrap(), by_user);
        }
        let (shared, hypervisor) = stopped();
        shared.facts.send_modify(|facts| facts.migration = Some(Migration::default()));
        sleep(Duration::from_secs(600)).await;
        assert_eq!(*hypervisor.status.lock().unwrap(), STOPPED);
    }
}
