//! Attempts to bring an object where it belongs: counted, told when they fail, and made again later each time.

use std::error::Error;

use kube::ResourceExt;
use kube::runtime::controller::Action as Requeue;
use podvirt_daemon::backoff::Backoff;
use tracing::Instrument;

use crate::metrics::Metrics;

/// Why an attempt failed.
pub(crate) trait Failure: Error + 'static {
    /// What failed, for the metric's label `result`.
    fn label(&self) -> &'static str;
}

/// How the attempt to carry out a decision went, for a condition that tells of failures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// There was none: something is waited for.
    Waited,
    /// It succeeded, or there was nothing to do.
    Done,
    /// It failed.
    Failed {
        /// Reason of the condition.
        reason: &'static str,
        /// Why, for people.
        message: String,
    },
}

/// The attempts of one controller.
#[derive(Debug)]
pub(crate) struct Attempts {
    controller: &'static str,
    metrics: Metrics,
    /// By UID: another object of the same name starts anew.
    backoff: Backoff<String>,
}

impl Attempts {
    /// None yet; `controller` names them in logs and metrics.
    pub(crate) fn new(controller: &'static str, metrics: Metrics) -> Self {
        Self { controller, metrics, backoff: Backoff::default() }
    }

    /// Makes one, for `object`, in a span that names it.
    ///
    /// # Errors
    /// What `work` fails with.
    pub(crate) async fn make<E: Failure>(
        &self,
        object: &impl ResourceExt,
        work: impl Future<Output = Result<Requeue, E>>,
    ) -> Result<Requeue, E> {
        let uid = object.uid().unwrap_or_default();
        let span = tracing::info_span!(
            "reconcile",
            controller = self.controller,
            namespace = object.namespace(),
            name = object.name_any(),
            uid
        );
        let result = work.instrument(span).await;
        self.metrics.reconciled(self.controller, result.as_ref().err().map(E::label));
        if result.is_ok() {
            self.backoff.forget(&uid);
        }
        result
    }

    /// Tells that the last one for `object` failed, and says when to make the next.
    pub(crate) fn failed(&self, object: &impl ResourceExt, error: &impl Failure) -> Requeue {
        let delay = self.backoff.failed(object.uid().unwrap_or_default());
        tracing::warn!(
            controller = self.controller,
            namespace = object.namespace(),
            name = object.name_any(),
            retry_s = delay.as_secs_f32(),
            error = error as &dyn Error,
            "reconciliation failed"
        );
        Requeue::requeue(delay)
    }

    /// Forgets an object that is gone.
    pub(crate) fn forget(&self, uid: &String) {
        self.backoff.forget(uid);
    }
}
