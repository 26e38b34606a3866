//! Lives of the certificates, as the KubeVirt object says them now.

use std::time::Duration;

use podvirt_api::rotation::{Life, Rotation};
use podvirt_api::v1::KubeVirt;
use tokio::sync::watch;

/// Longest time that a new CA is given to reach every reader. A watch takes less than a second; a daemon that lost its
/// connection takes a minute or so.
const DISTRIBUTION: Duration = Duration::from_secs(120);
/// Longest time between two looks at what is stored.
const LOOK: Duration = Duration::from_secs(60);

/// Spans of the certificates' lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Of a CA.
    pub ca: Life,
    /// Of a leaf.
    pub leaf: Life,
    /// How long after a new CA was made its first leaves may be signed: the time every reader has to take the
    /// new bundle. It is a part of the time that is left to an old leaf, and to its CA, when they are replaced, and of the time
    /// until the new CA is replaced itself.
    pub distribution: Duration,
    /// How long an old CA stays trusted at least after a new one was made. The nodes' leaves, which are in no Secret, are
    /// renewed within this time.
    pub overlap: Duration,
}

impl From<Rotation> for Policy {
    fn from(rotation: Rotation) -> Self {
        let left = rotation.ca.renew_before.min(rotation.server.renew_before);
        // A CA that is replaced before it may sign its first leaf never signs one, and neither does the next CA.
        let first = rotation.ca.duration.saturating_sub(rotation.ca.renew_before);
        Policy {
            ca: rotation.ca,
            leaf: rotation.server,
            distribution: DISTRIBUTION.min(left.min(first) / 2),
            overlap: rotation.overlap,
        }
    }
}

impl Default for Policy {
    /// Upstream's lives: a week for the CA, a day for the leaves.
    fn default() -> Self {
        Rotation::default().into()
    }
}

impl Policy {
    /// What a KubeVirt object says; the default where there is none.
    pub fn of(kubevirt: Option<&KubeVirt>) -> Self {
        let strategy = kubevirt.and_then(|kubevirt| kubevirt.spec.certificate_rotate_strategy.as_ref());
        let said = strategy.and_then(|strategy| strategy.self_signed.as_ref());
        said.map(Rotation::of).unwrap_or_default().into()
    }

    /// How often the stored certificates are looked at: several times while one that is due is still valid, and between a
    /// CA's first leaves and its replacement.
    pub(super) fn look(&self) -> Duration {
        LOOK.min(self.distribution / 2)
    }
}

/// The policy as the KubeVirt object says it now; all clones see the same one.
///
/// Until the KubeVirt object has been read, no policy is known and the default does not stand in for it: by the default a
/// certificate with a longer life, which the object allows, would be replaced.
#[derive(Clone, Debug)]
pub struct Policies(watch::Receiver<Option<Policy>>);

/// The sending end of [`Policies`]: a daemon hands it each version of the KubeVirt object.
#[derive(Debug)]
pub struct PolicySource(watch::Sender<Option<Policy>>);

impl PolicySource {
    /// Takes what the KubeVirt object says now.
    pub fn take(&self, kubevirt: Option<&KubeVirt>) {
        let policy = Policy::of(kubevirt);
        let changed = self.0.send_if_modified(|known| known.replace(policy) != Some(policy));
        if changed && self.0.receiver_count() > 0 {
            tracing::info!(?policy, "lives of the certificates");
        }
    }
}

impl Policies {
    /// A policy that never changes.
    pub fn fixed(policy: Policy) -> Self {
        Self(watch::channel(Some(policy)).1)
    }

    /// Policies that follow a source, which knows nothing yet.
    pub fn follow() -> (PolicySource, Self) {
        let (sender, receiver) = watch::channel(None);
        (PolicySource(sender), Self(receiver))
    }

    /// The policy; waits until it is known.
    pub async fn get(&mut self) -> Policy {
        // When the source is gone, the last policy holds on. Where there never was one, the process is ending.
        let known = self.0.wait_for(Option::is_some).await.ok().and_then(|policy| *policy);
        match known {
            Some(policy) => policy,
            None => std::future::pending().await,
        }
    }

    /// The policy, if it is known.
    pub(super) fn now(&self) -> Option<Policy> {
        *self.0.borrow()
    }

    /// Waits until there is another policy than the one that was seen last.
    pub(super) async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_policy_comes_from_the_object_and_leaves_time_for_a_new_ca() {
        let object = |lives| -> KubeVirt {
            let spec = json!({"certificateRotateStrategy": {"selfSigned": lives}});
            serde_json::from_value(json!({"metadata": {"name": "kubevirt"}, "spec": spec})).unwrap()
        };
        assert_eq!(Policy::of(None), Policy::default());
        assert_eq!(Policy::of(Some(&object(json!({})))), Policy::default());
        let lives = json!({"ca": {"duration": "20m", "renewBefore": "12m"},
            "server": {"duration": "14m", "renewBefore": "2m"}});
        let policy = Policy::of(Some(&object(lives)));
        assert_eq!(policy.ca.duration, Duration::from_secs(20 * 60));
        assert_eq!(policy.distribution, Duration::from_secs(60));
        assert_eq!(policy.look(), Duration::from_secs(30));
        assert_eq!(Policy::default().look(), Duration::from_secs(60));
    }

    #[tokio::test]
    async fn a_policy_is_waited_for_and_a_change_is_told_once() {
        let (source, mut policies) = Policies::follow();
        assert_eq!(policies.now(), None);
        let waiting = tokio::spawn({
            let mut policies = policies.clone();
            async move { policies.get().await }
        });
        source.take(None);
        assert_eq!(waiting.await.unwrap(), Policy::default());
        policies.changed().await;
        source.take(None);
        assert!(!policies.0.has_changed().unwrap(), "nothing else is said");
        drop(source);
        assert_eq!(policies.get().await, Policy::default());
    }
}
