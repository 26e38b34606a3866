//! How a machine's end is told: by the last report to the handler, and by the exit code to the pod.
//!
//! A pod fails when its launcher ends with another code than 0. The kubelet keeps its reason for ending a pod (an eviction)
//! only with a pod that fails. So a launcher that was told to end, and whose guest obeyed in time, does not end with 0,
//! unless it knows that the VMI is being deleted: no reason is needed then, and the pod has done what it was for.

use podvirt_api::names::pod::ENDED_WITH_POD;
use podvirt_proto::domain::{Status, reason};

use super::shared::{Facts, Final};
use crate::life::Ending;

/// How the machine of a pod ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct End {
    /// How it ended.
    pub ending: Ending,
    /// Whether it ended because the launcher was told to end, and not because the VMI is being deleted.
    pub with_pod: bool,
}

impl End {
    /// The end of a machine, of which `facts` are known now.
    pub(super) fn new(ending: Ending, facts: &Facts) -> End {
        let told = facts.stop_requested && !facts.deleted;
        let by_order = matches!(ending, Ending::ShutDown | Ending::Killed | Ending::Destroyed);
        End { with_pod: told && by_order, ending }
    }

    /// The launcher's exit code. A machine that never ran has not succeeded: its pod was taken away under it.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match &self.ending {
            Ending::NeverStarted => 1,
            Ending::ShutDown if self.with_pod => ENDED_WITH_POD,
            other => other.exit_code(),
        }
    }

    /// The machine's last state in the words of the report, with what QEMU has written at its end.
    pub(super) fn last_state(&self, panicked: bool, emulator_output: Option<&str>) -> Final {
        let (status, reason) = match self.ending {
            Ending::ShutDown => (Status::Shutoff, reason::SHUTDOWN),
            Ending::Migrated => (Status::Shutoff, reason::MIGRATED),
            Ending::Crashed if panicked => (Status::Crashed, reason::PANICKED),
            Ending::Crashed => (Status::Crashed, reason::CRASHED),
            Ending::Killed | Ending::Destroyed => (Status::Shutoff, reason::DESTROYED),
            Ending::NeverStarted | Ending::NeverCame | Ending::FailedToStart(_) | Ending::Lost => {
                (Status::Shutoff, reason::FAILED)
            }
        };
        let message = match emulator_output {
            Some(output) => format!("{}; the end of QEMU's log: {output}", self.ending),
            None => self.ending.to_string(),
        };
        Final { status, reason, message, with_pod: self.with_pod }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endings_decide_between_success_and_failure() {
        let cases = [
            (Ending::ShutDown, false, Status::Shutoff, reason::SHUTDOWN, 0),
            (Ending::Crashed, false, Status::Crashed, reason::CRASHED, 3),
            (Ending::Crashed, true, Status::Crashed, reason::PANICKED, 3),
            (Ending::Killed, false, Status::Shutoff, reason::DESTROYED, 4),
            (Ending::Lost, false, Status::Shutoff, reason::FAILED, 6),
            (Ending::Migrated, false, Status::Shutoff, reason::MIGRATED, 0),
            (Ending::NeverCame, false, Status::Shutoff, reason::FAILED, 0),
            (Ending::NeverStarted, false, Status::Shutoff, reason::FAILED, 1),
            (Ending::FailedToStart("no".into()), false, Status::Shutoff, reason::FAILED, 1),
        ];
        for (ending, panicked, status, reason, code) in cases {
            let end = End::new(ending, &Facts::default());
            let last = end.last_state(panicked, None);
            assert_eq!((last.status, last.reason, end.exit_code()), (status, reason, code), "{end:?}");
            assert!(!last.with_pod, "the launcher was not told to end");
            let with_output = end.last_state(panicked, Some("an assertion failed")).message;
            assert_eq!(with_output, format!("{}; the end of QEMU's log: an assertion failed", last.message));
        }
    }

    #[test]
    fn a_pod_that_is_told_to_end_fails_with_its_machine_unless_the_vmi_is_deleted() {
        let told = Facts { stop_requested: true, ..Facts::default() };
        let deleted = Facts { deleted: true, ..told.clone() };
        // Exit code and whether it ended with the pod, by what is known.
        for (ending, with_told, with_deleted) in [
            (Ending::ShutDown, (7, true), (0, false)),
            (Ending::Killed, (4, true), (4, false)),
            (Ending::Destroyed, (5, true), (5, false)),
            // What is not the pod's doing stays what it is.
            (Ending::Migrated, (0, false), (0, false)),
            (Ending::NeverCame, (0, false), (0, false)),
            (Ending::NeverStarted, (1, false), (1, false)),
            (Ending::Crashed, (3, false), (3, false)),
        ] {
            for (facts, expected) in [(&told, with_told), (&deleted, with_deleted)] {
                let end = End::new(ending.clone(), facts);
                assert_eq!(
                    (end.exit_code(), end.last_state(false, None).with_pod),
                    expected,
                    "{end:?} {facts:?}"
                );
            }
        }
    }
}
