//! The settings of the KubeVirt object that every daemon carries out for itself: how much it logs, and how long certificates
//! live.

use podvirt_api::v1::KubeVirt;
use podvirt_api::verbosity::Component;

use crate::pki::{Policies, PolicySource};
use crate::telemetry::Logs;

/// Carries the settings out: the daemon hands it each version of the KubeVirt object.
#[derive(Debug)]
pub struct Settings {
    daemon: Component,
    logs: Logs,
    policies: PolicySource,
}

impl Settings {
    /// The settings of `daemon`, whose log is `logs`, and the lives of certificates that follow them.
    pub fn new(daemon: Component, logs: Logs) -> (Self, Policies) {
        let (source, policies) = Policies::follow();
        (Self { daemon, logs, policies: source }, policies)
    }

    /// Takes what the KubeVirt object says now; defaults where there is none.
    pub fn take(&self, kubevirt: Option<&KubeVirt>) {
        let configuration = kubevirt.and_then(|kubevirt| kubevirt.spec.configuration.as_ref());
        self.logs.set(self.daemon.verbosity(configuration));
        self.policies.take(kubevirt);
    }
}
