//! Freezing the guest's file systems for a backup, and thawing them again.
//!
//! A guest that stays frozen hangs, so a freeze with a time limit ends whatever becomes of the caller: the work is a task
//! of its own, which a caller that gives up does not take along. Each freeze has a number; its timer thaws only while no
//! later freeze or thaw has come, so an old timer does not end a newer freeze. An agent that did not answer in time may
//! freeze all the same: the timer runs then, too.
//!
//! The agent of a frozen guest refuses to freeze it. A backup of several disks orders a freeze for each of them, so a freeze of
//! a guest that is known to be frozen succeeds. If it has a time limit, this limit counts from then on; if it has none, the time
//! limit of the freeze before stands.
//!
//! Timers and what is known of the guest are this launcher's alone. So a frozen guest does not move to another launcher,
//! which would never thaw it: a migration is refused while the guest is frozen or may be, and a freeze is refused while the
//! machine moves. Both are decided under one lock.

use std::sync::Arc;
use std::time::Duration;

use podvirt_proto::migration::Migration;
use serde_json::Value;
use tokio::sync::{Mutex, MutexGuard};
use tokio::task::JoinError;
use tokio::time::sleep;
use tracing::error;

use super::agent::AgentError;
use super::shared::Shared;
use crate::hypervisor::HypervisorError;

const FREEZE: &str = "guest-fsfreeze-freeze";
const THAW: &str = "guest-fsfreeze-thaw";
/// How long either may take: the guest writes everything out before.
const ANSWER: Duration = Duration::from_secs(60);
/// How often a timer tries to thaw, and the pause between two attempts.
const ATTEMPTS: (u32, Duration) = (6, Duration::from_secs(10));

/// Why the guest is not frozen or thawed, or the machine does not move.
#[derive(Debug, thiserror::Error)]
pub(super) enum FreezeError {
    /// A freeze while the machine moves.
    #[error(
        "the machine moves to another node: its file systems can be frozen once it is there, or has stayed"
    )]
    Moves,
    /// A migration while the agent is at a freeze or a thaw.
    #[error("the guest's file systems are just being frozen or thawed: migrate the machine afterwards")]
    Busy,
    /// A migration while the guest is frozen.
    #[error(
        "the guest's file systems are frozen, or may be: migrate the machine once they are thawed, by the subresource unfreeze or \
         by the time limit of the freeze"
    )]
    Frozen,
    /// The agent does not do it.
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// The task that tells the agent has failed.
    #[error(transparent)]
    Task(#[from] JoinError),
}

/// The guest whose file systems are frozen.
pub(super) trait Guest: Clone + Send + Sync + 'static {
    /// Has the guest's agent carry out a command.
    fn tell(&self, command: &'static str) -> impl Future<Output = Result<(), AgentError>> + Send;
    /// Notes whether it is frozen.
    fn set_frozen(&self, frozen: bool);
    /// What was noted.
    fn is_frozen(&self) -> bool;
    /// Whether the machine moves to another node, or has not come from one yet.
    fn is_moving(&self) -> bool;
}

impl Guest for Arc<Shared> {
    async fn tell(&self, command: &'static str) -> Result<(), AgentError> {
        self.agent_command(command, Value::Null, ANSWER).await.map(drop)
    }

    fn set_frozen(&self, frozen: bool) {
        self.facts.send_if_modified(|facts| std::mem::replace(&mut facts.frozen, frozen) != frozen);
    }

    fn is_frozen(&self) -> bool {
        self.facts.borrow().frozen
    }

    fn is_moving(&self) -> bool {
        let facts = self.facts.borrow();
        let leaves = facts.migration.as_ref().is_some_and(Migration::is_running);
        leaves || (facts.awaited && facts.started_at.is_none())
    }
}

/// The last freeze or thaw.
#[derive(Debug, Default)]
pub(super) struct Last {
    number: u64,
    /// Whether it was a freeze that the agent did not answer, and its timer has not thawed the guest yet.
    unsure: bool,
}

/// The last freeze or thaw, held while the agent is at one. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Freezes(Arc<Mutex<Last>>);

impl Freezes {
    /// Freezes the guest, for at most `limit`.
    pub(super) async fn freeze<G: Guest>(
        &self,
        guest: G,
        limit: Option<Duration>,
    ) -> Result<(), FreezeError> {
        let freezes = self.clone();
        let work = tokio::spawn(async move {
            let mut last = freezes.0.lock().await;
            if guest.is_moving() {
                return Err(FreezeError::Moves);
            }
            let result = guest.tell(FREEZE).await;
            let silent = matches!(result, Err(AgentError::Refused(HypervisorError::Silent { .. })));
            let refused = matches!(result, Err(AgentError::Refused(HypervisorError::Refused { .. })));
            let again = refused && guest.is_frozen();
            let result = if again { Ok(()) } else { result.map_err(FreezeError::from) };
            match limit {
                None if again => return result,
                // What was before stands, an older freeze's timer among it.
                _ if result.is_err() && !silent => return result,
                None if silent => return result,
                _ => *last = Last { number: last.number + 1, unsure: silent },
            }
            if !silent {
                guest.set_frozen(true);
            }
            if let Some(limit) = limit {
                tokio::spawn(freezes.clone().thaw_later(guest, last.number, limit));
            }
            result
        });
        work.await?
    }

