//! Asks this node's launchers what their machines have used.
//!
//! A few are asked at a time, since an answer takes memory before it is known to be short; each has the same deadline. A launcher
//! that hangs costs its own series: those that did not answer in the last round are asked last, so that they have each other wait.
//! Every client that reaches the port can have the launchers asked, so there is one round at a time, and a scrape that comes
//! meanwhile or right after it gets its reports.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use podvirt_api::v1::{
    VirtualMachineInstance, VirtualMachineInstanceConditionType as Condition,
    VirtualMachineInstancePhase as Phase,
};
use prometheus_client::encoding::text::encode_registry;
use prometheus_client::registry::Registry;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::debug;

use super::families::Reports;
use super::{Filesystems, Report, labels};
use crate::launcher::client::{Client, Error, Question};
use crate::node::Store;
use crate::sockets::PodVolumes;

/// How long a launcher may take.
const DEADLINE: Duration = Duration::from_secs(5);
/// How long a round may take. A collector of metrics waits ten seconds by default.
const ROUND_DEADLINE: Duration = Duration::from_secs(8);
/// Launchers that are asked at a time.
const MAX_LAUNCHERS_AT_ONCE: usize = 16;
/// How long the guest's agent may take beside that: file systems are left out then.
const AGENT: Duration = Duration::from_secs(4);
/// How long the reports of a round are good for another scrape.
const FRESH: Duration = Duration::from_secs(1);

/// Asks launchers. Clones share the last round.
#[derive(Clone, Debug)]
pub struct Statistics {
    node: String,
    store: Store,
    volumes: PodVolumes,
    deadline: Duration,
    last: Arc<Mutex<Option<Round>>>,
}

/// What the launchers told when they were last asked.
#[derive(Debug)]
struct Round {
    at: Instant,
    reports: Arc<[Report]>,
    /// Pods whose launchers did not answer, by their UIDs.
    silent: HashSet<String>,
}

impl Statistics {
    /// For the machines in `store` that run on `node`.
    pub fn new(node: String, store: Store, volumes: PodVolumes) -> Self {
        Self { node, store, volumes, deadline: DEADLINE, last: Arc::default() }
    }

    /// The same with another deadline for each launcher.
    #[must_use]
    pub fn with_deadline(self, deadline: Duration) -> Self {
        Self { deadline, ..self }
    }

    /// The families of all machines whose launchers answer, in the OpenMetrics text format without its end.
    ///
    /// # Errors
    ///
    /// They cannot be written as text.
    pub async fn text(&self) -> Result<String, fmt::Error> {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Reports(self.reports().await)));
        let mut text = String::new();
        encode_registry(&mut text, &registry)?;
        Ok(text)
    }

    /// What the launchers tell.
    async fn reports(&self) -> Arc<[Report]> {
        let mut last = self.last.lock().await;
        if let Some(round) = last.as_ref().filter(|round| round.at.elapsed() < FRESH) {
            return Arc::clone(&round.reports);
        }
        // Memory of the last round is given back before another one takes some.
        let silent = last.take().map(|round| round.silent).unwrap_or_default();
        let machines = self.store.all().into_iter();
        let mut machines: Vec<_> = machines.filter_map(|vmi| Some((self.running(&vmi)?, vmi))).collect();
        machines.sort_by_key(|(pod, _)| silent.contains(pod));

        let mut unanswered: HashSet<String> = machines.iter().map(|(pod, _)| pod.clone()).collect();
        let mut reports = Vec::new();
        let asked = machines.into_iter().map(|(pod, vmi)| async move {
            let answer = self.query(&pod, &vmi).await;
            (pod, answer)
        });
        let mut answers =
            std::pin::pin!(futures::stream::iter(asked).buffer_unordered(MAX_LAUNCHERS_AT_ONCE));
        let end = Instant::now() + ROUND_DEADLINE;
        while let Ok(Some((pod, answer))) = timeout_at(end, answers.next()).await {
            if let Some(report) = answer {
                unanswered.remove(&pod);
                // No machine: it ends, or is yet to start.
                reports.extend(Some(report).filter(|report| !report.stats.name.is_empty()));
            }
        }
        reports.sort_by(|a, b| a.labels.cmp(&b.labels));
        let reports: Arc<[Report]> = reports.into();
        *last = Some(Round { at: Instant::now(), reports: Arc::clone(&reports), silent: unanswered });
        reports
    }

    /// Asks one launcher; `None` where it does not answer in time, or not with statistics.
    async fn query(&self, pod: &str, vmi: &VirtualMachineInstance) -> Option<Report> {
        let name = vmi.metadata.name.as_deref();
        match timeout(self.deadline, query_launcher(&self.volumes, pod, &self.node, vmi)).await {
            Ok(Ok(report)) => Some(report),
            Ok(Err(error)) => {
                debug!(
                    vmi = name,
                    error = &error as &dyn std::error::Error,
                    "the launcher tells no statistics"
                );
                None
            }
            Err(_) => {
                debug!(vmi = name, "the launcher tells no statistics in time");
                None
            }
        }
    }

    /// UID of the pod of a VMI whose machine runs here.
    fn running(&self, vmi: &VirtualMachineInstance) -> Option<String> {
        let is_here = vmi.status.node_name.as_deref() == Some(self.node.as_str());
        let runs = vmi.status.phase == Some(Phase::Running);
        self.store.pod(vmi.metadata.uid.as_deref()?).filter(|_| is_here && runs)
    }
}

async fn query_launcher(
    volumes: &PodVolumes,
    pod: &str,
    node: &str,
    vmi: &VirtualMachineInstance,
) -> Result<Report, Error> {
    let (client, _ended) = Client::connect(volumes, pod).await?;
    let has_agent = vmi
        .status
        .conditions
        .iter()
        .any(|condition| condition.r#type == Condition::AgentConnected && condition.status == "True");
    let filesystems = async {
        if !has_agent {
            return Filesystems::default();
        }
        let told = timeout(AGENT, client.ask(Question::Filesystems)).await;
        let list = told.ok().and_then(Result::ok).and_then(|json| serde_json::from_str(&json).ok());
        list.unwrap_or_default()
    };
    let (stats, filesystems) = tokio::join!(client.statistics(), filesystems);
    Ok(Report::new(labels(node, vmi), stats?, filesystems))
}
