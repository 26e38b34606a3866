//! Phase and conditions of the KubeVirt object, in upstream's words: what `kubectl wait` and installers read.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use podvirt_api::v1::{
    KubeVirtCondition, KubeVirtConditionType as Type, KubeVirtPhase as Phase, KubeVirtStatus,
};

use crate::target::Target;

/// What a pass came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Everything is installed and does its work.
    Available,
    /// The same, but for nodes that have been away for long.
    AvailableBut {
        /// The nodes, in a sentence.
        absent: String,
    },
    /// Something is not there yet; `waits` says what.
    Waits {
        /// The daemons that are waited for, each with its numbers.
        waits: String,
        /// Why waiting will not help, when that is known.
        trouble: Option<String>,
    },
    /// The pass could not be carried out.
    Failed {
        /// A word for it.
        reason: &'static str,
        /// A sentence.
        message: String,
    },
    /// The KubeVirt object is being deleted; `waits` says what is still there.
    Deleting {
        /// What is still there.
        waits: String,
    },
    /// Nothing of podvirt is left.
    Deleted,
}

/// Reason of what is refused because of the KubeVirt object itself.
pub const INVALID: &str = "InvalidConfiguration";
/// Reason of a version that is not installed.
pub const DOWNGRADE: &str = "DowngradeRefused";
/// Reason of an installation that is KubeVirt's own.
pub const KUBEVIRT_INSTALLED: &str = "KubeVirtInstalled";
/// Reason of nodes that have been away for long.
pub const NODES_ABSENT: &str = "NodesNotReady";
/// Reason of a pass that failed.
pub const FAILED: &str = "DeploymentFailed";
/// Reason of a removal that failed.
pub const DELETION_FAILED: &str = "DeletionFailed";
/// Reason of everything being ready.
pub const READY: &str = "AllComponentsReady";
const CREATED: &str = "AllResourcesCreated";
const DEPLOYING: &str = "DeploymentInProgress";
const UPDATING: &str = "UpdateInProgress";
const DELETING: &str = "DeletionInProgress";

const TRUE: &str = "True";
const FALSE: &str = "False";

/// The status that follows from what a pass came to.
pub fn after(
    old: &KubeVirtStatus,
    generation: Option<i64>,
    target: &Target,
    own_version: &str,
    outcome: &Outcome,
    now: &Time,
) -> KubeVirtStatus {
    let mut status = old.clone();
    status.operator_version = Some(own_version.to_owned());
    status.default_architecture = Some("amd64".to_owned());
    if !matches!(outcome, Outcome::Deleting { .. } | Outcome::Deleted) {
        status.target_kube_virt_version = Some(target.version.clone());
        status.target_kube_virt_registry = Some(target.registry.clone());
        status.target_deployment_id = Some(target.id.clone());
    }
    let mut conditions = Conditions { list: &mut status.conditions, now };
    match outcome {
        Outcome::Available | Outcome::AvailableBut { .. } => {
            conditions.remove(&Type::Synchronized);
            conditions.set(Type::Created, TRUE, CREATED, "All resources were created.");
            let message = "All components are ready.";
            if let Outcome::AvailableBut { absent } = outcome {
                conditions.set(Type::Available, TRUE, READY, message);
                conditions.set(Type::Progressing, FALSE, READY, message);
                conditions.set(Type::Degraded, TRUE, NODES_ABSENT, absent);
            } else {
                conditions.three([TRUE, FALSE, FALSE], READY, message);
            }
            status.phase = Some(Phase::Deployed);
            status.observed_kube_virt_version = Some(target.version.clone());
            status.observed_kube_virt_registry = Some(target.registry.clone());
            status.observed_deployment_id = Some(target.id.clone());
            status.observed_generation = generation;
        }
        Outcome::Waits { waits, trouble } => {
            let observed = old.observed_kube_virt_version.as_deref().unwrap_or_default();
            let updates = !observed.is_empty() && observed != target.version;
            let (to, registry) = (&target.version, &target.registry);
            let mut message = if updates {
                conditions.remove(&Type::Created);
                format!("Updating from version {observed} to version {to} with registry {registry}: {waits}")
            } else {
                format!("Deploying version {to} with registry {registry}: {waits}")
            };
            if let Some(trouble) = trouble {
                message = format!("{message}: {trouble}");
                conditions.set(Type::Synchronized, FALSE, FAILED, &message);
            } else {
                conditions.remove(&Type::Synchronized);
            }
            // While an update is under way the old version goes on serving.
            let available = if updates { TRUE } else { FALSE };
            let degraded = if updates || trouble.is_some() { TRUE } else { FALSE };
            let reason = match (trouble, updates) {
                (Some(_), _) => FAILED,
                (None, true) => UPDATING,
                (None, false) => DEPLOYING,
            };
            conditions.three([available, TRUE, degraded], reason, &message);
            if status.phase.is_none() {
                status.phase = Some(Phase::Deploying);
            }
        }
        Outcome::Failed { reason, message } => {
            conditions.set(Type::Synchronized, FALSE, reason, message);
            // A pass that fails takes nothing away from what runs.
            if old.phase != Some(Phase::Deployed) && *reason != DELETION_FAILED {
                conditions.three([FALSE, FALSE, TRUE], reason, message);
            } else if *reason == FAILED {
                conditions.set(Type::Degraded, TRUE, reason, message);
            }
            if status.phase.is_none() {
                status.phase = Some(Phase::Deploying);
            }
        }
        Outcome::Deleting { .. } | Outcome::Deleted => {
            conditions.remove(&Type::Created);
            conditions.remove(&Type::Synchronized);
            let message = match outcome {
                Outcome::Deleting { waits } => format!("Deletion was triggered, {waits}"),
                _ => "Deletion was triggered, nothing is left".to_owned(),
            };
            conditions.three([FALSE, FALSE, TRUE], DELETING, &message);
            let deleted = *outcome == Outcome::Deleted;
            status.phase = Some(if deleted { Phase::Deleted } else { Phase::Deleting });
        }
    }
    status
}