    /// Thaws the guest.
    pub(super) async fn thaw<G: Guest>(&self, guest: G) -> Result<(), FreezeError> {
        let freezes = self.clone();
        let work = tokio::spawn(async move {
            let mut last = freezes.0.lock().await;
            guest.tell(THAW).await?;
            *last = Last { number: last.number + 1, unsure: false };
            guest.set_frozen(false);
            Ok::<_, FreezeError>(())
        });
        work.await?
    }

    /// Makes sure that the guest is not frozen, and that no freeze begins while the result is held.
    ///
    /// # Errors
    ///
    /// It is frozen, or may be.
    pub(super) fn none<G: Guest>(&self, guest: &G) -> Result<MutexGuard<'_, Last>, FreezeError> {
        let last = self.0.try_lock().map_err(|_| FreezeError::Busy)?;
        if last.unsure || guest.is_frozen() { Err(FreezeError::Frozen) } else { Ok(last) }
    }

    /// The timer of the freeze `number`.
    async fn thaw_later<G: Guest>(self, guest: G, number: u64, limit: Duration) {
        sleep(limit).await;
        for attempt in 1..=ATTEMPTS.0 {
            let mut last = self.0.lock().await;
            if last.number != number || !(last.unsure || guest.is_frozen()) {
                return;
            }
            match guest.tell(THAW).await {
                Ok(()) => {
                    last.unsure = false;
                    return guest.set_frozen(false);
                }
                Err(error) => error!(%error, "the guest's file systems are not thawed"),
            }
            if attempt == ATTEMPTS.0 {
                // An agent that has answered neither the freeze nor any thaw has frozen nothing that it could tell of.
                last.unsure = false;
                return;
            }
            drop(last);
            sleep(ATTEMPTS.1).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex as Lock;

    use tokio::sync::{Notify, mpsc};

    use super::*;

    /// Says what it was told; answers a freeze as it is set to, once it may.
    #[derive(Clone)]
    struct Fake(Arc<Inner>);

    struct Inner {
        told: mpsc::UnboundedSender<&'static str>,
        answer: Lock<Option<HypervisorError>>,
        may_answer: Option<Notify>,
        frozen: Lock<bool>,
        moving: Lock<bool>,
    }

    impl Guest for Fake {
        async fn tell(&self, command: &'static str) -> Result<(), AgentError> {
            self.0.told.send(command).unwrap();
            if let Some(gate) = &self.0.may_answer {
                gate.notified().await;
            }
            let answer = self.0.answer.lock().unwrap().clone().filter(|_| command == FREEZE);
            answer.map_or(Ok(()), |error| Err(error.into()))
        }

        fn set_frozen(&self, frozen: bool) {
            *self.0.frozen.lock().unwrap() = frozen;
        }

        fn is_frozen(&self) -> bool {
            *self.0.frozen.lock().unwrap()
        }

        fn is_moving(&self) -> bool {
            *self.0.moving.lock().unwrap()
        }
    }

    fn guest(may_answer: Option<Notify>) -> (Fake, mpsc::UnboundedReceiver<&'static str>) {
        let (told, heard) = mpsc::unbounded_channel();
        let inner = Inner {
            told,
            answer: Lock::default(),
            may_answer,
            frozen: Lock::default(),
            moving: Lock::default(),
        };
        (Fake(Arc::new(inner)), heard)
    }

    const LIMIT: Option<Duration> = Some(Duration::from_secs(300));

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_gives_up_leaves_the_timer_running() {
        let (guest, mut heard) = guest(Some(Notify::new()));
        let freezes = Freezes::default();
        let call = tokio::spawn({
            let (freezes, guest) = (freezes.clone(), guest.clone());
            async move { freezes.freeze(guest, LIMIT).await }
        });
        assert_eq!(heard.recv().await, Some(FREEZE));
        call.abort();
        assert!(call.await.unwrap_err().is_cancelled());
        let gate = guest.0.may_answer.as_ref().unwrap();
        gate.notify_one();
        assert_eq!(heard.recv().await, Some(THAW));
        assert!(guest.is_frozen());
        gate.notify_one();
        drop(freezes.0.lock().await);
        assert!(!guest.is_frozen());
    }

    #[tokio::test(start_paused = true)]
    async fn an_old_timer_does_not_end_a_newer_freeze() {
        let (guest, mut heard) = guest(None);
        let freezes = Freezes::default();
        freezes.freeze(guest.clone(), LIMIT).await.unwrap();
        freezes.thaw(guest.clone()).await.unwrap();
        freezes.freeze(guest.clone(), None).await.unwrap();
        sleep(Duration::from_secs(1000)).await;
        assert!(guest.is_frozen());
        let mut commands = Vec::new();
        while let Ok(command) = heard.try_recv() {
            commands.push(command);
        }
        assert_eq!(commands, [FREEZE, THAW, FREEZE]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_guest_that_did_not_answer_is_thawed_and_one_that_refused_is_left_alone() {
        let (guest, mut heard) = guest(None);
        let freezes = Freezes::default();
        let (action, message) = ("ask the guest agent", String::new());
        *guest.0.answer.lock().unwrap() = Some(HypervisorError::Silent { action, message: message.clone() });
        freezes.freeze(guest.clone(), LIMIT).await.unwrap_err();
        assert_eq!((heard.recv().await, heard.recv().await), (Some(FREEZE), Some(THAW)));
        *guest.0.answer.lock().unwrap() = Some(HypervisorError::Refused { action, message });
        freezes.freeze(guest.clone(), LIMIT).await.unwrap_err();
        assert_eq!(heard.recv().await, Some(FREEZE));
        sleep(Duration::from_secs(1000)).await;
        heard.try_recv().unwrap_err();
    }

    #[tokio::test(start_paused = true)]
    async fn a_frozen_guest_can_be_frozen_again_and_its_time_limit_is_kept_or_renewed() {
        let (guest, mut heard) = guest(None);
        let freezes = Freezes::default();
        freezes.freeze(guest.clone(), LIMIT).await.unwrap();
        let (action, message) =
            ("ask the guest agent", "Command guest-fsfreeze-freeze has been disabled".into());
        *guest.0.answer.lock().unwrap() = Some(HypervisorError::Refused { action, message });
        let begin = tokio::time::Instant::now();
        freezes.freeze(guest.clone(), None).await.unwrap();
        let longer = Duration::from_secs(400);
        freezes.freeze(guest.clone(), Some(longer)).await.unwrap();
        for told in [FREEZE, FREEZE, FREEZE, THAW] {
            assert_eq!(heard.recv().await, Some(told));
        }
        assert!(begin.elapsed() >= longer);
        drop(freezes.0.lock().await);
        assert!(!guest.is_frozen());
        freezes.freeze(guest.clone(), None).await.unwrap_err();
    }

    #[tokio::test(start_paused = true)]
    async fn a_guest_that_was_reset_is_not_thawed() {
        let (guest, mut heard) = guest(None);
        Freezes::default().freeze(guest.clone(), LIMIT).await.unwrap();
        assert_eq!(heard.recv().await, Some(FREEZE));
        guest.set_frozen(false);
        sleep(Duration::from_secs(1000)).await;
        heard.try_recv().unwrap_err();
    }

    #[tokio::test(start_paused = true)]
    async fn a_guest_that_is_frozen_or_may_be_does_not_move() {
        let (guest, mut heard) = guest(Some(Notify::new()));
        let freezes = Freezes::default();
        let gate = guest.0.may_answer.as_ref().unwrap();
        drop(freezes.none(&guest).unwrap());
        // While the agent is at it, while it lasts, and not after its time limit.
        let call = tokio::spawn({
            let (freezes, guest) = (freezes.clone(), guest.clone());
            async move { freezes.freeze(guest, LIMIT).await }
        });
        assert_eq!(heard.recv().await, Some(FREEZE));
        assert!(matches!(freezes.none(&guest), Err(FreezeError::Busy)));
        gate.notify_one();
        call.await.unwrap().unwrap();
        assert!(matches!(freezes.none(&guest), Err(FreezeError::Frozen)));
        assert_eq!(heard.recv().await, Some(THAW));
        gate.notify_one();
        drop(freezes.0.lock().await);
        drop(freezes.none(&guest).unwrap());
        // An agent that did not answer may have frozen the guest, until the timer has thawed it.
        let (action, message) = ("ask the guest agent", String::new());
        *guest.0.answer.lock().unwrap() = Some(HypervisorError::Silent { action, message });
        gate.notify_one();
        freezes.freeze(guest.clone(), LIMIT).await.unwrap_err();
        assert_eq!(heard.recv().await, Some(FREEZE));
        assert!(!guest.is_frozen());
        assert!(matches!(freezes.none(&guest), Err(FreezeError::Frozen)));
        assert_eq!(heard.recv().await, Some(THAW));
        gate.notify_one();
        drop(freezes.0.lock().await);
        drop(freezes.none(&guest).unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_that_moves_is_not_frozen() {
        let (guest, mut heard) = guest(None);
        let freezes = Freezes::default();
        *guest.0.moving.lock().unwrap() = true;
        assert!(matches!(freezes.freeze(guest.clone(), LIMIT).await, Err(FreezeError::Moves)));
        heard.try_recv().unwrap_err();
        assert!(!guest.is_frozen());
        *guest.0.moving.lock().unwrap() = false;
        freezes.freeze(guest.clone(), LIMIT).await.unwrap();
        assert_eq!(heard.recv().await, Some(FREEZE));
    }
}
