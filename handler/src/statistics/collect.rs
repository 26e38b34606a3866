//! Asks this node's launchers what their machines have used.
//!
//! All are asked at once, each with the same deadline: a launcher that hangs costs its own series. Every client that
//! reaches the port can have the launchers asked, so there is one round at a time, and a scrape that comes meanwhile or right
//! after it gets its reports.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use podvirt_api::v1::{
    VirtualMachineInstance, VirtualMachineInstanceConditionType as Condition,
    VirtualMachineInstancePhase as Phase,
};
use prometheus_client::encoding::text::encode_registry;
use prometheus_client::registry::Registry;
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tracing::debug;

use super::families::Reports;
use super::{Report, labels};
use crate::launcher::client::{Client, Error, Question};
use crate::node::Store;
use crate::sockets::PodVolumes;

/// How long a launcher may take. A collector of metrics waits ten seconds by default.
const DEADLINE: Duration = Duration::from_secs(5);
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
    reports: Vec<Report>,
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
    async fn reports(&self) -> Vec<Report> {
        let mut last = self.last.lock().await;
        if let Some(round) = last.as_ref().filter(|round| round.at.elapsed() < FRESH) {
            return round.reports.clone();
        }
        let mut asked = JoinSet::new();
        for vmi in self.store.all() {
            let Some(pod) = self.running(&vmi) else { continue };
            let (volumes, node, deadline) = (self.volumes.clone(), self.node.clone(), self.deadline);
            asked.spawn(async move {
                let name = vmi.metadata.name.clone();
                match timeout(deadline, ask(&volumes, &pod, &vmi)).await {
                    Ok(Ok(mut report)) => {
                        report.labels = labels(&node, &vmi);
                        // No machine: it ends, or is yet to start.
                        Some(report).filter(|report| !report.stats.name.is_empty())
                    }
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
            });
        }
        let mut reports = Vec::new();
        while let Some(ended) = asked.join_next().await {
            reports.extend(ended.ok().flatten());
        }
        reports.sort_by(|a, b| a.labels.cmp(&b.labels));
        *last = Some(Round { at: Instant::now(), reports: reports.clone() });
        reports
    }

    /// UID of the pod of a VMI whose machine runs here.
    fn running(&self, vmi: &VirtualMachineInstance) -> Option<String> {
        let is_here = vmi.status.node_name.as_deref() == Some(self.node.as_str());
        let runs = vmi.status.phase == Some(Phase::Running);
        self.store.pod(vmi.metadata.uid.as_deref()?).filter(|_| is_here && runs)
    }
}

/// Asks one launcher.
async fn ask(volumes: &PodVolumes, pod: &str, vmi: &VirtualMachineInstance) -> Result<Report, Error> {
    let (client, _ended) = Client::connect(volumes, pod).await?;
    let has_agent = vmi
        .status
        .conditions
        .iter()
        .any(|condition| condition.r#type == Condition::AgentConnected && condition.status == "True");
    let filesystems = async {
        if !has_agent {
            return Vec::new();
        }
        let told = timeout(AGENT, client.ask(Question::Filesystems)).await;
        let list = told.ok().and_then(Result::ok).and_then(|json| serde_json::from_str(&json).ok());
        list.unwrap_or_default()
    };
    let (stats, filesystems) = tokio::join!(client.statistics(), filesystems);
    Ok(Report { labels: Vec::new(), stats: stats?, filesystems })
}