struct Conditions<'a> {
    list: &'a mut Vec<KubeVirtCondition>,
    now: &'a Time,
}

impl Conditions<'_> {
    fn remove(&mut self, kind: &Type) {
        self.list.retain(|condition| condition.r#type != *kind);
    }

    /// Available, Progressing and Degraded.
    fn three(&mut self, statuses: [&str; 3], reason: &str, message: &str) {
        for (kind, status) in [Type::Available, Type::Progressing, Type::Degraded].into_iter().zip(statuses) {
            self.set(kind, status, reason, message);
        }
    }

    /// Sets a condition; its times move only with what they are of.
    fn set(&mut self, kind: Type, status: &str, reason: &str, message: &str) {
        let time = || Some(Some(self.now.clone()));
        let there = self.list.iter_mut().find(|condition| condition.r#type == kind);
        let Some(condition) = there else {
            self.list.push(KubeVirtCondition {
                r#type: kind,
                status: status.to_owned(),
                last_probe_time: time(),
                last_transition_time: time(),
                reason: Some(reason.to_owned()),
                message: Some(message.to_owned()),
            });
            return;
        };
        let text = |text: &str| Some(text.to_owned());
        if condition.status != status {
            condition.last_transition_time = time();
        } else if condition.reason.as_deref() == Some(reason) && condition.message.as_deref() == Some(message)
        {
            return;
        }
        condition.last_probe_time = time();
        condition.status = status.to_owned();
        (condition.reason, condition.message) = (text(reason), text(message));
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use podvirt_api::v1::KubeVirtSpec;

    use super::*;
    use crate::target::Own;

    fn target(version: &str) -> Target {
        let own = Own { operator_image: format!("r/virt-operator:{version}"), ..Own::default() };
        Target::of(&KubeVirtSpec::default(), &own)
    }

    fn at(seconds: i64) -> Time {
        Time(Timestamp::from_second(seconds).unwrap())
    }

    fn next(old: &KubeVirtStatus, version: &str, outcome: &Outcome, seconds: i64) -> KubeVirtStatus {
        after(old, Some(4), &target(version), version, outcome, &at(seconds))
    }

    fn told(status: &KubeVirtStatus) -> Vec<(String, String, String)> {
        let of = |c: &KubeVirtCondition| {
            (c.r#type.as_str().to_owned(), c.status.clone(), c.reason.clone().unwrap_or_default())
        };
        let mut list: Vec<_> = status.conditions.iter().map(of).collect();
        list.sort();
        list
    }

    fn three(statuses: [&str; 3], reason: &str) -> Vec<(String, String, String)> {
        let names = ["Available", "Degraded", "Progressing"].into_iter().zip(statuses);
        names.map(|(name, status)| (name.to_owned(), status.to_owned(), reason.to_owned())).collect()
    }

    fn waits(trouble: Option<&str>) -> Outcome {
        Outcome::Waits { waits: "Deployment virt-api: 0 of 2".into(), trouble: trouble.map(str::to_owned) }
    }

    #[test]
    fn an_installation_goes_from_deploying_to_deployed() {
        let status = next(&KubeVirtStatus::default(), "v1", &waits(None), 1);
        assert_eq!(status.phase, Some(Phase::Deploying));
        assert_eq!(told(&status), three(["False", "False", "True"], DEPLOYING));
        assert_eq!(status.observed_generation, None);
        let status = next(&status, "v1", &Outcome::Available, 2);
        assert_eq!(status.phase, Some(Phase::Deployed));
        let mut all = three(["True", "False", "False"], READY);
        all.insert(1, ("Created".into(), "True".into(), CREATED.into()));
        assert_eq!(told(&status), all);
        assert_eq!(status.observed_generation, Some(4));
        assert_eq!(status.observed_kube_virt_version.as_deref(), Some("v1"));
        assert_eq!(next(&status, "v1", &Outcome::Available, 3), status, "nothing changes, so no time does");
    }

    #[test]
    fn an_update_leaves_the_old_version_available_and_says_what_holds_it_up() {
        let old = next(&KubeVirtStatus::default(), "v1", &Outcome::Available, 1);
        let status = next(&old, "v2", &waits(None), 2);
        assert_eq!(told(&status), three(["True", "True", "True"], UPDATING));
        assert_eq!(status.phase, Some(Phase::Deployed));
        assert_eq!(status.target_kube_virt_version.as_deref(), Some("v2"));
        assert_eq!(status.observed_kube_virt_version.as_deref(), Some("v1"));
        let status = next(&status, "v2", &waits(Some("pod p: ImagePullBackOff: m")), 3);
        let condition = status.conditions.iter().find(|c| c.r#type == Type::Synchronized).unwrap();
        assert_eq!((condition.status.as_str(), condition.reason.as_deref()), ("False", Some(FAILED)));
        assert!(condition.message.as_deref().unwrap().ends_with("pod p: ImagePullBackOff: m"));
        let degraded = status.conditions.iter().find(|c| c.r#type == Type::Degraded).unwrap();
        assert_eq!(degraded.last_transition_time, Some(Some(at(2))), "it was degraded before");
        let back = next(&status, "v1", &Outcome::Available, 4);
        assert_eq!(told(&back), told(&old));
    }

    #[test]
    fn what_is_refused_leaves_what_runs() {
        let old = next(&KubeVirtStatus::default(), "v2", &Outcome::Available, 1);
        let refused = Outcome::Failed { reason: DOWNGRADE, message: "older".into() };
        let status = next(&old, "v1", &refused, 2);
        assert!(told(&status).contains(&("Available".into(), "True".into(), READY.into())));
        assert!(told(&status).contains(&("Synchronized".into(), "False".into(), DOWNGRADE.into())));
        let first = next(
            &KubeVirtStatus::default(),
            "v1",
            &Outcome::Failed { reason: INVALID, message: "m".into() },
            1,
        );
        assert!(told(&first).contains(&("Available".into(), "False".into(), INVALID.into())));
    }

    #[test]
    fn nodes_that_are_away_leave_the_installation_available_and_degraded() {
        let absent = Outcome::AvailableBut { absent: "node n1 is away".into() };
        let status = next(&KubeVirtStatus::default(), "v1", &absent, 1);
        let words = told(&status);
        assert!(words.contains(&("Available".into(), "True".into(), READY.into())), "{words:?}");
        assert!(words.contains(&("Degraded".into(), "True".into(), NODES_ABSENT.into())), "{words:?}");
        assert!(status.observed_deployment_id.is_some(), "the next step may begin");
        assert_eq!(next(&status, "v1", &absent, 2), status);
        let back = next(&status, "v1", &Outcome::Available, 3);
        assert!(told(&back).contains(&("Degraded".into(), "False".into(), READY.into())));
    }

    #[test]
    fn a_deletion_says_what_is_left() {
        let old = next(&KubeVirtStatus::default(), "v1", &Outcome::Available, 1);
        let status = next(&old, "v1", &Outcome::Deleting { waits: "3 kinds are left".into() }, 2);
        assert_eq!(told(&status), three(["False", "True", "False"], DELETING));
        assert_eq!(status.phase, Some(Phase::Deleting));
        assert_eq!(next(&status, "v1", &Outcome::Deleted, 3).phase, Some(Phase::Deleted));
    }
}
