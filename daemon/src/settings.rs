//! What of the KubeVirt object is a daemon's own: how long certificates live.

use podvirt_api::v1::KubeVirt;

use crate::pki::{Policies, PolicySource};

/// Where each version of the KubeVirt object is told.
#[derive(Debug)]
pub struct Settings {
    policies: PolicySource,
}

impl Settings {
    /// The settings of a daemon, and the lives of certificates that follow them.
    pub fn new() -> (Self, Policies) {
        let (source, policies) = Policies::follow();
        (Self { policies: source }, policies)
    }

    /// Takes what the KubeVirt object says now; defaults where there is none.
    pub fn take(&self, kubevirt: Option<&KubeVirt>) {
        self.policies.take(kubevirt);
    }
}
